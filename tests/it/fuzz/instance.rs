//! A strict instance: it reads each request by the letter of RFC 9112 and reports what it should not have received.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use signalbox_tests::http::Connection;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// An instance of one name of the route table.
pub(super) struct Instance {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    /// The name, `*.` for every name below one.
    name: String,
    received: AtomicU64,
    violations: Mutex<Vec<String>>,
}

impl Instance {
    pub(super) async fn start(name: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            received: AtomicU64::new(0),
            violations: Mutex::default(),
        });
        let used = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let shared = Arc::clone(&used);
                open.spawn(async move {
                    // The edge may close a connection at any time.
                    let _ended = shared.serve(BufReader::new(stream)).await;
                });
                while open.try_join_next().is_some() {}
            }
        });
        Self { address, shared, task: task.abort_handle() }
    }

    pub(super) fn received(&self) -> u64 {
        self.shared.received.load(Ordering::SeqCst)
    }

    /// Panics if the edge sent something that it should not have sent.
    pub(super) fn check(&self) {
        let violations = self.shared.violations.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(violations.is_empty(), "{} received: {violations:#?}", self.shared.name);
    }

    /// Answers as an instance does, over a connection of its own: that the instance itself works.
    pub(super) async fn answers(&self) -> bool {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {0}\r\nX-Forwarded-Host: {0}\r\nCDN-Loop: x\r\nX-Request-ID: x\r\n\r\n",
            self.shared.name.replace('*', "any")
        );
        let answer = Connection::open(self.address).await.unwrap().send_raw(request.as_bytes()).await;
        answer.is_ok_and(|answer| answer.status == 200)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    async fn serve(&self, mut stream: BufReader<TcpStream>) -> io::Result<()> {
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                if stream.read_until(b'\n', &mut head).await? == 0 {
                    return Ok(());
                }
            }
            self.received.fetch_add(1, Ordering::SeqCst);
            let shown = String::from_utf8_lossy(&head).into_owned();
            let body = match self.check(&head) {
                Ok(body) => body,
                Err(problem) => {
                    let mut violations = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
                    violations.push(format!("{problem}: {shown:?}"));
                    return Ok(());
                }
            };
            stream.read_exact(&mut vec![0; body]).await?;
            let is_head = head.starts_with(b"HEAD ");
            let answer: &[u8] = if is_head { b"" } else { b"ok" };
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n").await?;
            stream.write_all(answer).await?;
        }
    }

    /// Checks a request, and returns the length of its body.
    fn check(&self, head: &[u8]) -> Result<usize, String> {
        let text: String = head.iter().map(|byte| char::from(*byte)).collect();
        let mut lines = text.trim_end_matches("\r\n").split("\r\n");
        let request: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let [method, target, "HTTP/1.1"] = request[..] else { return Err("request line".to_owned()) };
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase() || b"-_".contains(&byte))
        {
            return Err("method".to_owned());
        }
        if !target.starts_with('/') && target != "*"
            || target.bytes().any(|byte| byte <= b' ' || byte == 0x7f)
        {
            return Err("target".to_owned());
        }
        let mut headers = Vec::new();
        for line in lines {
            let Some((name, value)) = line.split_once(": ") else { return Err("header".to_owned()) };
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_token) || value.contains(['\r', '\n', '\0']) {
                return Err(format!("header {name:?}"));
            }
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let all = |name: &str| -> Vec<&str> {
            headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str()).collect()
        };
        let [host] = all("host")[..] else { return Err("not one Host".to_owned()) };
        if !self.serves(host) {
            return Err(format!("host {host:?} was not checked"));
        }
        if all("x-forwarded-host") != [host] {
            return Err("X-Forwarded-Host differs from Host".to_owned());
        }
        // The edge adds these to each request. One that was smuggled inside a body would not have them.
        for added in ["cdn-loop", "x-request-id", "x-forwarded-for"] {
            if all(added).len() != 1 && added != "x-forwarded-for" {
                return Err(format!("not one {added}"));
            }
        }
        if !all("transfer-encoding").is_empty() || !all("te").iter().all(|te| *te == "trailers") {
            return Err("transfer coding".to_owned());
        }
        match all("content-length")[..] {
            [] => Ok(0),
            [length] if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                length.parse().map_err(|_| "Content-Length".to_owned())
            }
            _ => Err("Content-Length".to_owned()),
        }
    }

    /// Whether the route table leads from this Host header to this instance. Written without Signalbox's own code.
    fn serves(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        match self.name.strip_prefix('*') {
            Some(below) => name.len() > below.len() && name.ends_with(below),
            None => name == self.name,
        }
    }
}
