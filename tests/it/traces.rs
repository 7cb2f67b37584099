//! Traces, as a collector receives them: one request with everything that it caused.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    collector::{Collector, Span},
    http::{Request, Response},
    receiver::{self, Answer, Receiver},
    system::System,
    upstream::App,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// A system whose daemons send everything to the collector.
async fn traced(name: &str, collector: &Collector, ratio: f64) -> System {
    let mut traces = toml::Table::new();
    traces.insert("endpoint".to_owned(), collector.url().into());
    traces.insert("ratio".to_owned(), ratio.into());
    System::with(name, |builder| {
        builder
            .pacemaker("bus", receiver::allowed())
            .pacemaker("traces", traces.clone())
            .sidecar("traces", traces)
    })
    .await
}

/// Asks by way of the admin listener, as part of a trace.
async fn ask(
    system: &System,
    traceparent: &str,
    method: &str,
    target: &str,
    body: Option<&Value>,
) -> Response {
    let mut request = Request::new(method, &system.admin.to_string(), target)
        .token(&system.token)
        .header("traceparent", traceparent);
    if let Some(body) = body {
        request = request.json(body);
    }
    let answer = request.send(system.admin).await.unwrap();
    assert!(answer.status < 300, "{method} {target}: {answer:?}");
    answer
}

fn recorded(trace: &str) -> String {
    format!("00-{trace}-{CLIENT}-01")
}

async fn subscribe(system: &System, receiver: &Receiver, query: &str) {
    let body = json!({"topics": ["orders"], "callback": format!("{}{query}", receiver.url()), "uuid": "u", "timeout": 0});
    let made = system.api("POST", "/subscription", Some(body)).await;
    assert_eq!(made.status, 204, "{made:?}");
}

fn order() -> Value {
    json!({"type": "update", "url": "https://shop.example/1", "data": "a-secret-in-a-body"})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publish_its_delivery_and_its_pull_are_one_trace() {
    let collector = Collector::start().await;
    let system = traced("traces", &collector, 1.0).await;
    let receiver = Receiver::start().await;
    subscribe(&system, &receiver, "?key=a-secret-in-a-query").await;
    let queue = json!({"pattern": ".*"});
    let made = system.api("PUT", "/queues/all", Some(queue)).await;
    assert_eq!(made.status, 201, "{made:?}");

    ask(&system, &recorded(TRACE), "POST", "/topics/orders?note=a-secret-in-a-query", Some(&order())).await;
    let publish = collector.until("the publish", |span| span.kind == "Server" && span.trace == TRACE).await;
    assert_eq!((&*publish.name, &*publish.parent), ("POST /topics/{name}", CLIENT));
    assert_eq!(publish.service, "signalbox-pacemaker");
    assert_eq!(publish.attribute("http.response.status_code"), "200");

    let delivery = collector.until("the delivery", |span| span.kind == "Client" && span.trace == TRACE).await;
    assert_eq!((&*delivery.name, &delivery.parent), ("deliver to subscriber", &publish.id));
    assert_eq!(delivery.attribute("server.address"), "127.0.0.1");
    assert_eq!(delivery.attribute("http.response.status_code"), "200");
    assert_eq!(delivery.attribute("messaging.batch.message_count"), "1");
    let received = receiver.deliveries().remove(0);
    assert_eq!(received.header("traceparent"), Some(&*delivery.traceparent()));
    assert_eq!(received.events()[0]["traceparent"], Value::Null, "the format of events did not change");

    let other = TRACE.replace('4', "5");
    let pulled = ask(&system, &recorded(&other), "POST", "/queues/all/pull", Some(&json!({"max": 9}))).await;
    assert_eq!(pulled.json()["messages"].as_array().map(Vec::len), Some(1), "{pulled:?}");
    let asked =
        collector.until("the request to pull", |span| span.kind == "Server" && span.trace == other).await;
    let pull = collector.until("the pull", |span| span.name == "queue pull" && span.trace == other).await;
    assert_eq!(pull.parent, asked.id);
    assert_eq!(pull.links, [format!("{TRACE}-{}", publish.id)]);

    let sent = String::from_utf8_lossy(&collector.raw()).into_owned();
    for secret in ["a-secret", system.token.as_str()] {
        assert!(!sent.contains(secret), "{secret} was sent to the collector");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsampled_trace_stays_unsampled_and_one_without_a_parent_starts_at_the_edge() {
    let collector = Collector::start().await;
    let system = traced("sampling", &collector, 0.0).await;
    let receiver = Receiver::start().await;
    subscribe(&system, &receiver, "").await;
    let silent = TRACE.replace('4', "6");
    ask(&system, &format!("00-{silent}-{CLIENT}-00"), "POST", "/topics/orders", Some(&order())).await;
    // The edge starts a trace for requests without one. With a ratio of zero it is not recorded.
    let begun = system.api("GET", "/instances", None).await;
    assert_eq!(begun.status, 200);
    receiver.until_events(1).await;
    assert_eq!(receiver.deliveries()[0].header("traceparent"), None);
    ask(&system, &recorded(TRACE), "GET", "/instances", None).await;
    collector.until("the one that is recorded", |span| span.name == "GET /instances").await;
    let traces: Vec<Span> = collector.spans().into_iter().filter(|span| span.trace != TRACE).collect();
    assert!(traces.is_empty(), "{traces:?}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sidecar_traces_its_commits_and_its_requests() {
    let collector = Collector::start().await;
    let system = traced("commits", &collector, 1.0).await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "7").await;
    assert_eq!(system.get("app.test", "/").await.status, 200);
    let commit = collector
        .until("the commit", |span| span.name == "commit lines" && span.attribute("signalbox.lines") != "0")
        .await;
    assert_eq!((&*commit.service, commit.kind), ("signalbox-sidecar", "Client"));
    assert!(commit.attribute("signalbox.bytes").parse::<u64>().unwrap() > 100, "{commit:?}");
    ask(&system, &recorded(TRACE), "GET", "/stats/version_type/7", None).await;
    let stats = collector.until("the request", |span| span.trace == TRACE).await;
    assert_eq!((&*stats.name, &*stats.parent), ("GET /stats/{kind}/{id}", CLIENT));
    assert_eq!(stats.service, "signalbox-sidecar");
    // The trace of a request without one is called what the access log calls the request.
    let admin = Request::get(&system.admin.to_string(), "/instances/i-1").token(&system.token);
    assert_eq!(admin.send(system.admin).await.unwrap().status, 200);
    let begun = collector.until("a trace of the edge's own", |span| span.name == "GET /instances/{id}").await;
    assert_eq!(begun.parent, "0000000000000001");
    eventually("its line in the log", || async {
        let log = std::fs::read_to_string(system.access_log()).unwrap();
        let name = format!("\"request_id\":\"{}\"", begun.trace);
        if log.contains(&name) { Ok(()) } else { Err(log) }
    })
    .await;
    system.stop().await;
}

const MACHINE: &str = "
state_machines:
  welcome:
    feeds: [{name: crm, url: 'RECEIVER', ttl: 0s}]
    states:
      - gate: asked
        exit_condition: feeds.crm.ok = true
        triggers: [{metadata: go}, {interval: 1s}]
        next: greet
      - action: greet
        webhook: RECEIVER
        next: greeted
      - gate: greeted
";

#[tokio::test(flavor = "multi_thread")]
async fn backends_feeds_and_actions_are_called_as_part_of_a_trace() {
    let collector = Collector::start().await;
    let system = traced("calls", &collector, 1.0).await;
    let yes = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"ok\":true}";
    let receiver = Receiver::answering(move |_| Answer::Bytes(yes.as_bytes().to_vec())).await;

    let backend = json!({"prefix": "work:", "callback": receiver.url(), "uuid": "u"});
    let made = system.api("PUT", "/backends/works", Some(backend)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let group = json!({"events": [{"topic": "works", "type": "update", "url": "https://shop.example/1"}]});
    ask(&system, &recorded(TRACE), "POST", "/objects/work:1/events", Some(&group)).await;
    let publish = collector.until("the publish", |span| span.kind == "Server" && span.trace == TRACE).await;
    let call = collector.until("the call", |span| span.name == "call backend").await;
    assert_eq!((&call.trace, &call.parent), (&publish.trace, &publish.id));

    let yaml = MACHINE.replace("RECEIVER", &receiver.url());
    system.apply("welcome", &yaml).await;
    let facts = json!({"metadata": {"go": 1}});
    let target = "/state-machines/welcome/labels/anna";
    assert_eq!(system.api("POST", target, Some(facts)).await.status, 201);
    for (name, method) in [("machine feed", "GET"), ("machine action", "POST")] {
        let call = collector.until(name, |span| span.name == name).await;
        assert_eq!((call.kind, call.attribute("http.request.method")), ("Client", method));
        assert_eq!(call.attribute("http.response.status_code"), "200");
        let received = receiver.deliveries();
        let found = received.iter().find(|one| one.header("traceparent") == Some(&*call.traceparent()));
        assert!(found.is_some_and(|one| one.line.starts_with(method)), "{call:?} {received:?}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_collector_costs_only_spans() {
    let collector = Collector::start().await;
    collector.answer(|| Answer::status("503 Service Unavailable"));
    let system = traced("no-collector", &collector, 1.0).await;
    let lost = async || {
        let metrics = system.metrics().await;
        let named = metrics.iter().find(|(name, _)| name.starts_with("signalbox_pacemaker_spans_lost_total"));
        named.map_or(f64::NAN, |(_, value)| *value)
    };
    for round in 1..=3 {
        for _ in 0..20 {
            ask(&system, &recorded(TRACE), "GET", "/instances", None).await;
        }
        let wanted = f64::from(round * 20);
        eventually("the spans to be counted as lost", || async {
            let lost = lost().await;
            if lost >= wanted { Ok(()) } else { Err(lost) }
        })
        .await;
    }
    let logged = |text: &str| system.log_text(&System::PACEMAKER).matches(text).count();
    assert_eq!(
        logged("collector does not accept spans"),
        1,
        "once, however many batches: {}",
        collector.batches()
    );
    collector.answer(|| Answer::status("200 OK"));
    let marker = TRACE.replace('4', "7");
    ask(&system, &recorded(&marker), "GET", "/instances", None).await;
    collector.until("a span", |span| span.trace == marker).await;
    eventually("the log to report it", || async {
        let count = logged("collector accepts spans again");
        if count == 1 { Ok(()) } else { Err(count) }
    })
    .await;
    system.stop().await;
}
