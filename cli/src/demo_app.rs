//! `signalbox demo-app`: a small application to route to. It does what any application behind Signalbox may do:
//! registers itself with a lease, renews the lease, takes itself out before it ends, and receives events at `/events`,
//! where it also shows the latest of them.

use std::{
    collections::VecDeque,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time,
};

use crate::{exit::Failure, terminal};

const LEASE_SECONDS: u64 = 15;
/// A third of the lease: two renewals may fail.
const RENEW_EVERY: Duration = Duration::from_secs(5);
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// How many events are shown.
const EVENTS_KEPT: usize = 100;
/// The longest `/slow`.
const SLOWEST_MS: u64 = 60_000;

/// Flags of `signalbox demo-app`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port on 127.0.0.1
    #[arg(long)]
    port: u16,
    /// Name of the application
    #[arg(long, default_value = "demo")]
    name: String,
    /// Name of this instance of it, also its instance id
    #[arg(long, default_value = "demo-1")]
    instance: String,
    /// Register with the Signalbox at this admin address (http://127.0.0.1:8081)
    #[arg(long, value_name = "URL", requires_all = ["token_file", "hostname"])]
    register: Option<String>,
    /// File with a token that may register
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Host name to be reached by
    #[arg(long, value_name = "HOST")]
    hostname: Option<String>,
    /// Version type to be counted under
    #[arg(long, value_name = "ID", default_value = "1")]
    version_type_id: String,
}

/// Serves until SIGTERM or Ctrl-C.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await.map_err(|error| {
        Failure::unavailable(format!("cannot listen on 127.0.0.1:{}: {error}", args.port))
    })?;
    let signals =
        |kind| signal(kind).map_err(|error| Failure::internal(format!("cannot catch signals: {error}")));
    let (mut terminate, mut interrupt) =
        (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
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
        // First out of the route table, then no new connections: nobody meets a closed door.
        if let Some(registration) = registration {
            registration.remove().await;
        }
    };
    let served = axum::serve(listener, application(&args)).with_graceful_shutdown(end).await;
    served.map_err(|error| Failure::internal(format!("cannot serve: {error}")))
}

/// What is served: a process may be given another version, as if it had been started with it.
#[derive(Clone, Deserialize)]
struct Release {
    name: String,
    /// What `/` answers.
    status: u16,
}

#[derive(Clone)]
struct Identity {
    release: Arc<Mutex<Release>>,
    instance: Arc<str>,
    /// The latest events, as they came.
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

/// Who answers, and by what name it was called.
async fn hello(State(identity): State<Identity>, headers: HeaderMap) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("(no host)");
    let Release { name, status } = identity.release.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    (status, format!("Hello from {name}, instance {}, asked as {host}\n", identity.instance)).into_response()
}

/// Another version from here on.
async fn release(State(identity): State<Identity>, Json(release): Json<Release>) -> StatusCode {
    terminal::line(&format!("{} serves {} from here on", identity.instance, release.name));
    *identity.release.lock().unwrap_or_else(PoisonError::into_inner) = release;
    StatusCode::NO_CONTENT
}

/// The body as it came.
async fn echo(headers: HeaderMap, body: Bytes) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).cloned();
    let kind = kind.unwrap_or(header::HeaderValue::from_static("application/octet-stream"));
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

/// An event of a delivery; what else it holds is left alone.
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
        terminal::line(&format!("{} received {topic}: {kind} {url} (event {id})", identity.instance));
        let mut kept = identity.events.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == EVENTS_KEPT {
            kept.pop_front();
        }
        kept.push_back(raw);
    }
    StatusCode::NO_CONTENT
}

/// What was received, one event a line, the latest last.
async fn received(State(identity): State<Identity>) -> Response {
    let kept = identity.events.lock().unwrap_or_else(PoisonError::into_inner);
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
        let token = std::fs::read_to_string(file)
            .map_err(|error| Failure::configuration(format!("cannot read {}: {error}", file.display())))?;
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build();
        Ok(Some(Self {
            http: http.map_err(|error| Failure::internal(format!("cannot make an HTTP client: {error}")))?,
            url: format!("{}/instances/{}", admin.trim_end_matches('/'), args.instance),
            token: token.trim().to_owned(),
            body: json!({
                "address": format!("127.0.0.1:{}", args.port),
                "hostnames": [hostname],
                "version_type_id": args.version_type_id,
                "application_id": args.name,
                "lease_seconds": LEASE_SECONDS,
            }),
        }))
    }

    /// Registers, and renews the lease for ever. An edge that forgot the instance (404) is told again.
    async fn keep(&self) {
        loop {
            match self.send(self.http.put(&self.url).json(&self.body)).await {
                Ok(()) => terminal::error("registered"),
                Err(why) => {
                    terminal::error(&format!("not registered: {why}"));
                    time::sleep(RETRY_AFTER).await;
                    continue;
                }
            }
            loop {
                time::sleep(RENEW_EVERY).await;
                if let Err(why) = self.send(self.http.post(format!("{}/heartbeat", self.url))).await {
                    terminal::error(&format!("lease not renewed: {why}"));
                    break;
                }
            }
        }
    }

    async fn remove(&self) {
        match self.send(self.http.delete(format!("{}?wait=2s", self.url))).await {
            Ok(()) => terminal::error("removed from the route table"),
            Err(why) => terminal::error(&format!("not removed ({why}); the lease will end")),
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
