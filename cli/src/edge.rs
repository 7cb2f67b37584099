//! `signalbox edge`: nginx alone, configured by environment variables. Containers and the package's service use it.

use std::{env, os::unix::process::CommandExt as _, process::Command};

use clap::Subcommand;
use signalbox_stack::{RenderedEdge, render_edge};

use crate::exit::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub(crate) enum Action {
    /// Write PREFIX/nginx.conf and replace this process with nginx
    Run,
    /// Write PREFIX/nginx.conf and run `nginx -t`
    Check,
}

/// Writes the configuration and replaces this process with nginx, so it returns only an error.
pub(crate) fn run(action: Action) -> Result<(), Failure> {
    let RenderedEdge { binary, prefix, configuration } = render_edge(|name| env::var(name).ok())?;
    let mut nginx = Command::new(&binary);
    // nginx takes a variable of this name for a list of sockets to inherit.
    nginx.env_remove("NGINX").arg("-p").arg(prefix).arg("-c").arg(configuration).args(["-e", "stderr"]);
    if action == Action::Check {
        nginx.arg("-t");
    }
    let error = nginx.exec();
    Err(Failure::unavailable(format!("cannot start {}: {error}; set NGINX_BINARY", binary.display())))
}
