//! `signalbox up --demo` as a process, as a new user runs it.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use signalbox_stack::{Ports, Reservation};
use signalbox_testkit::{PATIENCE, eventually};
use signalbox_tests::{http::Request, slots, system::System, upstream::App};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

/// Commands of docs/start-routing.md, exactly as that page shows them.
const TOUR: [&str; 5] = [
    "curl -H 'Host: hello.localhost' http://127.0.0.1:8080/",
    r#"curl -X PUT -H "Authorization: Bearer $(cat .signalbox/token)" -d '{"address":"127.0.0.1:9003","hostnames":["new.localhost"],"version_type_id":"7"}' -H 'Content-Type: application/json' http://127.0.0.1:8081/instances/i-7"#,
    r#"curl -H "Authorization: Bearer $(cat .signalbox/token)" http://127.0.0.1:8081/stats/version_type/7"#,
    "curl -s http://127.0.0.1:9003/events | tail -n 1",
    "curl -k https://hello.localhost:8443/",
];

/// A running `signalbox up --demo` in its own folder.
pub(crate) struct Up {
    child: Child,
    pub(crate) folder: TempDir,
    ports: Ports,
    /// The last are where a reader's own program and an ACME server listen.
    demo: [u16; 11],
    said: String,
    _reservation: Reservation,
}

pub(crate) fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/<profile>/deps/it-… → target/<profile>/signalbox
    test.ancestors().nth(2).unwrap().join("signalbox")
}

impl Up {
    pub(crate) async fn start() -> Self {
        let (folder, ports, mut reservation) =
            (TempDir::with_prefix("signalbox-up-").unwrap(), Ports::free().unwrap(), Reservation::default());
        // Processes of other users need access to the folders below.
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let demo: [u16; 11] = std::array::from_fn(|_| reservation.add().unwrap());
        let mut command = Command::new(program());
        command.args(["up", "--demo", "--set=edge.workers=2"]).current_dir(folder.path());
        for (name, port) in ports.named() {
            command.arg(format!("--set=ports.{name}={port}"));
        }
        command.args([format!("--set=demo.hello={}", demo[0]), format!("--set=demo.spare={}", demo[3])]);
        command.arg(format!("--set=demo.shop={},{}", demo[1], demo[2]));
        command.arg(format!("--set=demo.canary={},{}", demo[4], demo[5]));
        command.args([format!("--set=demo.receiver={}", demo[6]), format!("--set=demo.acme={}", demo[7])]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = String::new();
        let ready = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                said += &line;
                said.push('\n');
                if line.contains("Press Ctrl-C to stop everything") {
                    return true;
                }
            }
            false
        };
        let ready = tokio::time::timeout(3 * PATIENCE, ready).await;
        assert_eq!(ready, Ok(true), "it never reported that it is ready; its output:\n{said}");
        // The rest of its output has to be read, or it would block on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, folder, ports, demo, said, _reservation: reservation }
    }

    /// A text about the default ports, with the ports of this one.
    pub(crate) fn with_ports(&self, text: &str) -> String {
        let [hello, shop, other_shop, spare, canary, other_canary, own, acme @ ..] = self.demo;
        let mut text = text.to_owned();
        for (default, real) in [
            (8080, self.ports.edge),
            (8443, self.ports.edge_tls),
            (8081, self.ports.admin),
            (9001, hello),
            (9002, shop),
            (9004, other_shop),
            (9003, spare),
            (9005, canary),
            (9006, other_canary),
            (9010, own),
            (14000, acme[0]),
            (14001, acme[1]),
            (14002, acme[2]),
            (14003, acme[3]),
        ] {
            text = text.replace(&format!(":{default}"), &format!(":{real}"));
            // The address of a program in Python.
            text = text.replace(&format!("\", {default})"), &format!("\", {real})"));
        }
        for (default, real) in [
            (6401, self.ports.routes),
            (6402, self.ports.routes_replica),
            (6403, self.ports.stats),
            (6404, self.ports.fabric),
        ] {
            text = text.replace(&format!("-p {default}"), &format!("-p {real}"));
            text = text.replace(&format!(":{default}"), &format!(":{real}"));
        }
        text
    }

    /// Runs a command in its folder, as a user with the default settings would.
    async fn shell(&self, command: &str) -> String {
        let command = self.with_ports(command);
        let output: Output = Command::new("sh")
            .arg("-c")
            .arg(&command)
            .current_dir(self.folder.path())
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs the command in its folder and parses the JSON that it prints.
    async fn command(&self, arguments: &[&str]) -> serde_json::Value {
        self.run("signalbox", arguments).await
    }

    async fn run(&self, name: &str, arguments: &[&str]) -> serde_json::Value {
        let mut command = Command::new(program().with_file_name(name));
        command.args(arguments).arg("--json").current_dir(self.folder.path());
        let output = command.output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {} {said}", output.status);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    /// Ends it as a service manager would.
    pub(crate) async fn end(mut self) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        assert_eq!(status.code(), Some(0), "exit code after an interrupt");
        let left = processes_of(self.folder.path());
        assert!(left.is_empty(), "left behind: {left:#?}");
        for (name, port) in self.ports.named() {
            let open = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok();
            assert!(!open, "the port of {name} is still in use");
        }
    }
}

/// The command lines of all processes that have to do with `folder`.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.to_string_lossy().into_owned();
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let cwd = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            (line.contains(&folder) || cwd.starts_with(&folder)).then_some(line)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_the_tour_work() {
    let _slot = slots::take().await;
    let up = Up::start().await;
    for address in [up.ports.edge, up.ports.admin, up.ports.pacemaker, up.ports.sidecar] {
        assert!(up.said.contains(&address.to_string()), "no address with {address} in:\n{}", up.said);
    }
    let hello = up.shell(TOUR[0]).await;
    assert!(hello.to_lowercase().contains("hello"), "{hello}");
    let https = up.shell(TOUR[4]).await;
    assert!(https.contains("Hello from hello"), "{https}");
    let put = up.shell(TOUR[1]).await;
    assert!(put.contains("\"serial\""), "{put}");
    eventually("a webhook that tells of the instance", || async {
        let received = up.shell(TOUR[3]).await;
        let event: serde_json::Value =
            serde_json::from_str(&received).map_err(|error| format!("{error}: {received}"))?;
        let (topic, id) = (&event["topic"], &event["data"]["id"]);
        if topic == "signalbox.instance.registered" && id == "i-7" { Ok(()) } else { Err(received) }
    })
    .await;
    // "The next request reaches 9003": nothing is waited for here, and so not asserted of the very next one.
    let new = TOUR[0].replace("hello.", "new.");
    eventually("the new instance to take traffic", || async {
        let answer = up.shell(&new).await;
        if answer.contains("\"status\":404") { Err(answer) } else { Ok(()) }
    })
    .await;
    eventually("the request to be counted", || async {
        let stats = up.shell(TOUR[2]).await;
        let stats: serde_json::Value =
            serde_json::from_str(&stats).map_err(|error| format!("{error}: {stats}"))?;
        let requests =
            stats.get("requests").or_else(|| stats["totals"].get("requests")).and_then(|n| n.as_u64());
        if requests >= Some(1) { Ok(()) } else { Err(stats.to_string()) }
    })
    .await;
    up.end().await;
    let page = page("start-routing.md");
    for command in TOUR {
        assert!(page.contains(command), "docs/start-routing.md does not contain {command}");
    }
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The states that a label reached, from a table of transitions.
fn way(moves: &serde_json::Value) -> Vec<&str> {
    moves.as_array().unwrap().iter().map(|row| row["to"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_version_is_promoted_and_a_bad_one_is_rolled_back() {
    let _slot = slots::take().await;
    let up = Up::start().await;
    let said = up.said.replace("--data-dir .signalbox", "");
    assert!(said.contains("signalbox-demo canary good"), "{said}");
    let deploy = |kind| ["canary", kind, "--calm-seconds", "1", "--rate", "500"];
    let good = up.run("signalbox-demo", &deploy("good")).await;
    assert_eq!((&good["label"], &good["state"]), (&"canary-2".into(), &"done".into()), "{good}");
    let all = "asked five_percent at_five quarter at_quarter half at_half all at_all retire_old done";
    assert_eq!(way(&good["moves"]), all.split(' ').collect::<Vec<_>>());
    let answered = good["answers"].as_array().unwrap();
    let versions = answered.iter().filter(|one| one["version"].as_str().unwrap().starts_with("canary-"));
    assert!(versions.clone().all(|one| one["failed"] == 0) && versions.count() == 2, "{good}");

    // Everybody can watch it, and from here on the new version answers alone.
    let shown = up.command(&["labels", "show", "canary", "canary-2"]).await;
    assert_eq!((&shown["state"], &shown["status"]), (&"done".into(), &"ended".into()), "{shown}");
    let history = up.command(&["labels", "history", "canary", "canary-2"]).await;
    assert_eq!(history, good["moves"]);
    let why = up.command(&["labels", "why", "canary", "canary-2"]).await;
    assert_eq!(why["reason"], "it has ended", "{why}");
    let instances = up.command(&["routes", "list", "--host", "canary.localhost", "--state", "active"]).await;
    let active: Vec<_> = instances.as_array().unwrap().iter().map(|one| &one["version_type_id"]).collect();
    assert_eq!(active, ["canary-2"], "{instances}");

    let bad = up.run("signalbox-demo", &deploy("bad")).await;
    assert_eq!((&bad["label"], &bad["state"]), (&"canary-3".into(), &"rolled_back".into()), "{bad}");
    assert_eq!(way(&bad["moves"]), ["asked", "five_percent", "at_five", "roll_back", "rolled_back"]);
    let failed = bad["answers"].as_array().unwrap().iter().find(|one| one["version"] == "canary-3").unwrap();
    assert!(failed["answered"] == 0 && failed["failed"].as_u64() >= Some(20), "{bad}");
    eventually("the old version to answer alone", || async {
        let edge = std::net::SocketAddr::from(([127, 0, 0, 1], up.ports.edge));
        for _ in 0..20 {
            let answer =
                Request::get("canary.localhost", "/").send(edge).await.map_err(|error| error.to_string())?;
            if !answer.text().starts_with("Hello from canary-2, ") {
                return Err(answer.text());
            }
        }
        Ok(())
    })
    .await;
    up.end().await;
    let page = page("start-canary.md");
    for kind in ["good", "bad"] {
        assert!(page.contains(&format!("signalbox-demo canary {kind}")), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_commands_can_be_run_and_two_copies_do_not_interfere() {
    let system = System::start("next-to-up").await;
    let up = Up::start().await;
    // The suggestions that it prints, with continued lines joined.
    let said = up.said.replace("\\\n", " ");
    let suggestions: Vec<&str> =
        said.lines().map(str::trim).filter(|line| line.starts_with("curl ")).collect();
    assert!(suggestions.len() >= 3, "{}", up.said);
    for suggestion in suggestions {
        // A request right after a PUT may be answered before the change is effective.
        eventually(suggestion, || async {
            let answer = up.shell(suggestion).await;
            if answer.contains("application/problem") || answer.contains("\"status\":") {
                Err(answer)
            } else {
                Ok(())
            }
        })
        .await;
    }
    let app = App::start("app").await;
    system.register("mine", &app, "mine.test", "1").await;
    assert_eq!(system.get("mine.test", "/").await.text(), "app");
    let edge = std::net::SocketAddr::from(([127, 0, 0, 1], up.ports.edge));
    assert_eq!(Request::get("mine.test", "/").send(edge).await.unwrap().status, 404);
    assert_eq!(system.get("hello.localhost", "/").await.status, 404);
    assert_eq!(Request::get("hello.localhost", "/").send(edge).await.unwrap().status, 200);
    // One token does not open the other.
    let admin = std::net::SocketAddr::from(([127, 0, 0, 1], up.ports.admin));
    let foreign = Request::get("localhost", "/instances").token(&system.token).send(admin).await.unwrap();
    assert_eq!(foreign.status, 401);
    up.end().await;
    assert_eq!(system.get("mine.test", "/").await.text(), "app");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_is_left_when_it_is_killed() {
    let _slot = slots::take().await;
    let mut up = Up::start().await;
    assert!(!processes_of(up.folder.path()).is_empty());
    up.child.kill().await.unwrap();
    eventually("its processes to end", || async {
        let left = processes_of(up.folder.path());
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_leads_to_the_port_that_answers_https() {
    let _slot = slots::take().await;
    let up = Up::start().await;
    let put = r#"curl -s -X PUT -H "Authorization: Bearer $(cat .signalbox/token)" -d '{"https":"redirect"}' -H 'Content-Type: application/json' "http://127.0.0.1:8081/hosts/hello.localhost?wait=20s""#;
    let answer = up.shell(put).await;
    assert!(answer.contains("\"changed\":true"), "{answer}");
    let seen = " -w ' %{http_code} %{num_redirects} %{url_effective}'";
    let https = up.ports.edge_tls;
    // The port that a client typed is that of plain HTTP, whatever it was.
    for host in ["hello.localhost", "hello.localhost:1", "hello.localhost:443"] {
        let answer = up.shell(&format!("curl -sk -o /dev/null -H 'Host: {host}' -w '%{{redirect_url}}' 'http://127.0.0.1:8080/a?q=%20x'")).await;
        assert_eq!(answer, format!("https://hello.localhost:{https}/a?q=%20x"));
    }
    let followed = up.shell(&format!("curl -skL{seen} http://hello.localhost:8080/")).await;
    assert!(followed.ends_with(&format!(" 200 1 https://hello.localhost:{https}/")), "{followed}");
    assert!(followed.contains("Hello from hello"), "{followed}");
    // A form that was sent stays one.
    let posted = up.shell(&format!("curl -skL{seen} -X POST -d a=b http://hello.localhost:8080/")).await;
    assert!(posted.ends_with(&format!(" 200 1 https://hello.localhost:{https}/")), "{posted}");
    // No request target redirects to another host.
    for target in ["//evil.test/", "/%0d%0aLocation:%20https://evil.test/", "http://evil.test/"] {
        let answer = up.shell(&format!("curl -sk -o /dev/null -H 'Host: hello.localhost' --request-target '{target}' -w '%{{http_code}} %{{redirect_url}}' http://127.0.0.1:8080/")).await;
        let led = answer
            .strip_prefix("301 ")
            .is_some_and(|to| to.starts_with(&format!("https://hello.localhost:{https}/")));
        assert!(led || answer == "404 ", "{target}: {answer}");
    }
    up.end().await;
}
