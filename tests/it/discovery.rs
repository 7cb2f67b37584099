//! `signalbox discover`: instances that are found in containers, files and DNS.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use signalbox_testkit::{PATIENCE, eventually};
use signalbox_tests::{engine::Engine, system::System, upstream::App};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::UdpSocket,
    process::{Child, Command},
    sync::Mutex,
};

use crate::up::program;

/// A running `signalbox discover`.
struct Discover {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Discover {
    fn start(system: &System, token: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.arg("discover").args(arguments).current_dir("/").env_clear().kill_on_drop(true);
        command.args(["--name", "d", "--interval", "250ms"]);
        command.env("SIGNALBOX_URL", format!("http://{}", system.admin)).env("SIGNALBOX_TOKEN", token);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let (to, mut from) = (lines.clone(), BufReader::new(child.stderr.take().unwrap()).lines());
        tokio::spawn(async move {
            while let Ok(Some(line)) = from.next_line().await {
                to.lock().await.push(line);
            }
        });
        Self { child, lines }
    }

    /// Waits until `count` lines contain `text`.
    async fn until(&self, count: usize, text: &str) {
        eventually(&format!("{count} lines with {text:?}"), || async {
            let lines = self.lines.lock().await.clone();
            if lines.iter().filter(|line| line.contains(text)).count() >= count { Ok(()) } else { Err(lines) }
        })
        .await;
    }

    async fn stop(mut self) {
        kill(Pid::from_raw(self.child.id().unwrap().try_into().unwrap()), Signal::SIGTERM).unwrap();
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        assert!(status.success(), "{status}: {:#?}", self.lines.lock().await);
    }
}

/// ID and state of each instance.
async fn instances(system: &System) -> BTreeMap<String, String> {
    let answer = system.api("GET", "/instances", None).await.json();
    let all = answer["instances"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let text = |one: &serde_json::Value, member: &str| one[member].as_str().unwrap().to_owned();
    all.iter().map(|one| (text(one, "id"), text(one, "state"))).collect()
}

async fn until_instances(system: &System, expected: &[(&str, &str)]) {
    eventually(&format!("the instances {expected:?}"), || async {
        let now = instances(system).await;
        let same = now.iter().map(|(id, state)| (&**id, &**state)).eq(expected.iter().copied());
        if same { Ok(()) } else { Err(now) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_are_routed_to_while_they_run() {
    let system = System::start("discover-docker").await;
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::start(folder.path());
    let (one, two) = (App::start("one").await, App::start("two").await);
    let ports = [&one, &two].map(|app| app.address.port().to_string());
    let labels = |port: usize| [("signalbox.host", "shop.test"), ("signalbox.port", &*ports[port])];
    engine.run("aaaaaaaaaaaa1", &labels(0));
    system.register("by-hand", &two, "other.test", "1").await;

    let socket = engine.socket.to_str().unwrap().to_owned();
    let discover =
        Discover::start(&system, &system.token, &["docker", "--socket", &socket, "--confirm", "2s"]);
    system.until_answered_by("shop.test", &one).await;
    until_instances(&system, &[("by-hand", "active"), ("d.aaaaaaaaaaaa", "active")]).await;

    // A label that cannot be understood leaves the instance as it is; other containers are not affected.
    engine.run("aaaaaaaaaaaa1", &[("signalbox.host", "shop.test"), ("signalbox.prot", "1")]);
    discover.until(1, "container aaaaaaaaaaaa1: unknown label signalbox.prot").await;
    let three = App::start("three").await;
    let port = three.address.port().to_string();
    engine.run("bbbbbbbbbbbb2", &[("signalbox.host", "b.test"), ("signalbox.port", &port)]);
    system.until_answered_by("b.test", &three).await;
    assert_eq!(system.get("shop.test", "/").await.text(), "one");

    // An engine that cannot be reached, or answers nonsense, changes nothing.
    engine.answer(Some("[{\"Id\":7}]"));
    discover.until(1, "cannot read its list of containers").await;
    engine.answer(Some(""));
    discover.until(1, "/containers/json answered 500").await;
    engine.answer(None);
    discover.until(1, "the source can be read again").await;
    engine.stop().await;
    discover.until(3, "nothing is changed").await;
    engine.start_again();
    discover.until(2, "the source can be read again").await;
    let both = [("by-hand", "active"), ("d.aaaaaaaaaaaa", "active"), ("d.bbbbbbbbbbbb", "active")];
    until_instances(&system, &both).await;

    // `docker stop`: SIGTERM drains before the container ends. One that continues to run receives requests again.
    engine.signal("bbbbbbbbbbbb2", "15");
    system.until_status("b.test", 503).await;
    engine.run("aaaaaaaaaaaa1", &labels(0));
    engine.end("aaaaaaaaaaaa1");
    discover.until(1, "d.aaaaaaaaaaaa drained").await;
    engine.run("aaaaaaaaaaaa1", &labels(0));
    discover.until(1, "d.aaaaaaaaaaaa receives requests again").await;
    system.until_answered_by("shop.test", &one).await;

    // A list without a container that did not end is doubted first.
    engine.lose("aaaaaaaaaaaa1");
    discover.until(2, "d.aaaaaaaaaaaa drained").await;
    assert_eq!(instances(&system).await["by-hand"], "active");
    discover.stop().await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_cannot_claim_a_host_outside_the_token() {
    let system = System::start("discover-token").await;
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(folder.path());
    let (bank, shop, thief) = (App::start("bank").await, App::start("shop").await, App::start("thief").await);
    system.register("bank", &bank, "bank.test", "1").await;
    let new = json!({"name": "docker", "scopes": ["routes"], "hosts": ["*.apps.test"]});
    let made = system.api("POST", "/tokens", Some(new)).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let token = made.json()["token"].as_str().unwrap().to_owned();

    let ports = [&bank, &shop, &thief].map(|app| app.address.port().to_string());
    let run = |id: &str, host: &str, port: &str| {
        engine.run(id, &[("signalbox.host", host), ("signalbox.port", port)]);
    };
    run("thief0000000", "bank.test", &ports[2]);
    // A container that is rejected cannot keep the address of another one.
    run("both00000000", "x.apps.test, bank.test", &ports[1]);
    // The address of the bank, under a host of the token.
    run("address00000", "y.apps.test", &ports[0]);
    run("good00000000", "shop.apps.test", &ports[1]);
    let socket = engine.socket.to_str().unwrap();
    let discover = Discover::start(&system, &token, &["docker", "--socket", socket]);
    discover.until(1, "d.thief0000000: the token does not cover bank.test (host_not_allowed)").await;
    discover.until(1, "d.both00000000").await;
    discover.until(1, "(address_taken)").await;
    system.until_answered_by("shop.apps.test", &shop).await;
    until_instances(&system, &[("bank", "active"), ("d.good00000000", "active")]).await;
    assert_eq!(system.get("bank.test", "/").await.text(), "bank");
    discover.stop().await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_folder_are_instances() {
    let system = System::start("discover-folder").await;
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("instances");
    std::fs::create_dir(&folder).unwrap();
    let app = App::start("app").await;
    let write = |file: &str, text: &str| std::fs::write(folder.join(file), text).unwrap();
    let toml =
        |host: &str| format!("address = '{}'\nhostnames = ['{host}']\nversion_type_id = '1'\n", app.address);
    write("shop.toml", &toml("shop.test"));
    let named = ["folder", folder.to_str().unwrap(), "--confirm", "2s"];
    let discover = Discover::start(&system, &system.token, &named);
    system.until_answered_by("shop.test", &app).await;
    write("shop.toml", &toml("new.test"));
    system.until_answered_by("new.test", &app).await;
    system.until_status("shop.test", 503).await;

    write("shop.toml", "address = ");
    discover.until(1, "shop.toml: TOML parse error").await;
    // The folder is unmounted, and what is below it appears.
    std::fs::rename(&folder, parent.path().join("away")).unwrap();
    discover.until(1, "nothing is changed").await;
    // Without discovery, the instance stays.
    discover.stop().await;
    assert_eq!(system.get("new.test", "/").await.text(), "app");

    std::fs::rename(parent.path().join("away"), &folder).unwrap();
    write("shop.toml", &toml("new.test"));
    let discover = Discover::start(&system, &system.token, &named);
    discover.until(1, "d.shop registered").await;
    std::fs::remove_file(folder.join("shop.toml")).unwrap();
    discover.until(1, "d.shop drained").await;
    system.until_status("new.test", 503).await;
    discover.stop().await;
    system.stop().await;
}

/// A name server with one SRV record for each application, or none.
async fn name_server(applications: Vec<SocketAddr>) -> (SocketAddr, Arc<AtomicBool>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let empty = Arc::new(AtomicBool::new(false));
    let is_empty = empty.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let mut answer = buffer[..length].to_vec();
            (answer[2], answer[3]) = (0x81, 0x80);
            let is_service = answer[length - 3] == 33;
            if is_service && !is_empty.load(Ordering::SeqCst) {
                answer[7] = u8::try_from(applications.len()).unwrap();
                for application in &applications {
                    let port = application.port().to_be_bytes();
                    // A record of the name in the question, for one second, whose target is `a.`.
                    answer.extend([
                        0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 1, 0, 9, 0, 0, 0, 1, port[0], port[1], 1, b'a', 0,
                    ]);
                }
            } else if !is_service && answer[length - 3] == 1 {
                answer[7] = 1;
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
            }
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    (address, empty)
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_of_srv_records_are_instances() {
    let system = System::start("discover-dns").await;
    let apps = [App::start("one").await, App::start("two").await];
    let (server, empty) = name_server(apps.iter().map(|app| app.address).collect()).await;
    let server = server.to_string();
    let named =
        ["dns", "_http._tcp.shop.test", "--host", "shop.test", "--nameserver", &server, "--confirm", "1s"];
    let discover = Discover::start(&system, &system.token, &named);
    discover.until(2, "registered at 127.0.0.1:").await;
    for app in &apps {
        system.until_answered_by("shop.test", app).await;
    }
    // A name server that lost its records removes nothing.
    empty.store(true, Ordering::SeqCst);
    discover.until(1, "there is no SRV record; nothing is changed").await;
    empty.store(false, Ordering::SeqCst);
    discover.until(1, "the source can be read again").await;
    let states: Vec<String> = instances(&system).await.into_values().collect();
    assert_eq!(states, ["active", "active"]);
    discover.stop().await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_flags_are_rejected_before_anything_is_read() {
    let missing = Path::new("/nonexistent");
    for (arguments, why) in [
        (&["docker", "--name", "a b"][..], "invalid name `a b`"),
        (&["folder", missing.to_str().unwrap(), "--confirm", "1s"][..], "--confirm at least as long"),
        (&["dns", "_http._tcp.a.test"][..], "--host <NAME>"),
        (&["dns", "a.test", "--host", "a", "--nameserver", "x"][..], "must be an IP address"),
    ] {
        let mut command = Command::new(program());
        command.arg("discover").args(arguments).env("SIGNALBOX_URL", "http://127.0.0.1:1");
        let said = command.output().await.unwrap();
        let wrong = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.code() == Some(64) && wrong.contains(why), "{arguments:?}: {wrong}");
    }
}
