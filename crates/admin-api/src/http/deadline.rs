//! Limits for the body of a request: a total time, and the bytes of all requests of its token.
//!
//! A time limit for each piece of a body would let a client send one byte at a time and hold its connection without end.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody as _},
    extract::Request,
    response::Response,
};
use futures_util::Stream;
use tokio::time::{Sleep, sleep};

use super::{Problem, slots::InProgress};

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The body did not arrive in time.
#[derive(Debug)]
pub(crate) struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs())
    }
}

impl Error for TooSlow {}

/// The bytes of all requests of the token are too many.
#[derive(Debug, Clone)]
pub(crate) struct TooMuch(pub(crate) Problem);

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.detail())
    }
}

impl Error for TooMuch {}

/// A body that fails after a time, and whose bytes are counted.
struct Limited {
    body: BodyDataStream,
    deadline: Pin<Box<Sleep>>,
    place: InProgress,
    /// Whether the handler was notified that its token sends too much. The rest is read, and forgotten.
    is_refused: bool,
}

impl Stream for Limited {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(item) = Pin::new(&mut self.body).poll_next(context) {
            let bytes = item.as_ref().and_then(|item| item.as_ref().ok()).map_or(0, Bytes::len);
            if !self.is_refused
                && let Err(problem) = self.place.receive(bytes as u64)
            {
                self.is_refused = true;
                return Poll::Ready(Some(Err(axum::Error::new(TooMuch(problem)))));
            }
            return Poll::Ready(item);
        }
        self.deadline.as_mut().poll(context).map(|()| Some(Err(axum::Error::new(TooSlow))))
    }
}

/// Limits the time in which the body of a request must arrive.
pub(crate) async fn limit(request: Request, next: impl AsyncFnOnce(Request) -> Response) -> Response {
    if request.body().is_end_stream() {
        return next(request).await;
    }
    let place = request.extensions().get::<InProgress>().cloned().unwrap_or_default();
    let limited = |body: Body| {
        let deadline = Box::pin(sleep(BODY_TIMEOUT));
        Body::from_stream(Limited { body: body.into_data_stream(), deadline, place, is_refused: false })
    };
    next(request.map(limited)).await
}

/// Whether an error is that of a body that was too slow, or was caused by it.
pub(crate) fn is_too_slow(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|cause| cause.is::<TooSlow>())
}

/// The problem of a body whose token has too many bytes, if an error was caused by it.
pub(crate) fn too_much(error: &(dyn Error + 'static)) -> Option<Problem> {
    causes(error).find_map(|cause| cause.downcast_ref::<TooMuch>()).map(|TooMuch(problem)| problem.clone())
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, stream};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_ends_at_the_deadline() {
        let trickle = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            Some((Ok::<_, axum::Error>(Bytes::from_static(b"a")), ()))
        });
        let body = Body::from_stream(trickle).into_data_stream();
        let place = InProgress::default();
        let limited = Limited { body, deadline: Box::pin(sleep(BODY_TIMEOUT)), place, is_refused: false };
        let read: Vec<_> = limited.take(10).collect().await;
        let failed = read.iter().position(Result::is_err).unwrap();
        assert_eq!(failed, 4, "four pieces arrive within 30 seconds");
        assert!(is_too_slow(read[failed].as_ref().unwrap_err()));
        assert!(!is_too_slow(&std::io::Error::other("something else")));
    }
}
