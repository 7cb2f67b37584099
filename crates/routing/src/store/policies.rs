//! Policies of hosts: as they are wanted, in the fabric, and as they stand, on the routes master.

use signalbox_store::{
    FabricRole, RoutesMasterRole, Script, Value,
    keys::{fabric, routes},
};

use super::{SHARED, Store, TableMark, desired::newest, reply::Reply};
use crate::Error;
use signalbox_route_table::{HostPolicy, Hostname, Policy};

static DESIRE_POLICY: Script<FabricRole> =
    Script::new("routing/desire_policy", include_str!("../scripts/desire_policy.lua"));
static ADOPT_POLICY: Script<FabricRole> =
    Script::new("routing/adopt_policy", include_str!("../scripts/adopt_policy.lua"));
static RULE: Script<RoutesMasterRole> =
    Script::composed("routing/rule", &[include_str!("../scripts/rule.lua"), SHARED]);

/// How many policies one step of a walk brings, about.
const CHUNK: usize = 500;

/// What became of a change to a policy that is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PolicyOutcome {
    Accepted {
        revision: u64,
        table: TableMark,
    },
    /// It is wanted like that already; `outstanding` when that may not stand in the table yet.
    Same {
        outstanding: Option<u64>,
        table: TableMark,
    },
    /// Another than the caller has read.
    Changed,
    /// The fabric is empty or has lost changes; nothing may be written before a reconciliation.
    Behind,
}

/// What became of a policy's projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// It stands, now or already.
    Stands { serial: u64 },
    /// A later revision stands.
    Stale { revision: u64 },
    /// This is not the table that was meant, or it has lost changes.
    OtherTable,
    /// A key of another type is in the way.
    Blocked { key: String },
}

/// A policy as it stands in the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    /// 0 when the table never had one.
    pub(crate) revision: u64,
    /// Its JSON without the braces; nothing when it was taken away.
    members: Option<String>,
}

impl Rule {
    /// Whether there is one.
    pub(crate) fn stands(&self) -> bool {
        self.members.is_some()
    }
}

impl Store {
    /// The policy that is wanted of a host.
    pub async fn policy(&self, hostname: &Hostname) -> Result<Option<HostPolicy>, Error> {
        let command = self.fabric.command("HGET").key(&fabric::routes_policies()).arg(hostname.as_str());
        let text: Option<String> = command.query().await.map_err(Error::Fabric)?;
        text.map(|text| serde_json::from_str(&text).map_err(Error::Record)).transpose()
    }

    /// The policies that are wanted of these hosts, in the order asked for.
    pub(crate) async fn policies_of(
        &self,
        hostnames: &[&Hostname],
    ) -> Result<Vec<Option<HostPolicy>>, Error> {
        if hostnames.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = hostnames.iter().map(|hostname| hostname.as_str()).collect();
        let command = self.fabric.command("HMGET").key(&fabric::routes_policies()).arg(&names);
        let texts: Vec<Option<String>> = command.query().await.map_err(Error::Fabric)?;
        let read = |text: String| serde_json::from_str(&text).map_err(Error::Record);
        texts.into_iter().map(|text| text.map(read).transpose()).collect()
    }

    /// One step of a walk over all policies: the next cursor, and names with texts. A name may come twice.
    pub(crate) async fn policies(&self, cursor: u64) -> Result<(u64, Vec<(String, String)>), Error> {
        let command = self.fabric.command("HSCAN").key(&fabric::routes_policies()).arg(cursor);
        command.arg("COUNT").arg(CHUNK).query().await.map_err(Error::Fabric)
    }

    /// Whether a policy is wanted of each of these hosts, in the order asked for.
    pub(crate) async fn policies_wanted(&self, hostnames: &[String]) -> Result<Vec<bool>, Error> {
        if hostnames.is_empty() {
            return Ok(Vec::new());
        }
        let command = self.fabric.command("HMGET").key(&fabric::routes_policies()).arg(hostnames);
        let texts: Vec<Option<String>> = command.query().await.map_err(Error::Fabric)?;
        Ok(texts.into_iter().map(|text| text.is_some()).collect())
    }

    /// Changes what is wanted, nothing taking it away. With `expected` only if that revision is the present one; 0 is
    /// that of no policy, and takes away what stands in the table all the same.
    pub(crate) async fn desire_policy(
        &self,
        hostname: &Hostname,
        policy: Option<&Policy>,
        expected: Option<u64>,
    ) -> Result<PolicyOutcome, Error> {
        let json = policy.map(|policy| serde_json::to_string(policy).map_err(Error::Record)).transpose()?;
        let reply = DESIRE_POLICY
            .call()
            .key(&fabric::routes_policies())
            .key(&fabric::routes_hosts())
            .key(&fabric::routes_hosts_index())
            .key(&fabric::routes_revision())
            .key(&fabric::routes_unprojected())
            .key(&fabric::routes_table())
            .arg(hostname.as_str())
            .arg(json.as_deref().unwrap_or(""))
            .arg(self.floor())
            .arg(expected.map_or_else(String::new, |revision| revision.to_string()))
            .run::<Vec<Value>>(&self.fabric)
            .await
            .map_err(Error::Fabric)?;
        let reply = Reply::new("desire_policy", reply);
        let table = || {
            let lineage: String = reply.at(3)?;
            let epoch = newest(&lineage).unwrap_or("").to_owned();
            Ok::<_, Error>(TableMark { epoch, serial: reply.at(2)? })
        };
        match reply.word()?.as_str() {
            "accepted" => {
                let revision = reply.at(1)?;
                self.saw_revision(revision);
                Ok(PolicyOutcome::Accepted { revision, table: table()? })
            }
            "same" => {
                let outstanding = Some(reply.at(1)?).filter(|revision| *revision > 0);
                Ok(PolicyOutcome::Same { outstanding, table: table()? })
            }
            "changed" => Ok(PolicyOutcome::Changed),
            "regressed" | "uninitialised" => Ok(PolicyOutcome::Behind),
            _ => Err(reply.unexpected()),
        }
    }

    /// Takes over what the routes master knows better.
    pub(crate) async fn adopt_policy(
        &self,
        hostname: &str,
        before: Option<&str>,
        rule: &Rule,
    ) -> Result<bool, Error> {
        let text = rule.members.as_ref();
        let text = text.map(|members| format!("{{\"revision\":{},\"policy\":{{{members}}}}}", rule.revision));
        ADOPT_POLICY
            .call()
            .key(&fabric::routes_policies())
            .key(&fabric::routes_hosts())
            .key(&fabric::routes_hosts_index())
            .arg(hostname)
            .arg(before.unwrap_or(""))
            .arg(text.as_deref().unwrap_or(""))
            .run(&self.fabric)
            .await
            .map_err(Error::Fabric)
    }

    /// Brings a policy to the table, nothing taking it away. `mark` says which table is meant; none while it is being
    /// seeded.
    pub(crate) async fn rule(
        &self,
        hostname: &Hostname,
        revision: u64,
        policy: Option<&Policy>,
        mark: Option<&TableMark>,
    ) -> Result<Ruling, Error> {
        let json = policy.map(|policy| serde_json::to_string(policy).map_err(Error::Record)).transpose()?;
        let members = json.as_deref().and_then(|json| json.strip_prefix('{')?.strip_suffix('}'));
        let reply = RULE
            .call()
            .key(&routes::serial())
            .key(&routes::rules(hostname.as_str()))
            .key(&routes::revision())
            .key(&routes::epoch())
            .key(&routes::changes())
            .arg(hostname.as_str())
            .arg(revision)
            .arg(members.unwrap_or(""))
            .arg(u8::from(policy.is_some_and(|policy| policy.slow_start_ms.is_some())))
            .arg(u8::from(policy.is_some_and(|policy| policy.shares.is_some())))
            .arg(mark.map_or("", |mark| &mark.epoch))
            .arg(mark.map_or(0, |mark| mark.serial))
            .arg(self.clock())
            .run::<Vec<Value>>(&self.routes)
            .await
            .map_err(Error::table)?;
        let reply = Reply::new("rule", reply);
        Ok(match reply.word()?.as_str() {
            "done" | "same" => Ruling::Stands { serial: reply.at(1)? },
            "stale" => Ruling::Stale { revision: reply.at(1)? },
            "foreign" | "behind" => Ruling::OtherTable,
            "blocked" => Ruling::Blocked { key: reply.at(1)? },
            _ => return Err(reply.unexpected()),
        })
    }

    /// Notes a policy as outstanding without changing it.
    pub(crate) async fn mark_policy_outstanding(
        &self,
        hostname: &Hostname,
        revision: u64,
    ) -> Result<(), Error> {
        let command = self.fabric.command("ZADD").key(&fabric::routes_unprojected()).arg("NX");
        command.arg(revision).arg(format!("%{hostname}")).run().await.map_err(Error::Fabric)
    }

    /// Policies as they stand in the table, in the order asked for.
    pub(crate) async fn rules(&self, hostnames: &[String]) -> Result<Vec<Rule>, Error> {
        if hostnames.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.routes.batch();
        for hostname in hostnames {
            batch.add("HMGET", &routes::rules(hostname), &["revision", "members"]);
        }
        let rows: Vec<(Option<u64>, Option<String>)> = batch.query().await.map_err(Error::table)?;
        let rule = |(revision, members): (Option<u64>, _)| Rule { revision: revision.unwrap_or(0), members };
        Ok(rows.into_iter().map(rule).collect())
    }
}
