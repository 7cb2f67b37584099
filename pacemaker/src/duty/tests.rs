use std::time::Duration;

use super::*;
use crate::testing::Servers;

const TTL: Duration = Duration::from_secs(5);

fn duty(servers: &Servers, who: &str) -> Duty {
    Duty::new(servers.fabric(), "test", who.to_owned(), TTL)
}

#[tokio::test]
async fn one_holds_it_and_each_takeover_raises_the_epoch() {
    let servers = Servers::start().await;
    let at = |who: &str, now_ms: u64| duty(&servers, who).at(now_ms);
    assert_eq!(at("a", 10_000).hold().await.unwrap(), Some(1));
    assert_eq!(at("b", 10_001).hold().await.unwrap(), None);
    // Holding on keeps the epoch, and a lost reply is answered by asking again.
    assert_eq!(at("a", 14_000).hold().await.unwrap(), Some(1));
    assert_eq!(at("b", 18_999).hold().await.unwrap(), None);
    assert_eq!(at("b", 19_000).hold().await.unwrap(), Some(2));
    assert_eq!(at("a", 19_001).hold().await.unwrap(), None);
    // Who let it lapse gets a new epoch, even if nobody was there between.
    assert_eq!(at("b", 30_000).hold().await.unwrap(), Some(3));
}

#[tokio::test]
async fn given_back_it_is_anothers_at_once() {
    let servers = Servers::start().await;
    let (mut a, mut b) = (duty(&servers, "a"), duty(&servers, "b"));
    assert_eq!(a.hold().await.unwrap(), Some(1));
    b.release().await;
    assert_eq!(b.hold().await.unwrap(), None);
    a.release().await;
    assert_eq!(b.hold().await.unwrap(), Some(2));
}

#[tokio::test]
async fn a_refusal_tells_where_to_begin() {
    let servers = Servers::start().await;
    let mut a = duty(&servers, "a");
    assert_eq!(a.hold().await.unwrap(), Some(1));
    a.fenced(41);
    assert_eq!(a.hold().await.unwrap(), Some(42));
    assert_eq!(a.hold().await.unwrap(), Some(42));
}
