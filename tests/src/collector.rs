//! A collector of traces. It decodes what an OpenTelemetry exporter sends.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value},
    trace::v1::status::StatusCode,
};
use prost::Message as _;

use crate::receiver::{Answer, Delivery, Receiver};
use signalbox_testkit::eventually;

/// A span as it was sent.
#[derive(Debug, Clone)]
pub struct Span {
    /// `service.name` of who sent it.
    pub service: String,
    /// Its name.
    pub name: String,
    /// `Server`, `Client` or `Internal`.
    pub kind: &'static str,
    /// The trace, in hexadecimal.
    pub trace: String,
    /// Its own id, in hexadecimal.
    pub id: String,
    /// The id of its parent; empty without one.
    pub parent: String,
    /// `trace-span` of each link.
    pub links: Vec<String>,
    /// Its attributes, as text.
    pub attributes: BTreeMap<String, String>,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

impl Span {
    /// An attribute; empty without one.
    pub fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }

    /// The header that makes another span its child.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.id)
    }
}

/// A running collector.
pub struct Collector(Receiver);

impl Collector {
    /// Starts one that accepts everything.
    pub async fn start() -> Self {
        Self(Receiver::start().await)
    }

    /// The endpoint to configure.
    pub fn url(&self) -> String {
        format!("http://{}", self.0.address)
    }

    /// Answers differently from now on.
    pub fn answer(&self, answer: impl Fn() -> Answer + Send + Sync + 'static) {
        self.0.decide(move |_| answer());
    }

    /// How many batches came, whatever they were answered.
    pub fn batches(&self) -> usize {
        self.0.deliveries().len()
    }

    /// Everything that came, as it came.
    pub fn raw(&self) -> Vec<u8> {
        self.0.deliveries().into_iter().flat_map(|delivery| delivery.body).collect()
    }

    /// The spans that came so far.
    pub fn spans(&self) -> Vec<Span> {
        self.0.deliveries().iter().flat_map(read).collect()
    }

    /// Waits for a span.
    pub async fn until(&self, what: &str, is_it: impl Fn(&Span) -> bool) -> Span {
        eventually(what, || async {
            let mut spans = self.spans();
            match spans.iter().position(&is_it) {
                Some(at) => Ok(spans.swap_remove(at)),
                None => {
                    Err(spans.iter().map(|span| (span.name.clone(), span.trace.clone())).collect::<Vec<_>>())
                }
            }
        })
        .await
    }
}

fn read(delivery: &Delivery) -> Vec<Span> {
    assert_eq!(delivery.line, "POST /v1/traces HTTP/1.1");
    assert_eq!(delivery.header("Content-Type"), Some("application/x-protobuf"));
    let request = ExportTraceServiceRequest::decode(&delivery.body[..]).expect("a request of OTLP");
    let mut spans = Vec::new();
    for resource in request.resource_spans {
        let about = attributes(resource.resource.map(|resource| resource.attributes).unwrap_or_default());
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let failed = span.status.filter(|status| status.code == StatusCode::Error as i32);
            spans.push(Span {
                service: about.get("service.name").cloned().unwrap_or_default(),
                name: span.name,
                kind: match span.kind {
                    1 => "Internal",
                    2 => "Server",
                    3 => "Client",
                    _ => "other",
                },
                trace: hexadecimal(&span.trace_id),
                id: hexadecimal(&span.span_id),
                parent: hexadecimal(&span.parent_span_id),
                links: span
                    .links
                    .iter()
                    .map(|link| format!("{}-{}", hexadecimal(&link.trace_id), hexadecimal(&link.span_id)))
                    .collect(),
                attributes: attributes(span.attributes),
                failed: failed.map(|status| status.message),
            });
        }
    }
    spans
}

fn attributes(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    attributes.into_iter().map(|one| (one.key, text(one.value))).collect()
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(is)) => is.to_string(),
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
