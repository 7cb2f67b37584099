//! `?wait=`: an answer that comes when the routers have the change.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode};
use serde_json::json;

use crate::http::{App, Problem, SERIAL_HEADER, slots::Slot};
use signalbox_route_table::Invalid;
use signalbox_routing::{Convergence, RouterReport};

const MAX_WAIT: Duration = Duration::from_secs(60);

/// How long a request waits, and its place among those that do. The place is taken before anything is changed, so that a request
/// that may not wait changes nothing.
#[derive(Debug)]
pub(crate) struct Patience {
    pub(super) duration: Duration,
    pub(super) _place: Slot,
}

/// Reads `5s`, `500ms`, or `5` for seconds.
pub(super) fn parse(text: &str) -> Result<Duration, Invalid> {
    let invalid = || {
        Invalid::new("invalid_wait", "wait", "`wait` must be a duration such as 5s, 500ms or 5, up to 60s")
    };
    let (number, unit_ms) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1),
        (None, Some(number)) => (number, 1000),
        (None, None) => (text, 1000),
    };
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms)).ok_or_else(invalid)?;
    Some(Duration::from_millis(ms)).filter(|wait| *wait <= MAX_WAIT).ok_or_else(invalid)
}

/// The resource is gone, or there was none.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only a description")]
pub(crate) enum Removed {
    #[response(
        status = 204,
        description = "Removed, or there was none",
        headers(("x-signalbox-serial" = u64, description = "The serial of the route table with this change in it"))
    )]
    Done,
}

/// The header that every answer to a change has: the serial of the route table with this change in it.
pub(crate) type SerialHeader = [(HeaderName, HeaderValue); 1];

pub(crate) fn serial_header(serial: u64) -> SerialHeader {
    [(SERIAL_HEADER.clone(), HeaderValue::from(serial))]
}

/// Waits until every live router has acknowledged the change, and returns the header of the answer.
///
/// Without a live router no router serves the change, so "all routers have it" would be true and useless: the wait
/// continues until one reports, and ends with `no_router`.
pub(crate) async fn wait(
    app: &App,
    epoch: &str,
    serial: u64,
    patience: Option<Patience>,
) -> Result<SerialHeader, Problem> {
    app.routers.applied(serial);
    let Some(patience) = patience else { return Ok(serial_header(serial)) };
    let convergence = app.routers.converged(epoch, serial, patience.duration, &app.shutdown).await;
    let (outcome, code, detail) = match &convergence {
        Convergence::Reached { .. } => ("reached", "", ""),
        Convergence::Lagging(_) => ("lagging", "not_converged", "not every live router has it yet"),
        Convergence::NoRouter => ("no_router", "no_router", "no router has reported in the last ten seconds"),
        Convergence::Unknown => (
            "unknown",
            "convergence_unknown",
            "the reports of the routers were not read from the stats Redis in time",
        ),
        Convergence::ShuttingDown => ("shutting_down", "shutting_down", "this pacemaker is shutting down"),
    };
    app.registry.metrics().waited(outcome);
    let lagging = match convergence {
        Convergence::Reached { .. } => return Ok(serial_header(serial)),
        Convergence::Lagging(lagging) => lagging,
        _ => Vec::new(),
    };
    let status =
        if code == "shutting_down" { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::GATEWAY_TIMEOUT };
    let detail =
        format!("The change is in the route table, but {detail}. Repeating the request waits again.");
    let lagging: Vec<_> = lagging.iter().map(|router| laggard(router, epoch, serial)).collect();
    Err(Problem::new(status, code, detail)
        .with("changed", true)
        .with("serial", serial)
        .with("lagging", lagging))
}

fn laggard(router: &RouterReport, epoch: &str, serial: u64) -> serde_json::Value {
    json!({
        "router": router.node,
        "serial": router.serial,
        "behind_by": behind_by(router, epoch, serial),
        "age_ms": router.age_ms,
        "alarm": router.alarm,
    })
}

/// The number of changes that a router has not acknowledged; unknown when it follows another table.
pub(super) fn behind_by(router: &RouterReport, epoch: &str, serial: u64) -> Option<u64> {
    (router.epoch.split(' ').next() == Some(epoch)).then(|| serial.saturating_sub(router.serial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_has_a_unit_and_a_limit() {
        for (text, ms) in [("5s", 5000), ("500ms", 500), ("5", 5000), ("0", 0), ("60s", 60_000)] {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in
            ["", "s", "ms", "61s", "60001ms", "-1", "5m", "1.5s", " 5s", "+5", "99999999999999999999999"]
        {
            assert_eq!(parse(text).unwrap_err().code, "invalid_wait", "{text}");
        }
    }
}
