//! Instances, hosts and routers: the route table, and changes of it.
//!
//! The answer to a change has the `serial` of the table with it. With `wait`, the answer arrives when every router that
//! reports has the change, or as `not_converged` (504) when the time is over; the change remains in the table.

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_api::routes::{Drain, HostList, InstanceList, Switch};

pub use signalbox_api::routes::{
    Answer, By, ChangedInstance, Choice, Convergence, Explanation, Health, Heartbeat, Host, Instance,
    Liveness, NewInstance, Router, RuledHost, State, SwitchedHost,
};

use crate::{Client, Error, segment, with_query};

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Routes<'a>(pub(crate) &'a Client);

/// Which instances are listed: all that match every given field.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// With this host name.
    pub host: Option<String>,
    /// Of this version type.
    pub version_type: Option<String>,
    /// On this node.
    pub node: Option<String>,
    /// `active` or `draining`.
    pub state: Option<String>,
}

impl Routes<'_> {
    /// All instances that fit, page by page.
    pub async fn instances(&self, filter: &Filter) -> Result<Vec<Instance>, Error> {
        let pairs = [
            ("host", filter.host.as_deref()),
            ("version_type", filter.version_type.as_deref()),
            ("node", filter.node.as_deref()),
            ("state", filter.state.as_deref()),
        ];
        self.0.all("/instances", &pairs, |page: InstanceList| (page.instances, page.next)).await
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
        self.0.put(&waiting(&format!("/instances/{}", segment(id)), wait), &json!(instance)).await
    }

    /// Renews the lease of an instance.
    ///
    /// # Errors
    /// `unknown_instance`: the lease has expired, or the instance was removed. Register it again.
    pub async fn heartbeat(&self, id: &str) -> Result<Heartbeat, Error> {
        self.0.post(&format!("/instances/{}/heartbeat", segment(id)), None).await
    }

    /// Removes an instance immediately. An instance that does not exist is not an error.
    ///
    /// # Errors
    /// As every call; `not_converged` when `wait` is over.
    pub async fn remove(&self, id: &str, wait: Option<Duration>) -> Result<(), Error> {
        self.0.delete(&waiting(&format!("/instances/{}", segment(id)), wait)).await
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
        let body = json!(Drain { deadline_seconds: deadline.map(seconds) });
        self.0.post(&waiting(&format!("/instances/{}/drain", segment(id)), wait), Some(&body)).await
    }

    /// Sends a draining instance requests again.
    ///
    /// # Errors
    /// `unknown_instance`.
    pub async fn resume(&self, id: &str, wait: Option<Duration>) -> Result<ChangedInstance, Error> {
        self.0.delete(&waiting(&format!("/instances/{}/drain", segment(id)), wait)).await
    }

    /// All host names in the table.
    pub async fn hosts(&self) -> Result<Vec<Host>, Error> {
        self.0.all("/hosts", &[], |page: HostList| (page.hosts, page.next)).await
    }

    /// One host name.
    ///
    /// # Errors
    /// `unknown_host`.
    pub async fn host(&self, hostname: &str) -> Result<Host, Error> {
        self.0.get(&format!("/hosts/{}", segment(hostname))).await
    }

    /// Sends all requests of a host to a version type, and drains the instances of others.
    ///
    /// # Errors
    /// `no_instance_of_version`, `version_unhealthy`, `version_incomplete`; `not_converged` when `wait` is over.
    pub async fn switch(
        &self,
        hostname: &str,
        version_type: &str,
        drain: Option<Duration>,
        wait: Option<Duration>,
    ) -> Result<SwitchedHost, Error> {
        let body = Switch { version_type_id: version_type.to_owned(), deadline_seconds: drain.map(seconds) };
        let path = waiting(&format!("/hosts/{}/current", segment(hostname)), wait);
        self.0.post(&path, Some(&json!(body))).await
    }

    /// Replaces the rules for paths of a host. `paths` is an array as in the policy of a host.
    ///
    /// # Errors
    /// `invalid_policy`, `host_not_allowed`; `not_converged` when `wait` is over.
    pub async fn set_paths(
        &self,
        hostname: &str,
        paths: &Value,
        wait: Option<Duration>,
    ) -> Result<RuledHost, Error> {
        let path = waiting(&format!("/hosts/{}/paths", segment(hostname)), wait);
        self.0.put(&path, &json!({"paths": paths})).await
    }

    /// Removes the rules for paths of a host.
    pub async fn remove_paths(&self, hostname: &str, wait: Option<Duration>) -> Result<(), Error> {
        self.0.delete(&waiting(&format!("/hosts/{}/paths", segment(hostname)), wait)).await
    }

    /// Pauses a host: its requests wait, for at most `longest` each.
    ///
    /// # Errors
    /// `invalid_policy`; `not_converged` when `wait` is over.
    pub async fn pause(
        &self,
        hostname: &str,
        longest: Option<Duration>,
        wait: Option<Duration>,
    ) -> Result<RuledHost, Error> {
        let path = waiting(&format!("/hosts/{}/pause", segment(hostname)), wait);
        let body = match longest {
            Some(longest) => json!({"wait_ms": u64::try_from(longest.as_millis()).unwrap_or(u64::MAX)}),
            None => json!({}),
        };
        self.0.put(&path, &body).await
    }

    /// Resumes a paused host. A host that is not paused is not an error.
    pub async fn resume_host(&self, hostname: &str, wait: Option<Duration>) -> Result<(), Error> {
        self.0.delete(&waiting(&format!("/hosts/{}/pause", segment(hostname)), wait)).await
    }

    /// The routing decision for a host, and for a path below it.
    pub async fn explain(&self, host: &str, path: Option<&str>) -> Result<Explanation, Error> {
        self.0.get(&with_query("/routes/explain", &[("host", Some(host)), ("path", path)])).await
    }

    /// Which routers have the newest table.
    pub async fn convergence(&self) -> Result<Convergence, Error> {
        self.0.get("/routes/convergence").await
    }
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

pub(crate) fn waiting(path: &str, wait: Option<Duration>) -> String {
    let wait = wait.map(|wait| format!("{}ms", wait.as_millis()));
    with_query(path, &[("wait", wait.as_deref())])
}
