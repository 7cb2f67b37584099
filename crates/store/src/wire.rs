//! The transport: one server or a cluster.

use std::time::Duration;

use redis::{
    Cmd, ConnectionInfo, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig},
    cluster::{ClusterClient, ClusterConfig},
    cluster_async::ClusterConnection,
    io::tcp::TcpSettings,
};

use crate::Options;

/// The beginning of the URL of a cluster. Some of its nodes follow, separated by commas.
const CLUSTER: &str = "redis+cluster://";

/// The maximum number of retries of a command after the cluster reports a moved slot or an unavailable node.
const CLUSTER_RETRIES: u32 = 3;

/// The target of a connection.
#[derive(Clone)]
pub(crate) enum Target {
    Server(redis::Client),
    Cluster { nodes: Vec<ConnectionInfo>, settings: TcpSettings },
}

impl Target {
    pub(crate) fn read(url: &str, settings: TcpSettings) -> Result<Self, RedisError> {
        let Some(rest) = url.strip_prefix(CLUSTER) else {
            let address = url.into_connection_info()?.set_tcp_settings(settings);
            return Ok(Self::Server(redis::Client::open(address)?));
        };
        // `user:password@` is given once, for all nodes.
        let (credentials, nodes) = rest.rsplit_once('@').map_or(("", rest), |(who, nodes)| (who, nodes));
        let nodes = nodes.trim_end_matches('/').split(',').map(|node| match credentials {
            "" => format!("redis://{node}/").into_connection_info(),
            who => format!("redis://{who}@{node}/").into_connection_info(),
        });
        Ok(Self::Cluster { nodes: nodes.collect::<Result<_, _>>()?, settings })
    }

    /// Prepares a connection, which the first command opens.
    pub(crate) fn connect(
        &self,
        options: Options,
        response_timeout: Option<Duration>,
    ) -> Result<Wire, RedisError> {
        match self {
            Self::Server(client) => {
                let config = ConnectionManagerConfig::new()
                    .set_connection_timeout(Some(options.connect_timeout))
                    .set_response_timeout(response_timeout)
                    .set_min_delay(Duration::from_millis(50))
                    .set_max_delay(Duration::from_millis(500))
                    .set_number_of_retries(2);
                ConnectionManager::new_lazy_with_config(client.clone(), config).map(Wire::Server)
            }
            Self::Cluster { nodes, settings } => {
                let builder = ClusterClient::builder(nodes.clone())
                    .tcp_settings(settings.clone())
                    .connection_timeout(options.connect_timeout)
                    // Blocking commands have no time limit here. A day is longer than any of them waits.
                    .response_timeout(response_timeout.unwrap_or(Duration::from_secs(86_400)))
                    .retries(CLUSTER_RETRIES)
                    .min_retry_wait(20)
                    .max_retry_wait(200);
                let connection =
                    builder.build()?.get_pending_async_connection_with_config(ClusterConfig::new());
                Ok(Wire::Cluster(connection))
            }
        }
    }

    /// A node for pub/sub. Nodes of a cluster forward messages to each other, so any node works.
    pub(crate) fn any_node(&self, turn: usize) -> Result<redis::Client, RedisError> {
        match self {
            Self::Server(client) => Ok(client.clone()),
            Self::Cluster { nodes, settings } => {
                // A URL without nodes was already rejected as an invalid address.
                let node = nodes[turn % nodes.len()].clone();
                redis::Client::open(node.set_tcp_settings(settings.clone()))
            }
        }
    }
}

/// A connection, cheap to clone.
#[derive(Clone)]
pub(crate) enum Wire {
    Server(ConnectionManager),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(wire) => wire.req_packed_command(cmd),
            Self::Cluster(wire) => wire.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(wire) => wire.req_packed_commands(pipeline, offset, count),
            Self::Cluster(wire) => wire.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(wire) => wire.get_db(),
            Self::Cluster(wire) => wire.get_db(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(url: &str) -> Vec<String> {
        match Target::read(url, TcpSettings::default()).unwrap() {
            Target::Server(_) => Vec::new(),
            Target::Cluster { nodes, .. } => nodes.iter().map(|node| node.addr().to_string()).collect(),
        }
    }

    #[test]
    fn the_url_of_a_cluster_lists_some_of_its_nodes() {
        assert_eq!(nodes("redis://127.0.0.1:1/"), [""; 0]);
        assert_eq!(nodes("redis+cluster://10.0.0.1:7000"), ["10.0.0.1:7000"]);
        assert_eq!(nodes("redis+cluster://u:p@a:1,b:2/"), ["a:1", "b:2"]);
        assert!(Target::read("redis+cluster://", TcpSettings::default()).is_err());
    }
}
