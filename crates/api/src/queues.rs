//! Queues: definitions, pulled messages, receipts and dead letters.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};

/// The definition of a queue to be created or replaced; a missing field has its default.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewQueue {
    /// The messages that it takes: a regular expression (without look-around and back-references) for the whole of
    /// `environment:type:name`, up to 4,096 characters. Events of the bus are `environment:type:topic`.
    #[cfg_attr(feature = "schema", schema(example = ".*:email_event:.*"))]
    pub pattern: String,
    /// How long a pulled message is leased to its consumer: 1 to 43,200 (30).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<f64>,
    /// Messages of one environment that may be in flight at a time, in each shard. No limit when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_limit: Option<u64>,
    /// Deliveries of a message before it becomes a dead letter; 0 means no limit (20).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How long a message may wait before it is dropped: up to a year (four days).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_seconds: Option<u64>,
    /// Messages in a turn by environment, 0 to 10,000; 0 pauses. Others have 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
}

/// A queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = QueueView))]
pub struct Queue {
    /// Its name.
    #[cfg_attr(feature = "schema", schema(example = "email_events"))]
    pub name: String,
    /// The messages that it takes: a regular expression for `environment:type:name`.
    pub pattern: String,
    /// How long a pulled message is leased to its consumer.
    pub lease_seconds: f64,
    /// Messages of one environment that may be in flight at a time, in each shard.
    pub in_flight_limit: Option<u64>,
    /// Deliveries of a message before it becomes a dead letter; 0 means no limit.
    pub max_attempts: u32,
    /// How long a message may wait before it is dropped.
    pub retention_seconds: u64,
    /// Messages in a turn by environment.
    pub weights: BTreeMap<String, u32>,
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

/// All queues.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QueueList {
    /// The queues.
    pub queues: Vec<Queue>,
}

/// A facet of a queue: the messages of one environment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = FacetView))]
pub struct Facet {
    /// The environment.
    pub environment: String,
    /// Messages in a turn; 0 is paused.
    pub weight: u32,
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

/// A page of facets.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FacetPage {
    /// The facets.
    pub facets: Vec<Facet>,
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
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PullBody))]
#[serde(deny_unknown_fields)]
pub struct Pull {
    /// Maximum number of messages, 1 to 1,000 (10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// How long to wait for the first, up to 30 seconds (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<f64>,
    /// Acknowledge the messages immediately: there are no receipts, and a consumer that dies has lost them.
    #[serde(default)]
    pub auto_ack: bool,
    /// Only messages of this environment, regardless of turns. A token that is confined to environments has to name one
    /// of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
}

/// Which messages to read without pulling them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PeekBody))]
#[serde(deny_unknown_fields)]
pub struct Peek {
    /// Only of this environment; else the next of each, in the order of their turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// Maximum number of messages, 1 to 1,000 (10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
}

/// The parameters of a purge.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PurgeBody))]
#[serde(deny_unknown_fields)]
pub struct Purge {
    /// Only of this environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
}

/// A message. `J` is a piece of JSON: the server writes borrowed text, a client reads values.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Message<J> {
    /// Acknowledges, releases or extends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<String>,
    /// Its id.
    pub id: u64,
    /// The tenant.
    pub environment: J,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: J,
    /// Its name; of events of the bus the topic.
    pub name: J,
    /// Any JSON.
    pub payload: Option<J>,
    /// Deliveries so far.
    pub attempt: u32,
    /// When the lease expires, unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_until_ms: Option<u64>,
    /// Of events of the bus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<J>,
    /// Of events of the bus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<J>,
    /// Of events of the bus.
    #[serde(skip_serializing_if = "Option::is_none")]
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

/// A dead letter. `M` is its message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadLetter<M> {
    /// When it was dead-lettered, unix milliseconds.
    pub died_ms: u64,
    /// `nacked` or `expired`: how its last delivery ended.
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

/// Receipts of messages to acknowledge. A receipt is proof that its holder was given the message, so it opens no other
/// tenant's messages to a token that is confined to environments.
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
    /// How long they wait before they can be pulled again: up to 43,200 (0).
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
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Outcome {
    /// The receipt.
    pub receipt: String,
    /// `acked`, `back`, `delayed`, `dead`, `extended`; absent when it settled nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Cow<'static, str>>,
    /// When the lease expires now, unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_until_ms: Option<u64>,
    /// `invalid_receipt`, `receipt_of_other_queue`, `receipt_used`, `receipt_expired`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Cow<'static, str>>,
    /// The problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The result of each receipt, in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Outcomes {
    /// The results.
    pub results: Vec<Outcome>,
}
