//! Encryption of the credentials in the registry: signing secrets, user names of deliveries, and listed tokens. Pure.
//!
//! They are in clear text in memory and encrypted in the fabric, with the keys that also encrypt private keys of
//! certificates. Each owner's credentials are one text, which is bound to the owner's name.
//!
//! A process without a key file stores them in clear text. It does not change credentials that it cannot
//! decrypt: the owner is *locked*, its deliveries fail until a process with the key makes them, and nothing is lost. A
//! process with keys encrypts what it finds in clear text.

use std::mem;

use serde::{Deserialize, Serialize};
use signalbox_egress::Secret;
use signalbox_seal::Keys;

use super::{Error, Registry};

/// Why the deliveries of a locked owner fail.
pub const LOCKED: &str = "its credentials are encrypted with a key that this pacemaker does not have; add the key to `edge_key_file`";

/// How the owners of credentials are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Owners whose credentials are in clear text.
    pub clear: u64,
    /// Owners whose credentials are encrypted, and that this process decrypts.
    pub encrypted: u64,
    /// Owners whose credentials this process cannot decrypt.
    pub locked: u64,
    /// Those of `encrypted` that the first key of the file does not decrypt.
    pub(super) outdated: u64,
}

/// The registry as it is stored.
pub(super) fn seal(registry: &Registry, keys: &Keys) -> Result<Registry, Error> {
    let mut stored = registry.clone();
    if keys.is_empty() {
        return Ok(stored);
    }
    for mut owner in owners(&mut stored) {
        if let Some(text) = owner.clear.take() {
            *owner.sealed = Some(keys.seal(&owner.name, &text).ok_or(Error::Seal)?);
        }
    }
    Ok(stored)
}

/// Decrypts a stored registry in place.
pub(super) fn open(registry: &mut Registry, keys: &Keys) -> Credentials {
    let mut found = Credentials::default();
    for Owner { name, mut clear, sealed } in owners(registry) {
        if clear.is_some() {
            found.clear += 1;
            // A process without the key has replaced those that are encrypted.
            *sealed = None;
            continue;
        }
        let Some(text) = &*sealed else { continue };
        if keys.open(&name, text).is_some_and(|text| clear.put(&text).is_ok()) {
            found.encrypted += 1;
            found.outdated += u64::from(keys.open_with_first(&name, text).is_none());
            *sealed = None;
        } else {
            found.locked += 1;
        }
    }
    found
}

/// How the credentials of a registry are stored that [`seal`] has stored.
pub(super) fn of(registry: &Registry, keys: &Keys) -> Credentials {
    let mut found = Credentials::default();
    for owner in owners(&mut registry.clone()) {
        match (owner.clear.is_some(), owner.sealed) {
            (true, _) if keys.is_empty() => found.clear += 1,
            (true, _) => found.encrypted += 1,
            (false, Some(_)) => found.locked += 1,
            (false, None) => {}
        }
    }
    found
}

/// Something that has credentials.
struct Owner<'a> {
    /// The name that the encrypted text is bound to. No server name has a space, so no text can pass for the private key of a
    /// certificate.
    name: String,
    clear: Clear<'a>,
    /// The encrypted text.
    sealed: &'a mut Option<String>,
}

/// Credentials in clear text.
enum Clear<'a> {
    Deliveries { uuid: &'a mut String, secrets: &'a mut Vec<Secret> },
    Token(&'a mut Option<String>),
}

/// The credentials of deliveries, as they are encrypted.
#[derive(Serialize, Deserialize)]
struct OfDeliveries {
    uuid: String,
    secrets: Vec<Secret>,
}

impl Clear<'_> {
    fn is_some(&self) -> bool {
        match self {
            Self::Deliveries { uuid, secrets } => !uuid.is_empty() || !secrets.is_empty(),
            Self::Token(listed) => listed.is_some(),
        }
    }

    /// Takes the credentials out, as a text; nothing if there are none.
    fn take(&mut self) -> Option<Vec<u8>> {
        if !self.is_some() {
            return None;
        }
        // Strings and numbers: writing them cannot fail.
        match self {
            Self::Deliveries { uuid, secrets } => {
                let of = OfDeliveries { uuid: mem::take(uuid), secrets: mem::take(secrets) };
                serde_json::to_vec(&of).ok()
            }
            Self::Token(listed) => serde_json::to_vec(&listed.take()).ok(),
        }
    }

    /// Puts in what [`Self::take`] took out. Nothing changes if it cannot be read.
    fn put(&mut self, text: &[u8]) -> Result<(), serde_json::Error> {
        match self {
            Self::Deliveries { uuid, secrets } => {
                OfDeliveries { uuid: **uuid, secrets: **secrets } = serde_json::from_slice(text)?;
            }
            Self::Token(listed) => **listed = Some(serde_json::from_slice(text)?),
        }
        Ok(())
    }
}

/// Everything that has credentials.
fn owners(registry: &mut Registry) -> impl Iterator<Item = Owner<'_>> {
    let Registry { subscriptions, backends, api_tokens, .. } = registry;
    let subscriptions = subscriptions.iter_mut().map(|(client, one)| Owner {
        name: format!("bus subscription {client}"),
        clear: Clear::Deliveries { uuid: &mut one.uuid, secrets: &mut one.secrets },
        sealed: &mut one.sealed,
    });
    let backends = backends.iter_mut().map(|(name, one)| Owner {
        name: format!("bus backend {name}"),
        clear: Clear::Deliveries { uuid: &mut one.uuid, secrets: &mut one.secrets },
        sealed: &mut one.sealed,
    });
    let tokens = api_tokens.iter_mut().map(|(client, one)| Owner {
        name: format!("bus token {client}"),
        clear: Clear::Token(&mut one.listed),
        sealed: &mut one.sealed,
    });
    subscriptions.chain(backends).chain(tokens)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{ApiToken, Options, Wanted, WantedBackend};

    fn keys(digits: &[char]) -> Keys {
        let lines: Vec<String> = digits.iter().map(|digit| digit.to_string().repeat(64)).collect();
        Keys::parse(&lines.join("\n")).unwrap()
    }

    const SECRETS: [&str; 4] = ["user-of-shop", "whsec_shop", "whsec_work", "a-token-that-is-listed"];

    fn registry() -> Registry {
        let mut registry = Registry::default();
        let wanted = Wanted {
            topics: BTreeSet::from(["orders".to_owned()]),
            callback: "https://shop.example/".to_owned(),
            uuid: Some(SECRETS[0].to_owned()),
            ..Wanted::default()
        };
        registry.subscribe("shop", wanted, 1, &Options::default()).unwrap();
        let secret = |text: &str| Secret { secret: text.to_owned(), until_ms: None };
        registry.subscriptions.get_mut("shop").unwrap().secrets = vec![secret(SECRETS[1])];
        let wanted = WantedBackend {
            prefix: "work:".to_owned(),
            callback: "https://work.example/".to_owned(),
            uuid: String::new(),
            secret: Some(SECRETS[2].to_owned()),
            on_failure: crate::OnFailure::Block,
            max_attempts: 3,
            workers: 1,
        };
        registry.put_backend("work", wanted, "", 1, &Options::default()).unwrap();
        let listed = Some(SECRETS[3].to_owned());
        registry.api_tokens.insert("c".to_owned(), ApiToken { listed, ..ApiToken::default() });
        registry
    }

    fn stored(registry: &Registry, keys: &Keys) -> String {
        serde_json::to_string(&seal(registry, keys).unwrap()).unwrap()
    }

    fn opened(text: &str, keys: &Keys) -> (Registry, Credentials) {
        let mut registry: Registry = serde_json::from_str(text).unwrap();
        let found = open(&mut registry, keys);
        (registry, found)
    }

    #[test]
    fn credentials_are_stored_encrypted_and_read_back() {
        let keys = keys(&['a']);
        let text = stored(&registry(), &keys);
        assert!(!SECRETS.iter().any(|secret| text.contains(secret)), "{text}");
        let (read, found) = opened(&text, &keys);
        assert_eq!(read, registry());
        assert_eq!(found, Credentials { encrypted: 3, ..Credentials::default() });
    }

    #[test]
    fn without_a_key_they_are_in_clear_text_and_with_one_they_are_found() {
        let text = stored(&registry(), &Keys::default());
        assert!(SECRETS.iter().all(|secret| text.contains(secret)), "{text}");
        for keys in [Keys::default(), keys(&['a'])] {
            let (read, found) = opened(&text, &keys);
            assert_eq!((read, found), (registry(), Credentials { clear: 3, ..Credentials::default() }));
        }
    }

    #[test]
    fn values_encrypted_with_another_key_are_found() {
        let old = stored(&registry(), &keys(&['a']));
        let (read, found) = opened(&old, &keys(&['b', 'a']));
        assert_eq!(read, registry());
        assert_eq!(found, Credentials { encrypted: 3, outdated: 3, ..Credentials::default() });
    }

    #[test]
    fn undecryptable_values_survive_other_changes() {
        let (right, wrong) = (keys(&['a']), keys(&['b']));
        let text = stored(&registry(), &right);
        for without in [Keys::default(), wrong] {
            let (mut read, found) = opened(&text, &without);
            assert_eq!(found, Credentials { locked: 3, ..Credentials::default() });
            let one = &read.subscriptions["shop"];
            assert!(one.is_locked() && one.uuid.is_empty() && one.secrets.is_empty());
            assert!(read.backends["work"].is_locked());
            read.subscriptions.get_mut("shop").unwrap().paused = true;
            let (read, _) = opened(&stored(&read, &without), &right);
            let mut expected = registry();
            expected.subscriptions.get_mut("shop").unwrap().paused = true;
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn a_locked_owner_stays_locked_when_it_is_defined_again_and_a_new_secret_unlocks_it() {
        let text = stored(&registry(), &keys(&['a']));
        let (mut read, _) = opened(&text, &Keys::default());
        let wanted = Wanted { uuid: Some("other".to_owned()), ..Wanted::default() };
        read.subscribe("shop", wanted, 2, &Options::default()).unwrap();
        let one = read.subscriptions.get_mut("shop").unwrap();
        assert!(one.is_locked() && one.uuid.is_empty());
        let alteration = crate::Alteration { uuid: Some("other".to_owned()), ..Default::default() };
        assert!(matches!(read.alter("shop", alteration), Err(Error::Locked)));
        let secrets = vec![Secret { secret: "whsec_new".to_owned(), until_ms: None }];
        read.set_secrets("shop", &secrets).unwrap();
        let (read, found) = opened(&stored(&read, &Keys::default()), &keys(&['a']));
        assert_eq!(read.subscriptions["shop"].secrets, secrets);
        assert_eq!((found.clear, found.locked, found.encrypted), (1, 0, 2));
    }

    #[test]
    fn credentials_of_one_owner_are_not_read_for_another() {
        let keys = keys(&['a']);
        let mut stored = seal(&registry(), &keys).unwrap();
        let moved = stored.backends["work"].sealed.clone();
        stored.subscriptions.get_mut("shop").unwrap().sealed = moved;
        assert_eq!(open(&mut stored, &keys).locked, 1);
    }
}
