//! Actions on the route table and the bus, and changes of a label during an action.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::State as Shared, http::HeaderMap};
use serde_json::{Value, json};
use signalbox_daemon::RootToken;
use tokio::sync::Notify;

use super::support::{M, NOW_MS, PUBLISH_RATE, Receiver, World, machine};
use crate::{
    Error,
    actions::Outcome,
    record::{Cause, Record, Status},
};
use signalbox_access::{Author, Caller, Scope, Tokens};
use signalbox_bus::NewGroup;
use signalbox_bus_testkit::event;
use signalbox_lease::Lease;
use signalbox_machine::attempt;
use signalbox_route_table::{Hostname, InstanceId, Spec, State};
use signalbox_routing::Metrics;
use signalbox_routing::Reconciler;
use signalbox_testkit::eventually;

/// A gate, then this action.
fn action(call: &str) -> String {
    format!(
        "
state_machines:
  m:
    states:
      - {{gate: asked, exit_condition: metadata.go, triggers: [{{metadata: go}}], next: act}}
      - action: act
        {call}
        retry: {{attempts: 5, first: 1s, longest: 1s}}
        next: acted
      - {{gate: acted, exit_condition: metadata.end, triggers: [{{metadata: end}}], next: done}}
      - {{gate: done}}
"
    )
}

/// What a webhook received: method, headers, body.
type Received = Arc<Mutex<Vec<(String, HeaderMap, String)>>>;

/// A server that takes everything.
async fn taking() -> (String, Received) {
    let received = Received::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let take = |Shared(received): Shared<Received>,
                method: axum::http::Method,
                headers: HeaderMap,
                body: String| async move {
        received.lock().unwrap().push((method.to_string(), headers, body));
    };
    let router = Router::new().fallback(take).with_state(Arc::clone(&received));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, received)
}

#[tokio::test]
async fn an_effect_that_the_author_may_not_have_is_refused_when_the_machine_acts() {
    for (call, scope) in [
        ("publish: {topic: orders, url: \"https://shop.test/<label>\"}", "publish"),
        ("route: {host: shop.test, retire: {version_type: \"1\"}}", "routes"),
    ] {
        let yaml = action(call).replace("  m:\n", "  m:\n    hosts: [shop.test]\n");
        let world = World::new(&yaml).await;
        assert_eq!(world.apply_by_a_team(&yaml, 1).await, 2);
        let record = world.about_to_act("a", json!({})).await;
        let Outcome::Failed { why, .. } = world.perform("a", &record).await else { panic!("{call}: done") };
        assert!(why.contains("team applied the definition") && why.contains(scope), "{why}");
        assert!(world.events("orders").await.is_empty(), "{call}");
    }
}

#[tokio::test]
async fn a_webhook_has_the_method_body_and_signature_of_its_definition() {
    let (url, received) = taking().await;
    let yaml = format!(
        "
state_machines:
  m:
    webhooks: [{{match: \"{url}\", secret: \"${{SIGNING}}\"}}]
    states:
      - {{gate: asked, exit_condition: metadata.go, triggers: [{{metadata: go}}], next: act}}
      - {{action: act, webhook: \"{url}orders/<label>\", method: PUT, body: {{id: <label>, total: <metadata.total>, text: \"Order <label>\"}}, next: done}}
      - {{gate: done}}
"
    );
    let world = World::new(&yaml).await;
    let record = world.about_to_act("a", json!({"total": 7})).await;
    // Without the secret nothing is sent.
    let Outcome::Failed { why, .. } = world.perform("a", &record).await else { panic!("it was sent") };
    assert!(why.contains("SIGNING is not set"), "{why}");
    assert!(received.lock().unwrap().is_empty());
    let secret = signalbox_egress::new_secret([7; 32]);
    let secrets = &world.machines.secrets;
    // Bound to another address, it is not sent either.
    secrets.set(M, ("SIGNING", "http://a.example/"), &secret, "t").await.unwrap();
    let Outcome::Failed { why, .. } = world.perform("a", &record).await else { panic!("it was sent") };
    assert!(why.contains("SIGNING is bound to other addresses"), "{why}");
    assert!(received.lock().unwrap().is_empty());
    secrets.set(M, ("SIGNING", &url), &secret, "t").await.unwrap();
    assert_eq!(world.perform("a", &record).await, Outcome::Done(None));
    let (method, headers, body) = received.lock().unwrap().pop().unwrap();
    assert_eq!(method, "PUT");
    assert_eq!(
        serde_json::from_str::<Value>(&body).unwrap(),
        json!({"id": "a", "total": 7, "text": "Order a"})
    );
    assert_eq!(headers["webhook-id"], headers["x-idempotency-token"]);
    let id = headers["webhook-id"].to_str().unwrap();
    let mut expected = HeaderMap::new();
    assert!(world.machines.client.sign(&secret, id, body.as_bytes(), &mut expected));
    assert_eq!(headers["webhook-signature"], expected["webhook-signature"]);
    assert_eq!(headers["webhook-timestamp"], expected["webhook-timestamp"]);
}

impl World {
    /// Brings a label into the action, whose attempt is counted and not made.
    async fn about_to_act(&self, label: &str, metadata: Value) -> Record {
        self.create(label, metadata).await;
        let dying = self.another();
        dying.stopped.cancel();
        super::support::send_update(&dying, label, &json!({"go": true})).await;
        let record = self.label(label).await;
        assert_eq!((record.status, record.work.attempts), (Status::Acting, 1));
        record
    }

    /// Makes the attempt.
    async fn perform(&self, label: &str, record: &Record) -> Outcome {
        let version = self.machines.definitions.current(M).await.unwrap();
        self.machines.actions.perform((&version, label), record, None).await.outcome
    }

    /// The table as a running pacemaker has it.
    async fn with_routes(yaml: &str) -> Self {
        let world = Self::new(yaml).await;
        let (fabric, stats) = (world.servers.fabric(), world.servers.stats());
        let root = RootToken::new("0123456789abcdef0123456789abcdef").unwrap();
        let tokens = Tokens::new(&root, fabric.clone(), stats, || std::time::UNIX_EPOCH);
        let second = Duration::from_secs(1);
        let lease = Lease::new(fabric, "reconciler", "test".to_owned(), second * 60);
        let nudge = Arc::new(Notify::new());
        let mut reconciler =
            Reconciler::new(world.routes.clone(), tokens, lease, nudge, second, Metrics::default());
        for _ in 0..3 {
            reconciler.pass(1).await.unwrap();
        }
        world
    }
}

#[tokio::test]
async fn an_action_publishes_its_event_once() {
    let publish =
        "publish: {topic: orders, type: create, url: \"https://shop.test/<label>\", data: {n: <metadata.n>}}";
    let world = World::new(&action(publish)).await;
    let record = world.about_to_act("a", json!({"n": 7})).await;
    assert_eq!(world.perform("a", &record).await, Outcome::Done(None));
    // Its outcome was not written, so the attempt is repeated, with other metadata.
    world.send_update("a", json!({"n": 8})).await;
    world.time.advance(15_001);
    world.work_off().await;
    let record = world.until("a", |record| &*record.state == "acted").await;
    assert_eq!(record.history.last().unwrap().cause, Cause::Action);
    let events = world.events("orders").await;
    let [event] = &*events else { panic!("{events:?}") };
    assert_eq!((&*event.url, event.data.as_ref().unwrap().get()), ("https://shop.test/a", "{\"n\":7}"));
    assert_eq!(event.tenant, "machine.m");
    // Of another visit, or label, it is another event.
    world.create("b", json!({"n": 1})).await;
    world.send_update("b", json!({"go": true})).await;
    world.until("b", |record| &*record.state == "acted").await;
    assert_eq!(world.events("orders").await.len(), 2);
}

/// The topic of this number.
fn topic(number: u8) -> String {
    format!("topic_{}{}", char::from(b'a' + number / 26), char::from(b'a' + number % 26))
}

#[tokio::test]
async fn events_of_an_action_count_for_the_token_that_applied_its_machine() {
    let world = World::bare().await;
    let yaml = action("publish: {topic: orders, url: \"https://shop.test/<label>\"}");
    let team = Author::of(&Caller::named("team".to_owned(), vec![Scope::Publish], None));
    world.machines.applier.apply(&machine(&yaml), 0, &team, &BTreeMap::new()).await.unwrap();
    let record = world.about_to_act("a", json!({})).await;
    let failed = async || match world.perform("a", &record).await {
        Outcome::Failed { why, kind } => (why, kind),
        done => panic!("{done:?}"),
    };

    // Its topics are the token's. More of them may become free, so the failure is retried.
    let bus = &world.bus.handle;
    let most = signalbox_bus::Options::default().topics_per_client;
    let names = (0..u8::MAX).flat_map(|one| (0..u8::MAX).map(move |two| topic(one % 99) + &topic(two % 99)));
    let names: BTreeSet<String> = names.take(4 * most).collect();
    let of_topic = |name: &String| (name.clone(), event("https://shop.test/1"));
    let events = names.iter().take(most).map(of_topic).collect();
    let group = NewGroup { object: "o".to_owned(), state: None, events, idempotency_key: None };
    bus.publish_group("@team", group).await.unwrap();
    let (why, kind) = failed().await;
    assert!(why.contains("topics_per_client") && kind == attempt::Outcome::Silence, "{why} {kind:?}");
    bus.delete_topic(names.first().unwrap(), None).await.unwrap();
    assert_eq!(world.perform("a", &record).await, Outcome::Done(None));
    assert_eq!(bus.registry().topics["orders"].as_deref(), Some("@team"));
    assert_eq!(world.events("orders").await[0].tenant, "machine.m");

    // So is its rate.
    world.machines.actions.publish_rates.take("@team", PUBLISH_RATE as usize, NOW_MS).unwrap();
    let (why, kind) = failed().await;
    assert!(why.contains("limits.token_events_per_second"), "{why}");
    assert!(matches!(kind, attempt::Outcome::Status { code: 429, retry_after: Some(_) }), "{kind:?}");
}

#[tokio::test]
async fn publishing_to_the_topic_of_another_client_fails_without_a_retry() {
    let world = World::new(&action("publish: {topic: orders, url: \"https://shop.test/<label>\"}")).await;
    world.publish("orders", "x", json!({})).await;
    world.create("a", json!({})).await;
    world.send_update("a", json!({"go": true})).await;
    let record = world.until("a", |record| record.status == Status::Errored).await;
    assert_eq!((record.work.attempts, record.due_ms()), (1, None));
    assert!(record.work.error.is_some());
    // A template that cannot be filled in fails in every attempt.
    let yaml = action("publish: {topic: orders, url: \"https://shop.test/<metadata.missing>\"}");
    let world = World::new(&yaml).await;
    world.create("a", json!({})).await;
    world.send_update("a", json!({"go": true})).await;
    let record = world.until("a", |record| record.status == Status::Errored).await;
    assert!(record.work.error.as_deref().unwrap().contains("metadata.missing"), "{record:?}");
    assert!(world.events("orders").await.is_empty());
}

const ROUTE: &str = "route:
          host: shop.test
          shares: [{version_type: \"17\", percent: 75}, {version_type: \"18\", percent: 25}]
          register: {version_type: \"18\", instances: <metadata.instances>}
          retire: {version_type: \"16\", drain: 30s}";

#[tokio::test]
async fn a_change_of_routes_can_be_repeated() {
    let world = World::with_routes(&action(ROUTE)).await;
    let host = Hostname::parse("shop.test").unwrap();
    for (id, version, port) in [("old", "16", 9016), ("stable", "17", 9017)] {
        let instance = json!({"address": format!("127.0.0.1:{port}"), "hostnames": ["shop.test"], "version_type_id": version});
        let spec = Spec::check(serde_json::from_value(instance).unwrap(), world.routes.rules()).unwrap();
        world.routes.put(&Caller::root(), &InstanceId::parse(id).unwrap(), spec).await.unwrap();
    }
    let record = world.about_to_act("a", json!({"instances": ["127.0.0.1:9018"]})).await;
    let mut tables = Vec::new();
    for _ in 0..2 {
        assert_eq!(world.perform("a", &record).await, Outcome::Done(None));
        let store = world.routes.store();
        let policy = store.policy(&host).await.unwrap().unwrap().value;
        let mut states = Vec::new();
        for id in ["old", "stable", "machine:m:a:18-1"] {
            let stored = store.stored(&InstanceId::parse(id).unwrap()).await.unwrap().unwrap();
            states.push(stored.record.desired.state == State::Active);
        }
        let table = store.table_hosts(&["shop.test".to_owned()]).await.unwrap().pop().unwrap();
        let mut addresses = table.addresses;
        addresses.sort_unstable();
        tables.push((serde_json::to_value(&policy).unwrap()["shares"].clone(), states, addresses));
    }
    let (shares, states, addresses) = &tables[0];
    let wanted = json!([{"version_type": "17", "percent": 75}, {"version_type": "18", "percent": 25}]);
    assert_eq!(shares, &wanted);
    assert_eq!(states, &[false, true, true]);
    // A draining instance is in the table until its deadline.
    assert_eq!(addresses, &["127.0.0.1:9016", "127.0.0.1:9017", "127.0.0.1:9018"]);
    assert_eq!(tables[0], tables[1], "the second time changes nothing");
    // Taken up by another, which does it a third time.
    world.time.advance(15_001);
    world.work_off().await;
    world.until("a", |record| &*record.state == "acted").await;
}

#[tokio::test]
async fn rejected_routes_fail_without_a_retry_until_metadata_is_corrected() {
    let world = World::with_routes(&action(ROUTE)).await;
    world.create("a", json!({"instances": ["192.0.2.1:80"]})).await;
    world.send_update("a", json!({"go": true})).await;
    let record = world.until("a", |record| record.status == Status::Errored).await;
    assert_eq!((&*record.state, record.work.attempts, record.due_ms()), ("act", 1, None));
    assert!(matches!(world.machines.labels.retry(M, "a").await, Ok(again) if again.status == Status::Acting));
    world.until("a", |record| record.status == Status::Errored).await;
    // Every part is judged before the first is changed.
    let host = Hostname::parse("shop.test").unwrap();
    assert!(world.routes.store().policy(&host).await.unwrap().is_none());
    assert!(world.routes.store().ids_of_host(&host).await.unwrap().is_empty());
    // Facts alone do not start it again.
    assert_eq!(
        world.send_update("a", json!({"instances": ["127.0.0.1:9018"]})).await.status,
        Status::Errored
    );
    world.machines.labels.retry(M, "a").await.unwrap();
    world.until("a", |record| &*record.state == "acted").await;
}

#[tokio::test]
async fn a_label_deleted_during_an_action_stays_deleted() {
    let receiver = Receiver::holding().await;
    let world = World::new(&action(&format!("webhook: \"{}\"", receiver.url))).await;
    for label in ["gone", "back", "stays"] {
        world.create(label, json!({})).await;
        world.send_update(label, json!({"go": true})).await;
    }
    eventually("the attempts to be under way", async || match receiver.seen().len() {
        3 => Ok(()),
        seen => Err(seen.to_string()),
    })
    .await;
    world.machines.labels.delete(M, "gone").await.unwrap();
    world.machines.labels.delete(M, "back").await.unwrap();
    world.machines.labels.create(M, "back", &json!({"new": true}), true, None).await.unwrap();
    let back = world.label("back").await;
    // Updates during the action fire the gate on arrival.
    assert_eq!(world.send_update("stays", json!({"end": true})).await.status, Status::Acting);
    receiver.held.add_permits(3);
    assert_eq!(&*world.until("stays", |record| record.status == Status::Ended).await.state, "done");
    let noted = |record: &Record| {
        record.history.iter().any(|row| row.cause == Cause::Action && row.trigger.as_deref() == Some("done"))
    };
    let gone = world.until("gone", noted).await;
    assert_eq!((gone.status, gone.due_ms(), gone.metadata), (Status::Deleted, None, json!({})));
    assert!(matches!(world.machines.label_store.label(M, "gone").await, Err(Error::Gone)));
    let names =
        world.machines.label_store.list(M, &["asked", "act", "acted", "done"], None, None, 10).await.unwrap();
    assert_eq!(names, ["back", "stays"]);
    // The label that was created again is another one.
    assert_eq!(world.label("back").await, back);
    assert_eq!((&*back.state, back.incarnation), ("asked", 2));
    assert_eq!(world.machines.due.next(0).await.unwrap(), None);
}

/// Removes the record of the label, as its expiry does.
async fn forget(world: &World) {
    world.servers.fabric().command("DEL").arg("object:machine:m:a:data").run().await.unwrap();
}

#[tokio::test]
async fn a_label_whose_name_was_used_long_ago_has_tokens_of_its_own() {
    let receiver = Receiver::start(&[]).await;
    let world = World::new(&action(&format!("webhook: \"{}\"", receiver.url))).await;
    for _ in 0..2 {
        world.create("a", json!({})).await;
        world.send_update("a", json!({"go": true})).await;
        world.until("a", |record| &*record.state == "acted").await;
        world.machines.labels.delete(M, "a").await.unwrap();
        // Thirty days later nothing is known of it.
        forget(&world).await;
        world.time.advance(31 * 24 * 3_600_000);
    }
    let tokens = receiver.seen();
    assert_eq!(tokens.len(), 2);
    assert_ne!(tokens[0], tokens[1]);
}

#[tokio::test]
async fn the_answer_for_a_deleted_label_does_not_move_a_later_label_of_its_name() {
    let receiver = Receiver::holding().await;
    let world = World::new(&action(&format!("webhook: \"{}\"", receiver.url))).await;
    let attempts = async |count| {
        eventually("the attempt", async || {
            let seen = receiver.seen();
            if seen.len() == count { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    };
    world.create("a", json!({})).await;
    world.send_update("a", json!({"go": true})).await;
    attempts(1).await;
    forget(&world).await;
    world.time.advance(1_000);
    world.create("a", json!({})).await;
    world.send_update("a", json!({"go": true})).await;
    attempts(2).await;
    let acting = world.label("a").await;
    receiver.held.add_permits(1);
    // The permit is for the attempt that waits longest.
    eventually("the first attempt to end", async || {
        let left = world.machines.service.runner.tasks.len();
        if left == 1 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await;
    assert_eq!(world.label("a").await, acting);
    receiver.held.add_permits(1);
    world.until("a", |record| &*record.state == "acted").await;
}
