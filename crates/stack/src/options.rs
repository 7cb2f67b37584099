//! The options of a stack. The keys are those of `signalbox.toml`.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};
use signalbox_settings::within;

use crate::{Error, Part, Ports};

/// All options. [`Options::DEFAULTS`] describes the keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the default file describes the keys")]
pub struct Options {
    pub data_dir: PathBuf,
    #[serde(deserialize_with = "within::<_, _, 0, 65_535>")]
    pub port_offset: u16,
    pub restart: bool,
    pub ports: Ports,
    pub edge: EdgeOptions,
    pub redis: RedisOptions,
    pub pacemaker: toml::Table,
    pub sidecar: toml::Table,
    /// Ports of the caller's parts (see [`crate::Stack::add`]), which are checked together with the others.
    #[serde(skip)]
    pub others: Vec<OtherPort>,
}

/// A port of a part that is added to the stack.
#[derive(Debug, Clone)]
pub struct OtherPort {
    /// The part that listens there.
    pub part: Part,
    /// The key that sets it in `signalbox.toml`.
    pub key: String,
    /// The port on 127.0.0.1, before the offset.
    pub port: u16,
}

impl Options {
    /// The default file.
    pub const DEFAULTS: &str = include_str!("defaults.toml");
}

impl Default for Options {
    #[expect(clippy::expect_used, reason = "both are part of the program, and a test reads them")]
    fn default() -> Self {
        toml::from_str(Self::DEFAULTS).expect("the default file is valid")
    }
}

/// The options of nginx.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the default file describes the keys")]
pub struct EdgeOptions {
    pub listen: String,
    pub admin_listen: String,
    pub binary: String,
    pub user: String,
    #[serde(deserialize_with = "within::<_, _, 0, 65_535>")]
    pub workers: u16,
    pub log: LogMode,
    pub files: PathBuf,
    pub nginx: BTreeMap<String, String>,
}

/// How nginx writes the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogMode {
    /// Each line is written immediately. A killed worker loses at most the line that it is writing.
    Exact,
    /// Lines are written in blocks, at least every 200 ms. A killed worker loses its block.
    Buffered,
}

/// The options of the Redis servers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the default file describes the keys")]
pub struct RedisOptions {
    pub binary: String,
    #[serde(deserialize_with = "within::<_, _, 1, 100>")]
    pub memory_percent: u8,
    pub fabric_fsync: Fsync,
}

/// Redis's `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fsync {
    /// Once per second. A power failure loses the last second. So does a kill while the disk stalls, because Redis then replies
    /// before it writes.
    Everysec,
    /// Before each reply. Nothing acknowledged is lost, at the cost of a disk write per reply.
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
    /// Adds the offset to the ports, and validates the options.
    ///
    /// # Errors
    /// Names the invalid key.
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
            *port =
                sum.ok_or_else(|| Error::option(&key, format!("{port} + {offset} is not a valid port")))?;
            if let Some(other) = taken.insert(*port, key.clone()) {
                return Err(Error::option(key, format!("{port} is also {other}")));
            }
        }
        for (key, address) in
            [("edge.listen", &self.edge.listen), ("edge.admin_listen", &self.edge.admin_listen)]
        {
            if address.parse::<std::net::IpAddr>().is_err() {
                return Err(Error::option(key, format!("{address:?} is not a valid IP address")));
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_parts_on_one_port_are_rejected_by_name() {
        let mut options = Options::default();
        options.ports.stats = 8080;
        assert_eq!(options.resolve().unwrap_err().to_string(), "ports.stats: 8080 is also ports.edge");
    }

    #[test]
    fn the_offset_moves_every_port_within_the_valid_range() {
        let moved = Options { port_offset: 1000, ..Options::default() }.resolve().unwrap();
        assert_eq!((moved.ports.edge, moved.ports.fabric), (9080, 7404));
        let beyond = Options { port_offset: 60_000, ..Options::default() }.resolve().unwrap_err();
        assert_eq!(beyond.to_string(), "ports.edge: 8080 + 60000 is not a valid port");
    }
}
