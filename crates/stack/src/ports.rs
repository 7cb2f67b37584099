//! The ports of the parts, and reserved ports for tests.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use signalbox_settings::within;
use tokio::net::TcpSocket;

/// The ports of a stack with one router.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the default file describes the keys")]
pub struct Ports {
    #[serde(deserialize_with = "within::<_, _, 1, 65_535>")]
    pub edge: u16,
    #[serde(deserialize_with = "within::<_, _, 1, 65_535>")]
    pub edge_tls: u16,
    #[serde(deserialize_with = "within::<_, _, 1, 65_535>")]
    pub admin: u16,
    #[serde(deserialize_with = "within::<_, _, 1, 65_535>")]
    pub pacemaker: u16,
    #[serde(deserialize_with = "within::<_, _, 1, 65_535>")]
    pub sidecar: u16,
    #[serde(deserialize_with = "within::<_, _, 1, 65_535>")]
    pub routes: u16,
    #[serde(deserialize_with = "within::<_, _, 1, 65_535>")]
    pub routes_replica: u16,
    #[serde(deserialize_with = "within::<_, _, 1, 65_535>")]
    pub stats: u16,
    #[serde(deserialize_with = "within::<_, _, 1, 65_535>")]
    pub fabric: u16,
    #[serde(skip)]
    _reservation: Reservation,
}

impl Ports {
    /// Free ports, reserved until the last copy of the returned value (and the stack that got it) is gone.
    ///
    /// # Errors
    /// If the machine has no free port.
    pub fn free() -> io::Result<Self> {
        let mut reservation = Reservation::default();
        Ok(Self {
            edge: reservation.add()?,
            edge_tls: reservation.add()?,
            admin: reservation.add()?,
            pacemaker: reservation.add()?,
            sidecar: reservation.add()?,
            routes: reservation.add()?,
            routes_replica: reservation.add()?,
            stats: reservation.add()?,
            fabric: reservation.add()?,
            _reservation: reservation,
        })
    }

    /// Every port with its key in `[ports]`.
    pub fn named(&self) -> [(&'static str, u16); 9] {
        [
            ("edge", self.edge),
            ("edge_tls", self.edge_tls),
            ("admin", self.admin),
            ("pacemaker", self.pacemaker),
            ("sidecar", self.sidecar),
            ("routes", self.routes),
            ("routes_replica", self.routes_replica),
            ("stats", self.stats),
            ("fabric", self.fabric),
        ]
    }
}

/// Ports that are reserved for this process.
///
/// A reserved port is a socket that is bound but never listens. Linux does not assign such a port automatically (neither for
/// `bind` with port 0 nor for an outgoing connection), from any address: nginx listens on all of them. A listener that names the port and sets `SO_REUSEADDR`, as nginx, Redis
/// and tokio do, gets it. So there is no race, even across restarts of a part.
#[derive(Debug, Clone, Default)]
pub struct Reservation {
    sockets: Vec<Arc<TcpSocket>>,
}

impl Reservation {
    /// Reserves one more port.
    ///
    /// # Errors
    /// If the machine has no free port.
    pub fn add(&mut self) -> io::Result<u16> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        let port = socket.local_addr()?.port();
        self.sockets.push(Arc::new(socket));
        Ok(port)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, net::TcpListener};

    use super::*;

    #[test]
    fn a_reserved_port_can_be_bound_by_number_and_is_never_assigned_automatically() {
        let mut reservation = Reservation::default();
        let reserved: HashSet<u16> = (0..50).map(|_| reservation.add().unwrap()).collect();
        assert_eq!(reserved.len(), 50);
        for port in &reserved {
            TcpListener::bind(("0.0.0.0", *port)).unwrap();
        }
        let others = |address: &'static str| (0..500).map(move |_| TcpListener::bind((address, 0)).unwrap());
        let others: Vec<TcpListener> = others("127.0.0.1").chain(others("127.0.0.2")).collect();
        for other in others {
            assert!(!reserved.contains(&other.local_addr().unwrap().port()));
        }
    }
}
