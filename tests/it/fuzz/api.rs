//! Any request of an operator at the pacemaker: each answer is a success or a problem document, and never an internal error.

use signalbox_testkit::Fuzz;
use signalbox_tests::{
    http::{Connection, Request},
    system::System,
};

/// Method, target, and body after a line break.
const REQUESTS: [&str; 31] = [
    "PUT /instances/i-1\n{\"address\":\"127.0.0.1:9\",\"hostnames\":[\"a.test\"],\"version_type_id\":\"7\",\"weight\":2,\"ttl_ms\":5000}",
    "PUT /instances\n[{\"id\":\"i-2\",\"address\":\"127.0.0.1:9\",\"hostnames\":[\"*.b.test\"],\"health\":{\"path\":\"/h\",\"interval_ms\":5000}}]",
    "GET /instances?limit=2&after=a",
    "DELETE /instances/i-1",
    "PUT /hosts/a.test\n{\"balance\":{\"algorithm\":\"hash\",\"header\":\"X\"},\"shares\":[{\"version_type\":\"7\",\"percent\":50}]}",
    "GET /routes/explain?host=a.test&path=/",
    "GET /routes/dump?format=text",
    "PUT /certificates/a.test\n{\"chain\":\"-----BEGIN CERTIFICATE-----\\nAA==\\n-----END CERTIFICATE-----\",\"key\":\"x\"}",
    "POST /tokens\n{\"name\":\"t\",\"scopes\":[\"read\",\"routes\"],\"hosts\":[\"*.a.test\"],\"expires_at\":\"2286-11-20T17:46:39.999Z\"}",
    "POST /tokens/t/rotate\n{\"overlap_seconds\":5}",
    "DELETE /tokens/t",
    "POST /topics/orders\n{\"type\":\"create\",\"url\":\"https://a.test/1\",\"timestamp\":1,\"data\":{\"a\":[1,null]}}",
    "POST /topics/orders/events\n[{\"type\":\"noop\",\"url\":\"https://a.test/1\",\"tenant\":\"5\",\"object\":\"o\"}]",
    "POST /subscription\n{\"topics\":[\"orders\"],\"callback\":\"https://a.test/hook\",\"uuid\":\"abcdefghijklmnopqrst\",\"max\":10,\"timeout\":500}",
    "GET /topics?limit=5",
    "PUT /queues/mail\n{\"pattern\":\".*:mail:.*\",\"lease_ms\":30000,\"weights\":{\"5\":2}}",
    "POST /messages\n{\"tenant\":\"5\",\"type\":\"mail\",\"name\":\"sent\",\"data\":{\"to\":1}}",
    "POST /queues/mail/pull\n{\"limit\":3}",
    "POST /queues/mail/ack\n{\"receipts\":[\"mail~0~1~1~1~aaaaaaaaaaaaaaaa\"]}",
    "GET /queues/mail/tenants?limit=3&after=5",
    "PUT /backends/b\n{\"callback\":\"https://a.test/b\",\"objects\":\"o:*\"}",
    "GET /objects/o",
    "POST /state-machines/drip/plan\nname: drip\nstates:\n  start:\n    gate: metadata.a = 1\n",
    "PATCH /state-machines/drip/labels/l1\n{\"metadata\":{\"a\":1}}",
    "GET /audit?limit=3&kind=change",
    "GET /check?limit=3",
    "PUT /hosts/b.test\n{\"access\":{\"allow\":[\"10.0.0.0/8\",\"fd00::/8\"],\"deny\":[\"10.1.0.1\"],\"basic\":{\"users\":{\"ann\":\"$5$aaaaaaaa$bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\"}}},\"redirect\":{\"host\":\"www.b.test\"}}",
    "PUT /hosts/c.test/paths\n[{\"path\":\"/api\",\"service\":\"b.test\",\"strip\":true},{\"path\":\"/x\",\"match\":\"exact\",\"access\":{}}]",
    "GET /routes/explain?host=c.test&path=/api/x&method=POST&address=10.0.0.1&scheme=https",
    "GET /topics?limit=1&sort=-events&search=o&cursor=AWE",
    "GET /state-machines/drip/flow?hours=3",
];

const WORDS: [&str; 34] = [
    "null",
    "-1",
    "0",
    "1e400",
    "18446744073709551616",
    "9007199254740993",
    "\"\"",
    "\\u0000",
    "\\ud800",
    "{}",
    "[]",
    "[[[[",
    "true",
    ",",
    ":",
    "/..",
    "%00",
    "%2f",
    "%ff",
    "?limit=",
    "&after=",
    "&wait=1ms",
    "*",
    "*.",
    "signalbox.audit",
    "~",
    "\u{e9}",
    "\n",
    "/",
    "..",
    "\"tenant\":",
    "\"topics\":",
    "\"a\":\"b\"",
    "POST ",
];

/// Characters that a target may contain without encoding.
fn escaped(target: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte);
    target
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn fuzz_admin_api() {
    let system = System::start("fuzz-api").await;
    let mut fuzz = Fuzz::new("admin API", REQUESTS, &WORDS);
    let mut connection = Connection::open(system.pacemaker).await.unwrap();
    while let Some(text) = fuzz.text() {
        let (line, body) =
            text.split_once('\n').map_or((text.as_str(), None), |(line, body)| (line, Some(body)));
        let (method, target) = line.split_once(' ').unwrap_or(("GET", line));
        let is_method = ["GET", "PUT", "POST", "PATCH", "DELETE"].contains(&method);
        // Streams have no end, and long waits would only take time.
        if !is_method || !target.starts_with('/') || target.contains("/events") && method == "GET" {
            continue;
        }
        let target = escaped(&target.replace("wait=", "wait=1ms&w="));
        let kind = if target.contains("/plan") { "application/yaml" } else { "application/json" };
        let mut request = Request::new(method, "localhost", &target).token(&system.token);
        if let Some(body) = body {
            request = request.header("Content-Type", kind).body(body);
        }
        let answer = match connection.send(&request).await {
            Ok(answer) if answer.keeps_alive() => answer,
            // The pacemaker closes a connection after an unread body.
            other => {
                connection = Connection::open(system.pacemaker).await.unwrap();
                match other {
                    Ok(answer) => answer,
                    Err(_) => connection.send(&request).await.unwrap(),
                }
            }
        };
        // On a busy machine, a Redis server may respond too late for a page. Then the page is shown the next time.
        let answer = match answer.status {
            503 => {
                assert_eq!(system.api("GET", "/health/ready", None).await.status, 200);
                connection.send(&request).await.unwrap()
            }
            _ => answer,
        };
        assert!(answer.status < 500, "{} {}", answer.status, answer.text());
        if answer.status < 300 {
            fuzz.accepted();
        } else if answer.status >= 400 {
            let kind = answer.header("Content-Type").unwrap_or_default();
            assert!(kind.starts_with("application/problem+json"), "{} {kind}", answer.status);
            assert!(answer.json()["code"].is_string(), "{}", answer.text());
        }
    }
    let health = system.api("GET", "/health/ready", None).await;
    assert_eq!(health.status, 200, "{}", health.text());
    system.stop().await;
}
