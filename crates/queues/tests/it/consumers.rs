//! Consumers that wait, and consumers and pacemakers that die, on the server's own clock.

use std::{collections::BTreeSet, time::Duration};

use signalbox_store::{Clock, Fabric, Shard};
use tokio_util::sync::CancellationToken;

use super::support::*;
use signalbox_api::queues::NewQueue;
use signalbox_bus_testkit::{Mortal, Pacemaker, Recorder};
use signalbox_queues::{Error, Handed, Handle, Options, PullRequest, Receipt, Settled, Taken};

/// A pacemaker's part: its bus and its queues, running.
struct Running {
    redis: Fabric,
    bus: Pacemaker,
    queues: Handle,
    closing: CancellationToken,
}

async fn running(server: &Server, options: Options) -> Running {
    let redis = server.open::<FabricRole>();
    let quiet = signalbox_bus::Options { deliver: false, housekeeping_ms: 3_600_000, ..Default::default() };
    let bus = Pacemaker::start(&redis, quiet, Recorder::default()).ready().await;
    let closing = CancellationToken::new();
    let queues = Handle::assemble(Shard::all(&redis, 1), &Clock::Server, options, closing.clone());
    tokio::spawn(queues.clone().run(closing.clone()));
    Running { redis, bus, queues, closing }
}

impl Running {
    async fn put(&self, wanted: NewQueue) {
        define(&self.bus, Q, &wanted).await;
    }

    async fn push(&self, tenant: &str, count: usize) {
        let message = signalbox_bus::NewMessage {
            tenant: tenant.into(),
            kind: "t".into(),
            name: "n".into(),
            payload: None,
            idempotency_key: None,
            delay: None,
        };
        let results = self.bus.handle.publish_messages("shop", vec![message; count]).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }

    /// A pull that waits for longer than any test does.
    fn wait(&self, most: usize) -> tokio::task::JoinHandle<Result<Handed, Error>> {
        let queues = self.queues.clone();
        let request = PullRequest {
            most,
            wait: Duration::from_secs(600),
            auto_ack: false,
            tenant: None,
            lease_ms: None,
        };
        tokio::spawn(async move { pull_from(&queues, &[source(Q, 0)], request).await })
    }

    async fn waiting(&self, count: usize) {
        eventually("pulls to wait", || async { equal(self.queues.waiting_pulls(), count) }).await;
        // Each has queried once: the number of executed scripts shows when they are done.
        let mut before = self.scripts().await;
        loop {
            for _ in 0..20 {
                self.redis.command("PING").run().await.unwrap();
            }
            let now = self.scripts().await;
            if now == before {
                return;
            }
            before = now;
        }
    }

    async fn scripts(&self) -> u64 {
        let text: String = self.redis.command("INFO").arg("commandstats").query().await.unwrap();
        text.lines()
            .filter_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok())
            .next()
            .unwrap_or(0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

#[tokio::test]
async fn a_pull_that_waits_is_woken_and_does_not_poll() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    all.put(wanted(".*")).await;
    let pull = all.wait(10);
    all.waiting(1).await;
    let before = all.scripts().await;
    for _ in 0..200 {
        all.redis.command("PING").run().await.unwrap();
    }
    assert_eq!(all.scripts().await, before, "no waiter queries while nothing arrives");
    all.push("1", 1).await;
    assert_eq!(pull.await.unwrap().unwrap().messages.len(), 1);
}

/// Also while the ring is full of others, and by no notice that is not for it.
#[tokio::test]
async fn a_pull_that_waits_for_one_tenant_is_woken_by_that_one() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    all.put(wanted(".*")).await;
    all.push("noisy", 5).await;
    let only = |tenant: &'static str| {
        let queues = all.queues.clone();
        let tenant = Some(tenant);
        let request =
            PullRequest { most: 1, wait: Duration::from_secs(600), auto_ack: false, tenant, lease_ms: None };
        tokio::spawn(async move { pull_from(&queues, &[source(Q, 0)], request).await })
    };
    let (first, second, other) = (only("quiet"), only("quiet"), only("silent"));
    all.waiting(3).await;
    let before = all.scripts().await;
    all.push("noisy", 5).await;
    for _ in 0..200 {
        all.redis.command("PING").run().await.unwrap();
    }
    assert_eq!(all.scripts().await, before + 1, "only the publish: other queues' messages wake no waiter");
    // In one call: the waiter that is woken wakes the other.
    all.push("quiet", 2).await;
    for pull in [first, second] {
        let handed = pull.await.unwrap().unwrap().messages;
        assert_eq!((handed.len(), &*handed[0].1.tenant), (1, "quiet"));
    }
    assert_eq!(all.queues.waiting_pulls(), 1);
    other.abort();
}

#[tokio::test]
async fn each_of_many_who_wait_gets_one_of_many_messages() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    all.put(wanted(".*")).await;
    let pulls: Vec<_> = (0..20).map(|_| all.wait(1)).collect();
    all.waiting(20).await;
    // All in one call, so only the first is woken by it: each has to wake the next.
    all.push("1", 20).await;
    let mut ids = std::collections::BTreeSet::new();
    for pull in pulls {
        ids.extend(pull.await.unwrap().unwrap().messages.iter().map(|(_, taken)| taken.id));
    }
    assert_eq!(ids.len(), 20);
    assert_eq!(all.queues.waiting_pulls(), 0);
}

#[tokio::test]
async fn a_waiter_that_disconnects_loses_no_message() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    all.put(wanted(".*")).await;
    let (gone, stays) = (all.wait(1), all.wait(1));
    all.waiting(2).await;
    gone.abort();
    let _ = gone.await;
    all.push("1", 1).await;
    assert_eq!(stays.await.unwrap().unwrap().messages.len(), 1);
}

#[tokio::test]
async fn a_pull_that_waits_is_woken_by_a_returned_message() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    all.put(wanted(".*")).await;
    all.push("1", 2).await;
    let request =
        PullRequest { most: 2, wait: Duration::ZERO, auto_ack: false, tenant: None, lease_ms: None };
    let first = pull_from(&all.queues, &[source(Q, 0)], request).await.unwrap().messages;
    let pull = all.wait(1);
    all.waiting(1).await;
    // Returned immediately.
    all.queues.nack(Q, Some(0), &[&first[0].0.to_string()]).await.unwrap();
    assert_eq!(pull.await.unwrap().unwrap().messages[0].1.id, first[0].1.id);
    // An expired lease: the consumer is dead, and only the sweeper detects it.
    all.put(NewQueue { lease_seconds: Some(1.0), ..wanted(".*") }).await;
    all.push("2", 1).await;
    let lost = pull_from(&all.queues, &[source(Q, 0)], request).await.unwrap().messages;
    let again = all.wait(1).await.unwrap().unwrap().messages;
    assert_eq!((again[0].1.id, again[0].1.attempt), (lost[0].1.id, 2));
}

#[tokio::test]
async fn nothing_due_costs_nothing() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    all.put(wanted(".*")).await;
    all.push("1", 1).await;
    let request =
        PullRequest { most: 2, wait: Duration::ZERO, auto_ack: false, tenant: None, lease_ms: None };
    let held = pull_from(&all.queues, &[source(Q, 0)], request).await.unwrap().messages;
    all.queues.ack(Q, &[&held[0].0.to_string()]).await.unwrap();
    eventually("the sweeper to process what is due", || async {
        if all.redis.command("EXISTS").arg("queue:|due").query::<u64>().await.unwrap() == 1 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    let commands = async || {
        let text: String = all.redis.command("INFO").arg("stats").query().await.unwrap();
        let calls =
            text.lines().find_map(|line| line.strip_prefix("total_commands_processed:")?.trim().parse().ok());
        calls.unwrap_or(0_u64)
    };
    let before = commands().await;
    for _ in 0..100 {
        all.redis.command("PING").run().await.unwrap();
    }
    // The bus has its own commands: a memory check each second, its lease.
    let others = commands().await - before - 101;
    assert!(others < 20, "{others} commands while nothing is due");
}

#[tokio::test]
async fn waiters_are_limited_and_a_shutdown_ends_them() {
    let server = Server::in_memory().await;
    let all = running(&server, Options { waiting_pulls: 1, ..Options::default() }).await;
    all.put(wanted(".*")).await;
    let waits = all.wait(1);
    all.waiting(1).await;
    assert!(matches!(all.wait(1).await.unwrap(), Err(Error::Busy)));
    all.closing.cancel();
    assert!(waits.await.unwrap().unwrap().messages.is_empty());
}

/// A pacemaker that dies loses nothing: messages whose reply was lost become available through another.
#[tokio::test]
async fn a_pacemaker_that_dies_between_pull_and_reply_loses_nothing() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    all.put(NewQueue { lease_seconds: Some(1.0), ..wanted(".*") }).await;
    let mortal = Mortal::start(&server, signalbox_bus::Options::default(), Recorder::default());
    let dying = {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let redis = {
            let _inside = runtime.enter();
            server.open::<FabricRole>()
        };
        let queues = Handle::assemble(
            Shard::all(&redis, 1),
            &Clock::Server,
            Options::default(),
            CancellationToken::new(),
        );
        let request = PullRequest {
            most: 5,
            wait: Duration::from_secs(600),
            auto_ack: false,
            tenant: None,
            lease_ms: None,
        };
        runtime.spawn(queues.clone().run(CancellationToken::new()));
        runtime.spawn(async move { pull_from(&queues, &[source(Q, 0)], request).await });
        runtime
    };
    all.push("1", 5).await;
    eventually("the messages to be handed out", || async {
        if all.redis.command("HLEN").arg("queue:q|inflight").query::<u64>().await.unwrap() == 5 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    dying.shutdown_background();
    mortal.kill();
    let again = all.wait(5).await.unwrap().unwrap().messages;
    assert!(!again.is_empty() && again.iter().all(|(_, taken)| taken.attempt == 2), "{again:?}");
}

/// A publish by way of another pacemaker, right after the queue was confirmed, is in the queue.
#[tokio::test]
async fn no_publish_misses_a_queue_that_was_confirmed() {
    let server = Server::in_memory().await;
    let one = running(&server, Options::default()).await;
    let two = running(&server, Options::default()).await;
    for round in 0..30 {
        let name = format!("q{round}");
        define(&one.bus, &name, &wanted(".*")).await;
        two.push("1", 1).await;
        let depth: u64 = one.redis.command("LLEN").arg(format!("queue:{name}:1")).query().await.unwrap();
        assert_eq!(depth, 1, "{name}");
        one.bus.handle.delete_queue(&name).await.unwrap();
        two.push("1", 1).await;
        let left: Vec<String> =
            one.redis.command("KEYS").arg(format!("queue:{name}*")).query().await.unwrap();
        assert_eq!(left, [""; 0], "nothing comes into a queue that was deleted");
    }
}

#[tokio::test]
async fn a_pull_that_waits_ends_when_its_queue_is_deleted() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    all.put(wanted(".*")).await;
    let queues = all.queues.clone();
    let request = PullRequest {
        most: 1,
        wait: Duration::from_secs(600),
        auto_ack: false,
        tenant: Some("1"),
        lease_ms: None,
    };
    let only = tokio::spawn(async move { pull_from(&queues, &[source(Q, 0)], request).await });
    let pulls = [all.wait(1), all.wait(1), only];
    all.waiting(3).await;
    all.bus.handle.delete_queue(Q).await.unwrap();
    for pull in pulls {
        let ended = pull.await.unwrap();
        assert!(matches!(ended, Err(Error::NoSuchQueue)), "{ended:?}");
    }
}

#[tokio::test]
async fn a_pull_that_waits_for_several_queues_is_woken_by_each() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    define(&all.bus, "mail", &wanted("mail:.*")).await;
    define(&all.bus, "page", &wanted("page:.*")).await;
    for tenant in ["page", "mail"] {
        let queues = all.queues.clone();
        let request = PullRequest {
            most: 1,
            wait: Duration::from_secs(600),
            auto_ack: true,
            tenant: None,
            lease_ms: None,
        };
        let pull = tokio::spawn(async move {
            pull_from(&queues, &[source("mail", 0), source("page", 0)], request).await
        });
        all.waiting(2).await;
        all.push(tenant, 1).await;
        let handed = pull.await.unwrap().unwrap().messages;
        assert_eq!((handed.len(), &*handed[0].0.queue), (1, tenant));
    }
}

#[tokio::test]
async fn consumers_that_pull_and_acknowledge_at_the_same_time_share_calls_but_no_receipts() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let messages: Vec<(&str, &str)> =
        (0..150).map(|n| if n % 3 == 0 { ("a", "x") } else { ("b", "x") }).collect();
    hands.push(&messages).await;
    let pulls = (0..16).map(|_| hands.pull(10));
    let pulled: Vec<Vec<(Receipt, Taken)>> = futures_util::future::join_all(pulls).await;

    // In the turns of the tenants, and each message once.
    let sizes: Vec<usize> = pulled.iter().map(Vec::len).collect();
    assert_eq!(sizes, [&[10; 15][..], &[0]].concat());
    let all: Vec<&(Receipt, Taken)> = pulled.iter().flatten().collect();
    let first: Vec<&str> = all[..100].iter().map(|(_, taken)| taken.tenant.as_str()).collect();
    assert!(first.chunks(2).all(|two| two[0] != two[1]), "{first:?}");
    let ids: BTreeSet<u64> = all.iter().map(|(receipt, _)| receipt.id).collect();
    assert_eq!(ids.len(), 150);

    // A consumer cannot guess the receipts of another one.
    let nonces: BTreeSet<&str> = all.iter().map(|(receipt, _)| receipt.nonce.as_str()).collect();
    assert_eq!(nonces.len(), 15);
    let forged = Receipt { nonce: pulled[0][0].0.nonce.clone(), ..pulled[1][0].0.clone() };
    assert_eq!(hands.queues.ack(Q, &[&forged.to_string()]).await.unwrap(), [Settled::Used]);

    let receipts: Vec<Vec<String>> =
        pulled.iter().map(|part| part.iter().map(|(receipt, _)| receipt.to_string()).collect()).collect();
    // The last consumer repeats the first request, as a client does that lost the answer.
    let requests: Vec<Vec<&str>> = receipts[..15]
        .iter()
        .chain([&receipts[0]])
        .map(|part| part.iter().map(String::as_str).collect())
        .collect();
    let acks = requests.iter().map(|request| hands.queues.ack(Q, request));
    let mut settled: Vec<Settled> =
        futures_util::future::join_all(acks).await.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(settled.split_off(150), [Settled::AckedBefore; 10]);
    assert_eq!(settled, [Settled::Acked; 150]);
    hands.assert_true(Q, "all are acknowledged").await;
    assert_eq!(hands.queues.numbers(&[Q]).await.unwrap()[0].acked, 150);
}

/// A consumer that may have no bytes takes nothing, and others get the messages.
#[tokio::test]
async fn a_consumer_that_is_not_admitted_takes_nothing() {
    let server = Server::in_memory().await;
    let all = running(&server, Options::default()).await;
    all.put(wanted(".*")).await;
    let request = PullRequest { wait: Duration::from_secs(600), ..pull(1) };
    let refused = {
        let queues = all.queues.clone();
        tokio::spawn(async move { queues.pull(&[source(Q, 0)], request, std::future::pending::<()>).await })
    };
    // It waits for two seconds, which may be over on a busy machine.
    let wait_for = async |count: usize| {
        let waits = || async {
            if refused.is_finished() { Ok(()) } else { equal(all.queues.waiting_pulls(), count) }
        };
        eventually("pulls to wait", waits).await;
    };
    wait_for(1).await;
    let other = all.wait(1);
    wait_for(2).await;
    all.push("1", 1).await;
    assert_eq!(other.await.unwrap().unwrap().messages.len(), 1);
    assert!(refused.await.unwrap().unwrap().is_none());
}
