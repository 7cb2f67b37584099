//! State machines and their labels.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use signalbox_api::machines::{
    self as wire, Activity, Apply, Facts, History, LabelPage, Retried, Tasks, VersionSource, Versions,
};

pub use signalbox_api::machines::{
    ActivityLine, Applied, AssumedAnswer, Changed, EdgeFlow, Flow, Funnel, Label, LabelFilter,
    LabelOperation, LabelRow, Machine, Move, NewTask, Plan, Secret, Simulate, Task, Version,
};

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

    /// How labels flowed through a machine in the last hours; with a funnel from one state to another.
    ///
    /// # Errors
    /// `unknown_machine`, `unknown_state`, `invalid_period`, `invalid_funnel`.
    pub async fn flow(&self, machine: &str, hours: u64, funnel: Option<(&str, &str)>) -> Result<Flow, Error> {
        let hours = hours.to_string();
        let query = [
            ("hours", Some(&*hours)),
            ("from", funnel.map(|(from, _)| from)),
            ("to", funnel.map(|(_, to)| to)),
        ];
        self.0.get(&with_query(&path(machine, "/flow"), &query)).await
    }

    /// The changes that a definition (YAML) would make. Nothing changes.
    ///
    /// # Errors
    /// `invalid_definition`.
    pub async fn plan(&self, machine: &str, definition: &str) -> Result<Plan, Error> {
        let body = ("application/yaml", definition.as_bytes().to_vec());
        self.0.send_bytes("POST", &path(machine, "/plan"), Some(body)).await
    }

    /// Applies a plan. `map` has the new states of labels in removed states.
    ///
    /// # Errors
    /// `unknown_plan`, `definition_changed`, `unmapped_state`, `invalid_map`.
    pub async fn apply(
        &self,
        machine: &str,
        plan: &str,
        map: &BTreeMap<String, String>,
    ) -> Result<Applied, Error> {
        let body = json!(Apply { plan: plan.to_owned(), map: map.clone() });
        self.0.post(&path(machine, "/apply"), Some(&body)).await
    }

    /// The text of a version, as YAML.
    ///
    /// # Errors
    /// `unknown_machine`, `unknown_version`.
    pub async fn source(&self, machine: &str, version: u64) -> Result<String, Error> {
        let source: VersionSource = self.0.get(&path(machine, &format!("/versions/{version}"))).await?;
        Ok(source.source)
    }

    /// Deletes a machine with all of its labels; the task deletes the labels.
    ///
    /// # Errors
    /// `unknown_machine`, `apply_under_way`.
    pub async fn delete(&self, machine: &str) -> Result<Task, Error> {
        let path = with_query(&path(machine, ""), &[("confirm", Some(machine))]);
        self.0.send_bytes("DELETE", &path, None).await
    }

    /// The secrets of a machine, without their values.
    pub async fn secrets(&self, machine: &str) -> Result<Vec<Secret>, Error> {
        let list: wire::Secrets = self.0.get(&path(machine, "/secrets")).await?;
        Ok(list.secrets)
    }

    /// Sets a secret of a machine, which is sent only to addresses that begin with `address`.
    ///
    /// # Errors
    /// `invalid_secret`, `too_many_secrets`, `no_edge_key`.
    pub async fn set_secret(
        &self,
        machine: &str,
        name: &str,
        (value, address): (&str, &str),
    ) -> Result<Secret, Error> {
        let body = json!(wire::NewSecret { value: value.to_owned(), address: address.to_owned() });
        self.0.put(&path(machine, &format!("/secrets/{}", segment(name))), &body).await
    }

    /// Deletes a secret of a machine.
    pub async fn delete_secret(&self, machine: &str, name: &str) -> Result<(), Error> {
        self.0.delete(&path(machine, &format!("/secrets/{}", segment(name)))).await
    }

    /// The tasks of a machine, the newest first.
    ///
    /// # Errors
    /// A failure of the call.
    pub async fn tasks(&self, machine: &str) -> Result<Vec<Task>, Error> {
        let list: Tasks = self.0.get(&path(machine, "/tasks")).await?;
        Ok(list.tasks)
    }

    /// A task.
    ///
    /// # Errors
    /// `unknown_task`.
    pub async fn task(&self, machine: &str, task: &str) -> Result<Task, Error> {
        self.0.get(&path(machine, &format!("/tasks/{}", segment(task)))).await
    }

    /// Ends a task early.
    ///
    /// # Errors
    /// `unknown_task`, `machine_being_deleted`.
    pub async fn cancel_task(&self, machine: &str, task: &str) -> Result<Task, Error> {
        self.0.send_bytes("DELETE", &path(machine, &format!("/tasks/{}", segment(task))), None).await
    }

    /// Starts an operation for all labels that match.
    ///
    /// # Errors
    /// `unknown_machine`, `unknown_state`, `invalid_operation`, `invalid_filter`, `too_many_tasks`.
    pub async fn start_task(&self, machine: &str, task: &NewTask) -> Result<Task, Error> {
        self.0.post(&path(machine, "/tasks"), Some(&json!(task))).await
    }

    /// Applies an operation other than `delete` to a label.
    ///
    /// # Errors
    /// `unknown_label`, `unknown_state`, `label_deleted`, `label_not_errored`, `label_not_acting`.
    pub async fn operate(
        &self,
        machine: &str,
        label: &str,
        operation: &LabelOperation,
    ) -> Result<Changed, Error> {
        self.0.post(&label_path(machine, label, "/operations"), Some(&json!(operation))).await
    }

    /// Deletes a label. A missing label is not an error.
    ///
    /// # Errors
    /// `unknown_machine`.
    pub async fn delete_label(&self, machine: &str, label: &str) -> Result<(), Error> {
        self.0.delete(&label_path(machine, label, "")).await
    }

    /// Up to `most` labels that match, in the order `sort` (`name`, `oldest`, `newest`), and how many match in all.
    ///
    /// # Errors
    /// `unknown_machine`, `unknown_state`, `invalid_filter`, `too_many_labels`.
    pub async fn search(
        &self,
        machine: &str,
        filter: &LabelFilter,
        sort: Option<&str>,
        most: usize,
    ) -> Result<(Vec<LabelRow>, u64), Error> {
        let metadata = (!filter.metadata.is_empty()).then(|| json!(filter.metadata).to_string());
        let suspended = filter.suspended.map(|suspended| suspended.to_string());
        let (mut all, mut cursor, mut total) = (Vec::new(), None::<String>, 0);
        while all.len() < most {
            let limit = (most - all.len()).min(MAX_PAGE).to_string();
            let pairs = [
                ("state", filter.state.as_deref()),
                ("status", filter.status.as_deref()),
                ("suspended", suspended.as_deref()),
                ("error", filter.error.as_deref()),
                ("older_than", filter.older_than.as_deref()),
                ("younger_than", filter.younger_than.as_deref()),
                ("metadata", metadata.as_deref()),
                ("sort", sort),
                ("count", cursor.is_none().then_some("true")),
                ("cursor", cursor.as_deref()),
                ("limit", Some(limit.as_str())),
            ];
            let page: LabelPage = self.0.get(&with_query(&path(machine, "/labels"), &pairs)).await?;
            total = page.total.unwrap_or(total);
            all.extend(page.labels);
            match page.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        Ok((all, total))
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

    /// The newest `max` of everything that is stored about what happened to a label, the newest first.
    ///
    /// # Errors
    /// `unknown_label`.
    pub async fn activity(&self, machine: &str, label: &str, max: usize) -> Result<Vec<ActivityLine>, Error> {
        let (mut found, mut cursor) = (Vec::new(), None::<String>);
        while found.len() < max {
            let limit = MAX_PAGE.min(max - found.len()).to_string();
            let query = [("limit", Some(&*limit)), ("cursor", cursor.as_deref())];
            let page: Activity =
                self.0.get(&with_query(&label_path(machine, label, "/activity"), &query)).await?;
            found.extend(page.activity);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        Ok(found)
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
    pub async fn update(
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

    /// Creates a label with this metadata; the answer is like that of [`Machines::update`].
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
