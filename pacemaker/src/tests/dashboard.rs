//! The dashboard's HTTP interface, with the requests of a browser.

use super::*;

const EVIL: &str = "<script>alert(1)</script>";

/// Sends requests like a browser. It does not follow redirects, so that tests can check them.
struct Browser<'a> {
    api: &'a Api,
    client: reqwest::Client,
    cookie: String,
}

impl<'a> Browser<'a> {
    fn new(api: &'a Api) -> Self {
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(Duration::from_secs(30))
            .build()
            .unwrap();
        Self { api, client, cookie: String::new() }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("{}{path}", self.api.base))
            .header("accept", "text/html")
            .header("cookie", &self.cookie)
    }

    async fn get(&self, path: &str) -> Reply {
        read(self.request(Method::GET, path)).await
    }

    async fn try_login(&self, token: &str, next: &str) -> Reply {
        let body: String = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("token", token), ("next", next)])
            .finish();
        let request = self.request(Method::POST, "/dashboard/login");
        read(request.header("content-type", "application/x-www-form-urlencoded").body(body)).await
    }

    async fn login(mut self, token: &str) -> Self {
        let reply = self.try_login(token, "").await;
        assert_eq!(
            (reply.status.as_u16(), &reply.headers["location"]),
            (303, &"/".parse().unwrap()),
            "{reply:?}"
        );
        let cookie = reply.headers["set-cookie"].to_str().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        assert!(!cookie.contains(token), "{cookie}");
        self.cookie = cookie.split(';').next().unwrap().to_owned();
        self
    }

    /// The CSRF value that a page of the session gives to its scripts.
    async fn csrf(&self) -> String {
        let page = self.get("/").await.text;
        let (_, rest) = page.split_once(r#"<meta name="csrf" content=""#).unwrap();
        rest.split('"').next().unwrap().to_owned()
    }

    async fn watch(&self, path: &str) -> Stream {
        let response = self.request(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Stream { response, buffer: String::new() }
    }
}

/// An open stream.
struct Stream {
    response: reqwest::Response,
    buffer: String,
}

impl Stream {
    /// The next `event` whose data has all of `texts`.
    async fn until(&mut self, event: &str, texts: &[&str]) -> String {
        let seen = tokio::time::timeout(signalbox_testkit::PATIENCE, async {
            loop {
                while let Some((message, rest)) = self.buffer.split_once("\n\n") {
                    let found = message.starts_with(&format!("event: {event}\n"))
                        && texts.iter().all(|text| message.contains(text));
                    let message = message.to_owned();
                    self.buffer = rest.to_owned();
                    if found {
                        return message;
                    }
                }
                let chunk = self.response.chunk().await.unwrap().expect("the stream is open");
                self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
            }
        });
        seen.await.unwrap_or_else(|_| panic!("no {event} with {texts:?} arrived"))
    }
}

#[tokio::test]
async fn the_book_needs_no_login_and_is_found_with_a_slash_at_its_end() {
    let api = Api::start().await;
    let browser = Browser::new(&api);
    assert!(browser.get("/docs").await.text.contains("The Signalbox book"));
    let moved = browser.get("/docs/").await;
    assert_eq!((moved.status.as_u16(), &moved.headers["location"]), (308, &"/docs".parse().unwrap()));
    assert_eq!(browser.get("/docs/nothing").await.status, 404);
}

#[tokio::test]
async fn a_login_requires_a_token_with_the_scope_read() {
    let api = Api::start().await;
    let browser = Browser::new(&api);
    let page = browser.get("/dashboard/host?name=a.example").await;
    assert_eq!(page.status, 303);
    assert_eq!(page.headers["location"], "/dashboard/login?next=%2Fdashboard%2Fhost%3Fname%3Da.example");
    let form = browser.get("/dashboard/login?next=%2Fdashboard%2Fhost%3Fname%3Da.example").await;
    assert!(form.status == 200 && form.text.contains(r#"name="token""#), "{form:?}");
    let back = browser.try_login(ROOT, "/dashboard/host?name=a.example").await;
    assert_eq!(back.headers["location"], "/dashboard/host?name=a.example");
    let away = browser.try_login(ROOT, "https://evil.example/").await;
    assert_eq!(away.headers["location"], "/");

    let unknown = browser.try_login("nonsense-nonsense", "").await;
    assert!(unknown.status == 401 && unknown.text.contains("Invalid token."), "{unknown:?}");
    let publisher = api.token("publisher", &["publish"], None).await;
    let publisher = browser.try_login(&publisher, "").await;
    assert!(publisher.status == 401 && publisher.text.contains("scope read"), "{publisher:?}");
    assert!(!publisher.headers.contains_key("set-cookie"));

    let reader = api.token("reader", &["read"], None).await;
    let browser = browser.login(&reader).await;
    let page = browser.get("/").await;
    assert!(page.status == 200 && page.text.contains("Log out reader"), "{page:?}");
    // Revoking a token ends its sessions with their next request.
    assert_eq!(api.delete("/tokens/reader").await.status, 204);
    assert_eq!(browser.get("/").await.status, 303);
}

#[tokio::test]
async fn a_bus_client_with_the_scope_read_can_log_in() {
    let api = Api::start().await;
    let body = json!({"name": "shop", "scopes": ["read", "publish"]});
    let made = api.post("/api_tokens", &body).await;
    assert!(made.status.is_success(), "{made:?}");
    let token = made.json()["token"].as_str().unwrap().to_owned();
    let browser = Browser::new(&api).login(&token).await;
    assert!(browser.get("/").await.text.contains("Log out shop"));
}

#[tokio::test]
async fn a_client_that_is_not_a_browser_gets_401_instead_of_a_redirect() {
    let api = Api::start().await;
    let anonymous = read(api.client.get(format!("{}/", api.base))).await;
    assert_eq!(
        (anonymous.status.as_u16(), &anonymous.headers["www-authenticate"]),
        (401, &"Basic realm=\"signalbox\"".parse().unwrap())
    );
    let page = read(api.client.get(format!("{}/", api.base)).basic_auth(ROOT, Some(""))).await;
    assert_eq!(page.status, 200);
    assert_eq!(api.get("/dashboard/nothing").await.code(), "unknown_page");
    assert_eq!(api.get("/dashboard/assets/nothing").await.code(), "unknown_asset");
    assert_eq!(api.get("/dashboard/stream?page=nothing").await.code(), "unknown_page");
}

#[tokio::test]
async fn a_change_requires_the_csrf_value_of_its_session() {
    let api = Api::start().await;
    api.put("/instances/i-1", &instance(9001, &["shop.example"])).await;
    let browser = Browser::new(&api).login(ROOT).await;
    let drain = || browser.request(Method::POST, "/instances/i-1/drain");
    assert_eq!(read(drain()).await.code(), "csrf");
    let other = Browser::new(&api).login(ROOT).await.csrf().await;
    assert_eq!(
        read(drain().header("x-signalbox-csrf", other)).await.code(),
        "csrf",
        "the value of another session"
    );
    let csrf = browser.csrf().await;
    let forged = drain().header("x-signalbox-csrf", &csrf).header("sec-fetch-site", "same-site");
    assert_eq!(read(forged).await.code(), "cross_site");
    let basic = api.client.post(format!("{}/instances/i-1/drain", api.base)).basic_auth(ROOT, Some(""));
    assert_eq!(read(basic.header("sec-fetch-site", "cross-site")).await.code(), "cross_site");
    assert_eq!(api.get("/instances/i-1").await.json()["state"], "active");

    let done = drain().header("x-signalbox-csrf", &csrf).header("sec-fetch-site", "same-origin");
    assert_eq!(read(done).await.status, 200);
    assert_eq!(api.get("/instances/i-1").await.json()["state"], "draining");
    // Reading through the API needs only the session, because an EventSource cannot send a header.
    assert_eq!(browser.get("/instances/i-1").await.status, 200);
    let out = browser.request(Method::POST, "/dashboard/logout").header("sec-fetch-site", "same-origin");
    let out = read(out).await;
    assert!(out.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"), "{out:?}");
}

#[tokio::test]
async fn pages_and_actions_are_limited_to_the_scopes_and_hosts_of_the_token() {
    let api = Api::start().await;
    api.put("/instances/i-1", &instance(9001, &["shop.example"])).await;
    api.put("/instances/i-2", &instance(9002, &["other.example"])).await;
    let reader = api.token("reader", &["read"], Some(&["shop.example"])).await;
    let browser = Browser::new(&api).login(&reader).await;
    let csrf = browser.csrf().await;
    let drain = browser.request(Method::POST, "/instances/i-1/drain").header("x-signalbox-csrf", &csrf);
    assert_eq!(read(drain).await.code(), "scope_missing");
    let host = browser.get("/dashboard/host?name=shop.example").await.text;
    assert!(host.contains("127.0.0.1:9001") && !host.contains("/instances/i-1/drain"), "{host}");
    for page in ["/", "/dashboard/host"] {
        let text = browser.get(page).await.text;
        assert!(text.contains("shop.example") && !text.contains("other.example"), "{page}: {text}");
    }
    let other = browser.get("/dashboard/host?name=other.example").await;
    assert!(other.status == 403 && !other.text.contains("9002"), "{other:?}");
    let root = Browser::new(&api).login(ROOT).await;
    assert!(root.get("/dashboard/host?name=shop.example").await.text.contains("/instances/i-1/drain"));
}

#[tokio::test]
async fn pages_load_only_their_own_files_and_contain_no_inline_code() {
    let api = Api::start().await;
    api.put("/instances/i-1", &instance(9001, &["shop.example"])).await;
    let browser = Browser::new(&api).login(ROOT).await;
    let pages = ["/", "/dashboard/host", "/dashboard/host?name=shop.example", "/dashboard/login"];
    let others = [
        "/dashboard/problems",
        "/dashboard/instances",
        "/dashboard/instances?name=i-1",
        "/dashboard/routers",
        "/dashboard/certificates",
        "/dashboard/events",
        "/dashboard/topics",
        "/dashboard/subscribers",
        "/dashboard/queues",
        "/dashboard/objects",
        "/dashboard/machines",
        "/dashboard/tokens",
        "/dashboard/audit",
    ];
    for page in pages.into_iter().chain(others) {
        let reply = browser.get(page).await;
        assert_eq!(reply.status, 200, "{page}");
        let policy = reply.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
        for (attribute, rest) in ["src=\"", "href=\"", "action=\""]
            .iter()
            .flat_map(|attribute| reply.text.split(attribute).skip(1).map(move |rest| (attribute, rest)))
        {
            let to = rest.split('"').next().unwrap();
            assert!(
                (to.starts_with('/') && !to.starts_with("//")) || to.starts_with('#'),
                "{page}: {attribute}{to}"
            );
        }
        for inside in ["<style", " style=", " onclick=", "<script>", "javascript:"] {
            assert!(!reply.text.contains(inside), "{page}: {inside}");
        }
        for asset in reply.text.split("/dashboard/assets/").skip(1) {
            let asset = asset.split('"').next().unwrap();
            let loaded = read(api.client.get(format!("{}/dashboard/assets/{asset}", api.base))).await;
            assert_eq!(loaded.status, 200, "{asset}");
            assert!(loaded.headers["cache-control"].to_str().unwrap().contains("immutable"));
            for elsewhere in ["@import", "url(http", "fetch(\"http", "importScripts", "eval("] {
                assert!(!loaded.text.contains(elsewhere), "{asset}: {elsewhere}");
            }
        }
    }
}

#[tokio::test]
async fn values_from_clients_are_escaped() {
    let api = Api::start().await;
    let mut body = instance(9001, &["shop.example"]);
    body["version_type_id"] = json!("<b>17</b>");
    assert_eq!(api.put("/instances/i-1", &body).await.status, 201);
    api.post("/instances/i-1/errors", &json!({"message": EVIL})).await;
    let by_hand = api.servers.routes();
    by_hand.command("SADD").arg("instances:shop.example").arg(EVIL).run().await.unwrap();
    let browser = Browser::new(&api).login(ROOT).await;
    for page in
        ["/", "/dashboard/host?name=shop.example", "/dashboard/host?name=%3Cscript%3Ealert(1)%3C/script%3E"]
    {
        let text = browser.get(page).await.text;
        assert!(!text.contains("<script>") && !text.contains("<b>17"), "{page}: {text}");
    }
    let host = browser.get("/dashboard/host?name=shop.example").await.text;
    assert!(host.contains("&#60;b&#62;17&#60;/b&#62;") && host.contains("&#60;script&#62;alert"), "{host}");
}

#[tokio::test]
async fn a_stream_sends_changes_and_reads_nothing_after_it_closes() {
    let api = Api::start().await;
    let browser = Browser::new(&api).login(ROOT).await;
    let mut stream = browser.watch("/dashboard/stream?page=overview").await;
    stream.until("page", &["No hosts yet"]).await;
    api.put("/instances/i-1", &instance(9001, &["new.example"])).await;
    let page = stream.until("page", &["new.example"]).await;
    assert!(page.contains("data: \""), "one line of JSON: {page}");

    let stats = api.servers.stats();
    let second = stats.now_ms().await.unwrap() / 1000 - 30;
    let history = format!("history:17:{}:requests", second - second % 3600);
    stats.command("HSET").arg(history).arg(second).arg(4711).run().await.unwrap();
    let latency = format!("latency:17:{}:192", second - second % 3600);
    stats.command("HSET").arg(latency).arg(second - second % 60).arg(8).run().await.unwrap();
    let mut host = browser.watch("/dashboard/stream?page=host&name=new.example").await;
    let charts = host.until("charts", &["471.1"]).await;
    assert!(charts.contains(r#""id":"traffic""#) && charts.contains(r#""id":"latency""#), "{charts}");
    assert!(browser.get("/dashboard/host?name=new.example").await.text.contains(">78<"), "4711 a minute");
    // Between 128 and 192. A reading of histograms is reused for some seconds.
    eventually("percentiles", async || {
        let page = browser.get("/").await.text;
        if page.contains("160 / 189 / 191 ms") { Ok(()) } else { Err(page) }
    })
    .await;

    // A stream ends with its connection. The time between both readings of the server's counters is longer than the refresh
    // interval of a stream.
    drop((stream, host));
    eventually("no more reads", async || {
        let commands = async || -> u64 {
            let info: String = stats.command("INFO").arg("commandstats").query().await.unwrap();
            let line = info.lines().find(|line| line.starts_with("cmdstat_hmget:")).unwrap_or_default();
            line.split_once("calls=").and_then(|(_, rest)| rest.split(',').next()?.parse().ok()).unwrap_or(0)
        };
        let before = commands().await;
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let after = commands().await;
        if before == after { Ok(()) } else { Err(format!("{before}, then {after}")) }
    })
    .await;
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let api = Api::start().await;
    let reader = api.token("reader", &["read"], None).await;
    let browser = Browser::new(&api).login(&reader).await;
    let mut stream = browser.request(Method::GET, "/dashboard/stream?page=overview").send().await.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    api.delete("/tokens/reader").await;
    let ended = async { while stream.chunk().await.unwrap().is_some() {} };
    tokio::time::timeout(signalbox_testkit::PATIENCE, ended).await.expect("the stream ends");
}

#[tokio::test]
async fn findings_are_shown() {
    let mut api = Api::start().await;
    api.put("/instances/i-1", &instance(9001, &["shop.example"])).await;
    let browser = Browser::new(&api).login(ROOT).await;
    assert!(browser.get("/").await.text.contains("No router has reported"));
    api.delete("/instances/i-1").await;
    assert!(browser.get("/").await.text.contains("shop.example has no instance."));
    api.servers.stats.kill();
    let page = Browser { api: &api, client: reqwest::Client::new(), cookie: String::new() };
    let page = read(page.request(Method::GET, "/").basic_auth(ROOT, Some(""))).await;
    assert!(
        page.status == 200 && page.text.contains("The stats Redis does not respond: PING failed."),
        "{page:?}"
    );
    api.servers.routes.kill();
    let page = read(api.client.get(format!("{}/", api.base)).basic_auth(ROOT, Some(""))).await;
    assert!(
        page.status == 200 && page.text.contains("The routes Redis does not respond: PING failed."),
        "{page:?}"
    );
}

#[tokio::test]
async fn pages_show_events_queues_and_objects_and_hide_them_from_other_tenants() {
    let api = Api::start().await;
    api.post("/api_tokens", &json!({"name": "mailer", "token": "mailer--0123456789abcdef"})).await;
    let subscription = json!({"topics": ["orders"], "callback": "https://mail.example/hook?key=secret"});
    let subscribed = read(
        api.client
            .post(format!("{}/subscription", api.base))
            .bearer_auth("mailer--0123456789abcdef")
            .json(&subscription),
    );
    assert_eq!(subscribed.await.status, 204);
    let queue = api.put("/queues/mail", &json!({"pattern": ".*:create:orders"})).await;
    assert!(queue.status.is_success(), "{queue:?}");
    let object = format!("order/1 {EVIL}");
    for n in 0..2 {
        let event = json!({"type": "create", "url": "https://shop.example/1", "object": object, "tenant": EVIL, "data": {"n": n}});
        let published = api.post("/topics/orders", &event).await;
        assert_eq!(published.status, 200, "{published:?}");
    }
    let browser = Browser::new(&api).login(ROOT).await;
    let topics = browser.get("/dashboard/topics").await.text;
    assert!(topics.contains("<code>orders</code>"), "{topics}");
    let events = browser.get("/dashboard/subscribers").await.text;
    assert!(events.contains(r#"name=mailer">"#), "{events}");
    let mailer = browser.get("/dashboard/subscribers?name=mailer").await.text;
    assert!(mailer.contains("https://mail.example/hook?key=secret"), "{mailer}");
    assert!(mailer.contains("/subscriber/replay?subscriber=mailer"), "{mailer}");
    let queues = browser.get("/dashboard/queues").await.text;
    assert!(queues.contains("/dashboard/queues?name=mail"), "{queues}");
    let queue = browser.get("/dashboard/queues?name=mail&sort=age").await.text;
    assert!(queue.contains("&#60;script&#62;"), "{queue}");
    assert!(
        queue.contains(r#"aria-sort="ascending"><a href="/dashboard/queues?name=mail&#38;sort=-age">"#),
        "{queue}"
    );
    let name: String = url::form_urlencoded::byte_serialize(object.as_bytes()).collect();
    let chain = browser.get(&format!("/dashboard/objects?name={name}")).await.text;
    assert!(chain.contains("{&#34;n&#34;:0}") && chain.contains("none (first event)"), "{chain}");
    for page in [&events, &mailer, &queues, &queue, &chain] {
        assert!(!page.contains("<script>"), "{page}");
    }
    let unknown = browser.get("/dashboard/objects?name=nobody").await;
    assert!(
        unknown.status == 404 && unknown.text.contains("Unknown object <code>nobody</code>"),
        "{unknown:?}"
    );
    for page in ["/dashboard/queues?name=none", "/dashboard/subscribers?name=none"] {
        assert_eq!(browser.get(page).await.status, 404, "{page}");
    }

    // A token with only `read` sees no credentials and no buttons; a tenant sees nothing of other tenants.
    let reader = api.token("reader", &["read"], None).await;
    let reader = Browser::new(&api).login(&reader).await;
    let mailer = reader.get("/dashboard/subscribers?name=mailer").await.text;
    assert!(!mailer.contains("key=secret") && !mailer.contains("class=\"act"), "{mailer}");
    let queue = reader.get("/dashboard/queues?name=mail").await.text;
    assert!(!queue.contains("class=\"act"), "{queue}");
    let body = json!({"name": "tenant", "scopes": ["read"], "tenants": ["other"]});
    let tenant = api.post("/tokens", &body).await.json()["token"].as_str().unwrap().to_owned();
    let tenant = Browser::new(&api).login(&tenant).await;
    let chain = tenant.get(&format!("/dashboard/objects?name={name}")).await;
    assert!(chain.status == 403 && chain.text.contains("confined to tenants"), "{chain:?}");
    let queue = tenant.get("/dashboard/queues?name=mail").await.text;
    assert!(!queue.contains("script&#62;") && queue.contains("No messages."), "{queue}");
}

#[tokio::test]
async fn a_server_that_hangs_delays_no_page() {
    let api = Api::start().await;
    api.put("/instances/i-1", &instance(9001, &["shop.example"])).await;
    let browser = Browser::new(&api).login(ROOT).await;
    browser.get("/").await;
    let stats = api.servers.stats();
    stats.command("CLIENT").arg("PAUSE").arg(60_000).arg("ALL").run().await.unwrap();
    // A command to the server would fail after five seconds, with another message: the pages do not wait for that.
    for page in ["/", "/dashboard/host?name=shop.example", "/dashboard/routers", "/dashboard/problems"] {
        let shown = browser.get(page).await.text;
        assert!(shown.contains("does not respond"), "{page}: {shown}");
    }
    assert!(browser.get("/").await.text.contains("shop.example"), "hosts do not need the statistics");
    assert!(browser.get("/dashboard/host").await.text.contains("shop.example"));
}

#[tokio::test]
async fn an_unknown_page_or_parameter_is_answered_with_a_page() {
    let api = Api::start().await;
    let browser = Browser::new(&api).login(ROOT).await;
    let unknown = browser.get("/dashboard/nosuch").await;
    assert_eq!(unknown.status, 404);
    assert!(
        unknown.text.contains("<title>") && unknown.text.contains("Unknown page <code>nosuch</code>"),
        "{unknown:?}"
    );
    assert_eq!(browser.get("/dashboard/host?utm=1").await.status, 200);
    let invalid = browser.get("/dashboard/queues?sort=nothing").await;
    assert!(invalid.status == 422 && invalid.text.contains("<code>waiting</code>"), "{invalid:?}");
}
