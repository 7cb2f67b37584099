//! The state of hosts: what the route table, routers and the statistics know of each, for [`Reading::state`].

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use serde_json::Value;
use signalbox_api::routes::HostState;
use signalbox_diagnosis::hosts::{Minute, Mode, Reading, Since, State};
use signalbox_route_table::{TableHost, candidates};
use signalbox_store::{PAGE_BYTES, traffic::Sums};
use tokio::time::timeout;

use super::{Error, LIVE_MS, RouterReport, Store, host_pace};

/// For how long requests to a paused host wait if its policy does not say it, as in the edge.
const DEFAULT_PAUSE_MS: u64 = 30_000;
/// Hosts to which rules for paths lead that are read for each host of a list. If it has more, a list does not show its state.
const MAX_SERVICES: usize = 16;
/// Hosts to which rules lead that are read for all hosts of a list together.
const MAX_PAGE_SERVICES: usize = 256;
/// How long the stats Redis is waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the route table has of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostTable {
    /// What its policy decides for all requests.
    pub mode: Mode,
    /// Addresses that get requests: those that are neither draining nor on standby.
    pub addresses: Vec<String>,
    /// The number of the other addresses.
    pub idle: usize,
    /// The number of them whose health check failed.
    pub unhealthy: usize,
    /// The version types under which its requests are counted.
    pub versions: BTreeSet<String>,
    /// Version types to which its traffic split gives a part, and of which none of `addresses` is.
    pub unserved_shares: Vec<String>,
    /// The host to which a rule for `/` leads. After [`Self::resolve`] the rest describes that host's instances.
    pub service: Option<String>,
    /// Rules for paths that need no instance of the host: they lead to another host, or redirect.
    pub path_rules: usize,
    /// Hosts to which rules for other paths than `/` lead. After [`Self::resolve`] only those without an active instance.
    pub services: BTreeSet<String>,
    /// Whether a list did not evaluate all of its rules.
    pub has_unknown_rules: bool,
    /// Whether a list did not read the instances of `service`.
    pub has_unknown_service: bool,
}

impl HostTable {
    /// Reads a record. Parts of a policy that cannot be read are ignored, as in the edge.
    pub fn new(record: &TableHost) -> Self {
        let policy = record.policy.as_deref().and_then(|text| serde_json::from_str(text).ok());
        Self::with_policy(record, &policy.unwrap_or_default())
    }

    /// The same, with its policy as JSON.
    pub fn with_policy(record: &TableHost, policy: &Value) -> Self {
        let lists = |field: &str, address: &str| {
            policy[field].as_array().is_some_and(|list| list.iter().any(|one| one == address))
        };
        let addresses: Vec<String> =
            record.addresses.iter().filter(|address| !lists("draining", address)).cloned().collect();
        let unhealthy = addresses.iter().filter(|address| lists("unhealthy", address)).count();
        let keys = policy["log_keys"].as_object().into_iter().flat_map(|keys| keys.values());
        let keys = keys.filter_map(Value::as_str).map(ToOwned::to_owned);
        let rules = policy["paths"].as_array().map(Vec::as_slice).unwrap_or_default();
        let root = rules.iter().find(|rule| rule["path"] == "/" && rule["match"] != "exact");
        let mode = match (mode(policy), root.and_then(|rule| rule["redirect"]["to"].as_str())) {
            // The edge evaluates a rule's redirect before one of the host, and before maintenance.
            (Mode::Serving | Mode::Redirect { .. } | Mode::Maintenance { .. }, Some(to)) => {
                Mode::Redirect { to: to.to_owned() }
            }
            (mode, _) => mode,
        };
        Self {
            mode,
            service: root.and_then(|rule| rule["service"].as_str()).map(ToOwned::to_owned),
            path_rules: rules.iter().filter(|rule| leads_elsewhere(rule)).count(),
            services: rules
                .iter()
                .filter(|rule| Some(*rule) != root)
                .filter_map(|rule| rule["service"].as_str())
                .map(ToOwned::to_owned)
                .collect(),
            has_unknown_rules: false,
            has_unknown_service: false,
            versions: keys.chain(record.log_key.clone()).collect(),
            idle: record.addresses.len() - addresses.len(),
            unserved_shares: unserved_shares(policy, &addresses, record.log_key.as_deref()),
            addresses,
            unhealthy,
        }
    }

    /// All hosts to which its rules lead.
    pub fn all_services(&self) -> impl Iterator<Item = &str> {
        self.service.iter().chain(&self.services).map(String::as_str)
    }

    /// Takes the instances of its service, if a rule for `/` leads to one: they get all requests that no other rule is for.
    /// `table_of` returns what the table has of a host.
    pub fn resolve<'a>(&mut self, table_of: impl Fn(&str) -> Option<&'a Self>) {
        let found = |service: &str| candidates(service).iter().find_map(|name| table_of(name));
        self.services.retain(|service| found(service).is_none_or(|host| host.addresses.is_empty()));
        let Some(service) = self.service.as_ref().filter(|_| !self.has_unknown_service) else { return };
        let Self { addresses, idle, unhealthy, versions, unserved_shares, .. } =
            found(service).cloned().unwrap_or_default();
        *self = Self { addresses, idle, unhealthy, versions, unserved_shares, ..std::mem::take(self) };
    }

    /// Leaves out rules whose services are not all known. Without the service of its rule for `/`, nothing is known about the
    /// instances that get its requests.
    fn keep_known(&mut self, is_known: impl Fn(&str) -> bool) {
        if !self.services.iter().all(|service| is_known(service)) {
            (self.services, self.has_unknown_rules) = (BTreeSet::new(), true);
        }
        if self.service.as_ref().is_some_and(|service| !is_known(service)) {
            let Self { mode, service, path_rules, services, .. } = std::mem::take(self);
            let (has_unknown_rules, has_unknown_service) = (true, true);
            *self = Self {
                mode,
                service,
                path_rules,
                services,
                has_unknown_rules,
                has_unknown_service,
                ..Self::default()
            };
        }
    }

    /// Everything that is known about the host, with the addresses that routers have ejected and the last minute; `None` for what
    /// is not known.
    pub fn reading(&self, ejected: Option<&HashSet<&str>>, minute: Option<&Sums>) -> Reading {
        let is_ejected = |ejected: &HashSet<&str>| {
            self.addresses.iter().filter(|address| ejected.contains(&***address)).count() as u64
        };
        let sums = |sums: &Sums| Minute { requests: sums.requests, failed: sums.failed() };
        Reading {
            mode: self.mode.clone(),
            instances: self.addresses.len() as u64,
            idle: self.idle as u64,
            unhealthy: self.unhealthy as u64,
            ejected: ejected.map(is_ejected),
            unserved_shares: self.unserved_shares.clone(),
            unserved_services: self.services.iter().cloned().collect(),
            has_unknown_rules: self.has_unknown_rules,
            has_unknown_service: self.has_unknown_service,
            path_rules: if self.service.is_some() { 0 } else { self.path_rules as u64 },
            service: self.service.clone(),
            versions: self.versions.iter().cloned().collect(),
            minute: minute.map(sums),
        }
    }
}

/// Whether requests that match the rule need no instance of its host.
fn leads_elsewhere(rule: &Value) -> bool {
    rule["service"].is_string() || rule["redirect"].is_object()
}

/// The version types to which the traffic split gives a part, and of which none of these active addresses is.
fn unserved_shares(policy: &Value, active: &[String], log_key: Option<&str>) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let version_of = |address: &String| match &policy["log_keys"][address] {
        Value::Null => log_key.map(ToOwned::to_owned),
        version_type => Some(text(version_type)),
    };
    let served: BTreeSet<String> = active.iter().filter_map(version_of).collect();
    let shares = policy["shares"].as_array().into_iter().flatten();
    let shares = shares.filter(|share| share["percent"].as_f64().is_some_and(|percent| percent > 0.0));
    shares.map(|share| text(&share["version_type"])).filter(|id| !served.contains(id)).collect()
}

/// The checks that decide for every request, in the order in which the edge makes them.
fn mode(policy: &Value) -> Mode {
    let since = |part: &Value| Since {
        at_ms: part["since_ms"].as_u64(),
        by: part["by"].as_str().map(ToOwned::to_owned),
    };
    let (pause, maintenance) = (&policy["pause"], &policy["maintenance"]);
    if pause.is_object() {
        let wait_ms = pause["wait_ms"].as_u64().unwrap_or(DEFAULT_PAUSE_MS);
        return Mode::Paused { wait_ms, since: since(pause) };
    }
    if let Some(to) = policy["redirect"]["to"].as_str() {
        return Mode::Redirect { to: to.to_owned() };
    }
    if maintenance.is_object() {
        let status = maintenance["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        return Mode::Maintenance { status: status.unwrap_or(503), since: since(maintenance) };
    }
    Mode::Serving
}

/// The addresses that these routers have ejected.
pub fn ejected(routers: &[RouterReport]) -> HashSet<&str> {
    routers.iter().flat_map(|router| router.ejected.keys()).map(String::as_str).collect()
}

/// A state as answers of the API have it.
pub fn host_state(state: State) -> HostState {
    let State { condition, short, summary, unserved_shares, unserved_services } = state;
    HostState { condition: condition.name().to_owned(), short, summary, unserved_shares, unserved_services }
}

impl Store {
    /// The states of hosts by what the table has of them. For several hosts, a limited number of services is read: if a host needs
    /// more, its state is not known. If the stats Redis does not answer in time, ejections and requests are not known. Neither are
    /// the requests of a version type that `may_see` excludes.
    ///
    /// # Errors
    /// If the routes primary does not respond.
    pub async fn host_states(
        &self,
        mut tables: Vec<HostTable>,
        may_see: impl Fn(&str) -> bool,
    ) -> Result<Vec<State>, Error> {
        self.resolve(&mut tables).await?;
        let versions: HashSet<&str> =
            tables.iter().flat_map(|table| &table.versions).map(String::as_str).collect();
        let (now_ms, routers, minute) = tokio::join!(
            self.table_now_ms(),
            timeout(PATIENCE, self.routers(LIVE_MS)),
            timeout(PATIENCE, self.last_minute(&versions)),
        );
        let (routers, minute) = (routers.ok().and_then(Result::ok), minute.ok().and_then(Result::ok));
        let (now_ms, ejected) = (now_ms?, routers.as_deref().map(ejected));
        let state = |table: &HostTable| {
            let minute = minute.as_ref().filter(|_| table.versions.iter().all(|id| may_see(id)));
            let sums =
                minute.map(|minute| Sums::of(table.versions.iter().filter_map(|id| minute.by_id.get(id))));
            table.reading(ejected.as_ref(), sums.as_ref()).state(now_ms)
        };
        Ok(tables.iter().map(state).collect())
    }

    /// Reads the hosts to which rules lead: of one host all of them, of several as many as a page may cost; about 4 MiB.
    async fn resolve(&self, tables: &mut [HostTable]) -> Result<(), Error> {
        let is_list = tables.len() > 1;
        let services = match is_list {
            true => affordable(tables),
            false => tables.iter().flat_map(HostTable::all_services).map(ToOwned::to_owned).collect(),
        };
        let mut seen = HashSet::new();
        let names: Vec<String> = services
            .iter()
            .flat_map(|service| candidates(service))
            .filter(|name| seen.insert(name.clone()))
            .collect();
        let names = self.existing_hosts(names).await?;
        let mut bytes = PAGE_BYTES;
        let mut found: HashMap<&str, HostTable> = HashMap::new();
        let (mut read, mut pace) = (0, host_pace());
        while read < names.len() && bytes > 0 {
            let records = self.table_hosts_part(&names[read..], &mut pace).await?;
            for (name, record) in names[read..].iter().zip(&records).filter(|(_, record)| record.exists()) {
                bytes = bytes.saturating_sub(record.bytes());
                // Rules of a service do not apply.
                found.insert(name, HostTable { services: BTreeSet::new(), ..HostTable::new(record) });
            }
            read += records.len();
        }
        let unread: HashSet<&str> = names[read..].iter().map(String::as_str).collect();
        let is_read = |service: &&str| !candidates(service).iter().any(|name| unread.contains(&**name));
        let known: HashSet<&str> = services.iter().map(String::as_str).filter(is_read).collect();
        for table in tables {
            table.keep_known(|service| known.contains(service));
            table.resolve(|name| found.get(name));
        }
        Ok(())
    }
}

/// The services that are read for a list of hosts: for those with the fewest services first, so that a host with many makes no
/// other one unknown. Hosts with too many lose them.
fn affordable(tables: &mut [HostTable]) -> Vec<String> {
    for table in tables.iter_mut().filter(|table| table.services.len() > MAX_SERVICES) {
        (table.services, table.has_unknown_rules) = (BTreeSet::new(), true);
    }
    // What an operator has decided is the state, wherever rules lead.
    let mut order: Vec<&mut HostTable> =
        tables.iter_mut().filter(|table| table.mode == Mode::Serving).collect();
    order.sort_by_key(|table| table.all_services().count());
    let (mut chosen, mut services) = (HashSet::new(), Vec::new());
    for table in order {
        let costs = |chosen: &HashSet<String>, table: &HostTable| {
            table.all_services().filter(|service| !chosen.contains(*service)).count()
        };
        if chosen.len() + costs(&chosen, table) > MAX_PAGE_SERVICES {
            // The service of its rule for `/` may still be affordable.
            (table.services, table.has_unknown_rules) = (BTreeSet::new(), true);
        }
        if chosen.len() + costs(&chosen, table) <= MAX_PAGE_SERVICES {
            for service in table.all_services().filter(|service| chosen.insert((*service).to_owned())) {
                services.push(service.to_owned());
            }
        }
    }
    services
}

#[cfg(test)]
mod tests {
    use signalbox_diagnosis::hosts::Condition;

    use super::*;

    fn table(policy: &str) -> HostTable {
        HostTable::new(&TableHost {
            addresses: ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"].map(str::to_owned).to_vec(),
            instance_ids: Vec::new(),
            log_key: Some("17".to_owned()),
            policy: Some(policy.to_owned()),
        })
    }

    #[test]
    fn a_record_becomes_what_requests_get() {
        let read = table(
            r#"{"v":1,"draining":["127.0.0.1:1"],"unhealthy":["127.0.0.1:1","127.0.0.1:2"],"log_keys":{"127.0.0.1:3":"18"}}"#,
        );
        assert_eq!((read.addresses.len(), read.idle, read.unhealthy, read.mode), (2, 1, 1, Mode::Serving));
        assert_eq!(read.versions, BTreeSet::from(["17".to_owned(), "18".to_owned()]));
        let minute = Sums { requests: 9, server_errors: 5, edge_errors: 3, ..Sums::default() };
        let ejected = HashSet::from(["127.0.0.1:2", "127.0.0.1:9"]);
        let reading = table("{").reading(Some(&ejected), Some(&minute));
        let counted = Some(Minute { requests: 9, failed: 2 });
        assert_eq!((reading.instances, reading.ejected, reading.minute), (3, Some(1), counted));
        let reading = table("{").reading(None, None);
        assert_eq!((reading.instances, reading.ejected, reading.minute), (3, None, None));
    }

    #[test]
    fn a_rule_for_all_paths_leads_to_the_instances_of_its_service() {
        let rules = |rules: &str| table(&format!(r#"{{"paths":[{rules}]}}"#));
        let service = rules(r#"{"path":"/api","service":"api.test"}"#);
        let mut leads = rules(r#"{"path":"/","service":"b.test"},{"path":"/x","service":"c.test"}"#);
        leads.resolve(|name| (name == "*.test").then_some(&service));
        let reading = leads.reading(None, None);
        assert_eq!(
            (reading.service.as_deref(), reading.instances, reading.path_rules),
            (Some("b.test"), 3, 0)
        );
        leads.resolve(|_| None);
        assert_eq!(leads.reading(None, None).instances, 0, "instances of its own get nothing");
        let moved = rules(r#"{"path":"/","redirect":{"to":"https://b.test"}}"#);
        assert_eq!(moved.mode, Mode::Redirect { to: "https://b.test".to_owned() });
        for other in
            [r#"{"path":"/","match":"exact","service":"b.test"}"#, r#"{"path":"/a","service":"b.test"}"#]
        {
            let mut own = rules(other);
            own.resolve(|_| None);
            let reading = own.reading(None, None);
            assert_eq!((reading.service, reading.instances, reading.path_rules), (None, 3, 1), "{other}");
        }
        let own = rules(
            r#"{"path":"/a","access":{"allow":["10.0.0.0/8"]}},{"path":"/b","redirect":{"to":"https://b.test"}}"#,
        );
        assert_eq!(own.path_rules, 1, "a rule of access needs an instance");
    }

    /// A host with rules that lead to these services.
    fn leading(services: impl IntoIterator<Item = String>) -> HostTable {
        HostTable { services: services.into_iter().collect(), ..table("{}") }
    }

    #[test]
    fn a_list_reads_a_limited_number_of_services_for_hosts_with_few_first() {
        let own = |host: usize, count: usize| {
            leading((0..count).map(move |service| format!("s{service}.h{host}.test")))
        };
        // 40 hosts with 16 services before 100 with one.
        let mut tables: Vec<HostTable> = (0..40).map(|host| own(host, 16)).collect();
        tables.extend((40..140).map(|host| own(host, 1)));
        tables.push(own(140, 17));
        let shared = || (0..16).map(|service| format!("s{service}.h0.test"));
        tables.push(leading(shared()));
        let read = affordable(&mut tables);
        assert_eq!(read.len(), 100 + 9 * 16, "no host is evaluated in part");
        assert_eq!(read.iter().collect::<HashSet<_>>().len(), read.len(), "each is read once");
        assert!(tables[40..140].iter().all(|table| !table.has_unknown_rules && table.services.len() == 1));
        let whole = tables[..40].iter().filter(|table| !table.has_unknown_rules).count();
        assert_eq!(whole, 9);
        assert!(tables[140].has_unknown_rules && tables[140].services.is_empty());
        assert!(!tables[141].has_unknown_rules, "what another host needs is read for all");
    }

    #[test]
    fn a_host_whose_service_a_list_did_not_read_has_no_known_instances() {
        let to = |host: usize| {
            table(&format!(
                r#"{{"paths":[{{"path":"/","service":"s{host}.test"}},{{"path":"/x","service":"x{host}.test"}}]}}"#
            ))
        };
        let mut tables: Vec<HostTable> = (0..200).map(to).collect();
        let read = affordable(&mut tables);
        assert_eq!(read.len(), MAX_PAGE_SERVICES);
        for table in &mut tables {
            table.keep_known(|service| read.iter().any(|one| one == service));
            table.resolve(|_| None);
        }
        let of = |condition| {
            let state = |table: &HostTable| table.reading(None, None).state(0).condition;
            tables.iter().filter(|table| state(table) == condition).count()
        };
        // 128 services without an instance are read with all rules of their hosts.
        assert_eq!((of(Condition::NoInstance), of(Condition::Unknown)), (128, 72));
        let paused = |text: &str| table(&format!(r#"{{"pause":{{}},"paths":[{text}]}}"#));
        let mut planned = vec![paused(r#"{"path":"/","service":"b.test"}"#), table("{}")];
        assert!(affordable(&mut planned).is_empty(), "an operator has decided what its requests get");
    }

    #[test]
    fn a_share_without_an_active_instance_is_unserved() {
        let of = |rest: &str| {
            let shares = r#"{"version_type":"18","percent":5},{"version_type":"17","percent":95},{"version_type":"9","percent":0}"#;
            table(&format!(r#"{{"shares":[{shares}]{rest}}}"#)).unserved_shares
        };
        let keys = r#","log_keys":{"127.0.0.1:1":"18"}"#;
        assert!(of(keys).is_empty());
        // Addresses on standby are listed as draining as well.
        assert_eq!(of(&format!(r#"{keys},"draining":["127.0.0.1:1"]"#)), ["18"]);
        assert_eq!(of(""), ["18"]);
        assert!(table("{").unserved_shares.is_empty());
    }

    #[test]
    fn the_first_check_of_the_edge_is_the_mode() {
        let since = Since { at_ms: Some(7), by: Some("root".to_owned()) };
        let closed = r#""maintenance":{"since_ms":7,"by":"root"}"#;
        let mode = |parts: &[&str]| table(&format!("{{{}}}", parts.join(","))).mode;
        assert_eq!(mode(&[closed]), Mode::Maintenance { status: 503, since });
        let to = r#""redirect":{"to":"https://b.test"}"#;
        assert_eq!(mode(&[closed, to]), Mode::Redirect { to: "https://b.test".to_owned() });
        let rule = r#""paths":[{"path":"/","redirect":{"to":"https://c.test"}}]"#;
        for parts in [&[closed, rule][..], &[to, rule], &[closed, to, rule]] {
            assert_eq!(mode(parts), Mode::Redirect { to: "https://c.test".to_owned() });
        }
        assert_eq!(
            mode(&[closed, to, rule, r#""pause":{}"#]),
            Mode::Paused { wait_ms: 30_000, since: Since::default() }
        );
    }
}
