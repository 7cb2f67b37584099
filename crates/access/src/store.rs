//! Tokens in Redis.

mod audit;
mod frequent;
mod secret;
mod sessions;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use data_encoding::HEXLOWER;
use parking_lot::Mutex;
use rand::Rng as _;
use sha2::{Digest as _, Sha256};
use signalbox_store::{self as redis, Fabric, FabricRole, Script, Stats, keys};
use subtle::ConstantTimeEq as _;

pub use audit::{AuditLog, Cursor, Direction, Page};
pub use secret::SharedSecret;
pub use sessions::Sessions;

use super::{
    cache::{Cache, Uses},
    model::{Caller, Grant, Stored},
};
use signalbox_api::{Time, tokens::Token};
use signalbox_daemon::RootToken;

static CREATE: Script<FabricRole> = Script::new("tokens/create", include_str!("scripts/create.lua"));
static DELETE: Script<FabricRole> = Script::new("tokens/delete", include_str!("scripts/delete.lua"));
static ROTATE: Script<FabricRole> = Script::new("tokens/rotate", include_str!("scripts/rotate.lua"));

/// The maximum number of secrets of one token that are valid together.
pub const MAX_SECRETS: usize = 4;
/// Attempts to change a token while other changes interfere.
const MAX_CONFLICTS: usize = 10;

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

/// The outcome of a rotation.
#[derive(Debug)]
pub enum Rotated {
    /// The token with its new secret.
    Done(Box<Token>),
    /// No token has this name.
    Unknown,
    /// [`MAX_SECRETS`] secrets of the token are valid already.
    TooMany,
    /// The new secret would be expired.
    Expired,
    /// Other changes interfered.
    Busy,
}

/// All tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// The SHA-256 of the root token in hexadecimal.
    root: Arc<str>,
    fabric: Fabric,
    stats: Stats,
    cache: Arc<Mutex<Cache>>,
    uses: Arc<Mutex<Uses>>,
    now: fn() -> SystemTime,
}

impl Tokens {
    /// Tokens are stored in `fabric` and copied to `stats` for the sidecars. `now` decides what has expired.
    pub fn new(root: &RootToken, fabric: Fabric, stats: Stats, now: fn() -> SystemTime) -> Self {
        Self {
            root: HEXLOWER.encode(&Sha256::digest(root.as_bytes())).into(),
            fabric,
            stats,
            cache: Arc::default(),
            uses: Arc::default(),
            now,
        }
    }

    /// The time, in unix milliseconds.
    pub fn now_ms(&self) -> u64 {
        let since = (self.now)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The holder of `token`; `None` if it is unknown or has expired.
    pub async fn authenticate(&self, token: &str) -> Result<Option<Caller>, Error> {
        self.of_digest(&digest(token)).await
    }

    /// The holder of the token with this digest, if it is known without asking the fabric: the root token, or one that was
    /// looked up within the last second.
    pub fn cached(&self, digest: &str) -> Option<Caller> {
        let now_ms = self.now_ms();
        // Digests are compared, so that neither content nor length of the root token shows in the time taken.
        let caller = if bool::from(digest.as_bytes().ct_eq(self.root.as_bytes())) {
            Caller::root()
        } else {
            self.cache.lock().get(digest, now_ms)?
        };
        self.uses.lock().note(&caller.name, now_ms);
        Some(caller)
    }

    /// The holder of the token with this digest.
    pub async fn of_digest(&self, digest: &str) -> Result<Option<Caller>, Error> {
        if let Some(caller) = self.cached(digest) {
            return Ok(Some(caller));
        }
        let key = keys::fabric::tokens();
        let record: Option<String> = self.fabric.command("HGET").key(&key).arg(digest).query().await?;
        let Some(record) = record else { return Ok(None) };
        let stored = read(&record)?;
        let now_ms = self.now_ms();
        if !stored.is_valid(now_ms) {
            return Ok(None);
        }
        let end_ms = stored.end_ms();
        let caller = Caller::with(stored.name, stored.grant);
        self.cache.lock().put(digest, caller.clone(), end_ms, now_ms);
        self.uses.lock().note(&caller.name, now_ms);
        Ok(Some(caller))
    }

    /// The caller that the token of this name makes, for requests that were authenticated in another way. `None` if it is
    /// unknown or has expired.
    pub async fn of_name(&self, name: &str) -> Result<Option<Caller>, Error> {
        let digests = self.digests(name).await?.unwrap_or_default();
        match digests.split(' ').next() {
            Some(newest) if !newest.is_empty() => self.of_digest(newest).await,
            _ => Ok(None),
        }
    }

    /// Notes that something with this name was used. Costs a lookup in memory; [`Self::write_uses`] stores it.
    pub fn used(&self, name: &str) {
        self.uses.lock().note(name, self.now_ms());
    }

    /// Stores when tokens were last used. Call it periodically.
    pub async fn write_uses(&self) -> Result<(), Error> {
        let uses = self.uses.lock().take();
        if uses.is_empty() {
            return Ok(());
        }
        let pairs: Vec<(&String, &u64)> = uses.iter().collect();
        let key = keys::fabric::token_uses();
        let written = self.fabric.command("HSET").key(&key).arg(pairs).run().await;
        if written.is_err() {
            self.uses.lock().put_back(uses);
        }
        Ok(written?)
    }

    /// When each name was last used, in unix milliseconds, to about two minutes.
    pub(crate) async fn last_uses(&self) -> Result<HashMap<String, u64>, Error> {
        Ok(self.fabric.command("HGETALL").key(&keys::fabric::token_uses()).query().await?)
    }

    /// Creates a token, which expires at `expires_ms` (unix milliseconds); `None` if the name is taken. A retry does not
    /// return the token again: a caller that lost the response deletes the name and creates it again.
    pub async fn create(
        &self,
        name: String,
        grant: Grant,
        expires_ms: Option<u64>,
    ) -> Result<Option<Token>, Error> {
        let token = generate();
        let digest = digest(&token);
        let record = Stored { name, grant, created_ms: self.now_ms(), expires_ms, until_ms: None };
        let text = json(&record)?;
        let made: bool = CREATE
            .call()
            .key(&keys::fabric::tokens())
            .key(&keys::fabric::token_names())
            .key(&keys::fabric::token_uses())
            .arg(&record.name)
            .arg(&digest)
            .arg(&text)
            .run(&self.fabric)
            .await?;
        if !made {
            return Ok(None);
        }
        self.uses.lock().forget(&record.name);
        self.copy(&digest, Some(&text)).await;
        Ok(Some(Token { token: Some(token), ..listed(record, Vec::new(), None) }))
    }

    /// Gives a token another secret. The previous secrets stay valid for `overlap`, so that clients can change over. Name,
    /// scopes and everything that belongs to the name stay. Without `expires_ms`, the new secret expires as the one before.
    pub async fn rotate(
        &self,
        name: &str,
        overlap: Duration,
        expires_ms: Option<u64>,
    ) -> Result<Rotated, Error> {
        let (records, names) = (keys::fabric::tokens(), keys::fabric::token_names());
        let overlap_ms = u64::try_from(overlap.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..MAX_CONFLICTS {
            let Some(before) = self.digests(name).await? else { return Ok(Rotated::Unknown) };
            let old: Vec<&str> = before.split(' ').collect();
            let found: Vec<Option<String>> =
                self.fabric.command("HMGET").key(&records).arg(&old).query().await?;
            let now_ms = self.now_ms();
            let end_ms = now_ms.saturating_add(overlap_ms);
            let mut template = None;
            let mut secrets: Vec<(String, Option<String>)> = Vec::new();
            let mut ends = Vec::new();
            for (digest, record) in old.iter().zip(found) {
                let Some(record) = record else { continue };
                let mut record = read(&record)?;
                template.get_or_insert_with(|| record.clone());
                let until_ms = record.until_ms.map_or(end_ms, |until| until.min(end_ms));
                record.until_ms = Some(until_ms);
                let kept = overlap_ms > 0 && record.is_valid(now_ms);
                if kept {
                    ends.push(record.end_ms().unwrap_or(until_ms));
                }
                secrets.push(((*digest).to_owned(), kept.then(|| json(&record)).transpose()?));
            }
            let Some(template) = template else { return Ok(Rotated::Unknown) };
            if ends.len() >= MAX_SECRETS {
                return Ok(Rotated::TooMany);
            }
            let expires_ms = expires_ms.or(template.expires_ms);
            let fresh = Stored { created_ms: now_ms, expires_ms, until_ms: None, ..template };
            if !fresh.is_valid(now_ms) {
                return Ok(Rotated::Expired);
            }
            let token = generate();
            secrets.insert(0, (digest(&token), Some(json(&fresh)?)));
            let kept = secrets.iter().filter(|(_, record)| record.is_some());
            let after: Vec<&str> = kept.map(|(digest, _)| digest.as_str()).collect();
            let mut call =
                ROTATE.call().key(&records).key(&names).arg(name).arg(&before).arg(after.join(" "));
            for (digest, record) in &secrets {
                call = call.arg(digest).arg(record.as_deref().unwrap_or_default());
            }
            if !call.run::<bool>(&self.fabric).await? {
                continue;
            }
            for (digest, record) in &secrets {
                self.cache.lock().forget(digest);
                self.copy(digest, record.as_deref()).await;
            }
            let shown = Token { token: Some(token), ..listed(fresh, ends, None) };
            return Ok(Rotated::Done(Box::new(shown)));
        }
        Ok(Rotated::Busy)
    }

    /// Revokes all secrets of a token by its name. An unknown name is not an error.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let digests: Option<String> = DELETE
            .call()
            .key(&keys::fabric::tokens())
            .key(&keys::fabric::token_names())
            .key(&keys::fabric::token_uses())
            .arg(name)
            .run(&self.fabric)
            .await?;
        self.uses.lock().forget(name);
        for digest in digests.iter().flat_map(|digests| digests.split(' ')) {
            self.cache.lock().forget(digest);
            self.copy(digest, None).await;
        }
        Ok(())
    }

    /// The digests of a token's secrets, newest first, separated by spaces.
    async fn digests(&self, name: &str) -> Result<Option<String>, Error> {
        Ok(self.fabric.command("HGET").key(&keys::fabric::token_names()).arg(name).query().await?)
    }

    /// Every token without its secrets, by name. An expired token is listed until it is revoked.
    pub async fn list(&self) -> Result<Vec<Token>, Error> {
        let now_ms = self.now_ms();
        let mut by_name: BTreeMap<String, Vec<Stored>> = BTreeMap::new();
        for record in self.records().await?.values() {
            let record = read(record)?;
            by_name.entry(record.name.clone()).or_default().push(record);
        }
        let uses = self.last_uses().await?;
        let mut all = Vec::with_capacity(by_name.len());
        for (name, mut secrets) in by_name {
            secrets.sort_by_key(|secret| (secret.until_ms.is_some(), secret.created_ms));
            let mut secrets = secrets.into_iter();
            let Some(newest) = secrets.next() else { continue };
            let ends = secrets.filter(|one| one.is_valid(now_ms)).filter_map(|one| one.end_ms());
            all.push(listed(newest, ends.collect(), uses.get(&name).copied()));
        }
        Ok(all)
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
        let now_ms = self.now_ms();
        let mut wanted = self.records().await?;
        // A record that is not readable is not valid.
        wanted.retain(|_, record| read(record).is_ok_and(|record| record.is_valid(now_ms)));
        let key = keys::stats::tokens();
        let present: HashMap<String, String> = self.stats.command("HGETALL").key(&key).query().await?;
        let mut batch = self.stats.batch();
        for digest in present.keys().filter(|digest| !wanted.contains_key(*digest)) {
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

fn read(record: &str) -> Result<Stored, Error> {
    serde_json::from_str(record).map_err(Error::Record)
}

fn json(record: &Stored) -> Result<String, Error> {
    serde_json::to_string(record).map_err(Error::Record)
}

/// The token as it is listed. Without its secret, which is not stored.
fn listed(newest: Stored, replaced_until_ms: Vec<u64>, last_used_at_ms: Option<u64>) -> Token {
    let Grant { scopes, hosts, tenants, machines, version_types } = newest.grant;
    Token {
        name: newest.name,
        scopes,
        hosts: hosts.map(|patterns| patterns.iter().map(ToString::to_string).collect()),
        tenants,
        machines,
        version_types,
        created_at: Time::from_ms(newest.created_ms),
        expires_at: newest.expires_ms.map(Time::from_ms),
        last_used_at: last_used_at_ms.map(Time::from_ms),
        replaced_until: replaced_until_ms.into_iter().map(Time::from_ms).collect(),
        token: None,
    }
}

/// 256 random bits. The prefix lets secret scanners recognize a leaked one.
fn generate() -> String {
    format!("sbx_{}", random(32))
}

/// So many random bytes, in hexadecimal.
fn random(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    rand::rng().fill_bytes(&mut random);
    HEXLOWER.encode(&random)
}

/// The SHA-256 of a token in hexadecimal, which is stored instead of the token.
pub fn digest(token: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(token.as_bytes()))
}
