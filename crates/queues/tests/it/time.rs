//! No call of a script blocks Redis for long, however much waits. Usually the commands of a call are counted. The test that
//! `make soak` runs fills a server to the sizes of `docs/performance.md`, and prints the longest time of each operation.

use signalbox_queues::{DeadLetters, Handed, Receipt, Taken};
use signalbox_testkit::work::{Operations, calls, commands};

use super::support::*;

/// Publishes one message of each of `tenants` tenants.
async fn push_tenants(hands: &Hands, from: usize, tenants: usize) {
    let names: Vec<String> = (from..from + tenants).map(|n| format!("t{n:06}")).collect();
    for part in names.chunks(2_000) {
        let part: Vec<(&str, &str)> = part.iter().map(|name| (name.as_str(), "x")).collect();
        hands.push(&part).await;
    }
}

/// Makes dead letters of so many messages of a tenant.
async fn bury(hands: &Hands, tenant: &str, count: usize) {
    hands.push(&vec![(tenant, "x"); count]).await;
    let mut left = count;
    while left > 0 {
        let Handed { messages, .. } = hands.handed(Q, pull(500)).await;
        let receipts: Vec<String> = messages.iter().map(|(receipt, _)| receipt.to_string()).collect();
        let receipts: Vec<&str> = receipts.iter().map(String::as_str).collect();
        hands.queues.reject(Q, &receipts).await.unwrap();
        left -= receipts.len();
    }
}

/// The mean number of commands in a call of a script, for the calls that `work` makes.
async fn commands_per_call(hands: &Hands, work: impl Future<Output = ()>) -> u64 {
    let (before, scripts) = (commands(&hands.redis).await, calls(&hands.redis, "evalsha").await);
    work.await;
    (commands(&hands.redis).await - before) / (calls(&hands.redis, "evalsha").await - scripts).max(1)
}

async fn redrive(hands: &Hands, tenant: &str) -> u64 {
    let definition = hands.bus.handle.queues(|queues| queues.get(Q).unwrap().definition.clone());
    let wanted = DeadLetters { tenant: Some(tenant), ..DeadLetters::default() };
    hands.queues.take_dead(Q, &hands.bus.handle.stamp(), &definition, wanted).await.unwrap()
}

#[tokio::test]
async fn a_queue_is_checked_tenant_by_tenant_in_calls_of_the_same_length() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, wanted(".*")).await;
    let queues = [Q.to_owned()];
    let mut costs = Vec::new();
    for (from, tenants) in [(0, 1_000), (1_000, 9_000)] {
        push_tenants(&hands, from, tenants).await;
        costs.push(
            commands_per_call(&hands, async { assert_eq!(hands.queues.check(&queues).await.unwrap(), []) })
                .await,
        );
    }
    assert!(costs.iter().all(|cost| *cost < 3_500), "{costs:?} commands in a call");
    // The last tenant is checked, too.
    let _: i64 = hands.redis.command("ZREM").arg(("queue:q|ring", "t009999")).query().await.unwrap();
    let found = hands.queues.check(&queues).await.unwrap();
    assert!(found.iter().any(|one| one.predicate == "F2" && one.name == "q:t009999"), "{found:?}");
}

#[tokio::test]
async fn dead_letters_behind_many_others_are_taken_in_short_calls() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, wanted(".*")).await;
    bury(&hands, "noisy", 6_000).await;
    bury(&hands, "quiet", 200).await;
    let before = calls(&hands.redis, "evalsha").await;
    assert_eq!(redrive(&hands, "quiet").await, 200);
    let made = calls(&hands.redis, "evalsha").await - before;
    // Each removal passes over 6,000 letters.
    assert!(made >= 20, "{made} calls");
    assert_eq!(hands.waiting(Q, "quiet").await.len(), 200);
    let left: u64 = hands.redis.command("LLEN").arg("queue:q|dead").query().await.unwrap();
    assert_eq!(left, 6_000);
    hands.assert_true(Q, "the redrive").await;
}

fn receipts(messages: &[(Receipt, Taken)]) -> Vec<&Receipt> {
    messages.iter().map(|(receipt, _)| receipt).collect()
}

/// The operations on a queue of so many tenants with a message, and one with many.
async fn work_on_a_queue(tenants: usize, noisy: usize, most: Option<u64>) {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, wanted(".*")).await;
    let redis = hands.redis.clone();
    let observed = most.map_or_else(|| Operations::timed(&redis), |most| Operations::counted(&redis, most));
    let size = &*format!("{} messages in {tenants} tenants", tenants + noisy);
    push_tenants(&hands, 0, tenants).await;
    for _ in 0..noisy / 2_000 {
        hands.push(&vec![("noisy", "x"); 2_000]).await;
    }
    observed.run("publish to 1,000 tenants", size, push_tenants(&hands, tenants, 1_000)).await;
    observed.run("publish 1,000 messages", size, hands.push(&vec![("noisy", "x"); 1_000])).await;
    let pulled = observed.run("pull 1,000", size, Box::pin(hands.pull(1_000))).await;
    observed.run("acknowledge 1,000", size, hands.ack(&receipts(&pulled))).await;
    let pulled = hands.pull(1_000).await;
    observed.run("return 1,000", size, hands.nack(0, &receipts(&pulled))).await;
    let pulled = hands.pull(1_000).await;
    observed.run("delay 1,000", size, hands.nack(1_000, &receipts(&pulled))).await;
    hands.pull(1_000).await;
    hands.time.advance(3_600_000);
    observed.run("sweep 1,000 leases and 1,000 delays", size, hands.sweep()).await;
    let limited = signalbox_api::queues::NewQueue { in_flight_limit: Some(5), ..wanted(".*") };
    observed.run("change a limit of all", size, Box::pin(hands.put(Q, limited))).await;
    let paused = signalbox_api::queues::TenantSettings {
        paused: true,
        ..signalbox_api::queues::TenantSettings::default()
    };
    observed.run("pause a tenant", size, Box::pin(hands.tenant(Q, "t000777", paused))).await;
    let queues = [Q.to_owned()];
    let found = observed.run("check", size, hands.queues.check(&queues)).await.unwrap();
    assert_eq!(found, []);
    observed.run("peek", size, hands.queues.peek(Q, None, 1_000)).await.unwrap();
    observed.run("drop the messages of a tenant", size, hands.queues.purge(Q, Some("noisy"))).await.unwrap();
    observed.run("drop all messages", size, hands.queues.purge(Q, None)).await.unwrap();
    let size = "10,000 dead letters";
    bury(&hands, "noisy", 9_000).await;
    bury(&hands, "quiet", 1_000).await;
    observed.run("redrive those of a tenant", size, redrive(&hands, "quiet")).await;
    observed.run("drop them all", size, hands.drop_dead()).await;
}

#[tokio::test]
async fn no_call_on_a_queue_is_long() {
    Box::pin(work_on_a_queue(5_000, 4_000, Some(2_500))).await;
}

#[tokio::test]
#[ignore = "fills a server to the sizes of docs/performance.md and prints times; make soak"]
async fn soak_of_a_large_queue() {
    Box::pin(work_on_a_queue(200_000, 800_000, None)).await;
}
