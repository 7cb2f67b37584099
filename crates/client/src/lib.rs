//! A typed client of Signalbox's API: that of the pacemaker, and that of the sidecar behind the same address.
//!
//! ```no_run
//! # async fn example() -> Result<(), signalbox_client::Error> {
//! use signalbox_client::{Client, routes::{Filter, NewInstance}};
//!
//! let client = Client::builder("http://127.0.0.1:8081").token("secret").build()?;
//! let instance = NewInstance::new("127.0.0.1:9003", ["new.localhost"], "7");
//! let changed = client.routes().register("i-7", &instance, None).await?;
//! println!("in the table since serial {}", changed.serial);
//! for instance in client.routes().instances(&Filter::default()).await? {
//!     println!("{} {}", instance.id, instance.address);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each subsystem is a module here, with a handle that the [`Client`] lends: [`routes`], [`stats`], [`events`],
//! [`queues`], [`objects`], [`machines`], [`certificates`], [`tokens`], [`audit`], [`health`]. Requests and answers are
//! the types of `signalbox_api`, which the server uses as well.
//!
//! # Guarantees
//! * Unknown fields of an answer are ignored, so that an older client can read a newer server's answer.
//! * A rejection is [`Error::Refused`] with the server's stable `code`; programs compare only that.
//! * No request is repeated automatically: every change of the API may be repeated, but only the caller knows whether it
//!   should be. Only a connection that an idle server closed before it received the request is opened again.
//! * Every call can fail with any [`Error`]; a method lists only its own codes.
//! * Each call has a time limit ([`Builder::timeout`]). A stream has a limit for the silence between two messages.

pub mod audit;
pub mod certificates;
mod error;
pub mod events;
pub mod health;
pub mod machines;
pub mod objects;
pub mod queues;
pub mod routes;
mod sse;
pub mod stats;
pub mod tokens;
mod transport;

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use error::Error;
pub use signalbox_api::Problem;
pub use sse::{Message, Stream};
use transport::Transport;

/// Fields of an answer that have no name here.
pub type More = Map<String, Value>;

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A client. Cloning is cheap, and clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Arc<Transport>,
}

/// The settings of a [`Client`].
#[derive(Debug, Clone)]
pub struct Builder {
    pub(crate) url: String,
    pub(crate) token: Option<String>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) timeout: Duration,
}

impl Builder {
    /// The token that every request shows.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// A file of PEM certificates to trust in addition to those of the operating system.
    #[must_use]
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// How long a call may take, its whole answer included (30 seconds).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the client. Nothing is connected yet.
    ///
    /// # Errors
    /// [`Error::Address`] for an address that is not an `http` or `https` URL, [`Error::Trust`] when the certificates
    /// of the
    /// file cannot be read.
    pub fn build(self) -> Result<Client, Error> {
        Ok(Client { transport: Arc::new(Transport::new(self)?) })
    }
}

impl Client {
    /// A client of the API at `url`: the admin listener, or one of the daemons.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder { url: url.into(), token: None, ca_file: None, timeout: TIMEOUT }
    }

    /// The address, as it was given, without a slash at its end.
    pub fn url(&self) -> &str {
        self.transport.base()
    }

    /// Instances, hosts and routers.
    pub fn routes(&self) -> routes::Routes<'_> {
        routes::Routes(self)
    }

    /// Certificates of server names.
    pub fn certificates(&self) -> certificates::Certificates<'_> {
        certificates::Certificates(self)
    }

    /// Statistics of requests.
    pub fn stats(&self) -> stats::Stats<'_> {
        stats::Stats(self)
    }

    /// Topics, subscribers, and watching.
    pub fn events(&self) -> events::Events<'_> {
        events::Events(self)
    }

    /// Queues that are pulled.
    pub fn queues(&self) -> queues::Queues<'_> {
        queues::Queues(self)
    }

    /// Objects with a backend, and the backends.
    pub fn objects(&self) -> objects::Objects<'_> {
        objects::Objects(self)
    }

    /// State machines and their labels.
    pub fn machines(&self) -> machines::Machines<'_> {
        machines::Machines(self)
    }

    /// The audit log.
    pub fn audit(&self) -> audit::Audit<'_> {
        audit::Audit(self)
    }

    /// Tokens.
    pub fn tokens(&self) -> tokens::Tokens<'_> {
        tokens::Tokens(self)
    }

    /// Whether it works.
    pub fn health(&self) -> health::Health<'_> {
        health::Health(self)
    }

    /// Any call, for what has no function here: the answer's JSON, `null` when it has no body.
    ///
    /// `path` begins with `/` and may have a query; external values must be encoded ([`segment`]).
    ///
    /// # Errors
    /// As every call: see [`Error`].
    pub async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        self.send(method, path, body).await
    }

    /// As [`Client::call`] with GET, and the `ETag` of the answer: the revision that [`Client::call_if`] requires.
    ///
    /// # Errors
    /// As every call.
    pub async fn tagged<T: DeserializeOwned>(&self, path: &str) -> Result<(T, Option<String>), Error> {
        let answer = self.transport.call("GET", path, None).await?;
        Ok((self.read(path, &answer)?, answer.etag))
    }

    /// As [`Client::call`], if the revision of the target is still `etag` (`If-Match`). Without one, the call is
    /// unconditional.
    ///
    /// # Errors
    /// As every call; 412 if it has another revision by now. Read it again, and repeat the change.
    pub async fn call_if(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
    ) -> Result<Value, Error> {
        let headers: Vec<(&str, &str)> = etag.iter().map(|etag| ("if-match", *etag)).collect();
        let body = body.map(|body| ("application/json", body.to_string().into_bytes()));
        let answer = self.transport.call_with(method, path, body, &headers).await?;
        self.read(path, &answer)
    }

    /// An answer that is not JSON, as text.
    ///
    /// # Errors
    /// As every call.
    pub async fn text(&self, path: &str) -> Result<String, Error> {
        let answer = self.transport.call("GET", path, None).await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// A stream of messages.
    ///
    /// # Errors
    /// As every call.
    pub async fn stream(&self, path: &str) -> Result<Stream, Error> {
        Stream::open(self, path, &[]).await
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.send("GET", path, None).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Error> {
        self.send("POST", path, body).await
    }

    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Error> {
        self.send("PUT", path, Some(body)).await
    }

    pub(crate) async fn patch<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Error> {
        self.send("PATCH", path, Some(body)).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.send("DELETE", path, None).await
    }

    /// All pages of a list. `split` takes a page apart: its items, and the cursor of the next page.
    ///
    /// # Errors
    /// As every call.
    pub async fn all<P: DeserializeOwned, T>(
        &self,
        path: &str,
        pairs: &[(&str, Option<&str>)],
        split: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, Error> {
        self.first(path, pairs, usize::MAX, split).await
    }

    /// The first `most` items of a list, as [`Client::all`] reads them.
    pub(crate) async fn first<P: DeserializeOwned, T>(
        &self,
        path: &str,
        pairs: &[(&str, Option<&str>)],
        most: usize,
        split: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, Error> {
        let (mut found, mut cursor) = (Vec::new(), None::<String>);
        while found.len() < most {
            let pairs = [pairs, &[("cursor", cursor.as_deref())]].concat();
            let (items, next) = split(self.get(&with_query(path, &pairs)).await?);
            found.extend(items);
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        found.truncate(most);
        Ok(found)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Error> {
        self.send_bytes(method, path, body.map(|body| ("application/json", body.to_string().into_bytes())))
            .await
    }

    /// As `send`, with a body of any type.
    pub(crate) async fn send_bytes<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<T, Error> {
        let answer = self.transport.call(method, path, body).await?;
        self.read(path, &answer)
    }

    fn read<T: DeserializeOwned>(&self, path: &str, answer: &transport::Answer) -> Result<T, Error> {
        // 204 has no body; callers then expect `()` or a `Value`, and both parse `null`.
        let text: &[u8] = if answer.body.is_empty() { b"null" } else { &answer.body };
        serde_json::from_slice(text)
            .map_err(|source| Error::Unreadable { url: self.transport.address(path), source })
    }
}

/// A text as one segment of a path: `/` and everything else that has a meaning in an address is encoded.
#[must_use]
pub fn segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b':' | b'@' => {
                encoded.push(char::from(byte));
            }
            _ => {
                encoded.push('%');
                for digit in [byte >> 4, byte & 15] {
                    encoded.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
                }
            }
        }
    }
    // Alone in a segment they would mean a folder.
    match &*encoded {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => encoded,
    }
}

/// `path?name=value&…` with those of `pairs` that have a value.
#[must_use]
pub fn with_query(path: &str, pairs: &[(&str, Option<&str>)]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in pairs {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_one_segment() {
        for (text, encoded) in
            [("i-7", "i-7"), ("a/b c", "a%2Fb%20c"), ("..", "%2E%2E"), ("é?#", "%C3%A9%3F%23")]
        {
            assert_eq!(segment(text), encoded);
        }
    }

    #[test]
    fn only_given_parameters_are_in_the_query() {
        assert_eq!(with_query("/hosts", &[("cursor", None)]), "/hosts");
        assert_eq!(
            with_query("/hosts", &[("cursor", Some("a&b")), ("x", None), ("limit", Some("5"))]),
            "/hosts?cursor=a%26b&limit=5"
        );
    }
}
