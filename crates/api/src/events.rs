//! The event bus: topics, subscriptions, deliveries and their dead letters, and the tokens of its clients.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Time, tokens::Scope};

/// An event to be published.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewEvent {
    /// `create`, `update`, `delete` or `noop`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The resource that it is about.
    pub url: String,
    /// Its object, which is the ordering key; that of the URL when left out.
    pub object: Option<String>,
    /// The tenant by which queues keep it apart.
    pub tenant: Option<String>,
    /// When it happened, unix milliseconds; now when left out.
    pub timestamp: Option<u64>,
    /// Any JSON.
    pub data: Option<serde_json::Value>,
}

/// The result of one event of an array.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Published {
    /// The status that the event would have got alone.
    #[cfg_attr(feature = "schema", schema(example = 200))]
    pub status: u16,
    /// Its id, when it was accepted.
    pub id: Option<u64>,
    /// The stable name of the error.
    pub code: Option<Cow<'static, str>>,
    /// Description of the error.
    pub detail: Option<String>,
}

/// The id of a message.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MessageId {
    /// The id.
    pub id: u64,
}

/// The answer to messages: of one the id, of an array a result for each.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum PublishedMessages {
    /// Of one message.
    One(MessageId),
    /// Of an array.
    Many(Vec<Published>),
}

/// A topic.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Topic {
    /// Its name.
    #[cfg_attr(feature = "schema", schema(example = "orders"))]
    pub name: String,
    /// The client that published to it first; null while none has.
    pub publisher: Option<String>,
    /// Events accepted in total.
    pub events: u64,
}

/// A subscription as every client may see it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = SubscriptionView))]
pub struct Subscription {
    /// The client's name.
    pub subscriber: String,
    /// Without its query string, unless the caller is the client or root.
    pub callback: String,
    /// Maximum number of events in a batch.
    pub max_events: u64,
    /// Milliseconds that a batch waits to fill.
    pub timeout: u64,
    /// The topics whose events it gets.
    pub topics: Vec<String>,
    /// Its events by state.
    pub events: EventCounts,
    /// 0 to 100: one up for each delivery, two down for each failure.
    pub health: u8,
    /// Batches that are delivered at a time.
    pub concurrency: u64,
    /// Why deliveries are stopped; subscribing again starts them.
    pub disabled: Option<String>,
    /// Whether deliveries are paused; events wait in the meantime.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Attempts after which a batch is dead-lettered, if not the configured number.
    pub max_attempts: Option<u32>,
    /// Age in seconds at which a batch is dead-lettered, if not the configured one.
    pub max_age_seconds: Option<u64>,
    /// Seconds before each retry, if not the default schedule; the last repeats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry_seconds: Vec<u32>,
    /// The user name of deliveries; null unless the caller is the subscription's owner or root. It is always present, because
    /// Routemaster's client requires it.
    #[serialize_always]
    pub uuid: Option<String>,
}

/// Events of a subscription.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EventCounts {
    /// Delivered in total.
    pub sent: u64,
    /// Waiting or in flight.
    pub queued: u64,
    /// When the oldest waiting batch was begun, in unix milliseconds; null when none waits.
    pub oldest: Option<u64>,
}

/// All numbers of the bus.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Numbers {
    /// By name.
    pub subscribers: BTreeMap<String, SubscriberNumbers>,
    /// Delivery jobs by state.
    pub jobs: Jobs,
    /// Bytes of events in the log.
    pub log_bytes: u64,
    /// Events accepted in total, by topic.
    pub topics: BTreeMap<String, u64>,
    /// Telemetry counters.
    pub counters: BTreeMap<String, u64>,
    /// Percentage of its idempotency keys that a client uses, by name, of clients that use more than half of them.
    #[serde(default)]
    pub idempotency_keys: BTreeMap<String, u64>,
}

/// The numbers of one subscriber.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SubscriberNumbers {
    /// Events delivered in total.
    pub sent: u64,
    /// Events that wait or are in flight.
    pub events: u64,
    /// Batches that wait or are in flight.
    pub batches: u64,
    /// When the oldest of them was begun.
    pub oldest_at: Option<Time>,
    /// Dead letters, in events.
    pub dead: u64,
    /// Attempts to deliver that failed, in total.
    pub failed: u64,
    /// 0 to 100.
    pub health: u8,
    /// When a delivery was attempted last.
    pub last_attempted_at: Option<Time>,
}

/// Delivery jobs by state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Jobs {
    /// Due now.
    pub instant: u64,
    /// Due later.
    pub scheduled: u64,
    /// Taken by a worker.
    pub pending: u64,
    /// Waiting for a place among the deliveries, for another delivery to the same subscriber, or for older lanes.
    #[serde(default)]
    pub waiting: u64,
}

/// The secrets that sign deliveries.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Secrets {
    /// The newest, in the form of Standard Webhooks.
    #[cfg_attr(feature = "schema", schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))]
    pub secret: String,
    /// Older ones that still sign as well.
    pub previous: Vec<Previous>,
}

/// A secret that is being replaced.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Previous {
    /// The secret.
    pub secret: String,
    /// Until when it signs.
    pub until: Time,
}

/// How to replace the secret.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = SecretRotation))]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    /// `whsec_` and 24 to 64 bytes in base64; generated when left out.
    pub secret: Option<String>,
    /// How long the old ones still sign: 0 to 2,592,000 seconds (a day).
    pub overlap_seconds: Option<u64>,
}

/// The result of a test delivery.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Tested {
    /// Whether it was accepted.
    pub delivered: bool,
    /// Why it was not delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How long it took.
    pub duration_ms: u64,
}

/// A page of dead letters, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeadLetters {
    /// The dead letters.
    pub dead: Vec<DeadLetter>,
    /// The cursor of the next page; null when this is the last.
    pub cursor: Option<String>,
}

/// A dead letter.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DeadView))]
pub struct DeadLetter {
    /// The event as it would have been delivered.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub event: Box<RawValue>,
    /// When it was dead-lettered.
    pub died_at: Time,
    /// Attempts made with its batch.
    pub attempts: u32,
    /// The last failure.
    pub reason: String,
}

/// How many dead letters are delivered again.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Redriven {
    /// How many.
    pub redriven: u64,
}

/// The result of an attempt to deliver a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum DeliveryResult {
    /// The receiver accepted it.
    Delivered,
    /// It is retried.
    Retried,
    /// Its events are dead letters.
    Dead,
    /// The receiver is gone, and the subscription is disabled.
    Gone,
    /// Nothing was sent: it waits for one of the deliveries to slow or failing receivers (`bus.slow_deliveries`).
    Waiting,
}

/// An attempt to deliver a batch.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeliveryAttempt {
    /// When it began.
    #[serde(deserialize_with = "Time::stored")]
    pub at: Time,
    /// The batch: the header `webhook-id`.
    pub batch: String,
    /// From 1.
    pub attempt: u32,
    /// How many events it carried.
    pub events: u64,
    /// The ID of the first of them.
    pub first: u64,
    /// The ID of the last.
    pub last: u64,
    /// The result of the attempt.
    pub result: DeliveryResult,
    /// The receiver's status, if it answered.
    pub status: Option<u16>,
    /// How long it took.
    pub duration_ms: u64,
    /// Why it failed.
    pub why: Option<String>,
    /// The beginning of the body of an answer that is not a success.
    pub response: Option<String>,
    /// When the batch is retried.
    #[serde(default, deserialize_with = "Time::stored_option")]
    pub next: Option<Time>,
}

/// The last attempts, newest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeliveryLog {
    /// The attempts.
    pub deliveries: Vec<DeliveryAttempt>,
}

/// An event, by its ID.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EventChoice {
    /// Its ID.
    pub id: u64,
}

/// How many lanes are retried.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Retried {
    /// Lanes whose pause after a failure ended.
    pub retried: u64,
}

/// How many dead letters were dropped.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Dropped {
    /// How many.
    pub dropped: u64,
}

/// The events to deliver again.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// Events accepted from this moment on.
    pub from: Time,
    /// And before this one.
    pub to: Time,
    /// Events per second, 1 to 100,000 (100).
    pub rate: Option<u64>,
}

/// The time at which the process answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Pong {
    /// Unix milliseconds.
    pub pong: u64,
}

/// A client of the bus with a token.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = BusTokenView))]
pub struct ClientToken {
    /// The client's name.
    #[cfg_attr(feature = "schema", schema(example = "billing"))]
    pub name: String,
    /// The secret: only in the answer to its creation, and in lists if `bus.legacy_token_list` is on.
    #[cfg_attr(feature = "schema", schema(example = "billing--5f1d7a84db00d2fce00b31a7fc73224f"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A token of a client of the bus, to be created.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = NewApiToken))]
#[serde(deny_unknown_fields)]
pub struct NewClientToken {
    /// `[a-z0-9:_-]{1,64}`.
    pub name: String,
    /// `[a-z0-9:_-]{20,64}`; generated as `name--` and 32 hexadecimal digits when left out.
    pub token: Option<String>,
    /// `publish` and `subscribe` when left out.
    pub scopes: Option<BTreeSet<Scope>>,
    /// When the token expires. Without it, the token does not expire.
    pub expires_at: Option<Time>,
}

/// Another token for a client of the bus.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ApiTokenRotation))]
#[serde(deny_unknown_fields)]
pub struct ClientTokenRotation {
    /// The new token, as at its creation.
    pub token: Option<String>,
    /// Seconds for which the previous tokens stay valid, up to 30 days. An hour when left out.
    pub overlap_seconds: Option<u64>,
}

/// A token of a client of the bus, to be deleted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = OldApiToken))]
#[serde(deny_unknown_fields)]
pub struct OldClientToken {
    /// A valid token of the client.
    pub token: String,
}
