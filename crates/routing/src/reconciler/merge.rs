//! Merges the fabric and the table: every instance, policy and certificate.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    CHUNK, PARALLEL, Reconciler,
    judge::{Fix, fix},
};
use crate::{
    Error, Promotion,
    store::{Certificate, Fence, Projected, Resource, TableMark, TableState, member},
};
use signalbox_route_table::{Hostname, InstanceId, Policy, Record};

impl Reconciler {
    /// Goes through every instance of both sides; the later revision wins.
    pub(super) async fn merge(
        &self,
        fabric: &TableState,
        mark: Option<&TableMark>,
        fence: Fence<'_>,
    ) -> Result<(), Error> {
        let mut after: Option<InstanceId> = None;
        loop {
            let ids = self.store().ids_after(after.as_ref().map(InstanceId::as_str), CHUNK).await?;
            let Some(last) = ids.last() else { break };
            after = Some(last.clone());
            self.merge_wanted(&ids, mark, fence).await?;
        }
        let mut cursor = 0;
        loop {
            let (next, keys) = self.store().scan(cursor, "instance:*").await?;
            let ids = keys.iter().filter_map(|key| InstanceId::parse(key.strip_prefix("instance:")?).ok());
            self.merge_standing(&ids.collect::<Vec<_>>(), fabric).await?;
            if next == 0 {
                break;
            }
            cursor = next;
        }
        self.merge_resources::<Policy>(fabric, mark).await?;
        self.merge_resources::<Promotion>(fabric, mark).await?;
        self.merge_resources::<Certificate>(fabric, mark).await
    }

    /// Goes through every resource of one kind on both sides; the later revision wins.
    async fn merge_resources<R: Resource>(
        &self,
        fabric: &TableState,
        mark: Option<&TableMark>,
    ) -> Result<(), Error> {
        let mut cursor = 0;
        loop {
            let (next, wanted) = self.store().scan_wanted::<R>(cursor).await?;
            let names: Vec<&str> = wanted.iter().map(|(name, _)| name.as_str()).collect();
            let projected = self.store().projected::<R>(&names).await?;
            stream::iter(wanted.into_iter().zip(projected))
                .map(|((name, revision), projected)| async move {
                    self.merge_wanted_resource::<R>(&name, revision, &projected, mark).await
                })
                .buffer_unordered(PARALLEL)
                .try_collect::<()>()
                .await?;
            if next == 0 {
                break;
            }
            cursor = next;
        }
        let (pattern, prefix) = (R::table_key("*"), R::table_key(""));
        loop {
            let (next, keys) = self.store().scan(cursor, pattern.as_str()).await?;
            let names: Vec<&str> = keys.iter().filter_map(|key| key.strip_prefix(prefix.as_str())).collect();
            self.merge_projected_resources::<R>(&names, fabric).await?;
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    async fn merge_wanted_resource<R: Resource>(
        &self,
        name: &str,
        revision: u64,
        projected: &Projected,
        mark: Option<&TableMark>,
    ) -> Result<(), Error> {
        match fix(revision, projected.revision, projected.exists()) {
            Fix::Nothing => Ok(()),
            Fix::Project => {
                match self.registry.complete_resource::<R>(&Hostname::parse(name)?, revision, mark).await {
                    // It remains outstanding, and is reported with everything else that is.
                    Err(Error::Blocked { .. }) => {
                        self.store().mark_resource_outstanding::<R>(name, revision).await
                    }
                    completed => completed,
                }
            }
            Fix::Adopt => self.store().adopt_resource::<R>(name, Some(revision), projected).await.map(drop),
        }
    }

    /// Resources that the table has and no client wants. If the revision is later than the fabric's latest, the fabric
    /// lost the change.
    async fn merge_projected_resources<R: Resource>(
        &self,
        names: &[&str],
        fabric: &TableState,
    ) -> Result<(), Error> {
        let projected = self.store().projected::<R>(names).await?;
        let wanted = self.store().wanted_each::<R>(names).await?;
        for ((name, projected), wanted) in names.iter().zip(projected).zip(wanted) {
            if !projected.exists() || wanted.is_some() {
                continue;
            }
            if projected.revision > fabric.revision {
                self.store().adopt_resource::<R>(name, None, &projected).await?;
                continue;
            }
            let removed = self.store().outstanding_of(&member::<R>(name)).await?.is_some()
                || R::REMOVED_WITH_HOST && self.store().outstanding_of(&format!("@{name}")).await?.is_some();
            if !removed {
                self.registry.unwant_resource::<R>(&Hostname::parse(name)?).await?;
            }
        }
        Ok(())
    }

    async fn merge_wanted(
        &self,
        ids: &[InstanceId],
        mark: Option<&TableMark>,
        fence: Fence<'_>,
    ) -> Result<(), Error> {
        let wanted = self.store().stored_many(ids).await?;
        let ids: Vec<InstanceId> = wanted.iter().map(|stored| stored.id.clone()).collect();
        let standing = self.store().standing(&ids).await?;
        let specs: Vec<_> = wanted.iter().map(|stored| &stored.record.desired.spec).collect();
        if let Err(error) = self.store().add_memberships(&specs).await {
            tracing::debug!(%error, "membership sets not updated; will be retried");
        }
        let pairs = wanted.into_iter().zip(standing);
        stream::iter(pairs)
            .map(|(stored, (revision, state, record))| async move {
                let alive = matches!(state.as_deref(), Some("active" | "draining"));
                match fix(stored.record.revision, revision, alive) {
                    Fix::Nothing => Ok(()),
                    Fix::Project => match self.registry.complete_wanted(&stored, mark, fence).await {
                        Err(Error::Blocked { .. }) => self.store().mark_outstanding(&stored).await,
                        completed => completed,
                    },
                    Fix::Adopt => {
                        let record = record.as_deref().filter(|_| alive);
                        self.store().adopt(&stored.id, Some(&stored), record).await.map(drop)
                    }
                }
            })
            .buffer_unordered(PARALLEL)
            .try_collect::<()>()
            .await
    }

    /// Instances that the table has and no client wants. If the revision is later than the fabric's latest, the fabric
    /// lost the change.
    async fn merge_standing(&self, ids: &[InstanceId], fabric: &TableState) -> Result<(), Error> {
        let standing = self.store().standing(ids).await?;
        let wanted = self.store().stored_many(ids).await?;
        for (id, (revision, state, record)) in ids.iter().zip(standing) {
            let alive = matches!(state.as_deref(), Some("active" | "draining"));
            if !alive || wanted.iter().any(|stored| stored.id == *id) {
                continue;
            }
            if revision > fabric.revision {
                if let Some(record) = record.filter(|text| serde_json::from_str::<Record>(text).is_ok()) {
                    self.store().adopt(id, None, Some(&record)).await?;
                }
            } else if self.store().outstanding_of(id.as_str()).await?.is_none() {
                self.registry.unwant(id).await?;
            }
        }
        Ok(())
    }
}
