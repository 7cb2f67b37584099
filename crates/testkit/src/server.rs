//! One `redis-server` as a child process.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use signalbox_store::{Fabric, Options, Redis, Role};
use tempfile::TempDir;

use crate::{Ports, eventually};

/// Arguments of a server that keeps nothing on disk.
const NO_PERSISTENCE: &[&str] = &["--appendonly", "no"];

/// Arguments of a server that has every write on disk before it replies.
const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// One `redis-server` on a unix socket in a temporary folder. Dropping it ends the process.
#[derive(Debug)]
pub struct Server {
    child: Option<Child>,
    name: String,
    arguments: Vec<String>,
    cluster: Option<ClusterPorts>,
    /// The last owner removes the folder. `drop` has ended the process by then.
    folder: Arc<TempDir>,
}

/// A cluster node needs its TCP ports for its whole life, also while it restarts.
#[derive(Debug)]
struct ClusterPorts {
    client: u16,
    bus: u16,
    _reserved: Ports,
}

/// The append-only files of a [`Server`] at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(Vec<(PathBuf, Vec<u8>)>);

impl Server {
    /// Starts a server without persistence, which is empty after every start, and waits until it answers.
    ///
    /// # Panics
    /// When it does not answer within [`crate::PATIENCE`].
    pub async fn in_memory() -> Self {
        Self::with(NO_PERSISTENCE).await
    }

    /// Starts a server that has every write on disk before it replies, so that [`Self::kill`] loses nothing, and waits
    /// until it answers.
    ///
    /// # Panics
    /// When it does not answer within [`crate::PATIENCE`].
    pub async fn durable() -> Self {
        Self::with(DURABLE).await
    }

    /// Starts a server with further arguments of `redis-server`, and waits until it answers. Saving to `dump.rdb` is off.
    ///
    /// # Panics
    /// When it does not answer within [`crate::PATIENCE`].
    pub async fn with(arguments: &[&str]) -> Self {
        let folder = Arc::new(TempDir::with_prefix("signalbox-redis-").expect("a temporary folder"));
        let mut server = Self::unstarted(folder, "redis", arguments);
        server.start();
        server.answers().await;
        server
    }

    /// Starts a server without persistence whose socket is in a folder that several servers share.
    pub(crate) fn in_folder(folder: &Arc<TempDir>, name: &str) -> Self {
        let mut server = Self::unstarted(Arc::clone(folder), name, NO_PERSISTENCE);
        server.start();
        server
    }

    /// Starts a durable Redis Cluster of one node that holds every slot, and waits until it serves. Only a cluster
    /// rejects scripts whose keys are in two slots.
    ///
    /// # Panics
    /// When it does not serve within [`crate::PATIENCE`].
    pub async fn cluster() -> Self {
        let mut reserved = Ports::default();
        let [client, bus] = [(); 2].map(|()| reserved.reserve());
        let folder = Arc::new(TempDir::with_prefix("signalbox-cluster-").expect("a temporary folder"));
        let mut server = Self::unstarted(folder, "redis", DURABLE);
        server.cluster = Some(ClusterPorts { client, bus, _reserved: reserved });
        server.start();
        server.answers().await;
        let node = server.node();
        let slots = node.command("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16_383).run().await;
        slots.expect("a new node has no slots");
        server.serves_cluster().await;
        server
    }

    fn unstarted(folder: Arc<TempDir>, name: &str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        Self { child: None, name: name.to_owned(), arguments, cluster: None, folder }
    }

    /// Starts the process, unless it is running, with what is on its disk. Returns before it answers: see
    /// [`Self::answers`].
    ///
    /// # Panics
    /// When `redis-server` is not installed.
    pub fn start(&mut self) {
        if self.child.is_some() {
            return;
        }
        let mut command = Command::new("redis-server");
        match &self.cluster {
            None => command.args(["--port", "0"]),
            Some(ports) => command.args(["--bind", "127.0.0.1", "--port", &ports.client.to_string()]).args([
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &ports.bus.to_string(),
            ]),
        };
        command.args(["--save", "", "--unixsocket"]).arg(self.socket()).arg("--dir").arg(self.folder.path());
        command.args(&self.arguments).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("redis-server is installed (make test installs it)"));
    }

    /// Kills the process as `kill -9` does, if it is running.
    ///
    /// # Panics
    /// When the child cannot be ended.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child of this process");
            child.wait().expect("a child of this process");
        }
    }

    /// Kills the process, starts it again with what is on its disk, and waits until it answers.
    ///
    /// # Panics
    /// When it does not answer within [`crate::PATIENCE`].
    pub async fn restart(&mut self) {
        self.kill();
        self.start();
        self.answers().await;
        if self.cluster.is_some() {
            self.serves_cluster().await;
        }
    }

    /// A node answers `PING` for some time before it serves keys.
    async fn serves_cluster(&self) {
        let node = self.node();
        eventually("the cluster to serve", async || {
            let info = node.command("CLUSTER").arg("INFO").query::<String>().await;
            let info = info.map_err(|error| error.to_string())?;
            if info.contains("cluster_state:ok") { Ok(()) } else { Err(info) }
        })
        .await;
    }

    /// Whether the process was started and not killed.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Waits until the server answers.
    ///
    /// # Panics
    /// When it does not within [`crate::PATIENCE`].
    pub async fn answers(&self) {
        let node = self.node();
        eventually("redis to answer", async || node.command("PING").run().await).await;
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(format!("{}.sock", self.name))
    }

    /// Its address as the configuration of a daemon names it.
    pub fn url(&self) -> String {
        match &self.cluster {
            None => self.socket_url(),
            Some(ports) => format!("redis+cluster://127.0.0.1:{}/", ports.client),
        }
    }

    /// Connects to it in the role `R`. Must be called inside a tokio runtime.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open<R: Role>(&self) -> Redis<R> {
        Redis::open(&self.url(), options()).expect("a valid URL")
    }

    /// Connects to the node itself, also when it is a cluster.
    fn node(&self) -> Fabric {
        Redis::open(&self.socket_url(), options()).expect("a valid URL")
    }

    fn socket_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Runs a command with `redis-cli`, outside any connection of the product, and returns its output without the final
    /// line feed. When the server does not answer, the output is empty.
    ///
    /// # Panics
    /// When `redis-cli` is not installed.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").arg("-s").arg(self.socket()).args(arguments).output();
        let output = output.expect("redis-cli is installed (make test installs it)");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Reads the append-only files as they are now.
    ///
    /// # Panics
    /// When the server is not [durable](Self::durable).
    pub fn snapshot(&self) -> Snapshot {
        let files = fs::read_dir(self.append_only_folder()).expect("a durable server");
        let mut files: Vec<_> = files
            .map(|entry| entry.expect("a readable folder").path())
            .map(|path| (path.clone(), fs::read(path).expect("a readable file")))
            .collect();
        files.sort();
        Snapshot(files)
    }

    /// Crashes the server in such a way that everything written since `snapshot` is lost, and restarts it.
    ///
    /// # Panics
    /// When it does not answer within [`crate::PATIENCE`].
    pub async fn lose_writes_since(&mut self, snapshot: &Snapshot) {
        self.kill();
        for (path, content) in &snapshot.0 {
            fs::write(path, content).expect("a writable file");
        }
        self.start();
        self.answers().await;
    }

    /// Removes all data of a server that is not running.
    ///
    /// # Panics
    /// When it is running: it would write the data again.
    pub fn wipe(&self) {
        assert!(!self.is_running(), "kill the server first");
        for gone in [
            fs::remove_dir_all(self.append_only_folder()),
            fs::remove_file(self.folder.path().join("dump.rdb")),
        ] {
            if let Err(error) = gone {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
            }
        }
    }

    /// The folder of its socket and its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn append_only_folder(&self) -> PathBuf {
        self.folder.path().join("appendonlydir")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn options() -> Options {
    Options { response_timeout: Duration::from_secs(10), connect_timeout: Duration::from_secs(2) }
}
