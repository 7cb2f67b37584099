//! Which replicas must have a write before it counts as done.
//!
//! Redis acknowledges a write before its replicas have it. If the primary then fails, the write is lost, unless the promoted
//! replica has it. Sentinels and the nodes of a cluster choose that replica by positions that they read some seconds ago, so a
//! confirmation by *some* replica is not enough: another one, which was behind, may be promoted.
//!
//! With `wait_replicas=in-sync`, every replica that could be promoted must confirm: each that was in sync within the last
//! [`REMEMBERED`]. One that fails delays writes by this time, and then they continue without it. One that returns counts
//! from the moment at which it is in sync again.

use std::{collections::HashMap, str::FromStr, time::Duration};

use parking_lot::Mutex;
use redis::{RedisError, from_redis_value, make_extension_error};
use tokio::time::Instant;

use crate::wire::Wire;

/// How long a replica must still confirm writes after it was last in sync. Sentinels read replication
/// positions every ten seconds.
const REMEMBERED: Duration = Duration::from_secs(12);
/// The age at which the list of replicas is read again.
const FRESH: Duration = Duration::from_secs(1);
/// The same age while a replica is missing.
const FRESH_WHILE_MISSING: Duration = Duration::from_millis(100);
/// The maximum silence of a replica that is in sync, in seconds. Replicas report their position every second.
const MAX_SILENCE: u64 = 3;

/// The value of `wait_replicas` in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitReplicas {
    /// At least this many replicas. With 0, writes do not wait.
    AtLeast(u32),
    /// Every replica that could be promoted, but at least one.
    InSync,
}

impl FromStr for WaitReplicas {
    type Err = &'static str;

    fn from_str(value: &str) -> Result<Self, Self::Err> {
        if value == "in-sync" {
            return Ok(Self::InSync);
        }
        value.parse().map(Self::AtLeast).map_err(|_| "wait_replicas must be a number or in-sync")
    }
}

/// The replicas of each primary. A primary is identified by the hash tag of the keys that it writes.
#[derive(Debug, Default)]
pub(crate) struct Replicas(Mutex<HashMap<String, Known>>);

#[derive(Debug)]
struct Known {
    /// A different or restarted primary has a different ID, and its replicas are a new set.
    replication_id: String,
    read: Instant,
    /// When the connection was last replaced because a replica did not confirm.
    renewed: Option<Instant>,
    in_sync: u32,
    /// When each replica was last in sync.
    seen: HashMap<String, Instant>,
}

impl Replicas {
    /// The number of replicas that must confirm the next write of `key`.
    ///
    /// # Errors
    /// If the primary does not answer, or if a replica that must confirm is not in sync. Nothing was written then.
    pub(crate) async fn required(&self, wire: &mut Wire, key: Option<&str>) -> Result<u32, RedisError> {
        let tag = wire.tag(key);
        if self.is_due(tag) {
            let mut question = redis::pipe();
            question.cmd("INFO").arg("replication");
            let answer = wire.together(key, question).await?.pop().unwrap_or(redis::Value::Nil);
            let state: String = from_redis_value(answer.extract_error()?)?;
            self.learn(tag, &state);
        }
        self.count(tag).map_err(|detail| make_extension_error("NOREPLICAS".to_owned(), Some(detail)))
    }

    /// Marks the list to be read again before the next write, because a replica did not confirm. Returns
    /// whether the connection should be replaced: on the current one, the pending calls would wait for the
    /// same replica one after the other.
    pub(crate) fn distrust(&self, tag: &str) -> bool {
        let mut all = self.0.lock();
        let Some(known) = all.get_mut(tag) else { return false };
        known.read = known.read.checked_sub(FRESH).unwrap_or(known.read);
        let recently = known.renewed.is_some_and(|renewed| renewed.elapsed() < FRESH);
        if !recently {
            known.renewed = Some(Instant::now());
        }
        !recently
    }

    /// Forgets the replicas, because another server is the primary.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }

    /// Whether this caller has to read the list. If the list is known, only one of several concurrent callers
    /// does.
    fn is_due(&self, tag: &str) -> bool {
        let mut all = self.0.lock();
        let Some(known) = all.get_mut(tag) else { return true };
        let missing = known.seen.len() > known.in_sync as usize;
        let due = known.read.elapsed() >= if missing { FRESH_WHILE_MISSING } else { FRESH };
        if due {
            known.read = Instant::now();
        }
        due
    }

    /// Processes the answer to `INFO replication`.
    fn learn(&self, tag: &str, state: &str) {
        let now = Instant::now();
        let field = |name: &str| state.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
        let replication_id = field("master_replid:");
        let in_sync: Vec<String> = state.lines().filter_map(in_sync).collect();
        let mut all = self.0.lock();
        let (renewed, mut seen) = match all.remove(tag) {
            Some(known) if known.replication_id == replication_id => (known.renewed, known.seen),
            known => (known.and_then(|known| known.renewed), HashMap::new()),
        };
        seen.retain(|_, last| now.duration_since(*last) < REMEMBERED);
        let count = in_sync.len() as u32;
        seen.extend(in_sync.into_iter().map(|replica| (replica, now)));
        let known =
            Known { replication_id: replication_id.to_owned(), read: now, renewed, in_sync: count, seen };
        all.insert(tag.to_owned(), known);
    }

    fn count(&self, tag: &str) -> Result<u32, String> {
        let all = self.0.lock();
        let (in_sync, required) =
            all.get(tag).map_or((0, 1), |known| (known.in_sync, known.seen.len() as u32));
        let required = required.max(1);
        if in_sync < required {
            return Err(format!("{in_sync} of {required} replicas are in sync"));
        }
        Ok(required)
    }
}

/// The address of a replica in a line such as `slave0:ip=10.0.0.2,port=6404,state=online,offset=123,lag=1`, if it is in sync.
fn in_sync(line: &str) -> Option<String> {
    let (name, state) = line.trim().split_once(':')?;
    name.strip_prefix("slave")?.parse::<u32>().ok()?;
    let field = |name: &str| {
        state
            .split(',')
            .find_map(|part| part.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
    };
    let silence: u64 = field("lag")?.parse().ok()?;
    let online = field("state")? == "online" && silence <= MAX_SILENCE;
    online.then(|| format!("{}:{}", field("ip").unwrap_or(""), field("port").unwrap_or("")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(id: &str, replicas: &[(&str, &str, u64)]) -> String {
        let lines = replicas.iter().enumerate().map(|(index, (ip, state, lag))| {
            format!("slave{index}:ip={ip},port=6404,state={state},offset=1,lag={lag}\r\n")
        });
        format!("role:master\r\nconnected_slaves:9\r\n{}master_replid:{id}\r\n", lines.collect::<String>())
    }

    const A: (&str, &str, u64) = ("a", "online", 0);
    const B: (&str, &str, u64) = ("b", "online", 1);

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_was_in_sync_must_confirm_until_it_is_forgotten() {
        let replicas = Replicas::default();
        assert!(replicas.is_due(""));
        replicas.learn("", &state("1", &[A, B]));
        assert_eq!((replicas.is_due(""), replicas.count("")), (false, Ok(2)));
        for lost in [vec![A], vec![A, ("b", "send_bulk", 0)], vec![A, ("b", "online", MAX_SILENCE + 1)]] {
            replicas.learn("", &state("1", &lost));
            assert_eq!(replicas.count(""), Err("1 of 2 replicas are in sync".to_owned()), "{lost:?}");
        }
        tokio::time::advance(REMEMBERED / 2).await;
        replicas.learn("", &state("1", &[A]));
        assert!(replicas.count("").is_err());
        tokio::time::advance(REMEMBERED / 2).await;
        replicas.learn("", &state("1", &[A]));
        assert_eq!(replicas.count(""), Ok(1));
        replicas.learn("", &state("1", &[A, B]));
        assert_eq!(replicas.count(""), Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn each_primary_has_replicas_of_its_own() {
        let replicas = Replicas::default();
        replicas.learn("{s0}", &state("1", &[A, B]));
        replicas.learn("{s1}", &state("7", &[B]));
        assert_eq!((replicas.count("{s0}"), replicas.count("{s1}")), (Ok(2), Ok(1)));
        // A is promoted.
        replicas.learn("{s0}", &state("2", &[B]));
        assert_eq!(replicas.count("{s0}"), Ok(1));
        // At least one replica must confirm.
        replicas.learn("{s1}", &state("8", &[]));
        assert_eq!(replicas.count("{s1}"), Err("0 of 1 replicas are in sync".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_is_read_again_by_one_caller_each_second() {
        let replicas = Replicas::default();
        replicas.learn("", &state("1", &[A, B]));
        // Several calls fail, and one of them replaces the connection.
        assert_eq!((replicas.distrust(""), replicas.distrust("")), (true, false));
        assert_eq!((replicas.is_due(""), replicas.is_due("")), (true, false));
        tokio::time::advance(FRESH_WHILE_MISSING).await;
        assert!(!replicas.is_due(""));
        replicas.learn("", &state("1", &[A]));
        tokio::time::advance(FRESH_WHILE_MISSING).await;
        assert_eq!((replicas.is_due(""), replicas.is_due("")), (true, false));
    }

    #[test]
    fn a_value_is_a_number_or_in_sync() {
        assert_eq!("in-sync".parse(), Ok(WaitReplicas::InSync));
        assert_eq!("2".parse(), Ok(WaitReplicas::AtLeast(2)));
        assert!("some".parse::<WaitReplicas>().is_err());
    }
}
