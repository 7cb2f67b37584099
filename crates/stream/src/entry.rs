//! An event as the log and the live channel have it.

use std::borrow::Cow;

use serde::Deserialize;

use signalbox_bus::EventId;

/// The fields of an event that filters check.
#[derive(Debug, Deserialize)]
pub(super) struct Head<'a> {
    pub(super) id: EventId,
    /// The id of the shard's previous event, 0 if there is none.
    pub(super) last: EventId,
    #[serde(borrow)]
    pub(super) object: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) topic: Cow<'a, str>,
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) environment: Cow<'a, str>,
}

/// An event that is sent to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: EventId,
    pub(super) last: EventId,
    text: String,
}

impl Entry {
    /// Parses an entry; `None` if the text is not one, because other programs may publish on similar
    /// channels.
    pub(super) fn read(text: String) -> Option<Self> {
        let head: Head<'_> = serde_json::from_str(&text).ok()?;
        Some(Self { id: head.id, last: head.last, text })
    }

    /// The fields that filters check.
    pub(super) fn head(&self) -> Option<Head<'_>> {
        serde_json::from_str(&self.text).ok()
    }

    /// The event for a client, without `last`, which is meaningful only within the shard. With `is_divided`, for a stream of one
    /// environment, it does not name the previous events of its object, which can belong to another environment.
    pub(super) fn for_client(&self, is_divided: bool) -> String {
        // Numbers are first, and `last` is the last of them, so the first match is the right one, whatever
        // the event contains.
        let chain = format!(",\"last\":{}", self.last);
        match self.text.split_once(&chain) {
            Some((_, after)) if is_divided => format!("{{\"id\":{}{after}", self.id),
            Some((before, after)) => [before, after].concat(),
            None => self.text.clone(),
        }
    }

    /// The shard that assigned the id.
    pub(super) fn shard(&self) -> usize {
        // The low six bits.
        (self.id.0 & 63) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_sees_all_but_the_chain() {
        let text = r#"{"id":129,"prev":65,"last":65,"object":"a,\"last\":65","topic":"t","type":"update","environment":"e","url":"u","data":{"last":65}}"#;
        let entry = Entry::read(text.to_owned()).unwrap();
        assert_eq!((entry.id, entry.last, entry.shard()), (EventId(129), EventId(65), 1));
        assert_eq!(entry.for_client(false), text.replacen(",\"last\":65", "", 1));
        assert_eq!(entry.for_client(true), text.replacen(",\"prev\":65,\"last\":65", "", 1));
        assert_eq!(entry.head().unwrap().object, "a,\"last\":65");
    }

    #[test]
    fn messages_of_other_programs_are_not_events() {
        for text in ["", "hello", "{}", "[1]", r#"{"id":"x"}"#] {
            assert_eq!(Entry::read(text.to_owned()), None, "{text}");
        }
    }
}
