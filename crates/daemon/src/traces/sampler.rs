//! Decides which traces are recorded.

use opentelemetry::{
    Context, KeyValue,
    trace::{Link, SpanId, SpanKind, TraceContextExt as _, TraceId},
};
use opentelemetry_sdk::trace::{Sampler, SamplingResult, ShouldSample};

/// The parent span ID that the edge writes into a trace which it starts itself. It does not express a sampling decision:
/// nginx does not record spans or sample. Treating it as one would record every trace.
const EDGE: SpanId = SpanId::from_bytes(1_u64.to_be_bytes());

/// Follows the client's decision if there is one. Otherwise it records a share of all traces, chosen by trace ID, so that
/// every daemon chooses the same ones.
#[derive(Debug, Clone)]
pub(super) struct ParentOrRatio {
    parent: Sampler,
    ratio: Sampler,
}

impl ParentOrRatio {
    pub(super) fn new(ratio: f64) -> Self {
        let ratio = Sampler::TraceIdRatioBased(ratio);
        Self { parent: Sampler::ParentBased(Box::new(ratio.clone())), ratio }
    }
}

impl ShouldSample for ParentOrRatio {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let began_at_edge = parent.is_some_and(|parent| parent.span().span_context().span_id() == EDGE);
        let chosen = if began_at_edge { &self.ratio } else { &self.parent };
        chosen.should_sample(parent, trace, name, kind, attributes, links)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, TraceFlags, TraceState};
    use opentelemetry_sdk::trace::SamplingDecision;

    use super::*;

    fn is_recorded(ratio: f64, parent: Option<(SpanId, TraceFlags)>, trace: u128) -> bool {
        let trace = TraceId::from(trace);
        let parent = parent.map(|(span, flags)| {
            let context = SpanContext::new(trace, span, flags, true, TraceState::NONE);
            Context::new().with_remote_span_context(context)
        });
        let result =
            ParentOrRatio::new(ratio).should_sample(parent.as_ref(), trace, "a", &SpanKind::Server, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }

    #[test]
    fn the_client_decides_and_otherwise_the_ratio() {
        let other = SpanId::from_bytes(7_u64.to_be_bytes());
        for ratio in [0.0, 1.0] {
            assert!(is_recorded(ratio, Some((other, TraceFlags::SAMPLED)), 1));
            assert!(!is_recorded(ratio, Some((other, TraceFlags::NOT_SAMPLED)), 1));
            assert_eq!(is_recorded(ratio, None, 1), ratio > 0.5);
            assert_eq!(is_recorded(ratio, Some((EDGE, TraceFlags::SAMPLED)), 1), ratio > 0.5);
        }
    }

    #[test]
    fn a_trace_that_the_edge_started_is_sampled_by_its_id() {
        // The edge creates IDs of sixteen random bytes.
        let trace = |n: u64| {
            u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64
                | u128::from(n.wrapping_mul(0xd6e8_feb8_6659_fd93))
        };
        let recorded =
            (1..=1000).filter(|n| is_recorded(0.25, Some((EDGE, TraceFlags::SAMPLED)), trace(*n))).count();
        assert!((150..350).contains(&recorded), "{recorded} of 1000");
    }
}
