//! `--demo`: sample applications that do what a user's application would do, and a first look at the result.
//!
//! Nothing here writes to Redis. A self-signed certificate for their names is put, the applications register themselves
//! over the public API, and the canary is prepared ([`canary`]); then one request goes through the edge to each host, and is looked for in the statistics, and one event goes through the bus to a webhook,
//! before the operator is told "ready".

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_stack::{Options, Probe, Program, Stack};
use tokio::time::{self, Instant};

use crate::{canary, exit::Failure, terminal};

/// How long the first request may take to be routed and counted. The log is flushed and read twice a second.
const WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
const APPLICATIONS: [(&str, &str, &str); 2] =
    [("hello", "hello.localhost", "1"), ("shop", "shop.localhost", "2")];

/// Whose certificate is put: the names of the samples are below it.
const DEMO_NAMES: &str = "*.localhost";
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A certificate for a year that nobody has to trust, and its key.
fn self_signed() -> Result<Value, rcgen::Error> {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    let mut params = rcgen::CertificateParams::new(vec![DEMO_NAMES.to_owned(), "localhost".to_owned()])?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "Signalbox demo");
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    // An hour back, for clocks that are behind.
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(3600));
    params.not_after = epoch + Duration::from_secs(now) + YEAR;
    let key = rcgen::KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(json!({"chain": certificate.pem(), "key": key.serialize_pem()}))
}

/// What runs.
pub(crate) struct Demo {
    /// Host names that are routed.
    pub(crate) hosts: Vec<&'static str>,
    /// Address of the process that is not registered.
    pub(crate) spare: String,
}

/// Starts the sample applications, and waits until a request to each was routed and counted.
pub(crate) async fn start(stack: &Stack, options: &Options) -> Result<Demo, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::internal(format!("cannot find this program: {error}")))?;
    let (mut spare, mut canaries) = (String::new(), Vec::new());
    for other in &options.others {
        let name = other.part.as_str();
        let address = format!("127.0.0.1:{}", other.port);
        let mut part = Program::new(other.part.clone(), &program)
            .arg("demo-app")
            .arg("--port")
            .arg(other.port.to_string())
            .arg("--instance")
            .arg(name);
        match APPLICATIONS.iter().find(|(application, ..)| name.contains(application)) {
            Some((application, host, version_type)) => {
                part = part
                    .arg("--name")
                    .arg(*application)
                    .arg("--register")
                    .arg(stack.admin_url())
                    .arg("--token-file")
                    .arg(stack.layout().token().display().to_string())
                    .arg("--hostname")
                    .arg(*host)
                    .arg("--version-type-id")
                    .arg(*version_type)
                    .address(format!("http://{address} as {host}"));
            }
            None if name.starts_with(canary::PART) => {
                part = part
                    .arg("--name")
                    .arg("canary-1")
                    .address(format!("http://{address} for {}", canary::HOST));
                canaries.push(address.clone());
            }
            None => {
                part = part.arg("--name").arg("new").address(format!("http://{address}, not registered"));
                spare.clone_from(&address);
            }
        }
        stack.add(part.ready_when(Probe::Http(format!("http://{address}/health")))).await?;
    }
    let client = Client::new(stack)?;
    let registers = |name: &str| APPLICATIONS.iter().any(|(application, ..)| name.contains(application));
    for other in options.others.iter().filter(|other| registers(other.part.as_str())) {
        client.registered(other.part.as_str()).await?;
    }
    for (_, host, version_type) in APPLICATIONS {
        client.routed_and_counted(host, version_type).await?;
    }
    client.certified().await?;
    let operator = signalbox_client::Client::builder(stack.admin_url()).token(stack.token()).build()?;
    until("the canary is prepared", || async {
        canary::prepare(&operator, &canaries).await.map_err(|error| error.to_string())
    })
    .await?;
    client.delivered(&spare).await?;
    Ok(Demo { hosts: APPLICATIONS.map(|(_, host, _)| host).into(), spare })
}

/// Calls both listeners as a stranger would.
struct Client {
    http: reqwest::Client,
    edge: String,
    admin: String,
    token: String,
}

impl Client {
    fn new(stack: &Stack) -> Result<Self, Failure> {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build();
        let http = http.map_err(|error| Failure::internal(format!("cannot make an HTTP client: {error}")))?;
        Ok(Self { http, edge: stack.edge_url(), admin: stack.admin_url(), token: stack.token().to_owned() })
    }

    async fn registered(&self, instance: &str) -> Result<(), Failure> {
        let path = format!("/instances/{instance}");
        until(&format!("{instance} is registered"), || async { self.ask(&path).await.map(drop) }).await
    }

    async fn routed_and_counted(&self, host: &str, version_type: &str) -> Result<(), Failure> {
        let before = self.counted(version_type).await.unwrap_or(0);
        until(&format!("{host} is routed"), || self.request(host)).await?;
        until(&format!("the request to {host} is counted"), || async {
            let now = self.counted(version_type).await?;
            if now > before { Ok(()) } else { Err(format!("{now} requests, as before")) }
        })
        .await?;
        terminal::line(&format!("{host:<16} routed   and counted"));
        Ok(())
    }

    async fn request(&self, host: &str) -> Result<(), String> {
        let answer = self.http.get(format!("{}/", self.edge)).header("host", host).send().await;
        let status = answer.map_err(|error| error.to_string())?.status();
        if status.is_success() { Ok(()) } else { Err(format!("the edge answered {status}")) }
    }

    /// Puts a certificate for the samples' names, unless there is one that lasts for a while.
    async fn certified(&self) -> Result<(), Failure> {
        let path = format!("/certificates/{DEMO_NAMES}");
        let days_left = self.ask(&path).await.ok().and_then(|found| found["days_left"].as_i64());
        if days_left.is_some_and(|days| days > 30) {
            return Ok(());
        }
        let made = self_signed()
            .map_err(|error| Failure::internal(format!("cannot make a certificate: {error}")))?;
        let target = format!("{path}?wait=5s");
        until("the certificate stands in the table", || self.send(reqwest::Method::PUT, &target, &made))
            .await?;
        terminal::line(&format!("{DEMO_NAMES:<16} has a self-signed certificate"));
        Ok(())
    }

    /// Subscribes one of the processes to a topic and sees an event of it arrive.
    async fn delivered(&self, receiver: &str) -> Result<(), Failure> {
        let subscription = json!({
            "topics": ["demo", "signalbox.instance.registered", "signalbox.instance.removed"],
            "callback": format!("http://{receiver}/events"),
            "uuid": "demo",
            "timeout": 100,
        });
        until("the demo is subscribed to events", || self.tell("/subscription", &subscription)).await?;
        let before = self.received().await.unwrap_or(0);
        let event = json!({"type": "noop", "url": "https://hello.localhost/", "data": "Signalbox started"});
        until("an event is published", || self.tell("/topics/demo", &event)).await?;
        until("the event is delivered", || async {
            let now = self.received().await?;
            if now > before { Ok(()) } else { Err(format!("{now} events, as before")) }
        })
        .await?;
        terminal::line(&format!("{:<16} published and delivered", "an event"));
        Ok(())
    }

    /// The events that were delivered to the demo so far.
    async fn received(&self) -> Result<u64, String> {
        let subscriptions = self.ask("/subscriptions").await?;
        let own = subscriptions.as_array().into_iter().flatten().find(|one| one["subscriber"] == "root");
        own.and_then(|one| one["events"]["sent"].as_u64()).ok_or_else(|| format!("not in {subscriptions}"))
    }

    async fn tell(&self, path: &str, body: &Value) -> Result<(), String> {
        self.send(reqwest::Method::POST, path, body).await
    }

    async fn send(&self, method: reqwest::Method, path: &str, body: &Value) -> Result<(), String> {
        let url = format!("{}{path}", self.admin);
        let request = self.http.request(method.clone(), url).bearer_auth(&self.token).json(body);
        let answer = request.send().await.map_err(|error| error.to_string())?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let body = answer.text().await.unwrap_or_default();
        Err(format!("{method} {path} answered {status}: {body}"))
    }

    /// The requests of a version type so far.
    async fn counted(&self, version_type: &str) -> Result<u64, String> {
        let stats = self.ask(&format!("/stats/version_type/{version_type}")).await?;
        stats["requests"].as_u64().ok_or_else(|| format!("no number of requests in {stats}"))
    }

    async fn ask(&self, path: &str) -> Result<Value, String> {
        let request = self.http.get(format!("{}{path}", self.admin)).bearer_auth(&self.token);
        let answer = request.send().await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = answer.text().await.map_err(|error| error.to_string())?;
        if !status.is_success() {
            return Err(format!("GET {path} answered {status}: {body}"));
        }
        serde_json::from_str(&body).map_err(|error| format!("GET {path} answered no JSON: {error}"))
    }
}

/// Tries until it works, and fails with what the last attempt saw.
async fn until<F>(what: &str, attempt: impl Fn() -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), String>>,
{
    let deadline = Instant::now() + WITHIN;
    loop {
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(last) if Instant::now() > deadline => {
                let seconds = WITHIN.as_secs();
                return Err(Failure::unavailable(format!("waited {seconds} s until {what}; last: {last}")));
            }
            Err(_) => time::sleep(POLL).await,
        }
    }
}
