//! A token that may register instances, subscribe or define machines tries to reach Signalbox's own listeners, Redis
//! servers and sockets, in the configuration of every deployment.

use std::{fs, path::Path};

use serde_json::{Value, json};
use signalbox_stack::Builder;
use signalbox_tests::{http::Request, receiver, system::System};
use toml::Table;

/// A token that may register instances of hosts below a.test, and nothing else.
async fn tenant(system: &System) -> String {
    let token = json!({"name": "tenant", "scopes": ["routes"], "hosts": ["*.a.test"]});
    let created = system.api_at(system.pacemaker, "POST", "/tokens", Some(token)).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()["token"].as_str().unwrap().to_owned()
}

/// Status and code of a registration.
async fn register(system: &System, token: &str, address: &str, health: Option<Value>) -> (u16, String) {
    let mut instance = json!({"address": address, "hostnames": ["x.a.test"], "version_type_id": "1"});
    if let Some(health) = health {
        instance["health"] = health;
    }
    let request = Request::new("PUT", "localhost", "/instances/attack").token(token).json(&instance);
    let answer = request.send(system.pacemaker).await.unwrap();
    let code = if answer.status < 300 { Value::Null } else { answer.json()["code"].clone() };
    (answer.status, code.as_str().unwrap_or("accepted").to_owned())
}

async fn refuses(system: &System, token: &str, own: &[&str]) {
    for address in own {
        let answer = register(system, token, address, None).await;
        assert_eq!(answer, (422, "reserved_address".to_owned()), "{address}");
    }
}

/// A pacemaker with the settings of a deployment, and with the socket folders open, which no deployment does.
async fn deployed(name: &str, settings: Table) -> System {
    let start = |builder: Builder| {
        let mut builder = builder.without_nginx().without_sidecar();
        for (key, value) in settings {
            builder = builder.pacemaker(&key, value);
        }
        builder
    };
    System::with(name, start).await
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

fn open_folders(settings: &mut Table) {
    let routing = settings.entry("routing").or_insert_with(|| Table::new().into());
    let folders = vec!["/run", "/var/run", "/data"];
    routing.as_table_mut().unwrap().insert("unix_folders".to_owned(), folders.into());
}

#[tokio::test(flavor = "multi_thread")]
async fn signalbox_up_registers_none_of_its_own_parts() {
    let system = System::start("attack-reserved-up").await;
    let token = tenant(&system).await;
    let ports = system.stack.ports();
    for (part, port) in ports.named() {
        for ip in ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"] {
            let answer = register(&system, &token, &format!("{ip}:{port}"), None).await;
            assert_eq!(answer, (422, "reserved_address".to_owned()), "{part} at {ip}:{port}");
        }
    }
    let socket = format!("unix:{}", system.stack.layout().replica_socket(1).display());
    refuses(&system, &token, &[&socket]).await;
    // Sockets of others are opt-in.
    for socket in ["unix:/var/run/docker.sock", "unix:/run/docker.sock", "unix:/tmp/app.sock"] {
        let answer = register(&system, &token, socket, None).await;
        assert_eq!(answer, (422, "address_not_allowed".to_owned()), "{socket}");
    }
    assert_eq!(register(&system, &token, "127.0.0.1:1", None).await.0, 201);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_registers_none_of_its_own_parts() {
    let mut settings: Table = toml::from_str(&read("packaging/etc/pacemaker.toml")).unwrap();
    settings.retain(|key, _| !key.ends_with("_file"));
    let redis = settings["redis"].as_table_mut().unwrap();
    redis.retain(|key, _| key == "routes_replicas");
    open_folders(&mut settings);
    let system = deployed("attack-reserved-package", settings).await;
    let token = tenant(&system).await;
    refuses(
        &system,
        &token,
        &[
            "unix:/run/signalbox-routes-replica/routes.sock",
            "unix:/var/run/signalbox-routes-replica/routes.sock",
            "127.0.0.1:6402",
            "[::1]:6402",
            "127.0.0.1:8081",
            "127.0.0.1:8701",
            "127.0.0.1:80",
            "127.0.0.1:443",
        ],
    )
    .await;
    assert_eq!(register(&system, &token, "unix:/run/apps/app.sock", None).await.0, 201);
    system.stop().await;
}

/// The settings of the pacemaker in the compose file, apart from its own address and its Redis servers.
fn compose() -> Table {
    let compose: Value = serde_saphyr::from_str(&read("docker-compose.yml")).unwrap();
    let environment = compose["services"]["pacemaker"]["environment"].as_object().unwrap();
    let mut settings = Table::new();
    for (key, path) in [
        ("RESERVED_ADDRESSES", ["", "reserved_addresses"]),
        ("EDGE_ADDRESSES", ["", "edge_addresses"]),
        ("INSTANCE_NETWORKS", ["", "instance_networks"]),
        ("REDIS_ROUTES_REPLICAS", ["redis", "routes_replicas"]),
    ] {
        let text = environment[&format!("SIGNALBOX_PACEMAKER_{key}")].as_str().unwrap();
        let items: Vec<String> = text.trim().split(',').map(|item| with_defaults(item.trim())).collect();
        let [section, name] = path;
        let table = if section.is_empty() {
            &mut settings
        } else {
            settings.entry(section).or_insert_with(|| Table::new().into()).as_table_mut().unwrap()
        };
        table.insert(name.to_owned(), items.into());
    }
    // The default, which the stack of this test changes.
    assert!(!environment.contains_key("SIGNALBOX_PACEMAKER_ROUTING_CHECK_LOCAL"));
    settings
        .insert("routing".to_owned(), Table::from_iter([("check_local".to_owned(), false.into())]).into());
    settings
}

/// Replaces `${NAME:-default}` by the default.
fn with_defaults(text: &str) -> String {
    let Some((before, rest)) = text.split_once("${") else { return text.to_owned() };
    let (variable, after) = rest.split_once('}').unwrap();
    format!("{before}{}{after}", variable.split_once(":-").unwrap().1)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_compose_file_registers_none_of_its_own_parts() {
    let mut settings = compose();
    open_folders(&mut settings);
    let system = deployed("attack-reserved-compose", settings).await;
    let token = tenant(&system).await;
    refuses(
        &system,
        &token,
        &[
            "unix:/run/replica/routes.sock",
            // Redis servers and Sentinels, which are given by name.
            "172.30.84.3:6379",
            "172.30.84.5:26379",
            "172.30.84.11:8080",
            "172.30.84.11:8443",
            "172.30.84.11:8081",
            "172.30.84.12:8701",
            // The gateway leads to the published ports.
            "172.30.84.1:8080",
            "172.30.84.1:8443",
        ],
    )
    .await;
    // In a container loopback is the router itself.
    for address in ["127.0.0.1:9001", "[::1]:9001"] {
        let answer = register(&system, &token, address, None).await;
        assert_eq!(answer, (422, "address_not_allowed".to_owned()), "{address}");
    }
    // An application in the network of the containers, also on a port that the edge has on its own address.
    assert_eq!(register(&system, &token, "172.30.85.77:8080", None).await.0, 201);
    // The pacemaker is not the router, so it checks nothing that is only local.
    let checked = register(&system, &token, "unix:/run/apps/app.sock", Some(json!({"path": "/"}))).await;
    assert_eq!(checked, (422, "invalid_health".to_owned()));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_listener_is_reserved_on_every_address() {
    let start = |builder: Builder| {
        builder.without_nginx().without_sidecar().with(|options| {
            let listen = format!("0.0.0.0:{}", options.ports.pacemaker);
            options.pacemaker.insert("listen".to_owned(), listen.into());
        })
    };
    let system = System::with("attack-reserved-wildcard", start).await;
    let token = tenant(&system).await;
    let port = system.stack.ports().pacemaker;
    for ip in ["127.0.0.1", "127.0.0.2", "10.1.2.3", "192.168.7.7", "[fd00::7]"] {
        refuses(&system, &token, &[&format!("{ip}:{port}")]).await;
    }
    system.stop().await;
}

const FEED: &str = "
state_machines:
  spy:
    feeds: [{name: own, url: \"ADDRESS\", timeout: 2s}]
    states:
      - {gate: asked, exit_condition: feeds.own.a = 1, triggers: [{interval: 1s}, {event: entry}], next: done}
      - {gate: done}
";

/// Even where the operator opens loopback for webhooks and feeds, they do not lead to Signalbox itself.
#[tokio::test(flavor = "multi_thread")]
async fn webhooks_and_feeds_never_call_signalbox_itself() {
    let system = System::with("attack-reserved-calls", |builder| {
        builder.without_nginx().without_sidecar().pacemaker("bus", receiver::allowed())
    })
    .await;
    let ports = system.stack.ports();
    let bus = json!({"name": "attacker", "token": "attacker-secret-0123456789"});
    assert_eq!(system.api_at(system.pacemaker, "POST", "/api_tokens", Some(bus)).await.status, 201);
    let request = |method: &str, target: &str, body: &Value| {
        Request::new(method, "localhost", target).token("attacker-secret-0123456789").json(body)
    };
    for (part, port) in [
        ("pacemaker", ports.pacemaker),
        ("sidecar", ports.sidecar),
        ("admin", ports.admin),
        ("routes", ports.routes),
        ("replica", ports.routes_replica),
        ("stats", ports.stats),
        ("fabric", ports.fabric),
    ] {
        for host in ["127.0.0.1", "127.0.0.8", "localhost", "2130706433", "[::ffff:127.0.0.1]"] {
            let subscription =
                json!({"topics": ["t"], "callback": format!("http://{host}:{port}/"), "uuid": "u"});
            let subscribed =
                request("POST", "/subscription", &subscription).send(system.pacemaker).await.unwrap();
            // Only a name needs a lookup, so an address is rejected immediately.
            if host != "localhost" {
                assert_eq!(subscribed.status, 400, "{part} {host}: {}", subscribed.text());
                assert_eq!(subscribed.json()["code"], "invalid_subscription", "{part} {host}");
                continue;
            }
            assert_eq!(subscribed.status, 204, "{part} {host}: {}", subscribed.text());
            let tested =
                request("POST", "/subscriber/test", &json!({})).send(system.pacemaker).await.unwrap();
            let why = "the callback leads to a network that is not allowed";
            assert_eq!(tested.json()["why"], why, "{part} {host}: {}", tested.text());
        }
    }
    let definition = FEED.replace("ADDRESS", &format!("http://127.0.0.1:{}/openapi.json", ports.pacemaker));
    let plan = Request::new("POST", "localhost", "/state-machines/spy/plan").token(&system.token);
    let plan = plan.header("Content-Type", "application/yaml").body(definition);
    let plan = plan.send(system.pacemaker).await.unwrap().json();
    let apply = json!({"plan": plan["plan"]});
    let applied = system.api_at(system.pacemaker, "POST", "/state-machines/spy/apply", Some(apply)).await;
    assert_eq!(applied.status, 200, "{plan} {}", applied.text());
    let label = "/state-machines/spy/labels/l";
    let created = system.api_at(system.pacemaker, "POST", label, Some(json!({"metadata": {}}))).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let why = system.api_at(system.pacemaker, "GET", &format!("{label}/why"), None).await;
    assert!(why.text().contains("leads to a network that is not allowed"), "{}", why.text());
    // A receiver of the operator is called.
    let receiver = receiver::Receiver::start().await;
    let subscription = json!({"topics": ["t"], "callback": receiver.url(), "uuid": "u"});
    assert_eq!(
        request("POST", "/subscription", &subscription).send(system.pacemaker).await.unwrap().status,
        204
    );
    let tested = request("POST", "/subscriber/test", &json!({})).send(system.pacemaker).await.unwrap();
    assert_eq!(tested.json()["delivered"], true, "{}", tested.text());
    system.stop().await;
}
