//! Reads the rest of a body that a rejected request left unread.
//!
//! A request is rejected for its token or its path before its body is read. If the connection were closed then, a proxy
//! that is still sending the body would report a broken connection in place of the answer.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody as _},
    extract::Request,
    http::{HeaderValue, Version, header},
    response::Response,
};
use futures_util::{Stream, StreamExt as _};
use tokio::sync::Semaphore;

use super::body::LIMIT_BYTES;

/// How long the rest of a body may take. The answer is already known, so a slow client gets no more time.
const PATIENCE: Duration = Duration::from_secs(5);

type Slot = Arc<Mutex<Option<BodyDataStream>>>;

/// A body that puts what is unread into a slot when it is dropped.
struct Returned {
    rest: Option<BodyDataStream>,
    slot: Slot,
}

impl Stream for Returned {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let polled = Pin::new(rest).poll_next(context);
        if matches!(polled, Poll::Ready(None)) {
            self.rest = None;
        }
        polled
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = self.rest.take();
    }
}

/// Runs the handler, and reads what it left of the body, up to the limit of a body, before the answer is sent. It does so for as
/// many requests as there are `places`: clients that send slowly use no more connections for it. If something of the body is left,
/// the response says that the connection ends: a proxy must not use it for another request.
pub(crate) async fn drain(
    places: &Semaphore,
    request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    if request.body().is_end_stream() {
        return next(request).await;
    }
    let slot = Slot::default();
    let returned = |body: Body| {
        Body::from_stream(Returned { rest: Some(body.into_data_stream()), slot: Arc::clone(&slot) })
    };
    // HTTP/2 has no such field, and ends a single stream.
    let has_connection = request.version() <= Version::HTTP_11;
    let mut response = next(request.map(returned)).await;
    let rest = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(rest) = rest {
        let is_read = match places.try_acquire() {
            // A client that fails or takes too long loses the connection, as it would have without this.
            Ok(_place) => tokio::time::timeout(PATIENCE, skip(rest)).await.unwrap_or(false),
            Err(_) => false,
        };
        if !is_read && has_connection {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
    response
}

/// Reads and forgets a body, up to the limit. Returns whether it was read to its end.
async fn skip(mut body: BodyDataStream) -> bool {
    let mut left = LIMIT_BYTES;
    while let Some(chunk) = body.next().await {
        match chunk {
            Ok(chunk) if chunk.len() <= left => left -= chunk.len(),
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use futures_util::{TryStreamExt as _, stream};

    use super::*;

    /// The `Connection` of a response to a request with this body, of which the handler reads the first chunk.
    async fn connection(chunks: Vec<Result<Bytes, axum::Error>>, version: Version) -> Option<HeaderValue> {
        let mut request = Request::new(Body::from_stream(stream::iter(chunks)));
        *request.version_mut() = version;
        let handler = async |request: Request| {
            let _ = request.into_body().into_data_stream().next().await;
            Response::new(Body::empty())
        };
        let response = drain(&Semaphore::new(1), request, handler).await;
        response.headers().get(header::CONNECTION).cloned()
    }

    #[tokio::test]
    async fn a_connection_ends_if_something_of_a_body_is_left() {
        let chunk = |bytes: usize| Ok(Bytes::from(vec![b'a'; bytes]));
        let failed = || Err(axum::Error::new(std::io::Error::other("too much")));
        for (chunks, ends) in [
            (vec![chunk(9), chunk(LIMIT_BYTES)], false),
            (vec![chunk(9), chunk(LIMIT_BYTES), chunk(1)], true),
            // A body that fails for its handler is read to its end nevertheless, if that is possible.
            (vec![failed(), chunk(9)], false),
            (vec![failed(), failed()], true),
        ] {
            assert_eq!(connection(chunks, Version::HTTP_11).await.is_some(), ends);
        }
        assert_eq!(connection(vec![failed(), failed()], Version::HTTP_2).await, None);
    }

    #[tokio::test]
    async fn a_dropped_body_returns_its_unread_bytes() {
        let chunks = ["a", "b", "c"].map(|chunk| Ok::<_, axum::Error>(Bytes::from(chunk)));
        let body = Body::from_stream(stream::iter(chunks));
        let slot = Slot::default();
        let mut returned = Returned { rest: Some(body.into_data_stream()), slot: Arc::clone(&slot) };
        assert_eq!(returned.try_next().await.unwrap().unwrap(), "a");
        drop(returned);
        let rest = slot.lock().unwrap().take().unwrap();
        let rest: Vec<Bytes> = rest.try_collect().await.unwrap();
        assert_eq!(rest, ["b", "c"]);
    }
}
