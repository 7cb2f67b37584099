//! The HTTP server of a daemon: accepts connections, limits them, and ends them.
//!
//! * A connection on which no request header arrives in time is closed, whether it has not sent one yet, sends it slowly, or
//!   is idle between two requests. Proxies in front must close idle connections earlier ([`HEADER_TIMEOUT`]).
//! * If few connections are left, each new one ends the connection that has waited longest for its next request, of the address
//!   with most of these. So clients that keep connections open do not take them from others.
//! * Beyond [`Limits::connections`], a new connection is closed without an answer.
//! * An address gets [`MAX_SILENT`] connections that have not sent a request yet. So one client cannot use up all
//!   connections without sending requests.
//!
//! How long a request's body may take is a matter of the daemon that reads it.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{Router, body::HttpBody as _, extract::Request, response::Response};
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
/// The part of the connections that is kept free by ending idle ones.
const PART_FREE: usize = 16;
/// How long a client may take to read the rest of a response when its connection is ended.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a new connection waits for the place of an idle one that is ended for it.
const END_TIMEOUT: Duration = Duration::from_millis(100);
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

/// Connections that wait for their next request, by address, the longest waiting first.
#[derive(Debug, Default)]
struct Idle {
    next: u64,
    all: HashMap<IpAddr, BTreeMap<u64, CancellationToken>>,
}

impl Idle {
    /// Adds a connection, which `end` ends. Returns its number.
    fn add(&mut self, address: IpAddr, end: CancellationToken) -> u64 {
        self.next += 1;
        self.all.entry(address).or_default().insert(self.next, end);
        self.next
    }

    fn remove(&mut self, address: IpAddr, number: u64) {
        if let Some(own) = self.all.get_mut(&address) {
            own.remove(&number);
            if own.is_empty() {
                self.all.remove(&address);
            }
        }
    }

    /// Ends the connection that has waited longest, of the address with most connections that wait. Returns whether there was
    /// one.
    fn end_one(&mut self) -> bool {
        let Some((address, own)) = self.all.iter().max_by_key(|(_, own)| own.len()) else { return false };
        let oldest = own.first_key_value().map(|(number, end)| (*address, *number, end.clone()));
        let Some((address, number, end)) = oldest else { return false };
        end.cancel();
        self.remove(address, number);
        true
    }
}

/// One connection among the idle ones. It is removed when it gets its next request, or ends.
struct Waiting {
    all: Arc<Mutex<Idle>>,
    address: IpAddr,
    end: CancellationToken,
    number: Mutex<Option<u64>>,
}

impl Waiting {
    fn begin(&self) {
        let number = lock(&self.all).add(self.address, self.end.clone());
        *lock(&self.number) = Some(number);
    }

    fn finish(&self) {
        if let Some(number) = lock(&self.number).take() {
            lock(&self.all).remove(self.address, number);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The address by which connections are counted: of IPv6 the network of 64 bits, which one client usually has.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves `router` on `listener` until `stopping`, and then until the requests in progress are answered.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stopping: CancellationToken) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    let (silent, idle) = (Silent::default(), Arc::<Mutex<Idle>>::default());
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
        let address = network(peer.ip());
        // First, so that an address that is refused ends no connection of others.
        let Some(mute) = Mute::count(&silent, address) else {
            tracing::debug!(%address, "too many connections without a request");
            continue;
        };
        let ended =
            slots.available_permits() < limits.connections.div_ceil(PART_FREE) && lock(&idle).end_one();
        let slot = match Arc::clone(&slots).try_acquire_owned() {
            Ok(slot) => Some(slot),
            Err(_) if ended => {
                time::timeout(END_TIMEOUT, Arc::clone(&slots).acquire_owned()).await.ok().and_then(Result::ok)
            }
            Err(_) => None,
        };
        let Some(slot) = slot else {
            if !full {
                tracing::warn!(limit = limits.connections, "connection limit reached");
            }
            full = true;
            continue;
        };
        full = false;
        // Small answers must not wait for more.
        let _ = stream.set_nodelay(true);
        let (router, stopping, end) = (router.clone(), stopping.clone(), CancellationToken::new());
        let waiting = Waiting { all: Arc::clone(&idle), address, end: end.clone(), number: Mutex::default() };
        connections.spawn(async move {
            let _slot = slot;
            let mute = Mutex::new(Some(mute));
            let service = service_fn(async |request| {
                drop(lock(&mute).take());
                waiting.finish();
                let response = answer(router.clone(), request, peer).await;
                // A stream ends when its sender ends it.
                if response.body().size_hint().exact().is_some() {
                    waiting.begin();
                }
                Ok::<_, Infallible>(response)
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
                () = end.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    // A request that came at the same time is answered.
                    let is_idle = lock(&waiting.number).is_some();
                    let most = if is_idle { READ_TIMEOUT } else { Duration::MAX };
                    time::timeout(most, connection).await.unwrap_or(Ok(()))
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

async fn answer(mut router: Router, mut request: Request<Incoming>, peer: SocketAddr) -> Response {
    request.extensions_mut().insert(Peer(peer));
    match router.call(request).await {
        Ok(response) => response,
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpSocket, TcpStream},
    };

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
    /// Sends a request from an address of this machine. Returns the connection and the beginning of the response, which is
    /// empty if the connection was closed.
    async fn request(from: [u8; 4], to: SocketAddr) -> (TcpStream, String) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let mut stream = socket.connect(to).await.unwrap();
        let mut begin = vec![0; 15];
        let sent = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let read = if sent.is_ok() { stream.read(&mut begin).await.unwrap_or(0) } else { 0 };
        (stream, String::from_utf8_lossy(&begin[..read]).into_owned())
    }

    #[tokio::test]
    async fn a_client_that_keeps_connections_open_does_not_take_them_from_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let router = Router::new().fallback(|| async { "here" });
        let stopping = CancellationToken::new();
        let server = tokio::spawn(serve(listener, router, Limits { connections: 16 }, stopping.clone()));
        let (mut quiet, first) = request([127, 0, 0, 2], to).await;
        assert_eq!(first, "HTTP/1.1 200 OK");
        let mut held = Vec::new();
        for _ in 0..40 {
            let (stream, begin) = request([127, 0, 0, 3], to).await;
            assert_eq!(begin, "HTTP/1.1 200 OK", "connection {}", held.len());
            held.push(stream);
        }
        assert_eq!(request([127, 0, 0, 4], to).await.1, "HTTP/1.1 200 OK");
        // The connection of a client with few of them stays open.
        let mut rest = vec![0; 1024];
        assert!(quiet.read(&mut rest).await.unwrap() > 0, "the rest of the first response");
        quiet.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        assert!(quiet.read(&mut rest).await.unwrap() > 0);
        stopping.cancel();
        drop((held, quiet));
        server.await.unwrap();
    }
}
