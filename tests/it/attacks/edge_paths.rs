//! A client spells a path so that the edge checks one path and the application reads another; and a token leads requests to
//! hosts that it does not cover.

use std::net::Ipv4Addr;

use serde_json::json;
use signalbox_tests::{
    http::{Connection, Request},
    system::System,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

/// An application that answers with its name and the target of the request line that it received.
pub(crate) struct Echo {
    pub(crate) address: String,
    task: AbortHandle,
}

impl Echo {
    pub(crate) async fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, name));
            }
        });
        Self { address, task: task.abort_handle() }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(&mut stream).lines();
    let first = lines.next_line().await?.unwrap_or_default();
    while lines.next_line().await?.is_some_and(|line| !line.is_empty()) {}
    let body = format!("{name} {}", first.split(' ').nth(1).unwrap_or_default());
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await
}

/// The path as the most lenient application reads it: decoded once, with backslashes as slashes, without parameters, then
/// with merged slashes and resolved dots.
pub(crate) fn lenient(target: &str) -> String {
    let path = target.split(['?', '#']).next().unwrap();
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    let text = String::from_utf8_lossy(&bytes).replace('\\', "/");
    let mut kept: Vec<&str> = Vec::new();
    for segment in text.split('/').map(|segment| segment.split(';').next().unwrap()) {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

/// Spellings of a path, from pieces that servers read in different ways.
fn spellings() -> Vec<String> {
    let slashes =
        ["/", "//", "%2f", "%2F", "/./", "/x/../", "/x/%2e%2e/", "/%2e/", "\\", "%5c", "/;a/", "/x/..;/"];
    let names = ["admin", "%61dmin", "adm%69n", "admin;x=1", ";/admin", "x;/../admin", "%2561dmin"];
    let ends = ["", "/", "/users", "%2fusers", ";p=1/users", "/../admin/users", "/.", "/%2e", "?q=1", "#top"];
    let mut all = Vec::new();
    for before in slashes {
        for name in names {
            for after in ends {
                all.push(format!("/{}{name}{after}", before.trim_start_matches('/')));
                all.push(format!("/public{before}..{before}{name}{after}"));
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_of_a_path_reaches_an_application_that_reads_another_one() {
    let system = System::edge_only("attack-paths").await;
    let (public, admin) = (Echo::start("public").await, Echo::start("admin").await);
    for (host, app) in [("app.test", &public), ("admin.internal", &admin)] {
        system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {}", app.address)).await;
    }
    let policy = json!({"paths": [{"path": "/admin", "service": "admin.internal"}]});
    system.cli::<()>(System::PRIMARY, &format!("SET policy:app.test {policy}")).await;
    system.settle().await;
    let (mut answered, mut led) = (0, 0);
    for target in spellings() {
        for target in [target.clone(), format!("http://app.test{target}")] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n");
            let mut connection = Connection::open(system.edge).await.unwrap();
            let response = connection.send_raw(request.as_bytes()).await.unwrap();
            if response.status == 400 {
                continue;
            }
            assert_eq!(response.status, 200, "{target}: {}", response.text());
            let text = response.text();
            let (app, received) = text.split_once(' ').unwrap();
            let read = lenient(received);
            let inside = read == "/admin" || read.starts_with("/admin/");
            assert_eq!(inside, app == "admin", "{target}: {app} received {received} and reads {read}");
            // One that decodes nothing agrees. Only parameters, which it would not remove, are left out.
            let literal = received.split(['?', '#', ';']).next().unwrap();
            let inside_literally = literal == "/admin" || literal.starts_with("/admin/");
            assert_eq!(inside, inside_literally, "{target}: {app} received {received}");
            answered += 1;
            led += usize::from(inside);
        }
    }
    assert!(answered > 500 && led > 100 && led < answered, "{answered} {led}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_leads_paths_only_to_hosts_that_it_covers() {
    let system = System::start("attack-path-services").await;
    let secret = Echo::start("secret").await;
    let register = json!({"address": secret.address, "hostnames": ["secret.test"], "version_type_id": "1"});
    assert_eq!(system.api("PUT", "/instances/secret?wait=20s", Some(register)).await.status, 201);
    let new = json!({"name": "shop", "scopes": ["routes", "read"], "hosts": ["shop.test", "*.shop.test"]});
    let made = system.api("POST", "/tokens", Some(new)).await.json();
    let token = made["token"].as_str().unwrap();
    let ask = async |method: &str, target: &str, body: &serde_json::Value| {
        let request = Request::new(method, &system.pacemaker.to_string(), target).token(token).json(body);
        request.send(system.pacemaker).await.unwrap()
    };
    let rules = |service: &str| json!({"paths": [{"path": "/x", "service": service}]});
    for target in ["/hosts/shop.test/paths", "/hosts/shop.test"] {
        for service in ["secret.test", "SECRET.test."] {
            let refused = ask("PUT", target, &rules(service)).await;
            assert_eq!(
                (refused.status, refused.json()["code"].as_str()),
                (403, Some("host_not_allowed")),
                "{target}"
            );
        }
        let allowed = ask("PUT", target, &rules("a.shop.test")).await;
        assert_eq!(allowed.status, 200, "{}", allowed.text());
    }
    assert_eq!(ask("PUT", "/hosts/other.test/paths", &rules("a.shop.test")).await.status, 403);
    // What an operator has led to another tenant's host is not shown to the token.
    let led = system.api("PUT", "/hosts/shop.test/paths", Some(rules("secret.test"))).await;
    assert_eq!(led.status, 200, "{}", led.text());
    let explained = ask("GET", "/routes/explain?host=shop.test&path=/x", &json!(null)).await;
    assert_eq!(explained.json()["instances"], json!([]), "{}", explained.text());
    assert!(!explained.text().contains(&secret.address), "{}", explained.text());
    system.stop().await;
}
