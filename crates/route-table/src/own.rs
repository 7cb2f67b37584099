//! The addresses of Signalbox itself.
//!
//! [`OwnAddresses`] is the one rule for instances, health checks, webhooks, feeds and backends: code that connects to
//! an address that a client chose checks the address of the connection with it.
//!
//! - *Internal* addresses are never connected to: the pacemaker, the sidecar, the admin listener and every Redis.
//! - *Edge* addresses are never an instance, because a request would come back to the edge without end. They may be
//!   called: an application behind the edge can receive webhooks at its public name.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::{Arc, PoisonError, RwLock},
};

use serde_with::DeserializeFromStr;

/// Redis's port if a URL specifies none.
const REDIS_PORT: u16 = 6379;
/// Maximum number of addresses that are stored for one name.
const MAX_ADDRESSES_OF_A_NAME: usize = 64;

/// An address of Signalbox itself.
#[derive(Debug, Clone, PartialEq, Eq, DeserializeFromStr)]
pub enum Reserved {
    /// This port on every address.
    Port(u16),
    /// One IP address with its port. A loopback address reserves the port on all loopback addresses;
    /// `0.0.0.0` and `[::]` reserve it on every address of this machine.
    Address(SocketAddr),
    /// A server by its name. Until the name is resolved, the port is reserved on every address.
    Named {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(String),
}

impl Reserved {
    /// A listener of this process. A wildcard address reserves its port on every address, because other
    /// pacemakers usually listen on the same port.
    pub fn listener(address: SocketAddr) -> Self {
        if address.ip().is_unspecified() { Self::Port(address.port()) } else { Self::Address(address) }
    }

    /// The addresses of a Redis URL; several if it is a cluster.
    pub fn redis(url: &str) -> Vec<Self> {
        let Some((scheme, rest)) = url.split_once("://") else { return Vec::new() };
        if scheme.contains("unix") {
            let path = rest.split(['?', '#']).next().unwrap_or_default();
            let path = path.rsplit_once('@').map_or(path, |(_, path)| path);
            return vec![Self::Unix(canonical_path(path))];
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let nodes = authority.rsplit_once('@').map_or(authority, |(_, nodes)| nodes);
        nodes.split(',').filter(|node| !node.is_empty()).map(Self::redis_node).collect()
    }

    fn redis_node(node: &str) -> Self {
        if let Ok(address) = node.parse() {
            return Self::Address(address);
        }
        let bare = node.strip_prefix('[').and_then(|node| node.strip_suffix(']')).unwrap_or(node);
        if let Ok(ip) = bare.parse() {
            return Self::Address(SocketAddr::new(ip, REDIS_PORT));
        }
        let (host, port) = node.rsplit_once(':').unwrap_or((node, ""));
        let port = port.parse().unwrap_or(REDIS_PORT);
        if host.eq_ignore_ascii_case("localhost") {
            return Self::Address(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
        }
        Self::Named { host: host.to_ascii_lowercase(), port }
    }
}

impl FromStr for Reserved {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("unix:") {
            // `unix:///path` is another spelling of `unix:/path`.
            let path = path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path);
            return Ok(Self::Unix(canonical_path(path)));
        }
        if let Ok(port) = text.strip_prefix("*:").unwrap_or(text).parse() {
            return Ok(Self::Port(port));
        }
        let message = || format!("`{text}` is not IP:PORT, PORT or unix:/PATH");
        text.parse().map(Self::Address).map_err(|_| message())
    }
}

/// `/var/run` is a symbolic link to `/run` on current systems, so both spellings reach the same socket.
pub(crate) fn canonical_path(path: &str) -> String {
    match path.strip_prefix("/var/run/") {
        Some(rest) => format!("/run/{rest}"),
        None => path.to_owned(),
    }
}

/// All addresses of Signalbox itself. Cheap to clone; clones share the resolved addresses.
#[derive(Clone)]
pub struct OwnAddresses(Arc<Inner>);

struct Inner {
    internal: Vec<Reserved>,
    edge: Vec<Reserved>,
    /// Whether an address belongs to this machine.
    is_local: fn(IpAddr) -> bool,
    /// All addresses to which each name has resolved so far.
    names: RwLock<BTreeMap<String, Vec<IpAddr>>>,
}

impl Default for OwnAddresses {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new(), |_| false)
    }
}

impl fmt::Debug for OwnAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { internal, edge, .. } = &*self.0;
        f.debug_struct("OwnAddresses").field("internal", internal).field("edge", edge).finish_non_exhaustive()
    }
}

impl OwnAddresses {
    /// `is_local` returns whether an IP address belongs to this machine.
    pub fn new(internal: Vec<Reserved>, edge: Vec<Reserved>, is_local: fn(IpAddr) -> bool) -> Self {
        let named = internal.iter().chain(&edge).filter_map(|one| match one {
            Reserved::Named { host, .. } => Some((host.clone(), Vec::new())),
            _ => None,
        });
        let names = RwLock::new(named.collect());
        Self(Arc::new(Inner { internal, edge, is_local, names }))
    }

    /// The names that have to be resolved.
    pub fn names(&self) -> Vec<String> {
        self.0.names.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Adds the current addresses of a name. Earlier addresses stay reserved, because a connection to them
    /// may still be open.
    pub fn resolved(&self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) {
        let mut names = self.0.names.write().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = names.get_mut(name) else { return };
        for address in addresses.into_iter().map(|address| address.to_canonical()) {
            if !known.contains(&address) {
                known.push(address);
            }
        }
        let surplus = known.len().saturating_sub(MAX_ADDRESSES_OF_A_NAME);
        known.drain(..surplus);
    }

    /// Whether a call on behalf of a client must not connect to this address.
    pub fn forbids_call(&self, to: SocketAddr) -> bool {
        self.0.internal.iter().any(|one| self.covers(one, to))
    }

    /// Whether this address must not be registered as an instance.
    pub fn forbids_instance(&self, address: SocketAddr) -> bool {
        self.forbids_call(address) || self.0.edge.iter().any(|one| self.covers(one, address))
    }

    /// Whether a Unix socket belongs to Signalbox.
    pub(crate) fn forbids_socket(&self, path: &str) -> bool {
        let path = canonical_path(path);
        let Inner { internal, edge, .. } = &*self.0;
        internal.iter().chain(edge).any(|one| matches!(one, Reserved::Unix(own) if *own == path))
    }

    fn covers(&self, one: &Reserved, address: SocketAddr) -> bool {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        // A connection to 0.0.0.0 reaches this machine. A listener on one loopback address is treated as
        // reachable on all of them: blocking a few ports is better than routing requests to our own Redis.
        let here = || ip.is_loopback() || ip.is_unspecified();
        match one {
            Reserved::Port(own) => *own == port,
            Reserved::Address(own) if own.port() != port => false,
            Reserved::Address(own) => {
                let own = own.ip().to_canonical();
                if own.is_unspecified() {
                    here() || (self.0.is_local)(ip)
                } else {
                    own == ip || (own.is_loopback() && here())
                }
            }
            Reserved::Named { port: own, .. } if *own != port => false,
            Reserved::Named { host, .. } => {
                let names = self.0.names.read().unwrap_or_else(PoisonError::into_inner);
                let known = names.get(host).map(Vec::as_slice).unwrap_or_default();
                known.is_empty()
                    || known.contains(&ip)
                    || (here() && known.iter().any(|known| known.is_loopback()))
            }
            Reserved::Unix(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn own(internal: &[&str], edge: &[&str]) -> OwnAddresses {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        OwnAddresses::new(parse(internal), parse(edge), |ip| ip == IpAddr::from([10, 9, 9, 9]))
    }

    #[test]
    fn a_loopback_port_is_reserved_on_every_loopback_address() {
        let own = own(&["127.0.0.1:6401", "8080"], &[]);
        for internal in
            ["127.0.0.1:6401", "127.0.0.9:6401", "[::1]:6401", "[::ffff:127.0.0.1]:6401", "0.0.0.0:6401"]
        {
            assert!(
                own.forbids_call(address(internal)) && own.forbids_instance(address(internal)),
                "{internal}"
            );
        }
        assert!(!own.forbids_call(address("10.0.0.1:6401")));
        assert!(!own.forbids_call(address("127.0.0.1:6402")));
        assert!(own.forbids_call(address("10.0.0.1:8080")));
    }

    #[test]
    fn a_wildcard_is_reserved_on_every_address_of_this_machine() {
        for wildcard in ["0.0.0.0:8081", "[::]:8081"] {
            let own = own(&[wildcard], &[]);
            for here in ["127.0.0.1:8081", "[::1]:8081", "0.0.0.0:8081", "10.9.9.9:8081"] {
                assert!(own.forbids_call(address(here)), "{wildcard} {here}");
            }
            assert!(!own.forbids_call(address("10.0.0.1:8081")), "{wildcard}");
        }
        assert_eq!(Reserved::listener(address("0.0.0.0:8700")), Reserved::Port(8700));
        assert_eq!(Reserved::listener(address("10.0.0.1:1")), Reserved::Address(address("10.0.0.1:1")));
    }

    #[test]
    fn the_edge_cannot_be_an_instance_and_may_be_called() {
        let own = own(&[], &["0.0.0.0:8080"]);
        assert!(own.forbids_instance(address("10.9.9.9:8080")));
        assert!(!own.forbids_call(address("10.9.9.9:8080")));
    }

    #[test]
    fn every_spelling_of_a_redis_is_reserved() {
        let reserved = |text: &str| vec![Reserved::Address(address(text))];
        assert_eq!(Reserved::redis("redis://user:secret@10.0.0.1:6401/"), reserved("10.0.0.1:6401"));
        assert_eq!(Reserved::redis("redis://10.0.0.1"), reserved("10.0.0.1:6379"));
        assert_eq!(Reserved::redis("rediss://[fd00::1]:6401/0?a=b"), reserved("[fd00::1]:6401"));
        assert_eq!(Reserved::redis("redis://[fd00::1]/"), reserved("[fd00::1]:6379"));
        assert_eq!(Reserved::redis("redis://LocalHost:6401/"), reserved("127.0.0.1:6401"));
        assert_eq!(
            Reserved::redis("redis+cluster://u:p@10.0.0.1:7000,Fabric:7001/"),
            [
                Reserved::Address(address("10.0.0.1:7000")),
                Reserved::Named { host: "fabric".into(), port: 7001 }
            ]
        );
        for url in [
            "redis+unix:///run/r.sock",
            "unix:///run/r.sock",
            "redis+unix:///run/r.sock?db=1",
            "redis+unix:///var/run/r.sock",
        ] {
            assert_eq!(Reserved::redis(url), [Reserved::Unix("/run/r.sock".to_owned())], "{url}");
        }
    }

    #[test]
    fn every_spelling_of_an_own_socket_is_reserved() {
        for spelling in ["unix:/run/r.sock", "unix:///run/r.sock", "unix:/var/run/r.sock"] {
            let own = own(&[spelling], &[]);
            assert!(own.forbids_socket("/run/r.sock") && own.forbids_socket("/var/run/r.sock"), "{spelling}");
            assert!(!own.forbids_socket("/run/s.sock"));
        }
    }

    #[test]
    fn a_name_reserves_its_port_everywhere_until_it_is_resolved() {
        let internal = Reserved::redis("redis://fabric:6404/");
        let own = OwnAddresses::new(internal, Vec::new(), |_| false);
        assert_eq!(own.names(), ["fabric"]);
        assert!(own.forbids_call(address("10.1.1.1:6404")));
        assert!(!own.forbids_call(address("10.1.1.1:6405")));
        own.resolved("fabric", []);
        assert!(own.forbids_call(address("10.1.1.1:6404")), "no address is no answer");
        own.clone().resolved("fabric", [IpAddr::from([10, 1, 1, 1])]);
        own.resolved("other", [IpAddr::from([10, 1, 1, 5])]);
        assert!(own.forbids_call(address("10.1.1.1:6404")));
        assert!(!own.forbids_call(address("10.1.1.2:6404")));
        own.resolved("fabric", [IpAddr::from([10, 1, 1, 2])]);
        assert!(own.forbids_call(address("10.1.1.1:6404")) && own.forbids_call(address("10.1.1.2:6404")));
        for n in 0..=u8::MAX {
            own.resolved("fabric", [IpAddr::from([10, 2, 2, n])]);
        }
        assert!(own.0.names.read().unwrap()["fabric"].len() <= MAX_ADDRESSES_OF_A_NAME);
        assert!(own.forbids_call(address("10.2.2.255:6404")));
    }
}
