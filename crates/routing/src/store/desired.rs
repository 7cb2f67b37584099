//! Desired state of instances and hosts, in the fabric.

use std::collections::{BTreeMap, HashMap};

use signalbox_store::{
    FabricRole, FabricSpace, Key, Script, ToRedisArgs, Value, hash_part, keys::fabric as key,
};

use super::{Store, TableMark, reply::Reply};
use crate::Error;
use signalbox_route_table::{Address, Desired, Hostname, InstanceId, Record};

static DESIRE: Script<FabricRole> = Script::new("routing/desire", include_str!("../scripts/desire.lua"));
static COUNT_NAME: Script<FabricRole> =
    Script::new("routing/count_name", include_str!("../scripts/count_name.lua"));
static PULSE: Script<FabricRole> = Script::new("routing/pulse", include_str!("../scripts/pulse.lua"));
static SETTLE: Script<FabricRole> = Script::new("routing/settle", include_str!("../scripts/settle.lua"));
static REPORT: Script<FabricRole> = Script::new("routing/report", include_str!("../scripts/report.lua"));
static FORGET_HOST: Script<FabricRole> =
    Script::new("routing/forget_host", include_str!("../scripts/forget_host.lua"));
static ADOPT: Script<FabricRole> = Script::new("routing/adopt", include_str!("../scripts/adopt.lua"));
static SET_LINEAGE: Script<FabricRole> =
    Script::new("routing/set_lineage", include_str!("../scripts/set_lineage.lua"));

/// Values that are read by one command, whatever their size. More are read in parts of about a megabyte.
const FEW: usize = 16;

/// A record together with its exact text, which is what a change is compared against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The instance ID.
    pub id: InstanceId,
    /// The parsed record.
    pub record: Record,
    pub(super) text: String,
}

impl Stored {
    fn parse(id: InstanceId, text: String) -> Result<Self, Error> {
        let record = serde_json::from_str(&text).map_err(Error::Record)?;
        Ok(Self { id, record, text })
    }

    /// How many bytes its record has.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// The state that a registration depends on, read in one round trip or two. It may be outdated immediately; the script
/// that commits compares it.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) current: Option<Stored>,
    /// Another instance that owns the wanted address.
    pub(crate) owner: Option<Stored>,
    /// The revision of this instance that is not known to be in the table.
    pub(crate) outstanding: Option<u64>,
    pub(crate) table: Option<TableMark>,
}

/// A change of the desired state of one instance.
#[derive(Debug)]
pub(crate) struct Desire<'a> {
    pub(crate) id: &'a InstanceId,
    pub(crate) before: Option<&'a Stored>,
    /// Nothing removes the instance.
    pub(crate) after: Option<&'a Desired>,
    /// The owner of the new address, who loses it.
    pub(crate) owner: Option<&'a Stored>,
    /// Who registers the instance; `None` if nothing changes about that.
    pub(crate) registrant: Option<&'a Registrant>,
    /// The revisions of the promotions of its hosts, in the order of its names; `None` if its state does not follow from them.
    pub(crate) promotions: Option<Vec<u64>>,
}

/// The token that registers an instance.
#[derive(Debug)]
pub(crate) struct Registrant {
    pub(crate) token: String,
    /// The maximum number of its instances; 0 for no limit.
    pub(crate) max_instances: u64,
    /// The maximum number of new host names and version types that it registers within a day; 0 for no limit.
    pub(crate) max_names: u64,
}

/// The result of a [`Desire`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DesireOutcome {
    Accepted {
        revision: u64,
        table: TableMark,
    },
    /// Another process changed it first; read again.
    Changed,
    /// The fabric is empty or has lost changes; nothing may be written before a reconciliation.
    Behind,
}

/// The fabric's knowledge of the table on the routes primary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableState {
    /// Newest token first; empty when this fabric never had a table.
    pub lineage: String,
    pub(crate) serial: u64,
    /// The newest token is not published on the routes primary yet.
    pub seeding: bool,
    pub(crate) revision: u64,
}

impl TableState {
    pub(crate) fn mark(&self) -> Option<TableMark> {
        mark(&self.lineage, self.serial)
    }
}

/// What the reconciler compares with the table.
#[derive(Debug)]
pub(crate) struct Pulse {
    pub(crate) state: TableState,
    /// Something may not be in the table or in the membership sets yet.
    pub(crate) is_outstanding: bool,
}

fn too_many_names(reply: &Reply, names: u64) -> Error {
    let seconds = reply.at(1).map_or(1, |seconds: i64| u32::try_from(seconds.max(1)).unwrap_or(1));
    Error::TokenNames { names, seconds }
}

fn newest(lineage: &str) -> Option<&str> {
    lineage.split(' ').next().filter(|token| !token.is_empty())
}

/// The mark of the table with this lineage; `None` if it has none.
pub(super) fn mark(lineage: &str, serial: u64) -> Option<TableMark> {
    Some(TableMark { epoch: newest(lineage)?.to_owned(), serial })
}

impl Store {
    /// The desired state of one instance.
    pub async fn stored(&self, id: &InstanceId) -> Result<Option<Stored>, Error> {
        let command = self.fabric.command("HGET").key(&key::routes_instances()).arg(id.as_str());
        let text: Option<String> = command.query().await.map_err(Error::Fabric)?;
        text.map(|text| Stored::parse(id.clone(), text)).transpose()
    }

    /// Many instances, in the order asked for; those that are gone are left out.
    pub async fn stored_many(&self, ids: &[InstanceId]) -> Result<Vec<Stored>, Error> {
        let names: Vec<&str> = ids.iter().map(InstanceId::as_str).collect();
        let texts = self.members(&key::routes_instances(), &names).await?;
        let pairs = ids.iter().zip(texts);
        pairs.filter_map(|(id, text)| text.map(|text| Stored::parse(id.clone(), text))).collect()
    }

    /// Everything that bears on giving `id` the `address`.
    pub(crate) async fn sight(&self, id: &InstanceId, address: &Address) -> Result<Sight, Error> {
        let mut batch = self.fabric.batch();
        batch
            .add("HGET", &key::routes_instances(), id.as_str())
            .add("HGET", &key::routes_addresses(), address.as_str())
            .add("ZSCORE", &key::routes_unprojected(), id.as_str())
            .add("HMGET", &key::routes_table(), &["epoch", "serial"]);
        type Row = (Option<String>, Option<String>, Option<u64>, (Option<String>, Option<u64>));
        let (text, owner, outstanding, (lineage, serial)): Row =
            batch.query().await.map_err(Error::Fabric)?;
        let owner = match owner.filter(|owner| owner != id.as_str()) {
            Some(owner) => self.stored(&InstanceId::parse(&owner)?).await?,
            None => None,
        };
        Ok(Sight {
            current: text.map(|text| Stored::parse(id.clone(), text)).transpose()?,
            owner,
            outstanding,
            table: mark(&lineage.unwrap_or_default(), serial.unwrap_or(0)),
        })
    }

    /// Changes the desired state, if nothing changed since it was read.
    pub(crate) async fn desire(&self, desire: Desire<'_>) -> Result<DesireOutcome, Error> {
        // The script puts the opening brace and the revision before it, so that no JSON need be read there.
        let after =
            desire.after.map(|after| serde_json::to_string(after).map_err(Error::Record)).transpose()?;
        let tail = after.as_deref().map_or("", |json| json.trim_start_matches('{'));
        let spec = desire.after.map(|after| &after.spec);
        let before = desire.before;
        let promotions: Vec<String> = desire.promotions.iter().flatten().map(u64::to_string).collect();
        let promotions = promotions.join(" ");
        let call = DESIRE
            .call()
            .key(&key::routes_instances())
            .key(&key::routes_instances_index())
            .key(&key::routes_addresses())
            .key(&key::routes_hosts())
            .key(&key::routes_hosts_index())
            .key(&key::routes_revision())
            .key(&key::routes_unprojected())
            .key(&key::routes_unreported())
            .key(&key::routes_table())
            .key(&key::routes_registrants())
            .key(&key::routes_registrants_count())
            .key(&key::routes_registrants_names(desire.registrant.map_or("", |registrant| &registrant.token)))
            .key(&key::routes_promotions())
            .key(&key::routes_version_types())
            .arg(desire.id.as_str())
            .arg(before.map_or("", |stored| &stored.text))
            .arg(tail)
            .arg(before.map_or("", |stored| stored.record.desired.spec.address.as_str()))
            .arg(spec.map_or("", |spec| spec.address.as_str()))
            .arg(desire.owner.map_or("", |owner| owner.id.as_str()))
            .arg(desire.owner.map_or("", |owner| &owner.text))
            .arg(self.floor())
            .arg(spec.map_or("", |spec| spec.version_type_id.as_str()))
            .arg(desire.registrant.map_or("", |registrant| &registrant.token))
            .arg(desire.registrant.map_or(0, |registrant| registrant.max_instances))
            .arg(desire.registrant.map_or(0, |registrant| registrant.max_names))
            .arg(promotions)
            .arg(hostnames(spec.map_or(&[], |spec| &spec.hostnames)));
        let reply = self.in_fabric("desire", call).await?;
        match (reply.word()?.as_str(), desire.registrant) {
            ("limited", Some(registrant)) => Err(Error::TokenFull { instances: registrant.max_instances }),
            ("names", Some(registrant)) => Err(too_many_names(&reply, registrant.max_names)),
            _ => self.outcome(&reply),
        }
    }

    /// Counts a name for which the token sets a policy or certificate, if it is new. The token may register at most `max_names` new
    /// ones within a day.
    pub(crate) async fn count_name(&self, name: &Hostname, token: &str, max_names: u64) -> Result<(), Error> {
        let call = COUNT_NAME
            .call()
            .key(&key::routes_hosts())
            .key(&key::routes_policies())
            .key(&key::routes_certificates())
            .key(&key::routes_table())
            .key(&key::routes_registrants_names(token))
            .arg(name.as_str())
            .arg(max_names);
        let reply = self.in_fabric("count_name", call).await?;
        if reply.word()? == "names" { Err(too_many_names(&reply, max_names)) } else { Ok(()) }
    }

    /// The token that registered most of these instances, for what is shared between tokens; `None` if none of them is known.
    pub async fn registrant_of(&self, ids: &[String]) -> Result<Option<String>, Error> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for token in self.members(&key::routes_registrants(), ids).await?.into_iter().flatten() {
            *counts.entry(token).or_default() += 1;
        }
        Ok(counts.into_iter().max_by_key(|(_, count)| *count).map(|(token, _)| token))
    }

    /// Forgets a host name without desired instances, its policy and its promotion.
    pub(crate) async fn forget_host(&self, hostname: &Hostname) -> Result<DesireOutcome, Error> {
        let call = FORGET_HOST
            .call()
            .key(&key::routes_hosts())
            .key(&key::routes_hosts_index())
            .key(&key::routes_revision())
            .key(&key::routes_unprojected())
            .key(&key::routes_table())
            .key(&key::routes_policies())
            .key(&key::routes_promotions())
            .arg(hostname.as_str())
            .arg(self.floor());
        self.outcome(&self.in_fabric("forget_host", call).await?)
    }

    pub(super) fn outcome(&self, reply: &Reply) -> Result<DesireOutcome, Error> {
        match reply.word()?.as_str() {
            "accepted" => {
                let revision = reply.at(1)?;
                self.saw_revision(revision);
                Ok(DesireOutcome::Accepted { revision, table: reply.table_mark()? })
            }
            "changed" => Ok(DesireOutcome::Changed),
            "regressed" | "uninitialized" => Ok(DesireOutcome::Behind),
            _ => Err(reply.unexpected()),
        }
    }

    /// Records a host name again that was forgotten while an instance registered for it.
    pub(crate) async fn remember_host(&self, hostname: &Hostname, version_type: &str) -> Result<(), Error> {
        let mut batch = self.fabric.batch();
        batch.add("HSET", &key::routes_hosts(), (hostname.as_str(), version_type));
        batch.add("ZADD", &key::routes_hosts_index(), (0, hostname.as_str()));
        batch.query::<Value>().await.map(drop).map_err(Error::Fabric)
    }

    /// Records that the table has `revision` of `member`; false if a later one is outstanding.
    pub(crate) async fn settle(
        &self,
        member: &str,
        revision: u64,
        serial: u64,
        epoch: &str,
    ) -> Result<bool, Error> {
        SETTLE
            .call()
            .key(&key::routes_unprojected())
            .key(&key::routes_table())
            .arg(member)
            .arg(revision)
            .arg(serial)
            .arg(epoch)
            .run(&self.fabric)
            .await
            .map_err(Error::Fabric)
    }

    /// Marks an instance as outstanding without changing it: if its caller dies in the middle, the reconciler checks
    /// it.
    pub(crate) async fn mark_outstanding(&self, stored: &Stored) -> Result<(), Error> {
        self.mark_member_outstanding(stored.id.as_str(), stored.record.revision).await
    }

    pub(super) async fn mark_member_outstanding(&self, member: &str, revision: u64) -> Result<(), Error> {
        let command = self.fabric.command("ZADD").key(&key::routes_unprojected()).arg("NX");
        command.arg(revision).arg(member).run().await.map_err(Error::Fabric)
    }

    /// The revision of a member that is not known to be in the table.
    pub(crate) async fn outstanding_of(&self, member: &str) -> Result<Option<u64>, Error> {
        let command = self.fabric.command("ZSCORE").key(&key::routes_unprojected()).arg(member);
        command.query().await.map_err(Error::Fabric)
    }

    /// The members that are not known to be in the table, oldest first, with their revisions.
    pub(crate) async fn outstanding(&self, limit: usize) -> Result<Vec<(String, u64)>, Error> {
        self.waiting(&key::routes_unprojected(), limit).await
    }

    /// The instances that are not known to be in the table, latest first.
    pub(crate) async fn outstanding_instances(&self, limit: usize) -> Result<Vec<InstanceId>, Error> {
        let last = limit.saturating_sub(1);
        let command = self.fabric.command("ZREVRANGE").key(&key::routes_unprojected()).arg(0).arg(last);
        let members: Vec<String> = command.query().await.map_err(Error::Fabric)?;
        Ok(members.iter().filter_map(|member| InstanceId::parse(member).ok()).collect())
    }

    /// The members that are not known to be in the membership sets, oldest first, with their revisions.
    pub(crate) async fn unreported(&self, limit: usize) -> Result<Vec<(String, u64)>, Error> {
        self.waiting(&key::routes_unreported(), limit).await
    }

    async fn waiting(&self, key: &Key<FabricSpace>, limit: usize) -> Result<Vec<(String, u64)>, Error> {
        let last = limit.saturating_sub(1);
        let command = self.fabric.command("ZRANGE").key(key).arg(0).arg(last).arg("WITHSCORES");
        command.query().await.map_err(Error::Fabric)
    }

    /// Records that the membership sets have `revision` of an instance.
    pub(crate) async fn reported(&self, id: &InstanceId, revision: u64) -> Result<(), Error> {
        let call = REPORT.call().key(&key::routes_unreported()).arg(id.as_str()).arg(revision);
        call.run::<u64>(&self.fabric).await.map(drop).map_err(Error::Fabric)
    }

    /// Up to `limit` instance ids after `after`, in order.
    pub async fn ids_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<InstanceId>, Error> {
        let names = self.index_after(&key::routes_instances_index(), after, limit).await?;
        names.iter().map(|name| InstanceId::parse(name).map_err(Error::from)).collect()
    }

    /// Up to `limit` host names after `after`, in order.
    pub async fn hosts_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.index_after(&key::routes_hosts_index(), after, limit).await
    }

    pub(super) async fn index_after(
        &self,
        key: &Key<FabricSpace>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        let from = after.map_or("-".to_owned(), |after| format!("({after}"));
        let command = self.fabric.command("ZRANGEBYLEX").key(key).arg(from).arg("+").arg("LIMIT").arg(0);
        command.arg(limit).query().await.map_err(Error::Fabric)
    }

    /// Version types of host names, in the order asked for.
    pub async fn host_version_types(&self, names: &[String]) -> Result<Vec<Option<String>>, Error> {
        self.members(&key::routes_hosts(), names).await
    }

    /// The values of these names in a hash, in their order.
    pub(super) async fn members(
        &self,
        key: &Key<FabricSpace>,
        names: &[impl ToRedisArgs + Sync],
    ) -> Result<Vec<Option<String>>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        if names.len() <= FEW {
            return self.fabric.command("HMGET").key(key).arg(names).query().await.map_err(Error::Fabric);
        }
        let mut values = Vec::with_capacity(names.len());
        while values.len() < names.len() {
            values.extend(self.members_part(key, &names[values.len()..]).await?);
        }
        Ok(values)
    }

    /// The same of the first of `names`: as many as have about a megabyte, and one at least.
    pub(super) async fn members_part(
        &self,
        key: &Key<FabricSpace>,
        names: &[impl ToRedisArgs + Sync],
    ) -> Result<Vec<Option<String>>, Error> {
        let values = hash_part(&self.fabric, key, names).await.map_err(Error::Fabric)?;
        let unreadable = |_| Error::Reply { script: "hash_part", reply: "not UTF-8".to_owned() };
        let text = |value: Option<Vec<u8>>| value.map(String::from_utf8).transpose().map_err(unreadable);
        values.into_iter().map(text).collect()
    }

    /// As [`Self::table_state`], and whether anything is outstanding.
    pub(crate) async fn pulse(&self) -> Result<Pulse, Error> {
        let call = PULSE
            .call()
            .key(&key::routes_table())
            .key(&key::routes_revision())
            .key(&key::routes_unprojected())
            .key(&key::routes_unreported());
        let reply = self.in_fabric("pulse", call).await?;
        let (unprojected, unreported): (u64, u64) = (reply.at(4)?, reply.at(5)?);
        let state = TableState {
            lineage: reply.at(0)?,
            serial: reply.at(1)?,
            seeding: !reply.at::<String>(2)?.is_empty(),
            revision: reply.at(3)?,
        };
        Ok(Pulse { state, is_outstanding: unprojected + unreported > 0 })
    }

    /// The fabric's knowledge of the table.
    pub async fn table_state(&self) -> Result<TableState, Error> {
        let mut batch = self.fabric.batch();
        batch.add("HGETALL", &key::routes_table(), &[] as &[&str]);
        batch.add("GET", &key::routes_revision(), &[] as &[&str]);
        let (mut fields, revision): (HashMap<String, String>, Option<u64>) =
            batch.query().await.map_err(Error::Fabric)?;
        Ok(TableState {
            lineage: fields.remove("epoch").unwrap_or_default(),
            serial: fields.get("serial").and_then(|serial| serial.parse().ok()).unwrap_or(0),
            seeding: fields.get("seeding").is_some_and(|token| !token.is_empty()),
            revision: revision.unwrap_or(0),
        })
    }

    /// The table that changes have to expect; `None` while it does not exist.
    pub(crate) async fn table_mark(&self) -> Result<Option<TableMark>, Error> {
        let command = self.fabric.command("HMGET").key(&key::routes_table()).arg(("epoch", "serial"));
        let (lineage, serial): (Option<String>, Option<u64>) =
            command.query().await.map_err(Error::Fabric)?;
        Ok(mark(&lineage.unwrap_or_default(), serial.unwrap_or(0)))
    }

    /// Records the lineage that the routes primary has, or with `seeding` is about to get; false when another
    /// pacemaker changed it.
    pub(crate) async fn set_lineage(&self, expected: &str, new: &TableState) -> Result<bool, Error> {
        SET_LINEAGE
            .call()
            .key(&key::routes_table())
            .key(&key::routes_revision())
            .arg(expected)
            .arg(&new.lineage)
            .arg(new.serial)
            .arg(if new.seeding { newest(&new.lineage).unwrap_or("") } else { "" })
            .arg(new.revision)
            .run(&self.fabric)
            .await
            .map_err(Error::Fabric)
    }

    /// Adopts the state of the routes primary where it is newer; `record` is its text there, `None` when it was
    /// removed.
    pub(crate) async fn adopt(
        &self,
        id: &InstanceId,
        before: Option<&Stored>,
        record: Option<&str>,
    ) -> Result<bool, Error> {
        let theirs =
            record.map(|text| serde_json::from_str::<Record>(text).map_err(Error::Record)).transpose()?;
        let spec = theirs.as_ref().map(|record| &record.desired.spec);
        ADOPT
            .call()
            .key(&key::routes_instances())
            .key(&key::routes_instances_index())
            .key(&key::routes_addresses())
            .key(&key::routes_hosts())
            .key(&key::routes_hosts_index())
            .key(&key::routes_unreported())
            .key(&key::routes_registrants())
            .key(&key::routes_registrants_count())
            .arg(id.as_str())
            .arg(before.map_or("", |stored| &stored.text))
            .arg(record.unwrap_or(""))
            .arg(before.map_or("", |stored| stored.record.desired.spec.address.as_str()))
            .arg(spec.map_or("", |spec| spec.address.as_str()))
            .arg(theirs.as_ref().map_or(0, |record| record.revision))
            .arg(spec.map_or("", |spec| spec.version_type_id.as_str()))
            .arg(hostnames(spec.map_or(&[], |spec| &spec.hostnames)))
            .run(&self.fabric)
            .await
            .map_err(Error::Fabric)
    }
}

pub(super) fn hostnames(hostnames: &[Hostname]) -> Vec<&str> {
    hostnames.iter().map(Hostname::as_str).collect()
}
