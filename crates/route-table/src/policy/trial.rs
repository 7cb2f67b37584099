//! What the checks of a policy decide for one request, as far as it is known: the same order and the same results as
//! `lua/signalbox/guards.lua`. Limits, passwords and applications that are asked decide when the request arrives.

use std::net::IpAddr;

use ipnet::IpNet;
use signalbox_api::routes::{Step, StepResult};

use super::{Access, Https, PathRule, Policy, access::Redirect};
use crate::choice::Asked;

/// Method and scheme of a request to explain.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The method, in upper case.
    pub method: &'a str,
    /// Whether it arrives over HTTPS.
    pub https: bool,
}

fn step(check: &str, result: StepResult, status: Option<u16>, detail: impl Into<String>) -> Step {
    Step { check: check.to_owned(), result, status, detail: detail.into() }
}

fn passes(check: &str, detail: impl Into<String>) -> Step {
    step(check, StepResult::Passes, None, detail)
}

fn ends(check: &str, status: u16, detail: impl Into<String>) -> Step {
    step(check, StepResult::Ends, Some(status), detail)
}

/// A check whose result is not known; `status` is the answer if the request does not pass.
fn depends(check: &str, status: u16, detail: impl Into<String>) -> Step {
    step(check, StepResult::Depends, Some(status), detail)
}

impl Policy {
    /// The result of each check, up to the first that ends the request. `rule` is the rule for the path.
    pub(crate) fn trial(&self, rule: Option<&PathRule>, line: Line<'_>, asked: Option<&Asked>) -> Vec<Step> {
        let mut steps = Vec::new();
        for check in self.checks(rule) {
            let step = self.tried(check, rule, line, asked);
            let ended = step.result == StepResult::Ends;
            steps.push(step);
            if ended {
                break;
            }
        }
        steps
    }

    fn tried(&self, check: &str, rule: Option<&PathRule>, line: Line<'_>, asked: Option<&Asked>) -> Step {
        let access = rule.and_then(|rule| rule.access.as_ref()).or(self.access.as_ref());
        match check {
            "pause" => depends(check, 503, "The host is paused: the request waits until it is resumed."),
            "addresses" => addresses(check, access, asked),
            "https" => self.secure(check, line),
            "redirect" => {
                let redirect = rule.and_then(|rule| rule.redirect.as_ref()).or(self.redirect.as_ref());
                redirected(check, redirect)
            }
            "maintenance" => {
                let status = self.maintenance.as_ref().map_or(503, super::Maintenance::status);
                match self.maintenance.as_ref().and_then(super::Maintenance::exception) {
                    Some(header) if asked.is_some_and(|asked| asked.header(header).is_some()) => {
                        depends(check, status, format!("Passes if {header} has the value of the policy."))
                    }
                    _ => ends(check, status, "The host is under maintenance."),
                }
            }
            "methods" => {
                let allowed = self.methods.as_deref().unwrap_or_default();
                if allowed.iter().any(|one| one == line.method) {
                    passes(check, format!("{} is an allowed method.", line.method))
                } else {
                    ends(check, 405, format!("{} is not allowed; {} are.", line.method, allowed.join(", ")))
                }
            }
            "limits" => depends(check, 429, "Passes unless its client exceeds a limit of the host."),
            "basic" if asked.is_some_and(|asked| asked.header("authorization").is_some()) => {
                depends(check, 401, "Passes if the user name and password are valid.")
            }
            "basic" => {
                ends(check, 401, "The request has no Authorization header with a user name and password.")
            }
            "forward" => {
                let service = access.and_then(Access::service).unwrap_or_default();
                depends(
                    check,
                    403,
                    format!("{service} decides. If it does not answer, the request is rejected."),
                )
            }
            _ => {
                let most = self.body_bytes.unwrap_or_default();
                depends(check, 413, format!("Passes if its body has at most {most} bytes."))
            }
        }
    }

    fn secure(&self, check: &str, line: Line<'_>) -> Step {
        let status = if matches!(line.method, "GET" | "HEAD") { 301 } else { 308 };
        match self.https {
            _ if line.https => passes(check, "The request arrives over HTTPS."),
            Some(Https::Only) => ends(check, 403, "The host accepts HTTPS only."),
            _ => ends(check, status, "Redirected to the same URL with https."),
        }
    }
}

fn addresses(check: &str, access: Option<&Access>, asked: Option<&Asked>) -> Step {
    let address = asked.and_then(Asked::address).and_then(|text| text.parse::<IpAddr>().ok());
    let Some(address) = address else {
        return depends(
            check,
            403,
            "Passes if the client's address is allowed; give an address to decide this.",
        );
    };
    let contains = |networks: Option<&[String]>| -> Option<String> {
        let mut parsed = networks?.iter().filter_map(|text| Some((text, text.parse::<IpNet>().ok()?)));
        parsed.find(|(_, network)| network.contains(&address)).map(|(text, _)| text.clone())
    };
    let (allow, deny) = access.map(Access::networks).unwrap_or_default();
    match (contains(deny), allow.is_some(), contains(allow)) {
        (Some(network), ..) => ends(check, 403, format!("{address} is denied by {network}.")),
        (None, true, None) => ends(check, 403, format!("{address} is in no allowed network.")),
        (None, true, Some(network)) => passes(check, format!("{address} is allowed by {network}.")),
        (None, false, _) => passes(check, format!("{address} is not denied.")),
    }
}

fn redirected(check: &str, redirect: Option<&Redirect>) -> Step {
    let (status, to, keeps_path) = redirect.map(Redirect::target).unwrap_or((308, "", false));
    let path = if keeps_path { ", followed by the path and arguments of the request" } else { "" };
    ends(check, status, format!("Redirected to {to}{path}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(
        policy: &str,
        method: &str,
        https: bool,
        asked: [Option<&str>; 2],
    ) -> Vec<(String, Option<u16>)> {
        let policy: Policy = serde_json::from_str::<Policy>(policy).unwrap().check().unwrap();
        let asked = Asked::parse(asked[0], None, asked[1]).unwrap();
        let steps = policy.trial(None, Line { method, https }, asked.as_ref());
        let sign = |result| match result {
            StepResult::Passes => "+",
            StepResult::Ends => "-",
            StepResult::Depends => "?",
        };
        steps.into_iter().map(|step| (format!("{}{}", sign(step.result), step.check), step.status)).collect()
    }

    fn one(name: &str, status: Option<u16>) -> (String, Option<u16>) {
        (name.to_owned(), status)
    }

    #[test]
    fn a_request_passes_checks_until_one_ends_it() {
        let policy = r#"{"access":{"allow":["10.0.0.0/8"],"deny":["10.1.0.0/16"],"basic":{"users":{"ann":"(hidden)"}}},
            "https":"redirect","methods":["GET"]}"#;
        let inside = Some("10.0.0.7");
        assert_eq!(results(policy, "GET", true, [None, Some("10.1.0.7")]), [one("-addresses", Some(403))]);
        assert_eq!(results(policy, "GET", true, [None, Some("192.0.2.1")]), [one("-addresses", Some(403))]);
        let [get, post] = ["GET", "POST"].map(|method| results(policy, method, false, [None, inside]));
        assert_eq!(get, [one("+addresses", None), one("-https", Some(301))]);
        assert_eq!(post, [one("+addresses", None), one("-https", Some(308))]);
        let post = results(policy, "POST", true, [None, inside]);
        assert_eq!(post.last(), Some(&one("-methods", Some(405))));
        let without = results(policy, "GET", true, [None, None]);
        assert_eq!(without.first(), Some(&one("?addresses", Some(403))));
        assert_eq!(without.last(), Some(&one("-basic", Some(401))));
        let with = results(policy, "GET", true, [Some("Authorization: Basic x"), inside]);
        assert_eq!(with.last(), Some(&one("?basic", Some(401))));
    }

    #[test]
    fn redirects_and_maintenance_end_a_request() {
        let moved = r#"{"redirect":{"to":"https://b.test","keep_path":true}}"#;
        assert_eq!(results(moved, "GET", false, [None, None]), [one("-redirect", Some(308))]);
        let closed = r#"{"maintenance":{"status":410,"except_header":{"name":"X-Key","value":"k"}}}"#;
        assert_eq!(results(closed, "GET", false, [None, None]), [one("-maintenance", Some(410))]);
        assert_eq!(results(closed, "GET", false, [Some("X-Key: a"), None]), [one("?maintenance", Some(410))]);
        assert!(results("{}", "GET", false, [None, None]).is_empty());
    }
}
