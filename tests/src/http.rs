//! An HTTP/1.1 client that counts bytes and sends any bytes, well-formed or not.
//!
//! A library client would refuse to send most of the requests that the tests need. It also hides how many bytes an
//! answer had on the wire, which the edge logs and the statistics count.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use serde_json::Value;
use signalbox_client::Time;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream},
    time,
};

use signalbox_testkit::PATIENCE;

/// A time of a response, in milliseconds since 1970.
pub fn moment(value: &Value) -> u64 {
    serde_json::from_value::<Time>(value.clone()).unwrap_or_else(|error| panic!("{value}: {error}")).ms()
}

/// A well-formed request. Use [`Connection::send_raw`] for others.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Request {
    /// A request for `target` at `host`.
    pub fn new(method: &str, host: &str, target: &str) -> Self {
        Self {
            method: method.into(),
            target: target.into(),
            headers: vec![("Host".into(), host.into())],
            body: None,
        }
    }

    /// A GET for `target` at `host`.
    pub fn get(host: &str, target: &str) -> Self {
        Self::new("GET", host, target)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds a bearer token. A short text is the name of a client of the event bus, see [`credential`].
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {}", credential(token)))
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Sets a JSON body and its content type.
    #[must_use]
    pub fn json(self, body: &Value) -> Self {
        self.header("Content-Type", "application/json").body(body.to_string())
    }

    /// The request as it goes over the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = &self.body {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        bytes.extend(self.body.as_deref().unwrap_or_default());
        bytes
    }

    /// Sends the request on a new connection.
    ///
    /// # Errors
    /// When the connection fails, or breaks before the answer is complete.
    pub async fn send(&self, to: SocketAddr) -> io::Result<Response> {
        Connection::open(to).await?.send(self).await
    }
}

/// The token that tests give the client `name` of the event bus. A text that is long enough for a token stays as it is.
pub fn credential(name: &str) -> String {
    if name.len() >= 20 { name.to_owned() } else { format!("{name}--0123456789abcdef0123456789abcdef") }
}

/// A complete answer.
#[derive(Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers as they came.
    pub headers: Vec<(String, String)>,
    /// The body without its transfer coding.
    pub body: Vec<u8>,
    /// How many bytes came over the wire: head, body and framing.
    pub wire_bytes: u64,
}

impl std::fmt::Debug for Response {
    /// The body as text, which is readable in a failure message.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { status, headers, .. } = self;
        f.debug_struct("Response")
            .field("status", status)
            .field("headers", headers)
            .field("body", &self.text())
            .finish()
    }
}

impl Response {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("answered {} without JSON ({error}): {}", self.status, self.text())
        })
    }

    /// The value of `X-Signalbox-Error`; empty without it.
    pub fn reason(&self) -> &str {
        self.header("X-Signalbox-Error").unwrap_or_default()
    }

    /// Whether the server will take another request on the connection.
    pub fn keeps_alive(&self) -> bool {
        !self.header("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// One connection, for one request after another.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn open(to: SocketAddr) -> io::Result<Self> {
        let stream = patiently(TcpStream::connect(to)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Connects from an address of this machine, such as 127.0.0.9.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn open_from(from: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        Ok(Self { stream: BufReader::new(patiently(socket.connect(to)).await?) })
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// When the connection breaks before the answer is complete.
    pub async fn send(&mut self, request: &Request) -> io::Result<Response> {
        self.exchange(&request.to_bytes(), request.method == "HEAD").await
    }

    /// Sends bytes as they are and reads one answer.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn send_raw(&mut self, bytes: &[u8]) -> io::Result<Response> {
        self.exchange(bytes, false).await
    }

    /// Sends the bytes unchanged and ends the stream; returns the answer, if there is a valid one.
    ///
    /// # Panics
    /// When nothing happens at all: a server must not wait for a client that has hung up.
    pub async fn send_noise(&mut self, bytes: &[u8]) -> Option<Response> {
        let _gone = patiently(self.stream.get_mut().write_all(bytes)).await;
        let _gone = self.stream.get_mut().shutdown().await;
        match patiently(read_response(&mut self.stream, false)).await {
            Ok(answer) => Some(answer),
            Err(error) => {
                assert_ne!(error.kind(), io::ErrorKind::TimedOut, "no answer and no end after {bytes:?}");
                None
            }
        }
    }

    /// As [`Connection::send_noise`], but the stream ends only when an answer begins or `patience` is over: nginx does not send
    /// the request of a client that has hung up to an instance.
    ///
    /// # Panics
    /// When nothing happens at all.
    pub async fn send_noise_patiently(&mut self, bytes: &[u8], patience: Duration) -> Option<Response> {
        let _gone = patiently(self.stream.get_mut().write_all(bytes)).await;
        let _silent = time::timeout(patience, self.stream.fill_buf()).await;
        self.send_noise(b"").await
    }

    async fn exchange(&mut self, bytes: &[u8], head_only: bool) -> io::Result<Response> {
        // A server may answer before it has read everything (413), and close the connection: the answer is relevant,
        // not the failure to write the rest.
        let written = patiently(self.stream.get_mut().write_all(bytes)).await;
        match patiently(read_response(&mut self.stream, head_only)).await {
            Err(error) if written.is_err() => {
                Err(io::Error::new(error.kind(), format!("{written:?}, {error}")))
            }
            outcome => outcome,
        }
    }

    /// Writes without waiting for anything.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        patiently(self.stream.get_mut().write_all(bytes)).await
    }

    /// Reads exactly `count` bytes, for what is spoken after an upgrade.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn read_exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        patiently(self.stream.read_exact(&mut bytes)).await?;
        Ok(bytes)
    }

    /// Reads until a line contains `needle`, for streams.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn read_line_with(&mut self, needle: &str) -> io::Result<String> {
        patiently(async {
            loop {
                let line = read_line(&mut self.stream, &mut 0).await?;
                if line.contains(needle) {
                    return Ok(line);
                }
            }
        })
        .await
    }
}

/// Applies a time limit: a test that hangs produces no diagnosis.
async fn patiently<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match time::timeout(PATIENCE, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no progress")),
    }
}

async fn read_response(
    stream: &mut BufReader<impl AsyncRead + Unpin>,
    head_only: bool,
) -> io::Result<Response> {
    let mut wire_bytes = 0;
    let status_line = read_line(stream, &mut wire_bytes).await?;
    let status =
        status_line.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("status line {status_line:?}"))
        })?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(stream, &mut wire_bytes).await?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut response = Response { status, headers, body: Vec::new(), wire_bytes };
    if !head_only && !matches!(status, 101 | 204 | 304) {
        read_body(stream, &mut response).await?;
    }
    Ok(response)
}

async fn read_body(
    stream: &mut BufReader<impl AsyncRead + Unpin>,
    response: &mut Response,
) -> io::Result<()> {
    if response.header("Transfer-Encoding").is_some_and(|coding| coding.contains("chunked")) {
        loop {
            let size = read_line(stream, &mut response.wire_bytes).await?;
            let size = usize::from_str_radix(&size, 16)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("chunk size {size:?}")))?;
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk).await?;
            response.wire_bytes += chunk.len() as u64;
            response.body.extend(&chunk[..size]);
            if size == 0 {
                return Ok(());
            }
        }
    }
    match response.header("Content-Length").map(str::parse::<usize>) {
        Some(Ok(length)) => {
            response.body = vec![0; length];
            stream.read_exact(&mut response.body).await?;
        }
        Some(Err(error)) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        None => {
            stream.read_to_end(&mut response.body).await?;
        }
    }
    response.wire_bytes += response.body.len() as u64;
    Ok(())
}

async fn read_line(stream: &mut BufReader<impl AsyncRead + Unpin>, count: &mut u64) -> io::Result<String> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended in mid-answer"));
    }
    *count += line.len() as u64;
    line.truncate(line.len() - if line.ends_with(b"\r\n") { 2 } else { 1 });
    Ok(String::from_utf8_lossy(&line).into_owned())
}
