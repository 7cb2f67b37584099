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
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// The part of a policy that keeps addresses out.
#[derive(Debug, Default, serde::Deserialize)]
struct Policy {
    #[serde(default)]
    draining: Vec<String>,
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
    // A policy that cannot be read is no policy, for the edge as well.
    let policy: Policy = record
        .and_then(|record| record.policy.as_deref())
        .and_then(|policy| serde_json::from_str(policy).ok())
        .unwrap_or_default();
    let instances: Vec<Explained> = record
        .map(|record| record.addresses.as_slice())
        .unwrap_or_default()
        .iter()
        .map(|address| {
            let owner = owners.get(address);
            let reason = policy.draining.contains(address).then_some("draining");
            Explained {
                address: address.clone(),
                id: owner.map(|owner| owner.id.clone()),
                version_type_id: owner.and_then(|owner| owner.version_type_id.clone()),
                usable: reason.is_none(),
                reason,
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
        log_key: record.and_then(|record| record.log_key.clone()),
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
}
