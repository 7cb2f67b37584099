//! From a publish to its deliveries.

use super::support::*;
use crate::Refusal;
use signalbox_store::FabricRole;
use signalbox_testkit::{Server, equal, eventually};

#[tokio::test]
async fn an_event_reaches_every_subscriber_of_its_topic() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let pacemaker = Pacemaker::start(&redis, quick(), recorder.clone()).ready().await;
    let bus = &pacemaker.handle;
    bus.subscribe("a", wanted(&["orders"])).await.unwrap();
    bus.subscribe("b", wanted(&["orders", "users"])).await.unwrap();
    bus.subscribe("c", wanted(&["users"])).await.unwrap();
    let results = bus.publish("shop", "orders", vec![event("https://a/1"), event("https://a/1")]).await;
    let ids: Vec<u64> = results.into_iter().map(|result| result.unwrap().0).collect();
    assert!(ids[0] < ids[1], "{ids:?}");
    eventually("both deliveries", || async {
        equal((recorder.ids("a").len(), recorder.ids("b").len()), (2, 2))
    })
    .await;
    assert_eq!(recorder.ids("a"), ids);
    assert_eq!(recorder.ids("c"), [0; 0]);
    let taken = recorder.taken();
    let events = &taken.iter().find(|one| one.token == "a").unwrap().batch.events;
    assert_eq!((events[0].prev, events[0].tprev), (None, None));
    assert_eq!(events.last().unwrap().prev.unwrap().0, ids[0]);
    assert_eq!(bus.publish("other", "orders", vec![event("https://a/1")]).await, [Err(Refusal::Claimed)]);
    pacemaker.stop().await;
}
