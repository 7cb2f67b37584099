//! State machines and their labels.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use signalbox_api::machines::{self as wire, Applied, Apply, Facts, History, LabelPage, Retried, Versions};

pub use signalbox_api::machines::{Changed, Label, Machine, Move, Plan, Simulate, Version};

use crate::{Client, Error, segment, with_query};

/// Maximum number of labels of a page.
const MAX_PAGE: usize = 1_000;

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Machines<'a>(pub(crate) &'a Client);

impl Machines<'_> {
    /// The names of all machines.
    pub async fn list(&self) -> Result<Vec<String>, Error> {
        let names: wire::Machines = self.0.get("/state-machines").await?;
        Ok(names.state_machines.into_iter().map(|machine| machine.name).collect())
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

    /// Applies a plan, and returns the new version. `map` has the new states of labels in removed states.
    ///
    /// # Errors
    /// `unknown_plan`, `definition_changed`, `unmapped_state`, `invalid_map`.
    pub async fn apply(
        &self,
        machine: &str,
        plan: &str,
        map: &BTreeMap<String, String>,
    ) -> Result<u64, Error> {
        let body = json!(Apply { plan: plan.to_owned(), map: map.clone() });
        let applied: Applied = self.0.post(&path(machine, "/apply"), Some(&body)).await?;
        Ok(applied.version)
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
            let limit = (most - all.len()).min(MAX_PAGE).to_string();
            let pairs = [
                ("state", state),
                ("status", status),
                ("cursor", cursor.as_deref()),
                ("limit", Some(limit.as_str())),
            ];
            let page: LabelPage = self.0.get(&with_query(&path(machine, "/labels"), &pairs)).await?;
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

    /// Simulates a label under assumptions.
    ///
    /// # Errors
    /// `unknown_label`, `label_deleted`.
    pub async fn simulate(&self, machine: &str, label: &str, assumed: &Simulate) -> Result<Value, Error> {
        self.0.post(&label_path(machine, label, "/simulate"), Some(&json!(assumed))).await
    }

    /// Updates a label's metadata. It is merged; with `removes`, null removes (RFC 7396). With `wait` (`5s`) the answer
    /// arrives when the label rests.
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
    ) -> Result<Changed, Error> {
        let kind = if removes { "application/merge-patch+json" } else { "application/json" };
        let body = json!(Facts { metadata: metadata.clone() }).to_string().into_bytes();
        let path = with_query(&label_path(machine, label, ""), &[("wait", wait)]);
        self.0.send_bytes("PATCH", &path, Some((kind, body))).await
    }

    /// Creates a label with this metadata; the answer is like that of [`Machines::tell`].
    ///
    /// # Errors
    /// `unknown_machine`, `label_exists`, `label_deleted`, `invalid_metadata`.
    pub async fn create(
        &self,
        machine: &str,
        label: &str,
        metadata: &Value,
        wait: Option<&str>,
    ) -> Result<Changed, Error> {
        let path = with_query(&label_path(machine, label, ""), &[("wait", wait)]);
        self.0.post(&path, Some(&json!(Facts { metadata: metadata.clone() }))).await
    }

    /// Retries the action of an errored label.
    ///
    /// # Errors
    /// `unknown_label`, `label_deleted`; `label_not_errored` if there is nothing to retry.
    pub async fn retry(&self, machine: &str, label: &str) -> Result<(), Error> {
        let _changed: Changed = self.0.post(&label_path(machine, label, "/retry"), None).await?;
        Ok(())
    }

    /// Retries the actions of all errored labels, or of those in `state`, and returns how many.
    ///
    /// # Errors
    /// `unknown_machine`.
    pub async fn retry_all(&self, machine: &str, state: Option<&str>) -> Result<u64, Error> {
        let path = with_query(&path(machine, "/retry"), &[("state", state)]);
        let answer: Retried = self.0.post(&path, None).await?;
        Ok(answer.retried)
    }
}

fn path(machine: &str, rest: &str) -> String {
    format!("/state-machines/{}{rest}", segment(machine))
}

fn label_path(machine: &str, label: &str, rest: &str) -> String {
    format!("/state-machines/{}/labels/{}{rest}", segment(machine), segment(label))
}
