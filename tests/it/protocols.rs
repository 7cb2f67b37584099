//! Protocols of the edge towards clients and instances: TLS with certificates of the table, HTTP/2, gRPC, WebSocket.

use std::{net::SocketAddr, process::Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use signalbox_stack::{Builder, Reservation};
use signalbox_testkit::eventually;
use signalbox_tests::{
    grpc::{Call, Service},
    http::{Connection, Request},
    system::System,
    tls::{Authority, TlsApp},
    upstream::App,
};
use tokio::process::Command;

/// Two more listeners: TLS, and HTTP/2 without it.
struct Listeners {
    tls: SocketAddr,
    h2c: SocketAddr,
    /// Keeps the ports, also while nginx restarts.
    _ports: Reservation,
}

/// An edge with both.
async fn start(name: &str, change: impl FnOnce(Builder) -> Builder) -> (System, Listeners) {
    let mut ports = Reservation::default();
    let mut local = || SocketAddr::from(([127, 0, 0, 1], ports.add().expect("a free port")));
    let (tls, h2c) = (local(), local());
    let at = Listeners { tls, h2c, _ports: ports };
    let (tls, h2c) = (at.tls.to_string(), at.h2c.to_string());
    let system = System::with(name, |builder| {
        let builder = builder.without_pacemaker().nginx("EDGE_TLS_LISTEN", tls).nginx("EDGE_H2C_LISTEN", h2c);
        change(builder)
    })
    .await;
    (system, at)
}

async fn rule(system: &System, host: &str, policy: &Value) {
    system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
    system.settle().await;
}

/// Writes any value, blanks and all.
async fn set(system: &System, key: &str, value: &str) {
    let client = redis::Client::open(system.stack.routes_url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    redis::cmd("SET").arg(key).arg(value).exec_async(&mut connection).await.unwrap();
    system.settle().await;
}

/// Runs curl and gives what it wrote: body, then status and version of HTTP.
async fn curl(arguments: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--max-time",
        "20",
        "--insecure",
        "--write-out",
        " %{http_code} %{http_version}",
    ]);
    let output = command.args(arguments).stdin(Stdio::null()).output().await.expect("curl");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The result of an openssl handshake: subject, issuer, and whether the chain leads to the
/// authority in `ca`.
async fn handshake(to: SocketAddr, name: Option<&str>) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &to.to_string()]);
    match name {
        Some(name) => command.args(["-servername", name]),
        None => command.arg("-noservername"),
    };
    let output = command.stdin(Stdio::null()).output().await.expect("openssl");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The common name in the certificate that is shown for `name`.
async fn shown(to: SocketAddr, name: Option<&str>) -> String {
    let text = handshake(to, name).await;
    let subject = text.lines().find_map(|line| line.strip_prefix("subject=")).unwrap_or_default();
    subject.rsplit("CN = ").next().unwrap_or_default().trim().to_owned()
}

const FALLBACK: &str = "rcgen self signed cert";

#[tokio::test(flavor = "multi_thread")]
async fn http_2_is_spoken_with_clients_that_negotiate_it() {
    let (system, at) = start("http2", Builder::without_sidecar).await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.route("ruled.test", &app).await;
    rule(&system, "ruled.test", &json!({"balance": {"algorithm": "p2c"}, "https": "only"})).await;
    for host in ["app.test", "ruled.test"] {
        let resolve = format!("{host}:{}:127.0.0.1", at.tls.port());
        let url = format!("https://{host}:{}/", at.tls.port());
        // Twice: as a miss and as known.
        for _ in 0..2 {
            assert_eq!(curl(&["--http2", "--resolve", &resolve, &url]).await, "app 200 2");
            assert_eq!(curl(&["--http1.1", "--resolve", &resolve, &url]).await, "app 200 1.1");
        }
        let body = "x".repeat(300_000);
        let echo = format!("{url}echo");
        let sent = curl(&["--http2", "--resolve", &resolve, "--data-raw", &body[..100_000], &echo]).await;
        assert!(sent.ends_with(&format!("{} 200 2", &body[..100_000])), "{}", &sent[sent.len() - 50..]);
    }
    let clear = format!("http://127.0.0.1:{}/", at.h2c.port());
    let host = "Host: app.test";
    assert_eq!(curl(&["--http2-prior-knowledge", "--header", host, &clear]).await, "app 200 2");
    let unknown = ["--http2-prior-knowledge", "--header", "Host: nobody.test", &clear];
    assert!(curl(&unknown).await.ends_with(" 404 2"));
    // nginx before 1.25.1 speaks only HTTP/2 at such a listener. Later versions route requests of HTTP/1.1, too.
    let older = curl(&["--http1.1", "--header", host, &clear]).await;
    assert!(!older.contains(" 200 ") || older == "app 200 1.1", "{older}");
    // Misuse: plain HTTP at the port for TLS, old TLS, noise.
    let plain = format!("http://127.0.0.1:{}/", at.tls.port());
    assert!(curl(&["--header", host, &plain]).await.ends_with(" 400 1.1"));
    let old = ["--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0"];
    let tls = format!("https://127.0.0.1:{}/", at.tls.port());
    assert!(!curl(&[&old[..], &[&tls]].concat()).await.contains("200"));
    for to in [at.tls, at.h2c] {
        let _whatever = Connection::open(to).await.unwrap().send_noise(b"\x00\xff\x16\x03nonsense").await;
    }
    assert_eq!(curl(&["--http2-prior-knowledge", "--header", host, &clear]).await, "app 200 2");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_come_from_the_table_and_change_without_a_reload() {
    let (system, at) = start("certificates", Builder::without_sidecar).await;
    let authority = Authority::new("test authority");
    let key = std::fs::read_to_string(system.stack.layout().edge_key()).unwrap();
    let put = async |name: &str, common_name: &str| {
        let issued = authority.issue(name, common_name);
        set(&system, &format!("cert:{name}"), &issued.sealed(name, &key)).await;
    };
    let workers = eventually("both workers", || async {
        let workers = system.workers();
        if workers.len() == 2 { Ok(workers) } else { Err(workers) }
    })
    .await;
    assert_eq!(shown(at.tls, Some("app.test")).await, FALLBACK);
    put("app.test", "first").await;
    put("*.wild.test", "wildcard").await;
    for _ in 0..4 {
        assert_eq!(shown(at.tls, Some("app.test")).await, "first");
        assert_eq!(shown(at.tls, Some("APP.test")).await, "first");
        assert_eq!(shown(at.tls, Some("a.wild.test")).await, "wildcard");
    }
    // A wildcard covers one label, and other names do not get its certificate.
    for name in [Some("a.b.wild.test"), Some("wild.test"), Some("other.test"), None] {
        assert_eq!(shown(at.tls, name).await, FALLBACK, "{name:?}");
    }
    // Replaced: from the acknowledgement on every worker shows the new one. Its own name before the wildcard.
    put("app.test", "second").await;
    put("a.wild.test", "exact").await;
    for _ in 0..6 {
        assert_eq!(shown(at.tls, Some("app.test")).await, "second");
        assert_eq!(shown(at.tls, Some("a.wild.test")).await, "exact");
    }
    system.cli::<()>(System::PRIMARY, "DEL cert:a.wild.test cert:app.test").await;
    system.settle().await;
    assert_eq!(shown(at.tls, Some("app.test")).await, FALLBACK);
    assert_eq!(shown(at.tls, Some("a.wild.test")).await, "wildcard");
    // The default for names without a certificate.
    put("*", "default").await;
    assert_eq!(shown(at.tls, Some("other.test")).await, "default");
    assert_eq!(system.workers(), workers, "without a reload");
    // A client that checks is content, and so is its request.
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    put("app.test", "third").await;
    let file = system.stack.layout().root().join("ca.pem");
    std::fs::write(&file, &authority.pem).unwrap();
    let resolve = format!("app.test:{}:127.0.0.1", at.tls.port());
    let url = format!("https://app.test:{}/", at.tls.port());
    let output = Command::new("curl")
        .args(["--silent", "--cacert", &file.display().to_string(), "--resolve", &resolve, &url])
        .output()
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "app");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_certificate_affects_no_other_host() {
    let (system, at) = start("bad-certificates", Builder::without_sidecar).await;
    let authority = Authority::new("test authority");
    let key = std::fs::read_to_string(system.stack.layout().edge_key()).unwrap();
    let issued = authority.issue("app.test", "app");
    let good = issued.sealed("app.test", &key);
    let values = [
        "nonsense".to_owned(),
        "{}".to_owned(),
        r#"{"v":1,"chain":[],"key":5}"#.to_owned(),
        // Another router's key; another name's private key; a byte changed; the key in clear.
        issued.sealed("app.test", &"ab".repeat(32)),
        issued.sealed("other.test", &key),
        good.replacen("\"key\":\"", "\"key\":\"AAAA", 1),
        json!({"chain": issued.chain, "key": issued.key}).to_string(),
        good.replace("BEGIN CERTIFICATE", "BEGIN NONSENSE"),
    ];
    for value in &values {
        set(&system, "cert:app.test", value).await;
        assert_eq!(shown(at.tls, Some("app.test")).await, FALLBACK, "{value}");
    }
    system.cli::<()>(System::PRIMARY, "DEL cert:app.test").await;
    system.cli::<()>(System::PRIMARY, "SADD cert:app.test one").await;
    system.settle().await;
    assert_eq!(shown(at.tls, Some("app.test")).await, FALLBACK);
    system.cli::<()>(System::PRIMARY, "DEL cert:app.test").await;
    set(&system, "cert:app.test", &good).await;
    assert_eq!(shown(at.tls, Some("app.test")).await, "app");
    let log = system.log_text(&System::NGINX);
    assert!(
        log.contains("the certificate of app.test in the route table cannot be used"),
        "the unusable certificate was not logged"
    );
    assert!(!log.contains("PRIVATE KEY"));
    // Invalid names, and many unknown names.
    for name in ["*", "a..b", "x_y", &"a".repeat(250), "1.2.3.4"] {
        let _whatever = shown(at.tls, Some(name)).await;
    }
    assert_eq!(shown(at.tls, Some("app.test")).await, "app");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_outlive_redis_and_a_restart_of_nginx() {
    let (system, at) = start("kept-certificates", |builder| builder).await;
    let authority = Authority::new("test authority");
    let key = std::fs::read_to_string(system.stack.layout().edge_key()).unwrap();
    set(&system, "cert:app.test", &authority.issue("app.test", "kept").sealed("app.test", &key)).await;
    assert_eq!(shown(at.tls, Some("app.test")).await, "kept");
    eventually("the snapshot to have the certificate", || async {
        let text = std::fs::read_to_string(system.snapshot_path()).unwrap_or_default();
        assert!(!text.contains("PRIVATE KEY"), "in clear on disk");
        if text.contains("\ncert\tapp.test\t") { Ok(()) } else { Err(text.len()) }
    })
    .await;
    system.kill(System::PRIMARY).await;
    system.kill(System::REPLICA).await;
    assert_eq!(shown(at.tls, Some("app.test")).await, "kept");
    system.restart(System::NGINX).await;
    for _ in 0..4 {
        assert_eq!(shown(at.tls, Some("app.test")).await, "kept");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_passes_message_by_message_with_its_trailers() {
    let (system, at) = start("grpc", Builder::without_sidecar).await;
    let service = Service::start("service").await;
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:grpc.test {}", service.address)).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:grpc.test 17").await;
    rule(&system, "grpc.test", &json!({"upstream": {"protocol": "grpc"}})).await;
    for round in 0..3 {
        let mut call = Call::open(at.h2c, "grpc.test", "/echo").await.unwrap();
        // Each is answered before the next is sent: nothing may be held back in between.
        for n in 0..5 {
            let message = format!("message {n}");
            call.send(&message).unwrap();
            assert_eq!(call.receive().await.unwrap(), Some(message), "round {round}");
        }
        let large = "x".repeat(200_000);
        call.send(&large).unwrap();
        assert_eq!(call.receive().await.unwrap().map(|message| message.len()), Some(large.len()));
        call.close().unwrap();
        let trailers = call.end().await.unwrap();
        assert_eq!(
            (&trailers["grpc-status"], &trailers["x-service"]),
            (&"0".parse().unwrap(), &"service".parse().unwrap())
        );
    }
    // The policy decides, and not the content type.
    let url = format!("http://127.0.0.1:{}/fail", at.h2c.port());
    let json = ["--http2-prior-knowledge", "--header", "Host: json.test", "--data-raw", "{}", &url];
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:json.test {}", service.address)).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:json.test 17").await;
    rule(&system, "json.test", &json!({"upstream": {"protocol": "grpc"}})).await;
    assert!(curl(&json).await.ends_with(" 200 2"));
    // The application's own failure is its own.
    let mut call = Call::open(at.h2c, "grpc.test", "/fail").await.unwrap();
    // The application may have failed the call before: then no stream is left to close.
    let _ = call.close();
    assert_eq!(call.end().await.unwrap()["grpc-status"], "9");
    let lines = system.log_lines_when(5).await;
    for line in &lines {
        assert_eq!((&line["key"], &line["code"]), (&json!("17"), &json!(200)), "{line}");
        assert_eq!(line["upstream_addr"], service.address.to_string(), "{line}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_passes_over_tls_with_its_trailers() {
    let (system, at) = start("grpc-tls", Builder::without_sidecar).await;
    let authority = Authority::new("test authority");
    let key = std::fs::read_to_string(system.stack.layout().edge_key()).unwrap();
    let issued = authority.issue("*.calls.test", "calls");
    set(&system, "cert:*.calls.test", &issued.sealed("*.calls.test", &key)).await;
    let service = Service::start("service").await;
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:a.calls.test {}", service.address)).await;
    rule(&system, "a.calls.test", &json!({"upstream": {"protocol": "grpc"}})).await;
    let open =
        async |host: &str, path: &str| Call::open_tls(at.tls, host, path, &authority.pem).await.unwrap();
    for round in 0..3 {
        let mut call = open("a.calls.test", "/echo").await;
        for n in 0..5 {
            let message = format!("message {n}");
            call.send(&message).unwrap();
            assert_eq!(call.receive().await.unwrap(), Some(message), "round {round}");
        }
        call.close().unwrap();
        let trailers = call.end().await.unwrap();
        assert_eq!(
            (&trailers["grpc-status"], &trailers["x-service"]),
            (&"0".parse().unwrap(), &"service".parse().unwrap())
        );
    }
    for (host, path, status) in [("a.calls.test", "/fail", "9"), ("nobody.calls.test", "/echo", "12")] {
        let mut call = open(host, path).await;
        let _refused_meanwhile = call.close();
        assert_eq!(call.end().await.unwrap()["grpc-status"], status, "{host}{path}");
    }
    // A client that trusts another authority does not begin, and one that disconnects in the middle
    // affects no other client.
    let stranger = Authority::new("another authority");
    assert!(Call::open_tls(at.tls, "a.calls.test", "/echo", &stranger.pem).await.is_err());
    let mut cut = open("a.calls.test", "/echo").await;
    cut.send("never answered to its end").unwrap();
    drop(cut);
    let mut call = open("a.calls.test", "/echo").await;
    call.send("x").unwrap();
    assert_eq!(call.receive().await.unwrap().as_deref(), Some("x"));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_client_receives_errors_as_grpc_statuses() {
    let (system, at) = start("grpc-failures", Builder::without_sidecar).await;
    let mut nobody = Reservation::default();
    let dead = format!("127.0.0.1:{}", nobody.add().expect("a free port"));
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:dead.test {dead}")).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:empty.test 17").await;
    rule(&system, "dead.test", &json!({"upstream": {"protocol": "grpc"}})).await;
    system.allow("connect() failed");
    // UNIMPLEMENTED for what is not there, UNAVAILABLE for what may be repeated.
    for (host, status, reason) in [
        ("nobody.test", "12", "no_route"),
        ("empty.test", "14", "no_instance"),
        ("dead.test", "14", "connect_failed"),
    ] {
        let mut call = Call::open(at.h2c, host, "/echo").await.unwrap();
        let _refused_meanwhile = call.send("x");
        let _refused_meanwhile = call.close();
        let end = call.end().await.unwrap();
        assert_eq!(
            (end["grpc-status"].to_str().unwrap(), &end["x-signalbox-error"]),
            (status, &reason.parse().unwrap()),
            "{host}"
        );
        assert!(end.contains_key("grpc-message"), "{host}: {end:?}");
    }
    // The response has the status 200. The log has the one that it means, because statistics and states of hosts follow it.
    let logged: Vec<Value> =
        system.log_lines_when(3).await.into_iter().map(|line| line["code"].clone()).collect();
    assert_eq!(logged, [404, 503, 502]);
    // It fails over like anything else that was not sent.
    let alive = Service::start("alive").await;
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:dead.test {}", alive.address)).await;
    system.settle().await;
    for _ in 0..6 {
        let mut call = Call::open(at.h2c, "dead.test", "/echo").await.unwrap();
        call.send("x").unwrap();
        assert_eq!(call.receive().await.unwrap().as_deref(), Some("x"));
        call.close().unwrap();
        assert_eq!(call.end().await.unwrap()["grpc-status"], "0");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_speak_tls_have_to_prove_their_name() {
    let authority = Authority::new("instances' authority");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &authority.pem).unwrap();
    let (system, _at) = start("upstream-tls", |builder| {
        builder.without_sidecar().nginx("EDGE_UPSTREAM_CA", file.display().to_string())
    })
    .await;
    let trusted = TlsApp::start(&authority.issue("inner.test", "inner")).await;
    let stranger = TlsApp::start(&Authority::new("nobody").issue("inner.test", "inner")).await;
    for (host, app) in [("app.test", &trusted), ("second.test", &trusted), ("strange.test", &stranger)] {
        system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {}", app.address)).await;
    }
    system.allow("upstream SSL certificate");
    let named = json!({"upstream": {"tls": true, "server_name": "inner.test"}});
    rule(&system, "app.test", &named).await;
    for _ in 0..3 {
        let answer = system.get("app.test", "/").await;
        assert_eq!(
            (answer.status, &*answer.text()),
            (200, "inner.test"),
            "the name of the policy is asked for"
        );
    }
    // Another name at the same address is verified separately, although a verified connection
    // exists.
    rule(&system, "second.test", &json!({"upstream": {"tls": true}})).await;
    let answer = system.get("second.test", "/").await;
    assert_eq!((answer.status, answer.reason()), (502, "connect_failed"), "{}", answer.text());
    assert!(trusted.names().contains(&"second.test".to_owned()), "{:?}", trusted.names());
    rule(&system, "strange.test", &named).await;
    assert_eq!(system.get("strange.test", "/").await.status, 502);
    // Verification can be disabled.
    let trusting = json!({"upstream": {"tls": true, "server_name": "inner.test", "verify": false}});
    rule(&system, "strange.test", &trusting).await;
    assert_eq!(system.get("strange.test", "/").await.status, 200);
    assert_eq!(system.get("app.test", "/").await.status, 200);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_lives_through_any_change() {
    let system = System::edge_only("websocket-changes").await;
    let (app, other) = (App::start("app").await, App::start("other").await);
    system.route("plain.test", &app).await;
    system.route("ruled.test", &app).await;
    rule(&system, "ruled.test", &json!({"balance": {"algorithm": "p2c"}, "retries": {"attempts": 2}})).await;
    let mut sockets = Vec::new();
    for host in ["plain.test", "ruled.test", "plain.test", "ruled.test"] {
        let mut socket = Connection::open(system.edge).await.unwrap();
        let upgrade = Request::get(host, "/live")
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(socket.send(&upgrade).await.unwrap().status, 101, "{host}");
        sockets.push(socket);
    }
    let speak = async |sockets: &mut Vec<Connection>, when: &str| {
        for socket in sockets.iter_mut() {
            for message in [&b"\x81\x03one"[..], b"\x82\x04\x00\xff\r\n"] {
                socket.write(message).await.unwrap_or_else(|error| panic!("{when}: {error}"));
                assert_eq!(socket.read_exactly(message.len()).await.unwrap(), message, "{when}");
            }
        }
    };
    speak(&mut sockets, "at first").await;
    for host in ["plain.test", "ruled.test"] {
        system.route(host, &other).await;
        system.settle().await;
        speak(&mut sockets, "with another instance").await;
        rule(&system, host, &json!({"draining": [app.address.to_string()]})).await;
        speak(&mut sockets, "while draining").await;
        system.cli::<()>(System::PRIMARY, &format!("SREM instances:{host} {}", app.address)).await;
        system.settle().await;
        assert_eq!(&*system.get(host, "/").await.text(), "other");
        speak(&mut sockets, "after its instance left the table").await;
        system.cli::<()>(System::PRIMARY, &format!("DEL policy:{host} instances:{host}")).await;
        system.settle().await;
        speak(&mut sockets, "after its host is gone").await;
    }
    let before = system.workers();
    system.signal(System::NGINX, Signal::SIGHUP);
    eventually("new workers", || async {
        let workers = system.workers();
        if !workers.is_empty() && workers.iter().all(|pid| !before.contains(pid)) {
            Ok(())
        } else {
            Err(workers)
        }
    })
    .await;
    speak(&mut sockets, "after a reload").await;
    system.kill(System::PRIMARY).await;
    system.kill(System::REPLICA).await;
    speak(&mut sockets, "without Redis").await;
    drop(sockets);
    system.stop().await;
}
