//! The policy of a host: how the edge chooses instances, handles failures, and guards requests.
//!
//! Policies are validated strictly here, because the edge must be lenient: it routes with whatever the table contains. A
//! policy is replaced as a whole and stored as canonical JSON, so that equal policies are equal texts. The scripts that
//! write the route table add what only the registry knows: log keys, weights, draining and unhealthy instances.
//!
//!   balance.rs   which instance gets a request: algorithm, shares, stickiness
//!   failure.rs   what happens when an instance fails: retries, ejection, timeouts
//!   guards.rs    which requests pass: limits, methods, headers, maintenance, upstream
//!   access.rs    who may use the host, and redirects
//!   paths.rs     which paths lead to other hosts
//!   trial.rs     what the checks decide for one request
//!
//! The edge has the same parts and ranges in `lua/signalbox/policy/`. Both sides are tested with `tests/policy_rules.json`.

mod access;
mod balance;
mod failure;
mod guards;
mod paths;
#[cfg(test)]
mod tests;
mod trial;

use std::{collections::BTreeMap, ops::RangeInclusive};

use serde::{Deserialize, Serialize};

use super::{Hostname, Invalid, Label};
pub(crate) use access::{Access, Redirect};
pub use balance::Share;
pub(crate) use balance::{Balance, SharesBy, Sticky};
pub use failure::Pause;
pub(crate) use failure::{Ejected, Ejection, ErrorPage, Retries, Timeouts};
pub(crate) use guards::{Headers, Https, Limits, Maintenance, Upstream};
pub use paths::PathRule;
pub(crate) use paths::find as find_path;
pub use trial::Line;

/// Size limit of a policy as JSON. Every worker of every router holds each policy in memory.
const MAX_BYTES: usize = 64 * 1024;
const MAX_HOUR_MS: u64 = 3_600_000;
const MAX_DAY_MS: u64 = 24 * MAX_HOUR_MS;
const MAX_HOLD_MS: u64 = 60_000;
const MAX_BODY_BYTES: u64 = 1 << 50;

/// The policy of a host. Every part is optional; the edge applies its default for a missing part.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// How an instance is chosen. Default: `round_robin`.
    balance: Option<Balance>,
    /// How requests are split between version types. The percentages must add up to 100.
    #[schema(example = json!([{"version_type": "17", "percent": 95}, {"version_type": "18", "percent": 5}]))]
    pub shares: Option<Vec<Share>>,
    shares_by: Option<SharesBy>,
    sticky: Option<Sticky>,
    /// Milliseconds until a new or recovered instance gets its full share of requests, 1 to 3,600,000.
    pub slow_start_ms: Option<u64>,
    retries: Option<Retries>,
    /// When a failing instance is ejected temporarily; `false` disables ejection.
    #[schema(value_type = Option<Ejected>)]
    ejection: Option<Ejection>,
    /// Milliseconds that a request waits for an instance while the host has none, 1 to 60,000.
    hold_ms: Option<u64>,
    pause: Option<Pause>,
    /// Status, 400 to 599 → the page of an answer that the edge itself gives. Answers of instances stay as they are.
    error_pages: Option<BTreeMap<String, ErrorPage>>,
    timeouts: Option<Timeouts>,
    /// Whether the edge reads a response ahead of a slow client. Default: false, each part is passed on as it arrives.
    buffering: Option<bool>,
    limits: Option<Limits>,
    /// Size limit of a request body, in bytes. Not for hosts with the protocol gRPC.
    body_bytes: Option<u64>,
    /// The allowed methods.
    #[schema(example = json!(["GET", "POST"]))]
    methods: Option<Vec<String>>,
    headers: Option<Headers>,
    maintenance: Option<Maintenance>,
    https: Option<Https>,
    /// Provider of the host's certificate. Default: Signalbox, if `acme.hosts` of the pacemaker covers the name.
    pub tls: Option<Tls>,
    upstream: Option<Upstream>,
    /// Whether a request may select its instance with a header.
    target_header: Option<bool>,
    access: Option<Access>,
    redirect: Option<Redirect>,
    /// The paths that lead to other hosts. The exact rule applies, otherwise the longest prefix; other paths are served by
    /// the host's own instances.
    pub paths: Option<Vec<PathRule>>,
}

/// Provider of the certificate of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tls {
    /// Signalbox obtains it over ACME and renews it.
    Auto,
    /// An operator uploads it.
    Manual,
}

impl Policy {
    /// Validates the policy and brings it into canonical form.
    pub fn check(mut self) -> Result<Self, Invalid> {
        self.balance.iter().try_for_each(Balance::check)?;
        self.shares.iter().try_for_each(|shares| balance::check_shares(shares))?;
        self.shares_by.iter().try_for_each(SharesBy::check)?;
        self.sticky.iter().try_for_each(Sticky::check)?;
        self.retries.iter().try_for_each(Retries::check)?;
        if let Some(Ejection::When(ejected)) = &self.ejection {
            ejected.check()?;
        }
        self.pause.iter().try_for_each(Pause::check)?;
        self.error_pages.iter().try_for_each(failure::check_error_pages)?;
        self.timeouts.iter().try_for_each(Timeouts::check)?;
        self.limits.iter().try_for_each(Limits::check)?;
        self.methods.iter_mut().try_for_each(guards::check_methods)?;
        self.headers.iter_mut().try_for_each(Headers::check)?;
        self.maintenance.iter().try_for_each(Maintenance::check)?;
        self.upstream.iter().try_for_each(Upstream::check)?;
        self.access.iter_mut().try_for_each(Access::check)?;
        self.redirect.iter().try_for_each(Redirect::check)?;
        self.paths.iter_mut().try_for_each(|rules| paths::check(rules))?;
        within(self.slow_start_ms, 1..=MAX_HOUR_MS, "slow_start_ms")?;
        within(self.hold_ms, 1..=MAX_HOLD_MS, "hold_ms")?;
        within(self.body_bytes, 0..=MAX_BODY_BYTES, "body_bytes")?;
        // To know its size, the edge would have to store a call that may never end.
        let is_counted = self.body_bytes.is_some() && self.upstream.as_ref().is_some_and(Upstream::is_grpc);
        let detail = "body_bytes cannot limit gRPC calls: limit messages in the application";
        require(!is_counted, "body_bytes", detail)?;
        self.check_size(0)?;
        Ok(self)
    }

    /// Validates a stored policy of which one part was replaced. That part has been validated separately. The others stay as they
    /// are, even if an earlier version of Signalbox accepted what is rejected now: otherwise a paused host could not be resumed.
    pub fn check_altered(self, before: Option<&Self>) -> Result<Self, Invalid> {
        self.check_size(before.map_or(0, Self::bytes))?;
        Ok(self)
    }

    /// The length as JSON.
    fn bytes(&self) -> usize {
        serde_json::to_string(self).map_or(usize::MAX, |json| json.len())
    }

    /// `accepted`: a length that is accepted although it is above the limit.
    fn check_size(&self, accepted: usize) -> Result<(), Invalid> {
        let detail = format!("a policy must have at most {MAX_BYTES} bytes as JSON");
        require(self.bytes() <= MAX_BYTES.max(accepted), "policy", detail)
    }

    /// Whether every part is missing, which is equivalent to no policy.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the edge counts requests in flight per instance: for p2c, which compares them, and for every
    /// part that excludes the fast path (`is_light` in `lua/signalbox/candidates.lua`).
    pub fn counts_in_flight(&self) -> bool {
        let p2c = self.balance.as_ref().is_some_and(|how| how.algorithm == balance::Algorithm::P2c);
        p2c || self.sticky.is_some()
            || self.timeouts.is_some()
            || self.buffering == Some(true)
            || self.pause.is_some()
            || self.limits.is_some()
            || self.body_bytes.is_some()
            || self.methods.is_some()
            || self.headers.is_some()
            || self.maintenance.is_some()
            || self.https.as_ref().is_some_and(|https| *https != Https::Any)
            || self.upstream.is_some()
            || self.target_header == Some(true)
            || self.access.is_some()
            || self.redirect.is_some()
    }

    /// Validates what depends on the name of the policy's host.
    pub fn check_for(&self, hostname: &Hostname) -> Result<(), Invalid> {
        if let Some(own) = self.services().find(|service| *service == hostname.as_str()) {
            return Err(invalid("service", format!("{own} cannot be a service of itself")));
        }
        let leads_back = self.redirect.as_ref().is_some_and(|to| to.leads_back_to(hostname.as_str()));
        require(!leads_back, "redirect.to", "a redirect of the whole host must lead to another host")
    }

    /// The checks that the edge makes before it chooses an instance, in their order. `rule` is the rule for
    /// the path.
    pub(crate) fn checks(&self, rule: Option<&PathRule>) -> Vec<&'static str> {
        let access = rule.and_then(|rule| rule.access.as_ref()).or(self.access.as_ref());
        let redirect = rule.is_some_and(|rule| rule.redirect.is_some()) || self.redirect.is_some();
        let mut checks = access.map(Access::checks).unwrap_or_default();
        // The client's address is checked first, and its credentials last.
        let at = usize::from(checks.first() == Some(&"addresses"));
        let https = self.https.as_ref().is_some_and(|https| *https != Https::Any);
        let between = [(https, "https"), (redirect, "redirect"), (self.maintenance.is_some(), "maintenance")];
        let limits = [(self.methods.is_some(), "methods"), (self.limits.is_some(), "limits")];
        let named = between.into_iter().chain(limits).filter_map(|(present, name)| present.then_some(name));
        let named: Vec<_> = named.collect();
        checks.splice(at..at, named);
        if self.pause.is_some() {
            checks.insert(0, "pause");
        }
        checks.extend(self.body_bytes.is_some().then_some("body_bytes"));
        checks
    }

    /// Replaces hidden password hashes with those of `before`, the stored policy.
    pub fn keep_hidden(mut self, before: Option<&Self>) -> Result<Self, Invalid> {
        if let Some(access) = &mut self.access {
            access.keep_hidden(before.and_then(|before| before.access.as_ref()))?;
        }
        for rule in self.paths.iter_mut().flatten() {
            let stored = before.and_then(|before| before.paths.as_deref()).unwrap_or_default();
            rule.keep_hidden(stored)?;
        }
        Ok(self)
    }

    /// Hides the hashes of passwords in a policy as JSON.
    pub fn hide_passwords(policy: &mut serde_json::Value) {
        access::hide_passwords(policy);
    }

    /// The other hosts to which the policy sends requests.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        let by_paths = self.paths.iter().flatten().flat_map(PathRule::services);
        by_paths.chain(self.access.as_ref().and_then(Access::service))
    }

    /// The policy with shares in proportion to the weights of the version types. It is unchanged if there are
    /// no weights, or too many.
    #[must_use]
    pub fn with_shares(&self, weights: &BTreeMap<Label, u32>) -> Self {
        Self { shares: balance::proportional(weights).or_else(|| self.shares.clone()), ..self.clone() }
    }

    /// The policy with this traffic split.
    #[must_use]
    pub fn with_split(self, shares: Option<Vec<Share>>) -> Self {
        Self { shares, ..self }
    }

    /// The version types that receive a part of the requests by the traffic split.
    pub fn shared_versions(&self) -> impl Iterator<Item = &Label> {
        self.shares.iter().flatten().filter(|share| share.is_some()).map(|share| &share.version_type)
    }

    /// The policy with these rules for paths.
    #[must_use]
    pub fn with_paths(self, paths: Option<Vec<PathRule>>) -> Self {
        Self { paths, ..self }
    }

    /// Whether the policy pauses or closes the host.
    pub fn has_mode(&self) -> bool {
        self.pause.is_some() || self.maintenance.is_some()
    }

    /// The policy with the time and the author of its pause and of its maintenance: those of `before`, the stored policy, if it
    /// has them as well, otherwise `now`.
    #[must_use]
    pub fn marked(mut self, before: Option<&Self>, now: (u64, &str)) -> Self {
        let fresh = || (Some(now.0), Some(now.1.to_owned()));
        if let Some(pause) = &mut self.pause {
            let stored = before.and_then(|before| before.pause.as_ref());
            (pause.since_ms, pause.by) = stored.map_or_else(fresh, |one| (one.since_ms, one.by.clone()));
        }
        if let Some(maintenance) = &mut self.maintenance {
            let stored = before.and_then(|before| before.maintenance.as_ref());
            (maintenance.since_ms, maintenance.by) =
                stored.map_or_else(fresh, |one| (one.since_ms, one.by.clone()));
        }
        self
    }

    /// How requests wait while the host is paused.
    pub fn pause(&self) -> Option<&Pause> {
        self.pause.as_ref()
    }

    /// The policy with `pause`, or without it to resume the host.
    #[must_use]
    pub fn with_pause(self, pause: Option<Pause>) -> Self {
        Self { pause, ..self }
    }
}

fn invalid(field: &'static str, detail: impl Into<String>) -> Invalid {
    Invalid::new("invalid_policy", field, detail)
}

/// An error about `field`, unless it `fits`.
fn require(fits: bool, field: &'static str, detail: impl Into<String>) -> Result<(), Invalid> {
    if fits { Ok(()) } else { Err(invalid(field, detail)) }
}

/// Checks an optional number.
fn within(value: Option<u64>, range: RangeInclusive<u64>, field: &'static str) -> Result<(), Invalid> {
    let fits = value.is_none_or(|value| range.contains(&value));
    require(fits, field, format!("{field} must be {} to {}", range.start(), range.end()))
}

/// Checks the name of a header or cookie. nginx variables support fewer characters than RFC 9110 allows.
fn check_name(name: &str, field: &'static str) -> Result<(), Invalid> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let fits = (1..=128).contains(&name.len()) && name.bytes().all(plain);
    require(fits, field, "the name of a header or cookie must match [A-Za-z0-9_-]{1,128}")
}

/// Checks the value of a header. Control characters could start another header.
fn check_value(value: &str, field: &'static str) -> Result<(), Invalid> {
    let fits =
        value.len() <= 8192 && !value.chars().any(|character| character.is_control() && character != '\t');
    require(fits, field, "the value of a header must have at most 8192 bytes and no control characters")
}
