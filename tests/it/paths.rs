//! Rules for paths, through the API, the command, and the edge.

use serde_json::{Value, json};
use signalbox_tests::{http::Request, load::Load, system::System, upstream::App};

use super::command::type_in;

async fn set(system: &System, host: &str, paths: Value) -> Value {
    let target = format!("/hosts/{host}/paths?wait=20s");
    let answer = system.api("PUT", &target, Some(json!({"paths": paths}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn body(system: &System, path: &str) -> String {
    system.get("shop.test", path).await.text()
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_lead_to_the_instances_of_other_hosts() {
    let system = System::start("paths").await;
    let (shop, orders, legacy) =
        (App::start("shop").await, App::start("orders").await, App::start("legacy").await);
    system.register("shop", &shop, "shop.test", "1").await;
    system.register("orders", &orders, "orders.internal", "2").await;
    system.register("legacy", &legacy, "legacy.internal", "3").await;
    let policy = json!({"headers": {"response": {"set": {"X-Shop": "yes"}}}});
    assert_eq!(system.api("PUT", "/hosts/shop.test", Some(policy.clone())).await.status, 200);
    let rules = json!([
        {"path": "/api", "service": "orders.internal"},
        {"path": "/api/old", "service": "legacy.internal", "strip": true},
    ]);
    let changed = set(&system, "shop.test", rules.clone()).await;
    assert_eq!((&changed["changed"], &changed["rules"]["paths"]), (&json!(true), &rules));
    assert_eq!(changed["rules"]["headers"], policy["headers"], "the rest of the policy stays");
    assert_eq!(set(&system, "shop.test", rules.clone()).await["changed"], false);

    for (path, app) in [
        ("/", "shop"),
        ("/apix", "shop"),
        ("/api", "orders"),
        ("/api/x", "orders"),
        ("/api/old", "legacy"),
        ("/api/old/x", "legacy"),
        ("/x/../api/x", "orders"),
    ] {
        assert_eq!(body(&system, path).await, app, "{path}");
    }
    let echo = body(&system, "/api/old/echo").await;
    assert!(echo.starts_with("GET /echo HTTP/1.1\r\n"), "{echo}");
    assert!(echo.to_lowercase().contains("x-forwarded-prefix: /api/old\r\n"), "{echo}");
    assert_eq!(system.get("shop.test", "/api/x").await.header("X-Shop"), Some("yes"));
    // Each service has its own statistics.
    let lines = system.log_lines_when(9).await;
    let key = |uri: &str| lines.iter().find(|line| line["uri"] == uri).unwrap()["key"].clone();
    assert_eq!((key("/"), key("/api"), key("/api/old/echo")), (json!("1"), json!("2"), json!("3")));

    let explain = async |path: &str| {
        let target = format!("/routes/explain?host=shop.test&path={path}");
        system.api("GET", &target, None).await.json()
    };
    let old = explain("/api/old/x").await;
    assert_eq!(
        old["path"],
        json!({"rule": "/api/old", "exact": false, "service": "legacy.internal", "matched": "legacy.internal", "sent": "/x"})
    );
    assert_eq!((&old["matched"], &old["answer"]), (&json!("shop.test"), &json!("proxied")));
    assert_eq!(old["instances"][0]["id"], "legacy");
    let own = explain("/x").await;
    assert_eq!(
        (&own["path"], &own["instances"][0]["id"]),
        (&json!({"exact": false, "sent": "/x"}), &json!("shop"))
    );
    let bad = system.api("GET", "/routes/explain?host=shop.test&path=/..", None).await;
    assert_eq!((bad.status, &bad.json()["code"]), (422, &json!("invalid_target")));

    assert_eq!(system.api("DELETE", "/hosts/shop.test/paths?wait=20s", None).await.status, 204);
    assert_eq!(body(&system, "/api/x").await, "shop");
    let rest = system.api("GET", "/hosts/shop.test", None).await.json();
    assert_eq!(rest["rules"], policy);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_cannot_match_changes_nothing() {
    let system = System::start("paths-refused").await;
    let good = json!([{"path": "/api", "service": "orders.internal"}]);
    let serial = set(&system, "shop.test", good.clone()).await["serial"].clone();
    let service = "orders.internal";
    for (paths, field) in [
        (json!([]), "paths"),
        (json!([{"path": "/api/", "service": service}]), "paths.path"),
        (json!([{"path": "/a/../b", "service": service}]), "paths.path"),
        (json!([{"path": "/a", "service": service}, {"path": "/a", "service": "b.test"}]), "paths.path"),
        (json!([{"path": "/a", "service": "shop.test"}]), "service"),
        (json!([{"path": "/a", "service": "*.test"}]), "paths.service"),
    ] {
        let refused = system.api("PUT", "/hosts/shop.test/paths", Some(json!({"paths": paths}))).await;
        let problem = refused.json();
        assert_eq!(
            (refused.status, &problem["code"], &problem["field"]),
            (422, &json!("invalid_policy"), &json!(field)),
            "{paths}"
        );
    }
    let host = system.api("GET", "/hosts/shop.test", None).await.json();
    assert_eq!(host["rules"]["paths"], good);
    assert_eq!(set(&system, "shop.test", good).await["serial"], serial, "nothing was changed");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_paths_under_load_loses_no_request() {
    let system = System::start("paths-load").await;
    let (blue, green) = (App::start("blue").await, App::start("green").await);
    system.register("blue", &blue, "blue.internal", "1").await;
    system.register("green", &green, "green.internal", "2").await;
    let lead = async |service: &str| {
        set(&system, "shop.test", json!([{"path": "/api", "service": service}])).await;
    };
    lead("blue.internal").await;
    let load = Load::start(system.edge, 4, |_| Request::get("shop.test", "/api/x"));
    for service in ["green.internal", "blue.internal", "green.internal"] {
        load.pass(20).await;
        lead(service).await;
        // Acknowledged by every worker: the next request is served there.
        let expected = service.split('.').next().unwrap();
        for _ in 0..8 {
            assert_eq!(body(&system, "/api/y").await, expected);
        }
    }
    let account = load.stop().await;
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_sets_lists_and_removes_rules() {
    let system = System::start("paths-command").await;
    let app = App::start("orders").await;
    system.register("orders", &app, "orders.internal", "2").await;
    let set = [
        "routes",
        "paths",
        "shop.test",
        "--prefix",
        "/api=orders.internal",
        "--strip",
        "/old=orders.internal",
    ];
    let set: Vec<&str> = set.into_iter().chain(["--wait", "20s"]).collect();
    let said = type_in(&system, &set).await;
    assert!(said.out.contains("/old") && said.out.contains("removed"), "{} {}", said.out, said.wrong);
    assert_eq!(body(&system, "/api/x").await, "orders");
    let said = type_in(&system, &["routes", "paths", "shop.test"]).await;
    assert!(said.out.contains("/api") && said.out.contains("orders.internal"), "{}", said.out);
    let said = type_in(&system, &["routes", "explain", "shop.test", "--path", "/old/x"]).await;
    assert!(
        said.out.contains("receives the path /x: the rule /old leads it to orders.internal"),
        "{}",
        said.out
    );
    let said =
        type_in(&system, &["routes", "paths", "shop.test", "--prefix", "/a%20b=orders.internal"]).await;
    assert!(said.code != Some(0) && said.wrong.contains("would never match"), "{}", said.wrong);
    let said = type_in(&system, &["routes", "paths", "shop.test", "--clear", "--wait", "20s"]).await;
    assert_eq!(said.code, Some(0), "{}", said.wrong);
    assert_eq!(system.get("shop.test", "/api/x").await.status, 404);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_host_holds_its_requests_and_loses_none() {
    let system = System::start("pause").await;
    let app = App::start("app").await;
    system.register("app", &app, "shop.test", "1").await;
    let load = Load::start(system.edge, 4, |_| Request::get("shop.test", "/"));
    load.pass(20).await;
    for _ in 0..3 {
        let said = type_in(&system, &["routes", "pause", "shop.test", "--for", "30s", "--wait", "20s"]).await;
        assert!(said.out.contains("requests for shop.test wait"), "{} {}", said.out, said.wrong);
        let edge = system.edge;
        let waiting =
            tokio::spawn(async move { Request::get("shop.test", "/").send(edge).await.unwrap().text() });
        let explained = system.api("GET", "/routes/explain?host=shop.test", None).await.json();
        assert_eq!(explained["checks"], json!(["pause"]));
        let said = type_in(&system, &["routes", "resume", "shop.test", "--wait", "20s"]).await;
        assert_eq!(said.code, Some(0), "{}", said.wrong);
        assert_eq!(waiting.await.unwrap(), "app");
        load.pass(20).await;
    }
    let account = load.stop().await;
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    let bad = system.api("PUT", "/hosts/shop.test/pause", Some(json!({"wait_ms": 60_001}))).await;
    assert_eq!((bad.status, &bad.json()["field"]), (422, &json!("pause.wait_ms")));
    let full = system.api("PUT", "/hosts/shop.test/pause?wait=20s", Some(json!({"most": 0}))).await;
    let pause = &full.json()["rules"]["pause"];
    assert_eq!((&pause["most"], &pause["by"]), (&json!(0), &json!("root")));
    assert_eq!(system.get("shop.test", "/").await.reason(), "paused");
    assert_eq!(system.api("DELETE", "/hosts/shop.test/pause?wait=20s", None).await.status, 204);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn access_and_redirects_are_set_checked_and_kept_secret() {
    const HASH: &str =
        "$6$ab$2lDVylRMp48hlYZZFOCx/xnhJEsGPynJ17rt2um9Gb8wX6ygI4uDxg3Bg43pp/Hv397hwWfT8mciHws9eE4sR/";
    let system = System::start("host-access").await;
    let (app, auth) = (App::start("app").await, App::start("auth").await);
    system.register("app", &app, "shop.test", "1").await;
    system.register("auth", &auth, "auth.internal", "2").await;
    let put =
        async |policy: &Value| system.api("PUT", "/hosts/shop.test?wait=20s", Some(policy.clone())).await;
    let policy = |hash: &str, body: u64| {
        json!({"body_bytes": body, "access": {"allow": ["127.0.0.1"], "basic": {"users": {"ann": hash}}},
            "paths": [{"path": "/team", "access": {"forward": {"service": "auth.internal", "path": "/status/403"}}},
                {"path": "/open", "access": {}}, {"path": "/old", "redirect": {"to": "/new", "status": 302}}]})
    };
    let stored = put(&policy(HASH, 5)).await;
    assert_eq!(stored.status, 200, "{}", stored.text());
    // What the API shows can be set again, and keeps the password.
    let shown = system.api("GET", "/hosts/shop.test", None).await;
    let again = put(&policy("(hidden)", 6)).await;
    for answer in [&stored, &shown, &again, &system.api("GET", "/routes/dump", None).await] {
        assert!(answer.status == 200 && !answer.text().contains("lDVylRMp"), "{}", answer.text());
    }
    assert_eq!(again.json()["changed"], true);
    assert_eq!(shown.json()["rules"]["access"]["basic"]["users"]["ann"], "(hidden)");

    let ask = async |path: &str, password: Option<&str>| {
        let mut request = Request::get("shop.test", path);
        if let Some(encoded) = password {
            request = request.header("Authorization", &format!("Basic {encoded}"));
        }
        request.send(system.edge).await.unwrap()
    };
    // ann:secret and ann:wrong
    let (right, wrong) = (Some("YW5uOnNlY3JldA=="), Some("YW5uOndyb25n"));
    assert_eq!(ask("/", None).await.reason(), "unauthorized");
    assert_eq!(ask("/", wrong).await.status, 401);
    assert_eq!(ask("/", right).await.text(), "app");
    assert!(!ask("/echo", right).await.text().to_lowercase().contains("authorization"));
    assert_eq!(ask("/open", None).await.text(), "app");
    let rejected = ask("/team/x", right).await;
    assert_eq!((rejected.status, rejected.reason(), &*rejected.text()), (403, "access_denied", "auth"));
    let redirected = ask("/old/x", None).await;
    assert!(redirected.status == 302 && redirected.header("Location").unwrap().ends_with("/new"));
    let explained = system.api("GET", "/routes/explain?host=shop.test&path=/team", None).await.json();
    assert_eq!(explained["checks"], json!(["forward", "body_bytes"]));

    let other = put(&json!({"access": {"deny": ["127.0.0.0/8"]}})).await;
    assert_eq!(other.status, 200, "{}", other.text());
    assert_eq!(ask("/", right).await.reason(), "address_not_allowed");
    for (policy, field) in [
        (json!({"access": {"basic": {"users": {"ann": "(hidden)"}}}}), "access.basic.users"),
        (json!({"access": {"basic": {"users": {"ann": "secret"}}}}), "access.basic.users"),
        (json!({"access": {"forward": {"service": "shop.test"}}}), "service"),
        (json!({"redirect": {"to": "https://shop.test"}}), "redirect.to"),
    ] {
        let refused = put(&policy).await;
        assert_eq!((refused.status, &refused.json()["field"]), (422, &json!(field)), "{}", refused.text());
        assert!(!refused.text().contains("secret"), "{}", refused.text());
    }
    assert_eq!(ask("/", right).await.reason(), "address_not_allowed", "nothing was changed");
    for part in [System::PACEMAKER, System::NGINX] {
        assert!(!system.log_text(&part).contains("lDVylRMp"));
    }
    system.stop().await;
}
