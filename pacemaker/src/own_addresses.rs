//! Signalbox's own addresses, from the configuration. Host names among them are resolved again regularly.

use std::{
    net::{IpAddr, UdpSocket},
    time::Duration,
};

use futures_util::future::join_all;
use signalbox_route_table::{OwnAddresses, Reserved};
use tokio::{net::lookup_host, time};
use tokio_util::sync::CancellationToken;

use crate::config::Config;

/// How often names are resolved. A server that moves is reached by a new connection, which resolves its name, too.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long a start waits for the resolver. A name that is not resolved reserves its port on every address.
const PATIENCE: Duration = Duration::from_secs(2);

/// All addresses of the configuration.
pub(crate) fn of(config: &Config) -> OwnAddresses {
    let redis = &config.redis;
    let servers = [&redis.routes, &redis.stats, &redis.fabric].into_iter().chain(&redis.routes_replicas);
    let mut internal: Vec<Reserved> = servers.flat_map(|url| Reserved::redis(url.as_str())).collect();
    internal.push(Reserved::listener(config.listen));
    internal.extend(config.reserved_addresses.iter().cloned());
    OwnAddresses::new(internal, config.edge_addresses.clone(), is_local)
}

/// Whether an address belongs to this machine: a socket can be bound only to such an address. Nothing is sent.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// Resolves the names once, for the start.
pub(crate) async fn resolve_first(own: &OwnAddresses) {
    if time::timeout(PATIENCE, resolve(own)).await.is_err() {
        tracing::warn!(
            "names of Redis servers not resolved in time; their ports are reserved on every address"
        );
    }
}

/// Resolves the names again and again, until `shutdown`.
pub(crate) async fn keep_resolved(own: OwnAddresses, shutdown: CancellationToken) {
    if own.names().is_empty() {
        return;
    }
    while shutdown.run_until_cancelled(time::sleep(INTERVAL)).await.is_some() {
        if shutdown.run_until_cancelled(resolve(&own)).await.is_none() {
            return;
        }
    }
}

async fn resolve(own: &OwnAddresses) {
    let lookups = own.names().into_iter().map(|name| async move {
        match lookup_host((name.as_str(), 0)).await {
            Ok(found) => own.resolved(&name, found.map(|address| address.ip())),
            Err(error) => tracing::debug!(name, %error, "name of a Redis server not resolved"),
        }
    });
    join_all(lookups).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_local() {
        assert!(is_local("127.0.0.1".parse().unwrap()));
        assert!(!is_local("192.0.2.1".parse().unwrap()));
    }

    #[tokio::test]
    async fn a_name_is_resolved() {
        let names = vec![Reserved::Named { host: "localhost".to_owned(), port: 1 }];
        let own = OwnAddresses::new(names, Vec::new(), is_local);
        assert!(own.forbids_call("10.0.0.1:1".parse().unwrap()));
        resolve_first(&own).await;
        assert!(own.forbids_call("127.0.0.1:1".parse().unwrap()));
        assert!(!own.forbids_call("10.0.0.1:1".parse().unwrap()));
    }
}
