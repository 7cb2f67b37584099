//! Ended parts are restarted.

use std::fs;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use serde_json::Value;

use crate::running::{Place, Up, get, until, until_nothing_is_left};

#[tokio::test]
async fn a_part_that_is_killed_is_started_again() {
    let place = Place::new();
    let mut up = Up::start(&place, &[]).await;
    let before = up.pids();
    // When nginx's master dies, its workers continue; they would hold the ports.
    for part in ["nginx", "stats", "sidecar", "pacemaker", "routes-replica", "guard"] {
        let old = before[part];
        kill(Pid::from_raw(old), Signal::SIGKILL).unwrap();
        until(&format!("{part} to run again"), || match up.pids().get(part) {
            Some(pid) if *pid != old => Ok(()),
            other => Err(format!("{other:?} instead of {old}: {}", up.output())),
        })
        .await;
        if part != "guard" {
            up.until_line(&format!("{part:<16} back")).await;
        }
    }
    get(place.ports.admin, "localhost", "/edge/status").unwrap();
    // Orphaned workers would answer, too, and keep the ports from the new nginx.
    let workers = until("new workers", || {
        let answer = get(place.ports.admin, "localhost", "/edge/status")?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let body = body.get(body.find('{').unwrap_or(0)..=body.rfind('}').unwrap_or(0)).unwrap_or_default();
        let status: Value = serde_json::from_str(body).map_err(|error| format!("{error} in {answer}"))?;
        let workers = status["workers"].as_array().ok_or(answer)?;
        Ok(workers.iter().filter_map(|worker| worker["pid"].as_i64()).collect::<Vec<_>>())
    })
    .await;
    let master = up.pids()["nginx"];
    for worker in &workers {
        let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
        let parent = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(1)).unwrap();
        assert_eq!(parent, master.to_string(), "worker {worker} of {workers:?}");
    }
    assert_eq!(workers.len(), 1);

    let group = before["guard"];
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await.code(), Some(0), "{}", up.output());
    until_nothing_is_left(group, &place).await;
}
