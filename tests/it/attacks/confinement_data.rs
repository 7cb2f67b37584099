//! A token that is confined to a tenant or to hosts tries to read the data of another tenant, everywhere.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    events::Stream,
    http::{Request, Response},
    receiver::{self, Receiver},
    system::System,
    tls::Authority,
    upstream::App,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A text that a confined token must never see. It is in the data of the other tenant, and in no path that the test requests.
const SECRET: &str = "secret-of-six";

const MACHINE: &str = "
state_machines:
  drip:
    states:
      - gate: signed_up
        exit_condition: metadata.confirmed
        triggers: [{metadata: confirmed}]
        next: done
      - gate: done
";

async fn ask(system: &System, token: &str, method: &str, target: &str, body: Option<&Value>) -> Response {
    // The sidecar answers statistics only through the admin listener; all others are forwarded from there, too.
    let request = Request::new(method, &system.admin.to_string(), target).token(token);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    request.send(system.admin).await.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
}

async fn make(system: &System, method: &str, target: &str, body: Value) -> Response {
    let answer = system.api(method, target, Some(body)).await;
    assert!((200..300).contains(&answer.status), "{method} {target}: {}", answer.text());
    answer
}

async fn confined(system: &System, name: &str, scopes: &[&str], lists: &Value) -> String {
    let mut new = json!({"name": name, "scopes": scopes});
    for (list, value) in lists.as_object().unwrap() {
        new[list] = value.clone();
    }
    make(system, "POST", "/tokens", new).await.json()["token"].as_str().unwrap().to_owned()
}

/// Fills every subsystem with data of tenant 6 and host `b.test`.
async fn fill(system: &System, app: &App) {
    let hosts = ["b.test".to_owned(), format!("{SECRET}.test")];
    let instance = json!({"address": app.address.to_string(), "hostnames": hosts, "version_type_id": SECRET,
        "application_id": "application", "node_id": SECRET});
    make(system, "PUT", "/instances/theirs?wait=20s", instance).await;
    // The value of a header is hidden from all readers, the rest of a policy only from other tenants.
    let policy = json!({"headers": {"request": {"set": {"X-Key": SECRET}}},
        "paths": [{"path": "/x", "service": format!("{SECRET}.test")}]});
    make(system, "PUT", "/hosts/b.test?wait=20s", policy).await;
    make(system, "PUT", "/queues/all", json!({"pattern": ".*", "weights": {SECRET: 2}})).await;
    // The name of a tenant can be a secret, too.
    for tenant in ["6", SECRET] {
        let message = json!({"tenant": tenant, "type": "mail", "name": "opened", "payload": SECRET});
        make(system, "POST", "/messages", message).await;
    }
    let authority = Authority::new(SECRET);
    for name in ["b.test".to_owned(), format!("{SECRET}.test")] {
        let issued = authority.issue(&name, SECRET);
        let certificate = json!({"chain": issued.chain, "key": issued.key});
        make(system, "PUT", &format!("/certificates/{name}?wait=20s"), certificate).await;
    }
    let backend = json!({"prefix": "work:", "callback": format!("http://127.0.0.1:9/{SECRET}"), "uuid": "u"});
    make(system, "PUT", "/backends/search", backend).await;
    let event = json!({"topic": "orders", "type": "update", "tenant": "6", "data": SECRET});
    let group = json!({"data": SECRET, "events": [event]});
    make(system, "POST", "/objects/work:6/events", group.clone()).await;
    make(system, "POST", "/objects/plain/events", group).await;
    let subscription =
        json!({"topics": ["orders", "secret_of_six"], "callback": format!("http://127.0.0.1:9/{SECRET}")});
    make(system, "POST", "/subscription", subscription).await;
    system.apply("drip", MACHINE).await;
    make(system, "POST", "/state-machines/drip/labels/one", json!({"metadata": {"word": SECRET}})).await;
    let task = json!({"operation": "evaluate", "filter": {"error": SECRET}});
    make(system, "POST", "/state-machines/drip/tasks", task).await;
}

/// Every GET of the API's own description, with names that exist, and what the description does not have.
async fn targets(system: &System) -> Vec<String> {
    let document = system.api("GET", "/openapi.json", None).await.json();
    let paths = document["paths"].as_object().unwrap();
    let gets = paths.iter().filter(|(_, operations)| operations.get("get").is_some());
    let tasks = system.api("GET", "/state-machines/drip/tasks", None).await.json();
    let task = tasks["tasks"][0]["id"].as_str().unwrap();
    let mut targets: Vec<String> = gets.map(|(path, _)| filled(&path.replace("{task}", task))).collect();
    assert!(targets.len() > 40, "{targets:?}");
    targets.extend(pages(system).await);
    let others = [
        "/dashboard/events?name=root",
        "/dashboard/objects?name=work:6",
        "/dashboard/policy?name=b.test",
        "/stats/application/application",
        "/stats/uncaught",
        "/stats/total",
        "/stats/top",
        "/stats/pacemaker/history",
        "/stats/instance/theirs",
        "/events?tenant=6",
    ];
    targets.extend(others.map(str::to_owned));
    targets
}

/// The pages of the dashboard that links lead root to. Lists in another order are omitted, and pages whose name is [`SECRET`],
/// because a refusal may contain the name that was requested.
async fn pages(system: &System) -> Vec<String> {
    let mut pages = vec!["/dashboard/overview".to_owned()];
    let mut read = 0;
    while let Some(page) = pages.get(read).cloned() {
        read += 1;
        let text = system.api("GET", &page, None).await.text();
        for link in text.split("href=\"").skip(1) {
            let link = link.split('"').next().unwrap().replace("&#38;", "&").replace("&amp;", "&");
            let query = link.split_once('?').map_or("", |(_, query)| query);
            let of_one = ["name=", "label=", "queue=", "tenant="];
            let plain = query
                .split('&')
                .all(|pair| pair.is_empty() || of_one.iter().any(|known| pair.starts_with(known)));
            let is_page = link.starts_with("/dashboard/") && !link.starts_with("/dashboard/assets/");
            let is_secret = link.replace('_', "-").contains(SECRET);
            if is_page && plain && !is_secret && !pages.contains(&link) {
                pages.push(link);
            }
        }
    }
    for page in ["host?name=b.test", "instances?name=theirs", "queues?name=all", "label?name=drip&label=one"]
    {
        assert!(pages.iter().any(|known| *known == format!("/dashboard/{page}")), "{page}: {pages:?}");
    }
    pages
}

fn filled(path: &str) -> String {
    let name = match path.split('/').nth(1).unwrap_or_default() {
        "queues" => "all",
        "backends" => "search",
        "instances" => "theirs",
        _ => "orders",
    };
    let path = path.replace("{name}", name).replace("{id}", "theirs").replace("{object}", "work:6");
    let path = path.replace("{hostname}", "b.test").replace("{server_name}", "b.test");
    let path = path
        .replace("{machine}", "drip")
        .replace("{label}", "one")
        .replace("{version}", "1")
        .replace("{task}", "1");
    let path = path.replace("{tenant}", "6");
    let path = if path == "/routes/explain" { "/routes/explain?host=b.test".to_owned() } else { path };
    assert!(!path.contains('{'), "{path}: a parameter without a value in this test");
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn no_confined_token_reads_the_data_of_another_tenant() {
    let system =
        System::with("attack-confined", |builder| builder.pacemaker("bus", receiver::allowed())).await;
    let app = App::start("theirs").await;
    fill(&system, &app).await;
    let tenant = json!({"tenants": ["5"]});
    let hosts = json!({"hosts": ["*.a.test"]});
    let both = json!({"tenants": ["5"], "hosts": ["*.a.test"]});
    let tokens = [
        ("reads-5", confined(&system, "reads-5", &["read"], &tenant).await),
        ("reads-a", confined(&system, "reads-a", &["read"], &hosts).await),
        ("reads-both", confined(&system, "reads-both", &["read"], &both).await),
        ("messages-5", confined(&system, "messages-5", &["publish", "queues"], &tenant).await),
        ("routes-a", confined(&system, "routes-a", &["routes"], &hosts).await),
    ];
    // An own host has to exist, so that lists are not empty for the wrong reason.
    let own = App::start("own").await;
    system.register("own", &own, "x.a.test", "own").await;

    let mut seen_by_root = 0;
    for target in targets(&system).await {
        // A stream of root does not end.
        if !target.starts_with("/events") {
            let answer = system.api("GET", &target, None).await;
            seen_by_root += usize::from(answer.text().contains(SECRET));
        }
        for (name, token) in &tokens {
            if target.starts_with("/events") {
                let stream = Stream::open(system.admin, token, &target, None).await;
                assert_eq!(stream.status, 403, "{name}: GET {target} is an open stream");
                continue;
            }
            let answer = ask(&system, token, "GET", &target, None).await;
            assert!(!answer.text().contains(SECRET), "{name}: GET {target}: {}", answer.text());
            assert!(!answer.text().contains("secret_of_six"), "{name}: GET {target}: {}", answer.text());
        }
    }
    assert!(seen_by_root > 15, "the data is there to be read: root sees it in {seen_by_root} answers");

    // Calls that read with another method.
    let in_six = json!({"tenant": "6"});
    for (name, token) in &tokens {
        for (target, body) in [
            ("/queues/all/peek", json!({})),
            ("/queues/all/peek", in_six.clone()),
            ("/queues/all/pull", json!({})),
            ("/queues/all/pull", in_six.clone()),
            ("/subscription", json!({"topics": ["orders"], "callback": "http://127.0.0.1:9/"})),
            ("/subscriber/replay", json!({"from": "1970-01-01T00:00:00Z", "to": "2286-11-20T17:46:39Z"})),
            ("/subscriber/test", json!({})),
            ("/state-machines/drip/labels/one/simulate", json!({})),
            ("/state-machines/drip/labels/one/retry", json!({})),
            ("/state-machines/drip/labels/one/operations", json!({"operation": "skip"})),
            ("/state-machines/drip/tasks", json!({"operation": "skip"})),
        ] {
            let answer = ask(&system, token, "POST", target, Some(&body)).await;
            assert_eq!(answer.status, 403, "{name}: POST {target}: {}", answer.text());
        }
        for target in ["/nodes/node/drain", "/queues/all/dead/redrive", "/backends/search/dead/redrive"] {
            assert_eq!(ask(&system, token, "POST", target, None).await.status, 403, "{name}: {target}");
        }
    }

    // The state of an object is the same for all tenants: a confined publisher does not replace it.
    let group = |data: Option<&str>| {
        let mut group = json!({"events": [{"topic": "mine", "type": "update", "tenant": "5"}]});
        if let Some(data) = data {
            group["data"] = json!(data);
        }
        group
    };
    let publisher = &tokens[3].1;
    let replaced = ask(&system, publisher, "POST", "/objects/plain/events", Some(&group(Some("mine")))).await;
    assert_eq!((replaced.status, &replaced.json()["code"]), (403, &json!("confined_token")));
    let published = ask(&system, publisher, "POST", "/objects/plain/events", Some(&group(None))).await;
    assert_eq!(published.status, 202, "{}", published.text());
    let object = system.api("GET", "/objects/plain", None).await.json();
    assert_eq!(object["data"], SECRET);

    // Numbers of a queue are those of the own tenants.
    let (of_five, of_all) = (&tokens[0].1, &system.token);
    for target in ["/queues/all", "/queues"] {
        let waiting = async |token: &str| {
            let answer = ask(&system, token, "GET", target, None).await.json();
            let queue = if target == "/queues" { answer["queues"][0].clone() } else { answer };
            queue["messages"]["waiting"].as_u64().unwrap_or_else(|| panic!("{queue}"))
        };
        // The event that was published above is the only one of tenant 5.
        assert_eq!((waiting(of_five).await, waiting(of_all).await > 1), (1, true), "{target}");
    }
    // The refusal names what confines the token.
    let refused = ask(&system, &tokens[2].1, "GET", "/check", None).await;
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("confined_token")));
    assert_eq!(refused.json()["confined_to"], json!(["hosts", "tenants"]));
    // And an own host is still to be seen.
    let hosts = ask(&system, &tokens[1].1, "GET", "/hosts", None).await.json();
    assert_eq!(hosts["hosts"][0]["hostname"], "x.a.test", "{hosts}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_that_cannot_be_confined_is_refused_with_a_confined_token() {
    let system = System::start("attack-unconfinable").await;
    for (scopes, lists) in [
        (json!(["subscribe", "read"]), json!({"hosts": ["*.a.test"]})),
        (json!(["audit", "read"]), json!({"tenants": ["5"]})),
        (json!(["publish"]), json!({"hosts": ["*.a.test"]})),
        (json!(["queues", "routes"]), json!({"hosts": ["*.a.test"]})),
        (json!(["routes"]), json!({"tenants": ["5"]})),
    ] {
        let mut new = json!({"name": "tenant", "scopes": scopes});
        for (list, value) in lists.as_object().unwrap() {
            new[list] = value.clone();
        }
        let answer = system.api("POST", "/tokens", Some(new.clone())).await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (422, Some("scope_not_confinable")),
            "{new}"
        );
    }
    // A record that is in Redis already does not get around it: the handler decides.
    let token = system.token("old", &["subscribe"]).await;
    let digest: String = system.cli(System::FABRIC, "HGET tokens:names old").await;
    let record: String = system.cli(System::FABRIC, &format!("HGET tokens {digest}")).await;
    let mut record: Value = serde_json::from_str(&record).unwrap();
    record["hosts"] = json!(["*.a.test"]);
    system.cli::<()>(System::FABRIC, &format!("HSET tokens {digest} {record}")).await;
    let wanted = json!({"topics": ["orders"], "callback": "https://example.org/"});
    let answer = ask(&system, &token, "POST", "/subscription", Some(&wanted)).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (403, Some("confined_token")),
        "{}",
        answer.text()
    );
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_policies_and_callbacks_are_hidden_from_readers() {
    let system =
        System::with("attack-secrets", |builder| builder.pacemaker("bus", receiver::allowed())).await;
    let policy = json!({
        "headers": {"request": {"set": {"X-Key": SECRET}}},
        "maintenance": {"except_header": {"name": "X-Preview", "value": SECRET}},
    });
    make(&system, "PUT", "/hosts/b.test?wait=20s", policy).await;
    let callback = format!("http://127.0.0.1:9/hooks/{SECRET}?key={SECRET}");
    make(&system, "POST", "/subscription", json!({"topics": ["orders"], "callback": callback})).await;
    let backend = json!({"prefix": "work:", "callback": callback});
    make(&system, "PUT", "/backends/search", backend).await;
    let reader = system.token("reader", &["read"]).await;
    let manager = system.token("manager", &["routes"]).await;
    for target in ["/hosts", "/hosts/b.test", "/routes/dump", "/routes/dump?format=text"] {
        let answer = ask(&system, &manager, "GET", target, None).await;
        assert!(answer.text().contains(SECRET), "who sets it sees it: {target}: {}", answer.text());
        let answer = ask(&system, &reader, "GET", target, None).await;
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        assert!(!answer.text().contains(SECRET), "{target}: {}", answer.text());
        assert!(answer.text().contains("X-Key"), "only the value is hidden: {target}: {}", answer.text());
    }
    for target in [
        "/dashboard/host?name=b.test",
        "/dashboard/events?name=root",
        "/subscriptions",
        "/subscribers",
        "/backends",
        "/backends/search",
    ] {
        let answer = ask(&system, &reader, "GET", target, None).await;
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        assert!(!answer.text().contains(SECRET), "{target}: {}", answer.text());
    }
    // A token that has nothing to do with events does not learn who subscribes to them.
    let facts = system.token("facts", &["facts"]).await;
    for target in ["/subscriptions", "/subscribers", "/topics"] {
        let answer = ask(&system, &facts, "GET", target, None).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (403, Some("scope_missing")), "{target}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_cannot_be_counted_as_requests_without_a_route() {
    let system = System::start("attack-reserved").await;
    let app = App::start("app").await;
    let hosts = json!({"hosts": ["*.a.test"]});
    let token = confined(&system, "routes-a", &["routes"], &hosts).await;
    for reserved in ["null", "pacemaker"] {
        let instance = json!({"address": app.address.to_string(), "hostnames": ["x.a.test"], "version_type_id": reserved});
        let answer = ask(&system, &token, "PUT", "/instances/i-1", Some(&instance)).await;
        let code = answer.json()["code"].as_str().map(str::to_owned);
        assert_eq!(
            (answer.status, code.as_deref()),
            (422, Some("reserved_version_type")),
            "{}",
            answer.text()
        );
        let many = json!([{"id": "i-1", "address": app.address.to_string(), "hostnames": ["x.a.test"],
            "version_type_id": reserved}]);
        let answer = ask(&system, &token, "PUT", "/instances", Some(&many)).await.json();
        assert_eq!(answer["results"][0]["error"]["code"], "reserved_version_type", "{answer}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_subscriber_receives_the_events_of_its_tenants_only() {
    let system =
        System::with("attack-subscriber", |builder| builder.pacemaker("bus", receiver::allowed())).await;
    let (five, all) = (Receiver::start().await, Receiver::start().await);
    let lists = json!({"tenants": ["5"]});
    let token = confined(&system, "tenant-5", &["subscribe", "publish"], &lists).await;
    let wanted =
        |receiver: &Receiver| json!({"topics": ["orders"], "callback": receiver.url(), "timeout": 0});
    let answer = ask(&system, &token, "POST", "/subscription", Some(&wanted(&five))).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    make(&system, "POST", "/subscription", wanted(&all)).await;
    let event = |tenant: &str| {
        let data = format!("of {tenant}");
        json!({"type": "update", "url": "https://a.test/1", "tenant": tenant, "object": "one", "data": data})
    };
    // Of one object, in one call, and so in one call of the publish script.
    let events = json!([event("6"), event("5"), event("6"), event("5"), event("55")]);
    make(&system, "POST", "/topics/orders/events", events).await;
    let of_all = all.until_events(5).await;
    let of_five = five.until_events(2).await;
    assert!(of_five.iter().all(|event| event["data"] == "of 5"), "{of_five:?}");
    let order: Vec<&Value> = of_all.iter().map(|event| &event["data"]).collect();
    assert_eq!(order, ["of 6", "of 5", "of 6", "of 5", "of 55"], "one without confinement gets all in order");

    // Events that are already in the log are filtered as well.
    let replay = json!({"from": "1970-01-01T00:00:00Z", "to": "2286-11-20T17:46:39Z"});
    let answer = ask(&system, &token, "POST", "/subscriber/replay", Some(&replay)).await;
    assert!((200..300).contains(&answer.status), "{}", answer.text());
    let again = five.until_events(4).await;
    assert!(again.iter().all(|event| event["data"] == "of 5"), "{again:?}");

    // Signalbox's own topics belong to no tenant, and a token cannot subscribe another client.
    let own = json!({"topics": ["signalbox.instance.registered"], "callback": five.url()});
    let answer = ask(&system, &token, "POST", "/subscription", Some(&own)).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (403, Some("confined_token")),
        "{}",
        answer.text()
    );
    let forged = json!({"topics": ["orders"], "callback": five.url(), "tenants": ["6"]});
    let answer = ask(&system, &token, "POST", "/subscription", Some(&forged)).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    for target in ["/subscriptions", "/subscribers", "/topics"] {
        assert_eq!(ask(&system, &token, "GET", target, None).await.status, 403, "{target}");
    }
    assert_eq!(five.events().len(), 4);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_registers_instances_only_under_its_version_types() {
    let system = System::start("attack-version-type").await;
    let app = App::start("app").await;
    let lists = json!({"hosts": ["*.a.test"], "version_types": ["shop-*", "blog"]});
    let token = confined(&system, "team-a", &["routes"], &lists).await;
    let instance = |version_type: &str| json!({"address": app.address.to_string(), "hostnames": ["x.a.test"], "version_type_id": version_type});
    for (version_type, status) in
        [("shop-1", 201), ("blog", 200), ("shop-", 200), ("shop", 403), ("blog-2", 403), ("bank-7", 403)]
    {
        let answer = ask(&system, &token, "PUT", "/instances/i-1", Some(&instance(version_type))).await;
        assert_eq!(answer.status, status, "{version_type}: {}", answer.text());
        if status == 403 {
            assert_eq!(answer.json()["code"], "version_type_not_allowed", "{version_type}");
        }
    }
    // Nor does it see the numbers of others: a host of its own that counts as another version type.
    let theirs = json!({"address": "127.0.0.1:9", "hostnames": ["y.a.test"], "version_type_id": "bank-7"});
    make(&system, "PUT", "/instances/theirs?wait=20s", theirs).await;
    for (host, condition) in [("x.a.test", "healthy"), ("y.a.test", "unknown")] {
        for target in [format!("/hosts/{host}"), format!("/routes/explain?host={host}")] {
            let state = ask(&system, &token, "GET", &target, None).await.json()["state"].clone();
            assert_eq!(state["condition"], condition, "{target}: {state}");
        }
    }
    // Nor on pages.
    let viewer = confined(&system, "viewer-a", &["routes", "read"], &lists).await;
    let page = async |target: &str| ask(&system, &viewer, "GET", target, None).await;
    let unknown = "Whether they fail is not known";
    for (host, is_unknown) in [("x.a.test", false), ("y.a.test", true)] {
        let shown = page(&format!("/dashboard/host?name={host}")).await;
        assert_eq!((shown.status, shown.text().contains(unknown)), (200, is_unknown), "{host}");
    }
    let mut many = instance("bank-7");
    many["id"] = json!("i-2");
    let answer = ask(&system, &token, "PUT", "/instances", Some(&json!([many]))).await.json();
    assert_eq!(answer["results"][0]["error"]["code"], "version_type_not_allowed", "{answer}");
    for (scopes, list) in [
        (["routes"], json!([])),
        (["routes"], json!(["a b"])),
        (["routes"], json!(["a*b"])),
        (["read"], json!(["a"])),
    ] {
        let new = json!({"name": "bad", "scopes": scopes, "version_types": list});
        let answer = system.api("POST", "/tokens", Some(new.clone())).await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (422, Some("invalid_version_types")),
            "{new}"
        );
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_metrics_are_read_through_the_admin_listener_or_with_a_token() {
    let system =
        System::with("attack-metrics", |builder| builder.pacemaker("metrics_networks", vec!["127.0.0.1/32"]))
            .await;
    make(&system, "PUT", &format!("/queues/{}", SECRET.replace('-', "_")), json!({"pattern": ".*"})).await;
    let name = SECRET.replace('-', "_");
    let reader = system.token("reader", &["read"]).await;
    let publisher = system.token("publisher", &["publish"]).await;
    let elsewhere = async |token: Option<&str>| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(system.pacemaker).await.unwrap();
        let request = Request::get("localhost", "/metrics").header("Connection", "close");
        let request = token.map_or(request.clone(), |token| request.token(token));
        stream.write_all(&request.to_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    for (token, status) in
        [(None, "401"), (Some(&*publisher), "403"), (Some("unknown-token-of-the-test"), "401")]
    {
        let text = elsewhere(token).await;
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")) && !text.contains(&name), "{text}");
    }
    assert!(elsewhere(Some(&reader)).await.contains(&name));
    let admin = system.edge_api("/metrics").await;
    assert!(admin.status == 200 && admin.text().contains(&name), "{}", admin.text());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_exists_elsewhere_is_answered_like_what_does_not_exist() {
    let system = System::start("attack-enumeration").await;
    let (app, own) = (App::start("theirs").await, App::start("own").await);
    system.register("theirs", &app, "b.test", "2").await;
    system.register("own", &own, "x.a.test", "1").await;
    let authority = Authority::new("b.test");
    let issued = authority.issue("b.test", "b.test");
    let certificate = json!({"chain": issued.chain, "key": issued.key});
    make(&system, "PUT", "/certificates/b.test?wait=20s", certificate).await;
    system.apply("theirs", &MACHINE.replace("drip", "theirs")).await;
    make(&system, "POST", "/state-machines/theirs/labels/one", json!({"metadata": {}})).await;
    let lists = json!({"hosts": ["*.a.test"], "machines": ["own"]});
    let token = confined(&system, "team-a", &["routes", "read", "facts", "machines"], &lists).await;
    let document = system.api("GET", "/openapi.json", None).await.json();
    // IDs of instances are one name space: a PUT cannot take one that is in use, and a DELETE does not pretend to have removed it.
    let open = ["PUT /instances/{id}", "DELETE /instances/{id}"];
    let mut compared = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let names = match path.split('/').nth(1).unwrap() {
            "instances" => ["theirs", "absent"],
            "hosts" | "certificates" | "acme" => ["b.test", "c.test"],
            "state-machines" => ["theirs", "absent"],
            _ => continue,
        };
        let parameters = ["{id}", "{hostname}", "{server_name}", "{machine}"];
        let Some(parameter) = parameters.into_iter().find(|parameter| path.contains(parameter)) else {
            continue;
        };
        let rest = |path: &str| {
            let path = path.replace("{label}", "one").replace("{version}", "1").replace("{task}", "1");
            path.replace("{secret}", "KEY")
        };
        for method in ["get", "put", "post", "patch", "delete"] {
            let operation = format!("{} {path}", method.to_uppercase());
            if methods.get(method).is_none() || open.contains(&&*operation) {
                continue;
            }
            let mut answers = Vec::new();
            for name in names {
                let body = json!({"message": "m", "operation": "skip", "metadata": {}});
                let body = if path.ends_with("/errors") { json!({"message": "m"}) } else { body };
                let body = if path.ends_with("/drain") { json!({}) } else { body };
                let target = rest(&path.replace(parameter, name));
                let body = Some(&body).filter(|_| method != "get");
                let answer = ask(&system, &token, &method.to_uppercase(), &target, body).await;
                let mut text = answer.text().replace(name, "NAME");
                if let Some(at) = text.find("\"request_id\"") {
                    text.truncate(at);
                }
                answers.push((answer.status, text));
            }
            assert_eq!(answers[0], answers[1], "{operation}");
            assert!((400..500).contains(&answers[0].0), "{operation}: {answers:?}");
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared}");
    for page in ["instances", "host", "machines"] {
        let mut answers = Vec::new();
        let names = if page == "host" { ["b.test", "c.test"] } else { ["theirs", "absent"] };
        for name in names {
            let answer = ask(&system, &token, "GET", &format!("/dashboard/{page}?name={name}"), None).await;
            answers.push(answer.status);
        }
        assert_eq!(answers[0], answers[1], "{page}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_names_no_event_of_another_tenant_to_a_confined_reader() {
    let mut bus = receiver::allowed();
    bus.insert("max_attempts".to_owned(), 1.into());
    let system = System::with("attack-prev", |builder| builder.pacemaker("bus", bus)).await;
    make(&system, "PUT", "/queues/all", json!({"pattern": ".*"})).await;
    let receiver = Receiver::answering(|_| receiver::Answer::status("500 Internal Server Error")).await;
    let scopes = ["subscribe", "publish", "queues", "read"];
    let token = confined(&system, "tenant-5", &scopes, &json!({"tenants": ["5"]})).await;
    let wanted = json!({"topics": ["orders"], "callback": receiver.url(), "timeout": 0});
    assert_eq!(ask(&system, &token, "POST", "/subscription", Some(&wanted)).await.status, 204);
    let mut stream = Stream::open(system.admin, &token, "/events?tenant=5", None).await;
    let event = |tenant: &str| json!({"type": "update", "url": "https://a.test/1", "tenant": tenant, "object": "tenant5:2"});
    make(&system, "POST", "/topics/orders/events", json!([event("5"), event("6"), event("5")])).await;
    let events = stream.take(2).await;
    let streamed: Vec<Value> = events.iter().map(|event| event.json()).collect();
    let dead = std::sync::Mutex::new(Value::Null);
    eventually("dead letters", || async {
        let letters = ask(&system, &token, "GET", "/subscriber/dead", None).await.json();
        let complete = letters["dead"].as_array().unwrap().len() == 2;
        *dead.lock().unwrap() = letters.clone();
        if complete { Ok(()) } else { Err(letters.to_string()) }
    })
    .await;
    let in_five = json!({"tenant": "5", "max": 10});
    let peeked = ask(&system, &token, "POST", "/queues/all/peek", Some(&json!({"tenant": "5"}))).await;
    let pulled = ask(&system, &token, "POST", "/queues/all/pull", Some(&in_five)).await;
    assert_eq!(pulled.json()["messages"].as_array().unwrap().len(), 2, "{}", pulled.text());
    for (door, shown) in [
        ("the stream", Value::from(streamed).to_string()),
        ("the webhook", Value::from(receiver.events()).to_string()),
        ("its dead letters", dead.into_inner().unwrap().to_string()),
        ("peek", peeked.text()),
        ("pull", pulled.text()),
    ] {
        assert!(shown.contains("https://a.test/1"), "{door}: {shown}");
        assert!(!shown.contains("\"prev\"") && !shown.contains("\"tprev\""), "{door}: {shown}");
    }
    // Others see how the events follow each other.
    let mut all = Stream::open(system.admin, &system.token, "/events?topic=orders", None).await;
    make(&system, "POST", "/topics/orders/events", json!([event("5")])).await;
    assert!(all.take(1).await[0].json()["prev"].is_number());
    system.stop().await;
}
