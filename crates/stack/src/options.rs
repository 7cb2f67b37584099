//! What can be chosen about a stack. The keys are those of `signalbox.toml`.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Part, Ports};

/// Everything that can be chosen. Its `Default` is what the commented default file says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Where state, logs and rendered configuration stand.
    pub data_dir: PathBuf,
    /// Added to every port of [`Ports`].
    pub port_offset: u16,
    /// Whether a part that ends by itself is started again.
    pub restart: bool,
    /// The ports.
    pub ports: Ports,
    /// nginx.
    pub edge: EdgeOptions,
    /// The four Redis servers.
    pub redis: RedisOptions,
    /// Settings of the pacemaker, passed on as they are.
    pub pacemaker: toml::Table,
    /// Settings of the sidecar, passed on as they are.
    pub sidecar: toml::Table,
    /// Ports of the caller's own parts (see [`crate::Stack::add`]), to be looked at together with the others.
    #[serde(skip)]
    pub others: Vec<OtherPort>,
}

/// A port of a part that is added to the stack.
#[derive(Debug, Clone)]
pub struct OtherPort {
    /// The part that listens there.
    pub part: Part,
    /// The option that chooses it, as in `signalbox.toml`.
    pub key: String,
    /// How to choose another one: flag, environment variable and key.
    pub remedy: String,
    /// The port on 127.0.0.1, before the offset.
    pub port: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from(".signalbox"),
            port_offset: 0,
            restart: true,
            ports: Ports::default(),
            edge: EdgeOptions::default(),
            redis: RedisOptions::default(),
            pacemaker: toml::Table::new(),
            sidecar: toml::Table::new(),
            others: Vec::new(),
        }
    }
}

/// What can be chosen about nginx.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EdgeOptions {
    /// The address on which applications are served.
    pub listen: String,
    /// The address on which operators are served.
    pub admin_listen: String,
    /// The nginx program; empty: nginx or openresty from the search path.
    pub binary: String,
    /// The user that workers run as when Signalbox is started by root; empty: `www-data` if it can reach the data
    /// folder.
    pub user: String,
    /// How many workers; 0: one for each core.
    pub workers: u16,
    /// Whether the access log is written at once or in blocks.
    pub log: LogMode,
    /// A folder with `nginx/` and `lua/` to use instead of the ones inside the program, for work on them.
    pub files: PathBuf,
    /// Names of the template `nginx/nginx.conf` that are to have another value.
    pub nginx: BTreeMap<String, String>,
}

impl Default for EdgeOptions {
    fn default() -> Self {
        Self {
            listen: "0.0.0.0".to_owned(),
            admin_listen: "127.0.0.1".to_owned(),
            binary: String::new(),
            user: String::new(),
            workers: 0,
            log: LogMode::Buffered,
            files: PathBuf::new(),
            nginx: BTreeMap::new(),
        }
    }
}

/// How nginx writes the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogMode {
    /// A line is in the file when the answer is out. A worker that is killed loses at most the line it is writing.
    Exact,
    /// Lines are written in blocks, at least every 200 ms; a worker that is killed loses the block it has.
    Buffered,
}

/// What can be chosen about the Redis servers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisOptions {
    /// The redis-server program; empty: from the search path.
    pub binary: String,
    /// When the fabric's append-only file reaches the disk.
    pub fabric_fsync: Fsync,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { binary: String::new(), fabric_fsync: Fsync::Everysec }
    }
}

/// Redis' `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fsync {
    /// Once a second: a machine that loses power loses the last second. So does a server that is killed in the moment
    /// when its disk stalls, because Redis then answers before it writes.
    Everysec,
    /// Before each reply: nothing acknowledged is lost, at the price of a disk write each time.
    Always,
}

impl Fsync {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Everysec => "everysec",
            Self::Always => "always",
        }
    }
}

impl Options {
    /// Adds the offset to the ports, and looks for what cannot work.
    ///
    /// # Errors
    /// Naming the key that has to change.
    pub fn resolve(mut self) -> Result<Self, Error> {
        let offset = std::mem::take(&mut self.port_offset);
        let ports = &mut self.ports;
        let all = [
            ("edge", &mut ports.edge),
            ("edge_tls", &mut ports.edge_tls),
            ("admin", &mut ports.admin),
            ("pacemaker", &mut ports.pacemaker),
            ("sidecar", &mut ports.sidecar),
            ("routes", &mut ports.routes),
            ("routes_replica", &mut ports.routes_replica),
            ("stats", &mut ports.stats),
            ("fabric", &mut ports.fabric),
        ];
        let all = all.into_iter().map(|(name, port)| (format!("ports.{name}"), port));
        let others = self.others.iter_mut().map(|other| (other.key.clone(), &mut other.port));
        let mut taken: BTreeMap<u16, String> = BTreeMap::new();
        for (key, port) in all.chain(others) {
            let sum = port.checked_add(offset).filter(|sum| *sum != 0);
            *port = sum.ok_or_else(|| Error::option(&key, format!("{port} + {offset} is no port")))?;
            if let Some(other) = taken.insert(*port, key.clone()) {
                return Err(Error::option(key, format!("{port} is also {other}")));
            }
        }
        for (key, address) in
            [("edge.listen", &self.edge.listen), ("edge.admin_listen", &self.edge.admin_listen)]
        {
            if address.parse::<std::net::IpAddr>().is_err() {
                return Err(Error::option(key, format!("{address:?} is no IP address")));
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_parts_on_one_port_are_refused_by_name() {
        let mut options = Options::default();
        options.ports.stats = 8080;
        assert_eq!(options.resolve().unwrap_err().to_string(), "ports.stats: 8080 is also ports.edge");
    }

    #[test]
    fn the_offset_moves_every_port_and_stops_at_the_end() {
        let moved = Options { port_offset: 1000, ..Options::default() }.resolve().unwrap();
        assert_eq!((moved.ports.edge, moved.ports.fabric), (9080, 7404));
        let beyond = Options { port_offset: 60_000, ..Options::default() }.resolve().unwrap_err();
        assert_eq!(beyond.to_string(), "ports.edge: 8080 + 60000 is no port");
    }
}
