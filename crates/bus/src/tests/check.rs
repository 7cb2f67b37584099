//! The check of lanes, jobs and gauges finds what is broken.

use super::{hands::*, support::*};
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
        assert_eq!(hands.store.audit("s", 100).await.unwrap(), [], "before");
        number(hands.store.shard().redis(), command, &arguments).await;
        let found = hands.store.audit("s", 100).await.unwrap();
        assert!(found.iter().any(|(name, ..)| name == predicate), "{command} {arguments:?}: {found:?}");
    }
}

#[tokio::test]
async fn a_lane_is_consistent_in_each_of_its_states() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 2, 2, 0)]).await;
    let sound = async |hands: &Hands, when: &str| {
        assert_eq!(hands.store.audit("s", 100).await.unwrap(), [], "{when}");
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
