//! Reads of queues that change nothing.

use std::collections::BTreeMap;

use signalbox_store::{Error, FromRedisValue, Value, from_redis_value, keys};

use super::{
    Store,
    pull::{Taken, messages},
};
use crate::numbers::{TenantStatus, since_ms};

scripts! { PEEK: "peek", AUDIT: "audit" }

/// Maximum number of messages that one call shows. It limits how long a call blocks Redis.
const PEEK_PART: usize = 200;

/// The arguments of a command without arguments.
const NONE: &[&str] = &[];

/// The state of a queue that housekeeping needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueState {
    /// The revision of the definition that is in effect for every tenant in this shard.
    pub revision: Option<u64>,
    /// Messages that wait.
    pub waiting: u64,
}

impl Store {
    /// Reads waiting messages: the first of one tenant, or the next of each. The parts are not of one moment.
    pub(crate) async fn peek(
        &self,
        queue: &str,
        tenant: Option<&str>,
        most: usize,
        most_bytes: usize,
    ) -> Result<Vec<Taken>, Error> {
        let (mut shown, mut from, mut bytes) = (Vec::new(), 0, 0);
        while shown.len() < most {
            let part = PEEK_PART.min(most - shown.len());
            let words: Vec<Value> = self
                .call(&PEEK, queue)
                .key(&keys::bus::bus(self.shard.tag()).log())
                .arg(tenant.unwrap_or_default())
                .arg(part)
                .arg(most_bytes.saturating_sub(bytes))
                .arg(from)
                .run(self.redis())
                .await?;
            let mut words = words.into_iter();
            let count: usize = words.next().map(read).unwrap_or_default();
            shown.extend(messages(words));
            if count < part {
                break;
            }
            bytes = shown.iter().map(|taken: &Taken| taken.body.len()).sum();
            from += count;
        }
        Ok(shown)
    }

    /// Suspected violations in the tenants after the name `after`: predicate, tenant, description. Also returns after
    /// which tenant the next part begins; an empty text at the end.
    pub(crate) async fn audit(
        &self,
        queue: &str,
        most: usize,
        after: &str,
    ) -> Result<(String, Vec<(String, String, String)>), Error> {
        let words: Vec<String> = self
            .call(&AUDIT, queue)
            .arg(most)
            .arg(after)
            .arg(self.clock.argument())
            .run(self.redis())
            .await?;
        let finding = |words: &[String]| (words[0].clone(), words[1].clone(), words[2].clone());
        let (next, words) =
            words.split_first().map_or((String::new(), &[][..]), |(next, rest)| (next.clone(), rest));
        Ok((next, words.chunks_exact(3).map(finding).collect()))
    }

    /// The state of a queue for housekeeping.
    pub async fn state(&self, queue: &str) -> Result<QueueState, Error> {
        let mut batch = self.redis().batch();
        batch.add("HGET", &self.keys(queue).settings(), "settled");
        batch.add("HGET", &self.keys(queue).settings(), "ranked");
        batch.add("HGET", &self.keys(queue).count(), "waiting");
        let (revision, ranked, waiting): (Option<u64>, Option<u64>, Option<u64>) = batch.query().await?;
        // The tenants that an older version stored are ranked when the definition is put into effect again.
        Ok(QueueState {
            revision: revision.filter(|_| ranked.is_some()),
            waiting: waiting.unwrap_or_default(),
        })
    }

    /// Statistics of queues in this shard: the script's counters, and the numbers of tenants and of dead letters.
    pub(crate) async fn counts(
        &self,
        queues: &[&str],
    ) -> Result<Vec<(BTreeMap<String, u64>, u64, u64)>, Error> {
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.redis().batch();
        for queue in queues {
            let keys = self.keys(queue);
            batch.add("HGETALL", &keys.count(), NONE);
            batch.add("ZCARD", &keys.tenants(), NONE);
            batch.add("LLEN", &keys.dead(), NONE);
        }
        let mut words: std::vec::IntoIter<Value> = batch.query::<Vec<Value>>().await?.into_iter();
        let mut counts = Vec::with_capacity(queues.len());
        while let (Some(numbers), Some(tenants), Some(dead)) = (words.next(), words.next(), words.next()) {
            counts.push((read(numbers), read(tenants), read(dead)));
        }
        Ok(counts)
    }

    /// The gaps of a queue in their stored form, by tenant.
    pub(crate) async fn gaps(&self, queue: &str) -> Result<BTreeMap<String, String>, Error> {
        self.redis().command("HGETALL").key(&self.keys(queue).gaps()).query().await
    }

    /// Deletes the gaps of a queue.
    pub(crate) async fn forget_gaps(&self, queue: &str) -> Result<(), Error> {
        self.redis().command("UNLINK").key(&self.keys(queue).gaps()).run().await
    }

    /// Names of tenants, sorted, after the name `after`.
    pub(crate) async fn tenants_after(
        &self,
        queue: &str,
        after: &str,
        count: usize,
    ) -> Result<Vec<String>, Error> {
        let first = if after.is_empty() { "-".to_owned() } else { format!("({after}") };
        let key = self.keys(queue).tenants();
        self.redis().command("ZRANGE").key(&key).arg((first, "+", "BYLEX", "LIMIT", 0, count)).query().await
    }

    /// Names of the tenants at the top of the ranking by depth, the deepest first.
    pub(crate) async fn deepest(&self, queue: &str, count: usize) -> Result<Vec<String>, Error> {
        let key = self.keys(queue).depths();
        self.redis().command("ZRANGE").key(&key).arg((0, count.saturating_sub(1), "REV")).query().await
    }

    /// Tenants by name, as far as they are in this shard; one that has no messages here has a weight of 0.
    pub(crate) async fn tenants(&self, queue: &str, tenants: &[String]) -> Result<Vec<TenantStatus>, Error> {
        if tenants.is_empty() {
            return Ok(Vec::new());
        }
        let now_ms = self.now_ms().await?;
        let mut batch = self.redis().batch();
        for tenant in tenants {
            let keys = self.keys(queue);
            batch.add("HMGET", &keys.tenant(tenant), ("weight", "flying", "delayed", "dwell"));
            batch.add("LLEN", &keys.waiting(tenant), NONE);
            batch.add("LINDEX", &keys.waiting(tenant), 0);
        }
        let mut words = batch.query::<Vec<Value>>().await?.into_iter();
        let mut rows = Vec::with_capacity(tenants.len());
        for tenant in tenants {
            let mut next = || words.next().unwrap_or(Value::Nil);
            type Fields = (Option<u32>, Option<u64>, Option<u64>, Option<String>);
            let (weight, flying, delayed, dwell): Fields = read(next());
            let (waiting, oldest): (u64, Option<String>) = (read(next()), read(next()));
            let since_ms = oldest.as_deref().and_then(since_ms);
            rows.push(TenantStatus {
                tenant: tenant.clone(),
                weight: weight.unwrap_or_default(),
                waiting,
                in_flight: flying.unwrap_or_default(),
                delayed: delayed.unwrap_or_default(),
                oldest_age_ms: since_ms.map(|since| now_ms.saturating_sub(since)),
                dwell_ms: dwell.and_then(|dwell| dwell.parse().ok()),
            });
        }
        Ok(rows)
    }
}

/// A value of a reply, or its default if it is of another type.
fn read<T: FromRedisValue + Default>(value: Value) -> T {
    from_redis_value(value).unwrap_or_default()
}
