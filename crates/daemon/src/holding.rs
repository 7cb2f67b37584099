//! Responses that hold something until they are sent.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody, to_bytes},
    response::Response,
};
use hyper::body::{Frame, SizeHint};

/// A smaller response has to hold nothing: a connection takes all of it immediately.
pub const LARGE: u64 = 64 << 10;
/// Bytes that a connection gets at a time. It asks for more when it has sent most of what it has.
const PART: usize = 64 << 10;

/// A body in memory, and what it holds.
struct Holding<T> {
    left: Bytes,
    held: Arc<T>,
}

/// A part of it, which holds the same until the connection has written it.
struct Part<T> {
    bytes: Bytes,
    _held: Arc<T>,
}

impl<T> AsRef<[u8]> for Part<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<T: Send + Sync + 'static> HttpBody for Holding<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.left.len().min(PART);
        if part == 0 {
            return Poll::Ready(None);
        }
        // The body stays in memory until its last part is written, and so does what it holds.
        let bytes = self.left.split_to(part);
        let held = Arc::clone(&self.held);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(Part { bytes, _held: held })))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}

/// Holds `held` until the response is sent, or its connection ends. So a client that reads slowly keeps the place of its request. The
/// body has to be in memory.
pub async fn holding<T: Send + Sync + 'static>(response: Response, held: T) -> Response {
    let (parts, body) = response.into_parts();
    // It is in memory, so this neither waits nor fails.
    let left = to_bytes(body, usize::MAX).await.unwrap_or_default();
    Response::from_parts(parts, Body::new(Holding { left, held: Arc::new(held) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_large_response_holds_its_place_until_the_last_part_is_taken() {
        let held = Arc::new(());
        let text = "x".repeat(3 * PART + 1);
        let response = holding(Response::new(Body::from(text.clone())), Arc::clone(&held)).await;
        let mut body = response.into_body();
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
        let mut parts = Vec::new();
        while !body.is_end_stream() {
            let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
            parts.push(frame.unwrap().unwrap().into_data().unwrap());
        }
        drop(body);
        assert_eq!(parts.iter().map(Bytes::len).sum::<usize>(), text.len());
        assert_eq!(Arc::strong_count(&held), 2, "parts that are not written hold it");
        drop(parts);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
