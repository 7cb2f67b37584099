//! Clients that send a known number of requests and keep account of each.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::task::JoinHandle;

use crate::http::{Connection, Request, Response};
use signalbox_testkit::eventually;

/// The results of one client's or many clients' requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// Status code → how many.
    pub codes: BTreeMap<u16, u64>,
    /// Bytes of all complete answers as they came over the wire.
    pub bytes: u64,
    /// `X-App` → how many.
    pub apps: BTreeMap<String, u64>,
    /// Requests without a complete answer, and why.
    pub broken: Vec<String>,
}

impl Account {
    /// How many requests were answered completely.
    pub fn answered(&self) -> u64 {
        self.codes.values().sum()
    }

    /// How many requests got no success.
    pub fn failed(&self) -> u64 {
        let unsuccessful: u64 =
            self.codes.iter().filter(|(code, _)| **code >= 400).map(|(_, count)| count).sum();
        unsuccessful + self.broken.len() as u64
    }

    /// Enters one outcome.
    pub fn enter(&mut self, request: &Request, outcome: std::io::Result<Response>) {
        match outcome {
            Ok(response) => {
                *self.codes.entry(response.status).or_default() += 1;
                self.bytes += response.wire_bytes;
                if let Some(app) = response.header("X-App") {
                    *self.apps.entry(app.to_owned()).or_default() += 1;
                }
            }
            Err(error) => self.broken.push(format!("{error}: {request:?}")),
        }
    }

    /// Adds another account to this one.
    pub fn add(&mut self, other: Self) {
        for (code, count) in other.codes {
            *self.codes.entry(code).or_default() += count;
        }
        for (app, count) in other.apps {
            *self.apps.entry(app).or_default() += count;
        }
        self.bytes += other.bytes;
        self.broken.extend(other.broken);
    }
}

/// Sends `count` requests, spread over `clients` connections that are kept alive. The n-th is `request(n)`.
///
/// # Panics
/// When a client does.
pub async fn send(
    to: SocketAddr,
    clients: u64,
    count: u64,
    request: impl Fn(u64) -> Request + Send + Sync + 'static,
) -> Account {
    let (next, request) = (Arc::new(AtomicU64::new(0)), Arc::new(request));
    let work = (0..clients)
        .map(|_| {
            let (next, request) = (next.clone(), request.clone());
            tokio::spawn(client(to, move || {
                let n = next.fetch_add(1, Ordering::SeqCst);
                (n < count).then(|| request(n))
            }))
        })
        .collect::<Vec<_>>();
    let mut total = Account::default();
    for client in work {
        total.add(client.await.expect("a client that ends"));
    }
    total
}

/// Clients that run until they are stopped.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Account>>,
}

impl Load {
    /// Starts `clients` connections, each with one request after another; the n-th of all is `request(n)`.
    pub fn start(
        to: SocketAddr,
        clients: u64,
        request: impl Fn(u64) -> Request + Send + Sync + 'static,
    ) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let request = Arc::new(request);
        let clients = (0..clients)
            .map(|_| {
                let (stop, sent, request) = (stop.clone(), sent.clone(), request.clone());
                tokio::spawn(client(to, move || {
                    (!stop.load(Ordering::SeqCst)).then(|| request(sent.fetch_add(1, Ordering::SeqCst)))
                }))
            })
            .collect();
        Self { stop, sent, clients }
    }

    /// How many requests were begun.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    /// Waits until `more` further requests were begun: the load's own clock, for putting things between requests.
    pub async fn pass(&self, more: u64) {
        let goal = self.sent() + more;
        eventually("the load to continue", || async {
            let sent = self.sent();
            if sent >= goal { Ok(()) } else { Err(format!("{sent} of {goal} requests begun")) }
        })
        .await;
    }

    /// Lets every client finish the request it is at, and closes the account.
    ///
    /// # Panics
    /// When a client did.
    pub async fn stop(self) -> Account {
        self.stop.store(true, Ordering::SeqCst);
        let mut total = Account::default();
        for client in self.clients {
            total.add(client.await.expect("a client that ends"));
        }
        total
    }
}

/// One client. It keeps its connection for as long as the server does and never repeats a request: one that fails
/// has failed, whatever a browser would have made of it.
async fn client(to: SocketAddr, mut next: impl FnMut() -> Option<Request>) -> Account {
    let mut account = Account::default();
    let mut connection = None;
    while let Some(request) = next() {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match Connection::open(to).await {
                Ok(open) => open,
                Err(error) => {
                    account.broken.push(format!("connecting: {error}"));
                    // A refused connection costs nothing; without a pause the client would spin.
                    tokio::task::yield_now().await;
                    continue;
                }
            },
        };
        let outcome = open.send(&request).await;
        if outcome.as_ref().is_ok_and(Response::keeps_alive) {
            connection = Some(open);
        }
        account.enter(&request, outcome);
    }
    account
}
