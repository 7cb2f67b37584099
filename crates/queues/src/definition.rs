//! The definition of a queue: its pattern and its limits. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use signalbox_api::queues::{NewQueue, Overflow, TenantSettings};

use super::pattern::{self, Pattern};

/// The weight of a tenant without an explicit weight.
pub const DEFAULT_WEIGHT: u32 = 1;
/// The maximum weight, in messages per turn.
const MAX_WEIGHT: u32 = 10_000;
/// Maximum number of tenants of a queue with their own settings. Every pacemaker keeps them in memory.
const MAX_TENANTS: usize = 10_000;
/// Maximum number of characters in a queue's name.
const MAX_NAME_CHARACTERS: usize = 64;
/// Maximum number of characters in a tenant, a message's type and its name.
const MAX_PART_CHARACTERS: usize = 1_024;

const DEFAULT_LEASE_MS: u64 = 30_000;
/// The maximum lease and the maximum extension of a lease: twelve hours.
pub const MAX_LEASE_MS: u64 = 12 * 3_600_000;
const DEFAULT_ATTEMPTS: u32 = 20;
const DEFAULT_RETENTION_SECONDS: u64 = 4 * 24 * 3600;
const MAX_RETENTION_SECONDS: u64 = 365 * 24 * 3600;
const DEFAULT_MAX_BACKOFF_MS: u64 = 3_600_000;
/// The maximum of both limits of waiting messages.
const MAX_WAITING: u64 = 1_000_000_000;
/// The maximum of both limits of messages in flight.
const MAX_IN_FLIGHT: u64 = 1_000_000;
/// The minimum and maximum rate of a tenant, messages per second.
const RATES: (f64, f64) = (0.001, 1_000_000.0);

/// The definition of a queue.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// A regular expression over `tenant:type:name`. The queue accepts the messages that it matches as a
    /// whole.
    pub pattern: String,
    /// How long a pulled message is leased to its consumer.
    pub lease_ms: u64,
    /// Maximum number of messages of one tenant in flight (in each shard); no limit if absent.
    pub in_flight_limit: Option<u64>,
    /// Maximum number of deliveries before a message becomes a dead letter; 0 for no limit.
    pub max_attempts: u32,
    /// The maximum time that a message may wait before it is dropped.
    pub retention_seconds: u64,
    /// The pause before the second delivery of a message; each later delivery doubles it. 0 for no backoff.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub backoff_ms: u64,
    /// The maximum of the backoff.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_backoff_ms: u64,
    /// Maximum number of messages that wait or are delayed (in each shard); no limit if absent.
    pub max_waiting: Option<u64>,
    /// The same limit for one tenant.
    pub max_waiting_per_tenant: Option<u64>,
    /// The action for messages that would exceed these limits.
    #[serde(default)]
    pub overflow: Overflow,
    /// Messages per turn, by tenant; 0 pauses. Others have [`DEFAULT_WEIGHT`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// Settings that operators made for individual tenants.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, Tenant>,
    /// The version of the registry that introduced this definition. A higher one is newer.
    pub revision: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Settings of one tenant in a queue, apart from its weight.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Whether delivery is paused for the tenant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Maximum number of messages in flight (in each shard); it replaces the queue's limit. 0 for no limit.
    pub in_flight_limit: Option<u64>,
    /// Messages per 1,000 seconds (in each shard); no limit if absent.
    pub rate: Option<u64>,
}

/// Why a definition is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The name is invalid.
    #[error(
        "invalid queue name: must be 1 to {MAX_NAME_CHARACTERS} of the characters a-z, A-Z, 0-9, `_`, `-` and `.`, and \
         not `.` or `..`"
    )]
    Name,
    /// The pattern is invalid.
    #[error("invalid pattern: {0}")]
    Pattern(#[from] pattern::Flaw),
    /// A number is out of range.
    #[error("`{field}` must be between {least} and {most}")]
    OutOfRange {
        /// The name of the field.
        field: &'static str,
        /// Minimum.
        least: u64,
        /// Maximum.
        most: u64,
    },
    /// The rate is out of range.
    #[error("`rate_per_second` must be between {least} and {most}", least = RATES.0, most = RATES.1)]
    Rate,
    /// A tenant's name is invalid.
    #[error(
        "invalid tenant {0:?} in `weights`: must be 1 to {MAX_PART_CHARACTERS} printable characters without `:` and `|`"
    )]
    Tenant(String),
    /// Too many tenants with their own settings.
    #[error("limit of tenants with their own settings reached ({MAX_TENANTS})")]
    Tenants,
}

/// Whether the name is valid for a queue.
pub(crate) fn is_queue_name(name: &str) -> bool {
    (1..=MAX_NAME_CHARACTERS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        // Clients resolve these in paths before they send a request.
        && !matches!(name, "." | "..")
}

/// Whether the text is valid as a tenant, or as a message's type or name. Colons separate these in
/// keys, and a queue's own keys begin with its name and a vertical bar, so neither character is allowed.
pub fn is_part(name: &str) -> bool {
    !name.is_empty()
        && name.chars().count() <= MAX_PART_CHARACTERS
        && !name.chars().any(|char| char.is_control() || char == ':' || char == '|')
}

fn in_range(field: &'static str, value: u64, least: u64, most: u64) -> Result<u64, Flaw> {
    if (least..=most).contains(&value) { Ok(value) } else { Err(Flaw::OutOfRange { field, least, most }) }
}

/// A number in thousandths: seconds in milliseconds, or messages per second in messages per 1,000 seconds. Returns
/// `None` unless `number` is between `least` and `most`.
pub fn thousandths(number: f64, least: f64, most: f64) -> Option<u64> {
    // The value is in range, so neither its sign nor its size is lost.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (least..=most).contains(&number).then(|| (number * 1000.0).round() as u64)
}

/// Converts seconds to milliseconds and checks the range.
fn span(field: &'static str, seconds: Option<f64>, least: u64, default_ms: u64) -> Result<u64, Flaw> {
    let most = MAX_LEASE_MS / 1000;
    #[allow(clippy::cast_precision_loss, reason = "twelve hours")]
    let in_ms = |seconds| thousandths(seconds, least as f64, most as f64);
    seconds.map_or(Some(default_ms), in_ms).ok_or(Flaw::OutOfRange { field, least, most })
}

/// Checks the tenants and their weights.
fn check_weights(weights: &BTreeMap<String, u32>) -> Result<(), Flaw> {
    if weights.len() > MAX_TENANTS {
        return Err(Flaw::Tenants);
    }
    for (tenant, weight) in weights {
        if !is_part(tenant) {
            return Err(Flaw::Tenant(tenant.clone()));
        }
        in_range("weights", u64::from(*weight), 0, u64::from(MAX_WEIGHT))?;
    }
    Ok(())
}

impl Definition {
    /// Validates the definition of a queue. The registry fills in `revision`. Operators' settings for
    /// individual tenants of the existing queue (`known`) are kept.
    ///
    /// # Errors
    /// When a name, the pattern or a number is invalid.
    pub fn new(name: &str, wanted: NewQueue, known: Option<&Self>) -> Result<Self, Flaw> {
        if !is_queue_name(name) {
            return Err(Flaw::Name);
        }
        Pattern::new(&wanted.pattern)?;
        for (field, limit, most) in [
            ("max_waiting", wanted.max_waiting, MAX_WAITING),
            ("max_waiting_per_tenant", wanted.max_waiting_per_tenant, MAX_WAITING),
        ] {
            limit.map_or(Ok(0), |limit| in_range(field, limit, 1, most))?;
        }
        // 0 means no limit, as for one tenant.
        let in_flight_limit = wanted.in_flight_limit.filter(|limit| *limit > 0);
        in_range("in_flight_limit", in_flight_limit.unwrap_or_default(), 0, MAX_IN_FLIGHT)?;
        let backoff_ms = span("backoff_seconds", wanted.backoff_seconds, 0, 0)?;
        let max_backoff_ms =
            span("max_backoff_seconds", wanted.max_backoff_seconds, 0, DEFAULT_MAX_BACKOFF_MS)?;
        let retention = wanted.retention_seconds.unwrap_or(DEFAULT_RETENTION_SECONDS);
        let weights = match wanted.weights {
            Some(weights) => {
                check_weights(&weights)?;
                weights
            }
            None => known.map(|known| known.weights.clone()).unwrap_or_default(),
        };
        Ok(Self {
            pattern: wanted.pattern,
            lease_ms: span("lease_seconds", wanted.lease_seconds, 1, DEFAULT_LEASE_MS)?,
            in_flight_limit,
            max_attempts: wanted.max_attempts.unwrap_or(DEFAULT_ATTEMPTS),
            retention_seconds: in_range("retention_seconds", retention, 1, MAX_RETENTION_SECONDS)?,
            backoff_ms,
            max_backoff_ms: max_backoff_ms.max(backoff_ms),
            max_waiting: wanted.max_waiting,
            max_waiting_per_tenant: wanted.max_waiting_per_tenant,
            overflow: wanted.overflow,
            weights,
            tenants: known.map(|known| known.tenants.clone()).unwrap_or_default(),
            revision: 0,
        })
    }

    /// The definition with different settings for one tenant, whose name must be valid.
    ///
    /// # Errors
    /// When a number is out of range, or too many tenants have settings.
    pub fn with_tenant(&self, tenant: &str, wanted: TenantSettings) -> Result<Self, Flaw> {
        let in_range_of_rates = |rate| thousandths(rate, RATES.0, RATES.1).ok_or(Flaw::Rate);
        let rate = wanted.rate_per_second.map(in_range_of_rates).transpose()?;
        if let Some(limit) = wanted.in_flight_limit {
            in_range("in_flight_limit", limit, 0, MAX_IN_FLIGHT)?;
        }
        let mut changed = self.clone();
        changed.weights.remove(tenant);
        if let Some(weight) = wanted.weight {
            in_range("weight", u64::from(weight), 0, u64::from(MAX_WEIGHT))?;
            changed.weights.insert(tenant.to_owned(), weight);
        }
        changed.tenants.remove(tenant);
        let settings = Tenant { paused: wanted.paused, in_flight_limit: wanted.in_flight_limit, rate };
        if settings != Tenant::default() {
            changed.tenants.insert(tenant.to_owned(), settings);
        }
        if changed.weights.len() > MAX_TENANTS || changed.tenants.len() > MAX_TENANTS {
            return Err(Flaw::Tenants);
        }
        Ok(changed)
    }

    /// The request that results in this definition. Weights are omitted, so they are kept.
    pub fn wanted(&self) -> NewQueue {
        #[allow(clippy::cast_precision_loss, reason = "twelve hours")]
        let seconds = |ms: u64| Some(ms as f64 / 1000.0);
        NewQueue {
            pattern: self.pattern.clone(),
            lease_seconds: seconds(self.lease_ms),
            in_flight_limit: self.in_flight_limit,
            max_attempts: Some(self.max_attempts),
            retention_seconds: Some(self.retention_seconds),
            backoff_seconds: seconds(self.backoff_ms),
            max_backoff_seconds: seconds(self.max_backoff_ms),
            max_waiting: self.max_waiting,
            max_waiting_per_tenant: self.max_waiting_per_tenant,
            overflow: self.overflow,
            weights: None,
        }
    }

    /// The current settings of a tenant, as requested.
    pub fn wanted_tenant(&self, tenant: &str) -> TenantSettings {
        let Tenant { paused, in_flight_limit, rate } = self.tenant(tenant);
        #[allow(clippy::cast_precision_loss, reason = "a thousand million")]
        let rate_per_second = rate.map(|rate| rate as f64 / 1000.0);
        let weight = self.weights.get(tenant).copied();
        TenantSettings { weight, paused, in_flight_limit, rate_per_second }
    }

    /// Settings of a tenant, apart from its weight.
    pub fn tenant(&self, tenant: &str) -> Tenant {
        self.tenants.get(tenant).copied().unwrap_or_default()
    }

    /// The weight that a tenant is delivered with: 0 while it is paused.
    pub fn weight(&self, tenant: &str) -> u32 {
        if self.tenant(tenant).paused {
            return 0;
        }
        self.weights.get(tenant).copied().unwrap_or(DEFAULT_WEIGHT)
    }

    /// The rules of a tenant in the format of the scripts: empty if there are none, otherwise
    /// `limit:rate`.
    pub fn rules(&self, tenant: &str) -> String {
        let Tenant { in_flight_limit, rate, .. } = self.tenant(tenant);
        if in_flight_limit.is_none() && rate.is_none() {
            return String::new();
        }
        let text = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        format!("{}:{}", text(in_flight_limit), text(rate))
    }

    /// The settings of the queue that a publish needs, in the format of the scripts: the limit of messages in
    /// flight, and the limits of waiting messages if there are any.
    pub fn publish_limits(&self) -> String {
        let limit = self.in_flight_limit.unwrap_or_default();
        if self.max_waiting.is_none() && self.max_waiting_per_tenant.is_none() {
            return limit.to_string();
        }
        let (all, one) =
            (self.max_waiting.unwrap_or_default(), self.max_waiting_per_tenant.unwrap_or_default());
        format!("{limit}:{all}:{one}:{}", u8::from(self.overflow == Overflow::DropOldest))
    }

    /// Tenants whose tenants differ from the default, with their weights and rules.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (&str, u32, String)> {
        let names: std::collections::BTreeSet<&str> =
            self.weights.keys().chain(self.tenants.keys()).map(String::as_str).collect();
        names.into_iter().map(|name| (name, self.weight(name), self.rules(name)))
    }

    /// Tenants whose weights or rules differ from those of another definition.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let names: std::collections::BTreeSet<&str> =
            self.tenants().chain(other.tenants()).map(|(name, ..)| name).collect();
        let differs =
            |name: &&str| (self.weight(name), self.rules(name)) != (other.weight(name), other.rules(name));
        names.into_iter().filter(differs).map(str::to_owned).collect()
    }

    /// Whether both definitions are equal except for their revision.
    pub fn is_same(&self, other: &Self) -> bool {
        Self { revision: 0, ..self.clone() } == Self { revision: 0, ..other.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pattern: &str) -> NewQueue {
        NewQueue { pattern: pattern.into(), ..NewQueue::default() }
    }

    #[test]
    fn missing_fields_have_defaults() {
        let queue = Definition::new("email_events", wanted(".*"), None).unwrap();
        assert_eq!((queue.lease_ms, queue.max_attempts, queue.in_flight_limit), (30_000, 20, None));
        assert_eq!(queue.weight("anybody"), 1);
    }

    #[test]
    fn names_of_queues_and_tenants_hold_no_signs_of_ours() {
        for bad in ["", ".", "..", "a:b", "a|b", "a b", "é", &"a".repeat(65), "a~b", "a\n"] {
            assert_eq!(Definition::new(bad, wanted(".*"), None), Err(Flaw::Name), "{bad:?}");
        }
        for good in ["tenants", "email_events", "A.b-c_9"] {
            assert!(Definition::new(good, wanted(".*"), None).is_ok(), "{good}");
        }
        for bad in ["", "a:b", "a|b", "a\u{7}b", &"a".repeat(1025)] {
            let weights = BTreeMap::from([(bad.to_owned(), 1)]);
            let wanted = NewQueue { weights: Some(weights), ..wanted(".*") };
            assert_eq!(Definition::new("q", wanted, None), Err(Flaw::Tenant(bad.to_owned())), "{bad:?}");
        }
        for good in ["tenants", "ring", "5", "shop one", "count"] {
            assert!(is_part(good), "{good}");
        }
    }

    #[test]
    fn numbers_have_their_ranges() {
        let with = |change: fn(&mut NewQueue)| {
            let mut wanted = wanted(".*");
            change(&mut wanted);
            Definition::new("q", wanted, None)
        };
        assert!(with(|wanted| wanted.lease_seconds = Some(0.5)).is_err());
        assert!(with(|wanted| wanted.lease_seconds = Some(f64::NAN)).is_err());
        assert!(with(|wanted| wanted.lease_seconds = Some(43_201.0)).is_err());
        assert_eq!(with(|wanted| wanted.lease_seconds = Some(1.5)).unwrap().lease_ms, 1500);
        assert!(with(|wanted| wanted.in_flight_limit = Some(1_000_001)).is_err());
        assert_eq!(with(|wanted| wanted.in_flight_limit = Some(0)).unwrap().in_flight_limit, None);
        assert!(with(|wanted| wanted.retention_seconds = Some(0)).is_err());
        assert!(with(|wanted| wanted.weights = Some([("a".into(), 10_001)].into())).is_err());
        assert_eq!(with(|wanted| wanted.weights = Some([("a".into(), 0)].into())).unwrap().weight("a"), 0);
    }

    #[test]
    fn a_new_definition_keeps_what_was_set_for_tenants() {
        let queue = Definition::new("q", wanted(".*"), None).unwrap();
        let paused = TenantSettings {
            weight: Some(3),
            paused: true,
            rate_per_second: Some(0.5),
            ..TenantSettings::default()
        };
        let queue = queue.with_tenant("5", paused).unwrap();
        assert_eq!((queue.weight("5"), &*queue.rules("5"), queue.weights["5"]), (0, ":500", 3));
        let again = Definition::new("q", wanted("5:.*"), Some(&queue)).unwrap();
        assert_eq!((&again.weights, &again.tenants), (&queue.weights, &queue.tenants));
        let weights = NewQueue { weights: Some([("6".into(), 2)].into()), ..wanted(".*") };
        let again = Definition::new("q", weights, Some(&queue)).unwrap();
        assert_eq!((again.weight("6"), again.weights.get("5"), again.weight("5")), (2, None, 0));
        let free = again.with_tenant("5", TenantSettings::default()).unwrap();
        assert_eq!((free.weight("5"), free.tenants.len()), (1, 0));
        let unlimited = TenantSettings { in_flight_limit: Some(0), ..TenantSettings::default() };
        assert_eq!(free.with_tenant("5", unlimited).unwrap().rules("5"), "0:");
        for rate in [0.0, -1.0, f64::NAN, 1e7] {
            let wanted = TenantSettings { rate_per_second: Some(rate), ..TenantSettings::default() };
            assert_eq!(free.with_tenant("5", wanted), Err(Flaw::Rate), "{rate}");
        }
    }
}
