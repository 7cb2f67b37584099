//! Hosts, their instances, and how these respond.

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject,
    thresholds::{MAX_ERROR_PERCENT, MIN_REQUESTS},
};

/// A host name in the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// The name.
    pub name: String,
    /// Addresses of its instances.
    pub addresses: usize,
    /// Those that receive no requests because they drain or are on standby.
    pub idle: usize,
    /// Instances of it whose health check failed.
    pub unhealthy: usize,
    /// Version types to which its traffic split gives a part, and of which it has no active instance.
    pub unserved_shares: Vec<String>,
}

/// An instance with a failed health check, or without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its name.
    pub id: String,
    /// A host that it serves.
    pub host: String,
    /// The result of the failed health check.
    pub unhealthy: Option<String>,
}

/// The requests of a version type in the last minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionType {
    /// Its name.
    pub id: String,
    /// A host that it serves.
    pub host: String,
    /// All requests.
    pub requests: u64,
    /// Those answered with 5xx.
    pub server_errors: u64,
}

/// Checks a host.
pub fn host(host: &Host) -> Option<Finding> {
    let subject = Subject::Host(host.name.clone());
    if host.addresses == 0 {
        let problem = format!("Host {} has no instance.", host.name);
        let fix =
            "Its requests are answered 503. Register an instance (PUT /instances/{id}), or remove the host.";
        return Some(Finding::new(Critical, "host-without-instance", subject, problem, fix));
    }
    if host.idle >= host.addresses {
        let problem = format!("Every instance of host {} is draining or on standby.", host.name);
        let fix = "Its requests return 503. Promote a version type (`signalbox hosts promote`), or resume an instance.";
        return Some(Finding::new(Critical, "host-without-instance", subject, problem, fix));
    }
    (host.unhealthy >= host.addresses).then(|| {
        let problem = format!("No instance of host {} is healthy.", host.name);
        let fix = "Requests are still sent to all of them. Find out why the health checks fail, and start instances that \
                   work.";
        Finding::new(Critical, "host-unhealthy", subject, problem, fix)
    })
}

/// Checks the traffic split of a host.
pub fn shares(host: &Host) -> Option<Finding> {
    let missing = &host.unserved_shares;
    (!missing.is_empty()).then(|| {
        let subject = Subject::Host(host.name.clone());
        let versions = missing.join(", ");
        let problem = format!(
            "The traffic split of host {} gives a share to {versions}, which has no active instance.",
            host.name
        );
        let fix = "The other version types receive its requests. Register or resume an instance of it, or correct the split.";
        Finding::new(Warning, "share-without-instance", subject, problem, fix)
    })
}

/// Checks an instance.
pub fn instance(instance: &Instance) -> Option<Finding> {
    let reason = instance.unhealthy.as_deref()?;
    let subject = Subject::Instance { id: instance.id.clone(), host: instance.host.clone() };
    let problem = format!("Instance {} is unhealthy: {reason}", instance.id);
    let fix = "It receives no requests until its check succeeds, unless most instances of the host fail.";
    Some(Finding::new(Warning, "instance-unhealthy", subject, problem, fix))
}

/// Checks a version type.
pub fn version_type(one: &VersionType) -> Option<Finding> {
    let VersionType { id, host, requests, server_errors } = one;
    let enough = *requests >= MIN_REQUESTS && *server_errors > 0;
    if !enough || server_errors.saturating_mul(100) < requests.saturating_mul(MAX_ERROR_PERCENT) {
        return None;
    }
    let subject = Subject::VersionType { id: id.clone(), host: host.clone() };
    let percent = server_errors.saturating_mul(100) / requests;
    let problem = format!("Version type {id} answered {percent}% of the last minute's requests with 5xx.");
    let fix = "Check the application's log. If a new version is the cause, promote the previous one or remove its share.";
    Some(Finding::new(Critical, "server-errors", subject, problem, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_needs_a_healthy_instance() {
        let id = |addresses, unhealthy| {
            let named = Host { name: "a.example".to_owned(), addresses, unhealthy, ..Host::default() };
            host(&named).map(|one| one.id)
        };
        assert_eq!(id(0, 3), Some("host-without-instance"));
        assert_eq!(id(2, 2), Some("host-unhealthy"));
        assert_eq!(id(2, 1), None);
    }

    #[test]
    fn a_host_whose_instances_are_all_on_standby_has_none() {
        let one = |idle| host(&Host { addresses: 2, idle, ..Host::default() }).map(|one| one.id);
        assert_eq!([one(1), one(2)], [None, Some("host-without-instance")]);
    }

    #[test]
    fn a_share_of_a_version_type_without_an_instance_is_named() {
        let unserved_shares = vec!["typo".to_owned()];
        let found = shares(&Host { addresses: 1, unserved_shares, ..Host::default() });
        assert!(found.is_some_and(|one| one.id == "share-without-instance" && one.problem.contains("typo")));
        assert_eq!(shares(&Host { addresses: 1, ..Host::default() }), None);
    }

    #[test]
    fn an_unhealthy_instance_is_named_with_the_reason() {
        let with = |unhealthy: Option<&str>| {
            let unhealthy = unhealthy.map(str::to_owned);
            instance(&Instance { id: "i-1".to_owned(), host: "a.example".to_owned(), unhealthy })
        };
        assert_eq!(with(None), None);
        assert!(
            with(Some("status 500")).is_some_and(|one| one.problem.contains("i-1 is unhealthy: status 500"))
        );
    }

    #[test]
    fn a_few_errors_are_not_a_finding() {
        for (requests, server_errors, expected) in
            [(1000, 0, false), (1000, 49, false), (1000, 50, true), (19, 19, false), (20, 1, true)]
        {
            let (id, host) = ("17".to_owned(), "a.example".to_owned());
            let found = version_type(&VersionType { id, host, requests, server_errors });
            assert_eq!(found.is_some(), expected, "{server_errors} of {requests}");
        }
    }
}
