//! One host: its instances, its traffic split, its policy, and its routing decision.

use std::collections::BTreeSet;

use askama::Template;

use super::{
    Content, Kind, Visit,
    charts::{self, Charting, Subject},
    instances::last_fault,
    link, overview,
    policy::{self, Shown},
    segment,
    trial::{self, Trial},
    with_charts,
};
use crate::{
    api::routing::{visible_explanation, visible_policy},
    dashboard::{
        MAX_ROWS,
        checkup::by,
        format,
        store::{Range, Sums},
    },
    http::Problem,
};
use signalbox_access::Scope;
use signalbox_api::Time;
use signalbox_diagnosis::hosts::Condition;
use signalbox_route_table::{Explanation, Hostname, InstanceId, Label, Question, Share, Spec, State};
use signalbox_routing::{Error, Live, Promotion, Stored, in_flight};

/// Minutes of latencies read for version types, and for instances.
const MINUTES: i64 = 60;
const INSTANCE_MINUTES: i64 = 5;
const STATS: &str = "the stats Redis";
/// Maximum instances that are read, to show the worst of them.
const MAX_READ: usize = 2_000;

#[derive(Debug, Template)]
#[template(path = "dashboard/host.html")]
struct Page<'a> {
    name: Hostname,
    /// Whether the caller may change the routes of this host.
    may_change: bool,
    instances: Vec<InstanceRow>,
    /// How many instances there are, if not all of them are shown.
    all: Option<usize>,
    versions: Vec<VersionRow>,
    explanation: Explanation,
    /// The promoted version type.
    promoted: Option<String>,
    /// The promotion, if it can be undone.
    undo: Option<UndoRow>,
    answer: String,
    /// The color of the answer.
    color: &'static str,
    /// The policy as JSON: a change of the shares replaces the whole policy.
    policy: String,
    /// Its revision; 0 without a policy.
    revision: u64,
    /// The policy in words.
    shown: Shown,
    /// The request that is explained.
    trial: Trial,
    charting: Charting,
    /// Why there are no statistics.
    outage: Option<&'a String>,
    /// By the clock of the route table.
    now_ms: u64,
}

#[derive(Debug)]
struct InstanceRow {
    stored: Stored,
    live: Live,
    /// Requests in progress, if they are counted.
    in_flight: Option<u64>,
    /// Percentiles of its response times.
    times: String,
    /// Whether the caller may change all of its hosts.
    own: bool,
}

impl InstanceRow {
    fn version(&self) -> &str {
        self.stored.record.desired.spec.version_type_id.as_str()
    }
}

#[derive(Debug)]
struct VersionRow {
    id: String,
    instances: usize,
    rate: String,
    errors: String,
    times: String,
    /// The configured share in percent; empty without shares.
    percent: String,
    /// Whether it has a share and no instance that can receive it.
    unserved: bool,
    /// What a promotion of it would change, in lines.
    effects: Vec<String>,
}

/// A promotion that can be undone.
#[derive(Debug)]
struct UndoRow {
    version_type: String,
    at_ms: u64,
    until_ms: u64,
    /// What is served afterwards, as a sentence.
    restores: String,
}

impl UndoRow {
    fn of(promotion: &Promotion, now_ms: u64) -> Option<Self> {
        let (version_type, before) = (promotion.version_type.as_ref()?, promotion.undo(now_ms)?);
        let versions: Vec<&str> = before.version_types.iter().map(Label::as_str).collect();
        let split = before.shares.as_ref().map_or_else(String::new, |shares| {
            let parts: Vec<String> = shares.iter().map(part).collect();
            format!(", split {}", parts.join(", "))
        });
        Some(Self {
            version_type: version_type.as_str().to_owned(),
            at_ms: promotion.at_ms,
            until_ms: before.until_ms,
            restores: format!("Version type {} is served again{split}.", versions.join(", ")),
        })
    }
}

/// `17 95%`
fn part(share: &Share) -> String {
    let (version_type, percent) = share.part();
    format!("{version_type} {percent}%")
}

/// What promoting a version type changes: the instances that drain, those that are resumed, and the split that is removed.
/// `hidden` instances of the host are not among `instances`.
fn effects(
    version_type: &str,
    instances: &[InstanceRow],
    hidden: usize,
    shares: Option<&[Share]>,
) -> Vec<String> {
    let named = |which: &dyn Fn(&&InstanceRow) -> bool| -> Vec<String> {
        let chosen = instances.iter().filter(which);
        chosen.map(|one| format!("{} ({})", one.stored.id, one.version())).collect()
    };
    let is_active = |one: &InstanceRow| one.stored.record.desired.state == State::Active;
    let resumed = named(&|one| one.version() == version_type && !is_active(one));
    let drained = named(&|one| one.version() != version_type && is_active(one));
    let mut lines = Vec::new();
    if !resumed.is_empty() {
        lines.push(format!("Resumed: {}", resumed.join(", ")));
    }
    if let Some(shares) = shares {
        let parts: Vec<String> = shares.iter().map(part).collect();
        lines.push(format!("The traffic split is removed: {}", parts.join(", ")));
    }
    if !drained.is_empty() {
        let drained = drained.join(", ");
        lines.push(format!(
            "Drained for 30 seconds, then on standby, and removed after {{undo_seconds}} seconds: {drained}"
        ));
    } else if hidden == 0 {
        lines.push("No instance drains.".to_owned());
    }
    if hidden > 0 {
        lines.push(format!("Instances that are not shown here, and also change: up to {hidden}"));
    }
    lines
}

/// The instances that are shown, by name. Of more than fit on the page, those with a failed check or reported faults come first.
fn worst(stored: Vec<Stored>, live: Vec<Live>) -> (Vec<Stored>, Vec<Live>) {
    let mut all: Vec<(Stored, Live)> = stored.into_iter().zip(live).collect();
    if all.len() > MAX_ROWS {
        all.sort_by_key(|(_, live)| (live.unhealthy.is_none(), std::cmp::Reverse(live.faults)));
        all.truncate(MAX_ROWS);
        all.sort_by(|(one, _), (other, _)| one.id.cmp(&other.id));
    }
    all.into_iter().unzip()
}

pub(super) async fn content(visit: Visit<'_>) -> Result<Content, Problem> {
    let Visit { app, caller, view, round, deadline, .. } = visit;
    let name = view.name.as_str();
    let hostname = Hostname::parse(name)?;
    if !caller.may_touch(&hostname) {
        return Err(Error::HostNotAllowed { hostname: hostname.to_string() }.into());
    }
    let store = app.registry.store();
    let explanation = app.registry.explain(caller, hostname.to_string(), None, Question::default()).await?;
    let explanation = visible_explanation(explanation, caller);
    let ids = store.ids_of_host(&hostname).await?;
    let mut ids: Vec<InstanceId> = ids.iter().filter_map(|id| InstanceId::parse(id).ok()).collect();
    ids.sort_unstable();
    let all = ids.len();
    ids.truncate(MAX_READ);
    let stored = store.stored_many(&ids).await?;
    let ids: Vec<InstanceId> = stored.iter().map(|one| one.id.clone()).collect();
    let live = store.live(&ids).await?;
    let (stored, live) = worst(stored, live);
    let now_ms = store.table_now_ms().await?;
    let wanted = store.policy(&hostname).await?;
    let revision = wanted.as_ref().map_or(0, |wanted| wanted.revision);
    let policy = wanted.map(|wanted| visible_policy(wanted.value, caller));
    let shares = policy.as_ref().and_then(|policy| policy.shares.as_deref());
    let promotion = store.promotion(&hostname).await?.map(|wanted| wanted.value);

    let counted = stored.iter().map(|one| &one.record.desired.spec);
    let counted = counted.filter(|spec| caller.may_count_as(spec.version_type_id.as_str()));
    let addresses: Vec<String> = counted.map(|spec| spec.address.to_string()).collect();
    let specs: Vec<&Spec> = stored.iter().map(|one| &one.record.desired.spec).collect();
    let mut versions: BTreeSet<String> =
        specs.iter().map(|spec| spec.version_type_id.as_str().to_owned()).collect();
    versions.extend(explanation.log_key.clone());
    versions.extend(explanation.shares.iter().map(|share| share.version_type.clone()));
    let versions: Vec<String> = versions.into_iter().collect();
    let range = Range::named(&view.range);
    let visible: Vec<String> = versions.iter().filter(|id| caller.may_count_as(id)).cloned().collect();
    let charted = &visible[..visible.len().min(range.max_version_types())];
    let traffic = &app.dashboard.traffic;
    let (response_times, in_flight, minute, latencies, series, history, changes) = tokio::join!(
        by(deadline, STATS, traffic.instance_latencies(&addresses, INSTANCE_MINUTES)),
        by(deadline, STATS, async { Ok::<_, String>(in_flight(store, &specs).await) }),
        by(deadline, STATS, traffic.minute(&visible)),
        by(deadline, STATS, traffic.latencies(&visible, MINUTES)),
        by(deadline, STATS, traffic.series(charted, range, round > 0)),
        by(deadline, STATS, traffic.latencies(charted, range.minutes())),
        charts::changes(visit, Subject::Host(hostname.as_str()), range),
    );
    let (response_times, minute, latencies) = (response_times.ok(), minute.ok(), latencies.ok());
    let in_flight = in_flight.unwrap_or_else(|_| vec![None; stored.len()]);

    let rows = stored.into_iter().zip(live).zip(in_flight).map(|((stored, live), in_flight)| {
        let spec = &stored.record.desired.spec;
        let address = spec.address.to_string();
        let times = response_times.as_ref().and_then(|times| times.of(&address));
        let (times, own) = (overview::percentiles(times), caller.may_touch_all(&spec.hostnames));
        InstanceRow { stored, live, in_flight, times, own }
    });
    let instances: Vec<InstanceRow> = rows.collect();

    let hidden = all.saturating_sub(instances.len());

    let mut charts = Vec::new();
    if let Ok(series) = &series {
        charts.extend(charts::traffic(series));
        charts.extend(charts::of_host(series, charted));
    }
    charts.extend(history.as_deref().ok().map(|history| charts::latency(history, range)));
    let note = match charted.len() {
        count if count < versions.len() => {
            format!("The charts show {count} of {} version types.", versions.len())
        }
        _ => String::new(),
    };
    let charting = Charting::new(view, range, changes, note);
    charting.complete(range, visit.now_ms, &mut charts);
    let versions: Vec<VersionRow> = versions
        .into_iter()
        .map(|id| {
            let minute = minute.as_ref().and_then(|minute| minute.get(&id));
            let show = |text: fn(&Sums) -> String| minute.map_or_else(|| "–".to_owned(), text);
            let share = explanation.shares.iter().find(|share| share.version_type == id);
            VersionRow {
                instances: instances.iter().filter(|one| one.version() == id).count(),
                rate: show(|minute| format::per_second(minute.requests)),
                errors: show(|minute| format::percent(minute.server_errors, minute.requests)),
                times: overview::percentiles(latencies.as_ref().and_then(|latencies| latencies.of(&id))),
                percent: share.map_or_else(String::new, |share| share.percent.to_string()),
                unserved: share.is_some_and(|share| share.percent > 0.0 && share.instances == 0),
                effects: effects(&id, &instances, hidden, shares),
                id,
            }
        })
        .collect();
    let page = Page {
        may_change: caller.has_any(&[Scope::Routes]),
        undo: promotion.as_ref().and_then(|promotion| UndoRow::of(promotion, now_ms)),
        promoted: promotion.and_then(|one| Some(one.version_type?.as_str().to_owned())),
        answer: match &explanation.state {
            Some(state) => state.summary.clone(),
            None => "Requests are answered with 404: the route table has no match for this name.".to_owned(),
        },
        color: state_color(&explanation),
        outage: series.as_ref().err(),
        shown: policy::shown(policy.as_ref()),
        trial: trial::of(visit, &hostname).await,
        charting,
        policy: policy
            .and_then(|policy| serde_json::to_string(&policy).ok())
            .unwrap_or_else(|| "{}".to_owned()),
        revision,
        name: hostname,
        now_ms,
        all: (all > instances.len()).then_some(all),
        instances,
        versions,
        explanation,
    };
    with_charts(&page, charts)
}

/// The color of a host's state, which is that in lists.
fn state_color(explanation: &Explanation) -> &'static str {
    let condition = explanation.state.as_ref().and_then(|state| Condition::named(&state.condition));
    condition.map_or("warn", overview::color)
}
