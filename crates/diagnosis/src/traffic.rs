//! Instances of hosts, and how version types respond.

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject,
    hosts::{failures, is_failing},
};

/// An instance with a failed health check, or without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its name.
    pub id: String,
    /// A host that it serves.
    pub host: String,
    /// The result of the failed health check.
    pub unhealthy: Option<String>,
    /// Whether an operator has decided that the host's instances get no requests.
    pub planned: bool,
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
    /// Those that an instance answered with 5xx, or that no instance answered although one was tried.
    pub failed: u64,
}

/// Checks an instance.
pub fn instance(instance: &Instance) -> Option<Finding> {
    let reason = instance.unhealthy.as_deref().filter(|_| !instance.planned)?;
    let subject = Subject::Instance { id: instance.id.clone(), host: instance.host.clone() };
    let problem = format!("Instance {} is unhealthy: {reason}", instance.id);
    let fix = "It receives no requests until its check succeeds, unless most instances of the host fail.";
    Some(Finding::new(Warning, "instance-unhealthy", subject, problem, fix))
}

/// Checks a version type.
pub fn version_type(one: &VersionType) -> Option<Finding> {
    let VersionType { id, host, requests, failed } = one;
    if !is_failing(*requests, *failed) {
        return None;
    }
    let subject = Subject::VersionType { id: id.clone(), host: host.clone() };
    let problem = format!("Version type {id}: {}.", failures(*requests, *failed));
    let fix = "Check the application's log. If a new version is the cause, promote the previous one or remove its share.";
    Some(Finding::new(Critical, "server-errors", subject, problem, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unhealthy_instance_is_named_with_the_reason() {
        let with = |unhealthy: Option<&str>| {
            let unhealthy = unhealthy.map(str::to_owned);
            instance(&Instance {
                id: "i-1".to_owned(),
                host: "a.example".to_owned(),
                unhealthy,
                planned: false,
            })
        };
        assert_eq!(with(None), None);
        assert!(
            with(Some("status 500")).is_some_and(|one| one.problem.contains("i-1 is unhealthy: status 500"))
        );
    }

    #[test]
    fn a_few_errors_are_not_a_finding() {
        for (requests, failed, expected) in
            [(1000, 0, false), (1000, 49, false), (1000, 50, true), (19, 19, false), (20, 1, true)]
        {
            let (id, host) = ("17".to_owned(), "a.example".to_owned());
            let found = version_type(&VersionType { id, host, requests, failed });
            assert_eq!(found.is_some(), expected, "{failed} of {requests}");
        }
    }
}
