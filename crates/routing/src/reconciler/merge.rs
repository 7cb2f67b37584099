//! Going through every instance of both sides.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    CHUNK, PARALLEL, Reconciler,
    judge::{Mend, mend},
};
use crate::{
    Error,
    store::{Certified, Fence, Rule, TableMark, TableState},
};
use signalbox_route_table::{HostPolicy, Hostname, InstanceId, Record};

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
        self.merge_policies(fabric, mark).await?;
        self.merge_certificates(fabric, mark).await
    }

    /// The same for the certificates of server names. There are few of them and they change seldom.
    async fn merge_certificates(&self, fabric: &TableState, mark: Option<&TableMark>) -> Result<(), Error> {
        let mut after: Option<String> = None;
        loop {
            let names = self.store().certificates_after(after.as_deref(), CHUNK).await?;
            let Some(last) = names.last() else { break };
            after = Some(last.clone());
            let wanted = self.store().certificates(&names).await?;
            let standing = self.store().shown(&names).await?;
            for ((name, wanted), shown) in names.iter().zip(wanted).zip(standing) {
                let Some(Certified { revision, .. }) = wanted else { continue };
                match mend(revision, shown.revision, shown.stands()) {
                    Mend::Nothing => {}
                    Mend::Project => {
                        let parsed = Hostname::parse(name)?;
                        match self.registry.complete_certificate(&parsed, revision, mark).await {
                            Err(Error::Blocked { .. }) => {
                                self.store().mark_certificate_outstanding(name, revision).await?;
                            }
                            completed => completed?,
                        }
                    }
                    Mend::Adopt => {
                        self.store().adopt_certificate(name, Some(revision), &shown).await?;
                    }
                }
            }
        }
        let mut cursor = 0;
        loop {
            let (next, keys) = self.store().scan(cursor, "certificate:*").await?;
            let names: Vec<String> =
                keys.iter().filter_map(|key| key.strip_prefix("certificate:").map(str::to_owned)).collect();
            let standing = self.store().shown(&names).await?;
            let wanted = self.store().certificates(&names).await?;
            for ((name, shown), wanted) in names.iter().zip(standing).zip(wanted) {
                if !shown.stands() || wanted.is_some() {
                    continue;
                }
                if shown.revision > fabric.revision {
                    self.store().adopt_certificate(name, None, &shown).await?;
                } else if self.store().outstanding_of(&format!("={name}")).await?.is_none() {
                    self.registry.unwant_certificate(&Hostname::parse(name)?).await?;
                }
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// The same for the policies of hosts.
    async fn merge_policies(&self, fabric: &TableState, mark: Option<&TableMark>) -> Result<(), Error> {
        let mut cursor = 0;
        loop {
            let (next, wanted) = self.store().policies(cursor).await?;
            let names: Vec<String> = wanted.iter().map(|(name, _)| name.clone()).collect();
            let standing = self.store().rules(&names).await?;
            stream::iter(wanted.into_iter().zip(standing))
                .map(|((name, text), rule)| async move { self.merge_policy(&name, &text, rule, mark).await })
                .buffer_unordered(PARALLEL)
                .try_collect::<()>()
                .await?;
            if next == 0 {
                break;
            }
            cursor = next;
        }
        loop {
            let (next, keys) = self.store().scan(cursor, "rules:*").await?;
            let names = keys.iter().filter_map(|key| key.strip_prefix("rules:").map(str::to_owned));
            self.merge_rules(&names.collect::<Vec<_>>(), fabric).await?;
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    async fn merge_policy(
        &self,
        name: &str,
        text: &str,
        rule: Rule,
        mark: Option<&TableMark>,
    ) -> Result<(), Error> {
        let ruled: HostPolicy = serde_json::from_str(text).map_err(Error::Record)?;
        match mend(ruled.revision, rule.revision, rule.stands()) {
            Mend::Nothing => Ok(()),
            Mend::Project => {
                let hostname = Hostname::parse(name)?;
                match self.registry.complete_policy(&hostname, ruled.revision, mark).await {
                    // It stays noted, and is complained of with what else is outstanding.
                    Err(Error::Blocked { .. }) => {
                        self.store().mark_policy_outstanding(&hostname, ruled.revision).await
                    }
                    completed => completed,
                }
            }
            Mend::Adopt => self.store().adopt_policy(name, Some(text), &rule).await.map(drop),
        }
    }

    /// Policies that stand and are not wanted. What is newer than the fabric's latest revision was lost there.
    async fn merge_rules(&self, names: &[String], fabric: &TableState) -> Result<(), Error> {
        let standing = self.store().rules(names).await?;
        let wanted = self.store().policies_wanted(names).await?;
        for ((name, rule), wanted) in names.iter().zip(standing).zip(wanted) {
            if !rule.stands() || wanted {
                continue;
            }
            if rule.revision > fabric.revision {
                self.store().adopt_policy(name, None, &rule).await?;
            } else if self.store().outstanding_of(&format!("%{name}")).await?.is_none()
                && self.store().outstanding_of(&format!("@{name}")).await?.is_none()
            {
                self.registry.unwant_policy(&Hostname::parse(name)?).await?;
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
            tracing::debug!(%error, "membership sets will be filled later");
        }
        let pairs = wanted.into_iter().zip(standing);
        stream::iter(pairs)
            .map(|(stored, (revision, state, record))| async move {
                let alive = matches!(state.as_deref(), Some("active" | "draining"));
                match mend(stored.record.revision, revision, alive) {
                    Mend::Nothing => Ok(()),
                    Mend::Project => match self.registry.complete_wanted(&stored, mark, fence).await {
                        Err(Error::Blocked { .. }) => self.store().mark_outstanding(&stored).await,
                        completed => completed,
                    },
                    Mend::Adopt => {
                        let record = record.as_deref().filter(|_| alive);
                        self.store().adopt(&stored.id, Some(&stored), record).await.map(drop)
                    }
                }
            })
            .buffer_unordered(PARALLEL)
            .try_collect::<()>()
            .await
    }

    /// Instances that stand and are not wanted. What is newer than the fabric's latest revision was lost there.
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
