//! Resources: values that clients set as a whole for a name. A host has a policy, a server name a certificate.
//!
//! Every resource is handled in the same way: a client sets it, the fabric records it with a revision, a projection
//! brings it to the table on the routes primary, and routers read it there. A later revision wins on both sides. The
//! differences between resources are in [`Resource`], and in the two Lua files of each: its index in the fabric and
//! its form in the table.

use serde::Deserialize;
use signalbox_store::{
    FabricRole, FabricSpace, Key, RoutesPrimaryRole, RoutesSpace, Script, Value, from_redis_value,
    keys::{fabric, routes},
};

use super::{DesireOutcome, Store, TableMark};
use crate::{ChangeKind, Error};
use signalbox_route_table::Hostname;

/// The scripts that resources share. Each is completed by the Lua files of one resource.
pub(super) const DESIRE: &str = include_str!("../scripts/desire_resource.lua");
pub(super) const ADOPT: &str = include_str!("../scripts/adopt_resource.lua");
pub(super) const PROJECT: &str = include_str!("../scripts/project_resource.lua");

/// Approximate number of resources in one step of a scan.
const CHUNK: usize = 500;

/// The properties of one kind of resource.
pub(crate) trait Resource: Send + Sync + Sized + 'static {
    /// Its name in logs.
    const NAME: &'static str;
    /// The first character of its members in `routes:unprojected`. No instance ID starts with it.
    const SIGN: char;
    /// The kind of a change of it.
    const CHANGE: ChangeKind;
    /// Whether the removal of a host removes it, too.
    const REMOVED_WITH_HOST: bool;
    /// A field of the hash at [`Self::table_key`] that is present unless the resource was removed.
    const TABLE_FIELD: &'static str;

    /// Its scripts.
    fn scripts() -> &'static Scripts;
    /// The hash in the fabric, from name to record.
    fn desired_key() -> Key<FabricSpace>;
    /// The keys of its index in the fabric, as its Lua file lists them.
    fn index_keys() -> Vec<Key<FabricSpace>>;
    /// The hash with its revision in the table.
    fn table_key(name: &str) -> Key<RoutesSpace>;
    /// The string that routers read, if that is not made from several sources.
    fn text_key(name: &str) -> Option<Key<RoutesSpace>>;

    /// Parses a record of the fabric.
    fn parse(record: &str) -> Result<Wanted<Self>, Error>;
    /// Its form in the fabric.
    fn record(&self) -> Result<Record, Error>;
    /// Its form in the table.
    fn entry(&self) -> Result<Entry, Error>;
    /// Its form in the fabric, made from what the table has: the value of [`Self::TABLE_FIELD`] and the string at
    /// [`Self::text_key`]. `None` if the table does not have it.
    fn restored(field: Option<String>, text: Option<String>) -> Result<Option<Record>, Error>;
}

/// The scripts of one kind of resource.
pub(crate) struct Scripts {
    pub(super) desire: Script<FabricRole>,
    pub(super) adopt: Script<FabricRole>,
    pub(super) project: Script<RoutesPrimaryRole>,
}

/// The form of a resource in the fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The JSON after `{"revision":<revision>`.
    pub(super) tail: String,
    /// Arguments of its index, as its Lua file lists them.
    pub(super) index: Vec<u64>,
}

/// The form of a resource in the table.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The resource as text.
    pub(super) text: String,
    /// Further fields of the hash: names and values in turn.
    pub(super) fields: Vec<String>,
}

/// A resource as clients want it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted<R> {
    /// The revision of its last change.
    pub revision: u64,
    /// The resource.
    pub value: R,
}

/// What all records of resources have.
#[derive(Deserialize)]
struct Revised {
    revision: u64,
}

/// The outcome of a change of the desired state.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ResourceOutcome {
    Accepted {
        revision: u64,
        table: TableMark,
    },
    /// Unchanged; `outstanding` is its revision if the table may not have it yet.
    Same {
        outstanding: Option<u64>,
        table: TableMark,
    },
    /// The caller read an outdated revision.
    Changed,
    /// The fabric is empty or has lost changes; nothing may be written before a reconciliation.
    Behind,
}

/// The outcome of a projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResourceProjected {
    /// The table has this revision, since now or before.
    Done { serial: u64 },
    /// The table has a later revision.
    Stale { revision: u64 },
}

/// The table's entry of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Projected {
    /// 0 if the table never had the resource.
    pub(crate) revision: u64,
    /// `None` if it was removed.
    record: Option<Record>,
}

impl Projected {
    /// Whether the table has the resource, and not only the revision of its removal.
    pub(crate) fn exists(&self) -> bool {
        self.record.is_some()
    }
}

/// The member of `routes:unprojected` for the resource of a name.
pub(crate) fn member<R: Resource>(name: &str) -> String {
    format!("{}{name}", R::SIGN)
}

impl Store {
    /// The desired resources of these names, in their order.
    pub(crate) async fn wanted<R: Resource>(&self, names: &[&str]) -> Result<Vec<Option<Wanted<R>>>, Error> {
        self.wanted_each(names).await?.into_iter().map(Option::transpose).collect()
    }

    /// The desired resources of the first of `names`: as many as have about a megabyte, and one at least.
    pub(super) async fn wanted_part<R: Resource>(
        &self,
        names: &[String],
    ) -> Result<Vec<Option<Wanted<R>>>, Error> {
        let records = self.members_part(&R::desired_key(), names).await?;
        records.into_iter().map(|record| record.as_deref().map(R::parse).transpose()).collect()
    }

    /// As [`Self::wanted`]. One that cannot be read hides no other.
    pub(crate) async fn wanted_each<R: Resource>(
        &self,
        names: &[&str],
    ) -> Result<Vec<Option<Result<Wanted<R>, Error>>>, Error> {
        let records = self.members(&R::desired_key(), names).await?;
        Ok(records.into_iter().map(|record| record.as_deref().map(R::parse)).collect())
    }

    /// One step of a scan of all wanted resources: the next cursor, and names with revisions. A name may occur twice. Of
    /// a resource, only the revision has to be readable.
    pub(crate) async fn scan_wanted<R: Resource>(
        &self,
        cursor: u64,
    ) -> Result<(u64, Vec<(String, u64)>), Error> {
        let command = self.fabric.command("HSCAN").key(&R::desired_key()).arg(cursor);
        let (next, records): (u64, Vec<(String, String)>) =
            command.arg("COUNT").arg(CHUNK).query().await.map_err(Error::Fabric)?;
        let revised = |(name, record): (String, String)| {
            let Revised { revision } = serde_json::from_str(&record).map_err(Error::Record)?;
            Ok((name, revision))
        };
        Ok((next, records.into_iter().map(revised).collect::<Result<_, Error>>()?))
    }

    /// Changes the desired resource; `None` removes it. With `expected`, only if that is the present revision. 0 is the
    /// revision of a name without the resource, and removes what the table may still have.
    pub(crate) async fn desire_resource<R: Resource>(
        &self,
        name: &Hostname,
        value: Option<&R>,
        expected: Option<u64>,
    ) -> Result<ResourceOutcome, Error> {
        let record = value.map(R::record).transpose()?;
        let (tail, index) = record.as_ref().map_or(("", &[][..]), |record| (&record.tail, &record.index));
        let mut call = (R::scripts().desire.call())
            .key(&R::desired_key())
            .key(&fabric::routes_revision())
            .key(&fabric::routes_unprojected())
            .key(&fabric::routes_table());
        for key in R::index_keys() {
            call = call.key(&key);
        }
        let call = call
            .arg(name.as_str())
            .arg(tail)
            .arg(self.floor())
            .arg(expected.map_or_else(String::new, |revision| revision.to_string()))
            .arg(member::<R>(name.as_str()))
            .arg(index);
        let reply = self.in_fabric("desire_resource", call).await?;
        if reply.word()? == "same" {
            let outstanding = Some(reply.at(1)?).filter(|revision| *revision > 0);
            return Ok(ResourceOutcome::Same { outstanding, table: reply.table_mark()? });
        }
        Ok(match self.outcome(&reply)? {
            DesireOutcome::Accepted { revision, table } => ResourceOutcome::Accepted { revision, table },
            DesireOutcome::Changed => ResourceOutcome::Changed,
            DesireOutcome::Behind => ResourceOutcome::Behind,
        })
    }

    /// Copies to the fabric what the table has in a later revision. `before` is the revision in the fabric; false if the
    /// fabric has another one by now.
    pub(crate) async fn adopt_resource<R: Resource>(
        &self,
        name: &str,
        before: Option<u64>,
        projected: &Projected,
    ) -> Result<bool, Error> {
        let record = projected.record.as_ref();
        let text = record.map(|record| format!("{{\"revision\":{}{}", projected.revision, record.tail));
        let mut call = R::scripts().adopt.call().key(&R::desired_key());
        for key in R::index_keys() {
            call = call.key(&key);
        }
        call.arg(name)
            .arg(before.map_or_else(String::new, |revision| revision.to_string()))
            .arg(text.as_deref().unwrap_or(""))
            .arg(record.map_or(&[][..], |record| &record.index))
            .run(&self.fabric)
            .await
            .map_err(Error::Fabric)
    }

    /// Brings a resource to the table; `None` removes it there. `mark` names the expected table; without it, any table
    /// is written to, which only its seeding may do.
    pub(crate) async fn project_resource<R: Resource>(
        &self,
        name: &Hostname,
        revision: u64,
        value: Option<&R>,
        mark: Option<&TableMark>,
    ) -> Result<ResourceProjected, Error> {
        let entry = value.map(R::entry).transpose()?;
        let (text, fields) = entry.as_ref().map_or(("", &[][..]), |entry| (&entry.text, &entry.fields));
        let mut call = (R::scripts().project.call())
            .key(&routes::serial())
            .key(&routes::revision())
            .key(&routes::epoch())
            .key(&routes::changes())
            .key(&R::table_key(name.as_str()));
        if let Some(key) = R::text_key(name.as_str()) {
            call = call.key(&key);
        }
        let call = call
            .arg(name.as_str())
            .arg(revision)
            .arg(text)
            .arg(mark.map_or("", |mark| &mark.epoch))
            .arg(mark.map_or(0, |mark| mark.serial))
            .arg(self.clock())
            .arg(fields);
        let reply = self.on_table("project_resource", call).await?;
        Ok(match reply.word()?.as_str() {
            "done" | "same" => ResourceProjected::Done { serial: reply.at(1)? },
            "stale" => ResourceProjected::Stale { revision: reply.at(1)? },
            _ => return Err(reply.unexpected()),
        })
    }

    /// Marks a resource as outstanding without changing it.
    pub(crate) async fn mark_resource_outstanding<R: Resource>(
        &self,
        name: &str,
        revision: u64,
    ) -> Result<(), Error> {
        self.mark_member_outstanding(&member::<R>(name), revision).await
    }

    /// The table's entries of the resources of these names, in their order.
    pub(crate) async fn projected<R: Resource>(&self, names: &[&str]) -> Result<Vec<Projected>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.routes.batch();
        for name in names {
            batch.add("HMGET", &R::table_key(name), &["revision", R::TABLE_FIELD]);
            if let Some(key) = R::text_key(name) {
                batch.add("GET", &key, &[] as &[&str]);
            }
        }
        let replies: Vec<Value> = batch.query().await.map_err(Error::table)?;
        let unreadable = |_| Error::Reply { script: R::NAME, reply: "unreadable table entry".to_owned() };
        let projected = |replies: &[Value]| {
            let mut replies = replies.iter().cloned();
            let (revision, field): (Option<u64>, _) =
                from_redis_value(replies.next().unwrap_or(Value::Nil)).map_err(unreadable)?;
            let text = from_redis_value(replies.next().unwrap_or(Value::Nil)).map_err(unreadable)?;
            Ok(Projected { revision: revision.unwrap_or(0), record: R::restored(field, text)? })
        };
        replies.chunks(replies.len() / names.len()).map(projected).collect()
    }
}
