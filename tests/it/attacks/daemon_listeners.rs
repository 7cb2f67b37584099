//! A local process, or a web page in a browser on this machine, calls the listeners of the parts directly: nginx's `/edge/…`, the
//! pacemaker's and the sidecar's.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    time::SystemTime,
};

use serde_json::json;
use signalbox_seal::{Keys, Statement};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Connection, Request, Response},
    system::System,
    upstream::App,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

/// Texts of the policy below that only the edge and the instances may know.
const SECRETS: [&str; 4] = ["$6$n1x$", "s3cr3t-key", "letmein", "sealed-private-key"];

/// What nginx or the sidecar of this system proves `seconds_ago`.
fn proof(system: &System, statement: Statement<'_>, seconds_ago: u64) -> String {
    let keys = Keys::read(&system.stack.layout().edge_key()).unwrap().of_daemons();
    #[expect(clippy::disallowed_methods, reason = "proofs contain the time of this machine")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    keys.prove(statement, now - seconds_ago).unwrap()
}

/// The name of the current run of nginx.
async fn run(system: &System) -> String {
    let status = system.edge_api("/edge/status").await.json();
    status["run"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_process_reads_the_table_without_secrets() {
    let system = System::without_pacemaker("attack-snapshot").await;
    let app = App::start("app").await;
    let policy = json!({
        "access": {"basic": {"users": {"ann": format!("$6$n1x${}", "a".repeat(86))}}},
        "headers": {"request": {"set": {"X-Internal-Api-Key": "s3cr3t-key"}}},
        "maintenance": {"status": 503, "except_header": {"name": "X-Preview", "value": "letmein"}},
    });
    system.route("app.test", &app).await;
    system.cli::<()>(System::PRIMARY, &format!("SET policy:app.test {policy}")).await;
    system.cli::<()>(System::PRIMARY, "SET cert:app.test sealed-private-key").await;
    system.settle().await;
    // Read by a request, so that it is in the table of the router.
    assert_eq!(system.get("app.test", "/").await.status, 503, "maintenance");
    // The sidecar, which proves who it is, stores the whole table: nginx needs it at its next start.
    let file = system.stack.layout().snapshot(1);
    eventually("the snapshot to have the policy", || async {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if SECRETS[..3].iter().all(|secret| text.contains(secret)) { Ok(()) } else { Err(text) }
    })
    .await;
    // A local process has no proof. What nginx proves to the daemons is of no use here, nor what the sidecar has proven to another
    // process that had nginx's port, or some time ago.
    let run = run(&system).await;
    let useless = [
        proof(&system, Statement::Client("127.0.0.1"), 0),
        proof(&system, Statement::Table(&"0".repeat(32)), 0),
        proof(&system, Statement::Table(&run), 60),
    ];
    for proof in [None, Some(""), Some("x")].into_iter().chain(useless.iter().map(|proof| Some(&**proof))) {
        for path in
            ["/edge/snapshot", "/edge/status", "/edge/outliers?host=app.test", "/edge/ack", "/metrics"]
        {
            let request = Request::get("localhost", path);
            let request = proof.map_or(request.clone(), |proof| request.header("X-Signalbox-Proof", proof));
            let answer = request.send(system.admin).await.unwrap();
            assert_eq!(answer.status, 200, "{path}");
            let shown = SECRETS.iter().find(|secret| answer.text().contains(**secret));
            assert_eq!(shown, None, "{path} with {proof:?}: {}", answer.text());
            if path == "/edge/snapshot" {
                let text = answer.text();
                assert!(text.contains(&app.address.to_string()) && text.contains("X-Preview"), "{text}");
                assert!(text.contains("(hidden)"), "{text}");
            }
        }
    }
    let request = Request::get("localhost", "/edge/snapshot");
    let request = request.header("X-Signalbox-Proof", &proof(&system, Statement::Table(&run), 0));
    let whole = request.send(system.admin).await.unwrap().text();
    assert!(SECRETS[..3].iter().all(|secret| whole.contains(secret)), "the sidecar's proof works: {whole}");
    system.stop().await;
}

/// What a listener answers to a request from an address.
async fn from(address: [u8; 4], to: SocketAddr, request: &Request) -> Response {
    let mut connection = Connection::open_from(IpAddr::from(address), to).await.unwrap();
    connection.send(request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn invented_addresses_neither_help_a_guesser_nor_block_others() {
    let system = System::start("attack-forged-address").await;
    let victim = [127, 0, 0, 9];
    // What a process would see that took the place of a daemon, or of nginx.
    let seen = [
        proof(&system, Statement::Client("127.0.0.7"), 0),
        proof(&system, Statement::Client("127.0.0.9"), 60),
        proof(&system, Statement::Table(&run(&system).await), 0),
    ];
    for (number, (listener, path)) in
        [(system.pacemaker, "/instances"), (system.sidecar, "/stats/uncaught")].into_iter().enumerate()
    {
        let guess = |guess: usize, address: &str| {
            Request::get("localhost", path)
                .token(&format!("sbx_{number}{guess:063x}"))
                .header("X-Forwarded-For", address)
                .header("X-Signalbox-Proof", &seen[guess % seen.len()])
        };
        let mut statuses = Vec::new();
        for attempt in 0..40 {
            let request = guess(attempt, &format!("203.0.113.{attempt}"));
            statuses.push(from([127, 0, 0, 1], listener, &request).await.status);
        }
        assert!(statuses.contains(&429), "{listener}: {statuses:?}");
        // In the name of another address.
        for attempt in 40..80 {
            from([127, 0, 0, 1], listener, &guess(attempt, "127.0.0.9")).await;
        }
        let new = system.token(&format!("new-{number}"), &["read"]).await;
        for to in [listener, system.admin] {
            let answer = from(victim, to, &Request::get("localhost", path).token(&new)).await;
            assert_eq!(answer.status, 200, "{to}: {}", answer.text());
        }
        // nginx reports the address of its own client, and proves it: a guesser there blocks only itself.
        let mut statuses = Vec::new();
        for attempt in 80..120 {
            statuses.push(from([127, 0, 0, 7], system.admin, &guess(attempt, "127.0.0.9")).await.status);
        }
        assert!(statuses.contains(&429), "{path}: {statuses:?}");
        let newer = system.token(&format!("newer-{number}"), &["read"]).await;
        for address in [victim, [127, 0, 0, 8]] {
            let answer = from(address, system.admin, &Request::get("localhost", path).token(&newer)).await;
            assert_eq!(answer.status, 200, "{address:?}: {}", answer.text());
        }
        // Bytes that are not ASCII do not hide what nginx adds. Otherwise the client would count as nginx, whose address has guessed.
        let newest = system.token(&format!("newest-{number}"), &["read"]).await;
        let request = Request::get("localhost", path).token(&newest).header("X-Forwarded-For", "é");
        let answer = from([127, 0, 0, 8], system.admin, &request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    system.stop().await;
}

/// A table that no nginx has written, with the right checksum.
const FALSE_TABLE: &str =
    "signalbox-routes 1 99\nserial\t9\nroute\tfalse.test\t17\t\t127.0.0.1:1\nend\t1\t194d4081\n";

/// Answers the sidecar in place of nginx, as nginx's run `run`, until it has asked for the table. Returns its proof.
async fn impersonate_nginx(listener: TcpListener, run: &str) -> String {
    let mut proof = None;
    while proof.is_none() {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n")
            && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0)
        {}
        let request = String::from_utf8_lossy(&request).into_owned();
        let (status, body) = if request.starts_with("GET /edge/status ") {
            (200, json!({"alarm": null, "generation": 99, "run": run}).to_string())
        } else if request.starts_with("GET /edge/snapshot ") {
            let value = request.lines().find_map(|line| line.strip_prefix("x-signalbox-proof: "));
            proof = Some(value.unwrap_or_else(|| panic!("{request}")).to_owned());
            (200, FALSE_TABLE.to_owned())
        } else {
            (503, String::new())
        };
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        let _gone = stream.write_all(answer.as_bytes()).await;
        let _gone = stream.shutdown().await;
    }
    proof.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_takes_the_port_of_nginx_gets_nothing_of_use_and_stores_nothing() {
    let system = System::without_pacemaker("attack-port").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    let policy = json!({"headers": {"request": {"set": {"X-Internal-Api-Key": "s3cr3t-key"}}}});
    system.cli::<()>(System::PRIMARY, &format!("SET policy:app.test {policy}")).await;
    system.settle().await;
    assert_eq!(system.get("app.test", "/").await.status, 200);
    let file = system.snapshot_path();
    eventually("the snapshot to have the policy", || async {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text.contains("s3cr3t-key") { Ok(()) } else { Err(text) }
    })
    .await;
    let run = run(&system).await;
    system.kill(System::NGINX).await;
    let listener =
        eventually("the port to be free", || async { TcpListener::bind(system.admin).await }).await;
    let proof = impersonate_nginx(listener, &run).await;
    system.start_part(System::NGINX).await;
    let request = Request::get("localhost", "/edge/snapshot").header("X-Signalbox-Proof", &proof);
    let shown = request.send(system.admin).await.unwrap().text();
    assert!(shown.contains("(hidden)") && !shown.contains("s3cr3t-key"), "{shown}");
    let stored = fs::read_to_string(&file).unwrap();
    assert!(stored.contains("s3cr3t-key") && !stored.contains("false.test"), "{stored}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemons_answer_only_to_their_own_names() {
    let system = System::with("attack-daemon-names", |builder| {
        builder
            .nginx("ADMIN_NAMES", "admin.example")
            .pacemaker("names", vec!["pacemaker.example"])
            .sidecar("names", vec!["sidecar.example"])
    })
    .await;
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let paths =
        ["/metrics", "/health", "/health/ready", "/dashboard/login", "/", "/openapi.json", "/nowhere"];
    for (listener, name) in [(system.pacemaker, "pacemaker.example"), (system.sidecar, "sidecar.example")] {
        for host in
            ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "admin.example", "1a"]
        {
            for path in paths {
                for host in [host.to_owned(), format!("{host}:{}", listener.port())] {
                    let request = Request::get(&host, path).header("X-Forwarded-For", "127.0.0.1");
                    let answer = request.send(listener).await.unwrap();
                    assert_eq!(answer.status, 421, "{host}{path}: {}", answer.text());
                    assert_eq!(answer.json()["code"], "unknown_admin_name");
                }
            }
        }
        let absolute = Request::get("localhost", "http://evil.example/metrics");
        assert_eq!(absolute.send(listener).await.unwrap().status, 421);
        // Prometheus and operators, by address, by name of the machine, and by a name of the configuration.
        for host in ["localhost", "127.0.0.1", "[::1]", "10.1.2.3", &machine, name] {
            for host in [host.to_owned(), format!("{host}:{}", listener.port())] {
                let answer = Request::get(&host, "/metrics").send(listener).await.unwrap();
                assert_eq!(answer.status, 200, "{host}: {}", answer.text());
            }
        }
    }
    // nginx has checked the names of its own listener.
    for path in ["/instances", "/stats/uncaught", "/dashboard/login"] {
        let request = Request::get("admin.example", path).token(&system.token);
        let answer = request.send(system.admin).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    system.stop().await;
}
