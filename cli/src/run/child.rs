//! One child process: started in a process group of its own, and ended as a whole.
//!
//! The group is led by a guard (`signalbox guard`), whose standard input is a pipe from this process. When this process ends in
//! whatever way, kill -9 included, the guard ends the group. So a program that a shell started is ended, too.

use std::{
    collections::BTreeMap,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child as Process, Command},
    sync::watch,
    task::JoinHandle,
    time,
};
use tokio_util::sync::CancellationToken;

use super::output::{Output, Target};

/// This program, also after an upgrade has replaced its file.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Credentials of the control plane, which no application gets.
const SECRET: [&str; 2] = ["SIGNALBOX_TOKEN", "SIGNALBOX_TOKEN_FILE"];
/// A grandchild may keep the output open.
const OUTPUT_PATIENCE: Duration = Duration::from_millis(500);

/// A running child.
#[derive(Debug)]
pub(super) struct Child {
    pid: u32,
    exited: watch::Receiver<Option<String>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// What a child is started with.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) command: &'a [String],
    pub(super) environment: BTreeMap<String, String>,
    pub(super) name: &'a str,
    pub(super) color: usize,
    /// The time between SIGTERM and SIGKILL.
    pub(super) patience: Duration,
}

impl Child {
    pub(super) fn start(start: Start<'_>, output: &Output) -> Result<Self, String> {
        let mut guard = Command::new(OWN_PROGRAM);
        guard.arg(signalbox_stack::GUARD_COMMAND).process_group(0).kill_on_drop(true);
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let guard = guard.spawn().map_err(|error| format!("cannot start the guard: {error}"))?;
        let group = guard.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);

        let (program, arguments) = start.command.split_first().ok_or("there is no command")?;
        let mut command = Command::new(program);
        command.args(arguments).envs(start.environment).process_group(group).kill_on_drop(true);
        for secret in SECRET {
            command.env_remove(secret);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
        let mut copies = Vec::new();
        if let Some(from) = process.stdout.take() {
            copies.push(output.copy(start.name.to_owned(), start.color, from, Target::Out));
        }
        if let Some(from) = process.stderr.take() {
            copies.push(output.copy(start.name.to_owned(), start.color, from, Target::Error));
        }
        let (sender, exited) = watch::channel(None);
        let (pid, stop) = (process.id().unwrap_or(0), CancellationToken::new());
        let task = tokio::spawn(watch(process, guard, sender, stop.clone(), start.patience, copies));
        Ok(Self { pid, exited, stop, task })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the process has ended, and returns how.
    pub(super) async fn exited(&self) -> String {
        exited(self.exited.clone()).await
    }

    /// For a task that waits for the end as well.
    pub(super) fn watch(&self) -> watch::Receiver<Option<String>> {
        self.exited.clone()
    }

    /// Ends the process and everything that it started, and waits for that.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        let _ended = self.task.await;
    }
}

/// Waits for the end that `receiver` reports.
pub(super) async fn exited(mut receiver: watch::Receiver<Option<String>>) -> String {
    match receiver.wait_for(Option::is_some).await {
        Ok(status) => status.clone().unwrap_or_default(),
        Err(_) => "ended".to_owned(),
    }
}

async fn watch(
    mut process: Process,
    mut guard: Process,
    exited: watch::Sender<Option<String>>,
    stop: CancellationToken,
    patience: Duration,
    copies: Vec<JoinHandle<()>>,
) {
    let status = tokio::select! {
        status = process.wait() => status,
        () = stop.cancelled() => end(&mut process, patience).await,
    };
    let status = status.map_or_else(|error| format!("ended: {error}"), |status| describe(&status));
    exited.send_replace(Some(status));
    // The guard ends what is left of the group, and then itself.
    drop(guard.stdin.take());
    let _ended = guard.wait().await;
    let copied = async {
        for copy in copies {
            let _copied = copy.await;
        }
    };
    let _open = time::timeout(OUTPUT_PATIENCE, copied).await;
}

/// SIGTERM, and SIGKILL after `patience`.
async fn end(process: &mut Process, patience: Duration) -> std::io::Result<ExitStatus> {
    // Its ID is valid: it has not been waited for.
    if let Some(pid) = process.id().and_then(|pid| i32::try_from(pid).ok()) {
        let _gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    match time::timeout(patience, process.wait()).await {
        Ok(status) => status,
        Err(_) => {
            process.start_kill()?;
            process.wait().await
        }
    }
}

fn describe(status: &ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal().and_then(|signal| Signal::try_from(signal).ok())) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
