//! Single messages, wherever in a queue they are.

use signalbox_api::queues::MessageState;
use signalbox_store::{Error, Value, keys};

use super::{
    Store, Taken,
    pull::{bytes, number},
};
use crate::numbers::SEGMENT_IDS;

scripts! { LIST: "list", MESSAGE: "message" }

/// Maximum number of messages that one call reads.
const PART: usize = 2_000;

/// The place of a message in the scripts' words.
fn word(place: MessageState) -> &'static str {
    match place {
        MessageState::Delayed => "delayed",
        MessageState::Waiting => "waiting",
        MessageState::InFlight => "inflight",
        MessageState::Dead => "dead",
    }
}

/// A message in its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Where it is.
    pub place: MessageState,
    /// When its delay or its lease ends, or when it became a dead letter, in unix milliseconds. Absent if it
    /// waits.
    pub at_ms: Option<u64>,
    /// How the last delivery of a dead letter ended.
    pub reason: Option<String>,
    /// The message.
    pub message: Taken,
}

/// What to do with a message that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Show,
    /// Drop it, unless it is a dead letter. A consumer that holds it cannot acknowledge it any more.
    Drop,
    /// End its delay.
    Advance,
}

impl Store {
    /// Searches for a message in one place.
    pub(crate) async fn message(
        &self,
        queue: &str,
        id: u64,
        act: Act,
        place: MessageState,
        tenant: Option<&str>,
    ) -> Result<Option<Stored>, Error> {
        let act = match act {
            Act::Show => "show",
            Act::Drop => "drop",
            Act::Advance => "advance",
        };
        let mut from = 0_u64;
        loop {
            let words: Vec<Value> = self
                .call(&MESSAGE, queue)
                .key(&keys::bus::bus(self.shard.tag()).log())
                .arg(self.clock.argument())
                .arg(id)
                .arg(act)
                .arg(word(place))
                .arg(tenant.unwrap_or_default())
                .arg(from)
                .arg(PART)
                .run(self.redis())
                .await?;
            let mut words = words.into_iter();
            from = number(words.next());
            if let Some(tenant) = words.next() {
                let (tenant, attempt) = (text(Some(tenant)), number(words.next()));
                let at_ms = Some(number(words.next())).filter(|at_ms| *at_ms > 0);
                let reason = Some(text(words.next())).filter(|reason| !reason.is_empty());
                let message = Taken { id, attempt, tenant, backlog: 0, body: bytes(words.next()) };
                return Ok(Some(Stored { place, at_ms, reason, message }));
            }
            if from == 0 {
                return Ok(None);
            }
        }
    }

    /// Lists messages that are delayed or in flight, in the order in which their delays and leases end. Returns
    /// the position after the last entry that was read, its time and text, if there are more; the first call
    /// begins `after` two empty texts.
    pub(crate) async fn list(
        &self,
        queue: &str,
        place: MessageState,
        tenant: Option<&str>,
        after: (&str, &str),
        most: usize,
        most_bytes: usize,
    ) -> Result<(Vec<Stored>, Option<(String, String)>), Error> {
        let words: Vec<Value> = self
            .call(&LIST, queue)
            .key(&keys::bus::bus(self.shard.tag()).log())
            .arg(word(place))
            .arg(tenant.unwrap_or_default())
            .arg(after.0)
            .arg(after.1)
            .arg(most)
            .arg(most_bytes)
            .arg(PART)
            .run(self.redis())
            .await?;
        let mut words = words.into_iter();
        let next = Some((text(words.next()), text(words.next()))).filter(|(at, _)| !at.is_empty());
        let mut messages = Vec::new();
        while let Some(id) = words.next() {
            let (id, attempt) = (number(Some(id)), number(words.next()));
            let tenant = text(words.next());
            let at_ms = Some(number(words.next()));
            let message = Taken { id, attempt, tenant, backlog: 0, body: bytes(words.next()) };
            messages.push(Stored { place, at_ms, reason: None, message });
        }
        Ok((messages, next))
    }

    /// The log entry of an accepted message, if the log still contains it.
    pub(crate) async fn log_entry(&self, id: u64) -> Result<Option<Vec<u8>>, Error> {
        let key = keys::bus::bus(self.shard.tag()).log_segment(id / SEGMENT_IDS);
        self.redis().command("HGET").key(&key).arg(id).query().await
    }
}

fn text(word: Option<Value>) -> String {
    String::from_utf8_lossy(&bytes(word)).into_owned()
}
