//! Exact traces of the life of an object.

use super::{
    Committed, Event, Gap, Id, NewEvent, Object, Place, Reference, Refused, Settings, Sink, Skipped,
};
use super::{Standing, Taken, Visit, Worker};

const A: Object = 1;
const B: Object = 2;

fn accept(shard: &mut Reference, object: Object, ids: &[Id]) -> Vec<Event> {
    let events: Vec<_> = ids.iter().map(|id| NewEvent { id: *id, topic: u32::from(id % 2 == 0) }).collect();
    let accepted = shard.accept(object, &events).unwrap();
    shard.check().unwrap();
    accepted
}

fn take(shard: &mut Reference, worker: Worker) -> Visit {
    let Taken::New(visit) = shard.take(worker, 0) else { panic!("nothing new for {worker}: {shard:?}") };
    shard.check().unwrap();
    visit
}

fn commit(shard: &mut Reference, worker: Worker, visit: Visit) -> Committed {
    let committed = shard.commit(worker, visit.object, visit.epoch, visit.event.id, 0);
    shard.check().unwrap();
    committed
}

fn shard(quantum: u32) -> Reference {
    Reference::new(Settings { quantum, lease_ms: 10, capacity: 4 })
}

#[test]
fn prev_and_tprev_are_fixed_when_an_event_is_accepted() {
    let mut shard = shard(1);
    let events = accept(&mut shard, A, &[1, 2, 3]);
    accept(&mut shard, B, &[4]);
    let prevs: Vec<_> = events.iter().map(|event| (event.prev, event.tprev)).collect();
    assert_eq!(prevs, [(None, None), (Some(1), None), (Some(2), Some(1))]);
    assert_eq!(shard.last(A), Some(3));
}

#[test]
fn a_hot_object_gives_way_after_its_quantum() {
    let mut shard = shard(2);
    accept(&mut shard, A, &[1, 2, 3]);
    accept(&mut shard, B, &[4]);
    let first = take(&mut shard, 7);
    let Committed::Next(second) = commit(&mut shard, 7, first) else { panic!() };
    assert_eq!((second.event.id, second.epoch), (2, first.epoch));
    assert_eq!(commit(&mut shard, 7, second), Committed::Released);
    assert_eq!(shard.ready(), [B, A]);
    let other = take(&mut shard, 7);
    assert_eq!(commit(&mut shard, 7, other), Committed::Released);
    assert_eq!(shard.standing(B), Standing::Idle);
    assert_eq!(take(&mut shard, 7).event.id, 3);
}

#[test]
fn a_repeated_take_answers_with_what_the_worker_holds() {
    let mut shard = shard(1);
    accept(&mut shard, A, &[1]);
    accept(&mut shard, B, &[2]);
    let visit = take(&mut shard, 7);
    assert_eq!(shard.take(7, 5), Taken::Own(visit));
    assert_eq!(shard.ready(), [B]);
}

#[test]
fn a_worker_that_lost_its_lease_settles_nothing() {
    let mut shard = shard(1);
    accept(&mut shard, A, &[1, 2]);
    let old = take(&mut shard, 7);
    assert_eq!(shard.sweep(9), [0; 0]);
    assert_eq!(shard.sweep(10), [A]);
    assert_eq!(commit(&mut shard, 7, old), Committed::Stale);
    let new = take(&mut shard, 8);
    assert_eq!((new.event.id, new.attempts), (1, 2));
    assert_eq!(commit(&mut shard, 7, old), Committed::Stale);
    assert_eq!(shard.fail(7, A, old.epoch, 1, 99), Committed::Stale);
    assert!(!shard.renew(7, A, old.epoch, 1));
    assert!(shard.renew(8, A, new.epoch, 1));
    assert_eq!(shard.next_due_ms(), Some(11));
    assert_eq!(commit(&mut shard, 8, new), Committed::Released);
    assert_eq!(shard.ready(), [A]);
}

#[test]
fn a_repeated_commit_settles_nothing_more() {
    let mut shard = shard(5);
    accept(&mut shard, A, &[1, 2]);
    let visit = take(&mut shard, 7);
    assert!(matches!(commit(&mut shard, 7, visit), Committed::Next(_)));
    assert_eq!(commit(&mut shard, 7, visit), Committed::Stale);
    assert_eq!(shard.place_of(2), Some(Place::InFlight));
}

#[test]
fn a_failed_event_stays_the_first() {
    let mut shard = shard(5);
    accept(&mut shard, A, &[1, 2]);
    let visit = take(&mut shard, 7);
    assert_eq!(shard.fail(7, A, visit.epoch, 1, 50), Committed::Released);
    shard.check().unwrap();
    assert_eq!(shard.standing(A), Standing::Retry(50));
    accept(&mut shard, A, &[3]);
    assert_eq!(shard.take(7, 0), Taken::Nothing);
    assert_eq!(shard.sweep(50), [A]);
    assert_eq!(take(&mut shard, 7).event.id, 1);
}

#[test]
fn a_skipped_event_leaves_a_gap_that_the_next_event_reports() {
    let mut shard = shard(5);
    accept(&mut shard, A, &[1, 2, 3]);
    let visit = take(&mut shard, 7);
    let Committed::Next(second) = shard.give_up(7, A, visit.epoch, 1, 0) else { panic!() };
    assert_eq!(second.gap, Some(Gap { first: 1, last: 1, count: 1 }));
    let Committed::Next(third) = shard.give_up(7, A, visit.epoch, 2, 0) else { panic!() };
    assert_eq!(third.gap, Some(Gap { first: 1, last: 2, count: 2 }));
    assert_eq!(commit(&mut shard, 7, third), Committed::Released);
    assert_eq!(shard.gap(A), None);
    assert_eq!(shard.events_in(A, Place::Dead), [1, 2]);
}

#[test]
fn a_parked_object_waits_for_its_operator() {
    let mut shard = shard(5);
    accept(&mut shard, A, &[1, 2]);
    let visit = take(&mut shard, 7);
    assert_eq!(shard.park(7, A, visit.epoch, 1), Committed::Released);
    accept(&mut shard, A, &[3]);
    assert_eq!((shard.standing(A), shard.take(7, 0)), (Standing::Parked, Taken::Nothing));
    assert_eq!(shard.skip(A, 2), Skipped::Refused);
    assert_eq!(shard.unpark(B), Skipped::Refused);
    assert_eq!(shard.skip(A, 1), Skipped::Done);
    assert_eq!(shard.skip(A, 1), Skipped::Refused);
    shard.check().unwrap();
    let next = take(&mut shard, 7);
    assert_eq!((next.event.id, next.gap), (2, Some(Gap { first: 1, last: 1, count: 1 })));
}

#[test]
fn a_full_queue_takes_all_of_a_call_or_nothing() {
    let mut shard = shard(1);
    accept(&mut shard, A, &[1, 2, 3]);
    take(&mut shard, 7);
    let new = [4, 5].map(|id| NewEvent { id, topic: 0 });
    assert_eq!(shard.accept(A, &new), Err(Refused::Full));
    assert_eq!(shard.accept(A, &[NewEvent { id: 3, topic: 0 }]), Err(Refused::NotRising));
    assert_eq!(shard.last(A), Some(3));
    accept(&mut shard, A, &[4]);
}

#[test]
fn a_direct_publish_is_queued_behind_waiting_events() {
    let mut shard = shard(1);
    shard.set_sink(A, Sink::Bus);
    accept(&mut shard, A, &[1]);
    assert_eq!(shard.place_of(1), Some(Place::Published));
    shard.put_out(A, &[2, 3].map(|id| NewEvent { id, topic: 0 })).unwrap();
    accept(&mut shard, A, &[4]);
    assert_eq!(shard.place_of(4), Some(Place::Queued));
    let drained: Vec<_> = std::iter::from_fn(|| shard.drain(2)).flat_map(|(_, events)| events).collect();
    assert_eq!(drained.iter().map(|event| event.id).collect::<Vec<_>>(), [2, 3, 4]);
    shard.check().unwrap();
}

#[test]
fn ready_is_agreed_upon_only_where_the_order_is_free() {
    let mut shard = shard(1);
    for (object, id) in [(A, 1), (B, 2), (3, 3)] {
        accept(&mut shard, object, &[id]);
    }
    take(&mut shard, 7);
    take(&mut shard, 8);
    let swept = shard.sweep(10);
    assert_eq!(shard.ready(), [3, A, B]);
    assert!(shard.agree(&swept, &[A, B, 3]).is_err());
    shard.agree(&swept, &[3, B, A]).unwrap();
    assert_eq!(shard.ready(), [3, B, A]);
}
