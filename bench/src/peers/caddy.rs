//! Caddy, one core.

use std::{net::SocketAddr, path::Path};

use super::{Proxy, folder, free_address, on_core, render};

/// One reverse proxy for every host.
pub(crate) async fn plain(root: &Path, core: usize, instances: &[SocketAddr]) -> anyhow::Result<Proxy> {
    let prefix = folder(root, "caddy")?;
    let listen = free_address()?;
    let instances: Vec<_> = instances.iter().map(ToString::to_string).collect();
    let config = prefix.join("Caddyfile");
    render(
        include_str!("../../peers/Caddyfile"),
        &[
            ("PORT", listen.port().to_string()),
            ("PREFIX", prefix.display().to_string()),
            ("INSTANCES", instances.join(" ")),
        ],
        &config,
    )?;
    let mut command = on_core(core, "caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&config);
    // It would leave its state in the home folder.
    command.env("XDG_DATA_HOME", &prefix).env("XDG_CONFIG_HOME", &prefix).env("GOMAXPROCS", "1");
    Proxy::start("Caddy", &mut command, listen, &prefix.join("output.log")).await
}
