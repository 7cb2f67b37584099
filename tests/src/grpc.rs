//! gRPC as it goes over the wire: HTTP/2 streams of messages with a length before each, and a status in the trailers.
//!
//! A generated client would hide what the edge has to get right: that messages pass one by one in both directions, and
//! that trailers arrive as trailers.

use std::{io, net::SocketAddr};

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream, client, server};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time,
};

use signalbox_testkit::PATIENCE;

use crate::tls;

/// A message with its frame: not compressed, and how long it is.
fn frame(message: &str) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).expect("a short message"));
    bytes.put_slice(message.as_bytes());
    bytes.freeze()
}

/// Removes the complete messages from `bytes` and returns them.
fn messages(bytes: &mut BytesMut) -> Vec<String> {
    let mut found = Vec::new();
    while bytes.len() >= 5 {
        let length =
            usize::try_from(u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]])).expect("64 bit");
        if bytes.len() < 5 + length {
            break;
        }
        let message = bytes.split_to(5 + length).split_off(5);
        found.push(String::from_utf8_lossy(&message).into_owned());
    }
    found
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// A service that echoes each message as soon as it arrives, and ends with status 0 and a trailer that holds its name.
/// The path `/fail` ends immediately with status 9.
#[derive(Debug)]
pub struct Service {
    /// Where it listens.
    pub address: SocketAddr,
    task: AbortHandle,
}

impl Service {
    /// Starts one.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn start(name: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let name = name.to_owned();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                connections.spawn(serve(stream, name.clone()));
            }
        });
        Self { address, task: task.abort_handle() }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, name: String) {
    let Ok(mut connection) = server::handshake(stream).await else { return };
    let mut calls = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        calls.spawn(answer(request, respond, name.clone()));
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: server::SendResponse<Bytes>,
    name: String,
) -> Result<(), h2::Error> {
    let fails = request.uri().path() == "/fail";
    let mut head = Response::new(());
    let kind = HeaderValue::from_static("application/grpc");
    head.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    let mut out = respond.send_response(head, false)?;
    let mut body = request.into_body();
    let mut held = BytesMut::new();
    while !fails && let Some(bytes) = body.data().await {
        let bytes = bytes?;
        body.flow_control().release_capacity(bytes.len())?;
        held.extend_from_slice(&bytes);
        for message in messages(&mut held) {
            out.send_data(frame(&message), false)?;
        }
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(if fails { "9" } else { "0" }));
    trailers.insert("x-service", HeaderValue::from_str(&name).expect("a name"));
    out.send_trailers(trailers)
}

/// One call that is under way.
#[derive(Debug)]
pub struct Call {
    out: SendStream<Bytes>,
    response: Option<client::ResponseFuture>,
    body: Option<RecvStream>,
    headers: HeaderMap,
    held: BytesMut,
    waiting: Vec<String>,
    driver: AbortHandle,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Call {
    /// Begins a call of `path` at `host`, over HTTP/2 without TLS.
    ///
    /// # Errors
    /// When no HTTP/2 server listens there.
    pub async fn open(to: SocketAddr, host: &str, path: &str) -> io::Result<Self> {
        Self::over(TcpStream::connect(to).await?, &format!("http://{host}{path}")).await
    }

    /// The same over TLS, with HTTP/2 by ALPN, if `authority` (PEM) has signed the certificate of `host`.
    ///
    /// # Errors
    /// When it has not, or the server does not speak HTTP/2.
    pub async fn open_tls(to: SocketAddr, host: &str, path: &str, authority: &str) -> io::Result<Self> {
        let stream = tls::connect(to, host, authority, b"h2").await?;
        Self::over(stream, &format!("https://{host}{path}")).await
    }

    async fn over<T>(stream: T, url: &str) -> io::Result<Self>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (client, connection) = client::handshake(stream).await.map_err(other)?;
        let driver = tokio::spawn(async move {
            let _ended = connection.await;
        });
        let request = Request::post(url)
            .version(http::Version::HTTP_2)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(other)?;
        let (response, out) =
            client.ready().await.map_err(other)?.send_request(request, false).map_err(other)?;
        Ok(Self {
            out,
            response: Some(response),
            body: None,
            headers: HeaderMap::new(),
            held: BytesMut::new(),
            waiting: Vec::new(),
            driver: driver.abort_handle(),
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the stream is broken.
    pub fn send(&mut self, message: &str) -> io::Result<()> {
        self.out.send_data(frame(message), false).map_err(other)
    }

    /// Ends the client's side of the stream.
    ///
    /// # Errors
    /// When the stream is broken.
    pub fn close(&mut self) -> io::Result<()> {
        self.out.send_data(Bytes::new(), true).map_err(other)
    }

    async fn body(&mut self) -> io::Result<&mut RecvStream> {
        if let Some(response) = self.response.take() {
            let answer = patiently(response).await?.map_err(other)?;
            self.headers = answer.headers().clone();
            self.body = Some(answer.into_body());
        }
        Ok(self.body.as_mut().expect("an answer"))
    }

    /// The next message; `None` at the end of the stream.
    ///
    /// # Errors
    /// When the stream is broken.
    pub async fn receive(&mut self) -> io::Result<Option<String>> {
        while self.waiting.is_empty() {
            let body = self.body().await?;
            let Some(bytes) = patiently(body.data()).await? else { return Ok(None) };
            let bytes = bytes.map_err(other)?;
            body.flow_control().release_capacity(bytes.len()).map_err(other)?;
            self.held.extend_from_slice(&bytes);
            self.waiting = messages(&mut self.held);
        }
        Ok(Some(self.waiting.remove(0)))
    }

    /// The trailers, or the headers when the call ended with these alone.
    ///
    /// # Errors
    /// When the stream is broken.
    pub async fn end(mut self) -> io::Result<HeaderMap> {
        while self.receive().await?.is_some() {}
        let trailers = patiently(self.body().await?.trailers()).await?.map_err(other)?;
        Ok(trailers.unwrap_or_else(|| self.headers.clone()))
    }
}

async fn patiently<T>(work: impl Future<Output = T>) -> io::Result<T> {
    time::timeout(PATIENCE, work).await.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no progress"))
}
