//! Effects and the doors to them. An effect is a change or a reading that tokens can be confined for. The API is one door to it, a
//! state machine another. For every list that confines a token, both doors are open or closed alike, whatever the metadata of a
//! label contains.
//!
//! The rows are complete: operations come from the description of the API, actions and feeds from the schema of definitions, and
//! the lists from the description of tokens. A new one without a row fails the test.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Request, Response},
    receiver::{self, Receiver},
    system::System,
    upstream::App,
};

/// Data that is divided by host names.
const HOSTS: &[&str] = &[
    "GET /acme/names",
    "GET /acme/names/{server_name}",
    "POST /acme/names/{server_name}/renew",
    "GET /certificates",
    "DELETE /certificates/{server_name}",
    "GET /certificates/{server_name}",
    "PUT /certificates/{server_name}",
    "GET /hosts",
    "DELETE /hosts/{hostname}",
    "GET /hosts/{hostname}",
    "PUT /hosts/{hostname}",
    "DELETE /hosts/{hostname}/paths",
    "PUT /hosts/{hostname}/paths",
    "DELETE /hosts/{hostname}/pause",
    "PUT /hosts/{hostname}/pause",
    "DELETE /hosts/{hostname}/policy",
    "POST /hosts/{hostname}/promote",
    "POST /hosts/{hostname}/promote/undo",
    "GET /instances",
    "PUT /instances",
    "DELETE /instances/{id}",
    "GET /instances/{id}",
    "PUT /instances/{id}",
    "DELETE /instances/{id}/drain",
    "POST /instances/{id}/drain",
    "POST /instances/{id}/errors",
    "POST /instances/{id}/heartbeat",
    "GET /routes/dump",
    "GET /routes/explain",
];

/// Data that is divided by tenants.
const TENANTS: &[&str] = &[
    "GET /events",
    "POST /messages",
    "POST /messages/pull",
    "POST /objects/{object}/events",
    "GET /queues",
    "GET /queues/{name}",
    "POST /queues/{name}/ack",
    "POST /queues/{name}/extend",
    "GET /queues/{name}/tenants",
    "DELETE /queues/{name}/tenants/{tenant}",
    "GET /queues/{name}/tenants/{tenant}",
    "GET /queues/{name}/gaps",
    "GET /queues/{name}/messages",
    "DELETE /queues/{name}/messages/{id}",
    "GET /queues/{name}/messages/{id}",
    "POST /queues/{name}/messages/{id}/redrive",
    "POST /queues/{name}/nack",
    "POST /queues/{name}/peek",
    "POST /queues/{name}/pull",
    "POST /queues/{name}/purge",
    "POST /queues/{name}/reject",
    "DELETE /subscriber",
    "POST /subscriber",
    "PUT /subscriber",
    "DELETE /subscriber/dead",
    "GET /subscriber/dead",
    "POST /subscriber/dead/redrive",
    "POST /subscriber/replay",
    "POST /subscriber/retry",
    "GET /subscriber/secret",
    "POST /subscriber/secret",
    "POST /subscriber/test",
    "DELETE /subscriber/topics/{topic}",
    "DELETE /subscription",
    "POST /subscription",
    "PUT /subscription",
    "DELETE /subscription/topics/{topic}",
    "DELETE /topics/{name}",
    "POST /topics/{name}",
    "POST /topics/{name}/events",
];

/// Data that is divided by state machines.
const MACHINES: &[&str] = &[
    "GET /state-machines",
    "DELETE /state-machines/{machine}",
    "GET /state-machines/{machine}",
    "POST /state-machines/{machine}/apply",
    "GET /state-machines/{machine}/flow",
    "GET /state-machines/{machine}/labels",
    "PATCH /state-machines/{machine}/labels",
    "POST /state-machines/{machine}/labels",
    "DELETE /state-machines/{machine}/labels/{label}",
    "GET /state-machines/{machine}/labels/{label}",
    "PATCH /state-machines/{machine}/labels/{label}",
    "POST /state-machines/{machine}/labels/{label}",
    "GET /state-machines/{machine}/labels/{label}/activity",
    "GET /state-machines/{machine}/labels/{label}/history",
    "POST /state-machines/{machine}/labels/{label}/operations",
    "POST /state-machines/{machine}/labels/{label}/retry",
    "GET /state-machines/{machine}/labels/{label}/route",
    "POST /state-machines/{machine}/labels/{label}/simulate",
    "GET /state-machines/{machine}/labels/{label}/why",
    "POST /state-machines/{machine}/plan",
    "POST /state-machines/{machine}/retry",
    "GET /state-machines/{machine}/secrets",
    "DELETE /state-machines/{machine}/secrets/{secret}",
    "PUT /state-machines/{machine}/secrets/{secret}",
    "GET /state-machines/{machine}/tasks",
    "POST /state-machines/{machine}/tasks",
    "DELETE /state-machines/{machine}/tasks/{task}",
    "GET /state-machines/{machine}/tasks/{task}",
    "GET /state-machines/{machine}/versions",
    "GET /state-machines/{machine}/versions/{version}",
];

/// Data that belongs to no tenant: closed to every confined token.
const WHOLE: &[&str] = &[
    "DELETE /api_tokens",
    "GET /api_tokens",
    "POST /api_tokens",
    "DELETE /api_tokens/{name}",
    "POST /api_tokens/{name}/rotate",
    "GET /audit",
    "GET /backends",
    "DELETE /backends/{name}",
    "GET /backends/{name}",
    "PUT /backends/{name}",
    "DELETE /backends/{name}/dead",
    "GET /backends/{name}/dead",
    "POST /backends/{name}/dead/redrive",
    "POST /bus/initialize",
    "GET /bus/metrics",
    "GET /check",
    "DELETE /nodes/{id}/drain",
    "POST /nodes/{id}/drain",
    "GET /objects",
    "GET /objects/{object}",
    "POST /objects/{object}/skip",
    "POST /objects/{object}/unpark",
    "GET /pacemakers",
    "DELETE /queues/{name}",
    "PATCH /queues/{name}",
    "PUT /queues/{name}",
    "DELETE /queues/{name}/dead",
    "GET /queues/{name}/dead",
    "POST /queues/{name}/dead/redrive",
    "PATCH /queues/{name}/tenants/{tenant}",
    "PUT /queues/{name}/tenants/{tenant}",
    "DELETE /queues/{name}/gaps",
    "GET /routes/convergence",
    "PATCH /subscriber",
    "GET /subscriber/deliveries",
    "POST /subscriber/resend",
    "POST /subscriber/skip",
    "GET /subscribers",
    "PATCH /subscription",
    "GET /subscriptions",
    "GET /tokens",
    "POST /tokens",
    "DELETE /tokens/{name}",
    "POST /tokens/{name}/rotate",
    "GET /topics",
    "PUT /topics/{name}/publisher",
];

/// Answers that contain nothing of any tenant, the start of the dashboard, and metrics, which the admin listener checks itself.
const ANYONE: &[&str] = &[
    "GET /",
    "GET /health",
    "GET /health/ping",
    "GET /health/ping.json",
    "GET /health/ready",
    "GET /pulse",
    "GET /pulse/scaling",
    "GET /metrics",
];

/// Scopes of all tokens of these tests: only their lists confine them. Root alone has more.
const SCOPES: [&str; 8] = ["routes", "publish", "subscribe", "queues", "facts", "machines", "read", "audit"];

async fn ask(system: &System, token: &str, method: &str, target: &str, body: Option<&Value>) -> Response {
    let answer = try_ask(system, token, method, target, body).await;
    answer.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
}

/// An error if the answer does not end: it is a stream.
async fn try_ask(
    system: &System,
    token: &str,
    method: &str,
    target: &str,
    body: Option<&Value>,
) -> std::io::Result<Response> {
    // The sidecar answers statistics only through the admin listener.
    let request = Request::new(method, &system.admin.to_string(), target).token(token);
    let request = match body {
        Some(Value::String(yaml)) => request.header("Content-Type", "application/yaml").body(yaml.clone()),
        Some(body) => request.json(body),
        None => request,
    };
    request.send(system.admin).await
}

/// The lists of tokens, from the description of the API.
fn lists(document: &Value) -> BTreeSet<String> {
    let members = document["components"]["schemas"]["NewToken"]["properties"].as_object().unwrap();
    let is_list = |member: &Value| {
        let kind = &member["type"];
        kind == "array" || kind.as_array().is_some_and(|kinds| kinds.contains(&json!("array")))
    };
    let lists = members.iter().filter(|(name, member)| *name != "scopes" && is_list(member));
    lists.map(|(name, _)| name.clone()).collect()
}

/// The tenant's own part of a list. Everything else is another tenant's.
fn own(list: &str) -> Value {
    match list {
        "hosts" => json!(["*.a.test"]),
        "tenants" => json!(["5"]),
        "machines" => json!(["own"]),
        "version_types" => json!(["a-*"]),
        other => panic!("a list of tokens without a row: {other}"),
    }
}

/// A token with all scopes and these lists. The API creates no such token, because some of the scopes cannot be confined by the
/// lists; what decides about a request is what is stored.
async fn confined(system: &System, name: &str, lists: &[&str]) -> String {
    let token = system.token(name, &SCOPES).await;
    let digest: String = system.cli(System::FABRIC, &format!("HGET tokens:names {name}")).await;
    let record: String = system.cli(System::FABRIC, &format!("HGET tokens {digest}")).await;
    let mut record: Value = serde_json::from_str(&record).unwrap();
    for list in lists {
        record[list] = own(list);
    }
    for part in [System::FABRIC, System::STATS] {
        system.cli::<()>(part, &format!("HSET tokens {digest} {record}")).await;
    }
    eventually("both daemons to know the lists", || async {
        let answer = ask(system, &token, "GET", "/audit", None).await;
        let stats = ask(system, &token, "GET", "/stats/version_type/a-1", None).await;
        let confines = lists.iter().any(|list| *list != "version_types");
        let wanted = (if confines { 403 } else { 200 }, if lists.is_empty() { 200 } else { 403 });
        let found = (answer.status, stats.status);
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await;
    token
}

/// A path with names of another tenant.
fn foreign(path: &str) -> String {
    let path = if path == "/routes/explain" { "/routes/explain?host=b.test" } else { path };
    let name = if path.starts_with("/queues") { "all" } else { "orders" };
    let pairs = [
        ("{id}", "theirs"),
        ("{hostname}", "b.test"),
        ("{server_name}", "b.test"),
        ("{machine}", "other"),
        ("{label}", "one"),
        ("{task}", "1"),
        ("{version}", "1"),
        ("{secret}", "KEY"),
        ("{tenant}", "6"),
        ("{object}", "thing"),
        ("{topic}", "orders"),
        ("{name}", name),
    ];
    let path = pairs.iter().fold(path.to_owned(), |path, (parameter, value)| path.replace(parameter, value));
    let path = path.replace("/messages/theirs", "/messages/1");
    assert!(!path.contains('{'), "{path}: a parameter without a value in this test");
    path
}

/// What the other tenant has, as root sees it.
async fn possessions(system: &System) -> Vec<Value> {
    let mut all = Vec::new();
    for target in [
        "/hosts/b.test",
        "/instances/theirs",
        "/queues/all",
        "/state-machines/other",
        "/subscriptions",
        "/topics",
    ] {
        let mut answer = system.api("GET", target, None).await.json();
        // They change by themselves.
        for member in ["live", "lease_expires_at", "in_flight", "health_since", "events", "instances"] {
            if let Some(object) = answer.as_object_mut() {
                object.remove(member);
            }
            for object in answer.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                object.remove(member);
            }
        }
        all.push(answer);
    }
    all.push(system.api("GET", "/state-machines/other/labels/one", None).await.json());
    all
}

const OTHER: &str = "state_machines:\n  other:\n    states: [{gate: asked, exit_condition: metadata.go, triggers: \
    [{metadata: go}], next: done}, {gate: done}]\n";

async fn start(name: &str) -> (System, App) {
    let system = System::with(name, |builder| builder.pacemaker("bus", receiver::allowed())).await;
    let app = App::start("theirs").await;
    let instance =
        json!({"address": app.address.to_string(), "hostnames": ["b.test"], "version_type_id": "shop-7"});
    let put = system.api("PUT", "/instances/theirs?wait=20s", Some(instance)).await;
    assert_eq!(put.status, 201, "{}", put.text());
    system.api("PUT", "/queues/all", Some(json!({"pattern": ".*"}))).await;
    let message = json!({"tenant": "6", "type": "mail", "name": "opened", "payload": "six"});
    assert!(system.api("POST", "/messages", Some(message)).await.status < 300);
    system.apply("other", OTHER).await;
    let label = json!({"metadata": {"word": "six"}});
    assert_eq!(system.api("POST", "/state-machines/other/labels/one", Some(label)).await.status, 201);
    (system, app)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_is_closed_to_tokens_that_are_confined_by_another_list() {
    let (system, _app) = start("doors-api").await;
    let document = system.api("GET", "/openapi.json", None).await.json();
    let rows = [
        ("hosts", HOSTS),
        ("tenants", TENANTS),
        ("machines", MACHINES),
        ("no list", WHOLE),
        ("anyone", ANYONE),
    ];
    let mut operations = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().keys().filter(|name| !name.starts_with("x-"));
        let methods =
            methods.filter(|name| ["get", "put", "post", "patch", "delete"].contains(&name.as_str()));
        operations.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    let listed: Vec<&str> = rows.iter().flat_map(|(_, row)| row.iter().copied()).collect();
    let known: BTreeSet<String> = listed.iter().map(|row| (*row).to_owned()).collect();
    assert_eq!(known.len(), listed.len(), "an operation has two rows");
    assert_eq!(operations.difference(&known).collect::<Vec<_>>(), [""; 0], "operations without a row");
    assert_eq!(known.difference(&operations).collect::<Vec<_>>(), [""; 0], "rows without an operation");

    let before = possessions(&system).await;
    let mut wrong = Vec::new();
    for list in lists(&document) {
        // Version types confine only under which of them an instance is registered, and statistics.
        if list == "version_types" {
            continue;
        }
        let token = confined(&system, &format!("of-{list}"), &[&list]).await;
        for (dimension, row) in rows {
            for operation in row {
                let (method, path) = operation.split_once(' ').unwrap();
                let target = foreign(path);
                if dimension == "anyone" || (target.starts_with("/events") && dimension == list) {
                    continue;
                }
                let takes_body = document["paths"][path][method.to_lowercase()]["requestBody"].is_object();
                let body = json!({});
                let body = Some(&body).filter(|_| takes_body);
                let answer = match try_ask(&system, &token, method, &target, body).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        wrong.push(format!("{operation} with a list of {list}: {error}"));
                        continue;
                    }
                };
                if dimension != list {
                    let code = if answer.status == 403 { answer.json()["code"].clone() } else { Value::Null };
                    if code != "confined_token" && code != "scope_missing" {
                        wrong.push(format!("{operation} with a list of {list}: {}", answer.status));
                    }
                } else if answer.status < 300 && answer.text().contains("six") {
                    wrong.push(format!("{operation}: {}", answer.text()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(possessions(&system).await, before, "a confined token has changed what is another tenant's");
    system.stop().await;
}

/// An effect of a machine, and the call of the API with the same effect.
struct Row {
    /// The member of the schema of definitions that has the effect.
    member: &'static str,
    /// What distinguishes rows of one member.
    case: &'static str,
    /// The definition of the machine, without its first lines. A label ends in `done` if the effect is allowed.
    definition: &'static str,
    /// The metadata of the label.
    metadata: Value,
    /// The call of the API.
    call: (&'static str, &'static str, Value),
}

/// Members of definitions that have no effect beyond the machine, or one that needs no permission: any client can call any address
/// that the operator allows.
const WITHOUT: &[&str] = &[
    "machine.timezone",
    "machine.hosts",
    "machine.index",
    "machine.feeds",
    "machine.webhooks",
    "machine.limits",
    "machine.states",
    "action.action",
    "action.webhook",
    "action.method",
    "action.body",
    "action.route",
    "action.timeout",
    "action.retry",
    "action.result",
    "action.on_error",
    "action.quiet",
    "action.deadline",
    "action.alert",
    "action.on_apply",
    "action.next",
    "route.host",
    "feed.name",
    "feed.url",
    "feed.timeout",
    "feed.ttl",
    "feed.on_error",
];

/// The effects of machines. Addresses of instances are `PORT` and `OTHER`, to be replaced.
fn effects() -> Vec<Row> {
    let share = json!({"shares": [{"version_type": "shop-7", "percent": 100}]});
    let row = |member, case, definition, metadata, call| Row { member, case, definition, metadata, call };
    let instance = |host: &str, version: &str| json!({"address": "OTHER", "hostnames": [host], "version_type_id": version});
    vec![
        row(
            "route.shares",
            "of another's host",
            "    hosts: [b.test]\n    states:\n      - {action: act, route: {host: b.test, shares: \
             [{version_type: shop-7, percent: 100}]}, next: done}\n      - {gate: done}\n",
            json!({}),
            ("PUT", "/hosts/b.test", share.clone()),
        ),
        row(
            "route.shares",
            "of another's host, from metadata",
            "    hosts: [HOSTS]\n    states:\n      - {action: act, route: {host: <metadata.host>, shares: \
             [{version_type: shop-7, percent: 100}]}, next: done}\n      - {gate: done}\n",
            json!({"host": "b.test"}),
            ("PUT", "/hosts/b.test", share),
        ),
        row(
            "route.register",
            "under another's version type",
            "    hosts: [x.a.test]\n    states:\n      - {action: act, route: {host: x.a.test, register: \
             {version_type: shop-7, instances: [PORT]}}, next: done}\n      - {gate: done}\n",
            json!({}),
            ("PUT", "/instances/api-1", instance("x.a.test", "shop-7")),
        ),
        row(
            "route.register",
            "under another's version type, from metadata",
            "    hosts: [x.a.test]\n    states:\n      - {action: act, route: {host: x.a.test, register: \
             {version_type: <metadata.version>, instances: [PORT]}}, next: done}\n      - {gate: done}\n",
            json!({"version": "shop-7"}),
            ("PUT", "/instances/api-2", instance("x.a.test", "shop-7")),
        ),
        row(
            "route.register",
            "for another's host, from metadata",
            "    hosts: [HOSTS]\n    states:\n      - {action: act, route: {host: <metadata.host>, register: \
             {version_type: a-1, instances: [PORT]}}, next: done}\n      - {gate: done}\n",
            json!({"host": "b.test"}),
            ("PUT", "/instances/api-3", instance("b.test", "a-1")),
        ),
        row(
            "route.retire",
            "another's instance, from metadata",
            "    hosts: [HOSTS]\n    states:\n      - {action: act, route: {host: <metadata.host>, retire: \
             {version_type: shop-7, drain: 1h}}, next: done}\n      - {gate: done}\n",
            json!({"host": "b.test"}),
            ("POST", "/instances/theirs/drain", json!({"deadline_seconds": 3600})),
        ),
        row(
            "action.publish",
            "an event without tenant",
            "    states:\n      - {action: act, publish: {topic: NEWS, url: \"https://a.test/1\"}, next: done}\n      \
             - {gate: done}\n",
            json!({}),
            ("POST", "/topics/NEWS", json!({"type": "update", "url": "https://a.test/1"})),
        ),
        row(
            "machine.inputs",
            "the events of every tenant",
            "    inputs: [{topic: orders}]\n    states: [{gate: done}]\n",
            json!({}),
            // Signalbox's own topics belong to no tenant.
            ("POST", "/subscription", json!({"topics": ["signalbox.labels"], "callback": "CALLBACK"})),
        ),
        row(
            "feed.stats",
            "of another's version type",
            "    feeds: [{name: numbers, stats: {version_type: shop-7, window: 1h}}]\n    states:\n      - {gate: asked, \
             exit_condition: feeds.numbers.requests >= 0, triggers: [{interval: 1s}], next: done}\n      - {gate: done}\n",
            json!({}),
            ("GET", "/stats/version_type/shop-7", Value::Null),
        ),
        row(
            "feed.stats",
            "of another's version type, from metadata",
            "    feeds: [{name: numbers, stats: {version_type: <metadata.version>, window: 1h}}]\n    states:\n      - \
             {gate: asked, exit_condition: feeds.numbers.requests >= 0, triggers: [{interval: 1s}], next: done}\n      - \
             {gate: done}\n",
            json!({"version": "shop-7"}),
            ("GET", "/stats/version_type/shop-7", Value::Null),
        ),
    ]
}

/// Whether the machine of this author has the effect.
async fn machine_has(system: &System, token: &str, row: &Row, definition: &str) -> Result<bool, String> {
    let yaml = format!("state_machines:\n  own:\n{definition}");
    let planned = ask(system, token, "POST", "/state-machines/own/plan", Some(&yaml.into())).await;
    if planned.status == 403 {
        return Ok(false);
    }
    let plan = json!({"plan": planned.json()["plan"], "map": {}});
    if planned.status != 200 {
        return Err(format!("not planned: {}", planned.text()));
    }
    let applied = ask(system, token, "POST", "/state-machines/own/apply", Some(&plan)).await;
    match applied.status {
        200 => {}
        403 => return Ok(false),
        _ => return Err(format!("not applied: {}", applied.text())),
    }
    let label = json!({"metadata": row.metadata});
    let created =
        ask(system, token, "POST", "/state-machines/own/labels/l?recreate=true", Some(&label)).await;
    if created.status != 201 {
        return Err(format!("no label: {}", created.text()));
    }
    let found = std::sync::Mutex::new(false);
    eventually("the machine to act, or to be refused", || async {
        let label = system.api("GET", "/state-machines/own/labels/l", None).await.json();
        let why = system.api("GET", "/state-machines/own/labels/l/why", None).await.json();
        if label["state"] == "done" {
            *found.lock().unwrap() = true;
            return Ok(());
        }
        let refused = label["status"] == "errored" || why["feeds"]["numbers"]["result"] == "failed";
        if refused { Ok(()) } else { Err(format!("{label} {why}")) }
    })
    .await;
    Ok(found.into_inner().unwrap())
}

/// Deletes the machine, and waits until its name can be used.
async fn clear(system: &System) {
    system.api("DELETE", "/state-machines/own?confirm=own", None).await;
    eventually("the machine to be deleted", || async {
        let tasks = system.api("GET", "/state-machines/own/tasks", None).await.json();
        let running = tasks["tasks"].as_array().unwrap().iter().any(|task| task["state"] == "running");
        if running { Err(tasks.to_string()) } else { Ok(()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_has_no_effect_that_the_api_refuses_its_author() {
    let (system, _app) = start("doors-machines").await;
    let document = system.api("GET", "/openapi.json", None).await.json();
    let rows = effects();
    let schema: Value =
        serde_json::from_str(include_str!("../../../crates/machine/src/definition/schema.json")).unwrap();
    let mut members = BTreeSet::new();
    for part in ["machine", "action", "route", "feed"] {
        let names = schema["$defs"][part]["properties"].as_object().unwrap().keys();
        members.extend(names.map(|name| format!("{part}.{name}")));
    }
    let listed: BTreeSet<String> =
        rows.iter().map(|row| row.member).chain(WITHOUT.iter().copied()).map(str::to_owned).collect();
    assert_eq!(members.difference(&listed).collect::<Vec<_>>(), [""; 0], "members without a row");
    assert_eq!(listed.difference(&members).collect::<Vec<_>>(), [""; 0], "rows without a member");

    let receiver = Receiver::start().await;
    let mut authors = vec![("none".to_owned(), confined(&system, "of-none", &[]).await)];
    let mut all = lists(&document);
    all.remove("machines");
    for list in &all {
        // With its own machine, the author may define it. Version types need no other list.
        let lists = if list == "version_types" { vec![&**list] } else { vec![&**list, "machines"] };
        authors.push((list.clone(), confined(&system, &format!("of-{list}"), &lists).await));
    }
    authors.push(("machines".to_owned(), confined(&system, "of-machines", &["machines"]).await));
    let mut wrong = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let mut open = BTreeSet::new();
        for (at, (list, token)) in authors.iter().enumerate() {
            let own = format!("127.0.0.1:{}", 20_000 + 100 * number + at);
            let other = format!("127.0.0.1:{}", 21_500 + 100 * number + at);
            let hosts = if list == "hosts" { "\"*.a.test\"" } else { "\"*\"" };
            // A topic belongs to the first client that publishes to it.
            let topic = format!("news_of_{list}");
            let definition =
                row.definition.replace("PORT", &own).replace("HOSTS", hosts).replace("NEWS", &topic);
            let by_machine = machine_has(&system, token, row, &definition).await;
            clear(&system).await;
            system.api("DELETE", "/instances/theirs/drain", None).await;
            let (method, target, body) = &row.call;
            let body: Value = serde_json::from_str(
                &body.to_string().replace("OTHER", &other).replace("CALLBACK", &receiver.url()),
            )
            .unwrap();
            let body = Some(&body).filter(|body| !body.is_null());
            let target = target.replace("NEWS", &topic);
            let answer = ask(&system, token, method, &target, body).await;
            let by_api = match answer.status {
                200..300 => true,
                403 | 404 => false,
                _ => panic!("{method} {target} with {list}: {}", answer.text()),
            };
            system.api("DELETE", "/instances/theirs/drain", None).await;
            if by_api {
                open.insert(list.as_str());
            }
            if by_machine != Ok(by_api) {
                wrong.push(format!(
                    "{} {}, confined to {list}: by the API {by_api}, by a machine {by_machine:?}",
                    row.member, row.case
                ));
            }
        }
        assert!(open.contains("none"), "{} {}: nothing can be done at all", row.member, row.case);
        assert!(open.len() < authors.len(), "{} {}: no list confines it", row.member, row.case);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    system.stop().await;
}
