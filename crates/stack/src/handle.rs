//! Operations on a running part.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{sys::signal::kill, unistd::Pid};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    Error, Part, Probe, Signal, proc,
    supervisor::{NoAnswer, Request, Status, answers},
};

/// The time limit for a part to become ready, sufficient for a slow machine that loads a large table.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The maximum part of a log in an error.
const TAIL_LINES: usize = 12;

/// A part of a stack. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct PartHandle {
    pub(crate) part: Part,
    pub(crate) address: String,
    pub(crate) probe: Probe,
    pub(crate) log: PathBuf,
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) status: watch::Receiver<Status>,
}

impl PartHandle {
    /// The part's name.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Its address, for operators.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its log: standard output and standard error of its process.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The content of its log.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log_text(&self) -> io::Result<String> {
        fs::read_to_string(&self.log)
    }

    /// The PID of its main process, if it runs.
    pub fn pid(&self) -> Option<i32> {
        self.status.borrow().pid
    }

    /// Its state.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The PIDs of nginx's workers that accept requests, without those that are finishing their last ones. Empty for other
    /// parts.
    pub fn workers(&self) -> Vec<i32> {
        let Some(pid) = self.pid() else { return Vec::new() };
        let descendants = proc::family(pid).into_iter().skip(1).map(|process| process.pid);
        descendants.filter(|pid| proc::command_line(*pid) == "nginx: worker process").collect()
    }

    /// Starts it, unless it runs, and waits until it responds.
    ///
    /// # Errors
    /// If it cannot be started, ends immediately, or does not respond in time.
    pub async fn start(&self) -> Result<(), Error> {
        self.start_only().await?;
        self.wait_ready().await
    }

    /// Starts it, unless it runs, without waiting for a response.
    ///
    /// # Errors
    /// If it cannot be started.
    pub async fn start_only(&self) -> Result<(), Error> {
        self.ask(Request::Start).await?
    }

    /// Waits until it responds.
    ///
    /// # Errors
    /// If it ends or does not respond in time.
    pub async fn wait_ready(&self) -> Result<(), Error> {
        match answers(&self.probe, &self.status, READY_WITHIN).await {
            Ok(()) => Ok(()),
            Err(NoAnswer::Died) => Err(self.died()),
            Err(NoAnswer::Late(last)) => Err(Error::NotReady {
                part: self.part.clone(),
                seconds: READY_WITHIN.as_secs(),
                last,
                log: self.log.clone(),
                tail: self.tail(),
            }),
        }
    }

    /// Whether it runs or is about to be restarted.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        let status = self.status();
        if status.pid.is_some() || status.waiting { Ok(()) } else { Err(self.died()) }
    }

    fn died(&self) -> Error {
        let how = self.status().last_exit.unwrap_or_else(|| "it never ran".to_owned());
        Error::Died { part: self.part.clone(), how, log: self.log.clone(), tail: self.tail() }
    }

    /// Probes whether it works.
    ///
    /// # Errors
    /// The result of the probe, for operators.
    pub async fn check(&self) -> Result<(), String> {
        self.probe.check().await
    }

    /// Stops it gracefully, and waits until it has ended. It stays down until [`Self::start`].
    ///
    /// # Errors
    /// If the stack is stopping.
    pub async fn stop(&self) -> Result<(), Error> {
        self.ask(|reply| Request::End { kill: false, reply }).await
    }

    /// Ends it and its descendants with SIGKILL, and waits until they have ended. It stays down until [`Self::start`].
    ///
    /// # Errors
    /// If the stack is stopping.
    pub async fn kill(&self) -> Result<(), Error> {
        self.ask(|reply| Request::End { kill: true, reply }).await
    }

    /// Stops and starts it, and waits until it responds.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn restart(&self) -> Result<(), Error> {
        self.stop().await?;
        self.start().await
    }

    /// Ends its main process with SIGKILL and returns immediately, like a crash. The stack decides whether it is restarted.
    pub fn crash(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Sends a signal to its main process.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            let _gone = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Pauses its processes (SIGSTOP). The kernel stops them a moment later: a test that must not receive another response
    /// waits until [`Self::is_paused`].
    pub fn pause(&self) {
        self.signal_family(Signal::SIGSTOP);
    }

    /// Whether all its processes are paused.
    pub fn is_paused(&self) -> bool {
        let family = self.pid().map(proc::family).unwrap_or_default();
        !family.is_empty() && family.iter().all(|process| matches!(process.state, 'T' | 't'))
    }

    /// Resumes paused processes (SIGCONT).
    pub fn resume(&self) {
        self.signal_family(Signal::SIGCONT);
    }

    fn signal_family(&self, signal: Signal) {
        for process in self.pid().map(proc::family).unwrap_or_default() {
            let _gone = kill(process.pid(), signal);
        }
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let coming_down = || Error::ComingDown { part: self.part.clone() };
        self.requests.send(request(reply)).await.map_err(|_| coming_down())?;
        answer.await.map_err(|_| coming_down())
    }

    pub(crate) fn tail(&self) -> String {
        let text = self.log_text().unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}
