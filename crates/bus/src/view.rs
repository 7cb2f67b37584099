//! The registry as a pacemaker holds it in memory: with its stamp, and indexed by topic to find subscribers.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use super::{
    ApiToken, Credentials, Error, Registry, Subscription,
    intake::is_reserved_object,
    is_audit_topic, sealed,
    store::{FanOut, Stored, Target},
};
use signalbox_queues::Matcher;
use signalbox_seal::Keys;

/// Whether events can be accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Yes.
    Ready,
    /// The fabric has no registry, or another one than it had.
    #[default]
    Uninitialized,
}

/// The registry as of one stamp.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) state: State,
    /// Whether the fabric was read: before that, the state is only assumed.
    pub(super) checked: bool,
    /// Identity of the fabric.
    pub(super) fabric: String,
    /// `version.nonce`. The nonce distinguishes two changes to the same version, which occur when a server has lost
    /// its last second.
    pub(super) stamp: String,
    pub(super) registry: Arc<Registry>,
    /// How the credentials in the registry are stored.
    pub(super) credentials: Credentials,
    subscriptions: BTreeMap<String, Arc<Subscription>>,
    targets: Vec<Target>,
    by_topic: HashMap<String, Vec<usize>>,
    /// Topics with a subscriber that takes only the events of its tenants.
    divided: HashSet<String>,
    /// Digest of a token → its client.
    by_token: HashMap<String, String>,
    pub(super) queues: Matcher,
}

impl View {
    /// The view before the first read, and of an empty fabric.
    pub(super) fn unknown(checked: bool) -> Self {
        Self { checked, ..Self::default() }
    }

    /// Reads a stored registry. Patterns that `before` has compiled are reused.
    pub(super) fn read(stored: Stored, before: &Self, keys: &Keys) -> Result<Self, Error> {
        let mut registry: Registry = serde_json::from_str(&stored.snapshot).map_err(Error::BadRegistry)?;
        let credentials = sealed::open(&mut registry, keys);
        Ok(Self::new(stored.fabric, stored.stamp, registry, credentials, before))
    }

    pub(super) fn new(
        fabric: String,
        stamp: String,
        registry: Registry,
        credentials: Credentials,
        before: &Self,
    ) -> Self {
        let mut targets = Vec::new();
        let mut by_topic: HashMap<String, Vec<usize>> = HashMap::new();
        let mut divided = HashSet::new();
        for subscription in registry.subscriptions.values() {
            // A disabled subscription gets no new events; waiting ones stay until it is enabled again or they exceed
            // their age.
            if subscription.disabled.is_some() {
                continue;
            }
            for topic in &subscription.topics {
                by_topic.entry(topic.clone()).or_default().push(targets.len());
            }
            if subscription.tenants.is_some() {
                divided.extend(subscription.topics.iter().cloned());
            }
            targets.push(target(subscription));
        }
        let subscriptions = registry
            .subscriptions
            .iter()
            .map(|(token, one)| (token.clone(), Arc::new(one.clone())))
            .collect();
        let by_token = registry.api_tokens.iter().flat_map(|(client, token)| {
            token.secrets.keys().map(|digest| (digest.clone(), client.clone())).collect::<Vec<_>>()
        });
        Self {
            by_token: by_token.collect(),
            state: State::Ready,
            checked: true,
            fabric,
            stamp,
            queues: Matcher::new(&registry.queues, &before.queues),
            registry: Arc::new(registry),
            credentials,
            subscriptions,
            targets,
            by_topic,
            divided,
        }
    }

    /// Whether it shows the registry of this fabric at this stamp.
    pub(super) fn is(&self, (fabric, stamp): &(String, String)) -> bool {
        self.fabric == *fabric && self.stamp == *stamp
    }

    /// The number in the stamp: one higher with every change.
    pub(super) fn version(&self) -> u64 {
        version(&self.stamp)
    }

    /// The client with the token of this digest, if the token is valid.
    pub(super) fn client_of(&self, digest: &str, now_ms: u64) -> Option<(&str, &ApiToken)> {
        let client = self.by_token.get(digest)?;
        let token = self.registry.api_tokens.get(client)?;
        token.is_valid(digest, now_ms).then_some((client, token))
    }

    /// The places of the queues that take a message of this channel. Records of the audit log go into no queue, because a
    /// queue does not ask who pulls from it.
    pub(super) fn queues_for(&self, channel: &str) -> Arc<[usize]> {
        let topic = channel.rsplit(':').next().unwrap_or_default();
        if is_audit_topic(topic) { Arc::default() } else { self.queues.matching(channel) }
    }

    pub(crate) fn subscription(&self, token: &str) -> Option<&Arc<Subscription>> {
        self.subscriptions.get(token)
    }

    /// The subscription that lanes of this generation belong to; `None` if it ended, even if its client has another one now.
    pub(super) fn subscription_of(&self, token: &str, generation: &str) -> Option<&Arc<Subscription>> {
        self.subscription(token).filter(|_| !self.registry.has_ended(token, generation))
    }

    pub(super) fn subscribers(&self, topic: &str) -> usize {
        self.by_topic.get(topic).map_or(0, Vec::len)
    }

    /// The lanes of all subscribers of a topic together.
    pub(super) fn lanes_of_subscribers(&self, topic: &str) -> usize {
        let places = self.by_topic.get(topic).into_iter().flatten();
        places.filter_map(|place| usize::try_from(self.targets.get(*place)?.concurrency).ok()).sum()
    }

    /// Whether `client` may publish to `topic` without asking the fabric.
    pub(super) fn is_claimed_by(&self, topic: &str, client: &str) -> bool {
        self.registry.topics.get(topic).is_some_and(|publisher| publisher.as_deref() == Some(client))
    }

    /// Whether another client than `client` is the publisher of `topic`.
    pub(super) fn is_claimed_from(&self, topic: &str, client: &str) -> bool {
        self.registry
            .topics
            .get(topic)
            .is_some_and(|publisher| publisher.as_deref().is_some_and(|one| one != client))
    }

    /// The backend that takes an object's events in place of the bus: the one whose prefix fits best. One that is being
    /// drained takes no new objects; objects with a queue there stay there, which the script handles.
    pub(super) fn backend_of(&self, object: &str) -> Option<&str> {
        if self.registry.backends.is_empty() || is_reserved_object(object) {
            return None;
        }
        let fitting = self.registry.backends.iter();
        let fitting = fitting.filter(|(_, one)| !one.draining && object.starts_with(&one.prefix));
        fitting.max_by_key(|(_, one)| one.prefix.len()).map(|(name, _)| &**name)
    }

    /// Whether the subscribers of an event depend on its tenant.
    pub(super) fn is_divided(&self, topic: &str) -> bool {
        self.divided.contains(topic)
    }

    /// The fan-out of a call over `topics`. One whose subscribers depend on the tenant is listed for each tenant.
    pub(super) fn fan_out(&self, topics: &[(Arc<str>, Option<&str>)], clients: Vec<Arc<str>>) -> FanOut {
        let mut places: HashMap<usize, usize> = HashMap::new();
        let mut targets = Vec::new();
        let topics = topics
            .iter()
            .map(|(topic, tenant)| {
                let subscribers = self.by_topic.get(&**topic).map_or(&[][..], Vec::as_slice);
                let takes = |subscriber: &&usize| {
                    let subscription = self.subscription(&self.targets[**subscriber].token);
                    tenant.is_none_or(|tenant| subscription.is_some_and(|one| one.takes(tenant)))
                };
                let places = subscribers
                    .iter()
                    .filter(takes)
                    .map(|subscriber| {
                        *places.entry(*subscriber).or_insert_with(|| {
                            targets.push(self.targets[*subscriber].clone());
                            targets.len() - 1
                        })
                    })
                    .collect();
                (Arc::clone(topic), places)
            })
            .collect();
        FanOut { stamp: self.stamp.clone(), targets, topics, clients, queues: Vec::new() }
    }
}

pub(super) fn version(stamp: &str) -> u64 {
    stamp.split_once('.').and_then(|(version, _)| version.parse().ok()).unwrap_or_default()
}

/// Maximum number of events in a batch, even if its subscriber allows more: a script that halves or acknowledges a batch reads
/// all of it.
const MAX_BATCH_EVENTS: u64 = 4_000;

/// A subscription as the scripts see it.
pub(super) fn target(subscription: &Subscription) -> Target {
    Target {
        token: subscription.token.clone(),
        generation: subscription.generation,
        concurrency: subscription.concurrency,
        max_events: subscription.max_events.min(MAX_BATCH_EVENTS),
        timeout_ms: subscription.timeout_ms,
    }
}
