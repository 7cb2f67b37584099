//! One source of configuration, in which every key may be missing.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::Parser;
use serde::Deserialize;

use signalbox_daemon::{
    RedisUrl,
    settings::{self, Error},
    traces,
};

use super::{bus::BusLayer, machines::MachinesLayer, queues::QueuesLayer, sequencer::SequencerLayer};
use signalbox_route_table::{Network, Reserved};

/// The command line; `env` makes each flag an environment variable as well, below the flag itself.
#[derive(Debug, Parser)]
#[command(name = "signalbox-pacemaker", version, about = "The control plane of Signalbox")]
pub(crate) struct Args {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_PACEMAKER_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Print the commented default configuration and exit
    #[arg(long)]
    pub(crate) print_defaults: bool,
    /// Print the OpenAPI document and exit
    #[arg(long)]
    pub(crate) print_openapi: bool,
    /// Address of the HTTP API
    #[arg(long, value_name = "IP:PORT", env = "SIGNALBOX_PACEMAKER_LISTEN")]
    listen: Option<SocketAddr>,
    /// The root token (prefer the file: a command line is visible to every user of the machine)
    #[arg(long, value_name = "TOKEN", env = "SIGNALBOX_PACEMAKER_ROOT_TOKEN", hide_env_values = true)]
    root_token: Option<String>,
    /// File that holds the root token
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_PACEMAKER_ROOT_TOKEN_FILE")]
    root_token_file: Option<PathBuf>,
    /// Name of this pacemaker
    #[arg(long, env = "SIGNALBOX_PACEMAKER_NODE")]
    node: Option<String>,
    /// Redis that holds the route table
    #[arg(long, value_name = "URL", env = "SIGNALBOX_PACEMAKER_REDIS_ROUTES", hide_env_values = true)]
    redis_routes: Option<RedisUrl>,
    /// Redis that holds the statistics
    #[arg(long, value_name = "URL", env = "SIGNALBOX_PACEMAKER_REDIS_STATS", hide_env_values = true)]
    redis_stats: Option<RedisUrl>,
    /// Redis that holds the desired state
    #[arg(long, value_name = "URL", env = "SIGNALBOX_PACEMAKER_REDIS_FABRIC", hide_env_values = true)]
    redis_fabric: Option<RedisUrl>,
    /// Shards of the fabric: the number it was first used with
    #[arg(long, value_name = "N", env = "SIGNALBOX_PACEMAKER_REDIS_FABRIC_SHARDS")]
    redis_fabric_shards: Option<usize>,
    /// Networks in which instances may be registered
    #[arg(long, value_name = "CIDR", value_delimiter = ',', env = "SIGNALBOX_PACEMAKER_INSTANCE_NETWORKS")]
    instance_networks: Option<Vec<Network>>,
    /// Addresses that are never an instance
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        env = "SIGNALBOX_PACEMAKER_RESERVED_ADDRESSES"
    )]
    reserved_addresses: Option<Vec<Reserved>>,
    /// File of the keys that certificates' private keys are encrypted with
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_PACEMAKER_EDGE_KEY_FILE")]
    edge_key_file: Option<PathBuf>,
    /// Tracing filter
    #[arg(long, env = "SIGNALBOX_PACEMAKER_LOG")]
    log: Option<String>,
    /// OpenTelemetry collector that spans are sent to (OTLP over HTTP)
    #[arg(long, value_name = "URL", env = "SIGNALBOX_PACEMAKER_TRACES_ENDPOINT")]
    traces_endpoint: Option<traces::Endpoint>,
    /// Share of the traces beginning here that are recorded
    #[arg(long, value_name = "0..1", env = "SIGNALBOX_PACEMAKER_TRACES_RATIO")]
    traces_ratio: Option<traces::Ratio>,
    /// Interval of the reconciler
    #[arg(long, value_name = "MS", env = "SIGNALBOX_PACEMAKER_ROUTING_RECONCILE_INTERVAL_MS")]
    routing_reconcile_interval_ms: Option<u64>,
    /// Interval of the lease sweeper
    #[arg(long, value_name = "MS", env = "SIGNALBOX_PACEMAKER_ROUTING_SWEEP_INTERVAL_MS")]
    routing_sweep_interval_ms: Option<u64>,
    /// Silence of the sweeper after which leases get a full period again
    #[arg(long, value_name = "MS", env = "SIGNALBOX_PACEMAKER_ROUTING_SWEEP_GAP_MS")]
    routing_sweep_gap_ms: Option<u64>,
    #[command(flatten)]
    bus: BusLayer,
    #[command(flatten)]
    queues: QueuesLayer,
    #[command(flatten)]
    sequencer: SequencerLayer,
    #[command(flatten)]
    machines: MachinesLayer,
}

impl Args {
    /// The keys that were given by flag or environment.
    pub(super) fn layer(&self) -> Layer {
        Layer {
            listen: self.listen,
            root_token: self.root_token.clone(),
            root_token_file: self.root_token_file.clone(),
            node: self.node.clone(),
            instance_networks: self.instance_networks.clone(),
            reserved_addresses: self.reserved_addresses.clone(),
            edge_key_file: self.edge_key_file.clone(),
            log: self.log.clone(),
            traces: traces::Layer { endpoint: self.traces_endpoint.clone(), ratio: self.traces_ratio },
            redis: RedisLayer {
                routes: self.redis_routes.clone(),
                stats: self.redis_stats.clone(),
                fabric: self.redis_fabric.clone(),
                fabric_shards: self.redis_fabric_shards,
            },
            routing: RoutingLayer {
                reconcile_interval_ms: self.routing_reconcile_interval_ms,
                sweep_interval_ms: self.routing_sweep_interval_ms,
                sweep_gap_ms: self.routing_sweep_gap_ms,
            },
            bus: self.bus.clone(),
            queues: self.queues.clone(),
            sequencer: self.sequencer.clone(),
            machines: self.machines.clone(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Layer {
    pub(super) listen: Option<SocketAddr>,
    pub(super) root_token: Option<String>,
    pub(super) root_token_file: Option<PathBuf>,
    pub(super) node: Option<String>,
    pub(super) instance_networks: Option<Vec<Network>>,
    pub(super) reserved_addresses: Option<Vec<Reserved>>,
    pub(super) edge_key_file: Option<PathBuf>,
    pub(super) log: Option<String>,
    #[serde(default)]
    pub(super) traces: traces::Layer,
    #[serde(default)]
    pub(super) redis: RedisLayer,
    #[serde(default)]
    pub(super) routing: RoutingLayer,
    #[serde(default)]
    pub(super) bus: BusLayer,
    #[serde(default)]
    pub(super) queues: QueuesLayer,
    #[serde(default)]
    pub(super) sequencer: SequencerLayer,
    #[serde(default)]
    pub(super) machines: MachinesLayer,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisLayer {
    pub(super) routes: Option<RedisUrl>,
    pub(super) stats: Option<RedisUrl>,
    pub(super) fabric: Option<RedisUrl>,
    pub(super) fabric_shards: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoutingLayer {
    pub(super) reconcile_interval_ms: Option<u64>,
    pub(super) sweep_interval_ms: Option<u64>,
    pub(super) sweep_gap_ms: Option<u64>,
}

impl Layer {
    /// Reads a file's text; `path` is for the error message.
    pub(super) fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        settings::parse(text, path)
    }

    /// Fills what is missing from `under`. A token in either form hides both forms below it.
    pub(super) fn or(self, under: Self) -> Self {
        let (root_token, root_token_file) = match (self.root_token, self.root_token_file) {
            (None, None) => (under.root_token, under.root_token_file),
            given => given,
        };
        Self {
            listen: self.listen.or(under.listen),
            root_token,
            root_token_file,
            node: self.node.or(under.node),
            instance_networks: self.instance_networks.or(under.instance_networks),
            reserved_addresses: self.reserved_addresses.or(under.reserved_addresses),
            edge_key_file: self.edge_key_file.or(under.edge_key_file),
            log: self.log.or(under.log),
            traces: self.traces.or(under.traces),
            redis: RedisLayer {
                routes: self.redis.routes.or(under.redis.routes),
                stats: self.redis.stats.or(under.redis.stats),
                fabric: self.redis.fabric.or(under.redis.fabric),
                fabric_shards: self.redis.fabric_shards.or(under.redis.fabric_shards),
            },
            routing: RoutingLayer {
                reconcile_interval_ms: self
                    .routing
                    .reconcile_interval_ms
                    .or(under.routing.reconcile_interval_ms),
                sweep_interval_ms: self.routing.sweep_interval_ms.or(under.routing.sweep_interval_ms),
                sweep_gap_ms: self.routing.sweep_gap_ms.or(under.routing.sweep_gap_ms),
            },
            bus: self.bus.or(under.bus),
            queues: self.queues.or(under.queues),
            sequencer: self.sequencer.or(under.sequencer),
            machines: self.machines.or(under.machines),
        }
    }
}
