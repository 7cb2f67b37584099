//! `signalbox run replace` and `signalbox run list`: a socket for each running application, in a folder that only its user can
//! enter. A client sends one line, `status` or `replace`, and receives one line of JSON.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    exit::Failure,
    listing::{Cell, Listing, cells},
    remote::{Output, Remote},
    terminal::{Progress, out},
};

const SUFFIX: &str = ".sock";
/// The longest request or answer.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// The time limit for sending a request, and for the answer to `status`.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Replace the copies of a running application one after the other, without a failed request
    Replace(Replace),
    /// List the applications that `signalbox run` of this user runs on this machine
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        listing: Listing,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Replace {
    /// Application [default: the only one that runs]
    group: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// What runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) copies: usize,
    pub(super) pid: u32,
}

/// The answer to `replace`.
#[derive(Debug, Serialize, Deserialize)]
struct Replaced {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Asks for a replacement, and receives its result.
pub(super) type Request = oneshot::Sender<Result<(), String>>;

/// The folder of all sockets of this user.
fn folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("SIGNALBOX_RUNTIME_DIR")
        .or_else(|| Some(set("XDG_RUNTIME_DIR")?.join("signalbox")))
        .unwrap_or_else(|| std::env::temp_dir().join(format!("signalbox-{}", nix::unistd::getuid().as_raw())))
}

/// Creates the folder.
fn create_folder() -> io::Result<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder())?;
    own_folder()
}

/// The folder, if it is this user's. In a folder of all users, another user may have created it first, and would choose the
/// names and answers that are shown.
fn own_folder() -> io::Result<PathBuf> {
    let folder = folder();
    let found = fs::symlink_metadata(&folder)?;
    if !found.is_dir() || found.uid() != nix::unistd::getuid().as_raw() || found.mode() & 0o077 != 0 {
        let detail = "must be a folder that only this user can access (mode 0700)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, detail));
    }
    Ok(folder)
}

/// The names of running applications.
pub(crate) fn groups() -> Vec<String> {
    let name = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(SUFFIX).map(str::to_owned);
    let mut names: Vec<String> =
        own_folder().and_then(fs::read_dir).into_iter().flatten().flatten().filter_map(name).collect();
    names.sort_unstable();
    names
}

/// The socket of a running application. It is removed with this value.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
        let _gone = fs::remove_file(&self.path);
    }
}

impl Socket {
    /// Listens for requests, which are sent to `requests`.
    pub(super) async fn listen(
        name: &str,
        status: Arc<Mutex<Status>>,
        requests: mpsc::Sender<Request>,
    ) -> Result<Self, String> {
        let folder = create_folder().map_err(|error| format!("{}: {error}", folder().display()))?;
        let path = folder.join(format!("{name}{SUFFIX}"));
        if UnixStream::connect(&path).await.is_ok() {
            return Err(format!("another `signalbox run` has the name {name}; set another one with --name"));
        }
        // One that was killed left its socket.
        let _absent = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, status.clone(), requests.clone()));
            }
        });
        Ok(Self { path, task })
    }
}

async fn answer(stream: UnixStream, status: Arc<Mutex<Status>>, requests: mpsc::Sender<Request>) {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(MAX_LINE_BYTES));
    let read = time::timeout(PATIENCE, reader.read_line(&mut line)).await;
    if !matches!(read, Ok(Ok(_))) {
        return;
    }
    let answer = match line.trim() {
        "status" => {
            let status = status.lock().map(|status| status.clone()).unwrap_or_default();
            serde_json::to_string(&status)
        }
        "replace" => {
            let (reply, result) = oneshot::channel();
            let _ending = requests.send(reply).await;
            let error = match result.await {
                Ok(Ok(())) => None,
                Ok(Err(reason)) => Some(reason),
                Err(_) => Some("the application is being stopped".to_owned()),
            };
            serde_json::to_string(&Replaced { error })
        }
        _ => return,
    };
    let answer = answer.unwrap_or_default() + "\n";
    let _gone = writer.write_all(answer.as_bytes()).await;
}

/// Sends a request to an application, and reads the answer.
async fn ask(name: &str, request: &str, patience: Option<Duration>) -> Result<String, Failure> {
    let path = folder().join(format!("{name}{SUFFIX}"));
    let work = async {
        if let Err(error) = own_folder()
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            return Err(error);
        }
        let stream = UnixStream::connect(&path).await?;
        let (reader, mut writer) = stream.into_split();
        writer.write_all(format!("{request}\n").as_bytes()).await?;
        let mut line = String::new();
        BufReader::new(reader.take(MAX_LINE_BYTES)).read_line(&mut line).await?;
        Ok::<_, io::Error>(line)
    };
    let answer = match patience {
        Some(patience) => time::timeout(patience, work).await.unwrap_or_else(|late| Err(late.into())),
        None => work.await,
    };
    match answer {
        Ok(line) if !line.is_empty() => Ok(line),
        Ok(_) => Err(Failure::unavailable(format!("{name} ended before it answered"))),
        Err(error) => Err(Failure::unavailable(format!(
            "{name} does not answer at {}: {error}; `signalbox run list` shows what runs",
            path.display()
        ))),
    }
}

fn unreadable(error: &serde_json::Error) -> Failure {
    Failure::internal(format!("cannot read the answer of `signalbox run`: {error}"))
}

pub(super) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Replace(args) => replace(args).await,
        Command::List { listing, remote } => {
            listing
                .run(async || {
                    let mut running = Vec::new();
                    for name in groups() {
                        // A socket that nothing listens at is of one that was killed.
                        if let Ok(line) = ask(&name, "status", Some(PATIENCE)).await {
                            running.push(serde_json::from_str(&line).map_err(|error| unreadable(&error))?);
                        }
                    }
                    listing.show(&remote, &running, ["APPLICATION", "VERSION", "COPIES", "PROCESS"], row)
                })
                .await
        }
    }
}

fn row(one: &Status) -> [Cell; 4] {
    cells![one.name, one.version, one.copies, one.pid]
}

async fn replace(args: Replace) -> Result<(), Failure> {
    let name = match (args.group, groups().as_slice()) {
        (Some(name), _) => name,
        (None, [only]) => only.clone(),
        (None, []) => {
            return Err(Failure::unavailable("no application runs; start one with `signalbox run`"));
        }
        (None, several) => {
            return Err(Failure::configuration(format!(
                "name one of the applications: {}",
                several.join(", ")
            )));
        }
    };
    let progress = Progress::new();
    progress.say(&format!("replacing the copies of {name}"));
    let line = ask(&name, "replace", None).await?;
    drop(progress);
    let replaced: Replaced = serde_json::from_str(&line).map_err(|error| unreadable(&error))?;
    match replaced.error {
        Some(reason) => Err(Failure::refused_because(format!("{name}: {reason}"))),
        None => args.output.show(&replaced, |_| out!("every copy of {name} was replaced")),
    }
}
