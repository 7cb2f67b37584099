//! Arguments and results of a queue's scripts.

use std::collections::BTreeMap;

use super::{Message, Tenant};

/// The settings of `PUT /queues/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How long a pulled message is invisible, in milliseconds.
    pub lease_ms: i64,
    /// Messages per turn, by tenant; 0 pauses it.
    pub weights: BTreeMap<Tenant, u32>,
    /// The weight of every tenant that is not in `weights`.
    pub default_weight: u32,
    /// How many messages of one tenant may be in flight; no limit if absent.
    pub in_flight_limit: Option<u32>,
    /// How often a message is pulled before it is dead; no limit if absent.
    pub max_attempts: Option<u32>,
    /// Limits of single tenants in place of `in_flight_limit`; 0 for no limit.
    pub limits: BTreeMap<Tenant, u32>,
    /// Messages per 1,000 seconds of single tenants; the others have no limit.
    pub rates: BTreeMap<Tenant, i64>,
    /// How long a message waits before its second delivery, in milliseconds, and the maximum before a later one; 0 for
    /// no backoff.
    pub backoff_ms: (i64, i64),
    /// Messages of a tenant that may wait or be delayed; no limit if absent.
    pub max_waiting: Option<usize>,
    /// Whether the oldest messages are dropped beyond this limit; otherwise new ones are rejected.
    pub drops: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_ms: 30_000,
            weights: BTreeMap::new(),
            default_weight: 1,
            in_flight_limit: None,
            max_attempts: None,
            limits: BTreeMap::new(),
            rates: BTreeMap::new(),
            backoff_ms: (0, 0),
            max_waiting: None,
            drops: false,
        }
    }
}

impl Settings {
    /// Messages per turn of `tenant`.
    #[must_use]
    pub fn weight(&self, tenant: Tenant) -> u32 {
        self.weights.get(&tenant).copied().unwrap_or(self.default_weight)
    }

    /// Messages of `tenant` that may be in flight.
    #[must_use]
    pub fn limit(&self, tenant: Tenant) -> Option<u32> {
        self.limits.get(&tenant).map_or(self.in_flight_limit, |own| (*own > 0).then_some(*own))
    }

    /// How long a message waits after this many deliveries, in milliseconds.
    pub(super) fn backoff(&self, attempts: u32) -> i64 {
        let (first, most) = self.backoff_ms;
        first.saturating_mul(1 << (attempts.saturating_sub(1)).min(40)).min(most)
    }
}

/// A consumer's proof when it settles a message: valid for one pull of it only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt {
    /// The message.
    pub message: Message,
    /// Which pull of it, from 1.
    pub delivery: u32,
}

/// A message as a pull hands it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Its tenant.
    pub tenant: Tenant,
    /// Which it is.
    pub message: Message,
    /// How to settle it; also there, but worthless, after a pull with `auto_ack`.
    pub receipt: Receipt,
    /// How often it was pulled, this pull included.
    pub attempts: u32,
    /// When its lease runs out, in milliseconds; `None` with `auto_ack`.
    pub lease_until_ms: Option<i64>,
}

/// Where a message is: in exactly one of these (F7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In its tenant, to be pulled.
    Waiting,
    /// Returned, or accepted, with a delay that is over at this time, in milliseconds.
    Delayed(i64),
    /// Pulled, under a lease until this time, in milliseconds.
    InFlight(i64),
    /// Settled.
    Acked,
    /// Pulled too often.
    Dead,
    /// Thrown away by an operator, or because too many waited.
    Dropped,
}

/// The answer to one receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done as asked.
    Done,
    /// The receipt is used, expired or unknown; nothing changed.
    Stale,
}

/// How many messages are where, over all tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// To be pulled.
    pub waiting: usize,
    /// Returned with a delay that runs.
    pub delayed: usize,
    /// Pulled and not settled.
    pub in_flight: usize,
}

/// The contents of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantView {
    /// Head first.
    pub waiting: Vec<Message>,
    /// In order of acceptance.
    pub delayed: Vec<Message>,
    /// In order of acceptance.
    pub in_flight: Vec<Message>,
}

/// A part of the protocol that can be left out, to show its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A turn ends when the weight is used.
    Turn,
    /// A tenant enters at the tail, not at the head.
    Tail,
    /// A tenant that ran empty leaves the ring.
    Leave,
    /// A push puts a new tenant into the ring.
    Enter,
    /// An ack evaluates the tenant again: it may have been at its limit.
    EvaluateAfterAck,
    /// A receipt is of one pull, not of the message.
    Delivery,
    /// A pull leaves a lease behind.
    Lease,
    /// The sweep of leases that ran out.
    Sweep,
    /// Returned messages go to the head.
    Head,
    /// A delayed message becomes available again.
    Due,
    /// The turn of a tenant that left is forgotten.
    TurnReset,
    /// The counters follow an expiry.
    CountExpiry,
    /// Dropping a tenant also drops its messages in flight.
    DropInFlight,
    /// A configuration change evaluates every tenant again.
    EvaluateAfterConfigure,
    /// A tenant that has used up its rate leaves the ring until its rate allows messages again.
    Throttle,
    /// A message that becomes available for the first time joins the end of its tenant.
    LaterTail,
}
