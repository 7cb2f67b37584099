//! Statistics, which the sidecar answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Totals since counting began, and values derived from them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Totals {
    /// The kind of subject: `version_type`, `version`, `application`, `workspace`, `node`, `total`, `uncaught` or `pacemaker`.
    pub kind: String,
    /// The ID of the subject.
    pub id: String,
    /// The version types that were summed.
    pub version_types: Vec<String>,
    /// The unix second at which they were read.
    pub as_at: u64,
    /// Requests.
    pub requests: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Requests that an upstream answered.
    pub timecount: u64,
    /// Total upstream response time, in milliseconds.
    pub time: u64,
    /// Total request time in nginx, in milliseconds.
    pub nginxtime: u64,
    /// Answers with a status of 100 to 199.
    #[serde(rename = "1xx")]
    pub informational: u64,
    /// Answers with a status of 200 to 299.
    #[serde(rename = "2xx")]
    pub successful: u64,
    /// Answers with a status of 300 to 399.
    #[serde(rename = "3xx")]
    pub redirected: u64,
    /// Answers with a status of 400 to 499.
    #[serde(rename = "4xx")]
    pub client_errors: u64,
    /// Answers with a status of 500 to 599.
    #[serde(rename = "5xx")]
    pub server_errors: u64,
    /// Those of `5xx` that the edge answered without trying an instance: a policy decided, or there was none.
    #[serde(default)]
    pub edge_5xx: u64,
    /// Share of answers with a status of 100 to 199, in percent.
    #[serde(rename = "1xx_percentage")]
    pub informational_percentage: f64,
    /// Share of answers with a status of 200 to 299, in percent.
    #[serde(rename = "2xx_percentage")]
    pub successful_percentage: f64,
    /// Share of answers with a status of 300 to 399, in percent.
    #[serde(rename = "3xx_percentage")]
    pub redirected_percentage: f64,
    /// Share of answers with a status of 400 to 499, in percent.
    #[serde(rename = "4xx_percentage")]
    pub client_errors_percentage: f64,
    /// Share of answers with a status of 500 to 599, in percent.
    #[serde(rename = "5xx_percentage")]
    pub server_errors_percentage: f64,
    /// Mean upstream response time in milliseconds; `null` if no upstream answered.
    pub time_average: Option<f64>,
    /// Mean request time in milliseconds; `null` without requests.
    pub nginxtime_average: Option<f64>,
    /// Requests by status code.
    pub codes: BTreeMap<String, u64>,
}

/// Upstream response times over a period, as a histogram.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Latency {
    /// The kind of subject, as in totals, or `instance`.
    pub kind: String,
    /// The ID of the subject.
    pub id: String,
    /// The version types that were summed; absent for an instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub version_types: Vec<String>,
    /// The address of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The first unix second of the period.
    pub start: u64,
    /// The unix second after the period.
    pub end: u64,
    /// The unix second at which the histogram was read.
    pub as_at: u64,
    /// Number of values.
    pub count: u64,
    /// The median in milliseconds; `null` without values, as are the other quantiles.
    pub p50_ms: Option<f64>,
    /// The 90th percentile in milliseconds.
    pub p90_ms: Option<f64>,
    /// The 95th percentile in milliseconds.
    pub p95_ms: Option<f64>,
    /// The 99th percentile in milliseconds.
    pub p99_ms: Option<f64>,
    /// All buckets, from the lowest.
    pub buckets: Vec<Bucket>,
}

/// A bucket of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LatencyBucket))]
pub struct Bucket {
    /// The exclusive upper bound in milliseconds; `null` for the last bucket.
    pub below_ms: Option<u64>,
    /// Number of values.
    pub count: u64,
}

/// The requests of the last seconds, the loudest version types first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Top {
    /// The unix second after them. Counters are complete about two seconds later.
    pub end: u64,
    /// The number of seconds.
    pub seconds: u64,
    /// All requests, except those to the admin listener.
    pub total: Recent,
    /// Requests without a version type, such as those for unknown hosts.
    pub uncaught: Recent,
    /// The number of version types with requests in the present minute or the one before.
    pub active: u64,
    /// The loudest version types.
    pub version_types: Vec<Loud>,
}

/// The counters of a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RecentRequests))]
pub struct Recent {
    /// Requests.
    pub requests: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Requests that an upstream answered.
    pub timecount: u64,
    /// Total upstream response time, in milliseconds.
    pub time: u64,
    /// Total request time in nginx, in milliseconds.
    pub nginxtime: u64,
    /// Answers with a status of 400 to 499.
    #[serde(rename = "4xx")]
    pub client_errors: u64,
    /// Answers with a status of 500 to 599.
    #[serde(rename = "5xx")]
    pub server_errors: u64,
    /// Those of `5xx` that the edge answered without trying an instance.
    pub edge_5xx: u64,
}

/// A version type and its counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LoudVersionType))]
pub struct Loud {
    /// The version type.
    pub id: String,
    /// Its counters.
    #[serde(flatten)]
    pub recent: Recent,
}

/// Which version types are asked for, as a query string.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct Loudest {
    /// What they are ranked by: `requests` (the default), or `errors`, those that an instance answered with 5xx or failed.
    pub by: Option<String>,
    /// The number of seconds, 1 to 60; 60 by default.
    pub seconds: Option<u64>,
    /// The number of version types, 1 to 1000; 100 by default.
    pub limit: Option<usize>,
}

/// A point of a series: unix second and value.
pub type Point = (u64, u64);

/// The range of a history, as a query string.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct History {
    /// The metric; `requests` by default.
    pub metric: Option<String>,
    /// The first unix second; five minutes before `end` by default.
    pub start: Option<u64>,
    /// The unix second after the range; now by default.
    pub end: Option<u64>,
    /// Seconds of a point, 1 to 86400; chosen by the length of the range by default.
    pub step: Option<u64>,
}

/// The period of a histogram, as a query string.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// The first unix second; five minutes before `end` by default.
    pub start: Option<u64>,
    /// The unix second after the period; now by default.
    pub end: Option<u64>,
}

/// The metric of a stream, as a query string.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// The metric; `requests` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
}
