//! The body of a delivery, byte for byte as receivers written for Routemaster read it, with additional members after
//! the original ones. Pure.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use super::{BatchContents, Event};
use crate::{EventId, Kind};

/// An event as receivers get it. `gap` is not here: it belongs to one subscriber, this part is shared by all.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize)]
pub struct Delivered<'a> {
    topic: &'a str,
    #[serde(rename = "type")]
    kind: Kind,
    url: &'a str,
    t: u64,
    /// As the bytes that the publisher sent: digits, spaces and the order of members are theirs.
    data: Option<&'a RawValue>,
    id: EventId,
    prev: Option<EventId>,
    tprev: Option<EventId>,
    /// The ordering key: `prev` and the order refer to its events.
    pub object: Option<&'a str>,
}

impl<'a> From<&'a Event> for Delivered<'a> {
    /// The object is named if it is not the URL.
    fn from(event: &'a Event) -> Self {
        Self {
            topic: &event.topic,
            kind: event.kind,
            url: &event.url,
            t: event.timestamp_ms,
            data: event.data.as_deref(),
            id: event.id,
            prev: event.prev,
            tprev: event.tprev,
            object: Some(&*event.object).filter(|object| *object != event.url),
        }
    }
}

fn item(event: &Event) -> Vec<u8> {
    // Strings, numbers and JSON that was checked when it came in: there is nothing that could fail.
    serde_json::to_vec(&Delivered::from(event)).unwrap_or_default()
}

/// The event as JSON, as deliveries contain it. It is rendered once.
fn rendered(event: &Event) -> &[u8] {
    event.rendered.get_or_init(|| item(event).into_boxed_slice())
}

/// The event as JSON, as deliveries to a subscriber contain it. `is_confined` if the subscriber gets only the events of some
/// tenants: the previous event of the object can belong to another one, and the subscriber would wait for it without end, so it
/// is not named.
pub fn rendered_for(event: &Event, is_confined: bool) -> Cow<'_, [u8]> {
    if !is_confined {
        return Cow::Borrowed(rendered(event));
    }
    let delivered = Delivered { prev: None, tprev: None, ..Delivered::from(event) };
    // As above.
    Cow::Owned(serde_json::to_vec(&delivered).unwrap_or_default())
}

/// The mark of an event that was redriven, replayed or sent again.
const REDRIVEN: &[u8] = b",\"redriven\":true";

/// The whole array. `is_confined` if the subscriber gets only the events of some tenants.
pub(super) fn batch(batch: &BatchContents, is_confined: bool) -> Vec<u8> {
    let items: Vec<Cow<'_, [u8]>> =
        batch.events.iter().map(|event| rendered_for(event, is_confined)).collect();
    let gap =
        if batch.gaps.is_empty() { Vec::new() } else { serde_json::to_vec(&batch.gaps).unwrap_or_default() };
    let marks = batch.redriven.iter().filter(|redriven| **redriven).count() * REDRIVEN.len();
    let size = items.iter().map(|item| item.len() + 1).sum::<usize>() + gap.len() + marks + 16;
    let mut body = Vec::with_capacity(size);
    body.push(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        // What belongs to this subscriber follows the shared members.
        body.extend_from_slice(item.strip_suffix(b"}").unwrap_or(&item));
        if batch.redriven.get(index) == Some(&true) {
            body.extend_from_slice(REDRIVEN);
        }
        if index == 0 && !gap.is_empty() {
            body.extend_from_slice(b",\"gap\":");
            body.extend_from_slice(&gap);
        }
        body.push(b'}');
    }
    body.push(b']');
    body
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use proptest::prelude::*;

    use super::*;
    use crate::Gap;

    pub(crate) fn event(id: u64, data: Option<&str>) -> Event {
        Event {
            id: EventId(id),
            prev: (id > 1).then(|| EventId(id - 1)),
            tprev: None,
            object: "https://shop.example/1".to_owned(),
            topic: "orders".to_owned(),
            kind: Kind::Update,
            tenant: "shop".to_owned(),
            url: "https://shop.example/1".to_owned(),
            timestamp_ms: 1_700_000_000_000,
            data: data.map(|data| RawValue::from_string(data.to_owned()).unwrap()),
            cause: None,
            rendered: OnceLock::new(),
        }
    }

    fn contents(events: Vec<Event>, gaps: Vec<Gap>) -> BatchContents {
        let events = events.into_iter().map(Arc::new).collect();
        BatchContents { id: "b".to_owned(), created_ms: 0, attempts: 0, events, redriven: Vec::new(), gaps }
    }

    /// The event before could be one that it never gets.
    #[test]
    fn a_subscriber_of_some_tenants_is_not_referred_to_other_events() {
        let one = event(2, None);
        rendered(&one);
        let body = batch(&contents(vec![one], vec![]), true);
        assert_eq!(
            String::from_utf8(body).unwrap(),
            r#"[{"topic":"orders","type":"update","url":"https://shop.example/1","t":1700000000000,"id":2}]"#
        );
    }

    #[test]
    fn the_body_follows_the_format() {
        let gap = Gap { first: EventId(3), last: EventId(9), count: 4, reason: "dead".to_owned() };
        let body = batch(
            &contents(vec![event(1, Some("{\"a\": 1.0e0 ,\"a\":[]}")), event(2, None)], vec![gap]),
            false,
        );
        assert_eq!(
            String::from_utf8(body).unwrap(),
            concat!(
                r#"[{"topic":"orders","type":"update","url":"https://shop.example/1","t":1700000000000,"#,
                r#""data":{"a": 1.0e0 ,"a":[]},"id":1,"#,
                r#""gap":[{"first":3,"last":9,"count":4,"reason":"dead"}]},"#,
                r#"{"topic":"orders","type":"update","url":"https://shop.example/1","t":1700000000000,"#,
                r#""id":2,"prev":1}]"#
            )
        );
    }

    #[test]
    fn an_object_of_another_name_than_the_url_is_named() {
        let named = Event { object: "order:\"7\"".to_owned(), ..event(2, None) };
        assert_eq!(
            String::from_utf8(batch(&contents(vec![named, event(3, None)], vec![]), false)).unwrap(),
            concat!(
                r#"[{"topic":"orders","type":"update","url":"https://shop.example/1","t":1700000000000,"#,
                r#""id":2,"prev":1,"object":"order:\"7\""},"#,
                r#"{"topic":"orders","type":"update","url":"https://shop.example/1","t":1700000000000,"#,
                r#""id":3,"prev":2}]"#
            )
        );
    }

    #[test]
    fn an_event_that_was_redriven_is_marked_for_its_own_subscriber() {
        let gap = Gap { first: EventId(3), last: EventId(9), count: 4, reason: "dead".to_owned() };
        let mut one = contents(vec![event(1, None), event(2, None)], vec![gap]);
        let plain = String::from_utf8(batch(&one, false)).unwrap();
        one.redriven = vec![true, false];
        let marked = String::from_utf8(batch(&one, false)).unwrap();
        assert_eq!(marked, plain.replace(r#""id":1,"gap""#, r#""id":1,"redriven":true,"gap""#));
        assert_ne!(marked, plain);
    }

    #[test]
    fn a_gap_is_reported_only_to_its_own_subscriber() {
        let gap = Gap { first: EventId(3), last: EventId(9), count: 4, reason: "dead".to_owned() };
        let shared = Arc::new(event(1, None));
        let mut one = contents(vec![], vec![gap]);
        one.events.push(Arc::clone(&shared));
        let mut other = contents(vec![], vec![]);
        other.events.push(shared);
        assert!(String::from_utf8(batch(&one, false)).unwrap().contains("gap"));
        assert!(!String::from_utf8(batch(&other, false)).unwrap().contains("gap"));
    }

    proptest! {
        #[test]
        fn published_data_arrives_as_json_with_the_same_bytes(
            url in ".*", topic in ".*", numbers in proptest::collection::vec(any::<f64>(), 0..4), count in 1_u64..5,
        ) {
            let data = serde_json::to_string(&numbers).unwrap();
            let events = (1..=count).map(|id| Event { url: url.clone(), topic: topic.clone(), ..event(id, Some(&data)) });
            let body = batch(&contents(events.collect(), vec![]), false);
            let kept = format!("\"data\":{data},");
            prop_assert!(String::from_utf8(body.clone()).unwrap().contains(&kept));
            let read: Vec<serde_json::Value> = serde_json::from_slice(&body).unwrap();
            prop_assert_eq!(read.len() as u64, count);
            prop_assert_eq!(read[0]["url"].as_str(), Some(url.as_str()));
            prop_assert_eq!(read[0]["topic"].as_str(), Some(topic.as_str()));
        }
    }
}
