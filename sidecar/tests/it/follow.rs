//! The follower on a real folder, compared with a model that knows every written line.
//!
//! Each line has its own key, so the test can check how often it was counted.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::Write,
    path::PathBuf,
    rc::Rc,
    time::Duration,
};

use proptest::prelude::*;
use signalbox_sidecar::{
    fold::Limits,
    follow::{Error, Follower, Step},
    place::Fingerprint,
};
use tempfile::TempDir;

use crate::{
    model::{Connection, Fault, Server},
    sample::line,
};

/// An operation on the log, the sidecar or its Redis.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Lines are written; `torn` leaves the beginning of one more, which the next write completes.
    Append {
        lines: u16,
        torn: bool,
    },
    /// An invalid line is written.
    Garbage,
    /// The log is renamed; nginx continues to write to it.
    Rename,
    /// nginx reopens the log.
    Reopen,
    /// One round of the follower after `ms`.
    Step {
        ms: u16,
    },
    /// Several rounds. With small parts, the next operation happens in the middle of a window.
    Steps(u8),
    /// Rounds until it is idle. Then everything on disk is counted.
    Drain,
    /// kill -9 and a new start. The old process may perform another round, as if it had only been paused.
    Restart {
        lingers: bool,
    },
    Fault(Fault),
    DeliverLate,
    /// Redis restarts and loses its last transactions.
    GoBack {
        transactions: u8,
    },
    /// The log is copied and truncated.
    CopyTruncate,
    /// The log is truncated.
    Truncate,
    /// The oldest rotated file is deleted.
    DeleteOldest,
    /// The log itself is deleted and created again, usually with the same inode.
    Replace,
}

fn op(destructive: bool) -> impl Strategy<Value = Op> {
    let fault = prop_oneof![
        Just(Fault::LostRequest),
        Just(Fault::LostReply),
        Just(Fault::Late),
        Just(Fault::Refused)
    ];
    let harmless = prop_oneof![
        8 => (0u16..40, any::<bool>()).prop_map(|(lines, torn)| Op::Append { lines, torn }),
        1 => (200u16..400).prop_map(|lines| Op::Append { lines, torn: false }),
        1 => Just(Op::Garbage),
        3 => Just(Op::Rename),
        4 => Just(Op::Reopen),
        8 => (0u16..3000).prop_map(|ms| Op::Step { ms }),
        6 => (1u8..60).prop_map(Op::Steps),
        2 => Just(Op::Drain),
        2 => any::<bool>().prop_map(|lingers| Op::Restart { lingers }),
        3 => fault.prop_map(Op::Fault),
        1 => Just(Op::DeliverLate),
        1 => (1u8..8).prop_map(|transactions| Op::GoBack { transactions }),
    ];
    let harmful =
        prop_oneof![Just(Op::CopyTruncate), Just(Op::Truncate), Just(Op::DeleteOldest), Just(Op::Replace)];
    let weight = if destructive { 3 } else { 0 };
    // A weight of zero is not permitted, so an operation without effect is used instead.
    prop_oneof![
        20 => harmless,
        weight.max(1) => if destructive { harmful.boxed() } else { Just(Op::Step { ms: 0 }).boxed() },
    ]
}

pub(crate) struct World {
    limits: Limits,
    folder: TempDir,
    pub(crate) server: Rc<RefCell<Server>>,
    pub(crate) follower: Follower<Connection>,
    /// Whether that process performed a step. Before its first step it has not taken over.
    claimed: bool,
    starts: u32,
    now: Duration,
    /// The file that nginx has open.
    open: Option<File>,
    /// The written part of an incomplete line.
    torn: Option<String>,
    written: u32,
    garbage: u64,
    rotated: u32,
    /// The minimum number of gaps that must be reported.
    gaps: u64,
}

impl World {
    fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        let folder = TempDir::new().unwrap();
        let server = Rc::new(RefCell::new(Server::default()));
        let log = folder.path().join("access.log");
        let follower = Follower::with_limits(log, Connection::new(&server, "0"), limits);
        Self {
            limits,
            folder,
            server,
            follower,
            claimed: false,
            starts: 0,
            now: Duration::from_secs(100),
            open: None,
            torn: None,
            written: 0,
            garbage: 0,
            rotated: 0,
            gaps: 0,
        }
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("access.log")
    }

    fn write(&mut self, text: &str) {
        let log = self.log();
        let open = || OpenOptions::new().append(true).create(true).open(log).unwrap();
        self.open.get_or_insert_with(open).write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn append(&mut self, lines: u16, torn: bool) {
        let mut text = self.torn.take().unwrap_or_default();
        for _ in 0..lines {
            text += &line(self.written);
            text.push('\n');
            self.written += 1;
        }
        self.write(&text);
        if torn {
            let next = line(self.written) + "\n";
            self.written += 1;
            let (begin, end) = next.split_at(next.len() / 2);
            self.write(begin);
            self.torn = Some(end.to_owned());
        }
    }

    fn next_rotated(&mut self) -> PathBuf {
        self.rotated += 1;
        self.folder.path().join(format!("access.log.{}", self.rotated))
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Append { lines, torn } => self.append(*lines, *torn),
            Op::Garbage => {
                self.append(0, false);
                self.garbage += 1;
                self.write(&format!("{{\"key\":\"broken {}\n", self.garbage));
            }
            Op::Rename => {
                let to = self.next_rotated();
                // logrotate's missingok ignores a missing file.
                drop(fs::rename(self.log(), to));
            }
            Op::Reopen => {
                // A partial line is completed in its own file.
                if let Some(rest) = self.torn.take() {
                    self.write(&rest);
                }
                self.open = Some(OpenOptions::new().append(true).create(true).open(self.log()).unwrap());
            }
            Op::Step { ms } => {
                self.now += Duration::from_millis(u64::from(*ms));
                drop(self.step());
            }
            Op::Steps(steps) => {
                for _ in 0..*steps {
                    self.now += Duration::from_millis(1);
                    drop(self.step());
                }
            }
            Op::Drain => self.drain(),
            Op::Restart { lingers } => self.restart(*lingers),
            Op::Fault(fault) => self.server.borrow_mut().fail_next(*fault),
            Op::DeliverLate => self.server.borrow_mut().deliver_late(),
            Op::GoBack { transactions } => {
                let mut server = self.server.borrow_mut();
                server.go_back(usize::from(*transactions));
                self.gaps = server.state.tally.gaps;
            }
            Op::CopyTruncate => {
                let copy = self.next_rotated();
                if fs::copy(self.log(), copy).is_ok() {
                    // The copy contains the lines of the original. If the original disappears before the next poll, the
                    // copy looks like a moved file, and no gap is detected.
                    self.truncate();
                }
            }
            Op::Truncate => {
                if self.stands_in_log() {
                    self.gaps = self.gaps.max(self.server.borrow().state.tally.gaps + 1);
                }
                self.truncate();
            }
            Op::DeleteOldest => {
                let oldest = (1..=self.rotated)
                    .map(|number| self.folder.path().join(format!("access.log.{number}")))
                    .find(|path| path.exists());
                if let Some(path) = oldest {
                    fs::remove_file(path).unwrap();
                }
            }
            Op::Replace => {
                drop(fs::remove_file(self.log()));
                self.torn = None;
                self.open = Some(OpenOptions::new().append(true).create(true).open(self.log()).unwrap());
            }
        }
    }

    fn truncate(&mut self) {
        let Ok(file) = OpenOptions::new().write(true).open(self.log()) else { return };
        file.set_len(0).unwrap();
        // The rest of a line without its beginning would be a bad line, which the model does not need.
        self.torn = None;
    }

    /// Whether the store's place is in the active log, which still has the same first line.
    fn stands_in_log(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let server = self.server.borrow();
        let place = &server.state.place;
        let inode = fs::metadata(self.log()).map(|metadata| metadata.ino()).ok();
        let first = fs::read(self.log()).ok().and_then(|content| Fingerprint::of(&content));
        place.position > 0 && place.file.map(|file| file.inode) == inode && first == place.fingerprint
    }

    /// Whether any file has the first line of the store's place.
    fn fingerprint_exists(&self) -> bool {
        let wanted = self.server.borrow().state.place.fingerprint;
        let first = |content: Vec<u8>| Fingerprint::of(&content);
        self.files().into_iter().any(|content| wanted.is_some() && first(content) == wanted)
    }

    fn files(&self) -> Vec<Vec<u8>> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect()
    }

    fn restart(&mut self, lingers: bool) {
        let server = self.server.borrow();
        // A late commit of the old process, which had read its file to the end, may still arrive before the new one claims the
        // log. Then nothing was lost.
        let is_lost = server.state.place.position > 0 && !server.has_late();
        drop(server);
        if is_lost && !self.fingerprint_exists() {
            self.gaps = self.gaps.max(self.server.borrow().state.tally.gaps + 1);
        }
        self.starts += 1;
        let connection = Connection::new(&self.server, self.starts.to_string());
        let new = Follower::with_limits(self.log(), connection, self.limits);
        let mut old = std::mem::replace(&mut self.follower, new);
        let old_claimed = std::mem::take(&mut self.claimed);
        if lingers && old_claimed && self.step().is_ok() {
            let before = self.server.borrow().state.tally;
            let step = old.step(self.now + Duration::from_secs(5));
            assert!(
                !matches!(step, Ok(Step { committed: true, .. })),
                "a sidecar that was replaced committed"
            );
            assert_eq!(self.server.borrow().state.tally, before);
        }
    }

    pub(crate) fn step(&mut self) -> Result<Step, Error> {
        let step = self.follower.step(self.now);
        assert!(!matches!(step, Err(Error::Fenced { .. } | Error::Log { .. })), "{step:?}");
        self.claimed |= step.is_ok();
        step
    }

    /// Runs without faults until the follower is idle. Then every existing line is counted.
    pub(crate) fn drain(&mut self) {
        self.drain_without_check();
        self.check();
    }

    pub(crate) fn drain_without_check(&mut self) {
        self.server.borrow_mut().heal();
        let mut resting = 0;
        for _ in 0..10_000 {
            self.now += Duration::from_millis(1_100);
            let step = self.step().expect("a step without faults");
            resting = if step.more || step.committed { 0 } else { resting + 1 };
            if resting == 4 {
                break;
            }
        }
        assert_eq!(resting, 4, "the follower never rests");
    }

    /// The keys of all lines that exist in any file.
    fn existing(&self) -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        for content in self.files() {
            let text = String::from_utf8(content).unwrap();
            let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
            for line in complete.lines() {
                if let Some(record) = signalbox_sidecar::line::parse(line.as_bytes()) {
                    keys.insert(record.key.into_owned());
                }
            }
        }
        keys
    }

    fn check(&self) {
        let server = self.server.borrow();
        let counted = &server.state.requests;
        let twice: BTreeMap<_, _> = counted.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "counted more than once: {twice:?}");
        let state = &server.state;
        assert_eq!(state.window, None, "a window is left under way");
        assert!(state.history.values().all(|times| *times == 1), "in the history more than once");
        // A line of a skipped window may be counted completely, in part, or not at all. The gap contains all its bytes.
        let existing = self.existing();
        let in_gaps = |keys: Vec<&String>| {
            let bytes: usize = keys.iter().map(|key| line(key).len() + 1).sum();
            state.given_up > 0 && bytes as u64 <= state.tally.gap_bytes
        };
        let missed: Vec<_> = existing.iter().filter(|key| !counted.contains_key(*key)).collect();
        assert!(missed.is_empty() || in_gaps(missed.clone()), "not counted: {missed:?} at {:?}", state.place);
        let half = counted.keys().filter(|key| !state.history.contains_key(*key));
        let half: Vec<_> =
            half.chain(state.history.keys().filter(|key| !counted.contains_key(*key))).collect();
        assert!(half.is_empty() || in_gaps(half.clone()), "totals and history disagree on {half:?}");
        assert!(state.tally.gaps >= state.given_up);
        if state.given_up == 0 {
            assert_eq!(state.tally.lines, counted.len() as u64);
        }
        assert!(state.tally.lines <= counted.len() as u64);
        assert!(server.state.tally.bad_lines <= self.garbage);
        assert!(
            server.state.tally.gaps >= self.gaps,
            "{} gaps admitted of {}",
            server.state.tally.gaps,
            self.gaps
        );
    }
}

fn run(ops: &[Op]) -> World {
    run_with(Limits::default(), ops)
}

/// Mostly small parts, so that nearly every window has many.
fn limits() -> impl Strategy<Value = Limits> {
    let part = prop_oneof![2 => Just(13), 2 => Just(60), 1 => Just(2_000)];
    let window = prop_oneof![Just(50), Just(700), Just(200_000)];
    let bytes = prop_oneof![Just(1), Just(2_000), Just(64 << 20)];
    (part, window, bytes).prop_map(|(part, window, window_bytes)| Limits { part, window, window_bytes })
}

fn run_with(limits: Limits, ops: &[Op]) -> World {
    let mut world = World::with_limits(limits);
    for op in ops {
        world.apply(op);
    }
    world.drain();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// Under all operations, no line is counted twice, every existing line is counted, and losses are reported.
    #[test]
    fn every_line_is_counted_once(limits in limits(), ops in proptest::collection::vec(op(true), 1..60)) {
        run_with(limits, &ops);
    }

    /// Without deletion and truncation, nothing is lost and no loss is reported.
    #[test]
    fn nothing_is_lost_by_rotation_restarts_and_faults(
        limits in limits(),
        ops in proptest::collection::vec(op(false), 1..60),
    ) {
        let world = run_with(limits, &ops);
        let server = world.server.borrow();
        let complete = world.written - u32::from(world.torn.is_some());
        prop_assert_eq!(server.state.requests.len() as u32, complete);
        prop_assert_eq!(server.state.tally.bad_lines, world.garbage);
        prop_assert_eq!(server.state.tally.gaps, 0);
    }
}

pub(crate) fn lines(lines: u16) -> Op {
    Op::Append { lines, torn: false }
}

#[test]
fn several_rotations_while_it_was_down() {
    let rotate = || [Op::Rename, Op::Reopen];
    let mut ops = vec![lines(5), Op::Drain, lines(5)];
    for _ in 0..5 {
        ops.extend(rotate());
        ops.push(lines(3));
    }
    ops.push(Op::Restart { lingers: false });
    let world = run(&ops);
    assert_eq!(world.server.borrow().state.tally.lines, 25);
    assert_eq!(world.server.borrow().state.tally.gaps, 0);
}

#[test]
fn lines_that_workers_still_write_to_the_renamed_file() {
    let ops = [lines(5), Op::Drain, Op::Rename, lines(2), Op::Drain, Op::Reopen, lines(1), Op::Drain];
    let mut world = run(&ops);
    // Long after the grace period and after the new file became current.
    let mut late = OpenOptions::new().append(true).open(world.folder.path().join("access.log.1")).unwrap();
    writeln!(late, "{}", line("late")).unwrap();
    world.drain();
    assert_eq!(world.server.borrow().state.requests.get("late"), Some(&1));
    assert_eq!(world.server.borrow().state.tally.lines, 9);
}

#[test]
fn a_deleted_file_that_is_open_is_read_to_its_end() {
    let mut world = run(&[lines(5)]);
    world.append(7, false);
    fs::remove_file(world.log()).unwrap();
    world.apply(&Op::Reopen);
    world.append(1, false);
    world.drain();
    assert_eq!(world.server.borrow().state.tally.lines, 13);
    assert_eq!(world.server.borrow().state.tally.gaps, 0);
}

#[test]
fn a_copy_is_read_from_where_the_original_was_left() {
    let world = run(&[lines(5), Op::Drain, lines(7), Op::CopyTruncate, lines(2)]);
    let server = world.server.borrow();
    assert_eq!(server.state.tally.lines, 14, "the seven lines are in the copy");
    assert_eq!(
        server.state.tally.gaps, 1,
        "lines between copy and truncation are not counted, and the loss is not detected"
    );
}

#[test]
fn a_truncated_log_is_a_gap_with_its_known_size() {
    let mut world = run(&[lines(5), Op::Drain]);
    world.append(1, false);
    let step = world.follower.step(world.now).unwrap();
    assert!(step.committed);
    world.append(2, false);
    let lost = 2 * (line(6).len() + 1) as u64;
    // Seen but not counted, because Redis was unavailable.
    for _ in 0..2 {
        world.server.borrow_mut().fail_next(Fault::LostRequest);
        assert!(world.follower.step(world.now).is_err());
    }
    world.apply(&Op::Truncate);
    world.append(1, false);
    world.drain();
    let tally = world.server.borrow().state.tally;
    assert_eq!((tally.lines, tally.gaps), (7, 1));
    assert!(tally.gap_bytes <= lost, "{} of {lost}", tally.gap_bytes);
}

#[test]
fn a_reused_inode_is_another_file() {
    let world = run(&[lines(5), Op::Drain, Op::Replace, lines(9), Op::Restart { lingers: false }]);
    assert_eq!(world.server.borrow().state.tally.lines, 14);
}

#[test]
fn reading_continues_after_a_log_lost_its_end() {
    let mut world = run(&[lines(5), Op::Drain]);
    let keep = 2 * (line(0).len() + 1) as u64;
    OpenOptions::new().write(true).open(world.log()).unwrap().set_len(keep).unwrap();
    assert!(world.step().unwrap().committed, "the gap is admitted without waiting for a line");
    world.append(3, false);
    world.drain_without_check();
    let tally = world.server.borrow().state.tally;
    assert_eq!((tally.lines, tally.gaps), (8, 1));
}

#[test]
fn a_position_without_a_file_belongs_to_the_active_log() {
    let world = World::new();
    let first = line("counted") + "\n";
    fs::write(world.log(), first.clone() + &line("new") + "\n").unwrap();
    world.server.borrow_mut().state.place.position = first.len() as u64;
    let mut world = world;
    let step = world.step().unwrap();
    assert!(step.committed);
    let server = world.server.borrow();
    assert_eq!(server.state.requests.keys().collect::<Vec<_>>(), ["new"]);
}

#[test]
fn a_line_longer_than_any_buffer_is_one_bad_line() {
    let mut world = World::new();
    world.append(2, false);
    let long = "x".repeat(3 << 20);
    world.write(&long);
    world.drain();
    assert_eq!(world.server.borrow().state.tally.lines, 2, "the long line is not complete yet");
    world.write(&format!("{long}\n"));
    world.garbage = 1;
    world.append(2, false);
    world.drain();
    let tally = world.server.borrow().state.tally;
    assert_eq!((tally.lines, tally.bad_lines), (4, 1));
}

#[test]
fn a_rejecting_store_delays_the_log_and_loses_nothing() {
    let mut world = run(&[lines(3), Op::Drain]);
    world.append(4, false);
    for _ in 0..3 {
        world.server.borrow_mut().fail_next(Fault::Refused);
        assert!(matches!(world.follower.step(world.now), Err(Error::Store(_))));
        assert_eq!(world.follower.lag_bytes(), 4 * (line(0).len() + 1) as u64, "and reports how much waits");
    }
    world.drain();
    assert_eq!(world.server.borrow().state.tally.lines, 7);
    assert_eq!(world.follower.lag_bytes(), 0);
}

#[test]
fn a_file_deleted_while_redis_is_unavailable_is_still_counted() {
    let mut world = run(&[lines(3), Op::Drain]);
    world.append(4, false);
    for now in 0..4 {
        world.server.borrow_mut().fail_next(Fault::LostRequest);
        assert!(world.follower.step(world.now + Duration::from_secs(now)).is_err());
    }
    fs::remove_file(world.log()).unwrap();
    world.apply(&Op::Reopen);
    world.append(1, false);
    world.drain();
    let tally = world.server.borrow().state.tally;
    assert_eq!((tally.lines, tally.gaps), (8, 0));
}

#[test]
fn a_log_that_begins_with_the_same_line_is_another_log() {
    let world = World::new();
    let text = line("same") + "\n";
    fs::write(world.log(), &text).unwrap();
    let mut world = world;
    world.drain();
    fs::rename(world.log(), world.folder.path().join("access.log.1")).unwrap();
    fs::write(world.log(), &text).unwrap();
    world.drain_without_check();
    assert_eq!(world.server.borrow().state.requests.get("same"), Some(&2));
}
