//! The HTTP server of a daemon: accepts connections, limits them, and ends them.
//!
//! * A connection on which no request header arrives in time is closed, whether it has not sent one yet, sends it slowly, or
//!   is idle between two requests. Proxies in front must close idle connections earlier ([`HEADER_TIMEOUT`]).
//! * An address has at most [`MAX_SILENT`] connections that have not sent a request yet: a further one ends the oldest of
//!   these. To reject the new one would lock others out, because the processes of this machine share an address.
//! * If few connections are left, each new one ends a connection that waits for a request, of the address with most of these:
//!   the oldest that has not sent any, or else the one that has waited longest for its next. So clients that keep connections
//!   open do not take them from others.
//! * A client that takes nothing of a response for 30 seconds is ended. It has to read a response whose length is known within 30
//!   seconds, and one second more for each 16 KiB: until then the response is in memory. A stream ends when its sender ends it.
//! * Beyond [`Limits::connections`], a new connection is closed without an answer.
//!
//! How long a request's body may take is a matter of the daemon that reads it.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{Router, body::HttpBody as _, extract::Request, response::Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore, time};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service as _;

use crate::writing::{Deadline, Writing};

/// How long a connection may take to send the header of its next request. The edge closes its idle connections to the
/// daemons after 10 seconds.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of connections of one address that have not sent a request yet.
pub(crate) const MAX_SILENT: usize = 256;
/// Bytes of a request's header, and of a response that is being written, that a connection has in memory. A longer header gets 431.
const MAX_BUFFER: usize = 64 << 10;
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

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaits {
    /// Its first request.
    First,
    /// Its next request.
    Next,
}

/// The connections of an address that wait for a request, by number, the longest waiting first.
#[derive(Debug, Default)]
struct Own {
    silent: BTreeMap<u64, CancellationToken>,
    between: BTreeMap<u64, CancellationToken>,
}

impl Own {
    fn of(&mut self, awaits: Awaits) -> &mut BTreeMap<u64, CancellationToken> {
        match awaits {
            Awaits::First => &mut self.silent,
            Awaits::Next => &mut self.between,
        }
    }

    fn len(&self) -> usize {
        self.silent.len() + self.between.len()
    }
}

/// Connections that wait for a request, by address.
#[derive(Debug, Default)]
struct Idle {
    next: u64,
    all: HashMap<IpAddr, Own>,
}

impl Idle {
    /// Adds a connection, which `end` ends. Returns its number.
    fn add(&mut self, address: IpAddr, awaits: Awaits, end: CancellationToken) -> u64 {
        self.next += 1;
        self.all.entry(address).or_default().of(awaits).insert(self.next, end);
        self.next
    }

    fn remove(&mut self, address: IpAddr, awaits: Awaits, number: u64) {
        if let Some(own) = self.all.get_mut(&address) {
            own.of(awaits).remove(&number);
            if own.len() == 0 {
                self.all.remove(&address);
            }
        }
    }

    /// Ends the oldest connection of `address` that has not sent a request yet, if there are [`MAX_SILENT`]. Returns whether it
    /// did.
    fn end_silent(&mut self, address: IpAddr) -> bool {
        let own = self.all.get_mut(&address).filter(|own| own.silent.len() >= MAX_SILENT);
        let Some((_, end)) = own.and_then(|own| own.silent.pop_first()) else { return false };
        end.cancel();
        true
    }

    /// Ends a connection of the address with most connections that wait. Returns whether there was one.
    fn end_one(&mut self) -> bool {
        let most = self.all.iter().max_by_key(|(_, own)| own.len()).map(|(address, _)| *address);
        let Some((address, own)) = most.and_then(|most| Some((most, self.all.get_mut(&most)?))) else {
            return false;
        };
        let oldest = own.silent.pop_first().or_else(|| own.between.pop_first());
        if own.len() == 0 {
            self.all.remove(&address);
        }
        oldest.inspect(|(_, end)| end.cancel()).is_some()
    }
}

/// One connection among the idle ones. It is removed when it gets its next request, or ends.
struct Waiting {
    all: Arc<Mutex<Idle>>,
    address: IpAddr,
    end: CancellationToken,
    current: Mutex<Option<(Awaits, u64)>>,
}

impl Waiting {
    /// A new connection of `address`, which has not sent a request yet.
    fn new(all: &Arc<Mutex<Idle>>, address: IpAddr) -> Self {
        let new =
            Self { all: Arc::clone(all), address, end: CancellationToken::new(), current: Mutex::default() };
        new.begin(Awaits::First);
        new
    }

    fn begin(&self, awaits: Awaits) {
        let number = lock(&self.all).add(self.address, awaits, self.end.clone());
        *lock(&self.current) = Some((awaits, number));
    }

    fn finish(&self) {
        if let Some((awaits, number)) = lock(&self.current).take() {
            lock(&self.all).remove(self.address, awaits, number);
        }
    }

    /// What the connection waits for; `None` while a request is in progress.
    fn awaits(&self) -> Option<Awaits> {
        lock(&self.current).map(|(awaits, _)| awaits)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The address by which connections are counted: of IPv6 the network of 64 bits, which one client usually has. A process of this
/// machine can use all of its loopback addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
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
    let idle = Arc::<Mutex<Idle>>::default();
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
        let few = slots.available_permits() < limits.connections.div_ceil(PART_FREE);
        let ended = {
            let mut idle = lock(&idle);
            idle.end_silent(address) || few && idle.end_one()
        };
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
        let (router, stopping) = (router.clone(), stopping.clone());
        let waiting = Waiting::new(&idle, address);
        connections.spawn(async move {
            let _slot = slot;
            let deadline = Deadline::default();
            let service = service_fn(async |request| {
                waiting.finish();
                let response = answer(router.clone(), request, peer).await;
                let bytes = response.body().size_hint().exact();
                deadline.begin(bytes);
                // A stream ends when its sender ends it.
                if bytes.is_some() {
                    waiting.begin(Awaits::Next);
                }
                Ok::<_, Infallible>(response)
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_BUFFER);
            let connection =
                builder.serve_connection(TokioIo::new(Writing::new(stream, deadline.clone())), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                // A request that has arrived is read before its connection is ended.
                biased;
                ended = connection.as_mut() => ended,
                () = stopping.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
                () = waiting.end.cancelled() => match waiting.awaits() {
                    // The beginning of a request would delay an orderly end.
                    Some(Awaits::First) => Ok(()),
                    awaits => {
                        connection.as_mut().graceful_shutdown();
                        // A request that came at the same time is answered.
                        let most = if awaits.is_some() { READ_TIMEOUT } else { Duration::MAX };
                        time::timeout(most, connection).await.unwrap_or(Ok(()))
                    }
                },
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

    /// A connection of 10.0.0.`last`, and what ends it.
    fn add(idle: &mut Idle, last: u8, awaits: Awaits) -> CancellationToken {
        let end = CancellationToken::new();
        idle.add(IpAddr::from([10, 0, 0, last]), awaits, end.clone());
        end
    }

    #[test]
    fn the_oldest_connection_without_a_request_makes_a_place_for_another() {
        let mut idle = Idle::default();
        let address = IpAddr::from([10, 0, 0, 1]);
        let quiet = add(&mut idle, 1, Awaits::Next);
        let mut silent: Vec<_> = (1..MAX_SILENT).map(|_| add(&mut idle, 1, Awaits::First)).collect();
        assert!(!idle.end_silent(address));
        silent.push(add(&mut idle, 1, Awaits::First));
        assert!(!idle.end_silent([10, 0, 0, 2].into()), "another address");
        assert!(idle.end_silent(address));
        let ended = silent.iter().filter(|one| one.is_cancelled()).count();
        assert!(silent[0].is_cancelled() && ended == 1 && !quiet.is_cancelled());
        assert!(!idle.end_silent(address), "there is a place");
    }

    #[test]
    fn the_address_with_most_waiting_connections_loses_one_when_few_are_left() {
        let mut idle = Idle::default();
        let other = add(&mut idle, 2, Awaits::First);
        let kept = add(&mut idle, 1, Awaits::Next);
        let silent = [add(&mut idle, 1, Awaits::First), add(&mut idle, 1, Awaits::First)];
        let cancelled = || [&other, &kept, &silent[0], &silent[1]].map(CancellationToken::is_cancelled);
        assert!(idle.end_one());
        assert_eq!(cancelled(), [false, false, true, false]);
        assert!(idle.end_one());
        assert_eq!(cancelled(), [false, false, true, true], "the kept connection is ended last");
        assert!(idle.end_one() && idle.end_one() && !idle.end_one());
        assert!(idle.all.is_empty());
    }

    #[test]
    fn the_addresses_of_one_client_count_as_one() {
        let same = |one: &str, other: &str| network(one.parse().unwrap()) == network(other.parse().unwrap());
        assert!(
            same("127.0.0.1", "127.9.9.9")
                && same("127.0.0.1", "::1")
                && same("127.0.0.1", "::ffff:127.0.0.2")
        );
        assert!(same("fd00::1", "fd00::2:0:0:1") && !same("fd00::1", "fd00:0:0:1::1"));
        assert!(!same("10.0.0.1", "10.0.0.2") && !same("10.0.0.1", "127.0.0.1"));
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

    /// Begins a server with `connections`. Returns its address, and what stops it.
    async fn server(connections: usize) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let router = Router::new().fallback(|| async { "here" });
        let stopping = CancellationToken::new();
        let server = tokio::spawn(serve(listener, router, Limits { connections }, stopping.clone()));
        (to, stopping, server)
    }

    #[tokio::test]
    async fn a_client_that_keeps_connections_open_does_not_take_them_from_others() {
        let (to, stopping, server) = server(16).await;
        let mut held = Vec::new();
        for _ in 0..40 {
            let (stream, begin) = request([127, 0, 0, 3], to).await;
            assert_eq!(begin, "HTTP/1.1 200 OK", "connection {}", held.len());
            held.push(stream);
        }
        assert_eq!(request([127, 0, 0, 4], to).await.1, "HTTP/1.1 200 OK");
        stopping.cancel();
        drop(held);
        server.await.unwrap();
    }

    #[tokio::test]
    async fn silent_clients_of_this_machine_keep_nobody_out() {
        // More than one address may have without a request, and more than there are places.
        for connections in [2 * MAX_SILENT, 16] {
            let (to, stopping, server) = server(connections).await;
            let mut silent = Vec::new();
            for number in 0..MAX_SILENT + 8 {
                let mut stream = TcpStream::connect(to).await.unwrap();
                // Half of them have begun a request.
                if number % 2 == 0 {
                    let _ = stream.write_all(b"GET / HTTP/1.1\r\n").await;
                }
                silent.push(stream);
            }
            for last in [1, 2] {
                assert_eq!(request([127, 0, 0, last], to).await.1, "HTTP/1.1 200 OK", "of {connections}");
            }
            stopping.cancel();
            drop(silent);
            server.await.unwrap();
        }
    }
}
