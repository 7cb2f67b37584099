//! A client that reports metadata, or an author of definitions, tries to get more from a machine than its definition and the
//! author's own token allow.

use std::path::Path;

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Request, Response},
    receiver::{self, Receiver},
    system::System,
};
use toml::Table;

/// A pacemaker with its Redis servers, and these settings.
async fn start(name: &str, settings: &[(&str, Table)]) -> System {
    System::with(name, |builder| {
        let builder = builder.without_nginx().without_sidecar();
        settings.iter().fold(builder, |builder, (key, table)| builder.pacemaker(key, table.clone()))
    })
    .await
}

async fn token(system: &System, name: &str, wanted: Value) -> String {
    let mut token = wanted;
    token["name"] = name.into();
    let created = call(system, &system.token, "POST", "/tokens", &token).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()["token"].as_str().unwrap().to_owned()
}

async fn call(system: &System, token: &str, method: &str, target: &str, body: &Value) -> Response {
    let request = Request::new(method, "localhost", target).token(token);
    let request = if body.is_null() { request } else { request.json(body) };
    request.send(system.pacemaker).await.unwrap()
}

async fn plan(system: &System, token: &str, machine: &str, yaml: &str) -> Response {
    let request = Request::new("POST", "localhost", &format!("/state-machines/{machine}/plan")).token(token);
    request.header("Content-Type", "application/yaml").body(yaml).send(system.pacemaker).await.unwrap()
}

/// Plans with the root token and applies with `token`.
async fn apply(system: &System, token: &str, machine: &str, yaml: &str) -> Response {
    let planned = plan(system, &system.token, machine, yaml).await;
    assert_eq!(planned.status, 200, "{}", planned.text());
    let body = json!({"plan": planned.json()["plan"]});
    call(system, token, "POST", &format!("/state-machines/{machine}/apply"), &body).await
}

/// Waits until the label's action has failed, or has moved on; the label.
async fn acted(system: &System, machine: &str, label: &str) -> Value {
    let target = format!("/state-machines/{machine}/labels/{label}");
    let found = std::sync::Mutex::new(Value::Null);
    eventually(&format!("the action of {label} to be attempted"), || async {
        let now = call(system, &system.token, "GET", &target, &Value::Null).await.json();
        let attempted = !now["error"].is_null() || now["status"] == "waiting" || now["status"] == "ended";
        if attempted {
            *found.lock().unwrap() = now;
            return Ok(());
        }
        Err(now.to_string())
    })
    .await;
    found.into_inner().unwrap()
}

/// Why the action of a label was rejected.
fn rejection(label: &Value) -> &str {
    label["error"].as_str().unwrap_or_else(|| panic!("the action was not rejected: {label}"))
}

async fn instance(system: &System, id: &str) -> Value {
    call(system, &system.token, "GET", &format!("/instances/{id}"), &Value::Null).await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_moves_no_host_and_no_instance_that_the_definition_does_not_name() {
    let system = start("attack-facts", &[]).await;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/machines/canary.yaml");
    let canary = std::fs::read_to_string(path).unwrap();
    assert_eq!(apply(&system, &system.token, "canary", &canary).await.status, 200);
    for (id, host, address) in
        [("bank-1", "bank.test", "127.0.0.1:7001"), ("shop-1", "shop.localhost", "127.0.0.1:7002")]
    {
        let body = json!({"address": address, "hostnames": [host], "version_type_id": "17"});
        let put = call(&system, &system.token, "PUT", &format!("/instances/{id}"), &body).await;
        assert_eq!(put.status, 201, "{}", put.text());
    }
    let before = [instance(&system, "bank-1").await, instance(&system, "shop-1").await];
    let bank = call(&system, &system.token, "GET", "/hosts/bank.test", &Value::Null).await.json();
    assert_eq!(bank["hostname"], "bank.test", "{bank}");
    let facts = token(&system, "teller", json!({"scopes": ["facts"]})).await;
    let create = async |label: &str, host: &str, instances: Value| {
        let metadata = json!({"host": host, "stable": "17", "version": "18", "instances": instances,
            "calm_seconds": 300});
        let target = format!("/state-machines/canary/labels/{label}");
        let created = call(&system, &facts, "POST", &target, &json!({"metadata": metadata})).await;
        assert_eq!(created.status, 201, "{}", created.text());
        acted(&system, "canary", label).await
    };

    // A host that the definition does not name.
    let label = create("host", "bank.test", json!(["127.0.0.1:6661"])).await;
    assert!(rejection(&label).contains("does not allow"), "{label}");
    let after = call(&system, &system.token, "GET", "/hosts/bank.test", &Value::Null).await.json();
    assert_eq!(after, bank, "the action changed a policy");
    // Host names of an instance.
    let names = json!([{"id": "bank-1", "address": "127.0.0.1:6662", "hostnames": ["*", "bank.test"]}]);
    let label = create("names", "shop.localhost", names).await;
    assert!(rejection(&label).contains("does not allow"), "{label}");
    // The ID of an instance of another owner.
    let label = create("id", "shop.localhost", json!([{"id": "bank-1", "address": "127.0.0.1:6663"}])).await;
    assert_eq!(label["error"], Value::Null, "{label}");
    assert_eq!(instance(&system, "machine:canary:id:bank-1").await["address"], "127.0.0.1:6663");
    // The address of an instance of another owner, although the definition covers its host.
    let label = create("address", "shop.localhost", json!(["127.0.0.1:7002"])).await;
    assert!(rejection(&label).contains("address"), "{label}");
    // Two labels with the same version do not overwrite each other's instances.
    create("first", "shop.localhost", json!(["127.0.0.1:6664"])).await;
    create("second", "shop.localhost", json!(["127.0.0.1:6665"])).await;
    assert_eq!(instance(&system, "machine:canary:first:18-1").await["address"], "127.0.0.1:6664");
    assert_eq!(instance(&system, "machine:canary:second:18-1").await["address"], "127.0.0.1:6665");
    // Signalbox itself.
    let own = format!("127.0.0.1:{}", system.pacemaker.port());
    let label = create("own", "shop.localhost", json!([own])).await;
    assert!(rejection(&label).contains("Signalbox"), "{label}");

    assert_eq!([instance(&system, "bank-1").await, instance(&system, "shop-1").await], before);
    system.stop().await;
}

fn route(hosts: &str, host: &str) -> String {
    format!(
        "state_machines:\n  m:\n    {hosts}\n    states:\n      - {{action: act, route: {{host: {host}, \
         retire: {{version_type: \"1\"}}}}, next: done}}\n      - {{gate: done}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_has_no_more_permissions_than_its_author() {
    let system = start("attack-authors", &[]).await;
    let confined = json!({"scopes": ["machines", "routes"], "hosts": ["*.a.test"], "machines": ["m"]});
    let confined = token(&system, "confined", confined).await;
    for (hosts, host, code) in [
        ("hosts: [\"*.b.test\"]", "<metadata.host>", "host_not_allowed"),
        ("hosts: [x.a.test, \"*\"]", "<metadata.host>", "host_not_allowed"),
        ("hosts: [a.test]", "<metadata.host>", "host_not_allowed"),
        ("timezone: UTC", "b.test", "host_not_allowed"),
        ("hosts: [x.a.test]", "b.test", "host_not_allowed"),
    ] {
        let answer = apply(&system, &confined, "m", &route(hosts, host)).await;
        assert_eq!((answer.status, &answer.json()["code"]), (403, &json!(code)), "{hosts} {host}");
    }
    let own = route("hosts: [\"*.x.a.test\"]", "y.a.test");
    let applied = apply(&system, &confined, "m", &own).await;
    assert_eq!(applied.status, 200, "{}", applied.text());
    // Without a list, metadata would decide.
    let refused = plan(&system, &system.token, "m", &route("timezone: UTC", "<metadata.host>")).await;
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid_definition")));

    let states = "states: [{gate: a}]";
    let author = token(&system, "author", json!({"scopes": ["machines"]})).await;
    for (scope, part) in [
        ("subscribe", "inputs: [{topic: orders}]"),
        ("read", "feeds: [{name: five, stats: {version_type: \"1\", window: 5m}}]"),
    ] {
        let yaml = format!("state_machines:\n  n:\n    {part}\n    {states}\n");
        let refused = apply(&system, &author, "n", &yaml).await;
        assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("scope_missing")), "{part}");
        assert!(refused.text().contains(scope), "{}", refused.text());
        let able = token(&system, &format!("able-{scope}"), json!({"scopes": ["machines", scope]})).await;
        assert_eq!(apply(&system, &able, "n", &yaml).await.status, 200, "{part}");
    }
    system.stop().await;
}

/// A machine whose action does this to the routes of `m1.test`.
fn changing(route: &str) -> String {
    format!(
        "state_machines:\n  m:\n    hosts: [m1.test]\n    states:\n      - {{action: act, route: {{host: m1.test, {route}}}, \
         next: done}}\n      - {{gate: done}}\n"
    )
}

async fn create(system: &System, token: &str, label: &str, metadata: Value) -> Value {
    let target = format!("/state-machines/m/labels/{label}");
    let created = call(system, token, "POST", &target, &json!({"metadata": metadata})).await;
    assert_eq!(created.status, 201, "{}", created.text());
    acted(system, "m", label).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_that_is_refused_in_part_has_changed_nothing() {
    let system = start("attack-retire", &[]).await;
    for (id, hosts, address) in [
        ("both-9", json!(["m1.test", "m2.test"]), "127.0.0.1:7001"),
        ("one-9", json!(["m1.test"]), "127.0.0.1:7002"),
    ] {
        let body = json!({"address": address, "hostnames": hosts, "version_type_id": "9"});
        let put = call(&system, &system.token, "PUT", &format!("/instances/{id}"), &body).await;
        assert_eq!(put.status, 201, "{}", put.text());
    }
    let yaml = changing(
        "shares: [{version_type: \"9\", percent: 0}, {version_type: \"10\", percent: 100}], \
         register: {version_type: \"10\", instances: [\"127.0.0.1:7003\"]}, retire: {version_type: \"9\"}",
    );
    assert_eq!(apply(&system, &system.token, "m", &yaml).await.status, 200);
    let before = [instance(&system, "both-9").await, instance(&system, "one-9").await];
    let label = create(&system, &system.token, "l", json!({})).await;
    assert!(rejection(&label).contains("all hosts of the instance"), "{label}");
    let host = call(&system, &system.token, "GET", "/hosts/m1.test", &Value::Null).await.json();
    assert!(host["rules"].is_null() || host["rules"]["shares"].is_null(), "the shares were changed: {host}");
    let registered = call(&system, &system.token, "GET", "/instances/machine:m:l:10-1", &Value::Null).await;
    assert_eq!(registered.status, 404, "an instance was registered: {}", registered.text());
    assert_eq!([instance(&system, "both-9").await, instance(&system, "one-9").await], before);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_keeps_access_and_paths_that_lead_to_hosts_of_others() {
    let system = start("attack-canary-policy", &[]).await;
    let policy = json!({
        "access": {"forward": {"service": "auth.test"}},
        "paths": [{"path": "/api", "service": "api.test"}],
        "shares": [{"version_type": "1", "percent": 100}],
    });
    let put = call(&system, &system.token, "PUT", "/hosts/m1.test?force=true", &policy).await;
    assert_eq!(put.status, 200, "{}", put.text());
    let team = token(
        &system,
        "team",
        json!({"scopes": ["machines", "routes"], "machines": ["m"], "hosts": ["m1.test"]}),
    )
    .await;
    let yaml = changing("shares: [{version_type: \"1\", percent: 90}, {version_type: \"2\", percent: 10}]");
    let applied = apply(&system, &team, "m", &yaml).await;
    assert_eq!(applied.status, 200, "{}", applied.text());
    let label = create(&system, &system.token, "l", json!({})).await;
    assert_eq!((&label["state"], &label["error"]), (&json!("done"), &Value::Null), "{label}");
    let rules =
        call(&system, &system.token, "GET", "/hosts/m1.test", &Value::Null).await.json()["rules"].clone();
    assert_eq!(rules["shares"][1], json!({"version_type": "2", "percent": 10}), "{rules}");
    assert_eq!((&rules["access"], &rules["paths"]), (&policy["access"], &policy["paths"]), "{rules}");
    // The author still cannot lead requests there.
    let refused =
        call(&system, &team, "PUT", "/hosts/m1.test/paths", &json!({"paths": policy["paths"]})).await;
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("host_not_allowed")));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_of_a_machine_are_counted_for_its_author() {
    let limits = Table::from_iter([("token_instances".to_owned(), 2.into())]);
    let system = start("attack-machine-limit", &[("limits", limits)]).await;
    let wanted = json!({"scopes": ["machines", "routes", "read"], "hosts": ["m1.test"], "machines": ["m"]});
    let team = token(&system, "team", wanted).await;
    let body = json!({"address": "127.0.0.1:7001", "hostnames": ["m1.test"], "version_type_id": "1"});
    assert_eq!(call(&system, &team, "PUT", "/instances/own", &body).await.status, 201);
    let yaml = changing("register: {version_type: \"1\", instances: <metadata.instances>}");
    assert_eq!(apply(&system, &team, "m", &yaml).await.status, 200);
    let label =
        create(&system, &system.token, "l", json!({"instances": ["127.0.0.1:7002", "127.0.0.1:7003"]})).await;
    assert!(rejection(&label).contains("limit"), "the limit of the token is not reached: {label}");
    let listed = call(&system, &team, "GET", "/instances", &Value::Null).await.json();
    assert_eq!(listed["instances"].as_array().unwrap().len(), 2, "{listed}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_author_of_the_same_definition_changes_what_the_machine_may_do() {
    let system = start("attack-author", &[]).await;
    let wanted = json!({"scopes": ["machines", "routes"], "hosts": ["m1.test"], "machines": ["m"], "version_types": ["a-*"]});
    let team = token(&system, "team", wanted).await;
    let yaml = changing("register: {version_type: <metadata.version>, instances: [\"127.0.0.1:7002\"]}");
    let by = async || {
        call(&system, &system.token, "GET", "/state-machines/m", &Value::Null).await.json()["by"].clone()
    };
    assert_eq!(apply(&system, &team, "m", &yaml).await.json()["version"], 1);
    assert_eq!(by().await, "team");
    let label = create(&system, &system.token, "refused", json!({"version": "shop-7"})).await;
    assert!(rejection(&label).contains("version type"), "{label}");
    // A repeat makes no new version. A new author does, and acts with its own permissions.
    assert_eq!(apply(&system, &team, "m", &yaml).await.json()["changed"], false);
    assert_eq!(apply(&system, &system.token, "m", &yaml).await.json()["version"], 2);
    assert_eq!(by().await, "root");
    let label = create(&system, &system.token, "allowed", json!({"version": "shop-7"})).await;
    assert_eq!(label["error"], Value::Null, "{label}");
    system.stop().await;
}

fn webhook(prefix: &str, to: &str) -> String {
    format!(
        "state_machines:\n  m:\n    webhooks: [{{match: \"{prefix}\", headers: {{X-Secret: \"${{HOME}}\"}}}}]\n    \
         states:\n      - {{action: act, webhook: \"{to}\", next: done}}\n      - {{gate: done}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_sent_only_to_the_addresses_that_it_is_bound_to() {
    let [own, other] = [Receiver::start().await, Receiver::start().await];
    let (own_url, other_url) = (format!("http://{}/", own.address), format!("http://{}/", other.address));
    // With nginx, there is a key to encrypt with.
    let system =
        System::with("attack-secrets", |builder| builder.pacemaker("bus", receiver::allowed())).await;
    let value = "not-for-everyone";
    let secret = json!({"value": value, "address": own_url});
    let set = call(&system, &system.token, "PUT", "/state-machines/m/secrets/HOME", &secret).await;
    assert_eq!(set.status, 200, "{}", set.text());
    let listed = call(&system, &system.token, "GET", "/state-machines/m/secrets", &Value::Null).await;
    assert_eq!(listed.json()["secrets"][0]["address"], own_url.as_str());
    let audit = call(&system, &system.token, "GET", "/audit", &Value::Null).await;
    assert!(audit.text().contains("secrets/HOME"), "{}", audit.text());
    for shown in [&set, &listed, &audit] {
        assert!(!shown.text().contains(value), "{}", shown.text());
    }
    // The secret belongs to one machine.
    let elsewhere = webhook(&own_url, &own_url).replace("  m:", "  n:");
    let refused = plan(&system, &system.token, "n", &elsewhere).await;
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid_definition")));
    let refused = plan(&system, &system.token, "m", &webhook(&other_url, &other_url)).await;
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid_definition")));
    let prefix = format!("http://{}", own.address.ip());
    let refused = plan(&system, &system.token, "m", &webhook(&prefix, &other_url)).await;
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid_definition")));

    let applied = apply(&system, &system.token, "m", &webhook(&own_url, &format!("{own_url}<label>"))).await;
    assert_eq!(applied.status, 200, "{}", applied.text());
    let label = json!({"metadata": {}});
    assert_eq!(call(&system, &system.token, "POST", "/state-machines/m/labels/l", &label).await.status, 201);
    acted(&system, "m", "l").await;
    let deliveries = own.deliveries();
    assert_eq!(deliveries[0].header("X-Secret"), Some(value), "{deliveries:?}");
    // Another address needs the value again.
    let without = json!({"address": other_url});
    let refused = call(&system, &system.token, "PUT", "/state-machines/m/secrets/HOME", &without).await;
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("missing_field")));
    assert!(other.deliveries().is_empty());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_and_feeds_use_http_only_where_the_operator_allows_it() {
    let receiver = Receiver::start().await;
    let mut bus = receiver::allowed();
    bus.remove("allow_http");
    let system = start("attack-http", &[("bus", bus)]).await;
    let to = format!("http://{}/", receiver.address);
    let yaml = format!(
        "state_machines:\n  m:\n    states:\n      - {{action: act, webhook: \"{to}\", next: done}}\n      - {{gate: done}}\n"
    );
    assert_eq!(apply(&system, &system.token, "m", &yaml).await.status, 200);
    let label = json!({"metadata": {}});
    assert_eq!(call(&system, &system.token, "POST", "/state-machines/m/labels/l", &label).await.status, 201);
    let acted = acted(&system, "m", "l").await;
    assert!(rejection(&acted).contains("not https"), "{acted}");
    assert!(receiver.deliveries().is_empty());
    system.stop().await;
}
