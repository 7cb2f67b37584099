//! How labels flow through a machine.

use axum::{Json as Answer, extract::State};
use serde::Deserialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ReadMachines, confined::OfMachine, params::MachineName};
use crate::http::{App, Problem, body::Query, path::Path};
use signalbox_api::machines::Flow;
use signalbox_machines::KEPT_HOURS;

/// The period if none is given, hours.
const PERIOD: u64 = 24;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(flow))
}

/// Which flow.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Asked {
    /// Whole hours until now, the current one included: 1 to 192; default 24.
    hours: Option<u64>,
    /// With `to`: the state where a funnel begins.
    from: Option<String>,
    /// With `from`: the state where a funnel ends.
    to: Option<String>,
}

/// Show how labels flow through a machine
///
/// Entries, transitions, and the median and 95th percentile of the time in states (within 10%). With `from` and `to`: of the
/// entries into a state, how many reached another until now, by version of the definition, as far as the last twenty transitions of
/// labels show it. Counts are stored every five seconds and kept for eight days.
#[utoipa::path(get, path = "/state-machines/{machine}/flow", params(Asked), responses((status = 200, body = Flow),
    (status = "default", description = "404 unknown_state | 422 invalid_period, invalid_funnel")))]
async fn flow(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path(MachineName(machine)): Path<MachineName>,
    Query(asked): Query<Asked>,
) -> Result<Answer<Flow>, Problem> {
    let hours = asked.hours.unwrap_or(PERIOD);
    if !(1..=KEPT_HOURS).contains(&hours) {
        let detail = format!("`hours` must be between 1 and {KEPT_HOURS}");
        return Err(Problem::unprocessable("invalid_period", detail));
    }
    let funnel = match (asked.from.as_deref(), asked.to.as_deref()) {
        (None, None) => None,
        (Some(from), Some(to)) if from != to => Some((from, to)),
        _ => {
            let detail = "`from` and `to` must be two different states, or both be left out";
            return Err(Problem::unprocessable("invalid_funnel", detail));
        }
    };
    Ok(Answer(app.machines.inspector.flow.report(&machine, hours, funnel).await?))
}
