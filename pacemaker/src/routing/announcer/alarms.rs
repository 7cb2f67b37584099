//! Tells which routers refuse the route table, and when they believe it again.
//!
//! A sidecar that reports another alarm than before announces it, as it announces serials; [`super::super::Routers`]
//! hears that anyway. So nobody is asked anything while nothing changes: routers are read when one was heard, when the
//! duty was taken over, and when the line to the stats Redis was broken and something may have been missed. What was
//! told is kept in the fabric under a number that rises with each telling and makes the event's key: an event that was
//! published when its teller died before it could note so has the same key the second time.

use std::collections::BTreeMap;

use tokio::sync::watch;

use super::{Announce, event};
use crate::{
    metrics::Metrics,
    routing::{Error, Store},
};

/// What a router reports while it serves an older table instead of the one in Redis (`lua/signalbox/guard.lua`). The
/// sidecar has other alarms, about counting; they are no news of the table.
const REFUSALS: [&str; 2] = ["table_regressed", "epoch_unknown"];
/// What is noted of a router that believes the table.
const NONE: &str = "-";

/// When routers are to be looked at next.
#[derive(Debug)]
pub(super) struct Alarms {
    /// Changes when a router announced an alarm, or may have.
    heard: watch::Receiver<()>,
    epoch: u64,
    due: bool,
}

impl Alarms {
    pub(super) fn new(heard: watch::Receiver<()>) -> Self {
        Self { heard, epoch: 0, due: true }
    }

    /// The duty is held under this epoch; a new one means that it was taken over.
    pub(super) fn held(&mut self, epoch: u64) {
        self.due |= self.epoch != epoch;
        self.epoch = epoch;
    }

    /// The duty is another's.
    pub(super) fn lost(&mut self) {
        self.epoch = 0;
    }

    /// Looks, if there is a reason to. What could not be told is looked at again with the next turn.
    pub(super) async fn look<A: Announce>(
        &mut self,
        store: &Store,
        to: &A,
        metrics: &Metrics,
    ) -> Result<(), Error> {
        // Before the reading: what is announced after it is a reason to look again.
        if self.heard.has_changed().unwrap_or(false) {
            self.heard.borrow_and_update();
            self.due = true;
        }
        if !self.due {
            return Ok(());
        }
        let told = store.told_alarms().await?;
        let mut all = true;
        for router in store.routers(crate::routing::routers::KNOWN_MS).await? {
            let alarm = router.alarm.as_deref().filter(|alarm| REFUSALS.contains(alarm));
            let Some(number) = next(&told, &router.node, alarm.unwrap_or(NONE)) else { continue };
            if !to.announce(event::ROUTERS, vec![event::router(&router.node, alarm, number)]).await {
                all = false;
                continue;
            }
            match alarm {
                Some(alarm) => {
                    tracing::warn!(router = router.node, alarm, "a router refuses the route table");
                }
                None => tracing::info!(router = router.node, "a router believes the route table again"),
            }
            metrics.announced("router_alarm");
            store.told_alarm(&router.node, &format!("{number} {}", alarm.unwrap_or(NONE))).await?;
        }
        self.due = !all;
        Ok(())
    }
}

/// The number under which it is to be told that `node` has this alarm; nothing when that is known. `told` has
/// `<number> <alarm>` of each router that anything was told of.
fn next(told: &BTreeMap<String, String>, node: &str, alarm: &str) -> Option<u64> {
    let (number, before) = told
        .get(node)
        .and_then(|text| text.split_once(' '))
        .map_or((0, NONE), |(number, alarm)| (number.parse().unwrap_or(0), alarm));
    (before != alarm).then_some(number + 1)
}
