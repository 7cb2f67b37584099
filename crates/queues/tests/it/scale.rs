//! One noisy tenant among a hundred thousand: who waits, and what a pull costs. Counted in commands, never in time.

use super::support::*;

/// Tenants of the large queue, and messages of its noisiest tenant (`NOISE=1000000` for a realistic maximum).
const TENANTS: usize = 100_000;
const NOISE: usize = 20_000;
/// Messages in one publish.
const PART: usize = 1_000;

async fn push_all(hands: &Hands, messages: &[(String, String)]) {
    for part in messages.chunks(PART) {
        let part: Vec<(&str, &str)> =
            part.iter().map(|(env, label)| (env.as_str(), label.as_str())).collect();
        hands.push(&part).await;
    }
}

/// Commands that Redis executed, those of scripts included.
async fn commands(hands: &Hands) -> u64 {
    let text: String = hands.redis.command("INFO").arg("commandstats").query().await.unwrap();
    let counted = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_bus = matches!(name, "info" | "evalsha" | "ping");
        if is_bus { None } else { rest.split(',').next()?.parse::<u64>().ok() }
    };
    text.lines().filter_map(counted).sum()
}

/// The cost of ten rounds of pulling ten and acknowledging them.
async fn cost(hands: &Hands) -> u64 {
    let before = commands(hands).await;
    for _ in 0..10 {
        let pulled = hands.pull(10).await;
        assert_eq!(pulled.len(), 10);
        let receipts: Vec<_> = pulled.iter().map(|(receipt, _)| receipt).collect();
        hands.ack(&receipts).await;
    }
    commands(hands).await - before
}

#[tokio::test]
async fn a_quiet_tenant_is_served_within_one_round_and_a_pull_costs_the_same_for_any_backlog() {
    let server = Server::in_memory().await;
    let small = Hands::with(&server, 1, 3_600_000).await;
    small.put(Q, wanted(".*")).await;
    let messages: Vec<(String, String)> = (0..200).map(|n| (format!("t{}", n % 10), n.to_string())).collect();
    push_all(&small, &messages).await;
    let cheap = cost(&small).await;
    small.bus.stop().await;

    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, wanted(".*")).await;
    let noise = std::env::var("NOISE").map_or(NOISE, |noise| noise.parse().expect("NOISE is a number"));
    let noisy: Vec<(String, String)> = (0..noise).map(|n| ("noisy".to_owned(), n.to_string())).collect();
    push_all(&hands, &noisy).await;
    hands.push(&[("quiet", "whisper")]).await;
    let pulled = hands.pull(2).await;
    let labels: Vec<String> = pulled.iter().map(|(_, taken)| label(taken)).collect();
    assert_eq!(labels, ["0", "whisper"], "one round: one message of each");
    assert_eq!(pulled[0].1.backlog, noise as u64);

    let crowd: Vec<(String, String)> = (0..TENANTS).map(|n| (format!("t{n:06}"), n.to_string())).collect();
    push_all(&hands, &crowd).await;
    hands.push(&[("latecomer", "late")]).await;
    let tenants: usize = hands.redis.command("ZCARD").arg("queue:q|ring").query().await.unwrap();
    assert_eq!(tenants, TENANTS + 2);
    let dear = cost(&hands).await;
    // Tenants that have one message end with it, which is a command more for each.
    assert!(dear <= cheap + 200, "{cheap} commands among 10 tenants, {dear} among {TENANTS}");

    // The latecomer is the last of this round, whatever the noisy one has.
    let mut before = 0;
    loop {
        let pulled = hands.pull(1_000).await;
        assert!(!pulled.is_empty());
        let labels: Vec<String> = pulled.iter().map(|(_, taken)| label(taken)).collect();
        let receipts: Vec<_> = pulled.iter().map(|(receipt, _)| receipt).collect();
        hands.ack(&receipts).await;
        if let Some(place) = labels.iter().position(|label| label == "late") {
            before += place;
            break;
        }
        before += labels.len();
    }
    assert!(before <= TENANTS + 1, "{before} messages before it");
}

#[tokio::test]
async fn the_cost_of_changing_one_tenant_does_not_depend_on_the_others() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, wanted(".*")).await;
    let messages: Vec<(String, String)> = (0..5_000).map(|n| (format!("t{n}"), "x".to_owned())).collect();
    push_all(&hands, &messages).await;
    let paused = signalbox_api::queues::TenantSettings {
        paused: true,
        ..signalbox_api::queues::TenantSettings::default()
    };
    let before = commands(&hands).await;
    hands.tenant(Q, "t7", paused).await;
    let changed = commands(&hands).await;
    hands.tenant(Q, "t7", paused).await;
    let unchanged = commands(&hands).await;
    assert!(changed - before < 100, "{} commands", changed - before);
    assert!(unchanged - changed < 20, "{} commands for no change", unchanged - changed);
    hands.assert_true(Q, "one paused tenant").await;
    assert_eq!(hands.ring(Q).await.len(), 4_999);
    // A limit of the queue concerns all of them.
    hands.put(Q, signalbox_api::queues::NewQueue { in_flight_limit: Some(5), ..weights(&[("t8", 2)]) }).await;
    hands.assert_true(Q, "another limit").await;
}

/// Processor time of the server's main thread, which is independent of other load on the machine.
async fn microseconds(hands: &Hands) -> f64 {
    let text: String = hands.redis.command("INFO").arg("cpu").query().await.unwrap();
    let field = |name: &str| -> f64 {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_default()
    };
    (field("used_cpu_user_main_thread:") + field("used_cpu_sys_main_thread:")) * 1e6
}

#[tokio::test]
#[ignore = "prints what publishing, pulling and acknowledging cost Redis; run it by name"]
async fn cost_of_a_message() {
    for tenants in [10, 1_000, TENANTS] {
        let server = Server::in_memory().await;
        let hands = Hands::with(&server, 1, 3_600_000).await;
        let total = 40_000.max(tenants);
        let messages: Vec<(String, String)> =
            (0..total).map(|n| (format!("t{:06}", n % tenants), "x".repeat(200))).collect();
        let start = microseconds(&hands).await;
        push_all(&hands, &messages).await;
        let without = (microseconds(&hands).await - start) / total as f64;
        hands.put(Q, wanted(".*")).await;
        let start = microseconds(&hands).await;
        push_all(&hands, &messages).await;
        let with = (microseconds(&hands).await - start) / total as f64;
        let (mut pulling, mut acking, mut count) = (0.0, 0.0, 0);
        while count < 20_000 {
            let before = microseconds(&hands).await;
            let pulled = hands.pull(10).await;
            let middle = microseconds(&hands).await;
            let receipts: Vec<_> = pulled.iter().map(|(receipt, _)| receipt).collect();
            hands.ack(&receipts).await;
            acking += microseconds(&hands).await - middle;
            pulling += middle - before;
            count += pulled.len();
        }
        let of = |sum: f64| sum / f64::from(u32::try_from(count).unwrap());
        println!(
            "{tenants:6} tenants: {without:5.1} µs to publish without a queue, {with:5.1} with one, {:5.1} to pull in tens, {:5.1} to acknowledge",
            of(pulling),
            of(acking)
        );
    }
}

/// More values than Lua can pass to a function, in every list of a call.
#[tokio::test]
async fn one_call_takes_returns_and_acknowledges_thousands_of_messages() {
    const MESSAGES: usize = 4_500;
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let tenants: Vec<String> = (0..MESSAGES).map(|n| format!("e{n}")).collect();
    for part in tenants.chunks(500) {
        hands.push(&part.iter().map(|tenant| (tenant.as_str(), "m")).collect::<Vec<_>>()).await;
    }
    let pulled = hands.pull(MESSAGES).await;
    assert_eq!(pulled.len(), MESSAGES);
    let receipts: Vec<_> = pulled.iter().map(|(receipt, _)| receipt).collect();
    assert_eq!(hands.nack(0, &receipts).await.len(), MESSAGES);
    hands.assert_true(Q, "after all messages were returned").await;
    let pulled = hands.pull(MESSAGES).await;
    let receipts: Vec<_> = pulled.iter().map(|(receipt, _)| receipt).collect();
    assert_eq!(hands.ack(&receipts).await.len(), MESSAGES);
    hands.assert_true(Q, "after all messages were acknowledged").await;
    assert_eq!(hands.ring(Q).await, Vec::<String>::new());
}
