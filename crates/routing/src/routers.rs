//! The serials that the routers have acknowledged, and waiting for them.
//!
//! Each sidecar writes its router's state to the stats Redis and announces new serials on a channel. One task here
//! keeps a view of it: announcements update it immediately, and while a request waits it is read again regularly,
//! because an announcement may be lost. Waiting costs no Redis command per waiter.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use signalbox_api::routes::Liveness;
use signalbox_store::Notice;
use tokio::{
    sync::{Notify, watch},
    time,
};
use tokio_util::sync::CancellationToken;

use super::{Store, propagation::Propagation, store::RouterReport};

/// A router that reported within this time is live.
pub const LIVE_MS: u64 = signalbox_diagnosis::thresholds::ROUTER_EXCLUDED_MS;
/// A router that has been silent for so long is shown as silent.
const SILENT_MS: u64 = signalbox_diagnosis::thresholds::ROUTER_SILENT_MS;
/// A router that has been silent for longer is forgotten.
pub const KNOWN_MS: u64 = signalbox_diagnosis::thresholds::ROUTER_FORGOTTEN_MS;
/// The suffix of an announcement that is made because of another alarm.
const ALARM: &str = " alarm";
const REFRESH: Duration = Duration::from_millis(500);

/// The routers as last seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// Nothing while the stats Redis does not answer.
    pub(crate) routers: Option<Vec<RouterReport>>,
    /// Rises with every reading, so that a waiter can recognize a reading that is later than its change.
    reading: u64,
}

/// The handle. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Routers {
    view: watch::Sender<View>,
    wanted: Arc<Notify>,
    /// A router may have another alarm than before.
    alarms: watch::Sender<()>,
    propagation: Arc<Mutex<Propagation>>,
}

/// How a wait ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Convergence {
    /// Every live router has it.
    Reached {
        /// The number of live routers.
        routers: usize,
    },
    /// These have not.
    Lagging(Vec<RouterReport>),
    /// No router has reported.
    NoRouter,
    /// The stats Redis does not answer.
    Unknown,
    /// This pacemaker is shutting down.
    ShuttingDown,
}

/// Classifies a router by the age of its last report.
pub fn liveness(age_ms: u64) -> Liveness {
    match age_ms {
        ..SILENT_MS => Liveness::Live,
        // As the range of scores that a wait reads, with its end.
        SILENT_MS..=LIVE_MS => Liveness::Silent,
        _ => Liveness::Excluded,
    }
}

/// Whether a router has acknowledged `serial` of the table `epoch`. Serials of different epochs cannot be compared.
pub fn has_acknowledged(router: &RouterReport, epoch: &str, serial: u64) -> bool {
    router.serial >= serial && router.epoch.split(' ').next().unwrap_or("") == epoch
}

/// Evaluates a view for a serial.
fn assess(view: &View, epoch: &str, serial: u64) -> Convergence {
    let Some(routers) = &view.routers else { return Convergence::Unknown };
    if routers.is_empty() {
        return Convergence::NoRouter;
    }
    let lagging: Vec<_> =
        routers.iter().filter(|router| !has_acknowledged(router, epoch, serial)).cloned().collect();
    if lagging.is_empty() {
        Convergence::Reached { routers: routers.len() }
    } else {
        Convergence::Lagging(lagging)
    }
}

impl Routers {
    fn new(view: View) -> Self {
        Self {
            view: watch::Sender::new(view),
            wanted: Arc::default(),
            alarms: watch::Sender::new(()),
            propagation: Arc::default(),
        }
    }

    /// Starts the task that keeps the view, until `shutdown`.
    pub fn start(store: Store, shutdown: CancellationToken) -> Self {
        let routers = Self::new(View::default());
        tokio::spawn(keep_up(store, routers.clone(), shutdown));
        routers
    }

    /// Changes when a router announced another alarm, or may have done so while disconnected.
    pub fn alarms(&self) -> watch::Receiver<()> {
        self.alarms.subscribe()
    }

    /// Notes that a change of this pacemaker got `serial` this moment.
    pub fn applied(&self, serial: u64) {
        self.propagation().applied(serial, time::Instant::now());
    }

    /// How long changes took to reach a router, as far as it was measured here.
    pub fn percentiles(&self, node: &str) -> Option<signalbox_api::routes::Propagation> {
        self.propagation().percentiles(node)
    }

    fn propagation(&self) -> std::sync::MutexGuard<'_, Propagation> {
        // Measurements cannot be left half-way by a panic in a way that matters.
        self.propagation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every live router has acknowledged `serial`, for at most `patience`.
    pub async fn converged(
        &self,
        epoch: &str,
        serial: u64,
        patience: Duration,
        shutdown: &CancellationToken,
    ) -> Convergence {
        let mut view = self.view.subscribe();
        // The set of live routers must come from a reading after the change, not from one before a router started.
        let reading = view.borrow_and_update().reading;
        self.wanted.notify_one();
        let deadline = time::Instant::now() + patience;
        let mut last = Convergence::Unknown;
        loop {
            tokio::select! {
                changed = view.changed() => if changed.is_err() { return last },
                () = time::sleep_until(deadline) => return last,
                () = shutdown.cancelled() => return Convergence::ShuttingDown,
            }
            let seen = view.borrow_and_update();
            if seen.reading > reading {
                last = assess(&seen, epoch, serial);
            }
            if matches!(last, Convergence::Reached { .. }) {
                return last;
            }
        }
    }

    fn has_waiters(&self) -> bool {
        self.view.receiver_count() > 0
    }

    async fn read(&self, store: &Store) {
        let routers = store.routers(LIVE_MS).await;
        if let Err(error) = &routers {
            tracing::debug!(%error, "router state not read");
        }
        self.view.send_modify(|view| *view = View { routers: routers.ok(), reading: view.reading + 1 });
    }

    /// Moves one router forward by its announcement; false when it is not in the view.
    fn announce(&self, payload: &str) -> bool {
        let payload = match payload.strip_suffix(ALARM) {
            Some(payload) => {
                self.alarms.send_replace(());
                payload
            }
            None => payload,
        };
        let Some((node, serial)) = payload.rsplit_once(' ') else { return true };
        let Ok(serial) = serial.parse::<u64>() else { return true };
        self.propagation().acknowledged(node, serial, time::Instant::now());
        let mut known = false;
        self.view.send_if_modified(|view| {
            let router = view.routers.iter_mut().flatten().find(|router| router.node == node);
            known = router.is_some();
            match router {
                Some(router) if router.serial < serial => {
                    (router.serial, router.age_ms) = (serial, 0);
                    true
                }
                _ => false,
            }
        });
        known
    }
}

async fn keep_up(store: Store, routers: Routers, shutdown: CancellationToken) {
    let mut announcements = store.router_announcements();
    let mut refresh = time::interval(REFRESH);
    refresh.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            notice = announcements.next() => match notice {
                Notice::Message { payload, .. } => {
                    if !routers.announce(&payload) && routers.has_waiters() {
                        routers.read(&store).await;
                    }
                }
                Notice::Resumed => {
                    routers.alarms.send_replace(());
                    routers.read(&store).await;
                }
            },
            () = routers.wanted.notified() => routers.read(&store).await,
            _ = refresh.tick() => if routers.has_waiters() { routers.read(&store).await },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(node: &str, epoch: &str, serial: u64) -> RouterReport {
        RouterReport {
            node: node.to_owned(),
            serial,
            epoch: epoch.to_owned(),
            age_ms: 0,
            workers: serde_json::Value::Null,
            alarm: None,
            address: None,
            in_flight: std::collections::BTreeMap::new(),
            requested_names: Vec::new(),
            ejected: std::collections::BTreeMap::new(),
        }
    }

    fn view(routers: Vec<RouterReport>) -> View {
        View { routers: Some(routers), reading: 1 }
    }

    #[test]
    fn convergence_means_every_live_router_in_the_right_epoch() {
        let all = view(vec![router("a", "e2", 5), router("b", "e2", 7)]);
        assert_eq!(assess(&all, "e2", 5), Convergence::Reached { routers: 2 });
        assert!(matches!(assess(&all, "e2", 6), Convergence::Lagging(lagging) if lagging[0].node == "a"));
        // A router that still follows the table of before may well have a higher serial.
        let old = view(vec![router("a", "e1", 99)]);
        assert!(matches!(assess(&old, "e2", 5), Convergence::Lagging(_)));
        assert_eq!(assess(&view(vec![]), "e2", 5), Convergence::NoRouter);
        assert_eq!(assess(&View::default(), "e2", 5), Convergence::Unknown);
    }

    #[test]
    fn an_announcement_moves_a_known_router_forward_only() {
        let routers = Routers::new(view(vec![router("a", "e", 5)]));
        assert!(routers.announce("a 7"));
        assert!(routers.announce("a 6"));
        assert_eq!(routers.view.borrow().routers.as_ref().unwrap()[0].serial, 7);
        assert!(!routers.announce("b 7"));
        assert!(routers.announce("nonsense"));
    }

    #[test]
    fn an_alarm_is_announced_along_with_the_serial() {
        let routers = Routers::new(view(vec![router("a", "e", 5)]));
        let mut alarms = routers.alarms();
        assert!(routers.announce("a 7"));
        assert!(!alarms.has_changed().unwrap());
        assert!(routers.announce("a 8 alarm"));
        assert!(alarms.has_changed().unwrap());
        alarms.borrow_and_update();
        assert_eq!(routers.view.borrow().routers.as_ref().unwrap()[0].serial, 8);
        assert!(!routers.announce("b 1 alarm"), "one that is not known yet");
        assert!(alarms.has_changed().unwrap());
    }

    #[test]
    fn a_router_is_silent_before_it_is_excluded() {
        let states = [0, 2999, 3000, 10_000, 10_001].map(liveness);
        use Liveness::{Excluded, Live, Silent};
        assert_eq!(states, [Live, Live, Silent, Silent, Excluded]);
    }
}
