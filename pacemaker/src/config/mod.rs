//! The configuration: defaults, then a file, then the environment, then flags.
//!
//! Each layer is a [`Layer`], in which everything is optional; they are laid over each other and must then be
//! complete. Values are checked where they are read, so a mistake in a file is reported with its line and column.

mod bus;
mod layer;
mod machines;
mod queues;
mod sequencer;

use std::{net::SocketAddr, path::Path, time::Duration};

pub(crate) use signalbox_daemon::settings::Error;
use signalbox_daemon::{
    RedisUrl, RootToken,
    settings::{self, required},
    traces,
};

use signalbox_store::MAX_SHARDS;

pub(crate) use layer::{Args, Layer};

use signalbox_bus::Options;
use signalbox_certificates::Keys;
use signalbox_machines as machines_room;
use signalbox_queues as queues_room;
use signalbox_route_table::{Network, Reserved};
use signalbox_sequencer as sequencer_room;

/// The commented default file, which is the reference of all keys.
pub(crate) const DEFAULTS: &str = include_str!("defaults.toml");

/// Everything the daemon needs to know, checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) root_token: RootToken,
    pub(crate) node: String,
    pub(crate) redis_routes: RedisUrl,
    pub(crate) redis_stats: RedisUrl,
    pub(crate) redis_fabric: RedisUrl,
    pub(crate) fabric_shards: usize,
    pub(crate) instance_networks: Vec<Network>,
    pub(crate) reserved_addresses: Vec<Reserved>,
    /// What private keys of certificates are encrypted with; empty without a key file.
    pub(crate) edge_keys: Keys,
    pub(crate) log: String,
    pub(crate) traces: traces::Options,
    pub(crate) reconcile_interval: Duration,
    pub(crate) sweep_interval: Duration,
    pub(crate) sweep_gap: Duration,
    pub(crate) bus: Options,
    /// Queues.
    pub(crate) queues: queues_room::Options,
    /// The sequencer.
    pub(crate) sequencer: sequencer_room::Options,
    /// State machines.
    pub(crate) machines: machines_room::Options,
    /// Values of the environment variables that definitions may name.
    pub(crate) machine_environment: std::collections::BTreeMap<String, String>,
}

impl Config {
    /// Lays the layers over each other: `args` (flags over environment), then `file`, then the defaults.
    pub(crate) fn load(args: &Args) -> Result<Self, Error> {
        let mut layer = args.layer();
        if let Some(path) = &args.config {
            layer = layer.or(Layer::parse(&settings::read(path)?, path)?);
        }
        let defaults = Layer::parse(DEFAULTS, Path::new("defaults"))?;
        Self::complete(layer.or(defaults))
    }

    fn complete(layer: Layer) -> Result<Self, Error> {
        let root_token = RootToken::from_settings(layer.root_token, layer.root_token_file.as_deref())?
            .ok_or_else(|| {
                Error::value(
                    "root_token",
                    "set root_token or root_token_file: without it nobody could use the API",
                )
            })?;
        let node = layer.node.unwrap_or_else(host_name);
        if node.is_empty() || node.len() > 128 || node.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            let message = "must be 1 to 128 characters without spaces".to_owned();
            return Err(Error::Value { key: "node", message });
        }
        let listen = required("listen", layer.listen)?;
        let redis_routes = required("redis.routes", layer.redis.routes)?;
        let redis_stats = required("redis.stats", layer.redis.stats)?;
        let redis_fabric = required("redis.fabric", layer.redis.fabric)?;
        let fabric_shards = required("redis.fabric_shards", layer.redis.fabric_shards)?;
        if !(1..=MAX_SHARDS).contains(&fabric_shards) {
            let message = format!("must be between 1 and {MAX_SHARDS}");
            return Err(Error::Value { key: "redis.fabric_shards", message });
        }
        let mut reserved_addresses = required("reserved_addresses", layer.reserved_addresses)?;
        reserved_addresses.push(Reserved::Address(listen));
        reserved_addresses.extend(
            [&redis_routes, &redis_stats, &redis_fabric]
                .into_iter()
                .flat_map(|url| Reserved::redis(url.as_str())),
        );
        let interval = |key, value: Option<u64>| {
            let ms = required(key, value)?;
            let message = "must be between 10 and 3,600,000 milliseconds".to_owned();
            (10..=3_600_000)
                .contains(&ms)
                .then(|| Duration::from_millis(ms))
                .ok_or(Error::Value { key, message })
        };
        let machines = layer.machines.complete()?;
        let machine_environment = machines
            .environment
            .iter()
            .filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)))
            .collect();
        Ok(Self {
            listen,
            root_token,
            node,
            redis_routes,
            redis_stats,
            redis_fabric,
            fabric_shards,
            instance_networks: required("instance_networks", layer.instance_networks)?,
            reserved_addresses,
            edge_keys: match &layer.edge_key_file {
                Some(path) => Keys::read(path).map_err(|why| Error::value("edge_key_file", why))?,
                None => Keys::default(),
            },
            log: required("log", layer.log)?,
            traces: layer.traces.complete()?,
            reconcile_interval: interval(
                "routing.reconcile_interval_ms",
                layer.routing.reconcile_interval_ms,
            )?,
            sweep_interval: interval("routing.sweep_interval_ms", layer.routing.sweep_interval_ms)?,
            sweep_gap: interval("routing.sweep_gap_ms", layer.routing.sweep_gap_ms)?,
            bus: layer.bus.complete()?,
            queues: layer.queues.complete()?,
            sequencer: layer.sequencer.complete()?,
            machines,
            machine_environment,
        })
    }
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "pacemaker".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str) -> Result<Config, Error> {
        let defaults = Layer::parse(DEFAULTS, Path::new("defaults")).unwrap();
        Config::complete(Layer::parse(file, Path::new("p.toml"))?.or(defaults))
    }

    #[test]
    fn the_defaults_and_a_token_are_a_configuration() {
        let config = load("root_token = '0123456789abcdef'").unwrap();
        assert_eq!(config.listen.port(), 8700);
        assert_eq!(config.instance_networks.len(), 7);
        assert!(config.reserved_addresses.contains(&Reserved::Address("127.0.0.1:6404".parse().unwrap())));
    }

    #[test]
    fn a_mistake_is_reported_with_its_place() {
        for (file, place) in [
            ("root_token = '0123456789abcdef'\nlisten = 'nowhere'", "p.toml:2:10: "),
            ("lisen = '127.0.0.1:1'", "p.toml:1:1: unknown field `lisen`"),
            ("[redis]\n  routes = 'http://x/'", "p.toml:2:12: "),
            ("instance_networks = ['10.0.0.0/8',\n 'everything']", "p.toml:1:21: `everything`"),
            ("listen = ", "p.toml:1:"),
        ] {
            let error = load(file).unwrap_err().to_string();
            assert!(error.starts_with(place), "{file}: {error}");
        }
    }

    #[test]
    fn a_fabric_of_several_nodes_reserves_them_all() {
        let file = "root_token = '0123456789abcdef'\n[redis]\nfabric_shards = 4\n\
                    fabric = 'redis+cluster://u:p@10.0.0.1:7000,10.0.0.2:7000/'";
        let config = load(file).unwrap();
        assert_eq!(config.fabric_shards, 4);
        for node in ["10.0.0.1:7000", "10.0.0.2:7000"] {
            assert!(config.reserved_addresses.contains(&Reserved::Address(node.parse().unwrap())), "{node}");
        }
        let error = load(&file.replace("= 4", "= 65")).unwrap_err().to_string();
        assert_eq!(error, "redis.fabric_shards: must be between 1 and 64");
    }

    #[test]
    fn a_root_token_is_needed_once_and_long_enough() {
        assert!(load("").unwrap_err().to_string().contains("root_token"));
        assert!(load("root_token = 'short'").is_err());
        assert!(load("root_token = '0123456789abcdef'\nroot_token_file = 'x'").is_err());
    }

    #[test]
    fn what_comes_first_wins() {
        let over = Layer::parse("node = 'a'\n[redis]\nstats = 'redis://h:1/'", Path::new("a")).unwrap();
        let under =
            Layer::parse("node = 'b'\nlog = 'warn'\n[redis]\nfabric = 'redis://h:2/'", Path::new("b"));
        let both = over.or(under.unwrap());
        assert_eq!(both.node.as_deref(), Some("a"));
        assert_eq!(both.log.as_deref(), Some("warn"));
        assert!(both.redis.stats.is_some() && both.redis.fabric.is_some() && both.redis.routes.is_none());
    }
}
