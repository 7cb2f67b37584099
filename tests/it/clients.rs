//! The client programs in `examples/clients/` do what docs/clients.md promises, in every language: against real daemons, with
//! lost responses, repeated deliveries, work that outlasts its lease, and connections that break.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use serde_json::{Value, json};
use signalbox_testkit::{
    PATIENCE, Ports, equal, eventually,
    wire::{Fault, Wire},
};
use signalbox_tests::{
    events::Stream,
    http::{Request, credential},
    receiver::{Answer, Receiver},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

use crate::bus_api::Bus;

/// A folder of `examples/clients/`, the program that runs its files, and the end of their names. All of them are installed by
/// `make test`, so a missing one is a failure.
#[derive(Debug, Clone, Copy)]
struct Language {
    name: &'static str,
    interpreter: &'static str,
    extension: &'static str,
}

const LANGUAGES: [Language; 4] = [
    Language { name: "curl", interpreter: "bash", extension: "sh" },
    Language { name: "python", interpreter: "python3", extension: "py" },
    Language { name: "javascript", interpreter: "node", extension: "mjs" },
    Language { name: "ruby", interpreter: "ruby", extension: "rb" },
];

/// A running example. Its processes end with it.
struct Example {
    name: String,
    child: Child,
    group: Pid,
    printed: Arc<Mutex<Vec<String>>>,
    complained: Arc<Mutex<Vec<String>>>,
}

impl Drop for Example {
    fn drop(&mut self) {
        // A shell's children are in its group, and may outlive it.
        let _gone = killpg(self.group, Signal::SIGKILL);
    }
}

fn collect(from: impl AsyncRead + Unpin + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&lines);
    tokio::spawn(async move {
        let mut from = BufReader::new(from).lines();
        while let Ok(Some(line)) = from.next_line().await {
            collected.lock().unwrap().push(line);
        }
    });
    lines
}

impl Example {
    fn start(language: Language, task: &str, arguments: &[&str], tenant: &[(&str, &str)]) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/clients").join(language.name);
        let mut child = Command::new(language.interpreter)
            .arg(folder.join(format!("{task}.{}", language.extension)))
            .args(arguments)
            .envs(tenant.iter().copied())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", language.interpreter));
        let group = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
        let printed = collect(child.stdout.take().unwrap());
        let complained = collect(child.stderr.take().unwrap());
        Self { name: format!("{} {task}", language.name), child, group, printed, complained }
    }

    fn printed(&self) -> Vec<String> {
        self.printed.lock().unwrap().clone()
    }

    fn complained(&self) -> String {
        self.complained.lock().unwrap().join("\n")
    }

    /// Waits until it has printed exactly these lines.
    async fn until_printed(&self, lines: &[String]) {
        eventually(&format!("{} to print {lines:?}", self.name), || async {
            if self.printed() == lines { Ok(()) } else { Err((self.printed(), self.complained())) }
        })
        .await;
    }

    async fn end(&mut self) -> ExitStatus {
        let status = timeout(PATIENCE, self.child.wait()).await;
        status.unwrap_or_else(|_| panic!("{} does not end: {}", self.name, self.complained())).unwrap()
    }
}

/// Runs the steps once for every language, side by side: they mostly wait.
async fn for_each_language<F: Future<Output = ()> + Send + 'static>(mut steps: impl FnMut(Language) -> F) {
    let mut running: JoinSet<()> = LANGUAGES.into_iter().map(&mut steps).collect();
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_response_was_lost_is_published_once_by_every_client() {
    let bus = Arc::new(Bus::start("clients-publish").await);
    let shop = bus.client("shop").await;
    for_each_language(|language| {
        let (bus, shop) = (Arc::clone(&bus), shop.clone());
        async move {
            let (at, token) = (bus.system.pacemaker, credential(&shop));
            let topic = format!("orders_{}", language.name);
            let mut stream = Stream::open(at, &token, &format!("/events?topic={topic}"), None).await;
            let event = json!({"type": "update", "url": format!("https://shop.example/{topic}/7")});
            let wire = Wire::to(at).await;
            wire.set(Fault::LoseReplies);
            let tenant = [("SIGNALBOX_URL", &*url(wire.address)), ("SIGNALBOX_TOKEN", &*token)];
            let arguments = [&*topic, "order-7-paid", &*event.to_string()];
            let mut publisher = Example::start(language, "publish", &arguments, &tenant);
            let accepted = stream.next().await.expect("the event").json();
            // The event is accepted, and the connection that would bring the response is reset.
            wire.set(Fault::Cut);
            let next = bus.call(&shop, "POST", &format!("/topics/{topic}"), Some(&event)).await;
            assert_eq!(next.status, 200, "{}", next.text());
            wire.set(Fault::None);
            assert!(publisher.end().await.success(), "{}", publisher.complained());
            publisher.until_printed(&[accepted["id"].to_string()]).await;
            // The only event of the object between the first and this one would be the repetition.
            let marker = bus.call(&shop, "POST", &format!("/topics/{topic}"), Some(&event)).await;
            let second = stream.next().await.expect("the second event").json();
            let third = stream.next().await.expect("the third event").json();
            assert_eq!(second["prev"], accepted["id"], "{}", language.name);
            assert_eq!(third["prev"], second["id"], "{}", language.name);
            assert_eq!(marker.header("X-Signalbox-Event-Id"), Some(&*third["id"].to_string()));

            let arguments = [&*topic, "order-8", r#"{"type":"oops"}"#];
            let mut publisher = Example::start(language, "publish", &arguments, &tenant);
            assert!(!publisher.end().await.success(), "{} hides an error", language.name);
            eventually("the reason of the rejection", async || {
                let complained = publisher.complained();
                if complained.contains("invalid_event") { Ok(()) } else { Err(complained) }
            })
            .await;
        }
    })
    .await;
    Arc::into_inner(bus).unwrap().system.stop().await;
}

/// The value of `webhook-signature`.
fn sign(secret: &str, id: &str, sent: u64, body: &[u8]) -> String {
    let key = STANDARD.decode(secret.trim_start_matches("whsec_")).unwrap();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let signed = [format!("{id}.{sent}.").as_bytes(), body].concat();
    format!("v1,{}", STANDARD.encode(ring::hmac::sign(&key, &signed)))
}

/// A webhook as Signalbox sends it.
#[derive(Clone)]
struct Webhook {
    id: String,
    sent: u64,
    signature: String,
    body: String,
}

impl Webhook {
    #[allow(
        clippy::disallowed_methods,
        reason = "receivers compare the time of a delivery with their own clock"
    )]
    fn new(secret: &str, age: u64) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the receiver compares the time with its own clock")]
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let body = r#"[{"topic":"orders","type":"create","url":"https://shop.example/9","t":1795267331123,"data":{"total": "1.00"},"id":583726511667328}]"#;
        let (id, sent) = ("5yZ0".to_owned(), now - age);
        let signature = format!("v1,AAAA {}", sign(secret, &id, sent, body.as_bytes()));
        Self { id, sent, signature, body: body.to_owned() }
    }

    async fn deliver(&self, to: SocketAddr) -> u16 {
        let request = Request::new("POST", "localhost", "/events")
            .header("Content-Type", "application/json")
            .header("webhook-id", &self.id)
            .header("webhook-timestamp", &self.sent.to_string())
            .header("webhook-signature", &self.signature)
            .body(self.body.clone());
        request.send(to).await.unwrap().status
    }
}

/// Webhooks that a receiver must reject.
fn forged(secret: &str) -> Vec<(&'static str, Webhook)> {
    let genuine = Webhook::new(secret, 0);
    vec![
        ("a changed body", Webhook { body: genuine.body.replace("1.00", "9.00"), ..genuine.clone() }),
        ("another ID", Webhook { id: "6yZ0".to_owned(), ..genuine.clone() }),
        ("another time", Webhook { sent: genuine.sent + 1, ..genuine.clone() }),
        ("no signature", Webhook { signature: String::new(), ..genuine }),
        ("another key", Webhook::new("whsec_AAAA", 0)),
        ("an old delivery", Webhook::new(secret, 600)),
    ]
}

const PRINTED: &str = "583726511667328 orders create https://shop.example/9";

#[tokio::test(flavor = "multi_thread")]
async fn every_receiver_accepts_genuine_webhooks_once_and_rejects_forged_ones() {
    let bus = Arc::new(Bus::start("clients-webhook").await);
    let shop = bus.client("shop").await;
    for_each_language(|language| {
        let (bus, shop) = (Arc::clone(&bus), shop.clone());
        async move {
            // A shell script cannot serve HTTP; its example verifies one delivery and has a test of its own.
            if language.name == "curl" {
                return;
            }
            let mut ports = Ports::default();
            let address = SocketAddr::from(([127, 0, 0, 1], ports.reserve()));
            let client = bus.client(language.name).await;
            // A topic of its own: the receivers of the other languages run at the same time.
            let topic = format!("orders_{}", language.name);
            bus.subscribe(&client, &[&topic], &format!("http://{address}/events")).await;
            let secret = bus.call(&client, "GET", "/subscriber/secret", None).await.json()["secret"].clone();
            let secret = secret.as_str().unwrap().to_owned();
            let at = address.to_string();
            let receiver = Example::start(language, "webhook", &[&at], &[("SIGNALBOX_SECRET", &secret)]);
            eventually("the receiver to listen", async || {
                tokio::net::TcpStream::connect(address).await.map(drop).map_err(|_| receiver.complained())
            })
            .await;
            for (what, webhook) in forged(&secret) {
                assert_eq!(webhook.deliver(address).await, 401, "{}: {what}", language.name);
            }
            assert_eq!(receiver.printed(), Vec::<String>::new());
            // Twice: the second time the sender did not see the first answer.
            for _ in 0..2 {
                assert_eq!(Webhook::new(&secret, 0).deliver(address).await, 204, "{}", receiver.complained());
            }
            let event = json!({"type": "update", "url": "https://shop.example/7", "data": {"a": 1}, "object": language.name});
            let published = bus.call(&shop, "POST", &format!("/topics/{topic}"), Some(&event)).await;
            let id = published.header("X-Signalbox-Event-Id").unwrap().to_owned();
            eventually("a real delivery", async || {
                let printed = receiver.printed();
                let real = printed.iter().any(|line| line.starts_with(&format!("{id} {topic} update https://shop.example/7")));
                if real { Ok(()) } else { Err((printed, receiver.complained())) }
            })
            .await;
            let once = receiver.printed().iter().filter(|line| line.starts_with(PRINTED)).count();
            assert_eq!(once, 1, "{}: {:?}", language.name, receiver.printed());
        }
    })
    .await;
    Arc::into_inner(bus).unwrap().system.stop().await;
}

#[tokio::test]
async fn the_shell_script_verifies_a_webhook() {
    let (secret, curl) = ("whsec_c2VjcmV0IG9mIHRoZSB0ZXN0", LANGUAGES[0]);
    let verify = async |webhook: &Webhook| {
        let sent = webhook.sent.to_string();
        let arguments = [&*webhook.id, &*sent, &*webhook.signature];
        let mut script = Example::start(curl, "webhook", &arguments, &[("SIGNALBOX_SECRET", secret)]);
        let mut input = script.child.stdin.take().unwrap();
        // A script that rejects the arguments does not read the body.
        let _unread = input.write_all(webhook.body.as_bytes()).await;
        drop(input);
        (script.end().await.success(), script)
    };
    let (accepted, script) = verify(&Webhook::new(secret, 0)).await;
    assert!(accepted, "{}", script.complained());
    script.until_printed(&[format!("{PRINTED} {}", r#"{"total":"1.00"}"#)]).await;
    for (what, webhook) in forged(secret) {
        let (accepted, script) = verify(&webhook).await;
        assert!(!accepted, "{what} was accepted");
        assert_eq!(script.printed(), Vec::<String>::new(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_worker_holds_its_leases_works_in_parallel_and_returns_what_failed() {
    let bus = Arc::new(Bus::start("clients-worker").await);
    for_each_language(|language| {
        let bus = Arc::clone(&bus);
        async move {
            let (queue, system) = (language.name, &bus.system);
            let path = format!("/queues/{queue}");
            let definition = json!({"pattern": format!("{queue}:.*"), "lease_seconds": 2});
            assert_eq!(bus.root("PUT", &path, Some(&definition)).await.status, 201);
            // It answers after three leases, and rejects the first attempt of one message.
            let target = Receiver::answering(|delivery| {
                let message: Value = serde_json::from_slice(&delivery.body).unwrap();
                if message["payload"] == "fails once" && message["attempt"] == 1 {
                    return Answer::status("500 Internal Server Error");
                }
                Answer::After(Duration::from_secs(6), Box::new(Answer::status("200 OK")))
            })
            .await;
            let message =
                |payload: &str| json!({"tenant": queue, "type": "email", "name": "send", "payload": payload});
            let messages = json!([message("one"), message("two"), message("fails once")]);
            let sent = bus.root("POST", "/messages", Some(&messages)).await.json();
            let tenant = [("SIGNALBOX_URL", &*url(system.admin)), ("SIGNALBOX_TOKEN", &*system.token)];
            let mut worker = Example::start(language, "worker", &[queue, &target.url(), "3"], &tenant);
            let attempts = || {
                let one = |delivery: signalbox_tests::receiver::Delivery| {
                    let message: Value = serde_json::from_slice(&delivery.body).unwrap();
                    assert_eq!(delivery.header("Idempotency-Key"), Some(&*message["id"].to_string()));
                    (message["id"].as_u64().unwrap(), message["attempt"].as_u64().unwrap())
                };
                let mut attempts: Vec<(u64, u64)> = target.deliveries().into_iter().map(one).collect();
                attempts.sort_unstable();
                attempts
            };
            let counts = || async {
                let tenants = bus.root("GET", &format!("{path}/tenants"), None).await.json();
                let of = |name: &str| tenants["tenants"][0][name].as_u64().unwrap_or(0);
                (of("waiting"), of("in_flight"), of("delayed"))
            };
            // Three at the same time: the slow ones, and the one that was returned.
            eventually(&format!("three messages in flight at {queue}"), || async {
                equal((counts().await, attempts().len()), ((0, 3, 0), 4))
                    .map_err(|found| (found, worker.complained()))
            })
            .await;
            eventually(&format!("{queue} to be empty"), || async {
                equal(counts().await, (0, 0, 0)).map_err(|found| (found, worker.complained()))
            })
            .await;
            let id = |n: usize| sent[n]["id"].as_u64().unwrap();
            // A lease that had expired would have led to one more attempt.
            assert_eq!(attempts(), [(id(0), 1), (id(1), 1), (id(2), 1), (id(2), 2)], "{queue}");
            let dead = bus.root("GET", &format!("{path}/dead"), None).await.text();
            assert!(!dead.contains("receipt"), "{dead}");

            // It finishes what it has when it is asked to end.
            let last = bus.root("POST", "/messages", Some(&message("last"))).await.json();
            eventually("the last message to be taken", async || equal(attempts().len(), 5)).await;
            kill(worker.group, Signal::SIGTERM).unwrap();
            assert!(worker.end().await.success(), "{queue}: {}", worker.complained());
            assert_eq!(counts().await, (0, 0, 0), "{queue}: {}", worker.complained());
            assert_eq!(attempts().last(), Some(&(last["id"].as_u64().unwrap(), 1)));
        }
    })
    .await;
    Arc::into_inner(bus).unwrap().system.stop().await;
}

fn ids(lines: &[String]) -> Vec<u64> {
    let id = |line: &String| serde_json::from_str::<Value>(line).ok()?["id"].as_u64();
    let mut found: Vec<u64> = lines.iter().map(|line| id(line).unwrap_or_else(|| panic!("{line}"))).collect();
    // A program that was killed between printing an event and storing its position prints it again.
    found.dedup();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_continues_after_a_lost_connection_and_after_its_own_end() {
    let bus = Arc::new(Bus::start("clients-watch").await);
    let shop = bus.client("shop").await;
    let folder = tempfile::tempdir().unwrap();
    for_each_language(|language| {
        let (bus, shop) = (Arc::clone(&bus), shop.clone());
        let position: PathBuf = folder.path().join(language.name);
        async move {
            let reader = bus.client(language.name).await;
            let topic = format!("orders_{}", language.name);
            let wire = Wire::to(bus.system.pacemaker).await;
            let (at, token) = (url(wire.address), credential(&reader));
            let watch = || {
                let arguments = [&*topic, position.to_str().unwrap()];
                let tenant = [("SIGNALBOX_URL", &*at), ("SIGNALBOX_TOKEN", &*token)];
                Example::start(language, "watch", &arguments, &tenant)
            };
            let watcher = watch();
            // Without a position it begins with the next event after it has connected.
            let published = Mutex::new(vec![]);
            eventually("the first event", async || {
                let id = bus.publish(&shop, &topic, 1).await;
                published.lock().unwrap().push(id);
                if watcher.printed().is_empty() { Err(watcher.complained()) } else { Ok(()) }
            })
            .await;
            let first = ids(&watcher.printed())[0];
            let mut published = published.into_inner().unwrap();
            published.retain(|id| *id >= first);

            wire.set(Fault::Cut);
            for _ in 0..5 {
                published.push(bus.publish(&shop, &topic, 1).await);
            }
            wire.set(Fault::None);
            eventually("the events that were published while it was cut off", async || {
                equal(ids(&watcher.printed()), published.clone())
                    .map_err(|found| (found, watcher.complained()))
            })
            .await;

            let mut printed = watcher.printed();
            drop(watcher);
            for _ in 0..5 {
                published.push(bus.publish(&shop, &topic, 1).await);
            }
            let mut watcher = watch();
            eventually("the events that were published while it did not run", async || {
                let all = [printed.clone(), watcher.printed()].concat();
                equal(ids(&all), published.clone()).map_err(|found| (found, watcher.complained()))
            })
            .await;
            printed.extend(watcher.printed());

            assert_eq!(bus.root("DELETE", &format!("/api_tokens/{reader}"), None).await.status, 204);
            assert!(!watcher.end().await.success(), "{} ends when its token is revoked", language.name);
        }
    })
    .await;
    Arc::into_inner(bus).unwrap().system.stop().await;
}
