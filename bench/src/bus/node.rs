//! Queues that are used from Node.js: BullMQ and groupmq on a Redis, RabbitMQ. One process publishes, another
//! consumes.
//!
//! npm installs their packages into the run's temporary folder. Without Node.js, npm or the registry they are skipped,
//! and the output lists them as skipped.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
};

use super::brokers::Work;
use crate::{
    machine::installed,
    peers::free_address,
    process::{Pid, Process},
    redis::Server,
    session::Output,
};

const PACKAGES: [&str; 3] = ["bullmq@5", "groupmq@1", "amqplib@2"];
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/queues.mjs");
const RABBITMQ: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// How long npm may take.
const INSTALL: Duration = Duration::from_secs(60);

/// The storage of a queue's messages.
enum Storage {
    Redis(Server),
    Rabbit(Rabbit),
}

/// A queue with its two ends.
pub(crate) struct Node {
    producer: End,
    consumer: End,
    server: Storage,
    behind: u64,
}

/// All that can be had: a name, the ratio of rates that the bus has to reach, and the queue.
pub(crate) async fn all(folder: &Path, output: &mut Output) -> anyhow::Result<Vec<(String, f64, Node)>> {
    let mut all = Vec::new();
    if let Some(missing) = ["node", "npm"].into_iter().find(|program| !installed(program)) {
        output.skipped(format!(
            "BullMQ, groupmq, RabbitMQ: {missing} is not installed (Debian packages nodejs, npm)"
        ))?;
        return Ok(all);
    }
    if let Err(error) = install(folder).await {
        output.skipped(format!("BullMQ, groupmq, RabbitMQ: npm cannot install their packages: {error:#}"))?;
        return Ok(all);
    }
    let queues = [
        ("BullMQ, 64 jobs at a time, in no order", "bullmq", 64, 0.9),
        ("BullMQ, one job at a time, in order", "bullmq", 1, 1.0),
        ("groupmq, 16 jobs at a time, in order for each object", "groupmq", 16, 1.0),
    ];
    for (place, (name, kind, concurrency, target)) in queues.into_iter().enumerate() {
        let server = Server::start_durable(folder, &format!("queue-{place}")).await?;
        let port = server.address.port();
        let node = Node::start(folder, kind, port, concurrency, Storage::Redis(server)).await?;
        all.push((name.to_owned(), target, node));
    }
    if Path::new(RABBITMQ).is_file() && installed("epmd") {
        let rabbit = Rabbit::start(folder).await?;
        let port = rabbit.address.port();
        let node = Node::start(folder, "rabbitmq", port, 100, Storage::Rabbit(rabbit)).await?;
        all.push(("RabbitMQ, one consumer, prefetch 100, in order".to_owned(), 1.0, node));
    } else {
        output.skipped("RabbitMQ: not installed (Debian package rabbitmq-server)".to_owned())?;
    }
    Ok(all)
}

async fn install(folder: &Path) -> anyhow::Result<()> {
    fs::write(folder.join("package.json"), r#"{"private":true}"#)?;
    let mut npm = tokio::process::Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"])
        .args(PACKAGES)
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let done =
        tokio::time::timeout(INSTALL, npm.output()).await.context("it takes longer than a minute")??;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{}", said.lines().next().unwrap_or("no reason given"));
    }
    Ok(())
}

/// One process.
struct End {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl End {
    async fn start(
        folder: &Path,
        kind: &str,
        role: &str,
        port: u16,
        concurrency: u32,
    ) -> anyhow::Result<Self> {
        let log = fs::File::create(folder.join(format!("{kind}-{role}-{concurrency}.log")))?;
        let mut child = tokio::process::Command::new("node")
            .arg(SCRIPT)
            .args([kind, role, &port.to_string(), &concurrency.to_string()])
            .current_dir(folder)
            .env("NODE_ENV", "production")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("starting node")?;
        let input = child.stdin.take().context("a process without an input")?;
        let output = BufReader::new(child.stdout.take().context("a process without an output")?).lines();
        let mut end = Self { child, input, output };
        // Libraries may print something first.
        while end.line().await? != "ready" {}
        Ok(end)
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        self.output.next_line().await?.context("the process has ended; its log has the reason")
    }

    async fn ask(&mut self, what: &Value) -> anyhow::Result<Value> {
        self.input.write_all(format!("{what}\n").as_bytes()).await?;
        Ok(serde_json::from_str(&self.line().await?)?)
    }
}

impl Node {
    async fn start(
        folder: &Path,
        kind: &str,
        port: u16,
        concurrency: u32,
        server: Storage,
    ) -> anyhow::Result<Self> {
        let consumer = End::start(folder, kind, "consume", port, concurrency);
        let consumer = consumer.await.with_context(|| format!("starting the consumer of {kind}"))?;
        let producer = End::start(folder, kind, "produce", port, concurrency);
        let producer = producer.await.with_context(|| format!("starting the producer of {kind}"))?;
        Ok(Self { producer, consumer, server, behind: 0 })
    }

    /// Sends and handles that many messages; how many were not in order for their object.
    pub(crate) async fn turn(&mut self, work: Work) -> anyhow::Result<u64> {
        let produce = json!({"count": work.messages, "batch": work.batch});
        let consume = json!({"count": work.messages});
        let (_, consumed) = tokio::try_join!(self.producer.ask(&produce), self.consumer.ask(&consume))?;
        let behind = consumed["behind"].as_u64().unwrap_or(0);
        Ok(behind - std::mem::replace(&mut self.behind, behind))
    }

    /// Messages that were not in order so far.
    pub(crate) fn behind(&self) -> u64 {
        self.behind
    }

    /// Everybody who takes part.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        let server = match &self.server {
            Storage::Redis(server) => server.id(),
            Storage::Rabbit(rabbit) => rabbit.server.id(),
        };
        [Some(server), self.producer.child.id(), self.consumer.child.id()].into_iter().flatten().collect()
    }
}

/// A separate RabbitMQ, in addition to one that the machine may have.
struct Rabbit {
    address: SocketAddr,
    // In this order: the broker takes its leave of the port mapper.
    server: Process,
    _mapper: Process,
}

impl Rabbit {
    async fn start(folder: &Path) -> anyhow::Result<Self> {
        let home = crate::peers::folder(folder, "rabbitmq")?;
        let (address, mapper_address) = (free_address()?, free_address()?);
        let distribution = free_address()?.port().to_string();
        let mapper_port = mapper_address.port().to_string();
        let mapper_log = home.join("epmd.log");
        let mut epmd = Command::new("epmd");
        epmd.args(["-address", "127.0.0.1", "-port", &mapper_port]);
        let mut mapper = Process::start("epmd", &mut epmd, &mapper_log)?;
        mapper.listens_on(mapper_address).await?;
        let file = |name: &str| -> PathBuf { home.join(name) };
        fs::write(file("enabled_plugins"), "[].\n")?;
        fs::write(file("rabbitmq.conf"), format!("listeners.tcp.1 = {address}\n"))?;
        let mut command = Command::new(RABBITMQ);
        command
            .env("HOME", &home)
            .env("ERL_EPMD_PORT", &mapper_port)
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", "bench@localhost")
            .env("RABBITMQ_DIST_PORT", distribution)
            .env("RABBITMQ_MNESIA_BASE", file("mnesia"))
            .env("RABBITMQ_LOG_BASE", file("log"))
            .env("RABBITMQ_PID_FILE", file("pid"))
            .env("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", file("none"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", file("enabled_plugins"))
            // Makes it one process without a shell around it, which ends on SIGTERM.
            .env("RUNNING_UNDER_SYSTEMD", "true");
        let log = file("rabbitmq.log");
        let mut server = Process::start("rabbitmq-server", &mut command, &log)?;
        // It takes its time: some seconds, or half a minute where others are busy.
        for patience in (0..4).rev() {
            match server.listens_on(address).await {
                Ok(()) => break,
                Err(error) if patience == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(Self { address, server, _mapper: mapper })
    }
}
