//! The primary of a service that Sentinels monitor.
//!
//! A task polls every Sentinel of the URL, and adopts the primary of the highest configuration epoch. Sentinels raise the
//! epoch at each failover, so one that was cut off and still names the former primary is outvoted, whichever answers first.
//! A lower epoch is adopted only if most Sentinels report it: they were set up again.
//!
//! A command that is in flight while the primary changes fails immediately, because the former primary may never reply. Its
//! outcome is unknown, as after every lost connection.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use redis::{
    Client, ErrorKind, RedisError, Value,
    aio::{ConnectionManager, ConnectionManagerConfig},
    from_redis_value,
};
use tokio::{
    sync::{Notify, watch},
    time,
};

/// Interval between two polls while the primary works.
const INTERVAL: Duration = Duration::from_secs(1);
/// The interval while the primary is unknown or fails.
const SUSPECT_INTERVAL: Duration = Duration::from_millis(100);
/// The time limit of one Sentinel's answer. A slow Sentinel delays the poll, but not the other Sentinels.
const ANSWER: Duration = Duration::from_millis(500);

/// The primary of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Primary {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Rises with each failover.
    epoch: u64,
}

impl Primary {
    /// The address as a URL contains it.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Reads the address, and the epoch from the name-value pairs of `SENTINEL MASTER`. After a failover,
    /// that answer already has the new epoch, but the former address until all replicas follow the new
    /// primary.
    fn read((address, answer): (Option<(String, u16)>, Value)) -> Option<Self> {
        let (host, port) = address?;
        let Value::Array(items) = answer else { return None };
        let texts: Vec<String> =
            items.into_iter().map(|item| from_redis_value(item).unwrap_or_default()).collect();
        let epoch = texts.chunks_exact(2).find(|pair| pair[0] == "config-epoch").map(|pair| pair[1].as_str());
        Some(Self { host, port, epoch: epoch?.parse().ok()? })
    }
}

/// A monitored service. Dropping it ends its task.
pub(crate) struct Service {
    name: String,
    primary: watch::Sender<Option<Primary>>,
    suspect: Notify,
}

impl Service {
    /// Follows the service `name` that the Sentinels `clients` monitor. Must be called inside a tokio
    /// runtime.
    pub(crate) fn follow(name: String, clients: Vec<Client>) -> Result<Arc<Self>, RedisError> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(ANSWER))
            .set_response_timeout(Some(ANSWER))
            .set_number_of_retries(0);
        let sentinels = clients
            .into_iter()
            .map(|client| ConnectionManager::new_lazy_with_config(client, config.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let service = Arc::new(Self { name, primary: watch::Sender::new(None), suspect: Notify::new() });
        tokio::spawn(poll(Arc::downgrade(&service), sentinels));
        Ok(service)
    }

    /// The primary. If no Sentinel has reported one yet, this waits for at most `patience`.
    pub(crate) async fn primary(&self, patience: Duration) -> Result<Primary, RedisError> {
        let mut changes = self.primary.subscribe();
        let known = time::timeout(patience, changes.wait_for(Option::is_some)).await;
        let primary = known.ok().and_then(Result::ok).and_then(|primary| primary.clone());
        primary.ok_or_else(|| failed("no Sentinel names a primary of the service"))
    }

    /// The host and port of the primary, if a Sentinel has reported one.
    pub(crate) fn known(&self) -> Option<(String, u16)> {
        self.primary.borrow().as_ref().map(|primary| (primary.host.clone(), primary.port))
    }

    /// Waits until the primary is a different server from `primary`.
    pub(crate) async fn replaced(&self, primary: &Primary) {
        let same = |now: &Option<Primary>| {
            now.as_ref().is_none_or(|now| (&now.host, now.port) == (&primary.host, primary.port))
        };
        let mut changes = self.primary.subscribe();
        // The sender lives longer than this future.
        let _ = changes.wait_for(|now| !same(now)).await;
    }

    /// Polls the Sentinels immediately, because the primary does not respond.
    pub(crate) fn suspect(&self) {
        self.suspect.notify_one();
    }

    fn adopt(&self, chosen: Option<Primary>) {
        let Some(chosen) = chosen else { return };
        self.primary.send_if_modified(|current| {
            if current.as_ref() == Some(&chosen) {
                return false;
            }
            tracing::info!(
                service = self.name,
                primary = chosen.authority(),
                epoch = chosen.epoch,
                "primary adopted"
            );
            *current = Some(chosen);
            true
        });
    }
}

/// The error of a command that was in flight while the primary changed.
pub(crate) fn replaced() -> RedisError {
    failed("the primary was replaced while a command was in flight")
}

fn failed(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Io, what))
}

async fn poll(service: Weak<Service>, sentinels: Vec<ConnectionManager>) {
    loop {
        let Some(service) = service.upgrade() else { return };
        let name = service.name.as_str();
        let answers = join_all(sentinels.iter().cloned().map(|sentinel| ask(sentinel, name))).await;
        let current = service.primary.borrow().clone();
        service.adopt(choose(current.as_ref(), &answers));
        let known = service.primary.borrow().is_some();
        let patience = if known { INTERVAL } else { SUSPECT_INTERVAL };
        if time::timeout(patience, service.suspect.notified()).await.is_ok() {
            time::sleep(SUSPECT_INTERVAL).await;
        }
    }
}

async fn ask(mut sentinel: ConnectionManager, service: &str) -> Option<Primary> {
    let mut questions = redis::pipe();
    questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    questions.cmd("SENTINEL").arg("MASTER").arg(service);
    match questions.query_async(&mut sentinel).await {
        Ok(answer) => Primary::read(answer),
        Err(error) => {
            tracing::debug!(service, %error, "Sentinel does not answer");
            None
        }
    }
}

/// The new primary; `None` if the current one does not change. `answers` has an entry for every Sentinel.
fn choose(current: Option<&Primary>, answers: &[Option<Primary>]) -> Option<Primary> {
    let known = || answers.iter().flatten();
    let newest = known().map(|primary| primary.epoch).max()?;
    if current.is_some_and(|current| current.epoch == newest && known().any(|primary| primary == current)) {
        return None;
    }
    let best = known().find(|primary| primary.epoch == newest)?;
    let agreed = known().filter(|other| *other == best).count() * 2 > answers.len();
    let older = current.is_some_and(|current| best.epoch < current.epoch);
    (!older || agreed).then(|| best.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, epoch: u64) -> Option<Primary> {
        Some(Primary { host: host.to_owned(), port: 1, epoch })
    }

    #[test]
    fn the_answer_of_a_sentinel_is_read() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let state = |words: &[&str]| Value::Array(words.iter().map(|word| text(word)).collect());
        let address = Some(("fd00::1".to_owned(), 6401));
        // The failover is not complete, and the state still has the former address.
        let during = state(&["name", "routes", "ip", "fd00::2", "port", "1", "config-epoch", "7"]);
        let primary = Primary::read((address.clone(), during)).unwrap();
        assert_eq!((primary.authority().as_str(), primary.epoch), ("[fd00::1]:6401", 7));
        assert_eq!(at("h", 0).unwrap().authority(), "h:1");
        assert_eq!(Primary::read((None, Value::Nil)), None);
        assert_eq!(Primary::read((address, state(&["config-epoch", "x"]))), None);
    }

    #[test]
    fn the_newest_primary_is_adopted_whichever_sentinel_names_it() {
        let (old, new) = (at("old", 3), at("new", 4));
        for (current, answers, chosen) in [
            (&None, vec![None, old.clone(), None], &old),
            (&None, vec![None, None], &None),
            (&old, vec![old.clone(), new.clone(), old.clone()], &new),
            (&new, vec![old.clone(), None, None], &None),
            (&new, vec![old.clone(), None, old.clone()], &old),
            (&new, vec![old.clone(), new.clone(), old.clone()], &None),
            (&new, vec![at("other", 4), new.clone(), None], &None),
        ] {
            assert_eq!(&choose(current.as_ref(), &answers), chosen, "{current:?} {answers:?}");
        }
    }
}
