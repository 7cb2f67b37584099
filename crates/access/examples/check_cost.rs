//! Measures what it costs to check a token that was looked up within the last second: its SHA-256, and the lookup in memory.
//! The target is 5 µs. `cargo run --release -p signalbox-access --example check_cost`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that cannot run has failed")]

use std::{
    hint::black_box,
    time::{Duration, SystemTime},
};

use signalbox_access::{Grant, Scope, Tokens, digest};
use signalbox_daemon::RootToken;
use signalbox_testkit::Servers;
use tokio::time::Instant;

const ROUNDS: u32 = 200_000;

/// A fixed time, so that the cache does not expire.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

#[tokio::main]
async fn main() {
    let servers = Servers::start().await;
    let root = "0123456789abcdef0123456789abcdef";
    let tokens = Tokens::new(&RootToken::new(root).unwrap(), servers.fabric(), servers.stats(), now);
    let scopes = vec![Scope::Publish, Scope::Read];
    let grant = Grant { scopes, tenants: Some(vec!["5".to_owned()]), ..Grant::default() };
    let made = tokens.create("measured".to_owned(), grant, None).await.unwrap().unwrap();
    let token = made.token.unwrap();
    tokens.authenticate(&token).await.unwrap().unwrap();
    for (name, token) in [("a token from the cache", token.as_str()), ("the root token", root)] {
        let started = Instant::now();
        for _ in 0..ROUNDS {
            black_box(tokens.cached(&digest(black_box(token)))).unwrap();
        }
        println!("{name}: {:.2} µs", started.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
    }
}
