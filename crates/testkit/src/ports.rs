//! TCP ports that no other process takes.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// Reserved ports of all addresses, free again when dropped.
///
/// A reserved port is a socket that is bound and never listens. Linux does not hand out such a port to a process that
/// asks for any port. A listener that names the port and sets `SO_REUSEADDR`, as Redis, nginx and tokio do, gets it. So
/// a server can also restart on its port without a race.
#[derive(Debug, Default)]
pub struct Ports(Vec<TcpSocket>);

impl Ports {
    /// Reserves one more port.
    ///
    /// # Panics
    /// When the machine has no free port.
    pub fn reserve(&mut self) -> u16 {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option that every socket has");
        socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).expect("a free port");
        let port = socket.local_addr().expect("bound").port();
        self.0.push(socket);
        port
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_reserved_port_is_given_only_to_a_listener_that_names_it() {
        let mut ports = Ports::default();
        let reserved: Vec<u16> = (0..20).map(|_| ports.reserve()).collect();
        let others: Vec<TcpListener> =
            (0..200).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port")).collect();
        for port in reserved {
            assert!(others.iter().all(|other| other.local_addr().expect("bound").port() != port));
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the reserved port");
        }
    }
}
