//! Clients of the bus and their tokens.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Error, Handle, Limit, Registry, topics::OWN_CLIENT};

/// The maximum number of valid tokens of one client.
const MAX_SECRETS: usize = 4;

/// Tokens in all.
const API_TOKENS: usize = 10_000;

/// The tenant of Signalbox's own events.
pub(super) const OWN_TENANT: &str = "signalbox";

/// What the tenants of state machines begin with.
const MACHINES: &str = "machine.";

/// The tenant of the events that a state machine publishes. It has no colon: in queues, the tenant ends at the first.
pub fn tenant_of_machine(machine: &str) -> String {
    format!("{MACHINES}{machine}")
}

/// Whether clients may not publish in this tenant: consumers rely on its events coming from Signalbox itself, or from
/// the machine of this name.
pub fn is_reserved_tenant(name: &str) -> bool {
    name == OWN_TENANT || name.starts_with(MACHINES)
}

/// A client with a token of the bus.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiToken {
    /// The client's name.
    pub name: String,
    /// The permissions of the token.
    pub scopes: BTreeSet<String>,
    /// SHA-256 of each of its tokens in hexadecimal → when the token ends, in unix milliseconds; `None` if it does not.
    pub secrets: BTreeMap<String, Option<u64>>,
    /// The token itself, if the system is configured to list tokens.
    pub listed: Option<String>,
    /// The same, encrypted. In memory only if it cannot be decrypted.
    pub(super) sealed: Option<String>,
}

impl ApiToken {
    /// A client with its first token, which ends at `end_ms` (unix milliseconds), or does not. `listed` is the token itself,
    /// if it is to be stored.
    pub fn new(
        name: String,
        scopes: BTreeSet<String>,
        digest: String,
        end_ms: Option<u64>,
        listed: Option<String>,
    ) -> Self {
        Self { name, scopes, secrets: BTreeMap::from([(digest, end_ms)]), listed, sealed: None }
    }

    /// Whether the token of this digest is valid.
    pub fn is_valid(&self, digest: &str, now_ms: u64) -> bool {
        self.secrets.get(digest).is_some_and(|end| end.is_none_or(|end| now_ms < end))
    }

    /// The digests of the tokens that are valid.
    pub fn valid(&self, now_ms: u64) -> impl Iterator<Item = &str> {
        self.secrets.keys().map(String::as_str).filter(move |digest| self.is_valid(digest, now_ms))
    }
}

impl Registry {
    /// How a client is called towards others.
    pub fn name_of(&self, client: &str) -> String {
        match self.api_tokens.get(client) {
            Some(token) => token.name.clone(),
            None if client == OWN_CLIENT => OWN_TENANT.to_owned(),
            // Actions of root's state machines publish under the machine's name.
            None if client.starts_with("machine:") => client.to_owned(),
            None => client.strip_prefix('@').unwrap_or("(deleted)").to_owned(),
        }
    }

    /// Whether the client has a subscription or has claimed a topic.
    pub(super) fn has_client(&self, client: &str) -> bool {
        self.subscriptions.contains_key(client)
            || self.topics.values().any(|publisher| publisher.as_deref() == Some(client))
    }
}

impl Handle {
    /// Client → its tokens, from the fabric rather than from memory.
    pub async fn api_tokens(&self) -> Result<BTreeMap<String, ApiToken>, Error> {
        Ok(self.fresh_registry().await?.api_tokens.clone())
    }

    /// The client with the token of this digest, as far as this process knows.
    pub fn client_of(&self, digest: &str, now_ms: u64) -> Option<(String, ApiToken)> {
        let view = self.core.view();
        view.client_of(digest, now_ms).map(|(client, token)| (client.to_owned(), token.clone()))
    }

    /// As [`Self::client_of`], for a token that may have been made elsewhere a moment ago.
    pub async fn find_api_token(
        &self,
        digest: &str,
        now_ms: u64,
    ) -> Result<Option<(String, ApiToken)>, Error> {
        // Strangers ask this as often as they like, so the registry is only read when there is something in it.
        if !self.core.stores[0].has_api_token(digest).await? {
            return Ok(None);
        }
        self.fresh_registry().await?;
        Ok(self.client_of(digest, now_ms))
    }

    /// Makes a client with a token. The same again changes nothing. `client` is the digest of the token.
    pub async fn create_api_token(&self, client: &str, token: ApiToken) -> Result<(), Error> {
        let is_same = |known: &ApiToken| {
            let secrets = token.secrets.keys().all(|digest| known.secrets.contains_key(digest));
            secrets && known.name == token.name && known.scopes == token.scopes
        };
        self.core
            .change(|registry, _| match registry.api_tokens.get(client) {
                Some(known) if !is_same(known) => Err(Error::TokenExists),
                Some(_) => Ok(()),
                None if registry.api_tokens.len() >= API_TOKENS => {
                    Err(Error::TooMany(Limit::Tokens(API_TOKENS)))
                }
                // A client may have got it by a rotation.
                None if registry
                    .api_tokens
                    .values()
                    .any(|one| token.secrets.keys().any(|digest| one.secrets.contains_key(digest))) =>
                {
                    Err(Error::TokenExists)
                }
                None => {
                    registry.api_tokens.insert(client.to_owned(), token.clone());
                    Ok(())
                }
            })
            .await
    }

    /// Gives a client another token, with the digest `fresh`. The ones before end at `until_ms`. What belongs to the
    /// client stays. `listed` is the token itself, if tokens are listed.
    ///
    /// # Errors
    /// [`Error::NoSuchToken`], [`Error::TokenExists`] when another client has it, [`Error::TooMany`] when the client has
    /// too many valid tokens.
    pub async fn rotate_api_token(
        &self,
        client: &str,
        fresh: &str,
        listed: Option<&str>,
        until_ms: u64,
        now_ms: u64,
    ) -> Result<(), Error> {
        self.core
            .change(|registry, _| {
                if registry.api_tokens.values().any(|one| one.secrets.contains_key(fresh)) {
                    return Err(Error::TokenExists);
                }
                let token = registry.api_tokens.get_mut(client).ok_or(Error::NoSuchToken)?;
                token.secrets.retain(|_, end| end.is_none_or(|end| now_ms < end));
                for end in token.secrets.values_mut() {
                    *end = Some(end.map_or(until_ms, |end| end.min(until_ms)));
                }
                token.secrets.retain(|_, end| end.is_none_or(|end| now_ms < end));
                if token.secrets.len() >= MAX_SECRETS {
                    return Err(Error::TooMany(Limit::TokensOfClient(MAX_SECRETS)));
                }
                token.secrets.insert(fresh.to_owned(), None);
                token.listed = listed.map(str::to_owned);
                token.sealed = None;
                Ok(())
            })
            .await
    }

    /// Deletes a client's tokens and ends its subscription. Topics that it published to are removed if no client subscribes to
    /// them, so that they do not use up the limit of topics. Others stay claimed until root deletes them: their subscribers do
    /// not expect events of another publisher.
    pub async fn delete_api_token(&self, client: &str) -> Result<(), Error> {
        self.core
            .change(|registry, _| {
                registry.api_tokens.remove(client).ok_or(Error::NoSuchToken)?;
                registry.end_subscription(client);
                let subscribed: BTreeSet<&String> =
                    registry.subscriptions.values().flat_map(|one| &one.topics).collect();
                registry.topics.retain(|topic, publisher| {
                    publisher.as_deref() != Some(client) || subscribed.contains(topic)
                });
                Ok(())
            })
            .await?;
        self.clear_away();
        Ok(())
    }

    /// Ends everything of a client: its subscription, if it has one, and its claims of topics, which `heir` gets.
    pub async fn end_client(&self, client: &str, heir: &str) -> Result<(), Error> {
        if !self.fresh_registry().await?.has_client(client) {
            return Ok(());
        }
        self.core
            .change(|registry, _| {
                registry.end_subscription(client);
                for publisher in registry.topics.values_mut() {
                    if publisher.as_deref() == Some(client) {
                        *publisher = Some(heir.to_owned());
                    }
                }
                Ok(())
            })
            .await?;
        self.clear_away();
        Ok(())
    }
}
