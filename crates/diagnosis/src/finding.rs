//! The parts of a diagnosis.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::text;

/// How bad a finding is. The worst comes first in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something does not work, or data is lost at the next fault.
    Critical,
    /// It works, and an operator should check it.
    Warning,
}

/// The subject of a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "a variant names a kind of thing, and its fields identify one")]
pub enum Subject {
    Backend(String),
    Bus,
    Certificate(String),
    Feeds,
    Host(String),
    Instance { id: String, host: String },
    Labels,
    LocalMachine,
    Nginx,
    Objects,
    Pacemakers,
    Part(String),
    Queue(String),
    Redis { role: &'static str, address: Option<String> },
    Router(String),
    Routers,
    Sidecar,
    StateMachine(String),
    Subscriber(String),
    VersionType { id: String, host: String },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backend(name) => write!(f, "backend {name}"),
            Self::Bus => f.write_str("bus"),
            Self::Certificate(name) => write!(f, "certificate {name}"),
            Self::Feeds => f.write_str("feeds"),
            Self::Host(name) => write!(f, "host {name}"),
            Self::Instance { id, .. } => write!(f, "instance {id}"),
            Self::Labels => f.write_str("labels"),
            Self::LocalMachine => f.write_str("this machine"),
            Self::Nginx => f.write_str("nginx"),
            Self::Objects => f.write_str("objects"),
            Self::Pacemakers => f.write_str("pacemakers"),
            Self::Part(name) => f.write_str(name),
            Self::Queue(name) => write!(f, "queue {name}"),
            Self::Redis { role, address: None } => write!(f, "Redis {role}"),
            Self::Redis { role, address: Some(address) } => write!(f, "Redis {role} ({address})"),
            Self::Router(node) => write!(f, "router {node}"),
            Self::Routers => f.write_str("routers"),
            Self::Sidecar => f.write_str("sidecar"),
            Self::StateMachine(name) => write!(f, "machine {name}"),
            Self::Subscriber(name) => write!(f, "subscriber {name}"),
            Self::VersionType { id, .. } => write!(f, "version type {id}"),
        }
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule's stable name, in kebab case.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Its subject.
    pub subject: Subject,
    /// A sentence that describes the problem.
    pub problem: String,
    /// One or two sentences that describe the fix.
    pub fix: String,
}

impl Finding {
    /// The address of its runbook on the admin listener.
    pub fn runbook(&self) -> String {
        format!("/docs/runbooks#{}", self.id)
    }

    pub(crate) fn new(
        severity: Severity,
        id: &'static str,
        subject: Subject,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { id, severity, subject, problem: problem.into(), fix: fix.into() }
    }
}

/// Findings of one kind next to each other, as a diagnosis contains them. Only a kind with several findings has a title of
/// its own.
pub fn kinds(findings: &[Finding]) -> impl Iterator<Item = (String, &[Finding])> {
    findings.chunk_by(|a, b| (a.severity, a.id) == (b.severity, b.id)).map(|same| {
        let title = match same {
            [only] => only.problem.clone(),
            several => {
                format!("{} findings: {}", text::thousands(several.len()), several[0].id.replace('-', " "))
            }
        };
        (title, same)
    })
}

/// A check that was not performed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The name of the check, such as `routers`.
    pub check: &'static str,
    /// Why it was not performed.
    pub reason: String,
}

/// The outcome of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Diagnosis {
    /// The problems, the worst first.
    pub findings: Vec<Finding>,
    /// Checks that were not performed.
    pub skipped: Vec<Skipped>,
}

impl Diagnosis {
    /// The number of findings: `3 problems found, 1 of them critical`.
    pub fn summary(&self) -> String {
        let found = text::count(self.findings.len() as u64, "problem");
        match self.critical() {
            0 => format!("{found} found"),
            critical if critical == self.findings.len() => format!("{found} found, critical"),
            critical => format!("{found} found, {} of them critical", text::thousands(critical)),
        }
    }

    /// How many findings are critical.
    pub fn critical(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Critical).count()
    }
}
