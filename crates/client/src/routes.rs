//! Instances, hosts and routers: the route table, and changes of it.
//!
//! The answer to a change has the `serial` of the table with it. With `wait`, the answer arrives when every router that
//! reports has the change, or as `not_converged` (504) when the time is over; the change remains in the table.

use std::time::Duration;

use serde::Serialize;

pub use signalbox_api::routes::*;

use crate::{Client, Error, segment, with_query};

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Routes<'a>(pub(crate) &'a Client);

/// Which instances are listed: all that match every given field.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Filter {
    /// With this host name.
    pub host: Option<String>,
    /// Of this version type.
    pub version_type: Option<String>,
    /// On this node.
    pub node: Option<String>,
    /// `active`, `draining` or `standby`.
    pub state: Option<String>,
}

impl Routes<'_> {
    /// All instances that fit, page by page.
    pub async fn instances(&self, filter: &Filter) -> Result<Vec<Instance>, Error> {
        let path = with_query("/instances", filter);
        self.0.list(&path, usize::MAX, |page: InstanceList| (page.instances, page.next)).await
    }

    /// One instance.
    ///
    /// # Errors
    /// `unknown_instance`.
    pub async fn instance(&self, id: &str) -> Result<Instance, Error> {
        self.0.get(&format!("/instances/{}", segment(id))).await
    }

    /// Registers or updates an instance.
    ///
    /// # Errors
    /// As every call; `not_converged` when `wait` is over.
    pub async fn register(
        &self,
        id: &str,
        instance: &NewInstance,
        wait: Option<Duration>,
    ) -> Result<ChangedInstance, Error> {
        self.0.send("PUT", &waiting(&format!("/instances/{}", segment(id)), wait), instance).await
    }

    /// Renews the lease of an instance.
    ///
    /// # Errors
    /// `unknown_instance`: the lease has expired, or the instance was removed. Register it again.
    pub async fn heartbeat(&self, id: &str) -> Result<Heartbeat, Error> {
        self.0.call("POST", &format!("/instances/{}/heartbeat", segment(id)), None).await
    }

    /// Removes an instance immediately. An instance that does not exist is not an error.
    ///
    /// # Errors
    /// As every call; `not_converged` when `wait` is over.
    pub async fn remove(&self, id: &str, wait: Option<Duration>) -> Result<(), Error> {
        self.0.call("DELETE", &waiting(&format!("/instances/{}", segment(id)), wait), None).await
    }

    /// Sends an instance no new requests; after `deadline` it is removed.
    ///
    /// # Errors
    /// `unknown_instance`.
    pub async fn drain(
        &self,
        id: &str,
        deadline: Option<Duration>,
        wait: Option<Duration>,
    ) -> Result<ChangedInstance, Error> {
        let body = Drain { deadline_seconds: deadline.map(seconds) };
        self.0.send("POST", &waiting(&format!("/instances/{}/drain", segment(id)), wait), &body).await
    }

    /// Sends a draining instance requests again.
    ///
    /// # Errors
    /// `unknown_instance`.
    pub async fn resume(&self, id: &str, wait: Option<Duration>) -> Result<ChangedInstance, Error> {
        self.0.call("DELETE", &waiting(&format!("/instances/{}/drain", segment(id)), wait), None).await
    }

    /// All host names in the table.
    pub async fn hosts(&self) -> Result<Vec<Host>, Error> {
        self.0.list("/hosts", usize::MAX, |page: HostList| (page.hosts, page.next)).await
    }

    /// A host, with its policy and its promotion.
    ///
    /// # Errors
    /// `unknown_host`.
    pub async fn host(&self, hostname: &str) -> Result<Host, Error> {
        self.0.get(&format!("/hosts/{}", segment(hostname))).await
    }

    /// Promotes a version type of a host: it gets all requests, and the instances of others drain. Then they are on standby until
    /// the promotion can no longer be undone.
    ///
    /// # Errors
    /// `no_instance_of_version`, `version_unhealthy`, `version_incomplete`; `not_converged` when `wait` is over.
    pub async fn promote(
        &self,
        hostname: &str,
        promote: &Promote,
        wait: Option<Duration>,
    ) -> Result<PromotedHost, Error> {
        let path = waiting(&format!("/hosts/{}/promote", segment(hostname)), wait);
        self.0.send("POST", &path, promote).await
    }

    /// Undoes a promotion: what was served before is served again.
    ///
    /// # Errors
    /// `nothing_to_undo`, and those of [`Self::promote`].
    pub async fn undo_promotion(
        &self,
        hostname: &str,
        undo: &UndoPromotion,
        wait: Option<Duration>,
    ) -> Result<PromotedHost, Error> {
        let path = waiting(&format!("/hosts/{}/promote/undo", segment(hostname)), wait);
        self.0.send("POST", &path, undo).await
    }

    /// Which routers have the newest table.
    pub async fn convergence(&self) -> Result<Convergence, Error> {
        self.0.get("/routes/convergence").await
    }
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// `path` of a change, with the time to wait until every router has it.
#[must_use]
pub fn waiting(path: &str, wait: Option<Duration>) -> String {
    with_query(path, &[("wait", wait.map(|wait| format!("{}ms", wait.as_millis())))])
}
