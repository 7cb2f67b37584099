//! Every fault between any two parts of a window.

use std::time::Duration;

use signalbox_sidecar::{
    commit::Window,
    fold::Limits,
    follow::{Error, Follower},
};

use crate::{
    follow::{Op, World, lines},
    model::{Connection, Fault},
    sample::line,
};

const LIMITS: Limits = Limits { part: 23, window: 200_000, window_bytes: 64 << 20 };
/// 15 lines of 20 increments each (a separate key, all three spans, and a bucket) and a rank, one of the instance that answered
/// all of them, and the sums over all of them, in parts of 23.
const LINES: u16 = 15;
const PARTS: u32 = 15;

/// A log of which `done` parts are counted, in addition to the move to its beginning.
fn in_mid_window(done: u32) -> World {
    let mut world = World::with_limits(LIMITS);
    world.append(LINES, false);
    for _ in 0..=done {
        assert!(world.step().unwrap().more);
    }
    assert_eq!(parts_done(&world), Some(done).filter(|done| *done > 0));
    world
}

fn parts_done(world: &World) -> Option<u32> {
    world.server.borrow().state.window.map(|window| window.done)
}

/// Drains, and asks for all lines with no gap.
fn all_are_counted(mut world: World, lines: u16) {
    world.drain();
    let tally = world.server.borrow().state.tally;
    assert_eq!((tally.lines, tally.gaps), (u64::from(lines), 0));
}

#[test]
fn a_window_takes_as_many_steps_as_it_has_parts() {
    let mut world = in_mid_window(PARTS - 1);
    assert_eq!(world.server.borrow().state.tally.lines, 0, "the lines count with the last part");
    // Newer lines wait for the next window.
    world.append(1, false);
    assert!(!world.step().unwrap().more, "and the rest between two windows is kept");
    assert_eq!(parts_done(&world), None);
    all_are_counted(world, LINES + 1);
}

#[test]
fn a_kill_between_any_two_parts() {
    for done in 0..PARTS {
        let mut world = in_mid_window(done);
        world.append(3, false);
        world.apply(&Op::Restart { lingers: false });
        let refolded = world.step().unwrap();
        assert!(refolded.committed && refolded.more);
        all_are_counted(world, LINES + 3);
    }
}

#[test]
fn a_lost_request_or_reply_in_any_part() {
    for done in 0..PARTS {
        for fault in [Fault::LostReply, Fault::LostRequest, Fault::Late, Fault::Refused] {
            let mut world = in_mid_window(done);
            world.apply(&Op::Fault(fault));
            assert!(world.step().is_err());
            drop(world.step());
            world.apply(&Op::DeliverLate);
            all_are_counted(world, LINES);
        }
    }
}

#[test]
fn a_redis_that_is_rolled_back_into_any_part() {
    for done in 0..PARTS {
        for back in 1..=3 {
            for restart in [false, true] {
                let mut world = in_mid_window(done);
                world.drain();
                world.append(2, false);
                let transactions = PARTS - done + back;
                world.apply(&Op::GoBack { transactions: u8::try_from(transactions).unwrap() });
                if restart {
                    world.apply(&Op::Restart { lingers: false });
                }
                all_are_counted(world, LINES + 2);
            }
        }
    }
}

#[test]
fn a_sidecar_that_is_replaced_in_mid_window_commits_no_further_part() {
    for done in 1..PARTS {
        let mut world = in_mid_window(done);
        let log = Connection::new(&world.server, "other");
        let mut other = Follower::with_limits(world.log(), log, LIMITS);
        assert!(other.step(Duration::from_secs(1)).unwrap().committed, "it continues with the next part");
        let before = world.server.borrow().state.clone();
        assert!(!world.follower.step(Duration::from_secs(200)).unwrap().committed);
        assert!(matches!(world.follower.step(Duration::from_secs(200)), Err(Error::Fenced { .. })));
        assert_eq!(world.server.borrow().state.window, before.window);
        assert_eq!(world.server.borrow().state.requests, before.requests);
        world.follower = other;
        all_are_counted(world, LINES);
    }
}

#[test]
fn a_rotation_in_mid_window() {
    for restart in [false, true] {
        let mut world = in_mid_window(4);
        for op in [lines(2), Op::Rename, Op::Reopen, lines(5)] {
            world.apply(&op);
        }
        if restart {
            world.apply(&Op::Restart { lingers: false });
        }
        all_are_counted(world, LINES + 7);
    }
}

#[test]
fn a_log_truncated_in_mid_window_is_counted_from_memory() {
    let mut world = in_mid_window(4);
    world.apply(&Op::Truncate);
    world.append(3, false);
    // After a lost reply, the missing lines are not read again.
    world.apply(&Op::Fault(Fault::LostReply));
    world.drain();
    let tally = world.server.borrow().state.tally;
    assert_eq!(
        (tally.lines, tally.gaps),
        (u64::from(LINES) + 3, 1),
        "the cut itself may have lost something"
    );
}

#[test]
fn a_copy_of_a_truncated_log_replaces_the_log() {
    let mut world = in_mid_window(4);
    for op in [Op::CopyTruncate, Op::Restart { lingers: false }, lines(3)] {
        world.apply(&op);
    }
    world.drain();
    let server = world.server.borrow();
    assert_eq!((server.state.tally.lines, server.state.given_up), (u64::from(LINES) + 3, 0));
}

/// Bytes of the first lines of a log.
fn bytes(lines: u16) -> u64 {
    (0..lines).map(|number| line(number).len() as u64 + 1).sum()
}

#[test]
fn a_window_with_missing_bytes_is_a_gap() {
    for done in 1..PARTS {
        let mut world = in_mid_window(done);
        world.apply(&Op::Truncate);
        world.append(3, false);
        world.apply(&Op::Restart { lingers: false });
        world.drain();
        let server = world.server.borrow();
        assert_eq!(server.state.given_up, 1);
        assert_eq!((server.state.tally.lines, server.state.tally.gap_bytes), (3, bytes(LINES)));
    }
}

#[test]
fn other_bytes_are_not_mistaken_for_the_window() {
    let mut world = in_mid_window(4);
    let text = std::fs::read_to_string(world.log()).unwrap();
    // The same first line and the same length, but another request in the middle.
    std::fs::write(world.log(), text.replacen("\"key\":\"7\"", "\"key\":\"X\"", 1)).unwrap();
    world.apply(&Op::Restart { lingers: false });
    world.drain_without_check();
    let server = world.server.borrow();
    assert_eq!((server.state.given_up, server.state.requests.get("X")), (1, None));
    assert_eq!(server.state.tally.gap_bytes, bytes(LINES));
}

#[test]
fn a_window_that_was_folded_differently_is_a_gap_and_never_counted_twice() {
    let mut world = in_mid_window(4);
    world.append(2, false);
    {
        let window = &mut world.server.borrow_mut().state.window;
        *window = window.map(|window| Window { format: window.format + 1, ..window });
    }
    world.apply(&Op::Restart { lingers: false });
    world.drain();
    let server = world.server.borrow();
    let tally = server.state.tally;
    assert_eq!((tally.lines, tally.gaps, tally.gap_bytes), (2, 1, bytes(LINES)));
    assert!(server.state.requests.len() < usize::from(LINES) + 2, "the parts that were done stay");
}

#[test]
fn a_position_that_was_adopted_names_its_file_before_a_window_begins() {
    let mut world = World::with_limits(LIMITS);
    world.append(LINES + 1, false);
    world.server.borrow_mut().state.place.position = bytes(1);
    for _ in 0..3 {
        assert!(world.step().unwrap().more);
    }
    assert!(parts_done(&world).is_some());
    world.apply(&Op::Restart { lingers: false });
    world.drain_without_check();
    let tally = world.server.borrow().state.tally;
    assert_eq!((tally.lines, tally.gaps), (u64::from(LINES), 0));
}
