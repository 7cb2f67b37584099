//! A client of HTTP/2 without TLS, for one request.

use std::{io, net::SocketAddr};

use bytes::Bytes;
use h2::{RecvStream, client};
use http::Request;
use signalbox_testkit::PATIENCE;
use tokio::{net::TcpStream, task::AbortHandle, time};

use crate::http::Response;

/// A response that is being received.
#[derive(Debug)]
pub struct Exchange {
    /// Status and headers. The body is empty.
    pub head: Response,
    body: RecvStream,
    driver: AbortHandle,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Exchange {
    /// Sends a GET, and waits for the headers of the response.
    ///
    /// # Errors
    /// When the connection or the stream ends before.
    pub async fn get(to: SocketAddr, host: &str, headers: &[(&str, &str)]) -> io::Result<Self> {
        let (client, connection) =
            client::handshake(TcpStream::connect(to).await?).await.map_err(io::Error::other)?;
        let driver = tokio::spawn(async move {
            let _ended = connection.await;
        });
        let mut request = Request::get(format!("http://{host}/")).version(http::Version::HTTP_2);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).map_err(io::Error::other)?;
        let mut client = client.ready().await.map_err(io::Error::other)?;
        let (response, _) = client.send_request(request, true).map_err(io::Error::other)?;
        let response = patiently(response).await?.map_err(io::Error::other)?;
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers =
            response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        let head = Response { status: response.status().as_u16(), headers, body: Vec::new(), wire_bytes: 0 };
        Ok(Self { head, body: response.into_body(), driver: driver.abort_handle() })
    }

    /// The next part of the body; `None` at its end.
    ///
    /// # Errors
    /// When the stream is reset.
    pub async fn part(&mut self) -> io::Result<Option<Bytes>> {
        let Some(part) = patiently(self.body.data()).await? else { return Ok(None) };
        let part = part.map_err(io::Error::other)?;
        self.body.flow_control().release_capacity(part.len()).map_err(io::Error::other)?;
        Ok(Some(part))
    }

    /// The complete response.
    ///
    /// # Errors
    /// When the stream is reset.
    pub async fn end(mut self) -> io::Result<Response> {
        let mut body = Vec::new();
        while let Some(part) = self.part().await? {
            body.extend_from_slice(&part);
        }
        Ok(Response { body, ..self.head.clone() })
    }
}

async fn patiently<T>(work: impl Future<Output = T>) -> io::Result<T> {
    time::timeout(PATIENCE, work).await.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no progress"))
}
