//! Certificates through the API, in front of real handshakes.

use std::{net::SocketAddr, path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::Response,
    receiver::Receiver,
    system::System,
    tls::{Authority, Issued},
    upstream::App,
};
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::command::type_in;

/// A whole system with a TLS listener.
async fn start(name: &str) -> (System, SocketAddr) {
    let bus = toml::Table::from_iter([
        ("allow_http".to_owned(), true.into()),
        ("allow_networks".to_owned(), vec!["127.0.0.0/8"].into()),
    ]);
    let system = System::with(name, |builder| builder.pacemaker("bus", bus)).await;
    let tls = SocketAddr::from(([127, 0, 0, 1], system.stack.ports().edge_tls));
    (system, tls)
}

async fn put(system: &System, name: &str, issued: &Issued) -> Response {
    let body = json!({"chain": issued.chain, "key": issued.key});
    system.api("PUT", &format!("/certificates/{name}?wait=20s"), Some(body)).await
}

async fn put_well(system: &System, name: &str, issued: &Issued) -> Value {
    let answer = put(system, name, issued).await;
    assert!(matches!(answer.status, 200 | 201), "{name}: {} {}", answer.status, answer.text());
    answer.json()
}

/// The common name in the certificate that openssl is shown for `name`.
async fn shown(to: SocketAddr, name: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &to.to_string(), "-servername", name]).stdin(Stdio::null());
    let output = command.output().await.expect("openssl");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let subject = text.lines().find_map(|line| line.strip_prefix("subject=")).unwrap_or_default();
    subject.rsplit("CN = ").next().unwrap_or_default().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_uploads_a_certificate_that_is_then_served() {
    let (system, tls) = start("certificates-upload").await;
    let app = App::start("app").await;
    system.register("one", &app, "app.test", "17").await;
    let issued = Authority::new("test authority").issue("app.test", "uploaded by the command");
    let folder = tempfile::tempdir().unwrap();
    let [chain, key] = [("chain.pem", &issued.chain), ("key.pem", &issued.key)].map(|(name, pem)| {
        let file = folder.path().join(name);
        std::fs::write(&file, pem).unwrap();
        file.to_string_lossy().into_owned()
    });
    let upload = ["certificates", "upload", "app.test", "--chain", &chain, "--key", &key, "--wait", "20s"];
    let said = type_in(&system, &upload).await.done().out;
    assert!(said.starts_with("certificate of app.test uploaded, valid for "), "{said}");
    assert_eq!(shown(tls, "app.test").await, "uploaded by the command");
    assert!(type_in(&system, &upload).await.done().out.contains("unchanged"));

    let swapped = ["certificates", "upload", "app.test", "--chain", &key, "--key", &chain];
    let refused = type_in(&system, &swapped).await;
    assert_eq!(refused.code, Some(65), "{}", refused.wrong);
    assert!(refused.wrong.contains("invalid_chain"), "{}", refused.wrong);
    let missing = ["certificates", "upload", "app.test", "--chain", "no-such-file", "--key", &key];
    assert_eq!(type_in(&system, &missing).await.code, Some(64));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_served_by_every_worker_when_its_put_is_answered() {
    let (system, tls) = start("certificates-put").await;
    let authority = Authority::new("test authority");
    let app = App::start("app").await;
    system.register("one", &app, "app.test", "17").await;
    let workers = system.workers();
    put_well(&system, "*.wild.test", &authority.issue("*.wild.test", "wildcard")).await;
    for common_name in ["first", "second", "third"] {
        let issued = authority.issue("app.test", common_name);
        assert_eq!(put_well(&system, "app.test", &issued).await["changed"], true);
        assert_eq!(put_well(&system, "app.test", &issued).await["changed"], false);
        for _ in 0..4 {
            assert_eq!(shown(tls, "app.test").await, common_name);
            assert_eq!(shown(tls, "a.wild.test").await, "wildcard");
        }
    }
    // A client that checks the chain is content, speaks HTTP/2, and the private key is nowhere in clear.
    let file = system.stack.layout().root().join("ca.pem");
    std::fs::write(&file, &authority.pem).unwrap();
    let (resolve, url) =
        (format!("app.test:{}:127.0.0.1", tls.port()), format!("https://app.test:{}/", tls.port()));
    let output = Command::new("curl")
        .args(["--silent", "--cacert", &file.display().to_string(), "--resolve", &resolve, &url])
        .args(["--write-out", " %{http_version}"])
        .output()
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "app 2");
    let shown_text: String = system.cli(System::REPLICA, "GET cert:app.test").await;
    assert!(shown_text.contains("BEGIN CERTIFICATE") && !shown_text.contains("PRIVATE"), "{shown_text}");
    // A certificate that would break handshakes is rejected, and the previous one stays in use.
    let (one, other) = (authority.issue("app.test", "one"), authority.issue("app.test", "other"));
    for (name, issued, code) in [
        ("app.test", Issued { key: other.key.clone(), ..one.clone() }, "key_mismatch"),
        ("other.test", one.clone(), "name_not_covered"),
        ("app.test", Issued { chain: format!("{}{}", one.chain, other.chain), ..one.clone() }, "chain_order"),
        ("app.test", authority.issue_for_years("app.test", "old", 2001, 2002), "certificate_expired"),
    ] {
        let answer = put(&system, name, &issued).await;
        assert_eq!((answer.status, &answer.json()["code"]), (422, &json!(code)), "{}", answer.text());
    }
    assert_eq!(shown(tls, "app.test").await, "third");
    // Without its own a name has nothing but the listener's.
    let removed = system.api("DELETE", "/certificates/app.test?wait=20s", None).await;
    assert_eq!(removed.status, 204, "{}", removed.text());
    assert_eq!(shown(tls, "app.test").await, "rcgen self signed cert");
    assert_eq!(system.workers(), workers, "nothing was reloaded");
    system.stop().await;
}

/// Whether a request to `app.test` resumed the session in `file`. If there is none, the session is stored there.
async fn resumed(to: SocketAddr, version: &str, file: &Path) -> bool {
    let mut command = Command::new("openssl");
    command.args(["s_client", version, "-connect", &to.to_string(), "-servername", "app.test", "-ign_eof"]);
    command.arg(if file.exists() { "-sess_in" } else { "-sess_out" }).arg(file);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = command.spawn().expect("openssl");
    let mut stdin = client.stdin.take().expect("a pipe");
    let request = b"GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n";
    stdin.write_all(request).await.unwrap();
    // The end of its input would end the client before the answer. The edge closes the connection.
    let output = client.wait_with_output().await.unwrap();
    drop(stdin);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("HTTP/1.1 200 "), "{text}");
    text.contains("\nReused, ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_resumed_after_a_restart_and_by_a_router_with_another_certificate() {
    let (system, tls) = start("certificates-resumed").await;
    let app = App::start("app").await;
    system.register("one", &app, "app.test", "17").await;
    let root = system.stack.layout().root().to_owned();
    let (new, old) = (root.join("tls-1.3"), root.join("tls-1.2"));
    for (version, file) in [("-tls1_3", &new), ("-tls1_2", &old)] {
        assert!(!resumed(tls, version, file).await, "{version}");
        // More often than there are workers.
        for _ in 0..6 {
            assert!(resumed(tls, version, file).await, "{version}");
        }
    }
    let other = Authority::new("test authority").issue("router.test", "other");
    let router = system.stack.layout().nginx_prefix(1);
    std::fs::write(router.join("tls.crt"), &other.chain).unwrap();
    std::fs::write(router.join("tls.key"), &other.key).unwrap();
    system.restart(System::NGINX).await;
    system.until_answered_by("app.test", &app).await;
    assert_eq!(shown(tls, "app.test").await, "other");
    assert!(resumed(tls, "-tls1_3", &new).await);
    assert!(!resumed(tls, "-tls1_2", &old).await, "its session was in the memory of this nginx");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_primary_gets_its_certificates_again_and_subscribers_are_notified() {
    let (system, tls) = start("certificates-reseed").await;
    let receiver = Receiver::start().await;
    let body = json!({"topics": ["signalbox.certificates"], "callback": receiver.url(), "timeout": 0, "concurrency": 1});
    let answer = system.api("POST", "/subscription", Some(body)).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    let authority = Authority::new("test authority");
    let (seconds, _): (u64, u64) = system.cli(System::PRIMARY, "TIME").await;
    let soon = authority.issue_until("app.test", "soon", Duration::from_secs(seconds + 3 * 24 * 3600));
    put_well(&system, "app.test", &soon).await;
    // An approaching expiry is reported immediately.
    let changes = || {
        let data = |event: &Value| format!("{} {}", event["data"]["change"], event["data"]["days_left"]);
        receiver.events().iter().map(data).collect::<Vec<_>>()
    };
    eventually("both events", || async {
        let now = changes();
        if now == ["\"put\" null", "\"expiring\" 7"] { Ok(()) } else { Err(now) }
    })
    .await;
    // A router keeps presenting its certificates while the table is unavailable or being rebuilt.
    assert_eq!(shown(tls, "app.test").await, "soon");
    system.restart_empty(System::PRIMARY).await;
    eventually("the table to be seeded again", || async {
        let key: Option<String> = system.try_cli(System::PRIMARY, "GET cert:app.test").await.unwrap_or(None);
        let serial = system.try_cli::<u64>(System::PRIMARY, "EXISTS epoch").await;
        if key.is_some() && serial == Ok(1) { Ok(()) } else { Err(format!("{key:?} {serial:?}")) }
    })
    .await;
    assert_eq!(shown(tls, "app.test").await, "soon");
    system.stop().await;
    assert_eq!(changes().len(), 2, "one event per change: {:?}", changes());
}
