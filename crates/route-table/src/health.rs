//! An active health check, as a client describes it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Invalid;

const MAX_STATUSES: usize = 20;
const MAX_BODY: usize = 256;

/// An active health check: of HTTP by `path`, or whether a connection is accepted by `tcp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// The path that is asked with GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "/health")]
    pub path: Option<String>,
    /// Whether accepting a connection suffices. Then there is no `path`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) tcp: bool,
    /// The healthy statuses: numbers, and ranges as text (default `"200-399"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>, example = json!(["200-299", 304]))]
    pub(super) status: Option<Vec<Statuses>>,
    /// A text that the first 64 KiB of the answer must have, 1 to 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Seconds between two checks, 1 to 3600.
    #[serde(default = "Health::default_interval_seconds")]
    pub interval_seconds: u32,
    /// Milliseconds until a check counts as failed, 1 to 60,000.
    #[serde(default = "Health::default_timeout_ms")]
    pub timeout_ms: u32,
    /// Failures in a row until the instance counts as unhealthy, 1 to 100.
    #[serde(default = "Health::default_unhealthy_after")]
    pub unhealthy_after: u32,
    /// Successes in a row until it counts as healthy again, 1 to 100.
    #[serde(default = "Health::default_healthy_after")]
    pub healthy_after: u32,
}

impl Health {
    fn default_interval_seconds() -> u32 {
        5
    }
    fn default_timeout_ms() -> u32 {
        2000
    }
    fn default_unhealthy_after() -> u32 {
        3
    }
    fn default_healthy_after() -> u32 {
        2
    }

    /// Checks every field.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let invalid = |detail| Err(Invalid::new("invalid_health", "health", detail));
        let path_fits = |path: &String| {
            path.starts_with('/') && path.len() <= 1024 && path.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match &self.path {
            Some(_) if self.tcp => return invalid("a check is of a path or of tcp, not of both"),
            Some(path) if !path_fits(path) => {
                return invalid("path starts with / and is printable ASCII of at most 1024 bytes");
            }
            None if !self.tcp => return invalid("set a path, or `\"tcp\": true`"),
            None if self.status.is_some() || self.body.is_some() => {
                return invalid("status and body belong to a check of a path");
            }
            _ => {}
        }
        let statuses = self.status.as_deref().unwrap_or(&[Statuses::GOOD]);
        if !(1..=MAX_STATUSES).contains(&statuses.len()) || !statuses.iter().all(Statuses::fit) {
            return invalid(
                "status is 1 to 20 of statuses from 200 to 599 and ranges of them, like \"200-399\"",
            );
        }
        if self.body.as_ref().is_some_and(|body| !(1..=MAX_BODY).contains(&body.len())) {
            return invalid("body is 1 to 256 bytes");
        }
        let fits = (1..=3600).contains(&self.interval_seconds)
            && (1..=60_000).contains(&self.timeout_ms)
            && (1..=100).contains(&self.unhealthy_after)
            && (1..=100).contains(&self.healthy_after);
        if !fits {
            return invalid(
                "interval_seconds is 1 to 3600, timeout_ms 1 to 60000, unhealthy_after and healthy_after 1 to 100",
            );
        }
        Ok(())
    }

    /// Whether a status is good.
    pub fn takes(&self, status: u16) -> bool {
        let statuses = self.status.as_deref().unwrap_or(&[Statuses::GOOD]);
        statuses.iter().any(|range| (range.first..=range.last).contains(&status))
    }
}

/// Statuses from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statuses {
    first: u16,
    last: u16,
}

impl Statuses {
    const GOOD: Self = Self { first: 200, last: 399 };

    fn fit(&self) -> bool {
        200 <= self.first && self.first <= self.last && self.last <= 599
    }
}

impl Serialize for Statuses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.first == self.last {
            serializer.serialize_u16(self.first)
        } else {
            serializer.collect_str(&format_args!("{}-{}", self.first, self.last))
        }
    }
}

impl<'de> Deserialize<'de> for Statuses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Statuses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a status, or a range like \"200-399\"")
            }
            fn visit_u64<E: de::Error>(self, status: u64) -> Result<Statuses, E> {
                let unfit = |_| E::invalid_value(de::Unexpected::Unsigned(status), &self);
                let status = u16::try_from(status).map_err(unfit)?;
                Ok(Statuses { first: status, last: status })
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Statuses, E> {
                let number = |text: &str| text.parse().ok().filter(|_| text.len() == 3);
                let range =
                    text.split_once('-').and_then(|(first, last)| Some((number(first)?, number(last)?)));
                let (first, last) =
                    range.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Statuses { first, last })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str) -> Result<Health, Invalid> {
        let health: Health = serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        health.check().map(|()| health)
    }

    #[test]
    fn a_check_is_of_one_kind_and_within_limits() {
        for json in [
            r#"{"path":"/health"}"#,
            r#"{"tcp":true}"#,
            r#"{"path":"/?a=b","status":[200,"300-399"],"body":"ok"}"#,
        ] {
            let health = check(json).unwrap();
            let again = serde_json::to_string(&health).unwrap();
            assert_eq!(serde_json::from_str::<Health>(&again).unwrap(), health, "{again}");
        }
        for json in [
            "{}",
            r#"{"tcp":false}"#,
            r#"{"tcp":true,"path":"/"}"#,
            r#"{"tcp":true,"status":[200]}"#,
            r#"{"tcp":true,"body":"a"}"#,
            r#"{"path":"health"}"#,
            r#"{"path":"/ HTTP/1.1\r\nHost: a"}"#,
            r#"{"path":"/","status":[]}"#,
            r#"{"path":"/","status":[199]}"#,
            r#"{"path":"/","status":["399-200"]}"#,
            r#"{"path":"/","status":[600]}"#,
            r#"{"path":"/","body":""}"#,
            r#"{"path":"/","interval_seconds":0}"#,
            r#"{"path":"/","timeout_ms":60001}"#,
            r#"{"path":"/","healthy_after":0}"#,
            r#"{"path":"/","unhealthy_after":101}"#,
        ] {
            assert_eq!(check(json).unwrap_err().code, "invalid_health", "{json}");
        }
        for json in [r#"{"path":"/","status":["2xx"]}"#, r#"{"path":"/","status":[-1]}"#, r#"{"pth":"/"}"#] {
            assert!(serde_json::from_str::<Health>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn statuses_are_good_by_range() {
        let told = check(r#"{"path":"/","status":["200-204",301]}"#).unwrap();
        let good: Vec<u16> = (100..600).filter(|status| told.takes(*status)).collect();
        assert_eq!(good, [200, 201, 202, 203, 204, 301]);
        let untold = check(r#"{"path":"/"}"#).unwrap();
        assert!(untold.takes(200) && untold.takes(399) && !untold.takes(400) && !untold.takes(199));
    }
}
