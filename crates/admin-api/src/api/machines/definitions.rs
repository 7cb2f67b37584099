//! Definitions: plan, apply, versions.

use axum::{Json as Answer, extract::State};
use rand::RngExt as _;
use serde_json::json;
use signalbox_machine::{
    Machine,
    definition::{self, Call, FeedSource},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    ManageMachines, ReadMachines, confined::OfMachine, params::MachineName, views::kept as kept_view,
};
use crate::http::{
    App, Problem,
    audit::Notes,
    body::{Body, Json, RawBytes},
    path::{Parameter as _, Path},
};
use signalbox_access::{Author, Caller, Denied, Effect};
use signalbox_api::{
    Time,
    machines::{Applied, Apply, Plan, Version, VersionSource, Versions},
};
use signalbox_machines::{Error, StoredPlan, parse_stored};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(plan))
        .routes(routes!(apply))
        .routes(routes!(versions))
        .routes(routes!(version))
}

impl Body for Apply {}

/// Plan a definition
///
/// The body is YAML and contains this machine (other machines in it are ignored). Nothing changes.
#[utoipa::path(post, path = "/state-machines/{machine}/plan",
    request_body(content = String, content_type = "application/yaml"), responses((status = 200, body = Plan),
    (status = "default", description = "422 invalid_definition: every problem with its place")))]
async fn plan(
    OfMachine { 0: caller, .. }: OfMachine<ManageMachines>,
    State(app): State<App>,
    Path(name): Path<String>,
    RawBytes(body): RawBytes,
) -> Result<Answer<Plan>, Problem> {
    let MachineName(name) = MachineName::check(name).map_err(|_| {
        Problem::unprocessable("invalid_definition", "the path contains an invalid machine name")
    })?;
    let source = String::from_utf8(body.to_vec())
        .map_err(|_| Problem::unprocessable("invalid_definition", "the definition is not UTF-8"))?;
    let secrets = app.machines.secrets.names(&name).await?;
    let slot = app.limits.computations.take(&caller)?;
    let client = caller.bus_client().into_owned();
    // In a task of its own: if the client goes away, the place is taken until the computation has ended.
    let planned = tokio::spawn(async move {
        let _slot = slot;
        compute_plan(&app, &client, (name, source), secrets).await
    });
    planned.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

async fn compute_plan(
    app: &App,
    client: &str,
    (name, source): (String, String),
    secrets: definition::SecretNames,
) -> Result<Answer<Plan>, Problem> {
    let machine = name.clone();
    // Outside of the threads that serve requests, because reading a definition computes only.
    let loaded = tokio::task::spawn_blocking(move || {
        definition::load_with("definition", &source, Some(&machine), &secrets)
    });
    let file = loaded
        .await
        .unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
        .map_err(|refused| Problem::unprocessable("invalid_definition", refused.to_string()))?;
    let mut warnings: Vec<String> = file.warnings.iter().map(ToString::to_string).collect();
    let machine = file.machines.into_iter().find(|machine| machine.name() == name).ok_or_else(|| {
        Problem::unprocessable(
            "invalid_definition",
            format!("the definition does not contain the machine {name}"),
        )
    })?;
    let definitions = &app.machines.definitions;
    let (old, base) = match definitions.current(&name).await {
        Ok(old) => (Some(old.clone()), old.number),
        Err(Error::NoSuchMachine) => (None, 0),
        // Only another definition helps.
        Err(Error::Unreadable) => (None, definitions.active_number(&name).await?),
        Err(error) => return Err(error.into()),
    };
    if old.is_none() && base > 0 {
        warnings.push(format!(
            "version {base} is active and cannot be read by this pacemaker, so the plan does not compare it; its labels stay in \
             their states"
        ));
    }
    let preview = app.machines.inspector.planner.preview(old.as_ref(), &machine).await?;
    let plan = format!("{:016x}", rand::rng().random::<u64>());
    definitions.keep_plan((&name, &plan), client, (base, machine.source())).await?;
    Ok(Answer(Plan { plan, warnings, version: base, ..preview }))
}

/// Apply a plan
///
/// The definition becomes the next version, shard by shard; labels in states that go are moved by `map`. The token
/// needs what the definition uses, too: `routes` for `route` actions, with all hosts that they may change and all version types
/// that they register, `publish` for `publish` actions, `subscribe` for `inputs`, and `read` without any confinement for feeds of
/// `stats`. The machine never does more than this token may do, whatever the metadata contains.
#[utoipa::path(post, path = "/state-machines/{machine}/apply", request_body = Apply,
    responses((status = 200, body = Applied),
    (status = "default", description = "404 unknown_plan | 403 scope_missing, host_not_allowed, tenant_missing, \
        confined_token, version_type_not_allowed, machine_not_allowed | 409 definition_changed, apply_under_way, machine_being_deleted | 422 unmapped_state, \
        invalid_map | 429 token_limit_reached")))]
async fn apply(
    OfMachine { 0: caller, .. }: OfMachine<ManageMachines>,
    State(app): State<App>,
    notes: Notes,
    Path(MachineName(name)): Path<MachineName>,
    Json(asked): Json<Apply>,
) -> Result<Answer<Applied>, Problem> {
    let StoredPlan { base, source } = app.machines.definitions.kept_plan(&name, &asked.plan).await?;
    let slot = app.limits.computations.take(&caller)?;
    // In a task of its own: if the client goes away, the place is taken until the computation has ended. The change itself computes
    // for one client at a time.
    let parsed = tokio::spawn({
        let name = name.clone();
        async move {
            let _slot = slot;
            parse_stored(&name, source).await
        }
    });
    let machine = parsed.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?;
    allowed(&caller, &machine)?;
    notes.before(json!({"version": base}));
    let applied = app.machines.applier.apply(&machine, base, &Author::of(&caller), &asked.map).await?;
    let signalbox_machines::Applied { version, changed, kept } = applied;
    Ok(Answer(Applied { version, changed, kept: kept_view(kept) }))
}

/// A client can let a machine do only what the client itself is allowed to do. The machine checks it again whenever it acts, because
/// hosts and version types can come from metadata; what the definition names is rejected here.
fn allowed(caller: &Caller, machine: &Machine) -> Result<(), Problem> {
    let calls =
        || machine.states().iter().filter_map(signalbox_machine::State::action).map(|action| &action.call);
    let routes = calls().any(|call| matches!(call, Call::Route(_)));
    let publishes = calls().any(|call| matches!(call, Call::Publish(_)));
    let reads = machine.feeds().iter().any(|feed| matches!(feed.source, FeedSource::Stats(_)));
    let listens = !machine.inputs().is_empty();
    for (used, effect, what) in [
        (routes, Effect::ChangeRoutes, "its `route` actions"),
        (publishes, Effect::Publish, "its `publish` actions"),
        (reads, Effect::ReadStatistics, "its feeds of `stats`"),
        (listens, Effect::Listen, "its `inputs`"),
    ] {
        if used {
            caller.may(effect).map_err(|denied| not_allowed(what, &denied))?;
        }
    }
    if !routes {
        return Ok(());
    }
    for host in signalbox_machines::hosts(machine)? {
        if !caller.may_touch_pattern(&host) {
            let detail =
                format!("the token does not cover {host}, which the definition's actions may change");
            return Err(Problem::forbidden("host_not_allowed", detail).with("hostname", host.to_string()));
        }
    }
    for version_type in machine.version_types() {
        if !caller.may_count_as(&version_type) {
            return Err(signalbox_routing::Error::VersionTypeNotAllowed(version_type).into());
        }
    }
    Ok(())
}

/// The answer to a client whose definition would have an effect that the client may not have.
fn not_allowed(what: &str, denied: &Denied) -> Problem {
    let code = match denied {
        // Inputs receive the events of every tenant, and events that are published have none.
        Denied::Confined(lists) if lists.contains(&"tenants") => "tenant_missing",
        other => other.code(),
    };
    let detail = format!("the token may not apply the definition because of {what}: {denied}");
    let problem = Problem::forbidden(code, detail);
    match denied {
        Denied::Scope(_) => problem,
        Denied::Confined(lists) => problem.with("confined_to", lists.clone()),
    }
}

/// List the versions of a machine
#[utoipa::path(get, path = "/state-machines/{machine}/versions", responses((status = 200, body = Versions)))]
async fn versions(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path(MachineName(name)): Path<MachineName>,
) -> Result<Answer<Versions>, Problem> {
    let current = app.machines.definitions.current(&name).await?;
    let versions =
        app.machines.definitions.versions(&name).await?.into_iter().map(|(number, stored)| Version {
            at: Time::from_ms(stored.at_ms),
            by: stored.author.name,
            current: number == current.number,
            hash: stored.hash,
            version: number,
        });
    Ok(Answer(Versions { versions: versions.collect() }))
}

/// Show a version of a machine
///
/// Includes its text.
#[utoipa::path(get, path = "/state-machines/{machine}/versions/{version}", params(("version" = u64, Path)),
    responses((status = 200, body = VersionSource), (status = "default", description = "404 unknown_version")))]
async fn version(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path((name, number)): Path<(MachineName, u64)>,
) -> Result<Answer<VersionSource>, Problem> {
    app.machines.definitions.current(&name).await?;
    let stored = app.machines.definitions.stored_version(&name, number).await?;
    Ok(Answer(VersionSource {
        at: Time::from_ms(stored.at_ms),
        by: stored.author.name,
        hash: stored.hash,
        source: stored.source,
        version: number,
    }))
}
