//! Certificates that the edge presents for a server name, set over HTTP.
//!
//! **Purpose.** `PUT /certificates/{server_name}` takes a chain and a private key. This crate checks that handshakes would
//! work with them ([`chain`]), encrypts the key ([`Keys`]) and passes both to the route table, which brings them to every
//! router like any other change. Nothing is reloaded, and `?wait=` waits until every worker has them.
//!
//! **Data.** This crate stores no data of its own. The route table stores a certificate as a text: the JSON that routers read in
//! `cert:<server name>` (`lua/signalbox/certificates.lua` has the format), with the private key already encrypted. So
//! neither Redis, nor its files, nor a replica, nor a router's snapshot ever has a private key in clear text. Only
//! processes with the key file can decrypt one.
//!
//! **Rotation.** The key file may contain several keys: the first encrypts, all decrypt. When a pacemaker starts, it
//! encrypts again what the first key does not decrypt ([`Certificates::reseal`]).
//!
//! **Expiry** is announced by the route table, on the topic `signalbox.certificates`.
//!
//! **Failure.** As for any change of the route table. Without a key file, certificates can be listed and deleted, but not
//! set.

mod chain;

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use tokio::time;
use tokio_util::sync::CancellationToken;

pub use chain::Facts;

use signalbox_access::Caller;
use signalbox_route_table::{Hostname, Invalid};
use signalbox_routing::{Certificate, Error as TableError, Registry, ResourceChange};
use signalbox_seal::Keys;

/// The number of names that are read at a time.
const CHUNK: usize = 100;
/// Delay before a failed round of encryption is retried.
const PAUSE: Duration = Duration::from_secs(5);

/// A certificate could not be set, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The chain or the key would make handshakes fail.
    #[error("the certificate cannot be used")]
    Invalid(#[from] Invalid),
    /// Without a key file private keys cannot be encrypted.
    #[error("no key file is configured")]
    NoKey,
    /// The server name has no certificate.
    #[error("no certificate for this name")]
    Unknown,
    /// Encrypting failed.
    #[error("the private key could not be encrypted")]
    Seal,
    /// The stored document is not the expected JSON.
    #[error("the certificate that is stored cannot be read")]
    Stored(#[source] serde_json::Error),
    /// The change or the read failed in the route table.
    #[error("the route table")]
    Table(#[from] TableError),
}

/// The document that routers read.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    v: u8,
    /// PEM.
    chain: String,
    /// Base64 of nonce, encrypted PEM, and tag.
    key: String,
    /// The expiry, in unix seconds. Routers do not present the certificate afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ends: Option<u64>,
    // Later versions may add members. Unknown ones are not kept, because a client always sets the whole
    // certificate.
}

/// A certificate that was set.
#[derive(Debug)]
pub struct Put {
    /// The content of the certificate.
    pub facts: Facts,
    /// The change of the route table.
    pub change: ResourceChange,
    /// Whether the name had no certificate before.
    pub created: bool,
}

/// A stored certificate.
#[derive(Debug)]
pub struct Found {
    /// PEM.
    pub chain: String,
    /// The content of the certificate.
    pub facts: Facts,
}

/// Where a page ends. It has one certificate at least, if there is one.
#[derive(Debug, Clone, Copy)]
pub struct PageLimits {
    /// Certificates.
    pub items: usize,
    /// Bytes of these certificates, about.
    pub bytes: usize,
    /// Names that are checked, about.
    pub examined: usize,
}

/// A page of certificates.
#[derive(Debug, Default)]
pub struct Page {
    /// Server names with their certificates.
    pub found: Vec<(String, Found)>,
    /// The name behind which the next page begins; `None` if there are no more.
    pub next: Option<String>,
}

/// Gives access to certificates. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Certificates {
    registry: Registry,
    keys: Arc<Keys>,
    clock: fn() -> SystemTime,
}

impl Certificates {
    /// `clock` returns the time of day, which decides whether a certificate has expired.
    pub fn new(registry: Registry, keys: Keys, clock: fn() -> SystemTime) -> Self {
        Self { registry, keys: Arc::new(keys), clock }
    }

    /// The key that routers use for `purpose`; `None` without a key file.
    pub fn edge_key_for(&self, purpose: &str) -> Option<[u8; 32]> {
        self.keys.of(purpose)
    }

    /// Whether private keys can be encrypted, so that certificates can be set.
    pub fn can_seal(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Encrypts a secret of automatic HTTPS in the same way as private keys, if there is a key file. `purpose` is needed to
    /// decrypt it.
    pub fn seal_secret(&self, purpose: &str, secret: &str) -> Result<String, Error> {
        if self.keys.is_empty() {
            return Err(Error::NoKey);
        }
        self.keys.seal(&label(purpose), secret.as_bytes()).ok_or(Error::Seal)
    }

    /// Decrypts a result of [`Self::seal_secret`]. Also returns whether it was encrypted with the first key
    /// of the file; `None` if no key decrypts it.
    pub fn open_secret(&self, purpose: &str, sealed: &str) -> Option<(String, bool)> {
        let label = label(purpose);
        let is_current = self.keys.open_with_first(&label, sealed).is_some();
        Some((String::from_utf8(self.keys.open(&label, sealed)?).ok()?, is_current))
    }

    /// The current time in unix seconds.
    pub fn now(&self) -> i64 {
        let since = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }

    /// Sets the chain and private key of a server name. Repeating it changes nothing.
    pub async fn put(&self, caller: &Caller, name: &Hostname, chain: &str, key: &str) -> Result<Put, Error> {
        if self.keys.is_empty() {
            return Err(Error::NoKey);
        }
        let checked = chain::check(name.as_str(), chain, key, self.now())?;
        let ends = u64::try_from(checked.facts.not_after).unwrap_or(0);
        let stored = self.registry.store().certificate(name).await?;
        let same = stored.as_ref().filter(|stored| {
            let document = serde_json::from_str::<Document>(&stored.value.text);
            document.is_ok_and(|document| {
                document.chain == checked.chain
                    && self.keys.open_with_first(name.as_str(), &document.key).as_deref()
                        == Some(checked.key.as_bytes())
            })
        });
        let certificate = match same {
            // Encrypting the same key again would give a different text, and therefore a change.
            Some(same) => same.value.clone(),
            None => self.seal(name, &checked.chain, checked.key.as_bytes(), ends)?,
        };
        let change = self.registry.set_certificate(caller, name, Some(&certificate), None).await?;
        let change = change.ok_or(TableError::Contended)?;
        Ok(Put { facts: checked.facts, change, created: stored.is_none() })
    }

    /// What a certificate says, if it can be stored for the name.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self, name: &Hostname, chain: &str, key: &str) -> Result<Facts, Error> {
        Ok(chain::check(name.as_str(), chain, key, self.now())?.facts)
    }

    /// Removes a certificate. A name without one is not an error.
    pub async fn remove(&self, caller: &Caller, name: &Hostname) -> Result<ResourceChange, Error> {
        let change = self.registry.set_certificate(caller, name, None, None).await?;
        Ok(change.ok_or(TableError::Contended)?)
    }

    /// The certificate of a server name.
    pub async fn get(&self, name: &Hostname) -> Result<Found, Error> {
        let found = self.registry.store().certificate(name).await?.ok_or(Error::Unknown)?;
        found_in(&found.value)
    }

    /// A page of the certificates whose names are wanted, after the name `after`, sorted by name. Other certificates are not read.
    pub async fn page(
        &self,
        mut after: Option<String>,
        limits: PageLimits,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Page, Error> {
        let store = self.registry.store();
        let (mut page, mut examined, mut bytes) = (Page::default(), 0, limits.bytes);
        while examined < limits.examined {
            let mut names = store.certificates_after(after.as_deref(), CHUNK).await?;
            let Some(last) = names.last().cloned() else { return Ok(page) };
            examined += names.len();
            names.retain(|name| is_wanted(name));
            let mut read = 0;
            while read < names.len() {
                let part = store.certificates_part(&names[read..]).await?;
                let count = part.len();
                for (name, certified) in names[read..].iter().zip(part) {
                    let Some(Certificate { text, ends }) = certified.map(|certified| certified.value) else {
                        continue;
                    };
                    if page.found.len() >= limits.items || bytes == 0 {
                        page.next = page.found.last().map(|(name, _)| name.clone());
                        return Ok(page);
                    }
                    bytes = bytes.saturating_sub(text.len());
                    page.found.push((name.clone(), found_in(&Certificate { text, ends })?));
                }
                read += count;
            }
            after = Some(last);
        }
        page.next = after;
        Ok(page)
    }

    fn seal(&self, name: &Hostname, chain: &str, key: &[u8], ends: u64) -> Result<Certificate, Error> {
        let key = self.keys.seal(name.as_str(), key).ok_or(Error::Seal)?;
        let document = Document { v: 1, chain: chain.to_owned(), key, ends: Some(ends) };
        Ok(Certificate { text: serde_json::to_string(&document).map_err(Error::Stored)?, ends })
    }

    /// Encrypts private keys again that only another key of the file decrypts, with the first key. Returns
    /// when all are done, or at `shutdown`. With a single key there is nothing to do.
    pub async fn reseal(self, shutdown: CancellationToken) {
        if self.keys.len() < 2 {
            return;
        }
        while let Err(error) = self.reseal_all().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "certificates not encrypted with the first key; will be retried"
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
                    serde_json::from_str(&certified.value.text).map_err(Error::Stored)?;
                if self.keys.open_with_first(name, &document.key).is_some() {
                    continue;
                }
                let Some(key) = self.keys.open(name, &document.key) else {
                    tracing::error!(
                        server_name = name,
                        "private key not decrypted by any key of the key file; upload the certificate again"
                    );
                    continue;
                };
                let name = Hostname::parse(name)?;
                let sealed = self.seal(&name, &document.chain, &key, certified.value.ends)?;
                let expected = Some(certified.revision);
                self.registry.set_certificate(&Caller::root(), &name, Some(&sealed), expected).await?;
                tracing::info!(server_name = %name, "private key encrypted with the first key");
            }
        }
    }
}

/// The authenticated data of a secret that is not a certificate's private key. It contains a space, which no
/// server name does.
fn label(purpose: &str) -> String {
    format!("acme {purpose}")
}

fn found_in(certificate: &Certificate) -> Result<Found, Error> {
    let document: Document = serde_json::from_str(&certificate.text).map_err(Error::Stored)?;
    let facts = chain::facts(&document.chain)?;
    Ok(Found { chain: document.chain, facts })
}
