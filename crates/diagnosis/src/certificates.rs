//! Certificates that end.

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject, text,
    thresholds::CERTIFICATE_WARNING_DAYS,
};

/// A certificate of the route table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The host name that it is stored for.
    pub name: String,
    /// When it ends, unix seconds.
    pub ends: u64,
}

/// Checks a certificate. `now` is unix seconds.
pub fn certificate(one: &Certificate, now: u64) -> Option<Finding> {
    let Certificate { name, ends } = one;
    let subject = Subject::Certificate(name.clone());
    let fix = format!(
        "Upload a renewed one: PUT /certificates/{name}. Routers use it immediately, without a reload."
    );
    let left = ends.saturating_sub(now);
    if left == 0 {
        let since = text::span(now.saturating_sub(*ends).saturating_mul(1000));
        let problem = format!("The certificate of {name} expired {since} ago: clients reject it.");
        return Some(Finding::new(Critical, "certificate-expired", subject, problem, fix));
    }
    (left <= CERTIFICATE_WARNING_DAYS * 86_400).then(|| {
        let problem =
            format!("The certificate of {name} expires in {}.", text::span(left.saturating_mul(1000)));
        Finding::new(Warning, "certificate-expires", subject, problem, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_findings_two_weeks_before_they_end() {
        let day = 86_400;
        let found = |ends| certificate(&Certificate { name: "a.example".to_owned(), ends }, 100 * day);
        assert_eq!(found(114 * day + 1), None);
        let soon = found(114 * day).unwrap();
        assert_eq!((soon.severity, soon.id), (Warning, "certificate-expires"));
        assert!(soon.problem.contains("expires in 14 d"), "{}", soon.problem);
        let ended = found(98 * day).unwrap();
        assert_eq!((ended.severity, ended.id), (Critical, "certificate-expired"));
        assert!(ended.problem.contains("expired 2 d ago"), "{}", ended.problem);
        assert_eq!(found(100 * day).map(|one| one.severity), Some(Critical));
    }
}
