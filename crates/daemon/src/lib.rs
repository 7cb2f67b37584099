//! Parts shared by both daemons: configuration values, logging, traces and request tokens.
//!
//! * [`RootToken`] and [`RedisUrl`]: configuration values that must not appear in a log;
//! * [`Attempts`]: a limit for failed attempts to authenticate;
//! * [`traces`]: spans of requests and of the work that they cause, sent to a collector;
//! * `presented`: the token of a request (feature `serve`);
//! * `door`: which requests a listener accepts, and the addresses of their clients (feature `serve`);
//! * `serve`: the HTTP server, with limits for connections (feature `serve`);
//! * `log_to_stderr`: lines for a person at a terminal, JSON otherwise (feature `serve`).
//!
//! Without the feature `serve`, this crate neither handles HTTP requests nor exports spans, and does not depend on axum or
//! on the OpenTelemetry SDK. Only the daemons themselves enable it.

mod attempts;
#[cfg(feature = "serve")]
mod credentials;
#[cfg(feature = "serve")]
pub mod door;
#[cfg(feature = "serve")]
pub mod holding;
#[cfg(feature = "serve")]
mod logging;
mod redis_url;
mod root_token;
#[cfg(feature = "serve")]
pub mod serve;
pub mod traces;
#[cfg(feature = "serve")]
mod writing;

pub use attempts::Attempts;
#[cfg(feature = "serve")]
pub use credentials::presented;
#[cfg(feature = "serve")]
pub use logging::log_to_stderr;
pub use redis_url::RedisUrl;
pub use root_token::RootToken;

/// The exit status for an invalid configuration (`EX_USAGE` of sysexits.h): starting the daemon again does not help before
/// the configuration is fixed.
pub const EXIT_USAGE: u8 = 64;
