//! Routes, statistics and fabric behind Sentinels: clients notice a failover only as a short wait, and a primary that lost
//! acknowledged changes is not accepted as it is.

use serde_json::json;
use signalbox_testkit::{Monitored, eventually};
use signalbox_tests::{
    http::Request,
    load::Load,
    receiver::{self, Receiver},
    system::System,
    upstream::{App, Mode},
};

/// The three services, and a system that knows them only by their Sentinels.
struct Site {
    routes: Monitored,
    stats: Monitored,
    fabric: Monitored,
    system: System,
}

async fn start(name: &str) -> Site {
    let (routes, stats, fabric) =
        tokio::join!(Monitored::start("routes"), Monitored::start("stats"), Monitored::start("fabric"));
    let table = |text: String| text.parse::<toml::Table>().unwrap();
    let pacemaker =
        format!("routes = '{}'\nstats = '{}'\nfabric = '{}'", routes.url(), stats.url(), fabric.url());
    let sidecar = format!("stats = '{}'\nroutes_primary = '{}'", stats.url(), routes.url());
    let system = System::with(name, |builder| {
        builder
            .pacemaker("bus", receiver::allowed())
            .pacemaker("redis", table(pacemaker))
            .sidecar("redis", table(sidecar))
    })
    .await;
    Site { routes, stats, fabric, system }
}

impl Site {
    /// Registers an instance, again until the answer is final, and waits until it serves.
    async fn register(&self, id: &str, app: &App, host: &str) {
        eventually(&format!("{id} to be registered"), || async {
            let answer = self.system.try_register(id, app, host, "17").await;
            if matches!(answer.status, 200 | 201) { Ok(()) } else { Err(answer.text()) }
        })
        .await;
        self.system.until_answered_by(host, app).await;
    }

    /// Publishes an event, again until it is accepted.
    async fn publish(&self, number: usize) -> u64 {
        let event = json!({"type": "update", "url": "https://shop.example/1", "data": {"number": number}});
        eventually(&format!("event {number} to be accepted"), || async {
            let request = Request::new("POST", "localhost", "/topics/orders").token(&self.system.token);
            let request = request.header("Idempotency-Key", &format!("event-{number}")).json(&event);
            let answer = request.send(self.system.pacemaker).await.map_err(|error| error.to_string())?;
            let id = answer.header("X-Signalbox-Event-Id").and_then(|id| id.parse().ok());
            id.filter(|_| answer.status == 200).ok_or_else(|| format!("{} {}", answer.status, answer.text()))
        })
        .await
    }

    /// Waits until the current primary has counted the lines of the log, each once.
    async fn every_line_is_counted_once(&self) {
        eventually("every line to be counted once", || async {
            let counted = self.stats.cli(self.stats.primary(), &["HGET", "stat:17", "requests"]);
            let lines = self.system.log_lines().iter().filter(|line| line["key"] == "17").count();
            if counted == lines.to_string() { Ok(()) } else { Err((counted, lines)) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_events_and_statistics_continue_after_each_primary_was_replaced() {
    let mut site = start("sentinels").await;
    let (receiver, app) = (Receiver::start().await, App::start("app").await);
    let subscription = json!({"topics": ["orders"], "callback": receiver.url(), "uuid": "u", "timeout": 0});
    let subscribed = site.system.api("POST", "/subscription", Some(subscription)).await;
    assert_eq!(subscribed.status, 204, "{}", subscribed.text());
    site.register("i-0", &app, "h0.test").await;
    let mut accepted = vec![site.publish(0).await];
    app.set(Mode::Slow(20));
    let load = Load::start(site.system.edge, 2, |_| Request::get("h0.test", "/"));
    load.pass(20).await;
    for (number, service) in ["routes", "stats", "fabric"].into_iter().enumerate() {
        match service {
            "routes" => site.routes.fail_over().await,
            "stats" => site.stats.fail_over().await,
            _ => site.fabric.fail_over().await,
        };
        let app = App::start(&format!("app-{number}")).await;
        site.register(&format!("i-{}", number + 1), &app, &format!("h{}.test", number + 1)).await;
        accepted.push(site.publish(number + 1).await);
        load.pass(20).await;
    }
    let account = load.stop().await;
    assert_eq!((account.failed(), account.codes.len()), (0, 1), "clients noticed: {account:?}");
    assert_eq!(site.system.get("h0.test", "/").await.status, 200);
    let delivered: Vec<u64> = receiver
        .until_events(accepted.len())
        .await
        .iter()
        .map(|event| event["id"].as_u64().unwrap())
        .collect();
    assert_eq!(delivered, accepted, "in the order of the object");
    site.every_line_is_counted_once().await;
    site.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn primaries_that_lost_acknowledged_changes_are_seeded_and_counted_again() {
    let mut site = start("sentinels-lost").await;
    let [app, lost] = [App::start("app").await, App::start("lost").await];
    site.register("i-1", &app, "app.test").await;
    // The replicas miss what follows, and then become primaries.
    let (routes, stats) = (1 - site.routes.primary(), 1 - site.stats.primary());
    site.routes.kill(routes);
    site.stats.kill(stats);
    site.register("i-2", &lost, "lost.test").await;
    for _ in 0..20 {
        assert_eq!(site.system.get("lost.test", "/").await.status, 200);
    }
    site.every_line_is_counted_once().await;
    lost.set(Mode::Slow(20));
    let load = Load::start(site.system.edge, 2, |_| Request::get("lost.test", "/"));
    site.routes.kill(1 - routes);
    site.stats.kill(1 - stats);
    site.routes.restart(routes);
    site.stats.restart(stats);
    site.routes.failed_over(1 - routes).await;
    site.stats.failed_over(1 - stats).await;
    // The primary has a table again that contains the change, under a new token: routers can see that it was older.
    eventually("the table to be seeded again", || async {
        let instances = site.routes.cli(routes, &["SMEMBERS", "instances:lost.test"]);
        let epoch = site.routes.cli(routes, &["GET", "epoch"]);
        if instances.contains(&lost.address.to_string()) && epoch.contains(' ') { Ok(()) } else { Err(epoch) }
    })
    .await;
    let third = App::start("third").await;
    site.register("i-3", &third, "third.test").await;
    load.pass(20).await;
    let account = load.stop().await;
    assert_eq!(
        (account.failed(), account.codes.len()),
        (0, 1),
        "the router kept the newer table: {account:?}"
    );
    site.every_line_is_counted_once().await;
    site.system.stop().await;
}
