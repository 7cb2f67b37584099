//! Live streams of events: filters, positions, and gaps for events that were missed.

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    events::{Message, Stream},
    http::credential,
    system::System,
};
use tokio::net::TcpStream;

use crate::bus_api::Bus;

fn numbers(messages: &[Message]) -> Vec<u64> {
    let number = |message: &Message| {
        let json = message.json();
        json["url"].as_str().and_then(|url| url.rsplit('/').next()).and_then(|number| number.parse().ok())
    };
    messages.iter().map(|message| number(message).unwrap_or_else(|| panic!("{message:?}"))).collect()
}

impl Bus {
    async fn watch(&self, target: &str, last_id: Option<&str>) -> Stream {
        let stream = Stream::open(self.system.pacemaker, &self.system.token, target, last_id).await;
        assert_eq!(stream.status, 200, "{target}");
        stream
    }

    async fn publish_many(&self, client: &str, topic: &str, numbers: std::ops::Range<usize>, bytes: usize) {
        let numbers: Vec<usize> = numbers.collect();
        for part in numbers.chunks(100) {
            let events: Vec<Value> = part
                .iter()
                .map(|number| {
                    let url = format!("https://shop.example/{number}");
                    json!({"type": "update", "url": url, "data": "x".repeat(bytes)})
                })
                .collect();
            let answer =
                self.call(client, "POST", &format!("/topics/{topic}/events"), Some(&json!(events))).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_filter_selects_its_events_and_the_admin_listener_forwards_them() {
    let bus = Bus::start("live-filters").await;
    let (shop, mall) = (bus.client("shop").await, bus.client("mall").await);
    let mut all = bus.watch("/events", None).await;
    let mut topic = bus.watch("/events?topic=orders", None).await;
    let mut tenant = bus.watch("/events?tenant=mall", None).await;
    let mut object = bus.watch("/events?object=https://shop.example/orders/2", None).await;
    let mut pattern = bus.watch("/events?pattern=shop:update:(orders%7Cusers)", None).await;
    let mut admin = Stream::open(bus.system.admin, &bus.system.token, "/events?topic=users", None).await;
    assert_eq!(admin.status, 200);
    let first = bus.publish(&shop, "orders", 1).await;
    bus.publish(&shop, "orders", 2).await;
    bus.publish(&mall, "users", 3).await;
    let second = bus.publish(&shop, "orders", 1).await;
    let seen = all.take(4).await;
    assert_eq!(numbers(&seen), [1, 2, 3, 1]);
    assert_eq!(
        seen[3].json(),
        json!({"id": second, "prev": first, "tprev": first, "object": "https://shop.example/orders/1",
            "topic": "orders", "type": "update", "tenant": "shop", "url": "https://shop.example/orders/1"})
    );
    assert_eq!(numbers(&topic.take(3).await), [1, 2, 1]);
    assert_eq!(numbers(&tenant.take(1).await), [3]);
    assert_eq!(numbers(&object.take(1).await), [2]);
    assert_eq!(numbers(&pattern.take(3).await), [1, 2, 1]);
    assert_eq!(numbers(&admin.take(1).await), [3]);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reconnects_continues_where_it_was() {
    let bus = Bus::start("live-resume").await;
    let shop = bus.client("shop").await;
    let mut stream = bus.watch("/events?topic=orders", None).await;
    bus.publish_many(&shop, "orders", 0..300, 10).await;
    let seen = stream.take(120).await;
    let id = seen.last().and_then(|message| message.id.clone()).expect("every message has an id");
    drop(stream);
    bus.publish_many(&shop, "orders", 300..2500, 10).await;
    let rest: Vec<u64> = (120..2500).collect();
    assert_eq!(numbers(&bus.watch("/events?topic=orders", Some(&id)).await.take(2380).await), rest);
    let query = format!("/events?topic=orders&last_event_id={id}");
    assert_eq!(numbers(&bus.watch(&query, None).await.take(2380).await), rest, "for who cannot send headers");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_the_subscription_missed_are_read_from_the_log() {
    let bus = Bus::start("live-missed").await;
    let shop = bus.client("shop").await;
    let mut stream = bus.watch("/events", None).await;
    bus.publish(&shop, "orders", 0).await;
    assert_eq!(numbers(&stream.take(1).await), [0]);
    // The connections that listen are cut again and again while events come.
    for round in 0..5 {
        let _: u64 = bus.system.cli(System::FABRIC, "CLIENT KILL TYPE pubsub").await;
        bus.publish_many(&shop, "orders", round * 200 + 1..round * 200 + 201, 10).await;
    }
    let expected: Vec<u64> = (1..=1000).collect();
    assert_eq!(numbers(&stream.take(1000).await), expected, "each once, in order");
    bus.system.kill(System::FABRIC).await;
    bus.system.start_part(System::FABRIC).await;
    eventually("events are accepted again", async || {
        let event = json!({"type": "update", "url": "https://shop.example/1001"});
        let answer = bus.call(&shop, "POST", "/topics/orders", Some(&event)).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    assert_eq!(numbers(&stream.take(1).await), [1001], "the stream outlives its Redis");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_the_log_no_longer_has_are_reported_as_a_gap() {
    let bus = Bus::start("live-gap").await;
    let shop = bus.client("shop").await;
    let mut stream = bus.watch("/events", None).await;
    let first = bus.publish(&shop, "orders", 1).await;
    let id = stream.take(1).await[0].id.clone().expect("an id");
    drop(stream);
    let lost = bus.publish(&shop, "orders", 2).await;
    // As if it had been trimmed: segments are ten seconds long.
    for segment in [first / 64_000_000, lost / 64_000_000] {
        let _: u64 =
            bus.system.cli(System::FABRIC, &format!("DEL bus:log:{segment} bus:log:{segment}:order")).await;
        let _: u64 = bus.system.cli(System::FABRIC, &format!("HDEL bus:log {segment}")).await;
    }
    let mut stream = bus.watch("/events", Some(&id)).await;
    bus.publish(&shop, "orders", 3).await;
    let received = stream.take(2).await;
    assert_eq!((received[0].event.as_str(), received[1].event.as_str()), ("gap", "message"));
    assert_eq!(received[0].json(), json!({"after": first, "last": lost, "reason": "no_longer_kept"}));
    assert_eq!(numbers(&received[1..]), [3]);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_cut_off_and_others_see_everything() {
    let bus = Bus::start("live-slow").await;
    let shop = bus.client("shop").await;
    let slow = TcpStream::connect(bus.system.pacemaker).await.expect("the pacemaker listens");
    let request = format!(
        "GET /events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
        bus.system.token
    );
    slow.try_write(request.as_bytes()).expect("a send buffer for the request");
    let open = async |wanted: f64| {
        eventually("streams that are open", async || {
            let metrics = bus.system.metrics().await;
            let value =
                |name: &str| metrics.iter().find(|(key, _)| key.starts_with(name)).map(|(_, value)| *value);
            match value("signalbox_live_streams") {
                Some(open) if (open - wanted).abs() < 0.5 => {
                    Ok(value("signalbox_live_ended_total{reason=\"slow_reader\"}"))
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
    };
    open(1.0).await;
    let mut quick = bus.watch("/events", None).await;
    let reading = tokio::spawn(async move { numbers(&quick.take(4000).await) });
    // More than all buffers on the way hold.
    bus.publish_many(&shop, "orders", 0..4000, 6000).await;
    assert_eq!(reading.await.expect("a reader"), (0..4000).collect::<Vec<u64>>());
    assert_eq!(open(0.0).await, Some(1.0), "the slow one is counted");
    let mut rest = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut { slow }, &mut rest).await.expect("the rest of the stream");
    let rest = String::from_utf8_lossy(&rest);
    assert!(
        rest.contains("data: {\"reason\":\"slow_reader\"}\nevent: end"),
        "it ends with {}",
        rest.split_at(rest.len().saturating_sub(300)).1
    );
    bus.system.stop().await;
}

/// A stream to which nothing is sent does not notice by sending that its client left.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_left_frees_its_stream_while_only_other_events_are_published() {
    let bus = Bus::start("live-left").await;
    let shop = bus.client("shop").await;
    bus.publish_many(&shop, "orders", 0..10, 10).await;
    for last_id in [None, Some("0")] {
        let watcher = bus.watch("/events?topic=nothing", last_id).await;
        drop(watcher);
        eventually("no open stream", async || {
            bus.publish_many(&shop, "orders", 10..11, 10).await;
            let metrics = bus.system.metrics().await;
            match metrics.iter().find(|(key, _)| key.starts_with("signalbox_live_streams")) {
                Some((_, open)) if *open < 0.5 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_parameters_are_rejected_by_name() {
    let bus = Bus::with("live-refused", &[("streams", 1)]).await;
    let publisher =
        json!({"name": "only-publish", "token": credential("only-publish"), "scopes": ["publish"]});
    assert_eq!(bus.root("POST", "/api_tokens", Some(&publisher)).await.status, 201);
    for (target, id, status, code) in [
        ("/events?pattern=a%7Cb)%7C(?:c", None, 422, "invalid_pattern"),
        ("/events?pattern=(a*)*(", None, 422, "invalid_pattern"),
        ("/events?nonsense=1", None, 400, "invalid_query"),
        (&*format!("/events?topic={}", "t".repeat(2000)), None, 400, "invalid_query"),
        ("/events", Some("yesterday!"), 422, "invalid_last_event_id"),
        ("/events", Some("1.2.3"), 422, "invalid_last_event_id"),
        // A number of the first shard that is decades away, and one of no shard.
        ("/events", Some("2gosa7pa2f4"), 422, "invalid_last_event_id"),
        ("/events", Some("x"), 422, "invalid_last_event_id"),
    ] {
        let request = bus.request("GET", target).token(&bus.system.token);
        let request = match id {
            Some(id) => request.header("Last-Event-ID", id),
            None => request,
        };
        let answer =
            tokio::time::timeout(Duration::from_secs(20), bus.send(request)).await.expect("an answer");
        assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(code)), "{target} {id:?}");
    }
    let answer = bus.call("only-publish", "GET", "/events", None).await;
    assert_eq!((answer.status, &answer.json()["code"]), (403, &json!("scope_missing")));
    let _one = bus.watch("/events", None).await;
    let answer = bus.root("GET", "/events", None).await;
    assert_eq!((answer.status, &answer.json()["code"]), (503, &json!("too_many_streams")));
    bus.system.stop().await;
}
