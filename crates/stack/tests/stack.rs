//! The library as tests and benchmarks use it: parts are stopped and started on demand. Needs the `signalbox` program next to
//! the test (`cargo build --workspace`), because the guard is one of its commands.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue has failed")]

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use signalbox_stack::{Builder, Part, PartHandle, Ports, Probe, Program, Stack};
use signalbox_testkit::eventually;

fn redis_and_nginx() -> Builder {
    Stack::builder().temporary().unwrap().without_pacemaker().without_sidecar().workers(2)
}

/// nginx responds as soon as its first worker does.
async fn both_workers(nginx: &PartHandle) -> Vec<i32> {
    eventually("both workers of nginx", async || {
        let workers = nginx.workers();
        if workers.len() == 2 { Ok(workers) } else { Err(format!("{workers:?}")) }
    })
    .await
}

/// Whether the process runs.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

#[tokio::test]
async fn a_killed_part_stays_down_until_it_is_started() {
    let stack = redis_and_nginx().auto_restart(true).start().await.unwrap();
    let (nginx, primary) = (stack.part(&Part::NGINX), stack.part(&Part::ROUTES_PRIMARY));
    let pid = nginx.pid().unwrap();
    let workers = both_workers(&nginx).await;

    nginx.kill().await.unwrap();
    assert!(!lives(pid) && !workers.iter().any(|worker| lives(*worker)));
    assert_eq!(nginx.status().last_exit.as_deref(), Some("killed by SIGKILL"));
    nginx.check().await.unwrap_err();

    primary.kill().await.unwrap();
    nginx.start().await.expect("nginx does not need the primary");
    assert_ne!(nginx.pid(), Some(pid));
    assert_eq!(primary.status().starts, 1, "it was not asked for");
    primary.restart().await.unwrap();
    stack.part(&Part::ROUTES_REPLICA).wait_ready().await.unwrap();
    stack.stop().await;
}

/// Also while nginx's workers run as another user, who must find the socket and the log.
#[tokio::test]
async fn other_users_cannot_enter_a_new_data_folder() {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let folder = parent.path().join("data");
    let stack = Stack::builder()
        .ports(Ports::free().unwrap())
        .data_dir(&folder)
        .auto_restart(false)
        .without_pacemaker()
        .without_sidecar()
        .start()
        .await
        .unwrap();
    let mode = fs::metadata(&folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o007, 0, "{mode:o}");
    assert!(stack.part(&Part::NGINX).check().await.is_ok());
    stack.stop().await;
}

#[tokio::test]
async fn a_crashed_part_is_restarted_only_if_restarts_are_on() {
    for wanted in [false, true] {
        let stack = redis_and_nginx().without_nginx().auto_restart(wanted).start().await.unwrap();
        let stats = stack.part(&Part::STATS);
        stats.crash();
        eventually("the death to be noticed", async || match stats.status() {
            status if status.last_exit.is_some() && (status.pid.is_some() || !wanted) => Ok(()),
            status => Err(format!("{status:?}")),
        })
        .await;
        assert_eq!(stats.status().starts, if wanted { 2 } else { 1 });
    }
}

#[tokio::test]
async fn a_paused_part_does_not_respond_until_it_is_resumed() {
    let stack = redis_and_nginx().start().await.unwrap();
    let nginx = stack.part(&Part::NGINX);
    nginx.pause();
    eventually("master and workers to be stopped", async || match nginx.is_paused() {
        true => Ok(()),
        false => Err("one runs".to_owned()),
    })
    .await;
    nginx.check().await.expect_err("nothing is listening");
    nginx.resume();
    nginx.check().await.unwrap();
    nginx.pause();
    nginx.stop().await.expect("a paused part can be ended");
    stack.stop().await;
}

#[tokio::test]
async fn a_second_router_follows_the_same_primary() {
    let stack = redis_and_nginx().start().await.unwrap();
    let router = stack.add_router().await.unwrap();
    assert_eq!(router.replica.part().as_str(), "routes-replica-2");
    both_workers(router.nginx.as_ref().unwrap()).await;
    assert_ne!(router.edge_url, stack.edge_url());
    // Orphans of one router must not be mistaken for the other router's workers.
    let workers = router.nginx.as_ref().unwrap().workers();
    stack.part(&Part::NGINX).crash();
    eventually("the first router to be gone", async || match stack.part(&Part::NGINX).status().last_exit {
        Some(_) => Ok(()),
        None => Err("it runs".to_owned()),
    })
    .await;
    assert_eq!(router.nginx.unwrap().workers(), workers);
    stack.stop().await;
}

#[tokio::test]
async fn dropping_a_stack_leaves_no_process() {
    let stack = redis_and_nginx().start().await.unwrap();
    let folder: PathBuf = stack.layout().root().to_owned();
    let mut pids: Vec<i32> = stack.parts().iter().filter_map(|part| part.pid()).collect();
    // One of them may still be starting when the other responds.
    pids.extend(both_workers(&stack.part(&Part::NGINX)).await);
    assert_eq!(pids.len(), 7);
    drop(stack);
    eventually("every process to end", async || match pids.iter().find(|pid| lives(**pid)) {
        None => Ok(()),
        Some(pid) => Err(format!("{pid} lives")),
    })
    .await;
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_part_that_cannot_start_ends_the_stack_and_shows_its_log() {
    let error = redis_and_nginx().nginx("KEEPALIVE", "many").start().await.unwrap_err().to_string();
    assert!(error.contains("nginx ended") && error.contains("invalid value \"many\""), "{error}");
    let folder = error.split(" of ").nth(1).unwrap().split("/log/").next().unwrap();
    assert!(PathBuf::from(folder).join("run/lock").exists(), "the log that the error names is kept");
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn a_part_of_the_caller_is_supervised_like_the_others() {
    let stack = redis_and_nginx().without_nginx().start().await.unwrap();
    let program = Program::new(Part::named("sleeper"), "/bin/sleep").arg("600").ready_when(Probe::Running);
    let sleeper = stack.add(program).await.unwrap();
    let pid = sleeper.pid().unwrap();
    let absent = Program::new(Part::named("absent"), "/nonexistent/program");
    let error = stack.add(absent).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot start absent (/nonexistent/program)"), "{error}");
    stack.stop().await;
    assert!(!lives(pid));
}
