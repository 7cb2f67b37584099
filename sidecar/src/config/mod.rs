//! The configuration: the default file, a configuration file, the environment and flags, merged by `signalbox_settings`.
//!
//! To add a key, add it to `defaults.toml` and to [`Config`].

mod value;

use std::{net::SocketAddr, path::PathBuf};

use serde::Deserialize;
use signalbox_daemon::{RedisUrl, door::ListenerName, traces};
use signalbox_seal::Keys;
use signalbox_settings::{Error, Flags, Loaded, Program, Settings, within};
use signalbox_store::with_login;

pub use value::{EdgeUrl, Node, TokenDigest};
use value::{rotation, unless_empty};

/// The command line.
#[derive(Debug, clap::Parser)]
#[command(name = "signalbox-sidecar", version, about = "Count a router's access log, exactly once")]
pub struct Args {
    /// The configuration.
    #[command(flatten)]
    pub settings: Flags<Config>,
    /// Print the OpenAPI document and exit
    #[arg(long)]
    pub print_openapi: bool,
}

/// The configuration of the daemon. `defaults.toml` describes the keys.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct Config {
    pub listen: SocketAddr,
    pub names: Vec<ListenerName>,
    pub root_token_digest: Option<TokenDigest>,
    daemons_key_file: Option<PathBuf>,
    #[serde(skip)]
    pub daemons_keys: Keys,
    pub node: Node,
    pub access_log: PathBuf,
    pub nginx_pid_file: PathBuf,
    #[serde(deserialize_with = "unless_empty")]
    pub edge_url: Option<EdgeUrl>,
    pub snapshot_path: PathBuf,
    #[serde(deserialize_with = "rotation")]
    pub rotate_bytes: Option<u64>,
    /// At least one: a statistics Redis that lost its last second is served from a rotated file.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub rotate_keep: usize,
    #[serde(deserialize_with = "within::<_, _, 16, 1_000_000>")]
    pub connections: usize,
    pub log: String,
    pub traces: traces::Options,
    pub redis: Redis,
}

/// The Redis servers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct Redis {
    pub stats: RedisUrl,
    #[serde(deserialize_with = "unless_empty")]
    pub routes_replica: Option<RedisUrl>,
    #[serde(deserialize_with = "unless_empty")]
    pub routes_primary: Option<RedisUrl>,
    pub user: String,
    pub password_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
}

impl Redis {
    /// The URL of one of the servers, with the common login.
    pub fn login(&self, server: &RedisUrl) -> String {
        with_login(server.as_str(), &self.user, self.password_file.as_deref(), self.ca_file.as_deref())
    }
}

impl Settings for Config {
    const PROGRAM: Program = Program {
        name: "signalbox-sidecar",
        prefix: "SIGNALBOX_SIDECAR_",
        defaults: &[include_str!("defaults.toml"), traces::Options::DEFAULTS],
        file: None,
        flags: &[
            ("listen", "listen"),
            ("root-token-digest-file", "root_token_digest_file"),
            ("node", "node"),
            ("access-log", "access_log"),
            ("redis-stats", "redis.stats"),
            ("redis-routes-replica", "redis.routes_replica"),
            ("log", "log"),
        ],
    };
}

impl Config {
    /// Completes the settings with what they refer to.
    ///
    /// # Errors
    /// If the file of the keys cannot be used.
    pub fn complete(loaded: Loaded<Self>) -> Result<Self, Error> {
        let mut config = loaded.settings;
        if let Some(path) = &config.daemons_key_file {
            config.daemons_keys =
                Keys::read(path).map_err(|why| loaded.places.error("daemons_key_file", why))?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use signalbox_settings::{Sources, disagreements, load};

    use super::*;

    fn read(text: &str) -> Result<Config, Error> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("s.toml");
        std::fs::write(&file, text).unwrap();
        load(&Sources { file: Some(file), ..Sources::default() }).and_then(Config::complete)
    }

    #[test]
    fn the_default_file_and_the_types_have_the_same_keys() {
        assert_eq!(disagreements::<Config>(), [""; 0]);
    }

    #[test]
    fn the_defaults_and_a_node_are_a_configuration() {
        let config = read("node = 'n1'").unwrap();
        assert_eq!(config.listen.port(), 8701);
        assert_eq!(config.rotate_bytes, Some(256 << 20));
        assert!(config.edge_url.is_some() && config.redis.routes_replica.is_some());
        let off = read("node = 'n1'\nrotate_bytes = 0\nedge_url = ''\nredis.routes_replica = ''").unwrap();
        assert!(off.rotate_bytes.is_none() && off.edge_url.is_none() && off.redis.routes_replica.is_none());
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_place() {
        for (file, place) in [
            ("node = 'n1'\nlisten = 'nowhere'", "s.toml:2:10: listen: "),
            ("lisen = '127.0.0.1:1'", "s.toml:1:1: unknown field `lisen`"),
            ("[redis]\n  stats = 'http://x/'", "s.toml:2:11: redis.stats: must be redis://"),
            ("node = 'a:b'", "s.toml:1:8: node: must be 1 to 64"),
            ("edge_url = 'https://x/'", "s.toml:1:12: edge_url: must be http://"),
            ("rotate_bytes = -1", "s.toml:1:16: rotate_bytes: must be between 0"),
            ("rotate_bytes = 7", "s.toml:1:16: rotate_bytes: must be 0 for never, or at least 4096"),
            ("rotate_keep = 0", "s.toml:1:15: rotate_keep: must be between 1"),
            ("root_token_digest = 'short'", "s.toml:1:21: root_token_digest: must be the SHA-256"),
            (
                "root_token_digest = 'x'\nroot_token_digest_file = 'x'",
                "s.toml:2:26: root_token_digest: set either",
            ),
            ("root_token = '0123456789abcdef'", "s.toml:1:1: unknown field `root_token`"),
            ("names = ['http://x']", "names: `http://x` is not a host name"),
            (
                "node = 'n1'\ndaemons_key_file = '/nowhere/key'",
                "s.toml:2:20: daemons_key_file: /nowhere/key cannot",
            ),
        ] {
            let error = read(file).unwrap_err().to_string();
            assert!(error.contains(place), "{file}: {error}");
        }
        assert!(read("").unwrap_err().to_string().starts_with("node: is not set. Set it in"));
    }
}
