//! What can be done to a running part.

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

/// How long a part may take to get ready: a slow machine that loads a large table counts.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How much of a log an error shows.
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

    /// Where it answers, for people.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its log: standard output and standard error of its process.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// What is in its log.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log_text(&self) -> io::Result<String> {
        fs::read_to_string(&self.log)
    }

    /// The pid of its main process, while there is one.
    pub fn pid(&self) -> Option<i32> {
        self.status.borrow().pid
    }

    /// What it is doing.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The pids of nginx' workers that take requests (those that finish their last ones are left out). Empty for any
    /// other part.
    pub fn workers(&self) -> Vec<i32> {
        let Some(pid) = self.pid() else { return Vec::new() };
        let descendants = proc::family(pid).into_iter().skip(1).map(|process| process.pid);
        descendants.filter(|pid| proc::command_line(*pid) == "nginx: worker process").collect()
    }

    /// Starts it, unless it runs, and waits until it answers.
    ///
    /// # Errors
    /// When it cannot be started, ends at once, or does not answer in time.
    pub async fn start(&self) -> Result<(), Error> {
        self.start_only().await?;
        self.wait_ready().await
    }

    /// Starts it, unless it runs, without waiting for an answer.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn start_only(&self) -> Result<(), Error> {
        self.ask(Request::Start).await?
    }

    /// Waits until it answers.
    ///
    /// # Errors
    /// When it ended instead, or did not answer in time.
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

    /// Whether it runs, or is about to be started again.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        let status = self.status();
        if status.pid.is_some() || status.waiting { Ok(()) } else { Err(self.died()) }
    }

    fn died(&self) -> Error {
        let how = self.status().last_exit.unwrap_or_else(|| "it never ran".to_owned());
        Error::Died { part: self.part.clone(), how, log: self.log.clone(), tail: self.tail() }
    }

    /// Asks it whether it does its work.
    ///
    /// # Errors
    /// What it answers instead, for people.
    pub async fn check(&self) -> Result<(), String> {
        self.probe.check().await
    }

    /// Ends it as a shutdown would, and waits until it is gone. It stays down until [`Self::start`].
    ///
    /// # Errors
    /// When the stack is coming down.
    pub async fn stop(&self) -> Result<(), Error> {
        self.ask(Request::Stop).await
    }

    /// Ends it and its descendants with SIGKILL, and waits until they are gone. It stays down until [`Self::start`].
    ///
    /// # Errors
    /// When the stack is coming down.
    pub async fn kill(&self) -> Result<(), Error> {
        self.ask(Request::Kill).await
    }

    /// Stops and starts it, and waits until it answers.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn restart(&self) -> Result<(), Error> {
        self.stop().await?;
        self.start().await
    }

    /// Ends its main process with SIGKILL and returns at once, as if it had crashed: whether it is started again is
    /// up to the stack.
    pub fn crash(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Sends a signal to its main process.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            let _gone = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Stops its processes where they are (SIGSTOP). The kernel does so a moment later; a test that must not see one
    /// more answer goes on when they are [`Self::is_paused`].
    pub fn pause(&self) {
        self.signal_family(Signal::SIGSTOP);
    }

    /// Whether every process of it is stopped.
    pub fn is_paused(&self) -> bool {
        let family = self.pid().map(proc::family).unwrap_or_default();
        !family.is_empty() && family.iter().all(|process| matches!(process.state, 'T' | 't'))
    }

    /// Lets paused processes go on (SIGCONT).
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
