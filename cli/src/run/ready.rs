//! Whether a copy that was started serves requests.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::{self, Instant},
};

/// How often a starting copy is checked.
const POLL: Duration = Duration::from_millis(50);
/// The time limit for one check.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What is checked.
#[derive(Debug, Clone)]
pub(super) struct Check {
    pub(super) address: SocketAddr,
    pub(super) host: String,
    pub(super) path: Option<String>,
}

impl Check {
    /// Waits until a check passes. After `timeout`, the result of the last one is the error.
    pub(super) async fn passes(&self, timeout: Duration) -> Result<(), String> {
        let until = Instant::now() + timeout;
        loop {
            let last = match time::timeout(TIMEOUT, self.once()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => why,
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() >= until {
                return Err(format!("was not healthy within {} s ({last})", timeout.as_secs()));
            }
            time::sleep(POLL).await;
        }
    }

    /// One request without redirects, as the pacemaker's own checks are.
    async fn once(&self) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        let mut stream = TcpStream::connect(self.address).await.map_err(failed)?;
        let Some(path) = &self.path else { return Ok(()) };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.host);
        stream.write_all(request.as_bytes()).await.map_err(failed)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.map_err(failed)?;
        let status: Option<u16> = line.split(' ').nth(1).and_then(|status| status.trim().parse().ok());
        match status {
            Some(200..=399) => Ok(()),
            Some(status) => Err(format!("{path} answered {status}")),
            None => Err(format!("{path} did not answer with HTTP")),
        }
    }
}
