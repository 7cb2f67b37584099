//! A connection whose client does not take a response is ended: until then the rest of it is in memory, or its sender waits.

use std::{
    future::Future as _,
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// How long a client may take nothing of what is being sent. And how long it may take to read a response, in addition to the time
/// at [`LEAST_RATE`].
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A client has to read at least so many bytes per second of a larger response: 128 kbit/s.
const LEAST_RATE: u64 = 16 << 10;

/// When the response that is being sent has to be sent; shared by a connection and what answers its requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deadline(Arc<Mutex<Option<Instant>>>);

impl Deadline {
    /// A response with `bytes` begins. A stream, which has none, may take as long as it likes.
    pub(crate) fn begin(&self, bytes: Option<u64>) {
        let most = bytes.map(|bytes| WRITE_TIMEOUT + Duration::from_secs(bytes / LEAST_RATE));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = most.map(|most| Instant::now() + most);
    }

    fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose writes fail if its client does not take a response until the deadline.
pub(crate) struct Writing<S> {
    stream: S,
    deadline: Deadline,
    /// Set while the client takes nothing, with the time from which on that is too long.
    sleep: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> Writing<S> {
    pub(crate) fn new(stream: S, deadline: Deadline) -> Self {
        Self { stream, deadline, sleep: None }
    }

    /// What a write has become: if it is pending, the deadline wakes the connection.
    fn checked(
        &mut self,
        context: &mut Context<'_>,
        wrote: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if wrote.is_ready() {
            self.sleep = None;
            return wrote;
        }
        let (end, sleep) = self.sleep.get_or_insert_with(|| {
            let end = Instant::now() + WRITE_TIMEOUT;
            (end, Box::pin(sleep_until(end)))
        });
        let at = self.deadline.get().map_or(*end, |deadline| deadline.min(*end));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        ready!(sleep.as_mut().poll(context));
        self.sleep = None;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Writing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Writing<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.checked(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.checked(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_ended_and_one_that_reads_is_not() {
        let (server, mut client) = tokio::io::duplex(1 << 10);
        let deadline = Deadline::default();
        let mut writing = Writing::new(server, deadline.clone());
        let body = vec![b'x'; 64 << 10];
        // A client that reads, at four times the least rate.
        deadline.begin(Some(body.len() as u64));
        let read = async {
            let mut taken = vec![0; 1 << 10];
            for _ in 0..64 {
                tokio::time::sleep(Duration::from_millis(15)).await;
                client.read_exact(&mut taken).await.unwrap();
            }
        };
        let (wrote, ()) = tokio::join!(writing.write_all(&body), read);
        wrote.unwrap();
        // A stream waits for a slow client, and not for one that takes nothing.
        deadline.begin(None);
        let read = async {
            let mut taken = vec![0; 1 << 10];
            for _ in 0..64 {
                tokio::time::sleep(WRITE_TIMEOUT - Duration::from_secs(1)).await;
                client.read_exact(&mut taken).await.unwrap();
            }
        };
        let (wrote, ()) = tokio::join!(writing.write_all(&body), read);
        wrote.unwrap();
        for bytes in [None, Some(body.len() as u64)] {
            deadline.begin(bytes);
            let begun = Instant::now();
            let error = writing.write_all(&body).await.unwrap_err();
            assert_eq!(
                (error.kind(), begun.elapsed().as_secs()),
                (io::ErrorKind::TimedOut, WRITE_TIMEOUT.as_secs())
            );
        }
        // A response of known length has to be read at the least rate.
        deadline.begin(Some(body.len() as u64));
        let begun = Instant::now();
        let mut taken = [0];
        let slow = async {
            while client.read(&mut taken).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let error = tokio::select! {
            wrote = writing.write_all(&body) => wrote.unwrap_err(),
            () = slow => unreachable!("the server is there"),
        };
        assert_eq!(
            (error.kind(), begun.elapsed().as_secs()),
            (io::ErrorKind::TimedOut, WRITE_TIMEOUT.as_secs() + 4)
        );
    }
}
