//! The HTTP client.
//!
//! Every call ends within a bounded time: connecting, the response head and the whole call have time limits. A response
//! head may have 64 KiB, and at most 64 KiB of its body are read. Connections are kept and reused. Redirects are not
//! followed, because a redirect could lead to an address that is not allowed.
//!
//! A call needs a [`Place`] of the process's [`Budget`]. The times above begin when it has one. As many connections as
//! the budget has places may be open and idle; beyond that, a connection is closed after its call.

use std::{
    error::Error as StdError,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use ipnet::IpNet;
use signalbox_daemon::traces::{self, Cause};
use signalbox_route_table::OwnAddresses;
use tokio::{sync::Semaphore, time};
use tracing::{Instrument as _, Span};

use super::{
    Answered, Outcome, Secret,
    address::{Fence, FencedConnector, Forbidden, Insecure, Lookup, system_lookup},
    answer,
    budget::{Budget, Owner, Place, destination},
    connections::Open,
    signature, trust,
};

/// Maximum size of an answer's head, and maximum number of bytes read from its body.
const ANSWER_BYTES: usize = 64 * 1024;
/// How long reading the rest of an answer's body may take before its connection is closed.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// The number of bytes that are kept of the body of a failed answer.
const EXCERPT_BYTES: usize = 500;
/// How long reading these bytes may take.
const EXCERPT_TIME: Duration = Duration::from_millis(500);
/// Maximum number of idle connections to one address: one for each lane that a subscriber can have.
const IDLE_CONNECTIONS: usize = 64;
/// Servers commonly close idle connections after a minute. Closing them earlier avoids most races.
const IDLE_TIME: Duration = Duration::from_secs(30);

const USER_AGENT: &str = concat!("Signalbox/", env!("CARGO_PKG_VERSION"));

/// The limits of outgoing calls.
#[derive(Debug, Clone)]
pub struct Options {
    /// Networks that may be called in addition to the public internet.
    pub allow_networks: Vec<IpNet>,
    /// Individual addresses that may be called, too.
    pub allow_addresses: Vec<SocketAddr>,
    /// Whether calls may use http.
    pub allow_http: bool,
    /// Signalbox's own addresses, which are never called.
    pub own: OwnAddresses,
    /// A PEM file with certificate authorities to trust in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The maximum time to connect.
    pub connect_timeout: Duration,
    /// The maximum time of a POST, including the connection.
    pub timeout: Duration,
    /// How many calls may be under way. All clients of a process share it.
    pub budget: Budget,
}

/// Why the client cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file with additional certificates cannot be read.
    #[error("{path}: no certificates can be read from it")]
    Certificates {
        /// The file.
        path: std::path::PathBuf,
        /// The cause.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// One of its certificates cannot be used.
    #[error("a certificate of the CA file cannot be used")]
    Tls(#[from] rustls::Error),
}

/// Makes HTTP calls to allowed addresses. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    client: legacy::Client<HttpsConnector<FencedConnector>, Full<Bytes>>,
    /// Bodies that are read to their end. Beyond that, connections are closed instead of reused.
    drains: Arc<Semaphore>,
    fence: Fence,
    timeout: Duration,
    budget: Budget,
    open: Open,
    now: fn() -> SystemTime,
}

impl Options {
    /// Reads the certificates of `ca_file`, so that an unusable file is reported before a client is needed.
    pub fn check(&self) -> Result<(), Error> {
        trust::client_config(self.ca_file.as_deref()).map(drop)
    }
}

impl Client {
    /// Creates a client. `now` is the clock of signatures and of dates in `Retry-After`.
    pub fn new(options: &Options, now: fn() -> SystemTime) -> Result<Self, Error> {
        Self::with_lookup(options, now, system_lookup())
    }

    /// Like [`Self::new`], but with a different resolver.
    pub fn with_lookup(options: &Options, now: fn() -> SystemTime, lookup: Lookup) -> Result<Self, Error> {
        let fence = Fence::new(options);
        let open = Open::default();
        let connector = FencedConnector::new(fence.clone(), lookup, options.connect_timeout, open.clone());
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http1_max_buf_size(ANSWER_BYTES)
            .build(HttpsConnector::from((connector, trust::client_config(options.ca_file.as_deref())?)));
        let budget = options.budget.clone();
        let drains = Arc::new(Semaphore::new(budget.limits().drains()));
        Ok(Self { client, drains, fence, timeout: options.timeout, budget, open, now })
    }

    /// The budget of its calls.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Waits for the place of a call to this address, for this owner.
    pub async fn place(&self, owner: &Owner, to: &Uri) -> Place {
        self.budget.place(owner, &destination(to)).await
    }

    /// Whether a connection is closed after its call, because many are open.
    fn closes(&self) -> bool {
        self.open.count() > self.budget.limits().calls
    }

    /// Whether the address may be called. A host name can be checked only after it is resolved.
    pub fn permits(&self, address: SocketAddr) -> bool {
        self.fence.permits(address)
    }

    /// Makes one attempt to send a request.
    pub async fn post(&self, place: Place, post: Post<'_>) -> Outcome {
        self.post_and_read(place, post).await.0
    }

    /// Like [`Self::post`]; also returns the receiver's answer.
    pub async fn post_and_read(&self, _place: Place, post: Post<'_>) -> (Outcome, Answered) {
        let span = post.span();
        let (outcome, answered) = self.make(post, Cause::of(&span)).instrument(span.clone()).await;
        match &outcome {
            Outcome::Delivered => {}
            Outcome::Failed { why, .. } => traces::failed(&span, why),
            Outcome::Gone => traces::failed(&span, "the receiver is permanently gone"),
        }
        (outcome, answered)
    }

    async fn make(&self, post: Post<'_>, span: Option<Cause>) -> (Outcome, Answered) {
        let unanswered = |why: String| (failed(why), Answered::default());
        let Ok(request) = Prepared::new(post, span, (self.now)()) else {
            // The callback was validated when the subscription was created, so only data of another version
            // can be invalid.
            return unanswered("the callback or its credential cannot be used".to_owned());
        };
        match time::timeout(self.timeout, self.send(&request)).await {
            Err(_) => unanswered(format!("no answer within {} ms", self.timeout.as_millis())),
            Ok(Err(error)) => unanswered(describe(&error)),
            Ok(Ok(response)) => {
                let (head, mut body) = response.into_parts();
                note_status(head.status);
                let excerpt = if head.status.is_success() { None } else { excerpt(&mut body).await };
                self.finish(body);
                let outcome = answer::outcome(head.status, &head.headers, (self.now)());
                (outcome, Answered { status: Some(head.status.as_u16()), excerpt })
            }
        }
    }

    /// Makes one request to an allowed address, and reads at most `most` bytes of the answer's body. `name`
    /// is the name of its span.
    ///
    /// # Errors
    /// The reason why there is no answer of at most that size.
    pub async fn call(
        &self,
        _place: Place,
        name: &'static str,
        mut request: Request<Full<Bytes>>,
        timeout: Duration,
        most: usize,
    ) -> Result<Called, String> {
        let span = traces::call(name, request.method(), || Some(request.uri().clone()), &[]);
        if let Some(value) = traceparent(Cause::of(&span)) {
            request.headers_mut().entry(TRACEPARENT).or_insert(value);
        }
        let called = self.ask(request, timeout, most).instrument(span.clone()).await;
        if let Err(why) = &called {
            traces::failed(&span, why);
        }
        called
    }

    /// Signs a request with a secret of the form `whsec_…`, as Standard Webhooks 1.0 specifies: adds
    /// `webhook-id`, `webhook-timestamp` and `webhook-signature`. Returns false if the secret or the ID
    /// cannot be used.
    pub fn sign(&self, secret: &str, id: &str, body: &[u8], headers: &mut http::HeaderMap) -> bool {
        let now_ms = (self.now)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
        let secret = Secret { secret: secret.to_owned(), until_ms: None };
        let signature = signature::sign(std::slice::from_ref(&secret), id, now_ms, body);
        let signature = signature.and_then(|signature| HeaderValue::try_from(signature).ok());
        let (Some(signature), Ok(id)) = (signature, HeaderValue::from_str(id)) else { return false };
        headers.insert("webhook-id", id);
        headers.insert("webhook-timestamp", HeaderValue::from(now_ms / 1000));
        headers.insert("webhook-signature", signature);
        true
    }

    async fn ask(
        &self,
        mut request: Request<Full<Bytes>>,
        timeout: Duration,
        most: usize,
    ) -> Result<Called, String> {
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if self.closes() {
            request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let answered = async {
            let response = self.client.request(request).await.map_err(|error| describe(&error))?;
            let (head, mut body) = response.into_parts();
            note_status(head.status);
            let retry_after = match answer::outcome(head.status, &head.headers, (self.now)()) {
                Outcome::Failed { retry_after, .. } => retry_after,
                Outcome::Delivered | Outcome::Gone => None,
            };
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|_| "the answer was incomplete".to_owned())?;
                let Some(data) = frame.data_ref() else { continue };
                if bytes.len() + data.len() > most {
                    return Ok(Called { status: head.status.as_u16(), retry_after, body: None });
                }
                bytes.extend_from_slice(data);
            }
            Ok(Called { status: head.status.as_u16(), retry_after, body: Some(bytes) })
        };
        match time::timeout(timeout, Box::pin(answered)).await {
            Ok(called) => called,
            Err(_) => Err(format!("no answer within {} ms", timeout.as_millis())),
        }
    }

    /// Sends a request, and repeats it if the connection was closed before an answer: most likely it was an
    /// idle connection that the subscriber closed at the same time, and the batch should not have to wait for
    /// its next retry. The batch may arrive twice with the same id, as after any lost answer.
    async fn send(&self, request: &Prepared<'_>) -> Result<Response<Incoming>, legacy::Error> {
        let build = || request.build(self.closes());
        match self.client.request(build()).await {
            Err(error) if broke_before_answer(&error) => self.client.request(build()).await,
            done => done,
        }
    }

    /// Reads the rest of an answer in the background, so that its connection can be used again.
    fn finish(&self, mut body: Incoming) {
        if body.is_end_stream() || body.size_hint().lower() > ANSWER_BYTES as u64 {
            return;
        }
        let Ok(permit) = Arc::clone(&self.drains).try_acquire_owned() else { return };
        tokio::spawn(time::timeout(DRAIN_TIME, async move {
            let _permit = permit;
            let mut left = ANSWER_BYTES;
            while let Some(Ok(frame)) = body.frame().await {
                let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return };
                left = rest;
            }
        }));
    }
}

/// The answer to a call.
#[derive(Debug)]
pub struct Called {
    /// The HTTP status.
    pub status: u16,
    /// The pause that the receiver requested (429, 503), limited to the maximum.
    pub retry_after: Option<Duration>,
    /// `None` if it was larger than the caller's limit.
    pub body: Option<Vec<u8>>,
}

/// A request's target, content and credentials.
#[derive(Debug)]
pub struct Post<'a> {
    /// The name of its span.
    pub name: &'static str,
    /// The causes of its events.
    pub causes: Vec<Cause>,
    /// The number of events in the request.
    pub events: usize,
    /// The number of the attempt, from 1.
    pub attempt: u64,
    /// The URL.
    pub callback: &'a str,
    /// The user name.
    pub uuid: &'a str,
    /// The secrets that sign the body.
    pub secrets: &'a [Secret],
    /// The id, which is the same in every attempt.
    pub id: &'a str,
    /// The body that is sent and signed.
    pub body: Vec<u8>,
    /// Headers in addition to the standard ones.
    pub headers: Vec<(&'static str, String)>,
}

impl Post<'_> {
    fn span(&self) -> Span {
        // Computed only when the span is recorded.
        let to = || self.callback.parse::<Uri>().ok();
        let span = traces::call(self.name, &http::Method::POST, to, &self.causes);
        span.record("messaging.batch.message_count", self.events);
        span.record("messaging.message.id", self.id);
        span.record("signalbox.attempt", self.attempt);
        span
    }
}

/// W3C Trace Context. It is not signed, because proxies may continue the trace.
const TRACEPARENT: &str = "traceparent";

fn traceparent(span: Option<Cause>) -> Option<HeaderValue> {
    HeaderValue::try_from(span?.to_string()).ok()
}

/// Records an answer's status in the span of its request.
fn note_status(status: http::StatusCode) {
    Span::current().record("http.response.status_code", status.as_u16());
}

/// A request that can be sent more than once.
struct Prepared<'a> {
    callback: Uri,
    id: &'a str,
    authorization: HeaderValue,
    timestamp: u64,
    signature: Option<HeaderValue>,
    body: Bytes,
    headers: Vec<(&'static str, HeaderValue)>,
}

impl<'a> Prepared<'a> {
    fn new(post: Post<'a>, span: Option<Cause>, now: SystemTime) -> Result<Self, http::Error> {
        let now_ms = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
        let body = Bytes::from(post.body);
        let credentials = STANDARD.encode(format!("{}:x", post.uuid));
        let mut authorization = HeaderValue::try_from(format!("Basic {credentials}"))?;
        authorization.set_sensitive(true);
        HeaderValue::from_str(post.id)?;
        let signature = signature::sign(post.secrets, post.id, now_ms, &body);
        let headers = post.headers.into_iter();
        let headers = headers.map(|(name, value)| Ok((name, HeaderValue::try_from(value)?)));
        let headers = headers.chain(traceparent(span).map(|value| Ok((TRACEPARENT, value))));
        Ok(Self {
            callback: post.callback.parse()?,
            id: post.id,
            authorization,
            timestamp: now_ms / 1000,
            signature: signature.map(HeaderValue::try_from).transpose()?,
            body,
            headers: headers.collect::<Result<_, http::Error>>()?,
        })
    }

    fn build(&self, closes: bool) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.callback.clone();
        let headers = request.headers_mut();
        // The exact value matters: receivers written for Routemaster compare it as text.
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        headers.insert(header::AUTHORIZATION, self.authorization.clone());
        if let Ok(id) = HeaderValue::from_str(self.id) {
            headers.insert("webhook-id", id);
        }
        headers.insert("webhook-timestamp", HeaderValue::from(self.timestamp));
        if let Some(signature) = &self.signature {
            headers.insert("webhook-signature", signature.clone());
        }
        for (name, value) in &self.headers {
            headers.insert(*name, value.clone());
        }
        if closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        request
    }
}

/// The beginning of a body as one line of text.
async fn excerpt(body: &mut Incoming) -> Option<String> {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() < EXCERPT_BYTES {
            let Some(Ok(frame)) = body.frame().await else { break };
            bytes.extend_from_slice(
                frame.data_ref().map_or(&[][..], |data| &data[..data.len().min(EXCERPT_BYTES)]),
            );
        }
    };
    // The part that arrived before the timeout is sufficient.
    let _ = time::timeout(EXCERPT_TIME, read).await;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(EXCERPT_BYTES)]);
    let line: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    Some(line.trim().to_owned()).filter(|line| !line.is_empty())
}

fn failed(why: impl Into<String>) -> Outcome {
    Outcome::Failed { why: why.into(), retry_after: None }
}

/// Looks for an error of type `E` in the chain of `error`, including the content of an [`io::Error`], which its
/// `source` skips.
fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let behind = |error: &'a (dyn StdError + 'static)| match error.downcast_ref::<io::Error>() {
        Some(io) => io.get_ref().map(|held| held as &(dyn StdError + 'static)),
        None => error.source(),
    };
    std::iter::successors(Some(error), |&error| behind(error)).find_map(|error| error.downcast_ref())
}

fn broke_before_answer(error: &legacy::Error) -> bool {
    let broken = |kind| matches!(kind, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
    !error.is_connect()
        && (find::<hyper::Error>(error).is_some_and(hyper::Error::is_incomplete_message)
            || find::<io::Error>(error).is_some_and(|error| broken(error.kind())))
}

/// A description of a failure for the subscriber: its kind, without details of the operator's network.
fn describe(error: &legacy::Error) -> String {
    if find::<Forbidden>(error).is_some() {
        return Forbidden.to_string();
    }
    if find::<Insecure>(error).is_some() {
        return Insecure.to_string();
    }
    if let Some(error) = find::<rustls::Error>(error) {
        return format!("no TLS connection: {error}");
    }
    if error.is_connect() {
        let kind = find::<io::Error>(error).map(io::Error::kind);
        return match kind {
            Some(io::ErrorKind::ConnectionRefused) => "the connection was refused".to_owned(),
            Some(io::ErrorKind::TimedOut) => "the connection took too long".to_owned(),
            _ => "no connection could be made".to_owned(),
        };
    }
    let parse = find::<hyper::Error>(error).is_some_and(hyper::Error::is_parse);
    if parse {
        "the answer was not HTTP".to_owned()
    } else {
        "the connection broke before an answer".to_owned()
    }
}
