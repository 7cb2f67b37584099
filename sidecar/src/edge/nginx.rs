//! The client for nginx's admin listener.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use reqwest::{
    Client, Response, StatusCode,
    header::{self, HeaderName},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use signalbox_daemon::door::PROOF;

/// How long nginx delays its answer while nothing changes.
const WAIT_SECONDS: u64 = 5;
const TIMEOUT: Duration = Duration::from_secs(WAIT_SECONDS + 5);
/// Maximum length of an answer, except of the table, which is stored as it arrives. The longest lists the requests in flight of
/// each instance, in about 30 bytes. Another process may answer on nginx's port.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The admin listener of this router's nginx.
#[derive(Debug, Clone)]
pub(super) struct Nginx {
    client: Client,
    url: String,
    /// Answered requests of this client. nginx does not log them.
    answered: Arc<AtomicU64>,
}

/// `/edge/ack`.
#[derive(Debug, Deserialize)]
pub(super) struct Acknowledged {
    pub(super) serial: u64,
    #[serde(default)]
    pub(super) epoch: String,
    pub(super) workers: Box<RawValue>,
}

/// The used members of `/edge/status`.
#[derive(Debug, Deserialize)]
pub(super) struct Status {
    pub(super) alarm: Option<String>,
    #[serde(default)]
    pub(super) generation: Option<u64>,
    /// The name of this run of nginx.
    #[serde(default)]
    pub(super) run: String,
    /// Requests in flight by address, as an object.
    pub(super) in_flight: Option<Box<RawValue>>,
    /// Server names without a certificate that clients asked for, as an array.
    pub(super) requested_names: Option<Box<RawValue>>,
    /// Ejected instances, as an object: address and end of the ejection in unix milliseconds.
    pub(super) ejected: Option<Box<RawValue>>,
}

/// The used counters of `/edge/connections`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Connections {
    pub(super) accepted: u64,
    pub(super) in_flight: u64,
    /// Finished requests of locations without a log, if nginx counts them.
    pub(super) unlogged: Option<u64>,
}

/// The answer to `/edge/snapshot`.
#[derive(Debug)]
pub(super) struct Table {
    /// Its body is the text of the table.
    pub(super) response: Response,
    pub(super) tag: String,
    /// What proves that nginx has answered.
    pub(super) proof: String,
}

/// The header of `/edge/connections` that contains the number of finished requests that nginx did not log.
const UNLOGGED: &str = "x-signalbox-unlogged";

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("no response from nginx's admin listener")]
    Request(#[from] reqwest::Error),
    #[error("unexpected answer from nginx to {0}")]
    Answer(&'static str),
    #[error("answer of more than {max} bytes to {0}", max = MAX_ANSWER_BYTES)]
    TooLong(&'static str),
    #[error(
        "nginx does not recognize this sidecar and hides the secrets of the table, or another process uses its port: derive \
         daemons_key_file from its EDGE_KEY_FILE again with `signalbox secrets`"
    )]
    Unproven,
}

impl Nginx {
    pub(super) fn new(url: &str) -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .connect_timeout(Duration::from_secs(1))
            .read_timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self { client, url: url.trim_end_matches('/').to_owned(), answered: Arc::default() })
    }

    /// The number of answered requests.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    async fn get(&self, path: &str) -> Result<Response, reqwest::Error> {
        self.client.get(format!("{}{path}", self.url)).send().await
    }

    async fn json<T: serde::de::DeserializeOwned>(&self, name: &'static str, path: &str) -> Result<T, Error> {
        let response = self.get(path).await?;
        let status = response.status();
        let body = body_of(response, name).await?;
        self.answered.fetch_add(1, Ordering::Relaxed);
        if !status.is_success() {
            return Err(Error::Answer(name));
        }
        serde_json::from_slice(&body).map_err(|_| Error::Answer(name))
    }

    /// Reads the serial that all workers have. Waits while it equals `known`.
    pub(super) async fn acknowledged(&self, known: Option<u64>) -> Result<Acknowledged, Error> {
        let path = known.map_or_else(
            || "/edge/ack".to_owned(),
            |known| format!("/edge/ack?serial={}&wait={WAIT_SECONDS}", known + 1),
        );
        self.json("/edge/ack", &path).await
    }

    pub(super) async fn status(&self) -> Result<Status, Error> {
        self.json("/edge/status", "/edge/status").await
    }

    pub(super) async fn connections(&self) -> Result<Connections, Error> {
        let response = self.get("/edge/connections").await?;
        let unlogged = response.headers().get(UNLOGGED).and_then(|count| count.to_str().ok()?.parse().ok());
        let body = body_of(response, "/edge/connections").await?;
        self.answered.fetch_add(1, Ordering::Relaxed);
        let text = std::str::from_utf8(&body).ok();
        text.and_then(|text| connections(text, unlogged)).ok_or(Error::Answer("/edge/connections"))
    }

    /// The table, unless its tag is still `tag`. `proof` is what proves that this is the sidecar.
    pub(super) async fn snapshot(&self, tag: &str, proof: &str) -> Result<Option<Table>, Error> {
        let request = self.client.get(format!("{}/edge/snapshot", self.url));
        let request = request.header(header::IF_NONE_MATCH, tag).header(&PROOF, proof);
        let response = request.send().await?;
        self.answered.fetch_add(1, Ordering::Relaxed);
        match response.status() {
            StatusCode::NOT_MODIFIED => Ok(None),
            StatusCode::OK => {
                let text =
                    |name: &HeaderName| response.headers().get(name).and_then(|text| text.to_str().ok());
                let tag = text(&header::ETAG).unwrap_or_default().to_owned();
                let proof = text(&PROOF).unwrap_or_default().to_owned();
                Ok(Some(Table { response, tag, proof }))
            }
            _ => Err(Error::Answer("/edge/snapshot")),
        }
    }
}

/// The body of an answer that fits into memory.
async fn body_of(mut response: Response, name: &'static str) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(Error::TooLong(name));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Parses a `stub_status` page. Reading and writing are requests; waiting are idle connections.
fn connections(page: &str, unlogged: Option<u64>) -> Option<Connections> {
    let numbers: Vec<u64> =
        page.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
    let [_active, _connections, _handled, accepted, reading, writing, _waiting] = numbers[..] else {
        return None;
    };
    Some(Connections { accepted, in_flight: reading + writing, unlogged })
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Another process on nginx's port must not fill the memory of the sidecar.
    #[tokio::test]
    async fn an_answer_without_an_end_is_rejected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nginx = Nginx::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let endless = tokio::spawn(async move {
            let mut sent = Vec::new();
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().await.unwrap();
                // A client takes an answer before its request for an error.
                assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await.unwrap();
                let mut bytes = 0;
                // Enough for a sidecar that reads on.
                while bytes < 8 * MAX_ANSWER_BYTES && stream.write_all(&[b'1'; 65536]).await.is_ok() {
                    bytes += 65536;
                }
                sent.push(bytes);
            }
            sent
        });
        assert!(matches!(nginx.status().await, Err(Error::TooLong("/edge/status"))));
        assert!(matches!(nginx.acknowledged(None).await, Err(Error::TooLong("/edge/ack"))));
        assert!(matches!(nginx.connections().await, Err(Error::TooLong("/edge/connections"))));
        let sent = endless.await.unwrap();
        assert!(sent.iter().all(|bytes| *bytes < 4 * MAX_ANSWER_BYTES), "{sent:?}");
    }

    #[test]
    fn a_status_page_is_parsed() {
        let page = "Active connections: 3 \nserver accepts handled requests\n 11 11 42 \nReading: 1 Writing: 2 Waiting: 0 \n";
        let read = Connections { accepted: 42, in_flight: 3, unlogged: Some(7) };
        assert_eq!(connections(page, Some(7)), Some(read));
        assert_eq!(connections("<html>404</html>", None), None);
    }
}
