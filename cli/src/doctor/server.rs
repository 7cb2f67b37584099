//! A Redis server, asked directly: INFO says everything that matters, and its clock is asked for.

use std::{collections::BTreeMap, time::Duration};

use signalbox_stack::{Description, Probe};
use signalbox_store::{FabricRole, Options, Redis, Role, RoutesMasterRole, RoutesReplicaRole, StatsRole};

/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// A server's role and address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) role: &'static str,
    pub(super) url: String,
}

/// Which roles there are, with what is kept there.
pub(super) const ROUTES: &str = "routes";
pub(super) const REPLICA: &str = "routes-replica";
pub(super) const STATS: &str = "stats";
pub(super) const FABRIC: &str = "fabric";

impl Target {
    /// Reads `ROLE=URL`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (role, url) =
            text.split_once('=').ok_or("it is ROLE=URL, such as stats=redis://10.0.0.1:6403/")?;
        let role = [ROUTES, REPLICA, STATS, FABRIC].into_iter().find(|known| *known == role);
        let role = role.ok_or("the role is one of routes, routes-replica, stats, fabric")?;
        Ok(Self { role, url: url.to_owned() })
    }

    /// The servers of a system on this machine.
    pub(super) fn of(running: &Description) -> Vec<Self> {
        let target = |role, url: &String| Some(Self { role, url: url.clone() });
        let targets = running.parts.iter().filter_map(|part| match &part.probe {
            Probe::RoutesMaster(url) => target(ROUTES, url),
            Probe::RoutesReplica(url) => target(REPLICA, url),
            Probe::Stats(url) => target(STATS, url),
            Probe::Fabric(url) => target(FABRIC, url),
            _ => None,
        });
        targets.collect()
    }

    /// Looks at the server. `now_ms` is asked for close to the server's own clock.
    pub(super) async fn look(&self, now_ms: fn() -> i64) -> Result<Server, String> {
        match self.role {
            ROUTES => self.look_as::<RoutesMasterRole>(now_ms).await,
            REPLICA => self.look_as::<RoutesReplicaRole>(now_ms).await,
            STATS => self.look_as::<StatsRole>(now_ms).await,
            _ => self.look_as::<FabricRole>(now_ms).await,
        }
    }

    async fn look_as<R: Role>(&self, now_ms: fn() -> i64) -> Result<Server, String> {
        let options = Options { response_timeout: PATIENCE, connect_timeout: PATIENCE };
        let redis = Redis::<R>::open(&self.url, options).map_err(|error| error.to_string())?;
        let info: String = redis.command("INFO").query().await.map_err(|error| error.to_string())?;
        let before = now_ms();
        let clock = redis.now_ms().await.map_err(|error| error.to_string())?;
        // Its clock was read somewhere between the two.
        let here = i64::midpoint(before, now_ms());
        let skew_ms = i64::try_from(clock).unwrap_or(i64::MAX).saturating_sub(here);
        Ok(Server { role: self.role, url: self.url.clone(), info: read(&info), skew_ms })
    }
}

/// What a server says of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Server {
    pub(super) role: &'static str,
    pub(super) url: String,
    pub(super) info: BTreeMap<String, String>,
    /// How far its clock is before ours.
    pub(super) skew_ms: i64,
}

impl Server {
    pub(super) fn says(&self, field: &str) -> &str {
        self.info.get(field).map_or("", String::as_str)
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.says(field).parse().ok()
    }
}

fn read(info: &str) -> BTreeMap<String, String> {
    info.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_fields_and_values() {
        let info = read("# Server\r\nredis_version:7.0.15\r\n\r\naof_enabled:1\r\n");
        assert_eq!(info["redis_version"], "7.0.15");
        assert_eq!(info.len(), 2);
    }

    #[test]
    fn a_target_has_a_role_that_exists() {
        let target = Target::parse("stats=redis://h:1/").unwrap();
        assert_eq!((target.role, &*target.url), (STATS, "redis://h:1/"));
        for text in ["", "stats", "cache=redis://h/"] {
            Target::parse(text).unwrap_err();
        }
    }
}
