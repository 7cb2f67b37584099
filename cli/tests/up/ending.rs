//! However it ends, nothing outlives it.

use nix::sys::signal::Signal;

use crate::running::{Place, Up, get, members, until, until_nothing_is_left};

#[tokio::test]
async fn the_demo_answers_and_sigterm_leaves_nothing_behind() {
    let place = Place::new();
    let mut up = Up::start(&place, &["--demo"]).await;
    let hello = get(place.ports.edge, "hello.localhost", "/").unwrap();
    assert!(hello.contains("Hello from hello, instance demo-hello"), "{hello}");
    get(place.ports.edge, "shop.localhost", "/").unwrap();
    get(place.demo[3], "new.localhost", "/health").unwrap();
    // HTTPS, with the certificate that was put, in HTTP/2.
    let url = format!("https://hello.localhost:{}/", place.ports.edge_tls);
    let resolve = format!("hello.localhost:{}:127.0.0.1", place.ports.edge_tls);
    let curl = std::process::Command::new("curl")
        .args(["-skv", "--max-time", "20", "--resolve", &resolve, "--write-out", " %{http_version}", &url])
        .output()
        .unwrap();
    let (text, verbose) = (String::from_utf8_lossy(&curl.stdout), String::from_utf8_lossy(&curl.stderr));
    assert!(text.contains("Hello from hello") && text.ends_with(" 2"), "{text}");
    assert!(verbose.contains("CN=Signalbox demo"), "{verbose}");
    let token = std::fs::read_to_string(place.data_dir().join("token")).unwrap();
    // The output of a service is in the journal, which more people read than the file.
    until("the place of the token", || {
        let output = up.output();
        if output.contains("stored in ") { Ok(()) } else { Err(output) }
    })
    .await;
    assert!(!up.output().contains(token.trim()), "{}", up.output());

    let group = up.group();
    // Guard, four Redis, pacemaker, sidecar, nginx with a worker, four applications.
    assert!(members(group).len() >= 13, "{:?}", members(group));
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await.code(), Some(0), "{}", up.output());
    assert_eq!(members(group), Vec::<String>::new());
    until_nothing_is_left(group, &place).await;
    assert!(up.pids().is_empty(), "{:?}", up.pids());
}

#[tokio::test]
async fn ctrl_c_ends_with_130_and_leaves_nothing_behind() {
    let place = Place::new();
    let mut up = Up::start(&place, &[]).await;
    let group = up.group();
    up.signal(Signal::SIGINT);
    assert_eq!(up.ended().await.code(), Some(130), "{}", up.output());
    until_nothing_is_left(group, &place).await;
}

#[tokio::test]
async fn kill_9_leaves_nothing_behind() {
    let place = Place::new();
    let mut up = Up::start(&place, &["--demo"]).await;
    let group = up.group();
    up.signal(Signal::SIGKILL);
    up.ended().await;
    until_nothing_is_left(group, &place).await;
    // And nothing is in the way of the next one.
    let mut next = Up::start(&place, &[]).await;
    next.signal(Signal::SIGTERM);
    assert_eq!(next.ended().await.code(), Some(0), "{}", next.output());
}

#[tokio::test]
async fn processes_that_outlived_a_killed_guard_are_ended_by_the_next_start() {
    let place = Place::new();
    let mut up = Up::start(&place, &[]).await;
    let group = up.group();
    // At the same moment: a guard that is missed is replaced.
    up.signal(Signal::SIGSTOP);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(group), Signal::SIGKILL).unwrap();
    up.signal(Signal::SIGKILL);
    up.ended().await;
    assert!(members(group).len() >= 8, "the parts should be orphans now: {:?}", members(group));
    let mut next = Up::start(&place, &[]).await;
    assert!(next.output().contains("that an earlier copy had left behind"), "{}", next.output());
    assert_eq!(members(group), Vec::<String>::new());
    let group = next.group();
    next.signal(Signal::SIGTERM);
    next.ended().await;
    until_nothing_is_left(group, &place).await;
}
