//! Spans on their way to the collector.

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

use super::{EXPORT_TIME, Endpoint, Error, cause, collector::Collector};

/// Spans that wait for the collector; those that end beyond it are lost. About a kilobyte each.
const WAITING: usize = 4096;
/// Spans sent at a time.
const BATCH: usize = 512;
/// How long a span waits for others to go with it.
const GATHER: Duration = Duration::from_millis(500);

/// What became of spans. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Counts(Arc<Both>);

#[derive(Debug, Default)]
struct Both {
    sent: AtomicU64,
    lost: AtomicU64,
}

impl Counts {
    /// Spans that the collector took.
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Spans that nobody will see: the collector did not take them, or they ended faster than it takes them.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    fn add(&self, taken: bool, spans: usize) {
        let count = if taken { &self.0.sent } else { &self.0.lost };
        count.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

/// The end of the queue where spans come in.
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

    // The exporter is a task of the daemon, which ends it; nobody can wait for it here.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Sends spans until it is told to end. Nothing is sent before [`Exporter::run`].
#[derive(Debug)]
pub struct Exporter {
    queue: mpsc::Receiver<SpanData>,
    collector: SpanExporter,
    endpoint: String,
    counts: Counts,
    /// It shuts tracing down when it is dropped, which is not before the last span was sent.
    provider: Option<SdkTracerProvider>,
    /// Whether the last batch was taken; the log tells of changes only.
    well: bool,
}

pub(super) fn channel(endpoint: &Endpoint, resource: &Resource) -> Result<(Processor, Exporter), Error> {
    let mut collector = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint.to_string())
        .with_timeout(EXPORT_TIME)
        // The next batch would wait behind a repeat, and spans that come meanwhile would be lost in its place.
        .with_retry_policy(RetryPolicy::disabled())
        .with_http_client(Collector::new())
        .build()
        .map_err(|error| Error(Box::new(error)))?;
    collector.set_resource(resource);
    let (sender, queue) = mpsc::channel(WAITING);
    let counts = Counts::default();
    let exporter = Exporter {
        queue,
        collector,
        endpoint: endpoint.to_string(),
        counts: counts.clone(),
        provider: None,
        well: true,
    };
    Ok((Processor { queue: sender, counts }, exporter))
}

impl Exporter {
    pub(super) fn holding(mut self, provider: SdkTracerProvider) -> Self {
        self.provider = Some(provider);
        // From here on spans have somewhere to go.
        cause::turn_on();
        self
    }

    /// What became of spans so far.
    pub fn counts(&self) -> Counts {
        self.counts.clone()
    }

    /// Sends batches until `shutdown`, and then what has already come.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        while shutdown.run_until_cancelled(self.queue.recv_many(&mut batch, BATCH)).await.is_some() {
            if batch.len() < BATCH {
                // Most requests have a few spans that end one after the other.
                let _ = shutdown.run_until_cancelled(tokio::time::sleep(GATHER)).await;
                self.fill(&mut batch);
            }
            self.send(&mut batch).await;
        }
        loop {
            self.fill(&mut batch);
            // One that does not answer now will not get better while the daemon waits to end.
            if batch.is_empty() || !self.send(&mut batch).await {
                return;
            }
        }
    }

    fn fill(&mut self, batch: &mut Vec<SpanData>) {
        while batch.len() < BATCH
            && let Ok(span) = self.queue.try_recv()
        {
            batch.push(span);
        }
    }

    async fn send(&mut self, batch: &mut Vec<SpanData>) -> bool {
        let spans = batch.len();
        let sent = self.collector.export(std::mem::replace(batch, Vec::with_capacity(BATCH))).await;
        self.counts.add(sent.is_ok(), spans);
        match &sent {
            Err(error) if self.well => {
                tracing::warn!(
                    endpoint = self.endpoint,
                    %error,
                    "the collector does not take spans; they are lost and counted until it does"
                );
            }
            Ok(()) if !self.well => {
                tracing::info!(
                    endpoint = self.endpoint,
                    lost = self.counts.lost(),
                    "the collector takes spans again"
                );
            }
            _ => {}
        }
        self.well = sent.is_ok();
        self.well
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Tracer as _, TracerProvider as _};
    use opentelemetry_sdk::trace::Sampler;

    use super::*;

    #[test]
    fn spans_that_nobody_takes_are_counted_and_take_no_more_memory() {
        let endpoint = "http://127.0.0.1:9".to_owned().try_into().unwrap();
        let (processor, exporter) = channel(&endpoint, &Resource::builder_empty().build()).unwrap();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(Sampler::AlwaysOn)
            .build();
        let tracer = provider.tracer("test");
        for _ in 0..WAITING + 7 {
            drop(tracer.start("a span"));
        }
        assert_eq!((exporter.counts.sent(), exporter.counts.lost()), (0, 7));
        assert_eq!(exporter.queue.len(), WAITING);
    }
}
