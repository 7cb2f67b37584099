//! A Redis Cluster of one node that holds every slot.
//!
//! Only a cluster refuses scripts that reach across two slots; a server by itself accepts them.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use signalbox_stack::Reservation;
use tempfile::TempDir;

use crate::poll;

/// The node; it ends with the value.
#[derive(Debug)]
pub struct Cluster {
    node: Child,
    ports: [u16; 2],
    folder: TempDir,
    /// Keeps both ports, also while it restarts.
    _reservation: Reservation,
}

impl Cluster {
    /// Starts it and waits until it serves.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start() -> Self {
        let mut reservation = Reservation::default();
        let ports = [(); 2].map(|()| reservation.add().expect("a free port"));
        let folder = TempDir::with_prefix("signalbox-cluster-").expect("a temporary folder");
        let cluster = Self { node: spawn(ports, folder.path()), ports, folder, _reservation: reservation };
        cluster.until_it_answers().await;
        let slots: redis::RedisResult<String> = cluster.run("CLUSTER ADDSLOTSRANGE 0 16383").await;
        slots.expect("a fresh node has no slots");
        poll::until("the cluster to serve", || async {
            let info: String = cluster.run("CLUSTER INFO").await.map_err(|error| error.to_string())?;
            if info.contains("cluster_state:ok") { Ok(()) } else { Err(info) }
        })
        .await;
        cluster
    }

    /// What a pacemaker is told.
    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}/", self.ports[0])
    }

    /// Kills the node and starts it again with what is on its disk.
    ///
    /// # Panics
    /// When it does not come back.
    pub async fn restart(&mut self) {
        self.node.kill().expect("a running node");
        self.node.wait().expect("a dead node");
        self.node = spawn(self.ports, self.folder.path());
        self.until_it_answers().await;
    }

    /// The names of all keys that match.
    ///
    /// # Panics
    /// When the node does not answer.
    pub async fn keys(&self, pattern: &str) -> Vec<String> {
        self.run(&format!("KEYS {pattern}")).await.expect("keys")
    }

    async fn until_it_answers(&self) {
        poll::until("the node to answer", || async {
            self.run::<String>("PING").await.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    async fn run<T: redis::FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.ports[0]))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap_or_default());
        for word in words {
            cmd.arg(word);
        }
        cmd.query_async(&mut connection).await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _gone = self.node.kill();
        let _gone = self.node.wait();
    }
}

fn spawn([client, bus]: [u16; 2], folder: &Path) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &client.to_string(), "--cluster-port", &bus.to_string()])
        .args(["--cluster-enabled", "yes", "--save", "", "--appendonly", "yes", "--appendfsync", "always"])
        .args(["--maxmemory-policy", "noeviction", "--dir"])
        .arg(folder)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed (make test installs it)")
}
