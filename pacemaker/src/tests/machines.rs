//! Machines over HTTP: every status that the calls have.

use super::*;

const YAML: &str = "
state_machines:
  m:
    states:
      - {gate: asked, exit_condition: metadata.go, triggers: [{metadata: go}], next: done}
      - {gate: done}
";

impl Api {
    async fn text(&self, path: &str, body: &'static str) -> Reply {
        read(self.request(Method::POST, path).header("content-type", "application/yaml").body(body)).await
    }

    async fn patch(&self, path: &str, body: &Value) -> Reply {
        read(self.request(Method::PATCH, path).json(body)).await
    }

    async fn defined() -> Self {
        let api = Self::start().await;
        // The bus may take a moment to know its fabric.
        let plan = api.text("/state-machines/m/plan", YAML).await;
        assert_eq!(plan.status, 200, "{plan:?}");
        let plan = plan.json();
        assert_eq!((&plan["version"], &plan["states"]["added"]), (&json!(0), &json!(["asked", "done"])));
        let applied = api.post("/state-machines/m/apply", &json!({"plan": plan["plan"]})).await;
        assert_eq!(
            (applied.status.as_u16(), applied.json()),
            (200, json!({"version": 1, "changed": true, "kept": []})),
            "{applied:?}"
        );
        api
    }
}

fn names(page: &Value) -> Vec<&str> {
    page["labels"].as_array().unwrap().iter().map(|label| label["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_operations_and_tasks_reject_unknown_members() {
    let api = Api::defined().await;
    api.post("/state-machines/m/labels/a", &json!({"metadata": {"plan": "pro"}})).await;
    let list = async |query: &str| api.get(&format!("/state-machines/m/labels?{query}")).await;
    for (query, code) in [
        ("state=nope", "unknown_state"),
        ("older_than=soon", "invalid_filter"),
        ("metadata=plan", "invalid_filter"),
        ("metadata=%7B%22a..b%22%3A1%7D", "invalid_filter"),
        ("sort=size", "invalid_sort"),
    ] {
        assert_eq!(list(query).await.code(), code, "{query}");
    }
    let found = list("metadata=%7B%22plan%22%3A%22pro%22%7D&sort=oldest").await.json();
    assert_eq!(names(&found), ["a"]);
    let operate = async |body: Value| api.post("/state-machines/m/labels/a/operations", &body).await;
    for (body, code) in [
        (json!({"operation": "explode"}), "invalid_operation"),
        (json!({"operation": "move"}), "invalid_operation"),
        (json!({"operation": "skip", "to": "done"}), "invalid_operation"),
        (json!({"operation": "set", "metadata": 1}), "invalid_operation"),
        (json!({"operation": "move", "to": "nowhere"}), "unknown_state"),
        (json!({"operation": "skip"}), "label_not_acting"),
        (json!({"operation": "retry"}), "label_not_errored"),
    ] {
        assert_eq!(operate(body.clone()).await.code(), code, "{body}");
    }
    assert_eq!(operate(json!({"operation": "suspend"})).await.status, 200);
    assert_eq!(api.get("/state-machines/m/labels/a").await.json()["suspended"], true);
    let moved = operate(json!({"operation": "move", "to": "done"})).await.json();
    assert_eq!((&moved["state"], &moved["metadata"]), (&json!("done"), &json!({"plan": "pro"})));
    let start = async |body: Value| api.post("/state-machines/m/tasks", &body).await;
    for (body, code) in [
        (json!({"operation": "evaluate", "filter": {"state": "nope"}}), "unknown_state"),
        (json!({"operation": "evaluate", "filter": {"status": "tired"}}), "invalid_filter"),
        (json!({"operation": "evaluate", "filter": {}, "rate": 0}), "invalid_rate"),
        (json!({"operation": "evaluate"}), "missing_field"),
    ] {
        assert_eq!(start(body.clone()).await.code(), code, "{body}");
    }
    let task = start(json!({"operation": "resume", "filter": {"suspended": true}})).await;
    assert_eq!((task.status.as_u16(), &task.json()["state"]), (202, &json!("running")));
    let id = task.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(api.get(&format!("/state-machines/m/tasks/{id}")).await.json()["operation"], "resume");
    assert_eq!(api.get("/state-machines/m/tasks/none").await.code(), "unknown_task");
    assert_eq!(api.delete("/state-machines/m").await.code(), "invalid_confirm");
    assert_eq!(api.delete("/state-machines/m?confirm=m").await.status, 202);
    assert_eq!(api.get("/state-machines/m").await.code(), "unknown_machine");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_about_labels_have_the_documented_statuses() {
    let api = Api::defined().await;
    let label = "/state-machines/m/labels/a%20b%2Fc";
    let created = api.post(label, &json!({"metadata": {"x": {"y": 1}}})).await;
    assert_eq!((created.status.as_u16(), &created.json()["state"]), (201, &json!("asked")));
    assert_eq!(api.post(label, &json!({"metadata": {}})).await.code(), "label_exists");
    let shown = api.get(label).await.json();
    assert_eq!((&shown["name"], &shown["metadata"]), (&json!("a b/c"), &json!({"x": {"y": 1}})));
    assert_eq!((&shown["state"], &shown["status"]), (&json!("asked"), &json!("waiting")));
    for (body, code) in [
        (json!({}), "invalid_metadata"),
        (json!({"metadata": 1}), "invalid_metadata"),
        (json!({"metadata": {}, "x": 1}), "invalid_metadata"),
    ] {
        let reply = api.patch(label, &body).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (422, code), "{body}");
    }
    let moved = api.patch(label, &json!({"metadata": {"x": {"z": null}, "go": true}})).await;
    assert_eq!((moved.status.as_u16(), &moved.json()["state"]), (200, &json!("done")));
    assert_eq!(api.get(label).await.json()["metadata"], json!({"x": {"y": 1, "z": null}, "go": true}));
    let removes = api.request(Method::PATCH, label).header("content-type", "application/merge-patch+json");
    assert_eq!(read(removes.body(r#"{"metadata":{"x":null}}"#)).await.status, 200);
    assert_eq!(api.get(label).await.json()["metadata"], json!({"go": true}));
    let history = api.get(&format!("{label}/history")).await.json();
    assert_eq!(history["history"][1]["trigger"], "metadata.go");
    assert!(history["history"][1]["event"].as_u64() > history["history"][0]["event"].as_u64());
    assert_eq!(names(&api.get("/state-machines/m/labels").await.json()), ["a b/c"]);
    assert_eq!(api.get("/state-machines/m/labels?state=asked").await.json()["labels"], json!([]));
    let ended = api.get("/state-machines/m/labels?status=ended&count=true").await.json();
    assert_eq!((names(&ended), &ended["total"]), (vec!["a b/c"], &json!(1)));
    assert_eq!(ended["labels"][0]["state"], "done");
    assert_eq!(api.delete(label).await.status, 204);
    assert_eq!(api.delete(label).await.status, 204);
    assert_eq!(api.delete("/state-machines/m/labels/never").await.status, 204);
    let gone = api.get(label).await;
    assert_eq!((gone.status.as_u16(), gone.code().as_str()), (410, "label_deleted"));
    assert_eq!(api.patch(label, &json!({"metadata": {}})).await.status, 410);
    let deleted = api.post(label, &json!({"metadata": {}})).await;
    assert_eq!((deleted.status.as_u16(), deleted.code().as_str()), (409, "label_deleted"));
    assert_eq!(api.post(&format!("{label}?recreate=true"), &json!({"metadata": {}})).await.status, 201);
    for (path, code) in [
        ("/state-machines/none", "unknown_machine"),
        ("/state-machines/none/labels/a", "unknown_machine"),
        ("/state-machines/m/labels/none", "unknown_label"),
        ("/state-machines/m/labels/none/why", "unknown_label"),
        ("/state-machines/m/versions/9", "unknown_version"),
    ] {
        let reply = api.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (404, code), "{path}");
    }
    assert_eq!(api.post("/state-machines/none/labels/a", &json!({"metadata": {}})).await.status, 404);
    assert_eq!(api.patch("/state-machines/m/labels/none", &json!({"metadata": {}})).await.status, 404);
    assert_eq!(
        api.post("/state-machines/m/labels/%0A", &json!({"metadata": {}})).await.code(),
        "invalid_label_name"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_planned_applied_and_explained() {
    let api = Api::defined().await;
    let bad = api.text("/state-machines/m/plan", "state_machines: {m: {}}").await;
    assert_eq!((bad.status.as_u16(), bad.code().as_str()), (422, "invalid_definition"));
    assert_eq!(api.post("/state-machines/m/apply", &json!({"plan": "none"})).await.code(), "unknown_plan");
    let many = json!({"labels": [{"name": "a", "metadata": {}}, {"name": ".", "metadata": {}}, {"name": "b", "metadata": {}}]});
    let results = api.post("/state-machines/m/labels", &many).await.json();
    let codes: Vec<&Value> =
        results["results"].as_array().unwrap().iter().map(|one| &one["result"]).collect();
    assert_eq!(codes, [201, 422, 201]);
    let page = api.get("/state-machines/m/labels?limit=1").await.json();
    assert_eq!((names(&page), &page["next"]), (vec!["a"], &json!("a")));
    let shown = api.get("/state-machines/m").await.json();
    assert_eq!((&shown["version"], &shown["labels"]["asked"]), (&json!(1), &json!(2)));
    let why = api.get("/state-machines/m/labels/a/why").await.json();
    assert_eq!((&why["result"], &why["state"]), (&json!(false), &json!("asked")));
    assert!(why["waits_for"].is_string(), "{why}");
    let simulated = api
        .post("/state-machines/m/labels/a/simulate", &json!({"for": "1d", "metadata": {"go": 1}}))
        .await
        .json();
    assert_eq!((&simulated["end"], &simulated["state"]), (&json!("ended"), &json!("done")), "{simulated}");
    assert_eq!(api.get("/state-machines/m/labels/a").await.json()["state"], "asked", "nothing changed");
    let results = api
        .patch("/state-machines/m/labels", &json!({"labels": [{"name": "a", "metadata": {"go": 1}}]}))
        .await;
    assert_eq!(results.json()["results"][0]["state"], "done");
    assert_eq!(api.post("/state-machines/m/labels/a/retry", &json!({})).await.code(), "label_not_errored");
    assert_eq!(api.post("/state-machines/m/retry", &json!({})).await.json(), json!({"retried": 0}));
    assert_eq!(api.get("/state-machines/m/versions").await.json()["versions"][0]["current"], true);
    let metrics = api.get("/metrics").await.text;
    assert!(metrics.contains(r#"signalbox_machines_labels{machine="m",state="asked"} 1"#), "{metrics}");
    let teller = api.token("teller", &["facts"], None).await;
    let plan = api.client.post(format!("{}/state-machines/m/plan", api.base)).bearer_auth(&teller).body(YAML);
    assert_eq!(read(plan).await.code(), "scope_missing");
}

/// An object of exactly this many bytes.
fn sized(bytes: usize) -> Value {
    json!({"x": "a".repeat(bytes - r#"{"x":""}"#.len())})
}

/// An object of exactly this many levels.
fn nested(levels: usize) -> Value {
    (1..levels).fold(json!({}), |inner, _| json!({"x": inner}))
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_beyond_its_limits_changes_nothing() {
    let api = Api::defined().await;
    for (what, good, bad) in
        [("bytes", sized(64 * 1024), sized(64 * 1024 + 1)), ("levels", nested(32), nested(33))]
    {
        let label = &format!("/state-machines/m/labels/{what}");
        let refused = api.post(label, &json!({"metadata": bad})).await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (422, "invalid_metadata"), "{what}");
        assert_eq!(api.get(label).await.status, 404, "{what}");
        let created = api.post(label, &json!({"metadata": good})).await;
        assert_eq!(created.status, 201, "{what}: {created:?}");
        // The limit applies to the merged metadata, not only to the update.
        let before = api.get(label).await.json();
        let more = if what == "bytes" { json!({"y": 1}) } else { nested(33) };
        let refused = api.patch(label, &json!({"metadata": more})).await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (422, "invalid_metadata"), "{what}");
        assert_eq!(api.get(label).await.json(), before, "{what}");
    }
    let label = "/state-machines/m/labels/none";
    for none in [json!([]), json!([{"a": 1}]), json!("x"), json!(1), json!(null)] {
        let refused = api.post(label, &json!({"metadata": none})).await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (422, "invalid_metadata"), "{none}");
        let refused =
            api.post("/state-machines/m/labels", &json!({"labels": [{"name": "a", "metadata": none}]})).await;
        assert_eq!(refused.json()["results"][0]["result"], 422, "{none}");
    }
    assert_eq!(api.get(label).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_bodies_and_keys_that_cannot_be_are_refused() {
    let api = Api::defined().await;
    let facts = json!({"metadata": {}});
    let long = "n".repeat(257);
    for name in [&*long, "%00", "%0A", "%7F", "%C2%85", &"%C3%A9".repeat(129)] {
        let refused = api.post(&format!("/state-machines/m/labels/{name}"), &facts).await;
        assert_eq!(
            (refused.status.as_u16(), refused.code().as_str()),
            (422, "invalid_label_name"),
            "{name}: {refused:?}"
        );
    }
    for name in [&long[1..], "%C3%A9%2F%20", "..."] {
        assert_eq!(api.post(&format!("/state-machines/m/labels/{name}"), &facts).await.status, 201, "{name}");
    }
    let label = "/state-machines/m/labels/a";
    for kind in ["text/plain", "application/jsonx", "application/x-www-form-urlencoded"] {
        for (method, path) in [
            (Method::POST, label),
            (Method::PATCH, label),
            (Method::POST, "/state-machines/m/labels"),
            (Method::PATCH, "/state-machines/m/labels"),
        ] {
            let request =
                api.request(method.clone(), path).header("content-type", kind).body(facts.to_string());
            let refused = read(request).await;
            let told = (refused.status.as_u16(), refused.code());
            assert_eq!(told, (415, "unsupported_media_type".to_owned()), "{method} {path} {kind}");
        }
    }
    let keyed = async |method: Method, key: &str, body: Value| {
        read(api.request(method, label).header("idempotency-key", key).json(&body)).await
    };
    let first = keyed(Method::POST, "k", json!({"metadata": {"x": 1}})).await;
    assert_eq!(first.status, 201);
    assert_eq!(keyed(Method::POST, "k", json!({"metadata": {"x": 1}})).await.status, 201);
    for (method, body) in
        [(Method::POST, json!({"metadata": {"x": 2}})), (Method::PATCH, json!({"metadata": {"x": 1}}))]
    {
        let refused = keyed(method.clone(), "k", body).await;
        let told = (refused.status.as_u16(), refused.code());
        assert_eq!(told, (422, "idempotency_conflict".to_owned()), "{method}");
    }
    let long = "k".repeat(256);
    for key in ["", "a b", &long] {
        let refused = keyed(Method::PATCH, key, json!({"metadata": {}})).await;
        assert_eq!(
            (refused.status.as_u16(), refused.code().as_str()),
            (422, "invalid_idempotency_key"),
            "{key:?}"
        );
    }
    let shown = api.get(label).await.json();
    assert_eq!(
        (&shown["metadata"], &shown["revision"]),
        (&json!({"x": 1}), &json!(1)),
        "nothing of it counted"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_labels_at_a_time_and_a_name_once() {
    let api = Api::defined().await;
    let items = |count: usize| {
        let items: Vec<Value> =
            (0..count).map(|n| json!({"name": format!("l{n}"), "metadata": {}})).collect();
        json!({"labels": items})
    };
    for refused in [
        api.post("/state-machines/m/labels", &items(1_001)).await,
        api.patch("/state-machines/m/labels", &items(1_001)).await,
    ] {
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (422, "too_many_items"));
    }
    let created = api.post("/state-machines/m/labels", &items(1_000)).await.json();
    let results = created["results"].as_array().unwrap();
    assert!(results.len() == 1_000 && results.iter().all(|one| one["result"] == 201), "{created}");
    let one =
        async || api.post("/state-machines/m/labels/same", &json!({"metadata": {}})).await.status.as_u16();
    let mut statuses = futures_util::future::join_all((0..20).map(|_| one())).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![201], vec![409; 19]].concat());
    assert_eq!(api.get("/state-machines/m/labels/same").await.json()["visit"], 1);
    // The same name twice in one call is allowed.
    let twice = json!({"labels": [{"name": "two", "metadata": {}}, {"name": "two", "metadata": {}}]});
    let results = api.post("/state-machines/m/labels", &twice).await.json();
    let mut codes: Vec<u64> =
        results["results"].as_array().unwrap().iter().map(|one| one["result"].as_u64().unwrap()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [201, 409]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_cannot_be_read_is_replaced_over_the_api() {
    let api = Api::defined().await;
    let (fabric, versions) = (api.servers.fabric(), "machine:m:sources");
    let stored: String = fabric.command("HGET").arg((versions, 1)).query().await.unwrap();
    let unreadable = stored.replace("state_machines", "later_machines");
    fabric.command("HSET").arg((versions, 1, unreadable)).run().await.unwrap();
    // The process has read the version before.
    let api = api.restart().await;
    let plan = api.text("/state-machines/m/plan", YAML).await;
    assert_eq!(plan.status, 200, "{plan:?}");
    let plan = plan.json();
    assert_eq!(plan["version"], 1);
    assert!(plan["warnings"].to_string().contains("cannot be read"), "{plan}");
    let applied = api.post("/state-machines/m/apply", &json!({"plan": plan["plan"]})).await;
    assert_eq!(applied.json(), json!({"version": 2, "changed": true, "kept": []}), "{applied:?}");
    let created = api.post("/state-machines/m/labels/a", &json!({"metadata": {}})).await;
    assert_eq!(created.status, 201, "{created:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_revisions_of_requests_about_missing_labels_are_observed() {
    let api = Api::defined().await;
    let label = "/state-machines/m/labels/a";
    let tokens = [api.token("one", &["facts"], None).await, api.token("two", &["facts"], None).await];
    let delete = async |token: &str, query: &str| {
        let request = api.client.delete(format!("{}{label}{query}", api.base)).bearer_auth(token);
        read(request.header("idempotency-key", "k")).await
    };
    let refused = delete(&tokens[0], "?revision=1").await;
    assert_eq!((refused.status.as_u16(), &*refused.code()), (409, "conflict"), "{refused:?}");
    assert_eq!(delete(&tokens[0], "").await.status, 204);
    assert_eq!(api.get(label).await.code(), "unknown_label");
    assert_eq!(api.post(label, &json!({"metadata": {}})).await.status, 201);
    assert_eq!(delete(&tokens[0], "").await.status, 204);
    assert_eq!(api.get(label).await.status, 200, "a repeat deletes nothing");
    // Also many labels in one request belong to their client.
    let items = json!({"labels": [{"name": "b", "metadata": {}, "idempotency_key": "k"}]});
    for (token, result) in [(&tokens[0], 201), (&tokens[1], 409), (&tokens[0], 201)] {
        let request = api.client.post(format!("{}/state-machines/m/labels", api.base)).bearer_auth(token);
        let reply = read(request.json(&items)).await;
        assert_eq!(reply.json()["results"][0]["result"], result, "{reply:?}");
    }
    assert_eq!(delete(&tokens[1], "").await.status, 204);
    assert_eq!(api.get(label).await.code(), "label_deleted");
}
