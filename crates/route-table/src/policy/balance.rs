//! Which instance gets a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::{check_name, check_value, invalid, require, within};
use crate::{Invalid, Label};

const MAX_SHARES: usize = 20;
const MAX_VALUES: usize = 1000;
const MAX_TTL_SECONDS: u64 = 365 * 86_400;

/// How an instance is chosen.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Balance {
    pub(crate) algorithm: Algorithm,
    /// For `hash`: requests with equal values of this header go to the same instance.
    header: Option<String>,
    /// For `hash`: requests with equal values of this cookie go to the same instance.
    cookie: Option<String>,
    /// For `hash`: requests of one client address go to the same instance.
    address: Option<bool>,
}

/// Load-balancing algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Algorithm {
    /// One after the other.
    RoundRobin,
    /// The less busy of two randomly chosen instances.
    P2c,
    /// By a hash of a value in the request.
    Hash,
}

impl Balance {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let given = [self.header.is_some(), self.cookie.is_some(), self.address == Some(true)];
        let count =
            given.into_iter().filter(|given| *given).count() + usize::from(self.address == Some(false));
        let wanted = usize::from(self.algorithm == Algorithm::Hash);
        let detail = "`hash` requires exactly one of `header`, `cookie` and \"address\": true; other algorithms allow none \
                      of them";
        require(count == wanted && self.address != Some(false), "balance", detail)?;
        self.header.iter().try_for_each(|name| check_name(name, "balance.header"))?;
        self.cookie.iter().try_for_each(|name| check_name(name, "balance.cookie"))
    }
}

/// The percentage of requests that a version type gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    #[schema(value_type = String, example = "17")]
    pub(crate) version_type: Label,
    /// 0 to 100. Fractions are allowed.
    #[schema(value_type = f64, example = 95)]
    pub(crate) percent: Number,
}

impl Share {
    /// The version type, and its percentage.
    pub fn part(&self) -> (String, f64) {
        (self.version_type.as_str().to_owned(), self.percent.as_f64().unwrap_or(0.0))
    }

    /// Whether it is more than 0%.
    pub(super) fn is_some(&self) -> bool {
        self.percent.as_f64().is_some_and(|percent| percent > 0.0)
    }
}

/// Shares in proportion to the weights, in hundredths of a percent; `None` if there are no weights or too
/// many.
pub(super) fn proportional(weights: &BTreeMap<Label, u32>) -> Option<Vec<Share>> {
    (1..=MAX_SHARES).contains(&weights.len()).then_some(())?;
    // If all weights are 0, they are treated as equal, as in the edge.
    let unweighted = weights.values().all(|weight| *weight == 0);
    let weight = |weight: u32| if unweighted { 1 } else { u64::from(weight) };
    let total: u64 = weights.values().map(|one| weight(*one)).sum();
    let (mut so_far, mut given) = (0, 0);
    let shares = weights.iter().map(|(version_type, one)| {
        // The cumulative sum is rounded, so that the shares add up to 100%. Rounding each share would not.
        so_far += weight(*one);
        let until = so_far * 10_000 / total;
        let part = until - given;
        given = until;
        Share { version_type: version_type.clone(), percent: percent(part) }
    });
    Some(shares.collect())
}

/// Whole numbers are written without a fraction, because policies are compared as text.
fn percent(hundredths: u64) -> Number {
    if hundredths.is_multiple_of(100) {
        return Number::from(hundredths / 100);
    }
    Number::from_f64(hundredths as f64 / 100.0).unwrap_or_else(|| Number::from(0))
}

pub(super) fn check_shares(shares: &[Share]) -> Result<(), Invalid> {
    let fits = (1..=MAX_SHARES).contains(&shares.len());
    require(
        fits,
        "shares",
        format!("shares must have 1 to {MAX_SHARES} entries; omit the field for no split"),
    )?;
    let mut total = 0.0;
    for (at, share) in shares.iter().enumerate() {
        Label::parse(share.version_type.as_str(), "shares")
            .map_err(|error| invalid("shares", error.detail))?;
        let unique = shares[..at].iter().all(|other| other.version_type != share.version_type);
        require(unique, "shares", format!("duplicate version type {}", share.version_type.as_str()))?;
        let percent = share.percent.as_f64().unwrap_or(f64::NAN);
        require((0.0..=100.0).contains(&percent), "shares", "percent must be 0 to 100")?;
        total += percent;
    }
    // Fractions have rounding errors in binary.
    let complete = (total - 100.0).abs() < 1e-6;
    require(complete, "shares", format!("the percentages add up to {total}, must be 100"))
}

/// Lets a request select its version type with a header, a cookie, or either.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SharesBy {
    #[schema(example = "X-Version")]
    header: Option<String>,
    #[schema(example = "version")]
    cookie: Option<String>,
    /// Value of the header or cookie → version type. Other values choose nothing. Without it, a value is the version type.
    #[schema(value_type = Option<BTreeMap<String, String>>, example = json!({"acme": "18"}))]
    values: Option<BTreeMap<String, Label>>,
}

impl SharesBy {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let given = self.header.is_some() || self.cookie.is_some();
        require(given, "shares_by", "shares_by needs a header, a cookie, or both")?;
        self.header.iter().try_for_each(|name| check_name(name, "shares_by.header"))?;
        self.cookie.iter().try_for_each(|name| check_name(name, "shares_by.cookie"))?;
        let Some(values) = &self.values else { return Ok(()) };
        let fits = (1..=MAX_VALUES).contains(&values.len()) && values.keys().all(|value| !value.is_empty());
        require(fits, "shares_by.values", format!("list 1 to {MAX_VALUES} values, not empty"))?;
        for (value, version_type) in values {
            check_value(value, "shares_by.values")?;
            Label::parse(version_type.as_str(), "shares_by.values")
                .map_err(|error| invalid("shares_by.values", error.detail))?;
        }
        Ok(())
    }
}

/// Session affinity by a cookie that the edge sets.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sticky {
    /// Name of the cookie. Default: `signalbox`.
    cookie: Option<String>,
    /// Lifetime of the cookie, 1 to 31,536,000. Default: until the browser closes.
    ttl_seconds: Option<u64>,
}

impl Sticky {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        self.cookie.iter().try_for_each(|name| check_name(name, "sticky.cookie"))?;
        within(self.ttl_seconds, 1..=MAX_TTL_SECONDS, "sticky.ttl_seconds")
    }
}
