//! Sends finished spans to the collector in batches.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Endpoint, Error, cause, collector::Collector};

/// The time limit for sending one batch of spans.
pub(super) const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of spans that wait for the collector, about a kilobyte each. Further spans are lost.
const MAX_WAITING: usize = 4096;
/// The maximum number of spans in one batch.
const MAX_BATCH: usize = 512;
/// How long a span waits for others to share its batch.
const BATCH_DELAY: Duration = Duration::from_millis(500);

/// Counters of exported spans. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Counts(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    lost: AtomicU64,
}

impl Counts {
    /// Spans that the collector accepted.
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Spans that are lost: the collector did not accept them, or the queue was full.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    fn add(&self, accepted: bool, spans: usize) {
        let count = if accepted { &self.0.sent } else { &self.0.lost };
        count.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

/// Puts finished spans into the queue.
#[derive(Debug)]
pub(super) struct Processor {
    queue: mpsc::Sender<SpanData>,
    counts: Counts,
}

impl SpanProcessor for Processor {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.queue.try_send(span).is_err() {
            self.counts.add(false, 1);
        }
    }

    // The exporter is a task that the daemon ends. This method is synchronous and cannot wait for it.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Sends spans until shutdown. Nothing is sent before [`Exporter::run`].
#[derive(Debug)]
pub struct Exporter {
    queue: mpsc::Receiver<SpanData>,
    collector: SpanExporter,
    endpoint: String,
    counts: Counts,
    /// Dropping it shuts tracing down, so it is kept until the last span was sent.
    provider: Option<SdkTracerProvider>,
    /// Whether the last batch was accepted. Only changes are logged.
    is_accepted: bool,
}

pub(super) fn channel(endpoint: &Endpoint, resource: &Resource) -> Result<(Processor, Exporter), Error> {
    let mut collector = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint.to_string())
        .with_timeout(EXPORT_TIMEOUT)
        // The next batch would wait behind a retry, and new spans would be lost in the meantime.
        .with_retry_policy(RetryPolicy::disabled())
        .with_http_client(Collector::new())
        .build()
        .map_err(|error| Error(Box::new(error)))?;
    collector.set_resource(resource);
    let (sender, queue) = mpsc::channel(MAX_WAITING);
    let counts = Counts::default();
    let exporter = Exporter {
        queue,
        collector,
        endpoint: endpoint.to_string(),
        counts: counts.clone(),
        provider: None,
        is_accepted: true,
    };
    Ok((Processor { queue: sender, counts }, exporter))
}

impl Exporter {
    pub(super) fn holding(mut self, provider: SdkTracerProvider) -> Self {
        self.provider = Some(provider);
        cause::turn_on();
        self
    }

    /// The counters of exported spans.
    pub fn counts(&self) -> Counts {
        self.counts.clone()
    }

    /// Sends batches until `shutdown`, then the spans that are already queued.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        while shutdown.run_until_cancelled(self.queue.recv_many(&mut batch, MAX_BATCH)).await.is_some() {
            if batch.len() < MAX_BATCH {
                // Most requests have a few spans, which end shortly after each other.
                let _ = shutdown.run_until_cancelled(tokio::time::sleep(BATCH_DELAY)).await;
                self.fill(&mut batch);
            }
            self.send(&mut batch).await;
        }
        loop {
            self.fill(&mut batch);
            // A collector that does not answer now would only delay the end of the daemon.
            if batch.is_empty() || !self.send(&mut batch).await {
                return;
            }
        }
    }

    fn fill(&mut self, batch: &mut Vec<SpanData>) {
        while batch.len() < MAX_BATCH
            && let Ok(span) = self.queue.try_recv()
        {
            batch.push(span);
        }
    }

    async fn send(&mut self, batch: &mut Vec<SpanData>) -> bool {
        let spans = batch.len();
        let sent = self.collector.export(std::mem::replace(batch, Vec::with_capacity(MAX_BATCH))).await;
        self.counts.add(sent.is_ok(), spans);
        match &sent {
            Err(error) if self.is_accepted => {
                tracing::warn!(
                    endpoint = self.endpoint,
                    %error,
                    "collector does not accept spans; spans are lost until it does"
                );
            }
            Ok(()) if !self.is_accepted => {
                tracing::info!(
                    endpoint = self.endpoint,
                    lost = self.counts.lost(),
                    "collector accepts spans again"
                );
            }
            _ => {}
        }
        self.is_accepted = sent.is_ok();
        self.is_accepted
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Tracer as _, TracerProvider as _};
    use opentelemetry_sdk::trace::Sampler;

    use super::*;

    #[test]
    fn spans_beyond_the_queue_limit_are_counted_as_lost() {
        let endpoint = "http://127.0.0.1:9".to_owned().try_into().unwrap();
        let (processor, exporter) = channel(&endpoint, &Resource::builder_empty().build()).unwrap();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(Sampler::AlwaysOn)
            .build();
        let tracer = provider.tracer("test");
        for _ in 0..MAX_WAITING + 7 {
            drop(tracer.start("a span"));
        }
        assert_eq!((exporter.counts.sent(), exporter.counts.lost()), (0, 7));
        assert_eq!(exporter.queue.len(), MAX_WAITING);
    }
}
