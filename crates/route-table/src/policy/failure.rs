//! The handling of failing instances.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{MAX_DAY_MS, MAX_HOLD_MS, MAX_HOUR_MS, check_value, require, within};
use crate::Invalid;

/// The edge's defaults, for values that a policy does not specify.
const DEFAULT_FIRST_MS: u64 = 1000;
const DEFAULT_MAX_MS: u64 = 60_000;
const MAX_PAUSED: u64 = 4096;
const MAX_PAGES: usize = 10;
const MAX_PAGE_BYTES: usize = 8192;

/// Retries at other instances.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retries {
    /// Attempts including the first, 1 to 100. Default: one per instance.
    attempts: Option<u64>,
    /// Retry budget: retries per 100 requests, 0 to 100. Default: 20.
    budget_percent: Option<u64>,
    /// No attempt starts later than this many milliseconds after the request arrived, 1 to 3,600,000.
    timeout_ms: Option<u64>,
}

impl Retries {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        within(self.attempts, 1..=100, "retries.attempts")?;
        within(self.budget_percent, 0..=100, "retries.budget_percent")?;
        within(self.timeout_ms, 1..=MAX_HOUR_MS, "retries.timeout_ms")
    }
}

/// Whether and when a failing instance is ejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ejection {
    /// No ejection.
    Off,
    When(Ejected),
}

/// Outlier ejection with exponential backoff.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ejected {
    /// Consecutive failures, 1 to 1000. Default: 5.
    failures: Option<u64>,
    /// Duration of the first ejection, 1 to 3,600,000. Default: 1000.
    first_ms: Option<u64>,
    /// Maximum duration, 1 to 86,400,000. Default: 60,000.
    longest_ms: Option<u64>,
}

impl Ejected {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        within(self.failures, 1..=1000, "ejection.failures")?;
        within(self.first_ms, 1..=MAX_HOUR_MS, "ejection.first_ms")?;
        within(self.longest_ms, 1..=MAX_DAY_MS, "ejection.longest_ms")?;
        let (first_ms, longest_ms) =
            (self.first_ms.unwrap_or(DEFAULT_FIRST_MS), self.longest_ms.unwrap_or(DEFAULT_MAX_MS));
        let detail = format!("longest_ms ({longest_ms}) must not be less than first_ms ({first_ms})");
        require(first_ms <= longest_ms, "ejection.longest_ms", detail)
    }
}

impl Serialize for Ejection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::When(ejected) => ejected.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Ejection {
    /// Implemented manually, because serde's untagged enums do not name the invalid field.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Ejection;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or false")
            }
            fn visit_bool<E: de::Error>(self, on: bool) -> Result<Ejection, E> {
                if on {
                    return Err(E::invalid_value(de::Unexpected::Bool(true), &self));
                }
                Ok(Ejection::Off)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Ejection, A::Error> {
                Ejected::deserialize(de::value::MapAccessDeserializer::new(map)).map(Ejection::When)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Timeouts towards instances in milliseconds, 1 to 86,400,000 each.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Timeouts {
    /// To establish a connection.
    connect_ms: Option<u64>,
    /// Between two reads of the response.
    read_ms: Option<u64>,
    /// Between two writes of the request.
    send_ms: Option<u64>,
}

impl Timeouts {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        within(self.connect_ms, 1..=MAX_DAY_MS, "timeouts.connect_ms")?;
        within(self.read_ms, 1..=MAX_DAY_MS, "timeouts.read_ms")?;
        within(self.send_ms, 1..=MAX_DAY_MS, "timeouts.send_ms")
    }
}

/// Requests wait, for example during a migration of a database.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// Milliseconds that a request waits before it is answered 503, 1 to 60,000. Default: 30,000.
    wait_ms: Option<u64>,
    /// Requests that wait at one worker; further ones are answered 503 immediately, 0 to 4096. Default: 1000.
    most: Option<u64>,
    /// When it began, in unix milliseconds. Set by Signalbox; what a client sends is ignored.
    pub(super) since_ms: Option<u64>,
    /// The token or the person that began it. Set by Signalbox.
    pub(super) by: Option<String>,
}

/// The body of one of the edge's own errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ErrorPage {
    /// At most 8192 bytes.
    body: String,
    /// Default: `text/html; charset=utf-8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
}

/// Validates the error pages, which are listed by status.
pub(super) fn check_error_pages(pages: &BTreeMap<String, ErrorPage>) -> Result<(), Invalid> {
    let fits = (1..=MAX_PAGES).contains(&pages.len());
    require(fits, "error_pages", format!("list 1 to {MAX_PAGES} statuses"))?;
    for (status, page) in pages {
        let fits = status.len() == 3 && status.parse().is_ok_and(|status| (400..=599).contains(&status));
        require(fits, "error_pages", "each status must be 400 to 599")?;
        let fits = page.body.len() <= MAX_PAGE_BYTES;
        require(fits, "error_pages.body", format!("body must have at most {MAX_PAGE_BYTES} bytes"))?;
        page.content_type.iter().try_for_each(|value| check_value(value, "error_pages.content_type"))?;
    }
    Ok(())
}

impl Pause {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        within(self.wait_ms, 1..=MAX_HOLD_MS, "pause.wait_ms")?;
        within(self.most, 0..=MAX_PAUSED, "pause.most")
    }
}
