//! Real Redis servers for tests: children on unix sockets in a temporary folder, gone with the value.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use signalbox_store::{Fabric, Options, RoutesMaster, Stats};
use tokio::time;

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The three servers that a pacemaker works with.
#[derive(Debug)]
pub struct Servers {
    pub routes: Server,
    pub stats: Server,
    pub fabric: Server,
    /// Held for its end: it goes after the servers that have their sockets in it.
    _folder: tempfile::TempDir,
}

/// One `redis-server`.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    child: Option<Child>,
}

impl Server {
    fn new(folder: &Path, name: &str) -> Self {
        let mut server = Self { socket: folder.join(format!("{name}.sock")), child: None };
        server.start();
        server
    }

    /// Starts it, empty.
    pub fn start(&mut self) {
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&self.socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        self.child = Some(child);
    }

    /// Kills it with everything it knows.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the child is ours");
            child.wait().expect("the child is ours");
        }
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Servers {
    /// Starts all three and waits until they answer.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let server = |name| Server::new(folder.path(), name);
        let (routes, stats, fabric) = (server("routes"), server("stats"), server("fabric"));
        let servers = Self { routes, stats, fabric, _folder: folder };
        servers.answer().await;
        servers
    }

    /// Waits until all servers that run answer.
    pub async fn answer(&self) {
        for server in [&self.routes, &self.stats, &self.fabric] {
            if server.child.is_some() {
                eventually("redis answers", async || {
                    let redis = Fabric::open(&server.url(), options()).map_err(|error| error.to_string())?;
                    redis.command("PING").run().await.map_err(|error| error.to_string())
                })
                .await;
            }
        }
    }

    pub fn fabric(&self) -> Fabric {
        Fabric::open(&self.fabric.url(), options()).expect("a good URL")
    }

    pub fn routes(&self) -> RoutesMaster {
        RoutesMaster::open(&self.routes.url(), options()).expect("a good URL")
    }

    pub fn stats(&self) -> Stats {
        Stats::open(&self.stats.url(), options()).expect("a good URL")
    }
}

fn options() -> Options {
    Options { response_timeout: Duration::from_secs(10), connect_timeout: Duration::from_secs(2) }
}

/// Asks again and again until the condition holds; fails with what it said last.
pub async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = time::Instant::now() + PATIENCE;
    loop {
        match condition().await {
            Ok(value) => return value,
            Err(status) if time::Instant::now() >= deadline => panic!("{what}: {status}"),
            Err(_) => time::sleep(Duration::from_millis(10)).await,
        }
    }
}
