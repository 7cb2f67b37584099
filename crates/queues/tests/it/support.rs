//! A bus and its queues driven by hand, with a clock that only tests advance, and a check of all invariants.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, value::RawValue};
pub(super) use signalbox_store::FabricRole;
use signalbox_store::{Clock, Fabric, Shard};
pub(super) use signalbox_testkit::{Server, equal, eventually};
use tokio_util::sync::CancellationToken;

use signalbox_api::queues::{NewQueue, TenantSettings};
use signalbox_bus::{Delay, NewMessage, Refusal};
use signalbox_bus_testkit::{Pacemaker, Time, with_fixed_clock, without_bytes};
use signalbox_queues::{
    DeadLetters, Definition, Handed, Handle, Options, PullRequest, Receipt, Settled, Source, Taken,
};

/// The queue of most tests.
pub(super) const Q: &str = "q";

pub(super) struct Hands {
    pub(super) redis: Fabric,
    pub(super) time: Time,
    pub(super) bus: Pacemaker,
    pub(super) queues: Handle,
    /// `{s0}` and so on; empty for one shard.
    tags: Vec<String>,
}

/// A definition that replaces everything but what is set for single tenants.
pub(super) fn wanted(pattern: &str) -> NewQueue {
    NewQueue { pattern: pattern.into(), weights: Some(BTreeMap::new()), ..NewQueue::default() }
}

pub(super) async fn define(bus: &Pacemaker, name: &str, wanted: &NewQueue) {
    let change = |known: Option<&Definition>| {
        Definition::new(name, wanted.clone(), known).map_err(signalbox_bus::Error::InvalidQueue)
    };
    bus.handle.put_queue(name, None, 1_000, change).await.unwrap();
}

pub(super) fn source(queue: &str, revision: u64) -> Source<'_> {
    Source { queue, revision, weight: 1 }
}

pub(super) fn weights(weights: &[(&str, u32)]) -> NewQueue {
    let weights = weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect();
    NewQueue { weights: Some(weights), ..wanted(".*") }
}

pub(super) fn pull(most: usize) -> PullRequest<'static> {
    PullRequest { most, wait: std::time::Duration::ZERO, auto_ack: false, tenant: None, lease_ms: None }
}

/// A pull that is admitted immediately.
pub(super) async fn pull_from(
    queues: &Handle,
    sources: &[Source<'_>],
    request: PullRequest<'_>,
) -> Result<Handed, signalbox_queues::Error> {
    Ok(queues.pull(sources, request, async || ()).await?.expect("it is admitted").0)
}

impl Hands {
    /// One shard, and a queue `q` for everything.
    pub(super) async fn new(server: &Server) -> Self {
        let hands = Self::bare(server, 1).await;
        hands.put(Q, wanted(".*")).await;
        hands
    }

    pub(super) async fn bare(server: &Server, shards: usize) -> Self {
        Self::with(server, shards, 100).await
    }

    pub(super) async fn with(server: &Server, shards: usize, housekeeping_ms: u64) -> Self {
        let redis = server.open::<FabricRole>();
        redis.command("FLUSHALL").run().await.unwrap();
        let time = Time::default();
        let bus = with_fixed_clock(&redis, shards, &time, housekeeping_ms).await;
        let all = Shard::all(&redis, shards);
        let tags = all.iter().map(|shard| shard.tag().as_str().to_owned()).collect();
        let clock = Clock::Fixed(std::sync::Arc::clone(&time.0));
        let queues = Handle::assemble(all, &clock, Options::default(), CancellationToken::new());
        Self { redis, time, bus, queues, tags }
    }

    pub(super) async fn put(&self, name: &str, wanted: NewQueue) {
        define(&self.bus, name, &wanted).await;
    }

    pub(super) fn revision(&self, name: &str) -> u64 {
        self.bus.handle.queues(|queues| queues.get(name).map_or(0, |queue| queue.definition.revision))
    }

    /// Sets what is set for one tenant.
    pub(super) async fn tenant(&self, name: &str, tenant: &str, wanted: TenantSettings) {
        let change = |known: Option<&Definition>| {
            known.unwrap().with_tenant(tenant, wanted).map_err(signalbox_bus::Error::InvalidQueue)
        };
        self.bus.handle.put_queue(name, None, 1_000, change).await.unwrap();
    }

    /// Publishes messages `tenant`, `label`; their IDs. The label identifies a message.
    pub(super) async fn push(&self, messages: &[(&str, &str)]) -> Vec<u64> {
        self.try_push(messages, None).await.into_iter().map(|id| id.expect("it is accepted")).collect()
    }

    /// The same, perhaps with a delay; nothing for messages that a full queue rejects.
    pub(super) async fn try_push(&self, messages: &[(&str, &str)], delay: Option<Delay>) -> Vec<Option<u64>> {
        let message = |(tenant, label): &(&str, &str)| NewMessage {
            tenant: (*tenant).to_owned(),
            kind: "type".into(),
            name: "name".into(),
            payload: Some(RawValue::from_string(Value::from(*label).to_string()).unwrap()),
            idempotency_key: None,
            delay,
        };
        let results = self.bus.handle.publish_messages("shop", messages.iter().map(message).collect()).await;
        let id = |result: Result<signalbox_bus::EventId, Refusal>| match result {
            Err(Refusal::WaitingFull) => None,
            result => Some(result.unwrap().0),
        };
        results.into_iter().map(id).collect()
    }

    pub(super) async fn handed(&self, queue: &str, request: PullRequest<'_>) -> Handed {
        pull_from(&self.queues, &[source(queue, self.revision(queue))], request).await.unwrap()
    }

    /// Pulls in one call.
    pub(super) async fn pull(&self, most: usize) -> Vec<(Receipt, Taken)> {
        self.handed(Q, pull(most)).await.messages
    }

    /// Pulls one at a time until nothing comes or `most` came; the labels.
    pub(super) async fn labels(&self, most: usize) -> Vec<String> {
        let mut labels = Vec::new();
        while labels.len() < most {
            let pulled = self.pull(1).await;
            if pulled.is_empty() {
                break;
            }
            labels.extend(pulled.iter().map(|(_, taken)| label(taken)));
            self.assert_true(Q, "a pull").await;
        }
        labels
    }

    pub(super) async fn ack(&self, receipts: &[&Receipt]) -> Vec<Settled> {
        let texts: Vec<String> = receipts.iter().map(ToString::to_string).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        self.queues.ack(Q, &texts).await.unwrap()
    }

    pub(super) async fn nack(&self, delay_ms: u64, receipts: &[&Receipt]) -> Vec<Settled> {
        let texts: Vec<String> = receipts.iter().map(ToString::to_string).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        self.queues.nack(Q, Some(delay_ms), &texts).await.unwrap()
    }

    /// Drops all dead letters.
    pub(super) async fn drop_dead(&self) -> u64 {
        let definition = self.bus.handle.queues(|queues| queues.get(Q).unwrap().definition.clone());
        let wanted = DeadLetters { drop: true, ..DeadLetters::default() };
        self.queues.take_dead(Q, &self.bus.handle.stamp(), &definition, wanted).await.unwrap()
    }

    /// Returns everything that is due now.
    pub(super) async fn sweep(&self) {
        for store in self.queues.stores() {
            while let Some((queue, due)) = store.next_due().await.unwrap() {
                if due > store.now_ms().await.unwrap() {
                    break;
                }
                store.sweep(&queue, 10_000).await.unwrap();
            }
        }
    }

    async fn strings(&self, command: &'static str, arguments: &[&str]) -> Vec<String> {
        self.redis.command(command).arg(arguments).query().await.unwrap()
    }

    async fn map(&self, command: &'static str, arguments: &[&str]) -> BTreeMap<String, String> {
        self.redis.command(command).arg(arguments).query().await.unwrap()
    }

    /// The content of a tenant of one shard, as the keys have it.
    pub(super) async fn waiting(&self, queue: &str, tenant: &str) -> Vec<u64> {
        let items = self.strings("LRANGE", &[&format!("queue:{queue}:{tenant}"), "0", "-1"]).await;
        items.iter().map(|item| id(item)).collect()
    }

    pub(super) async fn ring(&self, queue: &str) -> Vec<String> {
        self.strings("ZRANGE", &[&format!("queue:{queue}|ring"), "0", "-1"]).await
    }

    pub(super) async fn field(&self, key: &str, field: &str) -> Option<i64> {
        self.redis.command("HGET").arg((key, field)).query().await.unwrap()
    }

    /// Messages in flight: id and tenant.
    pub(super) async fn in_flight(&self, queue: &str) -> BTreeMap<u64, String> {
        let held = self.map("HGETALL", &[&format!("queue:{queue}|inflight")]).await;
        held.iter().map(|(id, value)| (id.parse().unwrap(), held_tenant(value).1)).collect()
    }

    /// Delayed messages: id and tenant.
    pub(super) async fn delayed(&self, queue: &str) -> BTreeMap<u64, String> {
        let members = self.strings("ZRANGE", &[&format!("queue:{queue}|delayed"), "0", "-1"]).await;
        members
            .iter()
            .map(|member| member.split_once(' ').unwrap())
            .map(|(item, env)| (id(item), env.to_owned()))
            .collect()
    }

    /// F1, F2, F5, F7 and what the log has to keep, from nothing but the keys.
    pub(super) async fn assert_true(&self, queue: &str, when: &str) {
        for tag in &self.tags {
            self.assert_shard(tag, queue, when).await;
            assert_eq!(without_bytes(&self.redis, tag).await, [""; 0], "{when}");
        }
    }

    async fn assert_shard(&self, tag: &str, queue: &str, when: &str) {
        let base = format!("{tag}queue:{queue}");
        let settings = self.map("HGETALL", &[&format!("{base}|settings")]).await;
        let usual: u64 = settings["in_flight_limit"].parse().unwrap();
        let throttled = self.strings("ZRANGE", &[&format!("{base}|throttled"), "0", "-1"]).await;
        let mut later: BTreeSet<String> =
            self.map("HGETALL", &[&format!("{base}|later")]).await.into_keys().collect();
        let mut sums: BTreeMap<String, [u64; 3]> = BTreeMap::new();
        let mut segments: BTreeMap<String, i64> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut note = |sums: &mut BTreeMap<String, [u64; 3]>, item: &str, env: &str, column: usize| {
            sums.entry(env.to_owned()).or_default()[column] += 1;
            if segment(item) == "0" {
                assert!(later.remove(&id(item).to_string()), "{when}: {item} has its body with the queue");
            } else {
                *segments.entry(segment(item)).or_default() += 1;
            }
            assert!(seen.insert(id(item)), "{when}: F7: {item} is in two places");
        };
        for key in self.strings("KEYS", &[&format!("{base}:*")]).await {
            let env = key.strip_prefix(&format!("{base}:")).unwrap();
            for item in self.strings("LRANGE", &[&key, "0", "-1"]).await {
                note(&mut sums, &item, env, 0);
            }
        }
        for member in self.strings("ZRANGE", &[&format!("{base}|delayed"), "0", "-1"]).await {
            let (item, env) = member.split_once(' ').unwrap();
            note(&mut sums, item, env, 1);
        }
        let held = self.map("HGETALL", &[&format!("{base}|inflight")]).await;
        for value in held.values() {
            let (item, env) = held_tenant(value);
            note(&mut sums, &item, &env, 2);
        }
        let leases: BTreeSet<String> =
            self.strings("ZRANGE", &[&format!("{base}|leases"), "0", "-1"]).await.into_iter().collect();
        assert_eq!(leases, held.keys().cloned().collect(), "{when}: a lease for each message in flight");

        let index = self.strings("ZRANGE", &[&format!("{base}|facets"), "0", "-1"]).await;
        assert!(sums.keys().eq(index.iter()), "{when}: F1: {index:?} are active, messages have {sums:?}");
        let keys = self.strings("KEYS", &[&format!("{base}|facet:*")]).await;
        assert_eq!(keys.len(), index.len(), "{when}: F1: {keys:?}");
        let depths: Vec<(String, f64)> = self
            .redis
            .command("ZRANGE")
            .arg((format!("{base}|depths"), 0, -1, "WITHSCORES"))
            .query()
            .await
            .unwrap();
        let mut depths: BTreeMap<String, f64> = depths.into_iter().collect();
        let mut eligible = BTreeSet::new();
        for (env, [waiting, delayed, flying]) in &sums {
            let tenant = self.map("HGETALL", &[&format!("{base}|facet:{env}")]).await;
            let number = |field: &str| tenant[field].parse::<u64>().unwrap();
            assert_eq!((number("delayed"), number("flying")), (*delayed, *flying), "{when}: F5: {env}");
            let (depth, ranked) = (*waiting + *delayed, depths.remove(env).unwrap_or_default());
            let rank = tenant.get("rank").map_or(0.0, |text| text.parse().unwrap());
            assert_eq!(ranked, rank, "{when}: F8: the rank of {env}");
            let difference = (depth as f64 - ranked).abs();
            let is_right = if depth < 2 { ranked == 0.0 } else { difference <= ranked / 8.0 };
            assert!(is_right, "{when}: F8: {env} has {depth} messages and is ranked at {ranked}");
            let rules = tenant.get("rules").map_or("", String::as_str);
            let (own, rate) = rules.split_once(':').unwrap_or_default();
            let limit = if own.is_empty() { usual } else { own.parse().unwrap() };
            let may = rate.is_empty() || !throttled.contains(env);
            if number("weight") > 0 && *waiting > 0 && may && (limit == 0 || *flying < limit) {
                eligible.insert(env.clone());
            } else {
                assert_eq!(number("used"), 0, "{when}: {env} keeps no turn");
            }
        }
        assert!(depths.is_empty(), "{when}: F8: {depths:?} are ranked and not active");
        let ring = self.strings("ZRANGE", &[&format!("{base}|ring"), "0", "-1"]).await;
        assert_eq!(ring.into_iter().collect::<BTreeSet<_>>(), eligible, "{when}: F2");
        let count = self.map("HGETALL", &[&format!("{base}|count")]).await;
        for (column, name) in ["waiting", "delayed", "inflight"].into_iter().enumerate() {
            let sum: u64 = sums.values().map(|sums| sums[column]).sum();
            let counted = count.get(name).map_or(0, |text| text.parse().unwrap());
            assert_eq!(counted, sum, "{when}: F5: {name}");
        }
        // With one queue, the log is kept for it and for nothing else.
        if self.strings("KEYS", &[&format!("{tag}queue:*|settings")]).await.len() == 1 {
            let kept = self.map("HGETALL", &[&format!("{tag}queue:|held")]).await;
            let kept: BTreeMap<String, i64> =
                kept.into_iter().map(|(segment, count)| (segment, count.parse().unwrap())).collect();
            assert_eq!(kept, segments, "{when}: segments that are needed");
        }
        let due: Option<f64> =
            self.redis.command("ZSCORE").arg((format!("{tag}queue:|due"), queue)).query().await.unwrap();
        let mut firsts = Vec::new();
        assert!(later.is_empty(), "{when}: bodies without messages: {later:?}");
        for key in ["leases", "delayed", "throttled"] {
            let first: Vec<(String, f64)> = self
                .redis
                .command("ZRANGE")
                .arg((format!("{base}|{key}"), 0, 0, "WITHSCORES"))
                .query()
                .await
                .unwrap();
            firsts.extend(first.into_iter().map(|(_, score)| score));
        }
        if let Some(first) = firsts.into_iter().reduce(f64::min) {
            let latest = first.max(self.queues.now_ms().await.unwrap() as f64);
            assert!(due.is_some_and(|due| due <= latest), "{when}: {first} is due, noted is {due:?}");
        }
    }
}

/// `nonce attempts item tenant`.
fn held_tenant(value: &str) -> (String, String) {
    let parts: Vec<&str> = value.splitn(4, ' ').collect();
    (parts[2].to_owned(), parts[3].to_owned())
}

fn id(item: &str) -> u64 {
    item.split(['@', '#']).next().unwrap().parse().unwrap()
}

fn segment(item: &str) -> String {
    match item.split('#').next().unwrap().split_once('@') {
        Some((_, segment)) => segment.to_owned(),
        None => (id(item) / 64_000_000).to_string(),
    }
}

/// The label that a message was published with.
pub(super) fn label(taken: &Taken) -> String {
    let entry: Value = serde_json::from_slice(&taken.body).unwrap();
    entry["data"].as_str().unwrap().to_owned()
}
