//! Minimal subscribers: one thread that accepts deliveries, counts their events, checks that each object's are in
//! order, and answers 200.
//!
//! The lateness of a delivery counts from the moment when it could have been made: when its last event was accepted if
//! it is full, and otherwise when its first event had waited for the subscription's timeout. The time before that is
//! what the subscriber asked for. An event's ID holds its time of acceptance, in milliseconds.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::SocketAddr,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use jiff::Timestamp;
use memchr::memmem::Finder;
use mio::{
    Events, Interest, Poll, Token, Waker,
    net::{TcpListener, TcpStream},
};

use crate::{histogram::Histogram, process::thread_cpu};

/// The prefix of every URL of the load; the object's number follows.
pub(crate) const URLS: &str = "https://bench.example/";

const WAKE: Token = Token(0);
const LISTENER: Token = Token(1);
const CONNECTIONS: usize = 2;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
/// The first ids of 2024, and how many there are in a millisecond (docs/bus.md).
const ID_EPOCH_MS: u64 = 1_704_067_200_000;
const IDS_PER_MS: u64 = 6_400;

static END_OF_HEAD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));
static LENGTH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\ncontent-length: "));
static URL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"url\":\"https://bench.example/"));
static ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b",\"id\":"));

/// The settings of one subscription. A backend gets every event immediately and alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// How long a batch may fill.
    pub(crate) timeout: Duration,
    /// Events of a full one.
    pub(crate) max: usize,
}

/// The received deliveries.
#[derive(Debug, Default)]
struct Counts {
    events: AtomicU64,
    /// Events whose id is not above the last one of their object: out of order, or once more.
    behind: AtomicU64,
    lateness: Mutex<Histogram>,
    stop: AtomicBool,
    thread: AtomicI32,
}

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Receivers {
    address: SocketAddr,
    counts: Arc<Counts>,
    waker: Waker,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Receivers {
    /// Starts one subscriber for each of `terms`.
    pub(crate) fn start(terms: Vec<Terms>) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let address = listener.local_addr()?;
        let counts = Arc::new(Counts::default());
        let serving = Serving {
            poll,
            listener,
            connections: Vec::new(),
            subscribers: terms.into_iter().map(|terms| Subscriber { terms, last: Vec::new() }).collect(),
            counts: Arc::clone(&counts),
        };
        let thread = std::thread::Builder::new()
            .name("bench-receivers".to_owned())
            .spawn(move || serving.run())
            .context("starting the receivers")?;
        Ok(Self { address, counts, waker, thread: Some(thread) })
    }

    /// The callback of a subscriber.
    pub(crate) fn callback(&self, subscriber: usize) -> String {
        format!("http://{}/{subscriber}", self.address)
    }

    /// Events delivered so far.
    pub(crate) fn events(&self) -> u64 {
        self.counts.events.load(Ordering::Relaxed)
    }

    /// Events that came out of order or again.
    pub(crate) fn behind(&self) -> u64 {
        self.counts.behind.load(Ordering::Relaxed)
    }

    /// How late events were since this was asked last.
    pub(crate) fn take_lateness(&self) -> Histogram {
        std::mem::take(&mut *self.counts.lateness.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// CPU time of the thread so far.
    pub(crate) fn cpu(&self) -> Duration {
        thread_cpu(self.counts.thread.load(Ordering::Relaxed))
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.counts.stop.store(true, Ordering::Relaxed);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Subscriber {
    terms: Terms,
    /// The last id of each object.
    last: Vec<u64>,
}

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    filled: usize,
}

struct Serving {
    poll: Poll,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    subscribers: Vec<Subscriber>,
    counts: Arc<Counts>,
}

impl Serving {
    fn run(mut self) {
        self.counts.thread.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
        let mut events = Events::with_capacity(256);
        while !self.counts.stop.load(Ordering::Relaxed) {
            if let Err(error) = self.poll.poll(&mut events, None)
                && error.kind() != ErrorKind::Interrupted
            {
                return;
            }
            for event in &events {
                match event.token() {
                    WAKE => {}
                    LISTENER => self.accept(),
                    Token(token) => self.ready(token - CONNECTIONS),
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let _ = stream.set_nodelay(true);
            let slot = self.connections.iter().position(Option::is_none).unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let token = Token(CONNECTIONS + slot);
            if self.poll.registry().register(&mut stream, token, Interest::READABLE).is_ok() {
                let received = vec![0; 64 * 1024];
                self.connections[slot] = Some(Connection { stream, received, filled: 0 });
            }
        }
    }

    fn ready(&mut self, slot: usize) {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        let open = loop {
            if connection.filled == connection.received.len() {
                connection.received.resize(2 * connection.filled, 0);
            }
            match connection.stream.read(&mut connection.received[connection.filled..]) {
                Ok(0) => break false,
                Ok(n) => connection.filled += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            }
            // One request at a time: the pacemaker does not send the next before this one's answer.
            if let Some(request) = request(&connection.received[..connection.filled]) {
                let subscriber = self.subscribers.get_mut(request.subscriber);
                if let Some(subscriber) = subscriber {
                    subscriber.take(&connection.received[request.body..connection.filled], &self.counts);
                }
                connection.filled = 0;
                if connection.stream.write(ANSWER).is_ok_and(|n| n == ANSWER.len()) {
                    // More is a new event.
                    break true;
                }
                break false;
            }
        };
        if !open {
            self.connections[slot] = None;
        }
    }
}

struct Request {
    subscriber: usize,
    body: usize,
}

/// The request that `bytes` are, once they are all of it.
fn request(bytes: &[u8]) -> Option<Request> {
    let body = END_OF_HEAD.find(bytes)? + 4;
    let head = &bytes[..body];
    let length = LENGTH.find(head)? + LENGTH.needle().len();
    let (length, _) = number(&head[length..]);
    let subscriber = head.strip_prefix(b"POST /").map(number)?.0;
    (bytes.len() as u64 >= body as u64 + length).then_some(Request { subscriber: subscriber as usize, body })
}

/// The number that `bytes` begin with, and its length.
pub(crate) fn number(bytes: &[u8]) -> (u64, usize) {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold((0, 0), |(value, length), digit| (value * 10 + u64::from(digit - b'0'), length + 1))
}

impl Subscriber {
    fn take(&mut self, mut body: &[u8], counts: &Counts) {
        let now_ms = unix_ms();
        let (mut events, mut behind, mut first_id, mut last_id) = (0, 0, None, 0);
        while let Some(at) = URL.find(body) {
            body = &body[at + URL.needle().len()..];
            let (object, _) = number(body);
            let Some(at) = ID.find(body) else { break };
            body = &body[at + ID.needle().len()..];
            let (id, _) = number(body);
            let object = object as usize;
            if self.last.len() <= object {
                self.last.resize(object + 1, 0);
            }
            behind += u64::from(id <= self.last[object]);
            self.last[object] = id;
            first_id.get_or_insert(id);
            last_id = id;
            events += 1;
        }
        let Some(first_id) = first_id else { return };
        let timeout = u64::try_from(self.terms.timeout.as_millis()).unwrap_or(0);
        let full = events >= self.terms.max as u64;
        let due = if full { accepted_ms(last_id) } else { accepted_ms(first_id) + timeout };
        let late = now_ms.saturating_sub(due) * 1_000_000;
        let mut lateness = counts.lateness.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..events {
            lateness.record(late);
        }
        drop(lateness);
        counts.behind.fetch_add(behind, Ordering::Relaxed);
        // Last: who sees an event counted finds everything else counted too.
        counts.events.fetch_add(events, Ordering::Release);
    }
}

/// The time by the clock that Redis, on this machine, numbers events by.
pub(crate) fn unix_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// When an event or a message with this id was accepted.
pub(crate) fn accepted_ms(id: u64) -> u64 {
    ID_EPOCH_MS + id / IDS_PER_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscriber(max: usize) -> Subscriber {
        Subscriber { terms: Terms { timeout: Duration::ZERO, max }, last: Vec::new() }
    }

    fn body(events: &[(u64, u64)]) -> Vec<u8> {
        let events: Vec<String> = events
            .iter()
            .map(|(object, id)| {
                format!(r#"{{"topic":"t","type":"update","url":"{URLS}{object}","t":1,"data":{{}},"id":{id},"prev":1}}"#)
            })
            .collect();
        format!("[{}]", events.join(",")).into_bytes()
    }

    #[test]
    fn a_request_is_complete_with_its_body() {
        let bytes = b"POST /7 HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n[]";
        for end in 0..bytes.len() {
            assert!(request(&bytes[..end]).is_none(), "{end}");
        }
        let request = request(bytes).unwrap();
        assert_eq!((request.subscriber, &bytes[request.body..]), (7, &b"[]"[..]));
    }

    #[test]
    fn events_are_counted_and_an_inversion_is_seen() {
        let (mut subscriber, counts) = (subscriber(100), Counts::default());
        subscriber.take(&body(&[(1, 64), (2, 128), (1, 192)]), &counts);
        assert_eq!(counts.events.load(Ordering::Relaxed), 3);
        assert_eq!(counts.behind.load(Ordering::Relaxed), 0);
        subscriber.take(&body(&[(2, 256), (1, 192)]), &counts);
        assert_eq!(counts.events.load(Ordering::Relaxed), 5);
        assert_eq!(counts.behind.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_full_batch_is_due_with_its_last_event_and_another_after_the_timeout() {
        let now = unix_ms();
        let id = |ago: u64| (now - ago - ID_EPOCH_MS) * IDS_PER_MS;
        let late = |max, timeout| {
            let (mut subscriber, counts) = (subscriber(max), Counts::default());
            subscriber.terms.timeout = Duration::from_millis(timeout);
            subscriber.take(&body(&[(1, id(90_000)), (2, id(30_000))]), &counts);
            counts.lateness.into_inner().unwrap().max() / 1_000_000_000
        };
        assert_eq!(late(2, 60_000), 30);
        assert_eq!(late(3, 80_000), 10);
        assert_eq!(late(3, 120_000), 0);
    }
}
