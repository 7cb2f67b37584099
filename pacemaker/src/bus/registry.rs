//! Topics, their claims, subscriptions and API tokens. Pure: no Redis, no clock.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// What happens to a batch that is exhausted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExhausted {
    /// It becomes a dead letter, a gap tells the subscriber, and its lane goes on.
    #[default]
    Dead,
    /// It is tried for ever; its lane waits.
    Block,
}

/// What a client asks for with `POST /subscription`.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// All topics it wants from now on; others are unsubscribed.
    pub topics: BTreeSet<String>,
    /// Where to deliver.
    pub callback: String,
    /// The user name of deliveries.
    pub uuid: Option<String>,
    /// How long to wait for a batch to fill, in milliseconds: 0…3,600,000, 500 when absent.
    pub timeout_ms: Option<u64>,
    /// Events in a batch: 1…10,000, 100 when absent.
    pub max_events: Option<u64>,
    /// Lanes: 1…64, 4 when absent.
    pub concurrency: Option<u64>,
    /// What happens to an exhausted batch.
    pub on_exhausted: Option<OnExhausted>,
}

/// A client's subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// The client.
    pub token: String,
    /// Where to deliver.
    pub callback: String,
    /// The user name of deliveries. A credential: only for its owner and root.
    pub uuid: String,
    /// How long to wait for a batch to fill.
    pub timeout_ms: u64,
    /// Events in a batch.
    pub max_events: u64,
    /// Lanes.
    pub concurrency: u64,
    /// Names the present set of lanes; a change of `concurrency` makes a higher one.
    pub generation: u64,
    /// What happens to an exhausted batch.
    #[serde(default)]
    pub on_exhausted: OnExhausted,
    /// Signing secrets, newest first; each signs until it is retired.
    pub secrets: Vec<Secret>,
    /// Why deliveries are stopped (the callback answered 410). Subscribing again starts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
    /// What it is subscribed to.
    pub topics: BTreeSet<String>,
}

/// A signing secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// The secret as Standard Webhooks writes it: `whsec_…`.
    pub secret: String,
    /// Until when it signs, in unix milliseconds; for ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// A client's credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiToken {
    /// The client's name.
    pub name: String,
    /// What it may do.
    pub scopes: BTreeSet<String>,
}

/// All of it, as of one stamp.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    /// Topic → the client that claimed it.
    pub topics: BTreeMap<String, Option<String>>,
    /// Client → its subscription.
    pub subscriptions: BTreeMap<String, Subscription>,
    /// Token → its client.
    pub api_tokens: BTreeMap<String, ApiToken>,
}
