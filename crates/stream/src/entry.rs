//! An event as the log and the live channel have it.

use std::borrow::Cow;

use serde::Deserialize;

use signalbox_bus::EventId;

/// What a filter looks at, and what the next event names.
#[derive(Debug, Deserialize)]
pub(super) struct Head<'a> {
    pub(super) id: EventId,
    /// The shard's event before this one, 0 for none.
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

/// An event on its way to those who watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: EventId,
    pub(super) last: EventId,
    text: String,
}

impl Entry {
    /// Reads one; nothing when it is none of ours: other programs may publish on channels that look alike.
    pub(super) fn read(text: String) -> Option<Self> {
        let head: Head<'_> = serde_json::from_str(&text).ok()?;
        Some(Self { id: head.id, last: head.last, text })
    }

    /// What a filter looks at.
    pub(super) fn head(&self) -> Option<Head<'_>> {
        serde_json::from_str(&self.text).ok()
    }

    /// The event for a client: all but the chain of the shard, which means nothing to it.
    pub(super) fn for_client(&self) -> String {
        // Numbers come first, and of them `last` is the last: the first match is ours, whatever the event says.
        let chain = format!(",\"last\":{}", self.last);
        match self.text.split_once(&chain) {
            Some((before, after)) => [before, after].concat(),
            None => self.text.clone(),
        }
    }

    /// Which shard numbered it.
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
        assert_eq!(entry.for_client(), text.replacen(",\"last\":65", "", 1));
        assert_eq!(entry.head().unwrap().object, "a,\"last\":65");
    }

    #[test]
    fn what_others_publish_is_no_event() {
        for text in ["", "hello", "{}", "[1]", r#"{"id":"x"}"#] {
            assert_eq!(Entry::read(text.to_owned()), None, "{text}");
        }
    }
}
