//! The configuration: the default file, a configuration file, the environment and flags, merged by `signalbox_settings`.
//!
//! To add a key, add it to the default file of its section (`defaults.toml` here or next to the options of a subsystem)
//! and to the type of the section.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};
use signalbox_daemon::{RedisUrl, RootToken, door::ListenerName, traces};
use signalbox_settings::{Error, Flags, Loaded, Program, Settings, milliseconds, within};
use signalbox_store::{MAX_SHARDS, with_login};

use signalbox_acme as acme;
use signalbox_admin_api::{LimitOptions, http::session as login};
use signalbox_bus as bus;
use signalbox_machines as machines;
use signalbox_queues as queues;
use signalbox_route_table::{Network, OwnAddresses, Reserved, UnixFolder};
use signalbox_seal::Keys;
use signalbox_sequencer as sequencer;

/// The command line.
#[derive(Debug, clap::Parser)]
#[command(name = "signalbox-pacemaker", version, about = "The control plane of Signalbox")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) settings: Flags<Config>,
    /// Print the OpenAPI document and exit
    #[arg(long)]
    pub(crate) print_openapi: bool,
}

/// Everything the daemon needs to know.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) names: Vec<ListenerName>,
    pub(crate) metrics_networks: Vec<Network>,
    pub(crate) root_token: RootToken,
    #[serde(default = "host_name", deserialize_with = "node")]
    pub(crate) node: String,
    pub(crate) installation: String,
    pub(crate) instance_networks: Vec<Network>,
    /// Without those that other keys name; see [`crate::own_addresses`].
    pub(crate) reserved_addresses: Vec<Reserved>,
    pub(crate) edge_addresses: Vec<Reserved>,
    edge_key_file: Option<PathBuf>,
    /// The keys that encrypt certificates' private keys; empty without a key file.
    #[serde(skip)]
    pub(crate) edge_keys: Keys,
    pub(crate) proxy_secret: Option<RootToken>,
    #[serde(deserialize_with = "within::<_, _, 16, 1_000_000>")]
    pub(crate) connections: usize,
    pub(crate) login: login::Options,
    pub(crate) limits: LimitOptions,
    pub(crate) audit: Audit,
    pub(crate) log: String,
    pub(crate) traces: traces::Options,
    pub(crate) redis: Redis,
    pub(crate) routing: Routing,
    pub(crate) bus: bus::Options,
    pub(crate) queues: queues::Options,
    pub(crate) sequencer: sequencer::Options,
    pub(crate) machines: machines::Options,
    pub(crate) acme: acme::Options,
}

/// The Redis servers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redis {
    pub(crate) routes: RedisUrl,
    pub(crate) stats: RedisUrl,
    pub(crate) fabric: RedisUrl,
    user: String,
    password_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    pub(crate) routes_replicas: Vec<RedisUrl>,
    #[serde(deserialize_with = "within::<_, _, 1, { MAX_SHARDS as u64 }>")]
    pub(crate) fabric_shards: usize,
}

impl Redis {
    /// The URL of one of the servers, with the common login.
    pub(crate) fn login(&self, server: &RedisUrl) -> String {
        with_login(server.as_str(), &self.user, self.password_file.as_deref(), self.ca_file.as_deref())
    }
}

/// The audit log.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Audit {
    #[serde(deserialize_with = "within::<_, _, 1_000, 100_000_000>")]
    pub(crate) records: usize,
}

/// The background work on the route table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Routing {
    #[serde(rename = "reconcile_interval_ms", deserialize_with = "milliseconds::<_, 10, 3_600_000>")]
    pub(crate) reconcile_interval: Duration,
    #[serde(rename = "sweep_interval_ms", deserialize_with = "milliseconds::<_, 10, 3_600_000>")]
    pub(crate) sweep_interval: Duration,
    #[serde(rename = "sweep_gap_ms", deserialize_with = "milliseconds::<_, 10, 3_600_000>")]
    pub(crate) sweep_gap: Duration,
    pub(crate) unix_folders: Vec<UnixFolder>,
    pub(crate) check_local: bool,
}

impl Settings for Config {
    const PROGRAM: Program = Program {
        name: "signalbox-pacemaker",
        prefix: "SIGNALBOX_PACEMAKER_",
        defaults: &[
            include_str!("defaults.toml"),
            signalbox_admin_api::DEFAULTS,
            bus::Options::DEFAULTS,
            sequencer::Options::DEFAULTS,
            queues::Options::DEFAULTS,
            machines::Options::DEFAULTS,
            acme::Options::DEFAULTS,
            traces::Options::DEFAULTS,
        ],
        file: None,
        flags: &[
            ("listen", "listen"),
            ("root-token-file", "root_token_file"),
            ("node", "node"),
            ("redis-routes", "redis.routes"),
            ("redis-stats", "redis.stats"),
            ("redis-fabric", "redis.fabric"),
            ("log", "log"),
        ],
    };
}

impl Config {
    /// Completes the settings with what they refer to.
    pub(crate) fn complete(loaded: Loaded<Self>) -> Result<Self, Error> {
        let mut config = loaded.settings;
        if let Some(path) = &config.edge_key_file {
            config.edge_keys = Keys::read(path).map_err(|why| loaded.places.error("edge_key_file", why))?;
        }
        config.bus.egress(OwnAddresses::default(), signalbox_egress::Budget::default()).check().map_err(
            |error| {
                let why = format!("{:#}", anyhow::Error::from(error));
                loaded.places.error("bus.ca_file", why)
            },
        )?;
        config.acme.check().map_err(|(key, why)| loaded.places.error(key, why))?;
        // The keys of a single shard have no tag, so a cluster would store them in several slots, and scripts need one.
        if config.redis.fabric.as_str().contains("+cluster://") && config.redis.fabric_shards == 1 {
            let why = "must be at least 2 if redis.fabric is a cluster; 16 suits most clusters";
            return Err(loaded.places.error("redis.fabric_shards", why));
        }
        Ok(config)
    }
}

fn node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let node = String::deserialize(deserializer)?;
    let is_bad = |char: char| char.is_whitespace() || char.is_control();
    if node.is_empty() || node.len() > 128 || node.contains(is_bad) {
        return Err(D::Error::custom("must be 1 to 128 characters without spaces"));
    }
    Ok(node)
}

fn host_name() -> String {
    let name = signalbox_settings::host_name();
    if name.is_empty() { "pacemaker".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use signalbox_settings::{disagreements, load};

    use super::*;

    const TOKEN: &str = "root_token=0123456789abcdef0123456789abcdef";

    fn set(flags: &[&str]) -> Result<Config, String> {
        let flags = flags.iter().flat_map(|flag| ["--set", flag]);
        let args = Args::parse_from(["signalbox-pacemaker"].into_iter().chain(flags));
        let config = args.settings.load().and_then(Config::complete);
        config.map_err(|error| error.to_string())
    }

    #[test]
    fn the_default_file_and_the_types_have_the_same_keys() {
        assert_eq!(disagreements::<Config>(), [""; 0]);
    }

    #[test]
    fn the_defaults_and_a_token_are_a_configuration() {
        let config = set(&[TOKEN]).unwrap();
        assert_eq!(config.listen.port(), 8700);
        assert_eq!(config.instance_networks.len(), 6);
        assert!(config.routing.unix_folders.is_empty() && !config.routing.check_local);
        let own = crate::own_addresses::of(&config);
        for internal in ["127.0.0.1:6404", "127.0.0.1:6402", "127.0.0.1:8700", "127.0.0.1:8081"] {
            assert!(own.forbids_call(internal.parse().unwrap()), "{internal}");
        }
        assert!(own.forbids_instance("127.0.0.1:8080".parse().unwrap()));
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("p.toml");
        for (text, place) in [
            ("listen = 'nowhere'", "p.toml:2:10: listen: "),
            ("[redis]\n  routes = 'http://x/'", "p.toml:3:12: redis.routes: must be redis://"),
            (
                "instance_networks = ['10.0.0.0/8',\n 'everything']",
                "p.toml:3:2: instance_networks: `everything`",
            ),
            ("instance_networks = ['unix']", "p.toml:2:22: instance_networks: `unix` is not a network"),
            (
                "[routing]\nunix_folders = ['run']",
                "p.toml:3:17: routing.unix_folders: `run` is not an absolute",
            ),
            ("[bus]\nallow_networks = ['everything']", "p.toml:3:19: bus.allow_networks: "),
            ("edge_key_file = '/nowhere/key'", "p.toml:2:17: edge_key_file: /nowhere/key cannot be read"),
            ("[bus]\nca_file = '/nowhere/ca.pem'", "p.toml:3:11: bus.ca_file: "),
            ("node = 'a b'", "p.toml:2:8: node: must be 1 to 128 characters"),
        ] {
            std::fs::write(&file, format!("root_token = '0123456789abcdef0123456789abcdef'\n{text}\n"))
                .unwrap();
            let sources = signalbox_settings::Sources { file: Some(file.clone()), ..Default::default() };
            let error = load(&sources).and_then(Config::complete).unwrap_err().to_string();
            assert!(error.contains(place), "{text}: {error}");
        }
    }

    #[test]
    fn a_number_out_of_its_range_is_reported_with_the_range() {
        for (flag, range) in [
            ("bus.workers=0", "between 1 and 10000"),
            ("bus.memory_percent=101", "between 1 and 100"),
            ("queues.pull_messages=0", "between 1 and 1000"),
            ("sequencer.quantum=0", "between 1 and 1000000"),
            ("machines.page=0", "between 1 and 10000"),
            ("routing.sweep_gap_ms=9", "between 10 and 3600000"),
            ("redis.fabric_shards=65", "between 1 and 64"),
        ] {
            let key = flag.split('=').next().unwrap();
            assert_eq!(set(&[TOKEN, flag]).unwrap_err(), format!("--set {key}: must be {range}"));
        }
    }

    #[test]
    fn a_fabric_of_several_nodes_reserves_them_all() {
        let fabric = "redis.fabric=redis+cluster://u:p@10.0.0.1:7000,10.0.0.2:7000/";
        let config = set(&[TOKEN, fabric, "redis.fabric_shards=4"]).unwrap();
        assert_eq!(config.redis.fabric_shards, 4);
        for node in ["10.0.0.1:7000", "10.0.0.2:7000"] {
            let own = crate::own_addresses::of(&config);
            assert!(own.forbids_instance(node.parse().unwrap()), "{node}");
        }
    }

    #[test]
    fn a_cluster_needs_several_shards() {
        let error = set(&[TOKEN, "redis.fabric=rediss+cluster://10.0.0.1:7000/"]).unwrap_err();
        assert!(error.contains("redis.fabric_shards: must be at least 2"), "{error}");
    }

    #[test]
    fn a_root_token_is_needed_and_long_enough() {
        assert!(set(&[]).unwrap_err().starts_with("root_token: is not set"));
        let error = set(&["root_token=short"]).unwrap_err();
        assert_eq!(error, "--set root_token: must be at least 32 visible ASCII characters without a colon");
    }
}
