//! One source of configuration, in which any key may be missing.

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

use super::{EdgeUrl, Node, ReplicaUrl};

/// The command line. Each flag is also an environment variable, which the flag beats.
#[derive(Debug, Parser)]
#[command(name = "signalbox-sidecar", version, about = "Counts a router's access log, exactly once")]
pub struct Args {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_SIDECAR_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Print the commented default configuration and exit
    #[arg(long)]
    pub print_defaults: bool,
    /// Address of the HTTP API
    #[arg(long, value_name = "IP:PORT", env = "SIGNALBOX_SIDECAR_LISTEN")]
    listen: Option<SocketAddr>,
    /// The root token (prefer the file: every user of the machine sees command lines)
    #[arg(long, value_name = "TOKEN", env = "SIGNALBOX_SIDECAR_ROOT_TOKEN", hide_env_values = true)]
    root_token: Option<String>,
    /// File with the root token
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_SIDECAR_ROOT_TOKEN_FILE")]
    root_token_file: Option<PathBuf>,
    /// Name of this router host
    #[arg(long, value_name = "UUID", env = "SIGNALBOX_SIDECAR_NODE")]
    node: Option<Node>,
    /// Access log of nginx
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_SIDECAR_ACCESS_LOG")]
    access_log: Option<PathBuf>,
    /// File with the process id of nginx' master
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_SIDECAR_NGINX_PID_FILE")]
    nginx_pid_file: Option<PathBuf>,
    /// Admin listener of nginx
    #[arg(long, value_name = "URL", env = "SIGNALBOX_SIDECAR_EDGE_URL")]
    edge_url: Option<EdgeUrl>,
    /// File for the last-known-good route table
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_SIDECAR_SNAPSHOT_PATH")]
    snapshot_path: Option<PathBuf>,
    /// Size at which the log is rotated, 0 for never
    #[arg(long, value_name = "BYTES", env = "SIGNALBOX_SIDECAR_ROTATE_BYTES")]
    rotate_bytes: Option<u64>,
    /// Rotated files to keep
    #[arg(long, value_name = "COUNT", env = "SIGNALBOX_SIDECAR_ROTATE_KEEP")]
    rotate_keep: Option<usize>,
    /// Tracing filter
    #[arg(long, env = "SIGNALBOX_SIDECAR_LOG")]
    log: Option<String>,
    /// OpenTelemetry collector that spans are sent to (OTLP over HTTP)
    #[arg(long, value_name = "URL", env = "SIGNALBOX_SIDECAR_TRACES_ENDPOINT")]
    traces_endpoint: Option<traces::Endpoint>,
    /// Share of the traces beginning here that are recorded
    #[arg(long, value_name = "0..1", env = "SIGNALBOX_SIDECAR_TRACES_RATIO")]
    traces_ratio: Option<traces::Ratio>,
    /// Redis that holds the statistics
    #[arg(long, value_name = "URL", env = "SIGNALBOX_SIDECAR_REDIS_STATS", hide_env_values = true)]
    redis_stats: Option<RedisUrl>,
    /// Redis that replicates the route table to this router
    #[arg(long, value_name = "URL", env = "SIGNALBOX_SIDECAR_REDIS_ROUTES_REPLICA", hide_env_values = true)]
    redis_routes_replica: Option<ReplicaUrl>,
}

impl Args {
    pub(super) fn layer(&self) -> Layer {
        Layer {
            listen: self.listen,
            root_token: self.root_token.clone(),
            root_token_file: self.root_token_file.clone(),
            node: self.node.clone(),
            access_log: self.access_log.clone(),
            nginx_pid_file: self.nginx_pid_file.clone(),
            edge_url: self.edge_url.clone(),
            snapshot_path: self.snapshot_path.clone(),
            rotate_bytes: self.rotate_bytes,
            rotate_keep: self.rotate_keep,
            log: self.log.clone(),
            traces: traces::Layer { endpoint: self.traces_endpoint.clone(), ratio: self.traces_ratio },
            redis: RedisLayer {
                stats: self.redis_stats.clone(),
                routes_replica: self.redis_routes_replica.clone(),
            },
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Layer {
    pub(super) listen: Option<SocketAddr>,
    pub(super) root_token: Option<String>,
    pub(super) root_token_file: Option<PathBuf>,
    pub(super) node: Option<Node>,
    pub(super) access_log: Option<PathBuf>,
    pub(super) nginx_pid_file: Option<PathBuf>,
    pub(super) edge_url: Option<EdgeUrl>,
    pub(super) snapshot_path: Option<PathBuf>,
    pub(super) rotate_bytes: Option<u64>,
    pub(super) rotate_keep: Option<usize>,
    pub(super) log: Option<String>,
    #[serde(default)]
    pub(super) traces: traces::Layer,
    #[serde(default)]
    pub(super) redis: RedisLayer,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisLayer {
    pub(super) stats: Option<RedisUrl>,
    pub(super) routes_replica: Option<ReplicaUrl>,
}

impl Layer {
    /// Reads the text of the file at `path`.
    pub(super) fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        settings::parse(text, path)
    }

    /// This layer, with `under` where it says nothing. The two spellings of the token are one key.
    pub(super) fn over(self, under: Self) -> Self {
        let own_token = self.root_token.is_some() || self.root_token_file.is_some();
        let token = if own_token {
            (self.root_token, self.root_token_file)
        } else {
            (under.root_token, under.root_token_file)
        };
        Self {
            listen: self.listen.or(under.listen),
            root_token: token.0,
            root_token_file: token.1,
            node: self.node.or(under.node),
            access_log: self.access_log.or(under.access_log),
            nginx_pid_file: self.nginx_pid_file.or(under.nginx_pid_file),
            edge_url: self.edge_url.or(under.edge_url),
            snapshot_path: self.snapshot_path.or(under.snapshot_path),
            rotate_bytes: self.rotate_bytes.or(under.rotate_bytes),
            rotate_keep: self.rotate_keep.or(under.rotate_keep),
            log: self.log.or(under.log),
            traces: self.traces.or(under.traces),
            redis: RedisLayer {
                stats: self.redis.stats.or(under.redis.stats),
                routes_replica: self.redis.routes_replica.or(under.redis.routes_replica),
            },
        }
    }
}
