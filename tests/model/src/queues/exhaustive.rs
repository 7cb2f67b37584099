//! Every state of some queues, with the whole protocol and with each part of it left out.

use super::model::{Action, Queues};
use super::{Part, Settings, Tenant};
use crate::explore::{WEDGE, explore};

const LIMIT: usize = 2_000_000;

fn settings(weights: &[(Tenant, u32)]) -> Settings {
    Settings { lease_ms: 0, weights: weights.iter().copied().collect(), ..Settings::default() }
}

/// Three tenants with different weights, whose messages are forgotten as they are pulled; two of them are paused and
/// resumed, or given another weight.
fn fair() -> Queues {
    let usual = settings(&[(1, 2)]);
    let paused = settings(&[(1, 0), (2, 3), (3, 2)]);
    Queues {
        settings: vec![usual.clone(), paused],
        operations: [1, 0, 0],
        pulls: vec![Action::PullAutoAck],
        ..Queues::new(usual, &[(1, 4), (2, 3), (3, 2)])
    }
}

/// Three tenants whose messages are returned.
fn returned() -> Queues {
    Queues { nacks: [1, 0], ..Queues::new(settings(&[(1, 2)]), &[(1, 2), (2, 1), (3, 1)]) }
}

/// Limits in flight and in attempts, delays, dead consumers, and an operator who throws things away.
fn limited() -> Queues {
    let usual = Settings { in_flight_limit: Some(1), max_attempts: Some(2), ..settings(&[(1, 2)]) };
    let wider = Settings { in_flight_limit: Some(2), ..usual.clone() };
    Queues {
        settings: vec![usual.clone(), wider],
        operations: [1, 1, 1],
        nacks: [1, 1],
        pulls: vec![Action::Pull, Action::PullLost],
        ..Queues::new(usual, &[(1, 2), (2, 1)])
    }
}

fn holds(name: &str, model: &Queues) {
    match explore(model, LIMIT) {
        Ok(report) => println!("{name}: {report}"),
        Err(found) => panic!("{name}: {found}"),
    }
}

/// Leaves out a part, and expects one of the predicates to fall.
#[track_caller]
fn falls(part: Part, model: Queues, predicate: &str) {
    let queue = model.queue.clone().without(Some(part));
    let found = explore(&Queues { queue, ..model }, LIMIT).expect_err("nothing was found");
    println!("without {part:?}: {found}");
    assert_eq!(found.violation.predicate, predicate, "{found}");
}

/// One tenant has a rate, one its own limit of messages in flight. Messages are delayed when they are published, and
/// rejected.
fn ruled() -> Queues {
    let ruled =
        Settings { rates: [(1, 1_000)].into(), limits: [(2, 1)].into(), ..settings(&[(1, 2), (2, 2)]) };
    Queues {
        extras: [1, 1],
        settings: vec![ruled.clone(), settings(&[])],
        operations: [1, 0, 0],
        ..Queues::new(ruled, &[(1, 2), (2, 2)])
    }
}

/// At most one message of a tenant waits: the oldest is dropped.
fn bounded() -> Queues {
    let bounded =
        Settings { max_waiting: Some(1), drops: true, max_attempts: Some(2), ..settings(&[(1, 2)]) };
    Queues { extras: [1, 0], nacks: [1, 0], ..Queues::new(bounded, &[(1, 3), (2, 2)]) }
}

#[test]
fn rates_limits_delays_and_rejections_lose_nothing_and_are_fair() {
    holds("ruled", &ruled());
}

#[test]
fn a_bounded_queue_drops_the_oldest_and_loses_nothing_else() {
    holds("bounded", &bounded());
}

#[test]
fn without_throttling_a_tenant_exceeds_its_rate() {
    falls(Part::Throttle, ruled(), "F8");
}

#[test]
fn without_joining_at_the_end_a_delayed_message_overtakes() {
    falls(Part::LaterTail, ruled(), "F4");
}

#[test]
fn three_tenants_are_served_fairly() {
    holds("fair", &fair());
}

#[test]
fn returned_messages_are_served_fairly_and_in_order() {
    holds("returned", &returned());
}

#[test]
fn limits_delays_and_operators_lose_nothing() {
    holds("limited", &limited());
}

#[test]
fn without_the_end_of_a_turn_others_starve() {
    falls(Part::Turn, fair(), "F3");
}

#[test]
fn without_entering_at_the_tail_others_starve() {
    falls(Part::Tail, fair(), "F3");
}

#[test]
fn without_leaving_the_ring_a_pull_finds_nothing() {
    falls(Part::Leave, fair(), "F2");
}

#[test]
fn without_entering_the_ring_a_message_is_not_seen() {
    falls(Part::Enter, fair(), "F2");
}

#[test]
fn without_evaluation_after_an_ack_a_limited_tenant_stalls() {
    falls(Part::EvaluateAfterAck, limited(), "F2");
}

#[test]
fn without_the_delivery_in_the_receipt_an_old_one_settles_a_new_pull() {
    falls(Part::Delivery, limited(), "F7");
}

#[test]
fn without_a_lease_a_crash_after_a_pull_loses_the_message() {
    falls(Part::Lease, limited(), "F7");
}

#[test]
fn without_the_sweep_a_dead_consumer_blocks_its_tenant() {
    falls(Part::Sweep, limited(), WEDGE);
}

#[test]
fn without_returning_to_the_head_order_is_lost() {
    falls(Part::Head, returned(), "F4");
}

#[test]
fn without_the_end_of_a_delay_a_message_is_never_redelivered() {
    falls(Part::Due, limited(), WEDGE);
}

#[test]
fn without_forgetting_the_turn_of_a_tenant_that_left_the_next_one_is_cut_short() {
    falls(Part::TurnReset, fair(), "F3");
}

#[test]
fn without_counting_an_expiry_the_gauges_drift() {
    falls(Part::CountExpiry, limited(), "F5");
}

#[test]
fn without_dropping_messages_in_flight_a_part_of_a_dropped_tenant_remains() {
    falls(Part::DropInFlight, limited(), "F1");
}

#[test]
fn without_evaluation_after_a_configuration_the_ring_is_wrong() {
    falls(Part::EvaluateAfterConfigure, fair(), "F2");
}
