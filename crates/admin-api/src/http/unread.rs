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
    response::Response,
};
use futures_util::{Stream, TryStreamExt as _, future};
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
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
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
/// many requests as there are `places`: clients that send slowly use no more connections for it.
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
    let response = next(request.map(returned)).await;
    let rest = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(rest) = rest
        && let Ok(_place) = places.try_acquire()
    {
        // A client that fails or takes too long loses the connection, as it would have without this.
        let _ = tokio::time::timeout(PATIENCE, skip(rest)).await;
    }
    response
}

/// Reads and forgets a body, up to the limit.
async fn skip(body: BodyDataStream) -> Result<(), axum::Error> {
    let mut left = LIMIT_BYTES;
    let within = move |chunk: &Bytes| {
        let fits = chunk.len() <= left;
        left = left.saturating_sub(chunk.len());
        future::ready(Ok(fits))
    };
    body.try_take_while(within).try_for_each(|_| future::ready(Ok(()))).await
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

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
