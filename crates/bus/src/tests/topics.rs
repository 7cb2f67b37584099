//! Topics, subscriptions and tokens of a running bus.

use std::collections::{BTreeMap, BTreeSet};

use super::{running, support::*, truth::*};
use crate::{ApiToken, Error, Limit, Refusal};
use signalbox_store::FabricRole;
use signalbox_testkit::{Server, equal, eventually};

#[tokio::test]
async fn deleting_a_topic_breaks_neither_the_list_of_subscriptions_nor_unsubscribing() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    bus.subscribe("s", wanted(&["orders", "users"])).await.unwrap();
    bus.subscribe("watcher", wanted(&["signalbox.subscriber.topic_deleted"])).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    bus.delete_topic("orders", Some("shop")).await.unwrap();
    eventually("the report", || async { equal(recorder.ids("watcher").len(), 1) }).await;
    bus.unsubscribe("watcher").await.unwrap();
    let listed = bus.subscriptions().await.unwrap();
    assert_eq!(listed[0].subscription.topics, BTreeSet::from(["users".to_owned()]));
    let redis = server.open::<FabricRole>();
    for key in ["bus:topic:orders", "bus:subscribers:orders"] {
        assert_eq!(number(&redis, "EXISTS", &[key]).await, 0, "{key}");
    }
    assert_eq!(strings(&redis, "SMEMBERS", &["bus:topics:s"]).await, ["users"]);
    bus.unsubscribe("s").await.unwrap();
    assert!(matches!(bus.unsubscribe("s").await, Err(Error::NoSuchSubscription)));
    assert!(bus.subscriptions().await.unwrap().is_empty());
    eventually("the lanes to be cleared away", || async {
        equal(number(&redis, "HLEN", &["bus:purge"]).await, 0)
    })
    .await;
    for pattern in ["bus:*:s", "bus:*:s:*"] {
        assert_eq!(strings(&redis, "KEYS", &[pattern]).await, [""; 0]);
    }
    assert_true(&redis, "the end of the subscription").await;
}

#[tokio::test]
async fn only_its_publisher_or_root_deletes_a_topic() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    assert!(matches!(bus.delete_topic("orders", Some("other")).await, Err(Error::Forbidden)));
    assert!(matches!(bus.delete_topic("nothing", None).await, Err(Error::NoSuchTopic)));
    bus.delete_topic("orders", None).await.unwrap();
    // And its name is free again.
    bus.publish("other", "orders", vec![event("https://a/1")]).await[0].unwrap();
    assert_eq!(bus.publish("shop", "orders", vec![event("https://a/1")]).await, [Err(Refusal::Claimed)]);
}

#[tokio::test]
async fn a_refused_topic_name_leaves_nothing_behind() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    for name in ["", "Orders", "a b", "a\n", "signalbox.x", "ä", &"x".repeat(65), "a.b", "a1"] {
        assert_eq!(
            bus.publish("shop", name, vec![event("https://a/1")]).await,
            [Err(Refusal::BadTopic)],
            "{name:?}"
        );
    }
    for name in ["Orders", "signalbox.", "signalbox..x", "other.x"] {
        assert!(matches!(bus.subscribe("s", wanted(&[name])).await, Err(Error::BadTopic(_))), "{name:?}");
    }
    assert!(bus.topics().await.unwrap().is_empty());
    assert!(bus.subscriptions().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_token_that_is_deleted_takes_its_subscription_with_it() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    let scopes = BTreeSet::from(["publish".to_owned()]);
    let client = ApiToken::new("shop".into(), scopes, "shop--1".into(), None, None);
    bus.create_api_token("shop--1", client.clone()).await.unwrap();
    bus.create_api_token("shop--1", client.clone()).await.unwrap();
    let other = ApiToken { name: "other".into(), ..client.clone() };
    assert!(matches!(bus.create_api_token("shop--1", other).await, Err(Error::TokenExists)));
    assert_eq!(bus.api_tokens().await.unwrap(), BTreeMap::from([("shop--1".to_owned(), client)]));
    bus.subscribe("shop--1", wanted(&["orders"])).await.unwrap();
    // Another token is one of the same client, and the one before ends.
    bus.rotate_api_token("shop--1", "shop--2", None, 200, 100).await.unwrap();
    let of = |digest: &str, now_ms| bus.client_of(digest, now_ms).map(|(client, _)| client);
    let shop = Some("shop--1".to_owned());
    assert_eq!((of("shop--1", 199), of("shop--1", 200)), (shop.clone(), None));
    assert_eq!((of("shop--2", 200), of("shop--3", 200)), (shop, None));
    assert_eq!(number(&server.open::<FabricRole>(), "HLEN", &["bus:api_tokens"]).await, 2);
    let thief = ApiToken {
        name: "thief".into(),
        secrets: BTreeMap::from([("shop--2".to_owned(), None)]),
        ..ApiToken::default()
    };
    assert!(matches!(bus.create_api_token("shop--2", thief).await, Err(Error::TokenExists)));
    bus.delete_api_token("shop--1").await.unwrap();
    assert!(bus.subscriptions().await.unwrap().is_empty());
    assert!(matches!(bus.delete_api_token("shop--1").await, Err(Error::NoSuchToken)));
    assert_eq!(number(&server.open::<FabricRole>(), "HLEN", &["bus:api_tokens"]).await, 0);
}

#[tokio::test]
async fn pacemakers_side_by_side_see_each_others_subscriptions_immediately() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let one = Pacemaker::start(&redis, quick(), recorder.clone()).ready().await;
    let two = Pacemaker::start(&redis, quick(), recorder.clone()).ready().await;
    // A confirmed subscription misses no event, whichever pacemaker accepts it next.
    for n in 0..20 {
        let token = format!("s{n}");
        one.handle.subscribe(&token, wanted(&["orders"])).await.unwrap();
        two.handle.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
        eventually("the delivery", || async { equal(recorder.ids(&token).len(), 1) }).await;
        one.handle.unsubscribe(&token).await.unwrap();
    }
}

/// A client that subscribes to ever new topics must not use up the limit for the others.
#[tokio::test]
async fn topics_that_exist_only_for_a_subscription_end_with_it() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    let names = |registry: &crate::Registry| registry.topics.keys().cloned().collect::<Vec<_>>();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    bus.subscribe("other", wanted(&["b"])).await.unwrap();
    for topics in [&["a", "b"][..], &["c", "orders"], &["d", "e", "b"]] {
        bus.subscribe("s", wanted(topics)).await.unwrap();
    }
    assert_eq!(names(&bus.registry()), ["b", "d", "e", "orders"]);
    bus.unsubscribe_topic("s", "d").await.unwrap();
    assert_eq!(names(&bus.registry()), ["b", "e", "orders"]);
    bus.unsubscribe("s").await.unwrap();
    assert_eq!(names(&bus.registry()), ["b", "orders"]);
    let redis = server.open::<FabricRole>();
    let mut stored = strings(&redis, "SMEMBERS", &["bus:topics"]).await;
    stored.sort();
    assert_eq!(stored, ["b", "orders"]);
    assert_true(&redis, "removed topics").await;
}

#[test]
fn a_client_has_a_limit_of_topics_however_it_creates_them() {
    let limits = crate::Options { topics: 10, topics_per_client: 4, ..crate::Options::default() };
    let mut registry = crate::Registry::default();
    let too_many = |result: Result<(), Error>| matches!(result, Err(Error::TooMany(Limit::TopicsOfClient)));
    registry.claim("own", "s", &limits).unwrap();
    registry.claim("foreign", "other", &limits).unwrap();
    registry.subscribe("s", wanted(&["foreign", "a", "b", "c"]), 1, &limits).unwrap();
    assert!(too_many(registry.subscribe("s", wanted(&["a", "b", "c", "d"]), 2, &limits)), "one too many");
    assert!(
        too_many(registry.claim("next", "s", &limits)),
        "it publishes to one, and three wait for a publisher"
    );
    registry.claim("a", "s", &limits).unwrap();
    registry.subscribe("s", wanted(&["x", "y"]), 3, &limits).unwrap();
    assert_eq!(registry.topics.keys().collect::<Vec<_>>(), ["a", "foreign", "own", "x", "y"]);
    // Another client is not affected.
    registry.subscribe("t", wanted(&["p", "q", "r"]), 4, &limits).unwrap();
    registry.claim("next", "t", &limits).unwrap();
}

#[tokio::test]
async fn topics_of_a_deleted_client_are_removed_unless_they_have_subscribers() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    let token = ApiToken::new("shop".into(), ["publish".to_owned()].into(), "digest".into(), None, None);
    bus.create_api_token("digest", token).await.unwrap();
    for topic in ["orders", "users"] {
        bus.publish("digest", topic, vec![event("https://a/1")]).await[0].unwrap();
    }
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    bus.delete_api_token("digest").await.unwrap();
    assert_eq!(bus.registry().topics.keys().collect::<Vec<_>>(), ["orders"]);
    assert_eq!(bus.publish("other", "orders", vec![event("https://a/1")]).await, [Err(Refusal::Claimed)]);
    bus.publish("other", "users", vec![event("https://a/1")]).await[0].unwrap();
}
