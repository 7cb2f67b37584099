//! `signalbox` as an operator types it, and the typed client that it is made with, against a running system.

use std::{path::PathBuf, process::Stdio};

use serde_json::{Value, json};
use signalbox_client::{
    Client,
    certificates::CertificateList,
    events::{NewEvent, Numbers, Published, Subscription, Topic},
    health::{Check, Edge, PacemakerList, Ready},
    objects::{Backend, ObjectState},
    queues::{
        Count, DeadPage, NewQueue, Outcomes, Peeked, Pull, Pulled, Queue, QueueList, Receipts, Redrive,
        TenantPage,
    },
    routes::{Answer, Explanation, Filter, Host, Liveness, NewInstance, State},
    stats::{Point, Totals},
    tokens::{NewToken, Scope, Token, TokenList},
};
use signalbox_stack::Part;
use signalbox_testkit::{PATIENCE, eventually, eventually_within};
use signalbox_tests::{system::System, upstream::App};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Command,
    time::Duration,
};

/// The result of a command.
pub(super) struct Said {
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) wrong: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.wrong))
    }

    /// Expects that the command succeeded.
    pub(super) fn done(self) -> Self {
        assert_eq!(self.code, Some(0), "{} {}", self.out, self.wrong);
        self
    }
}

pub(super) fn program() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("signalbox")
}

fn command(url: &str, token: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    // Nothing of the folder and the tenant of the tester.
    command.args(arguments).current_dir("/").env_clear();
    command.env("SIGNALBOX_URL", url).env("SIGNALBOX_TOKEN", token).kill_on_drop(true);
    command
}

pub(super) async fn type_at(url: &str, token: &str, arguments: &[&str]) -> Said {
    let output = command(url, token, arguments).output().await.unwrap();
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        wrong: String::from_utf8(output.stderr).unwrap(),
    }
}

pub(super) async fn type_in(system: &System, arguments: &[&str]) -> Said {
    type_at(&format!("http://{}", system.admin), &system.token, arguments).await
}

fn event(url: &str) -> NewEvent {
    NewEvent {
        kind: "update".to_owned(),
        url: url.to_owned(),
        object: None,
        tenant: Some("acme".to_owned()),
        timestamp: None,
        data: Some(json!({"total": 12})),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_reads_every_answer_of_a_running_system() {
    let system = System::start("client").await;
    let app = App::start("app").await;
    let client = Client::builder(format!("http://{}", system.admin)).token(&system.token).build().unwrap();
    let wait = Some(Duration::from_secs(30));

    let mut new = NewInstance::new(app.address.to_string(), ["app.test"], "7");
    new.node_id = Some("n-1".to_owned());
    let changed = client.routes().register("i-1", &new, wait).await.unwrap();
    assert!(changed.changed && changed.instance.id == "i-1" && changed.instance.hostnames == ["app.test"]);
    let again = client.routes().register("i-1", &new, None).await.unwrap();
    assert!(!again.changed && again.serial == changed.serial, "{again:?}");
    let one = client.routes().instance("i-1").await.unwrap();
    assert_eq!((one.state, one.routed, one.node_id.as_deref()), (State::Active, Some(true), Some("n-1")));
    let explained: Explanation = client.get("/routes/explain?host=app.test").await.unwrap();
    assert_eq!((explained.answer, explained.instances[0].usable), (Answer::Proxied, true));
    let drained = client.routes().drain("i-1", Some(Duration::from_secs(60)), wait).await.unwrap();
    assert_eq!(drained.instance.state, State::Draining);
    assert_eq!(client.routes().resume("i-1", wait).await.unwrap().instance.state, State::Active);
    let host: Host = client.get("/hosts/app.test").await.unwrap();
    assert_eq!((host.registered, host.addresses), (true, vec![app.address.to_string()]));
    assert_eq!(client.routes().hosts().await.unwrap().len(), 1);
    let listed =
        client.routes().instances(&Filter { node: Some("n-1".to_owned()), ..Filter::default() }).await;
    assert_eq!(listed.unwrap().len(), 1);
    let state = client.routes().convergence().await.unwrap();
    assert!(state.converged && state.routers[0].state == Liveness::Live, "{state:?}");
    assert_eq!(client.routes().instance("none").await.unwrap_err().code(), Some("unknown_instance"));
    assert_eq!(client.get::<Host>("/hosts/none.test").await.unwrap_err().code(), Some("unknown_host"));

    let mut stream = client.stream("/events").await.unwrap();
    let queue = NewQueue { pattern: ".*:update:orders".to_owned(), ..NewQueue::default() };
    let made: Queue = client.send("PUT", "/queues/mail", &queue).await.unwrap();
    assert_eq!((&*made.pattern, made.messages.waiting), (".*:update:orders", 0));
    let events = [event("https://shop.test/1"), event("https://shop.test/2"), event("no url")];
    let published: Vec<Published> = client.send("POST", "/topics/orders/events", &events).await.unwrap();
    let ids: Vec<_> = published.iter().map(|one| (one.id.is_some(), one.status)).collect();
    assert_eq!(ids, [(true, 200), (true, 200), (false, 400)], "{published:?}");
    loop {
        let message = stream.next().await.unwrap().expect("an open stream");
        let shown: Value = serde_json::from_str(&message.data).unwrap();
        // The route table's own events come by, too.
        if shown["topic"] == "orders" {
            assert_eq!((shown["id"].as_u64(), &shown["data"]), (published[0].id, &json!({"total": 12})));
            break;
        }
    }
    let topics: Vec<Topic> = client.get("/topics").await.unwrap();
    let orders = topics.iter().find(|topic| topic.name == "orders").unwrap();
    assert_eq!(orders.events, 2, "{topics:?}");
    client.get::<Vec<Subscription>>("/subscriptions").await.unwrap();
    client.get::<Numbers>("/bus/metrics").await.unwrap();
    let peek = json!({"tenant": "acme", "max": 5});
    let peeked: Peeked<Value> = client.send("POST", "/queues/mail/peek", &peek).await.unwrap();
    assert_eq!(peeked.messages.len(), 2);
    let page = |page: TenantPage| (page.tenants, page.next);
    let tenants = client.list("/queues/mail/tenants", usize::MAX, page).await.unwrap();
    assert_eq!((&*tenants[0].tenant, tenants[0].waiting), ("acme", 2));
    let pull = Pull { max: Some(1), wait_seconds: Some(1.0), ..Pull::default() };
    let pulled: Pulled<Value> = client.send("POST", "/queues/mail/pull", &pull).await.unwrap();
    let receipts: Vec<String> = pulled.messages.iter().filter_map(|one| one.receipt.clone()).collect();
    assert_eq!(receipts.len(), 1, "{pulled:?}");
    let acked: Outcomes = client.send("POST", "/queues/mail/ack", &Receipts { receipts }).await.unwrap();
    assert_eq!(acked.results[0].result.as_deref(), Some("acked"));
    let purged: Count = client.send("POST", "/queues/mail/purge", &json!({})).await.unwrap();
    assert_eq!(purged.messages, 1);
    let redriven: Count =
        client.send("POST", "/queues/mail/dead/redrive", &Redrive::default()).await.unwrap();
    assert_eq!(redriven.messages, 0);
    let page = |page: DeadPage<Value>| (page.dead, page.next);
    assert!(client.list("/queues/mail/dead", 10, page).await.unwrap().is_empty());
    assert_eq!(client.get::<QueueList>("/queues").await.unwrap().queues.len(), 1);
    client.call::<Value>("DELETE", "/queues/mail", None).await.unwrap();
    assert_eq!(client.get::<Queue>("/queues/mail").await.unwrap_err().code(), Some("unknown_queue"));

    let token = NewToken { name: "t".to_owned(), scopes: vec![Scope::Read], ..NewToken::default() };
    let created: Token = client.send("POST", "/tokens", &token).await.unwrap();
    let secret = created.token.unwrap();
    let reader = Client::builder(client.url()).token(secret).build().unwrap();
    assert_eq!(reader.routes().remove("i-1", None).await.unwrap_err().status(), Some(403));
    assert_eq!(client.get::<TokenList>("/tokens").await.unwrap().tokens[0].scopes, [Scope::Read]);
    client.call::<Value>("DELETE", "/tokens/t", None).await.unwrap();
    assert!(client.get::<CertificateList>("/certificates").await.unwrap().certificates.is_empty());
    assert!(client.get::<Vec<Backend>>("/backends").await.unwrap().is_empty());
    assert_eq!(client.get::<ObjectState>("/objects/x").await.unwrap_err().code(), Some("unknown_object"));

    let serving = client.get::<PacemakerList>("/pacemakers").await.unwrap().pacemakers;
    assert_eq!((serving.len(), &*serving[0].version), (1, env!("CARGO_PKG_VERSION")));
    let check: Check = client.get("/check").await.unwrap();
    assert!(check.consistent && check.findings.is_empty(), "{check:?}");
    assert!(client.get::<Ready>("/health/ready").await.unwrap().ready);
    assert!(client.get::<Edge>("/edge/status").await.unwrap().connected);
    assert!(client.text("/metrics").await.unwrap().contains("signalbox_sidecar_lines_total"));
    assert_eq!(
        client.get::<Value>("/openapi.json").await.unwrap()["info"]["version"],
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(system.get("app.test", "/").await.status, 200);
    eventually("the request to be counted", || async {
        let totals: Totals = client.get("/stats/version_type/7").await.unwrap();
        if totals.requests == 1 && totals.codes["200"] == 1 { Ok(()) } else { Err(totals) }
    })
    .await;
    let points: Vec<Point> = client.get("/stats/uncaught/history").await.unwrap();
    assert_eq!(points.len(), 300);
    client.routes().remove("i-1", wait).await.unwrap();
    assert!(client.routes().instances(&Filter::default()).await.unwrap().is_empty());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_print_what_an_operator_expects() {
    let system = System::start("command").await;
    let app = App::start("app").await;
    let address = app.address.to_string();
    let add = [
        "routes",
        "add",
        "i-7",
        "--address",
        &address,
        "--host",
        "new.test",
        "--version-type",
        "7",
        "--wait",
        "30s",
    ];
    let added = type_in(&system, &add).await.done();
    assert!(added.out.starts_with("i-7 registered (serial "), "{}", added.out);
    assert_eq!(system.get("new.test", "/").await.text(), "app");
    let listed = type_in(&system, &["routes", "list", "--json"]).await.done().json();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["id"]), (1, &json!("i-7")));
    let table = type_in(&system, &["routes", "list"]).await.done().out;
    assert!(
        table.lines().nth(1).is_some_and(|row| row.contains("new.test") && row.contains(&address)),
        "{table}"
    );
    let explained = type_in(&system, &["routes", "explain", "new.test"]).await.done().out;
    assert!(explained.contains("(i-7) receives requests"), "{explained}");
    type_in(&system, &["routes", "drain", "i-7", "--wait", "30s"]).await.done();
    let explained = type_in(&system, &["routes", "explain", "new.test"]).await.done().out;
    assert!(explained.contains("(i-7) receives no requests"), "{explained}");
    type_in(&system, &["routes", "drain", "i-7", "--resume"]).await.done();
    let served = type_in(&system, &["routes", "wait", "--timeout", "30s"]).await.done().out;
    assert!(served.starts_with("1 router serves serial "), "{served}");
    eventually("the version type that has just been requested", || async {
        system.get("new.test", "/").await;
        let top = ["stats", "top", "--once", "--interval", "200ms", "--json"];
        let top = type_in(&system, &top).await.done().json();
        let is_listed = top.as_array().unwrap().iter().any(|row| row["version_type"] == "7");
        if is_listed { Ok(()) } else { Err(top) }
    })
    .await;

    // A tail that starts now shows the events published from now on.
    let url = format!("http://{}", system.admin);
    let mut tail =
        command(&url, &system.token, &["events", "tail", "--topic", "orders", "--count", "1", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    eventually("the stream to be open", || async {
        let streams = system.metrics().await.into_iter().find(|(name, _)| name == "signalbox_live_streams");
        if streams.as_ref().is_some_and(|(_, count)| *count >= 1.0) { Ok(()) } else { Err(streams) }
    })
    .await;
    let publish =
        ["events", "publish", "orders", "update", "https://shop.test/7", "--data", r#"{"total":12}"#];
    let published = type_in(&system, &publish).await.done().out;
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    let seen: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(published.trim(), format!("published {}", seen["event"]["id"]));
    assert!(tokio::time::timeout(PATIENCE, tail.wait()).await.unwrap().unwrap().success());
    let topics = type_in(&system, &["topics", "list"]).await.done().out;
    assert!(topics.contains("orders"), "{topics}");
    for arguments in [&["check"][..], &["subscribers", "list"], &["queues", "list"], &["backends", "list"]] {
        type_in(&system, arguments).await.done();
    }
    let made = type_in(&system, &["tokens", "create", "deploy", "--scope", "read"]).await.done().out;

    // Each kind of failure has its exit code and a one-line reason.
    let stranger = "http://127.0.0.1:1";
    for (url, token, arguments, code, why) in [
        (&*url, &*system.token, &["routes", "drain", "zz"][..], 65, "(unknown_instance)"),
        (&*url, "nobody", &["routes", "list"], 77, "(token_unknown)"),
        (&*url, made.trim(), &["routes", "remove", "i-7"], 77, "(scope_missing)"),
        (&*url, &*system.token, &["routes", "list", "--bogus"], 64, "--bogus"),
        (&*url, &*system.token, &["queues", "purge", "q"], 64, "--yes"),
        (&*url, &*system.token, &["routes", "wait", "--serial", "999", "--timeout", "1ms"], 69, "serial 999"),
        (stranger, "x", &["check"], 69, "does not answer"),
    ] {
        let said = type_at(url, token, arguments).await;
        assert_eq!(said.code, Some(code), "{arguments:?}: {} {}", said.out, said.wrong);
        assert!(
            said.wrong.contains(why) && said.out.is_empty(),
            "{arguments:?}: {} {}",
            said.out,
            said.wrong
        );
    }
    type_in(&system, &["routes", "remove", "i-7", "--wait", "30s"]).await.done();
    system.stop().await;
}

/// Types a command at a terminal, and an answer to its question.
async fn type_at_terminal(system: &System, arguments: &str, answer: &str) -> Said {
    let url = format!("http://{}", system.admin);
    let mut command = command(&url, &system.token, &[]);
    // `script` gives the command a terminal, and prints what the command writes there.
    let typed = format!("exec {} {arguments}", program().display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--echo", "never", "--command", &typed, "/dev/null"]);
    script.env_clear().envs(command.as_std_mut().get_envs().filter_map(|(name, value)| Some((name, value?))));
    script.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    script.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut running = script.spawn().expect("script starts");
    let mut input = running.stdin.take().unwrap();
    let mut output = running.stdout.take().unwrap();
    let mut shown = Vec::new();
    // The answer is typed when the question is shown.
    while !shown.ends_with(b": ") && !shown.ends_with(b"[y/N] ") {
        let read = tokio::time::timeout(PATIENCE, output.read_buf(&mut shown)).await;
        assert!(read.expect("a question").unwrap() > 0, "{}", String::from_utf8_lossy(&shown));
    }
    input.write_all(answer.as_bytes()).await.unwrap();
    input.flush().await.unwrap();
    tokio::time::timeout(PATIENCE, output.read_to_end(&mut shown)).await.expect("the end").unwrap();
    let status = tokio::time::timeout(PATIENCE, running.wait()).await.expect("the end").unwrap();
    Said { code: status.code(), out: String::from_utf8(shown).unwrap(), wrong: String::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_be_undone_asks_on_a_terminal_and_needs_yes_elsewhere() {
    let system = System::start("confirmations").await;
    let at = |words: &'static str| words.split(' ').collect::<Vec<_>>();
    for name in ["mail", "jobs"] {
        type_in(&system, &["queues", "create", name, "--pattern", "none:none:none"]).await.done();
    }
    type_in(&system, &at("tokens create deploy --scope read")).await.done();
    let names = async |noun: &'static str| type_in(&system, &[noun, "list", "-o", "name"]).await.done().out;

    // In a script.
    for (arguments, effect) in [
        (
            "queues remove mail",
            "this would delete the queue mail with all of its messages, which cannot be undone",
        ),
        ("queues purge mail", "this would drop all waiting messages of mail"),
        ("tokens revoke deploy", "this would revoke the token deploy"),
        ("hosts remove a.test", "this would remove the host a.test with its policy"),
        ("labels delete orders --all", "this would delete all labels of orders"),
        ("machines delete orders", "this would delete the machine orders with all of its labels"),
    ] {
        let said = type_in(&system, &at(arguments)).await;
        assert!(said.code == Some(64) && said.out.is_empty(), "{arguments}: {} {}", said.out, said.wrong);
        assert!(said.wrong.contains(effect) && said.wrong.contains("add --yes"), "{}", said.wrong);
    }
    assert_eq!(names("queues").await, "jobs\nmail\n");

    // On a terminal: the name of something with contents, otherwise y.
    let said = type_at_terminal(&system, "queues remove mail", "jobs\n").await;
    assert!(
        said.out.contains("This will delete the queue mail") && said.out.contains("nothing was changed"),
        "{}",
        said.out
    );
    assert_eq!((said.code, names("queues").await), (Some(64), "jobs\nmail\n".to_owned()));
    let said = type_at_terminal(&system, "queues remove mail", "mail\n").await;
    assert_eq!((said.code, names("queues").await), (Some(0), "jobs\n".to_owned()), "{}", said.out);
    let said = type_at_terminal(&system, "tokens revoke deploy", "\n").await;
    assert_eq!((said.code, names("tokens").await), (Some(64), "deploy\n".to_owned()), "{}", said.out);
    let said = type_at_terminal(&system, "tokens revoke deploy", "y\n").await;
    assert_eq!((said.code, names("tokens").await), (Some(0), String::new()), "{}", said.out);
    type_in(&system, &at("queues rm jobs -y")).await.done();
    system.stop().await;
}

/// A machine whose action fails, because nothing listens at its address.
pub(super) const ORDERS: &str = "
state_machines:
  orders:
    states:
      - gate: asked
        exit_condition: metadata.paid
        triggers: [{event: entry}, {metadata: paid}]
        next: ship
      - action: ship
        webhook: http://127.0.0.1:1/ship/<label>
        retry: {attempts: 1}
        next: shipped
      - gate: shipped
";

/// A machine whose gate is evaluated only on entry.
pub(super) const DEAF: &str = "
state_machines:
  deaf:
    states:
      - {gate: gate, exit_condition: 'system.label = \"lucky\"', triggers: [{event: entry}], next: end}
      - gate: end
";

/// The names in a table of labels.
fn listed(table: &str) -> Vec<&str> {
    table.lines().skip(1).filter_map(|line| line.split(' ').next()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_applies_a_machine_and_manages_its_labels() {
    let system = System::start("labels").await;
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first.yaml"), folder.path().join("second.yaml"));
    std::fs::write(&first, ORDERS).unwrap();
    // The first state has another name, `asked` is gone.
    std::fs::write(&second, ORDERS.replace("gate: asked", "gate: queued")).unwrap();
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let at = |command: &'static str| command.split(' ').collect::<Vec<_>>();

    let plan = type_in(&system, &["machines", "plan", "orders", first, "--json"]).await.done().json();
    assert_eq!(
        (&plan["version"], &plan["states"]["added"]),
        (&json!(0), &json!(["asked", "ship", "shipped"]))
    );
    let apply = ["machines", "apply", "orders", "--plan", plan["plan"].as_str().unwrap()];
    let applied = type_in(&system, &apply).await.done().out;
    assert_eq!(applied.trim(), "version 1 of orders is active");
    let again = type_in(&system, &apply).await.done().out;
    assert!(again.contains("version 1"), "{again}");

    let labels = json!({"labels": [{"name": "7", "metadata": {}}, {"name": "8", "metadata": {}}]});
    assert_eq!(system.api("POST", "/state-machines/orders/labels", Some(labels)).await.status, 200);
    let paid = Some(json!({"metadata": {"paid": true}}));
    assert_eq!(system.api("PATCH", "/state-machines/orders/labels/8", paid).await.status, 200);
    let errored = async || {
        eventually("the action to have failed", || async {
            let list = type_in(&system, &at("labels list orders --status errored")).await.done().out;
            if listed(&list) == ["8"] { Ok(()) } else { Err(list) }
        })
        .await;
    };
    errored().await;
    assert_eq!(listed(&type_in(&system, &at("labels list orders")).await.done().out), ["7", "8"]);
    let one = type_in(&system, &at("labels list orders --max 1 --json")).await.done().json();
    assert_eq!((&one[0]["name"], &one[0]["state"], &one[1]), (&json!("7"), &json!("asked"), &Value::Null));
    let asked = type_in(&system, &at("labels list orders --state asked --older-than 0s")).await.done().out;
    assert_eq!(listed(&asked), ["7"]);
    let shown = type_in(&system, &at("labels show orders 8")).await.done().out;
    assert!(shown.starts_with("8: ship (errored) since ") && shown.contains("last error"), "{shown}");
    let history = type_in(&system, &at("labels history orders 8")).await.done().out;
    assert!(history.lines().any(|row| row.contains("asked") && row.contains("ship")), "{history}");
    let why = type_in(&system, &at("labels why orders 7")).await.done().out;
    assert!(
        why.starts_with("asked (waiting) since ") && why.contains("  metadata.paid should be true\n"),
        "{why}"
    );
    let simulate = ["labels", "simulate", "orders", "7", "--metadata", r#"{"paid":true}"#];
    let simulated = type_in(&system, &simulate).await.done().out;
    assert!(simulated.contains("shipped"), "{simulated}");
    let refused = [&simulate[..], &["--webhooks", r#"{"ship":410}"#, "--json"]].concat();
    let simulated = type_in(&system, &refused).await.done().json().to_string();
    assert!(simulated.contains("errored") && !simulated.contains("shipped"), "{simulated}");
    let busy = type_in(&system, &at("machines list --json")).await.done().json();
    assert_eq!((&busy[0]["name"], &busy[0]["busy"]["errored"]), (&json!("orders"), &json!(1)));
    let doctor = type_in(&system, &at("doctor --skip-log --json")).await;
    let output = doctor.json();
    let finding = output["findings"].as_array().unwrap().iter().find(|one| one["id"] == "labels-failed");
    let finding = finding.unwrap_or_else(|| panic!("{output}"));
    assert_eq!((doctor.code, &finding["subject"]), (Some(1), &json!("machine orders")));
    let problem = finding["problem"].as_str().unwrap();
    assert!(
        problem.contains("1 label of the machine orders") && problem.contains("such as \"8\" ("),
        "{finding}"
    );

    // A record that was damaged by hand is reported with its label.
    let consistent = type_in(&system, &["check"]).await.done().out;
    assert!(consistent.starts_with("consistent: ") && consistent.contains("machines"), "{consistent}");
    let _one: u64 = system.cli(Part::FABRIC, "ZREM machine:orders:is:errored 8").await;
    let broken = type_in(&system, &["check"]).await;
    assert!(
        broken.code == Some(1) && broken.out.contains("machines   M2   shard 0 orders:8: "),
        "{}",
        broken.out
    );
    let _one: u64 = system.cli(Part::FABRIC, "ZADD machine:orders:is:errored 0 8").await;
    type_in(&system, &["check"]).await.done();

    // A label at a gate that is evaluated only on entry stays there.
    let deaf = folder.path().join("deaf.yaml");
    std::fs::write(&deaf, DEAF).unwrap();
    type_in(&system, &["machines", "apply", "deaf", "--file", deaf.to_str().unwrap()]).await.done();
    let created =
        system.api("POST", "/state-machines/deaf/labels/waits", Some(json!({"metadata": {}}))).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let output = type_in(&system, &at("doctor --skip-log --json")).await.json();
    let finding = output["findings"].as_array().unwrap().iter().find(|one| one["id"] == "labels-stuck");
    let finding = finding.unwrap_or_else(|| panic!("{output}"));
    assert_eq!(finding["subject"], "machine deaf");
    assert!(finding["problem"].as_str().unwrap().ends_with(", such as \"waits\" (gate)."), "{finding}");

    let tried = type_in(&system, &at("labels retry orders 8")).await.done().out;
    assert_eq!(tried.trim(), "1 label retried");
    errored().await;
    let tried = type_in(&system, &at("labels retry orders --all --state ship --json")).await.done().json();
    assert_eq!(tried, json!({"retried": 1}));
    let output = ["labels", "set", "orders", "7", "user.plan=pro", "metadata.count=3", "gone=1", "--json"];
    let output = type_in(&system, &output).await.done().json();
    assert_eq!((&output["state"], &output["status"]), (&json!("asked"), &json!("waiting")));
    let output = ["labels", "set", "orders", "7", "--metadata", r#"{"count":4}"#, "--remove", "gone"];
    let output = type_in(&system, &output).await.done().out;
    assert!(output.starts_with("7: asked (waiting) since "), "{output}");
    let shown = type_in(&system, &at("labels show orders 7 --json")).await.done().json();
    assert_eq!(shown["metadata"], json!({"user": {"plan": "pro"}, "count": 4}));
    let output = type_in(&system, &at("labels set deaf lucky at=1 --create --wait 5s")).await.done().out;
    assert!(output.starts_with("lucky: end (ended) since "), "{output}");

    for (arguments, why) in [
        (at("labels retry orders 7"), "(label_not_errored)"),
        (at("labels set orders 9 paid=true"), "(unknown_label)"),
        (at("labels set nothing 9 paid=true --create"), "(unknown_machine)"),
        (at("labels show orders 9"), "(unknown_label)"),
        (at("machines versions nothing"), "(unknown_machine)"),
        (vec!["machines", "apply", "orders", "--file", second], "(unmapped_state)"),
    ] {
        let said = type_in(&system, &arguments).await;
        assert!(
            said.code == Some(65) && said.wrong.contains(why),
            "{arguments:?}: {} {}",
            said.out,
            said.wrong
        );
    }
    let planned = type_in(&system, &["machines", "plan", "orders", second]).await.done().out;
    assert!(planned.contains("(against version 1)") && planned.contains("asked (1 labels)"), "{planned}");
    type_in(&system, &["machines", "apply", "orders", "--file", second, "--map", "asked=queued"])
        .await
        .done();
    let shown = type_in(&system, &at("labels show orders 7 --json")).await.done().json();
    assert_eq!(shown["state"], "queued");
    let versions = type_in(&system, &at("machines versions orders")).await.done().out;
    let current: Vec<&str> = versions.lines().filter(|row| row.ends_with("active")).collect();
    assert!(versions.lines().count() == 3 && current.len() == 1 && current[0].starts_with('2'), "{versions}");

    // Versions are compared and rolled back; operations work on one label and on all that match.
    let differs = type_in(&system, &["machines", "diff", "orders", first]).await.done().out;
    assert!(differs.contains("gate: queued") && differs.contains("gate: asked"), "{differs}");
    let back = type_in(&system, &at("machines rollback orders --map queued=asked")).await.done().out;
    assert!(
        back.contains("version 1 was applied") && back.contains("version 3 of orders is active"),
        "{back}"
    );
    let again = type_in(&system, &["machines", "apply", "orders", first]).await.done().out;
    assert!(again.contains("version 3 of orders is active already"), "{again}");
    let moved =
        type_in(&system, &at("labels move orders --where user.plan=pro --to shipped")).await.done().out;
    assert!(moved.starts_with("move done: 1 changed, 0 unchanged, 0 failed"), "{moved}");
    let skipped = type_in(&system, &at("labels skip orders 8")).await.done().out;
    assert!(skipped.starts_with("8: shipped (ended) since "), "{skipped}");
    let all = type_in(&system, &at("labels delete orders")).await;
    assert!(all.code == Some(64) && all.wrong.contains("--all"), "{}", all.wrong);
    let tasks = type_in(&system, &at("machines tasks orders")).await.done().out;
    assert!(tasks.lines().any(|row| row.contains("move") && row.contains("done")), "{tasks}");
    let other = type_in(&system, &at("machines delete orders --confirm deaf")).await;
    assert!(other.code == Some(64) && other.wrong.contains("another machine"), "{}", other.wrong);
    let deleted = type_in(&system, &at("machines delete orders --confirm orders")).await.done().out;
    assert!(deleted.starts_with("delete_machine done: 2 changed"), "{deleted}");
    let gone = type_in(&system, &at("labels show orders 7")).await;
    assert!(gone.code == Some(65) && gone.wrong.contains("(unknown_machine)"), "{}", gone.wrong);
    system.stop().await;
}

/// The findings of the doctor: their ids and problems.
fn findings(answer: &Value) -> Vec<(&str, &str)> {
    let all = answer["findings"].as_array().unwrap().iter();
    all.map(|one| (one["id"].as_str().unwrap(), one["problem"].as_str().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_reports_what_is_wrong_and_the_dashboard_agrees() {
    let system = System::start("doctor").await;
    let servers = [
        format!("routes={}", system.stack.routes_url()),
        format!("routes-replica={}", system.stack.routes_replica_url()),
        format!("stats={}", system.stack.stats_url()),
        format!("fabric={}", system.stack.fabric_url()),
    ];
    let mut arguments = vec!["doctor", "--json"];
    arguments.extend(servers.iter().flat_map(|server| ["--redis", server]));
    let healthy = eventually("a healthy system", || async {
        let said = type_in(&system, &arguments).await;
        let answer = said.json();
        if findings(&answer).is_empty() { Ok(said) } else { Err(answer) }
    })
    .await;
    assert_eq!((healthy.code, &healthy.json()["skipped"]), (Some(0), &json!([])));

    // Three things that an operator does wrong.
    for (server, change) in [
        (Part::STATS, "CONFIG SET appendonly no"),
        (Part::FABRIC, "CONFIG SET maxmemory-policy allkeys-lru"),
        (Part::ROUTES_REPLICA, "REPLICAOF NO ONE"),
    ] {
        let _ok: String = system.cli(server, change).await;
    }
    let ill = eventually("everything to be reported", || async {
        let said = type_in(&system, &arguments).await;
        let answer = said.json();
        let found = findings(&answer);
        let all = ["redis-aof-off", "redis-evicts", "replica-not-replicating"]
            .iter()
            .all(|id| found.iter().any(|(found, _)| found == id));
        if all { Ok(said) } else { Err(answer) }
    })
    .await;
    assert_eq!(ill.code, Some(1), "{}", ill.wrong);
    let answer = ill.json();
    assert!(
        answer["findings"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["fix"].as_str().is_some_and(|fix| !fix.is_empty()))
    );
    assert_eq!(answer["healthy"], false);
    let words =
        type_in(&system, &arguments.iter().copied().filter(|word| *word != "--json").collect::<Vec<_>>())
            .await;
    assert!(words.out.contains("CRITICAL") && words.out.contains("appendonly yes"), "{}", words.out);

    // The dashboard reads the same servers, except for the replica, and reports them in the same words.
    let shared: Vec<_> = findings(&answer).into_iter().filter(|(id, _)| id.starts_with("redis-")).collect();
    assert_eq!(shared.len(), 2, "{answer}");
    // It reads settings every ten seconds.
    eventually_within(PATIENCE * 2, "the dashboard to agree", || async {
        let page = system.api("GET", "/", None).await.text();
        let reported = |(id, problem): &(&str, &str)| {
            let shown = page.split("<article").find(|one| one.contains(&format!("data-finding=\"{id}\"")));
            shown.is_some_and(|shown| shown.contains(&format!("</span> {problem}</h3>")))
        };
        if shared.iter().all(reported) { Ok(()) } else { Err(page) }
    })
    .await;
    system.allow("replica");
    system.stop().await;
}
