//! How much a Redis server works, and how long one command blocks it.

use signalbox_store::{Redis, Role};

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

/// Forgets the longest command, and begins to record commands that take longer than 100 µs.
///
/// # Panics
/// If the server does not answer.
pub async fn watch<R: Role>(redis: &Redis<R>) {
    for (setting, value) in [("slowlog-log-slower-than", 100), ("slowlog-max-len", 100_000)] {
        redis.command("CONFIG").arg(("SET", setting, value)).run().await.expect("a reply");
    }
    redis.command("SLOWLOG").arg("RESET").run().await.expect("a reply");
}

/// How long the longest command since [`watch`] blocked the server, in milliseconds; 0 if it took less than 0.1.
///
/// # Panics
/// If the server does not answer.
pub async fn longest_ms<R: Role>(redis: &Redis<R>) -> f64 {
    type Executed = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let executed: Vec<Executed> = redis.command("SLOWLOG").arg(("GET", -1)).query().await.expect("a reply");
    let own = |call: &[Vec<u8>]| call.first().is_some_and(|name| name == b"SLOWLOG" || name == b"CONFIG");
    let longest = executed.iter().filter(|(_, _, _, call, ..)| !own(call)).map(|(_, _, us, ..)| *us).max();
    f64::from(u32::try_from(longest.unwrap_or_default()).unwrap_or(u32::MAX)) / 1000.0
}
