//! Accepting events: one call of the publish script.

use std::sync::Arc;

use signalbox_store::{Error, FabricRole, Script};

use super::{Store, lanes_script};
use crate::bus::EventId;

static PUBLISH: Script<FabricRole> = lanes_script!("publish");

#[cfg(test)]
pub(super) const SCRIPTS: &[(&str, &Script<FabricRole>)] = &[("publish", &PUBLISH)];

/// A subscriber as the fan-out sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::bus) struct Target {
    pub token: String,
    pub generation: u64,
    pub concurrency: u64,
    pub max_events: u64,
    pub timeout_ms: u64,
}

/// Who gets the events of which topic, as of one stamp of the registry.
#[derive(Debug, Clone, Default)]
pub(in crate::bus) struct FanOut {
    pub stamp: String,
    pub targets: Vec<Target>,
    /// The topics of the call, each with the places of its subscribers in `targets`.
    pub topics: Vec<(Arc<str>, Vec<usize>)>,
    /// Clients whose events carry idempotency keys.
    pub clients: Vec<Arc<str>>,
}

/// One event of a call.
#[derive(Debug)]
pub(in crate::bus) struct Published<'a> {
    pub object: &'a str,
    pub hash: u32,
    /// Its place in [`FanOut::topics`].
    pub topic: usize,
    pub channel: &'a str,
    /// The event's JSON from `"object"` on.
    pub rest: &'a [u8],
    /// Its client's place in [`FanOut::clients`], the digest of its key, the digest of itself.
    pub idempotency: Option<(usize, &'a str, &'a str)>,
}

/// A call of the publish script.
#[derive(Debug)]
pub(in crate::bus) struct PublishCall<'a> {
    pub pacemaker: &'a str,
    pub sequence: u64,
    pub seed: &'a str,
    pub batch_bytes: usize,
    pub objects: u64,
    pub object_seconds: u64,
    pub idempotency_keys: u64,
    pub idempotency_seconds: u64,
    pub fan_out: &'a FanOut,
    pub events: &'a [Published<'a>],
}

/// What became of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bus) enum Accepted {
    New { id: EventId, prev: Option<EventId>, tprev: Option<EventId> },
    Repeat(EventId),
    Conflict,
}

/// What became of a call.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::bus) enum PublishReply {
    Accepted(Vec<Accepted>),
    /// The registry has moved on: compute the fan-out again.
    Stale,
    /// There is no registry here.
    Empty,
    /// A later call of this pacemaker came first. Nothing was done.
    Late,
}

impl Store {
    /// Accepts the events of a call, all or none. A repeat of the same sequence returns the first reply.
    pub(in crate::bus) async fn publish(&self, call: &PublishCall<'_>) -> Result<PublishReply, Error> {
        let bus = self.bus();
        let fan_out = call.fan_out;
        let mut script = self
            .lanes_call(&PUBLISH)
            .key(&bus.registry())
            .key(&bus.call(call.pacemaker, 0))
            .key(&bus.last_event_id())
            .key(&bus.objects())
            .key(&bus.objects_old())
            .key(&bus.log())
            .key(&bus.objects_state());
        for (topic, _) in &fan_out.topics {
            script = script.key(&bus.topic(topic));
        }
        for client in &fan_out.clients {
            script = script.key(&bus.idempotency_keys(client)).key(&bus.idempotency_ages(client));
        }
        script = script
            .arg(self.clock.argument())
            .arg(&fan_out.stamp)
            .arg(call.sequence)
            .arg(self.shard.index())
            .arg(call.seed)
            .arg(call.batch_bytes)
            .arg(call.objects)
            .arg(call.object_seconds * 1000)
            .arg(call.idempotency_keys)
            .arg(call.idempotency_seconds * 1000)
            .arg(fan_out.targets.len())
            .arg(fan_out.topics.len())
            .arg(fan_out.clients.len())
            .arg(call.events.len());
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
        for event in call.events {
            script = script
                .arg(event.object)
                .arg(event.hash)
                .arg(event.topic + 1)
                .arg(event.channel)
                .arg(event.rest);
            script = match event.idempotency {
                None => script.arg(""),
                Some((client, key, body)) => script.arg(format!("{} {key} {body}", client + 1)),
            };
        }
        let reply: String = script.run(self.redis()).await?;
        Ok(read(&reply))
    }
}

/// Reads the script's reply. What it cannot read it takes for a conflict of that event, which cannot happen between
/// a script and a reader of the same build.
fn read(reply: &str) -> PublishReply {
    let mut words = reply.split(' ');
    match words.next() {
        Some("ok") => {}
        Some("stale") => return PublishReply::Stale,
        Some("late") => return PublishReply::Late,
        _ => return PublishReply::Empty,
    }
    let id = |word: &str| word.parse().ok().map(EventId);
    let mut accepted = Vec::new();
    while let (Some(first), Some(second), Some(third)) = (words.next(), words.next(), words.next()) {
        accepted.push(match (first, id(first), id(second)) {
            ("r", _, Some(id)) => Accepted::Repeat(id),
            (_, Some(id), prev) => Accepted::New { id, prev, tprev: self::id_or_none(third) },
            _ => Accepted::Conflict,
        });
    }
    PublishReply::Accepted(accepted)
}

fn id_or_none(word: &str) -> Option<EventId> {
    word.parse().ok().map(EventId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_three_words_for_each_event() {
        assert_eq!(
            read("ok 64 - - 128 64 - r 64 - c - -"),
            PublishReply::Accepted(vec![
                Accepted::New { id: EventId(64), prev: None, tprev: None },
                Accepted::New { id: EventId(128), prev: Some(EventId(64)), tprev: None },
                Accepted::Repeat(EventId(64)),
                Accepted::Conflict,
            ])
        );
        assert_eq!(read("stale"), PublishReply::Stale);
        assert_eq!(read("empty"), PublishReply::Empty);
        assert_eq!(read("late"), PublishReply::Late);
    }
}
