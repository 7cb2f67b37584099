//! `signalbox doctor` and the dashboard's page Problems report the same findings, in the same words.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use signalbox_testkit::{PATIENCE, eventually_within};
use signalbox_tests::{system::System, upstream::App};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::command::{DEAF, ORDERS, type_at, type_in};

/// What must be found: the kind, and how many of it.
const EXPECTED: [(&str, usize); 9] = [
    ("dead-letters", 1),
    ("host-unhealthy", 2),
    ("host-without-instance", 7),
    ("instance-unhealthy", 2),
    ("labels-failed", 1),
    ("labels-stuck", 1),
    ("objects-parked", 1),
    ("share-without-instance", 1),
    ("subscriber-disabled", 1),
];

/// Makes one fault of each subsystem, and several of some.
async fn break_everything(system: &System, apps: &[App]) {
    let call = async |method: &str, target: &str, body: Value| {
        let answer = system.api(method, target, Some(body)).await;
        assert!(answer.status < 300, "{method} {target}: {} {}", answer.status, answer.text());
    };
    for number in 0..7 {
        call("PUT", &format!("/hosts/empty{number}.test"), json!({"hold_ms": 5})).await;
    }
    let health =
        json!({"path": "/status/500", "interval_seconds": 1, "timeout_ms": 500, "unhealthy_after": 1});
    for (number, app) in apps.iter().enumerate() {
        let body = json!({"address": app.address.to_string(), "hostnames": [format!("ill{number}.test")],
            "version_type_id": "7", "health": health});
        call("PUT", &format!("/instances/i-{number}"), body).await;
    }
    let typo = json!({"shares": [{"version_type": "typo", "percent": 100}]});
    call("PUT", "/hosts/ill0.test?force=true", typo).await;
    system.apply("orders", ORDERS).await;
    system.apply("deaf", DEAF).await;
    call("POST", "/state-machines/orders/labels/lost", json!({"metadata": {"paid": true}})).await;
    call("POST", "/state-machines/deaf/labels/waits", json!({"metadata": {}})).await;
    call(
        "PUT",
        "/backends/work",
        json!({"prefix": "work:", "callback": "https://127.0.0.1:1/", "uuid": "u",
        "on_failure": "park", "max_attempts": 1}),
    )
    .await;
    for words in [
        "objects publish work:1 orders update",
        "queues create mail --pattern .*",
        "queues publish acme mail welcome",
        "subscribers subscribe --topic jobs --callback https://a.test/",
        "subscribers disable root --yes",
    ] {
        type_in(system, &words.split(' ').collect::<Vec<_>>()).await.done();
    }
    let pulled = type_in(system, &["queues", "pull", "mail", "--json"]).await.done();
    let pulled: Value = serde_json::from_str(&pulled.out).unwrap();
    type_in(system, &["queues", "reject", "mail", pulled[0]["receipt"].as_str().unwrap()]).await.done();
}

/// Kind, severity and problem of each finding.
type Findings = BTreeSet<(String, String, String)>;

fn of_doctor(answer: &Value) -> Findings {
    let text = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let all = answer["findings"].as_array().unwrap().iter();
    all.map(|one| (text(one, "id"), text(one, "severity"), text(one, "problem"))).collect()
}

/// The text between two marks.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    text.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).map_or("", |(found, _)| found)
}

/// A text without tags and with the characters that HTML escapes.
fn plain(html: &str) -> String {
    let text: String = html
        .split('<')
        .enumerate()
        .map(|(at, part)| if at == 0 { part } else { part.split_once('>').map_or("", |(_, text)| text) })
        .collect();
    let escaped = [
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&#38;", "&"),
    ];
    escaped.iter().fold(text, |text, (code, char)| text.replace(code, char))
}

/// The findings of a kind on its own page, which lists all of them.
async fn of_page(system: &System, id: &str) -> Findings {
    let page = system.api("GET", &format!("/dashboard/problems?state={id}"), None).await.text();
    let mut found = Findings::new();
    for article in page.split("<article").skip(1) {
        let article = article.split("</article>").next().unwrap_or_default();
        let severity = plain(between(article, "<h3>", "</span>"));
        let title = plain(between(article, "</span>", "</h3>"));
        let mut problems: Vec<String> = article
            .split("<li>")
            .skip(1)
            .map(|item| plain(item.split("</li>").next().unwrap_or_default()))
            .collect();
        if problems.is_empty() {
            problems.push(title);
        }
        found.extend(problems.into_iter().map(|problem| {
            (
                between(article, "data-finding=\"", "\"").to_owned(),
                severity.trim().to_owned(),
                problem.trim().to_owned(),
            )
        }));
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_and_the_page_problems_report_the_same() {
    let system = System::start("problems").await;
    let apps = [App::start("one").await, App::start("two").await];
    break_everything(&system, &apps).await;
    let doctor = async || {
        let said = type_in(&system, &["doctor", "--skip-log", "--json"]).await;
        serde_json::from_str::<Value>(&said.out).unwrap()
    };
    let found = eventually_within(PATIENCE * 2, "all faults to be found", || async {
        let found = of_doctor(&doctor().await);
        let count = |id: &str| found.iter().filter(|(kind, ..)| kind == id).count();
        if EXPECTED.iter().all(|(id, expected)| count(id) == *expected) { Ok(found) } else { Err(found) }
    })
    .await;
    let kinds: BTreeSet<&str> = found.iter().map(|(id, ..)| &**id).collect();
    assert_eq!(kinds, EXPECTED.map(|(id, _)| id).into());

    // The page of each kind lists what the doctor found, and all kinds are on the page of all problems.
    eventually_within(PATIENCE * 2, "the page to agree", || async {
        let mut shown = Findings::new();
        for id in &kinds {
            shown.extend(of_page(&system, id).await);
        }
        let found = of_doctor(&doctor().await);
        if shown == found { Ok(()) } else { Err((shown, found)) }
    })
    .await;
    let page = system.api("GET", "/dashboard/problems", None).await.text();
    let total = between(&page, "<h1>Problems <span class=\"faint\">", "</span>");
    assert_eq!(total, found.len().to_string(), "{page}");

    // In words, kinds of several findings are grouped under the titles of the page, and each kind has the address of its runbook.
    let words = type_in(&system, &["doctor", "--skip-log"]).await;
    let runbooks = system.api("GET", "/docs/runbooks", None).await.text();
    for article in page.split("<article").skip(1) {
        let title = plain(between(article, "</span>", "</h3>"));
        let line = words.out.lines().find(|line| line.contains(title.trim()));
        let id = between(article, "data-finding=\"", "\"");
        assert!(line.is_some_and(|line| line.ends_with(&format!("[{id}]"))), "{title}: {}", words.out);
        let address = format!("http://{}/docs/runbooks#{id}", system.admin);
        assert!(words.out.contains(&address), "{address}: {}", words.out);
        assert!(article.contains(&format!("href=\"/docs/runbooks#{id}\"")), "{article}");
        assert!(runbooks.contains(&format!("id=\"{id}\"")), "the runbooks have no section {id}");
    }
    assert!(
        words.out.contains("7 findings: host without instance") && words.out.contains("2 more"),
        "{}",
        words.out
    );
    assert!(words.wrong.contains(&format!("{} problems found", found.len())), "{}", words.wrong);
    operators_find_answers(&system).await;
    system.stop().await;
}

/// The commands that docs/operations.md names for questions of operators, with a part of the answer in this system.
async fn operators_find_answers(system: &System) {
    type_in(system, &["queues", "publish", "acme", "mail", "again"]).await.done();
    let reader = type_in(system, &["tokens", "create", "reader", "--scope", "read"]).await.done().out;
    let url = format!("http://{}", system.admin);
    let refused = type_at(&url, reader.trim(), &["routes", "remove", "i-0"]).await;
    assert_eq!(refused.code, Some(77), "{}", refused.wrong);
    for (question, command, answers) in [
        (
            "which host fails",
            "doctor --skip-log",
            &["More than half of the instances of host ill0.test are unhealthy", "critical"][..],
        ),
        ("since when, and why", "routes list --filter health=unhealthy -o wide", &["i-0", "Z  ", "500"]),
        ("which subscriber is slow", "subscribers list --sort -waiting", &["root", "disabled"]),
        (
            "who changed the policy",
            "audit --target /hosts/empty0.test -o wide",
            &["root", "127.0.0.1", "hold_ms"],
        ),
        ("which tenant fills the queue", "queues tenants mail --sort -waiting --no-headers", &["acme"]),
        ("what happened to the label", "labels history orders lost --all", &["attempt", "ship 1 failed"]),
        ("what does the label wait for", "labels why deaf waits", &["system.label"]),
        ("which router is behind", "routers list --sort -behind", &["live"]),
        ("when do certificates expire", "certificates list --sort expires", &["EXPIRES"]),
        ("which token is used", "tokens list --sort -last-used", &["reader"]),
        ("from where is it used", "audit --who reader", &["127.0.0.1", "/instances/i-0", "scope_missing"]),
        ("what would a request get", "routes explain http://empty0.test/", &["is answered 503"]),
    ] {
        let said = type_in(system, &command.split(' ').collect::<Vec<_>>()).await;
        let text = format!("{}{}", said.out, said.wrong);
        assert!(answers.iter().all(|answer| text.contains(answer)), "{question}: `{command}` shows {text}");
    }
}

/// Reads requests of a connection. None is answered before all of `CHECKED` were asked.
async fn answer_together(client: TcpStream, asked: Arc<watch::Sender<BTreeSet<String>>>) {
    let mut client = BufReader::new(client);
    let mut line = String::new();
    while client.read_line(&mut line).await.is_ok_and(|read| read > 0) {
        if let Some(target) = line.strip_prefix("GET ") {
            let path = target.split([' ', '?']).next().unwrap_or_default().to_owned();
            asked.send_modify(|asked| asked.extend([path]));
        }
        if line == "\r\n" {
            let all = |asked: &BTreeSet<String>| CHECKED.iter().all(|path| asked.contains(*path));
            asked.subscribe().wait_for(all).await.unwrap();
            let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
            if client.write_all(answer).await.is_err() {
                return;
            }
        }
        line.clear();
    }
}

const CHECKED: [&str; 12] = [
    "/routes/convergence",
    "/edge/status",
    "/hosts",
    "/instances",
    "/stats/top",
    "/subscriptions",
    "/queues",
    "/backends",
    "/state-machines",
    "/certificates",
    "/pacemakers",
    "/metrics",
];

/// If it asked one after the other, each request would time out before the next one.
#[tokio::test(flavor = "multi_thread")]
async fn checks_of_the_doctor_do_not_wait_for_each_other_and_have_a_fixed_order() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(watch::Sender::new(BTreeSet::new()));
    let answering = tokio::spawn({
        let asked = Arc::clone(&asked);
        async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(answer_together(client, Arc::clone(&asked)));
            }
        }
    });
    let mut outputs = Vec::new();
    for _ in 0..2 {
        asked.send_replace(BTreeSet::new());
        let said = type_at(&url, "token", &["doctor", "--skip-log"]).await;
        assert!(!said.out.contains("did not answer"), "{}\nasked: {:?}", said.out, asked.borrow());
        assert!(said.out.contains("hosts") && said.code == Some(0), "{}{}", said.out, said.wrong);
        outputs.push(said.out);
    }
    assert_eq!(outputs[0], outputs[1]);
    answering.abort();
}
