//! Why the edge answers a host as it does, in words. Pure: the table's records come in, the explanation goes out.

use std::collections::HashMap;

use signalbox_api::routes::{
    Answer, Candidate, Explained, ExplainedPath, ExplainedShare, Explanation, HostState, Step,
};

use super::{
    Line, Owner, PathRule, RequestPath, TableHost,
    choice::{Asked, Host, Secret},
    policy::find_path,
};

/// The minimum fraction of its weight that a new instance gets.
const LEAST_PART: f64 = 0.1;
const MAX_SLOW_START_MS: f64 = 3_600_000.0;

/// The part of a policy that decides which instance gets a request. As in the edge, parts that cannot be
/// parsed are ignored.
#[derive(Debug)]
pub(crate) struct Policy(serde_json::Value);

impl Policy {
    fn read(text: Option<&str>) -> Self {
        let mut value: serde_json::Value =
            text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        // A table that was written manually may have numbers as version types, which the edge accepts, too.
        let as_text = |one: &mut serde_json::Value| {
            if let Some(number) = one.as_i64() {
                *one = number.to_string().into();
            }
        };
        if let Some(keys) = value.get_mut("log_keys").and_then(|keys| keys.as_object_mut()) {
            keys.values_mut().for_each(as_text);
        }
        let shares = value.get_mut("shares").and_then(|shares| shares.as_array_mut());
        shares.into_iter().flatten().filter_map(|share| share.get_mut("version_type")).for_each(as_text);
        Self(value)
    }

    /// The name of the session cookie, if the host has sticky sessions.
    pub(super) fn sticky(&self) -> Option<&str> {
        let given = self.0["sticky"].as_object()?;
        Some(given.get("cookie").and_then(name).unwrap_or("signalbox"))
    }

    /// Version types with their percentages; empty if there is no traffic split.
    pub(super) fn share_list(&self) -> Vec<(&str, f64)> {
        let one =
            |share: &'_ serde_json::Value| share["percent"].as_f64().filter(|p| (0.0..=100.0).contains(p));
        let list: Vec<_> = self.0["shares"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|share| Some((share["version_type"].as_str()?, one(share)?)))
            .collect();
        if list.iter().any(|(_, percent)| *percent > 0.0) { list } else { Vec::new() }
    }

    /// The version type that a value of such a header or cookie selects.
    pub(super) fn listed<'a>(&'a self, value: &'a str) -> Option<&'a str> {
        match &self.0["shares_by"]["values"] {
            serde_json::Value::Null => Some(value),
            values => values[value].as_str(),
        }
    }

    /// The header and the cookie that select a version type.
    pub(super) fn shares_by(&self) -> (Option<&str>, Option<&str>) {
        let by = &self.0["shares_by"];
        (name(&by["header"]), name(&by["cookie"]))
    }

    /// The attribute of a request that is hashed, if the algorithm hashes and the request has it.
    pub(super) fn hash_key<'a>(&self, asked: &'a Asked) -> Option<&'a str> {
        let balance = &self.0["balance"];
        if balance["algorithm"] != "hash" {
            return None;
        }
        if let Some(header) = name(&balance["header"]) {
            return asked.header(header);
        }
        if let Some(cookie) = name(&balance["cookie"]) {
            return asked.cookie(cookie);
        }
        asked.address().filter(|_| balance["address"] == true)
    }

    /// The checks that the edge makes before it chooses an instance, and their results for the request.
    fn checks(&self, rule: Option<&PathRule>, question: Question<'_>) -> (Vec<String>, Vec<Step>) {
        // The table adds members about instances that are not part of a policy.
        let added = ["v", "weights", "log_keys", "draining", "standby", "unhealthy", "joined"];
        let mut rules = self.0.clone();
        if let Some(rules) = rules.as_object_mut() {
            rules.retain(|name, _| !added.contains(&&**name));
        }
        let policy: super::Policy = serde_json::from_value(rules).unwrap_or_default();
        let steps = question.line.map(|line| policy.trial(rule, line, question.asked));
        (policy.checks(rule).into_iter().map(ToOwned::to_owned).collect(), steps.unwrap_or_default())
    }

    /// The rules for paths.
    fn paths(&self) -> Vec<PathRule> {
        let list = self.0["paths"].as_array().into_iter().flatten();
        list.filter_map(|rule| serde_json::from_value(rule.clone()).ok()).collect()
    }

    /// The fraction of its weight that an address gets during slow start; `None` for the full weight.
    pub(super) fn slow_start(&self, address: &str, now_ms: u64) -> Option<f64> {
        let takes = self.0["slow_start_ms"].as_f64().filter(|ms| (1.0..=MAX_SLOW_START_MS).contains(ms))?;
        let joined = self.0["joined"][address].as_f64().filter(|at| *at >= 0.0)?;
        let part = (now_ms as f64 - joined) / takes;
        (part < 1.0).then(|| part.max(LEAST_PART))
    }

    pub(super) fn lists(&self, field: &str, address: &str) -> bool {
        self.0[field].as_array().is_some_and(|list| list.iter().any(|one| one == address))
    }

    pub(super) fn weight(&self, address: &str) -> f64 {
        self.0["weights"][address].as_f64().filter(|weight| (0.0..=1000.0).contains(weight)).unwrap_or(1.0)
    }

    pub(super) fn version_type(&self, address: &str) -> Option<&str> {
        self.0["log_keys"][address].as_str()
    }

    /// Why each address is excluded, and whether the host fails open. The edge implements the same rules
    /// separately (`candidates.lua`): draining addresses are excluded. Unhealthy ones are excluded, unless
    /// they are more than half of the rest. Those with weight 0 are excluded, unless no others remain.
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
            () if self.lists("standby", address) => Some("standby"),
            () if draining(address) => Some("draining"),
            () if !fit(address) => Some("unhealthy"),
            () if !weightless && self.weight(address) == 0.0 => Some("weight_zero"),
            () => None,
        };
        (addresses.iter().map(reason).collect(), fail_open)
    }

    /// The fraction of requests that each address gets. If no share has an instance that can serve it, only
    /// weights decide.
    fn chances<'a>(
        &self,
        addresses: &[String],
        reasons: &[Option<&'static str>],
        shares: &[ExplainedShare],
        version_of: impl Fn(&str) -> Option<&'a str>,
    ) -> Vec<f64> {
        let shared = shares.iter().any(|share| share.effective_percent > 0.0);
        let usable: Vec<&String> = addresses
            .iter()
            .zip(reasons)
            .filter(|(_, reason)| reason.is_none())
            .map(|(one, _)| one)
            .collect();
        let chance = |address: &String, reason: &Option<&str>| {
            if reason.is_some() {
                return 0.0;
            }
            let own = version_of(address);
            let beside: Vec<f64> = usable
                .iter()
                .filter(|other| !shared || version_of(other) == own)
                .map(|other| self.weight(other))
                .collect();
            let total: f64 = beside.iter().sum();
            // If all weights are 0, they are treated as equal.
            let part =
                if total > 0.0 { self.weight(address) / total } else { 1.0 / beside.len().max(1) as f64 };
            let share = shares.iter().find(|share| Some(share.version_type.as_str()) == own);
            let percent = if shared { share.map_or(0.0, |share| share.effective_percent) } else { 100.0 };
            part * percent / 100.0
        };
        addresses.iter().zip(reasons).map(|(address, reason)| chance(address, reason)).collect()
    }

    /// The shares, with the number of usable instances of each version type.
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

/// The name of a header or cookie, by the rules of the edge.
fn name(value: &serde_json::Value) -> Option<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    value.as_str().filter(|name| !name.is_empty() && name.len() <= 128 && name.bytes().all(plain))
}

/// A request to explain: its attributes, and the key that reads session cookies.
#[derive(Debug, Clone, Copy, Default)]
pub struct Question<'a> {
    /// The request; `None` explains the host in general.
    pub asked: Option<&'a Asked>,
    /// The key that decrypts session cookies; `None` without a key file.
    pub secret: Option<&'a Secret>,
    /// Method and scheme of the request; `None` if its checks are not explained.
    pub line: Option<Line<'a>>,
}

/// The result of the rules for paths.
#[derive(Debug)]
pub struct Leads {
    /// The host whose instances serve the path, if it is a different one.
    pub service: Option<String>,
    rule: Option<PathRule>,
    sent: String,
    checks: (Vec<String>, Vec<Step>),
}

/// Applies the rules for `path` of the first record that exists.
pub fn leads_to(records: &[TableHost], path: &RequestPath, question: Question<'_>) -> Leads {
    let record = records.iter().find(|record| record.exists());
    let policy = Policy::read(record.and_then(|record| record.policy.as_deref()));
    let rules = policy.paths();
    let rule = find_path(&rules, &path.matched).cloned();
    let sent = rule.as_ref().map_or(&*path.normalized, |rule| rule.sent(&path.normalized)).to_owned();
    let service = rule.as_ref().and_then(PathRule::service).map(ToOwned::to_owned);
    Leads { service, checks: policy.checks(rule.as_ref(), question), rule, sent }
}

impl Leads {
    /// The explanation of a request with this path. `asked` explains the requested host, and `service` the
    /// host to which the path leads.
    pub fn explanation(self, asked: Explanation, service: Option<Explanation>) -> Explanation {
        let path = Some(ExplainedPath {
            rule: self.rule.as_ref().map(|rule| rule.path().to_owned()),
            exact: self.rule.as_ref().is_some_and(PathRule::is_exact),
            service: self.service,
            matched: service.as_ref().and_then(|service| service.matched.clone()),
            sent: self.sent,
        });
        let (checks, steps) = self.checks;
        let Some(service) = service else { return Explanation { path, checks, steps, ..asked } };
        let answer = match service.answer {
            Answer::NoRoute => Answer::NoInstance,
            answer => answer,
        };
        let Explanation { host, matched, candidates, state, .. } = asked;
        // The policy of the requested host decides before the instances of the service do.
        let closed = |state: &HostState| ["paused", "redirects", "maintenance"].contains(&&*state.condition);
        let state = state.filter(closed).or(service.state.clone());
        Explanation { host, matched, candidates, path, checks, steps, answer, state, ..service }
    }
}

/// Explains `host`. `records` are those of `candidates` in the same order; `owners` belong to the addresses
/// of the record that decides.
pub fn explain(
    host: String,
    candidates: Vec<String>,
    records: &[TableHost],
    owners: &HashMap<String, Owner>,
    question: Question<'_>,
    (serial, now_ms): (u64, u64),
) -> Explanation {
    let matched = records.iter().position(TableHost::exists);
    let record = matched.and_then(|at| records.get(at));
    let policy = Policy::read(record.and_then(|record| record.policy.as_deref()));
    let addresses = record.map(|record| record.addresses.as_slice()).unwrap_or_default();
    let (reasons, fail_open) = policy.reasons(addresses);
    let log_key = record.and_then(|record| record.log_key.clone());
    let shares = policy.shares(|version_type| {
        let usable = addresses.iter().zip(&reasons).filter(|(_, reason)| reason.is_none());
        let of = |address: &str| policy.version_type(address).or(log_key.as_deref()) == Some(version_type);
        usable.filter(|(address, _)| of(address)).count()
    });
    let version_of = |address: &str| policy.version_type(address).or(log_key.as_deref());
    let chances = policy.chances(addresses, &reasons, &shares, version_of);
    let deciding = matched.and_then(|at| candidates.get(at));
    let request = deciding.zip(question.asked).map(|(name, asked)| {
        let log_key = log_key.as_deref();
        Host { name, policy: &policy, addresses, reasons: &reasons, fail_open, log_key, now_ms }
            .choose(asked, question.secret)
    });
    let instances: Vec<Explained> = addresses
        .iter()
        .zip(reasons)
        .zip(chances)
        .map(|((address, reason), chance)| {
            let owner = owners.get(address);
            Explained {
                address: address.clone(),
                id: owner.map(|owner| owner.id.clone()),
                version_type_id: owner.and_then(|owner| owner.version_type_id.clone()),
                usable: reason.is_none(),
                reason: reason.map(str::to_owned),
                weight: policy.weight(address),
                chance,
                slow_start: policy.slow_start(address, now_ms),
                unhealthy: policy.lists("unhealthy", address),
            }
        })
        .collect();
    let (checks, steps) = policy.checks(None, question);
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
        matched: deciding.cloned(),
        answer,
        log_key,
        algorithm: policy.0["balance"]["algorithm"].as_str().unwrap_or("round_robin").to_owned(),
        fail_open,
        shares,
        candidates: candidates.iter().zip(records).map(candidate).collect(),
        instances,
        request,
        path: None,
        state: None,
        checks,
        steps,
        host,
        serial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::candidates;
    use signalbox_api::routes::{By, Choice};

    fn host(addresses: &[&str], log_key: Option<&str>, policy: Option<&str>) -> TableHost {
        TableHost {
            addresses: addresses.iter().map(ToString::to_string).collect(),
            instance_ids: Vec::new(),
            log_key: log_key.map(ToOwned::to_owned),
            policy: policy.map(ToOwned::to_owned),
        }
    }

    fn explained(records: &[TableHost]) -> Explanation {
        asked(records, Question::default())
    }

    fn asked(records: &[TableHost], question: Question<'_>) -> Explanation {
        explain("a.b".to_owned(), candidates("a.b"), records, &HashMap::new(), question, (7, 20_000))
    }

    #[test]
    fn the_most_specific_existing_name_decides_without_falling_through() {
        // "a.b" exists because of its log key, so the instances of its wildcard are not used.
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
    fn a_draining_address_is_excluded_with_its_reason() {
        let policy = r#"{"v":1,"draining":["127.0.0.1:1"],"weights":{}}"#;
        let records = [host(&["127.0.0.1:1", "127.0.0.1:2"], None, Some(policy)), empty(), empty()];
        let explanation = explained(&records);
        let usable: Vec<_> =
            explanation.instances.iter().map(|one| (one.usable, one.reason.as_deref())).collect();
        assert_eq!(usable, [(false, Some("draining")), (true, None)]);
        let all = [host(&["127.0.0.1:1"], None, Some(policy)), empty(), empty()];
        assert_eq!(explained(&all).answer, Answer::NoInstance);
        let broken = [host(&["127.0.0.1:1"], None, Some("{")), empty(), empty()];
        assert_eq!(explained(&broken).answer, Answer::Proxied);
    }

    const THREE: [&str; 3] = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"];

    fn reasons(policy: &str) -> (Vec<Option<&'static str>>, bool) {
        let explanation = explained(&[host(&THREE, Some("17"), Some(policy)), empty(), empty()]);
        let reasons = explanation.instances.into_iter().map(|one| {
            assert_eq!(one.usable, one.reason.is_none());
            one.reason.map(|reason| &*reason.leak())
        });
        (reasons.collect(), explanation.fail_open)
    }

    #[test]
    fn the_unhealthy_are_out_unless_they_are_most() {
        let ill = "unhealthy";
        assert_eq!(reasons(r#"{"unhealthy":["127.0.0.1:2"]}"#), (vec![None, Some(ill), None], false));
        assert_eq!(reasons(r#"{"unhealthy":["127.0.0.1:2","127.0.0.1:3"]}"#), (vec![None; 3], true));
        // Half of the addresses that do not drain is not more than half.
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
    fn chances_are_shares_times_weights() {
        let chances = |policy: &str| -> Vec<f64> {
            let explanation = explained(&[host(&THREE, Some("17"), Some(policy)), empty(), empty()]);
            explanation.instances.iter().map(|one| (one.chance * 1000.0).round() / 1000.0).collect()
        };
        assert_eq!(chances("{}"), [0.333; 3]);
        assert_eq!(chances(r#"{"weights":{"127.0.0.1:1":3}}"#), [0.6, 0.2, 0.2]);
        assert_eq!(chances(r#"{"draining":["127.0.0.1:1"]}"#), [0.0, 0.5, 0.5]);
        assert_eq!(chances(r#"{"weights":{"127.0.0.1:1":0,"127.0.0.1:2":0,"127.0.0.1:3":0}}"#), [0.333; 3]);
        let shares = r#""log_keys":{"127.0.0.1:3":"18"},"shares":[{"version_type":"17","percent":80},
            {"version_type":"18","percent":20}]"#;
        assert_eq!(chances(&format!("{{{shares}}}")), [0.4, 0.4, 0.2]);
        assert_eq!(chances(&format!(r#"{{"weights":{{"127.0.0.1:1":3}},{shares}}}"#)), [0.6, 0.2, 0.2]);
        assert_eq!(chances(&format!(r#"{{"draining":["127.0.0.1:3"],{shares}}}"#)), [0.5, 0.5, 0.0]);
    }

    #[test]
    fn a_share_without_instances_goes_to_the_others() {
        let policy = r#"{"balance":{"algorithm":"p2c"},"log_keys":{"127.0.0.1:1":"17","127.0.0.1:2":"18"},
            "draining":["127.0.0.1:2"],"shares":[{"version_type":"17","percent":60},
            {"version_type":"18","percent":20},{"version_type":"19","percent":20}]}"#;
        // The third address has no log key, so its requests are counted under the host's.
        let explanation = explained(&[host(&THREE, Some("19"), Some(policy)), empty(), empty()]);
        let shares: Vec<_> = explanation
            .shares
            .iter()
            .map(|share| (&*share.version_type, share.percent, share.effective_percent, share.instances))
            .collect();
        assert_eq!(shares, [("17", 60.0, 75.0, 1), ("18", 20.0, 0.0, 0), ("19", 20.0, 25.0, 1)]);
        assert_eq!(explanation.algorithm, "p2c");
    }

    fn choice(policy: &str, header: Option<&str>, cookie: Option<&str>) -> Choice {
        let question = Asked::parse(header, cookie, Some("10.0.0.1")).unwrap();
        let records = [host(&THREE, Some("17"), Some(policy)), empty(), empty()];
        let question = Question { asked: question.as_ref(), secret: Some(&[7; 32]), ..Question::default() };
        asked(&records, question).request.unwrap()
    }

    #[test]
    fn a_request_with_an_identity_always_gets_the_same_instance() {
        let by_header = r#"{"balance":{"algorithm":"hash","header":"X-User"},"draining":["127.0.0.1:3"]}"#;
        let first = choice(by_header, Some("x-user: ann"), None);
        assert_eq!((first.by, &first), (By::Hash, &choice(by_header, Some("X-User: ann"), Some("a=b"))));
        let of = |n: usize| choice(by_header, Some(&format!("X-User: {n}")), None).address.unwrap();
        let chosen: std::collections::BTreeSet<String> = (0..40).map(of).collect();
        assert_eq!(chosen.len(), 2, "{chosen:?}");
        // Without the header, requests are distributed in turn.
        let turns = choice(by_header, None, Some("a=b"));
        assert_eq!((turns.by, turns.address, turns.among.len()), (By::Chance, None, 2));
        let by_address = r#"{"balance":{"algorithm":"hash","address":true}}"#;
        assert_eq!(choice(by_address, None, None).by, By::Hash);
        assert_eq!(choice(r#"{"balance":{"algorithm":"p2c"}}"#, None, Some("a=b")).by, By::Chance);
        let all = r#"{"draining":["127.0.0.1:1","127.0.0.1:2","127.0.0.1:3"]}"#;
        assert_eq!(choice(all, None, None).by, By::NoInstance);
    }

    #[test]
    fn a_request_that_names_a_version_type_reaches_it() {
        let policy = r#"{"log_keys":{"127.0.0.1:3":18},"shares":[{"version_type":"17","percent":75},
            {"version_type":18,"percent":25}],"shares_by":{"header":"X-Version","cookie":"version"}}"#;
        let new = choice(policy, Some("X-Version: 18"), Some("version=17"));
        assert_eq!((new.by, new.address.as_deref()), (By::OnlyOne, Some("127.0.0.1:3")));
        let old = choice(policy, Some("X-Version: 19"), Some("version=17"));
        assert_eq!((old.by, old.version_type.as_deref(), old.among.len()), (By::Chance, Some("17"), 2));
        let drawn: Vec<f64> = choice(policy, None, None).among.iter().map(|one| one.chance).collect();
        assert_eq!(drawn, [0.375, 0.375, 0.25]);
    }

    #[test]
    fn a_slow_start_is_named_and_counts() {
        let policy = r#"{"slow_start_ms":20000,"joined":{"127.0.0.1:1":10000,"127.0.0.1:2":19999}}"#;
        let records = [host(&THREE, None, Some(policy)), empty(), empty()];
        let parts: Vec<_> = explained(&records).instances.iter().map(|one| one.slow_start).collect();
        assert_eq!(parts, [Some(0.5), Some(0.1), None]);
        let among = choice(policy, None, None).among;
        assert_eq!((&*among[0].address, among[0].chance), ("127.0.0.1:3", 1.0 / 1.6));
    }

    #[test]
    fn an_unreadable_session_is_reported() {
        let policy = r#"{"sticky":{"cookie":"stay"}}"#;
        let records = [host(&THREE, None, Some(policy)), empty(), empty()];
        let question = Asked::parse(None, Some("stay=a.b"), None).unwrap();
        let without =
            asked(&records, Question { asked: question.as_ref(), secret: None, ..Question::default() });
        assert_eq!(without.request.unwrap().by, By::UnreadableSession);
        // With the key, the cookie is recognized as forged.
        assert_eq!(choice(policy, None, Some("stay=a.b")).by, By::Chance);
    }
}
