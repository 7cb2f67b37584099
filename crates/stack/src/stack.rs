//! A running stack.

use std::{
    collections::HashMap,
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use nix::fcntl::Flock;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{self, Instant},
};

use crate::{
    Builder, Error, Event, Part, PartHandle, Ports, Probe, Reservation,
    acl::User,
    event::Events,
    group::Group,
    layout::Layout,
    nginx,
    plan::{Plan, RouterPorts},
    probe,
    supervisor::{Program, Status, Supervisor},
};

/// Interval of the checks whether the guard runs.
const GUARD_CHECK: Duration = Duration::from_secs(1);
/// The time limit for a router to connect to its replica.
const CONNECTED_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// All processes of one stack. Dropping it kills them immediately; [`Stack::stop`] stops them gracefully.
#[derive(Debug)]
pub struct Stack {
    plan: Plan,
    group: Arc<Group>,
    events: Events,
    restarting: Arc<AtomicBool>,
    /// In the order in which they were started. Parts of one stage are independent.
    stages: Mutex<Vec<Vec<PartHandle>>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    pacemakers: AtomicUsize,
    routers: AtomicUsize,
    /// Reserves the ports of parts that were added later.
    added: Mutex<Reservation>,
    temporary: Option<TempDir>,
    _lock: Flock<fs::File>,
}

/// A router: nginx with its replica and its sidecar.
#[derive(Debug, Clone)]
pub struct Router {
    /// Counted from 1.
    pub number: usize,
    /// Its ports.
    pub ports: RouterPorts,
    /// The URL for applications, without a final slash.
    pub edge_url: String,
    /// The URL for operators, without a final slash.
    pub admin_url: String,
    /// Its nginx, unless the stack was started without it.
    pub nginx: Option<PartHandle>,
    /// Its routes replica.
    pub replica: PartHandle,
    /// Its sidecar, unless the stack was started without it.
    pub sidecar: Option<PartHandle>,
}

/// The system that runs in a data folder, for other commands: `run/stack.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Description {
    /// The process that runs the stack.
    pub pid: u32,
    /// The URL for applications.
    pub edge_url: String,
    /// The URL for operators.
    pub admin_url: String,
    /// The parts, in the order in which they were started.
    pub parts: Vec<DescribedPart>,
}

/// A part in a [`Description`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DescribedPart {
    /// Its name.
    pub name: String,
    /// Its address, for operators.
    pub address: String,
    /// Its readiness probe.
    pub probe: Probe,
}

impl Stack {
    /// Creates a builder.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn assemble(
        plan: Plan,
        group: Group,
        events: Events,
        temporary: Option<TempDir>,
        lock: Flock<fs::File>,
    ) -> Self {
        let group = Arc::new(group);
        let stack = Self {
            plan,
            group: Arc::clone(&group),
            events: events.clone(),
            restarting: Arc::new(AtomicBool::new(false)),
            stages: Mutex::default(),
            tasks: Mutex::default(),
            pacemakers: AtomicUsize::new(0),
            routers: AtomicUsize::new(0),
            added: Mutex::default(),
            temporary,
            _lock: lock,
        };
        let guarded = tokio::spawn(async move {
            loop {
                time::sleep(GUARD_CHECK).await;
                match group.keep_guarded() {
                    Ok(false) => {}
                    Ok(true) => {
                        events.emit(Event::Note("the guard was gone; another one has taken over".into()))
                    }
                    Err(error) => events.emit(Event::Note(format!("the guard is gone: {error}"))),
                }
            }
        });
        stack.tasks.lock().push(guarded);
        stack
    }

    /// Starts the parts of every stack in dependency order, and waits until all respond.
    pub(crate) async fn bring_up(&self, programs: Vec<Vec<Program>>) -> Result<(), Error> {
        for stage in programs {
            self.start_stage(stage).await?;
        }
        self.pacemakers.store(1, Ordering::Relaxed);
        self.routers.store(1, Ordering::Relaxed);
        self.connected(&self.router()).await?;
        self.restarting.store(self.plan.options.restart, Ordering::Relaxed);
        // A part that died during the start was not restarted.
        for part in self.parts() {
            part.alive()?;
        }
        self.describe()
    }

    /// Starts independent parts, and waits for each.
    async fn start_stage(&self, programs: Vec<Program>) -> Result<(), Error> {
        let parts: Vec<PartHandle> = programs.into_iter().map(|program| self.supervise(program)).collect();
        self.stages.lock().push(parts.clone());
        for part in &parts {
            part.start_only().await?;
        }
        for part in &parts {
            part.wait_ready().await?;
            self.events.emit(Event::Ready { part: part.part().clone(), address: part.address().to_owned() });
        }
        Ok(())
    }

    /// Adds a program to the supervised parts, without starting it.
    fn supervise(&self, program: Program) -> PartHandle {
        let (requests, inbox) = mpsc::channel(8);
        let (status, reports) = watch::channel(Status::default());
        let handle = PartHandle {
            part: program.part.clone(),
            address: program.address.clone(),
            probe: program.probe.clone(),
            log: self.plan.layout.log(&program.part),
            requests,
            status: reports,
        };
        let supervisor = Supervisor {
            program,
            group: Arc::clone(&self.group),
            events: self.events.clone(),
            restarting: Arc::clone(&self.restarting),
            requests: inbox,
            status,
        };
        self.tasks.lock().push(tokio::spawn(supervisor.run()));
        handle
    }

    /// Waits until every worker of a router is connected to the replica.
    async fn connected(&self, router: &Router) -> Result<(), Error> {
        let Some(nginx) = &router.nginx else { return Ok(()) };
        let url = format!("{}/edge/status", router.admin_url);
        let deadline = Instant::now() + CONNECTED_WITHIN;
        loop {
            let last = match probe::get(&url).await {
                Ok(text) => match serde_json::from_str::<serde_json::Value>(&text) {
                    Ok(status) if status["connected"] == true => return Ok(()),
                    _ => text,
                },
                Err(error) => error,
            };
            if Instant::now() > deadline {
                return Err(Error::NotReady {
                    part: nginx.part().clone(),
                    seconds: CONNECTED_WITHIN.as_secs(),
                    last: format!("no link to the routes replica: {last}"),
                    log: nginx.log().to_owned(),
                    tail: nginx.tail(),
                });
            }
            time::sleep(POLL).await;
        }
    }

    fn describe(&self) -> Result<(), Error> {
        let router = self.router();
        let described = |part: &PartHandle| DescribedPart {
            name: part.part().to_string(),
            address: part.address().to_owned(),
            probe: part.probe.clone(),
        };
        let parts = self.parts().iter().map(described).collect();
        let description = Description {
            pid: std::process::id(),
            edge_url: router.edge_url,
            admin_url: router.admin_url,
            parts,
        };
        let path = self.plan.layout.description();
        let text = serde_json::to_string_pretty(&description).unwrap_or_default();
        fs::write(&path, text).map_err(Error::file("write", path))
    }

    /// Adds a part of the caller, starts it, and waits until it responds.
    ///
    /// # Errors
    /// If it does not become ready.
    pub async fn add(&self, program: Program) -> Result<PartHandle, Error> {
        let part = program.part.clone();
        self.start_stage(vec![program]).await?;
        self.describe()?;
        Ok(self.part(&part))
    }

    /// Adds another pacemaker on a free port. The admin listener does not use it. Its address is in
    /// [`PartHandle::address`].
    ///
    /// # Errors
    /// If it does not become ready, or the stack was started without pacemakers.
    pub async fn add_pacemaker(&self) -> Result<PartHandle, Error> {
        let number = self.pacemakers.fetch_add(1, Ordering::Relaxed) + 1;
        let port = self.free_port()?;
        let program = self.plan.pacemaker(number, port)?;
        self.add(program.ok_or_else(|| Error::option("pacemaker", "this stack has none"))?).await
    }

    /// Adds a router (replica, nginx, sidecar) on free ports, as another machine would run it.
    ///
    /// # Errors
    /// If a part of it does not become ready.
    pub async fn add_router(&self) -> Result<Router, Error> {
        let number = self.routers.fetch_add(1, Ordering::Relaxed) + 1;
        let ports = RouterPorts {
            edge: self.free_port()?,
            admin: self.free_port()?,
            routes_replica: self.free_port()?,
            sidecar: self.free_port()?,
            edge_tls: None,
        };
        self.add(self.plan.routes_replica(number, ports)?).await?;
        let programs = [self.plan.sidecar(number, ports)?, self.plan.nginx(number, ports)?];
        for program in programs.into_iter().flatten() {
            self.add(program).await?;
        }
        let router = self.describe_router(number, ports);
        self.connected(&router).await?;
        Ok(router)
    }

    fn free_port(&self) -> Result<u16, Error> {
        self.added.lock().add().map_err(|source| Error::File {
            action: "reserve a port for",
            path: self.plan.layout.root().to_owned(),
            source,
        })
    }

    /// The URL of the first router for applications over HTTPS, without a final slash.
    pub fn edge_tls_url(&self) -> String {
        let crate::Options { edge, ports, .. } = &self.plan.options;
        format!("https://{}", nginx::address(&edge.listen, ports.edge_tls))
    }

    /// The first router.
    pub fn router(&self) -> Router {
        self.describe_router(1, self.plan.first_router())
    }

    fn describe_router(&self, number: usize, ports: RouterPorts) -> Router {
        let edge = &self.plan.options.edge;
        let by_name: HashMap<Part, PartHandle> =
            self.parts().into_iter().map(|handle| (handle.part().clone(), handle)).collect();
        let find = |part: &Part| by_name.get(&part.numbered(number)).cloned();
        Router {
            number,
            ports,
            edge_url: format!("http://{}", nginx::address(&edge.listen, ports.edge)),
            admin_url: format!("http://{}", nginx::address(&edge.admin_listen, ports.admin)),
            nginx: find(&Part::NGINX),
            replica: self.part(&Part::ROUTES_REPLICA.numbered(number)),
            sidecar: find(&Part::SIDECAR),
        }
    }

    /// The part with this name.
    ///
    /// # Panics
    /// If the stack has no such part, which is a defect of the calling test or benchmark.
    pub fn part(&self, part: &Part) -> PartHandle {
        let found = self.parts().into_iter().find(|handle| handle.part() == part);
        found.unwrap_or_else(|| panic!("the stack has no part {part}"))
    }

    /// All parts, in the order in which they were started.
    pub fn parts(&self) -> Vec<PartHandle> {
        self.stages.lock().iter().flatten().cloned().collect()
    }

    /// The ports of the first router and of the shared parts.
    pub fn ports(&self) -> &Ports {
        &self.plan.options.ports
    }

    /// The root token.
    pub fn token(&self) -> &str {
        &self.plan.token
    }

    /// The paths of its files.
    pub fn layout(&self) -> &Layout {
        &self.plan.layout
    }

    /// The URL of the first router for applications, without a final slash.
    pub fn edge_url(&self) -> String {
        self.router().edge_url
    }

    /// The URL of the first router for operators, without a final slash.
    pub fn admin_url(&self) -> String {
        self.router().admin_url
    }

    /// The URL of a Redis server, with the login of the operator.
    fn operator_url(&self, port: u16) -> String {
        // An unreadable password is reported by the server, as a wrong one.
        let password = self.layout().secrets().password(User::Operator).unwrap_or_default();
        format!("redis://{}:{password}@127.0.0.1:{port}/", User::Operator.name())
    }

    /// URL of the routes primary.
    pub fn routes_url(&self) -> String {
        self.operator_url(self.ports().routes)
    }

    /// URL of the first router's routes replica.
    pub fn routes_replica_url(&self) -> String {
        self.operator_url(self.ports().routes_replica)
    }

    /// URL of the statistics Redis.
    pub fn stats_url(&self) -> String {
        self.operator_url(self.ports().stats)
    }

    /// URL of the fabric Redis.
    pub fn fabric_url(&self) -> String {
        self.operator_url(self.ports().fabric)
    }

    /// Keeps a temporary data folder instead of removing it at the end, and returns its path.
    pub(crate) fn keep_data(&mut self) -> PathBuf {
        match self.temporary.take() {
            Some(folder) => folder.keep(),
            None => self.plan.layout.root().to_owned(),
        }
    }

    /// Stops every part, the last stage first, so that the parts that each one needs still run: applications deregister, nginx
    /// completes requests and its log, the sidecar counts the log, and Redis writes the counters.
    pub async fn stop(self) {
        self.restarting.store(false, Ordering::Relaxed);
        let stages = std::mem::take(&mut *self.stages.lock());
        for stage in stages.into_iter().rev() {
            let mut stopping = JoinSet::new();
            for part in stage {
                // This fails only if the supervisor is gone. Its process then ends with the group.
                stopping.spawn(async move { part.stop().await.ok() });
            }
            stopping.join_all().await;
        }
        self.group.end().await;
        let _absent = fs::remove_file(self.plan.layout.description());
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        self.group.kill();
        if std::thread::panicking()
            && let Some(folder) = self.temporary.take()
        {
            let path = folder.keep();
            let _unwritten = io::Write::write_all(
                &mut io::stderr(),
                format!("data and logs of the stack are kept in {}\n", path.display()).as_bytes(),
            );
        }
    }
}
