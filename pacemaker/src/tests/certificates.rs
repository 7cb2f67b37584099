//! Certificates over HTTP.

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::*;

/// A self-signed certificate for these names.
fn issue(names: &[&str]) -> Value {
    issue_until(names, 2100)
}

fn issue_until(names: &[&str], year: i32) -> Value {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(year, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    json!({"chain": certificate.pem(), "key": key.serialize_pem()})
}

#[tokio::test]
async fn a_certificate_is_uploaded_and_deleted_and_its_key_is_never_returned() {
    let api = Api::start().await;
    let first = issue(&["Shop.example", "*.shop.example"]);
    let put = api.put("/certificates/Shop.Example.", &first).await;
    let view = put.json();
    assert_eq!((put.status.as_u16(), &view["changed"]), (201, &json!(true)), "{put:?}");
    assert_eq!(view["server_name"], "shop.example");
    assert_eq!(view["names"], json!(["shop.example", "*.shop.example"]));
    assert!(view["days_left"].as_i64().unwrap() > 10_000, "{view}");
    assert_eq!(put.headers["x-signalbox-serial"].to_str().unwrap(), view["serial"].to_string());
    let again = api.put("/certificates/shop.example", &first).await;
    assert_eq!((again.status.as_u16(), &again.json()["changed"]), (200, &json!(false)));
    assert_eq!(again.json()["serial"], view["serial"]);
    let wildcard = api.put("/certificates/*.shop.example", &first).await;
    assert_eq!(wildcard.status, 201, "{wildcard:?}");

    let found = api.get("/certificates/shop.example").await;
    assert_eq!(found.json()["fingerprint_sha256"], view["fingerprint_sha256"]);
    assert_eq!(found.json()["chain"], first["chain"].as_str().unwrap().replace("\r\n", "\n"));
    let page = api.get("/certificates?limit=1").await.json();
    assert_eq!(page["certificates"][0]["server_name"], "*.shop.example");
    let cursor = page["next"].as_str().unwrap();
    let rest = api.get(&format!("/certificates?limit=1&cursor={cursor}")).await.json();
    assert_eq!((&rest["certificates"][0]["server_name"], rest.get("next")), (&json!("shop.example"), None));

    // Neither an answer nor Redis has the private key in clear.
    let key: String = first["key"].as_str().unwrap().lines().nth(1).unwrap().to_owned();
    assert!(!found.text.contains(&key) && !put.text.contains(&key));
    let redis = (api.servers.fabric(), api.servers.routes());
    let wanted: Vec<String> = redis.0.command("HVALS").arg("routes:certificates").query().await.unwrap();
    let shown: String = redis.1.command("GET").arg("cert:shop.example").query().await.unwrap();
    assert_eq!(wanted.len(), 2);
    for text in wanted.iter().chain([&shown]) {
        assert!(
            text.contains("BEGIN CERTIFICATE") && !text.contains(&key) && !text.contains("PRIVATE"),
            "{text}"
        );
    }

    let second = issue(&["shop.example"]);
    let replaced = api.put("/certificates/shop.example", &second).await;
    assert_eq!((replaced.status.as_u16(), &replaced.json()["changed"]), (200, &json!(true)));
    assert_ne!(replaced.json()["fingerprint_sha256"], view["fingerprint_sha256"]);
    for _ in 0..2 {
        assert_eq!(api.delete("/certificates/shop.example").await.status, 204);
    }
    assert_eq!(api.get("/certificates/shop.example").await.code(), "unknown_certificate");
    let gone: Option<String> = redis.1.command("GET").arg("cert:shop.example").query().await.unwrap();
    assert_eq!(gone, None);
    let metrics = api.get("/metrics").await.text;
    assert!(metrics.contains("signalbox_pacemaker_certificate_first_end_days"), "{metrics}");
}

#[tokio::test]
async fn a_certificate_that_would_fail_in_a_handshake_is_rejected() {
    let api = Api::start().await;
    let (one, other) = (issue(&["a.example"]), issue(&["a.example"]));
    let swapped = json!({"chain": one["chain"], "key": other["key"]});
    let disordered = format!("{}{}", one["chain"].as_str().unwrap(), other["chain"].as_str().unwrap());
    for (name, body, code) in [
        ("a.example", swapped, "key_mismatch"),
        ("b.example", one.clone(), "name_not_covered"),
        ("*.a.example", one.clone(), "name_not_covered"),
        ("a.example", issue_until(&["a.example"], 2020), "certificate_expired"),
        ("a.example", json!({"chain": disordered, "key": one["key"]}), "chain_order"),
        ("a.example", json!({"chain": "", "key": one["key"]}), "invalid_chain"),
        ("a.example", json!({"chain": one["chain"], "key": "x"}), "invalid_key"),
        ("a.example", json!({"chain": one["chain"]}), "missing_field"),
        ("a.example", json!({"chain": 1, "key": ""}), "invalid_body"),
        ("a.example", json!({"chain": one["chain"], "key": one["key"], "x": 1}), "unknown_field"),
        ("a..example", one.clone(), "invalid_hostname"),
    ] {
        let reply = api.put(&format!("/certificates/{name}"), &body).await;
        assert_eq!((reply.status.as_u16(), reply.code()), (422, code.to_owned()), "{reply:?}");
        assert!(!reply.text.contains("PRIVATE"), "{reply:?}");
    }
    assert_eq!(api.get("/certificates").await.json()["certificates"], json!([]));
}

#[tokio::test]
async fn a_confined_token_has_the_certificates_of_its_hosts() {
    let api = Api::start().await;
    api.put("/certificates/a.example", &issue(&["a.example"])).await;
    api.put("/certificates/b.example", &issue(&["b.example"])).await;
    let token = api.token("team", &["routes"], Some(&["a.example"])).await;
    let call = async |method: Method, path: &str| {
        let request = api.client.request(method, format!("{}{path}", api.base)).bearer_auth(&token);
        read(request.json(&issue(&["b.example"]))).await
    };
    for method in [Method::PUT, Method::GET, Method::DELETE] {
        assert_eq!(call(method, "/certificates/b.example").await.code(), "host_not_allowed");
    }
    let list = call(Method::GET, "/certificates").await.json();
    assert_eq!(list["certificates"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(call(Method::DELETE, "/certificates/a.example").await.status, 204);
    assert_eq!(api.get("/certificates/b.example").await.status, 200);
}

#[tokio::test]
async fn keys_are_rotated_by_a_restart_and_needed_to_put() {
    let mut api = Api::start().await;
    let one = issue(&["a.example"]);
    api.put("/certificates/a.example", &one).await;
    let shown = async |servers: &Servers| -> String {
        servers.routes().command("GET").arg("cert:a.example").query().await.unwrap()
    };
    let old = shown(&api.servers).await;
    // A new key is added before the old one: data encrypted with the old key is encrypted again.
    let file = std::fs::read_to_string(api.keys.path()).unwrap();
    std::fs::write(api.keys.path(), format!("{}\n{file}", "b".repeat(64))).unwrap();
    api = api.restart().await;
    let new = eventually("the key to be encrypted again", async || {
        let now = shown(&api.servers).await;
        if now == old { Err(now) } else { Ok(now) }
    })
    .await;
    // Then the old key can go; what is there is still the same certificate.
    std::fs::write(api.keys.path(), "b".repeat(64)).unwrap();
    api = api.restart().await;
    assert_eq!(api.put("/certificates/a.example", &one).await.json()["changed"], false);
    assert_eq!(shown(&api.servers).await, new);
    std::fs::write(api.keys.path(), "").unwrap();
    api = api.restart().await;
    let refused = api.put("/certificates/a.example", &one).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (409, "no_edge_key".to_owned()));
    assert_eq!(api.get("/certificates/a.example").await.status, 200);
    assert_eq!(api.delete("/certificates/a.example").await.status, 204);
}

#[tokio::test]
async fn a_page_of_certificates_with_long_chains_ends_early_and_reads_only_what_is_listed() {
    let api = Api::start().await;
    let certificate = issue(&["*.shop.example"]);
    let names: Vec<String> = (0..90).map(|number| format!("n{number:02}.shop.example")).collect();
    for name in &names {
        assert_eq!(api.put(&format!("/certificates/{name}"), &certificate).await.status, 201);
    }
    api.put("/certificates/other.test", &issue(&["other.test"])).await;
    // As long as the longest chain.
    let redis = api.servers.fabric();
    let comment = format!("\"chain\":\"{}\\n", "x".repeat(63 << 10));
    for name in &names {
        let command = redis.command("HGET").arg("routes:certificates").arg(name);
        let stored: String = command.query().await.unwrap();
        let long = stored.replacen("\"chain\":\"", &comment, 1);
        assert!(long.len() > stored.len(), "{stored}");
        redis.command("HSET").arg("routes:certificates").arg(name).arg(long).run().await.unwrap();
    }
    let list = async |query: &str| {
        let page = api.get(&format!("/certificates?limit=1000{query}")).await.json();
        let found = page["certificates"].as_array().unwrap_or_else(|| panic!("{page}"));
        let found: Vec<String> =
            found.iter().map(|one| one["server_name"].as_str().unwrap().to_owned()).collect();
        (found, page["next"].as_str().map(str::to_owned))
    };
    let (first, next) = list("").await;
    assert!((60..=70).contains(&first.len()), "{first:?}");
    let (rest, end) = list(&format!("&cursor={}", next.unwrap())).await;
    assert_eq!(end, None);
    let mut all = names.clone();
    all.push("other.test".to_owned());
    assert_eq!([first, rest].concat(), all);
    // A certificate that cannot be read concerns only the lists that it is on.
    let broken = redis.command("HSET").arg("routes:certificates").arg(&names[0]);
    broken.arg(r#"{"revision":1,"ends":1,"certificate":{}}"#).run().await.unwrap();
    assert_eq!(list("&search=other").await, (vec!["other.test".to_owned()], None));
}
