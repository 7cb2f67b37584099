//! Each route with what it must refuse.

use super::*;

#[tokio::test]
async fn bodies_that_are_wrong_have_stable_codes() {
    let api = Api::start().await;
    let raw = async |body: &str| {
        let request = api.request(Method::PUT, "/instances/i").header("content-type", "application/json");
        read(request.body(body.to_owned())).await
    };
    for (body, status, code) in [
        ("{", 400, "malformed_json"),
        ("", 400, "malformed_json"),
        (r#"{"address":[1"#, 422, "invalid_body"),
        (r#"["127.0.0.1:1",["a"],"1",null,null,null,null,null,null,null]"#, 422, "invalid_body"),
        ("{}", 422, "missing_field"),
        ("1", 422, "invalid_body"),
        (r#"{"address":1,"hostnames":["a"],"version_type_id":"1"}"#, 422, "invalid_body"),
        (r#"{"address":"127.0.0.1:1","hostnames":"a","version_type_id":"1"}"#, 422, "invalid_body"),
        (r#"{"address":"127.0.0.1:1","hostnames":["a"],"version_type_id":true}"#, 422, "invalid_body"),
        (
            r#"{"address":"127.0.0.1:1","hostnames":["a"],"version_type_id":"1","wieght":1}"#,
            422,
            "unknown_field",
        ),
        (r#"{"address":"localhost:1","hostnames":["a"],"version_type_id":"1"}"#, 422, "invalid_address"),
        (r#"{"address":"192.0.2.1:1","hostnames":["a"],"version_type_id":"1"}"#, 422, "address_not_allowed"),
        (r#"{"address":"127.0.0.1:8080","hostnames":["a"],"version_type_id":"1"}"#, 422, "reserved_address"),
        (r#"{"address":"127.0.0.1:1","hostnames":["a b"],"version_type_id":"1"}"#, 422, "invalid_hostname"),
        (
            r#"{"address":"127.0.0.1:1","hostnames":["a\u0000"],"version_type_id":"1"}"#,
            422,
            "invalid_hostname",
        ),
        (r#"{"address":"127.0.0.1:1","hostnames":[],"version_type_id":"1"}"#, 422, "invalid_hostnames"),
        (r#"{"address":"127.0.0.1:1","hostnames":["a"],"version_type_id":"1\n"}"#, 422, "invalid_label"),
        (r#"{"address":"127.0.0.1:1","hostnames":["a"],"version_type_id":""}"#, 422, "invalid_label"),
    ] {
        let reply = raw(body).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (status, code), "{body}");
    }
    let long = "a".repeat(300);
    let reply = api.put("/instances/i", &instance(9001, &[&long])).await;
    assert_eq!(reply.code(), "invalid_hostname");
    assert_eq!(api.get("/instances").await.json()["instances"], json!([]));
}

#[tokio::test]
async fn a_large_body_is_refused_by_each_route_that_reads_one() {
    let api = Api::start().await;
    let body = format!("{{\"x\":\"{}\"}}", "a".repeat(10 * 1024 * 1024));
    for (method, path) in [
        (Method::PUT, "/instances/i"),
        (Method::PUT, "/instances"),
        (Method::POST, "/instances/i/drain"),
        (Method::POST, "/nodes/n/drain"),
        (Method::POST, "/instances/i/errors"),
        (Method::POST, "/tokens"),
    ] {
        let request = api.request(method, path).header("content-type", "application/json").body(body.clone());
        let reply = read(request).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (413, "body_too_large"), "{path}");
    }
}

#[tokio::test]
async fn a_body_of_another_kind_is_refused() {
    let api = Api::start().await;
    for path in ["/instances/i", "/instances"] {
        let reply = read(api.request(Method::PUT, path).body("{}")).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (415, "unsupported_media_type"));
    }
    let json = "application/json; charset=utf-8";
    let request = api.request(Method::PUT, "/instances/i").header("content-type", json);
    assert_eq!(read(request.body(instance(9001, &["a"]).to_string())).await.status, 201);
}

#[tokio::test]
async fn every_route_wants_a_token_with_its_scope() {
    let api = Api::start().await;
    let read_only = api.token("reader", &["read"], None).await;
    let publisher = api.token("publisher", &["publish"], None).await;
    let anonymous = api.client.clone();
    for (method, path, needs_write) in [
        (Method::GET, "/", false),
        (Method::GET, "/instances", false),
        (Method::GET, "/instances/i", false),
        (Method::GET, "/hosts", false),
        (Method::GET, "/hosts/a.example", false),
        (Method::GET, "/routes/dump", false),
        (Method::GET, "/routes/explain?host=a", false),
        (Method::GET, "/routes/convergence", false),
        (Method::PUT, "/instances/i", true),
        (Method::PUT, "/instances", true),
        (Method::DELETE, "/instances/i", true),
        (Method::POST, "/instances/i/heartbeat", true),
        (Method::POST, "/instances/i/drain", true),
        (Method::DELETE, "/instances/i/drain", true),
        (Method::POST, "/instances/i/errors", true),
        (Method::POST, "/nodes/n/drain", true),
        (Method::DELETE, "/hosts/a.example", true),
        (Method::GET, "/tokens", true),
        (Method::POST, "/tokens", true),
        (Method::DELETE, "/tokens/reader", true),
    ] {
        let request = || anonymous.request(method.clone(), format!("{}{path}", api.base));
        let none = read(request()).await;
        assert_eq!((none.status.as_u16(), none.code().as_str()), (401, "token_required"), "{method} {path}");
        assert_eq!(none.headers["www-authenticate"], "Basic realm=\"signalbox\"");
        let unknown = read(request().bearer_auth("sbx_unknown")).await;
        assert_eq!(
            (unknown.status.as_u16(), unknown.code().as_str()),
            (401, "token_unknown"),
            "{method} {path}"
        );
        let other = read(request().bearer_auth(&publisher)).await;
        assert_eq!((other.status.as_u16(), other.code().as_str()), (403, "scope_missing"), "{method} {path}");
        let reader = read(request().bearer_auth(&read_only)).await;
        assert_eq!(reader.status == 403, needs_write, "{method} {path}: {reader:?}");
    }
    assert_eq!(api.delete("/tokens/reader").await.status, 204);
    let revoked = read(api.client.get(format!("{}/instances", api.base)).bearer_auth(&read_only)).await;
    assert_eq!(revoked.code(), "token_unknown");
}

#[tokio::test]
async fn a_confined_token_sees_and_changes_its_own() {
    let api = Api::start().await;
    api.put("/instances/theirs", &instance(9001, &["b.example"])).await;
    let tenant = api.token("tenant", &["routes", "read"], Some(&["*.a.example"])).await;
    let request = |method: Method, path: &str| {
        api.client.request(method, format!("{}{path}", api.base)).bearer_auth(&tenant)
    };
    let mine = read(request(Method::PUT, "/instances/mine").json(&instance(9002, &["x.a.example"]))).await;
    assert_eq!(mine.status, 201);
    let list = read(request(Method::GET, "/instances")).await.json();
    assert_eq!(list["instances"].as_array().unwrap().len(), 1);
    let hosts = read(request(Method::GET, "/hosts")).await.json();
    assert_eq!(hosts["hosts"].as_array().unwrap().len(), 1);
    let dump = read(request(Method::GET, "/routes/dump")).await.json();
    assert_eq!(dump["hosts"][0]["hostname"], "x.a.example");
    assert!(dump["hosts"][1].is_null());
    let page = read(request(Method::GET, "/")).await.text;
    assert!(page.contains("x.a.example") && !page.contains("b.example"), "{page}");
    let (foreign, unknown) = ((403, "host_not_allowed"), (404, "unknown_instance"));
    for (method, path, expected) in [
        (Method::GET, "/instances/theirs", unknown),
        (Method::DELETE, "/instances/theirs", foreign),
        (Method::GET, "/hosts/b.example", foreign),
        (Method::DELETE, "/hosts/b.example", foreign),
        (Method::GET, "/routes/explain?host=b.example", foreign),
    ] {
        let reply = read(request(method.clone(), path)).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), expected, "{method} {path}");
    }
    let taken = read(request(Method::PUT, "/instances/mine").json(&instance(9001, &["x.a.example"]))).await;
    assert_eq!(taken.code(), "address_taken");
    let node = read(request(Method::POST, "/nodes/n/drain")).await;
    assert_eq!(node.code(), "confined_token");
}

#[tokio::test]
async fn paths_and_queries_that_are_wrong_have_stable_codes() {
    let api = Api::start().await;
    for (path, status, code) in [
        ("/nothing", 404, "unknown_route"),
        ("/instances/a%20b", 422, "invalid_id"),
        ("/instances/%ff", 400, "invalid_path"),
        ("/instances?limit=0", 422, "invalid_limit"),
        ("/instances?limit=1001", 422, "invalid_limit"),
        ("/instances?limit=x", 400, "invalid_query"),
        ("/instances?cursor=x", 422, "invalid_cursor"),
        ("/instances?state=gone", 400, "invalid_query"),
        ("/instances?hsot=a", 400, "invalid_query"),
        ("/instances?host=a%20b", 422, "invalid_hostname"),
        ("/instances?node=", 422, "invalid_label"),
        ("/hosts?limit=0", 422, "invalid_limit"),
        ("/hosts/a..b", 422, "invalid_hostname"),
        ("/hosts/unknown.example", 404, "unknown_host"),
        ("/routes/dump?format=xml", 400, "invalid_query"),
        ("/routes/explain", 400, "invalid_query"),
        ("/routes/explain?host=", 422, "invalid_host"),
        ("/routes/explain?host=a%00b", 422, "invalid_host"),
    ] {
        let reply = api.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (status, code), "{path}");
    }
    for (method, path) in
        [(Method::POST, "/instances"), (Method::PATCH, "/instances/i"), (Method::PUT, "/health")]
    {
        let reply = read(api.request(method, path)).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (405, "method_not_allowed"), "{path}");
        assert!(reply.headers.contains_key("allow"), "{path}");
    }
    for wait in ["x", "61s", "-1", "1.5s", ""] {
        let reply = api.put(&format!("/instances/i?wait={wait}"), &instance(9001, &["a"])).await;
        assert_eq!(reply.code(), "invalid_wait", "{wait}");
    }
    assert_eq!(api.get("/instances").await.json()["instances"], json!([]));
}

#[tokio::test]
async fn the_smaller_bodies_are_checked_too() {
    let api = Api::start().await;
    api.put("/instances/i", &instance(9001, &["a.example"])).await;
    for (path, body, code) in [
        ("/instances/i/drain", json!({"deadline_seconds": -1}), "invalid_body"),
        ("/instances/i/drain", json!({"deadline_seconds": 86_401}), "invalid_deadline"),
        ("/instances/i/drain", json!({"deadline": 1}), "unknown_field"),
        ("/instances/none/drain", json!({}), "unknown_instance"),
        ("/nodes/a%20b/drain", json!({}), "invalid_label"),
        ("/instances/i/errors", json!({"message": ""}), "invalid_message"),
        ("/instances/i/errors", json!({"message": "a".repeat(1001)}), "invalid_message"),
        ("/instances/i/errors", json!({"message": "a", "fault_id": "a b"}), "invalid_label"),
        ("/instances/i/errors", json!({"message": "a", "fault_id": 0}), "invalid_body"),
        ("/instances/none/errors", json!({"message": "a"}), "unknown_instance"),
        ("/tokens", json!({"name": "A", "scopes": ["read"]}), "invalid_token_name"),
        ("/tokens", json!({"name": "root", "scopes": ["read"]}), "invalid_token_name"),
        ("/tokens", json!({"name": "a", "scopes": []}), "invalid_scopes"),
        ("/tokens", json!({"name": "a", "scopes": ["all"]}), "invalid_body"),
        ("/tokens", json!({"name": "a", "scopes": ["read"], "hosts": []}), "too_many_hosts"),
        ("/tokens", json!({"name": "a", "scopes": ["read"], "hosts": ["a b"]}), "invalid_hostname"),
    ] {
        let reply = api.post(path, &body).await;
        assert_eq!(reply.code(), code, "{path} {body}");
    }
    // A drain needs no body, a token's name is free once.
    assert_eq!(read(api.request(Method::POST, "/instances/i/drain")).await.status, 200);
    api.token("a", &["read"], None).await;
    let again = api.post("/tokens", &json!({"name": "a", "scopes": ["read"]})).await;
    assert_eq!((again.status.as_u16(), again.code().as_str()), (409, "token_exists"));
    let too_many: Vec<Value> = (0..1001).map(|_| json!({})).collect();
    assert_eq!(api.put("/instances", &json!(too_many)).await.code(), "too_many_items");
    assert_eq!(api.put("/instances", &json!({})).await.code(), "invalid_body");
}
