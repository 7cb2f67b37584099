//! `route:` actions: set shares, then register instances of one version, then drain those of another. All changes are
//! checked before the first is made, and each can be repeated safely.
//!
//! An action is confined by its definition, never by what metadata contains: it changes the hosts that the definition
//! names, and registers instances under IDs of its own label. So clients that may only update metadata cannot change
//! other routes. And it does nothing that the author of the definition may not do: the route table checks each change for a
//! caller with the author's permissions, as it does for the API.

use serde_json::{Value, json};
use signalbox_machine::render::RouteChange;

use super::{Actions, Outcome};
use crate::{Change, Version};
use sha2::{Digest as _, Sha256};
use signalbox_access::{Caller, Effect, HostPattern};
use signalbox_machine::Machine;
use signalbox_route_table::{Hostname, InstanceId, Invalid, Label, NewInstance, Policy, Share, Spec};
use signalbox_routing::{AlteredPolicy, Error, RouteChange as Changed};

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

/// Makes all changes in this order; they are in the routes Redis afterwards, and in the audit log.
pub(super) async fn apply(actions: &Actions, version: &Version, label: &str, route: RouteChange) -> Outcome {
    let machine = &*version.machine;
    let hosts = match hosts(machine) {
        Ok(hosts) => hosts,
        Err(invalid) => return Outcome::permanent(invalid.to_string()),
    };
    let ids = owned_ids(machine.name(), label);
    let caller = Caller::of_machine(machine.name(), &version.author, hosts, ids.clone());
    let by = By { actions, version, caller, ids, label };
    let target = format!("/hosts/{}", route.host);
    let (refused, outcome) = match by.change(route).await {
        Ok(()) => return Outcome::Done(None),
        Err(failure) => failure.outcome(),
    };
    if let Some(code) = refused {
        by.record(SET_POLICY, target, Some(code), [None, None]).await;
    }
    outcome
}

/// The calls of the API that have the same effects, for the audit log.
const SET_POLICY: (&str, &str) = ("PUT", "/hosts/{hostname}");
const REGISTER: (&str, &str) = ("PUT", "/instances/{id}");
const DRAIN: (&str, &str) = ("POST", "/instances/{id}/drain");

enum Failure {
    /// Another attempt would fail for the same reason.
    Permanent(String),
    /// The author or the definition does not allow the change.
    Refused(&'static str, String),
    /// The change was made, and its record was not stored.
    Unrecorded,
    Route(Error),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Route(error.into())
    }
}

impl Failure {
    /// The code of a refusal, and the outcome of the action.
    fn outcome(self) -> (Option<&'static str>, Outcome) {
        let error = match self {
            Self::Permanent(why) => return (None, Outcome::permanent(why)),
            Self::Refused(code, why) => return (Some(code), Outcome::permanent(why)),
            Self::Unrecorded => {
                return (
                    None,
                    Outcome::failed("the change cannot be recorded in the audit log at the moment"),
                );
            }
            Self::Route(error) => error,
        };
        let why = error.to_string();
        match error {
            Error::HostNotAllowed { hostname } => {
                (Some("host_not_allowed"), Outcome::permanent(not_allowed(&hostname)))
            }
            Error::InstanceNotAllowed => (Some("host_not_allowed"), Outcome::permanent(why)),
            Error::IdNotAllowed(_) => (Some("id_not_allowed"), Outcome::permanent(why)),
            Error::VersionTypeNotAllowed(_) => (Some("version_type_not_allowed"), Outcome::permanent(why)),
            Error::Invalid(_)
            | Error::NoHost
            | Error::NoInstance(_)
            | Error::HostFull { .. }
            | Error::CannotPromote { .. } => (None, Outcome::permanent(why)),
            // Another attempt may succeed: the instance that has the address may be draining, or the author's token may have
            // fewer instances.
            _ => (None, Outcome::failed(why)),
        }
    }
}

fn not_allowed(hostname: &str) -> String {
    format!("the definition does not allow its actions to change {hostname}; add it to `hosts`")
}

/// The parts of an action, each of which has been found to be valid.
struct Judged {
    host: Hostname,
    shares: Option<Vec<Share>>,
    instances: Vec<(InstanceId, Spec)>,
    /// The version type to drain, and the seconds until its instances are removed.
    retire: Option<(Label, u32)>,
}

/// For whom a change is made.
struct By<'a> {
    actions: &'a Actions,
    version: &'a Version,
    /// The machine, with the permissions of its author.
    caller: Caller,
    /// The beginning of the IDs of the label's instances.
    ids: String,
    label: &'a str,
}

impl By<'_> {
    /// Judges every part before the first change, so that an action that fails for good has changed nothing.
    async fn judge(&self, route: RouteChange) -> Result<Judged, Failure> {
        let (routes, caller) = (&self.actions.routes, &self.caller);
        if let Err(denied) = self.version.may(Effect::ChangeRoutes) {
            return Err(Failure::Refused(denied.code(), self.version.why_not(&denied)));
        }
        let host = Hostname::parse(&route.host)?;
        if !caller.may_touch(&host) {
            return Err(Error::HostNotAllowed { hostname: host.to_string() }.into());
        }
        let shares = route.shares.map(shares).transpose()?;
        if let Some(shares) = &shares {
            routes.check_replace_shares(caller, &host, shares).await?;
        }
        let mut instances = Vec::new();
        if let Some(register) = route.register {
            let version = Label::parse(&register.version_type, "version_type")?;
            for (place, instance) in register.instances.into_iter().enumerate() {
                let (id, instance) = wanted(instance, &host, &version, place)?;
                let id = InstanceId::parse(&format!("{}{id}", self.ids))?;
                let spec = Spec::check(instance, routes.rules())?;
                routes.check_put(caller, &id, &spec).await?;
                instances.push((id, spec));
            }
        }
        let retire = match route.retire {
            Some(retire) => {
                let version = Label::parse(&retire.version_type, "version_type")?;
                routes.drainable(caller, &host, &version).await?;
                Some((version, u32::try_from(retire.drain.as_secs()).unwrap_or(u32::MAX)))
            }
            None => None,
        };
        Ok(Judged { host, shares, instances, retire })
    }

    async fn change(&self, route: RouteChange) -> Result<(), Failure> {
        let (routes, caller) = (&self.actions.routes, &self.caller);
        let Judged { host, shares, instances, retire } = self.judge(route).await?;
        if let Some(shares) = shares {
            let (call, target) = (SET_POLICY, format!("/hosts/{host}"));
            let done = routes.replace_shares(caller, &host, &shares).await;
            let AlteredPolicy { before, after, .. } =
                self.or_requested(done, call, &target, || json!({"shares": shares})).await?;
            let values =
                [before.as_ref(), Some(&after)].map(|policy| policy.map(|policy| shown(&host, policy)));
            self.recorded(call, target, values).await?;
        }
        for (id, spec) in instances {
            let (call, target) = (REGISTER, format!("/instances/{id}"));
            let requested = json!(spec);
            let done = routes.put(caller, &id, spec).await;
            let change = self.or_requested(done, call, &target, || requested).await?;
            self.changed(call, target, change).await?;
        }
        if let Some((version, seconds)) = retire {
            for id in routes.drainable(caller, &host, &version).await? {
                let (call, target) = (DRAIN, format!("/instances/{id}/drain"));
                let done = match routes.drain(caller, &id, seconds).await {
                    Err(Error::NoInstance(_)) => continue,
                    done => done,
                };
                let requested = || json!({"deadline_seconds": seconds});
                let change = self.or_requested(done, call, &target, requested).await?;
                self.changed(call, target, change).await?;
            }
        }
        Ok(())
    }

    /// The result of a change. If it failed after the fabric accepted it, the change is made all the same, so what was requested is
    /// recorded: this may have been the last attempt.
    async fn or_requested<T>(
        &self,
        done: Result<T, Error>,
        call: (&'static str, &'static str),
        target: &str,
        requested: impl FnOnce() -> Value,
    ) -> Result<T, Failure> {
        if done.as_ref().is_err_and(Error::is_recorded) {
            let after = json!({"requested": requested()});
            self.recorded(call, target.to_owned(), [None, Some(after)]).await?;
        }
        Ok(done?)
    }

    async fn changed(
        &self,
        call: (&'static str, &'static str),
        target: String,
        change: Changed,
    ) -> Result<(), Failure> {
        let values = [change.before, change.record].map(|record| record.map(|record| json!(record)));
        self.recorded(call, target, values).await
    }

    /// Records a change. As in the API, one that is repeated is recorded again: its first record may not have been stored.
    async fn recorded(
        &self,
        call: (&'static str, &'static str),
        target: String,
        values: [Option<Value>; 2],
    ) -> Result<(), Failure> {
        if self.record(call, target, None, values).await { Ok(()) } else { Err(Failure::Unrecorded) }
    }

    async fn record(
        &self,
        call: (&'static str, &'static str),
        target: String,
        refused: Option<&'static str>,
        [before, after]: [Option<Value>; 2],
    ) -> bool {
        let (who, label) = (self.caller.name.clone(), self.label.to_owned());
        self.actions.audit.record(Change { who, label, call, target, refused, before, after }).await
    }
}

/// A policy in the audit log, without hashes of passwords.
fn shown(host: &Hostname, policy: &Policy) -> Value {
    let mut rules = json!(policy);
    Policy::hide_passwords(&mut rules);
    json!({"hostname": host.to_string(), "rules": rules})
}

/// The shares of an action.
fn shares(given: Vec<(String, f64)>) -> Result<Vec<Share>, Failure> {
    let shares = given
        .into_iter()
        .map(|(version, percent)| json!({"version_type": version, "percent": percent_of(percent)}));
    serde_json::from_value(shares.collect())
        .map_err(|error| Failure::Permanent(format!("the shares cannot be read: {error}")))
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
