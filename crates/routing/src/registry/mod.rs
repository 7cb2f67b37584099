//! Changes to the route table, from the request of a client to its response.
//!
//! Every operation has the same shape: read, decide here, commit in the fabric by compare-and-set, project to the
//! table. A commit that lost against another one reads again. While the table is being reconciled, an operation waits for a limited time.

mod complete;
mod hosts;
mod instances;
mod policies;
mod project;
mod promote;
mod resources;

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::{Error, HostTable, Store, Stored, host_state};
use crate::metrics::Metrics;
use signalbox_access::Caller;
use signalbox_route_table::{
    AddressRules, Explanation, Hostname, InstanceId, Leads, Question, Record, RequestPath, candidates,
    explain, leads_to,
};

pub use policies::AlteredPolicy;
pub use promote::{NotPromoted, PromotionTimes};
pub use resources::ResourceChange;

/// How long a request waits for a reconciliation that it needs. One takes milliseconds unless the table is large, and
/// then the client is better off asking again.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of times that a request loses its compare-and-set. Another request succeeded in each of those
/// rounds.
const ROUNDS: usize = 100;

/// The handle to the route table. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Registry {
    store: Store,
    rules: Arc<AddressRules>,
    nudge: Arc<Notify>,
    metrics: Metrics,
    limits_per_token: Limits,
}

/// What one token may register. 0: no limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Instances at the same time.
    pub instances: u64,
    /// New host names and version types within a day.
    pub names: u64,
}

impl Registry {
    /// `nudge` wakes the reconciler.
    pub fn new(store: Store, rules: AddressRules, nudge: Arc<Notify>, metrics: Metrics) -> Self {
        Self { store, rules: Arc::new(rules), nudge, metrics, limits_per_token: Limits::default() }
    }

    /// Limits what one token registers. Root has no limit.
    #[must_use]
    pub fn with_limits_per_token(self, limits_per_token: Limits) -> Self {
        Self { limits_per_token, ..self }
    }

    /// The metrics of the route table.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The Redis access of the route table, for reading.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The addresses that instances may have.
    pub fn rules(&self) -> &AddressRules {
        &self.rules
    }

    /// Why the edge answers as it does for `host`, which is as [`signalbox_route_table::host_of`] gives it, and
    /// what the request gets that `question` is about. With `path`, for a request with this path.
    pub async fn explain(
        &self,
        caller: &Caller,
        host: String,
        path: Option<&RequestPath>,
        question: Question<'_>,
    ) -> Result<Explanation, Error> {
        let (asked, leads) = self.explain_host(caller, host, path, question).await?;
        let Some(leads) = leads else { return Ok(asked) };
        let service = match leads.service.clone() {
            Some(service) => Some(self.explain_host(caller, service, None, question).await?.0),
            None => None,
        };
        Ok(leads.explanation(asked, service))
    }

    /// An instance that the caller names.
    ///
    /// # Errors
    /// [`Error::NoInstance`], also if it serves none of the caller's hosts; [`Error::InstanceNotAllowed`] if it also serves others.
    pub async fn instance(&self, caller: &Caller, id: &InstanceId) -> Result<Stored, Error> {
        let stored = self.store.stored(id).await?.ok_or_else(|| Error::NoInstance(id.clone()))?;
        check_named(caller, id, &stored.record)?;
        Ok(stored)
    }

    async fn explain_host(
        &self,
        caller: &Caller,
        host: String,
        path: Option<&RequestPath>,
        question: Question<'_>,
    ) -> Result<(Explanation, Option<Leads>), Error> {
        let candidates = candidates(&host);
        let records = self.store.table_hosts(&candidates).await?;
        let matched = records.iter().find(|record| record.exists());
        let owners = match matched {
            Some(record) => self.store.owners(&record.addresses).await?,
            None => HashMap::new(),
        };
        let (_, serial, _) = self.store.table_head().await?;
        let now_ms = self.store.table_now_ms().await?;
        let leads = path.map(|path| leads_to(&records, path, question));
        let state = match matched {
            Some(record) => {
                let may_see = |id: &str| caller.may_count_as(id);
                self.store.host_states(vec![HostTable::new(record)], may_see).await?.pop()
            }
            None => None,
        };
        let mut explanation = explain(host, candidates, &records, &owners, question, (serial, now_ms));
        explanation.state = state.map(host_state);
        Ok((explanation, leads))
    }
}

/// How often and how long one operation may try.
#[derive(Debug)]
struct Attempts {
    rounds: usize,
    until: Instant,
    /// Whether the fabric has the change already.
    recorded: bool,
}

impl Attempts {
    fn new() -> Self {
        Self { rounds: ROUNDS, until: Instant::now() + PATIENCE, recorded: false }
    }

    /// After a lost compare-and-set.
    fn lost(&mut self) -> Result<(), Error> {
        self.rounds -= 1;
        if self.rounds == 0 { Err(Error::Contended) } else { Ok(()) }
    }

    /// When nothing can be done before a reconciliation: wakes the reconciler and waits a moment.
    async fn await_reconciliation(&mut self, nudge: &Notify) -> Result<(), Error> {
        if Instant::now() >= self.until {
            return Err(Error::Resyncing { recorded: self.recorded });
        }
        nudge.notify_one();
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

fn check_names(caller: &Caller, hostnames: &[Hostname]) -> Result<(), Error> {
    match hostnames.iter().find(|hostname| !caller.may_touch(hostname)) {
        Some(hostname) => Err(Error::HostNotAllowed { hostname: hostname.to_string() }),
        None => Ok(()),
    }
}

/// As [`check_record`], for a caller who names the instance. One that serves none of the caller's hosts is answered like one that
/// does not exist: whether an ID is in use is not for other tenants.
fn check_named(caller: &Caller, id: &InstanceId, record: &Record) -> Result<(), Error> {
    let hostnames = &record.desired.spec.hostnames;
    if !caller.is_unconfined() && !hostnames.iter().any(|hostname| caller.may_touch(hostname)) {
        return Err(Error::NoInstance(id.clone()));
    }
    check_record(caller, record)
}

fn check_record(caller: &Caller, record: &Record) -> Result<(), Error> {
    let covered = caller.may_touch_all(&record.desired.spec.hostnames);
    if covered { Ok(()) } else { Err(Error::InstanceNotAllowed) }
}
