//! The definition of a queue: its pattern and its limits. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pattern::{self, Pattern};

/// The weight of a facet without an explicit weight.
pub const DEFAULT_WEIGHT: u32 = 1;
/// The maximum weight, in messages of one turn.
const MAX_WEIGHT: u32 = 10_000;
/// Maximum number of facets of one queue with an explicit weight. Every pacemaker holds them in memory.
const MAX_WEIGHTS: usize = 1_000;
/// Characters of a queue's name.
const MAX_NAME_CHARACTERS: usize = 64;
/// Characters of an environment, a message's type and its name.
const MAX_PART_CHARACTERS: usize = 1_024;

const DEFAULT_LEASE_MS: u64 = 30_000;
/// The maximum lease and the maximum extension of a lease: twelve hours.
pub const MAX_LEASE_MS: u64 = 12 * 3_600_000;
const DEFAULT_ATTEMPTS: u32 = 20;
const DEFAULT_RETENTION_SECONDS: u64 = 4 * 24 * 3600;
const MAX_RETENTION_SECONDS: u64 = 365 * 24 * 3600;

/// A queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Which messages it takes: a regular expression over `environment:type:name`, for the whole of it.
    pub pattern: String,
    /// How long a pulled message is held for its consumer.
    pub lease_ms: u64,
    /// Messages of one facet that may be in flight at a time (in each shard); no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight_limit: Option<u64>,
    /// How often a message is delivered before it becomes a dead letter; 0 for no limit.
    pub max_attempts: u32,
    /// How long a message may wait before it is dropped.
    pub retention_seconds: u64,
    /// Messages in a turn, by environment; 0 pauses. Others have [`DEFAULT_WEIGHT`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// The version of the registry that introduced this definition. A higher one is newer.
    pub revision: u64,
}

/// The request `PUT /queues/{name}`. Absent values have defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wanted {
    /// See [`Definition::pattern`].
    pub pattern: String,
    /// Seconds, with fractions.
    pub lease_seconds: Option<f64>,
    /// See [`Definition::in_flight_limit`].
    pub in_flight_limit: Option<u64>,
    /// See [`Definition::max_attempts`].
    pub max_attempts: Option<u32>,
    /// See [`Definition::retention_seconds`].
    pub retention_seconds: Option<u64>,
    /// See [`Definition::weights`].
    pub weights: BTreeMap<String, u32>,
}

/// Why a definition is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The name.
    #[error(
        "invalid queue name: must be 1 to {MAX_NAME_CHARACTERS} of the characters a-z, A-Z, 0-9, `_`, `-` and `.`"
    )]
    Name,
    /// The pattern.
    #[error("invalid pattern: {0}")]
    Pattern(#[from] pattern::Flaw),
    /// A number outside its range.
    #[error("`{field}` must be between {least} and {most}")]
    OutOfRange {
        /// The name of the number.
        field: &'static str,
        /// Minimum.
        least: u64,
        /// Maximum.
        most: u64,
    },
    /// An invalid name of an environment.
    #[error(
        "invalid environment {0:?} in `weights`: must be 1 to {MAX_PART_CHARACTERS} printable characters without `:` and `|`"
    )]
    Environment(String),
    /// Too many weights.
    #[error("`weights` has more than {MAX_WEIGHTS} environments")]
    Weights,
}

/// Whether the name is valid for a queue.
pub fn is_queue_name(name: &str) -> bool {
    (1..=MAX_NAME_CHARACTERS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Whether the text is valid as an environment, or as a message's type or name. Keys separate these with colons, and a
/// queue's own keys follow a vertical bar, so neither character is allowed.
pub fn is_part(name: &str) -> bool {
    !name.is_empty()
        && name.chars().count() <= MAX_PART_CHARACTERS
        && !name.chars().any(|char| char.is_control() || char == ':' || char == '|')
}

fn in_range(field: &'static str, value: u64, least: u64, most: u64) -> Result<u64, Flaw> {
    if (least..=most).contains(&value) { Ok(value) } else { Err(Flaw::OutOfRange { field, least, most }) }
}

/// Converts seconds to milliseconds. Returns `None` unless `seconds` is between `least` and `most`.
pub fn milliseconds(seconds: f64, least: f64, most: f64) -> Option<u64> {
    // In range, so neither sign nor size is lost.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (least..=most).contains(&seconds).then(|| (seconds * 1000.0).round() as u64)
}

impl Definition {
    /// The checked definition of a queue; `revision` is filled in by the registry.
    ///
    /// # Errors
    /// When a name, the pattern or a number is invalid.
    pub fn new(name: &str, wanted: Wanted) -> Result<Self, Flaw> {
        if !is_queue_name(name) {
            return Err(Flaw::Name);
        }
        Pattern::new(&wanted.pattern)?;
        let lease_ms = match wanted.lease_seconds {
            None => DEFAULT_LEASE_MS,
            Some(seconds) => {
                let most = MAX_LEASE_MS / 1000;
                #[allow(clippy::cast_precision_loss, reason = "twelve hours")]
                milliseconds(seconds, 1.0, most as f64).ok_or(Flaw::OutOfRange {
                    field: "lease_seconds",
                    least: 1,
                    most,
                })?
            }
        };
        if let Some(limit) = wanted.in_flight_limit {
            in_range("in_flight_limit", limit, 1, 1_000_000)?;
        }
        if wanted.weights.len() > MAX_WEIGHTS {
            return Err(Flaw::Weights);
        }
        for (environment, weight) in &wanted.weights {
            if !is_part(environment) {
                return Err(Flaw::Environment(environment.clone()));
            }
            in_range("weights", u64::from(*weight), 0, u64::from(MAX_WEIGHT))?;
        }
        let retention = wanted.retention_seconds.unwrap_or(DEFAULT_RETENTION_SECONDS);
        Ok(Self {
            pattern: wanted.pattern,
            lease_ms,
            in_flight_limit: wanted.in_flight_limit,
            max_attempts: wanted.max_attempts.unwrap_or(DEFAULT_ATTEMPTS),
            retention_seconds: in_range("retention_seconds", retention, 1, MAX_RETENTION_SECONDS)?,
            weights: wanted.weights,
            revision: 0,
        })
    }

    /// The weight of a facet.
    pub fn weight(&self, environment: &str) -> u32 {
        self.weights.get(environment).copied().unwrap_or(DEFAULT_WEIGHT)
    }

    /// Whether both definitions are the same except for their revision.
    pub fn is_same(&self, other: &Self) -> bool {
        Self { revision: 0, ..self.clone() } == Self { revision: 0, ..other.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pattern: &str) -> Wanted {
        Wanted { pattern: pattern.into(), ..Wanted::default() }
    }

    #[test]
    fn missing_fields_have_defaults() {
        let queue = Definition::new("email_events", wanted(".*")).unwrap();
        assert_eq!((queue.lease_ms, queue.max_attempts, queue.in_flight_limit), (30_000, 20, None));
        assert_eq!(queue.weight("anybody"), 1);
    }

    #[test]
    fn names_of_queues_and_environments_hold_no_signs_of_ours() {
        for bad in ["", "a:b", "a|b", "a b", "é", &"a".repeat(65), "a~b", "a\n"] {
            assert_eq!(Definition::new(bad, wanted(".*")), Err(Flaw::Name), "{bad:?}");
        }
        for good in ["facets", "email_events", "A.b-c_9"] {
            assert!(Definition::new(good, wanted(".*")).is_ok(), "{good}");
        }
        for bad in ["", "a:b", "a|b", "a\u{7}b", &"a".repeat(1025)] {
            let weights = BTreeMap::from([(bad.to_owned(), 1)]);
            let wanted = Wanted { weights, ..wanted(".*") };
            assert_eq!(Definition::new("q", wanted), Err(Flaw::Environment(bad.to_owned())), "{bad:?}");
        }
        for good in ["facets", "ring", "5", "shop one", "count"] {
            assert!(is_part(good), "{good}");
        }
    }

    #[test]
    fn numbers_have_their_ranges() {
        let with = |change: fn(&mut Wanted)| {
            let mut wanted = wanted(".*");
            change(&mut wanted);
            Definition::new("q", wanted)
        };
        assert!(with(|wanted| wanted.lease_seconds = Some(0.5)).is_err());
        assert!(with(|wanted| wanted.lease_seconds = Some(f64::NAN)).is_err());
        assert!(with(|wanted| wanted.lease_seconds = Some(43_201.0)).is_err());
        assert_eq!(with(|wanted| wanted.lease_seconds = Some(1.5)).unwrap().lease_ms, 1500);
        assert!(with(|wanted| wanted.in_flight_limit = Some(0)).is_err());
        assert!(with(|wanted| wanted.retention_seconds = Some(0)).is_err());
        assert!(with(|wanted| wanted.weights = [("a".into(), 10_001)].into()).is_err());
        assert_eq!(with(|wanted| wanted.weights = [("a".into(), 0)].into()).unwrap().weight("a"), 0);
    }
}
