//! The registry: one snapshot of topics, subscriptions, clients, backends and queues. Pure: no Redis, no clock.
//!
//! The changes of each are in the file of its name. A change that fails leaves the registry as it was.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    ApiToken, Backend, Subscription,
    store::{Command, CommandTarget as Target},
};
use signalbox_queues::Definition;

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
    /// Queues that were deleted and are not cleared away yet.
    #[serde(default)]
    pub(super) retired_queues: BTreeSet<String>,
}

/// The commands that keep the keys for single lookups consistent with the snapshot, as Routemaster had them. A pure
/// difference: any change of the registry is projected. User names of deliveries are written only `with_credentials`.
pub(super) fn projection(before: &Registry, after: &Registry, with_credentials: bool) -> Vec<Command> {
    let mut commands = Vec::new();
    let mut write = |name, target, args: Vec<String>| commands.push(Command { name, target, args });
    for (topic, _) in before.topics.iter().filter(|(topic, _)| !after.topics.contains_key(*topic)) {
        write("SREM", Target::Topics, vec![topic.clone()]);
        write("DEL", Target::Topic(topic.clone()), Vec::new());
        write("DEL", Target::SubscribersOf(topic.clone()), Vec::new());
    }
    for (topic, publisher) in &after.topics {
        if !before.topics.contains_key(topic) {
            write("SADD", Target::Topics, vec![topic.clone()]);
        }
        match publisher {
            Some(name) if before.topics.get(topic) != Some(publisher) => {
                write("HSET", Target::Topic(topic.clone()), vec!["publisher".into(), name.clone()]);
            }
            None if matches!(before.topics.get(topic), Some(Some(_))) => {
                write("HDEL", Target::Topic(topic.clone()), vec!["publisher".into()]);
            }
            _ => {}
        }
    }
    for (token, subscription) in &before.subscriptions {
        if !after.subscriptions.contains_key(token) {
            write("SREM", Target::Subscribers, vec![token.clone()]);
            write("DEL", Target::TopicsOf(token.clone()), Vec::new());
            for topic in subscription.topics.iter().filter(|topic| after.topics.contains_key(*topic)) {
                write("SREM", Target::SubscribersOf(topic.clone()), vec![token.clone()]);
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
            write("SREM", Target::TopicsOf(token.clone()), vec![topic.clone()]);
            if after.topics.contains_key(topic) {
                write("SREM", Target::SubscribersOf(topic.clone()), vec![token.clone()]);
            }
        }
        for topic in subscription.topics.difference(old_topics) {
            write("SADD", Target::TopicsOf(token.clone()), vec![topic.clone()]);
            write("SADD", Target::SubscribersOf(topic.clone()), vec![token.clone()]);
        }
        if old.is_none() {
            write("SADD", Target::Subscribers, vec![token.clone()]);
        }
        let fields = [
            ("callback", subscription.callback.clone()),
            ("timeout", subscription.timeout_ms.to_string()),
            ("max_events", subscription.max_events.to_string()),
            ("uuid", if with_credentials { subscription.uuid.clone() } else { String::new() }),
        ];
        let fields = fields.into_iter().flat_map(|(field, value)| [field.to_owned(), value]).collect();
        write("HSET", Target::Subscriber(token.clone()), fields);
    }
    if before.api_tokens != after.api_tokens {
        let (old, new) = (secrets(before), secrets(after));
        for (digest, json) in new.iter().filter(|(digest, json)| old.get(*digest) != Some(*json)) {
            write("HSET", Target::ApiTokens, vec![(*digest).to_owned(), json.clone()]);
        }
        for digest in old.keys().filter(|digest| !new.contains_key(*digest)) {
            write("HDEL", Target::ApiTokens, vec![(*digest).to_owned()]);
        }
    }
    let ended =
        after.retired.iter().filter(|(token, generation)| before.retired.get(*token) != Some(*generation));
    for (token, generation) in ended {
        retire(token, *generation, &mut write);
    }
    commands
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

/// The change for a shard other than the first: only the removal of ended subscriptions.
pub(super) fn projection_elsewhere(after: &Registry) -> Vec<Command> {
    let mut commands = Vec::new();
    for (token, generation) in &after.retired {
        // A client that subscribed again has newer lanes; its old generation still has to be removed.
        if !after.subscriptions.contains_key(token) {
            let mut write = |name, target, args: Vec<String>| commands.push(Command { name, target, args });
            retire(token, *generation, &mut write);
        } else {
            let args = vec![token.clone(), generation.to_string()];
            commands.push(Command { name: "HSET", target: Target::Purge, args });
        }
    }
    commands
}

fn retire(token: &str, generation: u64, write: &mut impl FnMut(&'static str, Target, Vec<String>)) {
    let token = token.to_owned();
    write("HSET", Target::Purge, vec![token.clone(), generation.to_string()]);
    write("DEL", Target::Subscriber(token.clone()), Vec::new());
    write("DEL", Target::Dead(token.clone()), Vec::new());
    write("DEL", Target::Attempts(token.clone()), Vec::new());
    write("HDEL", Target::DeadBytes, vec![token.clone()]);
    write("DEL", Target::Replay(token.clone()), Vec::new());
    write("ZREM", Target::Replays, vec![token]);
}
