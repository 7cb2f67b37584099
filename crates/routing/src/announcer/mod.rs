//! Publishes the changes of the route table, as Signalbox's own events.
//!
//! The script that changes the table also writes the change into the list `changes` on the routes primary, under the
//! serial of the change, in one atomic step. This service reads the list, publishes each entry, and stores its place
//! in the fabric. So each change is followed by its event, in the order of the serials, even if pacemakers die in
//! between. The holder of the lease publishes the changes of all pacemakers, so it never has to wait for another
//! pacemaker or declare it dead. It also publishes when certificates expire ([`ends`]), and which routers reject the
//! table ([`alarms`]).
//!
//! ```text
//!  apply, remove_host, fault ─ XADD ─▶ changes ─▶ pass: read ─▶ gaps.rs ─▶ publish under a key ─▶ note the place
//!  publish_lineage ─ DEL, XADD ─▶         ▲                                                            │
//!                                         └────────────── wait until something is added ◀──────────────┘
//! ```
//!
//! A serial without an entry is a gap: an operator changed the table directly, the fabric was unavailable for longer
//! than the list reaches, or the table was seeded again. Then one event requests that the table is read again. Only
//! one page of the list is kept in memory.
//!
//! **Failure.** After a crash between publishing and storing the place, the next holder publishes the same entries
//! under the same keys. The bus remembers keys for ten minutes and recognizes the repetition; after that, the events are
//! duplicates. If the fabric or the bus is unavailable, the place stays unchanged. If the table is being seeded,
//! or is not the one that the fabric expects, nothing is published.

mod alarms;
mod ends;
mod event;
mod gaps;

use std::{future::Future, time::Duration};

use signalbox_store::RoutesPrimary;
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

pub use event::{EventKind, RouteEvent};

use super::{Error, Store, store::Place};
use crate::metrics::Metrics;
use signalbox_lease::Lease;

/// How many changes one pass takes on.
const PAGE: usize = 100;

/// Where events go.
pub trait Announce: Send + Sync + 'static {
    /// Publishes these events of one topic, no two of one object, each once under its key. False when not all of them
    /// were accepted: then the same are brought again later.
    fn announce(&self, topic: &'static str, events: Vec<RouteEvent>) -> impl Future<Output = bool> + Send;
}

/// The service; [`Self::run`] it.
#[derive(Debug)]
pub struct Announcer<A> {
    store: Store,
    lease: Lease,
    to: A,
    interval: Duration,
    metrics: Metrics,
    ends: ends::Ends,
    /// The stored place, as this holder of the lease last read or wrote it.
    place: Option<Place>,
    /// The epoch under which the lease is held; 0 while another pacemaker holds it.
    epoch: u64,
    alarms: alarms::Alarms,
}

/// The state after a pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Everything is published, up to this entry.
    All { entry: String },
    /// There is more.
    Some,
    /// Nothing can be published now.
    NotNow,
}

impl<A: Announce> Announcer<A> {
    /// `interval` is how often changes without a notification, for example direct ones, are checked for. `alarms`
    /// changes when a
    /// router may have another alarm than before.
    pub fn new(
        store: Store,
        lease: Lease,
        to: A,
        interval: Duration,
        alarms: watch::Receiver<()>,
        metrics: Metrics,
    ) -> Self {
        let alarms = alarms::Alarms::new(alarms);
        Self {
            store,
            lease,
            to,
            interval,
            metrics,
            ends: ends::Ends::default(),
            place: None,
            epoch: 0,
            alarms,
        }
    }

    /// Runs until `shutdown`, then releases the lease.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut watcher: Option<RoutesPrimary> = None;
        while shutdown.run_until_cancelled(self.turn(&mut watcher)).await.is_some() {}
        self.lease.release().await;
    }

    async fn turn(&mut self, watcher: &mut Option<RoutesPrimary>) {
        let published = match self.lease.hold().await {
            Ok(Some(epoch)) => {
                self.held(epoch);
                let published = self.pass().await;
                self.check_expiries().await;
                self.check_alarms().await;
                published
            }
            Ok(None) => {
                self.lost();
                Ok(Progress::NotNow)
            }
            Err(error) => {
                tracing::debug!(%error, "fabric unavailable; changes are published later");
                self.place = None;
                Ok(Progress::NotNow)
            }
        };
        let waited = match published {
            Ok(Progress::Some) => return,
            Ok(Progress::NotNow) => Err(None),
            Ok(Progress::All { entry }) => self.wait(watcher, &entry).await.map_err(Some),
            Err(error) => Err(Some(error)),
        };
        if let Err(cause) = waited {
            if let Some(error) = cause {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "changes not published; will be retried"
                );
            }
            time::sleep(self.interval).await;
        }
    }

    /// Until something changes, at most the interval.
    async fn wait(&self, watcher: &mut Option<RoutesPrimary>, entry: &str) -> Result<(), Error> {
        let connection = match watcher.take() {
            Some(connection) => connection,
            None => self.store.watcher()?,
        };
        self.store.await_change(&connection, entry, self.interval).await?;
        *watcher = Some(connection);
        Ok(())
    }

    /// The lease is held under this epoch; a new one means that it was taken over.
    pub(crate) fn held(&mut self, epoch: u64) {
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.place = None;
            self.ends.changed();
            self.alarms.restart();
        }
    }

    /// Another pacemaker holds the lease and announces certificates. This one's knowledge becomes outdated.
    pub(crate) fn lost(&mut self) {
        self.place = None;
        if std::mem::take(&mut self.epoch) != 0 {
            self.metrics.certificates(0, 0, None);
        }
    }

    /// Publishes expiring certificates, when it is time to check.
    pub(crate) async fn check_expiries(&mut self) {
        if let Err(error) = self.ends.check(&self.store, &self.to, &self.metrics).await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "certificate expiries not checked; will be retried"
            );
        }
    }

    /// Publishes which routers reject the table, when that may have changed.
    pub(crate) async fn check_alarms(&mut self) {
        if let Err(error) = self.alarms.check(&self.store, &self.to, &self.metrics).await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "router alarms not checked; will be retried"
            );
        }
    }

    /// Publishes the changes since the stored place.
    pub(crate) async fn pass(&mut self) -> Result<Progress, Error> {
        // Only the holder of the lease writes the place. It is kept again below, unless something failed.
        let before = match self.place.take() {
            Some(place) => place,
            None => self.store.announced().await?,
        };
        let changes = self.store.changes_after(&before, PAGE).await?;
        let complete = changes.entries.len() < PAGE;
        let (news, place) = gaps::find(&before, &changes, complete);
        if place == before {
            self.place = Some(before);
            return Ok(if complete { Progress::All { entry: place.entry } } else { Progress::Some });
        }
        // Read after the list: a seeding changes the table after it was recorded in the fabric.
        let state = self.store.table_state().await?;
        if state.seeding || state.mark().is_none_or(|mark| mark.epoch != changes.epoch) {
            return Ok(Progress::NotNow);
        }
        if !self.publish(&news, &changes.epoch).await {
            return Ok(Progress::NotNow);
        }
        if self.store.announced_up_to(&before, &place).await? {
            for news in &news {
                self.note(news, &place);
            }
            if news.iter().any(gaps::News::concerns_certificates) {
                self.ends.changed();
            }
            self.place = Some(place.clone());
        }
        Ok(if complete { Progress::All { entry: place.entry } } else { Progress::Some })
    }

    /// In order: consecutive events of one topic are published together, unless they are of one object.
    async fn publish(&self, news: &[gaps::News<'_>], epoch: &str) -> bool {
        let mut together: Vec<RouteEvent> = Vec::new();
        let mut topic = "";
        for news in news {
            let Some((next, event)) = event::of(news, epoch) else { continue };
            let fits = next == topic && together.iter().all(|other| other.object != event.object);
            if !fits && !together.is_empty() && !self.to.announce(topic, std::mem::take(&mut together)).await
            {
                return false;
            }
            topic = next;
            together.push(event);
        }
        together.is_empty() || self.to.announce(topic, together).await
    }

    fn note(&self, news: &gaps::News<'_>, place: &Place) {
        self.metrics.announced(news.kind());
        if let gaps::News::Resync { from, to, reason } = news {
            let (reason, published_up_to) = (reason.as_str(), place.serial);
            tracing::info!(from, to, reason, published_up_to, "resync published to subscribers");
        }
    }
}
