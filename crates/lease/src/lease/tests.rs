use std::time::Duration;

use super::*;
use signalbox_testkit::Servers;

const TTL: Duration = Duration::from_secs(5);

fn lease(servers: &Servers, who: &str) -> Lease {
    Lease::new(servers.fabric(), "test", who.to_owned(), TTL)
}

#[tokio::test]
async fn one_holds_it_and_each_takeover_raises_the_epoch() {
    let servers = Servers::start().await;
    let at = |who: &str, now_ms: u64| lease(&servers, who).at(now_ms);
    assert_eq!(at("a", 10_000).hold().await.unwrap(), Some(1));
    assert_eq!(at("b", 10_001).hold().await.unwrap(), None);
    // A renewal keeps the epoch, so a call whose reply was lost can be repeated.
    assert_eq!(at("a", 14_000).hold().await.unwrap(), Some(1));
    assert_eq!(at("b", 18_999).hold().await.unwrap(), None);
    assert_eq!(at("b", 19_000).hold().await.unwrap(), Some(2));
    assert_eq!(at("a", 19_001).hold().await.unwrap(), None);
    // After its lease expired, the holder gets a new epoch even if no other process held the lease in
    // between.
    assert_eq!(at("b", 30_000).hold().await.unwrap(), Some(3));
}

#[tokio::test]
async fn a_released_lease_is_available_immediately() {
    let servers = Servers::start().await;
    let (mut a, mut b) = (lease(&servers, "a"), lease(&servers, "b"));
    assert_eq!(a.hold().await.unwrap(), Some(1));
    b.release().await;
    assert_eq!(b.hold().await.unwrap(), None);
    a.release().await;
    assert_eq!(b.hold().await.unwrap(), Some(2));
}

#[tokio::test]
async fn a_refusal_contains_the_current_epoch() {
    let servers = Servers::start().await;
    let mut a = lease(&servers, "a");
    assert_eq!(a.hold().await.unwrap(), Some(1));
    a.fenced(41);
    assert_eq!(a.hold().await.unwrap(), Some(42));
    assert_eq!(a.hold().await.unwrap(), Some(42));
}

#[tokio::test]
async fn a_lease_that_was_just_renewed_is_held_without_a_query() {
    let servers = Servers::start().await;
    let fabric = servers.fabric();
    let asked = async || {
        let calls: String = fabric.command("INFO").arg("commandstats").query().await.unwrap();
        calls.lines().find(|line| line.starts_with("cmdstat_evalsha")).map(str::to_owned)
    };
    let mut a = lease(&servers, "a");
    assert_eq!(a.hold().await.unwrap(), Some(1));
    let before = asked().await;
    assert!(before.is_some());
    assert_eq!(a.hold().await.unwrap(), Some(1));
    assert_eq!(asked().await, before);
    let calls = |line: Option<String>| line.map(|line| line.split(',').next().unwrap().to_owned());
    let mut short = Lease::new(servers.fabric(), "other", "a".to_owned(), Duration::from_millis(1));
    short.hold().await.unwrap();
    let before = calls(asked().await);
    tokio::task::yield_now().await;
    while short.held.is_some_and(|(_, since)| since.elapsed() < Duration::from_millis(1)) {
        tokio::task::yield_now().await;
    }
    short.hold().await.unwrap();
    assert_ne!(calls(asked().await), before, "a third of the lease is over");
}
