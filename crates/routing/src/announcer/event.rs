//! Converts an entry of the list `changes` to an event.

use serde_json::{Map, Value, json};

use super::gaps::News;
use crate::store::Entry;

/// The prefix of these events' objects. Only Signalbox publishes events of such objects.
const OBJECT: &str = "signalbox:";

/// The topic of everything about certificates.
pub(super) const CERTIFICATES: &str = "certificates";
/// The topic of expiries alone.
pub(super) const EXPIRES: &str = "certificate.expires";
/// The topic of routers that refuse the table.
pub(super) const ROUTERS: &str = "routers";
/// Of a router that does not report.
pub(super) const SILENT: &str = "silent";

/// The kind of change of an event's subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The thing was added.
    Create,
    /// The thing changed.
    Update,
    /// The thing was removed.
    Delete,
}

/// An event about the route table, made of nothing but its entry: who makes it again makes the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteEvent {
    /// The kind of change.
    pub kind: EventKind,
    /// The object ID, `signalbox:<type>:<name>`.
    pub object: String,
    /// The API path of the subject.
    pub url: String,
    /// By the routes primary's clock, in unix milliseconds; `None` when the time is unknown.
    pub at_ms: Option<u64>,
    /// The payload, a JSON object.
    pub data: Value,
    /// The same at every attempt.
    pub key: String,
}

/// The kinds of entries as the scripts write them, which may be a metric's label: each with the topic and the kind of its
/// event.
const KINDS: [(&str, &str, EventKind); 15] = [
    ("registered", "instance.registered", EventKind::Create),
    ("altered", "instance.altered", EventKind::Update),
    ("draining", "instance.draining", EventKind::Update),
    ("resumed", "instance.resumed", EventKind::Update),
    ("unhealthy", "instance.unhealthy", EventKind::Update),
    ("removed", "instance.removed", EventKind::Delete),
    ("drained", "instance.drained", EventKind::Delete),
    ("lease_expired", "instance.lease_expired", EventKind::Delete),
    ("failing", "instance.unhealthy", EventKind::Update),
    ("recovered", "instance.healthy", EventKind::Update),
    ("host_removed", "host.removed", EventKind::Delete),
    ("host_altered", "host.altered", EventKind::Update),
    ("certificate_put", CERTIFICATES, EventKind::Update),
    ("certificate_removed", CERTIFICATES, EventKind::Delete),
    // A step of an order, which has events of its own.
    ("challenge_put", "", EventKind::Update),
];

impl News<'_> {
    fn known(&self) -> Option<(&'static str, &'static str, EventKind)> {
        let Self::Change(entry) = self else { return None };
        KINDS.into_iter().find(|(kind, ..)| *kind == entry.text("kind"))
    }

    /// A word of a fixed set.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Resync { .. } => "resynced",
            Self::Change(_) => self.known().map_or("unknown", |(kind, ..)| kind),
        }
    }

    /// Whether it may be about certificates.
    pub(super) fn concerns_certificates(&self) -> bool {
        matches!(self, Self::Resync { .. }) || self.known().is_some_and(|(_, topic, _)| topic == CERTIFICATES)
    }
}

/// The topic, without the prefix of own topics, and the event. Nothing for a kind that this version does not know.
pub(super) fn of(news: &News<'_>, epoch: &str) -> Option<(&'static str, RouteEvent)> {
    let entry = match news {
        News::Change(entry) => entry,
        News::Resync { from, to, reason } => {
            let event = RouteEvent {
                kind: EventKind::Update,
                object: format!("{OBJECT}table"),
                url: "/routes/dump".to_owned(),
                at_ms: None,
                data: json!({"from": from, "to": to, "reason": reason.as_str(), "epoch": epoch}),
                key: format!("{epoch}:{from}-{to}:resynced"),
            };
            return Some(("table.resynced", event));
        }
    };
    let Some((_, topic, kind)) = news.known() else {
        let (entry, kind) = (&entry.id, entry.text("kind"));
        tracing::error!(entry, kind, "change of an unknown kind not published");
        return None;
    };
    if topic.is_empty() {
        return None;
    }
    let subject = entry.text("subject");
    let (object, url, mut data) = if topic == CERTIFICATES {
        let what = if kind == EventKind::Delete { "removed" } else { "put" };
        (
            certificate_object(subject),
            certificate_url(subject),
            certificate(subject, what, entry.number("ends")),
        )
    } else if topic.starts_with("host.") {
        let data = Map::from_iter([("hostname".to_owned(), subject.into())]);
        (format!("{OBJECT}host:{subject}"), format!("/hosts/{subject}"), data)
    } else {
        (format!("{OBJECT}instance:{subject}"), format!("/instances/{subject}"), instance(entry))
    };
    data.insert("serial".to_owned(), entry.serial().into());
    data.insert("epoch".to_owned(), epoch.into());
    let event = RouteEvent {
        kind,
        object,
        url,
        at_ms: entry.text("at_ms").parse().ok(),
        data: Value::Object(data),
        key: format!("{epoch}:{}", entry.id),
    };
    Some((topic, event))
}

fn certificate_object(name: &str) -> String {
    format!("{OBJECT}certificate:{name}")
}

fn certificate_url(name: &str) -> String {
    format!("/certificates/{name}")
}

/// The data about a certificate; `ends` in unix seconds.
fn certificate(name: &str, what: &str, ends: Option<u64>) -> Map<String, Value> {
    let mut data =
        Map::from_iter([("server_name".to_owned(), name.into()), ("change".to_owned(), what.into())]);
    if let Some(ends) = ends.filter(|ends| *ends > 0) {
        data.insert("ends".to_owned(), ends.into());
    }
    data
}

/// A certificate that expires within `days` days, or has expired if that is 0. The same arguments give the same event.
pub(super) fn ending(name: &str, ends: u64, days: u32) -> RouteEvent {
    let mut data = certificate(name, if days == 0 { "expired" } else { "expiring" }, Some(ends));
    data.insert("days_left".to_owned(), days.into());
    RouteEvent {
        kind: EventKind::Update,
        object: certificate_object(name),
        url: certificate_url(name),
        at_ms: None,
        data: Value::Object(data),
        key: format!("certificate:{name}:{ends}:{days}"),
    }
}

/// The same expiry for the topic of expiries.
pub(super) fn expires(ending: &RouteEvent) -> RouteEvent {
    RouteEvent { key: format!("{}:expires", ending.key), ..ending.clone() }
}

/// A router that rejects the table (for this reason), accepts it again, is silent, or reports again. The event
/// contains nothing but what `number` identifies, so a repeat gives the same event.
pub(super) fn router(node: &str, change: &str, alarm: Option<&str>, number: u64) -> RouteEvent {
    let mut data = Map::from_iter([("router".to_owned(), node.into()), ("change".to_owned(), change.into())]);
    if let Some(alarm) = alarm {
        data.insert("alarm".to_owned(), alarm.into());
    }
    // Two that differ must not share a key: the bus would take neither of them for the other.
    let ill = alarm.unwrap_or(if change == SILENT { change } else { "" });
    RouteEvent {
        kind: EventKind::Update,
        object: format!("{OBJECT}router:{node}"),
        url: "/routes/convergence".to_owned(),
        at_ms: None,
        data: Value::Object(data),
        key: format!("router:{node}:{number}:{ill}"),
    }
}

/// The data about an instance; a field without a value is omitted.
fn instance(entry: &Entry) -> Map<String, Value> {
    let hostnames: Vec<&str> = entry.text("hostnames").split_whitespace().collect();
    let mut data = Map::from_iter([
        ("id".to_owned(), entry.text("subject").into()),
        ("address".to_owned(), entry.text("address").into()),
        ("hostnames".to_owned(), hostnames.into()),
    ]);
    for field in ["version_type_id", "node_id", "displaced_by", "fault", "health"] {
        let text = entry.text(field);
        if !text.is_empty() {
            data.insert(field.to_owned(), text.into());
        }
    }
    for field in ["weight", "faults"] {
        if let Ok(number) = entry.text(field).parse::<u64>() {
            data.insert(field.to_owned(), number.into());
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::announcer::gaps::ResyncReason;

    #[test]
    fn an_event_contains_its_change_place_and_time() {
        let fields = [
            ("kind", "removed"),
            ("subject", "web-1"),
            ("at_ms", "1795267331123"),
            ("address", "127.0.0.1:9001"),
            ("hostnames", "a.example b.example"),
            ("version_type_id", "17"),
            ("node_id", ""),
            ("weight", "3"),
            ("displaced_by", "web-2"),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let entry = Entry { id: "42-1".to_owned(), fields };
        let (topic, event) = of(&News::Change(&entry), "e1").unwrap();
        assert_eq!(topic, "instance.removed");
        assert_eq!(
            event,
            RouteEvent {
                kind: EventKind::Delete,
                object: "signalbox:instance:web-1".to_owned(),
                url: "/instances/web-1".to_owned(),
                at_ms: Some(1_795_267_331_123),
                data: json!({
                    "id": "web-1", "address": "127.0.0.1:9001", "hostnames": ["a.example", "b.example"],
                    "version_type_id": "17", "weight": 3, "displaced_by": "web-2", "serial": 42, "epoch": "e1",
                }),
                key: "e1:42-1".to_owned(),
            }
        );
        let (topic, event) = of(&News::Resync { from: 5, to: 9, reason: ResyncReason::Gap }, "e1").unwrap();
        assert_eq!((topic, &*event.object), ("table.resynced", "signalbox:table"));
        assert_eq!(event.data, json!({"from": 5, "to": 9, "reason": "gap", "epoch": "e1"}));
    }
}
