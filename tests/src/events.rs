//! A client of server-sent events.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time,
};

use crate::http::credential;
use signalbox_testkit::PATIENCE;

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The position from which a client would resume.
    pub id: Option<String>,
    /// Its type; `message` if none is given.
    pub event: String,
    /// Its text.
    pub data: String,
}

impl Message {
    /// The text as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// An open stream.
#[derive(Debug)]
pub struct Stream {
    lines: BufReader<TcpStream>,
    /// The answer's status.
    pub status: u16,
    last_id: Option<String>,
}

impl Stream {
    /// Opens `target`, resuming after `last_id` if there is one.
    ///
    /// # Panics
    /// When the connection fails.
    pub async fn open(to: SocketAddr, token: &str, target: &str, last_id: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(to).await.expect("a listening server");
        let last_id = last_id.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        // HTTP/1.0: the body comes as it is, without chunks.
        let request = format!(
            "GET {target} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n{last_id}\r\n",
            credential(token)
        );
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut this = Self { lines: BufReader::new(stream), status: 0, last_id: None };
        let head = this.line().await.expect("an answer");
        this.status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
        while this.line().await.is_some_and(|line| !line.is_empty()) {}
        if this.status == 200 {
            // The greeting shows that the stream contains everything from now on.
            while this.line().await.is_some_and(|line| !line.is_empty()) {}
        }
        this
    }

    /// The next line; nothing at the end.
    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = time::timeout(PATIENCE, self.lines.read_line(&mut line)).await.expect("a line in time");
        (read.unwrap_or(0) > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// The next message; nothing at the end of the stream.
    pub async fn next(&mut self) -> Option<Message> {
        let (mut event, mut data) = ("message".to_owned(), None::<String>);
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                if let Some(data) = data {
                    return Some(Message { id: self.last_id.clone(), event, data });
                }
                continue;
            }
            match line.split_once(": ").unwrap_or((&line, "")) {
                ("id", id) => self.last_id = Some(id.to_owned()),
                ("event", name) => name.clone_into(&mut event),
                ("data", text) => {
                    data = Some(data.map_or_else(|| text.to_owned(), |data| data + "\n" + text))
                }
                _ => {}
            }
        }
    }

    /// The next `count` messages.
    ///
    /// # Panics
    /// When the stream ends before.
    pub async fn take(&mut self, count: usize) -> Vec<Message> {
        let mut messages = Vec::with_capacity(count);
        while messages.len() < count {
            let so_far = messages.len();
            messages.push(self.next().await.unwrap_or_else(|| panic!("the stream ended after {so_far}")));
        }
        messages
    }
}
