//! Every call of the API has a command. Each command runs against a server that records its calls.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Stdio,
    time::Duration,
};

use crate::server::Server;

/// How often it is checked whether a command has ended without a call.
const POLL: Duration = Duration::from_millis(20);

/// Calls, and a command that makes each of them.
const COMMANDS: &[(&str, &str)] = &[
    ("GET /instances", "routes list"),
    ("PUT /instances", "routes import instances.jsonl"),
    ("GET /instances/{id}", "routes show x"),
    ("PUT /instances/{id}", "routes add x --address 127.0.0.1:1 --host a.test --version-type 1"),
    ("DELETE /instances/{id}", "routes remove x"),
    ("POST /instances/{id}/drain", "routes drain x"),
    ("DELETE /instances/{id}/drain", "routes drain x --resume"),
    ("POST /nodes/{id}/drain", "routes drain-node x"),
    ("DELETE /nodes/{id}/drain", "routes drain-node x --resume"),
    ("GET /hosts", "hosts list"),
    ("GET /hosts/{hostname}", "hosts show a.test"),
    ("PUT /hosts/{hostname}", "hosts set-policy a.test --file policy.json"),
    ("DELETE /hosts/{hostname}", "hosts remove a.test --yes"),
    ("POST /hosts/{hostname}/promote", "hosts promote a.test 18"),
    ("POST /hosts/{hostname}/promote/undo", "hosts undo a.test"),
    ("PUT /hosts/{hostname}/paths", "routes paths a.test --prefix /api=b.test"),
    ("DELETE /hosts/{hostname}/paths", "routes paths a.test --clear"),
    ("PUT /hosts/{hostname}/pause", "routes pause a.test"),
    ("DELETE /hosts/{hostname}/pause", "routes resume a.test"),
    ("DELETE /hosts/{hostname}/policy", "hosts reset-policy a.test"),
    ("GET /routes/convergence", "routers list"),
    ("GET /routes/dump", "routes dump"),
    ("GET /routes/explain", "routes explain https://a.test/cart"),
    ("GET /acme/names", "certificates list"),
    ("GET /acme/names/{server_name}", "certificates show a.test"),
    ("POST /acme/names/{server_name}/renew", "certificates renew a.test"),
    ("GET /certificates", "certificates list"),
    ("GET /certificates/{server_name}", "certificates show a.test"),
    ("PUT /certificates/{server_name}", "certificates upload a.test --chain policy.json --key policy.json"),
    ("DELETE /certificates/{server_name}", "certificates remove a.test --yes"),
    ("GET /api_tokens", "clients list"),
    ("POST /api_tokens", "clients create billing"),
    ("DELETE /api_tokens/{name}", "clients remove billing --yes"),
    ("POST /api_tokens/{name}/rotate", "clients rotate billing"),
    ("POST /bus/initialize", "events initialize --yes"),
    ("GET /bus/metrics", "subscribers list"),
    ("PUT /subscription", "subscribers subscribe --topic orders --callback https://a.test/"),
    ("PATCH /subscription", "subscribers set billing --max-attempts 3"),
    ("DELETE /subscription", "subscribers remove billing --yes"),
    ("GET /subscriptions", "subscribers list"),
    ("DELETE /subscriber/topics/{topic}", "subscribers unsubscribe orders"),
    ("GET /subscriber/dead", "subscribers dead billing"),
    ("DELETE /subscriber/dead", "subscribers drop-dead billing --yes"),
    ("POST /subscriber/dead/redrive", "subscribers redrive billing"),
    ("GET /subscriber/deliveries", "subscribers deliveries billing"),
    ("POST /subscriber/replay", "subscribers replay billing --from 1h"),
    ("POST /subscriber/resend", "subscribers resend billing 7"),
    ("POST /subscriber/retry", "subscribers retry billing"),
    ("GET /subscriber/secret", "subscribers secret billing"),
    ("POST /subscriber/secret", "subscribers rotate-secret billing"),
    ("POST /subscriber/skip", "subscribers skip billing 7"),
    ("POST /subscriber/test", "subscribers test billing"),
    ("GET /topics", "topics list"),
    ("DELETE /topics/{name}", "topics remove orders --yes"),
    ("POST /topics/{name}/events", "events publish orders update https://a.test/1"),
    ("PUT /topics/{name}/publisher", "topics set-publisher orders billing"),
    ("GET /events", "events tail --count 1"),
    ("POST /messages", "queues publish acme mail welcome"),
    ("POST /messages/pull", "queues pull mail sms"),
    ("GET /queues", "queues list"),
    ("GET /queues/{name}", "queues show mail"),
    ("PUT /queues/{name}", "queues create mail --pattern .*"),
    ("PATCH /queues/{name}", "queues set mail --lease 30s"),
    ("DELETE /queues/{name}", "queues remove mail --yes"),
    ("POST /queues/{name}/ack", "queues ack mail r"),
    ("GET /queues/{name}/dead", "queues dead mail"),
    ("DELETE /queues/{name}/dead", "queues drop-dead mail --yes"),
    ("POST /queues/{name}/dead/redrive", "queues redrive mail"),
    ("POST /queues/{name}/extend", "queues extend mail r --lease 30s"),
    ("GET /queues/{name}/tenants", "queues tenants mail"),
    ("GET /queues/{name}/tenants/{tenant}", "queues tenant mail acme"),
    ("PATCH /queues/{name}/tenants/{tenant}", "queues tenant mail acme --weight 3"),
    ("DELETE /queues/{name}/tenants/{tenant}", "queues drop-tenant mail acme --yes"),
    ("GET /queues/{name}/gaps", "queues gaps mail"),
    ("DELETE /queues/{name}/gaps", "queues drop-gaps mail --yes"),
    ("GET /queues/{name}/messages", "queues messages mail --state delayed"),
    ("GET /queues/{name}/messages/{id}", "queues show-message mail 7"),
    ("DELETE /queues/{name}/messages/{id}", "queues drop-message mail 7 --yes"),
    ("POST /queues/{name}/messages/{id}/redrive", "queues redrive-message mail 7"),
    ("POST /queues/{name}/nack", "queues nack mail r"),
    ("POST /queues/{name}/peek", "queues peek mail"),
    ("POST /queues/{name}/pull", "queues pull mail"),
    ("POST /queues/{name}/purge", "queues purge mail --yes"),
    ("POST /queues/{name}/reject", "queues reject mail r"),
    ("GET /backends", "backends list"),
    ("GET /backends/{name}", "backends show search"),
    ("PUT /backends/{name}", "backends define search --prefix work: --callback https://a.test/"),
    ("DELETE /backends/{name}", "backends remove search --yes"),
    ("GET /backends/{name}/dead", "backends dead search"),
    ("DELETE /backends/{name}/dead", "backends drop-dead search --yes"),
    ("POST /backends/{name}/dead/redrive", "backends redrive search"),
    ("GET /objects", "objects list"),
    ("GET /objects/{object}", "objects show work:1"),
    ("POST /objects/{object}/events", "objects publish work:1 orders update"),
    ("POST /objects/{object}/skip", "objects skip work:1 --id 7"),
    ("POST /objects/{object}/unpark", "objects unpark work:1"),
    ("GET /state-machines", "machines list"),
    ("GET /state-machines/{machine}", "machines show orders"),
    ("DELETE /state-machines/{machine}", "machines delete orders --confirm orders --no-wait"),
    ("POST /state-machines/{machine}/apply", "machines apply orders --plan p"),
    ("GET /state-machines/{machine}/labels", "labels list orders"),
    ("POST /state-machines/{machine}/labels", "labels import orders labels.jsonl"),
    ("PATCH /state-machines/{machine}/labels", "labels import orders labels.jsonl --update"),
    ("GET /state-machines/{machine}/labels/{label}", "labels show orders 7"),
    ("POST /state-machines/{machine}/labels/{label}", "labels set orders unknown a=1 --create"),
    ("PATCH /state-machines/{machine}/labels/{label}", "labels set orders 7 a=1"),
    ("DELETE /state-machines/{machine}/labels/{label}", "labels delete orders 7 --yes"),
    ("GET /state-machines/{machine}/flow", "machines flow orders"),
    ("GET /state-machines/{machine}/labels/{label}/activity", "labels history orders 7 --all"),
    ("GET /state-machines/{machine}/labels/{label}/history", "labels history orders 7"),
    ("POST /state-machines/{machine}/labels/{label}/operations", "labels evaluate orders 7"),
    ("POST /state-machines/{machine}/labels/{label}/retry", "labels retry orders 7"),
    ("GET /state-machines/{machine}/labels/{label}/route", "labels route orders 7"),
    ("POST /state-machines/{machine}/labels/{label}/simulate", "labels simulate orders 7"),
    ("GET /state-machines/{machine}/labels/{label}/why", "labels why orders 7"),
    ("POST /state-machines/{machine}/plan", "machines plan orders policy.json"),
    ("POST /state-machines/{machine}/retry", "labels retry orders --all"),
    ("GET /state-machines/{machine}/secrets", "machines secrets orders"),
    (
        "PUT /state-machines/{machine}/secrets/{secret}",
        "machines secrets orders --set KEY --address https://a.example/ --from policy.json",
    ),
    ("DELETE /state-machines/{machine}/secrets/{secret}", "machines secrets orders --delete KEY --yes"),
    ("GET /state-machines/{machine}/tasks", "machines tasks orders"),
    ("POST /state-machines/{machine}/tasks", "labels suspend orders --all --no-wait"),
    ("GET /state-machines/{machine}/tasks/{task}", "labels suspend orders --all"),
    ("DELETE /state-machines/{machine}/tasks/{task}", "machines tasks orders --cancel t"),
    ("GET /state-machines/{machine}/versions", "machines versions orders"),
    ("GET /state-machines/{machine}/versions/{version}", "machines diff orders --from 1 --to 2"),
    ("GET /tokens", "tokens list"),
    ("POST /tokens", "tokens create ci --scope read"),
    ("DELETE /tokens/{name}", "tokens revoke ci --yes"),
    ("POST /tokens/{name}/rotate", "tokens rotate ci"),
    ("GET /stats/instance/{id}", "stats latency instance/x"),
    ("GET /stats/pacemaker", "stats show pacemaker"),
    ("GET /stats/pacemaker/history", "stats history pacemaker"),
    ("GET /stats/pacemaker/latency", "stats latency pacemaker"),
    ("GET /stats/pacemaker/stream", "stats watch pacemaker --count 1"),
    ("GET /stats/top", "stats top --once"),
    ("GET /stats/total", "stats show total"),
    ("GET /stats/total/history", "stats history total"),
    ("GET /stats/total/latency", "stats latency total"),
    ("GET /stats/total/stream", "stats watch total --count 1"),
    ("GET /stats/uncaught", "stats show uncaught"),
    ("GET /stats/uncaught/history", "stats history uncaught"),
    ("GET /stats/uncaught/latency", "stats latency uncaught"),
    ("GET /stats/uncaught/stream", "stats watch uncaught --count 1"),
    ("GET /stats/{kind}/{id}", "stats show version_type/7"),
    ("GET /stats/{kind}/{id}/history", "stats history version_type/7"),
    ("GET /stats/{kind}/{id}/latency", "stats latency version_type/7"),
    ("GET /stats/{kind}/{id}/stream", "stats watch version_type/7 --count 1"),
    ("GET /check", "check"),
    ("GET /metrics", "doctor --skip-log"),
    ("GET /pacemakers", "pacemakers list"),
    ("GET /audit", "audit"),
];

/// Calls that have no command, and why. `signalbox api` makes them.
const WITHOUT: &[(&str, &str)] = &[
    ("POST /instances/{id}/errors", "applications report faults of instances that they call"),
    (
        "POST /instances/{id}/heartbeat",
        "`run` and `discover` renew the leases of the instances that they register",
    ),
    ("DELETE /api_tokens", "for Routemaster's clients; `clients remove` names the client"),
    ("GET /pulse", "load balancers probe it"),
    ("GET /pulse/scaling", "autoscalers probe it"),
    ("POST /subscription", "the same as PUT"),
    ("PUT /subscriber", "another name of /subscription, for Routemaster's clients"),
    ("POST /subscriber", "another name of /subscription, for Routemaster's clients"),
    ("PATCH /subscriber", "another name of /subscription, for Routemaster's clients"),
    ("DELETE /subscriber", "another name of /subscription, for Routemaster's clients"),
    ("DELETE /subscription/topics/{topic}", "another name of /subscriber/topics/{topic}"),
    ("GET /subscribers", "another name of /subscriptions"),
    ("POST /topics/{name}", "`events publish` uses the call for many events, also for one"),
    ("PUT /queues/{name}/tenants/{tenant}", "`queues tenant`, `pause` and `resume` change single settings"),
    ("GET /health", "load balancers probe it"),
    ("GET /health/ready", "load balancers probe it; `doctor` reports more"),
    ("GET /health/ping", "load balancers probe it"),
    ("GET /health/ping.json", "load balancers probe it"),
    ("GET /", "the dashboard"),
];

/// Calls after which a command makes the one that is tested, with their answers. Others are answered `{}`.
fn answer(call: &str) -> (u16, &'static str) {
    match call {
        "PATCH /state-machines/orders/labels/unknown" => {
            (404, r#"{"status":404,"code":"unknown_label","detail":"no such label"}"#)
        }
        "GET /tokens" => {
            (200, r#"{"tokens":[{"name":"ci","scopes":["read"],"created_at":"2026-01-31T18:30:00.000Z"}]}"#)
        }
        "POST /state-machines/orders/tasks" => (
            202,
            r#"{"id":"t","operation":"suspend","filter":{},"by":"root","state":"running","created":"2026-01-31T18:30:00.000Z","updated":"2026-01-31T18:30:00.000Z",
                "labels":1,"checked":0,"changed":0,"unchanged":0,"failed":0}"#,
        ),
        "GET /hosts/a.test" => (
            200,
            r#"{"hostname":"a.test","addresses":[],"instance_ids":[],"log_key":null,"registered":true,
                "promotion":{"version_type_id":"18","at":"2026-01-31T18:30:00.000Z","superseded":[]}}"#,
        ),
        "GET /certificates" => (200, r#"{"certificates":[]}"#),
        "GET /subscriptions" => (200, "[]"),
        "POST /subscriber/test" => (200, r#"{"delivered":true,"duration_ms":1}"#),
        _ => (200, "{}"),
    }
}

/// Whether a call is one of an operation, whose path may have parameters.
fn is_call_of(operation: &str, call: &str) -> bool {
    let parts = |text: &str| text.split(['/', ' ']).map(str::to_owned).collect::<Vec<_>>();
    let (operation, call) = (parts(operation), parts(call));
    operation.len() == call.len()
        && operation
            .iter()
            .zip(&call)
            .all(|(wanted, found)| wanted == found || wanted.starts_with('{') && !found.is_empty())
}

/// The calls in docs/api.md, which a test compares with the OpenAPI document.
fn documented() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/api.md");
    let text = fs::read_to_string(page).unwrap();
    let call = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    text.lines().filter_map(call).filter(|call| call.contains(" /")).collect()
}

#[test]
fn every_call_of_the_api_has_a_command_or_a_reason_to_have_none() {
    let listed: Vec<&str> = COMMANDS.iter().chain(WITHOUT).map(|(call, _)| *call).collect();
    let known: BTreeSet<String> = listed.iter().map(|call| (*call).to_owned()).collect();
    assert_eq!(known.len(), listed.len(), "a call is listed twice");
    let documented = documented();
    let missing: Vec<&String> = documented.difference(&known).collect();
    let gone: Vec<&String> = known.difference(&documented).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "without a command: {missing:?}; not in the API: {gone:?}"
    );
}

#[test]
fn every_command_makes_its_call() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("policy.json", "{}"),
        ("instances.jsonl", "{\"id\":\"x\"}\n"),
        ("labels.jsonl", "{\"name\":\"7\",\"metadata\":{}}\n"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let server = Server::start(answer);
    let mut wrong = BTreeMap::new();
    for (operation, words) in COMMANDS {
        server.take();
        let mut command = server
            .command(&words.split(' ').collect::<Vec<_>>())
            .current_dir(folder.path())
            .env("SIGNALBOX_CONFIG_DIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Commands that poll, and streams that are opened again, do not end here.
        let made = || server.names().iter().any(|call| is_call_of(operation, call));
        let mut ended = None;
        while ended.is_none() && !made() {
            ended = command.try_wait().unwrap();
            let _called = server.called.recv_timeout(POLL);
        }
        let _gone = command.kill();
        let output = command.wait_with_output().unwrap();
        if !made() {
            let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            wrong.insert(*operation, (*words, server.names(), error));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
