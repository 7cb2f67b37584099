//! Parts of a response reach the client as the instance sends them.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use signalbox_stack::Reservation;
use signalbox_tests::{http::Connection, http2::Exchange, system::System};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::AbortHandle,
    time,
};

const FIRST: &str = "data: 1\n\n";
const SECOND: &str = "data: 2\n\n";

/// An instance that sends the second part of its response when the test releases it.
struct Instance {
    address: SocketAddr,
    released: Arc<Semaphore>,
    task: AbortHandle,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Instance {
    /// `head`: status line and headers. `parts`: as they are sent.
    async fn start(head: &'static str, parts: [String; 2]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let released = Arc::new(Semaphore::new(0));
        let releases = Arc::clone(&released);
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                tokio::spawn(serve(stream, head, parts.clone(), Arc::clone(&releases)));
            }
        });
        Self { address, released, task: task.abort_handle() }
    }

    fn release(&self) {
        self.released.add_permits(1);
    }
}

async fn serve(mut stream: TcpStream, head: &str, parts: [String; 2], released: Arc<Semaphore>) {
    let mut request = [0; 4096];
    if !stream.read(&mut request).await.is_ok_and(|count| count > 0) {
        return;
    }
    let [first, second] = parts;
    let _ = stream.write_all(format!("{head}\r\n\r\n{first}").as_bytes()).await;
    if let Ok(release) = released.acquire().await {
        release.forget();
    }
    let _ = stream.write_all(second.as_bytes()).await;
}

/// A client that is receiving a response.
enum Client {
    Http1(Connection),
    Http2(Exchange),
}

impl Client {
    async fn get(
        protocol: &str,
        (edge, h2c): (SocketAddr, SocketAddr),
        host: &str,
        accept: &str,
    ) -> io::Result<Self> {
        if protocol == "2" {
            return Ok(Self::Http2(Exchange::get(h2c, host, &[("accept", accept)]).await?));
        }
        let mut connection = Connection::open(edge).await?;
        let request = format!("GET / HTTP/{protocol}\r\nHost: {host}\r\nAccept: {accept}\r\n\r\n");
        connection.write(request.as_bytes()).await?;
        Ok(Self::Http1(connection))
    }

    /// Reads until a line of the body contains `text`.
    async fn until(&mut self, text: &str) -> io::Result<()> {
        match self {
            Self::Http1(connection) => connection.read_line_with(text).await.map(drop),
            Self::Http2(exchange) => {
                while let Some(part) = exchange.part().await? {
                    if String::from_utf8_lossy(&part).contains(text) {
                        return Ok(());
                    }
                }
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("no {text:?}")))
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_part_of_a_response_is_passed_on_immediately() {
    let mut ports = Reservation::default();
    let h2c = SocketAddr::from(([127, 0, 0, 1], ports.add().unwrap()));
    let system = System::with("streaming", |builder| {
        builder.without_pacemaker().without_sidecar().nginx("EDGE_H2C_LISTEN", h2c.to_string())
    })
    .await;
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let plain = [FIRST.to_owned(), SECOND.to_owned()];
    let buffering = r#"{"buffering":true}"#;
    let events = "text/event-stream";
    // Name, policy, what the client accepts, head and parts.
    let cases = [
        ("length", "", "*/*", "HTTP/1.1 200 OK\r\nContent-Length: 18", plain.clone()),
        ("end", "", "*/*", "HTTP/1.1 200 OK\r\nConnection: close", plain.clone()),
        ("old", "", "*/*", "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream", plain.clone()),
        (
            "chunks",
            "",
            events,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked",
            [chunk(FIRST), chunk(SECOND) + "0\r\n\r\n"],
        ),
        (
            "full",
            r#"{"timeouts":{"read_ms":20000}}"#,
            "*/*",
            "HTTP/1.1 200 OK\r\nConnection: close",
            plain.clone(),
        ),
        ("accepts", buffering, events, "HTTP/1.1 200 OK\r\nConnection: close", plain.clone()),
        (
            "asks",
            buffering,
            "*/*",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nX-Accel-Buffering: no",
            plain.clone(),
        ),
        ("held", buffering, "*/*", "HTTP/1.1 200 OK\r\nConnection: close", plain.clone()),
        ("asks-held", "", "*/*", "HTTP/1.1 200 OK\r\nConnection: close\r\nX-Accel-Buffering: yes", plain),
    ];
    let mut instances = Vec::new();
    for (name, policy, _, head, parts) in &cases {
        let instance = Instance::start(head, parts.clone()).await;
        system.cli::<()>(System::PRIMARY, &format!("SADD instances:{name}.test {}", instance.address)).await;
        if !policy.is_empty() {
            system.cli::<()>(System::PRIMARY, &format!("SET policy:{name}.test {policy}")).await;
        }
        instances.push(instance);
    }
    system.settle().await;
    for ((name, _, accept, ..), instance) in cases.iter().zip(&instances) {
        for protocol in ["1.0", "1.1", "2"] {
            let about = format!("{name} over HTTP/{protocol}");
            let host = format!("{name}.test");
            let mut client = if name.contains("held") {
                // Nothing of it arrives: neither headers nor the first part.
                let early = async {
                    let mut client = Client::get(protocol, (system.edge, h2c), &host, accept).await?;
                    client.until("data: 1").await?;
                    Ok::<_, io::Error>(client)
                };
                let mut early = Box::pin(early);
                let silent = time::timeout(Duration::from_millis(300), &mut early).await;
                assert!(silent.is_err(), "{about}: the first part arrived before the second was sent");
                instance.release();
                early.await
            } else {
                let mut client = Client::get(protocol, (system.edge, h2c), &host, accept).await.unwrap();
                let first = client.until("data: 1").await;
                first.unwrap_or_else(|error| panic!("{about}: the first part did not arrive: {error}"));
                instance.release();
                Ok(client)
            }
            .unwrap_or_else(|error| panic!("{about}: {error}"));
            if !name.contains("held") || protocol != "2" {
                let second = client.until("data: 2").await;
                second.unwrap_or_else(|error| panic!("{about}: the second part did not arrive: {error}"));
            }
        }
    }
    system.stop().await;
}
