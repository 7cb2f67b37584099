//! Tokens in Redis.

use std::{collections::HashMap, sync::Arc};

use rand::Rng as _;
use sha2::{Digest as _, Sha256};
use signalbox_store::{self as redis, Fabric, FabricRole, Script, Stats, keys};
use subtle::ConstantTimeEq as _;

use super::{
    ExternalToken, ExternalTokens, HostPattern, Scope,
    model::{Caller, Stored},
};
use signalbox_daemon::RootToken;

static CREATE: Script<FabricRole> = Script::new("tokens/create", include_str!("scripts/create.lua"));
static DELETE: Script<FabricRole> = Script::new("tokens/delete", include_str!("scripts/delete.lua"));

/// A failed lookup or change of a token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The fabric failed or did not answer.
    #[error("the tokens could not be read or written")]
    Fabric(#[from] redis::Error),
    /// A stored token is not the expected JSON.
    #[error("the token's record is not readable")]
    Record(#[source] serde_json::Error),
}

/// A new token, which is shown once.
#[derive(Debug)]
pub struct Created {
    /// The token in clear text. It is not stored and cannot be shown again.
    pub token: String,
}

/// A token as it is listed.
#[derive(Debug, PartialEq, Eq)]
pub struct Listed {
    /// The unique name of the token.
    pub name: String,
    /// The permissions of the token.
    pub scopes: Vec<Scope>,
    /// The hosts that the token is confined to; `None` allows every host.
    pub hosts: Option<Vec<HostPattern>>,
    /// The environments that the token is confined to; `None` allows every environment.
    pub environments: Option<Vec<String>>,
}

/// All tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokens {
    root: Arc<RootToken>,
    fabric: Fabric,
    stats: Stats,
    external: ExternalTokens,
}

impl Tokens {
    /// Tokens are stored in `fabric` and copied to `stats` for the sidecars.
    pub fn new(root: RootToken, fabric: Fabric, stats: Stats) -> Self {
        Self { root: Arc::new(root), fabric, stats, external: ExternalTokens::none() }
    }

    /// Copies these tokens of another subsystem to the sidecars, too.
    #[must_use]
    pub fn with_external(self, external: ExternalTokens) -> Self {
        Self { external, ..self }
    }

    /// Copies a token of another subsystem to the sidecars immediately.
    pub async fn sync(&self, token: &ExternalToken) -> Result<(), Error> {
        let record = serde_json::to_string(&token.record()).map_err(Error::Record)?;
        self.copy(&digest(&token.token), Some(&record)).await;
        Ok(())
    }

    /// Removes a token of another subsystem from the sidecars immediately.
    pub async fn revoke(&self, token: &str) {
        self.copy(&digest(token), None).await;
    }

    /// The holder of `token`; `None` if it is unknown.
    pub async fn authenticate(&self, token: &str) -> Result<Option<Caller>, Error> {
        self.of_digest(&digest(token)).await
    }

    /// The holder of the token with this digest.
    pub async fn of_digest(&self, digest: &str) -> Result<Option<Caller>, Error> {
        // Digests are compared, so that neither content nor length of the root token shows in the time taken.
        let root = hex(&Sha256::digest(self.root.as_bytes()));
        if bool::from(digest.as_bytes().ct_eq(root.as_bytes())) {
            return Ok(Some(Caller::root()));
        }
        let key = keys::fabric::tokens();
        let record: Option<String> = self.fabric.command("HGET").key(&key).arg(digest).query().await?;
        let Some(record) = record else { return Ok(None) };
        let Stored { name, scopes, hosts, environments } =
            serde_json::from_str(&record).map_err(Error::Record)?;
        Ok(Some(Caller::named(name, scopes, hosts).within(environments)))
    }

    /// A key that all pacemakers with the same root token share, and that does not reveal the token.
    pub fn shared_key(&self, purpose: &str) -> [u8; 32] {
        // The result is a secret key, so length extension is no threat and a plain hash suffices.
        let text = Sha256::new().chain_update(b"signalbox/").chain_update(purpose).chain_update(b"/");
        text.chain_update(self.root.as_bytes()).finalize().into()
    }

    /// Creates a token; `None` if the name is taken. A retry does not return the token again: a caller that lost the
    /// response deletes the name and creates it again.
    pub async fn create(
        &self,
        name: String,
        scopes: Vec<Scope>,
        hosts: Option<Vec<HostPattern>>,
        environments: Option<Vec<String>>,
    ) -> Result<Option<Created>, Error> {
        let token = generate();
        let digest = digest(&token);
        let record = Stored { name: name.clone(), scopes, hosts, environments };
        let record = serde_json::to_string(&record).map_err(Error::Record)?;
        let made: bool = CREATE
            .call()
            .key(&keys::fabric::tokens())
            .key(&keys::fabric::token_names())
            .arg(&name)
            .arg(&digest)
            .arg(&record)
            .run(&self.fabric)
            .await?;
        if !made {
            return Ok(None);
        }
        self.copy(&digest, Some(&record)).await;
        Ok(Some(Created { token }))
    }

    /// Revokes a token by name. An unknown name is not an error.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let digest: Option<String> = DELETE
            .call()
            .key(&keys::fabric::tokens())
            .key(&keys::fabric::token_names())
            .arg(name)
            .run(&self.fabric)
            .await?;
        if let Some(digest) = digest {
            self.copy(&digest, None).await;
        }
        Ok(())
    }

    /// Every token, by name.
    pub async fn list(&self) -> Result<Vec<Listed>, Error> {
        let records = self.records().await?;
        let mut listed = Vec::with_capacity(records.len());
        for record in records.values() {
            let Stored { name, scopes, hosts, environments } =
                serde_json::from_str(record).map_err(Error::Record)?;
            listed.push(Listed { name, scopes, hosts, environments });
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    async fn records(&self) -> Result<HashMap<String, String>, Error> {
        Ok(self.fabric.command("HGETALL").key(&keys::fabric::tokens()).query().await?)
    }

    /// Writes one token's copy for the sidecars. If the stats Redis is unavailable, [`Self::reconcile`] writes it later.
    async fn copy(&self, digest: &str, record: Option<&str>) {
        let key = keys::stats::tokens();
        let done = match record {
            Some(record) => self.stats.command("HSET").key(&key).arg(digest).arg(record).run().await,
            None => self.stats.command("HDEL").key(&key).arg(digest).run().await,
        };
        if let Err(error) = done {
            tracing::warn!(%error, "token not copied to the stats Redis; the reconciler will retry");
        }
    }

    /// Makes the copy for the sidecars equal to the original.
    pub async fn reconcile(&self) -> Result<(), Error> {
        let mut wanted = self.records().await?;
        let external = self.external.all();
        for one in external.iter().flatten() {
            let record = serde_json::to_string(&one.record()).map_err(Error::Record)?;
            wanted.entry(digest(&one.token)).or_insert(record);
        }
        let key = keys::stats::tokens();
        let present: HashMap<String, String> = self.stats.command("HGETALL").key(&key).query().await?;
        let mut batch = self.stats.batch();
        // While the external tokens are unknown, an unknown digest may belong to one of them.
        for digest in present.keys().filter(|digest| external.is_some() && !wanted.contains_key(*digest)) {
            batch.add("HDEL", &key, digest);
        }
        for (digest, record) in wanted.iter().filter(|(digest, record)| present.get(*digest) != Some(record))
        {
            batch.add("HSET", &key, (digest, record));
        }
        if !batch.is_empty() {
            batch.query::<redis::Value>().await?;
        }
        Ok(())
    }
}

/// 256 random bits. The prefix lets secret scanners recognize a leaked one.
fn generate() -> String {
    let mut bytes = [0_u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    format!("sbx_{}", hex(&bytes))
}

/// The SHA-256 of a token in hexadecimal, which is stored instead of the token.
pub fn digest(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
