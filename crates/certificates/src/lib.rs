//! Certificates: what the edge shows for a server name, put there over HTTP ([`api`]).
//!
//! **Purpose.** `PUT /certificates/{server_name}` takes a chain and a private key, checks that handshakes would work with
//! them ([`chain`]), encrypts the key ([`keys`]) and gives both to the route table, which brings them to every router
//! like any other change: nothing is reloaded, `?wait=` tells when every worker has them.
//!
//! **Data.** The crate has none of its own. The route table keeps a certificate as a text: the JSON that routers read in
//! `cert:<server name>` (`lua/signalbox/certificates.lua` has the format), with the private key already encrypted. So
//! neither Redis, nor its files, nor a replica, nor a router's snapshot ever has a private key in clear; only processes
//! that were given the key file can open one.
//!
//! **Rotation.** The key file may hold several keys: the first encrypts, all decrypt. A pacemaker that starts encrypts
//! anew what another than the first opens ([`Certificates::reseal`]).
//!
//! **Ends** are told by the route table's announcer, on the topic `signalbox.certificates`.
//!
//! **Failure.** That of any change of the route table. Without a key file certificates can be listed and deleted, and
//! putting one is refused.

mod chain;
mod keys;

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use tokio::time;
use tokio_util::sync::CancellationToken;

pub use chain::Facts;
pub use keys::Keys;

use signalbox_access::Caller;
use signalbox_route_table::{Hostname, Invalid};
use signalbox_routing::{Certificate, Error as TableError, Registry, RuledHost};

/// How many certificates are looked at together when they are encrypted anew.
const CHUNK: usize = 100;
/// How long until encrypting anew is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// Why a certificate could not be put, read or taken away.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the certificate cannot be used")]
    Invalid(#[from] Invalid),
    #[error("no key file is configured")]
    NoKey,
    #[error("no certificate for this name")]
    Unknown,
    #[error("the private key could not be encrypted")]
    Seal,
    #[error("the certificate that is stored cannot be read")]
    Stored(#[source] serde_json::Error),
    #[error("the route table")]
    Table(#[from] TableError),
}

/// What routers read.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    v: u8,
    /// PEM.
    chain: String,
    /// Base64 of nonce, encrypted PEM, and tag.
    key: String,
    // Routers of later versions may want more; what is unknown here is not kept, because whoever puts a certificate
    // puts all of it.
}

/// A certificate that was put.
#[derive(Debug)]
pub struct Put {
    pub facts: Facts,
    pub change: RuledHost,
    /// Whether the name had none before.
    pub created: bool,
}

/// A certificate that is there.
#[derive(Debug)]
pub struct Found {
    /// PEM.
    pub chain: String,
    pub facts: Facts,
}

/// The handle. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Certificates {
    registry: Registry,
    keys: Arc<Keys>,
    clock: fn() -> SystemTime,
}

impl Certificates {
    /// `clock` is the time of day, which decides whether a certificate has ended.
    pub fn new(registry: Registry, keys: Keys, clock: fn() -> SystemTime) -> Self {
        Self { registry, keys: Arc::new(keys), clock }
    }

    /// The key that routers use for `purpose`; nothing without a key file.
    pub fn edge_key_for(&self, purpose: &str) -> Option<[u8; 32]> {
        self.keys.of(purpose)
    }

    pub fn now(&self) -> i64 {
        let since = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }

    /// Gives a server name this chain and key instead of what it has. Repeating it changes nothing.
    pub async fn put(&self, caller: &Caller, name: &Hostname, chain: &str, key: &str) -> Result<Put, Error> {
        if self.keys.is_empty() {
            return Err(Error::NoKey);
        }
        let checked = chain::check(name.as_str(), chain, key, self.now())?;
        let ends = u64::try_from(checked.facts.not_after).unwrap_or(0);
        let stored = self.registry.store().certificate(name).await?;
        let same = stored.as_ref().filter(|stored| {
            let document = serde_json::from_str::<Document>(&stored.certificate.text);
            document.is_ok_and(|document| {
                document.chain == checked.chain
                    && self.keys.open_with_first(name.as_str(), &document.key).as_deref()
                        == Some(checked.key.as_bytes())
            })
        });
        let certificate = match same {
            // Encrypted anew it would be another text, and a change.
            Some(same) => same.certificate.clone(),
            None => self.seal(name, &checked.chain, checked.key.as_bytes(), ends)?,
        };
        let change = self.registry.set_certificate(caller, name, Some(&certificate), None).await?;
        let change = change.ok_or(TableError::Contended)?;
        Ok(Put { facts: checked.facts, change, created: stored.is_none() })
    }

    /// Takes a certificate away. One that is not there is no error.
    pub async fn remove(&self, caller: &Caller, name: &Hostname) -> Result<RuledHost, Error> {
        let change = self.registry.set_certificate(caller, name, None, None).await?;
        Ok(change.ok_or(TableError::Contended)?)
    }

    /// The certificate of a server name.
    pub async fn get(&self, name: &Hostname) -> Result<Found, Error> {
        let found = self.registry.store().certificate(name).await?.ok_or(Error::Unknown)?;
        found_in(&found.certificate)
    }

    /// A step of a walk over the certificates, in the order of their names.
    pub async fn after(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, Found)>, Error> {
        let store = self.registry.store();
        let names = store.certificates_after(after, limit).await?;
        let certificates = store.certificates(&names).await?;
        let both = names.into_iter().zip(certificates);
        both.filter_map(|(name, certified)| Some((name, certified?)))
            .map(|(name, certified)| Ok((name, found_in(&certified.certificate)?)))
            .collect()
    }

    fn seal(&self, name: &Hostname, chain: &str, key: &[u8], ends: u64) -> Result<Certificate, Error> {
        let key = self.keys.seal(name.as_str(), key).ok_or(Error::Seal)?;
        let document = Document { v: 1, chain: chain.to_owned(), key };
        Ok(Certificate { text: serde_json::to_string(&document).map_err(Error::Stored)?, ends })
    }

    /// Encrypts with the first key what another one of the file opens. Ends when that is done, or at `shutdown`; with a
    /// single key there is nothing to do.
    pub async fn reseal(self, shutdown: CancellationToken) {
        if self.keys.len() < 2 {
            return;
        }
        while let Err(error) = self.reseal_all().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "certificates are encrypted with the first key later"
            );
            if shutdown.run_until_cancelled(time::sleep(PAUSE)).await.is_none() {
                return;
            }
        }
    }

    async fn reseal_all(&self) -> Result<(), Error> {
        let store = self.registry.store();
        let mut after: Option<String> = None;
        loop {
            let names = store.certificates_after(after.as_deref(), CHUNK).await?;
            let Some(last) = names.last() else { return Ok(()) };
            after = Some(last.clone());
            for (name, certified) in names.iter().zip(store.certificates(&names).await?) {
                let Some(certified) = certified else { continue };
                let document: Document =
                    serde_json::from_str(&certified.certificate.text).map_err(Error::Stored)?;
                if self.keys.open_with_first(name, &document.key).is_some() {
                    continue;
                }
                let Some(key) = self.keys.open(name, &document.key) else {
                    tracing::error!(
                        server_name = name,
                        "no key of the key file opens this certificate's private key; put it again"
                    );
                    continue;
                };
                let name = Hostname::parse(name)?;
                let sealed = self.seal(&name, &document.chain, &key, certified.certificate.ends)?;
                let expected = Some(certified.revision);
                self.registry.set_certificate(&Caller::root(), &name, Some(&sealed), expected).await?;
                tracing::info!(server_name = %name, "the private key was encrypted with the first key");
            }
        }
    }
}

fn found_in(certificate: &Certificate) -> Result<Found, Error> {
    let document: Document = serde_json::from_str(&certificate.text).map_err(Error::Stored)?;
    let facts = chain::facts(&document.chain)?;
    Ok(Found { chain: document.chain, facts })
}
