//! The transport: one server or a cluster.

use redis::{
    Cmd, FromRedisValue, Pipeline, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, ConnectionManager},
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
    from_redis_value,
};

/// A connection, cheap to clone.
#[derive(Clone)]
pub(crate) enum Wire {
    Server(ConnectionManager),
    Cluster(ClusterConnection),
}

impl Wire {
    /// Sends a command without a key to the node that writes `key`.
    pub(crate) async fn at_node_of<T: FromRedisValue>(
        &mut self,
        key: Option<&str>,
        command: Cmd,
    ) -> Result<T, RedisError> {
        match (self, key) {
            (Self::Cluster(wire), Some(key)) => {
                let node =
                    SingleNodeRoutingInfo::SpecificNode(Route::with_key(key.as_bytes(), SlotAddr::Master));
                Ok(from_redis_value(wire.route_command(command, RoutingInfo::SingleNode(node)).await?)?)
            }
            (wire, _) => command.query_async(wire).await,
        }
    }
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
