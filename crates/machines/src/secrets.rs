//! Secrets of machines: values that headers and signatures of webhooks contain.
//!
//! A secret belongs to a machine and is bound to an address prefix: an author of definitions can use it, but cannot
//! send it to a server of their own. It is stored encrypted, with the keys that also encrypt private keys of
//! certificates. Machine, name and address are authenticated along with the value, so that a secret in the fabric
//! cannot be moved to another machine or address. No request returns a value.
//!
//! A value is read from the fabric for each call that needs it, so that a change applies to the next attempt.
//!
//! **Rotation of keys.** When a pacemaker starts, it encrypts again what the first key of the file does not decrypt.
//!
//! **Failure.** Without a key file, secrets can be listed and deleted, but not set, and calls that need them fail.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use signalbox_api::{Time, machines::Secret};
use signalbox_machine::{Machine, definition::SecretNames, render::is_below};
use signalbox_seal::Keys;

use crate::{Error, clock::Clock, store::StoredSecrets};

/// Maximum number of secrets of a machine.
const MAX_SECRETS: usize = 64;
/// Maximum bytes of the name of a secret.
const MAX_NAME_BYTES: usize = 64;
/// Maximum bytes of an address.
const MAX_ADDRESS_BYTES: usize = 1024;
/// Maximum bytes of a value.
const MAX_VALUE_BYTES: usize = 4096;

/// A secret as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    address: String,
    /// The encrypted value.
    sealed: String,
    at_ms: u64,
    by: String,
}

impl Stored {
    fn shown(self, name: String) -> Secret {
        Secret { name, address: self.address, at: Time::from_ms(self.at_ms), by: self.by }
    }
}

/// The values that a call needs, by name.
#[derive(Default)]
pub(crate) struct Values(BTreeMap<String, String>);

impl Values {
    /// The value of a secret that the call needs.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }
}

/// The secrets of all machines. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Secrets {
    stored: StoredSecrets,
    keys: Keys,
    clock: Clock,
}

impl Secrets {
    pub(crate) fn new(stored: StoredSecrets, keys: Keys, clock: Clock) -> Self {
        Self { stored, keys, clock }
    }

    /// Sets a secret of a machine, which need not exist yet. May be repeated.
    ///
    /// # Errors
    /// [`Error::BadSecret`], [`Error::TooManySecrets`], [`Error::NoKey`], or a failure of the fabric.
    pub async fn set(
        &self,
        machine: &str,
        (name, address): (&str, &str),
        value: &str,
        by: &str,
    ) -> Result<Secret, Error> {
        check(name, address, value)?;
        let others = self.list(machine).await?.iter().filter(|known| known.name != name).count();
        if others >= MAX_SECRETS {
            return Err(Error::TooManySecrets(MAX_SECRETS));
        }
        let sealed = self.keys.seal(&owner(machine, name, address), value.as_bytes());
        let sealed = sealed.ok_or(Error::NoKey)?;
        let at_ms = self.clock.now_ms().await?;
        let stored = Stored { address: address.to_owned(), sealed, at_ms, by: by.to_owned() };
        self.stored.put(machine, name, &serde_json::to_string(&stored).unwrap_or_default()).await?;
        Ok(stored.shown(name.to_owned()))
    }

    /// Deletes a secret. May be repeated.
    pub async fn delete(&self, machine: &str, name: &str) -> Result<(), Error> {
        Ok(self.stored.remove(machine, name).await?)
    }

    /// Deletes the secrets of a machine that were set up to a time, in unix milliseconds. Later ones are for the next machine of
    /// its name. May be repeated.
    pub(crate) async fn delete_until(&self, machine: &str, at_ms: u64) -> Result<(), Error> {
        let all = self.stored.all().await?.into_iter();
        for ((_, name), json) in all.filter(|((of, _), _)| of == machine) {
            let is_later = serde_json::from_str::<Stored>(&json).is_ok_and(|secret| secret.at_ms > at_ms);
            if !is_later {
                self.stored.replace((machine, &name), &json, None).await?;
            }
        }
        Ok(())
    }

    /// The secrets of a machine, ordered by name.
    pub async fn list(&self, machine: &str) -> Result<Vec<Secret>, Error> {
        let all = self.stored.all().await?.into_iter();
        let own = all.filter(|((of, _), _)| of == machine);
        let shown =
            own.filter_map(|((_, name), json)| Some(serde_json::from_str::<Stored>(&json).ok()?.shown(name)));
        Ok(shown.collect())
    }

    /// The secrets of a machine as a definition is checked against them.
    pub async fn names(&self, machine: &str) -> Result<SecretNames, Error> {
        Ok(self.list(machine).await?.into_iter().map(|secret| (secret.name, secret.address)).collect())
    }

    /// The values that a call to `url` needs. The error contains no value.
    pub(crate) async fn values_for(&self, machine: &Machine, url: &str) -> Result<Values, String> {
        let names = machine.secrets_for(url);
        if names.is_empty() {
            return Ok(Values::default());
        }
        let stored = self.stored.some(machine.name(), &names).await;
        let stored = stored.map_err(|_| "its secrets cannot be read from the fabric".to_owned())?;
        let mut values = BTreeMap::new();
        for (name, json) in names.into_iter().zip(stored) {
            let stored: Option<Stored> = json.and_then(|json| serde_json::from_str(&json).ok());
            let stored = stored.ok_or_else(|| format!("its secret {name} is not set"))?;
            if !is_below(&stored.address, url) {
                return Err(format!("its secret {name} is bound to other addresses"));
            }
            let owner = owner(machine.name(), name, &stored.address);
            let value =
                self.keys.open(&owner, &stored.sealed).and_then(|value| String::from_utf8(value).ok());
            let value = value.ok_or_else(|| {
                format!("no key in this pacemaker's `edge_key_file` decrypts its secret {name}")
            })?;
            values.insert(name.to_owned(), value);
        }
        Ok(Values(values))
    }

    /// Encrypts with the first key what only another key of the file decrypts; with a single key there is nothing to do.
    pub(crate) async fn reseal(&self) -> Result<(), Error> {
        if self.keys.len() < 2 {
            return Ok(());
        }
        for ((machine, name), json) in self.stored.all().await? {
            let Ok(mut stored) = serde_json::from_str::<Stored>(&json) else { continue };
            let owner = owner(&machine, &name, &stored.address);
            if self.keys.open_with_first(&owner, &stored.sealed).is_some() {
                continue;
            }
            let Some(value) = self.keys.open(&owner, &stored.sealed) else {
                tracing::error!(
                    machine,
                    secret = name,
                    "secret not decrypted by any key of the key file; set it again"
                );
                continue;
            };
            stored.sealed = self.keys.seal(&owner, &value).ok_or(Error::NoKey)?;
            let after = serde_json::to_string(&stored).unwrap_or_default();
            self.stored.replace((&machine, &name), &json, Some(&after)).await?;
            tracing::info!(machine, secret = name, "secret encrypted with the first key");
        }
        Ok(())
    }
}

/// The text that is authenticated along with a value. No part contains a space.
fn owner(machine: &str, name: &str, address: &str) -> String {
    format!("machine {machine} {name} {address}")
}

fn check(name: &str, address: &str, value: &str) -> Result<(), Error> {
    let wrong = |why: &str| Err(Error::BadSecret(why.to_owned()));
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !(1..=MAX_NAME_BYTES).contains(&name.len())
        || !name.bytes().all(word)
        || name.starts_with(|first: char| first.is_ascii_digit())
    {
        return wrong(
            "the name of a secret must have 1 to 64 letters, digits or `_`, and not begin with a digit",
        );
    }
    let rest = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
    let host = rest.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    if host.is_empty()
        || address.len() > MAX_ADDRESS_BYTES
        || !address.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return wrong("`address` must be the beginning of an address, such as https://warehouse.example/");
    }
    if address.contains(['?', '#', '@']) {
        return wrong("`address` must not contain ?, # or @");
    }
    if !(1..=MAX_VALUE_BYTES).contains(&value.len()) || value.chars().any(char::is_control) {
        return wrong("`value` must have 1 to 4,096 bytes, without control characters such as a line feed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_a_name_an_address_and_a_value() {
        check("TOKEN_1", "https://a.example/v1/", "abc def").unwrap();
        let long = "a".repeat(5_000);
        for (name, address, value) in [
            ("", "https://a.example/", "x"),
            ("1A", "https://a.example/", "x"),
            ("A-B", "https://a.example/", "x"),
            (&*long, "https://a.example/", "x"),
            ("A", "a.example", "x"),
            ("A", "https:///x", "x"),
            ("A", "https://u@a.example/", "x"),
            ("A", "https://a.example/?x", "x"),
            ("A", "https://a .example/", "x"),
            ("A", "ftp://a.example/", "x"),
            ("A", "https://a.example/", ""),
            ("A", "https://a.example/", "x\n"),
            ("A", "https://a.example/", &*long),
        ] {
            let error = check(name, address, value).unwrap_err().to_string();
            assert!(!error.contains(&long), "{error}");
        }
    }
}
