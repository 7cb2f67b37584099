//! Consumers of a queue: connections that pull messages, check them and acknowledge them. All of them run in one
//! thread, which decodes no JSON: the queue is measured and not its consumers.

use std::{
    net::SocketAddr,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use memchr::memmem::Finder;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{Notify, oneshot},
    task::JoinSet,
    time::Instant,
};

use crate::{
    bus::{
        receivers::{accepted_ms, number, unix_ms},
        testbed::head,
    },
    histogram::Histogram,
    load::answer,
    process::own_thread_cpu,
};

/// How long everything may take.
const MAX_WAIT: Duration = Duration::from_secs(60);

static RECEIPT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"{\"receipt\":\""));
static ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\",\"id\":"));
static ACKED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"result\":\"acked\""));

/// The task of the consumers.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// The pacemaker.
    pub(crate) target: SocketAddr,
    pub(crate) token: String,
    pub(crate) queue: &'static str,
    /// Connections.
    pub(crate) consumers: usize,
    /// Messages in a pull at most.
    pub(crate) max: usize,
    /// How long a pull may wait. No time at all for a queue that has enough.
    pub(crate) wait_seconds: u32,
    /// The number of messages to pull: a minimum if pulls do not wait, else the exact number, after which no consumer
    /// waits.
    pub(crate) wanted: u64,
}

/// The result of a task.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) pulled: u64,
    /// As the queue confirmed.
    pub(crate) acked: u64,
    /// Messages that came again.
    pub(crate) again: u64,
    /// From the first pull to the last acknowledgement.
    pub(crate) elapsed: Duration,
    /// Of pulls that brought something.
    pub(crate) pulls: Histogram,
    /// From a message's acceptance to its arrival here, to the millisecond.
    pub(crate) waited: Histogram,
    /// CPU time of the consumers.
    pub(crate) cpu: Duration,
}

/// Pulls and acknowledges until enough has come.
pub(crate) async fn consume(task: Task) -> anyhow::Result<Tally> {
    let (reply, tally) = oneshot::channel();
    std::thread::Builder::new()
        .name("bench-consumers".to_owned())
        // If the receiver is gone, the run is being stopped.
        .spawn(move || drop(reply.send(on_this_thread(&task))))
        .context("starting the consumers")?;
    tally.await.context("the consumers' thread has ended")?
}

fn on_this_thread(task: &Task) -> anyhow::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (begun, cpu) = (Instant::now(), own_thread_cpu());
        let seen = Arc::new(Seen::default());
        let mut consumers = JoinSet::new();
        for _ in 0..task.consumers {
            consumers.spawn(one(task.clone(), Arc::clone(&seen)));
        }
        let all = async {
            while let Some(consumer) = consumers.join_next().await {
                consumer??;
            }
            anyhow::Ok(())
        };
        let enough = async {
            if task.wait_seconds == 0 {
                std::future::pending().await
            } else {
                seen.all.notified().await;
            }
        };
        tokio::select! {
            ended = all => ended?,
            () = enough => {}
            () = tokio::time::sleep(MAX_WAIT) => {
                bail!("{} of {} messages were pulled", seen.pulled.load(Ordering::Relaxed), task.wanted)
            }
        }
        let kept = std::mem::take(&mut *seen.kept.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Tally {
            pulled: seen.pulled.load(Ordering::Relaxed),
            acked: kept.acked,
            again: kept.again,
            elapsed: kept.last.map_or(Duration::ZERO, |last| last - begun),
            pulls: kept.pulls,
            waited: kept.waited,
            cpu: own_thread_cpu().saturating_sub(cpu),
        })
    })
}

/// The messages that all consumers have received.
#[derive(Debug, Default)]
struct Seen {
    pulled: AtomicU64,
    /// All that were wanted are acknowledged.
    all: Notify,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    acked: u64,
    again: u64,
    pulls: Histogram,
    waited: Histogram,
    last: Option<Instant>,
}

async fn one(task: Task, seen: Arc<Seen>) -> anyhow::Result<()> {
    let mut connection = Connection::open(task.target).await?;
    let wait = if task.wait_seconds == 0 {
        String::new()
    } else {
        format!(",\"wait_seconds\":{}", task.wait_seconds)
    };
    let body = format!("{{\"max\":{}{wait}}}", task.max);
    let pull = request(&task, "pull", &body);
    while seen.pulled.load(Ordering::Relaxed) < task.wanted {
        let begun = Instant::now();
        let pulled = Pulled::of(connection.ask(&pull).await?);
        if pulled.messages == 0 {
            continue;
        }
        seen.note(&pulled, begun.elapsed());
        let ack = request(&task, "ack", &format!("{{\"receipts\":[{}]}}", pulled.receipts));
        let acked = ACKED.find_iter(connection.ask(&ack).await?).count() as u64;
        if acked != pulled.messages {
            bail!("{acked} of {} messages were acknowledged", pulled.messages);
        }
        let mut kept = seen.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.acked += acked;
        kept.last = Some(Instant::now());
        if kept.acked >= task.wanted {
            seen.all.notify_one();
        }
    }
    Ok(())
}

impl Seen {
    fn note(&self, pulled: &Pulled, took: Duration) {
        let now_ms = unix_ms();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.pulls.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        for id in &pulled.ids {
            kept.waited.record(now_ms.saturating_sub(accepted_ms(*id)) * 1_000_000);
        }
        kept.again += pulled.again;
        drop(kept);
        self.pulled.fetch_add(pulled.messages, Ordering::Relaxed);
    }
}

fn request(task: &Task, what: &str, body: &str) -> Vec<u8> {
    let path = format!("/queues/{}/{what}", task.queue);
    (head("POST", &path, &task.token, body.len()) + body).into_bytes()
}

/// The result of a pull.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pulled {
    messages: u64,
    /// Those that had been handed out before.
    again: u64,
    ids: Vec<u64>,
    /// As a list of array elements.
    receipts: String,
}

impl Pulled {
    /// The messages in `{"messages":[{"receipt":"…","id":…,…,"attempt":1,…},…]}`.
    fn of(mut body: &[u8]) -> Self {
        let mut pulled = Self::default();
        while let Some(at) = RECEIPT.find(body) {
            body = &body[at + RECEIPT.needle().len()..];
            let Some(end) = ID.find(body) else { break };
            if pulled.messages > 0 {
                pulled.receipts.push(',');
            }
            let receipt = String::from_utf8_lossy(&body[..end]);
            // queue ~ shard ~ id ~ attempt ~ …
            let first = receipt.split('~').nth(3).is_none_or(|attempt| attempt == "1");
            pulled.again += u64::from(!first);
            pulled.receipts.push('"');
            pulled.receipts.push_str(&receipt);
            pulled.receipts.push('"');
            body = &body[end + ID.needle().len()..];
            pulled.ids.push(number(body).0);
            pulled.messages += 1;
        }
        pulled
    }
}

/// A connection with one request under way.
struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    async fn open(target: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(target).await.context("connecting to the pacemaker")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: Vec::with_capacity(64 * 1024) })
    }

    /// The body of the answer.
    async fn ask(&mut self, request: &[u8]) -> anyhow::Result<&[u8]> {
        self.stream.write_all(request).await?;
        self.received.clear();
        let answer = loop {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                bail!("the pacemaker closed a connection");
            }
            if let Some(answer) = answer(&self.received)? {
                break answer;
            }
        };
        let body = &self.received[answer.body..answer.length];
        if answer.status != 200 {
            bail!("status {}: {}", answer.status, String::from_utf8_lossy(body));
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_ids_and_repetitions_are_found() {
        let message = |id: u64, attempt: u32| {
            format!(
                r#"{{"receipt":"q~0~{id}~{attempt}~1795267361123~x7Gk","id":{id},"tenant":"f1","type":"t","name":"n","payload":{{"number":1}},"attempt":{attempt},"lease_until":"2026-11-21T13:22:41.123Z"}}"#
            )
        };
        let body =
            format!(r#"{{"messages":[{},{}],"next_due_in_ms":null}}"#, message(64, 1), message(128, 2));
        let pulled = Pulled::of(body.as_bytes());
        assert_eq!((pulled.messages, pulled.again), (2, 1));
        assert_eq!(pulled.ids, [64, 128]);
        assert_eq!(pulled.receipts, r#""q~0~64~1~1795267361123~x7Gk","q~0~128~2~1795267361123~x7Gk""#);
        assert_eq!(Pulled::of(br#"{"messages":[],"next_due_in_ms":1000}"#), Pulled::default());
    }
}
