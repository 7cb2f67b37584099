//! The cause of an operation: a span that may have ended long ago, in another process.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

static ON: AtomicBool = AtomicBool::new(false);

/// Whether this process sends traces.
pub(super) fn are_on() -> bool {
    ON.load(Ordering::Relaxed)
}

#[cfg(feature = "serve")]
pub(super) fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}

/// A recorded span in the format of W3C Trace Context: `00-<trace>-<span>-01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cause {
    trace: TraceId,
    span: SpanId,
}

/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;
/// The text before a `traceparent` at the end of a stored event.
const MEMBER: &[u8] = b",\"traceparent\":\"";

impl Cause {
    /// The current span, if it is recorded. Costs one atomic load if traces are off.
    pub fn current() -> Option<Self> {
        if !are_on() {
            return None;
        }
        Self::of(&Span::current())
    }

    /// The cause that `span` is, if it is recorded.
    pub fn of(span: &Span) -> Option<Self> {
        if span.is_none() {
            return None;
        }
        let context = span.context();
        let context = context.span().span_context().clone();
        (context.is_valid() && context.is_sampled())
            .then(|| Self { trace: context.trace_id(), span: context.span_id() })
    }

    /// Parses a `traceparent` of version 00 whose flags mark the span as recorded.
    pub fn parse(text: &str) -> Option<Self> {
        let fields = text.strip_prefix("00-")?.strip_suffix("-01")?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != LENGTH || !fields.bytes().all(|byte| is_hex(byte) || byte == b'-') {
            return None;
        }
        let (trace, span) = fields.split_once('-').filter(|(trace, _)| trace.len() == 32)?;
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        (trace != TraceId::INVALID && span != SpanId::INVALID).then_some(Self { trace, span })
    }

    /// Appends it to a JSON object that has other members.
    pub fn append(&self, object: &mut Vec<u8>) {
        if object.last() == Some(&b'}') {
            object.pop();
            object.extend_from_slice(MEMBER);
            object.extend_from_slice(self.to_string().as_bytes());
            object.extend_from_slice(b"\"}");
        }
    }

    /// Reads the cause that [`Self::append`] wrote, without parsing the rest of the object. Other content cannot be
    /// mistaken for it: in a string its quotation marks are escaped, and a nested object is followed by another brace.
    pub fn at_end_of(object: &[u8]) -> Option<Self> {
        let rest = object.strip_suffix(b"\"}")?;
        let (before, text) = rest.split_at_checked(rest.len().checked_sub(LENGTH)?)?;
        before.ends_with(MEMBER).then(|| std::str::from_utf8(text).ok()).flatten().and_then(Self::parse)
    }

    pub(super) fn context(&self) -> SpanContext {
        SpanContext::new(self.trace, self.span, TraceFlags::SAMPLED, true, TraceState::NONE)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-01", self.trace, self.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_cause_survives_a_round_trip() {
        assert_eq!(Cause::parse(TEXT).unwrap().to_string(), TEXT);
    }

    #[test]
    fn an_unrecorded_or_invalid_traceparent_is_rejected() {
        for bad in [
            "".to_owned(),
            TEXT.replace("-01", "-00"),
            TEXT.replacen("00-", "01-", 1),
            TEXT.to_uppercase(),
            format!("{TEXT}-x"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01".to_owned(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01".to_owned(),
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01".to_owned(),
        ] {
            assert_eq!(Cause::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_cause_is_found_only_at_the_end_of_an_object() {
        let cause = Cause::parse(TEXT).unwrap();
        let mut object = br#"{"id":1,"data":"x"}"#.to_vec();
        assert_eq!(Cause::at_end_of(&object), None);
        cause.append(&mut object);
        assert_eq!(Cause::at_end_of(&object), Some(cause));
        for forged in [
            format!(r#"{{"id":1,"data":{{"a":1,"traceparent":"{TEXT}"}}}}"#),
            format!(r#"{{"id":1,"data":"a,\"traceparent\":\"{TEXT}"}}"#),
            format!(r#"{{"id":1,"traceparent":"{TEXT}","data":1}}"#),
        ] {
            assert_eq!(Cause::at_end_of(forged.as_bytes()), None, "{forged}");
        }
    }
}
