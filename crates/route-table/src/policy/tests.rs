//! Policies, checked as a whole.

use super::*;

fn check(json: &str) -> Result<Policy, Invalid> {
    serde_json::from_str::<Policy>(json).unwrap_or_else(|error| panic!("{json}: {error}")).check()
}

#[test]
fn shares_by_weight_add_up_and_are_valid() {
    let label = |name: &str| Label::parse(name, "shares").unwrap();
    let shares = |weights: &[(&str, u32)]| {
        let weights = weights.iter().map(|(name, weight)| (label(name), *weight)).collect();
        let policy = Policy { hold_ms: Some(7), ..Policy::default() }.with_shares(&weights).check().unwrap();
        assert_eq!(policy.hold_ms, Some(7));
        serde_json::to_string(&policy.shares).unwrap()
    };
    assert_eq!(shares(&[("7", 3)]), r#"[{"version_type":"7","percent":100}]"#);
    assert_eq!(
        shares(&[("a", 1), ("b", 1), ("c", 1)]),
        r#"[{"version_type":"a","percent":33.33},{"version_type":"b","percent":33.33},{"version_type":"c","percent":33.34}]"#
    );
    assert_eq!(
        shares(&[("a", 0), ("b", 0)]),
        r#"[{"version_type":"a","percent":50},{"version_type":"b","percent":50}]"#
    );
    assert_eq!(shares(&[]), "null");
}

#[test]
fn requests_off_the_hot_path_are_counted() {
    let counted = |json: &str| check(json).unwrap().counts_in_flight();
    for json in [
        r#"{"balance":{"algorithm":"p2c"}}"#,
        r#"{"sticky":{"cookie":"s"}}"#,
        r#"{"body_bytes":5}"#,
        r#"{"buffering":true}"#,
        r#"{"https":"redirect"}"#,
        r#"{"target_header":true}"#,
    ] {
        assert!(counted(json), "{json}");
    }
    for json in [
        "{}",
        r#"{"balance":{"algorithm":"round_robin"}}"#,
        r#"{"https":"any"}"#,
        r#"{"hold_ms":5}"#,
        r#"{"buffering":false}"#,
        r#"{"tls":"auto"}"#,
    ] {
        assert!(!counted(json), "{json}");
    }
}

#[test]
fn every_part_keeps_its_value() {
    let json = r#"{"balance":{"algorithm":"hash","header":"X-User"},"shares":[{"version_type":"17","percent":99.5},{"version_type":"18","percent":0.5}],"shares_by":{"header":"X-Version","cookie":"version"},"sticky":{"cookie":"signalbox","ttl_seconds":3600},"slow_start_ms":30000,"retries":{"attempts":3,"budget_percent":20,"timeout_ms":10000},"ejection":{"failures":5,"first_ms":1000,"longest_ms":60000},"hold_ms":5000,"timeouts":{"connect_ms":1,"read_ms":2,"send_ms":3},"limits":{"requests":{"per_second":100,"burst":50,"by":{"header":"X-Key"}},"connections":{"most":100,"by":"host"}},"body_bytes":1048576,"methods":["GET","POST"],"headers":{"request":{"set":{"X-Env":"live"},"remove":["X-Debug"]},"response":{"set":{"X-Frame-Options":"DENY"}}},"maintenance":{"status":503,"body":"back soon","content_type":"text/plain","retry_after":60,"except_header":{"name":"X-Preview","value":"1"}},"https":"redirect","tls":"auto","upstream":{"tls":true,"server_name":"app.internal","verify":true,"protocol":"grpc"},"target_header":true}"#;
    assert_eq!(serde_json::to_string(&check(json).unwrap()).unwrap(), json);
    assert_eq!(
        serde_json::to_string(&check(r#"{"ejection":false}"#).unwrap()).unwrap(),
        r#"{"ejection":false}"#
    );
    assert!(check("{}").unwrap().is_empty() && !check(r#"{"ejection":false}"#).unwrap().is_empty());
}

#[test]
fn equal_policies_are_equal_texts() {
    let one =
        r#"{"methods":["post","GET","GET"],"shares":[{"percent":100,"version_type":17}],"hold_ms":null}"#;
    let other = r#"{"shares":[{"version_type":"17","percent":100}],"methods":["GET","POST"]}"#;
    let text = |json| serde_json::to_string(&check(json).unwrap()).unwrap();
    assert_eq!(text(one), text(other));
}

#[test]
fn each_field_has_its_limits() {
    for (json, field) in [
        (r#"{"slow_start_ms":0}"#, "slow_start_ms"),
        (r#"{"slow_start_ms":3600001}"#, "slow_start_ms"),
        (r#"{"hold_ms":60001}"#, "hold_ms"),
        (r#"{"body_bytes":1125899906842625}"#, "body_bytes"),
        (r#"{"body_bytes":1000,"upstream":{"protocol":"grpc"}}"#, "body_bytes"),
        (r#"{"balance":{"algorithm":"hash"}}"#, "balance"),
        (r#"{"balance":{"algorithm":"hash","header":"a","cookie":"b"}}"#, "balance"),
        (r#"{"balance":{"algorithm":"hash","address":false}}"#, "balance"),
        (r#"{"balance":{"algorithm":"p2c","cookie":"b"}}"#, "balance"),
        (r#"{"balance":{"algorithm":"hash","header":"a b"}}"#, "balance.header"),
        (r#"{"shares":[]}"#, "shares"),
        (r#"{"shares":[{"version_type":"1","percent":99}]}"#, "shares"),
        (r#"{"shares":[{"version_type":"1","percent":101}]}"#, "shares"),
        (r#"{"shares":[{"version_type":"1","percent":200},{"version_type":"2","percent":-100}]}"#, "shares"),
        (r#"{"shares":[{"version_type":"1","percent":50},{"version_type":"1","percent":50}]}"#, "shares"),
        (r#"{"shares":[{"version_type":"a b","percent":100}]}"#, "shares"),
        (r#"{"shares_by":{}}"#, "shares_by"),
        (r#"{"shares_by":{"cookie":"a=b"}}"#, "shares_by.cookie"),
        (r#"{"shares_by":{"cookie":"a","values":{}}}"#, "shares_by.values"),
        (r#"{"shares_by":{"cookie":"a","values":{"x":"a b"}}}"#, "shares_by.values"),
        (r#"{"error_pages":{}}"#, "error_pages"),
        (r#"{"error_pages":{"200":{"body":""}}}"#, "error_pages"),
        (r#"{"error_pages":{"503":{"body":"","content_type":"a\nb"}}}"#, "error_pages.content_type"),
        (r#"{"pause":{"wait_ms":0}}"#, "pause.wait_ms"),
        (r#"{"pause":{"most":4097}}"#, "pause.most"),
        (r#"{"sticky":{"cookie":""}}"#, "sticky.cookie"),
        (r#"{"sticky":{"ttl_seconds":0}}"#, "sticky.ttl_seconds"),
        (r#"{"retries":{"attempts":0}}"#, "retries.attempts"),
        (r#"{"retries":{"budget_percent":101}}"#, "retries.budget_percent"),
        (r#"{"retries":{"timeout_ms":0}}"#, "retries.timeout_ms"),
        (r#"{"ejection":{"failures":0}}"#, "ejection.failures"),
        (r#"{"ejection":{"first_ms":9,"longest_ms":8}}"#, "ejection.longest_ms"),
        (r#"{"ejection":{"longest_ms":1}}"#, "ejection.longest_ms"),
        (r#"{"timeouts":{"connect_ms":0}}"#, "timeouts.connect_ms"),
        (r#"{"limits":{"requests":{"per_second":0}}}"#, "limits.requests.per_second"),
        (r#"{"limits":{"requests":{"per_second":1,"burst":1000001}}}"#, "limits.requests.burst"),
        (r#"{"limits":{"requests":{"per_second":1,"by":{"header":"a:b"}}}}"#, "limits.requests.by"),
        (r#"{"limits":{"connections":{"most":0}}}"#, "limits.connections.most"),
        (r#"{"methods":[]}"#, "methods"),
        (r#"{"methods":["GET /"]}"#, "methods"),
        (r#"{"headers":{"request":{"set":{"Connection":"x"}}}}"#, "headers.request"),
        (r#"{"headers":{"request":{"remove":["HOST"]}}}"#, "headers.request"),
        (r#"{"headers":{"request":{"set":{"X-Forwarded-For":"::1"}}}}"#, "headers.request"),
        (r#"{"headers":{"response":{"set":{"X-A":"1\r\nSet-Cookie: a=b"}}}}"#, "headers.response"),
        (r#"{"headers":{"response":{"set":{"X-Signalbox-Error":"none"}}}}"#, "headers.response"),
        (r#"{"headers":{"response":{"set":{"X-A":"1"},"remove":["x-a"]}}}"#, "headers.response"),
        (r#"{"headers":{"response":{"set":{"":"1"}}}}"#, "headers.response"),
        (r#"{"maintenance":{"status":99}}"#, "maintenance.status"),
        (r#"{"maintenance":{"status":199}}"#, "maintenance.status"),
        (r#"{"maintenance":{"status":444}}"#, "maintenance.status"),
        (r#"{"maintenance":{"status":497}}"#, "maintenance.status"),
        (r#"{"maintenance":{"content_type":"a\nb"}}"#, "maintenance.content_type"),
        (r#"{"maintenance":{"except_header":{"name":"","value":"1"}}}"#, "maintenance.except_header"),
        (r#"{"access":{"allow":[]}}"#, "access.allow"),
        (r#"{"access":{"deny":["10.0.0.0/33"]}}"#, "access.deny"),
        (r#"{"access":{"allow":["10.1.0.0/16"],"deny":["10.0.0.0/8"]}}"#, "access.allow"),
        (r#"{"access":{"basic":{"users":{}}}}"#, "access.basic.users"),
        (r#"{"access":{"basic":{"users":{"ann":"secret"}}}}"#, "access.basic.users"),
        (r#"{"access":{"basic":{"users":{"a:b":"(hidden)"}}}}"#, "access.basic.users"),
        (r#"{"access":{"forward":{"service":"a b"}}}"#, "access.forward.service"),
        (r#"{"access":{"forward":{"service":"a.test","path":"x"}}}"#, "access.forward.path"),
        (r#"{"access":{"forward":{"service":"a.test","copy":["Host"]}}}"#, "access.forward.copy"),
        (r#"{"access":{"forward":{"service":"a.test","send":["Content-Length"]}}}"#, "access.forward.send"),
        (r#"{"access":{"forward":{"service":"a.test","cache_seconds":0}}}"#, "access.forward.cache_seconds"),
        (r#"{"access":{"basic":{"users":{"a":"(hidden)"}},"forward":{"service":"a.test"}}}"#, "access"),
        (r#"{"redirect":{"to":"//evil.test"}}"#, "redirect.to"),
        (r#"{"redirect":{"to":"https://a@evil.test"}}"#, "redirect.to"),
        (r#"{"redirect":{"to":"https://a.test/","keep_path":true}}"#, "redirect.to"),
        (r#"{"redirect":{"to":"https://a.test","status":303}}"#, "redirect.status"),
        (r#"{"paths":[{"path":"/a"}]}"#, "paths"),
        (r#"{"paths":[{"path":"/a","redirect":{"to":"/b"},"service":"a.test"}]}"#, "paths"),
        (r#"{"paths":[]}"#, "paths"),
        (r#"{"paths":[{"path":"api","service":"a.test"}]}"#, "paths.path"),
        (r#"{"paths":[{"path":"/api/","service":"a.test"}]}"#, "paths.path"),
        (r#"{"paths":[{"path":"/a//b","service":"a.test"}]}"#, "paths.path"),
        (r#"{"paths":[{"path":"/a/../b","service":"a.test"}]}"#, "paths.path"),
        (r#"{"paths":[{"path":"/a%20b","service":"a.test"}]}"#, "paths.path"),
        (r#"{"paths":[{"path":"/a;b","service":"a.test"}]}"#, "paths.path"),
        (r#"{"paths":[{"path":"/a","service":"a b"}]}"#, "paths.service"),
        (r#"{"paths":[{"path":"/a","service":"*.test"}]}"#, "paths.service"),
        (r#"{"paths":[{"path":"/","service":"a.test","strip":true}]}"#, "paths.strip"),
        (
            r#"{"paths":[{"path":"/a","service":"a.test"},{"path":"/a","match":"prefix","service":"b.test"}]}"#,
            "paths.path",
        ),
        (r#"{"upstream":{"server_name":"a b"}}"#, "upstream.server_name"),
        (r#"{"upstream":{"server_name":"app.internal"}}"#, "upstream.tls"),
    ] {
        let error = check(json).map(|_| json).unwrap_err();
        assert_eq!((error.code, error.field), ("invalid_policy", field), "{json}: {}", error.detail);
    }
    let long = format!(r#"{{"maintenance":{{"body":"{}"}}}}"#, "a".repeat(8193));
    assert_eq!(check(&long).unwrap_err().field, "maintenance.body");
}

/// `lua/spec/policy_spec.lua` tests the edge with the same file.
#[test]
fn the_edge_has_the_same_ranges_reserved_headers_and_hot_path() {
    #[derive(Deserialize)]
    struct Rules {
        ranges: Vec<Range>,
        reserved_headers: Vec<String>,
        on_hot_path: Vec<serde_json::Value>,
        off_hot_path: Vec<serde_json::Value>,
    }
    #[derive(Deserialize)]
    struct Range {
        policy: serde_json::Value,
        accepted: Vec<serde_json::Value>,
        rejected: Vec<serde_json::Value>,
    }
    let rules: Rules = serde_json::from_str(include_str!("../../../../tests/policy_rules.json")).unwrap();
    let accepts =
        |json: &str| serde_json::from_str::<Policy>(json).is_ok_and(|policy| policy.check().is_ok());
    for range in &rules.ranges {
        let with =
            |value: &serde_json::Value| range.policy.to_string().replace("\"VALUE\"", &value.to_string());
        for value in &range.accepted {
            assert!(accepts(&with(value)), "{}", with(value));
        }
        for value in &range.rejected {
            assert!(!accepts(&with(value)), "{}", with(value));
        }
    }
    assert_eq!(rules.reserved_headers, guards::RESERVED);
    for policy in &rules.on_hot_path {
        assert!(!check(&policy.to_string()).unwrap().counts_in_flight(), "{policy}");
    }
    for policy in &rules.off_hot_path {
        assert!(check(&policy.to_string()).unwrap().counts_in_flight(), "{policy}");
    }
}

#[test]
fn a_host_cannot_be_a_service_of_itself() {
    let policy = check(r#"{"paths":[{"path":"/a","service":"A.test."}]}"#).unwrap();
    assert_eq!(policy.services().collect::<Vec<_>>(), ["a.test"]);
    let host = |name: &str| Hostname::parse(name).unwrap();
    assert_eq!(policy.check_for(&host("a.test")).unwrap_err().field, "service");
    policy.check_for(&host("*.test")).unwrap();
}

#[test]
fn passwords_are_hidden_and_kept() {
    let hash = format!("$6$ab${}", "x".repeat(86));
    let json = |hash: &str| {
        let basic = format!(r#"{{"basic":{{"users":{{"ann":"{hash}"}}}}}}"#);
        format!(r#"{{"access":{basic},"paths":[{{"path":"/a","access":{basic}}}]}}"#)
    };
    let stored = check(&json(&hash)).unwrap();
    let mut shown = serde_json::to_value(&stored).unwrap();
    Policy::hide_passwords(&mut shown);
    assert_eq!(
        shown.to_string(),
        check(&json("(hidden)")).map(|p| serde_json::to_value(p).unwrap().to_string()).unwrap()
    );
    let again: Policy = serde_json::from_value(shown).unwrap();
    assert_eq!(again.clone().check().unwrap().keep_hidden(Some(&stored)), Ok(stored));
    assert_eq!(again.keep_hidden(None).unwrap_err().field, "access.basic.users");
}

#[test]
fn checks_are_listed_in_their_order() {
    let policy = check(
        r#"{"access":{"deny":["10.0.0.1"],"forward":{"service":"a.test"}},"https":"only","body_bytes":5,"maintenance":{}}"#,
    );
    let expected = ["addresses", "https", "maintenance", "forward", "body_bytes"];
    assert_eq!(policy.unwrap().checks(None), expected);
}

#[test]
fn unknown_fields_are_named() {
    for (json, name) in [
        (r#"{"balanse":{}}"#, "balanse"),
        (r#"{"retries":{"atempts":1}}"#, "atempts"),
        (r#"{"ejection":{"failure":1}}"#, "failure"),
        (r#"{"limits":{"requests":{"per_second":1,"per_minute":1}}}"#, "per_minute"),
        (r#"{"headers":{"request":{"add":{}}}}"#, "add"),
        (r#"{"weights":{"127.0.0.1:1":3}}"#, "weights"),
        (r#"{"draining":[]}"#, "draining"),
    ] {
        let error = serde_json::from_str::<Policy>(json).unwrap_err().to_string();
        assert!(error.starts_with(&format!("unknown field `{name}`")), "{json}: {error}");
    }
    assert!(serde_json::from_str::<Policy>(r#"{"ejection":true}"#).is_err());
}

/// A stored policy is accepted again, unchanged.
#[test]
fn fuzz_policies() {
    let examples = [
        r#"{"balance":{"algorithm":"hash","header":"X-User"},"shares":[{"version_type":"17","percent":99.5},{"version_type":"18","percent":0.5}],"shares_by":{"header":"X-Version","cookie":"v"},"sticky":{"cookie":"s","ttl_seconds":3600},"slow_start_ms":30000}"#,
        r#"{"retries":{"attempts":3,"budget_percent":20,"timeout_ms":10000},"ejection":{"failures":5,"first_ms":1000,"longest_ms":60000},"hold_ms":5000,"timeouts":{"connect_ms":1,"read_ms":2,"send_ms":3},"buffering":true}"#,
        r#"{"limits":{"requests":{"per_second":100,"burst":50,"by":{"header":"X-Key"}},"connections":{"most":100,"by":"host"}},"body_bytes":1048576,"methods":["GET","POST"],"https":"redirect","ejection":false}"#,
        r#"{"headers":{"request":{"set":{"X-Env":"live"},"remove":["X-Debug"]},"response":{"set":{"X-Frame-Options":"DENY"}}},"maintenance":{"status":503,"body":"back soon","content_type":"text/plain","retry_after":60,"except_header":{"name":"X-Preview","value":"1"}},"upstream":{"tls":true,"server_name":"app.internal","verify":true,"protocol":"grpc"},"target_header":true}"#,
        r#"{"access":{"allow":["10.0.0.0/8","fd00::/8"],"deny":["10.1.0.1","::ffff:10.2.0.0/112"],"basic":{"realm":"Staff","users":{"ann":"$5$abcdefgh$ZLVGB1aDyxIdxV5VVeKcoQGwDaoKoWfKRbrdZcb7MC7"}}},"redirect":{"host":"www.a.test","status":308}}"#,
        r#"{"access":{"forward":{"service":"auth.internal","path":"/verify","send":["X-Key"],"copy":["X-User"],"cache_seconds":60,"timeout_ms":500}},"paths":[{"path":"/api","service":"orders.internal","strip":true},{"path":"/health","match":"exact","access":{}},{"path":"/old","redirect":{"to":"https://b.test/new"}}]}"#,
    ];
    let words = [
        "\"access\":",
        "\"allow\":",
        "\"paths\":",
        "/..",
        "::/0",
        "/33",
        "$6$rounds=1$",
        "null",
        "-1",
        "1e308",
        "18446744073709551616",
        "\"\"",
        "\\u0000",
        "\\r\\n",
        "{}",
        "[]",
        "true",
        ",",
        ":",
        "\"by\":",
        "\"header\":",
        "\"requests\":",
        "\"hash\"",
        "\"least\"",
        "\"failures\":",
        "\"cookie\":",
        "\"only\"",
        "0",
    ];
    let mut fuzz = signalbox_testkit::Fuzz::new("policies", examples, &words);
    while let Some(bytes) = fuzz.input() {
        let Ok(policy) = serde_json::from_slice::<Policy>(&bytes) else { continue };
        let Ok(checked) = policy.check() else { continue };
        let stored = serde_json::to_string(&checked).unwrap();
        let again: Policy = serde_json::from_str(&stored).unwrap_or_else(|error| panic!("{stored}: {error}"));
        let again = again.check().unwrap_or_else(|invalid| panic!("{stored}: {invalid:?}"));
        assert_eq!(serde_json::to_string(&again).unwrap(), stored);
        fuzz.accepted();
    }
}
