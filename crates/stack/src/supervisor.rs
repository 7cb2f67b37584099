//! One task per part, which starts, watches and restarts its process.
//!
//! ```text
//!            start                     died, restarting is on
//!   Down ────────────▶ Running ─────────────────────────────▶ Waiting ──(back-off)──▶ Running
//!    ▲                    │  stop, kill                          │ stop, kill
//!    └────────────────────┴──────────────────────────────────────┘
//! ```
//!
//! A part that was stopped or killed through its [`crate::PartHandle`] stays down until it is started through it, so that a
//! test controls when it returns. A part that ends unexpectedly is restarted after a delay. The delay doubles each time, and
//! is reset after the part has run for a while.

use std::{
    path::PathBuf,
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot, watch},
    time::{self, Instant},
};

use crate::{Error, Event, Part, Probe, aof, event::Events, group::Group, proc};

const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(10);
/// After this run time, the restart delay is reset.
const WELL_AFTER: Duration = Duration::from_secs(30);
/// A restarted part that does not respond for this time is reported.
const BACK_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// The program of a part.
#[derive(Debug, Clone)]
pub struct Program {
    pub(crate) part: Part,
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, Option<String>)>,
    pub(crate) probe: Probe,
    pub(crate) address: String,
    pub(crate) stop: Stop,
    /// The folder of a Redis server with an append-only file, which is repaired before each start.
    pub(crate) redis: Option<PathBuf>,
}

/// The way in which a part is stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stop {
    /// The signal for a graceful stop.
    pub(crate) signal: Signal,
    /// The time limit before SIGTERM, and then before SIGKILL.
    pub(crate) grace: Duration,
}

impl Program {
    /// Creates a part that runs `path`.
    pub fn new(part: Part, path: impl Into<PathBuf>) -> Self {
        Self {
            part,
            path: path.into(),
            args: Vec::new(),
            env: Vec::new(),
            probe: Probe::Running,
            address: String::new(),
            stop: Stop { signal: Signal::SIGTERM, grace: Duration::from_secs(10) },
            redis: None,
        }
    }

    /// Appends an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub(crate) fn without_env(mut self, name: impl Into<String>) -> Self {
        self.env.push((name.into(), None));
        self
    }

    /// Sets its readiness probe.
    #[must_use]
    pub fn ready_when(mut self, probe: Probe) -> Self {
        self.probe = probe;
        self
    }

    /// Sets its address, for operators.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = address.into();
        self
    }

    pub(crate) fn stop_with(mut self, signal: Signal, grace: Duration) -> Self {
        self.stop = Stop { signal, grace };
        self
    }

    pub(crate) fn with_append_only_file(mut self, redis: PathBuf) -> Self {
        self.redis = Some(redis);
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.args);
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

/// The state of a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The main process, if it runs.
    pub pid: Option<i32>,
    /// The number of started processes.
    pub starts: u32,
    /// The exit status of the last process.
    pub last_exit: Option<String>,
    /// Whether it will be restarted after a delay.
    pub waiting: bool,
}

#[derive(Debug)]
pub(crate) enum Request {
    Start(oneshot::Sender<Result<(), Error>>),
    /// Ends it gracefully, or with SIGKILL.
    End {
        kill: bool,
        reply: oneshot::Sender<()>,
    },
}

pub(crate) struct Supervisor {
    pub(crate) program: Program,
    pub(crate) group: Arc<Group>,
    pub(crate) events: Events,
    pub(crate) restarting: Arc<AtomicBool>,
    pub(crate) requests: mpsc::Receiver<Request>,
    pub(crate) status: watch::Sender<Status>,
}

/// The reason why watching a process ended.
enum Ended {
    ByItself(String),
    OnRequest,
    /// The part was dropped. Its owner ends the group.
    Abandoned,
}

impl Supervisor {
    pub(crate) async fn run(mut self) {
        let mut delay = FIRST_DELAY;
        'down: while let Some(request) = self.requests.recv().await {
            let mut attempt: Result<(Child, i32), Error> = match request {
                Request::Start(reply) => match self.spawn() {
                    Ok(process) => {
                        let _receiver_gone = reply.send(Ok(()));
                        Ok(process)
                    }
                    Err(error) => {
                        let _receiver_gone = reply.send(Err(error));
                        continue;
                    }
                },
                Request::End { reply, .. } => {
                    let _receiver_gone = reply.send(());
                    continue;
                }
            };
            loop {
                let since = Instant::now();
                let how = match attempt {
                    Ok((child, pid)) => match self.watch(child, pid).await {
                        Ended::ByItself(how) => how,
                        Ended::OnRequest => continue 'down,
                        Ended::Abandoned => return,
                    },
                    Err(error) => error.to_string(),
                };
                if since.elapsed() > WELL_AFTER {
                    delay = FIRST_DELAY;
                }
                let restart_in = self.restarting.load(Ordering::Relaxed).then_some(delay);
                let part = self.program.part.clone();
                self.events.emit(Event::Died { part, how, restart_in });
                if restart_in.is_none() || !self.waited(delay).await {
                    continue 'down;
                }
                delay = (delay * 2).min(MAX_DELAY);
                attempt = self.spawn_again();
            }
        }
    }

    fn spawn(&self) -> Result<(Child, i32), Error> {
        if let Some(redis) = &self.program.redis {
            let part = &self.program.part;
            match aof::repair_aof(redis) {
                Ok(repair) if repair.is_empty() => {}
                Ok(repair) => self.events.emit(Event::Note(format!(
                    "{part}: removed {} bytes of an incomplete transaction and {} zero bytes from its append-only file",
                    repair.transaction, repair.holes
                ))),
                // Redis finds the same error and logs it.
                Err(error) => {
                    self.events.emit(Event::Note(format!("{part}: its file cannot be checked: {error}")))
                }
            }
        }
        let (child, pid) = self.group.spawn(&self.program.part, self.program.command())?;
        self.status.send_modify(|status| {
            status.pid = Some(pid);
            status.starts += 1;
        });
        Ok((child, pid))
    }

    /// Restarts a part that died, and reports when it responds.
    fn spawn_again(&self) -> Result<(Child, i32), Error> {
        let process = self.spawn()?;
        let part = self.program.part.clone();
        let (probe, events) = (self.program.probe.clone(), self.events.clone());
        let status = self.status.subscribe();
        tokio::spawn(async move {
            let event = match answers(&probe, &status, BACK_WITHIN).await {
                Ok(()) => Event::Back { part },
                // A death is reported separately.
                Err(NoAnswer::Died) => return,
                Err(NoAnswer::Late(reason)) => Event::NotBack { part, reason },
            };
            events.emit(event);
        });
        Ok(process)
    }

    /// Waits for the restart delay or a request to start. Returns false if the part was stopped in the meantime.
    async fn waited(&mut self, delay: Duration) -> bool {
        self.status.send_modify(|status| status.waiting = true);
        let request = time::timeout(delay, self.requests.recv()).await;
        self.status.send_modify(|status| status.waiting = false);
        match request {
            Err(_passed) => true,
            Ok(Some(Request::Start(reply))) => {
                let _receiver_gone = reply.send(Ok(()));
                true
            }
            Ok(Some(Request::End { reply, .. })) => {
                let _receiver_gone = reply.send(());
                false
            }
            Ok(None) => false,
        }
    }

    async fn watch(&mut self, mut child: Child, pid: i32) -> Ended {
        loop {
            tokio::select! {
                status = child.wait() => {
                    let how = status.map_or_else(|error| error.to_string(), in_words);
                    self.ended(pid, &how).await;
                    return Ended::ByItself(how);
                }
                request = self.requests.recv() => match request {
                    None => return Ended::Abandoned,
                    Some(Request::Start(reply)) => {
                        let _receiver_gone = reply.send(Ok(()));
                    }
                    Some(Request::End { kill, reply }) => {
                        let how = match kill {
                            true => kill_family(&mut child, pid).await,
                            false => self.stop(&mut child, pid).await,
                        };
                        self.ended(pid, &how).await;
                        let _receiver_gone = reply.send(());
                        return Ended::OnRequest;
                    }
                },
            }
        }
    }

    async fn stop(&self, child: &mut Child, pid: i32) -> String {
        self.events.emit(Event::Stopping { part: self.program.part.clone() });
        let Stop { signal, grace } = self.program.stop;
        for signal in [signal, Signal::SIGTERM] {
            for process in proc::family(pid) {
                // A paused process receives the signal only after it continues.
                let _gone = kill(process.pid(), Signal::SIGCONT);
            }
            let _gone = kill(Pid::from_raw(pid), signal);
            if let Ok(status) = time::timeout(grace, child.wait()).await {
                return status.map_or_else(|error| error.to_string(), in_words);
            }
        }
        kill_family(child, pid).await
    }

    async fn ended(&self, pid: i32, how: &str) {
        self.group.forget(&self.program.part, pid);
        self.group.end_orphans().await;
        self.status.send_modify(|status| {
            status.pid = None;
            status.last_exit = Some(how.to_owned());
        });
    }
}

/// The main process is killed first, or nginx's master would replace the killed workers.
async fn kill_family(child: &mut Child, pid: i32) -> String {
    for process in proc::family(pid) {
        let _gone = kill(process.pid(), Signal::SIGKILL);
    }
    child.wait().await.map_or_else(|error| error.to_string(), in_words)
}

fn in_words(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status.signal().map(Signal::try_from) {
        Some(Ok(signal)) => format!("killed by {signal}"),
        _ => status.to_string(),
    }
}

/// The reason why a probe got no response.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The process does not run.
    Died,
    /// The time limit has passed. Contains the result of the last attempt.
    Late(String),
}

/// Probes until the part responds.
pub(crate) async fn answers(
    probe: &Probe,
    status: &watch::Receiver<Status>,
    within: Duration,
) -> Result<(), NoAnswer> {
    let deadline = Instant::now() + within;
    let starts = status.borrow().starts;
    loop {
        let last = probe.check().await;
        {
            let now = status.borrow();
            if now.pid.is_none() || now.starts != starts {
                return Err(NoAnswer::Died);
            }
        }
        match last {
            Ok(()) => return Ok(()),
            Err(last) if Instant::now() >= deadline => return Err(NoAnswer::Late(last)),
            Err(_) => time::sleep(POLL).await,
        }
    }
}
