//! The transport: one server or a cluster.

use redis::{
    Cmd, Pipeline, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, ConnectionManager},
    cluster_async::ClusterConnection,
    cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr},
};

/// A connection, cheap to clone.
#[derive(Clone)]
pub(crate) enum Wire {
    Server(ConnectionManager),
    Cluster(ClusterConnection),
}

impl Wire {
    /// The identifier of the server that writes `key`: in a cluster the hash tag, which every key has there.
    pub(crate) fn tag<'k>(&self, key: Option<&'k str>) -> &'k str {
        match (self, key) {
            (Self::Cluster(_), Some(key)) => key.split_inclusive('}').next().unwrap_or(key),
            _ => "",
        }
    }

    /// Sends commands over one connection, to the node that writes `key`, and returns their replies.
    pub(crate) async fn together(
        &mut self,
        key: Option<&str>,
        commands: Pipeline,
    ) -> Result<Vec<Value>, RedisError> {
        let count = commands.len();
        match (self, key) {
            (Self::Cluster(wire), Some(key)) => {
                let node =
                    SingleNodeRoutingInfo::SpecificNode(Route::with_key(key.as_bytes(), SlotAddr::Master));
                wire.route_pipeline(commands, 0, count, node).await
            }
            (wire, _) => wire.req_packed_commands(&commands, 0, count).await,
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
