//! Asks a name server, over UDP, and over TCP if the answer is too long for that.
//!
//! The resolver of the C library has no function for SRV records without unsafe code, and a resolver library would be the
//! largest dependency of the product. So a small library reads the messages, and they are sent here.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time,
};

use simple_dns::TYPE;

use super::message::{Answer, Unusable, answer, question};
use crate::Error;

/// The time limit for one attempt.
const TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(super) struct Resolver {
    pub(super) server: SocketAddr,
}

impl Resolver {
    /// The records of a name. A name that does not exist is an error.
    pub(super) async fn ask(&self, name: &str, kind: TYPE) -> Result<Answer, Error> {
        let failed = |why: String| Error::Dns { name: name.to_owned(), why };
        // The ID and the random port of the socket make it hard to forge an answer.
        let asked =
            question(rand::random(), name, kind).ok_or_else(|| failed("the name is not valid".to_owned()))?;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            match time::timeout(TIMEOUT, self.once(&asked)).await {
                Ok(Ok(Ok(answer))) => return Ok(answer),
                Ok(Ok(Err(unusable))) => last = reason(&unusable),
                Ok(Err(error)) => last = format!("{}: {error}", self.server),
                Err(_) => last = format!("{} did not answer within {} s", self.server, TIMEOUT.as_secs()),
            }
        }
        Err(failed(last))
    }

    async fn once(&self, asked: &[u8]) -> io::Result<Result<Answer, Unusable>> {
        let any = if self.server.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        let socket = UdpSocket::bind((any, 0)).await?;
        // Datagrams of other senders are not received.
        socket.connect(self.server).await?;
        socket.send(asked).await?;
        let mut buffer = vec![0; 4096];
        loop {
            let length = socket.recv(&mut buffer).await?;
            match answer(&buffer[..length], asked) {
                Err(Unusable::Foreign) => {}
                Err(Unusable::Truncated) => return self.over_tcp(asked).await,
                other => return Ok(other),
            }
        }
    }

    async fn over_tcp(&self, asked: &[u8]) -> io::Result<Result<Answer, Unusable>> {
        let mut stream = TcpStream::connect(self.server).await?;
        let length = u16::try_from(asked.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], asked].concat()).await?;
        let length = stream.read_u16().await?;
        let mut message = vec![0; length.into()];
        stream.read_exact(&mut message).await?;
        Ok(answer(&message, asked))
    }
}

fn reason(unusable: &Unusable) -> String {
    match unusable {
        Unusable::Failed(2) => "the server failed (SERVFAIL)".to_owned(),
        Unusable::Failed(3) => "the name does not exist (NXDOMAIN)".to_owned(),
        Unusable::Failed(5) => "the server refused the question (REFUSED)".to_owned(),
        Unusable::Failed(code) => format!("the server failed with code {code}"),
        Unusable::Foreign | Unusable::Truncated | Unusable::Malformed => "the answer is malformed".to_owned(),
    }
}
