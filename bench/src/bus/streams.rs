//! Redis Streams: XADD, and one consumer of a group with XREADGROUP and XACK. It gets everything that suits it: one stream,
//! one consumer (so all messages are in order), shared and pipelined connections, and replies that are not decoded.

use std::path::Path;

use anyhow::Context as _;
use redis::{Value, aio::MultiplexedConnection, cmd, pipe};
use tokio::task::JoinSet;

use super::{
    brokers::Work,
    testbed::{OBJECTS, data},
};
use crate::{process::Pid, redis::Server};

const STREAM: &str = "bench";
const GROUP: &str = "subscriber";
/// Publishes under way at a time, as many as the bus has connections.
const ALONE: u64 = 64;
const BATCHES: u64 = 16;
/// Messages read at a time.
const READ: usize = 100;

/// A Redis with a stream.
#[derive(Debug)]
pub(crate) struct Streams {
    server: Server,
    client: redis::Client,
}

impl Streams {
    /// Starts the server.
    pub(crate) async fn start(folder: &Path) -> anyhow::Result<Self> {
        let server = Server::start_durable(folder, "streams").await?;
        let client = redis::Client::open(format!("redis://{}/", server.address))?;
        Ok(Self { server, client })
    }

    pub(crate) fn server(&self) -> Pid {
        self.server.id()
    }

    async fn connection(&self) -> anyhow::Result<MultiplexedConnection> {
        self.client.get_multiplexed_async_connection().await.context("connecting to Redis")
    }

    /// Sends and handles that many messages.
    pub(crate) async fn turn(&mut self, work: Work) -> anyhow::Result<u64> {
        let (sending, reading) = (self.connection().await?, self.connection().await?);
        let mut control = sending.clone();
        let () = cmd("DEL").arg(STREAM).query_async(&mut control).await?;
        let mut group = cmd("XGROUP");
        let () = group
            .arg("CREATE")
            .arg(STREAM)
            .arg(GROUP)
            .arg("$")
            .arg("MKSTREAM")
            .query_async(&mut control)
            .await?;
        let consumer = tokio::spawn(consume(reading, work.messages));
        let mut publishers = JoinSet::new();
        let at_a_time = if work.batch == 1 { ALONE } else { BATCHES };
        let calls = work.messages / work.batch;
        for first in 0..at_a_time {
            let mut connection = sending.clone();
            publishers.spawn(async move {
                for call in (first..calls).step_by(usize::try_from(at_a_time).unwrap_or(1)) {
                    publish(&mut connection, call, work.batch).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(publisher) = publishers.join_next().await {
            publisher??;
        }
        consumer.await??;
        // One consumer reads one stream: nothing can be out of order.
        Ok(0)
    }
}

async fn publish(connection: &mut MultiplexedConnection, call: u64, batch: u64) -> anyhow::Result<()> {
    let mut add = pipe();
    for number in 0..batch {
        let object = (call * batch + number) % OBJECTS;
        add.cmd("XADD").arg(STREAM).arg("*").arg("object").arg(object).arg("data").arg(data(object)).ignore();
    }
    let () = add.query_async(connection).await?;
    Ok(())
}

async fn consume(mut connection: MultiplexedConnection, messages: u64) -> anyhow::Result<()> {
    let mut left = messages;
    while left > 0 {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg("consumer").arg("COUNT").arg(READ);
        // A short block: the library's connection times out after half a second.
        let reply: Value = read
            .arg("BLOCK")
            .arg(100)
            .arg("STREAMS")
            .arg(STREAM)
            .arg(">")
            .query_async(&mut connection)
            .await?;
        let ids = ids(&reply);
        if ids.is_empty() {
            continue;
        }
        let acknowledged: u64 =
            cmd("XACK").arg(STREAM).arg(GROUP).arg(&ids).query_async(&mut connection).await?;
        left = left.saturating_sub(acknowledged);
    }
    Ok(())
}

/// The ids in `[[stream, [[id, fields], …]]]`.
fn ids(reply: &Value) -> Vec<&[u8]> {
    let Value::Array(streams) = reply else { return Vec::new() };
    let Some(Value::Array(stream)) = streams.first() else { return Vec::new() };
    let Some(Value::Array(messages)) = stream.get(1) else { return Vec::new() };
    messages
        .iter()
        .filter_map(|message| match message {
            Value::Array(parts) => match parts.first() {
                Some(Value::BulkString(id)) => Some(&id[..]),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_a_reply() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let message = |id| Value::Array(vec![text(id), Value::Array(vec![text("data"), text("x")])]);
        let stream = Value::Array(vec![text("bench"), Value::Array(vec![message("1-0"), message("1-1")])]);
        assert_eq!(ids(&Value::Array(vec![stream])), [b"1-0", b"1-1"]);
        assert!(ids(&Value::Nil).is_empty());
    }
}
