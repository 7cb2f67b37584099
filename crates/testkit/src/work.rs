//! How much a Redis server works, and how long one command blocks it.

use signalbox_store::{Redis, Role};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
};

/// What the server is asked to return after the work that is counted.
const END: &str = "the end of the counted work";

/// Commands that the server has executed, those of scripts included.
///
/// # Panics
/// If it does not answer.
pub async fn commands<R: Role>(redis: &Redis<R>) -> u64 {
    calls(redis, "").await
}

/// The same, of the commands whose name begins with `prefix`.
///
/// # Panics
/// If it does not answer.
pub async fn calls<R: Role>(redis: &Redis<R>, prefix: &str) -> u64 {
    let text: String = redis.command("INFO").arg("commandstats").query().await.expect("a reply");
    let counted = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        if !name.starts_with(prefix) || matches!(name, "info" | "ping") {
            return None;
        }
        rest.split(',').next()?.parse::<u64>().ok()
    };
    text.lines().filter_map(counted).sum()
}

/// What is observed of operations: that no call of a script executes more than so many commands, or how long the longest command
/// takes.
#[derive(Debug)]
pub struct Operations<'a, R: Role> {
    redis: &'a Redis<R>,
    most: Option<u64>,
}

impl<'a, R: Role> Operations<'a, R> {
    /// Asserts that no call executes more than `most` commands.
    pub fn counted(redis: &'a Redis<R>, most: u64) -> Self {
        Self { redis, most: Some(most) }
    }

    /// Prints a row of the table in `docs/performance.md` for each operation: what, at what size, and the longest time in
    /// milliseconds.
    pub fn timed(redis: &'a Redis<R>) -> Self {
        Self { redis, most: None }
    }

    /// Observes an operation.
    ///
    /// # Panics
    /// If a call executes too many commands, or the server does not answer.
    pub async fn run<T>(&self, what: &str, size: &str, operation: impl Future<Output = T>) -> T {
        if let Some(most) = self.most {
            let (result, commands) = longest_script(self.redis, operation).await;
            assert!(commands <= most, "{what}: {commands} commands in one call, {size}");
            return result;
        }
        watch(self.redis).await;
        let result = operation.await;
        println!("| {what} | {size} | {:.1} |", longest_ms(self.redis).await);
        result
    }
}

/// Forgets the longest command, and begins to record commands that take longer than 100 µs.
async fn watch<R: Role>(redis: &Redis<R>) {
    for (setting, value) in [("slowlog-log-slower-than", 100), ("slowlog-max-len", 100_000)] {
        redis.command("CONFIG").arg(("SET", setting, value)).run().await.expect("a reply");
    }
    redis.command("SLOWLOG").arg("RESET").run().await.expect("a reply");
}

/// How long the longest command since [`watch`] blocked the server, in milliseconds; 0 below 0.1.
async fn longest_ms<R: Role>(redis: &Redis<R>) -> f64 {
    type Executed = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let executed: Vec<Executed> = redis.command("SLOWLOG").arg(("GET", -1)).query().await.expect("a reply");
    let own = |call: &[Vec<u8>]| call.first().is_some_and(|name| name == b"SLOWLOG" || name == b"CONFIG");
    let longest = executed.iter().filter(|(_, _, _, call, ..)| !own(call)).map(|(_, _, us, ..)| *us).max();
    f64::from(u32::try_from(longest.unwrap_or_default()).unwrap_or(u32::MAX)) / 1000.0
}

/// Runs `work`. Returns its result, and how many commands the longest call of a script has executed in the meantime.
///
/// # Panics
/// If the server does not answer, or has no unix socket.
pub async fn longest_script<R: Role, T>(redis: &Redis<R>, work: impl Future<Output = T>) -> (T, u64) {
    let (_, socket): (String, String) =
        redis.command("CONFIG").arg(("GET", "unixsocket")).query().await.expect("a reply");
    let mut monitor = BufReader::new(UnixStream::connect(socket).await.expect("a connection"));
    monitor.write_all(b"MONITOR\r\n").await.expect("a request");
    let mut lines = monitor.lines();
    assert_eq!(lines.next_line().await.expect("a line").as_deref(), Some("+OK"));
    let result = work.await;
    redis.command("ECHO").arg(END).run().await.expect("a reply");
    let (mut longest, mut count) = (0, 0);
    // A script's own line is followed by the commands that it executes.
    while let Some(line) = lines.next_line().await.expect("a line") {
        count = if line.contains(" lua] ") { count + 1 } else { 0 };
        longest = longest.max(count);
        if line.contains(END) {
            break;
        }
    }
    (result, longest)
}
