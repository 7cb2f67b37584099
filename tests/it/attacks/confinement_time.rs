//! A token that was revoked tries to stay in use: by the webhook that it subscribed, by the streams that it opened, by the tasks
//! that it started, and by a later token of its name.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    events::Stream,
    http::{Request, Response},
    receiver::{self, Receiver},
    system::System,
};

async fn start(name: &str) -> System {
    System::with(name, |builder| builder.pacemaker("bus", receiver::allowed())).await
}

async fn ask(system: &System, token: &str, method: &str, target: &str, body: Option<&Value>) -> Response {
    let request = Request::new(method, &system.admin.to_string(), target).token(token);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    request.send(system.admin).await.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
}

/// Another token of the same name, as root can make after the first was revoked.
async fn fresh(system: &System, name: &str, scopes: &[&str]) -> String {
    let made = system.api("POST", "/tokens", Some(json!({"name": name, "scopes": scopes}))).await;
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()["token"].as_str().unwrap().to_owned()
}

async fn subscribe(system: &System, token: &str, receiver: &Receiver) {
    let wanted = json!({"topics": ["orders"], "callback": receiver.url(), "timeout": 0});
    let answer = ask(system, token, "POST", "/subscription", Some(&wanted)).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

async fn publish(system: &System, number: usize) {
    let event = json!({"type": "update", "url": format!("https://shop.example/{number}")});
    let answer = system.api("POST", "/topics/orders", Some(event)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn subscribers(system: &System) -> Vec<String> {
    let list = system.api("GET", "/subscriptions", None).await.json();
    let names = list.as_array().unwrap_or_else(|| panic!("{list}")).iter();
    names.map(|one| one["subscriber"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_of_a_revoked_token_receives_nothing_more_and_its_name_inherits_nothing() {
    let system = start("attack-webhook").await;
    let (leaked, witness) = (Receiver::start().await, Receiver::start().await);
    let token = fresh(&system, "leaked", &["subscribe", "publish"]).await;
    subscribe(&system, &token, &leaked).await;
    let other = fresh(&system, "witness", &["subscribe"]).await;
    subscribe(&system, &other, &witness).await;
    let event = json!({"type": "update", "url": "https://shop.example/0"});
    assert_eq!(ask(&system, &token, "POST", "/topics/claimed", Some(&event)).await.status, 200);
    publish(&system, 1).await;
    leaked.until_events(1).await;

    assert_eq!(system.api("DELETE", "/tokens/leaked", None).await.status, 204);
    assert_eq!(subscribers(&system).await, ["witness"], "the subscription has ended with its token");
    publish(&system, 2).await;
    witness.until_events(2).await;
    assert_eq!(leaked.events().len(), 1, "{:?}", leaked.events());

    let again = fresh(&system, "leaked", &["subscribe", "publish"]).await;
    let secret = ask(&system, &again, "GET", "/subscriber/secret", None).await;
    assert_eq!((secret.status, secret.json()["code"].as_str()), (404, Some("unknown_subscription")));
    let claimed = ask(&system, &again, "POST", "/topics/claimed", Some(&event)).await;
    assert_eq!((claimed.status, claimed.json()["code"].as_str()), (403, Some("topic_claimed")));
    let topics = system.api("GET", "/topics", None).await.json();
    let topic = topics.as_array().unwrap().iter().find(|topic| topic["name"] == "claimed").unwrap();
    assert_eq!(topic["publisher"], "root");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_without_its_token_ends_even_if_the_process_died_that_deleted_it() {
    let system = start("attack-lost").await;
    let receiver = Receiver::start().await;
    let token = fresh(&system, "lost", &["subscribe"]).await;
    subscribe(&system, &token, &receiver).await;
    // Root's own subscription has no stored token, and stays.
    let root = Receiver::start().await;
    subscribe(&system, &system.token, &root).await;
    assert_eq!(subscribers(&system).await, ["lost", "root"]);
    let digest: String = system.cli(System::FABRIC, "HGET tokens:names lost").await;
    system.cli::<()>(System::FABRIC, &format!("HDEL tokens {digest}")).await;
    system.cli::<()>(System::FABRIC, "HDEL tokens:names lost").await;
    eventually("the subscription to end", || async {
        let names = subscribers(&system).await;
        if names == ["root"] { Ok(()) } else { Err(names) }
    })
    .await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_ends_the_subscription_of_any_client_and_others_only_their_own() {
    let system = start("attack-end").await;
    let receiver = Receiver::start().await;
    let token = fresh(&system, "leaked", &["subscribe"]).await;
    subscribe(&system, &token, &receiver).await;
    let other = fresh(&system, "other", &["subscribe"]).await;
    let refused = ask(&system, &other, "DELETE", "/subscription?subscriber=leaked", None).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (403, Some("not_yours")));
    assert_eq!(subscribers(&system).await, ["leaked"]);
    assert_eq!(system.api("DELETE", "/subscription?subscriber=leaked", None).await.status, 204);
    assert!(subscribers(&system).await.is_empty());
    let again = system.api("DELETE", "/subscriber?subscriber=leaked", None).await;
    assert_eq!((again.status, again.json()["code"].as_str()), (404, Some("unknown_subscription")));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_a_revoked_token_end() {
    let system = start("attack-streams").await;
    let token = fresh(&system, "watcher", &["read"]).await;
    eventually("the sidecar to know the token", || async {
        let answer = ask(&system, &token, "GET", "/stats/uncaught", None).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    let mut streams = Vec::new();
    for target in ["/events", "/stats/uncaught/stream", "/dashboard/stream?page=events"] {
        let stream = Stream::open(system.admin, &token, target, None).await;
        assert_eq!(stream.status, 200, "{target}");
        streams.push((target, stream));
    }
    // Root's continue.
    let mut of_root = Stream::open(system.admin, &system.token, "/events", None).await;
    assert_eq!(system.api("DELETE", "/tokens/watcher", None).await.status, 204);
    for (target, mut stream) in streams {
        let mut last = None;
        // Each message must come in time, and the end is one: a stream that stays open fails here or does not end.
        let ended = tokio::time::timeout(signalbox_testkit::PATIENCE, async {
            while let Some(message) = stream.next().await {
                last = Some(message);
            }
        });
        assert!(ended.await.is_ok(), "{target} goes on after {last:?}");
        if target != "/dashboard/stream?page=events" {
            let last = last.unwrap_or_else(|| panic!("{target} ends without a word"));
            assert_eq!(
                (last.event.as_str(), &last.json()["reason"]),
                ("end", &json!("token_revoked")),
                "{target}"
            );
        }
    }
    publish(&system, 1).await;
    assert_eq!(of_root.take(1).await[0].json()["url"], "https://shop.example/1");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tasks_of_a_revoked_token_end() {
    let system = System::with("attack-tasks", |builder| builder.without_nginx().without_sidecar()).await;
    let yaml = "state_machines:\n  own:\n    states: [{gate: asked, exit_condition: metadata.go, triggers: [{metadata: go}], \
        next: done}, {gate: done}]\n";
    let api = async |method: &str, target: &str, body: Option<Value>| {
        system.api_at(system.pacemaker, method, target, body).await
    };
    let plan = Request::new("POST", "localhost", "/state-machines/own/plan").token(&system.token);
    let plan =
        plan.header("Content-Type", "application/yaml").body(yaml).send(system.pacemaker).await.unwrap();
    let plan = json!({"plan": plan.json()["plan"]});
    assert_eq!(api("POST", "/state-machines/own/apply", Some(plan)).await.status, 200);
    let labels: Vec<Value> = (0..200).map(|n| json!({"name": format!("l{n:03}"), "metadata": {}})).collect();
    let labels = json!({"labels": labels});
    assert_eq!(api("POST", "/state-machines/own/labels", Some(labels)).await.status, 200);
    let secret = async |name: &str| {
        let new = json!({"name": name, "scopes": ["machines"], "machines": ["own"]});
        api("POST", "/tokens", Some(new)).await.json()["token"].as_str().unwrap().to_owned()
    };
    let (revoked, kept, expiring) = (secret("revoked").await, secret("kept").await, secret("expiring").await);
    let start = async |token: &str| {
        // One label per second: it would take minutes.
        let task = json!({"operation": "evaluate", "filter": {}, "rate": 1});
        let request = Request::new("POST", "localhost", "/state-machines/own/tasks").token(token).json(&task);
        let started = request.send(system.pacemaker).await.unwrap();
        assert_eq!(started.status, 202, "{}", started.text());
        started.json()["id"].as_str().unwrap().to_owned()
    };
    let (of_revoked, of_kept, of_expiring) =
        (start(&revoked).await, start(&kept).await, start(&expiring).await);
    let state = async |id: &str| {
        let task = api("GET", &format!("/state-machines/own/tasks/{id}"), None).await.json();
        task["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(api("DELETE", "/tokens/revoked", None).await.status, 204);
    // A new token of this name does not continue them.
    secret("revoked").await;
    let digest: String = system.cli(System::FABRIC, "HGET tokens:names expiring").await;
    let record: String = system.cli(System::FABRIC, &format!("HGET tokens {digest}")).await;
    let mut record: Value = serde_json::from_str(&record).unwrap();
    record["expires_ms"] = json!(1);
    system.cli::<()>(System::FABRIC, &format!("HSET tokens {digest} {record}")).await;
    for id in [&of_revoked, &of_expiring] {
        eventually("the task to end with its token", || async {
            let now = state(id).await;
            if now == "canceled" { Ok(()) } else { Err(now) }
        })
        .await;
    }
    assert_eq!(state(&of_kept).await, "running", "another token's task continues");
    system.stop().await;
}
