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
//! Requests and answers are the types of `signalbox_api`, which the server uses as well; its modules are here, too. Instances
//! are registered by several programs, so their calls have methods ([`routes`]). Every other call is its path and its types:
//!
//! ```no_run
//! # async fn example(client: &signalbox_client::Client) -> Result<(), signalbox_client::Error> {
//! use signalbox_client::{queues::{Count, Purge, Queue}, segment};
//!
//! let path = format!("/queues/{}", segment("mail"));
//! let queue: Queue = client.get(&path).await?;
//! let purged: Count = client.send("POST", &format!("{path}/purge"), &Purge { tenant: None }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! * Unknown fields of an answer are ignored, so that an older client can read a newer server's answer.
//! * A rejection is [`Error::Refused`] with the server's stable `code`; programs compare only that.
//! * No request is repeated automatically: every change of the API may be repeated, but only the caller knows whether it
//!   should be. Only a connection that an idle server closed before it received the request is opened again.
//! * Every call can fail with any [`Error`].
//! * Each call has a time limit ([`Builder::timeout`]). A stream has a limit for the silence between two messages.

mod error;
pub mod health;
pub mod routes;
mod sse;
mod transport;

use std::{path::PathBuf, sync::Arc, time::Duration};

use http::HeaderValue;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub use error::Error;
pub use signalbox_api::{
    Problem, Time, acme, audit, certificates, events, machines, objects, queues, stats, tokens,
};
pub use sse::{Message, Stream};
use transport::{Conditions, Transport};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A client. Cloning is cheap, and clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Arc<Transport>,
    /// The `Idempotency-Key` of its changes.
    key: Option<HeaderValue>,
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
        Ok(Client { transport: Arc::new(Transport::new(self)?), key: None })
    }
}

impl Client {
    /// A client of the API at `url`: the admin listener, or one of the daemons.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder { url: url.into(), token: None, ca_file: None, timeout: TIMEOUT }
    }

    /// For a change that may be repeated: the server applies it once under this `Idempotency-Key`.
    ///
    /// # Errors
    /// [`Error::Key`] for a key that no header can contain.
    pub fn once(&self, key: &str) -> Result<Self, Error> {
        let key = HeaderValue::from_str(key).map_err(|_| Error::Key)?;
        Ok(Self { key: Some(key), ..self.clone() })
    }

    /// The address, as it was given, without a slash at its end.
    pub fn url(&self) -> &str {
        self.transport.base()
    }

    /// Instances, hosts and routers.
    pub fn routes(&self) -> routes::Routes<'_> {
        routes::Routes(self)
    }

    /// Reads the JSON at `path`, which begins with `/` and may have a query; external values must be encoded ([`segment`]).
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.call("GET", path, None).await
    }

    /// A call with a body.
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        self.call(method, path, Some(&json!(body))).await
    }

    /// A call that may have a body. An answer without a body is read as `null`.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Error> {
        self.call_if(method, path, body, None).await
    }

    /// As [`Client::call`], if the revision of the target is still `etag` (`If-Match`). Without one, the call is
    /// unconditional.
    /// 412 if it has another revision by now: read it again, and repeat the change.
    pub async fn call_if<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
    ) -> Result<T, Error> {
        let body = body.map(|body| ("application/json", body.to_string().into_bytes()));
        let conditions = Conditions { etag, key: self.key.as_ref() };
        self.read(path, &self.transport.call(method, path, body, conditions).await?)
    }

    /// As [`Client::send`], with a body of any type.
    pub async fn send_bytes<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<T, Error> {
        let conditions = Conditions { etag: None, key: self.key.as_ref() };
        self.read(path, &self.transport.call(method, path, Some((content_type, body)), conditions).await?)
    }

    /// As [`Client::get`], with the `ETag` of the answer: the revision that [`Client::call_if`] requires.
    pub async fn tagged<T: DeserializeOwned>(&self, path: &str) -> Result<(T, Option<String>), Error> {
        let answer = self.transport.call("GET", path, None, Conditions::default()).await?;
        Ok((self.read(path, &answer)?, answer.etag))
    }

    /// An answer that is not JSON, as text.
    pub async fn text(&self, path: &str) -> Result<String, Error> {
        let answer = self.transport.call("GET", path, None, Conditions::default()).await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// A stream of messages.
    pub async fn stream(&self, path: &str) -> Result<Stream, Error> {
        Stream::open(self, path).await
    }

    /// The first `most` items of a list, which is read page by page. `split` takes a page apart: its items, and the cursor
    /// of the next page.
    pub async fn list<P: DeserializeOwned, T>(
        &self,
        path: &str,
        most: usize,
        split: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, Error> {
        let (mut found, mut cursor) = (Vec::new(), None);
        while found.len() < most {
            let (items, next) = split(self.get(&with_query(path, &[("cursor", cursor)])).await?);
            found.extend(items);
            if next.is_none() {
                break;
            }
            cursor = next;
        }
        found.truncate(most);
        Ok(found)
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

/// `path?name=value&…` with those members or pairs of `query` that have a value: texts, numbers and booleans.
#[must_use]
pub fn with_query(path: &str, query: &(impl Serialize + ?Sized)) -> String {
    #[expect(
        clippy::expect_used,
        reason = "the callers are in this workspace, and their queries are not nested"
    )]
    let query = serde_urlencoded::to_string(query).expect("a query is not nested");
    let separator = if path.contains('?') { '&' } else { '?' };
    if query.is_empty() { path.to_owned() } else { format!("{path}{separator}{query}") }
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
        assert_eq!(with_query("/hosts", &[("cursor", None::<&str>)]), "/hosts");
        assert_eq!(
            with_query("/hosts", &[("cursor", Some("a&b")), ("x", None), ("limit", Some("5"))]),
            "/hosts?cursor=a%26b&limit=5"
        );
        assert_eq!(with_query("/hosts?a=1", &[("limit", 5)]), "/hosts?a=1&limit=5");
    }
}
