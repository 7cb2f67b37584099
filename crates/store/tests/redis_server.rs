//! The store against a real Redis: scripts, reconnection, subscriptions and the classes of errors.

#![allow(clippy::expect_used)] // A failed setup is a failed test.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use signalbox_store::{
    Fabric, FabricRole, Kind, Notice, Options, Redis, Script, Shard, Stats, StatsRole,
    keys::{fabric, stats},
    with_login,
};
use signalbox_testkit::{Monitored, Ports, Server, eventually};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixStream},
    time,
};

/// Waits until a connection works again.
async fn answering<R: signalbox_store::Role>(redis: &Redis<R>) {
    eventually("the connection to work", async || redis.command("PING").run().await).await;
}

static COUNT: Script<StatsRole> = Script::new(
    "count",
    "-- Adds to a counter.\n-- KEYS[1]: string, the counter\n-- ARGV[1]: integer, how much\n\
     -- Returns the sum.\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])",
);

#[tokio::test]
async fn a_script_survives_a_flush_and_a_restart_of_the_server() {
    let mut server = Server::in_memory().await;
    let redis: Stats = server.open();
    let key = stats::position("n");
    assert_eq!(COUNT.call().key(&key).arg(2).run::<i64>(&redis).await.expect("first"), 2);
    redis.command("SCRIPT").arg("FLUSH").run().await.expect("flush");
    assert_eq!(COUNT.call().key(&key).arg(3).run::<i64>(&redis).await.expect("after the flush"), 5);
    server.restart().await;
    answering(&redis).await;
    assert_eq!(COUNT.call().key(&key).arg(1).run::<i64>(&redis).await.expect("after the restart"), 1);
}

#[tokio::test]
#[should_panic(expected = "header names 1 KEYS")]
async fn a_call_that_contradicts_its_header_fails_immediately() {
    let redis: Stats = Redis::open("redis://127.0.0.1:1/", Options::default()).expect("a URL");
    let _ = COUNT.call().arg(2).run::<i64>(&redis).await;
}

#[tokio::test]
async fn a_stopped_server_is_unavailable_until_it_restarts() {
    let mut server = Server::in_memory().await;
    let redis: Stats = server.open();
    server.kill();
    let error = redis.command("GET").key(&stats::position("n")).run().await.expect_err("no server");
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    assert_eq!(error.role(), "stats");
    server.start();
    answering(&redis).await;
}

#[tokio::test]
async fn errors_show_whether_a_write_was_rejected() {
    let server = Server::in_memory().await;
    let redis: Stats = server.open();
    redis.command("SADD").key(&stats::workspace("1")).arg("17").run().await.expect("a set");
    let wrong =
        redis.command("INCR").key(&stats::workspace("1")).run().await.expect_err("a set is not a counter");
    assert_eq!(wrong.kind(), Kind::Broken, "{wrong:?}");
    assert_eq!(wrong.code(), Some("WRONGTYPE"));
    redis.command("CONFIG").arg("SET").arg("maxmemory").arg("1").run().await.expect("a limit");
    let full =
        redis.command("SADD").key(&stats::workspace("1")).arg("18").run().await.expect_err("no memory");
    assert_eq!(full.kind(), Kind::Refused, "{full:?}");
    let full =
        COUNT.call().key(&stats::position("n")).arg(1).run::<i64>(&redis).await.expect_err("no memory");
    assert_eq!(full.kind(), Kind::Refused, "{full:?}");
}

#[tokio::test]
async fn a_subscription_resumes_and_reports_it() {
    let mut server = Server::in_memory().await;
    let redis: Stats = server.open();
    let mut routers = redis.subscribe(&[stats::ROUTERS_CHANNEL]);
    let wait = Duration::from_secs(10);
    assert_eq!(time::timeout(wait, routers.next()).await.expect("subscribed"), Notice::Resumed);
    redis.command("PUBLISH").arg(stats::ROUTERS_CHANNEL).arg("n 1").run().await.expect("published");
    let message = Notice::Message { channel: "routers".into(), payload: "n 1".into() };
    assert_eq!(time::timeout(wait, routers.next()).await.expect("received"), message);
    server.restart().await;
    assert_eq!(time::timeout(wait, routers.next()).await.expect("resumed"), Notice::Resumed);
}

#[tokio::test]
async fn a_blocking_command_does_not_delay_others() {
    let server = Server::in_memory().await;
    let redis: Stats = server.open();
    let key = stats::workspace("list");
    let waiter = redis.dedicated().expect("a dedicated connection");
    let popped = tokio::spawn({
        let key = key.clone();
        async move { waiter.command("BLPOP").key(&key).arg(10).query::<(String, String)>().await }
    });
    answering(&redis).await;
    redis.command("RPUSH").key(&key).arg("x").run().await.expect("pushed");
    assert_eq!(popped.await.expect("no panic").expect("popped").1, "x");
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let server = Server::in_memory().await;
    // A listener that accepts bytes and never answers, until the socket file is the server's again.
    let socket = server.socket();
    let aside = server.folder().join("aside.sock");
    std::fs::rename(&socket, &aside).expect("the socket moves");
    let silent = tokio::net::UnixListener::bind(&socket).expect("a silent peer");
    let accepted = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = silent.accept().await {
            held.push(stream);
        }
    });
    let url = format!("redis+unix://{}", socket.display());
    let quick = Options { response_timeout: Duration::from_millis(50), ..Options::default() };
    let redis: Stats = Redis::open(&url, quick).expect("a URL");
    let error = redis.command("PING").run().await.expect_err("no reply");
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    std::fs::rename(&aside, &socket).expect("the socket is back");
    answering(&redis).await;
    accepted.abort();
}

static MOVE: Script<FabricRole> = Script::new(
    "move",
    "-- Moves a member.\n-- KEYS[1]: hash, from\n-- KEYS[2]: hash, to\n-- ARGV[1]: string, the field\n-- Returns its value.\n\
     local value = redis.call('HGET', KEYS[1], ARGV[1])\nredis.call('HDEL', KEYS[1], ARGV[1])\n\
     redis.call('HSET', KEYS[2], ARGV[1], value)\nreturn value",
);

#[tokio::test]
async fn in_a_cluster_keys_without_a_shard_share_one_slot() {
    let server = Server::cluster().await;
    let cluster: Fabric = server.open();
    let home = Shard::home(&cluster, 4);
    let (from, to) = (fabric::routes_instances(), fabric::routes_hosts());
    home.command("HSET").key(&from).arg("i").arg("1").run().await.expect("a cluster that serves");
    let moved: String = MOVE.call().key(&from).key(&to).arg("i").run(&home).await.expect("one slot");
    assert_eq!(moved, "1");
    let mut both = home.batch();
    both.add("HEXISTS", &from, "i").add("HEXISTS", &to, "i");
    assert_eq!(both.query::<(u64, u64)>().await.expect("a batch"), (0, 1));
    let refused = MOVE.call().key(&from).key(&to).arg("i").run::<String>(&cluster).await;
    assert!(refused.is_err(), "without a common tag the keys are in two slots");
    let mut heard = home.subscribe_to_patterns(&["shop:*:orders"]);
    assert_eq!(heard.next().await, Notice::Resumed);
    home.command("PUBLISH").arg("shop:update:orders").arg("hello").run().await.expect("published");
    let message = Notice::Message { channel: "shop:update:orders".into(), payload: "hello".into() };
    assert_eq!(heard.next().await, message);
}

#[tokio::test]
async fn a_changed_password_is_read_again_and_needs_no_new_connection_of_the_caller() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    std::fs::write(&file, "one\n").expect("a file");
    let server = Server::in_memory().await;
    let admin: Stats = server.open();
    admin
        .command("ACL")
        .arg(&["SETUSER", "me", "on", ">one", "~*", "&*", "+@all"][..])
        .run()
        .await
        .expect("a user");
    let url = with_login(&server.url(), "me", Some(&file), None);
    let redis: Stats = Redis::open(&url, Options::default()).expect("a URL");
    let mut notices = redis.subscribe(&["news"]);
    assert_eq!(notices.next().await, Notice::Resumed);
    let who: String = redis.command("ACL").arg("WHOAMI").query().await.expect("a login");
    assert_eq!(who, "me");

    admin
        .command("ACL")
        .arg(&["SETUSER", "me", "resetpass", ">two"][..])
        .run()
        .await
        .expect("a new password");
    admin
        .command("CLIENT")
        .arg(&["KILL", "USER", "me"][..])
        .run()
        .await
        .expect("no connection of the old login");
    eventually("the old password to be rejected", async || match redis.command("PING").run().await {
        Err(error) if error.kind() == Kind::Unavailable => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    std::fs::write(&file, "two\n").expect("a file");
    answering(&redis).await;
    assert_eq!(notices.next().await, Notice::Resumed, "the subscription logs in again, too");
    admin.command("PUBLISH").arg("news").arg("x").run().await.expect("published");
    assert!(matches!(notices.next().await, Notice::Message { .. }));
}

#[tokio::test]
async fn an_error_about_a_login_shows_no_password() {
    let server = Server::in_memory().await;
    let admin: Stats = server.open();
    admin.command("ACL").arg(&["SETUSER", "default", "resetpass"][..]).run().await.expect("a closed server");
    let url = format!("{}?user=me&pass=opensesame", server.url());
    let redis: Stats = Redis::open(&url, Options::default()).expect("a URL");
    let error = redis.command("PING").run().await.expect_err("an unknown user");
    let mut text = format!("{redis:?} {error} {error:?}");
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        text.push_str(&next.to_string());
        cause = next;
    }
    assert!(!text.contains("opensesame"), "{text}");
}

#[tokio::test]
async fn a_server_with_tls_needs_a_certificate_of_the_named_authority() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])
        .and_then(|names| names.self_signed(&key))
        .expect("a certificate");
    std::fs::write(path("cert.pem"), certificate.pem()).expect("a file");
    std::fs::write(path("key.pem"), key.serialize_pem()).expect("a file");
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    std::fs::write(path("other.pem"), other.cert.pem()).expect("a file");
    let port = Ports::default().reserve().to_string();
    let (cert, key) = (path("cert.pem").display().to_string(), path("key.pem").display().to_string());
    let _server = Server::with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
    ])
    .await;
    let open = |ca: Option<&str>| -> Stats {
        let ca = ca.map(path);
        let url = with_login(&format!("rediss://127.0.0.1:{port}/"), "", None, ca.as_deref());
        Redis::open(&url, Options::default()).expect("a URL")
    };
    let redis = open(Some("cert.pem"));
    answering(&redis).await;
    let mut notices = redis.subscribe(&["news"]);
    assert_eq!(notices.next().await, Notice::Resumed);
    for ca in [Some("other.pem"), None] {
        let error = open(ca).command("PING").run().await.expect_err("a certificate of another authority");
        assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    }
}

#[tokio::test]
async fn a_connection_follows_the_primary_that_sentinels_name() {
    let mut monitored = Monitored::start("stats").await;
    let redis: Stats = Redis::open(&monitored.url(), Options::default()).expect("a URL");
    let key = stats::position("n");
    let mut routers = redis.subscribe(&[stats::ROUTERS_CHANNEL]);
    let wait = Duration::from_secs(20);
    assert_eq!(time::timeout(wait, routers.next()).await.expect("subscribed"), Notice::Resumed);
    assert_eq!(COUNT.call().key(&key).arg(2).run::<i64>(&redis).await.expect("the first primary"), 2);
    for lost in [0, 1] {
        assert_eq!(redis.primary().expect("a primary").1, monitored.port(lost));
        // Frozen, not dead: a command must not wait for the reply of a primary that was replaced.
        monitored.freeze(lost);
        let begun = time::Instant::now();
        let stuck = COUNT.call().key(&key).arg(0).run::<i64>(&redis).await.expect_err("no reply");
        assert_eq!(stuck.kind(), Kind::Unavailable, "{stuck:?} after {:?}", begun.elapsed());
        monitored.failed_over(lost).await;
        eventually("the new primary to be used", async || {
            COUNT.call().key(&key).arg(1).run::<i64>(&redis).await.map(drop)
        })
        .await;
        assert_eq!(redis.primary().expect("a primary").1, monitored.port(1 - lost));
        // The subscription is at the new primary, and reports that messages may have been missed.
        assert_eq!(time::timeout(wait, routers.next()).await.expect("resumed"), Notice::Resumed);
        redis.command("PUBLISH").arg(stats::ROUTERS_CHANNEL).arg("n 1").run().await.expect("published");
        let message = Notice::Message { channel: "routers".into(), payload: "n 1".into() };
        assert_eq!(time::timeout(wait, routers.next()).await.expect("received"), message);
        monitored.thaw(lost);
        monitored.settled().await;
    }
    monitored.kill(0);
    let gone = monitored.primary();
    if gone == 0 {
        monitored.failed_over(0).await;
    }
    answering(&redis).await;
}

#[tokio::test]
async fn a_script_succeeds_only_when_enough_replicas_have_its_writes() {
    let monitored = Monitored::start("stats").await;
    let url = format!("{}?wait_replicas=1", monitored.url());
    let redis: Stats = Redis::open(&url, Options::default()).expect("a URL");
    let key = stats::position("n");
    assert_eq!(COUNT.call().key(&key).arg(1).run::<i64>(&redis).await.expect("replicated"), 1);
    monitored.freeze(1);
    let error = COUNT.call().key(&key).arg(1).run::<i64>(&redis).await.expect_err("no replica has it");
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    monitored.thaw(1);
    eventually("the replica to follow", async || {
        COUNT.call().key(&key).arg(0).run::<i64>(&redis).await.map(drop)
    })
    .await;
    assert!(Redis::<StatsRole>::open("redis://h:1/?wait_replicas=some", Options::default()).is_err());
    // In a cluster, the node of the key is asked. This one has no replica.
    let cluster = Server::cluster().await;
    let url = format!("{}?wait_replicas=1", cluster.url());
    let lonely: Stats = Redis::open(&url, Options::default()).expect("a URL");
    let error = COUNT.call().key(&key).arg(1).run::<i64>(&lonely).await.expect_err("no replica");
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    let written: i64 = lonely.command("GET").key(&key).query().await.expect("a node");
    assert_eq!(written, 1);
}

#[tokio::test]
async fn a_script_is_refused_while_a_replica_that_could_be_promoted_is_missing() {
    let mut monitored = Monitored::start("stats").await;
    let url = format!("{}?wait_replicas=in-sync", monitored.url());
    let redis: Stats = Redis::open(&url, Options::default()).expect("a URL");
    let key = stats::position("n");
    assert_eq!(COUNT.call().key(&key).arg(1).run::<i64>(&redis).await.expect("replicated"), 1);
    monitored.kill(1);
    eventually("the loss of the replica to be seen", async || {
        match COUNT.call().key(&key).arg(0).run::<i64>(&redis).await {
            Err(error) if error.kind() == Kind::Refused => Ok(()),
            other => Err(other),
        }
    })
    .await;
    let error = COUNT.call().key(&key).arg(1).run::<i64>(&redis).await.expect_err("a replica is missing");
    assert_eq!((error.kind(), error.code()), (Kind::Refused, Some("NOREPLICAS")), "{error:?}");
    let written: i64 = redis.command("GET").key(&key).query().await.expect("the primary");
    assert_eq!(written, 1, "a refused script was executed");
    monitored.restart(1);
    eventually("the replica to be in sync", async || {
        COUNT.call().key(&key).arg(0).run::<i64>(&redis).await.map(drop)
    })
    .await;
    // In a cluster, the node of the key is asked. This one has no replica.
    let cluster = Server::cluster().await;
    let url = format!("{}?wait_replicas=in-sync", cluster.url());
    let lonely: Stats = Redis::open(&url, Options::default()).expect("a URL");
    let error = COUNT.call().key(&key).arg(1).run::<i64>(&lonely).await.expect_err("no replica");
    assert_eq!(error.kind(), Kind::Refused, "{error:?}");
}

/// What clients sent to a server, one text per read.
struct Recorded {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

/// A proxy in front of a server, which records the requests.
async fn recorded(server: &Server) -> Recorded {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let scheme = if server.url().starts_with("redis+cluster") { "redis+cluster" } else { "redis" };
    if scheme == "redis+cluster" {
        // A node reports its address to its clients.
        assert_eq!(server.cli(&["config", "set", "cluster-announce-port", &port]), "OK");
    }
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (seen, socket) = (Arc::clone(&requests), server.socket());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = UnixStream::connect(&socket).await.expect("a running server");
            let ((mut from, mut back), (mut replies, mut to)) = (client.into_split(), server.into_split());
            let seen = Arc::clone(&seen);
            tokio::spawn(async move { _ = tokio::io::copy(&mut replies, &mut back).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = from.read(&mut bytes).await {
                    seen.lock()
                        .expect("no panic")
                        .push(String::from_utf8_lossy(&bytes[..count]).into_owned());
                    to.write_all(&bytes[..count]).await.expect("a running server");
                }
            });
        }
    });
    Recorded { url: format!("{scheme}://127.0.0.1:{port}/"), requests }
}

/// A server that confirms a write on another connection than that of the write confirms what it does not have.
#[tokio::test]
async fn a_script_and_its_question_for_replicas_leave_together() {
    for server in [Server::in_memory().await, Server::cluster().await] {
        let key = stats::position("n");
        let seen = recorded(&server).await;
        let url = format!("{}?wait_replicas=1", seen.url);
        let redis: Stats = Redis::open(&url, Options::default()).expect("a URL");
        // There is no replica; the script is loaded by the first call.
        for _ in 0..2 {
            COUNT.call().key(&key).arg(1).run::<i64>(&redis).await.expect_err("no replica");
        }
        let calls: Vec<String> = seen
            .requests
            .lock()
            .expect("no panic")
            .iter()
            .filter(|request| request.contains("EVALSHA"))
            .cloned()
            .collect();
        assert!(calls.len() >= 2, "{calls:?}");
        for call in calls {
            assert!(call.contains("WAIT"), "sent without WAIT: {call}");
        }
    }
}
