//! What both daemons share with respect to operators and clients: logs, traces, the program's start, and the token of a
//! request.
//!
//! * [`RootToken`] and [`RedisUrl`]: configuration values that must not appear in a log;
//! * [`presented`]: the token of a request;
//! * [`log_to_stderr`]: lines for a person at a terminal, JSON for everything else;
//! * [`traces`]: spans of requests and of their effects, sent to a collector.

mod credentials;
mod logging;
mod redis_url;
mod root_token;
pub mod traces;

pub use credentials::presented;
pub use logging::log_to_stderr;
pub use redis_url::RedisUrl;
pub use root_token::RootToken;

/// The exit status for a configuration that cannot be used (`EX_USAGE` of sysexits.h): starting the daemon again does not
/// help before the configuration is fixed.
pub const EXIT_USAGE: u8 = 64;
