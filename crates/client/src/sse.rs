//! Reads server-sent events.

use std::{collections::VecDeque, time::Duration};

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time;

use crate::{Client, Error, transport::innermost};

/// The maximum time without data. Servers send comments more often.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// The maximum size of a message.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// Its ID. Pass it as `last_event_id` to continue after this message.
    pub id: Option<String>,
    /// Its kind; absent for ordinary messages of the stream.
    pub event: Option<String>,
    /// Its text, mostly JSON.
    pub data: String,
}

/// A stream of messages.
#[derive(Debug)]
pub struct Stream {
    url: String,
    body: Incoming,
    reader: Reader,
    ready: VecDeque<Message>,
}

impl Stream {
    pub(crate) async fn open(client: &Client, path: &str) -> Result<Self, Error> {
        let body = client.transport.open(path).await?;
        let url = client.transport.address(path);
        Ok(Self { url, body, reader: Reader::default(), ready: VecDeque::new() })
    }

    /// Waits for the next message. `None` if the server has ended the stream.
    ///
    /// # Errors
    /// [`Error::Silent`] if the connection breaks, [`Error::Late`] if no data arrives for a minute.
    pub async fn next(&mut self) -> Result<Option<Message>, Error> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            let late = |_| Error::Late { url: self.url.clone(), seconds: MAX_SILENCE.as_secs() };
            let silent = |why| Error::Silent { url: self.url.clone(), why };
            match time::timeout(MAX_SILENCE, self.body.frame()).await.map_err(late)? {
                None => return Ok(None),
                Some(Err(error)) => return Err(silent(innermost(&error))),
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.ready.extend(self.reader.read(bytes));
                        if self.reader.is_too_long() {
                            return Err(silent("message too long".to_owned()));
                        }
                    }
                }
            }
        }
    }
}

/// Parses messages from pieces of bytes.
#[derive(Debug, Default)]
struct Reader {
    line: Vec<u8>,
    /// Whether the last byte was a carriage return. A following line feed belongs to the same end of line.
    returned: bool,
    message: Message,
    has_data: bool,
}

impl Reader {
    fn read(&mut self, bytes: &[u8]) -> Vec<Message> {
        let mut messages = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' if self.returned => self.returned = false,
                b'\n' | b'\r' => {
                    self.returned = *byte == b'\r';
                    messages.extend(self.end_line());
                }
                _ => {
                    self.returned = false;
                    self.line.push(*byte);
                }
            }
        }
        messages
    }

    fn end_line(&mut self) -> Option<Message> {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        if line.is_empty() {
            let message = std::mem::take(&mut self.message);
            // An ID or a comment alone is not a message.
            return std::mem::take(&mut self.has_data).then_some(message);
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
            }
            "id" => self.message.id = Some(value.to_owned()),
            "event" => self.message.event = Some(value.to_owned()),
            // Comments, `retry`, and fields of later versions.
            _ => {}
        }
        None
    }

    fn is_too_long(&self) -> bool {
        self.line.len() + self.message.data.len() > MAX_MESSAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ": watching\nretry: 1000\n\nid: a1\ndata: {\"x\":1}\n\nevent: end\r\ndata: one\r\ndata:two\r\n\r\nid: lone\n\ndata: cut";

    fn read(pieces: &[&[u8]]) -> Vec<Message> {
        let mut reader = Reader::default();
        pieces.iter().flat_map(|piece| reader.read(piece)).collect()
    }

    #[test]
    fn messages_do_not_depend_on_the_pieces() {
        let whole = read(&[TEXT.as_bytes()]);
        let message = |id: Option<&str>, event: Option<&str>, data: &str| Message {
            id: id.map(str::to_owned),
            event: event.map(str::to_owned),
            data: data.to_owned(),
        };
        assert_eq!(whole, [message(Some("a1"), None, "{\"x\":1}"), message(None, Some("end"), "one\ntwo")]);
        for size in 1..8 {
            let pieces: Vec<&[u8]> = TEXT.as_bytes().chunks(size).collect();
            assert_eq!(read(&pieces), whole, "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_message_is_detected() {
        let mut reader = Reader::default();
        reader.read(&vec![b'x'; MAX_MESSAGE_BYTES + 1]);
        assert!(reader.is_too_long());
    }
}
