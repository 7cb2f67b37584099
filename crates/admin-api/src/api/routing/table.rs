//! The table, its routing decisions, and its propagation.

use axum::{Json as Answer, extract::State as AppState};
use serde::Deserialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{errors::check_host, wait::behind_by};
use crate::http::{
    App, Problem,
    auth::{Confined, Hosts, ReadRoutes, Whole},
    body::Query,
};
use signalbox_access::Caller;
use signalbox_api::routes::{Convergence, Explanation, Liveness, Router};
use signalbox_route_table::{Asked, Hostname, Invalid, Line, Question, RequestPath, host_of};
use signalbox_routing::{KNOWN_MS, RouterReport, liveness};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(super::dump::dump))
        .routes(routes!(explain_host))
        .routes(routes!(convergence))
}

/// The host and the request to explain.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExplainQuery {
    /// As in a Host header.
    #[param(example = "a.shop.example")]
    host: String,
    /// Its path, as in a request line.
    #[param(example = "/api/orders")]
    path: Option<String>,
    /// A header of the request, as `Name: value`.
    #[param(example = "X-User: ann")]
    header: Option<String>,
    /// Its cookies, as in a Cookie header.
    #[param(example = "sid=1f7a")]
    cookie: Option<String>,
    /// Its client's IP address.
    address: Option<String>,
    /// Its method. With `method` or `scheme`, `steps` shows what each check of the policy decides. Default: GET.
    #[param(example = "GET")]
    method: Option<String>,
    /// `http` or `https`. Default: `http`.
    scheme: Option<String>,
}

/// Explain a host
///
/// By the rules of the edge, from the routes primary: which keys are candidates, which one decides, and which of its
/// addresses get requests. With `header`, `cookie` or `address`, `request` shows the instance of such a request, if these
/// attributes decide it (sessions, a version type that the request names, consistent hashing), otherwise the chances. If the
/// token does not cover the name that decides, its instances and rules are left out. With `path`, the rule for this path decides whose
/// instances these are.
#[utoipa::path(get, path = "/routes/explain", params(ExplainQuery), responses((status = 200, body = Explanation),
    (status = "default", description = "403 host_not_allowed | 422 invalid_host, invalid_target, invalid_header, \
        invalid_cookie, invalid_address, invalid_method, invalid_scheme")))]
async fn explain_host(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Query(query): Query<ExplainQuery>,
) -> Result<Answer<Explanation>, Problem> {
    let host = host_of(&query.host);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
    // A URL would otherwise be read as the host `http`.
    if query.host.contains('/') || host.is_empty() || host.len() > 253 || !host.bytes().all(plain) {
        return Err(Invalid::new(
            "invalid_host",
            "host",
            "`host` must be a host name, optionally with a port, as in a Host header",
        )
        .into());
    }
    if !caller.is_unconfined() {
        check_host(&caller, &Hostname::parse(&host)?)?;
    }
    let asked = Asked::parse(query.header.as_deref(), query.cookie.as_deref(), query.address.as_deref())?;
    let secret = app.certificates.edge_key_for("sticky");
    let line = line(query.method.as_deref(), query.scheme.as_deref())?;
    let question = Question { asked: asked.as_ref(), secret: secret.as_ref(), line };
    let path = query.path.as_deref().map(RequestPath::parse).transpose()?;
    let explanation = app.registry.explain(&caller, host, path.as_ref(), question).await?;
    Ok(Answer(visible_explanation(explanation, &caller)))
}

/// Method and scheme of a request to explain; `None` if neither is given.
pub fn line<'a>(method: Option<&'a str>, scheme: Option<&str>) -> Result<Option<Line<'a>>, Invalid> {
    if method.is_none() && scheme.is_none() {
        return Ok(None);
    }
    let method = method.unwrap_or("GET");
    if method.is_empty()
        || method.len() > 32
        || !method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
    {
        let detail = "`method` must be a method in upper case, such as GET";
        return Err(Invalid::new("invalid_method", "method", detail));
    }
    match scheme {
        None | Some("http") => Ok(Some(Line { method, https: false })),
        Some("https") => Ok(Some(Line { method, https: true })),
        Some(_) => Err(Invalid::new("invalid_scheme", "scheme", "`scheme` must be http or https")),
    }
}

/// The explanation as the caller may see it: a wildcard above the caller's hosts may belong to another tenant.
pub fn visible_explanation(explanation: Explanation, caller: &Caller) -> Explanation {
    let covered = |name: &str| Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name));
    if !caller.is_unconfined() && !explanation.matched.as_deref().is_none_or(covered) {
        // The policy with the rules for paths is that of the other tenant, too.
        return without_instances(Explanation { path: None, checks: Vec::new(), ..explanation });
    }
    let service = explanation.path.as_ref().and_then(|path| path.matched.as_deref());
    let own = caller.is_unconfined() || service.is_none_or(covered);
    if own { explanation } else { without_instances(explanation) }
}

/// Show router convergence
///
/// The routers that reported in the last minute. A router that has been silent for three seconds is shown as silent
/// and still waited for; after ten it is excluded: changes count as converged without it.
#[utoipa::path(get, path = "/routes/convergence", responses((status = 200, body = Convergence),
    (status = "default", description = "503 stats_unavailable")))]
async fn convergence(
    _: Whole<ReadRoutes>,
    AppState(app): AppState<App>,
) -> Result<Answer<Convergence>, Problem> {
    let store = app.registry.store();
    let (lineage, serial, _) = store.table_head().await?;
    let epoch = lineage.split(' ').next().unwrap_or("").to_owned();
    let reports = store.routers(KNOWN_MS).await?;
    let waited_for = || reports.iter().filter(|router| liveness(router.age_ms) != Liveness::Excluded);
    let converged = waited_for().next().is_some()
        && waited_for().all(|router| signalbox_routing::has_acknowledged(router, &epoch, serial));
    let excluded = reports.len() - waited_for().count();
    let view = |router: RouterReport| Router {
        behind_by: behind_by(&router, &epoch, serial),
        propagation: app.routers.percentiles(&router.node),
        node: router.node,
        address: router.address,
        serial: router.serial,
        epoch: router.epoch,
        age_ms: router.age_ms,
        state: liveness(router.age_ms),
        alarm: router.alarm,
        workers: router.workers,
    };
    let routers = reports.into_iter().map(view).collect();
    Ok(Answer(Convergence { serial, epoch: epoch.clone(), converged, excluded, routers }))
}

/// The explanation for a caller that may not see the instances of the name that decides.
fn without_instances(explanation: Explanation) -> Explanation {
    Explanation {
        log_key: None,
        state: None,
        shares: Vec::new(),
        instances: Vec::new(),
        request: None,
        steps: Vec::new(),
        ..explanation
    }
}
