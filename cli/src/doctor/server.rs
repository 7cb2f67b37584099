//! A Redis server, asked directly for its INFO and its clock.

use std::time::Duration;

use signalbox_diagnosis::redis::{Role, Server, State};
use signalbox_stack::{Description, Probe};
use signalbox_store::{
    FabricRole, Options, Redis, RoutesPrimaryRole, RoutesReplicaRole, StatsRole, redacted, without_login,
};

/// How long a server may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A server's role and address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) role: Role,
    pub(super) url: String,
}

impl Target {
    /// Reads `ROLE=URL`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (role, url) =
            text.split_once('=').ok_or("expected ROLE=URL, such as stats=redis://10.0.0.1:6403/")?;
        let role =
            Role::named(role).ok_or("expected one of the roles routes, routes-replica, stats, fabric")?;
        Ok(Self { role, url: url.to_owned() })
    }

    /// The servers of a system on this machine.
    pub(super) fn of(running: &Description) -> Vec<Self> {
        let target = |role, url: &String| Some(Self { role, url: url.clone() });
        let targets = running.parts.iter().filter_map(|part| match &part.probe {
            Probe::RoutesPrimary(url) => target(Role::Routes, url),
            Probe::RoutesReplica(url) => target(Role::RoutesReplica, url),
            Probe::Stats(url) => target(Role::Stats, url),
            Probe::Fabric(url) => target(Role::Fabric, url),
            _ => None,
        });
        targets.collect()
    }

    /// Its address for output, without a password.
    pub(super) fn address(&self) -> String {
        redacted(&self.url)
    }

    /// Reads the server's state. `now_ms` is called close to the reading of the server's own clock.
    pub(super) async fn read(&self, now_ms: fn() -> i64) -> Server {
        let state = match self.role {
            Role::Routes => self.read_as::<RoutesPrimaryRole>(now_ms).await,
            Role::RoutesReplica => self.read_as::<RoutesReplicaRole>(now_ms).await,
            Role::Stats => self.read_as::<StatsRole>(now_ms).await,
            Role::Fabric => self.read_as::<FabricRole>(now_ms).await,
        };
        Server { role: self.role, address: Some(self.address()), state }
    }

    async fn read_as<R: signalbox_store::Role>(&self, now_ms: fn() -> i64) -> Result<State, String> {
        let options = Options { response_timeout: TIMEOUT, connect_timeout: TIMEOUT };
        let redis = Redis::<R>::open(&self.url, options).map_err(|error| error.to_string())?;
        let info: String = redis.command("INFO").query().await.map_err(|error| error.to_string())?;
        let before = now_ms();
        let clock = redis.now_ms().await.map_err(|error| error.to_string())?;
        // Its clock was read somewhere between the two.
        let here = i64::midpoint(before, now_ms());
        let ahead = i64::try_from(clock).unwrap_or(i64::MAX).saturating_sub(here);
        let is_protected = is_protected::<R>(&without_login(&self.url), options).await;
        Ok(State { clock_ahead_ms: Some(ahead), is_protected, ..State::from_info(&info) })
    }
}

/// Whether the server rejects commands of a client that did not log in.
async fn is_protected<R: signalbox_store::Role>(url: &str, options: Options) -> Option<bool> {
    match Redis::<R>::open(url, options).ok()?.command("PING").run().await {
        Ok(()) => Some(false),
        Err(error) if error.code() == Some("NOAUTH") => Some(true),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_known_role() {
        let target = Target::parse("stats=redis://h:1/").unwrap();
        assert_eq!((target.role, &*target.url), (Role::Stats, "redis://h:1/"));
        for text in ["", "stats", "cache=redis://h/"] {
            Target::parse(text).unwrap_err();
        }
    }
}
