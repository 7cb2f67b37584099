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
    // Earlier releases stored it as `environment`.
    #[serde(borrow, alias = "environment")]
    pub(super) tenant: Cow<'a, str>,
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
    /// tenant, it does not name the previous events of its object, which can belong to another tenant.
    pub(super) fn for_client(&self, is_divided: bool) -> String {
        // Numbers are first, and `last` is the last of them, so the first match is the right one, whatever
        // the event contains.
        let chain = format!(",\"last\":{}", self.last);
        let text = as_now(&self.text);
        match text.split_once(&chain) {
            Some((_, after)) if is_divided => format!("{{\"id\":{}{after}", self.id),
            Some((before, after)) => [before, after].concat(),
            None => text.into_owned(),
        }
    }

    /// The shard that assigned the id.
    pub(super) fn shard(&self) -> usize {
        // The low six bits.
        (self.id.0 & 63) as usize
    }
}

/// The text with the present name of the tenant: earlier releases stored it as `environment`. The tenant is before the data, and
/// quotation marks in texts before it are escaped, so the first of the names is the right one. Usually only the beginning is searched.
fn as_now(text: &str) -> Cow<'_, str> {
    let (now, before) = (",\"tenant\":", ",\"environment\":");
    let head = text.find(now).map_or(text, |at| &text[..at]);
    match head.find(before) {
        Some(_) => text.replacen(before, now, 1).into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_sees_all_but_the_chain() {
        let text = r#"{"id":129,"prev":65,"last":65,"object":"a,\"last\":65","topic":"t","type":"update","tenant":"e","url":"u","data":{"last":65}}"#;
        let entry = Entry::read(text.to_owned()).unwrap();
        assert_eq!((entry.id, entry.last, entry.shard()), (EventId(129), EventId(65), 1));
        assert_eq!(entry.for_client(false), text.replacen(",\"last\":65", "", 1));
        assert_eq!(entry.for_client(true), text.replacen(",\"prev\":65,\"last\":65", "", 1));
        assert_eq!(entry.head().unwrap().object, "a,\"last\":65");
        // An event that an earlier release stored.
        let old = Entry::read(text.replace("tenant", "environment")).unwrap();
        assert_eq!((old.for_client(true), old.head().unwrap().tenant), (entry.for_client(true), "e".into()));
        let data = text.replace("\"u\",\"data\":{", "\"u\",\"data\":{\"environment\":1,");
        assert!(Entry::read(data).unwrap().for_client(false).contains("\"environment\":1"));
    }

    #[test]
    fn messages_of_other_programs_are_not_events() {
        for text in ["", "hello", "{}", "[1]", r#"{"id":"x"}"#] {
            assert_eq!(Entry::read(text.to_owned()), None, "{text}");
        }
    }
}
