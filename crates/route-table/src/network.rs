//! Addresses that instances may or may not have.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

/// A network in which instances may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// A range of IP addresses.
    Ip(IpNet),
    /// Unix sockets on the router's own machine.
    Unix,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "unix" => Ok(Self::Unix),
            text => text
                .parse()
                .map(Self::Ip)
                .map_err(|_| format!("`{text}` is neither a network like 10.0.0.0/8 nor \"unix\"")),
        }
    }
}

/// An address that is never an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reserved {
    /// The port on every address.
    Port(u16),
    /// One IP address with its port.
    Address(SocketAddr),
    /// The path of a Unix socket.
    Unix(String),
}

impl Reserved {
    /// Whether `ip` and `port` are reserved. A listener on one loopback address, or on all addresses, is considered
    /// reachable at each loopback address: routing requests to our own Redis is worse than losing a port.
    pub(crate) fn is_socket(&self, ip: IpAddr, port: u16) -> bool {
        match self {
            Self::Port(reserved) => *reserved == port,
            Self::Address(reserved) => {
                let own = reserved.ip().to_canonical();
                let loopback = ip.is_loopback() || ip.is_unspecified();
                reserved.port() == port
                    && (own == ip || ((own.is_loopback() || own.is_unspecified()) && loopback))
            }
            Self::Unix(_) => false,
        }
    }

    /// The addresses of a Redis, several if it is a cluster. A host name is not resolved: instances are registered by IP,
    /// and `reserved_addresses` can name such a server.
    pub fn redis(url: &str) -> Vec<Self> {
        if let Some(path) = url.strip_prefix("redis+unix://") {
            return vec![Self::Unix(path.split('?').next().unwrap_or(path).to_owned())];
        }
        let authority = url.split_once("://").map_or("", |(_, rest)| rest);
        let authority = authority.split(['/', '?']).next().unwrap_or_default();
        let nodes = authority.rsplit_once('@').map_or(authority, |(_, nodes)| nodes);
        let nodes = nodes.split(',').map(|node| node.replacen("localhost", "127.0.0.1", 1));
        nodes.filter_map(|node| node.parse().map(Self::Address).ok()).collect()
    }

    pub(crate) fn is_unix(&self, path: &str) -> bool {
        matches!(self, Self::Unix(reserved) if reserved == path)
    }
}

impl FromStr for Reserved {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.to_owned()));
        }
        if let Ok(port) = text.strip_prefix("*:").unwrap_or(text).parse() {
            return Ok(Self::Port(port));
        }
        let message = || format!("`{text}` is not IP:PORT, PORT or unix:/PATH");
        text.parse().map(Self::Address).map_err(|_| message())
    }
}

macro_rules! deserialize_from_str {
    ($($type:ty),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

deserialize_from_str!(Network, Reserved);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_loopback_port_is_reserved_on_every_loopback_address() {
        let reserved: Reserved = "127.0.0.1:6401".parse().unwrap();
        assert!(reserved.is_socket("127.0.0.9".parse().unwrap(), 6401));
        assert!(reserved.is_socket("::1".parse().unwrap(), 6401));
        assert!(!reserved.is_socket("10.0.0.1".parse().unwrap(), 6401));
        assert!(!reserved.is_socket("127.0.0.1".parse().unwrap(), 6402));
        assert!("8080".parse::<Reserved>().unwrap().is_socket("10.0.0.1".parse().unwrap(), 8080));
    }

    #[test]
    fn the_address_of_a_redis_is_reserved() {
        let url = "redis://user:secret@10.0.0.1:6401/";
        assert_eq!(Reserved::redis(url), [Reserved::Address("10.0.0.1:6401".parse().unwrap())]);
        let unix = "redis+unix:///run/r.sock";
        assert_eq!(Reserved::redis(unix), [Reserved::Unix("/run/r.sock".to_owned())]);
    }
}
