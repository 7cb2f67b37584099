//! The SRV records of a name (RFC 2782).
//!
//! The addresses of their targets are asked from the same name server, so that a name server of a service catalog is
//! sufficient. Only the records of the lowest priority are used, as the RFC requires while one of them can be reached.

mod message;
mod resolver;

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use signalbox_client::routes::{Health, NewInstance};
use tokio::time;

use crate::{
    Error,
    snapshot::{Entry, Snapshot, Source},
};
use message::Srv;
use resolver::Resolver;
use simple_dns::TYPE;

/// The shortest time between two readings, whatever the records permit.
const MIN_EXPIRY: Duration = Duration::from_secs(1);
/// Maximum number of records of a name.
const MAX_RECORDS: usize = 1000;
const MAX_WEIGHT: u32 = 1000;

/// What the records of a name become.
#[derive(Debug, Clone)]
pub struct DnsOptions {
    /// The name, such as `_http._tcp.shop.internal`.
    pub name: String,
    /// The host names that the instances serve.
    pub hosts: Vec<String>,
    /// The version type of the instances.
    pub version_type: String,
    /// Their health check.
    pub health: Option<Health>,
    /// The name server.
    pub nameserver: SocketAddr,
}

/// The SRV records of one name.
#[derive(Debug)]
pub struct Dns {
    options: DnsOptions,
    resolver: Resolver,
    expires: Option<Duration>,
}

impl Dns {
    /// The records that `options` describe.
    pub fn new(options: DnsOptions) -> Self {
        let resolver = Resolver { server: options.nameserver };
        Self { options, resolver, expires: None }
    }

    async fn addresses(&self, target: &str) -> Result<Vec<IpAddr>, Error> {
        let mut found = Vec::new();
        for kind in [TYPE::A, TYPE::AAAA] {
            found.extend(self.resolver.ask(target, kind).await?.addresses_of(target));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

impl Source for Dns {
    async fn read(&mut self) -> Result<Snapshot, Error> {
        let name = self.options.name.clone();
        let failed = |why: &str| Error::Dns { name: name.clone(), why: why.to_owned() };
        let answer = self.resolver.ask(&name, TYPE::SRV).await?;
        let records = best(&answer.services);
        // A name server that lost its data answers like this. Removing every instance would be the wrong conclusion.
        if records.is_empty() {
            return Err(failed("there is no SRV record"));
        }
        if records.len() > MAX_RECORDS {
            return Err(failed("there are too many SRV records"));
        }
        self.expires = Some(Duration::from_secs(answer.min_ttl.into()).max(MIN_EXPIRY));
        let weighted = records.iter().any(|record| record.weight > 0);
        let mut snapshot = Snapshot::default();
        for record in records {
            let mut addresses = answer.addresses_of(&record.target);
            if addresses.is_empty() {
                addresses = self.addresses(&record.target).await?;
            }
            if addresses.is_empty() {
                return Err(failed(&format!("its target {} has no address", record.target)));
            }
            for ip in addresses {
                let address = SocketAddr::new(ip, record.port).to_string();
                let mut instance =
                    NewInstance::new(&address, &self.options.hosts, &self.options.version_type);
                instance.weight = weighted.then(|| u32::from(record.weight).clamp(1, MAX_WEIGHT));
                instance.health.clone_from(&self.options.health);
                // One address may be in several records.
                if !snapshot.entries.contains_key(&crate::snapshot::key(&address)) {
                    snapshot.add(&address, Entry::Instance(Box::new(instance)));
                }
            }
        }
        Ok(snapshot)
    }

    async fn changed(&mut self) {
        time::sleep(self.expires.unwrap_or(Duration::MAX)).await;
    }

    fn expires(&self) -> Option<Duration> {
        self.expires
    }
}

/// The records of the lowest priority.
fn best(all: &[Srv]) -> Vec<&Srv> {
    let lowest = all.iter().map(|record| record.priority).min();
    // A target `.` means that the service is not available.
    all.iter().filter(|record| Some(record.priority) == lowest && !record.target.is_empty()).collect()
}

/// The first name server of `/etc/resolv.conf`.
pub fn system_nameserver() -> Option<SocketAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").ok()?;
    let first = text.lines().find_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok());
    first.map(|ip: IpAddr| SocketAddr::new(ip, 53))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_of_the_lowest_priority_are_used() {
        let record =
            |priority, target: &str| Srv { priority, weight: 0, port: 80, target: target.to_owned() };
        let all = [record(10, "b"), record(5, "a"), record(5, ""), record(5, "c")];
        let targets: Vec<&str> = best(&all).iter().map(|record| &*record.target).collect();
        assert_eq!(targets, ["a", "c"]);
        assert!(best(&[]).is_empty());
    }
}
