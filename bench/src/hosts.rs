//! The hosts that are asked for, and where they lead.

use std::net::SocketAddr;

use signalbox_store::{RoutesPrimary, Value, keys};

/// Commands of one round trip when a table is loaded.
const BATCH: usize = 5_000;

/// A table of routes that look like those of a hosting company: `shop-000042.customers.example`.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    name: String,
    count: usize,
    instances: Vec<SocketAddr>,
    each: usize,
}

/// One host and its instances.
#[derive(Debug)]
pub(crate) struct Route {
    /// The host name.
    pub(crate) host: String,
    /// Where it leads.
    pub(crate) instances: Vec<SocketAddr>,
}

impl Table {
    /// `count` hosts called after `name`, each with `each` of the instances in turn.
    pub(crate) fn new(name: &str, count: usize, instances: &[SocketAddr], each: usize) -> Self {
        Self { name: name.to_owned(), count, instances: instances.to_vec(), each }
    }

    /// How many hosts.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The name of one host.
    pub(crate) fn host(&self, index: usize) -> String {
        format!("{}-{index:07}.customers.example", self.name)
    }

    /// The names of all hosts, in order.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.count).map(|index| self.host(index))
    }

    /// All of them, in order.
    pub(crate) fn routes(&self) -> impl Iterator<Item = Route> + '_ {
        (0..self.count).map(|index| Route {
            host: self.host(index),
            instances: (0..self.each).map(|n| self.instances[(index + n) % self.instances.len()]).collect(),
        })
    }

    /// Writes the table as an operator would by hand: the seed's keys and a new serial.
    pub(crate) async fn load(&self, routes: &RoutesPrimary) -> anyhow::Result<()> {
        let mut batch = routes.batch();
        for (index, route) in self.routes().enumerate() {
            let addresses: Vec<_> = route.instances.iter().map(ToString::to_string).collect();
            batch.add("SADD", &keys::routes::instances(&route.host), addresses);
            // A thousand version types, as the log of the sidecar's measurement has them.
            batch.add("SET", &keys::routes::logkey(&route.host), index % 1000 + 1);
            if index % BATCH == BATCH - 1 {
                std::mem::replace(&mut batch, routes.batch()).query::<Vec<Value>>().await?;
            }
        }
        batch.add("INCRBY", &keys::routes::serial(), 1);
        batch.query::<Vec<Value>>().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_share_the_instances_evenly() {
        let instances: Vec<SocketAddr> =
            (1..=4).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let table = Table::new("shop", 8, &instances, 2);
        for instance in &instances {
            let routes = table.routes().filter(|route| route.instances.contains(instance)).count();
            assert_eq!(routes, 4);
        }
    }
}
