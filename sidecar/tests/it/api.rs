//! The HTTP API over real statistics.

use std::sync::Arc;

use reqwest::{Client, StatusCode};
use serde_json::Value;
use sha2::{Digest, Sha256};
use signalbox_daemon::{door::Door, traces::Counts};
use signalbox_sidecar::{
    api,
    config::TokenDigest,
    edge,
    follow::service::{Condition, Watch},
    metrics::Metrics,
};
use signalbox_store::{RoutesReplica, Stats};
use signalbox_testkit::Server;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const ROOT: &str = "0123456789abcdef0123456789abcdef";

struct Api {
    redis: Server,
    /// The route table.
    table: Server,
    base: String,
    client: Client,
    follower: Watch,
    stopping: CancellationToken,
}

impl Api {
    async fn start() -> Self {
        let redis = Server::durable().await;
        let stats: Stats = redis.open();
        let table = Server::durable().await;
        let replica: RoutesReplica = table.open();
        let follower = Watch::default();
        let stopping = CancellationToken::new();
        let edge = edge::Watch::default();
        let metrics = Arc::new(Metrics::new(follower.clone(), edge.clone(), Counts::default(), || 10_000));
        let digits = Sha256::digest(ROOT).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        // As sha256sum prints it.
        let root = TokenDigest::try_from(format!("{digits}  token\n")).unwrap();
        let router = api::router(
            stats,
            Some(replica),
            Some(&root),
            Door::default(),
            metrics,
            follower.clone(),
            edge,
            stopping.clone(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, router).into_future());
        Self { redis, table, base, client: Client::new(), follower, stopping }
    }

    async fn get_as(&self, token: &str, path: &str) -> (StatusCode, Value) {
        let response =
            self.client.get(format!("{}{path}", self.base)).bearer_auth(token).send().await.unwrap();
        let status = response.status();
        if !status.is_success() {
            assert_eq!(response.headers()["content-type"], "application/problem+json", "{path}");
        }
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.get_as(ROOT, path).await
    }

    fn now(&self) -> u64 {
        self.redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap()
    }
}

#[tokio::test]
async fn totals_of_a_version_type_and_of_a_group() {
    let api = Api::start().await;
    api.redis.cli(&[
        "HSET", "stat:17", "requests", "3", "2xx", "2", "4xx", "1", "200", "2", "404", "1", "bytes", "90",
    ]);
    api.redis.cli(&[
        "HSET",
        "stat:18",
        "requests",
        "1",
        "5xx",
        "1",
        "502",
        "1",
        "time",
        "9",
        "timecount",
        "2",
    ]);
    api.redis.cli(&["SADD", "application:4", "17", "18", "99"]);
    let (status, one) = api.get("/stats/version_type/17").await;
    assert_eq!((status, &one["requests"], &one["codes"]["404"]), (StatusCode::OK, &3.into(), &1.into()));
    let (status, all) = api.get("/stats/application/4").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        (&all["requests"], &all["5xx_percentage"], &all["time_average"]),
        (&4.into(), &25.0.into(), &4.5.into())
    );
    assert_eq!(all["version_types"], serde_json::json!(["17", "18", "99"]));
    assert!(all["as_at"].as_u64().unwrap().abs_diff(api.now()) < 20);
    let (_, none) = api.get("/stats/version_type/never-seen").await;
    assert_eq!(none["requests"], 0);
    assert_eq!(api.get("/stats/uncaught").await.1["id"], "null");
    assert_eq!(api.get("/stats/pacemaker").await.0, StatusCode::OK);
}

#[tokio::test]
async fn latencies_of_version_types_and_of_an_instance() {
    let mut api = Api::start().await;
    let now: u64 = api.redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    let (hour, minute) = (now - now % 3600, now - now % 60);
    let add = |key: &str, at: u64, count: &str| {
        api.redis.cli(&["HSET", key, &at.to_string(), count]);
    };
    api.redis.cli(&["SADD", "version:3", "17", "18"]);
    add(&format!("latency:17:{hour}:6"), minute, "90");
    add(&format!("latency:18:{hour}:192"), minute, "9");
    add(&format!("latency:18:{hour}:inf"), minute, "1");
    // Not requested below.
    add(&format!("latency:17:{hour}:1"), minute + 60, "50");
    let (status, both) =
        api.get(&format!("/stats/version/3/latency?start={minute}&end={}", minute + 1)).await;
    assert_eq!(status, 200, "{both}");
    assert_eq!(both["version_types"], serde_json::json!(["17", "18"]));
    assert_eq!((&both["count"], both["buckets"].as_array().unwrap().len()), (&100.into(), 32));
    let counted: Vec<_> =
        both["buckets"].as_array().unwrap().iter().filter(|bucket| bucket["count"] != 0).collect();
    assert_eq!(
        serde_json::json!(counted),
        serde_json::json!([
            {"below_ms": 6, "count": 90}, {"below_ms": 192, "count": 9}, {"below_ms": null, "count": 1}
        ])
    );
    assert_eq!((&both["p90_ms"], &both["p99_ms"]), (&6.0.into(), &192.0.into()));
    assert!(both["p50_ms"].as_f64().unwrap() < 6.0);
    let (_, none) = api.get("/stats/uncaught/latency").await;
    assert!(none["count"] == 0 && none["p50_ms"].is_null(), "{none}");

    // Until a minute ago, the address belonged to another instance.
    let (key, minutes) =
        (|name: &str| format!("instance_latency:127.0.0.1:9001:{name}"), [minute - 60, minute]);
    for at in minutes {
        add(&key(&format!("{}:2", at - at % 3600)), at, "4");
    }
    assert_eq!(api.get("/stats/instance/shop-1/latency").await.0, 404);
    let joined = (minute * 1000).to_string();
    api.table.cli(&["HSET", "instance:shop-1", "address", "127.0.0.1:9001", "joined_ms", &joined]);
    for path in ["/stats/instance/shop-1/latency", "/stats/instance/shop-1"] {
        let (status, one) = api.get(path).await;
        assert_eq!((status.as_u16(), &one["address"]), (200, &"127.0.0.1:9001".into()), "{one}");
        assert_eq!((&one["count"], &one["start"]), (&4.into(), &minute.into()), "{one}");
    }
    api.table.kill();
    let (status, problem) = api.get("/stats/instance/shop-1").await;
    assert_eq!((status.as_u16(), &problem["code"]), (503, &"route_table_unavailable".into()));
}

#[tokio::test]
async fn history_in_seconds_and_in_minutes() {
    let api = Api::start().await;
    let now = api.now();
    let (hour, minute) = (now - now % 3600, now - now % 60);
    api.redis.cli(&["HSET", &format!("history:17:{hour}:requests"), &now.to_string(), "5"]);
    api.redis.cli(&["HSET", &format!("history:18:{hour}:requests"), &now.to_string(), "2"]);
    api.redis.cli(&["HSET", &format!("rollup:17:{hour}:bytes"), &minute.to_string(), "70"]);
    api.redis.cli(&["SADD", "version:3", "17", "18"]);
    let (_, points) = api.get(&format!("/stats/version/3/history?start={}&end={}", now - 1, now + 1)).await;
    assert_eq!(points, serde_json::json!([[now - 1, 0], [now, 7]]));
    let path =
        format!("/stats/version_type/17/history?metric=bytes&start={minute}&end={}&step=60", minute + 1);
    assert_eq!(api.get(&path).await.1, serde_json::json!([[minute, 70]]));
    assert_eq!(api.get("/stats/uncaught/history").await.1.as_array().unwrap().len(), 300);
}

#[tokio::test]
async fn an_invalid_request_is_rejected_with_its_code() {
    let api = Api::start().await;
    let long = "x".repeat(300);
    for (path, status, code) in [
        ("/stats/version_type/17/history?metric=latency", 422, "unknown_metric"),
        ("/stats/version_type/17/latency?start=5&end=4", 422, "empty_range"),
        ("/stats/version_type/17/latency?start=0", 422, "range_too_old"),
        ("/stats/version_type/17/latency?step=60", 400, "invalid_query"),
        ("/stats/pacemaker/latency?start=x", 400, "invalid_query"),
        ("/stats/instance/a%00b/latency", 422, "invalid_id"),
        ("/stats/node/1/latency", 404, "unknown_subject"),
        ("/stats/version_type/17/history?start=5&end=4", 422, "empty_range"),
        ("/stats/version_type/17/history?start=-1", 400, "invalid_query"),
        ("/stats/version_type/17/history?step=99999999999999999999999", 400, "invalid_query"),
        ("/stats/version_type/17/history?foo=1", 400, "invalid_query"),
        ("/stats/version_type/17/stream?metric=x", 422, "unknown_metric"),
        ("/stats/workspace/1", 404, "unknown_subject"),
        ("/stats/node/1/history", 404, "unknown_subject"),
        ("/stats/planet/1", 404, "unknown_kind"),
        ("/stats/version_type/%00", 422, "invalid_id"),
        ("/stats/version_type/%ff", 400, "invalid_path"),
        (&format!("/stats/version_type/{long}"), 422, "invalid_id"),
        ("/stats", 404, "not_found"),
        ("/", 404, "not_found"),
    ] {
        let (found, problem) = api.get(path).await;
        assert_eq!((found.as_u16(), problem["code"].as_str()), (status, Some(code)), "{path}: {problem}");
        assert_eq!(problem["status"], status);
    }
    let huge = vec![b'x'; 10 << 20];
    let post = api
        .client
        .post(format!("{}/stats/version_type/1", api.base))
        .bearer_auth(ROOT)
        .body(huge)
        .send()
        .await;
    // The answer may arrive before the body is sent completely, which some clients treat as a broken connection.
    if let Ok(response) = post {
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}

#[tokio::test]
async fn only_tokens_with_the_scope_read_can_read() {
    let api = Api::start().await;
    let store = |token: &str, scopes: &str| {
        let digest: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
        api.redis.cli(&["HSET", "tokens", &digest, &format!(r#"{{"name":"t","scopes":[{scopes}]}}"#)]);
    };
    store("a reader", r#""read""#);
    store("a router", r#""routes""#);
    let path = "/stats/version_type/17";
    assert_eq!(api.get_as("a reader", path).await.0, StatusCode::OK);
    let (status, problem) = api.get_as("a router", path).await;
    assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &"scope_missing".into()));
    let (status, problem) = api.get_as("a stranger", path).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNAUTHORIZED, &"token_unknown".into()));
    let bare = api.client.get(format!("{}{path}", api.base)).send().await.unwrap();
    assert_eq!(bare.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(bare.headers()["www-authenticate"], "Basic realm=\"signalbox\"");
    let basic = api
        .client
        .get(format!("{}{path}", api.base))
        .basic_auth("a reader", None::<&str>)
        .send()
        .await
        .unwrap();
    assert_eq!(basic.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_token_that_has_ended_is_rejected_although_no_pacemaker_removes_it() {
    let api = Api::start().await;
    let now_ms = api.now() * 1000;
    let ask = async |token: &str, ends: String| {
        let digest: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
        let stored = format!(r#"{{"name":"t","scopes":["read"],{ends}}}"#);
        api.redis.cli(&["HSET", "tokens", &digest, &stored]);
        api.get_as(token, "/stats/total").await.0
    };
    let (past, future) = (now_ms - 1, now_ms + 3_600_000);
    assert_eq!(ask("valid", format!(r#""expires_ms":{future}"#)).await, StatusCode::OK);
    assert_eq!(ask("expired", format!(r#""expires_ms":{past}"#)).await, StatusCode::UNAUTHORIZED);
    let replaced = format!(r#""expires_ms":{future},"until_ms":{past}"#);
    assert_eq!(ask("replaced", replaced).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn one_token_does_not_occupy_the_statistics() {
    let api = Api::start().await;
    let path = "/stats/top?limit=1000&seconds=60";
    assert_eq!(api.get(path).await.0, StatusCode::OK);
    // Requests of one token arrive faster than the server answers. Two are being answered, and 32 wait.
    api.redis.cli(&["CLIENT", "PAUSE", "1500", "ALL"]);
    let answers = futures_util::future::join_all((0..40).map(|_| api.get(path))).await;
    let refused: Vec<_> = answers.iter().filter(|(status, _)| *status != StatusCode::OK).collect();
    assert_eq!(refused.len(), 6, "{answers:?}");
    for (status, problem) in refused {
        let limit = (StatusCode::TOO_MANY_REQUESTS, &Value::from("token_limit_reached"));
        assert_eq!((*status, &problem["code"]), limit);
    }
    assert_eq!(api.get(path).await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_unavailable_redis_has_its_own_problem_code() {
    let mut api = Api::start().await;
    api.redis.kill();
    let (status, problem) = api.get("/stats/version_type/17").await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"statistics_unavailable".into())
    );
    assert!(!problem.to_string().contains("redis.sock"), "{problem}");
}

#[tokio::test]
async fn health_metrics_and_the_openapi_document_need_no_token() {
    let api = Api::start().await;
    let open = async |path: &str| api.client.get(format!("{}{path}", api.base)).send().await.unwrap();
    assert_eq!(open("/health").await.status(), StatusCode::OK);
    assert_eq!(open("/health/ready").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    api.follower.update(|progress| {
        progress.condition = Condition::Following;
        progress.tally.lines = 42;
        progress.lag_bytes = 7;
        progress.counted_ms = 8_500;
    });
    assert_eq!(open("/health/ready").await.status(), StatusCode::OK);
    let page = open("/metrics").await.text().await.unwrap();
    for line in [
        "signalbox_sidecar_lines_total 42",
        "signalbox_sidecar_lag_seconds 1.5",
        "signalbox_sidecar_following 1.0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    api.follower.update(|progress| progress.condition = Condition::Fenced { owner: "b".into() });
    let text = open("/health/ready").await.text().await.unwrap();
    assert!(text.contains("\"fenced\""), "{text}");
    let document: Value =
        serde_json::from_str(&open("/stats/openapi.json").await.text().await.unwrap()).unwrap();
    assert!(document["components"]["schemas"]["Problem"].is_object(), "{document}");
}

#[tokio::test]
async fn every_call_of_the_openapi_document_is_answered() {
    let api = Api::start().await;
    let (_, document) = api.get("/stats/openapi.json").await;
    let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    assert_eq!(paths.len(), 18, "{paths:?}");
    api.redis.cli(&["SADD", "application:4", "17"]);
    for path in paths {
        let url = path.replace("{kind}", "application").replace("{id}", "4");
        let response = api.client.get(format!("{}{url}", api.base)).bearer_auth(ROOT).send().await.unwrap();
        // An unknown path is 404, too.
        let expected = if path == "/stats/instance/{id}" { 404 } else { 200 };
        assert_eq!(response.status().as_u16(), expected, "{url}");
    }
}

#[tokio::test]
async fn a_stream_sends_final_seconds_and_ends_with_the_process() {
    let api = Api::start().await;
    let url = format!("{}/stats/version_type/17/stream", api.base);
    let mut response = api.client.get(url).bearer_auth(ROOT).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let chunk = response.chunk().await.unwrap().unwrap();
    let event = String::from_utf8_lossy(&chunk).into_owned();
    let second: u64 = event.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().parse().unwrap();
    assert!(event.contains(&format!("data: [{second},0]")), "{event}");
    assert!(second < api.now());
    api.stopping.cancel();
    while response.chunk().await.unwrap().is_some() {}
}
