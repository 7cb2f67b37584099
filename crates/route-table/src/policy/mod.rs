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
mod trial;

use std::{collections::BTreeMap, ops::RangeInclusive};

use serde::{Deserialize, Serialize};

use super::{Hostname, Invalid, Label};
pub(crate) use access::{Access, Redirect};
pub(crate) use balance::{Balance, Share, SharesBy, Sticky};
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// How an instance is chosen. Default: `round_robin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    balance: Option<Balance>,
    /// How requests are split between version types. The percentages must add up to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = json!([{"version_type": "17", "percent": 95}, {"version_type": "18", "percent": 5}]))]
    pub shares: Option<Vec<Share>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shares_by: Option<SharesBy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sticky: Option<Sticky>,
    /// Milliseconds until a new or recovered instance gets its full share of requests, 1 to 3,600,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_start_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retries: Option<Retries>,
    /// When a failing instance is ejected temporarily; `false` disables ejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Ejected>)]
    ejection: Option<Ejection>,
    /// Milliseconds that a request waits for an instance while the host has none, 1 to 60,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pause: Option<Pause>,
    /// Status, 400 to 599 → the page of an answer that the edge itself gives. Answers of instances stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error_pages: Option<BTreeMap<String, ErrorPage>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeouts: Option<Timeouts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    /// Size limit of a request body, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body_bytes: Option<u64>,
    /// The allowed methods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["GET", "POST"]))]
    methods: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    headers: Option<Headers>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    maintenance: Option<Maintenance>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    https: Option<Https>,
    /// Provider of the host's certificate. Default: Signalbox, if `acme.hosts` of the pacemaker covers the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upstream: Option<Upstream>,
    /// Whether a request may select its instance with a header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_header: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<Access>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    redirect: Option<Redirect>,
    /// The paths that lead to other hosts. The exact rule applies, otherwise the longest prefix; other paths are served by
    /// the host's own instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paths: Option<Vec<PathRule>>,
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
        if let Some(balance) = &self.balance {
            balance.check()?;
        }
        if let Some(shares) = &self.shares {
            balance::check_shares(shares)?;
        }
        if let Some(by) = &self.shares_by {
            by.check()?;
        }
        if let Some(sticky) = &self.sticky {
            sticky.check()?;
        }
        if let Some(retries) = &self.retries {
            retries.check()?;
        }
        if let Some(Ejection::When(ejected)) = &self.ejection {
            ejected.check()?;
        }
        self.pause.as_ref().map_or(Ok(()), Pause::check)?;
        self.error_pages.as_ref().map_or(Ok(()), failure::check_error_pages)?;
        if let Some(timeouts) = &self.timeouts {
            timeouts.check()?;
        }
        if let Some(limits) = &self.limits {
            limits.check()?;
        }
        if let Some(methods) = &mut self.methods {
            guards::check_methods(methods)?;
        }
        if let Some(headers) = &mut self.headers {
            headers.check()?;
        }
        if let Some(maintenance) = &self.maintenance {
            maintenance.check()?;
        }
        if let Some(upstream) = &self.upstream {
            upstream.check()?;
        }
        self.access.as_mut().map_or(Ok(()), Access::check)?;
        self.redirect.as_ref().map_or(Ok(()), Redirect::check)?;
        if let Some(rules) = &mut self.paths {
            paths::check(rules)?;
        }
        within(self.slow_start_ms, 1..=MAX_HOUR_MS, "slow_start_ms")?;
        within(self.hold_ms, 1..=MAX_HOLD_MS, "hold_ms")?;
        within(self.body_bytes, 0..=MAX_BODY_BYTES, "body_bytes")?;
        if serde_json::to_string(&self).map_or(usize::MAX, |json| json.len()) > MAX_BYTES {
            return Err(invalid("policy", format!("a policy must have at most {MAX_BYTES} bytes as JSON")));
        }
        Ok(self)
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
        match &self.redirect {
            Some(redirect) if redirect.leads_back_to(hostname.as_str()) => {
                Err(invalid("redirect.to", "a redirect of the whole host must lead to another host"))
            }
            _ => Ok(()),
        }
    }

    /// The checks that the edge makes before it chooses an instance, in their order. `rule` is the rule for
    /// the path.
    pub(crate) fn checks(&self, rule: Option<&PathRule>) -> Vec<&'static str> {
        let access = rule.and_then(PathRule::access).or(self.access.as_ref());
        let redirect = rule.and_then(PathRule::redirect).is_some() || self.redirect.is_some();
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

    /// The policy with these rules for paths.
    #[must_use]
    pub fn with_paths(self, paths: Option<Vec<PathRule>>) -> Self {
        Self { paths, ..self }
    }

    /// The policy with `pause`, or without it to resume the host.
    #[must_use]
    pub fn with_pause(self, pause: Option<Pause>) -> Self {
        Self { pause, ..self }
    }

    /// The policy with the rules for paths of `other`.
    #[must_use]
    pub fn with_paths_of(self, other: &Self) -> Self {
        Self { paths: other.paths.clone(), ..self }
    }

    /// The policy without shares, for a host whose traffic moves completely to one version.
    pub fn without_shares(&self) -> Self {
        Self { shares: None, ..self.clone() }
    }
}

fn invalid(field: &'static str, detail: impl Into<String>) -> Invalid {
    Invalid::new("invalid_policy", field, detail)
}

/// Checks an optional number.
fn within(value: Option<u64>, range: RangeInclusive<u64>, field: &'static str) -> Result<(), Invalid> {
    let fits = value.is_none_or(|value| range.contains(&value));
    fits.then_some(())
        .ok_or_else(|| invalid(field, format!("{field} must be {} to {}", range.start(), range.end())))
}

/// Checks the name of a header or cookie. nginx variables support fewer characters than RFC 9110 allows.
fn check_name(name: &str, field: &'static str) -> Result<(), Invalid> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let fits = (1..=128).contains(&name.len()) && name.bytes().all(plain);
    fits.then_some(())
        .ok_or_else(|| invalid(field, "the name of a header or cookie must match [A-Za-z0-9_-]{1,128}"))
}

/// Checks the value of a header. Control characters could start another header.
fn check_value(value: &str, field: &'static str) -> Result<(), Invalid> {
    let fits =
        value.len() <= 8192 && !value.chars().any(|character| character.is_control() && character != '\t');
    fits.then_some(()).ok_or_else(|| {
        invalid(field, "the value of a header must have at most 8192 bytes and no control characters")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str) -> Result<Policy, Invalid> {
        serde_json::from_str::<Policy>(json).unwrap_or_else(|error| panic!("{json}: {error}")).check()
    }

    #[test]
    fn shares_by_weight_add_up_and_are_valid() {
        let label = |name: &str| Label::parse(name, "shares").unwrap();
        let shares = |weights: &[(&str, u32)]| {
            let weights = weights.iter().map(|(name, weight)| (label(name), *weight)).collect();
            let policy =
                Policy { hold_ms: Some(7), ..Policy::default() }.with_shares(&weights).check().unwrap();
            assert_eq!(policy.hold_ms, Some(7));
            serde_json::to_string(&policy.shares).unwrap()
        };
        assert_eq!(shares(&[("7", 3)]), r#"[{"version_type":"7","percent":100}]"#);
        assert_eq!(
            shares(&[("a", 1), ("b", 1), ("c", 1)]),
            r#"[{"version_type":"a","percent":33.33},{"version_type":"b","percent":33.33},{"version_type":"c","percent":33.34}]"#
        );
        assert_eq!(
            shares(&[("a", 0), ("b", 0)]),
            r#"[{"version_type":"a","percent":50},{"version_type":"b","percent":50}]"#
        );
        assert_eq!(shares(&[]), "null");
    }

    #[test]
    fn requests_off_the_hot_path_are_counted() {
        let counted = |json: &str| check(json).unwrap().counts_in_flight();
        for json in [
            r#"{"balance":{"algorithm":"p2c"}}"#,
            r#"{"sticky":{"cookie":"s"}}"#,
            r#"{"body_bytes":5}"#,
            r#"{"https":"redirect"}"#,
            r#"{"target_header":true}"#,
        ] {
            assert!(counted(json), "{json}");
        }
        for json in [
            "{}",
            r#"{"balance":{"algorithm":"round_robin"}}"#,
            r#"{"https":"any"}"#,
            r#"{"hold_ms":5}"#,
            r#"{"tls":"auto"}"#,
        ] {
            assert!(!counted(json), "{json}");
        }
    }

    #[test]
    fn every_part_keeps_its_value() {
        let json = r#"{"balance":{"algorithm":"hash","header":"X-User"},"shares":[{"version_type":"17","percent":99.5},{"version_type":"18","percent":0.5}],"shares_by":{"header":"X-Version","cookie":"version"},"sticky":{"cookie":"signalbox","ttl_seconds":3600},"slow_start_ms":30000,"retries":{"attempts":3,"budget_percent":20,"timeout_ms":10000},"ejection":{"failures":5,"first_ms":1000,"longest_ms":60000},"hold_ms":5000,"timeouts":{"connect_ms":1,"read_ms":2,"send_ms":3},"limits":{"requests":{"per_second":100,"burst":50,"by":{"header":"X-Key"}},"connections":{"most":100,"by":"host"}},"body_bytes":1048576,"methods":["GET","POST"],"headers":{"request":{"set":{"X-Env":"live"},"remove":["X-Debug"]},"response":{"set":{"X-Frame-Options":"DENY"}}},"maintenance":{"status":503,"body":"back soon","content_type":"text/plain","retry_after":60,"except_header":{"name":"X-Preview","value":"1"}},"https":"redirect","tls":"auto","upstream":{"tls":true,"server_name":"app.internal","verify":true,"protocol":"grpc"},"target_header":true}"#;
        assert_eq!(serde_json::to_string(&check(json).unwrap()).unwrap(), json);
        assert_eq!(
            serde_json::to_string(&check(r#"{"ejection":false}"#).unwrap()).unwrap(),
            r#"{"ejection":false}"#
        );
        assert!(check("{}").unwrap().is_empty() && !check(r#"{"ejection":false}"#).unwrap().is_empty());
    }

    #[test]
    fn equal_policies_are_equal_texts() {
        let one =
            r#"{"methods":["post","GET","GET"],"shares":[{"percent":100,"version_type":17}],"hold_ms":null}"#;
        let other = r#"{"shares":[{"version_type":"17","percent":100}],"methods":["GET","POST"]}"#;
        let text = |json| serde_json::to_string(&check(json).unwrap()).unwrap();
        assert_eq!(text(one), text(other));
    }

    #[test]
    fn each_field_has_its_limits() {
        for (json, field) in [
            (r#"{"slow_start_ms":0}"#, "slow_start_ms"),
            (r#"{"slow_start_ms":3600001}"#, "slow_start_ms"),
            (r#"{"hold_ms":60001}"#, "hold_ms"),
            (r#"{"body_bytes":1125899906842625}"#, "body_bytes"),
            (r#"{"balance":{"algorithm":"hash"}}"#, "balance"),
            (r#"{"balance":{"algorithm":"hash","header":"a","cookie":"b"}}"#, "balance"),
            (r#"{"balance":{"algorithm":"hash","address":false}}"#, "balance"),
            (r#"{"balance":{"algorithm":"p2c","cookie":"b"}}"#, "balance"),
            (r#"{"balance":{"algorithm":"hash","header":"a b"}}"#, "balance.header"),
            (r#"{"shares":[]}"#, "shares"),
            (r#"{"shares":[{"version_type":"1","percent":99}]}"#, "shares"),
            (r#"{"shares":[{"version_type":"1","percent":101}]}"#, "shares"),
            (
                r#"{"shares":[{"version_type":"1","percent":200},{"version_type":"2","percent":-100}]}"#,
                "shares",
            ),
            (r#"{"shares":[{"version_type":"1","percent":50},{"version_type":"1","percent":50}]}"#, "shares"),
            (r#"{"shares":[{"version_type":"a b","percent":100}]}"#, "shares"),
            (r#"{"shares_by":{}}"#, "shares_by"),
            (r#"{"shares_by":{"cookie":"a=b"}}"#, "shares_by.cookie"),
            (r#"{"shares_by":{"cookie":"a","values":{}}}"#, "shares_by.values"),
            (r#"{"shares_by":{"cookie":"a","values":{"x":"a b"}}}"#, "shares_by.values"),
            (r#"{"error_pages":{}}"#, "error_pages"),
            (r#"{"error_pages":{"200":{"body":""}}}"#, "error_pages"),
            (r#"{"error_pages":{"503":{"body":"","content_type":"a\nb"}}}"#, "error_pages.content_type"),
            (r#"{"pause":{"wait_ms":0}}"#, "pause.wait_ms"),
            (r#"{"pause":{"most":4097}}"#, "pause.most"),
            (r#"{"sticky":{"cookie":""}}"#, "sticky.cookie"),
            (r#"{"sticky":{"ttl_seconds":0}}"#, "sticky.ttl_seconds"),
            (r#"{"retries":{"attempts":0}}"#, "retries.attempts"),
            (r#"{"retries":{"budget_percent":101}}"#, "retries.budget_percent"),
            (r#"{"retries":{"timeout_ms":0}}"#, "retries.timeout_ms"),
            (r#"{"ejection":{"failures":0}}"#, "ejection.failures"),
            (r#"{"ejection":{"first_ms":9,"longest_ms":8}}"#, "ejection.longest_ms"),
            (r#"{"ejection":{"longest_ms":1}}"#, "ejection.longest_ms"),
            (r#"{"timeouts":{"connect_ms":0}}"#, "timeouts.connect_ms"),
            (r#"{"limits":{"requests":{"per_second":0}}}"#, "limits.requests.per_second"),
            (r#"{"limits":{"requests":{"per_second":1,"burst":1000001}}}"#, "limits.requests.burst"),
            (r#"{"limits":{"requests":{"per_second":1,"by":{"header":"a:b"}}}}"#, "limits.requests.by"),
            (r#"{"limits":{"connections":{"most":0}}}"#, "limits.connections.most"),
            (r#"{"methods":[]}"#, "methods"),
            (r#"{"methods":["GET /"]}"#, "methods"),
            (r#"{"headers":{"request":{"set":{"Connection":"x"}}}}"#, "headers.request"),
            (r#"{"headers":{"request":{"remove":["HOST"]}}}"#, "headers.request"),
            (r#"{"headers":{"request":{"set":{"X-Forwarded-For":"::1"}}}}"#, "headers.request"),
            (r#"{"headers":{"response":{"set":{"X-A":"1\r\nSet-Cookie: a=b"}}}}"#, "headers.response"),
            (r#"{"headers":{"response":{"set":{"X-Signalbox-Error":"none"}}}}"#, "headers.response"),
            (r#"{"headers":{"response":{"set":{"X-A":"1"},"remove":["x-a"]}}}"#, "headers.response"),
            (r#"{"headers":{"response":{"set":{"":"1"}}}}"#, "headers.response"),
            (r#"{"maintenance":{"status":99}}"#, "maintenance.status"),
            (r#"{"maintenance":{"status":199}}"#, "maintenance.status"),
            (r#"{"maintenance":{"content_type":"a\nb"}}"#, "maintenance.content_type"),
            (r#"{"maintenance":{"except_header":{"name":"","value":"1"}}}"#, "maintenance.except_header"),
            (r#"{"access":{"allow":[]}}"#, "access.allow"),
            (r#"{"access":{"deny":["10.0.0.0/33"]}}"#, "access.deny"),
            (r#"{"access":{"allow":["10.1.0.0/16"],"deny":["10.0.0.0/8"]}}"#, "access.allow"),
            (r#"{"access":{"basic":{"users":{}}}}"#, "access.basic.users"),
            (r#"{"access":{"basic":{"users":{"ann":"secret"}}}}"#, "access.basic.users"),
            (r#"{"access":{"basic":{"users":{"a:b":"(hidden)"}}}}"#, "access.basic.users"),
            (r#"{"access":{"forward":{"service":"a b"}}}"#, "access.forward.service"),
            (r#"{"access":{"forward":{"service":"a.test","path":"x"}}}"#, "access.forward.path"),
            (r#"{"access":{"forward":{"service":"a.test","copy":["Host"]}}}"#, "access.forward.copy"),
            (
                r#"{"access":{"forward":{"service":"a.test","cache_seconds":0}}}"#,
                "access.forward.cache_seconds",
            ),
            (r#"{"access":{"basic":{"users":{"a":"(hidden)"}},"forward":{"service":"a.test"}}}"#, "access"),
            (r#"{"redirect":{"to":"//evil.test"}}"#, "redirect.to"),
            (r#"{"redirect":{"to":"https://a@evil.test"}}"#, "redirect.to"),
            (r#"{"redirect":{"to":"https://a.test/","keep_path":true}}"#, "redirect.to"),
            (r#"{"redirect":{"to":"https://a.test","status":303}}"#, "redirect.status"),
            (r#"{"paths":[{"path":"/a"}]}"#, "paths"),
            (r#"{"paths":[{"path":"/a","redirect":{"to":"/b"},"service":"a.test"}]}"#, "paths"),
            (r#"{"paths":[]}"#, "paths"),
            (r#"{"paths":[{"path":"api","service":"a.test"}]}"#, "paths.path"),
            (r#"{"paths":[{"path":"/api/","service":"a.test"}]}"#, "paths.path"),
            (r#"{"paths":[{"path":"/a//b","service":"a.test"}]}"#, "paths.path"),
            (r#"{"paths":[{"path":"/a/../b","service":"a.test"}]}"#, "paths.path"),
            (r#"{"paths":[{"path":"/a%20b","service":"a.test"}]}"#, "paths.path"),
            (r#"{"paths":[{"path":"/a;b","service":"a.test"}]}"#, "paths.path"),
            (r#"{"paths":[{"path":"/a","service":"a b"}]}"#, "paths.service"),
            (r#"{"paths":[{"path":"/a","service":"*.test"}]}"#, "paths.service"),
            (r#"{"paths":[{"path":"/","service":"a.test","strip":true}]}"#, "paths.strip"),
            (
                r#"{"paths":[{"path":"/a","service":"a.test"},{"path":"/a","match":"prefix","service":"b.test"}]}"#,
                "paths.path",
            ),
            (r#"{"upstream":{"server_name":"a b"}}"#, "upstream.server_name"),
            (r#"{"upstream":{"server_name":"app.internal"}}"#, "upstream.tls"),
        ] {
            let error = check(json).map(|_| json).unwrap_err();
            assert_eq!((error.code, error.field), ("invalid_policy", field), "{json}: {}", error.detail);
        }
        let long = format!(r#"{{"maintenance":{{"body":"{}"}}}}"#, "a".repeat(8193));
        assert_eq!(check(&long).unwrap_err().field, "maintenance.body");
    }

    /// `lua/spec/policy_spec.lua` tests the edge with the same file.
    #[test]
    fn the_edge_has_the_same_ranges_reserved_headers_and_hot_path() {
        #[derive(Deserialize)]
        struct Rules {
            ranges: Vec<Range>,
            reserved_headers: Vec<String>,
            on_hot_path: Vec<serde_json::Value>,
            off_hot_path: Vec<serde_json::Value>,
        }
        #[derive(Deserialize)]
        struct Range {
            policy: serde_json::Value,
            accepted: Vec<serde_json::Value>,
            rejected: Vec<serde_json::Value>,
        }
        let rules: Rules = serde_json::from_str(include_str!("../../../../tests/policy_rules.json")).unwrap();
        let accepts =
            |json: &str| serde_json::from_str::<Policy>(json).is_ok_and(|policy| policy.check().is_ok());
        for range in &rules.ranges {
            let with =
                |value: &serde_json::Value| range.policy.to_string().replace("\"VALUE\"", &value.to_string());
            for value in &range.accepted {
                assert!(accepts(&with(value)), "{}", with(value));
            }
            for value in &range.rejected {
                assert!(!accepts(&with(value)), "{}", with(value));
            }
        }
        assert_eq!(rules.reserved_headers, guards::RESERVED);
        for policy in &rules.on_hot_path {
            assert!(!check(&policy.to_string()).unwrap().counts_in_flight(), "{policy}");
        }
        for policy in &rules.off_hot_path {
            assert!(check(&policy.to_string()).unwrap().counts_in_flight(), "{policy}");
        }
    }

    #[test]
    fn a_host_cannot_be_a_service_of_itself() {
        let policy = check(r#"{"paths":[{"path":"/a","service":"A.test."}]}"#).unwrap();
        assert_eq!(policy.services().collect::<Vec<_>>(), ["a.test"]);
        let host = |name: &str| Hostname::parse(name).unwrap();
        assert_eq!(policy.check_for(&host("a.test")).unwrap_err().field, "service");
        policy.check_for(&host("*.test")).unwrap();
    }

    #[test]
    fn passwords_are_hidden_and_kept() {
        let hash = format!("$6$ab${}", "x".repeat(86));
        let json = |hash: &str| {
            let basic = format!(r#"{{"basic":{{"users":{{"ann":"{hash}"}}}}}}"#);
            format!(r#"{{"access":{basic},"paths":[{{"path":"/a","access":{basic}}}]}}"#)
        };
        let stored = check(&json(&hash)).unwrap();
        let mut shown = serde_json::to_value(&stored).unwrap();
        Policy::hide_passwords(&mut shown);
        assert_eq!(
            shown.to_string(),
            check(&json("(hidden)")).map(|p| serde_json::to_value(p).unwrap().to_string()).unwrap()
        );
        let again: Policy = serde_json::from_value(shown).unwrap();
        assert_eq!(again.clone().check().unwrap().keep_hidden(Some(&stored)), Ok(stored));
        assert_eq!(again.keep_hidden(None).unwrap_err().field, "access.basic.users");
    }

    #[test]
    fn checks_are_listed_in_their_order() {
        let policy = check(
            r#"{"access":{"deny":["10.0.0.1"],"forward":{"service":"a.test"}},"https":"only","body_bytes":5,"maintenance":{}}"#,
        );
        let expected = ["addresses", "https", "maintenance", "forward", "body_bytes"];
        assert_eq!(policy.unwrap().checks(None), expected);
    }

    #[test]
    fn unknown_fields_are_named() {
        for (json, name) in [
            (r#"{"balanse":{}}"#, "balanse"),
            (r#"{"retries":{"atempts":1}}"#, "atempts"),
            (r#"{"ejection":{"failure":1}}"#, "failure"),
            (r#"{"limits":{"requests":{"per_second":1,"per_minute":1}}}"#, "per_minute"),
            (r#"{"headers":{"request":{"add":{}}}}"#, "add"),
            (r#"{"weights":{"127.0.0.1:1":3}}"#, "weights"),
            (r#"{"draining":[]}"#, "draining"),
        ] {
            let error = serde_json::from_str::<Policy>(json).unwrap_err().to_string();
            assert!(error.starts_with(&format!("unknown field `{name}`")), "{json}: {error}");
        }
        assert!(serde_json::from_str::<Policy>(r#"{"ejection":true}"#).is_err());
    }

    /// A stored policy is accepted again, unchanged.
    #[test]
    fn fuzz_policies() {
        let examples = [
            r#"{"balance":{"algorithm":"hash","header":"X-User"},"shares":[{"version_type":"17","percent":99.5},{"version_type":"18","percent":0.5}],"shares_by":{"header":"X-Version","cookie":"v"},"sticky":{"cookie":"s","ttl_seconds":3600},"slow_start_ms":30000}"#,
            r#"{"retries":{"attempts":3,"budget_percent":20,"timeout_ms":10000},"ejection":{"failures":5,"first_ms":1000,"longest_ms":60000},"hold_ms":5000,"timeouts":{"connect_ms":1,"read_ms":2,"send_ms":3}}"#,
            r#"{"limits":{"requests":{"per_second":100,"burst":50,"by":{"header":"X-Key"}},"connections":{"most":100,"by":"host"}},"body_bytes":1048576,"methods":["GET","POST"],"https":"redirect","ejection":false}"#,
            r#"{"headers":{"request":{"set":{"X-Env":"live"},"remove":["X-Debug"]},"response":{"set":{"X-Frame-Options":"DENY"}}},"maintenance":{"status":503,"body":"back soon","content_type":"text/plain","retry_after":60,"except_header":{"name":"X-Preview","value":"1"}},"upstream":{"tls":true,"server_name":"app.internal","verify":true,"protocol":"grpc"},"target_header":true}"#,
            r#"{"access":{"allow":["10.0.0.0/8","fd00::/8"],"deny":["10.1.0.1","::ffff:10.2.0.0/112"],"basic":{"realm":"Staff","users":{"ann":"$5$abcdefgh$ZLVGB1aDyxIdxV5VVeKcoQGwDaoKoWfKRbrdZcb7MC7"}}},"redirect":{"host":"www.a.test","status":308}}"#,
            r#"{"access":{"forward":{"service":"auth.internal","path":"/verify","send":["X-Key"],"copy":["X-User"],"cache_seconds":60,"timeout_ms":500}},"paths":[{"path":"/api","service":"orders.internal","strip":true},{"path":"/health","match":"exact","access":{}},{"path":"/old","redirect":{"to":"https://b.test/new"}}]}"#,
        ];
        let words = [
            "\"access\":",
            "\"allow\":",
            "\"paths\":",
            "/..",
            "::/0",
            "/33",
            "$6$rounds=1$",
            "null",
            "-1",
            "1e308",
            "18446744073709551616",
            "\"\"",
            "\\u0000",
            "\\r\\n",
            "{}",
            "[]",
            "true",
            ",",
            ":",
            "\"by\":",
            "\"header\":",
            "\"requests\":",
            "\"hash\"",
            "\"least\"",
            "\"failures\":",
            "\"cookie\":",
            "\"only\"",
            "0",
        ];
        let mut fuzz = signalbox_testkit::Fuzz::new("policies", examples, &words);
        while let Some(bytes) = fuzz.input() {
            let Ok(policy) = serde_json::from_slice::<Policy>(&bytes) else { continue };
            let Ok(checked) = policy.check() else { continue };
            let stored = serde_json::to_string(&checked).unwrap();
            let again: Policy =
                serde_json::from_str(&stored).unwrap_or_else(|error| panic!("{stored}: {error}"));
            let again = again.check().unwrap_or_else(|invalid| panic!("{stored}: {invalid:?}"));
            assert_eq!(serde_json::to_string(&again).unwrap(), stored);
            fuzz.accepted();
        }
    }
}
