//! `route:` actions: set shares, then register instances of one version, then drain those of another. Each step may be
//! repeated.

use serde_json::{Value, json};
use signalbox_machine::render::RouteChange;

use super::Outcome;
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, InstanceId, Label, NewInstance, Policy, Spec, State};
use signalbox_routing::{Error, Registry};

/// Makes all changes in this order; they are in the routes Redis afterwards.
pub(super) async fn apply(routes: &Registry, route: RouteChange) -> Outcome {
    match change(routes, route).await {
        Ok(()) => Outcome::Done,
        Err(Failure::Permanent(why)) => Outcome::permanent(why),
        Err(Failure::Route(error)) => {
            let why = error.to_string();
            match error {
                Error::Invalid(_)
                | Error::NoHost
                | Error::NoInstance(_)
                | Error::HostNotAllowed { .. }
                | Error::AddressTaken
                | Error::HostFull { .. }
                | Error::CannotSwitch { .. } => Outcome::permanent(why),
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

async fn change(routes: &Registry, route: RouteChange) -> Result<(), Failure> {
    // Applying the definition required the scope `routes`.
    let caller = Caller::root();
    let host = Hostname::parse(&route.host)?;
    if let Some(shares) = route.shares {
        let wanted = routes.store().policy(&host).await?;
        let policy = wanted.map(|wanted| wanted.value).unwrap_or_default();
        let mut policy =
            serde_json::to_value(&policy).map_err(|error| Failure::Permanent(error.to_string()))?;
        let shares = shares
            .into_iter()
            .map(|(version, percent)| json!({"version_type": version, "percent": percent_of(percent)}));
        policy["shares"] = shares.collect();
        let policy: Policy = serde_json::from_value(policy)
            .map_err(|error| Failure::Permanent(format!("the shares cannot be read: {error}")))?;
        routes.set_policy(&caller, &host, &policy.check()?).await?;
    }
    if let Some(register) = route.register {
        let version = Label::parse(&register.version_type, "version_type")?;
        for (place, instance) in register.instances.into_iter().enumerate() {
            let (id, instance) = wanted(instance, &host, &version, place)?;
            let id = InstanceId::parse(&id)?;
            routes.put(&caller, &id, Spec::check(instance, routes.rules())?).await?;
        }
    }
    if let Some(retire) = route.retire {
        let version = Label::parse(&retire.version_type, "version_type")?;
        let seconds = u32::try_from(retire.drain.as_secs()).unwrap_or(u32::MAX);
        let mut ids = Vec::new();
        for id in routes.store().ids_of_host(&host).await? {
            ids.push(InstanceId::parse(&id)?);
        }
        for one in routes.store().stored_many(&ids).await? {
            let desired = &one.record.desired;
            // An instance that drains already keeps its deadline.
            if desired.spec.version_type_id == version && desired.state == State::Active {
                match routes.drain(&caller, &one.id, seconds).await {
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

/// An instance to register: either only its address, or an object as for the API, optionally with its ID.
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
        _ => format!("{}-{}", version.as_str(), place + 1),
    };
    let instance = serde_json::from_value(object)
        .map_err(|error| Failure::Permanent(format!("an instance cannot be read: {error}")))?;
    Ok((id, instance))
}
