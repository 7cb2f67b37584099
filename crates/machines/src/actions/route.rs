//! `route:` actions: set shares, then register instances of one version, then drain those of another. All changes are
//! checked before the first is made, and each can be repeated safely.
//!
//! An action is confined by its definition, never by what metadata contains: it changes the hosts that the definition
//! names, and registers instances under IDs of its own label. So clients that may only update metadata cannot change
//! other routes.

use serde_json::{Value, json};
use signalbox_machine::render::RouteChange;

use super::Outcome;
use sha2::{Digest as _, Sha256};
use signalbox_access::{Caller, HostPattern};
use signalbox_machine::Machine;
use signalbox_route_table::{Hostname, InstanceId, Invalid, Label, NewInstance, Policy, Spec, State};
use signalbox_routing::{Error, Registry};

/// The longest label that is part of an instance's ID as it is.
const MAX_PLAIN_LABEL: usize = 24;

/// The hosts that a machine's actions may change.
///
/// # Errors
/// A host that is not a valid name.
pub fn hosts(machine: &Machine) -> Result<Vec<HostPattern>, Invalid> {
    machine.hosts().map(|host| Hostname::parse(host).map(HostPattern::new)).collect()
}

/// The beginning of the IDs of all instances that a label registers.
fn owned_ids(machine: &str, label: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if label.len() <= MAX_PLAIN_LABEL && label.bytes().all(is_plain) {
        return format!("machine:{machine}:{label}:");
    }
    // No plain label begins with a dot.
    format!("machine:{machine}:.{}:", digest(label))
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Makes all changes in this order; they are in the routes Redis afterwards.
pub(super) async fn apply(routes: &Registry, machine: &Machine, label: &str, route: RouteChange) -> Outcome {
    let hosts = match hosts(machine) {
        Ok(hosts) => hosts,
        Err(invalid) => return Outcome::permanent(invalid.to_string()),
    };
    let ids = owned_ids(machine.name(), label);
    let caller = Caller::of_machine(machine.name(), hosts, ids.clone());
    match change(routes, &caller, &ids, route).await {
        Ok(()) => Outcome::Done(None),
        Err(Failure::Permanent(why)) => Outcome::permanent(why),
        Err(Failure::Route(error)) => {
            let why = error.to_string();
            match error {
                Error::Invalid(_)
                | Error::NoHost
                | Error::NoInstance(_)
                | Error::InstanceNotAllowed
                | Error::IdNotAllowed(_)
                | Error::VersionTypeNotAllowed(_)
                | Error::HostFull { .. }
                | Error::TokenFull { .. }
                | Error::CannotPromote { .. } => Outcome::permanent(why),
                Error::HostNotAllowed { hostname } => Outcome::permanent(not_allowed(&hostname)),
                // Another attempt may succeed: the instance that has the address may be draining.
                _ => Outcome::failed(why),
            }
        }
    }
}

enum Failure {
    /// Another attempt would fail for the same reason.
    Permanent(String),
    Route(Error),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Route(error.into())
    }
}

fn not_allowed(hostname: &str) -> String {
    format!("the definition does not allow its actions to change {hostname}; add it to `hosts`")
}

/// The parts of an action, each of which has been found to be valid.
struct Judged {
    host: Hostname,
    /// The policy, and the revision of the one that it replaces.
    policy: Option<(Policy, u64)>,
    instances: Vec<(InstanceId, Spec)>,
    /// The version type to drain, and the seconds until its instances are removed.
    retire: Option<(Label, u32)>,
}

/// Judges every part before the first change, so that an action that fails for good has changed nothing.
async fn judge(routes: &Registry, caller: &Caller, ids: &str, route: RouteChange) -> Result<Judged, Failure> {
    let host = Hostname::parse(&route.host)?;
    if !caller.may_touch(&host) {
        return Err(Failure::Permanent(not_allowed(host.as_str())));
    }
    let policy = match route.shares {
        Some(shares) => Some(policy_with(routes, &host, shares).await?),
        None => None,
    };
    let mut instances = Vec::new();
    if let Some(register) = route.register {
        let version = Label::parse(&register.version_type, "version_type")?;
        for (place, instance) in register.instances.into_iter().enumerate() {
            let (id, instance) = wanted(instance, &host, &version, place)?;
            let id = InstanceId::parse(&format!("{ids}{id}"))?;
            let spec = Spec::check(instance, routes.rules())?;
            routes.check_put(caller, &id, &spec).await?;
            instances.push((id, spec));
        }
    }
    let retire = match route.retire {
        Some(retire) => {
            let version = Label::parse(&retire.version_type, "version_type")?;
            Some((version, u32::try_from(retire.drain.as_secs()).unwrap_or(u32::MAX)))
        }
        None => None,
    };
    Ok(Judged { host, policy, instances, retire })
}

/// The policy of a host with other shares, and the revision of the policy without them.
async fn policy_with(
    routes: &Registry,
    host: &Hostname,
    shares: Vec<(String, f64)>,
) -> Result<(Policy, u64), Failure> {
    let wanted = routes.store().policy(host).await?;
    let revision = wanted.as_ref().map_or(0, |wanted| wanted.revision);
    let policy = wanted.map(|wanted| wanted.value).unwrap_or_default();
    let mut policy = serde_json::to_value(&policy).map_err(|error| Failure::Permanent(error.to_string()))?;
    let shares = shares
        .into_iter()
        .map(|(version, percent)| json!({"version_type": version, "percent": percent_of(percent)}));
    policy["shares"] = shares.collect();
    let policy: Policy = serde_json::from_value(policy)
        .map_err(|error| Failure::Permanent(format!("the shares cannot be read: {error}")))?;
    Ok((policy.check()?, revision))
}

async fn change(routes: &Registry, caller: &Caller, ids: &str, route: RouteChange) -> Result<(), Failure> {
    let Judged { host, policy, instances, retire } = judge(routes, caller, ids, route).await?;
    if let Some((policy, revision)) = policy {
        // A change by another client in the meantime would be lost. The next attempt of the action keeps it.
        routes.set_policy(caller, &host, &policy, Some(revision)).await?;
    }
    for (id, spec) in instances {
        routes.put(caller, &id, spec).await?;
    }
    if let Some((version, seconds)) = retire {
        let mut ids = Vec::new();
        for id in routes.store().ids_of_host(&host).await? {
            ids.push(InstanceId::parse(&id)?);
        }
        for one in routes.store().stored_many(&ids).await? {
            let desired = &one.record.desired;
            // An instance that drains already keeps its deadline.
            if desired.spec.version_type_id == version && desired.state == State::Active {
                match routes.drain(caller, &one.id, seconds).await {
                    Ok(_) | Err(Error::NoInstance(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}

/// A whole number is written without a fraction, because policies are compared as text.
fn percent_of(percent: f64) -> Value {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 100")]
    if percent.fract() == 0.0 { json!(percent as u64) } else { json!(percent) }
}

/// An instance to register: either only its address, or an object as for the API. Its ID becomes the end of the
/// instance's.
fn wanted(
    given: Value,
    host: &Hostname,
    version: &Label,
    place: usize,
) -> Result<(String, NewInstance), Failure> {
    let mut object = match given {
        Value::String(address) => json!({"address": address}),
        object @ Value::Object(_) => object,
        _ => return Err(Failure::Permanent("an instance is an address or an object".to_owned())),
    };
    object["hostnames"] = object.get("hostnames").cloned().unwrap_or_else(|| json!([host.to_string()]));
    object["version_type_id"] = json!(version.as_str());
    let named = object.as_object_mut().and_then(|object| object.remove("id"));
    let id = match named {
        Some(Value::String(id)) => id,
        // A version type may have characters and a length that an ID may not.
        _ => match InstanceId::parse(version.as_str()) {
            Ok(_) if version.as_str().len() <= MAX_PLAIN_LABEL => {
                format!("{}-{}", version.as_str(), place + 1)
            }
            _ => format!("{}-{}", digest(version.as_str()), place + 1),
        },
    };
    let instance = serde_json::from_value(object)
        .map_err(|error| Failure::Permanent(format!("an instance cannot be read: {error}")))?;
    Ok((id, instance))
}
