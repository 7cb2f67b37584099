//! A whole Signalbox of a test's own, seen from outside.

use std::{
    collections::{BTreeSet, HashMap},
    io::Write as _,
    net::SocketAddr,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use redis::FromRedisValue;
use serde_json::{Value, json};
use signalbox_stack::{Builder, Part, Stack};
use tokio::time::timeout;

use crate::{
    http::{Request, Response},
    openmetrics,
    slots::{self, Slot},
    upstream::App,
};
use signalbox_testkit::eventually;

/// A running system. End it with [`System::stop`], which also reads nginx's error log. A test that
/// panics keeps data and logs and prints where they are.
pub struct System {
    /// Where applications are served.
    pub edge: SocketAddr,
    /// Where operators are served.
    pub admin: SocketAddr,
    /// The pacemaker's own listener.
    pub pacemaker: SocketAddr,
    /// The sidecar's own listener.
    pub sidecar: SocketAddr,
    /// The root token.
    pub token: String,
    /// The stack behind it, for anything that this type does not offer.
    pub stack: Stack,
    allowed: Mutex<Vec<String>>,
    tokens: tokio::sync::Mutex<HashMap<String, String>>,
    _slot: Slot,
}

/// Levels that a healthy run must not log in nginx's error log. A test allows the lines that it
/// provokes by their text.
const LEVELS: [&str; 4] = ["[error]", "[crit]", "[alert]", "[emerg]"];

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The only authority that an edge of the tests trusts. Nothing is signed by it.
const AUTHORITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/authority.crt");

impl System {
    /// The routes primary.
    pub const PRIMARY: Part = Part::ROUTES_PRIMARY;
    /// The routes replica.
    pub const REPLICA: Part = Part::ROUTES_REPLICA;
    /// The statistics Redis.
    pub const STATS: Part = Part::STATS;
    /// The fabric Redis.
    pub const FABRIC: Part = Part::FABRIC;
    /// The pacemaker.
    pub const PACEMAKER: Part = Part::PACEMAKER;
    /// The sidecar.
    pub const SIDECAR: Part = Part::SIDECAR;
    /// nginx.
    pub const NGINX: Part = Part::NGINX;
    /// All four Redis.
    pub const REDIS: [Part; 4] = [Self::PRIMARY, Self::REPLICA, Self::STATS, Self::FABRIC];

    /// Starts a system with two workers; `name` is the test's, for the output.
    pub async fn start(name: &str) -> Self {
        Self::with(name, |builder| builder).await
    }

    /// Starts a system without a pacemaker: a table that is written by hand.
    pub async fn without_pacemaker(name: &str) -> Self {
        Self::with(name, Builder::without_pacemaker).await
    }

    /// Starts only what routes: nginx and the four Redis. It must do without the daemons, and starts faster.
    pub async fn edge_only(name: &str) -> Self {
        Self::with(name, |builder| builder.without_pacemaker().without_sidecar()).await
    }

    /// Starts a system with other settings.
    ///
    /// To see a test go red: `SIGNALBOX_EDGE_FILES` names a checkout whose `nginx/` and `lua/` are used instead of those
    /// in the program, `SIGNALBOX_PROGRAMS` a folder of other daemons.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn with(name: &str, change: impl FnOnce(Builder) -> Builder) -> Self {
        let slot = slots::take().await;
        let mut builder = Stack::builder().temporary().expect("free ports").workers(2);
        // nginx reads the system's authorities once per location, which takes a fifth of the time of a start.
        builder = builder.nginx("EDGE_UPSTREAM_CA", AUTHORITY);
        if let Some(folder) = std::env::var_os("SIGNALBOX_EDGE_FILES") {
            builder = builder.with(|options| options.edge.files = folder.into());
        }
        if let Some(folder) = std::env::var_os("SIGNALBOX_PROGRAMS") {
            builder = builder.programs(folder);
        }
        // Large: it is on the stack of every test otherwise.
        let stack = Box::pin(change(builder).start()).await;
        let stack = stack.unwrap_or_else(|error| panic!("{name}: the system does not start: {error}"));
        println!("{name}: {}", stack.layout().root().display());
        let ports = stack.ports();
        let system = Self {
            edge: local(ports.edge),
            admin: local(ports.admin),
            pacemaker: local(ports.pacemaker),
            sidecar: local(ports.sidecar),
            token: stack.token().to_owned(),
            allowed: Mutex::default(),
            tokens: tokio::sync::Mutex::default(),
            stack,
            _slot: slot,
        };
        for part in [Self::PACEMAKER, Self::SIDECAR] {
            if !system.stack.parts().iter().any(|handle| *handle.part() == part) {
                system.expect_away(&part);
            }
        }
        system
    }

    /// Ends the system.
    ///
    /// # Panics
    /// When nginx logged what it should not have, or a part lacked a permission at a Redis.
    pub async fn stop(self) {
        self.check_error_log();
        self.check_redis_permissions().await;
        self.stack.stop().await;
    }

    /// Every part works with the least privileges at the Redis servers. One that is away or paused is left out.
    async fn check_redis_permissions(&self) {
        for part in Self::REDIS {
            let log = self.try_cli::<Vec<redis::Value>>(part.clone(), "ACL LOG");
            if let Ok(Ok(log)) = timeout(Duration::from_secs(2), log).await {
                assert!(log.is_empty(), "{part} rejected a command or a login: {log:?}");
            }
        }
    }

    /// Forgets which commands and logins the Redis servers rejected, because the test provoked them.
    pub async fn forget_redis_rejections(&self) {
        for part in Self::REDIS {
            self.cli::<()>(part, "ACL LOG RESET").await;
        }
    }

    /// Expects lines with this text in nginx's error log, because the test provokes them.
    pub fn allow(&self, text: &str) {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
    }

    fn check_error_log(&self) {
        if !self.stack.parts().iter().any(|handle| *handle.part() == Self::NGINX) {
            return;
        }
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let log = self.log_text(&Self::NGINX);
        let surprises: Vec<&str> = log
            .lines()
            .filter(|line| {
                let bad = LEVELS.iter().any(|level| line.contains(level));
                // The Lua module warns of globals: state that all requests of a worker would share by accident.
                let global = line.contains("global Lua variable");
                (bad && !allowed.iter().any(|text| line.contains(text))) || global
            })
            .collect();
        assert!(surprises.is_empty(), "unexpected in nginx's error log: {surprises:#?}");
    }

    // ── as a client ────────────────────────────────────────────────────────────────────────────────────────────────

    /// A GET at the edge, on a new connection.
    ///
    /// # Panics
    /// Without a complete answer.
    pub async fn get(&self, host: &str, target: &str) -> Response {
        let answer = Request::get(host, target).send(self.edge).await;
        answer.unwrap_or_else(|error| panic!("GET {target} of {host}: {error}"))
    }

    /// Waits until `app` answers for `host`.
    pub async fn until_answered_by(&self, host: &str, app: &App) {
        eventually(&format!("{host} to be answered by {}", app.name()), || async {
            match Request::get(host, "/").send(self.edge).await {
                Ok(answer) if answer.header("X-App") == Some(app.name()) => Ok(()),
                Ok(answer) => Err(format!("{} {}", answer.status, answer.text())),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    /// Waits until `host` is answered with `status`.
    pub async fn until_status(&self, host: &str, status: u16) {
        eventually(&format!("{host} to be answered {status}"), || async {
            match Request::get(host, "/").send(self.edge).await {
                Ok(answer) if answer.status == status => Ok(()),
                Ok(answer) => Err(format!("{} {}", answer.status, answer.text())),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    // ── as an operator ─────────────────────────────────────────────────────────────────────────────────────────────

    /// A request to the admin listener with the root token.
    ///
    /// # Panics
    /// Without a complete answer.
    pub async fn api(&self, method: &str, target: &str, body: Option<Value>) -> Response {
        self.api_at(self.admin, method, target, body).await
    }

    /// As [`System::api`], at another listener.
    ///
    /// # Panics
    /// Without a complete answer.
    pub async fn api_at(&self, to: SocketAddr, method: &str, target: &str, body: Option<Value>) -> Response {
        let request = Request::new(method, &to.to_string(), target).token(&self.token);
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };
        request.send(to).await.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    /// A GET of the edge's own state.
    ///
    /// # Panics
    /// Without a complete answer.
    pub async fn edge_api(&self, target: &str) -> Response {
        let answer = Request::get(&self.admin.to_string(), target).send(self.admin).await;
        answer.unwrap_or_else(|error| panic!("GET {target}: {error}"))
    }

    /// Registers an instance and waits until every worker knows.
    ///
    /// # Panics
    /// When it is refused, or when that takes too long.
    pub async fn register(&self, id: &str, app: &App, host: &str, version_type: &str) {
        let answer = self.try_register(id, app, host, version_type).await;
        assert!(matches!(answer.status, 200 | 201), "PUT of {id}: {} {}", answer.status, answer.text());
    }

    /// As [`System::register`], with whatever answer.
    pub async fn try_register(&self, id: &str, app: &App, host: &str, version_type: &str) -> Response {
        let address = app.address.to_string();
        let body = json!({"address": address, "hostnames": [host], "version_type_id": version_type});
        self.api("PUT", &format!("/instances/{id}?wait=20s"), Some(body)).await
    }

    /// A token with these scopes, made once for each name.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn token(&self, name: &str, scopes: &[&str]) -> String {
        let mut tokens = self.tokens.lock().await;
        if let Some(token) = tokens.get(name) {
            return token.clone();
        }
        let answer = self.api("POST", "/tokens", Some(json!({"name": name, "scopes": scopes}))).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        let token = answer.json()["token"].as_str().expect("a token").to_owned();
        tokens.insert(name.to_owned(), token.clone());
        token
    }

    /// Plans and applies the definition of a machine.
    ///
    /// # Panics
    /// When either is refused.
    pub async fn apply(&self, machine: &str, yaml: &str) {
        let target = format!("/state-machines/{machine}");
        let request = Request::new("POST", &self.admin.to_string(), &format!("{target}/plan"));
        let request = request.token(&self.token).header("Content-Type", "application/yaml").body(yaml);
        let planned = request.send(self.admin).await.expect("a complete answer").json();
        let plan = json!({"plan": planned["plan"]});
        let applied = self.api("POST", &format!("{target}/apply"), Some(plan)).await;
        assert_eq!(applied.status, 200, "{planned} {}", applied.text());
    }

    /// All metrics of the admin listener: name with labels, and value.
    ///
    /// # Panics
    /// When it is not an OpenMetrics page.
    pub async fn metrics(&self) -> Vec<(String, f64)> {
        let answer = self.edge_api("/metrics").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let series = openmetrics::read(&answer.text()).unwrap_or_else(|error| panic!("{error}"));
        series.into_iter().collect()
    }

    // ── with redis-cli ─────────────────────────────────────────────────────────────────────────────────────────────

    /// A command as typed into `redis-cli`, without quotes: words end at blanks.
    ///
    /// # Panics
    /// When it fails.
    pub async fn cli<T: FromRedisValue>(&self, part: Part, command: &str) -> T {
        self.try_cli(part, command).await.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// As [`System::cli`].
    ///
    /// # Errors
    /// When the server is away or refuses.
    ///
    /// # Panics
    /// When `part` is not a Redis.
    pub async fn try_cli<T: FromRedisValue>(&self, part: Part, command: &str) -> Result<T, String> {
        let [primary, replica, stats, _] = Self::REDIS;
        let url = match part {
            part if part == primary => self.stack.routes_url(),
            part if part == replica => self.stack.routes_replica_url(),
            part if part == stats => self.stack.stats_url(),
            part if part == Self::FABRIC => self.stack.fabric_url(),
            other => panic!("{other} is no Redis"),
        };
        let ask = async {
            let client = redis::Client::open(url)?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            let mut words = command.split(' ');
            let mut cmd = redis::cmd(words.next().unwrap_or_default());
            for word in words {
                cmd.arg(word);
            }
            cmd.query_async(&mut connection).await
        };
        ask.await.map_err(|error: redis::RedisError| error.to_string())
    }

    /// Adds `app` to a name of the table, by hand.
    pub async fn route(&self, name: &str, app: &App) {
        self.cli::<()>(Self::PRIMARY, &format!("SADD instances:{name} {}", app.address)).await;
    }

    /// Adds `app` to a name of the table by hand, has its requests counted under `key`, and waits until it is served.
    pub async fn route_counted(&self, name: &str, app: &App, key: &str) {
        self.cli::<()>(Self::PRIMARY, &format!("SET logkey:{name} {key}")).await;
        self.route(name, app).await;
        self.settle().await;
    }

    /// Waits until every worker serves all that was written to the primary before.
    ///
    /// # Panics
    /// When that does not happen.
    pub async fn settle(&self) {
        let serial: i64 = self.cli(Self::PRIMARY, "INCR serial").await;
        let ack = self.edge_api(&format!("/edge/ack?serial={serial}&wait=30")).await;
        assert_eq!(ack.status, 200, "{}", ack.text());
        assert_eq!(ack.json()["reached"], true, "serial {serial}: {}", ack.text());
    }

    // ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Ends a part with SIGKILL. It stays away until [`System::start_part`].
    ///
    /// # Panics
    /// When the system is coming down.
    pub async fn kill(&self, part: Part) {
        self.expect_away(&part);
        self.stack.part(&part).kill().await.expect("a running system");
    }

    /// Allows the log lines that nginx writes about a part that is stopped on purpose.
    fn expect_away(&self, part: &Part) {
        match part {
            part if *part == Self::REPLICA => self.allow("routes.sock"),
            part if *part == Self::PACEMAKER => self.allow(&format!("upstream: \"http://{}", self.pacemaker)),
            part if *part == Self::SIDECAR => self.allow(&format!("upstream: \"http://{}", self.sidecar)),
            _ => {}
        }
    }

    /// Starts a part that was killed and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub async fn start_part(&self, part: Part) {
        let started = self.stack.part(&part).start().await;
        started.unwrap_or_else(|error| panic!("{part} does not start again: {error}"));
    }

    /// Starts a part that was killed, without waiting for an answer: what it needs may be away.
    ///
    /// # Panics
    /// When it cannot be started at all.
    pub async fn start_part_only(&self, part: Part) {
        let started = self.stack.part(&part).start_only().await;
        started.unwrap_or_else(|error| panic!("{part} does not start: {error}"));
    }

    /// Ends a part as a shutdown would and starts it again.
    ///
    /// # Panics
    /// When it does not start again.
    pub async fn restart(&self, part: Part) {
        self.expect_away(&part);
        let restarted = self.stack.part(&part).restart().await;
        restarted.unwrap_or_else(|error| panic!("{part} does not start again: {error}"));
    }

    /// Kills a Redis, takes its data away, and starts it again.
    ///
    /// # Panics
    /// When its folder cannot be emptied.
    pub async fn restart_empty(&self, part: Part) {
        self.kill(part.clone()).await;
        let folder = self.stack.layout().redis(&part);
        for entry in std::fs::read_dir(&folder).expect("the folder of a Redis") {
            let path = entry.expect("a file").path();
            if path.is_dir() {
                std::fs::remove_dir_all(path).expect("a folder that can be removed");
            } else if path.file_name().is_some_and(|name| name != "redis.conf") {
                std::fs::remove_file(path).expect("a file that can be removed");
            }
        }
        self.start_part(part).await;
    }

    /// Stops a part's processes where they are.
    pub fn pause(&self, part: Part) {
        self.stack.part(&part).pause();
    }

    /// Resumes it.
    pub fn resume(&self, part: Part) {
        self.stack.part(&part).resume();
    }

    /// Sends a signal to a part's main process.
    pub fn signal(&self, part: Part, signal: Signal) {
        self.stack.part(&part).signal(signal);
    }

    /// Sends a signal to one process.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn signal_pid(&self, pid: i32, signal: Signal) {
        kill(Pid::from_raw(pid), signal).unwrap_or_else(|error| panic!("{signal} to {pid}: {error}"));
    }

    /// nginx's workers that accept requests.
    pub fn workers(&self) -> Vec<i32> {
        self.stack.part(&Self::NGINX).workers()
    }

    /// How often a part was started.
    pub fn starts(&self, part: &Part) -> u32 {
        self.stack.part(part).status().starts
    }

    // ── as a reader of its files ───────────────────────────────────────────────────────────────────────────────────

    /// A part's log.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn log_text(&self, part: &Part) -> String {
        let bytes = std::fs::read(self.stack.part(part).log()).expect("a log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The router's id.
    ///
    /// # Panics
    /// When it has none.
    pub fn node(&self) -> String {
        let text = std::fs::read_to_string(self.stack.layout().node(1)).expect("the file of the node's id");
        text.trim().to_owned()
    }

    /// The table that the router starts with when Redis is down.
    pub fn snapshot_path(&self) -> PathBuf {
        self.stack.layout().snapshot(1)
    }

    /// The log that is counted.
    pub fn access_log(&self) -> PathBuf {
        self.stack.layout().access_log(1)
    }

    /// The name of a log that was put aside.
    pub fn rotated_log(&self, number: u64) -> PathBuf {
        let mut name = self.access_log().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    /// The access log and all that were put aside.
    ///
    /// # Panics
    /// When the folder cannot be read.
    pub fn log_files(&self) -> BTreeSet<PathBuf> {
        let log = self.access_log();
        let name = log.file_name().expect("a file").to_string_lossy().into_owned();
        std::fs::read_dir(log.parent().expect("a folder"))
            .expect("the folder of logs")
            .map(|entry| entry.expect("a file").path())
            .filter(|path| path.file_name().is_some_and(|found| found.to_string_lossy().starts_with(&name)))
            .collect()
    }

    /// Every complete line of the edge's log, put aside or not, in order of time. Operators' requests are left out.
    ///
    /// # Panics
    /// When a line is not JSON.
    pub fn log_lines(&self) -> Vec<Value> {
        let mut lines = Vec::new();
        for path in self.log_files() {
            let bytes = std::fs::read(&path).unwrap_or_default();
            for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
                let parsed = serde_json::from_slice(line);
                let value: Value = parsed.unwrap_or_else(|error| {
                    panic!("{error} in {}: {}", path.display(), String::from_utf8_lossy(line))
                });
                if value["key"] != "pacemaker" {
                    lines.push(value);
                }
            }
        }
        let milliseconds =
            |line: &Value| (line["timemsec"].as_f64().unwrap_or_default() * 1000.0).round() as i64;
        lines.sort_by_key(milliseconds);
        lines
    }

    /// Waits until the log has `count` lines.
    ///
    /// # Panics
    /// If it gets more or fewer.
    pub async fn log_lines_when(&self, count: usize) -> Vec<Value> {
        let lines = eventually(&format!("{count} lines in the access log"), || async {
            let lines = self.log_lines();
            if lines.len() >= count { Ok(lines) } else { Err(lines.len()) }
        })
        .await;
        assert_eq!(lines.len(), count, "more lines than requests");
        lines
    }

    /// All lines of a router with one worker, whose log is in order: everything before the line of a last request,
    /// which is left out, is in the file when that line is.
    pub async fn log_lines_after_a_last_request(&self) -> Vec<Value> {
        let id = format!("last-request-{}", self.log_lines().len());
        let last = Request::get("last.request.test", "/").header("X-Request-ID", &id);
        last.send(self.edge).await.expect("an answer");
        let lines = eventually("the line of the last request", || async {
            let lines = self.log_lines();
            if lines.iter().any(|line| line["request_id"] == *id) { Ok(lines) } else { Err(lines.len()) }
        })
        .await;
        lines.into_iter().filter(|line| line["host"] != "last.request.test").collect()
    }

    /// Writes to the access log as another program would.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn append_to_access_log(&self, bytes: &[u8]) {
        let file = std::fs::File::options().append(true).open(self.access_log());
        file.and_then(|mut file| file.write_all(bytes)).expect("a log that can be written");
    }
}
