//! The HTTP client that sends spans to the collector.

use std::time::Duration;

use async_trait::async_trait;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use opentelemetry_http::{Bytes, HttpClient, HttpError};

/// The maximum size of an answer. A collector reports in it which spans it rejected.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Collectors commonly close idle connections after a minute. Closing first avoids most races with them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Keeps one connection open. It uses the HTTP client that the daemons link anyway.
#[derive(Debug, Clone)]
pub(super) struct Collector {
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Collector {
    pub(super) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(super::export::EXPORT_TIMEOUT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(1)
            .build(connector);
        Self { client }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let exchange = async {
            let (head, body) = self.client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        tokio::time::timeout(super::export::EXPORT_TIMEOUT, exchange).await?
    }
}
