//! What an operator meets in the same way at each daemon: how it is configured, how it logs, and how a client shows
//! its token.
//!
//! * [`settings`]: files whose mistakes are reported with line and column;
//! * [`RootToken`] and [`RedisUrl`]: values that must not show in a log;
//! * [`presented`]: the token of a request;
//! * [`log_to_stderr`]: lines for a person at a terminal, JSON for everything else;
//! * [`traces`]: spans of requests and of what came of them, sent to a collector.

mod credentials;
mod logging;
mod redis_url;
mod root_token;
pub mod settings;
pub mod traces;

pub use credentials::presented;
pub use logging::log_to_stderr;
pub use redis_url::RedisUrl;
pub use root_token::RootToken;

/// The exit status for a configuration that cannot be used (`EX_USAGE` of sysexits.h): starting the daemon again before
/// somebody mends it is of no use.
pub const EXIT_USAGE: u8 = 64;
