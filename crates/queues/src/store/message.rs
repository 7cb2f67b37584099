//! Single messages, wherever in a queue they are.

use signalbox_store::{Error, FabricRole, Script, Value, keys};

use super::{
    SHARED, Store, Taken,
    pull::{bytes, number},
};
use crate::numbers::SEGMENT_IDS;

static LIST: Script<FabricRole> =
    Script::composed("queues/list", &[include_str!("../scripts/list.lua"), SHARED]);
static MESSAGE: Script<FabricRole> =
    Script::composed("queues/message", &[include_str!("../scripts/message.lua"), SHARED]);

#[cfg(test)]
pub(super) const SCRIPTS: &[(&str, &Script<FabricRole>)] = &[("list", &LIST), ("message", &MESSAGE)];

/// The place of a message in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is not available yet.
    Delayed,
    /// It can be pulled.
    Waiting,
    /// It is leased to a consumer.
    InFlight,
    /// It is a dead letter.
    Dead,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Delayed => "delayed",
            Self::Waiting => "waiting",
            Self::InFlight => "inflight",
            Self::Dead => "dead",
        }
    }
}

/// A message in its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Where it is.
    pub place: Place,
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
pub(crate) enum Act {
    Show,
    /// Drops it, unless it is a dead letter.
    Drop,
    /// Ends its delay.
    Advance,
}

/// A search for one message in one place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchCall<'a> {
    pub queue: &'a str,
    pub id: u64,
    pub act: Act,
    pub place: Place,
    pub environment: Option<&'a str>,
    /// [`Search::Next`] of the previous call; 0 for the first one.
    pub from: u64,
    /// The maximum number of messages to read.
    pub most: usize,
}

/// The result of one part of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Search {
    Found(Stored),
    /// Not found yet; contains the position to continue from.
    Next(u64),
    /// The message is not in this place.
    Nowhere,
}

/// A request for messages that are delayed or in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListCall<'a> {
    pub queue: &'a str,
    pub place: Place,
    pub environment: Option<&'a str>,
    /// [`Listed::next`] of the previous call; two empty texts for the first one.
    pub after: (&'a str, &'a str),
    /// The maximum number of messages to return.
    pub most: usize,
    pub most_bytes: usize,
    /// The maximum number of messages to read, including those of other environments.
    pub read: usize,
}

/// Messages of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub messages: Vec<Stored>,
    /// The time and the text of the last entry that was read, if there are more.
    pub next: Option<(String, String)>,
}

impl Store {
    /// Searches for a message.
    pub(crate) async fn message(&self, call: SearchCall<'_>) -> Result<Search, Error> {
        let act = match call.act {
            Act::Show => "show",
            Act::Drop => "drop",
            Act::Advance => "advance",
        };
        let words: Vec<Value> = self
            .call(&MESSAGE, call.queue)
            .key(&keys::bus::bus(self.shard.tag()).log())
            .arg(self.clock.argument())
            .arg(call.id)
            .arg(act)
            .arg(call.place.name())
            .arg(call.environment.unwrap_or_default())
            .arg(call.from)
            .arg(call.most)
            .run(self.redis())
            .await?;
        let mut words = words.into_iter();
        let next = number::<u64>(words.next());
        let Some(environment) = words.next() else {
            return Ok(if next == 0 { Search::Nowhere } else { Search::Next(next) });
        };
        let attempt = number(words.next());
        let at_ms = Some(number(words.next())).filter(|at_ms| *at_ms > 0);
        let reason = Some(text(words.next())).filter(|reason| !reason.is_empty());
        let environment = text(Some(environment));
        let message = Taken { id: call.id, attempt, environment, backlog: 0, body: bytes(words.next()) };
        Ok(Search::Found(Stored { place: call.place, at_ms, reason, message }))
    }

    /// Lists messages that are delayed or in flight, in the order in which their delays and leases end.
    pub(crate) async fn list(&self, call: ListCall<'_>) -> Result<Listed, Error> {
        let words: Vec<Value> = self
            .call(&LIST, call.queue)
            .key(&keys::bus::bus(self.shard.tag()).log())
            .arg(call.place.name())
            .arg(call.environment.unwrap_or_default())
            .arg(call.after.0)
            .arg(call.after.1)
            .arg(call.most)
            .arg(call.most_bytes)
            .arg(call.read)
            .run(self.redis())
            .await?;
        let mut words = words.into_iter();
        let next = Some((text(words.next()), text(words.next()))).filter(|(at, _)| !at.is_empty());
        let mut messages = Vec::new();
        while let Some(id) = words.next() {
            let (id, attempt) = (number(Some(id)), number(words.next()));
            let environment = text(words.next());
            let at_ms = Some(number(words.next()));
            let message = Taken { id, attempt, environment, backlog: 0, body: bytes(words.next()) };
            messages.push(Stored { place: call.place, at_ms, reason: None, message });
        }
        Ok(Listed { messages, next })
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
