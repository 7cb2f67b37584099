//! The registration of one copy: kept with a lease, drained and removed at its end.
//!
//! While the pacemaker is away, no lease expires, and a copy continues to receive requests. So every call is repeated until it
//! succeeds, except one that the pacemaker rejects.

use std::time::Duration;

use signalbox_client::{
    Client, Error,
    routes::{NewInstance, State},
};
use tokio::{sync::watch, time};

use super::{child::exited, output::Output};

/// The time within which every router must acknowledge a change, before it is asked again.
const WAIT: Duration = Duration::from_secs(15);
/// The pause before a call is repeated.
const PAUSE: Duration = Duration::from_millis(500);
/// Attempts to remove the instance of a process that has ended. Its lease removes it later.
const REMOVALS: usize = 10;

/// A copy in the route table.
#[derive(Debug, Clone)]
pub(super) struct Registration {
    pub(super) client: Client,
    pub(super) output: Output,
    pub(super) id: String,
    pub(super) instance: NewInstance,
    /// The longest time without a heartbeat.
    pub(super) lease: Duration,
}

impl Registration {
    /// Registers the instance, and waits until every router has it. It is on standby if a promotion of its host replaced its
    /// version.
    pub(super) async fn register(&mut self) -> Result<State, Error> {
        let mut reported = false;
        loop {
            match self.client.routes().register(&self.id, &self.instance, Some(WAIT)).await {
                Ok(registered) => return Ok(registered.instance.state),
                // The pacemaker does not check addresses on its own machine. The check before the registration remains.
                Err(error) if error.code() == Some("invalid_health") && self.instance.health.is_some() => {
                    self.instance.health = None;
                }
                Err(error) if error.is_unavailable() => {
                    self.report(&mut reported, "is not registered yet", &error);
                    time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the instance receives requests.
    pub(super) async fn is_active(&self) -> Result<bool, Error> {
        match self.client.routes().instance(&self.id).await {
            Ok(instance) => Ok(instance.state == State::Active),
            Err(error) if error.code() == Some("unknown_instance") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends the instance requests although its version was replaced, and waits until every router has that.
    pub(super) async fn resume(&self) -> Result<(), Error> {
        let mut reported = false;
        loop {
            match self.client.routes().resume(&self.id, Some(WAIT)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_unavailable() => {
                    self.report(&mut reported, "is still on standby", &error);
                    time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Renews the lease until the process ends; then removes the instance.
    pub(super) async fn keep(self, process: watch::Receiver<Option<String>>) {
        tokio::select! {
            () = self.renew() => {}
            _ended = exited(process) => self.remove().await,
        }
    }

    async fn renew(&self) {
        let mut failing = false;
        loop {
            time::sleep(self.lease / 3).await;
            let renewed = match self.client.routes().heartbeat(&self.id).await {
                // The table was restored from an older copy, or the lease expired while this machine was cut off.
                Err(error) if error.code() == Some("unknown_instance") => {
                    self.client.routes().register(&self.id, &self.instance, None).await.map(drop)
                }
                other => other.map(drop),
            };
            match renewed {
                Ok(()) if failing => {
                    self.output.say(&format!("{}: the lease is renewed again", self.id));
                    failing = false;
                }
                Ok(()) => {}
                Err(error) => self.report(&mut failing, "runs, but its lease cannot be renewed", &error),
            }
        }
    }

    /// Ends new requests, and waits until every router has acknowledged that. It takes as long as it takes.
    pub(super) async fn drain(&self, deadline: Duration) -> Result<(), Error> {
        let mut reported = false;
        loop {
            match self.client.routes().drain(&self.id, Some(deadline), Some(WAIT)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.code() == Some("unknown_instance") => return Ok(()),
                Err(error) if error.is_unavailable() => {
                    self.report(&mut reported, "still receives requests", &error);
                    time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) async fn remove(&self) {
        for _ in 0..REMOVALS {
            match self.client.routes().remove(&self.id, None).await {
                Err(error) if error.is_unavailable() => time::sleep(PAUSE).await,
                Err(error) => return self.output.say(&format!("{} is still registered: {error}", self.id)),
                Ok(()) => return,
            }
        }
    }

    /// Reports a failure once.
    fn report(&self, reported: &mut bool, what: &str, error: &Error) {
        if !std::mem::replace(reported, true) {
            self.output.say(&format!("{} {what}: {error}; retrying", self.id));
        }
    }
}
