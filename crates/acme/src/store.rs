//! The state of all names, in the fabric.

use std::time::Duration;

use signalbox_store::{
    self as redis, Fabric, FabricRole, Script, Value, from_redis_value, keys::fabric as key,
};

use crate::record::Record;

static CLAIM: Script<FabricRole> = Script::new("acme/claim", include_str!("scripts/claim.lua"));
static SAVE: Script<FabricRole> = Script::new("acme/save", include_str!("scripts/save.lua"));
static WANT: Script<FabricRole> = Script::new("acme/want", include_str!("scripts/want.lua"));
static UNWANT: Script<FabricRole> = Script::new("acme/unwant", include_str!("scripts/unwant.lua"));
static SPEND: Script<FabricRole> = Script::new("acme/spend", include_str!("scripts/spend.lua"));
static ORDER: Script<FabricRole> = Script::new("acme/order", include_str!("scripts/order.lua"));

/// Maximum number of names in one call.
pub(crate) const CHUNK: usize = 500;

/// The state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The fabric failed, or did not answer.
    #[error("the fabric did not answer")]
    Fabric(#[from] redis::Error),
    /// A stored state is not the expected JSON.
    #[error("the state of a name cannot be read")]
    Record(#[source] serde_json::Error),
    /// A script returned a value that its header does not list.
    #[error("unexpected reply of a script")]
    Reply,
}

/// A name that this pacemaker has claimed.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) name: String,
    pub(crate) fence: u64,
    pub(crate) record: Record,
    /// Whether an operator requested the next step, regardless of the schedule.
    pub(crate) is_requested: bool,
    /// The time of the claim by the fabric's clock, in unix milliseconds.
    pub(crate) now_ms: u64,
}

/// The connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    fabric: Fabric,
    claim: Duration,
    /// Replaces the fabric's clock in tests.
    clock_ms: Option<u64>,
}

/// An order that an owner asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// The name of the owner, whose orders count together.
    pub(crate) owner: &'a str,
    /// Whether the owner may use the whole budget.
    pub(crate) is_whole: bool,
    /// Whether a certificate was obtained for the name before. Uploaded ones do not count.
    pub(crate) is_renewal: bool,
}

/// The pause of a name whose owner has used its share of the orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Milliseconds until the next hour.
    pub(crate) ms: u64,
    /// Whether it is the owner's first name that waits for the next hour.
    pub(crate) is_first: bool,
}

/// A name without automatic HTTPS, and what the caller has read of its host.
#[derive(Debug)]
pub(crate) struct Unwanted {
    pub(crate) name: String,
    pub(crate) has_host: bool,
    /// The revision of the host's policy.
    pub(crate) policy: Option<u64>,
}

impl Store {
    pub(crate) fn new(fabric: Fabric, claim: Duration) -> Self {
        Self { fabric, claim, clock_ms: None }
    }

    fn clock(&self) -> String {
        self.clock_ms.map_or(String::new(), |now| now.to_string())
    }

    /// Claims up to `limit` names whose next step is due.
    pub(crate) async fn claim(&self, limit: usize) -> Result<Vec<Claim>, Error> {
        let reply: Vec<Value> = CLAIM
            .call()
            .key(&key::acme_due())
            .key(&key::acme_names())
            .key(&key::acme_fences())
            .key(&key::acme_fence())
            .arg(limit)
            .arg(self.claim_ms())
            .arg(self.clock())
            .run(&self.fabric)
            .await?;
        let (now_ms, names) = reply.split_first().ok_or(Error::Reply)?;
        let now_ms = from_redis_value(now_ms.clone()).map_err(|_| Error::Reply)?;
        let mut claims = Vec::new();
        for one in names.chunks(4) {
            let one = from_redis_value::<(String, u64, String, bool)>(Value::Array(one.to_vec()));
            let (name, fence, state, is_requested) = one.map_err(|_| Error::Reply)?;
            match serde_json::from_str(&state) {
                Ok(record) => claims.push(Claim { name, fence, record, is_requested, now_ms }),
                // Another version may have written it. The claim expires, and other names are not delayed.
                Err(error) => tracing::error!(name, %error, "state of a name not readable"),
            }
        }
        Ok(claims)
    }

    fn claim_ms(&self) -> u64 {
        u64::try_from(self.claim.as_millis()).unwrap_or(u64::MAX)
    }

    /// Stores the state of a claimed name, with its next step after `pause_ms`. Returns false if the claim has ended.
    pub(crate) async fn save(&self, claim: &Claim, pause_ms: u64) -> Result<bool, Error> {
        let state = serde_json::to_string(&claim.record).map_err(Error::Record)?;
        self.store(&claim.name, claim.fence, &state, pause_ms).await
    }

    /// Stores the state of a claimed name, and keeps the claim.
    pub(crate) async fn keep(&self, claim: &Claim) -> Result<bool, Error> {
        self.save(claim, self.claim_ms()).await
    }

    /// Extends a claim. Returns false if it has ended.
    pub(crate) async fn renew(&self, name: &str, fence: u64) -> Result<bool, Error> {
        self.store(name, fence, "", self.claim_ms()).await
    }

    /// Ends a claim early, so that another pacemaker can continue.
    pub(crate) async fn release(&self, name: &str, fence: u64) -> Result<bool, Error> {
        self.store(name, fence, "", 0).await
    }

    async fn store(&self, name: &str, fence: u64, state: &str, pause_ms: u64) -> Result<bool, Error> {
        let call = SAVE.call().key(&key::acme_due()).key(&key::acme_names()).key(&key::acme_fences());
        let call = call.arg(name).arg(fence).arg(state).arg(pause_ms).arg(self.clock());
        Ok(call.run::<u64>(&self.fabric).await? == 1)
    }

    /// A third of the duration of a claim.
    pub(crate) fn renew_interval(&self) -> Duration {
        self.claim / 3
    }

    /// Adds names. Returns how many are new.
    pub(crate) async fn want(&self, names: &[String], record: &Record) -> Result<u64, Error> {
        self.due_now(names, &serde_json::to_string(record).map_err(Error::Record)?).await
    }

    /// Makes the next step of a name due now. Returns whether the name exists.
    pub(crate) async fn hurry(&self, name: &str) -> Result<bool, Error> {
        Ok(self.due_now(&[name.to_owned()], "").await? == 1)
    }

    async fn due_now(&self, names: &[String], state: &str) -> Result<u64, Error> {
        let mut found = 0;
        for names in names.chunks(CHUNK) {
            let call = WANT.call().key(&key::acme_due()).key(&key::acme_names()).key(&key::acme_index());
            found += call.arg(state).arg(names).run::<u64>(&self.fabric).await?;
        }
        Ok(found)
    }

    /// Removes names that have no automatic HTTPS, each with what decided that. One for which that has changed stays. Returns
    /// those that were removed.
    pub(crate) async fn unwant(&self, names: &[Unwanted]) -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        for names in names.chunks(CHUNK) {
            let call = UNWANT.call().key(&key::acme_due()).key(&key::acme_names());
            let call = call.key(&key::acme_index()).key(&key::acme_fences());
            let mut call = call.key(&key::routes_hosts()).key(&key::routes_policies());
            for Unwanted { name, has_host, policy } in names {
                let policy = policy.map_or_else(String::new, |revision| revision.to_string());
                call = call.arg(name).arg(u8::from(*has_host)).arg(policy);
            }
            removed.extend(call.run::<Vec<String>>(&self.fabric).await?);
        }
        Ok(removed)
    }

    /// Takes one call of the check URL from the budget of the hour. Returns `None` on success, otherwise the milliseconds until one
    /// is available.
    pub(crate) async fn spend(&self, per_hour: u64) -> Result<Option<u64>, Error> {
        let left: u64 = SPEND.call().key(&key::acme_checks()).arg(per_hour).run(&self.fabric).await?;
        Ok(Some(left).filter(|left| *left > 0))
    }

    /// Takes one order from the budget of the hour. Returns `None` on success.
    pub(crate) async fn order(&self, ask: Ask<'_>, per_hour: u64) -> Result<Option<Spent>, Error> {
        let Ask { owner, is_whole, is_renewal } = ask;
        let call = ORDER.call().key(&key::acme_orders()).arg(per_hour).arg(owner);
        let reply: Vec<u64> =
            call.arg(u8::from(is_whole)).arg(u8::from(is_renewal)).run(&self.fabric).await?;
        Ok(match reply.as_slice() {
            [ms, waits] => Some(Spent { ms: *ms, is_first: *waits == 1 }),
            _ => None,
        })
    }

    /// At most `limit` names after `after`, sorted.
    pub(crate) async fn names_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        let from = after.map_or("-".to_owned(), |after| format!("({after}"));
        let command = self.fabric.command("ZRANGEBYLEX").key(&key::acme_index()).arg(from).arg("+");
        Ok(command.arg("LIMIT").arg(0).arg(limit).query().await?)
    }

    /// The states of these names, each with the time of its next step in unix milliseconds. One that cannot be read does not
    /// hide the others.
    pub(crate) async fn records(
        &self,
        names: &[String],
    ) -> Result<Vec<Option<Result<(Record, u64), Error>>>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let states: Vec<Option<String>> =
            self.fabric.command("HMGET").key(&key::acme_names()).arg(names).query().await?;
        let due: Vec<Option<f64>> =
            self.fabric.command("ZMSCORE").key(&key::acme_due()).arg(names).query().await?;
        let read = |(state, due): (Option<String>, Option<f64>)| {
            let record = serde_json::from_str(&state?).map_err(Error::Record);
            Some(record.map(|record| (record, due.unwrap_or(0.0) as u64)))
        };
        Ok(states.into_iter().zip(due).map(read).collect())
    }

    /// The revision of the route table's desired state, which rises with each change of a host.
    pub(crate) async fn revision(&self) -> Result<u64, Error> {
        let revision: Option<u64> = self.fabric.command("GET").key(&key::routes_revision()).query().await?;
        Ok(revision.unwrap_or(0))
    }

    /// The encrypted account at an ACME directory.
    pub(crate) async fn account(&self, directory: &str) -> Result<Option<String>, Error> {
        Ok(self.fabric.command("HGET").key(&key::acme_accounts()).arg(directory).query().await?)
    }

    /// Stores the account at an ACME directory, unless one is stored already.
    pub(crate) async fn keep_account(&self, directory: &str, sealed: &str) -> Result<bool, Error> {
        let command = self.fabric.command("HSETNX").key(&key::acme_accounts());
        Ok(command.arg(directory).arg(sealed).query::<u64>().await? == 1)
    }

    /// Replaces the account at an ACME directory.
    pub(crate) async fn replace_account(&self, directory: &str, sealed: &str) -> Result<(), Error> {
        let command = self.fabric.command("HSET").key(&key::acme_accounts());
        Ok(command.arg(directory).arg(sealed).run().await?)
    }

    /// Deletes the account at an ACME directory, which does not know it anymore.
    pub(crate) async fn forget_account(&self, directory: &str) -> Result<(), Error> {
        Ok(self.fabric.command("HDEL").key(&key::acme_accounts()).arg(directory).run().await?)
    }
}

#[cfg(test)]
mod tests {
    use signalbox_testkit::Servers;

    use super::*;

    fn at(servers: &Servers, now_ms: u64) -> Store {
        let mut store = Store::new(servers.fabric(), Duration::from_secs(60));
        store.clock_ms = Some(now_ms);
        store
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn two_pacemakers_never_work_on_the_same_name() {
        let servers = Servers::start().await;
        let all: Vec<String> = (0..200).map(|at| format!("host-{at}.test")).collect();
        at(&servers, 1000).want(&all, &Record::default()).await.unwrap();
        let (one, other) = (at(&servers, 1000), at(&servers, 1000));
        let claim = async |store: Store| {
            let mut claimed = Vec::new();
            loop {
                match store.claim(7).await.unwrap() {
                    some if some.is_empty() => return claimed,
                    some => claimed.extend(some.into_iter().map(|claim| claim.name)),
                }
            }
        };
        let (ours, theirs) = tokio::join!(claim(one), claim(other));
        assert_eq!(ours.len() + theirs.len(), all.len());
        assert!(ours.iter().all(|name| !theirs.contains(name)));
    }

    #[tokio::test]
    async fn a_pacemaker_whose_claim_ended_changes_nothing_anymore() {
        let servers = Servers::start().await;
        at(&servers, 1000).want(&names(&["a.test"]), &Record::default()).await.unwrap();
        let mut slow = at(&servers, 1000).claim(5).await.unwrap().pop().unwrap();
        assert!(at(&servers, 60_999).claim(5).await.unwrap().is_empty());
        assert!(at(&servers, 50_000).renew("a.test", slow.fence).await.unwrap());
        assert!(at(&servers, 61_000).claim(5).await.unwrap().is_empty(), "it was renewed");
        let next = at(&servers, 110_000).claim(5).await.unwrap().pop().unwrap();
        assert!(next.fence > slow.fence);
        slow.record.failures = 9;
        assert!(!at(&servers, 110_001).save(&slow, 0).await.unwrap());
        assert!(!at(&servers, 110_001).renew("a.test", slow.fence).await.unwrap());
        assert!(at(&servers, 110_001).save(&next, 5000).await.unwrap());
        let (record, due) =
            at(&servers, 0).records(&names(&["a.test"])).await.unwrap().pop().unwrap().unwrap().unwrap();
        assert_eq!((record.failures, due), (0, 115_001));
    }

    fn without_host(name: &str) -> Unwanted {
        Unwanted { name: name.to_owned(), has_host: false, policy: None }
    }

    #[tokio::test]
    async fn a_name_that_is_not_wanted_anymore_ends_its_claim() {
        let servers = Servers::start().await;
        let store = at(&servers, 1000);
        assert_eq!(store.want(&names(&["a.test", "b.test"]), &Record::default()).await.unwrap(), 2);
        assert_eq!(store.want(&names(&["a.test"]), &Record::default()).await.unwrap(), 0);
        let claims = store.claim(5).await.unwrap();
        assert_eq!(store.unwant(&[without_host("a.test")]).await.unwrap(), ["a.test"]);
        assert!(!store.save(&claims[0], 0).await.unwrap());
        assert_eq!(store.names_after(None, 5).await.unwrap(), ["b.test"]);
        // After the name is added again, its claim gets a different token from the lost one.
        store.want(&names(&["a.test"]), &Record::default()).await.unwrap();
        assert!(store.claim(5).await.unwrap()[0].fence > claims[1].fence);
        assert!(!store.save(&claims[0], 0).await.unwrap());
    }

    /// The host of a name was changed to automatic HTTPS after the comparison had read it.
    #[tokio::test]
    async fn a_name_is_not_removed_by_hosts_that_were_read_before_a_change() {
        let servers = Servers::start().await;
        let store = at(&servers, 1000);
        store.want(&names(&["a.test"]), &Record::default()).await.unwrap();
        let claim = store.claim(5).await.unwrap().pop().unwrap();
        let set = async |hash, value: &str| {
            let command = store.fabric.command("HSET").key(hash).arg("a.test");
            command.arg(value).run().await.unwrap();
        };
        let (hosts, policies) = (key::routes_hosts(), key::routes_policies());
        let is_removed = async |has_host, policy| {
            let read = Unwanted { name: "a.test".to_owned(), has_host, policy };
            store.unwant(&[read]).await.unwrap() == ["a.test"]
        };
        set(&hosts, "1").await;
        assert!(!is_removed(false, None).await, "a host was added");
        set(&policies, r#"{"revision":7,"tls":"auto"}"#).await;
        assert!(!is_removed(true, None).await, "it got a policy");
        set(&policies, r#"{"revision":8,"tls":"manual"}"#).await;
        assert!(!is_removed(true, Some(7)).await, "its policy was changed");
        assert!(store.save(&claim, 0).await.unwrap(), "its order continues");
        // Changes of other hosts do not matter.
        store.fabric.command("INCR").key(&key::routes_revision()).run().await.unwrap();
        assert!(is_removed(true, Some(8)).await);
        assert!(!store.hurry("a.test").await.unwrap(), "a renewal does not bring it back");
        assert_eq!(store.names_after(None, 5).await.unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn a_state_that_cannot_be_read_hides_no_other() {
        let servers = Servers::start().await;
        let store = at(&servers, 1000);
        let both = names(&["a.test", "b.test"]);
        store.want(&both, &Record::default()).await.unwrap();
        store.fabric.command("HSET").key(&key::acme_names()).arg(("a.test", "{")).run().await.unwrap();
        let found = store.records(&both).await.unwrap();
        assert!(matches!(found[..], [Some(Err(Error::Record(_))), Some(Ok(_))]), "{found:?}");
    }

    #[tokio::test]
    async fn a_fencing_token_is_not_used_again_after_a_failover_that_lost_the_last_writes() {
        let servers = Servers::start().await;
        let store = at(&servers, 1000);
        store.want(&names(&["a.test"]), &Record::default()).await.unwrap();
        let lost = store.claim(5).await.unwrap().pop().unwrap();
        store.fabric.command("DEL").key(&key::acme_fence()).run().await.unwrap();
        let next = at(&servers, 61_000).claim(5).await.unwrap().pop().unwrap();
        assert!(next.fence > lost.fence);
    }

    #[tokio::test]
    async fn a_budget_is_shared_and_limited() {
        let servers = Servers::start().await;
        let (one, other) = (at(&servers, 0), at(&servers, 0));
        assert_eq!(one.spend(2).await.unwrap(), None);
        assert_eq!(other.spend(2).await.unwrap(), None);
        let left = other.spend(2).await.unwrap().unwrap();
        assert!((3_590_000..=3_600_000).contains(&left), "{left}");
        assert_eq!(other.order(of("one"), 2).await.unwrap(), None);
    }

    fn of(owner: &str) -> Ask<'_> {
        Ask { owner, is_whole: false, is_renewal: false }
    }

    #[tokio::test]
    async fn names_of_one_owner_leave_orders_for_others_and_for_renewals() {
        let servers = Servers::start().await;
        let store = at(&servers, 0);
        let orders = async |ask: Ask<'_>| {
            let mut granted = 0;
            loop {
                match store.order(ask, 100).await.unwrap() {
                    None => granted += 1,
                    Some(Spent { ms, is_first }) => {
                        assert!((3_590_000..=3_600_000).contains(&ms), "{ms}");
                        assert!(is_first, "the first one that waits");
                        assert!(!store.order(ask, 100).await.unwrap().unwrap().is_first);
                        return granted;
                    }
                }
            }
        };
        assert_eq!(
            [orders(of("one")).await, orders(of("two")).await, orders(of("three")).await],
            [50, 17, 6]
        );
        // Those of a renewal are others.
        assert_eq!(store.order(Ask { is_renewal: true, ..of("one") }, 100).await.unwrap(), None);
        assert_eq!(orders(Ask { is_renewal: true, ..of("four") }).await, 18);
        assert_eq!(orders(Ask { is_whole: true, is_renewal: true, owner: "root" }).await, 8);
        // A small limit is still one.
        let servers = Servers::start().await;
        let store = at(&servers, 0);
        assert_eq!(store.order(of("one"), 1).await.unwrap(), None);
        assert!(store.order(of("one"), 1).await.unwrap().is_some());
    }
}
