//! A Redis of our own for a measurement that needs no more of the system.

use std::{net::SocketAddr, path::Path, process::Command};

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
    ///
    /// # Errors
    /// When Redis does not start.
    pub(crate) async fn start(root: &Path, name: &str) -> anyhow::Result<Self> {
        Self::with(root, name, &["--appendonly", "no"]).await
    }

    /// Starts one that writes a log as the fabric's does.
    ///
    /// # Errors
    /// When Redis does not start.
    pub(crate) async fn start_durable(root: &Path, name: &str) -> anyhow::Result<Self> {
        Self::with(root, name, &["--appendonly", "yes", "--appendfsync", "everysec"]).await
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
        process.listens_on(address, &log).await?;
        Ok(Self { address, socket: format!("unix:{}", socket.display()), process })
    }

    /// A connection that writes routes.
    ///
    /// # Errors
    /// When the address cannot be read as a URL, which it always can.
    pub(crate) fn routes(&self) -> anyhow::Result<RoutesPrimary> {
        Ok(RoutesPrimary::open(&format!("redis://{}/", self.address), Options::default())?)
    }

    /// Its process id.
    pub(crate) fn id(&self) -> Pid {
        self.process.id()
    }
}
