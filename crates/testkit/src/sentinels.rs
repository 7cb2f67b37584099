//! A Redis service of a primary and a replica, monitored by three Sentinels.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use crate::{Ports, eventually};

/// How long a server has to be silent before the Sentinels agree on a failover.
const DOWN_AFTER_MS: u64 = 500;
const SENTINELS: usize = 3;
/// The users of the product, with every permission and without a password.
const USERS: &str = "user pacemaker on nopass ~* &* +@all\nuser sidecar on nopass ~* &* +@all\n\
                     user replica on nopass ~* &* +@all\n";

/// Two servers on TCP ports, of which Sentinels make one the primary. Dropping it ends all processes.
#[derive(Debug)]
pub struct Monitored {
    _folder: TempDir,
    service: String,
    servers: [Process; 2],
    sentinels: Vec<Process>,
    _ports: Ports,
}

#[derive(Debug)]
struct Process {
    port: u16,
    child: Option<Child>,
    command: Vec<String>,
}

impl Process {
    fn start(&mut self) {
        if self.child.is_none() {
            let mut command = Command::new("redis-server");
            command.args(&self.command).stdout(Stdio::null()).stderr(Stdio::null());
            self.child = Some(command.spawn().expect("redis-server is installed (make test installs it)"));
        }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child of this process");
            child.wait().expect("a child of this process");
        }
    }

    /// Sends `STOP` or `CONT`.
    fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("a process that runs");
        let sent = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
        assert!(sent.expect("kill is part of every system").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Monitored {
    /// Starts all processes, and waits until every Sentinel knows the others and the replica is in step.
    ///
    /// # Panics
    /// When that takes longer than [`crate::PATIENCE`].
    pub async fn start(service: &str) -> Self {
        let folder = TempDir::with_prefix("signalbox-sentinels-").expect("a temporary folder");
        let mut ports = Ports::default();
        let numbers = [ports.reserve(), ports.reserve()];
        let servers = [0, 1].map(|index| {
            let data = folder.path().join(format!("server-{index}"));
            fs::create_dir(&data).expect("a new folder");
            let follow =
                if index == 0 { String::new() } else { format!("replicaof 127.0.0.1 {}\n", numbers[0]) };
            let text = format!(
                "bind 127.0.0.1\nport {}\nsave \"\"\nappendonly yes\nappendfsync always\ndir {}\n\
                 repl-diskless-sync-delay 0\nrepl-ping-replica-period 1\nrepl-timeout 5\n{follow}{USERS}",
                numbers[index],
                data.display()
            );
            let file = folder.path().join(format!("server-{index}.conf"));
            fs::write(&file, text).expect("a writable folder");
            let command = vec![file.display().to_string()];
            Process { port: numbers[index], child: None, command }
        });
        let sentinels = (0..SENTINELS)
            .map(|index| {
                let port = ports.reserve();
                let file = folder.path().join(format!("sentinel-{index}.conf"));
                let text = format!(
                    "bind 127.0.0.1\nport {port}\nsentinel monitor {service} 127.0.0.1 {} 2\n\
                     sentinel down-after-milliseconds {service} {DOWN_AFTER_MS}\n\
                     sentinel failover-timeout {service} 3000\n",
                    numbers[0]
                );
                fs::write(&file, text).expect("a writable folder");
                Process {
                    port,
                    child: None,
                    command: vec![file.display().to_string(), "--sentinel".to_owned()],
                }
            })
            .collect();
        let mut monitored =
            Self { _folder: folder, service: service.to_owned(), servers, sentinels, _ports: ports };
        for server in &mut monitored.servers {
            server.start();
        }
        // A Sentinel that starts later finds the replica with its first question, not ten seconds later.
        eventually("the replica to be in step", async || monitored.in_step(1)).await;
        for sentinel in &mut monitored.sentinels {
            sentinel.start();
        }
        monitored.settled().await;
        monitored
    }

    /// Waits until the Sentinels could perform a failover: all of them know each other and a replica in step.
    ///
    /// # Panics
    /// When that takes longer than [`crate::PATIENCE`].
    pub async fn settled(&self) {
        eventually("the Sentinels to know each other and the replica", async || {
            for sentinel in &self.sentinels {
                let text = cli(sentinel.port, &["SENTINEL", "MASTER", &self.service]);
                let lines: Vec<&str> = text.lines().collect();
                let field =
                    |name: &str| lines.windows(2).find(|pair| pair[0] == name).map_or("", |pair| pair[1]);
                let ready = field("num-other-sentinels") == (SENTINELS - 1).to_string()
                    && field("num-slaves") == "1"
                    && field("flags") == "master";
                if !ready {
                    return Err(text);
                }
            }
            self.in_step(1 - self.primary())
        })
        .await;
    }

    fn in_step(&self, replica: usize) -> Result<(), String> {
        let state = self.cli(replica, &["INFO", "replication"]);
        if state.contains("master_link_status:up") { Ok(()) } else { Err(state) }
    }

    /// The URL with which the product follows the primary.
    pub fn url(&self) -> String {
        let nodes: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/{}", nodes.join(","), self.service)
    }

    /// The index of the primary, as the first Sentinel names it.
    pub fn primary(&self) -> usize {
        let text = cli(self.sentinels[0].port, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.service]);
        usize::from(text.lines().last() == Some(&self.servers[1].port.to_string()))
    }

    /// The port of a server.
    pub fn port(&self, server: usize) -> u16 {
        self.servers[server].port
    }

    /// Runs a command at a server with `redis-cli`. The output is empty if it does not answer.
    pub fn cli(&self, server: usize, arguments: &[&str]) -> String {
        cli(self.servers[server].port, arguments)
    }

    /// Kills a server as `kill -9` does.
    pub fn kill(&mut self, server: usize) {
        self.servers[server].kill();
    }

    /// Starts a killed server, with what is on its disk.
    pub fn restart(&mut self, server: usize) {
        self.servers[server].start();
    }

    /// Kills the primary, and waits until the other server is promoted. Returns the index of the killed one.
    ///
    /// # Panics
    /// When that takes longer than [`crate::PATIENCE`].
    pub async fn fail_over(&mut self) -> usize {
        let killed = self.primary();
        self.kill(killed);
        self.failed_over(killed).await;
        killed
    }

    /// Freezes a server: its connections stay open, and nothing is answered.
    pub fn freeze(&self, server: usize) {
        self.servers[server].signal("STOP");
    }

    /// Ends [`Self::freeze`].
    pub fn thaw(&self, server: usize) {
        self.servers[server].signal("CONT");
    }

    /// Waits until another server than `before` is the primary.
    ///
    /// # Panics
    /// When that takes longer than [`crate::PATIENCE`].
    pub async fn failed_over(&self, before: usize) {
        eventually("a failover", async || if self.primary() == before { Err(before) } else { Ok(()) }).await;
    }
}

fn cli(port: u16, arguments: &[&str]) -> String {
    // A frozen server accepts connections, and never answers.
    let output =
        Command::new("timeout").args(["2", "redis-cli", "-p", &port.to_string()]).args(arguments).output();
    let output = output.expect("redis-cli is installed (make test installs it)");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
