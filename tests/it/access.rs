//! Tokens open exactly the routes of their scopes, and only for the hosts to which they are confined.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Request, Response, credential},
    system::System,
    upstream::App,
};

async fn with_token(
    system: &System,
    token: &str,
    method: &str,
    target: &str,
    body: Option<&Value>,
) -> Response {
    let request = Request::new(method, &system.admin.to_string(), target).token(token);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    request.send(system.admin).await.unwrap()
}

fn instance(app: &App, hostnames: &[&str]) -> Value {
    json!({"address": app.address.to_string(), "hostnames": hostnames, "version_type_id": "17"})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_opens_its_own_routes() {
    let system = System::start("scopes").await;
    let app = App::start("app").await;
    let body = instance(&app, &["app.test"]);
    let [routes, read, none] = [
        system.token("routes-only", &["routes"]).await,
        system.token("read-only", &["read"]).await,
        system.token("publish-only", &["publish"]).await,
    ];
    assert_eq!(with_token(&system, &read, "PUT", "/instances/i-1", Some(&body)).await.status, 403);
    assert_eq!(with_token(&system, &none, "PUT", "/instances/i-1", Some(&body)).await.status, 403);
    assert_eq!(with_token(&system, &routes, "PUT", "/instances/i-1?wait=20s", Some(&body)).await.status, 201);
    assert_eq!(system.get("app.test", "/").await.text(), "app");
    for target in ["/instances", "/instances/i-1", "/hosts", "/hosts/app.test", "/routes/dump"] {
        assert_eq!(with_token(&system, &read, "GET", target, None).await.status, 200, "{target}");
        assert_eq!(with_token(&system, &none, "GET", target, None).await.status, 403, "{target}");
    }
    // The sidecar knows tokens from the copy that the pacemaker gives it.
    eventually("the sidecar to know the token", || async {
        let answer = with_token(&system, &read, "GET", "/stats/version_type/17", None).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    for token in [&routes, &none] {
        assert_eq!(with_token(&system, token, "GET", "/stats/version_type/17", None).await.status, 403);
    }
    // It does not know those of the event bus, which clients choose: their digests are not where a router could read them.
    let bus_token = json!({"name": "bus-read", "token": credential("bus-read"), "scopes": ["read"]});
    assert_eq!(system.api("POST", "/api_tokens", Some(bus_token)).await.status, 201);
    assert_eq!(with_token(&system, &credential("bus-read"), "GET", "/topics", None).await.status, 200);
    let stats = with_token(&system, &credential("bus-read"), "GET", "/stats/version_type/17", None).await;
    assert_eq!(stats.status, 401, "{}", stats.text());
    let copied: Vec<String> = system.cli(System::STATS, "HVALS tokens").await;
    assert!(!copied.is_empty() && !copied.iter().any(|record| record.contains("bus-read")), "{copied:?}");
    // Tokens are root's business.
    for token in [&routes, &read, &none] {
        assert_eq!(with_token(&system, token, "GET", "/tokens", None).await.status, 403);
        let more = json!({"name": "more", "scopes": ["read"]});
        assert_eq!(with_token(&system, token, "POST", "/tokens", Some(&more)).await.status, 403);
        assert_eq!(with_token(&system, token, "DELETE", "/tokens/read-only", None).await.status, 403);
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_shown_once_and_is_invalid_after_its_removal() {
    let system = System::start("revoke").await;
    let token = system.token("short-lived", &["read"]).await;
    assert_eq!(with_token(&system, &token, "GET", "/instances", None).await.status, 200);
    let list = system.api("GET", "/tokens", None).await;
    assert!(list.text().contains("short-lived") && !list.text().contains(&token), "{}", list.text());
    // Read access to the Redis servers does not reveal a token either.
    for part in System::REDIS {
        for key in system.cli::<Vec<String>>(part.clone(), "KEYS *token*").await {
            let text: String =
                system.cli::<Vec<String>>(part.clone(), &format!("HGETALL {key}")).await.concat();
            assert!(!text.contains(&token), "{part} {key} holds the token itself");
        }
    }
    let again = json!({"name": "short-lived", "scopes": ["routes"]});
    let conflict = system.api("POST", "/tokens", Some(again)).await;
    assert_eq!((conflict.status, &conflict.json()["code"]), (409, &"token_exists".into()));
    assert_eq!(system.api("DELETE", "/tokens/short-lived", None).await.status, 204);
    assert_eq!(with_token(&system, &token, "GET", "/instances", None).await.status, 401);
    eventually("the sidecar to refuse the token", || async {
        let answer = with_token(&system, &token, "GET", "/stats/uncaught", None).await;
        if answer.status == 401 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    assert_eq!(
        system.api("DELETE", "/tokens/short-lived", None).await.status,
        204,
        "repeating the deletion succeeds"
    );
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_token_changes_only_its_own_hosts() {
    let system = System::start("confined").await;
    let [mine, theirs] = [App::start("mine").await, App::start("theirs").await];
    system.register("theirs", &theirs, "b.test", "2").await;
    let made = system
        .api("POST", "/tokens", Some(json!({"name": "a-team", "scopes": ["routes"], "hosts": ["*.a.test"]})))
        .await;
    assert_eq!(made.status, 201, "{}", made.text());
    let token = made.json()["token"].as_str().unwrap().to_owned();
    let put = async |id: &str, app: &App, hosts: &[&str]| {
        with_token(&system, &token, "PUT", &format!("/instances/{id}?wait=20s"), Some(&instance(app, hosts)))
            .await
    };
    assert_eq!(put("mine", &mine, &["x.a.test"]).await.status, 201);
    assert_eq!(system.get("x.a.test", "/").await.text(), "mine");
    // Not another's host, not one of each, not the catch-all, not the apex, and not another's instance or address.
    for hosts in [&["b.test"][..], &["x.a.test", "b.test"], &["*"], &["a.test"], &["*.test"]] {
        assert_eq!(put("mine", &mine, hosts).await.status, 403, "{hosts:?}");
        assert_eq!(put("fresh", &mine, hosts).await.status, 403, "{hosts:?}");
    }
    assert_eq!(put("theirs", &mine, &["x.a.test"]).await.status, 403, "another's instance");
    assert_eq!(put("thief", &theirs, &["y.a.test"]).await.status, 403, "another's address");
    for (method, target) in [
        ("DELETE", "/instances/theirs"),
        ("POST", "/instances/theirs/heartbeat"),
        ("DELETE", "/hosts/b.test"),
    ] {
        let answer = with_token(&system, &token, method, target, None).await;
        assert!(matches!(answer.status, 403 | 404), "{method} {target}: {} {}", answer.status, answer.text());
    }
    assert_eq!(system.get("b.test", "/").await.text(), "theirs");
    assert_eq!(system.get("x.a.test", "/").await.text(), "mine");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_sent_as_bearer_or_as_the_basic_user() {
    let system = System::start("basic").await;
    let host = system.admin.to_string();
    for (user, status) in [
        (format!("{}:", system.token), 200),
        (format!("{}:anything", system.token), 200),
        (system.token.clone(), 200),
        ("nobody:x".to_owned(), 401),
        (format!("x:{}", system.token), 401),
    ] {
        let header = format!("Basic {}", STANDARD.encode(&user));
        for target in ["/instances", "/stats/uncaught"] {
            let request = Request::get(&host, target).header("Authorization", &header);
            let answer = request.send(system.admin).await.unwrap();
            assert_eq!(answer.status, status, "{target} as {user}: {}", answer.text());
        }
    }
    // The root token lies where only its owner reads it.
    let path = system.stack.layout().token();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    system.stop().await;
}
