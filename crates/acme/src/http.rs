//! Calls to the ACME server.
//!
//! Answers are limited in size and time. The latest refusal is remembered: its status explains an answer that is not a
//! problem document, and its `Retry-After` is when the server accepts the next order.

use std::{
    future::Future,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use signalbox_egress::{Budget, Owner, destination};
use tokio::time;

/// The owner of all calls for certificates. They are few.
pub(crate) const OWNER: &str = "certificates";
/// Maximum size of an answer. A certificate chain has a few KB.
const MAX_BYTES: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

/// An error answer of the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusal {
    /// The HTTP status; 0 if the server did not answer.
    pub(crate) status: u16,
    /// The requested pause in seconds.
    pub(crate) retry_after: Option<u64>,
}

/// The HTTP client of one order. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>,
    refusal: Arc<Mutex<Option<Refusal>>>,
    budget: Budget,
    /// Needed for dates in `Retry-After`.
    clock: fn() -> SystemTime,
}

impl Http {
    /// Reads `ca_file` each time, so that a changed file is used without a restart.
    pub(crate) fn new(
        ca_file: Option<&Path>,
        clock: fn() -> SystemTime,
        budget: Budget,
    ) -> Result<Self, signalbox_egress::Error> {
        let tls = signalbox_egress::client_config(ca_file)?;
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            refusal: Arc::default(),
            budget,
            clock,
        })
    }

    /// Returns the latest error answer since the previous call.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let Self { client, refusal, budget, clock } = self.clone();
        Box::pin(async move {
            let _place = budget.place(&Owner::alone(OWNER), &destination(request.uri())).await;
            let asked = async {
                let (head, body) = client.request(request).await.map_err(other)?.into_parts();
                let body = Limited::new(body, MAX_BYTES).collect().await.map_err(Error::Other)?.to_bytes();
                Ok((head, body))
            };
            let answered = match time::timeout(TIMEOUT, asked).await {
                Ok(answered) => answered,
                Err(_) => Err(Error::Other(format!("no answer within {} s", TIMEOUT.as_secs()).into())),
            };
            let noted = match &answered {
                Ok((head, _)) if head.status.is_client_error() || head.status.is_server_error() => {
                    Some(Refusal {
                        status: head.status.as_u16(),
                        retry_after: retry_after(&head.headers, clock()),
                    })
                }
                Ok(_) => None,
                Err(_) => Some(Refusal::default()),
            };
            if noted.is_some() {
                *refusal.lock().unwrap_or_else(PoisonError::into_inner) = noted;
            }
            let (head, body) = answered?;
            Ok(BytesResponse::from(Response::from_parts(head, Full::new(body))))
        })
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Other(Box::new(error))
}

/// The pause in seconds, from a number or a date.
fn retry_after(headers: &header::HeaderMap, now: SystemTime) -> Option<u64> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    text.parse().ok().or_else(|| {
        let at = httpdate::parse_http_date(text).ok()?;
        Some(at.duration_since(now).unwrap_or_default().as_secs())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_given_in_seconds_or_as_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let of = |text: &str| {
            let mut headers = header::HeaderMap::new();
            headers.insert(header::RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(of(" 120 "), Some(120));
        assert_eq!(of("Sun, 06 Nov 1994 08:51:17 GMT"), Some(100));
        assert_eq!(of("Sat, 06 Nov 1993 08:51:17 GMT"), Some(0));
        assert_eq!(of("soon"), None);
    }
}
