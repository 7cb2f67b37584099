//! Certificates that end, or cannot be obtained.

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject, text,
    thresholds::CERTIFICATE_WARNING_DAYS,
};

/// A server name that has a certificate, or should have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The host name that it is stored for.
    pub name: String,
    /// When it ends, unix seconds; `None` if there is none.
    pub ends: Option<u64>,
    /// Whether Signalbox obtains and renews it.
    pub automatic: bool,
    /// Why the latest attempt to obtain it failed.
    pub last_error: Option<String>,
}

/// Checks the certificate of a name. `now` is unix seconds.
pub fn certificate(one: &Certificate, now: u64) -> Vec<Finding> {
    end(one, now).into_iter().chain(failure(one, now)).collect()
}

/// A failed attempt to obtain it.
fn failure(one: &Certificate, now: u64) -> Option<Finding> {
    let Certificate { name, ends, last_error, .. } = one;
    let error = last_error.as_deref()?;
    let served = ends.is_some_and(|ends| ends > now);
    let (severity, what) = if served { (Warning, "renewed") } else { (Critical, "obtained") };
    let problem = format!("The certificate of {name} could not be {what}: {}.", error.trim_end_matches('.'));
    let fix = format!(
        "Fix the cause; the next attempt follows automatically. To try now: signalbox certificates renew {name}"
    );
    Some(Finding::new(severity, "certificate-not-obtained", Subject::Certificate(name.clone()), problem, fix))
}

/// Its end. An automatic certificate may be valid for a few days only, and is renewed in time: only its end is a problem.
fn end(one: &Certificate, now: u64) -> Option<Finding> {
    let Certificate { name, ends, automatic, .. } = one;
    let ends = &(*ends)?;
    let subject = Subject::Certificate(name.clone());
    let fix = if *automatic {
        format!("Check the reason: GET /acme/names/{name}. To try now: signalbox certificates renew {name}")
    } else {
        format!(
            "Upload a renewed one: PUT /certificates/{name}. Routers use it immediately, without a reload."
        )
    };
    let left = ends.saturating_sub(now);
    if left == 0 {
        let since = text::span(now.saturating_sub(*ends).saturating_mul(1000));
        let problem = format!("The certificate of {name} expired {since} ago: clients reject it.");
        return Some(Finding::new(Critical, "certificate-expired", subject, problem, fix));
    }
    (!automatic && left <= CERTIFICATE_WARNING_DAYS * 86_400).then(|| {
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
        let found = |ends| {
            let manual = Certificate {
                name: "a.example".to_owned(),
                ends: Some(ends),
                automatic: false,
                last_error: None,
            };
            let automatic = Certificate { automatic: true, ..manual.clone() };
            assert_eq!(certificate(&automatic, 100 * day).is_empty(), ends > 100 * day);
            certificate(&manual, 100 * day).pop()
        };
        assert_eq!(found(114 * day + 1), None);
        let soon = found(114 * day).unwrap();
        assert_eq!((soon.severity, soon.id), (Warning, "certificate-expires"));
        assert!(soon.problem.contains("expires in 14 d"), "{}", soon.problem);
        let ended = found(98 * day).unwrap();
        assert_eq!((ended.severity, ended.id), (Critical, "certificate-expired"));
        assert!(ended.problem.contains("expired 2 d ago"), "{}", ended.problem);
        assert_eq!(found(100 * day).map(|one| one.severity), Some(Critical));
    }

    #[test]
    fn a_certificate_that_cannot_be_obtained_is_critical_only_without_a_valid_one() {
        let found = |ends| {
            let one = Certificate {
                name: "a.example".to_owned(),
                ends,
                automatic: true,
                last_error: Some("The DNS has no such name.".to_owned()),
            };
            certificate(&one, 100)
                .into_iter()
                .map(|one| (one.severity, one.id, one.problem))
                .collect::<Vec<_>>()
        };
        let words = |what: &str| {
            format!("The certificate of a.example could not be {what}: The DNS has no such name.")
        };
        assert_eq!(found(None), [(Critical, "certificate-not-obtained", words("obtained"))]);
        assert_eq!(found(Some(500)), [(Warning, "certificate-not-obtained", words("renewed"))]);
        assert_eq!(found(Some(50)).len(), 2, "it has expired, too");
    }
}
