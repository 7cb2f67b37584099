//! An HTTP client for servers of this machine.

use std::time::Duration;

/// A client for plain HTTP that ignores proxies from the environment.
///
/// # Errors
/// If the client cannot be built.
pub fn local_client(timeout: Duration) -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder().no_proxy().timeout(timeout).build()
}
