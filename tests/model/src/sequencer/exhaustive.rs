//! Every state of some shards, with the whole protocol and with each part of it left out.

use super::model::{Faults, Offer, Policy, Sequencer};
use super::{Part, Reference, Settings, Sink};
use crate::explore::{WEDGE, explore};

const LIMIT: usize = 2_000_000;

fn shard(quantum: u32) -> Reference {
    Reference::new(Settings { quantum, capacity: 3, lease_ms: 0 })
}

/// Two objects, two workers; freezing, lost replies and calls that come late.
fn workers() -> Sequencer {
    Sequencer {
        objects: vec![
            (1, Policy::Block, vec![Offer::Accept(2), Offer::Accept(1)]),
            (2, Policy::Block, vec![Offer::Accept(1)]),
        ],
        workers: 2,
        max_attempts: 1,
        faults: Faults { refusals: 1, frozen: 1, lost: 1, late: 1, ..Faults::default() },
        shard: shard(2),
    }
}

/// One object that skips and one that parks, with a backend that does everything that a backend can do.
fn backends() -> Sequencer {
    Sequencer {
        objects: vec![
            (1, Policy::Skip, vec![Offer::Accept(2), Offer::Accept(1)]),
            (2, Policy::Park, vec![Offer::Accept(2)]),
        ],
        workers: 2,
        max_attempts: 1,
        faults: Faults { refusals: 1, unconfirmed: 1, slow: 1, frozen: 1, ..Faults::default() },
        shard: shard(1),
    }
}

/// Three workers that all freeze, for one event after the other of one object.
fn crashes() -> Sequencer {
    Sequencer {
        objects: vec![(1, Policy::Skip, vec![Offer::Accept(1), Offer::Accept(2)])],
        workers: 3,
        max_attempts: 2,
        faults: Faults { refusals: 2, unconfirmed: 1, frozen: 3, ..Faults::default() },
        shard: shard(2),
    }
}

/// One object that parks, whose operator may unpark or skip at any time, and workers whose leases run out under them.
fn operators() -> Sequencer {
    Sequencer {
        objects: vec![(1, Policy::Park, vec![Offer::Accept(1), Offer::Accept(1)])],
        workers: 2,
        max_attempts: 2,
        faults: Faults { refusals: 2, frozen: 1, lost: 1, late: 1, overruns: 1, ..Faults::default() },
        shard: shard(2),
    }
}

/// An object without a backend: its events go through the outbox, and others are published directly at the same time.
fn outbox() -> Sequencer {
    let mut shard = shard(1);
    shard.set_sink(1, Sink::Bus);
    let calls =
        vec![Offer::Accept(1), Offer::PutOut(2), Offer::Accept(1), Offer::PutOut(1), Offer::Accept(2)];
    Sequencer {
        objects: vec![(1, Policy::Block, calls), (2, Policy::Block, vec![Offer::Accept(2)])],
        workers: 1,
        max_attempts: 1,
        faults: Faults { refusals: 1, frozen: 1, lost: 1, ..Faults::default() },
        shard,
    }
}

fn holds(name: &str, model: &Sequencer) {
    match explore(model, LIMIT) {
        Ok(report) => println!("{name}: {report}"),
        Err(found) => panic!("{name}: {found}"),
    }
}

/// Leaves out a part, and expects one of the predicates to fall.
#[track_caller]
fn falls(part: Part, model: Sequencer, predicate: &str) {
    let shard = model.shard.clone().without(Some(part));
    let found = explore(&Sequencer { shard, ..model }, LIMIT).expect_err("nothing was found");
    println!("without {part:?}: {found}");
    assert_eq!(found.violation.predicate, predicate, "{found}");
}

#[test]
fn workers_that_freeze_and_lose_replies_keep_the_order() {
    holds("workers", &workers());
}

#[test]
fn backends_that_fail_in_every_way_get_every_event_or_a_gap() {
    holds("backends", &backends());
}

#[test]
fn an_object_survives_all_its_workers() {
    holds("crashes", &crashes());
}

#[test]
fn a_parked_object_is_finished_by_its_operator() {
    holds("operators", &operators());
}

#[test]
fn a_direct_publish_never_overtakes_an_outbox() {
    holds("outbox", &outbox());
}

#[test]
fn without_comparing_the_epoch_an_old_call_settles_a_new_visit() {
    falls(Part::Epoch, workers(), "O5");
}

#[test]
fn without_comparing_the_worker_nothing_falls_as_long_as_an_epoch_is_given_out_once() {
    // It is compared all the same: a failover that lost the last writes may give out an epoch twice.
    let model = crashes();
    let shard = model.shard.clone().without(Some(Part::Holder));
    holds("crashes, worker not compared", &Sequencer { shard, ..model });
}

#[test]
fn without_naming_the_event_a_repeated_commit_settles_the_next_one() {
    falls(Part::EventId, workers(), "O9");
}

#[test]
fn without_the_flight_slot_a_crash_loses_the_event() {
    falls(Part::Flight, workers(), "O9");
}

#[test]
fn without_answering_a_repeated_take_a_worker_holds_two() {
    falls(Part::OwnLease, workers(), "O11");
}

#[test]
fn without_the_sweep_a_dead_worker_blocks_its_object() {
    falls(Part::Sweep, workers(), "O7");
}

#[test]
fn without_the_end_of_a_retry_a_failed_object_stalls() {
    falls(Part::Wake, workers(), WEDGE);
}

#[test]
fn without_returning_to_the_head_order_is_lost() {
    falls(Part::Head, workers(), "O1");
}

#[test]
fn without_checking_its_readiness_an_object_is_ready_twice() {
    falls(Part::ReadyOnce, workers(), "O12");
}

#[test]
fn without_checking_its_lease_an_object_is_both_ready_and_leased() {
    falls(Part::ReadyIfIdle, workers(), "O6");
}

#[test]
fn without_becoming_ready_again_the_rest_of_a_visit_is_forgotten() {
    falls(Part::ReadyAgain, backends(), "O6");
}

#[test]
fn without_becoming_ready_on_accept_an_object_is_never_taken() {
    falls(Part::ReadyOnAccept, workers(), "O6");
}

#[test]
fn without_the_quantum_a_hot_object_keeps_others_waiting() {
    falls(Part::Quantum, workers(), "bound");
}

#[test]
fn without_a_gap_a_skipped_event_is_a_hole() {
    falls(Part::Gap, backends(), "O3");
}

#[test]
fn without_naming_the_event_a_repeated_skip_drops_another() {
    // Even though only what waits is ever skipped: by the time of the repeat the next event may wait.
    falls(Part::SkipNamesEvent, Sequencer { max_attempts: 1, ..operators() }, "O9");
}

#[test]
fn without_going_behind_a_direct_publish_overtakes() {
    falls(Part::Behind, outbox(), "O1");
}

#[test]
fn without_fixing_prev_at_acceptance_it_changes() {
    falls(Part::PrevAtAccept, backends(), "O2");
}

#[test]
fn without_staying_parked_a_new_event_wakes_the_object() {
    falls(Part::ParkedStays, Sequencer { objects: parked(), ..backends() }, "O6");
}

/// An event is accepted while the object is parked.
fn parked() -> Vec<(u32, Policy, Vec<Offer>)> {
    vec![(1, Policy::Park, vec![Offer::Accept(1), Offer::Accept(1)])]
}
