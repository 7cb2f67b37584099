//! Queues: definitions, pulled messages, receipts and dead letters.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Deserializer, Serialize};

use crate::Time;

/// The definition of a queue to be created or replaced; a missing field has its default.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewQueue {
    /// The messages that it takes: a regular expression (without look-around and back-references) for the whole of
    /// `tenant:type:topic`, up to 4,096 characters. The topic of a message is its `name`.
    #[cfg_attr(feature = "schema", schema(example = ".*:email_event:.*"))]
    pub pattern: String,
    /// How long a pulled message is leased to its consumer: 1 to 43,200 (30).
    pub lease_seconds: Option<f64>,
    /// Messages of one tenant that may be in flight at a time, in each shard. No limit when left out, or 0.
    pub in_flight_limit: Option<u64>,
    /// Deliveries of a message before it becomes a dead letter; 0 means no limit (20).
    pub max_attempts: Option<u32>,
    /// How long a message may wait before it is dropped: up to a year (four days).
    pub retention_seconds: Option<u64>,
    /// How long a message that was released without a delay, or whose lease expired, waits before its second delivery. The
    /// time doubles with every further delivery. 0 to 43,200 (0).
    pub backoff_seconds: Option<f64>,
    /// The maximum of this time: 0 to 43,200 (3,600).
    pub max_backoff_seconds: Option<f64>,
    /// Messages that may wait or be delayed, in each shard. No limit when left out.
    pub max_waiting: Option<u64>,
    /// The same, of one tenant.
    pub max_waiting_per_tenant: Option<u64>,
    /// What to do with a message that would exceed these limits.
    #[serde(default)]
    pub overflow: Overflow,
    /// Messages in a turn by tenant, 0 to 10,000; 0 pauses. Others have 1. When left out, the weights of the existing
    /// queue stay.
    pub weights: Option<BTreeMap<String, u32>>,
}

/// What to do with a message that would exceed a limit of waiting messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// It is rejected with 429 `queue_limit_reached`, unless its tenant has less than its share. An event is not: the
    /// queue does not receive it, and lists it as a gap.
    #[default]
    Reject,
    /// It is accepted, and the oldest waiting messages of the tenant with most are dropped and listed as a gap.
    DropOldest,
}

/// Changes of a queue's definition; a missing field stays. `null` removes a limit, or the weight of a tenant.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct QueuePatch {
    /// See `NewQueue`.
    pub pattern: Option<String>,
    /// See `NewQueue`.
    pub lease_seconds: Option<f64>,
    /// See `NewQueue`.
    #[serde(default, deserialize_with = "given")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u64>))]
    pub in_flight_limit: Option<Option<u64>>,
    /// See `NewQueue`.
    pub max_attempts: Option<u32>,
    /// See `NewQueue`.
    pub retention_seconds: Option<u64>,
    /// See `NewQueue`.
    pub backoff_seconds: Option<f64>,
    /// See `NewQueue`.
    pub max_backoff_seconds: Option<f64>,
    /// See `NewQueue`.
    #[serde(default, deserialize_with = "given")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u64>))]
    pub max_waiting: Option<Option<u64>>,
    /// See `NewQueue`.
    #[serde(default, deserialize_with = "given")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u64>))]
    pub max_waiting_per_tenant: Option<Option<u64>>,
    /// See `NewQueue`.
    pub overflow: Option<Overflow>,
    /// Weights to change, by tenant; the others stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, Option<u32>>,
}

/// A field that is present, perhaps with `null`.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Settings of one tenant of a queue; a missing field has its default.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    /// Messages in a turn, 0 to 10,000 (1).
    pub weight: Option<u32>,
    /// Whether nothing of it is delivered (`false`).
    #[serde(default)]
    pub paused: bool,
    /// Messages that may be in flight at a time, in each shard, in place of the queue's limit; 0 means no limit.
    pub in_flight_limit: Option<u64>,
    /// Messages per second, in each shard: 0.001 to 1,000,000. No limit when left out.
    pub rate_per_second: Option<f64>,
}

/// Changes of what is set for one tenant of a queue; a missing field stays, and `null` sets the default.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantPatch {
    /// See `TenantSettings`.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u32>))]
    pub weight: Option<Option<u32>>,
    /// See `TenantSettings`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// See `TenantSettings`.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u64>))]
    pub in_flight_limit: Option<Option<u64>>,
    /// See `TenantSettings`.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<f64>))]
    pub rate_per_second: Option<Option<f64>>,
}

/// A queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = QueueView))]
pub struct Queue {
    /// Its name.
    #[cfg_attr(feature = "schema", schema(example = "email_events"))]
    pub name: String,
    /// The messages that it takes: a regular expression for `tenant:type:topic`.
    pub pattern: String,
    /// How long a pulled message is leased to its consumer.
    pub lease_seconds: f64,
    /// Messages of one tenant that may be in flight at a time, in each shard.
    pub in_flight_limit: Option<u64>,
    /// Deliveries of a message before it becomes a dead letter; 0 means no limit.
    pub max_attempts: u32,
    /// How long a message may wait before it is dropped.
    pub retention_seconds: u64,
    /// How long a message waits before its second delivery; 0 for no backoff.
    pub backoff_seconds: f64,
    /// The maximum of this time.
    pub max_backoff_seconds: f64,
    /// Messages that may wait or be delayed, in each shard.
    pub max_waiting: Option<u64>,
    /// The same, of one tenant.
    pub max_waiting_per_tenant: Option<u64>,
    /// What to do with a message that would exceed these limits.
    pub overflow: Overflow,
    /// Messages in a turn by tenant.
    pub weights: BTreeMap<String, u32>,
    /// Settings of single tenants, apart from their weights.
    pub tenants: BTreeMap<String, TenantSettings>,
    /// The number of this definition; the header `ETag` has it as well.
    pub revision: u64,
    /// Its messages by state.
    pub messages: Numbers,
}

/// Messages of a queue by state.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = QueueNumbers))]
pub struct Numbers {
    /// Ready to be pulled.
    pub waiting: u64,
    /// Leased to consumers.
    pub in_flight: u64,
    /// Not available yet.
    pub delayed: u64,
    /// Dead letters.
    pub dead: u64,
}

/// Queues.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QueueList {
    /// The queues.
    pub queues: Vec<Queue>,
    /// The cursor of the next page; absent on the last one.
    pub next: Option<String>,
    /// How many items match the search, on all pages together; absent if they were not counted.
    pub total: Option<u64>,
}

/// A tenant of a queue: the messages of one tenant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = TenantView))]
pub struct Tenant {
    /// The tenant.
    pub tenant: String,
    /// Messages in a turn.
    pub weight: u32,
    /// Whether nothing of it is delivered.
    pub paused: bool,
    /// Its own limit of messages in flight, in each shard; 0 for no limit, null for the queue's limit.
    pub in_flight_limit: Option<u64>,
    /// Messages per second, in each shard; null for no limit.
    pub rate_per_second: Option<f64>,
    /// Ready to be pulled.
    pub waiting: u64,
    /// Leased to consumers.
    pub in_flight: u64,
    /// Not available yet.
    pub delayed: u64,
    /// Age of the next message; null when none waits.
    pub oldest_age_ms: Option<u64>,
    /// The mean time from acceptance to the first pull of the latest messages.
    pub dwell_ms: Option<u64>,
}

/// A page of tenants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TenantPage {
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// The cursor of the next page; null when this is the last.
    pub next: Option<String>,
}

/// A number of messages.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Count {
    /// How many.
    pub messages: u64,
}

/// The parameters of a pull.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PullBody))]
#[serde(deny_unknown_fields)]
pub struct Pull {
    /// Maximum number of messages, 1 to 1,000 (10).
    pub max: Option<usize>,
    /// How long to wait for the first, up to 30 seconds (0).
    pub wait_seconds: Option<f64>,
    /// Acknowledge the messages immediately: there are no receipts, and a consumer that dies has lost them.
    #[serde(default)]
    pub auto_ack: bool,
    /// Only messages of this tenant, regardless of turns. A token that is confined to tenants has to name one
    /// of them.
    pub tenant: Option<String>,
    /// How long these messages are leased, 1 to 43,200; the time of their queue when left out.
    pub lease_seconds: Option<f64>,
}

/// The parameters of a pull from several queues.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PullFrom {
    /// 1 to 16 queues, each once.
    pub queues: Vec<PullSource>,
    /// See `PullBody`.
    pub max: Option<usize>,
    /// See `PullBody`.
    pub wait_seconds: Option<f64>,
    /// See `PullBody`.
    #[serde(default)]
    pub auto_ack: bool,
    /// See `PullBody`.
    pub tenant: Option<String>,
    /// See `PullBody`.
    pub lease_seconds: Option<f64>,
}

/// A queue to pull from.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PullSource {
    /// Its name.
    pub name: String,
    /// Its part of the messages relative to the other queues, 1 to 10,000 (1). What one queue leaves goes to the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// Which messages to read without pulling them.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PeekBody))]
#[serde(deny_unknown_fields)]
pub struct Peek {
    /// Only of this tenant; else the next of each, in the order of their turns.
    pub tenant: Option<String>,
    /// Maximum number of messages, 1 to 1,000 (10).
    pub max: Option<usize>,
}

/// The parameters of a purge.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PurgeBody))]
#[serde(deny_unknown_fields)]
pub struct Purge {
    /// Only of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// A message. `J` is a piece of JSON: the server writes borrowed text, a client reads values.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Message<J> {
    /// Acknowledges, releases or extends it.
    pub receipt: Option<String>,
    /// Its queue, if it was pulled from several.
    pub queue: Option<String>,
    /// Its id.
    pub id: u64,
    /// The tenant.
    pub tenant: J,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: J,
    /// Its name; of events of the bus the topic.
    pub name: J,
    /// Any JSON.
    #[serialize_always]
    pub payload: Option<J>,
    /// In place of a payload that JSON readers may reject: its text.
    pub payload_text: Option<String>,
    /// Deliveries so far.
    pub attempt: u32,
    /// When the lease expires.
    pub lease_until: Option<Time>,
    /// Of events of the bus.
    pub url: Option<J>,
    /// Of events of the bus.
    pub object: Option<J>,
    /// Of events of the bus.
    pub timestamp: Option<J>,
}

/// The messages of a pull.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pulled<J> {
    /// The messages.
    pub messages: Vec<Message<J>>,
    /// When there are none: milliseconds until a lease or a delay ends.
    pub next_due_in_ms: Option<u64>,
}

/// Messages that stay in their queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Peeked<J> {
    /// The messages.
    pub messages: Vec<Message<J>>,
}

/// Where in its queue a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MessageState {
    /// Not available yet.
    Delayed,
    /// Ready to be pulled.
    Waiting,
    /// Leased to a consumer.
    InFlight,
    /// A dead letter.
    Dead,
}

/// A message in its queue. `M` is the message.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredMessage<M> {
    /// Where it is.
    pub state: MessageState,
    /// When its delay or its lease ends.
    pub until: Option<Time>,
    /// When it was dead-lettered.
    pub died_at: Option<Time>,
    /// `nacked`, `expired` or `rejected`: how the last delivery of a dead letter ended.
    pub reason: Option<String>,
    /// The message as a pull would have shown it.
    #[serialize_always]
    pub message: Option<M>,
}

/// A page of messages.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MessagePage<M> {
    /// The messages; a page may have fewer than `limit`.
    pub messages: Vec<StoredMessage<M>>,
    /// The cursor of the next page; null when this is the last.
    pub next: Option<String>,
}

/// A dead letter. `M` is its message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadLetter<M> {
    /// When it was dead-lettered.
    pub died_at: Time,
    /// `nacked`, `expired` or `rejected`: how its last delivery ended.
    pub reason: String,
    /// The message as a pull would have shown it.
    pub message: Option<M>,
}

/// A page of dead letters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadPage<M> {
    /// The dead letters, oldest first in each shard.
    pub dead: Vec<DeadLetter<M>>,
    /// The cursor of the next page; null when this is the last.
    pub next: Option<String>,
}

/// Which dead letters are returned to their queue.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Redrive {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only these messages, up to 1,000.
    pub ids: Option<Vec<u64>>,
    /// How many become available per second, from now: 0.1 to 1,000,000. All now when left out.
    pub rate_per_second: Option<f64>,
}

/// Messages that were dropped because too many waited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = QueueGap))]
pub struct Gap {
    /// The tenant; null for those of tenants beyond the first 10,000.
    pub tenant: Option<String>,
    /// The lowest id.
    pub first: u64,
    /// The highest id.
    pub last: u64,
    /// How many.
    pub messages: u64,
    /// When the last one was dropped.
    pub dropped_at: Time,
}

/// The gaps of a queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = QueueGaps))]
pub struct Gaps {
    /// By tenant.
    pub gaps: Vec<Gap>,
}

/// Receipts of messages to acknowledge. A receipt is proof that its holder was given the message, so it opens no other
/// tenant's messages to a token that is confined to tenants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Receipts {
    /// 1 to 1,000 of them.
    pub receipts: Vec<String>,
}

/// Receipts of messages to release.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Nack {
    /// 1 to 1,000 of them.
    pub receipts: Vec<String>,
    /// How long they wait before they can be pulled again: up to 43,200 (the backoff of their queue).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<f64>,
}

/// Receipts of messages whose leases are extended.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Extend {
    /// 1 to 1,000 of them.
    pub receipts: Vec<String>,
    /// When their leases expire, from now: 1 to 43,200.
    pub lease_seconds: f64,
}

/// The result of one receipt.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Outcome {
    /// The receipt.
    pub receipt: String,
    /// `acked`, `already_acked`, `back`, `delayed`, `dead`, `extended`; absent when it settled nothing.
    pub result: Option<Cow<'static, str>>,
    /// When the lease expires now.
    pub lease_until: Option<Time>,
    /// `invalid_receipt`, `receipt_of_other_queue`, `receipt_used`, `receipt_expired`.
    pub code: Option<Cow<'static, str>>,
    /// The problem.
    pub detail: Option<String>,
}

/// The result of each receipt, in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Outcomes {
    /// The results.
    pub results: Vec<Outcome>,
}
