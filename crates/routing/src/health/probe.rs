//! One check of one instance.
//!
//! Whatever the instance does, a check ends after its timeout. The timeout covers connecting, the headers of the answer,
//! and the part of the body that is read. Redirects are not followed and connections are not kept; each check opens a
//! new one, as a new client would.

use std::{net::SocketAddr, time::Duration};

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{
    Request,
    body::{Bytes, Incoming},
    client::conn::http1,
    header,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time,
};

use signalbox_route_table::{Health, takes};

/// Maximum size of the part of an answer that is searched for its text.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Where and how an instance is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// As in the table.
    pub(crate) address: String,
    /// The Host header.
    pub(crate) host: String,
    pub(crate) health: Health,
}

/// How long a check may take: no longer than until the next one would be due, so that an instance that hangs is under way for
/// at most half of the time.
fn timeout(health: &Health) -> Duration {
    let interval = Duration::from_secs(u64::from(health.interval_seconds));
    interval.min(Duration::from_millis(u64::from(health.timeout_ms)))
}

/// Why a check failed, in words that an operator reads.
pub(super) async fn check(target: &Target) -> Result<(), String> {
    let timeout = timeout(&target.health);
    let checked = async {
        match target.address.strip_prefix("unix:") {
            Some(path) => examine(target, UnixStream::connect(path).await.map_err(unreachable)?).await,
            None => {
                let address: SocketAddr =
                    target.address.parse().map_err(|_| "the address is not readable".to_owned())?;
                examine(target, TcpStream::connect(address).await.map_err(unreachable)?).await
            }
        }
    };
    match time::timeout(timeout, checked).await {
        Ok(checked) => checked,
        Err(_) => Err(format!("no answer within {} ms", timeout.as_millis())),
    }
}

fn unreachable(error: std::io::Error) -> String {
    format!("it cannot be connected to ({})", error.kind())
}

async fn examine(
    target: &Target,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<(), String> {
    let Some(path) = &target.health.path else { return Ok(()) };
    let broken = |_| "it broke the connection or spoke no HTTP".to_owned();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let request = Request::get(path)
        .header(header::HOST, &target.host)
        .header(header::USER_AGENT, "signalbox-health")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|_| "the path is not readable".to_owned())?;
    // Side by side in one future, so that giving the check up closes the connection.
    let answer = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        judge(&target.health, response).await
    };
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        biased;
        judged = &mut answer => judged,
        _ = &mut connection => answer.await,
    }
}

async fn judge(health: &Health, response: hyper::Response<Incoming>) -> Result<(), String> {
    let status = response.status().as_u16();
    if !takes(health, status) {
        return Err(format!("status {status}"));
    }
    let Some(wanted) = &health.body else { return Ok(()) };
    let mut body = Limited::new(response.into_body(), MAX_BODY_BYTES);
    let mut read = Vec::new();
    // A longer or truncated answer is judged by the received part.
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            read.extend_from_slice(&data);
        }
        if read.windows(wanted.len()).any(|part| part == wanted.as_bytes()) {
            return Ok(());
        }
    }
    Err("the text is not in the answer".to_owned())
}
