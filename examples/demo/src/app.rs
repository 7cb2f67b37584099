//! `signalbox-demo app`: a small application to route to. It registers itself with a lease, renews the lease, removes itself
//! before it ends, and receives events at `/events`, where it also shows the latest of them.

use std::{collections::VecDeque, io::Write as _, net::Ipv4Addr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{
    Json, Router,
    body::Bytes,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use signalbox_stack::local_client;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time,
};

use crate::{exit::Failure, line};

/// Writes a line to standard error.
fn log(text: &str) {
    let _unwritten = writeln!(std::io::stderr(), "{text}");
}

const LEASE_SECONDS: u64 = 15;
/// A third of the lease: two renewals may fail.
const RENEW_EVERY: Duration = Duration::from_secs(5);
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// The number of events that are shown.
const EVENTS_KEPT: usize = 100;
/// The maximum duration of `/slow`.
const SLOWEST_MS: u64 = 60_000;

/// Flags of `signalbox-demo app`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address to listen on, and to register
    #[arg(long, value_name = "IP", default_value_t = Ipv4Addr::LOCALHOST)]
    address: Ipv4Addr,
    /// Port to listen on
    #[arg(long)]
    port: u16,
    /// Name of the application
    #[arg(long, default_value = "demo")]
    name: String,
    /// Name of this instance, also its instance ID
    #[arg(long, default_value = "demo-1")]
    instance: String,
    /// Register with Signalbox at this admin address (http://127.0.0.1:8081)
    #[arg(long, value_name = "URL", requires_all = ["token_file", "hostname"])]
    register: Option<String>,
    /// File with a token that can register instances
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Host name of the application
    #[arg(long, value_name = "HOST")]
    hostname: Option<String>,
    /// Version type under which its requests are counted
    #[arg(long, value_name = "ID", default_value = "1")]
    version_type_id: String,
}

/// Serves until SIGTERM or Ctrl-C.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let listener = TcpListener::bind((args.address, args.port))
        .await
        .with_context(|| format!("cannot listen on {}:{}", args.address, args.port))?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let registration = Registration::read(&args)?.map(Arc::new);
    let renewing =
        registration.clone().map(|registration| tokio::spawn(async move { registration.keep().await }));
    let end = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if let Some(renewing) = renewing {
            renewing.abort();
        }
        // It leaves the route table before it stops accepting connections, so that no request fails.
        if let Some(registration) = registration {
            registration.remove().await;
        }
    };
    axum::serve(listener, application(&args)).with_graceful_shutdown(end).await?;
    Ok(())
}

/// The served version. A process can switch to another one, as if it had been started with it.
#[derive(Clone, Deserialize)]
struct Release {
    name: String,
    /// The status that `/` returns.
    status: u16,
}

#[derive(Clone)]
struct Identity {
    release: Arc<Mutex<Release>>,
    instance: Arc<str>,
    /// The latest events, unchanged.
    events: Arc<Mutex<VecDeque<Box<RawValue>>>>,
}

fn application(args: &Args) -> Router {
    let identity = Identity {
        release: Arc::new(Mutex::new(Release { name: args.name.clone(), status: 200 })),
        instance: args.instance.as_str().into(),
        events: Arc::default(),
    };
    Router::new()
        .route("/", get(hello).post(echo).put(echo).patch(echo).delete(echo))
        .route("/health", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/slow", get(slow))
        .route("/release", put(release))
        .route("/events", post(receive).get(received))
        .fallback(|| async { (StatusCode::NOT_FOUND, "nothing here\n") })
        .with_state(identity)
}

/// The names of the application and of the host that was requested.
async fn hello(State(identity): State<Identity>, headers: HeaderMap) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("(no host)");
    let Release { name, status } = identity.release.lock().clone();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    (status, format!("Hello from {name}, instance {}, asked as {host}\n", identity.instance)).into_response()
}

/// Serves another version from now on.
async fn release(State(identity): State<Identity>, Json(release): Json<Release>) -> StatusCode {
    line(&format!("{} serves {} from now on", identity.instance, release.name));
    *identity.release.lock() = release;
    StatusCode::NO_CONTENT
}

/// The body, unchanged.
async fn echo(headers: HeaderMap, body: Bytes) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).cloned();
    let kind = kind.unwrap_or(header::HeaderValue::from_static("application/octet-stream"));
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

/// The printed members of an event in a delivery.
#[derive(Deserialize)]
struct Event {
    topic: String,
    #[serde(rename = "type")]
    kind: String,
    url: String,
    id: u64,
}

/// A webhook: prints and keeps what it received. A real one would verify `webhook-signature` first.
async fn receive(State(identity): State<Identity>, Json(events): Json<Vec<Box<RawValue>>>) -> StatusCode {
    for raw in events {
        let Ok(Event { topic, kind, url, id }) = serde_json::from_str(raw.get()) else {
            return StatusCode::BAD_REQUEST;
        };
        line(&format!("{} received {topic}: {kind} {url} (event {id})", identity.instance));
        let mut kept = identity.events.lock();
        if kept.len() == EVENTS_KEPT {
            kept.pop_front();
        }
        kept.push_back(raw);
    }
    StatusCode::NO_CONTENT
}

/// The received events, one per line, the latest last.
async fn received(State(identity): State<Identity>) -> Response {
    let kept = identity.events.lock();
    let lines: String = kept.iter().map(|event| format!("{event}\n")).collect();
    ([(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response()
}

#[derive(Deserialize)]
struct Slow {
    ms: u64,
}

async fn slow(State(identity): State<Identity>, Query(slow): Query<Slow>) -> Response {
    let ms = slow.ms.min(SLOWEST_MS);
    time::sleep(Duration::from_millis(ms)).await;
    format!("{} took {ms} ms\n", identity.instance).into_response()
}

/// This instance in the route table.
struct Registration {
    http: reqwest::Client,
    url: String,
    token: String,
    body: serde_json::Value,
}

impl Registration {
    fn read(args: &Args) -> Result<Option<Self>, Failure> {
        let (Some(admin), Some(file), Some(hostname)) = (&args.register, &args.token_file, &args.hostname)
        else {
            return Ok(None);
        };
        let token =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Some(Self {
            http: local_client(Duration::from_secs(5))?,
            url: format!("{}/instances/{}", admin.trim_end_matches('/'), args.instance),
            token: token.trim().to_owned(),
            body: json!({
                "address": format!("{}:{}", args.address, args.port),
                "hostnames": [hostname],
                "version_type_id": args.version_type_id,
                "application_id": args.name,
                "lease_seconds": LEASE_SECONDS,
            }),
        }))
    }

    /// Registers, and renews the lease until the process ends. After a failed renewal it registers again.
    async fn keep(&self) {
        loop {
            match self.send(self.http.put(&self.url).json(&self.body)).await {
                Ok(()) => log("registered"),
                Err(why) => {
                    log(&format!("not registered: {why}"));
                    time::sleep(RETRY_AFTER).await;
                    continue;
                }
            }
            loop {
                time::sleep(RENEW_EVERY).await;
                if let Err(why) = self.send(self.http.post(format!("{}/heartbeat", self.url))).await {
                    log(&format!("lease not renewed: {why}"));
                    break;
                }
            }
        }
    }

    async fn remove(&self) {
        match self.send(self.http.delete(format!("{}?wait=2s", self.url))).await {
            Ok(()) => log("removed from the route table"),
            Err(why) => log(&format!("not removed ({why}); the lease will end")),
        }
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<(), String> {
        let answer = request.bearer_auth(&self.token).send().await.map_err(|error| error.to_string())?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let body = answer.text().await.unwrap_or_default();
        Err(format!("{status} {}", body.trim()))
    }
}
