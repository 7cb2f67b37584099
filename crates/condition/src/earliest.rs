//! When a condition can first be true while nothing but time changes.
//!
//! Between two *turns* no test that reads the clock changes its result: a turn is a midnight, a literal time of day,
//! the end of a `passed since`, or a clock change of the zone. So it suffices to evaluate the condition at each of
//! them. The future value of a feed is unknown, so a test that reads one is possibly true at any moment.

use std::{collections::BTreeSet, ops::Range};

use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};

use crate::{
    Condition, Truth,
    evaluate::{MAX_COMPARED, Run, passed_at},
    facts::Facts,
    instant::TimeOfDay,
    possible::Possible,
    reads::any_path,
    tree::{Check, Operand, Path, Program, Property, Root, System, Test},
    value::Value,
};

/// The earliest time at which a condition can become true if only time passes. It is never too late: if
/// evaluations are skipped until then, none of them would have opened the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Earliest {
    /// At the time of the facts.
    Now,
    /// At this time.
    At(Timestamp),
    /// Not before this time, at which the search ended.
    NotBefore(Timestamp),
    /// Never, unless a value other than the time changes.
    Never,
}

/// Days that are searched for a condition on the time and the weekday: a week, plus days that a clock change
/// may hide.
const DAYS_OF_A_WEEK: u16 = 9;
/// Days that are searched at a time for a condition on the date.
const DAYS_OF_A_MONTH: u16 = 40;
/// Maximum number of turns that are evaluated; after that, the answer is "not before this one". Usual
/// conditions have about a hundred, but metadata may list thousands of times, and those must not occupy a
/// worker for seconds.
const MAX_TURNS: usize = 500;
/// Maximum number of times that the search considers. Metadata may contain thousands: with more, nothing is skipped, which
/// costs one evaluation per interval instead of a search.
const MAX_TIMES: usize = 200;

impl Condition {
    /// The earliest time, from that of `facts` on, at which the condition can be true if only time passes.
    pub fn earliest(&self, facts: &Facts<'_>) -> Earliest {
        let mut turns = Turns::default();
        turns.of_program(&self.program, facts);
        if turns.too_many {
            return Earliest::NotBefore(facts.now);
        }
        let mut starts = BTreeSet::from([facts.now]);
        starts.extend(turns.once.iter().copied().filter(|turn| *turn > facts.now));
        let starts: Vec<Timestamp> = starts.into_iter().collect();
        let mut left = Left { turns: MAX_TURNS, compared: MAX_COMPARED };
        for (n, start) in starts.iter().enumerate() {
            if !left.take_turn() {
                return Earliest::NotBefore(*start);
            }
            // Evaluated with any wall clock time: this quickly skips most periods in which a condition waits
            // for days.
            if !self.can_be_true(facts, *start, true, &mut left) {
                continue;
            }
            let end = starts.get(n + 1).copied();
            let found = if turns.wall_clock {
                self.in_days(facts, &turns, *start..end.unwrap_or(Timestamp::MAX), &mut left)
            } else {
                Some(Earliest::At(*start))
            };
            match found {
                Some(Earliest::At(at)) if at == facts.now => return Earliest::Now,
                Some(found) => return found,
                None => {}
            }
        }
        Earliest::Never
    }

    /// Searches the days of a period in which only the wall clock changes.
    fn in_days(
        &self,
        facts: &Facts<'_>,
        turns: &Turns,
        stretch: Range<Timestamp>,
        left: &mut Left,
    ) -> Option<Earliest> {
        if self.can_be_true(facts, stretch.start, false, left) {
            return Some(Earliest::At(stretch.start));
        }
        let days = if turns.date { DAYS_OF_A_MONTH } else { DAYS_OF_A_WEEK };
        let (moments, horizon) = turns.of_days(facts.zone, stretch.start, days);
        let within = |at: &Timestamp| *at > stretch.start && *at < stretch.end && *at <= horizon;
        for at in moments.into_iter().filter(within) {
            if !left.take_turn() {
                return Some(Earliest::NotBefore(at));
            }
            if self.can_be_true(facts, at, false, left) {
                return Some(Earliest::At(at));
            }
        }
        (horizon < stretch.end).then_some(Earliest::NotBefore(horizon))
    }

    fn can_be_true(&self, facts: &Facts<'_>, at: Timestamp, any_wall_clock: bool, left: &mut Left) -> bool {
        let facts = if at == facts.now { facts.clone() } else { facts.at(at) };
        let leaf = &mut |test: &Test| {
            let open =
                any_path(test, &mut |path| reads_feed(path) || any_wall_clock && reads_wall_clock(path));
            if open || left.compared == 0 {
                return Possible::ANY;
            }
            let mut run = Run::new(&facts);
            let truth = run.test(test).truth();
            left.compared = left.compared.saturating_sub(run.compared);
            truth.into()
        };
        Possible::of(&self.program, leaf).can_be(Truth::True)
    }
}

fn reads_feed(path: &Path) -> bool {
    matches!(path.root, Root::Feed(_))
}

fn reads_wall_clock(path: &Path) -> bool {
    matches!(path.root, Root::System(System::Time | System::Date | System::Weekday))
}

/// What a search may still do.
struct Left {
    /// Turns that are evaluated.
    turns: usize,
    /// Values that are compared. After that, any test is possibly true.
    compared: usize,
}

impl Left {
    /// Whether another turn may be evaluated.
    fn take_turn(&mut self) -> bool {
        let may = self.turns > 0;
        self.turns = self.turns.saturating_sub(1);
        may
    }
}

/// The turns: times at which tests may change their results.
#[derive(Debug, Default)]
struct Turns {
    once: BTreeSet<Timestamp>,
    daily: BTreeSet<TimeOfDay>,
    /// Whether the time, date or weekday is read.
    wall_clock: bool,
    date: bool,
    /// The number of elements of lists that were considered.
    elements: usize,
    /// Whether there are more than [`MAX_TIMES`], or more than [`MAX_COMPARED`] elements.
    too_many: bool,
}

impl Turns {
    fn of_program(&mut self, program: &Program, facts: &Facts<'_>) {
        for test in program.tests() {
            self.of_test(test, facts);
            for operand in test.operands() {
                if let Operand::Group(program) = operand {
                    self.of_program(program, facts);
                }
            }
        }
    }

    fn of_test(&mut self, test: &Test, facts: &Facts<'_>) {
        for operand in test.operands() {
            if let Operand::Path(path) = operand {
                self.wall_clock |= reads_wall_clock(path);
                self.date |= path.root == Root::System(System::Date);
            }
        }
        let value = |operand| Run::new(facts).operand(operand);
        match &test.check {
            Check::Compare(_, right) => {
                self.around(clock(&test.value), value(right));
                self.around(clock(right), value(&test.value));
            }
            Check::Property { property: Property::In(right), .. } => {
                if let (Some(clock), Value::List(list)) = (clock(&test.value), value(right)) {
                    // Visits every element, unless there are too many.
                    list.any(|element| {
                        self.around(Some(clock), element);
                        self.elements += 1;
                        self.too_many |= self.elements > MAX_COMPARED;
                        self.too_many
                    });
                }
            }
            Check::Property { property: Property::PassedSince(right), .. } => {
                let (seconds, since) = (value(&test.value), value(right).instant());
                if let (Value::Number(seconds), Some(since)) = (seconds, since) {
                    // `passed since system.now` never changes its result.
                    self.once.extend(passed_at(seconds, since));
                }
            }
            Check::Bare | Check::Property { property: Property::Defined, .. } => {}
        }
    }

    /// Adds the turns of a clock that is compared with a value: when it becomes equal, and when it exceeds
    /// the value.
    fn around(&mut self, clock: Option<System>, value: Value<'_>) {
        match clock {
            Some(System::Now) => {
                let Some(at) = value.instant() else { return };
                self.once.insert(at);
                self.once.extend(at.checked_add(SignedDuration::from_nanos(1)).ok());
            }
            Some(System::Time) => {
                let time = match value {
                    Value::Time(time) => Some(time),
                    Value::Text(text) => TimeOfDay::parse(text),
                    _ => None,
                };
                self.daily.extend(time);
                self.daily.extend(time.and_then(TimeOfDay::next));
            }
            _ => {}
        }
        self.too_many |= self.once.len() + self.daily.len() > MAX_TIMES;
    }

    /// The turns within this number of days from the day of `start` on, sorted, and the end of those days.
    fn of_days(&self, zone: &TimeZone, start: Timestamp, days: u16) -> (BTreeSet<Timestamp>, Timestamp) {
        let first = zone.to_datetime(start).date();
        let mut moments = BTreeSet::new();
        let mut horizon = start;
        let mut date = Some(first);
        for _ in 0..=days {
            let Some(day) = date else { break };
            let midnight = on_the_wall(zone, day.at(0, 0, 0, 0));
            horizon = midnight.iter().copied().min().unwrap_or(horizon).max(horizon);
            moments.extend(midnight);
            moments
                .extend(self.daily.iter().flat_map(|time| on_the_wall(zone, day.to_datetime(time.civil()))));
            date = day.tomorrow().ok();
        }
        // A wall clock that jumps may skip any of the times above.
        let jumps = zone.following(start).map(|jump| jump.timestamp()).take_while(|jump| *jump <= horizon);
        moments.extend(jumps);
        (moments, horizon)
    }
}

/// The times at which the wall clock shows `local`: one; two if the clock is set back; none if it jumps over
/// it.
fn on_the_wall(zone: &TimeZone, local: civil::DateTime) -> Vec<Timestamp> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    if ambiguous.is_ambiguous() {
        // In a gap, both are times near the jump, and redundant: the jump itself is a turn already.
        [ambiguous.earlier(), ambiguous.later()].into_iter().flatten().collect()
    } else {
        ambiguous.compatible().into_iter().collect()
    }
}

/// The clock that an operand reads, if it reads one.
fn clock(operand: &Operand) -> Option<System> {
    match operand.bare() {
        Operand::Path(Path { root: Root::System(system @ (System::Time | System::Now)), keys, .. })
            if keys.is_empty() =>
        {
            Some(*system)
        }
        _ => None,
    }
}
