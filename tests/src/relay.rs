//! A network between an HTTP client and a server that loses, repeats and delays requests and answers.
//!
//! A [`signalbox_testkit::wire::Wire`] handles bytes, and its faults affect whole connections. This relay handles requests, so
//! it can do to one of them what a retrying proxy or an impatient client does: execute it and lose the answer, execute it
//! twice, or execute it again much later.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time,
};

use crate::http::{Connection, Response};

/// How many of a hundred requests meet each fault. The rest pass unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odds {
    /// Never arrives.
    pub lost: u32,
    /// Is carried out, and its answer is lost.
    pub unanswered: u32,
    /// Is carried out twice at the same time.
    pub doubled: u32,
    /// Is carried out, and once more a while later.
    pub echoed: u32,
    /// Arrives late, and its answer comes late.
    pub late: u32,
    /// The longest delay.
    pub longest: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Passes,
    Lost,
    Unanswered,
    Doubled,
    Echoed,
    Late,
}

impl Odds {
    fn effect(&self, dice: u32) -> Effect {
        let mut below = 0;
        for (odds, effect) in [
            (self.lost, Effect::Lost),
            (self.unanswered, Effect::Unanswered),
            (self.doubled, Effect::Doubled),
            (self.echoed, Effect::Echoed),
            (self.late, Effect::Late),
        ] {
            below += odds;
            if dice < below {
                return effect;
            }
        }
        Effect::Passes
    }
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    odds: Odds,
    random: Mutex<StdRng>,
    met: AtomicU64,
    /// Repeats of a request are sent even after its client has disconnected.
    echoes: Mutex<JoinSet<()>>,
}

impl Shared {
    fn dice(&self) -> (Effect, Duration) {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        (self.odds.effect(random.random_range(0..100)), self.odds.longest.mul_f64(random.random()))
    }
}

/// A listener that passes requests on to one server, most of the time.
#[derive(Debug)]
pub struct Relay {
    /// Where clients connect.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Relay {
    /// Listens in front of `to`; the same `seed` makes the same choices.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn to(to: SocketAddr, odds: Odds, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        let shared = Arc::new(Shared { to, odds, random, met: AtomicU64::new(0), echoes: Mutex::default() });
        let accepted = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            // The set ends with this task, and every connection with it.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let _as_it_is = client.set_nodelay(true);
                connections.spawn(serve(client, Arc::clone(&accepted)));
            }
        });
        Self { address, shared, task: task.abort_handle() }
    }

    /// How many requests did not simply pass.
    pub fn met(&self) -> u64 {
        self.shared.met.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One request after another, until the client goes or one of them is lost: then the connection ends, as it does for a
/// client of a proxy that fell over.
async fn serve(client: TcpStream, shared: Arc<Shared>) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let request = Arc::new(read(&mut client).await?);
        let (effect, delay) = shared.dice();
        if effect != Effect::Passes {
            shared.met.fetch_add(1, Ordering::Relaxed);
        }
        let to = shared.to;
        let again = || {
            let request = Arc::clone(&request);
            async move { forward(to, &request).await }
        };
        let answer = match effect {
            Effect::Lost => return None,
            Effect::Unanswered => {
                let _unanswered = again().await;
                return None;
            }
            Effect::Doubled => tokio::join!(again(), again()).0,
            Effect::Echoed => {
                let request = Arc::clone(&request);
                let echo = async move {
                    time::sleep(delay).await;
                    let _unanswered = forward(to, &request).await;
                };
                shared.echoes.lock().unwrap_or_else(PoisonError::into_inner).spawn(echo);
                again().await
            }
            Effect::Late => {
                time::sleep(delay / 2).await;
                let answer = again().await;
                time::sleep(delay / 2).await;
                answer
            }
            Effect::Passes => again().await,
        };
        client.get_mut().write_all(&written(&answer.ok()?)).await.ok()?;
    }
}

async fn forward(to: SocketAddr, request: &[u8]) -> io::Result<Response> {
    Connection::open(to).await?.send_raw(request).await
}

/// An answer as it is forwarded: with its length instead of its transfer coding.
fn written(answer: &Response) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {} {}\r\n", answer.status, "Relayed");
    let of_ours = |name: &str| {
        ["content-length", "transfer-encoding", "connection"].iter().any(|one| name.eq_ignore_ascii_case(one))
    };
    for (name, value) in answer.headers.iter().filter(|(name, _)| !of_ours(name)) {
        head += &format!("{name}: {value}\r\n");
    }
    if answer.status != 204 {
        head += &format!("Content-Length: {}\r\n", answer.body.len());
    }
    head += "\r\n";
    [head.as_bytes(), &answer.body].concat()
}

/// A request's bytes, as they are; nothing at the end of the connection.
async fn read(client: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    loop {
        let start = bytes.len();
        if client.read_until(b'\n', &mut bytes).await.ok()? == 0 {
            return None;
        }
        let line = bytes[start..].trim_ascii();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = std::str::from_utf8(line).ok().and_then(|line| line.split_once(':'))
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let head = bytes.len();
    bytes.resize(head + length, 0);
    client.read_exact(&mut bytes[head..]).await.ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use signalbox_testkit::eventually;

    use super::*;
    use crate::{
        http::Request,
        receiver::{Answer, Receiver},
    };

    async fn after_one(odds: Odds, deliveries: usize) -> io::Result<Response> {
        let receiver = Receiver::answering(|_| Answer::status("204 No Content")).await;
        let url = receiver.url();
        let to: SocketAddr = url.trim_start_matches("http://").trim_end_matches("/events").parse().unwrap();
        let relay = Relay::to(to, Odds { longest: Duration::from_millis(5), ..odds }, 1).await;
        let answer = Request::new("POST", "a", "/events").body("[]").send(relay.address).await;
        eventually("the deliveries", || async {
            let came = receiver.deliveries();
            if came.len() == deliveries { Ok(()) } else { Err(came.len()) }
        })
        .await;
        assert!(receiver.deliveries().iter().all(|one| one.body == b"[]"));
        answer
    }

    #[tokio::test]
    async fn each_fault_behaves_as_documented() {
        let none = Odds::default();
        assert_eq!(after_one(none, 1).await.unwrap().status, 204);
        assert!(after_one(Odds { lost: 100, ..none }, 0).await.is_err());
        assert!(after_one(Odds { unanswered: 100, ..none }, 1).await.is_err());
        assert_eq!(after_one(Odds { doubled: 100, ..none }, 2).await.unwrap().status, 204);
        assert_eq!(after_one(Odds { echoed: 100, ..none }, 2).await.unwrap().status, 204);
        assert_eq!(after_one(Odds { late: 100, ..none }, 1).await.unwrap().status, 204);
    }
}
