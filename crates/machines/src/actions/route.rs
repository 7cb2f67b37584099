//! `route:` shares, then instances of a version registered, then those of another drained. Each is safe to repeat.

use serde_json::{Value, json};
use signalbox_machine::render::RouteChange;

use super::Outcome;
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, InstanceId, Label, NewInstance, Policy, State};
use signalbox_routing::{Error, Registry};

/// Does all of it, in this order; done when the routes master has it.
pub(super) async fn apply(routes: &Registry, route: RouteChange) -> Outcome {
    match change(routes, route).await {
        Ok(()) => Outcome::Done,
        Err(Wrong::Never(why)) => Outcome::for_good(why),
        Err(Wrong::Route(error)) => {
            let why = error.to_string();
            match error {
                Error::Invalid(_)
                | Error::NoHost
                | Error::NoInstance(_)
                | Error::HostNotAllowed { .. }
                | Error::AddressTaken
                | Error::HostFull { .. }
                | Error::CannotSwitch { .. } => Outcome::for_good(why),
                _ => Outcome::failed(why),
            }
        }
    }
}

enum Wrong {
    Never(String),
    Route(Error),
}

impl<E: Into<Error>> From<E> for Wrong {
    fn from(error: E) -> Self {
        Self::Route(error.into())
    }
}

async fn change(routes: &Registry, route: RouteChange) -> Result<(), Wrong> {
    // Whoever applied the definition needed the scope `routes` for it.
    let caller = Caller::root();
    let host = Hostname::parse(&route.host)?;
    if let Some(shares) = route.shares {
        let wanted = routes.store().policy(&host).await?;
        let policy = wanted.map(|wanted| wanted.value).unwrap_or_default();
        let mut policy = serde_json::to_value(&policy).map_err(|error| Wrong::Never(error.to_string()))?;
        let shares = shares
            .into_iter()
            .map(|(version, percent)| json!({"version_type": version, "percent": percent_of(percent)}));
        policy["shares"] = shares.collect();
        let policy: Policy = serde_json::from_value(policy)
            .map_err(|error| Wrong::Never(format!("the shares cannot be read: {error}")))?;
        routes.set_policy(&caller, &host, &policy.check()?).await?;
    }
    if let Some(register) = route.register {
        let version = Label::parse(&register.version_type, "version_type")?;
        for (place, instance) in register.instances.into_iter().enumerate() {
            let (id, instance) = wanted(instance, &host, &version, place)?;
            let id = InstanceId::parse(&id)?;
            routes.put(&caller, &id, instance.check(routes.rules())?).await?;
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
            // What drains already keeps its deadline.
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

/// A whole number as one: policies are compared as they are written.
fn percent_of(percent: f64) -> Value {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 100")]
    if percent.fract() == 0.0 { json!(percent as u64) } else { json!(percent) }
}

/// An instance: its address alone, or everything that registering one takes, with its id if it is to have one of its own.
fn wanted(
    given: Value,
    host: &Hostname,
    version: &Label,
    place: usize,
) -> Result<(String, NewInstance), Wrong> {
    let mut object = match given {
        Value::String(address) => json!({"address": address}),
        object @ Value::Object(_) => object,
        _ => return Err(Wrong::Never("an instance is an address or an object".to_owned())),
    };
    object["hostnames"] = object.get("hostnames").cloned().unwrap_or_else(|| json!([host.to_string()]));
    object["version_type_id"] = json!(version.as_str());
    let named = object.as_object_mut().and_then(|object| object.remove("id"));
    let id = match named {
        Some(Value::String(id)) => id,
        _ => format!("{}-{}", version.as_str(), place + 1),
    };
    let instance = serde_json::from_value(object)
        .map_err(|error| Wrong::Never(format!("an instance cannot be read: {error}")))?;
    Ok((id, instance))
}
