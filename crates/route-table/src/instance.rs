//! Instances: the description by a client ([`Spec`]) and the record in the fabric ([`Record`]).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{Address, AddressRules, Health, Hostname, Invalid};

/// The maximum number of names of an instance. Its projection is one script, which reads each of them.
const MAX_HOSTNAMES: usize = 100;
const MAX_LEASE_SECONDS: u32 = 86_400;
const MAX_WEIGHT: u32 = 1000;

/// An instance as a client describes it.
#[derive(Debug, Clone, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewInstance {
    /// IP with port, or `unix:/path`.
    #[schema(example = "127.0.0.1:9001")]
    pub(crate) address: String,
    /// The names it serves: `shop.example`, `*.shop.example`, or `*`.
    #[schema(example = json!(["shop.example"]))]
    pub(crate) hostnames: Vec<String>,
    /// The key under which its requests are counted.
    #[schema(value_type = String, example = "17")]
    pub(crate) version_type_id: Label,
    #[schema(value_type = Option<String>)]
    pub(crate) version_id: Option<Label>,
    #[schema(value_type = Option<String>)]
    pub(crate) application_id: Option<Label>,
    #[schema(value_type = Option<String>)]
    pub(crate) workspace_id: Option<Label>,
    #[schema(value_type = Option<String>)]
    pub(crate) node_id: Option<Label>,
    /// Its relative share of the requests, 0 to 1000; with 0 it gets none unless all others have 0 as well.
    #[schema(example = 1)]
    pub(crate) weight: Option<u32>,
    /// Remove the instance when no heartbeat came for so long, 1 to 86,400.
    pub(crate) lease_seconds: Option<u32>,
    /// How its health is to be checked.
    pub(crate) health: Option<Health>,
}

/// A name that other systems gave: of a version type, an application, a node. Numbers are taken as their text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Label(String);

impl Label {
    /// The text of the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads a label; `field` is for the error.
    pub fn parse(text: &str, field: &'static str) -> Result<Self, Invalid> {
        Self(text.to_owned()).checked(field)
    }

    fn checked(self, field: &'static str) -> Result<Self, Invalid> {
        let fits = (1..=64).contains(&self.0.len())
            && !self.0.chars().any(|character| character.is_control() || character.is_whitespace());
        let detail = format!("{field} has 1 to 64 bytes without spaces and control characters");
        fits.then_some(self).ok_or_else(|| Invalid::new("invalid_label", field, detail))
    }
}

impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Label;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a whole number")
            }
            fn visit_str<E>(self, text: &str) -> Result<Label, E> {
                Ok(Label(text.to_owned()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Label, E> {
                Ok(Label(number.to_string()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Label, E> {
                Ok(Label(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
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
        let detail = "an instance's id matches [A-Za-z0-9._:-]{1,128}";
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

/// A checked description, in one canonical form, so that two that mean the same are equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Where nginx connects to the instance.
    pub address: Address,
    /// Sorted, without repetitions, never empty.
    pub hostnames: Vec<Hostname>,
    /// The key under which its requests are counted.
    pub version_type_id: Label,
    /// The version that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_id: Option<Label>,
    /// The application that it is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_id: Option<Label>,
    /// The workspace of its application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<Label>,
    /// The machine that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<Label>,
    /// Its share of the requests relative to other instances, 0 to 1000.
    pub weight: u32,
    /// The instance is removed after this many seconds without a heartbeat; `None` disables the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// The active health check, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

impl NewInstance {
    /// Checks everything and brings it into canonical form.
    pub fn check(self, rules: &AddressRules) -> Result<Spec, Invalid> {
        let address = rules.admit(&self.address)?;
        if self.hostnames.is_empty() || self.hostnames.len() > MAX_HOSTNAMES {
            let detail = format!("an instance serves between 1 and {MAX_HOSTNAMES} host names");
            return Err(Invalid::new("invalid_hostnames", "hostnames", detail));
        }
        let mut hostnames =
            self.hostnames.iter().map(|name| Hostname::parse(name)).collect::<Result<Vec<_>, _>>()?;
        hostnames.sort_unstable();
        hostnames.dedup();
        let weight = self.weight.unwrap_or(1);
        if weight > MAX_WEIGHT {
            return Err(Invalid::new("invalid_weight", "weight", format!("a weight is 0 to {MAX_WEIGHT}")));
        }
        if self.lease_seconds.is_some_and(|seconds| !(1..=MAX_LEASE_SECONDS).contains(&seconds)) {
            let detail = format!("a lease is 1 to {MAX_LEASE_SECONDS} seconds; leave it out for none");
            return Err(Invalid::new("invalid_lease", "lease_seconds", detail));
        }
        if let Some(health) = &self.health {
            health.check()?;
        }
        let label = |label: Option<Label>, field| label.map(|label| label.checked(field)).transpose();
        Ok(Spec {
            address,
            hostnames,
            version_type_id: self.version_type_id.checked("version_type_id")?,
            version_id: label(self.version_id, "version_id")?,
            application_id: label(self.application_id, "application_id")?,
            workspace_id: label(self.workspace_id, "workspace_id")?,
            node_id: label(self.node_id, "node_id")?,
            weight,
            lease_seconds: self.lease_seconds,
            health: self.health,
        })
    }
}

/// Whether an instance gets new requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It does.
    Active,
    /// It finishes what it has; at its deadline it is removed.
    Draining,
}

impl State {
    /// The name in JSON and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
        }
    }
}

/// The desired state of an instance, without its revision, which the fabric assigns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    /// The checked description.
    #[serde(flatten)]
    pub spec: Spec,
    /// Whether it gets new requests.
    pub state: State,
    /// When a draining instance is removed, in unix milliseconds of the routes master's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline_ms: Option<u64>,
}

impl Desired {
    /// The desired state after a registration. A PUT with the same address does not send requests to an instance that
    /// an operator drains; another address is another process.
    pub fn registered(spec: Spec, before: Option<&Self>) -> Self {
        match before {
            Some(before) if before.spec.address == spec.address => Self { spec, ..before.clone() },
            _ => Self { spec, state: State::Active, drain_deadline_ms: None },
        }
    }
}

/// An instance as it is stored in the fabric: `routes:instances`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Rises with every change of any instance; decides which of two projections is the later one.
    pub revision: u64,
    /// The desired state of the instance.
    #[serde(flatten)]
    pub desired: Desired,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> AddressRules {
        AddressRules { networks: vec!["127.0.0.0/8".parse().unwrap()], reserved: vec![] }
    }

    fn check(json: &str) -> Result<Spec, Invalid> {
        serde_json::from_str::<NewInstance>(json).unwrap().check(&rules())
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
        let draining = Desired { spec: spec.clone(), state: State::Draining, drain_deadline_ms: Some(5) };
        let mut heavier = spec.clone();
        heavier.weight = 2;
        assert_eq!(Desired::registered(heavier, Some(&draining)).state, State::Draining);
        let mut moved = spec;
        moved.address = Address::trusted("127.0.0.1:2");
        let after = Desired::registered(moved, Some(&draining));
        assert_eq!((after.state, after.drain_deadline_ms), (State::Active, None));
    }

    #[test]
    fn a_record_survives_its_json() {
        let spec = check(
            r#"{"address":"127.0.0.1:1","hostnames":["a.example"],"version_type_id":"1",
                "lease_seconds":5,"health":{"path":"/h"}}"#,
        );
        let desired = Desired { spec: spec.unwrap(), state: State::Active, drain_deadline_ms: None };
        let record = Record { revision: 9_007_199_254_740_991, desired };
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.starts_with(r#"{"revision":9007199254740991,"#), "{json}");
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), record);
    }
}
