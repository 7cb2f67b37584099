//! Instances, hosts and routers: the route table and its changes.
//!
//! A change returns the table's `serial` of the change. With `wait` it returns when every reporting router has it, and
//! fails with `not_converged` (504) when the time is over, although the change was applied.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, Error, More, segment, with_query};

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Routes<'a>(pub(crate) &'a Client);

/// Which instances are listed: all that fit everything given.
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

/// An instance to be registered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewInstance {
    /// `host:port`.
    pub address: String,
    /// The host names that it serves.
    pub hostnames: Vec<String>,
    /// The key under which its requests are counted.
    pub version_type_id: String,
    /// Its share of requests, compared with the others (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Seconds without a heartbeat after which it is removed; never when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// The machine that it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// For statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// For statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_id: Option<String>,
    /// For statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// Its health check, as the API has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Value>,
}

impl NewInstance {
    /// One without anything that may be left out.
    pub fn new(
        address: impl Into<String>,
        hostnames: impl IntoIterator<Item = impl Into<String>>,
        version_type_id: impl Into<String>,
    ) -> Self {
        Self {
            address: address.into(),
            hostnames: hostnames.into_iter().map(Into::into).collect(),
            version_type_id: version_type_id.into(),
            weight: None,
            lease_seconds: None,
            node_id: None,
            version_id: None,
            application_id: None,
            workspace_id: None,
            health: None,
        }
    }
}

/// An instance as it is registered, and what the table knows of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Instance {
    /// Its name.
    pub id: String,
    /// `host:port`.
    pub address: String,
    /// The host names that it serves.
    pub hostnames: Vec<String>,
    /// The key under which its requests are counted.
    pub version_type_id: String,
    /// Its share of requests.
    pub weight: u32,
    /// `active` or `draining`.
    pub state: String,
    /// Raised by each change of it.
    pub revision: u64,
    /// Whether this revision is in the table; absent while the routes primary does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed: Option<bool>,
    /// Whether its checks pass; absent without a check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthy: Option<bool>,
    /// The result of the check that made it unhealthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy_because: Option<String>,
    /// When its lease ends, unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_ms: Option<u64>,
    /// Requests under way there; absent where the edge does not count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// An instance after a change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Changed {
    /// The table's serial with this change.
    pub serial: u64,
    /// The table's epoch.
    pub epoch: String,
    /// Whether anything changed.
    pub changed: bool,
    /// The instance.
    #[serde(flatten)]
    pub instance: Instance,
}

/// A host name in the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Host {
    /// The name.
    pub hostname: String,
    /// The addresses that receive its requests.
    pub addresses: Vec<String>,
    /// The instances of the addresses.
    pub instance_ids: Vec<String>,
    /// Whether it was registered, and not written into the table by hand.
    pub registered: bool,
    /// The key under which its requests are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_key: Option<String>,
    /// Everything else: its policy.
    #[serde(flatten)]
    pub more: More,
}

/// Why a host is answered as it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Explanation {
    /// The host that was asked about.
    pub host: String,
    /// `proxied`, `no_instance` or `no_route`.
    pub answer: String,
    /// The name in the table that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<String>,
    /// The key under which it is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_key: Option<String>,
    /// How one of the usable addresses is chosen.
    pub algorithm: String,
    /// Whether health status is ignored because more than half of the instances are unhealthy.
    pub fail_open: bool,
    /// The names that were looked for, most specific first.
    pub candidates: Vec<Candidate>,
    /// The addresses of the name that decides.
    pub instances: Vec<Explained>,
    /// The table's serial.
    pub serial: u64,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// A name that was looked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Candidate {
    /// The name.
    pub name: String,
    /// Whether the table has it.
    pub exists: bool,
    /// How many addresses it has.
    pub instances: u64,
}

/// An address of the name that decides.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Explained {
    /// `host:port`.
    pub address: String,
    /// Its instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether it gets requests.
    pub usable: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// How far the routers are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Convergence {
    /// The table's serial on the master.
    pub serial: u64,
    /// Its epoch.
    pub epoch: String,
    /// Whether all live routers have it.
    pub converged: bool,
    /// Each router that reported in the last minute.
    pub routers: Vec<Router>,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// A router that reported in the last minute.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Router {
    /// Its name.
    pub node: String,
    /// Where its admin listener is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The serial that all its workers have acknowledged.
    pub serial: u64,
    /// The epoch of the table that it follows.
    pub epoch: String,
    /// Changes it has yet to see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_by: Option<u64>,
    /// Milliseconds since its last report.
    pub age_ms: u64,
    /// `live`, `silent` or `excluded`.
    pub state: String,
    /// Why it does not accept the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alarm: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// A page of a list.
#[derive(Deserialize)]
struct Page<T> {
    #[serde(alias = "instances", alias = "hosts")]
    items: Vec<T>,
    pub next: Option<String>,
}

impl Routes<'_> {
    /// All instances that fit, page by page.
    ///
    /// # Errors
    /// As every call.
    pub async fn instances(&self, filter: &Filter) -> Result<Vec<Instance>, Error> {
        let (mut all, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let path = with_query(
                "/instances",
                &[
                    ("host", filter.host.as_deref()),
                    ("version_type", filter.version_type.as_deref()),
                    ("node", filter.node.as_deref()),
                    ("state", filter.state.as_deref()),
                    ("cursor", cursor.as_deref()),
                ],
            );
            let page: Page<Instance> = self.0.get(&path).await?;
            all.extend(page.items);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// One instance.
    ///
    /// # Errors
    /// `unknown_instance` when there is none.
    pub async fn instance(&self, id: &str) -> Result<Instance, Error> {
        self.0.get(&format!("/instances/{}", segment(id))).await
    }

    /// Registers an instance, or changes it.
    ///
    /// # Errors
    /// As every call; `not_converged` when `wait` is over.
    pub async fn register(
        &self,
        id: &str,
        instance: &NewInstance,
        wait: Option<Duration>,
    ) -> Result<Changed, Error> {
        self.0.put(&waiting(&format!("/instances/{}", segment(id)), wait), &json!(instance)).await
    }

    /// Removes an instance immediately; succeeds if it does not exist.
    ///
    /// # Errors
    /// As every call; `not_converged` when `wait` is over.
    pub async fn remove(&self, id: &str, wait: Option<Duration>) -> Result<(), Error> {
        self.0.delete(&waiting(&format!("/instances/{}", segment(id)), wait)).await
    }

    /// Sends an instance no new requests and removes it after `deadline`.
    ///
    /// # Errors
    /// `unknown_instance` when there is none.
    pub async fn drain(
        &self,
        id: &str,
        deadline: Option<Duration>,
        wait: Option<Duration>,
    ) -> Result<Changed, Error> {
        let body = deadline.map_or(json!({}), |deadline| json!({"deadline_seconds": deadline.as_secs()}));
        self.0.post(&waiting(&format!("/instances/{}/drain", segment(id)), wait), Some(&body)).await
    }

    /// Gives a draining instance requests again.
    ///
    /// # Errors
    /// `unknown_instance` when there is none.
    pub async fn resume(&self, id: &str, wait: Option<Duration>) -> Result<Changed, Error> {
        self.0.delete(&waiting(&format!("/instances/{}/drain", segment(id)), wait)).await
    }

    /// All host names in the table.
    ///
    /// # Errors
    /// As every call.
    pub async fn hosts(&self) -> Result<Vec<Host>, Error> {
        let (mut all, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let page: Page<Host> =
                self.0.get(&with_query("/hosts", &[("cursor", cursor.as_deref())])).await?;
            all.extend(page.items);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// One host name.
    ///
    /// # Errors
    /// `unknown_host` when there is none.
    pub async fn host(&self, hostname: &str) -> Result<Host, Error> {
        self.0.get(&format!("/hosts/{}", segment(hostname))).await
    }

    /// Why a host is answered as it is.
    ///
    /// # Errors
    /// As every call.
    pub async fn explain(&self, host: &str) -> Result<Explanation, Error> {
        self.0.get(&with_query("/routes/explain", &[("host", Some(host))])).await
    }

    /// How far the routers are.
    ///
    /// # Errors
    /// As every call.
    pub async fn convergence(&self) -> Result<Convergence, Error> {
        self.0.get("/routes/convergence").await
    }
}

fn waiting(path: &str, wait: Option<Duration>) -> String {
    let wait = wait.map(|wait| format!("{}ms", wait.as_millis()));
    with_query(path, &[("wait", wait.as_deref())])
}
