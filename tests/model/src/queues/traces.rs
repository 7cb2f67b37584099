//! Exact traces of the order of pulls, which the real scripts have to follow as well.

use super::{Message, Place, Reference, Settings, Tenant, Verdict};

/// A queue with `count` messages in each tenant, pushed tenant by tenant and numbered `tenant * 100 + n`.
fn filled(settings: Settings, tenants: &[(Tenant, u64)]) -> Reference {
    let mut queue = Reference::new(settings);
    for (tenant, count) in tenants {
        for n in 0..*count {
            queue.push(*tenant, u64::from(*tenant) * 100 + n);
        }
    }
    queue.check().unwrap();
    queue
}

fn weights(weights: &[(Tenant, u32)]) -> Settings {
    Settings { weights: weights.iter().copied().collect(), ..Settings::default() }
}

/// Pulls one at a time, checking the predicates after each.
fn pull(queue: &mut Reference, count: usize) -> Vec<Message> {
    let mut pulled = Vec::new();
    for _ in 0..count {
        pulled.extend(queue.pull(1, false, 0).iter().map(|one| one.message));
        queue.check().unwrap();
    }
    pulled
}

fn ack(queue: &mut Reference, message: Message) -> Verdict {
    let receipt = queue.receipt_of(message).unwrap();
    let verdict = queue.ack(&[receipt])[0];
    queue.check().unwrap();
    verdict
}

fn nack(queue: &mut Reference, messages: &[Message], delay_ms: i64) {
    let receipts: Vec<_> = messages.iter().map(|message| queue.receipt_of(*message).unwrap()).collect();
    assert!(queue.nack(&receipts, delay_ms, 0).iter().all(|verdict| *verdict == Verdict::Done));
    queue.check().unwrap();
}

#[test]
fn round_robin_pulls_a_c_b() {
    let (a, b, c) = (1, 2, 3);
    let mut queue = Reference::new(Settings::default());
    queue.push(1, a);
    queue.push(1, b);
    queue.push(2, c);
    assert_eq!(pull(&mut queue, 4), [a, c, b]);
}

#[test]
fn one_call_pulls_as_many_calls_do() {
    let mut one = filled(weights(&[(2, 2)]), &[(1, 3), (2, 3), (3, 1)]);
    let mut many = one.clone();
    let at_once: Vec<_> = one.pull(10, false, 0).iter().map(|pulled| pulled.message).collect();
    assert_eq!(at_once, pull(&mut many, 10));
    assert_eq!(one, many);
}

#[test]
fn a_quiet_tenant_waits_for_one_message_of_a_noisy_one() {
    let mut queue = filled(Settings::default(), &[(1, 50)]);
    assert_eq!(pull(&mut queue, 2), [100, 101]);
    queue.push(2, 1_000);
    assert_eq!(pull(&mut queue, 3), [102, 1_000, 103]);
}

#[test]
fn a_weight_is_a_turn_of_that_many_messages() {
    let mut queue = filled(weights(&[(1, 3), (2, 1)]), &[(1, 5), (2, 3)]);
    assert_eq!(pull(&mut queue, 9), [100, 101, 102, 200, 103, 104, 201, 202]);
}

#[test]
fn the_rest_of_a_turn_is_not_kept_for_later() {
    let mut queue = filled(weights(&[(1, 3)]), &[(1, 1), (2, 2)]);
    assert_eq!(pull(&mut queue, 1), [100]);
    for n in 1..5 {
        queue.push(1, 1_000 + n);
    }
    // Tenant 1 ran empty after one of its three; its next turn is a whole one, behind tenant 2.
    assert_eq!(pull(&mut queue, 6), [200, 1_001, 1_002, 1_003, 201, 1_004]);
}

#[test]
fn a_raised_weight_lengthens_the_turn_that_runs_and_a_lowered_one_ends_it() {
    let mut queue = filled(weights(&[(1, 3)]), &[(1, 9), (2, 2)]);
    assert_eq!(pull(&mut queue, 2), [100, 101]);
    queue.configure(weights(&[(1, 4)]));
    assert_eq!(pull(&mut queue, 3), [102, 103, 200]);
    assert_eq!(pull(&mut queue, 2), [104, 105]);
    queue.configure(weights(&[(1, 2)]));
    assert_eq!(queue.ring(), [2, 1]);
    assert_eq!(pull(&mut queue, 3), [201, 106, 107]);
}

#[test]
fn weight_0_pauses_and_the_tenant_returns_at_the_tail() {
    let mut queue = filled(weights(&[(1, 0)]), &[(1, 2), (2, 3)]);
    assert_eq!(queue.ring(), [2]);
    assert_eq!(pull(&mut queue, 1), [200]);
    queue.push(3, 300);
    queue.configure(Settings::default());
    assert_eq!(queue.ring(), [2, 3, 1]);
    assert_eq!(pull(&mut queue, 6), [201, 300, 100, 202, 101]);
}

#[test]
fn pausing_in_the_middle_of_a_turn_ends_it() {
    let mut queue = filled(weights(&[(1, 3)]), &[(1, 5), (2, 2)]);
    assert_eq!(pull(&mut queue, 1), [100]);
    queue.configure(weights(&[(1, 0)]));
    assert_eq!(pull(&mut queue, 3), [200, 201]);
    queue.configure(weights(&[(1, 3)]));
    queue.push(2, 1_000);
    assert_eq!(pull(&mut queue, 9), [101, 102, 103, 1_000, 104]);
}

#[test]
fn a_tenant_at_its_limit_leaves_until_an_ack() {
    let settings = Settings { in_flight_limit: Some(2), default_weight: 5, ..Settings::default() };
    let mut queue = filled(settings, &[(1, 4), (2, 3)]);
    assert_eq!(pull(&mut queue, 9), [100, 101, 200, 201]);
    assert_eq!(queue.ring(), [0; 0]);
    assert_eq!(ack(&mut queue, 201), Verdict::Done);
    assert_eq!(ack(&mut queue, 100), Verdict::Done);
    assert_eq!(queue.ring(), [2, 1]);
    assert_eq!(pull(&mut queue, 9), [202, 102]);
}

#[test]
fn returned_messages_go_to_the_head_in_order_of_acceptance() {
    let mut queue = filled(Settings::default(), &[(1, 4)]);
    assert_eq!(pull(&mut queue, 3), [100, 101, 102]);
    nack(&mut queue, &[101, 100], 0);
    assert_eq!(queue.tenant(1).waiting, [100, 101, 103]);
    // Even if they are returned in several calls, and before messages that were never delivered.
    nack(&mut queue, &[102], 0);
    assert_eq!(pull(&mut queue, 4), [100, 101, 102, 103]);
}

#[test]
fn leases_that_expire_together_are_returned_together() {
    let mut queue = filled(Settings { lease_ms: 10, ..Settings::default() }, &[(1, 2), (2, 2)]);
    assert_eq!(queue.pull(3, false, 5).len(), 3);
    assert_eq!(queue.next_due_ms(), Some(15));
    assert_eq!(queue.sweep(14), 0);
    assert_eq!(queue.sweep(15), 3);
    queue.check().unwrap();
    assert_eq!(pull(&mut queue, 4), [200, 100, 201, 101]);
}

#[test]
fn a_delay_keeps_a_message_out_until_it_is_over() {
    let mut queue = filled(Settings::default(), &[(1, 2)]);
    assert_eq!(pull(&mut queue, 1), [100]);
    nack(&mut queue, &[100], 50);
    assert_eq!(queue.place_of(100), Some(Place::Delayed(50)));
    assert_eq!(pull(&mut queue, 2), [101]);
    assert_eq!(queue.sweep(50), 1);
    assert_eq!(pull(&mut queue, 2), [100]);
}

#[test]
fn a_receipt_is_good_for_one_pull_only() {
    let mut queue = filled(Settings { lease_ms: 10, ..Settings::default() }, &[(1, 1)]);
    let first = queue.pull(1, false, 0)[0].receipt;
    assert_eq!(queue.extend(&[first], 100, 5), [Verdict::Done]);
    assert_eq!(queue.sweep(104), 0);
    assert_eq!(queue.sweep(105), 1);
    let second = queue.pull(1, false, 105)[0].receipt;
    assert_eq!(queue.ack(&[first]), [Verdict::Stale]);
    assert_eq!(queue.extend(&[first], 100, 105), [Verdict::Stale]);
    assert_eq!(queue.ack(&[second, second]), [Verdict::Done, Verdict::Stale]);
    queue.check().unwrap();
    assert_eq!(queue.active(), [0; 0]);
}

#[test]
fn a_message_that_is_pulled_too_often_is_dead() {
    let mut queue = filled(Settings { max_attempts: Some(2), ..Settings::default() }, &[(1, 1)]);
    assert_eq!(pull(&mut queue, 1), [100]);
    nack(&mut queue, &[100], 0);
    assert_eq!(pull(&mut queue, 1), [100]);
    nack(&mut queue, &[100], 1_000);
    assert_eq!(queue.dead(), [100]);
    assert_eq!(queue.forget_dead(), 1);
    assert_eq!(queue.place_of(100), Some(Place::Dropped));
}

#[test]
fn a_dropped_tenant_takes_its_receipts_with_it_and_a_purged_one_does_not() {
    let mut queue = filled(Settings::default(), &[(1, 3), (2, 2)]);
    assert_eq!(pull(&mut queue, 2), [100, 200]);
    let receipt = queue.receipt_of(100).unwrap();
    assert_eq!(queue.purge(1), 2);
    queue.check().unwrap();
    assert_eq!(queue.tenant(1).in_flight, [100]);
    assert_eq!(queue.drop_tenant(1), 1);
    assert_eq!(queue.ack(&[receipt]), [Verdict::Stale]);
    queue.check().unwrap();
    assert_eq!((queue.active(), queue.ring()), (vec![2], vec![2]));
}

#[test]
fn auto_ack_forgets_immediately() {
    let mut queue = filled(Settings { in_flight_limit: Some(1), ..Settings::default() }, &[(1, 2)]);
    let pulled = queue.pull(5, true, 0);
    assert_eq!(pulled.iter().map(|one| one.message).collect::<Vec<_>>(), [100, 101]);
    assert_eq!(queue.place_of(100), Some(Place::Acked));
    queue.check().unwrap();
}

#[test]
fn a_ring_is_agreed_upon_only_where_the_order_is_free() {
    let mut queue = filled(weights(&[(1, 0), (2, 0)]), &[(1, 1), (2, 1), (3, 1)]);
    queue.configure(Settings::default());
    assert!(queue.agree(&[1, 3, 2]).is_err());
    assert!(queue.agree(&[3, 2, 2]).is_err());
    queue.agree(&[3, 2, 1]).unwrap();
    assert_eq!(queue.ring(), [3, 2, 1]);
}
