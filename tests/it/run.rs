//! `signalbox run`: an application that is started, registered, replaced and ended by the command.

use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use signalbox_testkit::{PATIENCE, eventually};
use signalbox_tests::{http::Request, load::Load, system::System};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::{Child, Command},
};

use crate::up::program;

const HOST: &str = "app.test";

/// A running `signalbox run`.
struct Run {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Run {
    fn start(system: &System, folder: &Path, arguments: &[&str]) -> Self {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program());
        command.args(["run", "--lease", "3s", "--drain", "1s", "--node", "n1"]).args(arguments);
        command.current_dir(folder).env_clear().kill_on_drop(true);
        command.env("PATH", format!("{}:{path}", program().parent().unwrap().display()));
        command
            .env("SIGNALBOX_URL", format!("http://{}", system.admin))
            .env("SIGNALBOX_TOKEN", &system.token)
            .env("SIGNALBOX_RUNTIME_DIR", folder.join("sockets"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::default();
        collect(child.stdout.take().unwrap(), &lines);
        collect(child.stderr.take().unwrap(), &lines);
        Self { child, lines }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for the line number `count` that contains `text`, and returns it.
    async fn until(&self, count: usize, text: &str) -> String {
        eventually(&format!("{count} lines with {text:?}"), || async {
            let lines = self.lines();
            let found = lines.iter().filter(|line| line.contains(text)).nth(count - 1).cloned();
            found.ok_or(lines)
        })
        .await
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// `signalbox run` with other arguments: exit code, output and errors.
    async fn control(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(program());
        command.arg("run").args(arguments).env_clear().env("SIGNALBOX_RUNTIME_DIR", folder.join("sockets"));
        let output =
            tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output()).await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Ends it as a service manager does.
    async fn stop(mut self) -> Vec<String> {
        self.signal(Signal::SIGTERM);
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        assert!(status.success(), "{status}: {:#?}", self.lines());
        self.lines()
    }
}

fn collect(from: impl AsyncRead + Unpin + Send + 'static, to: &Arc<Mutex<Vec<String>>>) {
    let to = to.clone();
    tokio::spawn(async move {
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            to.lock().unwrap().push(line);
        }
    });
}

/// The process that a line `… serves as ID (process N)` names.
fn process(line: &str) -> Pid {
    let pid = line.rsplit("process ").next().unwrap().trim_end_matches(')');
    Pid::from_raw(pid.parse().unwrap_or_else(|_| panic!("{line}")))
}

fn lives(process: Pid) -> bool {
    kill(process, None).is_ok()
}

/// The IDs of all instances.
async fn instances(system: &System) -> Vec<String> {
    let answer = system.api("GET", "/instances", None).await.json();
    let all = answer["instances"].as_array().unwrap_or_else(|| panic!("{answer}"));
    all.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn write(folder: &Path, name: &str, copies: u16, command: &str) {
    let text = format!(
        "name = 'shop'\n[processes.web]\ncommand = '{command}'\nhosts = ['{HOST}']\ncopies = {copies}\n\
         health_path = '/health'\n[processes.web.environment]\nNAME = '{name}'\n\
         [processes.clock]\ncommand = ['sh', '-c', 'echo tick $NAME; exec sleep 1000']\n",
    );
    std::fs::write(folder.join("signalbox.app.toml"), text).unwrap();
}

const SERVER: &str = "exec signalbox-demo app --port $PORT --name $NAME --instance $SIGNALBOX_COPY";

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_replacement_under_load_fails_no_request() {
    let system = System::start("run-replace").await;
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "one", 3, SERVER);
    let run = Run::start(&system, folder.path(), &[]);
    run.until(1, "every copy runs").await;
    assert!(run.lines().iter().any(|line| line == "clock.1   | tick"), "{:#?}", run.lines());
    assert_eq!(instances(&system).await.len(), 3);
    // No retry of the edge can hide a failure: the requests may not be repeated.
    let load = Load::start(system.edge, 6, |_| Request::new("POST", HOST, "/").body("x"));
    load.pass(100).await;

    write(folder.path(), "two", 4, SERVER);
    run.signal(Signal::SIGHUP);
    run.until(1, "every copy was replaced").await;
    load.pass(50).await;
    let answer = system.get(HOST, "/").await.text();
    assert!(answer.starts_with("Hello from two, "), "{answer}");
    eventually("the previous copies to be removed", || async {
        let all = instances(&system).await;
        if all.len() == 4 { Ok(()) } else { Err(all) }
    })
    .await;
    load.pass(50).await;

    // A command of the same user does the same, and reports the result.
    let listed = Run::control(folder.path(), &["list", "-o", "name"]).await;
    assert_eq!(listed, (Some(0), "shop\n".to_owned(), String::new()));
    write(folder.path(), "three", 4, SERVER);
    let replaced = Run::control(folder.path(), &["replace", "shop"]).await;
    assert_eq!(replaced, (Some(0), "every copy of shop was replaced\n".to_owned(), String::new()));
    let answer = system.get(HOST, "/").await.text();
    assert!(answer.starts_with("Hello from three, "), "{answer}");
    let (code, _, reason) = Run::control(folder.path(), &["replace", "other"]).await;
    assert!(code == Some(69) && reason.contains("`signalbox run list`"), "{reason}");

    // A version that does not start replaces no copy.
    write(folder.path(), "four", 4, "echo broken >&2; exit 7");
    let (code, _, failure) = Run::control(folder.path(), &["replace"]).await;
    let reason = run.until(1, "the replacement ended early").await;
    assert!(reason.contains("web.1 ended with exit code 7; the previous copy stays"), "{reason}");
    assert!(code == Some(65) && failure.contains("web.1 ended with exit code 7"), "{failure}");
    run.until(1, "web.1     | broken").await;
    std::fs::write(folder.path().join("signalbox.app.toml"), "nonsense").unwrap();
    run.signal(Signal::SIGHUP);
    run.until(1, "nothing was replaced: signalbox.app.toml: ").await;
    load.pass(50).await;
    let answer = system.get(HOST, "/").await.text();
    assert!(answer.starts_with("Hello from three, "), "{answer}");

    let account = load.stop().await;
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    let lines = run.stop().await;
    assert!(lines.last().is_some_and(|line| line == "signalbox | stopped"), "{lines:#?}");
    assert_eq!(instances(&system).await, [""; 0]);
    let left: Vec<&String> = lines.iter().filter(|line| line.contains("(process ")).collect();
    assert!(left.len() >= 12 && !left.iter().any(|line| lives(process(line))), "{left:#?}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_ends_is_removed_and_restarted() {
    let system = System::start("run-restart").await;
    system.allow("connect() failed");
    system.allow("prematurely closed connection");
    system.allow("Connection reset by peer");
    let folder = tempfile::tempdir().unwrap();
    let command = ["--host", HOST, "--copies", "2", "--health-path", "/", "--", "sh", "-c"];
    let script = "env | sed 's/^/env /'; exec signalbox-demo app --port $PORT --instance $SIGNALBOX_INSTANCE";
    let run = Run::start(&system, folder.path(), &[&command[..], &[script]].concat());
    run.until(1, "every copy runs").await;
    assert!(run.lines().iter().any(|line| line.contains("env PORT=")), "{:#?}", run.lines());
    assert!(!run.lines().iter().any(|line| line.contains(&system.token)), "the child has the token");

    let load = Load::start(system.edge, 4, |_| Request::get(HOST, "/"));
    load.pass(50).await;
    let first = run.until(1, "web.1 serves as ").await;
    let before = instances(&system).await;
    kill(process(&first), Signal::SIGKILL).unwrap();
    run.until(1, "web.1 was ended by SIGKILL; restart in 250 ms").await;
    run.until(2, "web.1 serves as ").await;
    eventually("another instance in its place", || async {
        let now = instances(&system).await;
        if now.len() == 2 && now != before { Ok(()) } else { Err(now) }
    })
    .await;
    load.pass(50).await;
    let account = load.stop().await;
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    run.stop().await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_starts_and_serves_while_the_pacemaker_is_away() {
    let system = System::start("run-away").await;
    let folder = tempfile::tempdir().unwrap();
    let command = ["--host", HOST, "--", "sh", "-c"];
    let server = "exec signalbox-demo app --port $PORT";
    let run = Run::start(&system, folder.path(), &[&command[..], &[server]].concat());
    run.until(1, "every copy runs").await;

    system.kill(System::PACEMAKER).await;
    run.until(1, "runs, but its lease cannot be renewed").await;
    // A replacement waits; the copy that is registered serves.
    run.signal(Signal::SIGHUP);
    run.until(1, "is not registered yet").await;
    assert_eq!(system.get(HOST, "/").await.status, 200);
    system.start_part(System::PACEMAKER).await;
    run.until(1, "every copy was replaced").await;
    eventually("one instance", || async {
        let all = instances(&system).await;
        if all.len() == 1 { Ok(()) } else { Err(all) }
    })
    .await;
    assert_eq!(system.get(HOST, "/").await.status, 200);
    run.stop().await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_leaves_no_process_and_no_instance() {
    let system = System::start("run-killed").await;
    let folder = tempfile::tempdir().unwrap();
    let command = ["--host", HOST, "--stop-timeout", "1s", "--", "sh", "-c"];
    // The shell waits for the server, so there are two processes, and the shell ignores SIGTERM.
    let server = "trap '' TERM; signalbox-demo app --port $PORT & echo child $!; wait";
    let mut run = Run::start(&system, folder.path(), &[&command[..], &[server]].concat());
    let shell = process(&run.until(1, "web.1 serves as ").await);
    let child = run.until(1, "child ").await;
    let child = Pid::from_raw(child.rsplit(' ').next().unwrap().parse().unwrap());
    assert!(lives(shell) && lives(child));
    run.child.kill().await.unwrap();
    eventually("both processes to have ended", || async {
        let left = (lives(shell), lives(child));
        if left == (false, false) { Ok(()) } else { Err(left) }
    })
    .await;
    eventually("the lease to have expired", || async {
        let all = instances(&system).await;
        if all.is_empty() { Ok(()) } else { Err(all) }
    })
    .await;

    for (arguments, code, why) in [
        (&["--", "true"][..], 64, "name the host to serve with --host"),
        (&["--host", HOST][..], 64, "nothing to run: add a command after --"),
        (&["--host", HOST, "--copies", "1000", "--", "true"][..], 64, "copies must be 0 to 100"),
    ] {
        let mut run = Run::start(&system, folder.path(), arguments);
        let status = tokio::time::timeout(PATIENCE, run.child.wait()).await.expect("it ends").unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}: {:#?}", run.lines());
        run.until(1, why).await;
    }
    system.stop().await;
}
