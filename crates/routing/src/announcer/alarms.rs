//! Publishes which routers reject the route table or are silent, and when they recover.
//!
//! When the alarm of a sidecar changes, the sidecar announces it in the same way as serials, so
//! [`super::super::Routers`] receives it. A silent router announces nothing, but its last report must be [`LIVE_MS`] old
//! before it counts as silent. So the reports are read at the time when the first router could become silent, which is
//! about every ten seconds. They are also read when an alarm was announced, when the lease was acquired, and when the
//! connection to the stats Redis was interrupted and notifications may have been missed. The published state is stored
//! in the fabric under a number that increases with each event and is part of the event's key. So if a pacemaker dies
//! after publishing and before storing it, the repeated event has the same key.

use std::{collections::BTreeMap, time::Duration};

use tokio::{sync::watch, time::Instant};

use super::{
    Announce,
    event::{self, SILENT},
};
use crate::metrics::Metrics;
use signalbox_api::routes::Liveness;

use crate::{Error, LIVE_MS, Store, liveness, routers::KNOWN_MS, store::RouterReport};

/// The alarms of a router that serves an older table instead of the one in Redis (`lua/signalbox/guard.lua`). The
/// sidecar's other alarms concern counting, not the table.
const REFUSALS: [&str; 2] = signalbox_diagnosis::thresholds::TABLE_ALARMS;
/// The stored alarm of a router that accepts the table.
const NONE: &str = "-";
/// How much longer than [`LIVE_MS`] a router is silent before it is published: after an outage of the stats Redis,
/// every last report is old until the routers have reported once.
const CONFIRM_MS: u64 = signalbox_diagnosis::thresholds::ROUTER_SILENCE_CONFIRMED_MS;
/// How often routers are read while one of them is silent, to detect that it reports again.
const WHILE_SILENT: Duration = Duration::from_secs(1);

/// When routers are checked next.
#[derive(Debug)]
pub(super) struct Alarms {
    /// Changes when a router announced an alarm, or may have.
    heard: watch::Receiver<()>,
    /// `None` means immediately.
    next: Option<Instant>,
    /// Routers that were found silent each time since, with how long they had been the first time.
    suspects: BTreeMap<String, u64>,
}

impl Alarms {
    pub(super) fn new(heard: watch::Receiver<()>) -> Self {
        Self { heard, next: None, suspects: BTreeMap::new() }
    }

    /// The lease was taken over.
    pub(super) fn restart(&mut self) {
        self.next = None;
        self.suspects.clear();
    }

    /// Checks the routers if there is a reason to. An event that could not be published is retried with the next turn.
    pub(super) async fn check<A: Announce>(
        &mut self,
        store: &Store,
        to: &A,
        metrics: &Metrics,
    ) -> Result<(), Error> {
        // Before the reading, so that a later announcement causes another check.
        if self.heard.has_changed().unwrap_or(false) {
            self.heard.borrow_and_update();
            self.next = None;
        }
        if self.next.is_some_and(|next| Instant::now() < next) {
            return Ok(());
        }
        self.next = None;
        let published = store.published_alarms().await?;
        let routers = store.routers(KNOWN_MS).await.inspect_err(|_| self.suspects.clear())?;
        let mut all = true;
        for router in &routers {
            let Some(now) = self.alarm_of(router) else { continue };
            let Some((number, change)) = news(&published, &router.node, now) else { continue };
            let alarm = REFUSALS.into_iter().find(|alarm| *alarm == now);
            if !to.announce(event::ROUTERS, vec![event::router(&router.node, change, alarm, number)]).await {
                all = false;
                continue;
            }
            tracing::info!(router = router.node, change, alarm, "router alarm published");
            metrics.announced("router_alarm");
            store.published_alarm(&router.node, &format!("{number} {now}")).await?;
        }
        self.suspects.retain(|node, _| routers.iter().any(|router| router.node == *node));
        self.next = all.then(|| Instant::now() + pause(&routers));
        Ok(())
    }

    /// An alarm, [`SILENT`] or [`NONE`]; nothing while it is not sure.
    fn alarm_of(&mut self, router: &RouterReport) -> Option<&'static str> {
        if liveness(router.age_ms) == Liveness::Excluded {
            let first = *self.suspects.entry(router.node.clone()).or_insert(router.age_ms);
            return (router.age_ms >= first + CONFIRM_MS).then_some(SILENT);
        }
        self.suspects.remove(&router.node);
        let alarm = REFUSALS.into_iter().find(|alarm| router.alarm.as_deref() == Some(*alarm));
        Some(alarm.unwrap_or(NONE))
    }
}

/// How long nothing can have happened that is not announced.
fn pause(routers: &[RouterReport]) -> Duration {
    let until_silent = |router: &RouterReport| (LIVE_MS + 1).saturating_sub(router.age_ms);
    match routers.iter().map(until_silent).min() {
        Some(0) => WHILE_SILENT,
        Some(soonest) => Duration::from_millis(soonest),
        None => Duration::from_millis(LIVE_MS),
    }
}

/// The number for an event about `node`, and the change compared with the last published one; `None` when there is
/// none. `published` has `<number> <alarm>` of each router with a published event.
fn news(published: &BTreeMap<String, String>, node: &str, now: &str) -> Option<(u64, &'static str)> {
    let (number, before) = published
        .get(node)
        .and_then(|text| text.split_once(' '))
        .map_or((0, NONE), |(number, before)| (number.parse().unwrap_or(0), before));
    let change = match (before, now) {
        (before, now) if before == now => return None,
        (_, SILENT) => SILENT,
        (SILENT, NONE) => "reports",
        (_, NONE) => "accepts",
        _ => "rejects",
    };
    Some((number + 1, change))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_follows_from_the_last_published_alarm() {
        let published = |what: &str| BTreeMap::from([("r".to_owned(), what.to_owned())]);
        for (before, now, expected) in [
            ("4 -", NONE, None),
            ("4 silent", SILENT, None),
            ("4 epoch_unknown", "epoch_unknown", None),
            ("4 -", "epoch_unknown", Some((5, "rejects"))),
            ("4 table_regressed", "epoch_unknown", Some((5, "rejects"))),
            ("4 silent", "epoch_unknown", Some((5, "rejects"))),
            ("4 epoch_unknown", SILENT, Some((5, "silent"))),
            ("4 -", SILENT, Some((5, "silent"))),
            ("4 silent", NONE, Some((5, "reports"))),
            ("4 epoch_unknown", NONE, Some((5, "accepts"))),
        ] {
            assert_eq!(news(&published(before), "r", now), expected, "{before} {now}");
        }
        assert_eq!(news(&published("4 silent"), "another", NONE), None);
        assert_eq!(news(&published("4 silent"), "another", SILENT), Some((1, "silent")));
    }

    #[test]
    fn routers_are_read_when_the_first_can_have_fallen_silent() {
        let router = |age_ms| RouterReport {
            node: "r".to_owned(),
            serial: 1,
            epoch: String::new(),
            age_ms,
            workers: serde_json::Value::Null,
            alarm: None,
            address: None,
            in_flight: std::collections::BTreeMap::new(),
            requested_names: Vec::new(),
            ejected: std::collections::BTreeMap::new(),
        };
        let seconds = |ages: &[u64]| pause(&ages.iter().copied().map(router).collect::<Vec<_>>());
        assert_eq!(seconds(&[]), Duration::from_secs(10));
        assert_eq!(seconds(&[1, 900]), Duration::from_millis(9101));
        assert_eq!(seconds(&[1, 10_000]), Duration::from_millis(1));
        assert_eq!(seconds(&[1, 10_001]), WHILE_SILENT);
    }
}
