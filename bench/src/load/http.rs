//! The part of HTTP/1.1 that a load generator needs: a request to send, and the end of an answer.

use std::sync::LazyLock;

use memchr::memmem::Finder;

static END_OF_HEAD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));

/// Requests for a list of host names, ready to be written to a connection.
#[derive(Debug)]
pub(crate) struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Requests {
    /// One GET for each host name. The headers are what a small API client sends.
    pub(crate) fn for_hosts<S: AsRef<str>>(hosts: impl IntoIterator<Item = S>) -> Self {
        let mut requests = Self { bytes: Vec::new(), ends: Vec::new() };
        for host in hosts {
            let host = host.as_ref();
            requests.bytes.extend_from_slice(
                format!(
                    "GET /orders/42?page=2 HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
                )
                .as_bytes(),
            );
            requests.ends.push(requests.bytes.len());
        }
        requests
    }

    /// Requests as they are to be sent.
    pub(crate) fn of(requests: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut all = Self { bytes: Vec::new(), ends: Vec::new() };
        for request in requests {
            all.bytes.extend_from_slice(&request);
            all.ends.push(all.bytes.len());
        }
        all
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of one.
    pub(crate) fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }
}

/// A complete answer at the start of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// Where the body begins.
    pub(crate) body: usize,
    /// Where the answer ends.
    pub(crate) length: usize,
}

/// An answer that this generator does not understand. It supports no chunks: the instances behind every proxy send a
/// length, and a proxy has no reason to remove it.
#[derive(Debug, thiserror::Error)]
#[error("an answer without a status or a Content-Length: {0:?}")]
pub(crate) struct NotUnderstood(String);

/// Finds the answer that `bytes` begin with; `None` when more has to be read.
pub(crate) fn answer(bytes: &[u8]) -> Result<Option<Answer>, NotUnderstood> {
    let Some(end) = END_OF_HEAD.find(bytes) else { return Ok(None) };
    let (head, body) = (&bytes[..end], end + 4);
    let not_understood = || NotUnderstood(String::from_utf8_lossy(head).into_owned());
    let status = head.get(9..12).and_then(number).ok_or_else(not_understood)?;
    let length = content_length(head).ok_or_else(not_understood)?;
    let Ok(status) = u16::try_from(status) else { return Err(not_understood()) };
    if bytes.len() < body + length {
        return Ok(None);
    }
    Ok(Some(Answer { status, body, length: body + length }))
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let mut line = 0;
    while let Some(newline) = memchr::memchr(b'\n', &head[line..]) {
        line += newline + 1;
        if head.len() > line + NAME.len() && head[line..line + NAME.len()].eq_ignore_ascii_case(NAME) {
            let value = &head[line + NAME.len()..];
            let end = memchr::memchr(b'\r', value).unwrap_or(value.len());
            return number(value[..end].trim_ascii());
        }
    }
    None
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_after_its_body() {
        let bytes =
            b"HTTP/1.1 503 Service Unavailable\r\nServer: x\r\ncontent-LENGTH: 5\r\n\r\nhelloHTTP/1.1";
        let head = bytes.len() - "helloHTTP/1.1".len();
        for cut in 0..head + 5 {
            assert_eq!(answer(&bytes[..cut]).unwrap(), None, "at {cut}");
        }
        assert_eq!(answer(bytes).unwrap(), Some(Answer { status: 503, body: head, length: head + 5 }));
    }

    #[test]
    fn an_answer_without_a_length_is_an_error() {
        answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap_err();
        answer(b"HTTP/1.1 2\r\n\r\n").unwrap_err();
    }

    #[test]
    fn requests_are_kept_apart() {
        let requests = Requests::for_hosts(["a.example", "b.example"]);
        assert_eq!(requests.len(), 2);
        for (index, host) in ["a.example", "b.example"].iter().enumerate() {
            let text = std::str::from_utf8(requests.get(index)).unwrap();
            assert!(text.starts_with("GET ") && text.ends_with("\r\n\r\n"));
            assert!(text.contains(&format!("Host: {host}\r\n")));
        }
    }
}
