//! A local process, or a web page in a browser on this machine, calls the listeners of the parts directly: nginx's `/edge/…`, the
//! pacemaker's and the sidecar's.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

use ring::hmac;
use serde_json::json;
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Connection, Request, Response},
    system::System,
    upstream::App,
};

/// Texts of the policy below that only the edge and the instances may know.
const SECRETS: [&str; 4] = ["$6$n1x$", "s3cr3t-key", "letmein", "sealed-private-key"];

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// What `sender`, a part of this system, presents to another part.
pub(super) fn proof(system: &System, sender: &str) -> String {
    let key = fs::read_to_string(system.stack.layout().edge_key()).unwrap();
    let digits = key.trim().as_bytes().chunks(2);
    let key: Vec<u8> =
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
    let proof = hmac(&hmac(&key, "signalbox daemons"), &format!("signalbox {sender}"));
    proof.iter().map(|byte| format!("{byte:02x}")).collect()
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
    // A local process has no proof. What nginx sends to the daemons is of no use here.
    let of_nginx = proof(&system, "edge");
    for proof in [None, Some(""), Some("x"), Some(&*of_nginx)] {
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
    let request = request.header("X-Signalbox-Proof", &proof(&system, "sidecar"));
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
    // The one that a process would see that took the sidecar's place at nginx's listener.
    let of_sidecar = proof(&system, "sidecar");
    for (number, (listener, path)) in
        [(system.pacemaker, "/instances"), (system.sidecar, "/stats/uncaught")].into_iter().enumerate()
    {
        let guess = |guess: usize, address: &str| {
            Request::get("localhost", path)
                .token(&format!("sbx_{number}{guess:063x}"))
                .header("X-Forwarded-For", address)
                .header("X-Signalbox-Proof", &of_sidecar)
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
    }
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
