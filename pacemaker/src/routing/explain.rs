//! Why the edge answers a host as it does, in words. Pure: the table's records come in, the explanation goes out.

use std::collections::HashMap;

use serde::Serialize;

use super::store::{Owner, TableHost};

/// Why a host is answered as it is.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub(crate) struct Explanation {
    host: String,
    /// The name in the table that decides; absent when none does.
    matched: Option<String>,
    /// What a request gets.
    answer: Answer,
    /// What it is counted under.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_key: Option<String>,
    /// The names that were looked for, most specific first. The first that exists decides, whatever it holds.
    candidates: Vec<Candidate>,
    /// How one of the usable addresses is chosen.
    algorithm: String,
    /// Whether more than half of the addresses are unhealthy by their checks, so that these are believed no more.
    fail_open: bool,
    /// How requests are shared out between version types, when the policy says so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shares: Vec<ExplainedShare>,
    /// The addresses of the name that decides.
    instances: Vec<Explained>,
    serial: u64,
}

/// What a request gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It goes to one of the usable addresses, in turn.
    Proxied,
    /// 503: the name exists and no address is usable.
    NoInstance,
    /// 404: no name exists.
    NoRoute,
}

/// A name that may decide.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub(crate) struct Candidate {
    name: String,
    exists: bool,
    instances: usize,
}

/// An address and whether it gets requests.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub(crate) struct Explained {
    address: String,
    /// Absent for an entry made by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version_type_id: Option<String>,
    usable: bool,
    /// Why it is not: `draining`, `unhealthy`, `weight_zero`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    weight: f64,
    /// Whether its health check says that it is unhealthy, which counts for nothing when the host fails open.
    unhealthy: bool,
}

/// What a version type gets of the requests.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub(crate) struct ExplainedShare {
    version_type: String,
    /// As the policy says.
    percent: f64,
    /// As it is: a share whose version type has no usable address goes to the others, in proportion.
    effective_percent: f64,
    /// Usable addresses of the version type.
    instances: usize,
}

/// The part of a policy that decides who gets requests. As for the edge, what is not readable is not there.
#[derive(Debug)]
struct Policy(serde_json::Value);

impl Policy {
    fn lists(&self, field: &str, address: &str) -> bool {
        self.0[field].as_array().is_some_and(|list| list.iter().any(|one| one == address))
    }

    fn weight(&self, address: &str) -> f64 {
        self.0["weights"][address].as_f64().unwrap_or(1.0)
    }

    fn version_type(&self, address: &str) -> Option<&str> {
        self.0["log_keys"][address].as_str()
    }

    /// Who is out and why, address by address, and whether the host fails open. The edge decides by the same rules in
    /// its own code (`candidates.lua`): what drains is out; what is unhealthy is, unless that is more than half of the
    /// rest; weight 0 is, unless nothing else is left.
    fn reasons(&self, addresses: &[String]) -> (Vec<Option<&'static str>>, bool) {
        let draining = |address: &str| self.lists("draining", address);
        let unhealthy = |address: &str| self.lists("unhealthy", address);
        let there = addresses.iter().filter(|address| !draining(address)).count();
        let ill = addresses.iter().filter(|address| !draining(address) && unhealthy(address)).count();
        let fail_open = ill * 2 > there;
        let fit = |address: &str| !draining(address) && (fail_open || !unhealthy(address));
        let weightless =
            addresses.iter().filter(|address| fit(address)).all(|address| self.weight(address) == 0.0);
        let reason = |address: &String| match () {
            () if draining(address) => Some("draining"),
            () if !fit(address) => Some("unhealthy"),
            () if !weightless && self.weight(address) == 0.0 => Some("weight_zero"),
            () => None,
        };
        (addresses.iter().map(reason).collect(), fail_open)
    }

    /// The shares, by how many usable instances each version type has.
    fn shares(&self, instances: impl Fn(&str) -> usize) -> Vec<ExplainedShare> {
        let read = |one: &serde_json::Value| {
            let version_type = one["version_type"].as_str()?.to_owned();
            let count = instances(&version_type);
            let percent = one["percent"].as_f64()?;
            Some(ExplainedShare { version_type, percent, effective_percent: 0.0, instances: count })
        };
        let mut shares: Vec<_> = self.0["shares"].as_array().into_iter().flatten().filter_map(read).collect();
        let served = |share: &&mut ExplainedShare| share.instances > 0;
        let total: f64 = shares.iter_mut().filter(served).map(|share| share.percent).sum();
        for share in shares.iter_mut().filter(served) {
            share.effective_percent = if total > 0.0 { share.percent * 100.0 / total } else { 0.0 };
        }
        shares
    }
}

/// Explains `host`. `records` are those of `candidates`, in their order; `owners` those of the deciding one's addresses.
pub(crate) fn explain(
    host: String,
    candidates: Vec<String>,
    records: &[TableHost],
    owners: &HashMap<String, Owner>,
    serial: u64,
) -> Explanation {
    let matched = records.iter().position(TableHost::exists);
    let record = matched.and_then(|at| records.get(at));
    let text = record.and_then(|record| record.policy.as_deref());
    let policy = Policy(text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default());
    let addresses = record.map(|record| record.addresses.as_slice()).unwrap_or_default();
    let (reasons, fail_open) = policy.reasons(addresses);
    let log_key = record.and_then(|record| record.log_key.clone());
    let shares = policy.shares(|version_type| {
        let usable = addresses.iter().zip(&reasons).filter(|(_, reason)| reason.is_none());
        let of = |address: &str| policy.version_type(address).or(log_key.as_deref()) == Some(version_type);
        usable.filter(|(address, _)| of(address)).count()
    });
    let instances: Vec<Explained> = addresses
        .iter()
        .zip(reasons)
        .map(|(address, reason)| {
            let owner = owners.get(address);
            Explained {
                address: address.clone(),
                id: owner.map(|owner| owner.id.clone()),
                version_type_id: owner.and_then(|owner| owner.version_type_id.clone()),
                usable: reason.is_none(),
                reason,
                weight: policy.weight(address),
                unhealthy: policy.lists("unhealthy", address),
            }
        })
        .collect();
    let answer = match record {
        None => Answer::NoRoute,
        Some(_) if instances.iter().any(|instance| instance.usable) => Answer::Proxied,
        Some(_) => Answer::NoInstance,
    };
    let candidate = |(name, record): (&String, &TableHost)| Candidate {
        name: name.clone(),
        exists: record.exists(),
        instances: record.addresses.len(),
    };
    Explanation {
        matched: matched.and_then(|at| candidates.get(at).cloned()),
        answer,
        log_key,
        algorithm: policy.0["balance"]["algorithm"].as_str().unwrap_or("round_robin").to_owned(),
        fail_open,
        shares,
        candidates: candidates.iter().zip(records).map(candidate).collect(),
        instances,
        host,
        serial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::lookup::candidates;

    fn host(addresses: &[&str], log_key: Option<&str>, policy: Option<&str>) -> TableHost {
        TableHost {
            addresses: addresses.iter().map(ToString::to_string).collect(),
            instance_ids: Vec::new(),
            log_key: log_key.map(ToOwned::to_owned),
            policy: policy.map(ToOwned::to_owned),
        }
    }

    fn explained(records: &[TableHost]) -> Explanation {
        explain("a.b".to_owned(), candidates("a.b"), records, &HashMap::new(), 7)
    }

    #[test]
    fn the_most_specific_existing_name_decides_without_falling_through() {
        // "a.b" exists only by its log key: its wildcard's instances do not help it.
        let records = [host(&[], Some("17"), None), host(&["127.0.0.1:1"], None, None), TableHost::default()];
        let explanation = explained(&records);
        assert_eq!(explanation.matched.as_deref(), Some("a.b"));
        assert_eq!(explanation.answer, Answer::NoInstance);
        assert_eq!(explanation.log_key.as_deref(), Some("17"));

        let records =
            [TableHost::default(), host(&["127.0.0.1:1"], None, None), host(&["127.0.0.1:2"], None, None)];
        let explanation = explained(&records);
        assert_eq!(explanation.matched.as_deref(), Some("*.b"));
        assert_eq!(explanation.answer, Answer::Proxied);
        assert_eq!(explained(&[empty(), empty(), empty()]).answer, Answer::NoRoute);
    }

    fn empty() -> TableHost {
        TableHost::default()
    }

    #[test]
    fn a_draining_address_is_out_and_says_why() {
        let policy = r#"{"v":1,"draining":["127.0.0.1:1"],"weights":{}}"#;
        let records = [host(&["127.0.0.1:1", "127.0.0.1:2"], None, Some(policy)), empty(), empty()];
        let explanation = explained(&records);
        let usable: Vec<_> = explanation.instances.iter().map(|one| (one.usable, one.reason)).collect();
        assert_eq!(usable, [(false, Some("draining")), (true, None)]);
        let all = [host(&["127.0.0.1:1"], None, Some(policy)), empty(), empty()];
        assert_eq!(explained(&all).answer, Answer::NoInstance);
        let broken = [host(&["127.0.0.1:1"], None, Some("{")), empty(), empty()];
        assert_eq!(explained(&broken).answer, Answer::Proxied);
    }

    const THREE: [&str; 3] = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"];

    fn reasons(policy: &str) -> (Vec<Option<&'static str>>, bool) {
        let explanation = explained(&[host(&THREE, Some("17"), Some(policy)), empty(), empty()]);
        let reasons = explanation.instances.iter().map(|one| {
            assert_eq!(one.usable, one.reason.is_none());
            one.reason
        });
        (reasons.collect(), explanation.fail_open)
    }

    #[test]
    fn the_unhealthy_are_out_unless_they_are_most() {
        let ill = "unhealthy";
        assert_eq!(reasons(r#"{"unhealthy":["127.0.0.1:2"]}"#), (vec![None, Some(ill), None], false));
        assert_eq!(reasons(r#"{"unhealthy":["127.0.0.1:2","127.0.0.1:3"]}"#), (vec![None; 3], true));
        // Half of those that do not drain is not more than half.
        let policy = r#"{"draining":["127.0.0.1:1"],"unhealthy":["127.0.0.1:1","127.0.0.1:2"]}"#;
        assert_eq!(reasons(policy), (vec![Some("draining"), Some(ill), None], false));
    }

    #[test]
    fn weight_zero_is_out_unless_nothing_else_is_left() {
        let zero = Some("weight_zero");
        assert_eq!(reasons(r#"{"weights":{"127.0.0.1:1":0}}"#), (vec![zero, None, None], false));
        let rest = r#"{"weights":{"127.0.0.1:1":0,"127.0.0.1:2":0},"draining":["127.0.0.1:3"]}"#;
        assert_eq!(reasons(rest), (vec![None, None, Some("draining")], false));
        assert_eq!(reasons(r#"{"weights":5,"draining":{},"unhealthy":"all"}"#), (vec![None; 3], false));
    }

    #[test]
    fn a_share_of_nobody_goes_to_the_others() {
        let policy = r#"{"balance":{"algorithm":"p2c"},"log_keys":{"127.0.0.1:1":"17","127.0.0.1:2":"18"},
            "draining":["127.0.0.1:2"],"shares":[{"version_type":"17","percent":60},
            {"version_type":"18","percent":20},{"version_type":"19","percent":20}]}"#;
        // The third has no log key of its own and counts as the host's.
        let explanation = explained(&[host(&THREE, Some("19"), Some(policy)), empty(), empty()]);
        let shares: Vec<_> = explanation
            .shares
            .iter()
            .map(|share| (&*share.version_type, share.percent, share.effective_percent, share.instances))
            .collect();
        assert_eq!(shares, [("17", 60.0, 75.0, 1), ("18", 20.0, 0.0, 0), ("19", 20.0, 25.0, 1)]);
        assert_eq!(explanation.algorithm, "p2c");
    }
}
