//! The servers that other tests rely on.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot set itself up has failed")]

use std::path::Path;

use signalbox_store::{Fabric, FabricRole, keys::fabric};
use signalbox_testkit::{Server, Servers};

#[tokio::test]
async fn a_server_in_memory_is_empty_after_a_restart() {
    let mut servers = Servers::start().await;
    let redis = servers.fabric();
    redis.command("SET").key(&fabric::routes_revision()).arg(1).run().await.unwrap();
    servers.fabric.kill();
    servers.answer().await;
    assert!(redis.command("PING").run().await.is_err());
    servers.fabric.start();
    servers.answer().await;
    assert_eq!(servers.fabric.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn a_durable_server_loses_only_what_a_test_takes_from_it() {
    let mut server = Server::durable().await;
    server.cli(&["SET", "a", "1"]);
    let snapshot = server.snapshot();
    server.cli(&["SET", "b", "2"]);
    server.restart().await;
    assert_eq!(server.cli(&["EXISTS", "a", "b"]), "2");
    server.lose_writes_since(&snapshot).await;
    assert_eq!((server.cli(&["GET", "a"]).as_str(), server.cli(&["GET", "b"]).as_str()), ("1", ""));
    server.kill();
    server.wipe();
    server.start();
    server.answers().await;
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn a_cluster_rejects_keys_in_two_slots_and_keeps_its_port() {
    let mut cluster = Server::cluster().await;
    let url = cluster.url();
    let redis: Fabric = cluster.open::<FabricRole>();
    redis.command("PING").run().await.unwrap();
    assert_eq!(cluster.cli(&["SET", "a", "1"]), "OK");
    assert!(cluster.cli(&["EXISTS", "a", "b"]).starts_with("CROSSSLOT"));
    cluster.restart().await;
    assert_eq!((cluster.cli(&["GET", "a"]), cluster.url()), ("1".to_owned(), url));
}

#[tokio::test]
async fn dropping_a_server_ends_it_and_removes_its_folder() {
    let server = Server::in_memory().await;
    let info = server.cli(&["INFO", "server"]);
    let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().trim();
    let process = Path::new("/proc").join(pid);
    let (folder, socket) = (server.folder().to_owned(), server.socket());
    assert!(process.exists() && socket.exists());
    drop(server);
    assert!(!process.exists() && !folder.exists());
}
