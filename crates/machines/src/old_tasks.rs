//! Moves the tasks that earlier versions have stored in one hash of all machines to the hashes of their machines.
//!
//! A process does so before it reads a task for the first time, so that a repeated deletion of a machine finds the
//! first one. Then it checks again every ten seconds, because a pacemaker of an earlier version may still run during an
//! upgrade. Two pacemakers may do it at the same time: a task that the other one has moved stays as it is.

use signalbox_store::Kind;

use crate::{
    Error,
    store::{TaskName, Tasks},
    tasks::{Task, TaskState},
};

impl Tasks {
    /// Moves the tasks of earlier versions, unless this process has done it. Every use of tasks begins with this.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        self.adopted.get_or_try_init(|| self.adopt()).await.map(drop)
    }

    /// Moves the tasks of earlier versions.
    pub(crate) async fn adopt(&self) -> Result<(), Error> {
        let (mut cursor, mut moved) = (0, 0_u64);
        loop {
            let (next, found) = self.old_page(cursor).await?;
            for (field, stored) in found {
                let Some((machine, id)) = field.split_once(' ') else { continue };
                match self.adopt_stored(machine, id, &stored).await {
                    Ok(was_moved) => moved += u64::from(was_moved),
                    // The hash of its machine is damaged. That must not delay others.
                    Err(Error::Store(error)) if error.kind() == Kind::Broken => {
                        tracing::error!(machine, task = id, %error, "task of an earlier version not moved");
                    }
                    Err(error) => return Err(error),
                }
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        if moved > 0 {
            tracing::info!(moved, "tasks of an earlier version moved");
        }
        Ok(())
    }

    async fn adopt_stored(&self, machine: &str, id: &str, stored: &str) -> Result<bool, Error> {
        let Ok(mut task) = serde_json::from_str::<Task>(stored) else {
            // It cannot be read, so nothing works on it.
            let name = TaskName { machine, id, client: "" };
            return Ok(self.adopt_one(name, (stored, stored), false).await?);
        };
        let after = task.stored_json();
        let name = TaskName { machine, id, ..task.name() };
        Ok(self.adopt_one(name, (stored, &after), task.state == TaskState::Running).await?)
    }
}
