//! Caddy, one core.

use std::{net::SocketAddr, path::Path};

use super::{Proxy, folder, free_address, on_core, render};
use crate::process::Process;

/// One reverse proxy for every host.
///
/// # Errors
/// When Caddy does not start.
pub(crate) async fn plain(root: &Path, core: usize, instances: &[SocketAddr]) -> anyhow::Result<Proxy> {
    let prefix = folder(root, "caddy")?;
    let listen = free_address()?;
    let instances: Vec<_> = instances.iter().map(ToString::to_string).collect();
    let config = prefix.join("Caddyfile");
    render(
        include_str!("../../peers/Caddyfile"),
        &[
            ("PORT", &listen.port().to_string()),
            ("PREFIX", &prefix.display().to_string()),
            ("INSTANCES", &instances.join(" ")),
        ],
        &config,
    )?;
    let output = prefix.join("output.log");
    let mut command = on_core(core, "caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&config);
    // It would leave its state in the home folder.
    command.env("XDG_DATA_HOME", &prefix).env("XDG_CONFIG_HOME", &prefix).env("GOMAXPROCS", "1");
    let mut process = Process::start("Caddy", &mut command, &output)?;
    process.listens_on(listen, &output).await?;
    let workers = vec![process.id()];
    Ok(Proxy {
        name: "Caddy".to_owned(),
        address: listen,
        workers,
        helpers: Vec::new(),
        log: prefix.join("access.log"),
        _process: process,
    })
}
