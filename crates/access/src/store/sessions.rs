//! Sessions of browsers, stored in the fabric.
//!
//! A session is a random secret that only the browser knows. The fabric has, under the digest of the secret, the digest of
//! the token with which the session was opened. So a copy of the fabric opens no session, a cookie contains nothing that is
//! derived from a token, and a session ends on every pacemaker when it is deleted.
//!
//! **Failure.** While the fabric is unavailable, a session that this process has seen before stays open, so that root can use
//! the dashboard to find out what is wrong. All other sessions cannot be checked.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use signalbox_store::{Fabric, keys};

use super::{Error, SharedSecret, digest, random};

/// The maximum number of sessions that are remembered for the time without a fabric.
const MAX_SEEN: usize = 1_024;

/// All sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sessions {
    fabric: Fabric,
    /// Digest of a session's secret → digest of its token.
    seen: Arc<Mutex<HashMap<String, String>>>,
    system: SharedSecret,
}

impl Sessions {
    /// Sessions are stored in `fabric`.
    pub fn new(fabric: Fabric) -> Self {
        let system = SharedSecret::at(fabric.clone(), keys::fabric::session_system(), 4);
        Self { fabric, seen: Arc::default(), system }
    }

    /// A random name of this system, the same on all its pacemakers. Cookies do not distinguish ports, so the name of the
    /// cookie contains it: two systems on one machine do not end each other's sessions.
    pub async fn system(&self) -> Result<&str, Error> {
        self.system.get().await
    }

    /// Opens a session for the holder of the token with this digest. Returns its secret.
    pub async fn open(&self, token: &str, lifetime: Duration) -> Result<String, Error> {
        let secret = random(32);
        let key = keys::fabric::session(&digest(&secret));
        self.fabric.command("SET").key(&key).arg(token).arg("EX").arg(lifetime.as_secs()).run().await?;
        Ok(secret)
    }

    /// The digest of the token with which the session was opened; `None` if it has ended.
    pub async fn find(&self, secret: &str) -> Result<Option<String>, Error> {
        let digest = digest(secret);
        let key = keys::fabric::session(&digest);
        match self.fabric.command("GET").key(&key).query::<Option<String>>().await {
            Ok(token) => {
                let mut seen = self.seen.lock();
                match &token {
                    Some(token) => {
                        if seen.len() >= MAX_SEEN {
                            seen.clear();
                        }
                        seen.insert(digest, token.clone());
                    }
                    None => drop(seen.remove(&digest)),
                }
                Ok(token)
            }
            Err(error) => match self.seen.lock().get(&digest) {
                Some(token) => Ok(Some(token.clone())),
                None => Err(error.into()),
            },
        }
    }

    /// Ends a session on all pacemakers. An unknown session is not an error. If the fabric does not respond, this process
    /// does not accept the session any more even so.
    pub async fn end(&self, secret: &str) -> Result<(), Error> {
        let digest = digest(secret);
        self.seen.lock().remove(&digest);
        Ok(self.fabric.command("DEL").key(&keys::fabric::session(&digest)).run().await?)
    }
}
