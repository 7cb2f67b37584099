//! The route table, on the routes primary.

use std::collections::HashMap;

use signalbox_api::{Time, routes::Heartbeat};
use signalbox_store::{
    FromRedisValue, Pace, RoutesPrimaryRole, Script, Value, from_redis_value, keys::routes as key,
};

use super::{SHARED, Store, TableMark, desired::hostnames, reply::Reply};
use crate::Error;
use signalbox_route_table::{Desired, Hostname, InstanceId, Owner, Record, TableHost};

static APPLY: Script<RoutesPrimaryRole> =
    Script::composed("routing/apply", &[include_str!("../scripts/apply.lua"), SHARED]);
static HEARTBEAT: Script<RoutesPrimaryRole> =
    Script::new("routing/heartbeat", include_str!("../scripts/heartbeat.lua"));
static FAULT: Script<RoutesPrimaryRole> = Script::new("routing/fault", include_str!("../scripts/fault.lua"));
static SWEEP: Script<RoutesPrimaryRole> = Script::new("routing/sweep", include_str!("../scripts/sweep.lua"));
static REMOVE_HOST: Script<RoutesPrimaryRole> =
    Script::composed("routing/remove_host", &[include_str!("../scripts/remove_host.lua"), SHARED]);
static BEGIN_SEEDING: Script<RoutesPrimaryRole> =
    Script::new("routing/begin_seeding", include_str!("../scripts/begin_seeding.lua"));
static PUBLISH_LINEAGE: Script<RoutesPrimaryRole> =
    Script::new("routing/publish_lineage", include_str!("../scripts/publish_lineage.lua"));

/// Hosts that are read together: other readers get their turn in between.
const MAX_HOSTS: usize = 100;

/// How many hosts are read together.
pub fn host_pace() -> Pace {
    Pace::new(MAX_HOSTS)
}

/// The serial, unless another process changed the lineage first.
fn published(reply: &Reply) -> Result<u64, Error> {
    match reply.word()?.as_str() {
        "done" => reply.at(1),
        "changed" => Err(Error::Resyncing { recorded: true }),
        _ => Err(reply.unexpected()),
    }
}

/// The desired change of an instance in the table.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Projection<'a> {
    /// As in the record, with its revision.
    Wanted(&'a Record),
    /// Out, by this revision.
    Removed(u64),
    /// Out if its lease or drain has ended and the table still has this record.
    Expired(&'a Record),
}

/// The name and fencing epoch of a lease. A script rejects an epoch lower than one that it has seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fence<'a> {
    pub(crate) lease: &'a str,
    pub(crate) epoch: u64,
}

/// The result of a [`Projection`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Applied {
    /// The table has it now. `visible` when routers see a difference; `displaced` lost its address.
    Done { serial: u64, visible: bool, displaced: Option<String> },
    /// The table had this revision already.
    Same { serial: u64 },
    /// This revision was in the table and has expired since.
    Gone { serial: u64 },
    /// The table has a later revision.
    Stale { revision: u64 },
    /// The address belongs to a later registration.
    Superseded { by: String },
    /// Nothing has ended yet.
    Early,
}

/// The result of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Due {
    /// No pacemaker has swept for a while, so each lease gets its period again.
    pub(crate) after_absence: bool,
    /// Ids whose lease or drain has ended by the clock.
    pub(crate) ids: Vec<String>,
}

/// The result of removing a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostRemoved {
    Done { serial: u64 },
    InUse { serial: u64 },
}

/// Why a table gets a new lineage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lineage {
    /// It is the first of the installation.
    Begun,
    /// The table was lost or outdated, and was rebuilt.
    Reseeded,
}

impl Lineage {
    fn as_str(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Reseeded => "reseeded",
        }
    }
}

/// What the table has about the version and the health of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceState {
    /// Its version type; `None` if the instance is not in the table.
    pub version_type: Option<String>,
    /// The result of the check that made it unhealthy.
    pub unhealthy: Option<String>,
}

/// Data about an instance that only the table has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Live {
    /// The revision in the table; `None` if the instance is not there.
    pub revision: Option<u64>,
    /// When its lease expires, in unix milliseconds; `None` without a lease.
    pub lease_expires_ms: Option<u64>,
    /// Why its health check fails; `None` while it is healthy.
    pub unhealthy: Option<String>,
    /// When its health changed last.
    pub health_ms: Option<u64>,
    /// The number of faults reported since it was registered.
    pub faults: u64,
    /// The message of the latest reported fault.
    pub last_fault: Option<String>,
    /// When the latest fault was reported, in unix milliseconds.
    pub last_fault_ms: Option<u64>,
}

impl Store {
    /// Brings the table up to `projection`. `mark` names the expected table; `None` while it is being seeded.
    pub(crate) async fn apply(
        &self,
        id: &InstanceId,
        projection: Projection<'_>,
        mark: Option<&TableMark>,
        fence: Option<Fence<'_>>,
    ) -> Result<Applied, Error> {
        let (revision, state, record) = match projection {
            Projection::Wanted(record) => (record.revision, record.desired.state.as_str(), Some(record)),
            Projection::Removed(revision) => (revision, "removed", None),
            Projection::Expired(record) => (record.revision, "expired", None),
        };
        let desired = record.map(|record| &record.desired);
        let spec = desired.map(|desired| &desired.spec);
        let text = record.map(|record| serde_json::to_string(record).map_err(Error::Record)).transpose()?;
        let call = APPLY
            .call()
            .key(&key::serial())
            .key(&key::instance(id.as_str()))
            .key(&key::addresses())
            .key(&key::leases())
            .key(&key::drains())
            .key(&key::revision())
            .key(&key::epoch())
            .key(&key::fencing())
            .key(&key::changes())
            .key(&key::checks())
            .arg(id.as_str())
            .arg(revision)
            .arg(state)
            .arg(mark.map_or("", |mark| &mark.epoch))
            .arg(mark.map_or(0, |mark| mark.serial))
            .arg(self.clock())
            .arg(fence.map_or("", |fence| fence.lease))
            .arg(fence.map_or(0, |fence| fence.epoch))
            .arg(spec.map_or("", |spec| spec.address.as_str()))
            .arg(spec.map_or("", |spec| spec.version_type_id.as_str()))
            .arg(spec.and_then(|spec| spec.node_id.as_ref()).map_or("", |node| node.as_str()))
            .arg(spec.map_or(1, |spec| spec.weight))
            .arg(spec.and_then(|spec| spec.lease_seconds).map_or(0, |seconds| u64::from(seconds) * 1000))
            .arg(desired.and_then(Desired::ends_ms).unwrap_or(0))
            .arg(text.as_deref().unwrap_or(""))
            .arg(u8::from(spec.is_some_and(|spec| spec.health.is_some())))
            .arg(hostnames(spec.map_or(&[], |spec| &spec.hostnames)));
        applied(&self.on_table("apply", call).await?)
    }

    /// Renews a lease; `None` if the table has no such instance.
    pub(crate) async fn heartbeat(&self, id: &InstanceId) -> Result<Option<Heartbeat>, Error> {
        let call = HEARTBEAT.call().key(&key::instance(id.as_str())).key(&key::leases());
        let reply = self.on_table("heartbeat", call.arg(id.as_str()).arg(self.clock())).await?;
        match reply.word()?.as_str() {
            "renewed" => {
                let (expires_ms, lease_ms): (u64, u64) = (reply.at(1)?, reply.at(2)?);
                let lease_seconds = Some(lease_ms / 1000);
                Ok(Some(Heartbeat { lease_seconds, lease_expires_at: Some(Time::from_ms(expires_ms)) }))
            }
            "unleased" => Ok(Some(Heartbeat { lease_seconds: None, lease_expires_at: None })),
            "unknown" => Ok(None),
            _ => Err(reply.unexpected()),
        }
    }

    /// Counts a fault at an instance; one whose id was the latest already is not counted again. Returns the number so far;
    /// `None` if the table has no such instance.
    pub(crate) async fn fault(
        &self,
        id: &InstanceId,
        message: &str,
        fault_id: Option<&str>,
    ) -> Result<Option<u64>, Error> {
        let call = FAULT
            .call()
            .key(&key::instance(id.as_str()))
            .key(&key::serial())
            .key(&key::changes())
            .arg(id.as_str())
            .arg(message)
            .arg(fault_id.unwrap_or(""))
            .arg(self.clock());
        let reply = self.on_table("fault", call).await?;
        match reply.word()?.as_str() {
            "noted" | "repeated" => reply.at(1).map(Some),
            "unknown" => Ok(None),
            _ => Err(reply.unexpected()),
        }
    }

    /// Asks which leases and drains have ended, at most `limit` of each.
    pub(crate) async fn sweep(&self, epoch: u64, gap_ms: u64, limit: usize) -> Result<Due, Error> {
        let call = SWEEP
            .call()
            .key(&key::fencing())
            .key(&key::leases())
            .key(&key::drains())
            .arg(epoch)
            .arg(gap_ms)
            .arg(limit)
            .arg(self.clock());
        let reply = self.on_table("sweep", call).await?;
        match reply.word()?.as_str() {
            "due" => Ok(Due { after_absence: reply.at(1)?, ids: reply.rest(2)? }),
            _ => Err(reply.unexpected()),
        }
    }

    /// Removes a host name from the table, unless instances serve it. Its policy and its promotion are removed in any case.
    pub(crate) async fn remove_host(
        &self,
        hostname: &Hostname,
        revision: u64,
        mark: Option<&TableMark>,
    ) -> Result<HostRemoved, Error> {
        let name = hostname.as_str();
        let call = REMOVE_HOST
            .call()
            .key(&key::serial())
            .key(&key::instances(name))
            .key(&key::instance_ids(name))
            .key(&key::logkey(name))
            .key(&key::policy(name))
            .key(&key::epoch())
            .key(&key::changes())
            .key(&key::rules(name))
            .key(&key::promotion(name))
            .arg(mark.map_or("", |mark| &mark.epoch))
            .arg(mark.map_or(0, |mark| mark.serial))
            .arg(name)
            .arg(self.clock())
            .arg(revision);
        let reply = self.on_table("remove_host", call).await?;
        match reply.word()?.as_str() {
            "done" => Ok(HostRemoved::Done { serial: reply.at(1)? }),
            "in_use" => Ok(HostRemoved::InUse { serial: reply.at(1)? }),
            _ => Err(reply.unexpected()),
        }
    }

    /// Begins the seeding of the table: it has no lineage from here on, and the mark `token`.
    pub(crate) async fn begin_seeding(
        &self,
        expected: &str,
        token: &str,
        fence: Fence<'_>,
    ) -> Result<u64, Error> {
        let call = BEGIN_SEEDING
            .call()
            .key(&key::epoch())
            .key(&key::seeding())
            .key(&key::fencing())
            .arg(expected)
            .arg(token)
            .arg(fence.lease)
            .arg(fence.epoch);
        published(&self.on_table("begin_seeding", call).await?)
    }

    /// Ends the seeding of the table: serial above `floor`, then the lineage. `token` is the mark that it began with;
    /// empty for a table that was not seeded. Returns the serial.
    pub(crate) async fn publish_lineage(
        &self,
        expected: &str,
        lineage: &str,
        floor: u64,
        reason: Lineage,
        token: &str,
        fence: Fence<'_>,
    ) -> Result<u64, Error> {
        let call = PUBLISH_LINEAGE
            .call()
            .key(&key::serial())
            .key(&key::epoch())
            .key(&key::fencing())
            .key(&key::changes())
            .key(&key::seeding())
            .arg(expected)
            .arg(lineage)
            .arg(floor)
            .arg(fence.lease)
            .arg(fence.epoch)
            .arg(reason.as_str())
            .arg(self.clock())
            .arg(token);
        published(&self.on_table("publish_lineage", call).await?)
    }

    /// The table's lineage (newest token first), serial, and highest revision.
    pub async fn table_head(&self) -> Result<(String, u64, u64), Error> {
        let command =
            self.routes.command("MGET").key(&key::epoch()).key(&key::serial()).key(&key::revision());
        let (lineage, serial, revision): (Option<String>, Option<u64>, Option<u64>) =
            command.query().await.map_err(Error::table)?;
        Ok((lineage.unwrap_or_default(), serial.unwrap_or(0), revision.unwrap_or(0)))
    }

    /// The table's own data about these instances, in their order.
    pub async fn live(&self, ids: &[InstanceId]) -> Result<Vec<Live>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.routes.batch();
        for id in ids {
            let fields = ["state", "revision", "faults", "fault", "fault_ms", "unhealthy", "health_ms"];
            batch.add("HMGET", &key::instance(id.as_str()), &fields);
            batch.add("ZSCORE", &key::leases(), id.as_str());
        }
        let replies: Vec<Value> = batch.query().await.map_err(Error::table)?;
        let unreadable = |_| Error::Reply { script: "live", reply: "unreadable".to_owned() };
        replies
            .chunks(2)
            .map(|pair| {
                type Text = Option<String>;
                type Number = Option<u64>;
                type Fields = (Text, Number, Number, Text, Number, Text, Number);
                let pair = from_redis_value::<(Fields, Option<f64>)>(Value::Array(pair.to_vec()));
                let (fields, expires) = pair.map_err(unreadable)?;
                let (state, revision, faults, last_fault, last_fault_ms, unhealthy, health_ms) = fields;
                let stands = matches!(state.as_deref(), Some("active" | "draining"));
                Ok(Live {
                    revision: revision.filter(|_| stands),
                    lease_expires_ms: expires.map(|ms| ms as u64),
                    unhealthy,
                    health_ms,
                    faults: faults.unwrap_or(0),
                    last_fault,
                    last_fault_ms,
                })
            })
            .collect()
    }

    /// Version type and health of instances in the table, in the order asked for.
    pub async fn instance_states(&self, ids: &[String]) -> Result<Vec<InstanceState>, Error> {
        let rows = self.fields(ids, &["version_type_id", "unhealthy"]).await?;
        let state = |(version_type, unhealthy)| InstanceState { version_type, unhealthy };
        Ok(rows.into_iter().map(state).collect())
    }

    /// These fields of instances in the table, in the order asked for.
    pub(super) async fn fields<T: FromRedisValue>(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
        fields: &[&str],
    ) -> Result<Vec<T>, Error> {
        let mut batch = self.routes.batch();
        for id in ids {
            batch.add("HMGET", &key::instance(id.as_ref()), fields);
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        batch.query().await.map_err(Error::table)
    }

    /// Revision, state and record of instances in the table, tombstones included.
    pub(crate) async fn standing(
        &self,
        ids: &[InstanceId],
    ) -> Result<Vec<(u64, Option<String>, Option<String>)>, Error> {
        type Row = (Option<u64>, Option<String>, Option<String>);
        let ids = ids.iter().map(InstanceId::as_str);
        let rows: Vec<Row> = self.fields(ids, &["revision", "state", "record"]).await?;
        Ok(rows.into_iter().map(|(revision, state, record)| (revision.unwrap_or(0), state, record)).collect())
    }

    /// Sets log keys of host names that have none, given as name and version type.
    pub(crate) async fn seed_log_keys(&self, hosts: &[(String, String)]) -> Result<(), Error> {
        let mut batch = self.routes.batch();
        for (name, version_type) in hosts.iter().filter(|(_, version_type)| !version_type.is_empty()) {
            batch.add("SETNX", &key::logkey(name), version_type);
        }
        if batch.is_empty() {
            return Ok(());
        }
        batch.query::<Value>().await.map(drop).map_err(Error::table)
    }

    /// Ids of the instances that serve a host name, by the table.
    pub async fn ids_of_host(&self, hostname: &Hostname) -> Result<Vec<String>, Error> {
        let command = self.routes.command("SMEMBERS").key(&key::instance_ids(hostname.as_str()));
        command.query().await.map_err(Error::table)
    }

    /// How many instances serve each host name, by the table.
    pub(crate) async fn instance_counts(&self, hostnames: &[Hostname]) -> Result<Vec<usize>, Error> {
        let mut batch = self.routes.batch();
        for hostname in hostnames {
            batch.add("SCARD", &key::instance_ids(hostname.as_str()), &[] as &[&str]);
        }
        batch.query().await.map_err(Error::table)
    }

    /// The keys of host names, in the order asked for.
    pub async fn table_hosts(&self, names: &[String]) -> Result<Vec<TableHost>, Error> {
        let (mut hosts, mut pace) = (Vec::with_capacity(names.len()), host_pace());
        while hosts.len() < names.len() {
            hosts.extend(self.table_hosts_part(&names[hosts.len()..], &mut pace).await?);
        }
        Ok(hosts)
    }

    /// Those of `names` that the table has. Asks one question for each, so it costs little if most do not exist.
    pub(crate) async fn existing_hosts(&self, names: Vec<String>) -> Result<Vec<String>, Error> {
        let mut existing = Vec::new();
        for part in names.chunks(MAX_HOSTS) {
            let mut batch = self.routes.batch();
            for name in part {
                let keys = [key::logkey(name), key::policy(name)];
                batch.add("EXISTS", &key::instances(name), &keys[..]);
            }
            let found: Vec<u64> = batch.query().await.map_err(Error::table)?;
            existing
                .extend(part.iter().zip(found).filter(|(_, keys)| *keys > 0).map(|(name, _)| name.clone()));
        }
        Ok(existing)
    }

    /// The same of the first of `names`: as many as `pace` has, and one at least.
    pub async fn table_hosts_part(&self, names: &[String], pace: &mut Pace) -> Result<Vec<TableHost>, Error> {
        let names = &names[..names.len().min(pace.count())];
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.routes.batch();
        let none: &[&str] = &[];
        for name in names {
            batch.add("SMEMBERS", &key::instances(name), none);
            batch.add("SMEMBERS", &key::instance_ids(name), none);
            batch.add("GET", &key::logkey(name), none);
            batch.add("GET", &key::policy(name), none);
        }
        let replies: Vec<Value> = batch.query().await.map_err(Error::table)?;
        let unreadable = |_| Error::Reply { script: "table_hosts", reply: "unreadable".to_owned() };
        let read = |keys: &[Value]| {
            type Row = (Vec<String>, Vec<String>, Option<String>, Option<String>);
            let row = from_redis_value::<Row>(Value::Array(keys.to_vec()));
            let (mut addresses, mut instance_ids, log_key, policy) = row.map_err(unreadable)?;
            addresses.sort_unstable();
            instance_ids.sort_unstable();
            Ok(TableHost { addresses, instance_ids, log_key, policy })
        };
        let hosts = replies.chunks(4).map(read).collect::<Result<Vec<_>, Error>>()?;
        pace.read(hosts.len(), hosts.iter().map(TableHost::bytes).sum());
        Ok(hosts)
    }

    /// The owners of these addresses, and each owner's version type and state.
    pub(crate) async fn owners(&self, addresses: &[String]) -> Result<HashMap<String, Owner>, Error> {
        if addresses.is_empty() {
            return Ok(HashMap::new());
        }
        let command = self.routes.command("HMGET").key(&key::addresses()).arg(addresses);
        let ids: Vec<Option<String>> = command.query().await.map_err(Error::table)?;
        let owned: Vec<(&String, String)> =
            addresses.iter().zip(ids).filter_map(|(address, id)| Some((address, id?))).collect();
        let ids = owned.iter().map(|(_, id)| id);
        let rows: Vec<(_, Option<String>)> = self.fields(ids, &["version_type_id", "state"]).await?;
        let owners = owned.into_iter().zip(rows).map(|((address, id), (version_type_id, state))| {
            (address.clone(), Owner { id, version_type_id, draining: state.as_deref() == Some("draining") })
        });
        Ok(owners.collect())
    }

    /// One step of a walk over all keys: the next cursor, and what it found that matches `pattern`.
    pub async fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), Error> {
        let command =
            self.routes.command("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
        command.query().await.map_err(Error::table)
    }
}

fn applied(reply: &Reply) -> Result<Applied, Error> {
    Ok(match reply.word()?.as_str() {
        "done" => {
            let displaced: String = reply.at(3)?;
            Applied::Done {
                serial: reply.at(1)?,
                visible: reply.at(2)?,
                displaced: Some(displaced).filter(|id| !id.is_empty()),
            }
        }
        "same" => Applied::Same { serial: reply.at(1)? },
        "gone" => Applied::Gone { serial: reply.at(1)? },
        "stale" => Applied::Stale { revision: reply.at(1)? },
        "superseded" => Applied::Superseded { by: reply.at(1)? },
        "early" => Applied::Early,
        _ => return Err(reply.unexpected()),
    })
}
