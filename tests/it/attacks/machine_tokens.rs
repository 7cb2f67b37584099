//! A token that is confined to one machine tries to reach another.

use serde_json::{Value, json};
use signalbox_tests::{http::Request, system::System};

const MACHINE: &str = "state_machines:\n  NAME:\n    states: [{gate: asked, exit_condition: metadata.go, triggers: \
    [{metadata: go}], next: done}, {gate: done}]\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_one_machine_reaches_no_other() {
    let system =
        System::with("attack-machine-token", |builder| builder.without_nginx().without_sidecar()).await;
    let call = async |token: &str, method: &str, target: &str, body: Value| {
        let request = Request::new(method, "localhost", target).token(token);
        let request = match body {
            Value::Null => request,
            Value::String(yaml) => request.header("Content-Type", "application/yaml").body(yaml),
            body => request.json(&body),
        };
        request.send(system.pacemaker).await.unwrap()
    };
    for machine in ["own", "other"] {
        let target = format!("/state-machines/{machine}");
        let yaml = MACHINE.replace("NAME", machine);
        let plan = call(&system.token, "POST", &format!("{target}/plan"), yaml.into()).await.json();
        let apply = json!({"plan": plan["plan"]});
        let applied = call(&system.token, "POST", &format!("{target}/apply"), apply).await;
        assert_eq!(applied.status, 200, "{plan} {}", applied.text());
        let label = call(&system.token, "POST", &format!("{target}/labels/l"), json!({"metadata": {}})).await;
        assert_eq!(label.status, 201, "{}", label.text());
    }
    let new = json!({"name": "teller", "scopes": ["facts", "machines", "read"], "machines": ["own"]});
    let created = call(&system.token, "POST", "/tokens", new).await;
    assert_eq!((created.status, &created.json()["machines"]), (201, &json!(["own"])), "{}", created.text());
    let token = created.json()["token"].as_str().unwrap().to_owned();

    let facts = || json!({"metadata": {"go": true}});
    let many = || json!({"labels": [{"name": "l", "metadata": {"go": true}}]});
    let attempts = [
        ("GET", "", Value::Null),
        ("POST", "/plan", MACHINE.replace("NAME", "own").into()),
        ("POST", "/apply", json!({"plan": "0"})),
        ("GET", "/versions", Value::Null),
        ("GET", "/versions/1", Value::Null),
        ("GET", "/labels", Value::Null),
        ("POST", "/labels", many()),
        ("PATCH", "/labels", many()),
        ("POST", "/retry", Value::Null),
        ("GET", "/labels/l", Value::Null),
        ("POST", "/labels/m", facts()),
        ("PATCH", "/labels/l", facts()),
        ("DELETE", "/labels/m", Value::Null),
        ("POST", "/labels/l/retry", Value::Null),
        ("GET", "/labels/l/history", Value::Null),
        ("GET", "/labels/l/why", Value::Null),
        ("GET", "/labels/l/route", Value::Null),
        ("POST", "/labels/l/simulate", json!({})),
        ("POST", "/labels/l/operations", json!({"operation": "suspend"})),
        ("POST", "/tasks", json!({"operation": "delete"})),
        ("GET", "/secrets", Value::Null),
        ("PUT", "/secrets/A", json!({"value": "x", "address": "https://a.example/"})),
        ("DELETE", "/secrets/A", Value::Null),
        ("GET", "/tasks", Value::Null),
        ("GET", "/tasks/1", Value::Null),
        ("DELETE", "/tasks/1", Value::Null),
        ("DELETE", "?confirm=other", Value::Null),
    ];
    for (method, path, body) in attempts {
        // An encoded name is the same name, and the answer does not reveal whether a machine exists.
        for machine in ["other", "%6Fther", "absent"] {
            let target = format!("/state-machines/{machine}{path}");
            let answer = call(&token, method, &target, body.clone()).await;
            let code = answer.json()["code"].clone();
            assert_eq!((answer.status, code), (403, json!("machine_not_allowed")), "{method} {target}");
        }
        let own = call(&token, method, &format!("/state-machines/own{path}"), body).await;
        assert_ne!(own.status, 403, "{method} {path}: {}", own.text());
    }
    let listed = call(&token, "GET", "/state-machines", Value::Null).await.json();
    let names: Vec<&str> = listed["state-machines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|machine| machine["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["own"]);
    for (page, status) in [("own", 200), ("other", 403), ("absent", 403)] {
        for page in [
            format!("machines?name={page}"),
            format!("label?name={page}&label=l"),
            format!("plan?name={page}"),
        ] {
            let answer = call(&token, "GET", &format!("/dashboard/{page}"), Value::Null).await;
            assert_eq!(answer.status, status, "{page}: {}", answer.text());
        }
    }
    let list = call(&token, "GET", "/dashboard/machines", Value::Null).await.text();
    assert!(list.contains("name=own") && !list.contains("name=other"), "{list}");
    for machines in [json!([]), json!(["a b"]), json!([""])] {
        let refused = call(
            &system.token,
            "POST",
            "/tokens",
            json!({"name": "t", "scopes": ["facts"], "machines": machines}),
        )
        .await;
        assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid_machines")));
    }
    system.stop().await;
}
