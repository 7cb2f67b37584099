//! Decides which addresses an outgoing call may connect to.
//!
//! Signalbox's own addresses are rejected first ([`OwnAddresses`]), whatever networks the operator allows.
//!
//! Subscribers choose the callback, and the pacemaker sends the request from inside the operator's network. Without these
//! rules, a client could reach through a subscription whatever the pacemaker can reach. A name is resolved once for each
//! connection, and the connection uses an address of this answer that was checked. So a name server that returns another
//! address a moment later gains nothing. A pooled connection keeps the address to which it was opened.

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::client::legacy::connect::{HttpConnector, dns::Name};
use ipnet::IpNet;
use signalbox_route_table::OwnAddresses;
use tower_service::Service;

use crate::{
    Options,
    connections::{Counted, Open},
};

/// Networks of IPv4 that are not the public internet (IANA's special-purpose registry).
static PRIVATE: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        // Only global unicast addresses of IPv6 are public, except these networks.
        "2001::/23",
        "2001:db8::/32",
        "3fff::/20",
    ]
    .iter()
    .filter_map(|network| network.parse().ok())
    .collect()
});

/// The addresses that may be called: the public internet and those that the operator added, but none of
/// Signalbox's own.
#[derive(Debug, Clone)]
pub(super) struct Fence(Arc<Allowed>);

#[derive(Debug)]
struct Allowed {
    networks: Vec<IpNet>,
    addresses: Vec<SocketAddr>,
    http: bool,
    own: OwnAddresses,
}

impl Fence {
    pub(super) fn new(options: &Options) -> Self {
        Self(Arc::new(Allowed {
            networks: options.allow_networks.clone(),
            addresses: options.allow_addresses.clone(),
            http: options.allow_http,
            own: options.own.clone(),
        }))
    }

    pub(super) fn permits(&self, to: SocketAddr) -> bool {
        // An embedded IPv4 address reaches the same machine as the address itself.
        let address = match to.ip() {
            IpAddr::V6(v6) => embedded(v6).map_or(to.ip(), IpAddr::V4),
            IpAddr::V4(_) => to.ip(),
        };
        if self.0.own.forbids_call(to) || self.0.own.forbids_call(SocketAddr::new(address, to.port())) {
            return false;
        }
        if self.0.addresses.contains(&SocketAddr::new(address, to.port())) {
            return true;
        }
        let within = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
        let global = match address {
            IpAddr::V4(_) => true,
            IpAddr::V6(v6) => v6.segments()[0] & 0xe000 == 0x2000,
        };
        within(&self.0.networks) || (global && !within(&PRIVATE))
    }
}

/// The IPv4 address that a mapped, compatible, NAT64 or 6to4 address contains.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = address.octets();
    let from = |at: usize| Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3]);
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(from(12)),
        [0x2002, ..] => Some(from(2)),
        // ::1 and :: are not mapped addresses.
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => Some(from(12)),
        _ => None,
    }
}

/// The address belongs to a forbidden network. The message does not contain the address: subscribers read it,
/// and it would reveal how names resolve in the operator's network.
#[derive(Debug, thiserror::Error)]
#[error("the callback leads to a network that is not allowed")]
pub(super) struct Forbidden;

/// Plain HTTP would reveal credentials and events to every network on the path.
#[derive(Debug, thiserror::Error)]
#[error("the callback is not https, and the configuration does not allow http")]
pub(super) struct Insecure;

type Pending<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Resolves a name. Production code uses the system's resolver; tests may replace it.
pub type Lookup = Arc<dyn Fn(String) -> Pending<Vec<SocketAddr>, io::Error> + Send + Sync>;

/// Returns the system's resolver.
pub fn system_lookup() -> Lookup {
    Arc::new(|name| Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) }))
}

/// A resolver that returns only allowed addresses. It serves one connection, because it has to know the port.
#[derive(Clone)]
pub(super) struct FencedResolver {
    fence: Fence,
    lookup: Lookup,
    port: u16,
}

impl Service<Name> for FencedResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pending<Self::Response, io::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (fence, found) = (self.fence.clone(), (self.lookup)(name.as_str().to_owned()));
        let port = self.port;
        Box::pin(async move {
            let found = found.await?.into_iter().map(|address| SocketAddr::new(address.ip(), port));
            let addresses: Vec<_> = found.filter(|address| fence.permits(*address)).collect();
            if addresses.is_empty() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, Forbidden));
            }
            Ok(addresses.into_iter())
        })
    }
}

/// Opens connections to allowed addresses. A literal IP address does not pass through the resolver, so it is
/// checked here.
#[derive(Clone)]
pub(super) struct FencedConnector {
    fence: Fence,
    lookup: Lookup,
    connect_timeout: Duration,
    open: Open,
}

impl FencedConnector {
    pub(super) fn new(fence: Fence, lookup: Lookup, connect_timeout: Duration, open: Open) -> Self {
        Self { fence, lookup, connect_timeout, open }
    }

    /// Creates a connector for one connection, because its resolver has to know the port. This is cheap
    /// compared with a connection.
    fn for_port(&self, port: u16) -> HttpConnector<FencedResolver> {
        let resolver = FencedResolver { fence: self.fence.clone(), lookup: Arc::clone(&self.lookup), port };
        let mut inner = HttpConnector::new_with_resolver(resolver);
        inner.enforce_http(false);
        inner.set_connect_timeout(Some(self.connect_timeout));
        inner.set_nodelay(true);
        inner
    }
}

impl Service<Uri> for FencedConnector {
    type Response = Counted<<HttpConnector<FencedResolver> as Service<Uri>>::Response>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pending<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let secure = uri.scheme_str() == Some("https");
        if !secure && !self.fence.0.http {
            return Box::pin(async { Err(Insecure.into()) });
        }
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let host = uri.host().unwrap_or_default();
        let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let literal = literal.parse().map(|address: IpAddr| SocketAddr::new(address, port));
        if literal.is_ok_and(|address| !self.fence.permits(address)) {
            return Box::pin(async { Err(Forbidden.into()) });
        }
        let (mut connector, open) = (self.for_port(port), self.open.clone());
        Box::pin(async move {
            std::future::poll_fn(|cx| Service::<Uri>::poll_ready(&mut connector, cx)).await?;
            // Counted while it is being opened, too.
            let open = open.add();
            Ok(Counted::new(connector.call(uri).await?, open))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(networks: &[&str], addresses: &[&str], own: OwnAddresses) -> Fence {
        Fence::new(&Options {
            allow_networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
            allow_addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            allow_http: false,
            own,
            ca_file: None,
            connect_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            budget: crate::Budget::default(),
        })
    }

    fn permits(fence: &Fence, address: &str) -> bool {
        fence.permits(SocketAddr::new(address.parse().unwrap(), 443))
    }

    #[test]
    fn every_network_of_the_table_can_be_read() {
        assert_eq!(PRIVATE.len(), 18);
    }

    #[test]
    fn only_the_public_internet_may_be_called() {
        let fence = fence(&[], &[], OwnAddresses::default());
        for public in
            ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::808:808"]
        {
            assert!(permits(&fence, public), "{public}");
        }
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.31.255.255",
            "192.168.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "fec0::1",
            "2001:db8::1",
            "2001::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2002:c0a8:101::1",
        ] {
            assert!(!permits(&fence, private), "{private}");
        }
    }

    #[test]
    fn the_operator_opens_gates() {
        let fence = fence(&["127.0.0.0/8", "fd00::/8"], &[], OwnAddresses::default());
        assert!(
            permits(&fence, "127.0.0.1") && permits(&fence, "::ffff:127.0.0.1") && permits(&fence, "fd00::1")
        );
        assert!(!permits(&fence, "10.0.0.1") && !permits(&fence, "fc00::1"));
    }

    #[test]
    fn an_allowed_address_opens_one_port() {
        let fence = fence(&[], &["127.0.0.1:9003"], OwnAddresses::default());
        let permits = |to: &str| fence.permits(to.parse().unwrap());
        assert!(permits("127.0.0.1:9003") && permits("[::ffff:127.0.0.1]:9003"));
        assert!(!permits("127.0.0.1:9004") && !permits("127.0.0.2:9003"));
    }

    #[test]
    fn signalbox_itself_is_never_called() {
        let internal = ["127.0.0.1:6404", "10.1.2.3:8700"].iter().map(|own| own.parse().unwrap()).collect();
        let own = OwnAddresses::new(internal, Vec::new(), |_| false);
        let fence = fence(&["0.0.0.0/0", "::/0"], &["127.0.0.1:6404"], own);
        for to in [
            "127.0.0.1:6404",
            "127.7.7.7:6404",
            "[::1]:6404",
            "[::ffff:127.0.0.1]:6404",
            "[64:ff9b::7f00:1]:6404",
            "[2002:7f00:1::]:6404",
            "[::127.0.0.1]:6404",
            "0.0.0.0:6404",
            "10.1.2.3:8700",
            "[64:ff9b::a01:203]:8700",
        ] {
            assert!(!fence.permits(to.parse().unwrap()), "{to}");
        }
        assert!(fence.permits("127.0.0.1:6405".parse().unwrap()));
    }
}
