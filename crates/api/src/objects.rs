//! Objects with a backend, and the backends.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Time, words::words};

/// What to do with an event whose attempts all failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It is retried without a limit; the object waits.
    #[default]
    Block,
    /// It becomes a dead letter, the object's next event reports the gap, and the object continues.
    Skip,
    /// The object waits until an operator retries the event or skips it.
    Park,
}

words!(OnFailure { Block: "block", Skip: "skip", Park: "park" });

/// What to do with the events that are queued for a backend when it is removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Queued {
    /// They are sent first.
    #[default]
    Send,
    /// They become dead letters, with a gap for each object.
    Dead,
    /// They are dropped, with a gap for each object.
    Discard,
}

words!(Queued { Send: "send", Dead: "dead", Discard: "discard" });

/// The state of an object.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ObjectView))]
pub struct ObjectState {
    /// Its name.
    #[cfg_attr(feature = "schema", schema(example = "work:1"))]
    pub object: String,
    /// Its data as it was sent last; null when none was sent.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub data: Option<Box<RawValue>>,
    /// The id of its latest event; null when it had none for a long time.
    pub last_id: Option<u64>,
    /// The backend that its queue goes to; null when it has no queue.
    pub backend: Option<String>,
    /// Events that wait, the one in flight included.
    pub queued: u64,
    /// The event that is being sent.
    pub in_flight: Option<u64>,
    /// The event that is sent next: the one that `skip` drops, when it is parked or waits for a retry.
    pub next_id: Option<u64>,
    /// The worker that sends what is in flight, and the epoch of its lease behind the slash.
    pub owner: Option<String>,
    /// When the lease expires unless the worker renews it.
    pub lease_until: Option<Time>,
    /// Whether it waits for a decision: `unpark` or `skip`.
    pub parked: bool,
    /// Since when.
    pub parked_since: Option<Time>,
    /// Failed attempts with the event at the head.
    pub attempts: u64,
    /// Why the last one failed.
    pub last_error: Option<String>,
    /// When it is retried.
    pub next_try_at: Option<Time>,
    /// The id of the latest event that the backend accepted.
    pub last_sent_id: Option<u64>,
}

/// Objects that wait for an operator's decision.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ObjectList {
    /// The objects.
    pub objects: Vec<ObjectState>,
    /// The cursor of the next page; absent on the last one.
    pub next: Option<String>,
    /// How many items match the search, on all pages together; absent if they were not counted.
    pub total: Option<u64>,
}

/// The ids of the events of a group, in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Accepted {
    /// The ids.
    pub ids: Vec<u64>,
}

/// Which event to drop.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Skip {
    /// The id of the event at the head.
    pub id: u64,
}

/// A backend: where the events of objects go whose names begin with its prefix.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = BackendView))]
pub struct Backend {
    /// Its name.
    #[cfg_attr(feature = "schema", schema(example = "search"))]
    pub name: String,
    /// The prefix of the names of its objects.
    #[cfg_attr(feature = "schema", schema(example = "work:"))]
    pub prefix: String,
    /// Where events are sent.
    pub callback: String,
    /// The user name of deliveries; only root sees it.
    pub uuid: Option<String>,
    /// The secret that signs; only root sees it.
    pub secret: Option<String>,
    /// What to do with an event that fails.
    pub on_failure: OnFailure,
    /// How often an event is tried before that.
    pub max_attempts: u32,
    /// Objects that one pacemaker serves at a time.
    pub workers: u64,
    /// Why deliveries are stopped; null while they are not.
    #[serialize_always]
    pub disabled: Option<String>,
    /// It was removed, and disappears as soon as nothing is queued for it.
    pub draining: bool,
    /// What is done with the queued events, if the backend was removed.
    pub queued: Option<Queued>,
    /// Objects with a queue.
    pub objects: u64,
    /// Events that wait or are in flight.
    pub events: u64,
    /// Dead letters.
    pub dead: u64,
}

/// A dead letter of a backend.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = BackendDeadView))]
pub struct DeadEvent {
    /// When it was dead-lettered.
    pub died_at: Time,
    /// Attempts made.
    pub attempts: u32,
    /// Why the last one failed.
    pub why: String,
    /// The event as it was accepted.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub event: Box<RawValue>,
}

/// How many dead letters were dropped.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = BackendDropped))]
pub struct Dropped {
    /// How many.
    pub dropped: u64,
}

/// How many dead letters were redriven.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RedrivenEvents {
    /// Those that are queued again.
    pub redriven: u64,
    /// Those that stay, because their object's queue is full or they cannot be read.
    pub left: u64,
}
