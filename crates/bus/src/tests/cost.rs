//! The cost of publishing in Redis, for `bench` and for changes of scripts. Prints, and asserts nothing about time.

use super::{hands::*, support::*};
use crate::{NewEvent, store::Target};
use signalbox_testkit::Server;

/// Processor time of the server's main thread, which is independent of other load on the machine.
async fn microseconds(hands: &Hands) -> u64 {
    let text: String = hands.store.shard().redis().command("INFO").arg("cpu").query().await.unwrap();
    let field = |name: &str| -> f64 {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_default()
    };
    ((field("used_cpu_user_main_thread:") + field("used_cpu_sys_main_thread:")) * 1e6) as u64
}

pub(super) fn events(from: usize, count: usize, objects: usize) -> Vec<(usize, NewEvent)> {
    let data = serde_json::value::RawValue::from_string(format!("\"{}\"", "x".repeat(200))).unwrap();
    (from..from + count)
        .map(|n| {
            (
                0,
                NewEvent {
                    data: Some(data.clone()),
                    ..event(&format!("https://shop.example/orders/{}", n % objects))
                },
            )
        })
        .collect()
}

#[tokio::test]
#[ignore = "prints what publishing and delivering cost Redis; run it by name"]
async fn cost_of_an_event() {
    for (group, subscribers) in [(1, 10), (10, 10), (100, 10), (400, 10), (100, 1), (400, 1)] {
        let server = Server::in_memory().await;
        let targets: Vec<Target> =
            (0..subscribers).map(|n| subscriber(&format!("s{n}"), 4, 100, 500)).collect();
        let mut hands = Hands::new(&server, targets).await;
        let total = 20_000.min(group * 400);
        let mut sent = 0;
        let (mut publishing, mut delivering) = (0, 0);
        while sent < total {
            let before = microseconds(&hands).await;
            for _ in 0..(4000 / group).max(1) {
                hands.publish(&events(sent, group, 10_000)).await;
                sent += group;
            }
            let middle = microseconds(&hands).await;
            let workers: Vec<String> = (0..16).map(|n| format!("w{n}")).collect();
            loop {
                hands.time.advance(500);
                let turn = hands.store.acquire(&workers, 1000, 256).await.unwrap();
                if turn.taken.is_empty() {
                    break;
                }
                for taken in &turn.taken {
                    assert!(hands.ack(taken).await);
                }
            }
            publishing += middle - before;
            delivering += microseconds(&hands).await - middle;
        }
        println!(
            "{subscribers:2} subscribers, {group:3} in a call: {:5.1} µs to publish, {:5.1} µs to deliver an event",
            publishing as f64 / sent as f64,
            delivering as f64 / sent as f64
        );
    }
}
