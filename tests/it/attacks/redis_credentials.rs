//! A process on the same machine does not get anything from Redis, and a component gets no more than its work needs.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use serde_json::json;
use signalbox_stack::{Part, Secrets, User};
use signalbox_testkit::eventually;
use signalbox_tests::{http::Request, system::System, upstream::App};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::{TcpStream, UnixStream},
};

/// Sends inline commands, and returns the first line of each answer.
async fn answers(stream: impl AsyncRead + AsyncWrite + Unpin, commands: &[&str]) -> Vec<String> {
    let mut stream = BufReader::new(stream);
    let mut answers = Vec::new();
    for command in commands {
        stream.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        answers.push(line.trim_end().to_owned());
    }
    answers
}

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.unwrap()
}

fn ports(system: &System) -> [(&'static str, u16); 4] {
    let ports = system.stack.ports();
    [
        ("routes", ports.routes),
        ("routes-replica", ports.routes_replica),
        ("stats", ports.stats),
        ("fabric", ports.fabric),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_process_without_a_password_cannot_use_any_redis() {
    let system = System::start("attack-redis-open").await;
    let commands = ["PING", "GET serial", "HGETALL tokens", "CONFIG GET dir", "FLUSHALL", "AUTH default x"];
    let mut all = Vec::new();
    for (name, port) in ports(&system) {
        all.push((name, answers(connect(port).await, &commands).await));
    }
    let socket = system.stack.layout().replica_socket(1);
    let mode = fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o660, "{mode:o}");
    all.push(("socket", answers(UnixStream::connect(socket).await.unwrap(), &commands).await));
    for (name, answers) in all {
        for (command, answer) in commands.iter().zip(answers) {
            let rejected = answer.starts_with("-NOAUTH") || answer.starts_with("-WRONGPASS");
            assert!(rejected, "{name}: {command}: {answer}");
        }
    }
    system.forget_redis_rejections().await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_login_of_one_component_is_of_no_use_for_the_work_of_another() {
    let system = System::start("attack-redis-users").await;
    let secrets = system.stack.layout().secrets();
    let everywhere = [
        "CONFIG GET *",
        "FLUSHALL",
        "KEYS *",
        "SHUTDOWN NOSAVE",
        "REPLICAOF NO ONE",
        "ACL LIST",
        "LATENCY DOCTOR",
        "MIGRATE 127.0.0.1 1 x 0 1",
        "MODULE LIST",
        "MONITOR",
        "SAVE",
        "CLIENT LIST",
        "SCRIPT FLUSH",
        "FUNCTION FLUSH",
    ];
    let all = ports(&system);
    for (user, server, more) in [
        (User::Edge, "routes-replica", &["SET serial 1", "GET revision", "HGETALL instance:i", "INFO"][..]),
        (User::Sidecar, "routes-replica", &["GET policy:a.test", "GET cert:a.test", "SET serial 1"]),
        (
            User::Sidecar,
            "stats",
            &["HSET tokens a b", "HDEL tokens a", "GET fabric", "SADD node:a b", "DEL routers"],
        ),
        (User::Pacemaker, "stats", &["SET position:a 1", "HSET stat:1 requests 1", "SUBSCRIBE other"]),
        (User::Pacemaker, "routes", &[]),
        (User::Pacemaker, "fabric", &[]),
        (User::Replica, "routes", &["GET serial", "SET serial 1"]),
        (User::Sentinel, "routes", &["GET serial"]),
        (User::Health, "fabric", &["HGETALL tokens", "SUBSCRIBE a"]),
    ] {
        let port = all.iter().find(|(name, _)| *name == server).unwrap().1;
        let login = format!("AUTH {} {}", user.name(), secrets.password(user).unwrap());
        // The sidecar follows the primary at its own router's replica, which only the edge reads.
        let may_follow = user == User::Sentinel || (user == User::Sidecar && server == "routes-replica");
        let allowed = |command: &&str| may_follow && *command == "REPLICAOF NO ONE";
        let commands: Vec<&str> = [&*login]
            .into_iter()
            .chain(everywhere.into_iter().filter(|command| !allowed(command)))
            .chain(more.iter().copied())
            .collect();
        let answers = answers(connect(port).await, &commands).await;
        assert_eq!(answers[0], "+OK", "{user:?} at {server}");
        for (command, answer) in commands.iter().zip(&answers).skip(1) {
            assert!(answer.starts_with("-NOPERM"), "{user:?} at {server}: {command}: {answer}");
        }
    }
    // And no login at a server where there is nothing to do.
    for (user, server) in [
        (User::Edge, "routes"),
        (User::Edge, "stats"),
        (User::Edge, "fabric"),
        (User::Sidecar, "routes"),
        (User::Sidecar, "fabric"),
        (User::Pacemaker, "routes-replica"),
    ] {
        let port = all.iter().find(|(name, _)| *name == server).unwrap().1;
        let login = format!("AUTH {} {}", user.name(), secrets.password(user).unwrap());
        let answer = answers(connect(port).await, &[&login]).await;
        assert!(answer[0].starts_with("-WRONGPASS"), "{user:?} at {server}: {answer:?}");
    }
    system.forget_redis_rejections().await;
    system.stop().await;
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => files_below(&path, found),
            Ok(metadata) if metadata.is_file() => found.push(path),
            _ => {}
        }
    }
}

/// Whether another user than the owner and the group of nginx's workers can read a file, the modes of its folders included.
fn is_open(path: &Path, root: &Path) -> bool {
    let is_closed = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o005 == 0;
    fs::metadata(path).unwrap().permissions().mode() & 0o004 != 0
        && !path.ancestors().skip(1).take_while(|folder| *folder != root).any(is_closed)
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_open_file_no_command_line_no_log_and_no_metric() {
    let system = System::start("attack-redis-leaks").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "7").await;
    assert_eq!(system.get("app.test", "/").await.status, 200);
    let layout = system.stack.layout();
    let users = [User::Operator, User::Pacemaker, User::Sidecar, User::Edge, User::Replica];
    let mut secrets: Vec<String> =
        users.iter().map(|user| layout.secrets().password(*user).unwrap()).collect();
    let different: BTreeSet<&String> = secrets.iter().collect();
    assert_eq!(different.len(), secrets.len(), "each user has a password of its own");
    secrets.push(system.token.clone());
    for file in [layout.edge_key(), layout.secrets().daemons_key()] {
        secrets.push(fs::read_to_string(file).unwrap().trim().to_owned());
    }
    let leaked = |text: &[u8]| {
        secrets.iter().position(|secret| text.windows(secret.len()).any(|part| part == secret.as_bytes()))
    };

    let mut files = Vec::new();
    files_below(layout.root(), &mut files);
    let mut holding = 0;
    for path in files {
        if leaked(&fs::read(&path).unwrap()).is_some() {
            assert!(!is_open(&path, layout.root()), "{} has a secret", path.display());
            assert!(!path.starts_with(layout.logs()), "{} has a secret", path.display());
            holding += 1;
        }
    }
    assert!(holding >= secrets.len(), "the search finds the files of the secrets");
    for part in [System::PACEMAKER, System::SIDECAR] {
        let path = layout.daemon_config(&part);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    for part in system.stack.parts() {
        let Some(pid) = part.pid() else { continue };
        for file in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            assert_eq!(leaked(&text), None, "{file} of {}", part.part());
        }
        assert_eq!(leaked(part.address().as_bytes()), None, "{}", part.address());
    }
    // The table contains headers of policies, which may be secrets.
    let snapshot = eventually("the snapshot of the table", || {
        std::future::ready(fs::metadata(system.snapshot_path()).map_err(|error| error.to_string()))
    })
    .await;
    assert_eq!(snapshot.permissions().mode() & 0o777, 0o640);
    for path in ["/metrics", "/edge/status"] {
        assert_eq!(leaked(system.edge_api(path).await.text().as_bytes()), None, "{path}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_has_nothing_with_which_it_could_act_as_root() {
    let system = System::start("attack-router-root").await;
    let layout = system.stack.layout();
    let config = fs::read_to_string(layout.daemon_config(&System::SIDECAR)).unwrap();
    assert!(!config.contains("root_token_file") && !config.contains(&system.token), "{config}");
    let digest = fs::read_to_string(layout.secrets().token_digest()).unwrap();
    // The sidecar's digest is not a token, here or there.
    for address in [system.pacemaker, system.sidecar] {
        let target = if address == system.sidecar { "/stats/version_type/7" } else { "/tokens" };
        let request = Request::get(&address.to_string(), target).token(digest.trim());
        let answer = request.send(address).await.unwrap();
        assert_eq!(answer.status, 401, "{target}: {}", answer.text());
    }
    let request = Request::get(&system.sidecar.to_string(), "/stats/version_type/7").token(&system.token);
    assert_eq!(request.send(system.sidecar).await.unwrap().status, 200, "the operator can read there");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_passwords_are_changed_while_traffic_is_served() {
    let system = System::start("redis-rotation").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "7").await;
    let root = system.stack.layout().root().to_owned();
    let secrets = system.stack.layout().secrets();
    let before = secrets.password(User::Edge).unwrap();
    for user in [User::Edge, User::Sidecar, User::Pacemaker, User::Replica] {
        fs::write(secrets.password_file(user), "").unwrap();
    }
    let secrets = Secrets::create(&root).unwrap();
    assert_ne!(secrets.password(User::Edge).unwrap(), before);
    let replica = secrets.password(User::Replica).unwrap();
    system.cli::<()>(System::REPLICA, &format!("CONFIG SET masterauth {replica}")).await;
    for part in System::REDIS {
        system.cli::<()>(part, "ACL LOAD").await;
    }
    // The old password is of no use.
    let login = format!("AUTH edge {before}");
    let old = answers(connect(system.stack.ports().routes_replica).await, &[&login]).await;
    assert!(old[0].starts_with("-WRONGPASS"), "{old:?}");
    // Every part works with the new one: a change reaches the router, and its requests are counted.
    eventually("a change to be accepted and served", || async {
        assert_eq!(system.get("app.test", "/").await.status, 200, "requests are served all the time");
        let body = json!({"address": app.address.to_string(), "hostnames": ["new.test", "app.test"], "version_type_id": "8"});
        let answer = system.api("PUT", "/instances/i-1?wait=5s", Some(body)).await;
        if matches!(answer.status, 200 | 201) { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    assert_eq!(system.get("new.test", "/").await.status, 200);
    eventually("the request to be counted", || async {
        let answer = system.api("GET", "/stats/version_type/8", None).await;
        if answer.status == 200 && answer.json()["requests"].as_u64() >= Some(1) {
            Ok(())
        } else {
            Err(answer.text())
        }
    })
    .await;
    system.forget_redis_rejections().await;
    system.stop().await;
}

/// Redis 7.0 loads its append-only file as the user `default`, and checks what that user may do in a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn servers_with_users_load_the_writes_of_scripts_after_a_kill() {
    let system = System::start("redis-users-restart").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "7").await;
    let token = system.token("reader", &["read"]).await;
    let before: i64 = system.cli(System::FABRIC, "DBSIZE").await;
    for part in [System::FABRIC, System::STATS, System::PRIMARY] {
        system.kill(part.clone()).await;
        system.start_part(part).await;
    }
    let after: i64 = system.cli(System::FABRIC, "DBSIZE").await;
    assert!(after >= before, "{before} keys before, {after} after");
    eventually("the token to be known again", || async {
        let request = Request::get(&system.admin.to_string(), "/instances/i-1").token(&token);
        let answer = request.send(system.admin).await.unwrap();
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    // The servers rejected nothing while they loaded: `stop` checks it.
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_reports_a_redis_without_a_password() {
    let system = System::start("doctor-open-redis").await;
    system.cli::<()>(Part::STATS, "ACL SETUSER default on nopass ~* &* +@all").await;
    let url = system.stack.stats_url();
    let output = tokio::process::Command::new(crate::up::program())
        .args(["doctor", "--json", "--skip-log", "--redis", &format!("stats={url}")])
        .env_clear()
        .env("SIGNALBOX_URL", format!("http://{}", system.admin))
        .env("SIGNALBOX_TOKEN", &system.token)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answer: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let found = answer["findings"].as_array().unwrap().iter().find(|one| one["id"] == "redis-unprotected");
    assert!(found.is_some(), "{answer}");
    assert!(!text.contains(&system.stack.layout().secrets().password(User::Operator).unwrap()), "{text}");
    system.stop().await;
}
