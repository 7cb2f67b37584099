//! What a daemon's own listener accepts, and whose requests they are.
//!
//! **Requests that an edge has proxied are rejected.** Every edge adds its name to the header `CDN-Loop` (RFC 8586) of a request
//! that it sends to an instance. A daemon that receives such a request was registered as an instance by mistake or on purpose.
//! Its answers would then be open to clients of the edge, and it would take them for operators on its own machine.
//!
//! **Only names of this listener are answered**, with `Host`: IP addresses, `localhost`, the name of this machine, and names
//! from the configuration. A web page can have a name that resolves to this machine (DNS rebinding), and would otherwise read
//! what needs no token. nginx's admin listener checks the names of its requests itself.
//!
//! **nginx's admin listener proves that a request comes from it.** It knows the client's address, and reports it in
//! `X-Forwarded-For`. Any local process could send this header, to guess tokens under invented addresses, or to block those of
//! others. So each request of the admin listener contains a proof that it is from this client. Without it, the address of the
//! connection counts.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;

use crate::serve::Peer;

/// Lists the intermediaries that a request has passed through.
static CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");
/// The prefix of every edge's name.
const EDGE_PREFIX: &str = "signalbox-";
/// Lists the clients that a request was forwarded for. nginx appends the address of its own client.
static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The header with the proof that a request comes from another part of Signalbox.
pub static PROOF: HeaderName = HeaderName::from_static("x-signalbox-proof");

/// A host name under which clients call a listener.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ListenerName(String);

impl TryFrom<String> for ListenerName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let good = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
        if (1..=253).contains(&text.len()) && text.chars().all(good) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(format!("`{text}` is not a host name: write `pacemaker.example`, without a scheme or port"))
    }
}

/// Whether a proof shows now that nginx forwards a request of the client with this address: proof and address, both as text.
pub type IsProven = Arc<dyn Fn(&str, &str) -> bool + Send + Sync>;

/// The rules of one listener.
#[derive(Clone, Default)]
pub struct Door {
    names: Vec<String>,
    is_proven: Option<IsProven>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Door {
    /// A listener that is called by `names` and the name of this machine. Without `is_proven`, no request is taken for one of
    /// nginx.
    pub fn new(names: &[ListenerName], machine: &str, is_proven: Option<IsProven>) -> Self {
        let machine = Some(machine.to_ascii_lowercase()).filter(|name| !name.is_empty());
        let names = names.iter().map(|name| name.0.clone()).chain(machine).collect();
        Self { names, is_proven }
    }

    /// Whether a request comes from nginx's admin listener.
    pub fn is_front(&self, headers: &HeaderMap) -> bool {
        self.forwarded(headers).is_some()
    }

    /// The address of nginx's client as text, if nginx proves it.
    fn forwarded<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let is_proven = self.is_proven.as_ref()?;
        let mut presented = headers.get_all(&PROOF).iter();
        let (Some(proof), None) = (presented.next(), presented.next()) else { return None };
        // What the client sent comes first, and may be any bytes.
        let list = headers.get_all(&FORWARDED_FOR).iter().next_back()?.as_bytes();
        let client = list.rsplit(|byte| *byte == b',').next().unwrap_or(list);
        let client = std::str::from_utf8(client).ok()?.trim();
        is_proven(proof.to_str().ok()?, client).then_some(client)
    }

    /// The address of the client: the last one that nginx has forwarded, or else the other end of the connection.
    pub fn client(&self, peer: Option<&Peer>, headers: &HeaderMap) -> IpAddr {
        let peer = peer.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.0.ip().to_canonical());
        // nginx may have no address for its client, as on a Unix socket.
        let client = self.forwarded(headers).and_then(|client| client.parse().ok());
        client.map_or(peer, |address: IpAddr| address.to_canonical())
    }

    /// Rejects requests that came through an edge or are for another host name, and passes others on to `next`.
    pub async fn admit(&self, request: Request, next: impl AsyncFnOnce(Request) -> Response) -> Response {
        if is_proxied(request.headers()) {
            return problem(
                (StatusCode::FORBIDDEN, "Forbidden", "proxied_by_edge"),
                "This request came through an edge. A daemon of Signalbox cannot be an instance.",
            );
        }
        if !self.is_front(request.headers()) && !self.is_named(&request) {
            return problem(
                (StatusCode::MISDIRECTED_REQUEST, "Misdirected Request", "unknown_admin_name"),
                "This listener does not answer for this host name. Use an IP address or localhost, or add the name to `names`.",
            );
        }
        next(request).await
    }

    /// Whether the request names this listener. No browser sends a request without a name.
    fn is_named(&self, request: &Request) -> bool {
        let hosts = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().ok());
        let target = request.uri().authority().map(|authority| Some(authority.as_str()));
        hosts.chain(target).all(|host| host.is_some_and(|host| self.answers(host)))
    }

    fn answers(&self, host: &str) -> bool {
        if let Some(rest) = host.strip_prefix('[') {
            let (address, port) = rest.split_once(']').unwrap_or((rest, "]"));
            let port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
            return port && address.parse::<std::net::Ipv6Addr>().is_ok();
        }
        let (name, port) = host.split_once(':').unwrap_or((host, ""));
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let known =
            name.parse::<std::net::Ipv4Addr>().is_ok() || name == "localhost" || self.names.contains(&name);
        is_port(port) && known
    }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether any line of the header names an edge.
fn is_proxied(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(&CDN_LOOP).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).any(|name| {
        let name = name.trim_ascii_start();
        name.get(..EDGE_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(EDGE_PREFIX.as_bytes()))
    })
}

fn problem((status, title, code): (StatusCode, &str, &str), detail: &str) -> Response {
    let number = status.as_u16();
    let body = format!(
        "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{number},\"code\":\"{code}\",\"detail\":\"{detail}\"}}\n"
    );
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::HeaderValue};

    use super::*;

    fn headers(pairs: &[(&HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn door() -> Door {
        let names = ["Pacemaker.example"].map(|name| ListenerName::try_from(name.to_owned()).unwrap());
        let is_proven = |proof: &str, client: &str| proof == format!("proof of {client}");
        Door::new(&names, "router-1", Some(Arc::new(is_proven)))
    }

    #[test]
    fn an_edge_is_recognized_anywhere_in_the_list() {
        let proxied = |lines: &[&'static str]| {
            is_proxied(&headers(&lines.iter().map(|line| (&CDN_LOOP, *line)).collect::<Vec<_>>()))
        };
        for lines in [
            &["signalbox-a-80"][..],
            &["other.example, signalbox-a; v=1"],
            &["other.example", "SIGNALBOX-b"],
            &["\"quoted,signalbox-a"],
        ] {
            assert!(proxied(lines), "{lines:?}");
        }
        for lines in [&[][..], &["other.example"], &["my-signalbox-a, signal"], &[""]] {
            assert!(!proxied(lines), "{lines:?}");
        }
    }

    #[test]
    fn only_names_of_the_listener_are_answered() {
        let door = door();
        for host in [
            "127.0.0.1:8700",
            "10.0.0.9",
            "[::1]:8700",
            "[fd00::1]",
            "LOCALHOST:1",
            "localhost.",
            "router-1:8700",
            "pacemaker.EXAMPLE:80",
        ] {
            assert!(door.answers(host), "{host}");
        }
        for host in [
            "evil.example",
            "pacemaker.example.evil.example",
            "x.localhost",
            "127.0.0.1.evil.example",
            "router-1.evil.example",
            "127.0.0.1:80:90",
            "[::1]evil.example",
            "[::1",
            "::1",
            "1:a",
            "localhost:80@evil.example",
            "",
        ] {
            assert!(!door.answers(host), "{host}");
        }
        assert!(!Door::new(&[], "", None).answers(""));
    }

    #[test]
    fn all_names_of_a_request_are_checked() {
        let door = door();
        let named = |target: &str, hosts: &[&str]| {
            let mut request = Request::builder().uri(target);
            for host in hosts {
                request = request.header(header::HOST, *host);
            }
            door.is_named(&request.body(Body::empty()).unwrap())
        };
        assert!(named("/", &["localhost"]) && named("/", &[]) && named("http://localhost/", &["localhost"]));
        assert!(!named("/", &["localhost", "evil.example"]) && !named("/", &["evil.example", "localhost"]));
        assert!(!named("http://evil.example/", &["localhost"]) && !named("http://evil.example/", &[]));
        let name = ListenerName::try_from("http://x:80".to_owned());
        assert!(name.unwrap_err().contains("without a scheme"));
    }

    #[test]
    fn a_forwarded_address_counts_only_with_a_proof() {
        let door = door();
        let peer = Peer("127.0.0.1:1".parse().unwrap());
        let client =
            |pairs: &[(&HeaderName, &'static str)]| door.client(Some(&peer), &headers(pairs)).to_string();
        let forwarded = (&FORWARDED_FOR, "6.6.6.6, 10.0.0.9");
        let proof = (&PROOF, "proof of 10.0.0.9");
        assert_eq!(client(&[forwarded, proof]), "10.0.0.9");
        for other in ["", "proof of 6.6.6.6", "proof of 6.6.6.6, 10.0.0.9", "proof of "] {
            assert_eq!(client(&[forwarded, (&PROOF, other)]), "127.0.0.1", "{other}");
        }
        assert_eq!(client(&[forwarded]), "127.0.0.1");
        assert_eq!(client(&[proof]), "127.0.0.1");
        for bytes in [&b"\xe9, 10.0.0.9"[..], "é,10.0.0.9".as_bytes(), b"\xff\xfe,, 10.0.0.9"] {
            let mut sent = headers(&[proof]);
            sent.append(&FORWARDED_FOR, HeaderValue::from_bytes(bytes).unwrap());
            assert_eq!(door.client(Some(&peer), &sent).to_string(), "10.0.0.9", "{bytes:?}");
        }
        assert_eq!(client(&[forwarded, proof, proof]), "127.0.0.1");
        assert_eq!(client(&[(&FORWARDED_FOR, "unix:"), (&PROOF, "proof of unix:")]), "127.0.0.1");
        let mapped = [(&FORWARDED_FOR, "::ffff:10.0.0.9"), (&PROOF, "proof of ::ffff:10.0.0.9")];
        assert_eq!(client(&mapped), "10.0.0.9");
        let without = Door::new(&[], "", None);
        let headers = headers(&[forwarded, proof]);
        assert_eq!(without.client(Some(&peer), &headers).to_string(), "127.0.0.1");
        assert!(!without.is_front(&headers));
    }
}
