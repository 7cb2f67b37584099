//! The interface for other crates.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use signalbox_api::{
    Time,
    acme::{AutomaticCertificate, AutomaticState},
};
use signalbox_certificates::Certificates;
use signalbox_egress::Client;
use signalbox_route_table::{Hostname, Invalid, Policy, Tls};
use signalbox_routing::Routers;
use signalbox_store::Fabric;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Metrics, Options, Parts,
    on_demand::Asked,
    record::{Record, spread},
    store::Store,
};

/// The parts that automatic HTTPS uses.
#[derive(Debug)]
pub struct Dependencies {
    /// The state of names.
    pub fabric: Fabric,
    /// Stores the certificates.
    pub certificates: Certificates,
    /// The route table: hosts, and answers to challenges.
    pub table: signalbox_routing::Store,
    /// The routers, which acknowledge a challenge.
    pub routers: Routers,
    /// Calls the DNS webhook and the check URL.
    pub client: Client,
    /// Returns the time of day.
    pub clock: fn() -> SystemTime,
    /// Counts attempts.
    pub metrics: Metrics,
    /// Canceled when no new work should begin.
    pub shutdown: CancellationToken,
}

/// Gives access to automatic HTTPS. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Acme {
    pub(crate) parts: Arc<Parts>,
}

impl Acme {
    /// Creates the handle. [`crate::Service`] does the work.
    pub fn new(options: Options, with: Dependencies) -> Self {
        let Dependencies { fabric, certificates, table, routers, client, clock, metrics, shutdown } = with;
        let store = Store::new(fabric, Duration::from_secs(options.claim_seconds));
        let parts = Parts {
            options,
            store,
            certificates,
            table,
            routers,
            client,
            clock,
            metrics,
            asked: Asked::default(),
            unreadable: parking_lot::Mutex::default(),
            creating: Mutex::default(),
            nudge: Notify::new(),
            shutdown,
        };
        Self { parts: Arc::new(parts) }
    }

    /// The URL of the ACME server's directory; `None` if automatic HTTPS is off.
    pub fn directory(&self) -> Option<&str> {
        Some(self.parts.options.directory.as_str()).filter(|directory| !directory.is_empty())
    }

    /// Checks that automatic HTTPS, if the policy requests it, can work for the host.
    pub fn check(&self, hostname: &Hostname, policy: &Policy) -> Result<(), Invalid> {
        let Parts { options, certificates, .. } = &*self.parts;
        let invalid = |code, detail| Err(Invalid::new(code, "tls", detail));
        if policy.tls != Some(Tls::Auto) {
            return Ok(());
        }
        if !options.is_on() {
            return invalid(
                "automatic_https_off",
                "automatic HTTPS is off: set `acme.directory` of the pacemaker to the URL of an ACME server",
            );
        }
        if !certificates.can_seal() {
            return invalid(
                "automatic_https_off",
                "private keys cannot be encrypted: set `edge_key_file` of the pacemaker",
            );
        }
        match hostname.as_str() {
            "*" => invalid("invalid_policy", "no certificate is valid for all names; use `*.example.org`"),
            name if name.starts_with('*') && options.dns_webhook.is_empty() => invalid(
                "invalid_policy",
                "a certificate of a wildcard needs DNS-01: set `acme.dns_webhook` of the pacemaker",
            ),
            name if name.parse::<std::net::IpAddr>().is_ok() => {
                invalid("invalid_policy", "an IP address has no automatic certificate; use a host name")
            }
            _ => Ok(()),
        }
    }

    /// Orders a certificate after a policy was set. If this fails, the next comparison of all hosts does it.
    pub async fn policy_changed(&self, hostname: &Hostname, policy: &Policy) {
        if !self.parts.options.is_on() || policy.tls != Some(Tls::Auto) {
            return;
        }
        let names = [hostname.to_string()];
        match self.parts.store.want(&names, &Record::default()).await {
            Ok(_) => self.parts.nudge.notify_one(),
            Err(error) => tracing::debug!(%hostname, %error, "certificate ordered later"),
        }
    }

    /// Starts a renewal now, regardless of the schedule. Returns false if the name has no automatic HTTPS.
    pub async fn renew(&self, hostname: &Hostname) -> Result<bool, Error> {
        let exists = self.parts.store.hurry(hostname.as_str()).await?;
        if exists {
            self.parts.nudge.notify_one();
        }
        Ok(exists)
    }

    /// The state of a name; `None` if it has no automatic HTTPS.
    pub async fn get(&self, hostname: &Hostname) -> Result<Option<AutomaticCertificate>, Error> {
        let name = hostname.to_string();
        match self.parts.store.records(std::slice::from_ref(&name)).await?.pop().flatten() {
            Some(record) => {
                let (record, due_ms) = record?;
                Ok(Some(view(name, record, due_ms, self.parts.options.is_on())))
            }
            None => Ok(None),
        }
    }

    /// At most `limit` names after `after`, sorted.
    pub async fn after(&self, after: Option<&str>, limit: usize) -> Result<Vec<AutomaticCertificate>, Error> {
        let names = self.parts.store.names_after(after, limit).await?;
        self.of(names).await
    }

    /// The states of those names that have automatic HTTPS. A state that cannot be read is logged and left out.
    pub async fn of(&self, names: Vec<String>) -> Result<Vec<AutomaticCertificate>, Error> {
        let records = self.parts.store.records(&names).await?;
        let is_on = self.parts.options.is_on();
        let both = names.into_iter().zip(records);
        Ok(both
            .filter_map(|(name, record)| {
                let log = |error: &Error| tracing::error!(name, %error, "state of a name not readable");
                let (record, due) = record?.inspect_err(log).ok()?;
                Some(view(name, record, due, is_on))
            })
            .collect())
    }
}

fn view(name: String, record: Record, due_ms: u64, is_on: bool) -> AutomaticCertificate {
    let state = match &record {
        _ if !is_on => AutomaticState::Off,
        Record { failures: 1.., .. } => AutomaticState::Failing,
        Record { certificate: Some(_), order: None, .. } => AutomaticState::Issued,
        _ => AutomaticState::Ordering,
    };
    AutomaticCertificate {
        state,
        on_demand: record.on_demand,
        not_after: record.certificate.map(|life| Time::from_seconds(life.not_after)),
        renews_at: record.renews_at(spread(&name)).map(Time::from_seconds),
        next_attempt_at: Some(Time::from_ms(due_ms)).filter(|_| record.failures > 0),
        failures: record.failures,
        last_error: record.last_error,
        last_error_at: record.last_error_at.map(Time::from_seconds),
        issued_at: record.issued_at.map(Time::from_seconds),
        server_name: name,
    }
}
