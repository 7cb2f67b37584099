//! Feeds: asked when a condition needs them, and what happens while they do not answer.

use std::sync::{Arc, Mutex};

use axum::{Json, Router, extract::Path, routing::get};
use serde_json::{Value, json};
use signalbox_store::keys::stats as keys;
use signalbox_testkit::eventually;
use tokio::sync::Semaphore;

use super::support::{Feeder, M, Receiver, Say, World};
use crate::record::{Cause, Status};

/// A gate that opens by a feed; `rest` are further keys of the feed.
fn gate(url: &str, rest: &str) -> String {
    format!(
        "
state_machines:
  m:
    feeds: [{{name: load, url: \"{url}/<label>\", {rest}}}]
    states:
      - gate: busy
        exit_condition: feeds.load.value < 5
        triggers: [{{metadata: look}}, {{interval: 1h}}]
        next: done
      - {{gate: done}}
"
    )
}

fn calm() -> Say {
    Say::Json(json!({"value": 1}))
}

#[tokio::test]
async fn a_failed_feed_holds_the_gate_and_is_asked_again_with_backoff() {
    let feeder = Feeder::start(&[Say::Status(500), Say::Text("no JSON".into()), calm()]).await;
    let world = World::new(&gate(&feeder.url, "on_error: hold")).await;
    world.create("a", json!({})).await;
    assert!(feeder.asked().is_empty(), "nothing has fired");
    world.send_update("a", json!({"look": 1})).await;
    for (failures, pause_ms) in [(1, 1_000), (2, 2_000)] {
        let record = world.until("a", |record| record.work.feed_failures == failures).await;
        assert_eq!((&*record.state, record.status), ("busy", Status::Waiting));
        assert_eq!(record.work.error.as_deref(), Some("the feed load failed"));
        assert_eq!(record.work.again_ms, Some(world.now_ms() + pause_ms));
        world.time.advance(pause_ms - 1);
        world.work_off().await;
        assert_eq!(feeder.asked().len(), failures as usize, "it is not due yet");
        world.time.advance(1);
        world.work_off().await;
    }
    let record = world.until("a", |record| &*record.state == "done").await;
    assert_eq!(record.history.last().unwrap().cause, Cause::Feed);
    assert_eq!((record.work.error, feeder.asked().len()), (None, 3));
    assert_eq!(world.machines.due.next(0).await.unwrap(), None);
    assert_eq!(world.metric("signalbox_machines_feeds_total{result=\"failed\"}").await, 2);
}

#[tokio::test]
async fn a_feed_without_an_answer_or_with_too_large_a_one_is_replaced_by_its_default() {
    let large = |bytes: usize| {
        let frame = json!({"value": 1, "pad": ""}).to_string().len();
        Say::Json(json!({"value": 1, "pad": "x".repeat(bytes - frame)}))
    };
    let default = "timeout: 1s, on_error: {default: {value: 9}}";
    for (say, state) in [(Say::Never, "busy"), (large((1 << 20) + 1), "busy"), (large(1 << 20), "done")] {
        let feeder = Feeder::start(&[say]).await;
        let world = World::new(&gate(&feeder.url, default)).await;
        world.create("a", json!({})).await;
        let asked = world.send_update("a", json!({"look": 1})).await.revision;
        // Evaluated with the answer or the default: the feed is not asked again before the next evaluation.
        let record = world.until("a", |record| record.revision > asked && record.work.held.is_none()).await;
        assert_eq!((&*record.state, record.work.feed_failures), (state, 0));
        assert_eq!(feeder.asked(), ["a"]);
        let failed = world.metric("signalbox_machines_feeds_total{result=\"failed\"}").await;
        assert_eq!(failed, u64::from(state == "busy"));
    }
}

#[tokio::test]
async fn an_answer_is_cached_for_its_ttl_and_its_request_only() {
    let looked = async |ttl: &str| {
        let feeder = Feeder::start(&[Say::Status(503), Say::Json(json!({"value": 7}))]).await;
        let world = World::new(&gate(&feeder.url, &format!("ttl: {ttl}, on_error: {{default: {{}}}}"))).await;
        for label in ["a", "b"] {
            world.create(label, json!({})).await;
        }
        for look in 0..3 {
            for label in ["a", "b"] {
                let revision = world.send_update(label, json!({"look": look})).await.revision;
                world.until(label, |record| record.revision > revision && record.work.held.is_none()).await;
            }
        }
        feeder.asked()
    };
    assert_eq!(looked("0s").await, ["a", "b", "a", "b", "a", "b"]);
    // The first answer was a failure, which is not cached.
    assert_eq!(looked("1h").await, ["a", "b", "a"]);
}

/// Where an action leads may hang on a feed; when that fails, only the feed is asked again.
#[tokio::test]
async fn an_action_is_not_repeated_when_a_feed_fails_after_it() {
    let feeder = Feeder::start(&[Say::Status(500), Say::Json(json!({"way": "left"}))]).await;
    let receiver = Receiver::start(&[]).await;
    let world = World::new(&format!(
        "
state_machines:
  m:
    feeds: [{{name: ways, url: \"{}/<label>\"}}]
    states:
      - action: send
        webhook: \"{}\"
        next:
          type: context
          path: feeds.ways.way
          destinations: [{{value: left, state: left}}]
          default: right
      - {{gate: left}}
      - {{gate: right}}
",
        feeder.url, receiver.url
    ))
    .await;
    world.create("a", json!({})).await;
    let record = world.until("a", |record| record.work.feed_failures == 1).await;
    assert_eq!((record.status, &*record.state), (Status::Choosing, "send"));
    assert_eq!(
        world.machines.label_store.list(M, &[], Some(Status::Choosing), None, 10).await.unwrap(),
        ["a"]
    );
    world.time.advance(1_000);
    world.work_off().await;
    let record = world.until("a", |record| record.status == Status::Ended).await;
    assert_eq!(&*record.state, "left");
    assert_eq!((receiver.seen().len(), feeder.asked().len()), (1, 2));
    assert!(
        world.machines.label_store.list(M, &[], Some(Status::Choosing), None, 10).await.unwrap().is_empty()
    );
}

const STATS: &str = "
state_machines:
  m:
    feeds:
      - {name: one, stats: {version_type: <metadata.version>, window: 5m}}
      - {name: all, stats: {application: <metadata.application>, window: 5m}, on_error: {default: {requests: -1}}}
    states:
      - gate: asked
        exit_condition: |
          feeds.one.requests = 100 and feeds.one.5xx_percentage = 2 and feeds.one.time_average_ms = 15
          and feeds.all.requests = 150
        triggers: [{metadata: look}, {interval: 1h}]
        next: good
      - gate: good
        exit_condition: feeds.all.requests < 0
        triggers: [{metadata: look}, {interval: 1h}]
        next: done
      - {gate: done}
";

#[tokio::test]
async fn statistics_of_the_edge_can_be_a_feed() {
    let mut world = World::new(STATS).await;
    let stats = world.servers.stats();
    let now = i64::try_from(stats.now_ms().await.unwrap() / 1000).unwrap();
    let count = async |id: &str, at: i64, metric: &str, value: u64| {
        let key = keys::history(id, at - at.rem_euclid(3600), metric);
        stats.command("HINCRBY").key(&key).arg(at).arg(value).run().await.unwrap();
    };
    for (metric, value) in [("requests", 60), ("5xx", 1), ("time", 900), ("timecount", 60)] {
        count("18", now - 30, metric, value).await;
    }
    for (metric, value) in [("requests", 40), ("5xx", 1), ("time", 600), ("timecount", 40)] {
        count("18", now - 40, metric, value).await;
    }
    // Before the window, and of others.
    count("18", now - 900, "requests", 5_000).await;
    count("19", now - 30, "requests", 50).await;
    count("20", now - 30, "requests", 7).await;
    for member in ["18", "19"] {
        stats.command("SADD").key(&keys::application("shop")).arg(member).run().await.unwrap();
    }
    world.create("a", json!({"version": 18, "application": "shop"})).await;
    world.send_update("a", json!({"look": 1})).await;
    let record = world.until("a", |record| record.work.held.is_none() && record.revision > 2).await;
    assert_eq!(&*record.state, "good", "{}", world.machines.inspector.explainer.why(M, "a").await.unwrap());
    // Without statistics, one feed has its default and the other is unknown.
    world.servers.stats.kill();
    world.create("b", json!({"version": 18, "application": "shop"})).await;
    for label in ["a", "b"] {
        world.send_update(label, json!({"look": 2})).await;
    }
    assert_eq!(&*world.until("a", |record| record.status == Status::Ended).await.state, "done");
    let record = world.until("b", |record| record.work.feed_failures == 1).await;
    assert_eq!((&*record.state, record.work.error.as_deref()), ("asked", Some("the feed one failed")));
}

#[tokio::test]
async fn a_feed_that_the_author_may_not_read_fails() {
    let world = World::new(STATS).await;
    assert_eq!(world.apply_by_a_team(STATS, 1).await, 2);
    world.create("a", json!({"version": 18, "application": "shop"})).await;
    world.send_update("a", json!({"look": 1})).await;
    let record = world.until("a", |record| record.work.feed_failures == 1).await;
    assert_eq!(&*record.state, "asked");
    let why = world.machines.inspector.explainer.why(M, "a").await.unwrap().to_string();
    assert!(why.contains("team applied the definition"), "{why}");
}

/// A feed that is not needed to decide is not asked.
#[tokio::test]
async fn only_feeds_that_an_evaluation_reaches_are_asked() {
    let feeder = Feeder::start(&[calm()]).await;
    let yaml = gate(&feeder.url, "").replace("feeds.load.value", "metadata.go and feeds.load.value");
    let world = World::new(&yaml).await;
    world.create("a", json!({"go": false})).await;
    let answer = world.send_update("a", json!({"look": 1})).await;
    assert_eq!((answer.state.as_str(), feeder.asked().len()), ("busy", 0));
    assert_eq!(world.label("a").await.work.held, None);
    world
        .send_update(
            "a",
            Value::from(serde_json::Map::from_iter([("go".into(), json!(true)), ("look".into(), json!(2))])),
        )
        .await;
    world.until("a", |record| &*record.state == "done").await;
    assert_eq!(feeder.asked(), ["a"]);
}

#[tokio::test]
async fn an_explanation_shows_the_results_of_its_feeds() {
    for (rest, result, blocks) in
        [("on_error: hold", "failed", "unknown"), ("on_error: {default: {value: 9}}", "default", "false")]
    {
        let feeder = Feeder::start(&[Say::Status(500)]).await;
        let world = World::new(&gate(&feeder.url, rest)).await;
        world.create("a", json!({})).await;
        let why = world.machines.inspector.explainer.why(M, "a").await.unwrap();
        assert_eq!(why["feeds"], json!({"load": {"result": result, "error": "answered 500"}}), "{why}");
        assert_eq!(why["result"].as_str().map_or_else(|| why["result"].to_string(), str::to_owned), blocks);
        assert_eq!(&*world.label("a").await.state, "busy", "an inspection opens no gate");
    }
    let feeder = Feeder::start(&[calm()]).await;
    let world = World::new(&gate(&feeder.url, "ttl: 0s")).await;
    world.create("a", json!({})).await;
    let why = world.machines.inspector.explainer.why(M, "a").await.unwrap();
    assert_eq!((&why["feeds"], &why["result"]), (&json!({"load": {"result": "ok"}}), &json!(true)), "{why}");
}

#[tokio::test]
async fn the_answer_for_earlier_metadata_opens_no_gate_for_later_metadata() {
    type Asked = Arc<Mutex<Vec<String>>>;
    let (asked, good): (Asked, _) = (Asked::default(), Arc::new(Semaphore::new(0)));
    let (known, held) = (Arc::clone(&asked), Arc::clone(&good));
    let answer = move |Path(user): Path<String>| async move {
        known.lock().unwrap().push(user.clone());
        // The feed has not answered for `bad` when it answers for `good`.
        if user != "good" {
            std::future::pending::<()>().await;
        }
        held.acquire().await.unwrap().forget();
        Json(json!({"ok": true}))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/{user}", get(answer))).await });
    let yaml = format!(
        "
state_machines:
  m:
    feeds: [{{name: user, url: \"http://{address}/<metadata.user>\"}}]
    states:
      - {{gate: asked, exit_condition: feeds.user.ok, triggers: [{{metadata: user}}, {{interval: 1h}}], next: done}}
      - {{gate: done}}
"
    );
    let world = World::new(&yaml).await;
    world.create("a", json!({})).await;
    world.send_update("a", json!({"user": "good"})).await;
    let count = |name: &str| asked.lock().unwrap().iter().filter(|user| *user == name).count();
    eventually("the feed to be asked", async || (count("good") == 1).then_some(()).ok_or_else(String::new))
        .await;
    world.send_update("a", json!({"user": "bad"})).await;
    eventually("the second request", async || (count("bad") == 1).then_some(()).ok_or_else(String::new))
        .await;
    good.add_permits(1);
    // The answer for `good` is dropped, and the feed is asked for `bad` again.
    eventually("the first answer to be used", async || {
        let moved = &*world.label("a").await.state == "done";
        (moved || count("bad") == 2).then_some(()).ok_or_else(|| format!("{:?}", asked.lock().unwrap()))
    })
    .await;
    assert_eq!(&*world.label("a").await.state, "asked");
}

#[tokio::test]
async fn a_gate_waits_while_the_feed_that_chooses_its_next_state_fails() {
    let split = json!({"way": "new"});
    let feeder = Feeder::start(&[Say::Status(500), Say::Json(split)]).await;
    let yaml = format!(
        "
state_machines:
  m:
    feeds: [{{name: split, url: \"{}/<label>\", on_error: hold}}]
    states:
      - gate: start
        exit_condition: metadata.go
        triggers: [{{metadata: go}}]
        next: {{type: context, path: feeds.split.way, destinations: [{{value: new, state: new_mail}}], default: old_mail}}
      - {{gate: new_mail}}
      - {{gate: old_mail}}
",
        feeder.url
    );
    let world = World::new(&yaml).await;
    world.create("a", json!({})).await;
    world.send_update("a", json!({"go": true})).await;
    let record = world.until("a", |record| record.work.feed_failures == 1 || record.visit > 1).await;
    assert_eq!((&*record.state, record.status), ("start", Status::Waiting));
    world.time.advance(1_000);
    world.work_off().await;
    assert_eq!(&*world.until("a", |record| record.visit > 1).await.state, "new_mail");
}
