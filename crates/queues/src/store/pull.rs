//! Handing messages out.

use signalbox_store::{Error, FromRedisValue, Value, keys};

use super::Store;

scripts! { PULL: "pull" }

/// A call of the pull script.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PullCall<'a> {
    pub queue: &'a str,
    /// The consumers, in the order in which messages are distributed to them.
    pub consumers: &'a [Consumer],
    pub most_bytes: usize,
    pub auto_ack: bool,
    /// The revision of the queue's definition that this process knows.
    pub revision: u64,
    /// If set, only messages of this tenant are delivered.
    pub tenant: Option<&'a str>,
    /// How long the caller waits for a message of that tenant, in milliseconds.
    pub wait_ms: u64,
    /// The duration of the leases; that of the queue if absent.
    pub lease_ms: Option<u64>,
}

/// A consumer in a shared call.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    /// The maximum number of messages for it.
    pub most: usize,
    /// Random characters for its receipts.
    pub nonce: String,
}

/// A delivered or listed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its id.
    pub id: u64,
    /// The number of deliveries, including this one.
    pub attempt: u32,
    /// Its tenant.
    pub tenant: String,
    /// The number of waiting messages in the tenant, including this one.
    pub backlog: u64,
    /// The log entry.
    pub body: Vec<u8>,
}

/// The messages that a pull leased.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pulled {
    /// The shard's time, unix milliseconds.
    pub now_ms: u64,
    /// The end of the leases, in unix milliseconds.
    pub until_ms: u64,
    /// Whether more messages could be pulled now.
    pub more: bool,
    /// The next time at which a message may become available, if nothing was delivered and the time is known.
    pub next_due_ms: Option<u64>,
    /// The number of messages whose bodies are no longer in the log.
    pub lost: u64,
    /// The number of messages that were dropped because they had waited for too long.
    pub expired: u64,
    /// Whether the next call may deliver messages although this one delivered none.
    pub again: bool,
    /// The messages.
    pub messages: Vec<Taken>,
}

/// The reply to a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PullReply {
    /// The queue does not exist in this shard.
    Gone,
    /// The definition in this shard is older than the one that the caller knows.
    Behind,
    Pulled(Pulled),
}

impl Store {
    /// Pulls messages.
    pub(crate) async fn pull(&self, call: PullCall<'_>) -> Result<PullReply, Error> {
        let log = keys::bus::bus(self.shard.tag()).log();
        let mut script = self
            .call(&PULL, call.queue)
            .key(&log)
            .arg(self.clock.argument())
            .arg(call.most_bytes)
            .arg(usize::from(call.auto_ack))
            .arg(call.revision)
            .arg(call.tenant.unwrap_or_default())
            .arg(call.wait_ms)
            .arg(call.lease_ms.unwrap_or_default());
        for consumer in call.consumers {
            script = script.arg(consumer.most).arg(&consumer.nonce);
        }
        let reply: Value = script.run(self.redis()).await?;
        Ok(match reply {
            Value::Array(words) => PullReply::Pulled(read(words)),
            other => match String::from_redis_value(other).as_deref() {
                Ok("behind") => PullReply::Behind,
                _ => PullReply::Gone,
            },
        })
    }
}

pub(super) fn bytes(word: Option<Value>) -> Vec<u8> {
    match word {
        Some(Value::BulkString(bytes)) => bytes,
        _ => Vec::new(),
    }
}

pub(super) fn number<N: std::str::FromStr + Default>(word: Option<Value>) -> N {
    str::from_utf8(&bytes(word)).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn read(words: Vec<Value>) -> Pulled {
    let mut words = words.into_iter();
    let (now_ms, until_ms) = (number(words.next()), number(words.next()));
    let more = number::<u8>(words.next()) == 1;
    let next_due_ms = Some(number(words.next())).filter(|due| *due > 0);
    let (lost, expired) = (number(words.next()), number(words.next()));
    let messages = messages(words);
    let again = messages.is_empty() && more && expired > 0;
    Pulled { now_ms, until_ms, more, next_due_ms, lost, expired, again, messages }
}

/// Parses messages, five values for each.
pub(super) fn messages(mut words: impl Iterator<Item = Value>) -> Vec<Taken> {
    let mut messages = Vec::new();
    while let Some(id) = words.next() {
        messages.push(Taken {
            id: number(Some(id)),
            attempt: number(words.next()),
            tenant: String::from_utf8_lossy(&bytes(words.next())).into_owned(),
            backlog: number(words.next()),
            body: bytes(words.next()),
        });
    }
    messages
}
