//! The configuration: defaults, under a file, under the environment, under flags.

mod layer;
mod value;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

pub use layer::Args;
use layer::Layer;
pub use signalbox_daemon::settings::Error;
use signalbox_daemon::{
    RedisUrl, RootToken,
    settings::{read, required},
    traces,
};
use value::ReplicaUrl;
pub use value::{EdgeUrl, Node};

/// The commented default file: the reference of all keys.
pub const DEFAULTS: &str = include_str!("defaults.toml");

/// What the daemon needs to know, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the API listens.
    pub listen: SocketAddr,
    /// The token that may do everything.
    pub root_token: Option<RootToken>,
    /// This router host.
    pub node: Node,
    /// The log that nginx writes.
    pub access_log: PathBuf,
    /// Where nginx writes its process id.
    pub nginx_pid_file: PathBuf,
    /// nginx' admin listener.
    pub edge_url: Option<EdgeUrl>,
    /// Where the last-known-good route table goes.
    pub snapshot_path: PathBuf,
    /// The size at which the log is rotated; `None` for never.
    pub rotate_bytes: Option<u64>,
    /// How many rotated files are kept.
    pub rotate_keep: usize,
    /// Tracing filter.
    pub log: String,
    /// Where spans are sent.
    pub traces: traces::Options,
    /// The statistics.
    pub redis_stats: RedisUrl,
    /// The replica of the route table, for metrics.
    pub redis_routes_replica: Option<RedisUrl>,
}

impl Config {
    /// Puts the layers together.
    ///
    /// # Errors
    /// When a file cannot be read, or a value does not do.
    pub fn load(args: &Args) -> Result<Self, Error> {
        let mut layer = args.layer();
        if let Some(path) = &args.config {
            layer = layer.over(Layer::parse(&read(path)?, path)?);
        }
        Self::complete(layer.over(Layer::parse(DEFAULTS, Path::new("defaults.toml"))?))
    }

    fn complete(layer: Layer) -> Result<Self, Error> {
        let rotate_keep = required("rotate_keep", layer.rotate_keep)?;
        if rotate_keep == 0 {
            // A rotated file is what a statistics Redis that lost its last second is served from.
            return Err(Error::value("rotate_keep", "keep at least one rotated file"));
        }
        let rotate_bytes = required("rotate_bytes", layer.rotate_bytes)?;
        if (1..4096).contains(&rotate_bytes) {
            return Err(Error::value("rotate_bytes", "is 0 for never, or at least 4096"));
        }
        Ok(Self {
            listen: required("listen", layer.listen)?,
            root_token: RootToken::from_settings(layer.root_token, layer.root_token_file.as_deref())?,
            node: layer.node.ok_or_else(|| {
                Error::value(
                    "node",
                    "is not set: give this router host a name of its own, for example a UUID",
                )
            })?,
            access_log: required("access_log", layer.access_log)?,
            nginx_pid_file: required("nginx_pid_file", layer.nginx_pid_file)?,
            edge_url: layer.edge_url.filter(|url| !url.as_str().is_empty()),
            snapshot_path: required("snapshot_path", layer.snapshot_path)?,
            rotate_bytes: Some(rotate_bytes).filter(|bytes| *bytes > 0),
            rotate_keep,
            log: required("log", layer.log)?,
            traces: layer.traces.complete()?,
            redis_stats: required("redis.stats", layer.redis.stats)?,
            redis_routes_replica: layer.redis.routes_replica.and_then(ReplicaUrl::into_url),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str) -> Result<Config, Error> {
        let defaults = Layer::parse(DEFAULTS, Path::new("defaults")).unwrap();
        Config::complete(Layer::parse(file, Path::new("s.toml"))?.over(defaults))
    }

    #[test]
    fn the_defaults_and_a_node_are_a_configuration() {
        let config = load("node = 'n1'").unwrap();
        assert_eq!(config.listen.port(), 8701);
        assert_eq!(config.rotate_bytes, Some(256 << 20));
        assert_eq!(load("node = 'n1'\nrotate_bytes = 0\nedge_url = ''").unwrap().rotate_bytes, None);
    }

    #[test]
    fn a_mistake_is_reported_with_its_place() {
        for (file, place) in [
            ("node = 'n1'\nlisten = 'nowhere'", "s.toml:2:10: "),
            ("lisen = '127.0.0.1:1'", "s.toml:1:1: unknown field `lisen`"),
            ("[redis]\n  stats = 'http://x/'", "s.toml:2:11: a Redis URL"),
            ("node = 'a:b'", "s.toml:1:8: a node"),
            ("edge_url = 'https://x/'", "s.toml:1:12: "),
            ("rotate_bytes = -1", "s.toml:1:16: "),
            ("listen = ", "s.toml:1:"),
        ] {
            let error = load(file).unwrap_err().to_string();
            assert!(error.starts_with(place), "{file}: {error}");
        }
    }

    #[test]
    fn values_that_do_not_fit_together_are_named_by_key() {
        for (file, key) in [
            ("", "node: "),
            ("node = 'n'\nroot_token = 'short'", "root_token: "),
            ("node = 'n'\nroot_token = '0123456789abcdef'\nroot_token_file = 'x'", "root_token: "),
            ("node = 'n'\nrotate_keep = 0", "rotate_keep: "),
            ("node = 'n'\nrotate_bytes = 7", "rotate_bytes: "),
        ] {
            let error = load(file).unwrap_err().to_string();
            assert!(error.starts_with(key), "{file}: {error}");
        }
    }

    #[test]
    fn what_lies_above_wins() {
        let above = Layer::parse(
            "node = 'a'\nroot_token_file = 'f'\n[redis]\nstats = 'redis://h:1/'",
            Path::new("a"),
        );
        let below =
            Layer::parse("node = 'b'\nroot_token = '0123456789abcdef'\nlog = 'debug'", Path::new("b"));
        let both = above.unwrap().over(below.unwrap());
        assert_eq!(both.node.unwrap().as_str(), "a");
        assert_eq!(both.log.unwrap(), "debug");
        assert!(both.root_token.is_none(), "the file above hides the token below");
        assert_eq!(both.redis.stats.unwrap().as_str(), "redis://h:1/");
    }
}
