//! The HTTP server of a daemon: accepts connections, limits them, and ends them.
//!
//! * A connection on which no request header arrives in time is closed, whether it has not sent one yet, sends it slowly, or
//!   is idle between two requests. Proxies in front must close idle connections earlier ([`HEADER_TIMEOUT`]).
//! * Beyond [`Limits::connections`], a new connection is closed without an answer.
//! * An address gets [`MAX_SILENT`] connections that have not sent a request yet. So one client cannot use up all
//!   connections without sending requests.
//!
//! How long a request's body may take is a matter of the daemon that reads it.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, extract::Request, response::Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore, time};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service as _;

/// How long a connection may take to send the header of its next request. The edge closes its idle connections to the
/// daemons after 10 seconds.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of connections of one address that have not sent a request yet.
pub(crate) const MAX_SILENT: usize = 256;
/// The pause after a failure to accept a connection, which usually means that no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The limits of the server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The maximum number of connections.
    pub connections: usize,
}

/// The address that a request came from: an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Connections without a request, by address.
type Silent = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// One connection without a request. It is counted until this is dropped.
struct Mute {
    address: IpAddr,
    all: Silent,
}

impl Mute {
    /// `None` if the address has too many.
    fn count(all: &Silent, address: IpAddr) -> Option<Self> {
        let mut counts = all.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= MAX_SILENT {
            return None;
        }
        *count += 1;
        Some(Self { address, all: Arc::clone(all) })
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        let mut counts = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Serves `router` on `listener` until `stopping`, and then until the requests in progress are answered.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stopping: CancellationToken) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    let silent = Silent::default();
    let connections = TaskTracker::new();
    let mut full = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopping.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            if !full {
                tracing::warn!(limit = limits.connections, "connection limit reached");
            }
            full = true;
            continue;
        };
        full = false;
        let Some(mute) = Mute::count(&silent, peer.ip()) else {
            tracing::debug!(address = %peer.ip(), "too many connections without a request");
            continue;
        };
        // Small answers must not wait for more.
        let _ = stream.set_nodelay(true);
        let (router, stopping) = (router.clone(), stopping.clone());
        connections.spawn(async move {
            let _slot = slot;
            let mute = Mutex::new(Some(mute));
            let service = service_fn(|request| {
                drop(mute.lock().unwrap_or_else(PoisonError::into_inner).take());
                answer(router.clone(), request, peer)
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stopping.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::trace!(%error, "connection ended");
            }
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn answer(
    mut router: Router,
    mut request: Request<Incoming>,
    peer: SocketAddr,
) -> Result<Response, Infallible> {
    request.extensions_mut().insert(Peer(peer));
    router.call(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_limited_number_of_connections_without_a_request() {
        let all = Silent::default();
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut held: Vec<Mute> = (0..MAX_SILENT).map(|_| Mute::count(&all, one).unwrap()).collect();
        assert!(Mute::count(&all, one).is_none());
        assert!(Mute::count(&all, other).is_some());
        held.pop();
        assert!(Mute::count(&all, one).is_some());
        held.clear();
        assert!(all.lock().unwrap().is_empty());
    }
}
