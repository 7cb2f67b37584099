//! An anonymous client tries to use up connections, memory or disk, so that others are not served.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use signalbox_stack::{Builder, Reservation};
use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    http::{Connection, Request},
    system::System,
    upstream::App,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

/// How many connections the attacker opens. The test's own limit of open files bounds it.
const SLOW_CONNECTIONS: usize = 9_000;

async fn edge(name: &str, change: impl FnOnce(Builder) -> Builder) -> (System, App) {
    let system = System::with(name, |builder| change(builder.without_pacemaker().without_sidecar())).await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    (system, app)
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_slow_connections_delay_neither_operators_nor_clients() {
    let (system, _app) = edge("attack-slow", |builder| builder).await;
    let (mut slow, head) = (Vec::new(), b"GET / HTTP/1.1\r\nHost: app.test\r\nX-Slow: ");
    for _ in 0..SLOW_CONNECTIONS {
        let mut stream = TcpStream::connect(system.edge).await.unwrap();
        stream.write_all(head).await.unwrap();
        slow.push(stream);
    }
    eventually("the connections to be accepted", async || {
        let text = system.edge_api("/edge/connections").await.text();
        let active = text.split_ascii_whitespace().nth(2).and_then(|number| number.parse::<usize>().ok());
        if active >= Some(SLOW_CONNECTIONS) { Ok(()) } else { Err(text) }
    })
    .await;
    for _ in 0..20 {
        assert_eq!(system.edge_api("/edge/status").await.status, 200);
        assert_eq!(system.get("app.test", "/").await.status, 200);
    }
    drop(slow);
    system.stop().await;
}

/// More slow connections than nginx has, so that no worker accepts another one. The pacemaker's own listener shares nothing with
/// them: no process, no worker, no limit.
#[tokio::test(flavor = "multi_thread")]
async fn operators_work_while_clients_hold_every_connection_of_the_edge() {
    let system = System::with("attack-all-connections", |builder| {
        builder.workers(1).nginx("WORKER_CONNECTIONS", "600").nginx("HEADER_TIMEOUT", "600s")
    })
    .await;
    // Lua's timers need a connection as well.
    for text in ["600 worker_connections are not enough", "could not create fake connection"] {
        system.allow(text);
    }
    let head = b"GET / HTTP/1.1\r\nHost: app.test\r\nX-Slow: ";
    let mut slow = Vec::new();
    for _ in 0..1_200 {
        let Ok(mut stream) = TcpStream::connect(system.edge).await else { break };
        if stream.write_all(head).await.is_ok() {
            slow.push(stream);
        }
    }
    eventually("the edge to have no connection left", async || {
        let log = system.log_text(&System::NGINX);
        if log.contains("worker_connections are not enough") { Ok(()) } else { Err(slow.len()) }
    })
    .await;
    let operator = async |method: &str, target: &str, body| {
        let answer = system.api_at(system.pacemaker, method, target, body).await;
        assert!(
            (200..300).contains(&answer.status),
            "{method} {target}: {} {}",
            answer.status,
            answer.text()
        );
    };
    for _ in 0..20 {
        operator("GET", "/health/ready", None).await;
        operator("GET", "/instances", None).await;
        operator("GET", "/dashboard/overview", None).await;
        operator("PUT", "/hosts/app.test", Some(serde_json::json!({"methods": ["GET"]}))).await;
    }
    drop(slow);
    eventually("the edge to accept connections again", async || {
        let answer = Request::get("unknown.test", "/").send(system.edge).await;
        answer.map(drop).map_err(|error| error.to_string())
    })
    .await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_finish_its_request_loses_its_connection() {
    let (system, _app) =
        edge("attack-silent", |builder| builder.nginx("HEADER_TIMEOUT", "1s").nginx("BODY_TIMEOUT", "1s"))
            .await;
    for part in [
        "GET / HTTP/1.1\r\nHost: app.test\r\nX-Slow: ",
        "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 100\r\n\r\nhalf",
        "POST / HTTP/1.1\r\nHost: unknown.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
    ] {
        let mut stream = TcpStream::connect(system.edge).await.unwrap();
        stream.write_all(part.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(signalbox_testkit::PATIENCE, stream.read_to_end(&mut answer)).await;
        // Closed or reset; nginx has no answer for it.
        assert!(ended.is_ok(), "still open: {part:?}");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{part:?}: {answer}");
    }
    assert_eq!(system.get("app.test", "/").await.status, 200);
    system.stop().await;
}

/// A request from another address of this machine.
async fn from(ip: Ipv4Addr, to: SocketAddr, head: &str) -> io::Result<String> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((ip, 0).into())?;
    let mut stream = socket.connect(to).await?;
    stream.write_all(head.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_does_not_occupy_the_edge() {
    let (system, app) = edge("attack-address", |builder| builder.nginx("ADDRESS_REQUESTS", "3")).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::open(system.edge).await.unwrap();
        connection.write(&Request::get("app.test", "/hold").to_bytes()).await.unwrap();
        held.push(connection);
    }
    eventually("requests held", async || equal(app.running(), 3)).await;
    for host in ["app.test", "unknown.test"] {
        let response = system.get(host, "/").await;
        assert_eq!((response.status, response.reason()), (429, "too_many_connections"), "{response:?}");
        assert_eq!(response.header("Retry-After"), Some("1"), "{response:?}");
        assert_eq!(response.json()["code"], "too_many_connections", "{response:?}");
    }
    let get = "GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n";
    let other = from(Ipv4Addr::new(127, 0, 0, 2), system.edge, get).await.unwrap();
    assert!(other.starts_with("HTTP/1.1 200 "), "{other}");
    assert_eq!(system.edge_api("/edge/status").await.status, 200, "operators have no such limit");
    app.release();
    system.until_status("app.test", 200).await;
    for _ in 0..10 {
        assert_eq!(system.get("app.test", "/").await.status, 200, "a place that was not given back");
    }
    system.stop().await;
}

/// nginx searches all headers of a request for each name in Connection: with 7,900 names and 10,000 headers, half a second.
#[tokio::test(flavor = "multi_thread")]
async fn connection_names_few_headers() {
    let (system, _app) = edge("attack-named-headers", |builder| builder).await;
    let status = async |names: &str| {
        let request = format!("GET / HTTP/1.0\r\nHost: app.test\r\nConnection: {names}\r\n\r\n");
        let response = from(Ipv4Addr::LOCALHOST, system.edge, &request).await.unwrap();
        response[9..12].to_owned()
    };
    let names = |count: usize| vec!["x-a"; count].join(", ");
    assert_eq!(status(&names(32)).await, "200");
    assert_eq!(status(&names(33)).await, "400");
    assert_eq!(status(&format!("close\r\nConnection: {}", names(3_000))).await, "400");
    assert_eq!(status(&vec!["x-a"; 4_000].join(" ")).await, "200", "that is no list of names");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_arrive_byte_by_byte_take_only_the_places_of_their_own_address() {
    let (system, _app) = edge("attack-slow-bodies", |builder| builder.nginx("ADDRESS_REQUESTS", "3")).await;
    let post = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 1000000\r\n\r\n";
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::open(system.edge).await.unwrap();
        connection.write(post.as_bytes()).await.unwrap();
        slow.push(connection);
    }
    let slow = tokio::sync::Mutex::new(slow);
    eventually("the address to have no place left", async || {
        // Each byte begins another BODY_TIMEOUT.
        for connection in slow.lock().await.iter_mut() {
            connection.write(b"x").await.unwrap();
        }
        let response = system.get("app.test", "/").await;
        equal((response.status, response.reason().to_owned()), (429, "too_many_connections".to_owned()))
    })
    .await;
    let get = "GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n";
    let other = from(Ipv4Addr::new(127, 0, 0, 2), system.edge, get).await.unwrap();
    assert!(other.starts_with("HTTP/1.1 200 "), "{other}");
    drop(slow);
    system.until_status("app.test", 200).await;
    system.stop().await;
}

/// Whether a worker has a file below a folder open. nginx removes the names of temporary files immediately.
fn has_open_files(system: &System, folder: &Path) -> bool {
    system.workers().iter().any(|worker| {
        let open = std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
        let files = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        files.into_iter().any(|file| file.starts_with(folder))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_responses_do_not_fill_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let temp = folder.path().join("temp");
    std::fs::create_dir(&temp).unwrap();
    // The workers may have another user.
    for path in [folder.path(), &temp] {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (system, app) =
        edge("attack-disk", |builder| builder.workers(1).nginx("TEMP_DIR", temp.display().to_string())).await;
    system.allow("client intended to send too large");
    // The default limit of a body is 10 MiB, announced or not.
    let head = |rest: &str| format!("POST / HTTP/1.1\r\nHost: app.test\r\n{rest}\r\n\r\n").into_bytes();
    let announced = head(&format!("Content-Length: {}", 10 * 1024 * 1024 + 1));
    let response = Connection::open(system.edge).await.unwrap().send_raw(&announced).await;
    let response = response.unwrap_or_else(|error| panic!("a body above the limit is expected: {error}"));
    assert_eq!((response.status, response.reason()), (413, "body_too_large"));
    let mut chunked = head("Transfer-Encoding: chunked");
    chunked.extend(format!("{:x}\r\n", 11 * 1024 * 1024).into_bytes());
    chunked.extend(vec![b'x'; 11 * 1024 * 1024]);
    let response = Connection::open(system.edge).await.unwrap().send_raw(&chunked).await.unwrap();
    assert_eq!((response.status, response.reason()), (413, "body_too_large"));
    let body = Request::new("POST", "app.test", "/").body(vec![b'x'; 10 * 1024 * 1024]);
    assert_eq!(body.send(system.edge).await.unwrap().status, 200);
    // A body is kept in the temporary folder and nowhere else.
    let mut upload = Connection::open(system.edge).await.unwrap();
    upload.write(&head("Content-Length: 5000000")).await.unwrap();
    upload.write(&vec![b'x'; 1_000_000]).await.unwrap();
    eventually("the body to be in the folder", async || {
        if has_open_files(&system, &temp.join("client_body")) { Ok(()) } else { Err("no file") }
    })
    .await;
    drop(upload);
    // A client that asks for much and reads nothing.
    let before = app.hits();
    let mut download = Connection::open(system.edge).await.unwrap();
    download.write(&Request::get("app.test", "/bytes/30000000").to_bytes()).await.unwrap();
    eventually("the instance to answer", async || equal(app.hits(), before + 1)).await;
    download.read_line_with("HTTP/1.1 200").await.unwrap();
    for _ in 0..20 {
        assert_eq!(system.get("app.test", "/").await.status, 200);
        assert!(!has_open_files(&system, &temp.join("proxy")), "the response is on the disk");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_opened_and_reset_end_with_their_connection() {
    let mut ports = Reservation::default();
    let h2c = SocketAddr::from(([127, 0, 0, 1], ports.add().unwrap()));
    let (system, _app) =
        edge("attack-reset", |builder| builder.workers(1).nginx("EDGE_H2C_LISTEN", h2c.to_string())).await;
    let connect = async || {
        let (client, connection) =
            h2::client::handshake(TcpStream::connect(h2c).await.unwrap()).await.unwrap();
        let ended = tokio::spawn(async move {
            let _ended = connection.await;
        });
        (client, ended)
    };
    let request = || http::Request::get("http://app.test/").body(()).unwrap();
    let (mut client, ended) = connect().await;
    let mut opened = 0;
    while opened < 20_000 {
        let Ok(mut ready) = client.ready().await else { break };
        let Ok((_, mut stream)) = ready.send_request(request(), true) else { break };
        stream.send_reset(h2::Reason::CANCEL);
        opened += 1;
        client = ready;
        tokio::task::yield_now().await;
    }
    assert!(opened < 20_000, "the connection is still open");
    ended.await.unwrap();
    let (client, _ended) = connect().await;
    let (response, _) = client.ready().await.unwrap().send_request(request(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
    // At most 1000 requests of the first connection, and one of the second. nginx 1.25.3 and Debian's 1.22.1-9+deb12u11 also
    // end a connection that opens more than 256 streams within one read.
    let handled = system.log_lines_after_a_last_request().await.len();
    assert!((2..=1001).contains(&handled), "{handled} requests were handled, {opened} were sent");
    system.stop().await;
}
