//! How far the inputs of each machine have applied the log of a shard, and which versions govern the events after that.
//!
//! An event is governed by the version that was active in its shard when it was published. A position is one string:
//! `<last applied event> <version>:<last event before the version became active> …`. `switch.lua` begins and extends it in
//! the step that makes a version active, and `retire.lua` removes it with the machine. `advance.lua` replaces it only if it
//! is as the caller has read it, so a pacemaker with an old view moves nothing.

use std::collections::BTreeSet;

use signalbox_store::{Error, FabricRole, Script};

use super::Shards;

pub(super) static ADVANCE: Script<FabricRole> =
    Script::new("machines/advance", include_str!("../scripts/advance.lua"));

/// Machines whose positions move in one call.
const MAX_TOGETHER: usize = 100;

/// The position of a machine's inputs in the log of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputPosition {
    pub(crate) machine: String,
    /// The last event that was applied.
    pub(crate) at: u64,
    /// Versions, each with the last event before it became active. The oldest first.
    spans: Vec<(u64, u64)>,
    /// As it is stored.
    stored: String,
}

impl InputPosition {
    fn parse(machine: String, stored: String) -> Option<Self> {
        let mut words = stored.split(' ');
        let at = words.next()?.parse().ok()?;
        let span = |word: &str| {
            let (version, from) = word.split_once(':')?;
            Some((version.parse().ok()?, from.parse().ok()?))
        };
        let spans = words.map(span).collect::<Option<Vec<_>>>()?;
        (!spans.is_empty()).then_some(Self { machine, at, spans, stored })
    }

    /// The version that governs an event.
    pub(crate) fn version_of(&self, event: u64) -> Option<u64> {
        self.spans.iter().rev().find(|(_, from)| *from < event).map(|(version, _)| *version)
    }

    /// All versions that govern events after the position.
    pub(crate) fn versions(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.spans.iter().map(|(version, _)| *version)
    }

    /// The versions that govern the first of these events, at most `max`, and the number of those events. If they are all, the
    /// versions include the one that governs the next event: a position ends if that version has no inputs.
    pub(crate) fn versions_of(&self, events: &[u64], max: usize) -> (BTreeSet<u64>, usize) {
        let mut versions = BTreeSet::new();
        for (number, event) in events.iter().enumerate() {
            let version = self.version_of(*event).filter(|version| !versions.contains(version));
            if version.is_some() && versions.len() == max {
                return (versions, number);
            }
            versions.extend(version);
        }
        versions.extend(events.last().and_then(|last| self.version_of(last + 1)));
        (versions, events.len())
    }

    /// What is stored after the event `at` was applied. `idle` is whether a version has no inputs: nothing is stored of a
    /// machine whose later events no input applies.
    fn after(&self, at: u64, idle: impl Fn(u64) -> bool) -> String {
        let first = self.spans.iter().rposition(|(_, from)| *from <= at).unwrap_or(0);
        match &self.spans[first..] {
            [(version, _)] if idle(*version) => String::new(),
            spans => {
                spans.iter().fold(at.to_string(), |text, (version, from)| format!("{text} {version}:{from}"))
            }
        }
    }
}

/// Positions in the logs of the bus. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct InputPositions(pub(crate) Shards);

impl InputPositions {
    /// The positions of all machines with inputs in a shard.
    pub(crate) async fn all(&self, shard: usize) -> Result<Vec<InputPosition>, Error> {
        let Self(shards) = self;
        let key = shards.keys(shard).inputs();
        let stored: Vec<(String, String)> = shards.redis(shard).command("HGETALL").key(&key).query().await?;
        Ok(stored.into_iter().filter_map(|(machine, stored)| InputPosition::parse(machine, stored)).collect())
    }

    /// The position of one machine in a shard.
    pub(crate) async fn of(&self, shard: usize, machine: &str) -> Result<Option<InputPosition>, Error> {
        let Self(shards) = self;
        let command = shards.redis(shard).command("HGET").key(&shards.keys(shard).inputs());
        let stored: Option<String> = command.arg(machine).query().await?;
        Ok(stored.and_then(|stored| InputPosition::parse(machine.to_owned(), stored)))
    }

    /// Moves positions that are still as they were read, each to an event. `idle` is whether a version of a machine has no inputs.
    /// Returns how many were moved.
    pub(crate) async fn advance(
        &self,
        shard: usize,
        read: &[(&InputPosition, u64)],
        idle: impl Fn(&str, u64) -> bool,
    ) -> Result<u64, Error> {
        let Self(shards) = self;
        let mut moved = 0;
        for part in read.chunks(MAX_TOGETHER) {
            let mut call = ADVANCE.call().key(&shards.keys(shard).inputs());
            for (position, at) in part {
                let after = position.after(*at, |version| idle(&position.machine, version));
                call = call.arg(&position.machine).arg(&position.stored).arg(after);
            }
            moved += call.run::<u64>(shards.redis(shard)).await?;
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_belongs_to_the_version_that_was_active_when_it_was_published() {
        let parse = |stored: &str| InputPosition::parse("m".to_owned(), stored.to_owned());
        let position = parse("10 3:5 4:20 6:30").unwrap();
        assert_eq!(position.versions().collect::<Vec<_>>(), [3, 4, 6]);
        let of = |event| position.version_of(event);
        assert_eq!((of(11), of(20), of(21), of(30), of(31)), (Some(3), Some(3), Some(4), Some(4), Some(6)));
        let first = |events: &[u64], max| {
            let (versions, count) = position.versions_of(events, max);
            (versions.into_iter().collect::<Vec<_>>(), count)
        };
        assert_eq!(first(&[11, 20], 1), (vec![3, 4], 2), "the next event is of another version");
        assert_eq!(first(&[11, 12], 2), (vec![3], 2));
        assert_eq!(first(&[11, 20, 21, 31], 2), (vec![3, 4], 3));
        assert_eq!(first(&[11, 31], 1), (vec![3], 1));
        assert_eq!(first(&[1, 5, 6], 1), (vec![3], 3), "no version governs the first events");
        let after = |at| position.after(at, |version| version == 6);
        assert_eq!((&*after(19), &*after(20), &*after(30)), ("19 3:5 4:20 6:30", "20 4:20 6:30", ""));
        assert_eq!(position.after(40, |_| false), "40 6:30");
        for bad in ["", "1", "x 1:2", "1 2", "1 2:x"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
