//! State machines and their labels.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, Error, More, segment, with_query};

/// Labels of a page at most.
const LARGEST_PAGE: usize = 1_000;

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Machines<'a>(pub(crate) &'a Client);

/// A machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// The active version of its definition.
    pub version: u64,
    /// Labels by state.
    pub labels: BTreeMap<String, u64>,
    /// Labels that do not rest, by status.
    pub busy: BTreeMap<String, u64>,
    /// Labels that will not be evaluated again, by the gate where they wait.
    #[serde(default)]
    pub stuck: BTreeMap<String, u64>,
    /// Everything else: its states.
    #[serde(flatten)]
    pub more: More,
}

/// A label.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Label {
    /// Its name.
    pub name: String,
    /// Its metadata.
    pub metadata: Value,
    /// Where it is.
    pub state: String,
    /// Its status in the state.
    pub status: String,
    /// Since when it is there, RFC 3339.
    pub since: String,
    /// The last error.
    pub error: Option<String>,
    /// Everything else: counters, times.
    #[serde(flatten)]
    pub more: More,
}

/// A version of a machine's definition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Version {
    /// Its number.
    pub version: u64,
    /// When it was applied, RFC 3339.
    pub at: String,
    /// The token that it was applied with.
    pub by: String,
    /// The digest of its definition.
    pub hash: String,
    /// Whether it is the active version.
    pub current: bool,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// A move of a label.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Move {
    /// Entries into states so far.
    pub visit: u64,
    /// When, RFC 3339.
    pub at: String,
    /// Nothing for the first.
    pub from: Option<String>,
    /// Nothing where the label was deleted.
    pub to: Option<String>,
    /// Why.
    pub cause: String,
    /// The trigger that made the gate look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// The version of the definition.
    pub version: u64,
    /// The id of its event.
    pub event: u64,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// The changes that a definition would make.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The token to apply it with.
    pub plan: String,
    /// The version that it is computed from; 0 for a machine that is new.
    pub version: u64,
    /// States `added`, `removed`, `changed`.
    pub states: Value,
    /// The differences other than states: `timezone`, `feeds.NAME`, `inputs.TOPIC`, `webhooks`.
    #[serde(default)]
    pub changed: Vec<String>,
    /// Labels in states that go.
    pub labels: BTreeMap<String, u64>,
    /// Labels that continue as soon as it is applied, because the kind of their state changes.
    #[serde(default)]
    pub starts: u64,
    /// Labels that would move if their gate looked now.
    pub would_move: u64,
    /// Labels whose evaluation needs a feed.
    pub needs_feed: u64,
    /// Labels that were checked.
    pub checked: u64,
    /// Warnings about the definition.
    pub warnings: Vec<String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

#[derive(Deserialize)]
struct Names {
    #[serde(rename = "state-machines")]
    machines: Vec<Named>,
}

#[derive(Deserialize)]
struct Versions {
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct History {
    history: Vec<Move>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Page {
    labels: Vec<Named>,
    pub next: Option<String>,
}

impl Machines<'_> {
    /// The names of all machines.
    ///
    /// # Errors
    /// As every call.
    pub async fn list(&self) -> Result<Vec<String>, Error> {
        let names: Names = self.0.get("/state-machines").await?;
        Ok(names.machines.into_iter().map(|machine| machine.name).collect())
    }

    /// One machine.
    ///
    /// # Errors
    /// `unknown_machine`.
    pub async fn show(&self, machine: &str) -> Result<Machine, Error> {
        self.0.get(&path(machine, "")).await
    }

    /// The changes that a definition (YAML) would make. Nothing changes.
    ///
    /// # Errors
    /// `invalid_definition`.
    pub async fn plan(&self, machine: &str, definition: &str) -> Result<Plan, Error> {
        let body = ("application/yaml", definition.as_bytes().to_vec());
        self.0.send_bytes("POST", &path(machine, "/plan"), Some(body)).await
    }

    /// Activates a planned definition; `map` has the target states for labels of removed states. Returns its version.
    ///
    /// # Errors
    /// `unknown_plan`, `definition_changed`, `unmapped_state`, `invalid_map`.
    pub async fn apply(
        &self,
        machine: &str,
        plan: &str,
        map: &BTreeMap<String, String>,
    ) -> Result<u64, Error> {
        let body = json!({"plan": plan, "map": map});
        let answer: Value = self.0.post(&path(machine, "/apply"), Some(&body)).await?;
        Ok(answer["version"].as_u64().unwrap_or(0))
    }

    /// The versions of a machine's definition, oldest first.
    ///
    /// # Errors
    /// `unknown_machine`.
    pub async fn versions(&self, machine: &str) -> Result<Vec<Version>, Error> {
        let list: Versions = self.0.get(&path(machine, "/versions")).await?;
        Ok(list.versions)
    }

    /// Up to `most` names of labels, by name: those in `state` and with `status`, where these are given.
    ///
    /// # Errors
    /// `unknown_machine`.
    pub async fn labels(
        &self,
        machine: &str,
        state: Option<&str>,
        status: Option<&str>,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        let (mut all, mut cursor) = (Vec::new(), None::<String>);
        while all.len() < most {
            let limit = (most - all.len()).min(LARGEST_PAGE).to_string();
            let pairs = [
                ("state", state),
                ("status", status),
                ("cursor", cursor.as_deref()),
                ("limit", Some(limit.as_str())),
            ];
            let page: Page = self.0.get(&with_query(&path(machine, "/labels"), &pairs)).await?;
            all.extend(page.labels.into_iter().map(|label| label.name));
            match page.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        Ok(all)
    }

    /// One label.
    ///
    /// # Errors
    /// `unknown_label`, `label_deleted`.
    pub async fn label(&self, machine: &str, label: &str) -> Result<Label, Error> {
        self.0.get(&label_path(machine, label, "")).await
    }

    /// The latest moves of a label, oldest first.
    ///
    /// # Errors
    /// `unknown_label`.
    pub async fn history(&self, machine: &str, label: &str) -> Result<Vec<Move>, Error> {
        let list: History = self.0.get(&label_path(machine, label, "/history")).await?;
        Ok(list.history)
    }

    /// Why a label is where it is, and what would move it.
    ///
    /// # Errors
    /// `unknown_label`, `label_deleted`.
    pub async fn why(&self, machine: &str, label: &str) -> Result<Value, Error> {
        self.0.get(&label_path(machine, label, "/why")).await
    }

    /// The result of a simulation under assumptions (`for`, `until`, `metadata`, `feeds`, `webhooks`).
    ///
    /// # Errors
    /// `unknown_label`, `label_deleted`.
    pub async fn simulate(&self, machine: &str, label: &str, assumed: &Value) -> Result<Value, Error> {
        self.0.post(&label_path(machine, label, "/simulate"), Some(assumed)).await
    }

    /// Updates a label's metadata by merging, with `removes` so that null removes a member (RFC 7396). With `wait`
    /// (`5s`) the call returns when the label has settled. Returns
    /// `{"name","state","status","since","visit","revision"}`.
    ///
    /// # Errors
    /// `unknown_machine`, `unknown_label`, `label_deleted`, `invalid_metadata`.
    pub async fn tell(
        &self,
        machine: &str,
        label: &str,
        metadata: &Value,
        removes: bool,
        wait: Option<&str>,
    ) -> Result<Value, Error> {
        let kind = if removes { "application/merge-patch+json" } else { "application/json" };
        let body = json!({"metadata": metadata}).to_string().into_bytes();
        let path = with_query(&label_path(machine, label, ""), &[("wait", wait)]);
        self.0.send_bytes("PATCH", &path, Some((kind, body))).await
    }

    /// Creates a label with this metadata; the answer is that of [`Machines::tell`].
    ///
    /// # Errors
    /// `unknown_machine`, `label_exists`, `label_deleted`, `invalid_metadata`.
    pub async fn create(
        &self,
        machine: &str,
        label: &str,
        metadata: &Value,
        wait: Option<&str>,
    ) -> Result<Value, Error> {
        let path = with_query(&label_path(machine, label, ""), &[("wait", wait)]);
        self.0.post(&path, Some(&json!({"metadata": metadata}))).await
    }

    /// Tries the action of an errored label again.
    ///
    /// # Errors
    /// `unknown_label`, `label_deleted`; `label_not_errored` when there is nothing to try again.
    pub async fn retry(&self, machine: &str, label: &str) -> Result<(), Error> {
        let _answer: Value = self.0.post(&label_path(machine, label, "/retry"), None).await?;
        Ok(())
    }

    /// Tries the actions of all errored labels again, or of those in `state`; how many.
    ///
    /// # Errors
    /// `unknown_machine`.
    pub async fn retry_all(&self, machine: &str, state: Option<&str>) -> Result<u64, Error> {
        let path = with_query(&path(machine, "/retry"), &[("state", state)]);
        let answer: Value = self.0.post(&path, None).await?;
        Ok(answer["retried"].as_u64().unwrap_or(0))
    }
}

fn path(machine: &str, rest: &str) -> String {
    format!("/state-machines/{}{rest}", segment(machine))
}

fn label_path(machine: &str, label: &str, rest: &str) -> String {
    format!("/state-machines/{}/labels/{}{rest}", segment(machine), segment(label))
}
