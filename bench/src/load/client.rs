//! A client connection to the proxy that is measured.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::SocketAddr,
};

use mio::{Interest, Registry, Token, net::TcpStream};
use tokio::time::Instant;

use super::http::{self, Answer};

/// One keep-alive connection with at most one request under way.
#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    /// The request under way: which one, and when it was due.
    under_way: Option<(usize, Instant)>,
    /// An answer that came in pieces.
    partial: Vec<u8>,
    /// Whether this connection has answered before. A proxy may close such a one at any moment, also in the moment a
    /// request is sent; that is not a failure but a reason to ask again on a new connection.
    proven: bool,
}

/// The result of an event on a connection.
#[derive(Debug)]
pub(super) enum Event {
    /// Nothing yet.
    Waiting,
    /// An answer, with the moment its request was due.
    Answered { due: Instant, status: u16 },
    /// The proxy closed a proven connection; the request, if one was under way, is to be asked again.
    Closed(Option<(usize, Instant)>),
    /// The request cannot be answered any more.
    Failed(String),
}

impl Client {
    pub(super) fn connect(target: SocketAddr, token: Token, registry: &Registry) -> std::io::Result<Self> {
        // A blocking connect: over loopback it completes immediately, and a failure is reported here instead of as an
        // event.
        let stream = std::net::TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        registry.register(&mut stream, token, Interest::READABLE)?;
        Ok(Self { stream, under_way: None, partial: Vec::new(), proven: false })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_none()
    }

    /// Sends a request that was due at `due`.
    pub(super) fn send(&mut self, index: usize, bytes: &[u8], due: Instant) -> Event {
        self.under_way = Some((index, due));
        match self.stream.write(bytes) {
            Ok(n) if n == bytes.len() => Event::Waiting,
            Ok(n) => self.broken(&format!("only {n} bytes of a request could be written")),
            Err(error) => self.broken(&error.to_string()),
        }
    }

    /// Reads what has come. Stops at the end of an answer without reading again: the next bytes, if any, are a new
    /// event.
    pub(super) fn ready(&mut self, scratch: &mut [u8]) -> Event {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return self.broken("the proxy closed the connection"),
                Ok(n) => {
                    if let Some(event) = self.received(&scratch[..n]) {
                        return event;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Event::Waiting,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.broken(&error.to_string()),
            }
        }
    }

    fn received(&mut self, bytes: &[u8]) -> Option<Event> {
        // Nearly every answer comes in one piece and is never copied.
        let in_pieces = !self.partial.is_empty();
        if in_pieces {
            self.partial.extend_from_slice(bytes);
        }
        let all = if in_pieces { &self.partial } else { bytes };
        match http::answer(all) {
            Ok(Some(Answer { status, length, .. })) => {
                let exact = length == all.len();
                self.partial.clear();
                match self.under_way.take() {
                    Some((_, due)) if exact => {
                        self.proven = true;
                        Some(Event::Answered { due, status })
                    }
                    _ => Some(Event::Failed("more bytes than were asked for".to_owned())),
                }
            }
            Ok(None) => {
                if !in_pieces {
                    self.partial.extend_from_slice(bytes);
                }
                None
            }
            Err(error) => Some(Event::Failed(error.to_string())),
        }
    }

    fn broken(&mut self, why: &str) -> Event {
        let under_way = self.under_way.take();
        if under_way.is_none() || (self.proven && self.partial.is_empty()) {
            Event::Closed(under_way)
        } else {
            Event::Failed(why.to_owned())
        }
    }
}
