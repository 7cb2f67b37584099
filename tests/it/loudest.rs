//! Whatever its name, the loudest is the first: of 3,000 hosts with as many version types, and of 1,100 tenants of a queue, the
//! loudest has the last name in the alphabet, and is the first on every page, in every list and for every command. Metrics of a
//! large system pass the admin listener.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use signalbox_testkit::{PATIENCE, eventually, eventually_within};
use signalbox_tests::{
    http::Request,
    system::System,
    upstream::{App, Mode},
};

use super::command::type_in;

const HOSTS: usize = 3_000;
const TENANTS: usize = 1_100;
/// Messages of the loudest tenant.
const FLOOD: usize = 40;
/// Requests to the loudest host at a time, all of which fail.
const REQUESTS: u64 = 40;

/// Gives every quiet version type two requests in the present minute, and the first hundred of them thirty failed ones: fewer
/// than the loudest has.
const QUIET: &str = "local time = redis.call('TIME') local minute = time[1] - time[1] % 60 \
    local requests, errors = 'ranking:' .. minute .. ':requests', 'ranking:' .. minute .. ':errors' \
    local second = time[1] - 4 local hour = second - second % 3600 \
    for n = 0, ARGV[1] - 1 do \
      local id, count = string.format('v%04d', n), n < 100 and 30 or 2 \
      redis.call('ZADD', requests, count, id) \
      local history = 'history:' .. id .. ':' .. hour \
      redis.call('DEL', history .. ':requests', history .. ':5xx') \
      redis.call('HSET', history .. ':requests', second, count) \
      if n < 100 then \
        redis.call('ZADD', errors, count, id) \
        redis.call('HSET', history .. ':5xx', second, count) \
      end \
    end \
    redis.call('EXPIRE', requests, 600) redis.call('EXPIRE', errors, 600) return 1";

/// The requests of this test.
struct Traffic<'a> {
    system: &'a System,
    sent: AtomicU64,
}

impl Traffic<'_> {
    async fn send(&self, host: &str, times: u64) {
        for _ in 0..times {
            Request::get(host, "/").send(self.system.edge).await.expect("an answer");
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes this minute one in which everything has requests, and the loudest most of them.
    async fn make(&self) {
        // A word of a command ends at a blank.
        let script = QUIET.replace(' ', "\t");
        let _: i64 = self.system.cli(System::STATS, &format!("EVAL {script} 0 {HOSTS}")).await;
        self.send("zz-loud.test", REQUESTS).await;
    }
}

async fn register_many(system: &System, loud: &App) {
    let quiet = |n: usize| {
        let address = format!("127.{}.{}.{}:9", 1 + n / 60_000, n / 250 % 240, n % 250 + 1);
        json!({"id": format!("i{n:04}"), "address": address, "hostnames": [format!("h{n:04}.test")],
            "version_type_id": format!("v{n:04}")})
    };
    let all: Vec<Value> = (0..HOSTS).map(quiet).collect();
    for part in all.chunks(1000) {
        let put = system.api("PUT", "/instances", Some(part.into())).await;
        let results = put.json()["results"].as_array().cloned().unwrap_or_default();
        assert!(results.iter().all(|one| one["status"] == 201), "{} {:?}", put.status, results.first());
    }
    system.register("zz", loud, "zz-loud.test", "zz-loud").await;
}

async fn publish_many(system: &System) {
    let message =
        |tenant: String| json!({"tenant": tenant, "type": "mail", "name": "welcome", "payload": {}});
    let mut all: Vec<Value> = (0..TENANTS).map(|n| message(format!("t{n:04}"))).collect();
    all.extend((0..FLOOD).map(|_| message("zz-flood".to_owned())));
    for part in all.chunks(400) {
        let sent = system.api("POST", "/messages", Some(part.into())).await;
        assert_eq!(sent.status, 200, "{}", sent.text());
    }
}

/// The first row of the table with this label.
fn first_row(page: &str, label: &str) -> String {
    let table = page.split_once(&format!("aria-label=\"{label}\"")).map_or("", |(_, rest)| rest);
    let rows = table.split_once("<tbody>").map_or("", |(_, rest)| rest);
    rows.split("</tr>").next().unwrap_or_default().to_owned()
}

async fn until_first(traffic: &Traffic<'_>, address: &str, label: &str, wanted: &str) {
    let what = format!("{wanted} to be the first of {address}");
    eventually_within(2 * PATIENCE, &what, || async {
        traffic.make().await;
        let page = traffic.system.api("GET", address, None).await.text();
        let row = first_row(&page, label);
        if row.contains(wanted) { Ok(()) } else { Err(row) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loudest_is_first_whatever_its_name() {
    let system = System::start("loudest").await;
    let loud = App::start("loud").await;
    type_in(&system, &["queues", "create", "mail", "--pattern", ".*:mail:welcome"]).await.done();
    register_many(&system, &loud).await;
    publish_many(&system).await;
    system.until_answered_by("zz-loud.test", &loud).await;
    loud.set(Mode::Status(500));
    let total =
        async || system.api("GET", "/stats/total", None).await.json()["requests"].as_u64().unwrap_or(0);
    let traffic = Traffic { system: &system, sent: AtomicU64::new(0) };
    traffic.send("nowhere.test", 9).await;

    until_first(&traffic, "/", "Table of the busiest hosts", "zz-loud.test").await;
    until_first(&traffic, "/dashboard/host?sort=-requests", "Table of hosts", "zz-loud.test").await;
    until_first(&traffic, "/dashboard/host?sort=-errors", "Table of hosts", "zz-loud.test").await;
    until_first(&traffic, "/dashboard/host?sort=-state", "Table of hosts", "zz-loud.test").await;
    until_first(&traffic, "/dashboard/queues?name=mail", "Table of tenants", "zz-flood").await;
    until_first(&traffic, "/dashboard/queues?name=mail&search=ZZ", "Table of tenants", "zz-flood").await;

    // Problems, and the command.
    let first_failing = |all: &Value| {
        let mut all = all.as_array().cloned().unwrap_or_default().into_iter();
        all.find(|one| one["id"] == "server-errors").map(|one| one["problem"].to_string())
    };
    eventually_within(2 * PATIENCE, "the loudest to be the first problem", || async {
        traffic.make().await;
        let said = type_in(&system, &["doctor", "--skip-log", "--json"]).await;
        let said: Value = serde_json::from_str(&said.out).unwrap_or_default();
        let page = system.api("GET", "/dashboard/problems?state=server-errors", None).await.text();
        let shown = page.split("<li>").nth(1).unwrap_or_default().to_owned();
        let first = first_failing(&said["findings"]).unwrap_or_default();
        if first.contains("zz-loud") && shown.contains("zz-loud") { Ok(()) } else { Err((first, shown)) }
    })
    .await;
    eventually("the loudest to be the first of `stats top`", || async {
        traffic.make().await;
        let top = type_in(&system, &["stats", "top", "--once", "--interval", "60s", "--json"]).await.out;
        let top: Value = serde_json::from_str(&top).unwrap_or_default();
        if top[0]["version_type"] == "zz-loud" { Ok(()) } else { Err(top[0].clone()) }
    })
    .await;
    // The command sorts what it gets, so the API is asked as well.
    eventually("the loudest to be the first of /stats/top", || async {
        traffic.make().await;
        let top = system.api("GET", "/stats/top?limit=1", None).await.json();
        if top["version_types"][0]["id"] == "zz-loud" { Ok(()) } else { Err(top) }
    })
    .await;
    let tenants = type_in(&system, &["queues", "tenants", "mail", "-o", "name"]).await.done().out;
    assert_eq!(tenants.lines().next(), Some("zz-flood"));

    // Every request of the edge is counted, and the overview shows all of them.
    eventually("all requests to be counted", || async {
        let logged = system.log_lines().len() as u64;
        let (counted, sent) = (total().await, traffic.sent.load(Ordering::Relaxed));
        if counted == logged && counted >= sent { Ok(()) } else { Err((counted, logged, sent)) }
    })
    .await;
    traffic.send("zz-loud.test", REQUESTS).await;
    eventually_within(2 * PATIENCE, "the overview to show every request", || async {
        let minute =
            async || system.api("GET", "/stats/top?limit=1", None).await.json()["total"]["requests"].as_u64();
        let before = minute().await.unwrap_or(0);
        let page = system.api("GET", "/", None).await.text();
        let rate = page.split_once("id=\"rate\">").and_then(|(_, rest)| rest.split_once('<'));
        let rate = rate.map(|(rate, _)| rate.to_owned()).unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "a minute")]
        let wanted = match before {
            0..600 => format!("{:.1}", before as f64 / 60.0),
            _ => (before / 60).to_string(),
        };
        let is_same = before >= REQUESTS && minute().await == Some(before) && rate == wanted;
        if is_same { Ok(()) } else { Err((rate, wanted)) }
    })
    .await;
    let checked = system.api("GET", "/check", None).await.json();
    assert_eq!(checked["consistent"], true, "{checked}");
    system.stop().await;
}

/// A machine with a hundred states.
fn chain(machine: &str) -> String {
    let leave = "exit_condition: metadata.go = 1, triggers: [{metadata: go}]";
    let states: String =
        (0..99).map(|n| format!("      - {{gate: s{n:02}, {leave}, next: s{:02}}}\n", n + 1)).collect();
    format!("state_machines:\n  {machine}:\n    states:\n{states}      - {{gate: s99}}\n")
}

async fn subscribe(system: &System, client: &str) {
    let token = system.token(client, &["subscribe"]).await;
    let body = json!({"topics": ["orders"], "callback": "https://a.test/", "uuid": "u"});
    let request = Request::new("POST", "localhost", "/subscription").token(&token).json(&body);
    let made = request.send(system.pacemaker).await.expect("an answer");
    assert_eq!(made.status, 204, "{}", made.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_a_large_system_pass_the_admin_listener() {
    let system = System::start("large-metrics").await;
    let queues = async {
        for n in 0..200 {
            let body = json!({"pattern": format!("none{n}:.*")});
            let put = system.api("PUT", &format!("/queues/queue-with-a-long-name-{n:04}"), Some(body)).await;
            assert!(put.status < 300, "{}", put.text());
        }
    };
    let subscribers = async {
        for n in 0..50 {
            subscribe(&system, &format!("subscriber-with-a-long-name-{n:04}")).await;
        }
    };
    let machines = async {
        for n in 0..8 {
            let machine = format!("machine-with-a-long-name-{n:02}");
            system.apply(&machine, &chain(&machine)).await;
        }
    };
    tokio::join!(queues, subscribers, machines);
    let page = tokio::time::timeout(Duration::from_secs(10), system.api("GET", "/metrics", None)).await;
    let page = page.expect("an answer").text();
    assert!(page.len() > 160_000 && page.ends_with("# EOF\n"), "{} bytes", page.len());
    assert!(page.contains("queue-with-a-long-name-0199") && page.contains("signalbox_sidecar_"));
    assert!(page.contains("subscriber-with-a-long-name-0049"));
    assert!(page.contains("machine=\"machine-with-a-long-name-07\",state=\"s99\""));
    // A daemon that hangs is named, and delays the other checks of the doctor for seconds only.
    system.allow("upstream timed out");
    system.pause(System::SIDECAR);
    let said = type_in(&system, &["doctor", "--skip-log"]).await;
    system.resume(System::SIDECAR);
    let named = said.out.contains("API: statistics") && said.out.contains("did not answer within 5 s");
    assert!(named, "{}", said.out);
    system.stop().await;
}
