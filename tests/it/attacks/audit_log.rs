//! A client changes something without a trace, reads the audit log, or floods it.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{events::Stream, http::Request, receiver::Receiver, system::System, upstream::App};

use crate::bus_api::Bus;

async fn records(system: &System, query: &str) -> Vec<Value> {
    let answer = system.api("GET", &format!("/audit?{query}"), None).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["records"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_log_in_and_refusal_is_recorded_without_secrets() {
    let system = System::start("audit-all").await;
    let app = App::start("app").await;
    let weak = system.token("weak", &["read"]).await;
    let body = json!({"address": app.address.to_string(), "hostnames": ["app.test"], "version_type_id": "7"});
    let request = Request::new("PUT", &system.admin.to_string(), "/instances/i-1?wait=20s");
    let put = request.token(&system.token).header("X-Request-ID", "request-of-the-test").json(&body);
    let answer = put.send(system.admin).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    let refused = Request::new("DELETE", &system.admin.to_string(), "/instances/i-1").token(&weak);
    assert_eq!(refused.send(system.admin).await.unwrap().status, 403);
    let form = Request::new("POST", &system.admin.to_string(), "/dashboard/login")
        .header("Content-Type", "application/x-www-form-urlencoded");
    assert_eq!(form.clone().body("token=nonsense").send(system.admin).await.unwrap().status, 401);
    assert_eq!(form.body(format!("token={weak}")).send(system.admin).await.unwrap().status, 303);
    assert_eq!(system.api("DELETE", "/tokens/weak", None).await.status, 204);
    let all = records(&system, "").await;
    let is = |record: &&Value, kind: &str, who: Value, target: &str| {
        record["kind"] == kind && record["who"] == who && record["target"] == target
    };
    let find = |kind: &str, who: Value, target: &str| {
        let found = all.iter().find(|record| is(record, kind, who.clone(), target));
        found.unwrap_or_else(|| panic!("{kind} {who} {target}: {all:?}"))
    };
    let change = find("change", json!("root"), "/instances/i-1");
    assert_eq!((&change["address"], &change["route"]), (&json!("127.0.0.1"), &json!("/instances/{id}")));
    assert!(change["request_id"].is_string(), "{change}");
    assert_eq!(change["after"]["hostnames"], json!(["app.test"]), "{change}");
    let refusal = find("refused", json!("weak"), "/instances/i-1");
    assert_eq!((&refusal["status"], &refusal["code"]), (&json!(403), &json!("scope_missing")));
    find("login", json!("weak"), "/dashboard/login");
    find("refused", Value::Null, "/dashboard/login");
    let deleted = find("change", json!("root"), "/tokens/weak");
    assert_eq!(deleted["before"]["scopes"], json!(["read"]), "{deleted}");
    assert_eq!(find("change", json!("root"), "/tokens")["after"]["token"], "(hidden)");
    let text = Value::from(all.clone()).to_string();
    assert!(!text.contains(&weak) && !text.contains(&system.token), "{text}");
    // The same in the pacemaker's own log, and only what is asked for.
    let log = system.log_text(&System::PACEMAKER);
    assert!(log.lines().any(|line| line.contains("audit") && line.contains("/instances/i-1")), "{log}");
    let logins = records(&system, "kind=login&who=weak").await;
    assert_eq!(logins.len(), 1, "{logins:?}");
    assert_eq!(records(&system, "limit=2").await.len(), 2);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_closed_to_all_but_its_readers() {
    let bus = Bus::start("audit-closed").await;
    let system = &bus.system;
    let scopes = ["routes", "publish", "subscribe", "queues", "facts", "machines", "read"];
    let curious = system.token("curious", &scopes).await;
    let auditor = system.token("auditor", &["audit", "subscribe", "read"]).await;
    for (token, status) in [(&curious, 403), (&auditor, 200)] {
        assert_eq!(bus.call(token, "GET", "/audit", None).await.status, status);
    }
    let (closed, open) = (Receiver::start().await, Receiver::start().await);
    let wanted = |receiver: &Receiver| json!({"topics": ["signalbox.audit"], "callback": receiver.url(), "timeout": 0});
    let refused = bus.call(&curious, "POST", "/subscription", Some(&wanted(&closed))).await;
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("scope_missing")));
    assert_eq!(bus.call(&auditor, "POST", "/subscription", Some(&wanted(&open))).await.status, 204);
    let queue = json!({"pattern": ".*"});
    assert_eq!(bus.call(&curious, "PUT", "/queues/all", Some(&queue)).await.status, 201);
    let mut stream = Stream::open(system.pacemaker, &curious, "/events", None).await;
    let mut allowed = Stream::open(system.pacemaker, &auditor, "/events?topic=signalbox.audit", None).await;
    // A change, and then an event that all of them get.
    system.token("another", &["read"]).await;
    let shop = bus.client("shop").await;
    bus.publish(&shop, "orders", 1).await;
    let first = stream.take(1).await[0].json();
    assert_eq!(first["topic"], "orders", "the stream of a reader without the scope: {first}");
    let record = allowed.take(1).await[0].json();
    assert_eq!(record["topic"], "signalbox.audit", "{record}");
    // Neither an ID of a record, nor the object of all records, leads to it.
    let page = format!("/dashboard/event?name={}", record["id"]);
    let pages = [&*page, "/objects/signalbox:audit", "/dashboard/objects?name=signalbox%3Aaudit"];
    for target in pages {
        let closed = bus.call(&curious, "GET", target, None).await;
        assert_eq!(closed.status, 404, "{target}: {}", closed.text());
        let open = bus.call(&auditor, "GET", target, None).await;
        assert_eq!(open.status, 200, "{target}: {}", open.text());
    }
    let pushed = open.until_events(1).await;
    assert_eq!(
        (&pushed[0]["topic"], &pushed[0]["data"]["kind"]),
        (&json!("signalbox.audit"), &json!("change"))
    );
    let pulled = bus.call(&curious, "POST", "/queues/all/pull", Some(&json!({"max": 100}))).await;
    assert_eq!(pulled.status, 200, "{}", pulled.text());
    assert!(!pulled.text().contains("signalbox.audit"), "{}", pulled.text());
    assert_eq!(closed.deliveries().len(), 0);
    // No route changes or deletes a record.
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        assert_eq!(bus.root(method, "/audit", None).await.status, 405, "{method}");
    }
    let event = json!({"type": "noop", "url": "https://a.example/1"});
    let forged = bus.root("POST", "/topics/signalbox.audit", Some(&event)).await;
    assert!(forged.status >= 400, "{}", forged.text());
    bus.system.stop().await;
}

/// The answer waits for a router that does not follow, and in the meantime the client leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_recorded_although_its_client_leaves_before_the_answer() {
    let system = System::start("audit-left").await;
    system.pause(System::NGINX);
    let body = json!({"address": "127.0.0.1:9", "hostnames": ["left.test"], "version_type_id": "7"});
    let put = Request::new("PUT", "localhost", "/instances/left?wait=2s").token(&system.token).json(&body);
    let to = system.pacemaker;
    let answer = tokio::spawn(async move { put.send(to).await });
    let ask = async |target: &str| system.api_at(system.pacemaker, "GET", target, None).await;
    eventually("the change to be made", || async {
        let answer = ask("/instances/left").await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    answer.abort();
    eventually("the change to be recorded", || async {
        let found = ask("/audit?target=/instances/left&kind=change").await.json();
        if found["records"][0]["method"] == "PUT" { Ok(()) } else { Err(found) }
    })
    .await;
    system.resume(System::NGINX);
    system.stop().await;
}

/// The answer is an error, and says that the change is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_wait_ends_early_is_recorded_with_what_was_requested() {
    let system = System::start("audit-waited").await;
    system.pause(System::NGINX);
    let ask = async |method: &str, target: &str, body: Option<Value>| {
        let request = Request::new(method, "localhost", target).token(&system.token);
        let request = body.iter().fold(request, |request, body| request.json(body));
        request.send(system.pacemaker).await.unwrap()
    };
    let hash = "$2y$05$abcdefghijklmnopqrstuuQ1jD7CkYHwCVlBqMWSPGN6Ymdw6tB8a";
    let instance = json!({
        "address": "127.0.0.1:46666", "hostnames": ["rogue.test"], "version_type_id": "7", "node_id": "n1",
    });
    let policy = json!({"hold_ms": 46, "access": {"basic": {"users": {"ada": hash}}}});
    let requests = [("/instances/rogue", instance), ("/hosts/rogue.test", policy)];
    for (target, body) in &requests {
        let answer = ask("PUT", &format!("{target}?wait=0"), Some(body.clone())).await;
        assert_eq!((answer.status, &answer.json()["changed"]), (504, &json!(true)), "{}", answer.text());
        let found = ask("GET", &format!("/audit?target={target}"), None).await;
        let record = &found.json()["records"][0];
        assert_eq!(record["status"], 504, "{record}");
        let requested = record["after"]["requested"].to_string();
        assert!(requested.contains("46") && !requested.contains(hash), "{record}");
    }
    // The values of a promotion, which also notes instances.
    let promote = json!({"version_type_id": "7"});
    let answer = ask("POST", "/hosts/rogue.test/promote?wait=0", Some(promote)).await;
    assert_eq!((answer.status, &answer.json()["changed"]), (504, &json!(true)), "{}", answer.text());
    let found = ask("GET", "/audit?target=/hosts/rogue.test/promote", None).await;
    let after = &found.json()["records"][0]["after"];
    assert_eq!(after["requested"]["version_type_id"], "7", "{}", found.text());
    // Each instance of a node, with its deadline.
    let answer = ask("POST", "/nodes/n1/drain?wait=0", Some(json!({"deadline_seconds": 460}))).await;
    assert_eq!((answer.status, &answer.json()["changed"]), (504, &json!(true)), "{}", answer.text());
    let found = ask("GET", "/audit?target=/nodes/n1/drain", None).await.json();
    let drained = &found["records"][0]["after"]["instances"][0];
    assert_eq!((&drained["id"], &drained["state"]), (&json!("rogue"), &json!("draining")), "{found}");
    assert!(drained["drain_deadline"].is_string(), "{found}");
    // An item of many that fails, and will be applied.
    system.kill(System::PRIMARY).await;
    let item = json!({"id": "late", "address": "127.0.0.1:46667", "hostnames": ["late.test"], "version_type_id": "7"});
    let answer = ask("PUT", "/instances", Some(json!([item]))).await;
    assert_eq!(answer.json()["results"][0]["error"]["recorded"], true, "{}", answer.text());
    let found = ask("GET", "/audit?target=/instances", None).await;
    assert!(found.text().contains("46667"), "{}", found.text());
    system.resume(System::NGINX);
    system.start_part(System::PRIMARY).await;
    // Without a record, it is not acknowledged either.
    system.cli::<()>(System::FABRIC, "RENAME audit kept").await;
    system.cli::<()>(System::FABRIC, "SET audit closed").await;
    let answer = ask("DELETE", "/instances/rogue?wait=0", None).await;
    assert_eq!(answer.json()["code"], "audit_unavailable", "{}", answer.text());
    system.cli::<()>(System::FABRIC, "DEL audit").await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_cannot_be_recorded_is_not_acknowledged() {
    let system = System::start("audit-lost").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "7").await;
    // The change can be made, but the log cannot be written: its key has another type.
    system.cli::<()>(System::FABRIC, "RENAME audit kept").await;
    system.cli::<()>(System::FABRIC, "SET audit closed").await;
    let answer = system.api("DELETE", "/instances/i-1", None).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (503, Some("audit_unavailable")),
        "acknowledged without a record: {}",
        answer.text()
    );
    system.cli::<()>(System::FABRIC, "RENAME kept audit").await;
    eventually("the change to be repeated", || async {
        let answer = system.api("DELETE", "/instances/i-1", None).await;
        if answer.status < 300 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    let found = records(&system, "target=/instances/i-1&kind=change").await;
    assert!(
        found.iter().any(|record| record["method"] == "DELETE" && record["status"].as_u64() < Some(300)),
        "{found:?}"
    );
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_follows_the_audit_log() {
    let system = System::start("audit-follow").await;
    let url = format!("http://{}", system.admin);
    let program = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("signalbox");
    let mut command = tokio::process::Command::new(program);
    command.args(["audit", "--follow", "--json", "--kind", "change"]).current_dir("/").env_clear();
    command.env("SIGNALBOX_URL", &url).env("SIGNALBOX_TOKEN", &system.token).kill_on_drop(true);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    system.token("first", &["read"]).await;
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(out));
    system.token("second", &["read"]).await;
    let mut names = Vec::new();
    while names.len() < 2 {
        let line = tokio::time::timeout(signalbox_testkit::PATIENCE, lines.next_line()).await;
        let line = line.expect("a record").unwrap().expect("the command runs");
        let record: Value = serde_json::from_str(&line).unwrap();
        names.push(record["after"]["name"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(names, ["first", "second"], "each once, in order");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_is_recorded_with_what_was_there_before() {
    let bus = Bus::start("audit-before").await;
    let system = &bus.system;
    let app = App::start("app").await;
    let callback = "https://93.184.216.34/hooks/secret-of-the-callback";
    let address = app.address.to_string();
    let instance =
        |version: &str| json!({"address": address, "hostnames": ["app.test"], "version_type_id": version});
    let queue = |pattern: &str| json!({"pattern": pattern});
    let backend = |prefix: &str| json!({"prefix": prefix, "callback": callback});
    let subscription = |topic: &str| json!({"topics": [topic], "callback": callback});
    let policy = |methods: &str| json!({"methods": [methods]});
    for (target, body) in [
        ("/instances/i-1", [instance("7"), instance("8")]),
        ("/hosts/app.test", [policy("GET"), policy("PUT")]),
        ("/queues/mail", [queue("a:.*"), queue("b:.*")]),
        ("/backends/search", [backend("one:"), backend("two:")]),
        ("/subscription", [subscription("one"), subscription("two")]),
    ] {
        for body in body {
            let answer = system.api("PUT", target, Some(body)).await;
            assert!((200..300).contains(&answer.status), "{target}: {}", answer.text());
        }
        let removed = if target == "/hosts/app.test" { "/hosts/app.test/policy" } else { target };
        let answer = system.api("DELETE", removed, None).await;
        assert!((200..300).contains(&answer.status), "{removed}: {}", answer.text());
    }
    // Many in one request: what each replaces.
    for version in ["7", "8"] {
        let mut items = [instance(version), instance("9")];
        items[0]["id"] = json!("i-1");
        items[1]["id"] = json!("i-2");
        items[1]["address"] = json!("127.0.0.1:9");
        let answer = system.api("PUT", "/instances", Some(json!(items))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let all = records(system, "kind=change&limit=200").await;
    let before = |method: &str, target: &str| {
        let of = all.iter().filter(|record| record["method"] == method && record["target"] == target);
        // Newest first.
        of.map(|record| record["before"].clone()).collect::<Vec<_>>()
    };
    for (target, member, old, new) in [
        ("/instances/i-1", "/version_type_id", json!("7"), json!("8")),
        ("/hosts/app.test", "/rules/methods", json!(["GET"]), json!(["PUT"])),
        ("/queues/mail", "/pattern", json!("a:.*"), json!("b:.*")),
        ("/backends/search", "/prefix", json!("one:"), json!("two:")),
        ("/subscription", "/topics", json!(["one"]), json!(["two"])),
    ] {
        let puts = before("PUT", target);
        assert_eq!(puts.len(), 2, "{target}: {all:?}");
        assert_eq!((puts[0].pointer(member), &puts[1]), (Some(&old), &Value::Null), "{target}");
        let removed = if target == "/hosts/app.test" { "/hosts/app.test/policy" } else { target };
        assert_eq!(before("DELETE", removed)[0].pointer(member), Some(&new), "{removed}");
    }
    let many = before("PUT", "/instances");
    assert_eq!((many.len(), &many[1]), (2, &Value::Null), "{all:?}");
    let replaced: Vec<_> = many[0]["instances"].as_array().unwrap().iter().collect();
    assert_eq!(replaced.len(), 1, "the other one did not change: {replaced:?}");
    assert_eq!((&replaced[0]["id"], &replaced[0]["version_type_id"]), (&json!("i-1"), &json!("7")));
    assert!(!Value::from(all).to_string().contains("secret-of-the-callback"));
    bus.system.stop().await;
}

/// The IDs of the instances before or after the changes of a request, from all of its records.
async fn instances(system: &System, target: &str, side: &str) -> Vec<String> {
    let all = records(system, "kind=change&limit=200").await;
    let mut parts: Vec<&Value> = all.iter().filter(|record| record["target"] == target).collect();
    parts.sort_by_key(|record| record["part"].as_u64());
    let instances = parts.iter().filter_map(|record| record[side]["instances"].as_array()).flatten();
    instances.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_many_instances_is_recorded_completely() {
    let system = System::start("audit-many").await;
    let instance = |number: usize, version: &str| {
        json!({"id": format!("many-{number:03}"), "address": format!("127.0.0.2:{}", 20_000 + number),
            "hostnames": ["many.test"], "version_type_id": version, "node_id": "n1"})
    };
    let make = async |method: &str, target: &str, body: Option<Value>| {
        let answer = system.api(method, target, body).await;
        assert!((200..300).contains(&answer.status), "{method} {target}: {}", answer.text());
    };
    let items: Vec<Value> = (0..120).map(|number| instance(number, "7")).collect();
    let ids: Vec<String> = (0..120).map(|number| format!("many-{number:03}")).collect();
    make("PUT", "/instances", Some(json!(items))).await;
    assert_eq!(instances(&system, "/instances", "after").await, ids);
    for method in ["POST", "DELETE"] {
        make(method, "/nodes/n1/drain", None).await;
    }
    let mut drained_and_resumed = instances(&system, "/nodes/n1/drain", "before").await;
    drained_and_resumed.sort_unstable();
    let twice: Vec<String> = ids.iter().flat_map(|id| [id.clone(), id.clone()]).collect();
    assert_eq!(drained_and_resumed, twice);
    // The first one changes to another version, and all requests to it.
    make("PUT", "/instances", Some(json!([instance(0, "8")]))).await;
    make("PUT", "/hosts/many.test", Some(json!({"methods": ["GET"]}))).await;
    make("POST", "/hosts/many.test/promote", Some(json!({"version_type_id": "8"}))).await;
    let current = "/hosts/many.test/promote";
    assert_eq!(instances(&system, current, "before").await, ids);
    let all = records(&system, "kind=change&limit=200").await;
    let first = |target: &str| {
        let found = all.iter().find(|one| one["target"] == target && one["part"].as_u64().unwrap_or(1) == 1);
        found.unwrap_or_else(|| panic!("{target}: {all:?}"))
    };
    assert_eq!(first(current)["before"]["rules"], json!({"methods": ["GET"]}));
    let before = &first(current)["before"]["instances"];
    assert_eq!(before[1], json!({"id": "many-001", "version_type_id": "7", "state": "active"}));
    make("DELETE", "/hosts/many.test", None).await;
    let removed = records(&system, "kind=change&limit=200").await;
    let removed =
        removed.iter().filter(|one| one["target"] == "/hosts/many.test" && one["method"] == "DELETE");
    let removed: Vec<&Value> = removed.collect();
    let count: usize =
        removed.iter().filter_map(|one| Some(one["before"]["instances"].as_array()?.len())).sum();
    assert_eq!(count, 120, "{removed:?}");
    assert!(removed.iter().any(|one| one["before"]["rules"]["methods"] == json!(["GET"])), "{removed:?}");
    // Nothing was changed, and the answer is long.
    let long: Vec<Value> =
        (0..120).map(|number| json!({"id": format!("{number}"), "address": "?".repeat(200)})).collect();
    make("PUT", "/instances", Some(json!(long))).await;
    let newest = &records(&system, "kind=change&limit=1").await[0];
    assert_eq!(newest["after"], json!({"items": 120, "changed": 0}), "{newest}");

    // What a confined token is refused is recorded as a refusal, whether the rest of the request is accepted or not.
    let tenant = json!({"name": "tenant", "scopes": ["routes"], "hosts": ["own.test"]});
    let tenant =
        system.api("POST", "/tokens", Some(tenant)).await.json()["token"].as_str().unwrap().to_owned();
    let mut own = instance(200, "9");
    own["hostnames"] = json!(["own.test"]);
    for items in [json!([own, instance(1, "7"), instance(2, "7")]), json!([instance(3, "7")])] {
        let request =
            Request::new("PUT", &system.admin.to_string(), "/instances").token(&tenant).json(&items);
        assert_eq!(request.send(system.admin).await.unwrap().status, 200);
    }
    let refused = records(&system, "kind=refused&who=tenant").await;
    let ids: Vec<Value> = refused
        .iter()
        .map(|one| {
            one["after"]["refused"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect()
        })
        .collect();
    assert_eq!(ids, [json!(["many-003"]), json!(["many-001", "many-002"])]);
    assert_eq!((&refused[0]["code"], &refused[0]["status"]), (&json!("host_not_allowed"), &json!(403)));
    let changed = records(&system, "kind=change&who=tenant").await;
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert_eq!(changed[0]["after"]["instances"][0]["id"], "many-200");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_machine_changes_is_recorded_with_its_label() {
    let system = System::start("audit-machine").await;
    let (old, new) = (App::start("old").await, App::start("new").await);
    system.register("old-1", &old, "m1.test", "1").await;
    let yaml = "state_machines:\n  canary:\n    hosts: [m1.test]\n    states:\n      - {action: act, route: {host: m1.test, \
        shares: [{version_type: \"1\", percent: 0}, {version_type: <metadata.version>, percent: 100}], register: \
        {version_type: <metadata.version>, instances: [ADDRESS]}, retire: {version_type: \"1\", drain: 1h}}, next: done}\n      \
        - {gate: done}\n";
    let yaml = yaml.replace("ADDRESS", &format!("\"{}\"", new.address));
    let wanted = json!({"name": "team", "scopes": ["machines", "routes"], "machines": ["canary"], "hosts": ["m1.test"],
        "version_types": ["2"]});
    let team = system.api("POST", "/tokens", Some(wanted)).await.json()["token"].as_str().unwrap().to_owned();
    let ask = async |target: &str, request: Request| {
        let answer = request.token(&team).send(system.admin).await.unwrap();
        assert!(answer.status < 300, "{target}: {}", answer.text());
        answer.json()
    };
    let post = |target: &str| Request::new("POST", &system.admin.to_string(), target);
    let plan = "/state-machines/canary/plan";
    let planned = ask(plan, post(plan).header("Content-Type", "application/yaml").body(yaml)).await;
    let apply = "/state-machines/canary/apply";
    ask(apply, post(apply).json(&json!({"plan": planned["plan"]}))).await;
    for (label, version) in [("bad", "shop-7"), ("l 1", "2")] {
        let target = format!("/state-machines/canary/labels/{}", label.replace(' ', "%20"));
        ask(
            &target,
            post(&target).json(&json!({"metadata": {"version": version, "card": "another-of-a-label"}})),
        )
        .await;
        eventually("the machine to act", || async {
            let now = system.api("GET", &target, None).await.json();
            if now["state"] == "done" || now["status"] == "errored" { Ok(()) } else { Err(now.to_string()) }
        })
        .await;
    }
    let found = records(&system, "who=machine:canary").await;
    let find = |target: &str| {
        let one = found.iter().find(|record| record["target"] == target && record["label"] == "l 1");
        one.unwrap_or_else(|| panic!("{target}: {found:?}"))
    };
    let shares = find("/hosts/m1.test");
    assert_eq!((&shares["kind"], &shares["method"]), (&json!("change"), &json!("PUT")), "{shares}");
    assert_eq!(
        shares["after"]["rules"]["shares"][1],
        json!({"version_type": "2", "percent": 100}),
        "{shares}"
    );
    assert_eq!((&shares["before"], &shares["address"]), (&Value::Null, &Value::Null), "{shares}");
    let id = found
        .iter()
        .filter_map(|record| record["target"].as_str())
        .find(|target| target.starts_with("/instances/machine:"));
    let registered = find(id.unwrap());
    assert_eq!(registered["after"]["address"], new.address.to_string(), "{registered}");
    let drained = find("/instances/old-1/drain");
    assert_eq!(
        (&drained["before"]["state"], &drained["after"]["state"]),
        (&json!("active"), &json!("draining"))
    );
    let refused = found.iter().find(|record| record["label"] == "bad").unwrap();
    assert_eq!(
        (&refused["kind"], &refused["code"], &refused["status"]),
        (&json!("refused"), &json!("version_type_not_allowed"), &json!(403)),
        "{refused}"
    );
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_recorded_with_both_values_and_without_metadata() {
    let bus = Bus::start("audit-values").await;
    let system = &bus.system;
    let receiver = Receiver::start().await;
    let wanted =
        |topic: &str| json!({"topics": [topic], "callback": format!("{}/hooks/k-e-y", receiver.url())});
    for topic in ["orders", "payments"] {
        let answer = system.api("POST", "/subscription", Some(wanted(topic))).await;
        assert_eq!(answer.status, 204, "{}", answer.text());
    }
    let subscribed = &records(system, "target=/subscription").await[0];
    assert_eq!(
        (&subscribed["before"]["topics"], &subscribed["after"]["topics"]),
        (&json!(["orders"]), &json!(["payments"]))
    );
    let secret = json!({"value": "not-for-everyone", "address": "https://a.test/"});
    let target = "/state-machines/own/secrets/KEY";
    assert_eq!(system.api("PUT", target, Some(secret)).await.status, 200);
    assert_eq!(system.api("DELETE", target, None).await.status, 204);
    let secrets = records(system, &format!("target={target}")).await;
    assert_eq!(
        (&secrets[1]["before"], &secrets[1]["after"]["address"]),
        (&Value::Null, &json!("https://a.test/"))
    );
    assert_eq!(
        (&secrets[0]["before"]["address"], &secrets[0]["after"]),
        (&json!("https://a.test/"), &Value::Null)
    );
    // Operations of operators are changes; the metadata of labels is data.
    let yaml = "state_machines:\n  own:\n    states: [{gate: asked, exit_condition: metadata.go, triggers: [{metadata: go}], \
        next: done}, {gate: done}]\n";
    system.apply("own", yaml).await;
    let label = "/state-machines/own/labels/l";
    assert_eq!(
        system.api("POST", label, Some(json!({"metadata": {"card": "another-of-a-label"}}))).await.status,
        201
    );
    let set = json!({"operation": "set", "metadata": {"note": "secret-of-a-label"}});
    assert_eq!(system.api("POST", &format!("{label}/operations"), Some(set.clone())).await.status, 200);
    let filter = json!({"operation": "suspend", "filter": {"metadata": {"card": "another-of-a-label"}}});
    assert_eq!(system.api("POST", "/state-machines/own/tasks", Some(filter)).await.status, 202);
    assert_eq!(system.api("POST", &format!("{label}/operations"), Some(set)).await.status, 200);
    let all = Value::from(records(system, "limit=1000").await).to_string();
    assert!(all.contains("/operations") && all.contains("/tasks"), "{all}");
    let log = system.log_text(&System::PACEMAKER);
    for secret in ["another-of-a-label", "secret-of-a-label", "not-for-everyone", "k-e-y"] {
        assert!(!all.contains(secret), "{secret}: {all}");
        assert!(!log.contains(secret), "{secret} is in the log of the pacemaker");
    }
    bus.system.stop().await;
}
