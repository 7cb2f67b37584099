//! sozu, one worker.

use std::{net::SocketAddr, path::Path};

use anyhow::ensure;

use super::{Proxy, folder, free_address, on_core, render};
use crate::process::children;

/// How to have it: no distribution that this bench runs on packs it.
pub(crate) const MISSING: &str =
    "not installed (not in Debian: cargo install sozu, or a release of its project)";

/// One cluster with all instances, for `host`: its routes are by name.
pub(crate) async fn plain(
    root: &Path,
    core: usize,
    instances: &[SocketAddr],
    host: &str,
) -> anyhow::Result<Proxy> {
    let prefix = folder(root, "sozu")?;
    let listen = free_address()?;
    let backends: Vec<_> =
        instances.iter().map(|address| format!("  {{ address = \"{address}\" }},")).collect();
    let config = prefix.join("sozu.toml");
    render(
        include_str!("../../peers/sozu.toml"),
        &[
            ("LISTEN", listen.to_string()),
            ("PREFIX", prefix.display().to_string()),
            ("HOST", host.to_owned()),
            ("BACKENDS", backends.join("\n")),
        ],
        &config,
    )?;
    let output = prefix.join("output.log");
    let mut command = on_core(core, "sozu");
    command.args(["start", "-c"]).arg(&config);
    let proxy = Proxy::start("sozu", &mut command, listen, &output).await?;
    // The first process only gives orders.
    let workers = children(proxy.process.id());
    ensure!(!workers.is_empty(), "sozu has no worker");
    // Both kinds of lines go to its output. sozu does not append, so truncating leaves a hole, which takes no disk space.
    Ok(Proxy { workers, log: output, ..proxy })
}
