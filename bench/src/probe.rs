//! One HTTP connection that sends one request after the other: a curl loop without its start-up time.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, bail};

use crate::load::answer;

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Its status code.
    pub(crate) status: u16,
    /// Its body.
    pub(crate) body: Vec<u8>,
}

/// A connection that blocks while it waits.
#[derive(Debug)]
pub(crate) struct Probe {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Probe {
    /// Connects.
    pub(crate) fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        // Longer than any answer takes, shorter than a run that hangs.
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { stream, received: Vec::with_capacity(4096) })
    }

    /// Sends a request unchanged and reads the answer.
    pub(crate) fn ask(&mut self, request: &[u8]) -> anyhow::Result<Reply> {
        self.stream.write_all(request)?;
        self.received.clear();
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(found) = answer(&self.received)? {
                let body = self.received[found.body..found.length].to_vec();
                return Ok(Reply { status: found.status, body });
            }
            match self.stream.read(&mut chunk)? {
                0 => bail!("the connection was closed in the middle of an answer"),
                n => self.received.extend_from_slice(&chunk[..n]),
            }
        }
    }

    /// Asks for a path of a host.
    pub(crate) fn get(&mut self, host: &str, path: &str) -> anyhow::Result<Reply> {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
    }
}

/// Requests one path on a new connection and reads the answer until the end of the stream: HTTP/1.0, which has no
/// chunks.
pub(crate) fn fetch(address: SocketAddr, path: &str) -> anyhow::Result<Reply> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(40)))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let head = memchr::memmem::find(&bytes, b"\r\n\r\n").context("an answer without an end of its head")?;
    let status = std::str::from_utf8(bytes.get(9..12).unwrap_or_default())?.parse()?;
    Ok(Reply { status, body: bytes.split_off(head + 4) })
}

/// Waits until the worker with this listener for operators has the table of `serial`.
pub(crate) fn acknowledged(admin: SocketAddr, serial: u64) -> anyhow::Result<()> {
    let ack = fetch(admin, &format!("/edge/ack?serial={serial}&wait=30"))?;
    let ack: serde_json::Value = serde_json::from_slice(&ack.body)?;
    anyhow::ensure!(ack["reached"] == true, "the worker did not acknowledge serial {serial}: {ack}");
    Ok(())
}
