//! A real redis-server as a child, on a unix socket in a temporary folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

pub(crate) struct RedisServer {
    child: Child,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server that writes everything to its append-only file.
    pub(crate) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let server = Self { child: Self::spawn(folder.path()), folder };
        server.wait();
        server
    }

    fn spawn(folder: &Path) -> Child {
        Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"])
            .arg("--unixsocket")
            .arg(folder.join("redis.sock"))
            .arg("--dir")
            .arg(folder)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed (make test installs it)")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.path().join("redis.sock").display())
    }

    /// Sends a command with redis-cli and returns what it prints.
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .arg("-s")
            .arg(self.folder.path().join("redis.sock"))
            .args(args)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn wait(&self) {
        until("redis answers", || {
            (self.cli(&["PING"]) == "PONG").then_some(()).ok_or_else(|| self.cli(&["PING"]))
        });
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn start_again(&mut self) {
        self.child = Self::spawn(self.folder.path());
        self.wait();
    }

    /// What is on disk now.
    pub(crate) fn saved(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = self.folder.path().join("appendonlydir");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// A crash that loses everything since `saved`.
    pub(crate) fn lose_since(&mut self, saved: &[(PathBuf, Vec<u8>)]) {
        self.kill();
        for (path, content) in saved {
            fs::write(path, content).unwrap();
        }
        self.start_again();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until `check` succeeds, and says with what it failed last when it does not within twenty seconds.
#[expect(clippy::disallowed_methods, reason = "the test waits for other processes, in real time")]
pub(crate) fn until<T, E: std::fmt::Debug>(what: &str, mut check: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match check() {
            Ok(done) => return done,
            Err(last) if start.elapsed() > Duration::from_secs(20) => {
                panic!("not so: {what}; last: {last:?}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
