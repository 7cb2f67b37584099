//! State machines whose outside world fails: a webhook that gives every answer except success until an operator retries,
//! and feeds that do not answer, with what the API reports in the meantime.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use signalbox_testkit::{PATIENCE, eventually, eventually_within};
use signalbox_tests::{
    http::{Request, Response},
    receiver::{self, Answer, Delivery, Receiver},
    system::System,
};

use super::command::type_in;

async fn system(name: &str) -> System {
    System::with(name, |builder| builder.pacemaker("bus", receiver::allowed())).await
}

fn ok(body: &str) -> Answer {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length";
    Answer::Bytes(format!("{head}: {}\r\n\r\n{body}", body.len()).into_bytes())
}

/// The last part of the address that was asked for.
fn last_part(delivery: &Delivery) -> String {
    let target = delivery.line.split(' ').nth(1).unwrap_or_default();
    target.rsplit('/').next().unwrap_or_default().to_owned()
}

/// One label of a machine, as an operator sees it.
struct Label<'a> {
    system: &'a System,
    target: String,
}

impl<'a> Label<'a> {
    fn new(system: &'a System, machine: &str, name: &str) -> Self {
        Self { system, target: format!("/state-machines/{machine}/labels/{name}") }
    }

    async fn call(&self, method: &str, rest: &str, body: Option<Value>) -> Response {
        self.system.api(method, &format!("{}{rest}", self.target), body).await
    }

    async fn create(&self) {
        let created = self.call("POST", "", Some(json!({"metadata": {}}))).await;
        assert_eq!(created.status, 201, "{}", created.text());
    }

    async fn update(&self, facts: Value) {
        let updated = self.call("PATCH", "", Some(json!({"metadata": facts}))).await;
        assert_eq!(updated.status, 200, "{}", updated.text());
    }

    async fn why(&self) -> Value {
        self.call("GET", "/why", None).await.json()
    }

    /// Waits until the label has this state and status.
    async fn until(&self, state: &str, status: &str) -> Value {
        eventually_within(PATIENCE * 2, &format!("{} to be {status} in {state}", self.target), || async {
            let label_now = self.call("GET", "", None).await.json();
            let fits = label_now["state"] == state && label_now["status"] == status;
            if fits { Ok(label_now) } else { Err(label_now.to_string()) }
        })
        .await
    }
}

/// The answers of a webhook, by label and in order, and the tokens it received.
#[derive(Default)]
struct Hook {
    says: BTreeMap<String, Vec<Answer>>,
    tokens: BTreeMap<String, Vec<String>>,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_that_failed_in_every_way_continues_when_it_is_retried() {
    let system = system("flaky-hook").await;
    let hook = Arc::new(Mutex::new(Hook::default()));
    let says = |label: &str, mut answers: Vec<Answer>| {
        answers.reverse();
        hook.lock().unwrap().says.insert(label.to_owned(), answers);
    };
    says(
        "a",
        vec![
            Answer::status("500 Internal Server Error"),
            Answer::Hang,
            Answer::Bytes(b"garbage\r\n\r\n".to_vec()),
            Answer::EndlessHead,
        ],
    );
    says("gone", vec![Answer::status("410 Gone")]);
    let heard = Arc::clone(&hook);
    let receiver = Receiver::answering(move |delivery| {
        let (label, mut hook) = (last_part(delivery), heard.lock().unwrap());
        let token = delivery.header("X-Idempotency-Token").unwrap_or_default().to_owned();
        hook.tokens.entry(label.clone()).or_default().push(token);
        hook.says.get_mut(&label).and_then(Vec::pop).unwrap_or_else(|| Answer::status("200 OK"))
    })
    .await;
    let machine = format!(
        "
state_machines:
  flaky:
    states:
      - {{gate: asked, exit_condition: metadata.go, triggers: [{{metadata: go}}], next: call}}
      - action: call
        webhook: http://{}/call/<label>
        timeout: 1s
        retry: {{attempts: 4, first: 1s, factor: 1, longest: 1s}}
        next: called
      - gate: called
",
        receiver.address
    );
    system.apply("flaky", &machine).await;
    let [a, gone, waits] = ["a", "gone", "waits"].map(|name| Label::new(&system, "flaky", name));
    for label in [&a, &gone, &waits] {
        label.create().await;
    }
    let tokens = |label: &str| hook.lock().unwrap().tokens.get(label).cloned().unwrap_or_default();

    a.update(json!({"go": true})).await;
    let label_now = a.until("call", "errored").await;
    assert!(label_now["error"].is_string(), "{label_now}");
    let first = tokens("a");
    assert_eq!((first.len(), BTreeSet::from_iter(&first).len()), (4, 1), "{first:?}");
    let why = a.why().await;
    assert_eq!(why["reason"], "its action failed permanently; it waits for a retry by an operator", "{why}");
    assert_eq!((&why["last_error"], &why["next_retry"]), (&label_now["error"], &Value::Null), "{why}");
    assert!(why["stuck"].as_str().unwrap().contains("unless its action is retried"), "{why}");

    // An action whose answer is final is not repeated.
    gone.update(json!({"go": true})).await;
    let label_now = gone.until("call", "errored").await;
    assert_eq!((&label_now["error"], tokens("gone").len()), (&json!("answered 410"), 1));

    // Labels that can be retried, and labels that cannot.
    for (label, status, code) in
        [(&waits, 409, "label_not_errored"), (&Label::new(&system, "flaky", "nobody"), 404, "unknown_label")]
    {
        let answer = label.call("POST", "/retry", None).await;
        assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(code)));
    }
    assert_eq!(waits.call("DELETE", "", None).await.status, 204);
    let answer = waits.call("POST", "/retry", None).await;
    assert_eq!((answer.status, &answer.json()["code"]), (410, &json!("label_deleted")));
    let exists = a.call("POST", "", Some(json!({"metadata": {}}))).await;
    assert_eq!((exists.status, &exists.json()["code"]), (409, &json!("label_exists")));
    assert!(exists.json()["hint"].as_str().unwrap().contains("PATCH"), "{}", exists.text());

    // A retry starts a new count with the same token. It takes two attempts; the second one's
    // answer is longer than the limit.
    says("a", vec![Answer::status("503 Service Unavailable"), Answer::Endless]);
    let answer = a.call("POST", "/retry", None).await;
    assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("acting")), "{}", answer.text());
    a.until("called", "ended").await;
    let all = tokens("a");
    assert_eq!((all.len(), BTreeSet::from_iter(&all).len()), (6, 1), "{all:?}");

    let retried = type_in(&system, &["labels", "retry", "flaky", "gone"]).await.done().out;
    assert_eq!(retried.trim(), "1 label retried");
    gone.until("called", "ended").await;
    let all = tokens("gone");
    assert_eq!((all.len(), BTreeSet::from_iter(&all).len()), (2, 1), "{all:?}");
    assert_ne!(all[0], first[0]);
    let history = a.call("GET", "/history", None).await.json();
    let rows = history["history"].as_array().unwrap();
    let way: Vec<&Value> = rows.iter().map(|row| &row["to"]).collect();
    assert_eq!(way, ["asked", "call", "called"], "an attempt is not a transition");
    counted(&system, "signalbox_machines_actions_total", &[("done", 2.0), ("failed", 6.0)]).await;
    system.stop().await;
}

/// Waits until the metrics have this name with these results and counts.
async fn counted(system: &System, name: &str, results: &[(&str, f64)]) {
    eventually(&format!("{name} to be {results:?}"), || async {
        let all = system.metrics().await;
        let of = |result: &str| {
            let found = all.iter().filter(|(series, _)| {
                series.starts_with(name) && series.contains(&format!("result=\"{result}\""))
            });
            found.map(|(_, value)| *value).sum::<f64>()
        };
        let found: Vec<(&str, f64)> = results.iter().map(|(result, _)| (*result, of(result))).collect();
        if found == results { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

/// A machine's page as a logged-in user sees it.
async fn page(system: &System, machine: &str) -> String {
    let host = system.admin.to_string();
    let login = Request::new("POST", &host, "/dashboard/login")
        .header("Content-Type", "application/x-www-form-urlencoded")
        .body(format!("token={}&next=", system.token));
    let answer = login.send(system.admin).await.unwrap();
    let cookie = answer.header("Set-Cookie").unwrap_or_else(|| panic!("{}", answer.text()));
    let cookie = cookie.split(';').next().unwrap_or_default();
    let target = format!("/dashboard/machines?name={machine}");
    let request = Request::new("GET", &host, &target).header("Cookie", cookie).header("Accept", "text/html");
    let answer = request.send(system.admin).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

/// The row of a feed on that page.
async fn row(system: &System, feed: &str) -> String {
    let page = page(system, "fed").await;
    let row = page.lines().find(|line| line.contains(&format!("data-key=\"{feed}\"")));
    row.unwrap_or_else(|| panic!("no row of {feed} in {page}")).to_owned()
}

fn bad_feed(label: &str) -> Answer {
    match label {
        "fails" => Answer::status("500 Internal Server Error"),
        "hangs" => Answer::Hang,
        "gone" => Answer::status("410 Gone"),
        "garbage" => Answer::Bytes(b"garbage\r\n\r\n".to_vec()),
        "huge" => Answer::Endless,
        _ => ok("neither here nor there"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_that_waits_for_a_failing_feed_reports_it_and_continues_when_the_feed_answers() {
    let system = system("flaky-feed").await;
    let receiver = Receiver::answering(|delivery| bad_feed(&last_part(delivery))).await;
    let at = receiver.address;
    let machine = format!(
        "
state_machines:
  fed:
    feeds:
      - {{name: held, url: 'http://{at}/held/<label>', timeout: 1s}}
      - {{name: guessed, url: 'http://{at}/guessed/<label>', timeout: 1s, on_error: {{default: {{open: false}}}}}}
    states:
      - {{gate: waits, exit_condition: feeds.held.open, triggers: [{{metadata: look}}, {{interval: 1h}}], next: guesses}}
      - {{gate: guesses, exit_condition: feeds.guessed.open, triggers: [{{metadata: look}}, {{interval: 1h}}], next: done}}
      - gate: done
"
    );
    system.apply("fed", &machine).await;
    let cases = [
        ("fails", "answered 500"),
        ("hangs", "no answer within"),
        ("gone", "answered 410"),
        ("garbage", ""),
        ("huge", "the answer is larger than 1 MiB"),
        ("words", "the answer is not JSON"),
    ];
    let labels = cases.map(|(name, _)| Label::new(&system, "fed", name));
    for label in &labels {
        label.create().await;
        label.update(json!({"look": 1})).await;
    }
    for (label, (name, error)) in labels.iter().zip(cases) {
        let why = eventually(&format!("the feed of {name} to have failed"), || async {
            let why = label.why().await;
            let failed =
                why["last_error"] == "the feed held failed" && why["feeds"]["held"]["result"] == "failed";
            // It could open when the feed is asked next, unless that is now.
            let next = why["next"]["trigger"] == "feed" && why["next"]["at"] == why["next_retry"];
            if failed && next { Ok(why) } else { Err(why.to_string()) }
        })
        .await;
        assert!(why["feeds"]["held"]["error"].as_str().unwrap().contains(error), "{why}");
        let operand = &why["tree"]["operands"][0];
        assert_eq!((&operand["note"], &operand["source"]), (&json!("feed_failed"), &json!("feed")), "{why}");
        assert_eq!((&why["result"], &why["stuck"]), (&json!("unknown"), &Value::Null), "{why}");
        assert_eq!(why["earliest"], why["next"]["at"], "{why}");
    }
    let health = row(&system, "held").await;
    assert!(health.contains("failing") && !health.contains("healthy"), "{health}");
    let all = system.metrics().await;
    let failed = all.iter().find(|(name, _)| name.contains("feeds_total") && name.contains("failed"));
    assert!(failed.is_some_and(|(_, count)| *count >= 6.0), "{failed:?}");

    // The feed answers again. No notification is needed: it is queried every few seconds, and
    // earlier for an evaluation.
    receiver.decide(|delivery| {
        if delivery.line.contains("/guessed/") {
            bad_feed(&last_part(delivery))
        } else {
            ok(r#"{"open": true}"#)
        }
    });
    for label in &labels[2..] {
        label.update(json!({"look": 2})).await;
    }
    for label in &labels {
        label.until("guesses", "waiting").await;
    }
    let history = labels[0].call("GET", "/history", None).await.json();
    assert_eq!(history["history"][1]["cause"], "feed", "{history}");
    let health = row(&system, "held").await;
    assert!(health.contains("healthy") && !health.contains("failing"), "{health}");

    // If a fallback replaces the feed, no label waits for it and nothing is unknown.
    let [label, ..] = &labels;
    label.update(json!({"look": 3})).await;
    eventually("the feed to be asked", || async {
        let health = row(&system, "guessed").await;
        if health.contains("failing") { Ok(()) } else { Err(health) }
    })
    .await;
    let why = label.why().await;
    let expected = json!({"guessed": {"result": "default", "error": "answered 500"}});
    assert_eq!((&why["feeds"], &why["result"]), (&expected, &json!(false)), "{why}");
    assert_eq!((&why["next"]["trigger"], &why["last_error"]), (&json!("interval 1h"), &Value::Null), "{why}");
    receiver.decide(|_| ok(r#"{"open": true}"#));
    label.update(json!({"look": 4})).await;
    label.until("done", "ended").await;
    system.stop().await;
}
