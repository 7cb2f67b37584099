//! Pub/sub as a stream that reports its gaps.
//!
//! Redis does not store messages for disconnected subscribers. A subscriber therefore treats a message as a hint, and a
//! [`Notice::Resumed`] as "read everything again".

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use tokio::{sync::mpsc, task::JoinHandle, time};

use crate::{Redis, Role, address::Address, sentinel::Service};

/// Maximum number of waiting notices. If a reader is slower, one `Resumed` replaces the newest ones.
const BUFFER: usize = 1024;
const RECONNECT_DELAY: Duration = Duration::from_millis(200);

/// An item of a [`Subscription`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The subscription was established or restored. Earlier messages may have been missed.
    Resumed,
    /// A message as it was published.
    Message {
        /// The channel of the message.
        channel: String,
        /// The payload, with invalid UTF-8 replaced.
        payload: String,
    },
}

/// A subscription to channels. A task maintains it until it is dropped.
#[derive(Debug)]
pub struct Subscription {
    notices: mpsc::Receiver<Notice>,
    task: JoinHandle<()>,
}

impl Subscription {
    /// Waits for the next notice. Cancel-safe.
    pub async fn next(&mut self) -> Notice {
        match self.notices.recv().await {
            Some(notice) => notice,
            // The task ends only with the runtime.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<R: Role> Redis<R> {
    /// Subscribes to `channels` on a dedicated connection.
    pub fn subscribe(&self, channels: &[&str]) -> Subscription {
        self.listen_to(channels, Names::Channels)
    }

    /// Subscribes to all channels whose names match one of the glob `patterns`, on a dedicated connection.
    pub fn subscribe_to_patterns(&self, patterns: &[&str]) -> Subscription {
        self.listen_to(patterns, Names::Patterns)
    }

    fn listen_to(&self, names: &[&str], kind: Names) -> Subscription {
        let (sender, notices) = mpsc::channel(BUFFER);
        let names = names.iter().map(ToString::to_string).collect();
        let server = Server { address: Arc::clone(&self.address), service: self.service.clone() };
        let task = tokio::spawn(keep_up(server, names, kind, sender, R::NAME));
        Subscription { notices, task }
    }
}

/// The channels of a subscription.
#[derive(Clone, Copy)]
enum Names {
    Channels,
    Patterns,
}

/// The server of a subscription.
struct Server {
    address: Arc<Address>,
    service: Option<Arc<Service>>,
}

async fn keep_up(
    server: Server,
    names: Vec<String>,
    kind: Names,
    notices: mpsc::Sender<Notice>,
    role: &'static str,
) {
    // The next attempt uses another node of the cluster, in case this one is unavailable.
    for turn in 0.. {
        match listen(&server, turn, &names, kind, &notices).await {
            Ok(()) => tracing::debug!(role, "subscription ended, subscribing again"),
            Err(error) => tracing::debug!(role, %error, "subscription lost, subscribing again"),
        }
        if notices.is_closed() {
            return;
        }
        time::sleep(RECONNECT_DELAY).await;
    }
}

async fn listen(
    server: &Server,
    turn: usize,
    names: &[String],
    kind: Names,
    notices: &mpsc::Sender<Notice>,
) -> Result<(), redis::RedisError> {
    let Some(service) = &server.service else {
        return listen_at(server.address.any_node(turn, None)?, names, kind, notices).await;
    };
    let primary = service.primary(RECONNECT_DELAY).await?;
    let node = server.address.any_node(turn, Some(&primary))?;
    // A former primary that is isolated would keep the connection open, but send nothing.
    tokio::select! {
        result = listen_at(node, names, kind, notices) => result,
        () = service.replaced(&primary) => Ok(()),
    }
}

async fn listen_at(
    node: redis::Client,
    names: &[String],
    kind: Names,
    notices: &mpsc::Sender<Notice>,
) -> Result<(), redis::RedisError> {
    let mut pubsub = node.get_async_pubsub().await?;
    match kind {
        Names::Channels => pubsub.subscribe(names).await?,
        Names::Patterns => pubsub.psubscribe(names).await?,
    }
    if notices.send(Notice::Resumed).await.is_err() {
        return Ok(());
    }
    let mut messages = pubsub.on_message();
    while let Some(message) = messages.next().await {
        let notice = Notice::Message {
            channel: message.get_channel_name().to_owned(),
            payload: String::from_utf8_lossy(message.get_payload_bytes()).into_owned(),
        };
        // A reader this far behind must read everything again. Replacing the connection sends it a `Resumed`.
        if notices.try_send(notice).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
