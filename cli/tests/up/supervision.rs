//! What dies comes back.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::running::{Place, Up, get, until, until_nothing_is_left};

#[tokio::test]
async fn a_part_that_is_killed_is_started_again() {
    let place = Place::new();
    let mut up = Up::start(&place, &[]).await;
    let before = up.pids();
    // nginx' master takes none of its workers along; they would hold the ports.
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
    get(place.ports.admin, "admin", "/edge/status").unwrap();

    let group = before["guard"];
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await.code(), Some(0), "{}", up.output());
    until_nothing_is_left(group, &place).await;
}
