//! A Redis of our own for a measurement that needs no more of the system.

use std::{net::SocketAddr, path::Path, process::Command};

use anyhow::Context as _;
use signalbox_store::{Options, RoutesPrimary};

use crate::{
    peers::{folder, free_address},
    process::{Pid, Process},
};

/// A Redis without persistence, on a loopback port and a unix socket.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its port.
    pub(crate) address: SocketAddr,
    /// `unix:` and its socket, as nginx writes such an address.
    pub(crate) socket: String,
    process: Process,
}

impl Server {
    /// Starts one in a folder below `root`.
    pub(crate) async fn start(root: &Path, name: &str) -> anyhow::Result<Self> {
        Self::with(root, name, &["--appendonly", "no"]).await
    }

    /// Starts one that writes a log as the fabric's does.
    pub(crate) async fn start_durable(root: &Path, name: &str) -> anyhow::Result<Self> {
        Self::with(root, name, &["--appendonly", "yes", "--appendfsync", "everysec"]).await
    }

    /// Starts a node of a cluster that does not have its other nodes yet.
    pub(crate) async fn start_node(root: &Path, name: &str) -> anyhow::Result<Self> {
        let bus = free_address()?.port().to_string();
        let cluster =
            ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-announce-bus-port", &bus];
        let persistence = ["--appendonly", "yes", "--appendfsync", "everysec"];
        Self::with(root, name, &[&persistence[..], &cluster].concat()).await
    }

    async fn with(root: &Path, name: &str, persistence: &[&str]) -> anyhow::Result<Self> {
        let folder = folder(root, name)?;
        let address = free_address()?;
        let socket = folder.join("redis.sock");
        let log = folder.join("redis.log");
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(persistence)
            .args(["--unixsocketperm", "777", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&folder);
        let mut process = Process::start("redis-server", &mut command, &log)?;
        process.listens_on(address).await?;
        Ok(Self { address, socket: format!("unix:{}", socket.display()), process })
    }

    /// A connection that writes routes.
    pub(crate) fn routes(&self) -> anyhow::Result<RoutesPrimary> {
        Ok(RoutesPrimary::open(&format!("redis://{}/", self.address), Options::default())?)
    }

    /// Executes a command on a connection of its own.
    pub(crate) fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> anyhow::Result<T> {
        let mut connection = redis::Client::open(format!("redis://{}/", self.address))?.get_connection()?;
        let (name, arguments) = command.split_first().context("a command has a name")?;
        Ok(redis::cmd(name).arg(arguments).query(&mut connection)?)
    }

    /// The port on which the nodes of a cluster talk to this one.
    pub(crate) fn cluster_port(&self) -> anyhow::Result<String> {
        let settings: Vec<String> = self.ask(&["CONFIG", "GET", "cluster-port"])?;
        settings.into_iter().nth(1).context("a node without a cluster port")
    }

    /// Its process id.
    pub(crate) fn id(&self) -> Pid {
        self.process.id()
    }
}
