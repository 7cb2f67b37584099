//! Automatic HTTPS, against a real ACME server that rejects nonces on purpose.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use signalbox_testkit::{Ports, eventually, eventually_within};
use signalbox_tests::http::moment;
use signalbox_tests::{
    acme::{AcmeServer, Act, Seen},
    http::Request,
    receiver::{Answer, Receiver, allowed},
    system::System,
    upstream::App,
};
use tokio::process::Command;

use super::command::type_in;

/// Issuance is several seconds of cryptography on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const DAY: u64 = 24 * 3600;

/// The section `[acme]` of the pacemaker.
fn section(directory: &str, keys: &[(&str, toml::Value)]) -> toml::Table {
    let mut table = toml::Table::from_iter([
        ("directory".to_owned(), directory.into()),
        ("terms_agreed".to_owned(), true.into()),
        ("claim_seconds".to_owned(), 4.into()),
        ("retry_seconds".to_owned(), 1.into()),
    ]);
    table.extend(keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    table
}

/// A system whose pacemaker orders from `server` by way of its relay.
pub(crate) async fn start(
    name: &str,
    server: &mut AcmeServer,
    valid_seconds: u64,
    keys: &[(&str, toml::Value)],
) -> System {
    let mut section = section(&server.relayed(), keys);
    section.insert("ca_file".to_owned(), server.ca_file().display().to_string().into());
    let system =
        System::with(name, |builder| builder.pacemaker("acme", section).pacemaker("bus", allowed())).await;
    server.start(system.edge.port(), valid_seconds).await;
    system
}

async fn set_auto(system: &System, host: &str) {
    let answer = system.api("PUT", &format!("/hosts/{host}"), Some(json!({"tls": "auto"}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn state_of(system: &System, name: &str) -> Value {
    system.api("GET", &format!("/acme/names/{name}"), None).await.json()
}

pub(crate) async fn until_issued(system: &System, name: &str) -> Value {
    eventually_within(PATIENCE, &format!("a certificate of {name}"), || async {
        let state = state_of(system, name).await;
        if state["state"] == "issued" { Ok(state) } else { Err(state.to_string()) }
    })
    .await
}

pub(crate) fn tls(system: &System) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], system.stack.ports().edge_tls))
}

/// The answer for `name` over HTTPS to a client that trusts only `root`.
async fn fetched(system: &System, server: &AcmeServer, name: &str) -> Result<String, String> {
    let file = system.stack.layout().root().join("acme-root.pem");
    std::fs::write(&file, server.root().await).unwrap();
    let port = tls(system).port();
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--cacert", &file.display().to_string()])
        .args(["--resolve", &format!("{name}:{port}:127.0.0.1"), &format!("https://{name}:{port}/")])
        .output()
        .await
        .unwrap();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// The serial number of the certificate that is presented for `name`, and who issued it.
pub(crate) async fn presented(system: &System, name: &str) -> (String, String) {
    let mut command = Command::new("sh");
    let script = "openssl s_client -connect \"$0\" -servername \"$1\" </dev/null 2>/dev/null | openssl x509 -noout -serial -issuer";
    command.args(["-c", script, &tls(system).to_string(), name]).stdin(Stdio::null());
    let text = String::from_utf8(command.output().await.unwrap().stdout).unwrap();
    let line =
        |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_default().to_owned();
    (line("serial="), line("issuer="))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_has_https_without_an_operator_and_a_restart_orders_nothing() {
    let mut server = AcmeServer::reserve().await;
    // Directly over TLS, with a certificate of a private authority.
    let ca_file = server.ca_file().display().to_string();
    let section = section(
        &server.directory(),
        &[("ca_file", ca_file.into()), ("hosts", vec!["*.covered.test"].into())],
    );
    let system =
        System::with("acme-auto", |builder| builder.pacemaker("acme", section).pacemaker("bus", allowed()))
            .await;
    server.start(system.edge.port(), 90 * DAY).await;
    let receiver = Receiver::start().await;
    let topics = ["signalbox.certificate.issued", "signalbox.certificate.failed"];
    let body = json!({"topics": topics, "callback": receiver.url(), "timeout": 0, "concurrency": 1});
    assert_eq!(system.api("POST", "/subscription", Some(body)).await.status, 204);
    let app = App::start("app").await;
    system.register("one", &app, "app.test", "17").await;
    let covered = App::start("app").await;
    system.register("two", &covered, "a.covered.test", "17").await;
    set_auto(&system, "app.test").await;
    let state = until_issued(&system, "app.test").await;
    until_issued(&system, "a.covered.test").await;
    let (ends, renews) = (moment(&state["not_after"]) / 1000, moment(&state["renews_at"]) / 1000);
    assert!((27 * DAY..=34 * DAY).contains(&(ends - renews)), "{state}");
    for name in ["app.test", "a.covered.test"] {
        assert_eq!(fetched(&system, &server, name).await.as_deref(), Ok("app"), "{name}");
    }
    let mut names: Vec<String> = receiver
        .until_events(2)
        .await
        .iter()
        .map(|event| format!("{} {}", event["topic"], event["data"]["server_name"]).replace('"', ""))
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["signalbox.certificate.issued a.covered.test", "signalbox.certificate.issued app.test"]
    );
    // Neither the account's key nor that of a certificate is stored in the clear.
    let accounts: Vec<String> = system.cli(System::FABRIC, "HVALS acme:accounts").await;
    assert_eq!(accounts.len(), 1);
    assert!(!accounts[0].contains("key_pkcs8") && !accounts[0].contains('{'), "{}", accounts[0]);
    let serials = (presented(&system, "app.test").await, presented(&system, "a.covered.test").await);
    system.kill(System::PACEMAKER).await;
    system.start_part(System::PACEMAKER).await;
    assert_eq!(until_issued(&system, "app.test").await["issued_at"], state["issued_at"]);
    assert_eq!(serials, (presented(&system, "app.test").await, presented(&system, "a.covered.test").await));
    // A host that is not automatic anymore keeps its certificate, which is not renewed.
    let answer = system.api("PUT", "/hosts/app.test", Some(json!({"tls": "manual"}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    eventually("the name to be left to the operator", || async {
        let answer = system.api("GET", "/acme/names/app.test", None).await;
        if answer.status == 404 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    assert_eq!(fetched(&system, &server, "app.test").await.as_deref(), Ok("app"));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_and_stays_while_the_server_is_away() {
    let mut server = AcmeServer::reserve().await;
    let system = start("acme-renew", &mut server, 30, &[]).await;
    let app = App::start("app").await;
    system.register("one", &app, "app.test", "17").await;
    set_auto(&system, "app.test").await;
    until_issued(&system, "app.test").await;
    let first = presented(&system, "app.test").await;
    eventually_within(PATIENCE, "a renewed certificate", || async {
        let now = presented(&system, "app.test").await;
        if now.0 != first.0 && now.1 == first.1 { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    // The server answers nonsense, and later nothing at all.
    server.on_request(|_| Act::Answer("503 Service Unavailable", "Retry-After: 1\r\n", "<html>"));
    let failing = eventually_within(PATIENCE, "a failed renewal", || async {
        let state = state_of(&system, "app.test").await;
        if state["state"] == "failing" { Ok(state) } else { Err(state.to_string()) }
    })
    .await;
    assert_eq!(failing["last_error"], "The ACME server answered with status 503.", "{failing}");
    assert_eq!(presented(&system, "app.test").await.1, first.1, "it stays until its end");
    let ends = moment(&failing["not_after"]);
    server.kill().await;
    // An expired certificate is not presented.
    eventually_within(PATIENCE, "the end of the certificate", || async {
        let now = presented(&system, "app.test").await;
        if now.1 != first.1 { Ok(()) } else { Err(format!("{now:?}, ends {ends}")) }
    })
    .await;
    let doctor = system.api("GET", "/certificates/app.test", None).await;
    assert_eq!(doctor.status, 200, "it is still stored: {}", doctor.text());
    // Another server, which knows neither account nor order.
    server.on_request(|_| Act::Pass);
    server.start(system.edge.port(), 90 * DAY).await;
    assert_eq!(system.api("POST", "/acme/names/app.test/renew", None).await.status, 202);
    let again = until_issued(&system, "app.test").await;
    assert!(moment(&again["not_after"]) > ends + 1000 * DAY, "{again}");
    assert_eq!(fetched(&system, &server, "app.test").await.as_deref(), Ok("app"));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_survives_kills_of_the_pacemaker_at_every_step() {
    let mut server = AcmeServer::reserve().await;
    let system = start("acme-kills", &mut server, 90 * DAY, &[]).await;
    let app = App::start("app").await;
    let pid = Arc::new(AtomicUsize::new(0));
    // Each name meets one kill: while a new order, a challenge, a CSR or a certificate is requested.
    for (step, path) in ["/order-plz", "/chalZ/", "/finalize-order/", "/certZ/"].into_iter().enumerate() {
        let name = format!("step-{step}.test");
        system.register(&format!("i-{step}"), &app, &name, "17").await;
        let killed = Arc::new(AtomicUsize::new(0));
        pid.store(
            usize::try_from(system.stack.part(&System::PACEMAKER).pid().unwrap()).unwrap(),
            Ordering::SeqCst,
        );
        let (pid, seen) = (pid.clone(), killed.clone());
        server.on_request(move |one| {
            if one.path.starts_with(path) && seen.fetch_add(1, Ordering::SeqCst) == 0 {
                let pid = nix::unistd::Pid::from_raw(i32::try_from(pid.load(Ordering::SeqCst)).unwrap());
                nix::sys::signal::kill(pid, Signal::SIGKILL).unwrap();
            }
            Act::Pass
        });
        set_auto(&system, &name).await;
        eventually_within(PATIENCE, "the kill", || async {
            if killed.load(Ordering::SeqCst) > 0 { Ok(()) } else { Err("not yet") }
        })
        .await;
        system.kill(System::PACEMAKER).await;
        system.start_part(System::PACEMAKER).await;
        until_issued(&system, &name).await;
        assert_eq!(fetched(&system, &server, &name).await.as_deref(), Ok("app"), "{name}");
        // Only the order whose answer was lost is repeated.
        let orders = server.orders_of(&name);
        assert!(orders <= if step == 0 { 3 } else { 1 }, "{name}: {orders}");
    }
    let finalized = |one: &&Seen| one.path.starts_with("/finalize-order/") && one.status == Some(200);
    assert_eq!(server.seen().iter().filter(finalized).count(), 4, "one certificate for each name");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_meets_a_rate_limit_delays_no_other() {
    let mut server = AcmeServer::reserve().await;
    // As few orders at a time as possible: a name that waited in its order would delay all.
    let system = start("acme-limit", &mut server, 90 * DAY, &[("concurrent_orders", 1.into())]).await;
    let app = App::start("app").await;
    server.on_request(|one| {
        if one.ordered().iter().any(|name| name == "limited.test") {
            let problem = r#"{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many certificates already issued"}"#;
            return Act::Answer("429 Too Many Requests", "Retry-After: 7200\r\nReplay-Nonce: x\r\n", problem);
        }
        Act::Pass
    });
    for host in ["limited.test", "a.test", "b.test", "c.test"] {
        system.register(host, &app, host, "17").await;
        set_auto(&system, host).await;
    }
    for host in ["a.test", "b.test", "c.test"] {
        until_issued(&system, host).await;
    }
    let state = eventually("the limit to be noted", || async {
        let state = state_of(&system, "limited.test").await;
        if state["state"] == "failing" { Ok(state) } else { Err(state.to_string()) }
    })
    .await;
    let error = "The ACME server answered: too many certificates already issued (rateLimited)";
    assert_eq!(state["last_error"], error, "{state}");
    let pause = (moment(&state["next_attempt_at"]) - moment(&state["last_error_at"])) / 1000;
    assert!((7195..=7210).contains(&pause), "{state}");
    assert_eq!(server.orders_of("limited.test"), 1);
    // An operator may try at any time.
    server.on_request(|_| Act::Pass);
    assert_eq!(system.api("POST", "/acme/names/limited.test/renew", None).await.status, 202);
    until_issued(&system, "limited.test").await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pacemakers_and_two_routers_order_each_name_once() {
    let mut server = AcmeServer::reserve().await;
    let system = start(
        "acme-two",
        &mut server,
        90 * DAY,
        // A claim that ends while an order is on its way lets the other pacemaker order, too.
        &[("hosts", vec!["*"].into()), ("claim_seconds", 60.into())],
    )
    .await;
    system.stack.add_pacemaker().await.unwrap();
    let router = system.stack.add_router().await.unwrap();
    let app = App::start("app").await;
    // At the moment a challenge may be validated, both routers answer it.
    let edges = [system.edge, SocketAddr::from(([127, 0, 0, 1], router.ports.edge))];
    let unanswered: Arc<Mutex<Vec<String>>> = Arc::default();
    let checked = Arc::new(AtomicUsize::new(0));
    let (complaints, count) = (unanswered.clone(), checked.clone());
    let replica = system.stack.routes_replica_url();
    server.on_request(move |one| {
        if one.path.starts_with("/chalZ/") {
            let mut client = redis::Client::open(replica.as_str()).unwrap().get_connection().unwrap();
            let keys: Vec<String> = redis::cmd("KEYS").arg("challenge:*").query(&mut client).unwrap();
            for (edge, key) in edges.iter().flat_map(|edge| keys.iter().map(move |key| (edge, key))) {
                let token = key.strip_prefix("challenge:").unwrap();
                let wanted: String = redis::cmd("GET").arg(key).query(&mut client).unwrap();
                let answer = blocking_get(*edge, &format!("/.well-known/acme-challenge/{token}"));
                count.fetch_add(1, Ordering::SeqCst);
                if !answer.ends_with(&wanted) {
                    complaints.lock().unwrap().push(format!("{edge} {token}: {answer}"));
                }
            }
        }
        Act::Pass
    });
    let names: Vec<String> = (0..8).map(|at| format!("host-{at}.test")).collect();
    let body = json!({"address": app.address.to_string(), "hostnames": names, "version_type_id": "17"});
    assert_eq!(system.api("PUT", "/instances/app?wait=20s", Some(body)).await.status, 201);
    for name in &names {
        until_issued(&system, name).await;
    }
    for name in &names {
        assert_eq!(server.orders_of(name), 1, "{name}");
    }
    assert_eq!(*unanswered.lock().unwrap(), [""; 0]);
    assert!(checked.load(Ordering::SeqCst) >= 2 * names.len());
    system.stop().await;
}

fn blocking_get(to: SocketAddr, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(to).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: any.test\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_explained_in_words_to_operators_and_subscribers() {
    let mut server = AcmeServer::reserve().await;
    let system = start("acme-words", &mut server, 90 * DAY, &[("retry_seconds", 3600.into())]).await;
    let receiver = Receiver::start().await;
    let body = json!({"topics": ["signalbox.certificate.failed"], "callback": receiver.url(), "timeout": 0, "concurrency": 1});
    assert_eq!(system.api("POST", "/subscription", Some(body)).await.status, 204);
    // The server validates at a port where nothing answers.
    server.kill().await;
    server.start(1, 90 * DAY).await;
    set_auto(&system, "app.test").await;
    let event = receiver.until_events(1).await.remove(0);
    let words = event["data"]["error"].as_str().unwrap();
    // The reason comes with the answer to the request to validate, or later with the order.
    assert!(words.starts_with("The ACME server "), "{words}");
    assert!(words.contains("connection refused"), "{words}");
    assert_eq!(state_of(&system, "app.test").await["last_error"], words);
    let said = type_in(&system, &["doctor"]).await.out;
    assert!(said.contains("The certificate of app.test could not be obtained: "), "{said}");
    let said = type_in(&system, &["certificates", "list"]).await.done().out;
    assert!(said.contains("app.test") && said.contains("failing") && said.contains(words), "{said}");
    let said = type_in(&system, &["certificates", "renew", "app.test"]).await.done().out;
    assert_eq!(said, "renewal of app.test requested\n");
    receiver.until_events(2).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn automatic_https_that_cannot_work_is_rejected() {
    let system = System::start("acme-off").await;
    let put = async |system: &System, host: &str, policy: Value| {
        let answer = system.api("PUT", &format!("/hosts/{host}"), Some(policy)).await;
        (answer.status, answer.json()["code"].as_str().unwrap_or_default().to_owned())
    };
    let off = (422, "automatic_https_off".to_owned());
    assert_eq!(put(&system, "app.test", json!({"tls": "auto"})).await, off);
    assert_eq!(put(&system, "app.test", json!({"tls": "sometimes"})).await.0, 422);
    assert_eq!(system.api("GET", "/acme/names", None).await.json(), json!({"names": []}));
    let answer = system.api("POST", "/acme/names/app.test/renew", None).await;
    assert_eq!((answer.status, &answer.json()["code"]), (409, &json!("automatic_https_off")));
    system.stop().await;
    let mut server = AcmeServer::reserve().await;
    let system = start("acme-bad", &mut server, 90 * DAY, &[]).await;
    for host in ["*", "*.app.test", "127.0.0.1"] {
        assert_eq!(
            put(&system, host, json!({"tls": "auto"})).await,
            (422, "invalid_policy".to_owned()),
            "{host}"
        );
    }
    let answer = system.api("GET", "/acme/names/app.test", None).await;
    assert_eq!((answer.status, &answer.json()["code"]), (404, &json!("no_automatic_https")));
    // A token orders and sees only names of its own hosts.
    let body = json!({"name": "team", "scopes": ["routes", "read"], "hosts": ["*.team.test"]});
    let token = system.api("POST", "/tokens", Some(body)).await.json()["token"].as_str().unwrap().to_owned();
    let call = async |method: &str, path: &str, body: Option<Value>| {
        let request = Request::new(method, &system.admin.to_string(), path).token(&token);
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };
        request.send(system.admin).await.unwrap()
    };
    set_auto(&system, "app.test").await;
    for (method, path, body) in [
        ("PUT", "/hosts/other.test", Some(json!({"tls": "auto"}))),
        ("GET", "/acme/names/app.test", None),
        ("POST", "/acme/names/app.test/renew", None),
    ] {
        let answer = call(method, path, body).await;
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (403, &json!("host_not_allowed")),
            "{method} {path}"
        );
    }
    assert_eq!(call("PUT", "/hosts/a.team.test", Some(json!({"tls": "auto"}))).await.status, 200);
    let names = call("GET", "/acme/names", None).await.json()["names"].as_array().unwrap().clone();
    assert_eq!(names.iter().map(|one| &one["server_name"]).collect::<Vec<_>>(), ["a.team.test"]);
    assert_eq!(server.orders_of("other.test"), 0);
    system.stop().await;
}

/// The program of the documentation, with a stand-in for `nsupdate` that passes the update to the name server of the test.
async fn dns_webhook(server: &AcmeServer, port: u16) -> (tokio::process::Child, PathBuf) {
    let folder = server.ca_file().parent().unwrap().to_owned();
    let script = format!(
        r#"#!/bin/sh
while read -r command what record rest; do
    [ "$command" = update ] || continue
    echo "$what $record" >>"{log}"
    value=${{rest##* }}
    case $what in
        add) curl -sf http://{to}/set-txt -d "{{\"host\":\"$record\",\"value\":$value}}" ;;
        *) curl -sf http://{to}/clear-txt -d "{{\"host\":\"$record\"}}" ;;
    esac
done
"#,
        log = folder.join("updates").display(),
        to = server.name_server(),
    );
    let nsupdate = folder.join("nsupdate");
    std::fs::write(&nsupdate, script).unwrap();
    std::fs::set_permissions(&nsupdate, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let secret = folder.join("webhook.secret");
    std::fs::write(&secret, "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n").unwrap();
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/https/dns-webhook.py");
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new("python3");
    command.arg(program).arg(&address).env("SECRET_FILE", &secret).env("NSUPDATE", nsupdate);
    let process =
        command.env("KEY_FILE", "/dev/null").stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    eventually("the DNS webhook to listen", || async {
        tokio::net::TcpStream::connect(&address).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    (process, secret)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_is_proven_by_the_dns_webhook_of_the_documentation() {
    let mut server = AcmeServer::reserve().await;
    let mut ports = Ports::default();
    let port = ports.reserve();
    let (mut webhook, secret) = dns_webhook(&server, port).await;
    let url = format!("http://127.0.0.1:{port}/");
    let keys = [
        ("dns_webhook", url.clone().into()),
        ("dns_webhook_secret_file", secret.display().to_string().into()),
    ];
    let system = start("acme-dns", &mut server, 90 * DAY, &keys).await;
    let app = App::start("app").await;
    system.register("one", &app, "*.wild.test", "17").await;
    set_auto(&system, "*.wild.test").await;
    until_issued(&system, "*.wild.test").await;
    assert_eq!(fetched(&system, &server, "a.wild.test").await.as_deref(), Ok("app"));
    let updates = std::fs::read_to_string(secret.with_file_name("updates")).unwrap();
    assert_eq!(updates, "add _acme-challenge.wild.test.\ndelete _acme-challenge.wild.test.\n");
    // A call without the signature changes nothing.
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let forged = json!({"action": "create", "record": "_acme-challenge.wild.test", "value": "x".repeat(43)});
    let answer = Request::new("POST", "dns", "/").json(&forged).send(to).await.unwrap();
    assert_eq!(answer.status, 401);
    assert_eq!(std::fs::read_to_string(secret.with_file_name("updates")).unwrap(), updates);
    webhook.kill().await.unwrap();
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_name_gets_a_certificate_only_if_the_check_url_allows_it() {
    let mut server = AcmeServer::reserve().await;
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let names = asked.clone();
    let checker = Receiver::answering(move |call| {
        let name =
            call.line.split("domain=").nth(1).unwrap_or_default().split(' ').next().unwrap_or_default();
        names.lock().unwrap().push(name.to_owned());
        Answer::status(if name == "allowed.test" { "200 OK" } else { "403 Forbidden" })
    })
    .await;
    let keys = [("check_url", checker.url().into()), ("checks_per_hour", 10.into())];
    let system = start("acme-on-demand", &mut server, 90 * DAY, &keys).await;
    let app = App::start("app").await;
    system.register("one", &app, "*", "17").await;
    let own = presented(&system, "allowed.test").await;
    presented(&system, "denied.test").await;
    eventually("both questions", || async {
        let names: BTreeSet<String> = asked.lock().unwrap().iter().cloned().collect();
        if names.len() == 2 { Ok(()) } else { Err(names) }
    })
    .await;
    assert_eq!(until_issued(&system, "allowed.test").await["on_demand"], true);
    eventually("the certificate to be presented", || async {
        let now = presented(&system, "allowed.test").await;
        if now == own { Err(now) } else { Ok(()) }
    })
    .await;
    assert_eq!(fetched(&system, &server, "allowed.test").await.as_deref(), Ok("app"));
    assert_eq!(system.api("GET", "/acme/names/denied.test", None).await.status, 404);
    // A flood of invented names of one client spends its share, three checks, and then the URL is left alone.
    for at in 0..5 {
        presented(&system, &format!("invented-{at}.test")).await;
    }
    eventually("the share of the client to be spent", || async {
        let log = system.log_text(&System::PACEMAKER);
        if log.contains("share of acme.checks_per_hour is spent") { Ok(()) } else { Err("not yet") }
    })
    .await;
    // The last question of the share may still be on its way when the next name is refused.
    eventually("the third question", || async {
        let names = asked.lock().unwrap().clone();
        if names.len() == 3 { Ok(()) } else { Err(names) }
    })
    .await;
    let mut names = asked.lock().unwrap().clone();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3, "each name is asked about once");
    system.stop().await;
}
