//! Instances: the description by a client ([`Spec`]) and the record in the fabric ([`Record`]).

use std::fmt;

use serde::{Deserialize, Serialize};
use signalbox_api::routes::{Health, NewInstance, State};

use super::{Address, AddressRules, Hostname, Invalid, health};

/// Maximum number of names of an instance. One script projects an instance, and reads each of its names.
const MAX_HOSTNAMES: usize = 100;
const MAX_LEASE_SECONDS: u32 = 86_400;
const MAX_WEIGHT: u32 = 1000;

/// Names under which the statistics count requests whose host name matches no host, and requests to the admin listener.
const RESERVED_VERSION_TYPES: [&str; 2] = ["null", "pacemaker"];

/// A name that other systems assigned to a version type, an application or a node. Numbers are accepted and
/// stored as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Label(#[serde(deserialize_with = "signalbox_api::routes::text")] String);

impl Label {
    /// The text of the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses a label; `field` is named in the error.
    pub fn parse(text: &str, field: &'static str) -> Result<Self, Invalid> {
        // The statistics count the requests of all version types under it.
        if text == "*" {
            let detail =
                format!("{field} cannot be *: the statistics use it for the sum over all version types");
            return Err(Invalid::new("invalid_label", field, detail));
        }
        let fits = (1..=64).contains(&text.len())
            && !text.chars().any(|character| character.is_control() || character.is_whitespace());
        let detail = format!("{field} has 1 to 64 bytes without spaces and control characters");
        fits.then(|| Self(text.to_owned())).ok_or_else(|| Invalid::new("invalid_label", field, detail))
    }
}

/// The name of an instance, chosen by the client that registers it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(String);

impl InstanceId {
    /// Accepts `[A-Za-z0-9._:-]{1,128}`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let fits = (1..=128).contains(&text.len()) && text.bytes().all(plain);
        let detail = "the ID of an instance must match [A-Za-z0-9._:-]{1,128}";
        fits.then(|| Self(text.to_owned())).ok_or_else(|| Invalid::new("invalid_id", "id", detail))
    }

    /// The text of the ID.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A validated description in canonical form: two descriptions with the same meaning are equal.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Where nginx connects to the instance.
    pub address: Address,
    /// Sorted, without repeats, never empty.
    pub hostnames: Vec<Hostname>,
    /// The key under which its requests are counted.
    pub version_type_id: Label,
    /// The version that it runs.
    pub version_id: Option<Label>,
    /// The application that it belongs to.
    pub application_id: Option<Label>,
    /// The workspace of its application.
    pub workspace_id: Option<Label>,
    /// The machine that it runs on.
    pub node_id: Option<Label>,
    /// Its share of the requests relative to other instances, 0 to 1000.
    pub weight: u32,
    /// The instance is removed after this many seconds without a heartbeat; `None` disables the lease.
    pub lease_seconds: Option<u32>,
    /// The active health check, if any.
    pub health: Option<Health>,
}

impl Spec {
    /// Validates a description and brings it into canonical form.
    pub fn check(new: NewInstance, rules: &AddressRules) -> Result<Self, Invalid> {
        let address = rules.admit(&new.address)?;
        if new.hostnames.is_empty() || new.hostnames.len() > MAX_HOSTNAMES {
            let detail = format!("`hostnames` must contain between 1 and {MAX_HOSTNAMES} names");
            return Err(Invalid::new("invalid_hostnames", "hostnames", detail));
        }
        let mut hostnames =
            new.hostnames.iter().map(|name| Hostname::parse(name)).collect::<Result<Vec<_>, _>>()?;
        hostnames.sort_unstable();
        hostnames.dedup();
        let weight = new.weight.unwrap_or(1);
        if weight > MAX_WEIGHT {
            let detail = format!("`weight` must be between 0 and {MAX_WEIGHT}");
            return Err(Invalid::new("invalid_weight", "weight", detail));
        }
        if new.lease_seconds.is_some_and(|seconds| !(1..=MAX_LEASE_SECONDS).contains(&seconds)) {
            let detail = format!(
                "`lease_seconds` must be between 1 and {MAX_LEASE_SECONDS}; omit it to register without a lease"
            );
            return Err(Invalid::new("invalid_lease", "lease_seconds", detail));
        }
        if let Some(health) = &new.health {
            health::check(health)?;
            if !rules.may_check(address.as_str()) {
                let detail = "this pacemaker makes no health checks of loopback addresses and Unix sockets; they need \
                    routing.check_local, for a pacemaker and routers on one machine";
                return Err(Invalid::new("invalid_health", "health", detail));
            }
        }
        let version_type_id = Label::parse(&new.version_type_id, "version_type_id")?;
        if RESERVED_VERSION_TYPES.contains(&version_type_id.as_str()) {
            let detail = format!(
                "the version type {} is reserved: the statistics count requests under it that are for no host, or for the admin listener",
                version_type_id.as_str()
            );
            return Err(Invalid::new("reserved_version_type", "version_type_id", detail));
        }
        let label = |text: Option<String>, field| text.map(|text| Label::parse(&text, field)).transpose();
        Ok(Self {
            address,
            hostnames,
            version_type_id,
            version_id: label(new.version_id, "version_id")?,
            application_id: label(new.application_id, "application_id")?,
            workspace_id: label(new.workspace_id, "workspace_id")?,
            node_id: label(new.node_id, "node_id")?,
            weight,
            lease_seconds: new.lease_seconds,
            health: new.health,
        })
    }
}

/// The desired state of an instance, without its revision, which the fabric assigns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    /// The validated description.
    #[serde(flatten)]
    pub spec: Spec,
    /// Whether the instance gets new requests.
    pub state: State,
    /// When the drain ends, in unix milliseconds of the routes primary's clock. Then the instance is removed, or put on
    /// standby if it has [`Self::standby_until_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline_ms: Option<u64>,
    /// Until when an instance that a promotion replaced can be brought back, in unix milliseconds of the routes primary's
    /// clock. Then it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby_until_ms: Option<u64>,
}

impl Desired {
    /// An instance that a client wants in this state, without an end.
    pub fn new(spec: Spec, state: State) -> Self {
        Self { spec, state, drain_deadline_ms: None, standby_until_ms: None }
    }

    /// The desired state after a registration. An instance that is known keeps its state; otherwise it begins in the state
    /// `first`.
    pub fn registered(spec: Spec, first: State, before: Option<&Self>) -> Self {
        match before {
            Some(before) if before.is_known(&spec) => Self { spec, ..before.clone() },
            _ => Self::new(spec, first),
        }
    }

    /// Whether `spec` describes this instance, and not another process under its ID. A different address is a different process.
    /// So is another version type in place of one that was replaced by a promotion, because that instance may serve
    /// again. An instance that an operator drains stays drained, whatever it runs.
    pub fn is_known(&self, spec: &Spec) -> bool {
        let is_replaced = self.state == State::Standby || self.standby_until_ms.is_some();
        let same_version = self.spec.version_type_id == spec.version_type_id;
        self.spec.address == spec.address && (same_version || !is_replaced)
    }

    /// When the table removes the instance or the sweeper puts it on standby, unless its state changes before.
    pub fn ends_ms(&self) -> Option<u64> {
        match self.state {
            State::Active => None,
            State::Draining => self.drain_deadline_ms,
            State::Standby => self.standby_until_ms,
        }
    }

    /// The state after the end of the drain, if the instance is kept for some time.
    pub fn after_drain(&self) -> Option<Self> {
        let kept = self.state == State::Draining && self.standby_until_ms > self.drain_deadline_ms;
        kept.then(|| Self { state: State::Standby, drain_deadline_ms: None, ..self.clone() })
    }
}

/// An instance as it is stored in the fabric: `routes:instances`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Rises with every change of any instance. It decides which of two projections is newer.
    pub revision: u64,
    /// The desired state of the instance.
    #[serde(flatten)]
    pub desired: Desired,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> AddressRules {
        AddressRules {
            networks: vec!["127.0.0.0/8".parse().unwrap()],
            check_local: true,
            ..AddressRules::default()
        }
    }

    fn check(json: &str) -> Result<Spec, Invalid> {
        Spec::check(serde_json::from_str(json).unwrap(), &rules())
    }

    #[test]
    fn two_descriptions_that_mean_the_same_are_equal() {
        let one = r#"{"address":"127.0.0.1:1","hostnames":["b.example","A.example."],"version_type_id":17}"#;
        let other = r#"{"address":"127.0.0.1:1","hostnames":["a.example","b.example","a.example"],
                        "version_type_id":"17","weight":1}"#;
        assert_eq!(check(one).unwrap(), check(other).unwrap());
    }

    #[test]
    fn each_field_has_its_limits() {
        let base = r#""address":"127.0.0.1:1","hostnames":["a.example"],"version_type_id":"17""#;
        assert!(check(&format!("{{{base}}}")).is_ok());
        for (extra, code) in [
            (r#""weight":1001"#, "invalid_weight"),
            (r#""lease_seconds":0"#, "invalid_lease"),
            (r#""lease_seconds":86401"#, "invalid_lease"),
            (r#""node_id":"a b""#, "invalid_label"),
            (r#""node_id":"""#, "invalid_label"),
            (r#""workspace_id":"a\u0000""#, "invalid_label"),
            (r#""health":{"path":"health"}"#, "invalid_health"),
            (r#""health":{"path":"/","interval_seconds":0}"#, "invalid_health"),
        ] {
            assert_eq!(check(&format!("{{{base},{extra}}}")).unwrap_err().code, code, "{extra}");
        }
        let none = r#"{"address":"127.0.0.1:1","hostnames":[],"version_type_id":"17"}"#;
        assert_eq!(check(none).unwrap_err().code, "invalid_hostnames");
        let names: Vec<String> = (0..101).map(|n| format!("\"h{n}.example\"")).collect();
        let many = format!(
            r#"{{"address":"127.0.0.1:1","hostnames":[{}],"version_type_id":"17"}}"#,
            names.join(",")
        );
        assert_eq!(check(&many).unwrap_err().code, "invalid_hostnames");
    }

    #[test]
    fn ids_are_plain() {
        assert!(InstanceId::parse("i-7.a_b:C").is_ok());
        for bad in ["", "a b", "a/b", "@a", "ä", &"a".repeat(129)] {
            assert_eq!(InstanceId::parse(bad).unwrap_err().code, "invalid_id", "{bad}");
        }
    }

    #[test]
    fn registering_again_does_not_end_a_drain_unless_the_address_is_another() {
        let spec =
            check(r#"{"address":"127.0.0.1:1","hostnames":["a.example"],"version_type_id":"1"}"#).unwrap();
        let draining = Desired {
            spec: spec.clone(),
            state: State::Draining,
            drain_deadline_ms: Some(5),
            standby_until_ms: None,
        };
        let mut heavier = spec.clone();
        heavier.weight = 2;
        assert_eq!(Desired::registered(heavier, State::Active, Some(&draining)).state, State::Draining);
        let mut moved = spec;
        moved.address = Address::trusted("127.0.0.1:2");
        let after = Desired::registered(moved, State::Active, Some(&draining));
        assert_eq!((after.state, after.drain_deadline_ms), (State::Active, None));
    }

    #[test]
    fn a_record_survives_its_json() {
        let spec = check(
            r#"{"address":"127.0.0.1:1","hostnames":["a.example"],"version_type_id":"1",
                "lease_seconds":5,"health":{"path":"/h"}}"#,
        );
        let desired = Desired::new(spec.unwrap(), State::Active);
        let record = Record { revision: 9_007_199_254_740_991, desired };
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.starts_with(r#"{"revision":9007199254740991,"#), "{json}");
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), record);
    }
}
