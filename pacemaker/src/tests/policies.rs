//! Policies of hosts, promotions and health checks over HTTP.

use super::*;

#[tokio::test]
async fn a_policy_from_setting_to_removal() {
    let api = Api::start().await;
    let policy = json!({"balance": {"algorithm": "p2c"}, "methods": ["post", "get"], "hold_ms": 5000});
    let canonical = json!({"balance": {"algorithm": "p2c"}, "methods": ["GET", "POST"], "hold_ms": 5000});
    let set = api.put("/hosts/Shop.Example.", &policy).await;
    let view = set.json();
    assert_eq!(
        (set.status.as_u16(), &view["hostname"], &view["rules"]),
        (200, &json!("shop.example"), &canonical)
    );
    assert_eq!(
        (&view["changed"], set.headers["x-signalbox-serial"].to_str().unwrap()),
        (&json!(true), &*view["serial"].to_string())
    );
    let again = api.put("/hosts/shop.example", &canonical).await.json();
    assert_eq!((&again["changed"], &again["serial"]), (&json!(false), &view["serial"]));
    // No instance was there yet.
    let host = api.get("/hosts/shop.example").await.json();
    assert_eq!(
        (&host["rules"], &host["registered"], &host["addresses"]),
        (&canonical, &json!(true), &json!([]))
    );
    assert_eq!(host["policy"]["hold_ms"], 5000);
    assert_eq!(api.get("/hosts").await.json()["hosts"][0]["hostname"], "shop.example");
    let explained = api.get("/routes/explain?host=shop.example").await.json();
    assert_eq!((&explained["answer"], &explained["algorithm"]), (&json!("no_instance"), &json!("p2c")));
    let emptied = api.put("/hosts/shop.example", &json!({})).await.json();
    assert_eq!((&emptied["changed"], emptied.get("rules")), (&json!(true), None));
    assert_eq!(api.get("/hosts/shop.example").await.code(), "unknown_host");
    api.put("/hosts/shop.example", &policy).await;
    for _ in 0..2 {
        assert_eq!(api.delete("/hosts/shop.example/policy").await.status, 204);
    }
    assert_eq!(api.get("/hosts/shop.example").await.code(), "unknown_host");
}

#[tokio::test]
async fn a_mistake_in_a_policy_is_named() {
    let api = Api::start().await;
    for (policy, code, field) in [
        (json!({"balanse": {}}), "unknown_field", "balanse"),
        (json!({"retries": {"atempts": 2}}), "unknown_field", "atempts"),
        (json!({"sticky": {"ttl_seconds": 0}}), "invalid_policy", "sticky.ttl_seconds"),
        (
            json!({"headers": {"request": {"set": {"Transfer-Encoding": "x"}}}}),
            "invalid_policy",
            "headers.request",
        ),
        (json!({"shares": [{"version_type": "1"}]}), "missing_field", "percent"),
    ] {
        let reply = api.put("/hosts/a.example", &policy).await;
        assert_eq!((reply.status.as_u16(), reply.code()), (422, code.to_owned()), "{policy}");
        assert_eq!(reply.json()["field"], field, "{policy}");
    }
    for policy in [json!({"hold_ms": "5s"}), json!({"ejection": true}), json!({"https": "yes"}), json!([])] {
        assert_eq!(api.put("/hosts/a.example", &policy).await.code(), "invalid_body", "{policy}");
    }
    assert_eq!(api.put("/hosts/a..example", &json!({})).await.code(), "invalid_hostname");
    assert_eq!(api.put("/hosts/a.example?wait=1h", &json!({})).await.code(), "invalid_wait");
    assert_eq!(api.get("/hosts/a.example").await.code(), "unknown_host");
}

#[tokio::test]
async fn policies_are_for_those_who_may_change_routes_of_the_host() {
    let api = Api::start().await;
    let reader = api.token("reader", &["read"], None).await;
    let tenant = api.token("tenant", &["routes"], Some(&["*.b.example"])).await;
    let set = async |token: &str, host: &str| {
        let request = api.client.put(format!("{}/hosts/{host}", api.base)).bearer_auth(token);
        read(request.json(&json!({"hold_ms": 1}))).await
    };
    assert_eq!(set(&reader, "a.b.example").await.code(), "scope_missing");
    assert_eq!(set(&tenant, "a.example").await.code(), "host_not_allowed");
    assert_eq!(set(&tenant, "a.b.example").await.status, 200);
    let promote = api.client.post(format!("{}/hosts/a.example/promote", api.base)).bearer_auth(&tenant);
    assert_eq!(read(promote.json(&json!({"version_type_id": "1"}))).await.code(), "host_not_allowed");
}

#[tokio::test]
async fn a_version_is_promoted_and_a_missing_one_rejected() {
    let api = Api::start().await;
    let of = |port, version: &str| {
        let mut body = instance(port, &["a.example", "b.example"]);
        body["version_type_id"] = json!(version);
        body
    };
    api.put("/instances/old", &of(9001, "17")).await;
    let refused = api.post("/hosts/a.example/promote", &json!({"version_type_id": 18})).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (409, "no_instance_of_version".to_owned()));
    let mut partial = of(9002, "18");
    partial["hostnames"] = json!(["a.example"]);
    api.put("/instances/new", &partial).await;
    let refused = api.post("/hosts/a.example/promote", &json!({"version_type_id": "18"})).await;
    assert_eq!(
        (refused.code(), &refused.json()["hostnames"]),
        ("version_incomplete".to_owned(), &json!(["b.example"]))
    );
    api.put("/instances/new", &of(9002, "18")).await;
    let body = json!({"version_type_id": "18", "drain_seconds": 3600});
    let promoted = api.post("/hosts/a.example/promote", &body).await.json();
    assert_eq!(
        (&promoted["drained"], &promoted["resumed"], &promoted["changed"]),
        (&json!(["old"]), &json!([]), &json!(true))
    );
    let drained = api.get("/instances/old").await.json();
    assert_eq!(drained["state"], "draining");
    let again = api.post("/hosts/a.example/promote", &body).await.json();
    assert_eq!((&again["changed"], &again["serial"]), (&json!(false), &promoted["serial"]));
    // A draining instance keeps its deadline.
    assert_eq!(api.get("/instances/old").await.json()["drain_deadline"], drained["drain_deadline"]);
    for (body, code) in [
        (json!({"version_type_id": ""}), "invalid_label"),
        (json!({}), "missing_field"),
        (json!({"version_type_id": "1", "drain_seconds": 86_401}), "invalid_deadline"),
        (json!({"version_type_id": "1", "undo_seconds": 604_801}), "invalid_deadline"),
        (json!({"version": "1"}), "unknown_field"),
    ] {
        assert_eq!(api.post("/hosts/a.example/promote", &body).await.code(), code, "{body}");
    }
    let shown = api.get("/hosts/a.example").await.json();
    // Both served before.
    let before = json!(["17", "18"]);
    assert_eq!(shown["promotion"]["undo"]["version_types"], before);
    assert_eq!(shown["promotion"]["superseded"], json!(["17"]));
    let undo = json!({"version_type_id": "18", "at": shown["promotion"]["at"]});
    for changed in [true, false] {
        let undone = api.post("/hosts/a.example/promote/undo", &undo).await.json();
        assert_eq!((&undone["changed"], &undone["version_types"]), (&json!(changed), &before));
    }
    let refused = api.post("/hosts/a.example/promote/undo", &json!({"version_type_id": "19"})).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (409, "nothing_to_undo".to_owned()));
}

#[tokio::test]
async fn a_share_of_a_version_type_without_an_instance_is_rejected_unless_it_is_forced() {
    let api = Api::start().await;
    api.put("/instances/one", &instance(9001, &["a.example"])).await;
    let typo = json!({"shares": [{"version_type": "typo", "percent": 100}]});
    let refused = api.put("/hosts/a.example", &typo).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (409, "no_instance_of_version".to_owned()));
    assert_eq!(refused.json()["version_types"], json!(["typo"]));
    assert_eq!(api.put("/hosts/a.example?force=true", &typo).await.status, 200);
    assert_eq!(api.put("/hosts/a.example", &typo).await.status, 200, "a repetition");
}

#[tokio::test]
async fn a_node_is_drained_and_resumed() {
    let api = Api::start().await;
    let mut body = instance(9001, &["a.example"]);
    body["node_id"] = json!("n1");
    api.put("/instances/i", &body).await;
    let drained = api.post("/nodes/n1/drain", &json!({"deadline_seconds": 3600})).await.json();
    assert_eq!(drained["instances"], json!(["i"]));
    let explained = api.get("/routes/explain?host=a.example").await.json();
    assert_eq!(explained["instances"][0]["reason"], "draining");
    let resumed = api.delete("/nodes/n1/drain").await;
    assert_eq!((resumed.status.as_u16(), &resumed.json()["instances"]), (200, &json!(["i"])));
    assert_eq!(api.get("/instances/i").await.json()["state"], "active");
    let tenant = api.token("tenant", &["routes"], Some(&["a.example"])).await;
    let request = api.client.delete(format!("{}/nodes/n1/drain", api.base)).bearer_auth(tenant);
    assert_eq!(read(request).await.code(), "confined_token");
}

#[tokio::test]
async fn the_health_of_an_instance_is_seen_everywhere() {
    let api = Api::start().await;
    // At least one instance must be healthy, or the host fails open.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let health = json!({"tcp": true, "interval_seconds": 1, "unhealthy_after": 1, "healthy_after": 1});
    for (id, port) in [("well", port), ("ill", closed)] {
        let mut body = instance(port, &["a.example"]);
        body["health"] = health.clone();
        assert_eq!(api.put(&format!("/instances/{id}"), &body).await.status, 201);
    }
    eventually("the check fails", async || {
        let view = api.get("/instances/ill").await.json();
        if view["healthy"] == false { Ok(()) } else { Err(view.to_string()) }
    })
    .await;
    let view = api.get("/instances/ill").await.json();
    assert_eq!(view["unhealthy_because"], "it cannot be connected to (connection refused)");
    assert!(view["health_since"].is_string() && view["health"]["tcp"] == true, "{view}");
    assert_eq!(api.get("/instances/well").await.json()["healthy"], true);
    let explained = api.get("/routes/explain?host=a.example").await.json();
    let of = |id: &str| {
        explained["instances"].as_array().unwrap().iter().find(|one| one["id"] == id).unwrap().clone()
    };
    assert_eq!((&of("ill")["reason"], &of("ill")["usable"]), (&json!("unhealthy"), &json!(false)));
    assert_eq!((&of("well")["usable"], &explained["fail_open"]), (&json!(true), &json!(false)));
    let metrics = api.get("/metrics").await.text;
    assert!(metrics.contains(r#"signalbox_pacemaker_health_checks_total{outcome="failed"}"#), "{metrics}");
}

#[tokio::test]
async fn a_router_that_fell_silent_is_shown_and_excluded() {
    let api = Api::start().await;
    let stats = api.servers.stats();
    let now_ms = stats.now_ms().await.unwrap();
    let view = api.get("/routes/convergence").await.json();
    let (serial, epoch) = (view["serial"].to_string(), view["epoch"].as_str().unwrap().to_owned());
    assert_eq!((&view["converged"], &view["excluded"]), (&json!(false), &json!(0)));
    let report = async |node: &str, at_ms: u64, serial: &str| {
        let key = signalbox_store::keys::stats::router(node);
        let fields = ["serial", serial, "epoch", &epoch];
        stats.command("HSET").key(&key).arg(&fields).run().await.unwrap();
        let key = signalbox_store::keys::stats::routers();
        stats.command("ZADD").key(&key).arg(at_ms).arg(node).run().await.unwrap();
    };
    report("gone", now_ms - 30_000, "0").await;
    assert_eq!(api.get("/routes/convergence").await.json()["converged"], false);
    report("here", now_ms + 60_000, &serial).await;
    let view = api.get("/routes/convergence").await.json();
    assert_eq!((&view["converged"], &view["excluded"]), (&json!(true), &json!(1)));
    let states: Vec<_> =
        view["routers"].as_array().unwrap().iter().map(|one| (&one["node"], &one["state"])).collect();
    assert_eq!(states, [(&json!("gone"), &json!("excluded")), (&json!("here"), &json!("live"))]);
    eventually("it is reported", async || {
        let text = api.get("/metrics").await.text;
        if text.contains("signalbox_pacemaker_routers_silent 1") { Ok(()) } else { Err(text) }
    })
    .await;
}
