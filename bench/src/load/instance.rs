//! An application instance, as cheap as one can be.

use std::io::{ErrorKind, Read as _, Write as _};

use mio::net::TcpStream;

/// A connection from a proxy to an instance. A proxy sends one request and waits for the answer, so a request is
/// complete when the input ends with an empty line: the requests here have no bodies.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// Which of the instances was connected to.
    pub(super) instance: usize,
    /// The last bytes of a request that came in pieces.
    tail: Vec<u8>,
}

/// The state of a connection after an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Closed,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, instance: usize) -> Self {
        Self { stream, instance, tail: Vec::new() }
    }

    /// Reads what has come and answers it when it is complete.
    pub(super) fn ready(&mut self, scratch: &mut [u8], answer: &[u8]) -> State {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return State::Closed,
                Ok(n) => {
                    if self.completes(&scratch[..n]) {
                        // An answer is smaller than any socket buffer, so a short write is a broken connection.
                        return match self.stream.write(answer) {
                            Ok(written) if written == answer.len() => State::Open,
                            _ => State::Closed,
                        };
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return State::Open,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return State::Closed,
            }
        }
    }

    fn completes(&mut self, bytes: &[u8]) -> bool {
        const END: &[u8] = b"\r\n\r\n";
        if self.tail.is_empty() && bytes.ends_with(END) {
            return true;
        }
        self.tail.extend_from_slice(bytes);
        let complete = self.tail.ends_with(END);
        if complete {
            self.tail.clear();
        } else {
            let keep = self.tail.len().min(END.len());
            self.tail.drain(..self.tail.len() - keep);
        }
        complete
    }
}
