//! The binary itself.

use std::{
    fs::{self, OpenOptions},
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use signalbox_testkit::{Ports, Server, equal, eventually};
use tempfile::TempDir;

use crate::sample::line;

struct Sidecar {
    child: Child,
    port: u16,
    _ports: Ports,
}

impl Sidecar {
    fn start(folder: &TempDir, redis: &Server) -> Self {
        let mut ports = Ports::default();
        let port = ports.reserve();
        let child = Command::new(env!("CARGO_BIN_EXE_signalbox-sidecar"))
            .args([
                "--node",
                "n1",
                "--redis-routes-replica",
                "",
                "--set",
                "edge_url=",
                "--set",
                "rotate_bytes=0",
            ])
            .args(["--redis-stats", &redis.url(), "--listen", &format!("127.0.0.1:{port}")])
            .arg("--access-log")
            .arg(folder.path().join("access.log"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, port, _ports: ports }
    }

    /// The body of an answer; empty if no server listens.
    fn get(&self, path: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return String::new() };
        let mut answer = String::new();
        let asked = stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
        drop(asked.and_then(|()| stream.read_to_string(&mut answer)));
        answer
    }

    fn signal(&self, signal: &str) {
        Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn append(folder: &TempDir, keys: std::ops::Range<u32>) {
    let mut log =
        OpenOptions::new().append(true).create(true).open(folder.path().join("access.log")).unwrap();
    let text: String = keys.map(|key| line(key % 7) + "\n").collect();
    log.write_all(text.as_bytes()).unwrap();
}

fn counted(redis: &Server) -> u64 {
    (0..7)
        .filter_map(|key| redis.cli(&["HGET", &format!("stat:{key}"), "requests"]).parse::<u64>().ok())
        .sum()
}

#[test]
fn an_invalid_configuration_is_rejected_with_its_place() {
    let folder = TempDir::new().unwrap();
    let path: PathBuf = folder.path().join("sidecar.toml");
    fs::write(&path, "node = 'n1'\n\nlissen = '127.0.0.1:1'\n").unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_signalbox-sidecar")).arg("--config").arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("sidecar.toml:3:1: unknown field `lissen`"), "{message}");
}

#[tokio::test]
async fn lines_are_counted_once_through_kills_rotations_and_restarts_of_redis() {
    let folder = TempDir::new().unwrap();
    let mut redis = Server::durable().await;
    let mut written = 0;
    for round in 0..9 {
        let sidecar = Sidecar::start(&folder, &redis);
        append(&folder, written..written + 5_000);
        written += 5_000;
        // Each round is killed at another moment.
        eventually("some are counted", async || {
            let some = u64::from(written - 5_000) + 1 + round * 400;
            if counted(&redis) >= some { Ok(()) } else { Err(counted(&redis)) }
        })
        .await;
        if round % 3 == 0 {
            let rotated = folder.path().join(format!("access.log.{round}"));
            fs::rename(folder.path().join("access.log"), rotated).unwrap();
        }
        if round % 3 == 1 {
            redis.restart().await;
        }
        sidecar.signal("-KILL");
        append(&folder, written..written + 100);
        written += 100;
    }
    let sidecar = Sidecar::start(&folder, &redis);
    eventually("all are counted", async || equal(counted(&redis), u64::from(written))).await;
    eventually("and the error to be reported", async || {
        let page = sidecar.get("/metrics");
        let line = format!("signalbox_sidecar_lines_total {written}");
        if page.contains(&line) && page.contains("signalbox_sidecar_gaps_total 0") {
            Ok(())
        } else {
            Err(page)
        }
    })
    .await;
    assert_eq!(counted(&redis), u64::from(written));
}

/// It once listened before it had a signal handler, so a stop in between killed it.
#[tokio::test]
async fn a_stop_immediately_after_the_port_is_bound_is_graceful() {
    for _ in 0..5 {
        let folder = TempDir::new().unwrap();
        let redis = Server::durable().await;
        let mut sidecar = Sidecar::start(&folder, &redis);
        while TcpStream::connect(("127.0.0.1", sidecar.port)).is_err() {
            assert!(sidecar.child.try_wait().unwrap().is_none(), "it runs");
            std::thread::yield_now();
        }
        sidecar.signal("-TERM");
        assert_eq!(sidecar.child.wait().unwrap().code(), Some(0));
    }
}

#[tokio::test]
async fn lines_written_before_a_stop_are_counted_by_it() {
    let folder = TempDir::new().unwrap();
    let redis = Server::durable().await;
    let mut sidecar = Sidecar::start(&folder, &redis);
    append(&folder, 0..10);
    eventually("it follows", async || equal(counted(&redis), 10)).await;
    // Within the half second in which a follower that has just committed rests.
    append(&folder, 10..30);
    sidecar.signal("-TERM");
    assert_eq!(sidecar.child.wait().unwrap().code(), Some(0));
    assert_eq!(counted(&redis), 30);
}

/// Version types with their requests, and those without exactly one, read directly from Redis.
const ONCE: &str = "local all = redis.call('KEYS', 'stat:t*') local odd = 0 for _, key in ipairs(all) do \
     if redis.call('HGET', key, 'requests') ~= '1' then odd = odd + 1 end end return #all .. ' ' .. odd";

#[tokio::test]
async fn a_kill_in_mid_window_loses_nothing_and_a_stop_finishes_the_window() {
    let folder = TempDir::new().unwrap();
    let redis = Server::durable().await;
    let lines = |keys: std::ops::Range<u32>| {
        let text: String = keys.map(|key| line(format!("t{key}")) + "\n").collect();
        let log = folder.path().join("access.log");
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .and_then(|mut log| log.write_all(text.as_bytes()))
            .unwrap();
    };
    let parts_done = || redis.cli(&["HGET", "position:n1:file", "parts_done"]);
    let in_mid_window = async |before: &str| {
        eventually("a window is under way", async || {
            let done = parts_done();
            let lines = redis.cli(&["HGET", "position:n1:file", "lines"]);
            // The window may already be finished. Then the kill happens between two windows.
            if (!done.is_empty() && done != before) || lines == "4000" { Ok(()) } else { Err((done, lines)) }
        })
        .await;
    };
    // Nineteen increments a line: a window of some forty parts.
    lines(0..4_000);
    let mut before = String::new();
    for _ in 0..3 {
        let sidecar = Sidecar::start(&folder, &redis);
        in_mid_window(&before).await;
        sidecar.signal("-KILL");
        drop(sidecar);
        before = parts_done();
    }
    let mut sidecar = Sidecar::start(&folder, &redis);
    in_mid_window(&before).await;
    sidecar.signal("-TERM");
    assert_eq!(sidecar.child.wait().unwrap().code(), Some(0));
    assert_eq!(parts_done(), "");
    assert_eq!(redis.cli(&["HMGET", "position:n1:file", "lines", "gaps"]), "4000");
    assert_eq!(redis.cli(&["EVAL", ONCE, "0"]), "4000 0");
}

#[tokio::test]
async fn the_newer_of_two_counts_and_the_older_reports_that_it_is_fenced() {
    let folder = TempDir::new().unwrap();
    let redis = Server::durable().await;
    let old = Sidecar::start(&folder, &redis);
    append(&folder, 0..10);
    eventually("the old one counts", async || equal(counted(&redis), 10)).await;
    let new = Sidecar::start(&folder, &redis);
    eventually("the old one knows", async || {
        let answer = old.get("/health/ready");
        if answer.contains("\"fenced\"") { Ok(()) } else { Err(answer) }
    })
    .await;
    append(&folder, 10..40);
    eventually("the new one counts", async || equal(counted(&redis), 40)).await;
    assert!(new.get("/health/ready").contains("\"ready\""));
}
