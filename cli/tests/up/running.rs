//! A `signalbox up` of a test's own.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use signalbox_stack::{Ports, Reservation};
use signalbox_testkit::eventually_within;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time,
};

/// Generous: the machine may be busy with other tests.
const WITHIN: Duration = Duration::from_secs(60);

/// [`eventually_within`] for a check that does not wait for anything.
#[track_caller]
pub(crate) fn until<T>(
    what: &str,
    mut attempt: impl FnMut() -> Result<T, String>,
) -> impl Future<Output = T> {
    eventually_within(WITHIN, what, move || std::future::ready(attempt()))
}

/// Ports for a copy, kept from everybody else until dropped.
pub(crate) struct Place {
    pub(crate) ports: Ports,
    /// hello, shop 1, shop 2, spare, canary 1, canary 2.
    pub(crate) demo: [u16; 6],
    _reservation: Reservation,
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let mut reservation = Reservation::default();
        let demo = [(); 6].map(|()| reservation.add().unwrap());
        let folder = TempDir::with_prefix("signalbox-up-").unwrap();
        // As an ordinary folder: nginx's workers need access when they run as another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { ports: Ports::free().unwrap(), demo, _reservation: reservation, folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// Every port, that of the sample applications included.
    pub(crate) fn all_ports(&self) -> Vec<u16> {
        self.ports.named().into_iter().map(|(_, port)| port).chain(self.demo).collect()
    }

    /// `signalbox up` at this place, with more flags.
    pub(crate) fn command(&self, flags: &[&str]) -> Command {
        self.command_in(&self.data_dir(), flags)
    }

    fn command_in(&self, data_dir: &Path, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_signalbox"));
        // Nothing of the tester's own environment or folder.
        let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SIGNALBOX_"));
        ours.for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.current_dir(self.folder()).arg("up").arg("--data-dir").arg(data_dir);
        for (name, port) in self.ports.named() {
            command.arg(format!("--set=ports.{name}={port}"));
        }
        let [hello, shop_1, shop_2, spare, canary_1, canary_2] = self.demo;
        command.args([format!("--set=demo.hello={hello}"), format!("--set=demo.spare={spare}")]);
        command.arg(format!("--set=demo.shop={shop_1},{shop_2}"));
        command.arg(format!("--set=demo.canary={canary_1},{canary_2}"));
        command.arg("--set=edge.workers=1").args(flags);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Runs to the end; exit code and standard error.
    pub(crate) async fn fail(&self, flags: &[&str]) -> (Option<i32>, String) {
        Self::failed(self.command(flags)).await
    }

    /// As [`Self::fail`], in another copy's folder.
    pub(crate) async fn fail_in(&self, data_dir: &Path) -> (Option<i32>, String) {
        Self::failed(self.command_in(data_dir, &[])).await
    }

    async fn failed(mut command: Command) -> (Option<i32>, String) {
        let output = command.output();
        let output = time::timeout(WITHIN, output).await.expect("it keeps running").unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

/// A running copy. Dropping it kills it, and its guard ends the rest.
pub(crate) struct Up {
    pub(crate) child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    data_dir: PathBuf,
}

impl Up {
    pub(crate) async fn start(place: &Place, flags: &[&str]) -> Self {
        let mut child = place
            .command(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("signalbox starts");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let outputs: [Box<dyn tokio::io::AsyncRead + Send + Unpin>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let lines = Arc::clone(&lines);
            tokio::spawn(async move {
                let mut reader = BufReader::new(output).lines();
                while let Ok(Some(line)) = reader.next_line().await {
                    lines.lock().unwrap().push(line);
                }
            });
        }
        let mut up = Self { child, lines, data_dir: place.data_dir() };
        up.until_line("Signalbox is ready.").await;
        up
    }

    /// The output so far.
    pub(crate) fn output(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Waits until it has printed `text`.
    pub(crate) async fn until_line(&mut self, text: &str) {
        let lines = Arc::clone(&self.lines);
        let child = &mut self.child;
        until(&format!("{text:?}"), || {
            let output = lines.lock().unwrap().join("\n");
            assert!(!matches!(child.try_wait(), Ok(Some(_))), "signalbox ended:\n{output}");
            if output.contains(text) { Ok(()) } else { Err(output) }
        })
        .await;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("it runs");
        kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let ended = time::timeout(WITHIN, self.child.wait()).await;
        ended.unwrap_or_else(|_| panic!("it does not end:\n{}", self.output())).unwrap()
    }

    /// Part → pid of its main process, as recorded.
    pub(crate) fn pids(&self) -> HashMap<String, i32> {
        let files = fs::read_dir(self.data_dir.join("run")).unwrap().flatten().map(|entry| entry.path());
        files
            .filter(|file| file.extension().is_some_and(|extension| extension == "pid"))
            .filter_map(|file| {
                let text = fs::read_to_string(&file).ok()?;
                let part = file.file_stem()?.to_str()?.to_owned();
                Some((part, text.split(' ').next()?.parse().ok()?))
            })
            .collect()
    }

    /// The process group of all parts.
    pub(crate) fn group(&self) -> i32 {
        self.pids()["guard"]
    }
}

/// The living processes of a group, by name.
pub(crate) fn members(group: i32) -> Vec<String> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = tail.split(' ').collect();
        (fields[2] == group.to_string() && fields[0] != "Z").then(|| head.to_owned())
    });
    pids.collect()
}

/// Waits until nothing of a copy is left: no process, no listener.
pub(crate) async fn until_nothing_is_left(group: i32, place: &Place) {
    until("every process to end", || match members(group) {
        members if members.is_empty() => Ok(()),
        members => Err(members.join(", ")),
    })
    .await;
    for port in place.all_ports() {
        std::net::TcpListener::bind(("0.0.0.0", port)).unwrap_or_else(|error| panic!("port {port}: {error}"));
    }
}

/// A request written by hand on a new connection; returns the whole answer.
pub(crate) fn get(port: u16, host: &str, path: &str) -> Result<String, String> {
    use std::io::{Read, Write};
    let read = || -> std::io::Result<String> {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    match read() {
        Ok(answer) if answer.starts_with("HTTP/1.1 200") => Ok(answer),
        Ok(answer) => Err(answer),
        Err(error) => Err(error.to_string()),
    }
}
