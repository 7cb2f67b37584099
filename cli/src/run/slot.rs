//! A slot: the place of one copy of a process. It starts the copy, restarts one that ended, and replaces one on request.
//!
//! ```text
//!  start ─▶ healthy ─▶ registered, acknowledged by every router ─▶ serving
//!    ▲                                                               │ ended: removed, restarted after a growing pause
//!    └───────────────────────────────────────────────────────────────┘
//!  replacement: the new copy serves before the old one drains; without a healthy new copy, the old one stays
//! ```

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use signalbox_client::{
    Client, Error,
    routes::{Health, NewInstance, State},
};
use signalbox_stack::Reservation;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{self, Instant},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    app::Process,
    child::{Child, Start},
    output::Output,
    ready::Check,
    registration::Registration,
};

/// The pause before the first restart. It doubles with each restart.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// A copy that ran for this time was not a failed start.
const STABLE: Duration = Duration::from_secs(30);
/// When everything ends, a router that does not acknowledge the drain delays the end at most for this time.
const LAST_DRAIN: Duration = Duration::from_secs(10);

/// What all slots share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) output: Output,
    pub(super) node: String,
    pub(super) address: IpAddr,
    pub(super) lease: Duration,
    pub(super) timeout: Duration,
    pub(super) drain: Duration,
    pub(super) stop_timeout: Duration,
    /// Everything ends.
    pub(super) stop: CancellationToken,
    /// Copies that drain after they were replaced.
    pub(super) draining: TaskTracker,
}

/// A version of a process, as its copies are started.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) app: String,
    pub(super) version_type: String,
    pub(super) process: Process,
}

type Reply = oneshot::Sender<Result<(), String>>;

#[derive(Debug)]
enum Command {
    Replace(Arc<Version>, Reply),
    Retire(Reply),
}

/// The handle of a slot.
#[derive(Debug)]
pub(super) struct Slot {
    commands: mpsc::Sender<Command>,
    task: JoinHandle<()>,
}

impl Slot {
    /// Starts the copy `number` of a process. The receiver reports the result of the first start.
    pub(super) fn start(
        context: Arc<Context>,
        number: u16,
        color: usize,
        version: Arc<Version>,
    ) -> (Self, oneshot::Receiver<Result<(), String>>) {
        let (commands, receiver) = mpsc::channel(4);
        let (reply, started) = oneshot::channel();
        let name = format!("{}.{number}", version.process.name);
        let runner = Runner { context, name, number, color, version, pause: Duration::ZERO };
        let task = tokio::spawn(runner.run(receiver, reply));
        (Self { commands, task }, started)
    }

    /// Replaces the copy, and returns when the new one serves and the old one receives no requests.
    pub(super) async fn replace(&self, version: Arc<Version>) -> Result<(), String> {
        self.send(|reply| Command::Replace(version, reply)).await
    }

    /// Ends the copy and the slot.
    pub(super) async fn retire(self) {
        let _ended = self.send(Command::Retire).await;
        let _ended = self.task.await;
    }

    /// Waits for the end, after the context's `stop`.
    pub(super) async fn ended(self) {
        let _ended = self.task.await;
    }

    async fn send(&self, command: impl FnOnce(Reply) -> Command) -> Result<(), String> {
        let (reply, result) = oneshot::channel();
        let ended = || "is being stopped".to_owned();
        self.commands.send(command(reply)).await.map_err(|_| ended())?;
        result.await.map_err(|_| ended())?
    }
}

/// A copy that serves.
#[derive(Debug)]
struct Copy {
    child: Child,
    /// Absent if the process serves no host.
    registration: Option<(Registration, JoinHandle<()>)>,
    since: Instant,
    /// Keeps the port reserved.
    _port: Reservation,
}

struct Runner {
    context: Arc<Context>,
    name: String,
    number: u16,
    color: usize,
    version: Arc<Version>,
    pause: Duration,
}

impl Runner {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>, reply: Reply) {
        let (mut copy, mut reply) = (None::<Copy>, Some(reply));
        let stop = self.context.stop.clone();
        loop {
            let Some(serving) = copy.take() else {
                tokio::select! {
                    () = stop.cancelled() => return,
                    command = commands.recv() => match command {
                        Some(Command::Replace(version, new)) => {
                            (self.version, self.pause, reply) = (version, Duration::ZERO, Some(new));
                        }
                        Some(Command::Retire(done)) => { let _unread = done.send(Ok(())); return; }
                        None => return,
                    },
                    () = time::sleep(self.pause) => {
                        let started = self.begin(&self.version, None).await;
                        if let Err(reason) = &started && !stop.is_cancelled() {
                            self.fail(reason);
                        }
                        let result = started.map(|new| copy = Some(new));
                        if let Some(reply) = reply.take() {
                            let _unread = reply.send(result);
                        }
                    }
                }
                continue;
            };
            tokio::select! {
                () = stop.cancelled() => return self.retire(serving).await,
                status = serving.child.exited() => {
                    if serving.since.elapsed() > STABLE {
                        self.pause = Duration::ZERO;
                    }
                    self.fail(&status);
                    self.clean_up(serving).await;
                }
                command = commands.recv() => match command {
                    Some(Command::Replace(version, reply)) => {
                        let (now, result) = self.replace(serving, version).await;
                        copy = Some(now);
                        let _unread = reply.send(result);
                    }
                    Some(Command::Retire(done)) => {
                        self.retire(serving).await;
                        let _unread = done.send(Ok(()));
                        return;
                    }
                    None => return self.retire(serving).await,
                },
            }
        }
    }

    /// Reports that the copy failed, and sets the pause before the next start.
    fn fail(&mut self, reason: &str) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, MAX_PAUSE);
        self.say(&format!("{reason}; restart in {} ms", self.pause.as_millis()));
    }

    fn say(&self, text: &str) {
        self.context.output.say(&format!("{} {text}", self.name));
    }

    /// The new copy serves before the old one drains. Without a new copy, the old one is returned.
    async fn replace(&mut self, old: Copy, version: Arc<Version>) -> (Copy, Result<(), String>) {
        let replaced = old.registration.as_ref().map(|(registration, _)| registration);
        let new = match self.begin(&version, replaced).await {
            Ok(new) => new,
            Err(reason) => return (old, Err(format!("{reason}; the previous copy stays"))),
        };
        (self.version, self.pause) = (version, Duration::ZERO);
        if let Some((registration, heartbeats)) = &old.registration {
            // Otherwise a heartbeat could register the old copy again.
            heartbeats.abort();
            let drained = tokio::select! {
                drained = registration.drain(self.deadline()) => drained.map_err(|error| error.to_string()),
                () = self.context.stop.cancelled() => Ok(()),
            };
            if let Err(reason) = drained {
                self.say(&format!("the previous copy is not drained: {reason}"));
            }
        }
        self.context.draining.spawn(finish(old, self.context.drain));
        (new, Ok(()))
    }

    /// The time after which the pacemaker removes a draining instance that this program did not remove.
    fn deadline(&self) -> Duration {
        self.context.drain + self.context.stop_timeout + Duration::from_secs(30)
    }

    /// Starts a copy, waits until it is healthy, and registers it. If it replaces a copy that serves, it serves even if a
    /// promotion of its host replaced its version: the operator of this program returns to that version.
    async fn begin(&self, version: &Arc<Version>, replaced: Option<&Registration>) -> Result<Copy, String> {
        let context = &self.context;
        let mut reservation = Reservation::default();
        let port = reservation.add().map_err(|error| format!("found no free port: {error}"))?;
        let address = SocketAddr::new(context.address, port);
        let id = format!("{}.{}.{}.{port}", version.app, version.process.name, context.node);
        let serves = !version.process.hosts.is_empty();
        let start = Start {
            command: &version.process.command,
            environment: self.environment(&version.process, serves.then_some(address), &id),
            name: &self.name,
            color: self.color,
            patience: context.stop_timeout,
        };
        let child = Child::start(start, &context.output)?;
        let mut registration = serves.then(|| self.registration(version, address, id));
        let outcome = match &mut registration {
            None => Ok(true),
            Some(registration) => {
                let check = Check {
                    address,
                    host: version.process.hosts[0].replace('*', "any"),
                    path: version.process.health_path.clone(),
                };
                let serve = async {
                    check.passes(context.timeout).await?;
                    admitted(registration, replaced)
                        .await
                        .map_err(|error| format!("is not registered: {error}"))
                };
                tokio::select! {
                    done = serve => done,
                    status = child.exited() => Err(status),
                    () = context.stop.cancelled() => Err("is being stopped".to_owned()),
                }
            }
        };
        let is_active = match outcome {
            Ok(is_active) => is_active,
            Err(reason) => {
                child.stop().await;
                if let Some(registration) = registration {
                    registration.remove().await;
                }
                return Err(reason);
            }
        };
        match &registration {
            Some(one) if !is_active => self.say(&format!(
                "is on standby as {} (process {}), because a promotion replaced its version",
                one.id,
                child.pid()
            )),
            Some(one) => self.say(&format!("serves as {} (process {})", one.id, child.pid())),
            None => self.say(&format!("runs (process {})", child.pid())),
        }
        let registration = registration.map(|one| {
            let heartbeats = tokio::spawn(one.clone().keep(child.watch()));
            (one, heartbeats)
        });
        Ok(Copy { child, registration, since: Instant::now(), _port: reservation })
    }

    fn environment(
        &self,
        process: &Process,
        address: Option<SocketAddr>,
        id: &str,
    ) -> BTreeMap<String, String> {
        let mut environment = process.environment.clone();
        let mut set = |name: &str, value: String| environment.insert(name.to_owned(), value);
        set("SIGNALBOX_PROCESS", process.name.clone());
        set("SIGNALBOX_COPY", self.number.to_string());
        if let Some(address) = address {
            set("PORT", address.port().to_string());
            set("HOST", address.ip().to_string());
            set("SIGNALBOX_INSTANCE", id.to_owned());
        }
        environment
    }

    fn registration(&self, version: &Version, address: SocketAddr, id: String) -> Registration {
        let context = &self.context;
        let process = &version.process;
        let mut instance = NewInstance::new(address.to_string(), &process.hosts, &version.version_type);
        instance.application_id = Some(version.app.clone());
        instance.node_id = Some(context.node.clone());
        instance.weight = process.weight;
        instance.lease_seconds = u32::try_from(context.lease.as_secs()).ok();
        instance.health =
            process.health_path.clone().map(|path| Health { path: Some(path), ..Health::default() });
        Registration {
            client: context.client.clone(),
            output: context.output.clone(),
            id,
            instance,
            lease: context.lease,
        }
    }

    /// Drains a copy and ends it.
    async fn retire(&self, copy: Copy) {
        if let Some((registration, heartbeats)) = &copy.registration {
            heartbeats.abort();
            let drained = time::timeout(LAST_DRAIN, registration.drain(self.deadline())).await;
            let reason = match drained {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("the change was not acknowledged in time".to_owned()),
            };
            if let Some(reason) = reason {
                self.say(&format!("is stopped without being drained: {reason}"));
            }
        }
        finish(copy, self.context.drain).await;
        self.say("stopped");
    }

    /// What remains of a copy whose process has ended.
    async fn clean_up(&self, copy: Copy) {
        copy.child.stop().await;
        if let Some((_, heartbeats)) = copy.registration {
            // It removes the instance.
            let _removed = heartbeats.await;
        }
    }
}

/// Registers a copy. Returns whether it receives requests.
async fn admitted(registration: &mut Registration, replaced: Option<&Registration>) -> Result<bool, Error> {
    if registration.register().await? == State::Active {
        return Ok(true);
    }
    let Some(replaced) = replaced else { return Ok(false) };
    if replaced.is_active().await? {
        registration.resume().await?;
        return Ok(true);
    }
    Ok(false)
}

/// Lets a drained copy finish its requests, ends it, and removes it.
async fn finish(copy: Copy, drain: Duration) {
    if copy.registration.is_some() {
        let _ended = time::timeout(drain, copy.child.exited()).await;
    }
    copy.child.stop().await;
    if let Some((registration, _)) = &copy.registration {
        registration.remove().await;
    }
}
