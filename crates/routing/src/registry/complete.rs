//! Completes interrupted changes, for the reconciler and the sweeper.

use super::{Attempts, Registry};
use crate::{
    ChangeKind, Error, Promotion, RouteChange,
    store::{Applied, Certificate, Desire, Fence, Projection, Resource as _, Stored, TableMark},
};
use signalbox_route_table::{Hostname, InstanceId, Policy};

impl Registry {
    /// Projects one outstanding member of the fabric's list. Without a `mark`, any table is written to, which only its
    /// seeding may do.
    pub(crate) async fn complete(
        &self,
        member: &str,
        revision: u64,
        mark: Option<&TableMark>,
        fence: Fence<'_>,
    ) -> Result<(), Error> {
        if let Some(hostname) = member.strip_prefix('@') {
            let hostname = Hostname::parse(hostname)?;
            return self.complete_host_removal(&hostname, revision, mark).await;
        }
        if let Some(hostname) = member.strip_prefix(Policy::SIGN) {
            return self.complete_resource::<Policy>(&Hostname::parse(hostname)?, revision, mark).await;
        }
        if let Some(hostname) = member.strip_prefix(Promotion::SIGN) {
            return self.complete_resource::<Promotion>(&Hostname::parse(hostname)?, revision, mark).await;
        }
        if let Some(name) = member.strip_prefix(Certificate::SIGN) {
            return self.complete_resource::<Certificate>(&Hostname::parse(name)?, revision, mark).await;
        }
        let id = InstanceId::parse(member)?;
        if let Some(stored) = self.store.stored(&id).await? {
            return self.complete_wanted(&stored, mark, fence).await;
        }
        match self.store.apply(&id, Projection::Removed(revision), mark, Some(fence)).await? {
            Applied::Done { serial, .. } | Applied::Same { serial } => {
                self.settled(id.as_str(), revision, serial, mark).await
            }
            other => self.left(id.as_str(), revision, other, mark).await,
        }
    }

    /// Projects one desired instance.
    pub(crate) async fn complete_wanted(
        &self,
        stored: &Stored,
        mark: Option<&TableMark>,
        fence: Fence<'_>,
    ) -> Result<(), Error> {
        let revision = stored.record.revision;
        let projection = Projection::Wanted(&stored.record);
        match self.store.apply(&stored.id, projection, mark, Some(fence)).await? {
            Applied::Done { serial, .. } | Applied::Same { serial } => {
                self.settled(stored.id.as_str(), revision, serial, mark).await
            }
            // Its lease expired in the table, and the process that removed it did not record that in the fabric.
            Applied::Gone { .. } => self.remove_exactly(stored, ended(stored, u64::MAX)).await.map(drop),
            other => self.left(stored.id.as_str(), revision, other, mark).await,
        }
    }

    async fn complete_host_removal(
        &self,
        hostname: &Hostname,
        revision: u64,
        mark: Option<&TableMark>,
    ) -> Result<(), Error> {
        match mark {
            Some(mark) => {
                let mut attempts = Attempts::new();
                attempts.recorded = true;
                self.project_host_removal(hostname, revision, mark.clone(), &mut attempts).await.map(drop)
            }
            // A table that is being seeded holds nothing of a forgotten host but what an operator made.
            None => {
                self.store.remove_host(hostname, revision, None).await?;
                self.settled(&format!("@{hostname}"), revision, 0, mark).await
            }
        }
    }

    pub(super) async fn settled(
        &self,
        member: &str,
        revision: u64,
        serial: u64,
        mark: Option<&TableMark>,
    ) -> Result<(), Error> {
        let epoch = mark.map_or("", |mark| mark.epoch.as_str());
        self.store.settle(member, revision, serial, epoch).await.map(drop)
    }

    async fn left(
        &self,
        member: &str,
        revision: u64,
        applied: Applied,
        mark: Option<&TableMark>,
    ) -> Result<(), Error> {
        match applied {
            // A later change was projected in the meantime, and is settled by its own projection.
            Applied::Stale { .. } | Applied::Superseded { .. } => {
                self.settled(member, revision, 0, mark).await
            }
            other => Err(Error::Reply { script: "apply", reply: format!("{other:?}") }),
        }
    }

    /// Records the removal of an instance that the table has and no client wants, so that it will be projected.
    pub(crate) async fn unwant(&self, id: &InstanceId) -> Result<(), Error> {
        let desire =
            Desire { id, before: None, after: None, owner: None, registrant: None, promotions: None };
        self.store.desire(desire).await.map(drop)
    }

    /// Takes an instance out if its lease, its drain or its time on standby has ended: on the table first, where heartbeats
    /// arrive, then in the fabric. An instance that a promotion replaced is on standby after its drain. Nothing when it has not
    /// ended after all.
    pub(crate) async fn expire(
        &self,
        id: &InstanceId,
        mark: &TableMark,
        fence: Fence<'_>,
        now_ms: u64,
    ) -> Result<Option<RouteChange>, Error> {
        let Some(stored) = self.store.stored(id).await? else {
            self.unwant(id).await?;
            return Ok(None);
        };
        let desired = &stored.record.desired;
        if let Some(after) = desired.after_drain().filter(|_| desired.ends_ms() <= Some(now_ms)) {
            return self.stand_by(&stored, &after).await;
        }
        // From here to the end the reconciler would find the place, should this process die.
        self.store.mark_outstanding(&stored).await?;
        let applied =
            self.store.apply(id, Projection::Expired(&stored.record), Some(mark), Some(fence)).await;
        match applied.map_err(Error::after_recording)? {
            Applied::Done { serial, .. } => {
                let kind = ended(&stored, now_ms);
                let removed = self.remove_exactly(&stored, kind).await?;
                // If it was registered again in the meantime, nothing has expired.
                Ok(removed.map(|change| RouteChange { serial: serial.max(change.serial), ..change }))
            }
            Applied::Early | Applied::Same { .. } | Applied::Stale { .. } => {
                self.settled(id.as_str(), stored.record.revision, 0, Some(mark)).await?;
                Ok(None)
            }
            other => Err(Error::Reply { script: "apply", reply: format!("{other:?}") }),
        }
    }
}

fn ended(stored: &Stored, now_ms: u64) -> ChangeKind {
    let desired = &stored.record.desired;
    let drained = desired.ends_ms().is_some_and(|ends_ms| ends_ms <= now_ms);
    if drained { ChangeKind::DrainEnded } else { ChangeKind::LeaseEnded }
}
