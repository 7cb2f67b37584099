//! Collects the facts of a running system. It changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures_util::future::join_all;
use jiff::Timestamp;
use signalbox_client::{
    Client, Error, Time,
    events::Numbers,
    health::{Edge, PacemakerList},
    machines::{Label, LabelPage, Machines},
    objects::Backend as RegisteredBackend,
    queues::QueueList,
    routes::{Convergence, Filter, Host as RegisteredHost, Instance as Registered},
    segment,
    stats::{Loudest, Recent, Top, Totals},
    with_query,
};
use signalbox_diagnosis::{
    Checked, Diagnosis, Facts, Skipped,
    certificates::Certificate,
    hosts::{Condition, Host, Minute, Reading, State},
    installation::{Pacemaker, Part},
    machines::{Held, Machine, Passed},
    messages::{Backend, Bus, Parked, Queue, Subscriber},
    redis::{Role, Server},
    routers::{Nginx, Router, Table},
    traffic::{Instance, VersionType},
};
use tokio::time::{Instant, sleep};

use super::{Args, metrics::Metrics, server::Target};
use crate::{certificates, exit::Failure, objects, terminal::Progress};

/// How long a request may take until it is counted. nginx writes its log at least every 200 ms, and the sidecar commits
/// twice a second.
const COUNTED_WITHIN: Duration = Duration::from_secs(10);
/// How long a request may take. A check without an answer must not delay the others.
const PATIENCE: Duration = Duration::from_secs(5);
/// Version types with most requests, and with most errors, whose traffic is read.
const MAX_VERSION_TYPES: usize = 200;
/// Maximum parked objects that are named, as on the dashboard.
const MAX_PARKED: usize = 10;

fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Reads all reachable facts side by side, so that one that does not answer delays no other, and evaluates them.
pub(crate) async fn diagnose(args: &Args, progress: &Progress) -> Result<Diagnosis, Failure> {
    let client = args.remote.patient(PATIENCE)?;
    let here = args.remote.here();
    let targets = match &here {
        Some(running) if args.redis.is_empty() => Target::of(running),
        _ => args.redis.clone(),
    };
    progress.say("reading the API and the Redis servers");
    let daemons = here.iter().flat_map(|running| &running.parts).filter(|part| {
        // The Redis servers are read as such.
        matches!(part.probe, signalbox_stack::Probe::Http(_))
    });
    let daemons =
        daemons.map(async |part| Part { name: part.name.clone(), failure: part.probe.check().await.err() });
    let servers = targets.iter().map(|target| target.read(now_ms));
    let (servers, parts, answers) =
        tokio::join!(join_all(servers), join_all(daemons), Box::pin(Answers::read(&client)));
    let mut collection = Collection { facts: Facts::skipped("not read"), parts };
    let unnamed = collection.redis(&targets, servers);
    collection.api(answers)?;
    collection.facts.request_counted = if args.skip_log {
        Checked::Skipped("--skip-log".to_owned())
    } else {
        progress.say("waiting for a request to be counted");
        match is_counted(&client).await {
            Ok(counted) => Checked::Known(counted),
            Err(error) => Checked::Skipped(error.to_string()),
        }
    };
    let Collection { mut facts, parts } = collection;
    facts.parts = Checked::Known(parts);
    facts.time_zones = Checked::Known(time_zones_are_known());
    let mut diagnosis = signalbox_diagnosis::diagnose(&facts, u64::try_from(now_ms()).unwrap_or(0));
    diagnosis.skipped.extend(unnamed);
    Ok(diagnosis)
}

/// Only the machine that a daemon runs on knows its time zones. This reads those of the machine that runs the command.
fn time_zones_are_known() -> bool {
    ["Europe/London", "America/New_York", "Asia/Tokyo"]
        .iter()
        .all(|name| jiff::tz::TimeZone::get(name).is_ok())
}

type Answer<T> = Result<T, Error>;

/// What the API answered, each with its own time.
struct Answers {
    routers: Answer<Convergence>,
    edge: Answer<Edge>,
    hosts: Answer<Vec<RegisteredHost>>,
    instances: Answer<Vec<Registered>>,
    loudest: Answer<BTreeMap<String, Recent>>,
    subscribers: Answer<Vec<Subscriber>>,
    queues: Answer<QueueList>,
    backends: Answer<Vec<RegisteredBackend>>,
    machines: Answer<Vec<Machine>>,
    certificates: Answer<Vec<certificates::Row>>,
    pacemakers: Answer<PacemakerList>,
    metrics: Answer<Metrics>,
    /// Objects that are parked.
    parked: Vec<String>,
}

impl Answers {
    async fn read(client: &Client) -> Self {
        let filter = Filter::default();
        let (routes, registered) = (client.routes(), client.routes());
        let routing = async {
            tokio::join!(
                async { client.routes().convergence().await },
                client.get("/edge/status"),
                routes.hosts(),
                registered.instances(&filter),
                loudest(client),
            )
        };
        let messages = async {
            tokio::join!(
                subscribers(client),
                client.get("/queues"),
                client.get("/backends"),
                machines(client),
            )
        };
        let rest =
            async { tokio::join!(certificates::rows(client), client.get("/pacemakers"), metrics(client)) };
        let (routing, messages, rest) = tokio::join!(Box::pin(routing), Box::pin(messages), Box::pin(rest));
        let (routers, edge, hosts, instances, loudest) = routing;
        let (subscribers, queues, backends, machines) = messages;
        let (certificates, pacemakers, (metrics, parked)) = rest;
        Self {
            routers,
            edge,
            hosts,
            instances,
            loudest,
            subscribers,
            queues,
            backends,
            machines,
            certificates,
            pacemakers,
            metrics,
            parked,
        }
    }
}

/// The metrics page, and the names of parked objects if it counts some.
async fn metrics(client: &Client) -> (Answer<Metrics>, Vec<String>) {
    let metrics = client.text("/metrics").await.map(|page| Metrics::read(&page));
    let is_parked =
        metrics.as_ref().ok().and_then(|metrics| metrics.parked().known().map(|one| one.count > 0));
    let parked = match is_parked {
        Some(true) => objects::parked(client, MAX_PARKED).await.unwrap_or_default(),
        _ => Vec::new(),
    };
    (metrics, parked.into_iter().map(|one| one.object).collect())
}

/// Facts that are being collected, always in the same order.
struct Collection {
    facts: Facts,
    parts: Vec<Part>,
}

impl Collection {
    /// Sorts the answers of the Redis servers. Returns the roles of which no server is known.
    fn redis(&mut self, targets: &[Target], servers: Vec<Server>) -> Vec<Skipped> {
        if targets.is_empty() {
            let reason = "no server is known; name them with --redis, such as --redis stats=redis://…";
            self.facts.redis = Checked::Skipped(reason.to_owned());
            return Vec::new();
        }
        self.facts.redis = Checked::Known(servers);
        let missing = Role::ALL.into_iter().filter(|role| targets.iter().all(|target| target.role != *role));
        let skipped = |role: Role| Skipped {
            check: "redis",
            reason: format!("no server of the role {} is named; use --redis {0}=redis://…", role.name()),
        };
        missing.map(skipped).collect()
    }

    /// Sorts an answer. Silence is a finding. A check that the token or the server's version does not permit is skipped.
    /// Without a valid token nothing can be checked.
    fn checked<T>(&mut self, what: &str, answer: Result<T, Error>) -> Result<Checked<T>, Failure> {
        let error = match answer {
            Ok(answer) => return Ok(Checked::Known(answer)),
            Err(error) => error,
        };
        match error.status() {
            Some(401) => return Err(error.into()),
            Some(403 | 404) => {}
            _ => self.parts.push(Part { name: format!("API: {what}"), failure: Some(error.to_string()) }),
        }
        Ok(Checked::Skipped(error.to_string()))
    }

    fn api(&mut self, answers: Answers) -> Result<(), Failure> {
        self.edge(answers.routers, answers.edge)?;
        self.traffic(answers.hosts, answers.instances, answers.loudest)?;
        self.messages(answers.subscribers, answers.queues, answers.backends)?;
        self.facts.machines = self.checked("machines", answers.machines)?;
        let answer = answers.certificates.map(|rows| {
            let one = |row: certificates::Row| Certificate {
                name: row.server_name,
                ends: row.not_after.map(|at| at.ms() / 1000),
                automatic: row.automatic.is_some(),
                last_error: row.automatic.and_then(|one| one.last_error),
            };
            rows.into_iter().map(one).collect()
        });
        self.facts.certificates = self.checked("certificates", answer)?;
        let answer = answers.pacemakers.map(|all| {
            let one =
                |one: signalbox_client::health::Pacemaker| Pacemaker { node: one.node, version: one.version };
            all.pacemakers.into_iter().map(one).collect()
        });
        self.facts.pacemakers = self.checked("pacemakers", answer)?;
        match self.checked("metrics", answers.metrics)? {
            Checked::Known(metrics) => {
                self.facts.counting = metrics.counting();
                self.facts.evaluation = metrics.evaluation();
                self.facts.parked_objects = match metrics.parked() {
                    Checked::Known(parked) => Checked::Known(Parked { names: answers.parked, ..parked }),
                    skipped @ Checked::Skipped(_) => skipped,
                };
                self.facts.credentials = metrics.credentials();
                self.facts.idempotency_keys = metrics.idempotency_keys();
            }
            Checked::Skipped(reason) => {
                self.facts.counting = Checked::Skipped(reason.clone());
                self.facts.evaluation = Checked::Skipped(reason.clone());
                self.facts.parked_objects = Checked::Skipped(reason.clone());
                self.facts.idempotency_keys = Checked::Skipped(reason.clone());
                self.facts.credentials = Checked::Skipped(reason);
            }
        }
        Ok(())
    }

    fn edge(&mut self, routers: Answer<Convergence>, edge: Answer<Edge>) -> Result<(), Failure> {
        let answer = routers.map(|state| {
            let router = |router: signalbox_client::routes::Router| Router {
                node: router.node,
                age_ms: router.age_ms,
                alarm: router.alarm,
                table: match router.behind_by {
                    Some(0) => Table::Current,
                    Some(changes) => Table::Behind(changes),
                    None => Table::Other,
                },
            };
            state.routers.into_iter().map(router).collect()
        });
        self.facts.routers = self.checked("routers", answer)?;
        let nginx = edge.map(|edge| Nginx { connected: edge.connected, alarm: edge.alarm });
        self.facts.nginx = match nginx {
            // The request goes to one of the daemons.
            Err(error) if error.status() == Some(404) => {
                Checked::Skipped("only available at the admin listener".to_owned())
            }
            answer => self.checked("nginx", answer)?,
        };
        Ok(())
    }

    /// Hosts, their instances, and the last minute of their version types.
    fn traffic(
        &mut self,
        hosts: Answer<Vec<RegisteredHost>>,
        instances: Answer<Vec<Registered>>,
        loudest: Answer<BTreeMap<String, Recent>>,
    ) -> Result<(), Failure> {
        let hosts = self.checked("hosts", hosts)?;
        let instances = self.checked("instances", instances)?;
        let (hosts, instances) = match (hosts, instances) {
            (Checked::Known(hosts), Checked::Known(instances)) => (hosts, instances),
            (Checked::Skipped(reason), _) | (_, Checked::Skipped(reason)) => {
                self.facts.hosts = Checked::Skipped(reason.clone());
                self.facts.instances = Checked::Skipped(reason.clone());
                self.facts.traffic = Checked::Skipped(reason);
                return Ok(());
            }
        };
        let instances: BTreeMap<&str, &Registered> = instances.iter().map(|one| (&*one.id, one)).collect();
        let (mut checked_hosts, mut checked_instances) = (Vec::new(), Vec::new());
        let mut version_types: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for host in hosts {
            let own: Vec<_> = host.instance_ids.iter().filter_map(|id| instances.get(&**id)).collect();
            let unhealthy = own.iter().filter(|one| one.healthy == Some(false)).count() as u64;
            let state = state(&host, unhealthy);
            for one in &own {
                version_types.entry(one.version_type_id.clone()).or_default().insert(host.hostname.clone());
                let unhealthy =
                    (one.healthy == Some(false)).then(|| one.unhealthy_because.clone().unwrap_or_default());
                checked_instances.push(Instance {
                    id: one.id.clone(),
                    host: host.hostname.clone(),
                    unhealthy,
                    planned: state.condition.is_planned(),
                });
            }
            if let Some(id) = host.log_key {
                version_types.entry(id).or_default().insert(host.hostname.clone());
            }
            checked_hosts.push(Host { name: host.hostname, state });
        }
        self.facts.hosts = Checked::Known(checked_hosts);
        self.facts.instances = Checked::Known(checked_instances);
        let answer = loudest.map(|read| minutes(read, &version_types));
        self.facts.traffic = self.checked("statistics", answer)?;
        Ok(())
    }

    fn messages(
        &mut self,
        answer: Answer<Vec<Subscriber>>,
        queues: Answer<QueueList>,
        backends: Answer<Vec<RegisteredBackend>>,
    ) -> Result<(), Failure> {
        self.facts.bus = match &answer {
            Ok(_) => Checked::Known(Bus { accepts_events: true }),
            Err(error) if error.code() == Some("fabric_uninitialized") => {
                Checked::Known(Bus { accepts_events: false })
            }
            Err(error) => Checked::Skipped(error.to_string()),
        };
        self.facts.subscribers = match answer {
            // The bus is the finding.
            Err(error) if error.code() == Some("fabric_uninitialized") => Checked::Skipped(error.to_string()),
            answer => self.checked("subscribers", answer)?,
        };
        let answer = queues.map(|list| {
            list.queues.into_iter().map(|one| Queue { name: one.name, dead: one.messages.dead }).collect()
        });
        self.facts.queues = self.checked("queues", answer)?;
        let answer = backends.map(|backends| {
            let one =
                |one: RegisteredBackend| Backend { name: one.name, disabled: one.disabled, dead: one.dead };
            backends.into_iter().map(one).collect()
        });
        self.facts.backends = self.checked("backends", answer)?;
        Ok(())
    }
}

async fn subscribers(client: &Client) -> Result<Vec<Subscriber>, Error> {
    let subscriptions: Vec<_> = client.get("/subscriptions").await?;
    let numbers = client.get::<Numbers>("/bus/metrics").await?.subscribers;
    let one = |one: signalbox_client::events::Subscription| {
        let numbers = numbers.get(&one.subscriber);
        Subscriber {
            dead: numbers.map_or(0, |numbers| numbers.dead),
            queued: numbers.map_or(0, |numbers| numbers.events),
            oldest_ms: numbers.and_then(|numbers| numbers.oldest_at).map(Time::ms),
            batch_timeout_ms: Some(one.timeout),
            name: one.subscriber,
            disabled: one.disabled,
            health: one.health.into(),
        }
    };
    Ok(subscriptions.into_iter().map(one).collect())
}

/// The state of a host as the server shows it. A server of an older version does not.
fn state(host: &signalbox_client::routes::Host, unhealthy: u64) -> State {
    let shown = host.state.as_ref().and_then(|state| Some((state, Condition::named(&state.condition)?)));
    match shown {
        Some((state, condition)) => {
            let signalbox_client::routes::HostState {
                short,
                summary,
                unserved_shares,
                unserved_services,
                ..
            } = state.clone();
            State { condition, short, summary, unserved_shares, unserved_services }
        }
        None => {
            let instances = host.addresses.len() as u64;
            let (ejected, minute) = (Some(0), Some(Minute::default()));
            Reading { instances, unhealthy, ejected, minute, ..Reading::default() }.state(0)
        }
    }
}

/// The requests of the last minute: of the version types with most requests, and of those with most errors.
async fn loudest(client: &Client) -> Answer<BTreeMap<String, Recent>> {
    let mut read: BTreeMap<String, Recent> = BTreeMap::new();
    for by in ["requests", "errors"] {
        let asked = Loudest { by: Some(by.to_owned()), limit: Some(MAX_VERSION_TYPES), ..Loudest::default() };
        let top: Top = client.get(&with_query("/stats/top", &asked)).await?;
        read.extend(top.version_types.into_iter().map(|one| (one.id, one.recent)));
    }
    Ok(read)
}

/// The same for each host of the version types.
fn minutes(
    read: BTreeMap<String, Recent>,
    version_types: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<VersionType> {
    let of = |(id, recent): (String, Recent)| {
        let hosts = version_types.get(&id).cloned().unwrap_or_default();
        let (requests, failed) = (recent.requests, recent.server_errors.saturating_sub(recent.edge_5xx));
        hosts.into_iter().map(move |host| VersionType { id: id.clone(), host, requests, failed })
    };
    read.into_iter().flat_map(of).collect()
}

async fn machines(client: &Client) -> Result<Vec<Machine>, Error> {
    let mut all = Vec::new();
    for one in client.get::<Machines>("/state-machines").await?.state_machines {
        all.push(machine(client, &one.name).await?);
    }
    Ok(all)
}

async fn machine(client: &Client, name: &str) -> Result<Machine, Error> {
    let path = format!("/state-machines/{}", segment(name));
    // One label that has this value of the parameter.
    let example = async |parameter: &str, value: &str| -> Result<Option<String>, Error> {
        let query = with_query(&format!("{path}/labels?limit=1"), &[(parameter, value)]);
        Ok(client.get::<LabelPage>(&query).await?.labels.pop().map(|label| label.name))
    };
    let signalbox_client::machines::Machine { busy, stuck, alerts, .. } = client.get(&path).await?;
    let count = |status: &str| busy.get(status).copied().unwrap_or(0);
    let mut found = Machine { name: name.to_owned(), looping: count("looping"), ..Machine::default() };
    for (status, held) in [("errored", &mut found.failed), ("choosing", &mut found.waiting_for_feed)] {
        held.count = count(status);
        if held.count == 0 {
            continue;
        }
        if let Some(label) = example("status", status).await? {
            // It may have continued or been deleted since.
            let read = client.get::<Label>(&format!("{path}/labels/{}", segment(&label))).await;
            let error = read.ok().and_then(|label| label.error);
            held.example = error.map(|error| (label, error));
        }
    }
    let passed = alerts.into_iter().map(|alert| Passed {
        state: alert.state,
        limit: alert.limit,
        value: alert.value,
        most: alert.most,
    });
    found.passed = passed.collect();
    found.stuck = Held { count: stuck.values().sum(), example: None };
    if let Some(gate) = stuck.keys().next() {
        found.stuck.example = example("state", gate).await?.map(|label| (label, gate.clone()));
    }
    Ok(found)
}

/// Sends requests through nginx until the first one has been counted. Every request to the admin listener is logged and
/// counted like any other.
async fn is_counted(client: &Client) -> Result<bool, Error> {
    let requests = async || Ok::<_, Error>(client.get::<Totals>("/stats/pacemaker").await?.requests);
    let before = requests().await?;
    let deadline = Instant::now() + COUNTED_WITHIN;
    loop {
        sleep(Duration::from_millis(200)).await;
        if requests().await? > before {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
    }
}
