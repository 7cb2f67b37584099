//! Several copies, and other programs, on one machine.

use std::net::TcpListener;

use nix::sys::signal::Signal;

use crate::running::{Place, Up, get, members, until_nothing_is_left};

#[tokio::test]
async fn a_second_copy_runs_in_parallel_but_not_in_the_same_folder() {
    let (first, second) = (Place::new(), Place::new());
    let one = Up::start(&first, &[]).await;
    let mut two = Up::start(&second, &[]).await;
    get(first.ports.admin, "localhost", "/edge/status").unwrap();
    get(second.ports.admin, "localhost", "/edge/status").unwrap();

    let data_dir = first.data_dir();
    let third = Place::new();
    let (code, error) = third.fail_in(&data_dir).await;
    assert_eq!(code, Some(69), "{error}");
    for part in [&format!("(pid {})", one.child.id().unwrap()), "is in use by another copy", "--data-dir"] {
        assert!(error.contains(part), "{error:?} does not contain {part:?}");
    }

    let (one_group, two_group) = (one.group(), two.group());
    two.signal(Signal::SIGTERM);
    assert_eq!(two.ended().await.code(), Some(0), "{}", two.output());
    until_nothing_is_left(two_group, &second).await;
    get(first.ports.admin, "localhost", "/edge/status").expect("the first one still runs");
    assert!(!members(one_group).is_empty());
}

#[tokio::test]
async fn a_taken_port_is_named_before_anything_is_started() {
    let place = Place::new();
    for (name, port, part) in [
        ("edge", place.ports.edge, "nginx"),
        ("stats", place.ports.stats, "stats"),
        ("demo", place.demo[0], "demo-hello"),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let (code, error) = place.fail(&["--demo"]).await;
        assert_eq!(code, Some(69), "{name}: {error}");
        let key = if name == "demo" { "demo.hello".to_owned() } else { format!("ports.{name}") };
        let flag = format!("--set {key}=");
        let holder = format!("(pid {})", std::process::id());
        for text in
            [&format!("port {port} is taken by "), &holder, &format!("{part} wants"), &flag, "signalbox.toml"]
        {
            assert!(error.contains(text), "{error:?} does not contain {text:?}");
        }
        assert!(!place.data_dir().join("log/guard.log").exists(), "{name}: something was started");
        drop(listener);
    }
}
