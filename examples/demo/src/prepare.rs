//! `signalbox-demo prepare`: performs an operator's steps for new applications, and checks that everything works.
//!
//! It uploads a self-signed certificate for the samples' host names, prepares the canary ([`canary`]), sends one request
//! through the edge to each host and finds it in the statistics, and sends one event through the bus to a webhook.

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_client::{Client, Error, events::Numbers, stats::Totals};
use signalbox_stack::local_client;
use tokio::time::{self, Instant};

use crate::{canary, exit::Failure, line, system::System};

/// The time limit until the first request is routed and counted. The log is flushed and read twice per second.
const WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// The names in the certificate: those of the samples.
const DEMO_NAMES: &str = "*.localhost";
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// A certificate with more remaining days is kept.
const MIN_DAYS_LEFT: i64 = 30;

/// Flags of `signalbox-demo prepare`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Wait for this instance, which registers itself
    #[arg(long, value_name = "ID")]
    instance: Vec<String>,
    /// Check this host, and the version type of its requests
    #[arg(long, value_name = "HOST=VERSION_TYPE", value_parser = served)]
    host: Vec<(String, String)>,
    /// Use this process for canary.localhost
    #[arg(long, value_name = "ADDRESS")]
    canary: Vec<String>,
    /// Deliver events to this process
    #[arg(long, value_name = "ADDRESS")]
    receiver: String,
    /// URL of the admin listener
    #[arg(long, value_name = "URL")]
    admin_url: String,
    /// URL of the edge
    #[arg(long, value_name = "URL")]
    edge_url: String,
    #[command(flatten)]
    system: System,
}

fn served(text: &str) -> Result<(String, String), String> {
    let (host, version_type) = text.split_once('=').ok_or("expected HOST=VERSION_TYPE")?;
    Ok((host.to_owned(), version_type.to_owned()))
}

/// Returns when a request to each host was routed and counted, and an event was delivered.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.system.client(&args.admin_url)?;
    let edge = Edge { http: local_client(Duration::from_secs(5))?, url: args.edge_url };
    for id in &args.instance {
        until(&format!("{id} is registered"), || async {
            client.routes().instance(id).await.map(drop).map_err(text)
        })
        .await?;
    }
    for (host, version_type) in &args.host {
        routed_and_counted(&client, &edge, host, version_type).await?;
    }
    certificate(&client).await?;
    until("the canary is prepared", || async { canary::prepare(&client, &args.canary).await.map_err(text) })
        .await?;
    delivered(&client, &args.receiver).await
}

/// The edge, called as a client of an application calls it.
struct Edge {
    http: reqwest::Client,
    url: String,
}

impl Edge {
    async fn request(&self, host: &str) -> Result<(), String> {
        let answer = self.http.get(format!("{}/", self.url)).header("host", host).send().await;
        let status = answer.map_err(|error| error.to_string())?.status();
        if status.is_success() { Ok(()) } else { Err(format!("the edge answered {status}")) }
    }
}

async fn routed_and_counted(
    client: &Client,
    edge: &Edge,
    host: &str,
    version_type: &str,
) -> Result<(), Failure> {
    let totals = format!("/stats/version_type/{version_type}");
    let counted = async || client.get::<Totals>(&totals).await.map(|totals| totals.requests);
    let before = counted().await.unwrap_or(0);
    until(&format!("{host} is routed"), || edge.request(host)).await?;
    until(&format!("the request to {host} is counted"), || async {
        let now = counted().await.map_err(text)?;
        if now > before { Ok(()) } else { Err(format!("{now} requests, as before")) }
    })
    .await?;
    line(&format!("{host:<16} routed   and counted"));
    Ok(())
}

/// Uploads a certificate for the samples' names, unless there is one that is valid for a while.
async fn certificate(client: &Client) -> Result<(), Failure> {
    let path = format!("/certificates/{}", signalbox_client::segment(DEMO_NAMES));
    let days_left = client.get::<Value>(&path).await.ok().and_then(|found| found["days_left"].as_i64());
    if days_left.is_some_and(|days| days > MIN_DAYS_LEFT) {
        return Ok(());
    }
    let made = self_signed()?;
    let target = format!("{path}?wait=5s");
    until("the certificate is in the route table", || async {
        client.send::<Value>("PUT", &target, &made).await.map(drop).map_err(text)
    })
    .await?;
    line(&format!("{DEMO_NAMES:<16} has a self-signed certificate"));
    Ok(())
}

/// A certificate that is valid for a year, and its key.
fn self_signed() -> Result<Value, rcgen::Error> {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    let mut params = rcgen::CertificateParams::new(vec![DEMO_NAMES.to_owned(), "localhost".to_owned()])?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "Signalbox demo");
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    // Valid from an hour ago, for clocks that are behind.
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(3600));
    params.not_after = epoch + Duration::from_secs(now) + YEAR;
    let key = rcgen::KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(json!({"chain": certificate.pem(), "key": key.serialize_pem()}))
}

/// Subscribes one of the processes to a topic, and waits until an event of it arrives.
async fn delivered(client: &Client, receiver: &str) -> Result<(), Failure> {
    let subscription = json!({
        "topics": ["demo", "signalbox.instance.registered", "signalbox.instance.removed"],
        "callback": format!("http://{receiver}/events"),
        "uuid": "demo",
        "timeout": 100,
    });
    until("the demo is subscribed to events", || async {
        client.send::<Value>("POST", "/subscription", &subscription).await.map(drop).map_err(text)
    })
    .await?;
    let received = async || {
        let numbers = client.get::<Numbers>("/bus/metrics").await.map_err(text)?;
        let own = numbers.subscribers.get("root").ok_or("the subscriber `root` is missing")?;
        Ok::<u64, String>(own.sent)
    };
    let before = received().await.unwrap_or(0);
    let event = json!({"type": "noop", "url": "https://hello.localhost/", "data": "Signalbox started"});
    until("an event is published", || async {
        client.send::<Value>("POST", "/topics/demo", &event).await.map(drop).map_err(text)
    })
    .await?;
    until("the event is delivered", || async {
        let now = received().await?;
        if now > before { Ok(()) } else { Err(format!("{now} events, as before")) }
    })
    .await?;
    line(&format!("{:<16} published and delivered", "an event"));
    Ok(())
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Retries until success or the time limit, and fails with the result of the last attempt.
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
