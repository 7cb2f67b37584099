//! The check of lanes, jobs and gauges finds what is broken.

use std::collections::BTreeSet;

use super::{hands::*, support::*};
use crate::store::SEGMENT_IDS;
use signalbox_testkit::Server;

#[tokio::test]
async fn each_broken_predicate_of_the_lanes_is_named() {
    for (predicate, command, arguments) in [
        ("B1", "DEL", vec!["bus:jobs:scheduled:main"]),
        ("B1", "DEL", vec!["bus:jobs:index:main"]),
        ("B1", "COPY", vec!["bus:jobs:index:main", "bus:jobs:waiting:s"]),
        ("B2", "HINCRBY", vec!["bus:batches:gauges:event", "s", "1"]),
        ("B2", "HINCRBY", vec!["bus:batches:gauges:batch", "s", "-1"]),
    ] {
        let server = Server::in_memory().await;
        let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 500)]).await;
        hands.publish_urls(&["a", "b"]).await;
        assert_eq!(hands.store.audit("s", 100, &[]).await.unwrap(), [], "before");
        number(hands.store.shard().redis(), command, &arguments).await;
        let found = hands.store.audit("s", 100, &[]).await.unwrap();
        assert!(found.iter().any(|(name, ..)| name == predicate), "{command} {arguments:?}: {found:?}");
    }
}

#[tokio::test]
async fn a_segment_of_the_log_that_is_kept_for_too_few_or_too_many_events_is_named() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 500)]).await;
    let segment = hands.publish_urls(&["a", "b"]).await[0] / SEGMENT_IDS;
    let redis = hands.store.shard().redis().clone();
    let needed = async || hands.store.needed(10).await.unwrap().remove("s").unwrap_or_default();
    assert_eq!(needed().await, [segment]);
    assert_eq!(hands.store.audit("s", 100, &needed().await).await.unwrap(), []);
    let key = |segment: u64| format!("bus:log:{segment}:held");
    number(&redis, "HINCRBY", &[&key(segment), "s", "-1"]).await;
    number(&redis, "HINCRBY", &[&key(segment - 1), "s", "1"]).await;
    number(&redis, "HINCRBY", &["bus:log", &(segment - 1).to_string(), "0"]).await;
    let found = hands.store.audit("s", 100, &needed().await).await.unwrap();
    let places: BTreeSet<_> =
        found.iter().map(|(predicate, place, _)| (&**predicate, place.clone())).collect();
    let both = [segment - 1, segment].map(|one| ("B3", one.to_string()));
    assert_eq!(places, BTreeSet::from(both), "{found:?}");
}

#[tokio::test]
async fn a_lane_is_consistent_in_each_of_its_states() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 2, 2, 0)]).await;
    let sound = async |hands: &Hands, when: &str| {
        assert_eq!(hands.store.audit("s", 100, &[]).await.unwrap(), [], "{when}");
    };
    sound(&hands, "without events").await;
    hands.publish_urls(&["a", "b", "c", "d", "e"]).await;
    sound(&hands, "instant").await;
    let taken = hands.take("w").await;
    sound(&hands, "pending").await;
    hands.publish_urls(&["a", "b", "c"]).await;
    sound(&hands, "pending, and more came").await;
    assert!(hands.ack(&taken).await);
    sound(&hands, "acknowledged").await;
}
