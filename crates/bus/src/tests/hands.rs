//! A store driven by hand: publishing without a committer, working without workers.

use std::sync::Arc;

use signalbox_store::Shard;

use super::support::*;
use crate::{
    EventId, NewEvent, Options,
    event::lane_hash,
    store::{
        Accepted, Ack, FanOut, Group, Nack, Nacked, PublishCall, PublishReply, Published, Store, Stored,
        Taken, Target, Turn,
    },
};
use signalbox_store::FabricRole;
use signalbox_testkit::Server;

pub(super) struct Hands {
    pub(super) store: Store,
    pub(super) time: Time,
    pub(super) fan_out: FanOut,
    pub(super) sequence: u64,
    pub(super) acknowledged: u64,
    pub(super) options: Options,
    pub(super) seeds: u64,
}

/// The data of one shard, on a fresh server, with a clock that does not advance.
pub(super) async fn store(server: &Server, time: &Time) -> Store {
    let redis = server.open::<FabricRole>();
    Store::new(Shard::all(&redis, 1).remove(0), time.clock())
}

pub(super) fn subscriber(token: &str, concurrency: u64, max_events: u64, timeout_ms: u64) -> Target {
    Target { token: token.into(), generation: 1, concurrency, max_events, timeout_ms }
}

impl Hands {
    /// A fresh registry with one topic, `t`, and these subscribers.
    pub(super) async fn new(server: &Server, targets: Vec<Target>) -> Self {
        let time = Time::default();
        let store = store(server, &time).await;
        let wanted = Stored { fabric: "f".into(), stamp: "1.a".into(), snapshot: "{}".into(), shards: 1 };
        store.initialize(&wanted).await.unwrap();
        let places = (0..targets.len()).collect();
        let fan_out = FanOut {
            stamp: "1.a".into(),
            targets,
            topics: vec![("t".into(), places)],
            clients: vec![Arc::from("shop")],
            queues: Vec::new(),
        };
        Self {
            store,
            time,
            fan_out,
            sequence: 0,
            acknowledged: 0,
            options: Options {
                objects: 1000,
                object_seconds: 1000,
                idempotency_keys: 1000,
                object_events: 100,
                ..Options::default()
            },
            seeds: 0,
        }
    }

    pub(super) fn seed(&mut self) -> String {
        self.seeds += 1;
        format!("seed{:012}", self.seeds)
    }

    /// Publishes events to topics by place, without moving the sequence.
    pub(super) async fn send(
        &mut self,
        events: &[(usize, NewEvent)],
    ) -> Result<PublishReply, signalbox_store::Error> {
        let rests: Vec<Vec<u8>> =
            events.iter().map(|(topic, event)| event.rest(&self.fan_out.topics[*topic].0, "shop")).collect();
        let groups: Vec<Group<'_>> = events
            .iter()
            .zip(&rests)
            .map(|((topic, event), rest)| Group {
                object: event.object(),
                hash: lane_hash(event.object()),
                state: None,
                backend: None,
                client: 0,
                idempotency: event
                    .idempotency_key
                    .as_deref()
                    .map(|key| (key, if event.timestamp_ms.is_some() { "other" } else { "body" })),
                events: vec![Published {
                    topic: Some(*topic),
                    channel: "shop:update:t",
                    rest,
                    queues: Vec::new(),
                    delay: None,
                }],
                change: None,
            })
            .collect();
        self.send_groups(&groups).await
    }

    /// Sends a call, without moving the sequence.
    pub(super) async fn send_groups(
        &mut self,
        groups: &[Group<'_>],
    ) -> Result<PublishReply, signalbox_store::Error> {
        let seed = self.seed();
        let call = PublishCall {
            pacemaker: "p",
            sequence: self.sequence,
            acknowledged: self.acknowledged,
            seed: &seed,
            limits: &self.options,
            tenant_bytes: 0,
            fan_out: &self.fan_out,
            groups,
        };
        self.store.publish(&call).await
    }

    /// Publishes; every event must be new. Their ids with prev and tprev.
    pub(super) async fn publish(
        &mut self,
        events: &[(usize, NewEvent)],
    ) -> Vec<(EventId, Option<EventId>, Option<EventId>)> {
        self.sequence += 1;
        match self.send(events).await.expect("a reply") {
            PublishReply::Accepted(accepted) => accepted
                .into_iter()
                .map(|one| match one {
                    Accepted::New(numbers) => numbers[0],
                    other => panic!("{other:?}"),
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Publishes one event of each object to the first topic; the ids.
    pub(super) async fn publish_urls(&mut self, urls: &[&str]) -> Vec<u64> {
        let events: Vec<_> = urls.iter().map(|url| (0, event(url))).collect();
        self.publish(&events).await.into_iter().map(|(id, _, _)| id.0).collect()
    }

    /// What the registry's change does to the lanes when the subscription of this generation ends.
    pub(super) async fn end(&self, token: &str, generation: &str) {
        let redis = self.store.shard().redis();
        number(redis, "HSET", &["bus:purge", token, generation]).await;
        for gauge in ["bus:batches:gauges:event", "bus:batches:gauges:batch"] {
            number(redis, "HDEL", &[gauge, token]).await;
        }
    }

    pub(super) async fn turn(&self, workers: &[&str]) -> Turn {
        let workers: Vec<String> = workers.iter().map(ToString::to_string).collect();
        self.store.acquire(&workers, 1000, 256).await.expect("a turn")
    }

    /// Takes a job for a worker; there must be one.
    pub(super) async fn take(&self, worker: &str) -> Taken {
        let mut turn = self.turn(&[worker]).await;
        assert_eq!(turn.taken.len(), 1, "{turn:?}");
        turn.taken.remove(0)
    }

    pub(super) async fn ack(&self, taken: &Taken) -> bool {
        self.store
            .ack(&[Ack {
                held: taken.held.clone(),
                timeout_ms: self.timeout(&taken.held.token),
                events: taken.items.len(),
                gaps: taken.gaps.clone(),
            }])
            .await
            .expect("a reply")
            == [true]
    }

    pub(super) async fn nack(&mut self, taken: &Taken, pause_ms: u64, split: bool) -> bool {
        let seed = self.seed();
        let nack = Nack { pause_ms, attempted: true, split };
        self.store.nack(&taken.held, &nack, &seed).await.expect("a reply") != Nacked::NotHeld
    }

    pub(super) async fn bury(&self, taken: &Taken) -> bool {
        let timeout = self.timeout(&taken.held.token);
        self.store.bury(&taken.held, timeout, "500", true, (1000, 1 << 20)).await.expect("a reply")
    }

    fn timeout(&self, token: &str) -> u64 {
        self.fan_out.targets.iter().find(|target| target.token == token).map_or(0, |target| target.timeout_ms)
    }
}
