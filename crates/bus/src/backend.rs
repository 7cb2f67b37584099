//! Backends: ordered consumers that receive the events of some objects in place of the bus.
//!
//! They are part of the registry, so a publish that was computed from an older registry is rejected and computed
//! again. Therefore no event goes to subscribers instead of a new backend, or to a removed backend. The
//! sequencer delivers to backends; this module holds only what the publish path needs.

use serde::{Deserialize, Serialize};

use super::{Error, Handle, Limit, OnFailure, Options, Queued, Registry};
use signalbox_egress::Secret;

/// An HTTP backend.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backend {
    /// The prefix of its objects' names.
    pub prefix: String,
    /// Where events are sent.
    pub callback: String,
    /// The user name of deliveries.
    #[serde(default)]
    pub uuid: String,
    /// Signing secrets, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// User name and secrets, encrypted. In memory only if they cannot be decrypted.
    pub(super) sealed: Option<String>,
    /// The treatment of an event that fails.
    pub on_failure: OnFailure,
    /// How often an event is tried before that.
    pub max_attempts: u32,
    /// Objects that one pacemaker serves at a time.
    pub workers: u64,
    /// Why deliveries are stopped (the callback answered 410). Defining the backend again starts them.
    pub disabled: Option<String>,
    /// It was removed, and disappears once its queues are empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// The version of the registry in which it was removed, if it is being drained: one that was defined and removed again
    /// has another.
    #[serde(default, skip_serializing_if = "super::registry::is_zero")]
    pub drained_in: u64,
    /// The version of the registry in which it was defined or changed last; 0 for an old one.
    #[serde(default, skip_serializing_if = "super::registry::is_zero")]
    pub changed_in: u64,
    /// While it is being drained: the treatment of queued events.
    #[serde(default)]
    pub queued: Queued,
}

impl Backend {
    /// Whether its credentials are encrypted with a key that this process does not have. Nothing is sent to it then.
    pub fn is_locked(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether events are sent to it.
    pub fn is_served(&self) -> bool {
        self.disabled.is_none() && !(self.draining && self.queued != Queued::Send)
    }
}

/// The settings of `PUT /backends/{name}`.
#[derive(Debug, Clone)]
pub struct WantedBackend {
    /// The prefix of its objects' names.
    pub prefix: String,
    /// Where to send events.
    pub callback: String,
    /// The user name of deliveries.
    pub uuid: String,
    /// The secret that signs; the present one, or else a new one, when absent.
    pub secret: Option<String>,
    /// The treatment of an event that fails.
    pub on_failure: OnFailure,
    /// How often an event is tried before that.
    pub max_attempts: u32,
    /// Objects that one pacemaker serves at a time.
    pub workers: u64,
}

impl Registry {
    /// Defines or replaces a backend in this version of the registry, and starts one that was stopped or being drained. A repeat
    /// of the same request is a change as well: the result of an earlier attempt no longer applies.
    pub(super) fn put_backend(
        &mut self,
        name: &str,
        wanted: WantedBackend,
        new_secret: &str,
        version: u64,
        limits: &Options,
    ) -> Result<(), Error> {
        let before = self.backends.get(name);
        if before.is_none() && self.backends.len() >= limits.backends {
            return Err(Error::TooMany(Limit::Backends));
        }
        // Two with the same prefix would leave to chance which one gets an object.
        let taken =
            |(other, one): (&String, &Backend)| other != name && !one.draining && one.prefix == wanted.prefix;
        if self.backends.iter().any(taken) {
            return Err(Error::PrefixTaken);
        }
        let sealed = before.filter(|_| wanted.secret.is_none()).and_then(|before| before.sealed.clone());
        let secrets = match (wanted.secret, before) {
            (Some(secret), _) => vec![Secret { secret, until_ms: None }],
            (None, Some(before)) => before.secrets.clone(),
            (None, None) => vec![Secret { secret: new_secret.to_owned(), until_ms: None }],
        };
        let backend = Backend {
            prefix: wanted.prefix,
            callback: wanted.callback,
            uuid: if sealed.is_some() { String::new() } else { wanted.uuid },
            secrets,
            sealed,
            on_failure: wanted.on_failure,
            max_attempts: wanted.max_attempts,
            workers: wanted.workers,
            disabled: None,
            draining: false,
            drained_in: 0,
            changed_in: version,
            queued: Queued::default(),
        };
        self.backends.insert(name.to_owned(), backend);
        Ok(())
    }
}

/// Backends. The sequencer decides when a change takes effect.
impl Handle {
    /// Defines or replaces a backend; from now on events of its objects go to it. Whether it is new.
    pub async fn put_backend(
        &self,
        name: &str,
        wanted: WantedBackend,
        new_secret: &str,
    ) -> Result<bool, Error> {
        let limits = &self.core.options;
        self.core
            .change(|registry, version| {
                let new = !registry.backends.contains_key(name);
                registry.put_backend(name, wanted.clone(), new_secret, version, limits)?;
                Ok(new)
            })
            .await
    }

    /// Closes a backend for new objects, and sets the treatment of the events that are queued for it. A repeat makes
    /// sure that every shard knows.
    pub async fn drain_backend(&self, name: &str, queued: Queued) -> Result<(), Error> {
        self.core
            .change(|registry, version| {
                let backend = registry.backends.get_mut(name).ok_or(Error::NoSuchBackend)?;
                if !backend.draining {
                    backend.draining = true;
                    backend.drained_in = version;
                }
                backend.queued = queued;
                Ok(())
            })
            .await
    }

    /// Forgets a backend that has been drained since this version of the registry; nothing may be queued for it. One that was
    /// defined again stays, even if it is being drained again. Returns whether there is none with this name now.
    pub async fn forget_backend(&self, name: &str, drained_in: u64) -> Result<bool, Error> {
        self.core
            .change(|registry, _| {
                if registry.backends.get(name).is_some_and(|one| one.draining && one.drained_in == drained_in)
                {
                    registry.backends.remove(name);
                }
                Ok(!registry.backends.contains_key(name))
            })
            .await
    }

    /// Stops a backend whose callback answered that it is gone, unless it was defined again or changed since the version
    /// `changed_in` of the registry. Returns whether it was stopped.
    pub async fn disable_backend(&self, name: &str, changed_in: u64) -> Result<bool, Error> {
        self.core
            .change(|registry, _| {
                let one = registry.backends.get_mut(name).filter(|one| one.changed_in == changed_in);
                Ok(one
                    .map(|one| one.disabled = Some("the callback answered that it is gone".into()))
                    .is_some())
            })
            .await
    }

    /// The registry, read again if this process does not have the one with this stamp.
    pub async fn registry_of(&self, stamp: &str) -> Result<std::sync::Arc<Registry>, Error> {
        let mut view = self.core.view();
        if view.stamp != stamp {
            view = self.core.refresh().await?;
        }
        Ok(std::sync::Arc::clone(&view.registry))
    }
}
