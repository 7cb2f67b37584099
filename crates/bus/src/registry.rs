//! The registry: one snapshot of topics, subscriptions, clients, backends and queues. Pure: no Redis, no clock.
//!
//! The changes of each are in the file of its name. A change that fails leaves the registry as it was.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ApiToken, Backend, Subscription, store::Command};
use signalbox_queues::Definition;
use signalbox_store::{
    FabricSpace, Key, Tag,
    keys::{
        bus::{self, Bus},
        objects,
    },
};

/// All of it, as of one stamp.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    /// Topic → the client that claimed it.
    pub topics: BTreeMap<String, Option<String>>,
    /// Client → its subscription.
    pub subscriptions: BTreeMap<String, Subscription>,
    /// Client → its tokens. The identity of a client is the SHA-256 of its first token, and stays when tokens change.
    pub api_tokens: BTreeMap<String, ApiToken>,
    /// Name → what takes the events of some objects in place of the bus.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backends: BTreeMap<String, Backend>,
    /// Client → the generation of a subscription of it that ended.
    #[serde(default)]
    pub(super) retired: BTreeMap<String, u64>,
    /// Name → queue.
    #[serde(default)]
    pub queues: BTreeMap<String, Definition>,
    /// Queues that were deleted and are not cleared away yet, with the version of the registry in which each was deleted: a name
    /// may be used and deleted again before a slow pacemaker has set it free.
    #[serde(rename = "ended_queues", default)]
    pub(super) retired_queues: BTreeMap<String, u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Registry {
    /// Notes in which subscriptions and backends this registry differs from the one before. Every shard then ends their
    /// pauses, even if the process that made the change cannot do that ([`wake_ups`]).
    pub(super) fn note_changes(&mut self, before: &Registry, version: u64) {
        for (token, one) in &mut self.subscriptions {
            if before.subscriptions.get(token).is_some_and(|old| *old != *one) {
                one.changed_in = version;
            }
        }
        for (name, one) in &mut self.backends {
            if before.backends.get(name).is_some_and(|old| *old != *one) {
                one.changed_in = version;
            }
        }
    }
}

/// The commands that keep the keys for single lookups consistent with the snapshot, as Routemaster had them. A pure
/// difference: any change of the registry is projected. User names of deliveries are written only `with_credentials`.
pub(super) fn projection(
    tag: &Tag,
    before: &Registry,
    after: &Registry,
    with_credentials: bool,
) -> Vec<Command> {
    let (mut commands, keys) = (Vec::new(), &bus::bus(tag));
    let mut write = |name, key, args: Vec<String>| commands.push(Command { name, key, args });
    for (topic, _) in before.topics.iter().filter(|(topic, _)| !after.topics.contains_key(*topic)) {
        write("SREM", keys.topics(), vec![topic.clone()]);
        write("DEL", keys.topic(topic), Vec::new());
        write("DEL", keys.subscribers_of(topic), Vec::new());
    }
    for (topic, publisher) in &after.topics {
        if !before.topics.contains_key(topic) {
            write("SADD", keys.topics(), vec![topic.clone()]);
        }
        match publisher {
            Some(name) if before.topics.get(topic) != Some(publisher) => {
                write("HSET", keys.topic(topic), vec!["publisher".into(), name.clone()]);
            }
            None if matches!(before.topics.get(topic), Some(Some(_))) => {
                write("HDEL", keys.topic(topic), vec!["publisher".into()]);
            }
            _ => {}
        }
    }
    for (token, subscription) in &before.subscriptions {
        if !after.subscriptions.contains_key(token) {
            write("SREM", keys.subscribers(), vec![token.clone()]);
            write("DEL", keys.topics_of(token), Vec::new());
            for topic in subscription.topics.iter().filter(|topic| after.topics.contains_key(*topic)) {
                write("SREM", keys.subscribers_of(topic), vec![token.clone()]);
            }
        }
    }
    for (token, subscription) in &after.subscriptions {
        let old = before.subscriptions.get(token);
        if old == Some(subscription) {
            continue;
        }
        let none = BTreeSet::new();
        let old_topics = old.map_or(&none, |old| &old.topics);
        for topic in old_topics.difference(&subscription.topics) {
            write("SREM", keys.topics_of(token), vec![topic.clone()]);
            if after.topics.contains_key(topic) {
                write("SREM", keys.subscribers_of(topic), vec![token.clone()]);
            }
        }
        for topic in subscription.topics.difference(old_topics) {
            write("SADD", keys.topics_of(token), vec![topic.clone()]);
            write("SADD", keys.subscribers_of(topic), vec![token.clone()]);
        }
        if old.is_none() {
            write("SADD", keys.subscribers(), vec![token.clone()]);
        }
        let fields = [
            ("callback", subscription.callback.clone()),
            ("timeout", subscription.timeout_ms.to_string()),
            ("max_events", subscription.max_events.to_string()),
            ("uuid", if with_credentials { subscription.uuid.clone() } else { String::new() }),
        ];
        let fields = fields.into_iter().flat_map(|(field, value)| [field.to_owned(), value]).collect();
        write("HSET", keys.subscriber(token), fields);
    }
    if before.api_tokens != after.api_tokens {
        let (old, new) = (secrets(before), secrets(after));
        for (digest, json) in new.iter().filter(|(digest, json)| old.get(*digest) != Some(*json)) {
            write("HSET", keys.api_tokens(), vec![(*digest).to_owned(), json.clone()]);
        }
        for digest in old.keys().filter(|digest| !new.contains_key(*digest)) {
            write("HDEL", keys.api_tokens(), vec![(*digest).to_owned()]);
        }
    }
    let ended =
        after.retired.iter().filter(|(token, generation)| before.retired.get(*token) != Some(*generation));
    for (token, generation) in ended {
        retire(keys, token, *generation, &mut write);
    }
    wake_ups(tag, before, after, &mut write);
    commands
}

/// Notes whose pauses have to end, because what they wait for may have changed: those of the lanes of subscribers, and of the
/// objects of backends. The note is written together with the change, so it outlives the process that made the change.
fn wake_ups(
    tag: &Tag,
    before: &Registry,
    after: &Registry,
    write: &mut impl FnMut(&'static str, Key<FabricSpace>, Vec<String>),
) {
    let (bus, objects) = (bus::bus(tag), objects::objects(tag));
    for (token, one) in &after.subscriptions {
        if before.subscriptions.get(token).is_some_and(|old| old.changed_in != one.changed_in) {
            write("HSET", bus.changed(), vec![token.clone(), one.timeout_ms.to_string()]);
        }
    }
    for (name, one) in &after.backends {
        if before.backends.get(name).is_some_and(|old| old.changed_in != one.changed_in) {
            let version = one.changed_in.to_string();
            let fields = vec![format!("changed@{name}"), version, format!("pauses@{name}"), "0".to_owned()];
            write("HSET", objects.numbers(), fields);
        }
    }
    for name in before.backends.keys().filter(|name| !after.backends.contains_key(*name)) {
        write("HDEL", objects.numbers(), vec![format!("changed@{name}"), format!("pauses@{name}")]);
    }
}

/// Each token by its digest: its client, and the client's name and scopes.
fn secrets(registry: &Registry) -> BTreeMap<&str, String> {
    let mut all = BTreeMap::new();
    for (client, token) in &registry.api_tokens {
        let json =
            serde_json::json!({"client": client, "name": token.name, "scopes": token.scopes}).to_string();
        all.extend(token.secrets.keys().map(|digest| (digest.as_str(), json.clone())));
    }
    all
}

/// The change for a shard other than the first, which has `before`: only the removal of deleted topics' counters and of ended
/// subscriptions, and whose pauses have to end.
pub(super) fn projection_elsewhere(tag: &Tag, before: &Registry, after: &Registry) -> Vec<Command> {
    let (mut commands, keys) = (Vec::new(), &bus::bus(tag));
    let mut write = |name, key, args: Vec<String>| commands.push(Command { name, key, args });
    for topic in before.topics.keys().filter(|topic| !after.topics.contains_key(*topic)) {
        write("DEL", keys.topic(topic), Vec::new());
    }
    for (token, generation) in
        after.retired.iter().filter(|(token, ended)| before.retired.get(*token) != Some(*ended))
    {
        // If the client has subscribed again, nothing of that subscription is in this shard yet.
        retire(keys, token, *generation, &mut write);
    }
    wake_ups(tag, before, after, &mut write);
    commands
}

fn retire(
    keys: &Bus<'_>,
    token: &str,
    generation: u64,
    write: &mut impl FnMut(&'static str, Key<FabricSpace>, Vec<String>),
) {
    write("HSET", keys.purge(), vec![token.to_owned(), generation.to_string()]);
    for key in [keys.gauges_event(), keys.gauges_batch(), keys.dead_bytes(), keys.changed()] {
        write("HDEL", key, vec![token.to_owned()]);
    }
    write("ZREM", keys.replays(), vec![token.to_owned()]);
    for key in [keys.subscriber(token), keys.dead(token), keys.attempts(token), keys.replay(token)] {
        write("DEL", key, Vec::new());
    }
}
