//! Accepting events: one call of the publish script.

use std::{borrow::Cow, fmt::Write as _, sync::Arc};

use signalbox_store::{Error, FabricRole, Script, keys};

use super::{OBJECTS_LUA, SETTLE_LUA, Store};
use crate::{Change, Delay, EventId, Options, Refusal};

/// The parts for queues, backends and labels are functions that run only in calls that have any, so that other calls do
/// not pay for them. The script only appends to lanes, so it does without `batches.lua`.
static PUBLISH: Script<FabricRole> = Script::composed(
    "publish",
    &[
        include_str!("../scripts/publish.lua"),
        include_str!("../scripts/publish_quota.lua"),
        include_str!("../scripts/publish_decide.lua"),
        include_str!("../scripts/publish_write.lua"),
        include_str!("../scripts/lanes.lua"),
        "\nlocal function open_slices()\n",
        signalbox_queues::SLICES_LUA,
        "\nreturn slices\nend\nlocal function open_objects()\n",
        OBJECTS_LUA,
        "\nreturn objects\nend\nlocal function open_labels(lanes)\n",
        SETTLE_LUA,
        include_str!("../scripts/labels.lua"),
        "\nreturn labels\nend\nreturn main(lanes, open_slices, open_objects, open_labels)\n",
    ],
);

/// A subscriber as the fan-out sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub token: String,
    pub generation: u64,
    pub concurrency: u64,
    pub max_events: u64,
    pub timeout_ms: u64,
}

/// The subscribers of each topic, as of one stamp of the registry.
#[derive(Debug, Clone, Default)]
pub(crate) struct FanOut {
    pub stamp: String,
    pub targets: Vec<Target>,
    /// The topics of the call, each with the places of its subscribers in `targets`.
    pub topics: Vec<(Arc<str>, Vec<usize>)>,
    /// The clients of the call.
    pub clients: Vec<Arc<str>>,
    /// The queues of the call, each with its limits as the script reads them.
    pub queues: Vec<(Arc<str>, String)>,
}

/// Events of one object that are accepted together.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    pub object: &'a str,
    pub hash: u32,
    /// The object's new state as JSON, if it changes.
    pub state: Option<&'a str>,
    /// The backend that gets its events instead of the bus.
    pub backend: Option<&'a str>,
    /// Its client's place in [`FanOut::clients`].
    pub client: usize,
    /// The digest of its idempotency key, and the digest of its content.
    pub idempotency: Option<(&'a str, &'a str)>,
    pub events: Vec<Published<'a>>,
    /// A change of a label in the same step. It is made only if the label is as the change expects it.
    pub change: Option<&'a Change>,
}

/// One event of a group.
#[derive(Debug)]
pub(crate) struct Published<'a> {
    /// Its place in [`FanOut::topics`]; nothing for a message, which has no topic.
    pub topic: Option<usize>,
    pub channel: &'a str,
    /// The event's JSON from `"object"` on.
    pub rest: &'a [u8],
    /// Its queues.
    pub queues: Vec<InQueue>,
    /// When queues may deliver it, if not immediately.
    pub delay: Option<Delay>,
}

/// An event in a queue.
#[derive(Debug)]
pub(crate) struct InQueue {
    /// The queue's place in [`FanOut::queues`].
    pub place: usize,
    /// The weight that a new tenant has there.
    pub weight: u32,
    /// The rules that a new tenant has there.
    pub rules: String,
}

impl Published<'_> {
    /// Its queues as the script reads them.
    fn queue_words(&self) -> String {
        let mut words = match self.delay {
            Some(Delay::After(ms)) if !self.queues.is_empty() => format!("@+{ms} "),
            Some(Delay::At(ms)) if !self.queues.is_empty() => format!("@{ms} "),
            _ => String::new(),
        };
        for (number, InQueue { place, weight, rules }) in self.queues.iter().enumerate() {
            let space = if number > 0 { " " } else { "" };
            let colon = if rules.is_empty() { "" } else { ":" };
            // Writing to a string cannot fail.
            let _ = write!(words, "{space}{}:{weight}{colon}{rules}", place + 1);
        }
        words
    }
}

/// A call of the publish script.
#[derive(Debug)]
pub(crate) struct PublishCall<'a> {
    pub pacemaker: &'a str,
    pub sequence: u64,
    /// The last call that was acknowledged, 0 if none is known.
    pub acknowledged: u64,
    pub seed: &'a str,
    pub limits: &'a Options,
    /// Maximum bytes that this shard stores for a tenant, 0 for no limit.
    pub tenant_bytes: u64,
    pub fan_out: &'a FanOut,
    pub groups: &'a [Group<'a>],
}

/// An event's id, `prev` and `tprev`.
pub(crate) type Numbers = (EventId, Option<EventId>, Option<EventId>);

/// The outcome of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// The numbers of each of its events.
    New(Vec<Numbers>),
    /// It was accepted before; the id of its first event.
    Repeat(EventId),
    /// It was not accepted.
    Refused(Refusal),
}

/// The outcome of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PublishReply {
    /// For each group.
    Accepted(Vec<Accepted>),
    /// The registry has changed: compute the fan-out again.
    Stale,
    /// The shard has no registry.
    Empty,
    /// A later call of this pacemaker arrived first. Nothing was done.
    Late,
    /// The server lost acknowledged calls. Nothing was done. The last sequence that it knows.
    Lost(u64),
}

impl Store {
    /// Accepts the groups of a call, all or none. A repeat of the same sequence returns the first reply.
    pub(crate) async fn publish(&self, call: &PublishCall<'_>) -> Result<PublishReply, Error> {
        let bus = self.bus();
        let (fan_out, limits) = (call.fan_out, call.limits);
        let with_changes = call.groups.iter().any(|group| group.change.is_some());
        let mut script = self
            .lanes_call(&PUBLISH)
            .key(&bus.registry())
            .key(&bus.call(call.pacemaker, 0))
            .key(&bus.last_event_id())
            .key(&bus.objects())
            .key(&bus.objects_old())
            .key(&bus.log())
            .key(&bus.objects_state())
            .key(&bus.idempotency_used());
        for (topic, _) in &fan_out.topics {
            script = script.key(&bus.topic(topic));
        }
        for client in &fan_out.clients {
            script = script.key(&bus.idempotency_keys(client)).key(&bus.idempotency_ages(client));
        }
        if !fan_out.queues.is_empty() {
            let shared = keys::queues::shared(self.shard.tag());
            script = script.key(&shared.held()).key(&shared.due());
            for (name, _) in &fan_out.queues {
                script = script.key(&keys::queues::queue(self.shard.tag(), name).ring());
            }
        }
        script = script
            .arg(self.clock.argument())
            .arg(&fan_out.stamp)
            .arg(call.sequence)
            .arg(self.shard.index())
            .arg(call.seed)
            .arg(limits.batch_bytes)
            .arg(limits.objects)
            .arg(limits.object_seconds * 1000)
            .arg(limits.idempotency_keys)
            .arg(limits.idempotency_seconds * 1000)
            .arg(fan_out.targets.len())
            .arg(fan_out.topics.len())
            .arg(fan_out.clients.len())
            .arg(call.groups.len())
            .arg(fan_out.queues.len())
            .arg(limits.object_events)
            .arg(u8::from(with_changes))
            .arg(call.acknowledged)
            .arg(call.tenant_bytes);
        for target in &fan_out.targets {
            script = script
                .arg(&target.token)
                .arg(target.generation)
                .arg(target.concurrency)
                .arg(target.max_events)
                .arg(target.timeout_ms);
        }
        for (topic, targets) in &fan_out.topics {
            script = script.arg(&**topic).arg(targets.len());
            for place in targets {
                script = script.arg(place + 1);
            }
        }
        for client in &fan_out.clients {
            script = script.arg(&**client);
        }
        for (_, limits) in &fan_out.queues {
            script = script.arg(limits);
        }
        for group in call.groups {
            script = script.arg(group.object).arg(group.hash);
            script = match group.idempotency {
                None => script.arg(group.client + 1),
                Some((key, body)) => script.arg(format!("{} {key} {body}", group.client + 1)),
            };
            script = script
                .arg(group.state.unwrap_or_default())
                .arg(group.backend.unwrap_or_default())
                .arg(group.events.len());
            for event in &group.events {
                let topic = event.topic.map_or(0, |place| place + 1);
                script = script.arg(topic).arg(event.channel).arg(event.rest);
                if !fan_out.queues.is_empty() {
                    script = script.arg(event.queue_words());
                }
            }
            if with_changes {
                script = words_of(group.change).into_iter().fold(script, |script, word| script.arg(&*word));
            }
        }
        let reply: String = script.run(self.redis()).await?;
        Ok(read(&reply, limits.tenant_bytes, call.groups.iter().map(|group| group.events.len())))
    }
}

impl Store {
    /// Adds to the telemetry counter of events that were acknowledged and then lost.
    pub(crate) async fn count_lost(&self, events: u64) -> Result<(), Error> {
        self.redis().command("HINCRBY").key(&self.bus().counters()).arg(("events.lost", events)).run().await
    }
}

/// A change as labels.lua reads it.
fn words_of(change: Option<&Change>) -> Vec<Cow<'_, [u8]>> {
    let text = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    let owned = |text: String| Cow::Owned(text.into_bytes());
    let Some(change) = change else { return vec![Cow::Borrowed(&b""[..])] };
    let mut words = vec![
        Cow::Borrowed(change.machine.as_bytes()),
        Cow::Borrowed(change.expected.as_slice()),
        owned(text(change.version)),
        Cow::Borrowed(change.head.as_slice()),
        Cow::Borrowed(change.tail.as_slice()),
        owned(text(change.ttl_ms)),
        owned(text(change.prev.map(|EventId(id)| id))),
        owned(change.replaced.to_string()),
        owned(change.indexes.len().to_string()),
    ];
    for index in &change.indexes {
        words.push(Cow::Borrowed(index.key.as_bytes()));
        words.push(Cow::Borrowed(index.member.as_bytes()));
        words.push(owned(text(index.score)));
    }
    words.push(owned(change.log.lines.len().to_string()));
    if !change.log.lines.is_empty() {
        words.push(owned(change.log.keep.to_string()));
        words.push(owned(change.log.ttl_ms.to_string()));
        words.extend(change.log.lines.iter().map(|line| Cow::Borrowed(line.as_slice())));
    }
    words
}

/// Reads the script's reply to groups with these numbers of events. A word that it cannot read is taken for a conflict of
/// its group, which cannot happen between a script and a reader of the same build. `limit` is that of a tenant.
fn read(reply: &str, limit: u64, groups: impl Iterator<Item = usize>) -> PublishReply {
    let mut words = reply.split(' ');
    match words.next() {
        Some("ok") => {}
        Some("stale") => return PublishReply::Stale,
        Some("late") => return PublishReply::Late,
        Some("lost") => {
            return PublishReply::Lost(words.next().and_then(|word| word.parse().ok()).unwrap_or_default());
        }
        _ => return PublishReply::Empty,
    }
    PublishReply::Accepted(groups.map_while(|events| group(&mut words, limit, events)).collect())
}

fn group<'a>(words: &mut impl Iterator<Item = &'a str>, limit: u64, events: usize) -> Option<Accepted> {
    let mut triple = || Some((words.next()?, id(words.next()?), id(words.next()?)));
    let (first, prev, tprev) = triple()?;
    let refusal = match first {
        "r" => return Some(prev.map_or(Accepted::Refused(Refusal::Conflict), Accepted::Repeat)),
        "f" => Refusal::QueueFull,
        "q" => Refusal::WaitingFull,
        "e" => Refusal::TenantFull { limit },
        "m" => Refusal::MemoryShort,
        "k" => Refusal::KeysUsedUp { retry_ms: prev.map_or(1, |EventId(ms)| ms) },
        "x" => Refusal::Outdated,
        "n" => return Some(Accepted::New(Vec::new())),
        _ => Refusal::Conflict,
    };
    let Some(first) = id(first) else { return Some(Accepted::Refused(refusal)) };
    let mut numbers = Vec::with_capacity(events);
    numbers.push((first, prev, tprev));
    while numbers.len() < events {
        let (next, prev, tprev) = triple()?;
        numbers.push((id(next)?, prev, tprev));
    }
    Some(Accepted::New(numbers))
}

fn id(word: &str) -> Option<EventId> {
    word.parse().ok().map(EventId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_three_words_for_each_event_that_is_new_and_for_each_group_that_is_not() {
        let numbers =
            |id, prev: Option<u64>, tprev: Option<u64>| (EventId(id), prev.map(EventId), tprev.map(EventId));
        assert_eq!(
            read(
                "ok 64 - - 128 64 - 192 128 64 r 64 - c - - f - - q - - e - - m - - k 9 - x - - n - -",
                7,
                [1, 2, 3, 1, 1, 1, 1, 1, 1, 1, 0].into_iter()
            ),
            PublishReply::Accepted(vec![
                Accepted::New(vec![numbers(64, None, None)]),
                Accepted::New(vec![numbers(128, Some(64), None), numbers(192, Some(128), Some(64))]),
                Accepted::Repeat(EventId(64)),
                Accepted::Refused(Refusal::Conflict),
                Accepted::Refused(Refusal::QueueFull),
                Accepted::Refused(Refusal::WaitingFull),
                Accepted::Refused(Refusal::TenantFull { limit: 7 }),
                Accepted::Refused(Refusal::MemoryShort),
                Accepted::Refused(Refusal::KeysUsedUp { retry_ms: 9 }),
                Accepted::Refused(Refusal::Outdated),
                Accepted::New(Vec::new()),
            ])
        );
        let none = std::iter::empty;
        assert_eq!(read("stale", 7, none()), PublishReply::Stale);
        assert_eq!(read("empty", 7, none()), PublishReply::Empty);
        assert_eq!(read("late", 7, none()), PublishReply::Late);
    }
}
