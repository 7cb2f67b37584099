//! The exact texts that policies and certificates have in Redis. Routers and pacemakers of other versions read them.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::store::Certificate;
use signalbox_access::Caller;
use signalbox_route_table::Policy;

const NAME: &str = "a.example";

type Fields = BTreeMap<String, String>;

fn fields(pairs: &[(&str, &str)]) -> Fields {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

impl Rig {
    async fn set_policy_of(&self, json: serde_json::Value) {
        let policy = serde_json::from_value::<Policy>(json).unwrap().check().unwrap();
        self.registry.set_policy(&Caller::root(), &host(NAME), &policy, None).await.unwrap();
    }

    async fn set_certificate_of(&self, certificate: Option<&Certificate>) {
        self.registry.set_certificate(&Caller::root(), &host(NAME), certificate, None).await.unwrap();
    }

    /// The latest change that the table noted, without its ID.
    async fn noted(&self) -> Fields {
        type Entries = Vec<(String, Fields)>;
        let mut entries: Entries = self.routes("XREVRANGE", &["changes", "+", "-", "COUNT", "1"]).await;
        entries.pop().unwrap().1
    }
}

#[tokio::test]
async fn a_policy_keeps_its_form() {
    let rig = Rig::new().await;
    rig.store.set_clock_ms(1_000_000);
    rig.set_policy_of(json!({"hold_ms": 5})).await;
    let stored: String = rig.fabric("HGET", &["routes:policies", NAME]).await;
    assert_eq!(stored, r#"{"revision":1,"policy":{"hold_ms":5}}"#);
    let table: Fields = rig.routes("HGETALL", &["rules:a.example"]).await;
    assert_eq!(table, fields(&[("revision", "1"), ("members", r#""hold_ms":5"#)]));
    let shares = json!([{"version_type": "1", "percent": 100}]);
    rig.set_policy_of(json!({"slow_start_ms": 7, "shares": shares})).await;
    let members = r#""shares":[{"version_type":"1","percent":100}],"slow_start_ms":7"#;
    let stored: String = rig.fabric("HGET", &["routes:policies", NAME]).await;
    assert_eq!(stored, format!(r#"{{"revision":2,"policy":{{{members}}}}}"#));
    let table: Fields = rig.routes("HGETALL", &["rules:a.example"]).await;
    let flags = [("slow_start", "1"), ("by_version", "1")];
    assert_eq!(table, fields(&[&[("revision", "2"), ("members", members)], &flags[..]].concat()));
    let change = fields(&[("kind", "host_altered"), ("subject", NAME), ("at_ms", "1000000")]);
    assert_eq!(rig.noted().await, change);
    // A field that is no longer set is also removed from the table.
    rig.set_policy_of(json!({"hold_ms": 6})).await;
    let table: Fields = rig.routes("HGETALL", &["rules:a.example"]).await;
    assert_eq!(table, fields(&[("revision", "3"), ("members", r#""hold_ms":6"#)]));
    rig.set_policy_of(json!({})).await;
    assert_eq!(rig.routes::<Fields>("HGETALL", &["rules:a.example"]).await, fields(&[("revision", "4")]));
    assert_eq!(rig.noted().await, change);
    assert_eq!(rig.fabric::<u64>("EXISTS", &["routes:policies", "routes:hosts:index"]).await, 0);
}

#[tokio::test]
async fn a_certificate_keeps_its_form() {
    let rig = Rig::new().await;
    rig.store.set_clock_ms(1_000_000);
    let certificate = Certificate { text: r#"{"v":1,"chain":"c","key":"k"}"#.to_owned(), ends: 90 };
    rig.set_certificate_of(Some(&certificate)).await;
    let stored: String = rig.fabric("HGET", &["routes:certificates", NAME]).await;
    assert_eq!(stored, format!(r#"{{"revision":1,"ends":90,"certificate":{}}}"#, certificate.text));
    assert_eq!(rig.fabric::<String>("ZSCORE", &["routes:certificates:ends", NAME]).await, "90");
    assert_eq!(rig.fabric::<String>("ZSCORE", &["routes:certificates:index", NAME]).await, "0");
    let table: Fields = rig.routes("HGETALL", &["certificate:a.example"]).await;
    assert_eq!(table, fields(&[("revision", "1"), ("ends", "90")]));
    assert_eq!(rig.routes::<String>("GET", &["cert:a.example"]).await, certificate.text);
    let change =
        |kind, ends| fields(&[("kind", kind), ("subject", NAME), ("at_ms", "1000000"), ("ends", ends)]);
    assert_eq!(rig.noted().await, change("certificate_put", "90"));
    rig.fabric::<()>("HSET", &["routes:certificates:published", NAME, "90 7"]).await;
    rig.set_certificate_of(None).await;
    assert_eq!(rig.noted().await, change("certificate_removed", "0"));
    let table: Fields = rig.routes("HGETALL", &["certificate:a.example"]).await;
    assert_eq!(table, fields(&[("revision", "2")]));
    assert!((1..=3600).contains(&rig.routes::<i64>("TTL", &["certificate:a.example"]).await));
    assert_eq!(rig.routes::<u64>("EXISTS", &["cert:a.example"]).await, 0);
    let left = ["routes:certificates", "routes:certificates:index", "routes:certificates:ends"];
    assert_eq!(rig.fabric::<u64>("EXISTS", &left).await, 0);
    assert_eq!(rig.fabric::<u64>("EXISTS", &["routes:certificates:published"]).await, 0);
}
