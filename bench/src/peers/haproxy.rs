//! HAProxy, one thread.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use super::{Proxy, folder, free_address, on_core, render};

/// One backend for every host.
pub(crate) async fn plain(root: &Path, core: usize, instances: &[SocketAddr]) -> anyhow::Result<Proxy> {
    let prefix = folder(root, "haproxy")?;
    let listen = free_address()?;
    let mut servers = String::new();
    for (index, address) in instances.iter().enumerate() {
        writeln!(servers, "    server instance{index} {address}")?;
    }
    let config = prefix.join("haproxy.cfg");
    render(
        include_str!("../../peers/haproxy.cfg"),
        &[("LISTEN", listen.to_string()), ("SERVERS", servers)],
        &config,
    )?;
    start("HAProxy", &prefix, core, listen, &config).await
}

/// A backend for each instance, and hosts in a map, each with the number of its backend. With the socket of its runtime
/// API and the name of the map.
pub(crate) async fn mapped<'a>(
    root: &Path,
    core: usize,
    instances: &[SocketAddr],
    hosts: impl Iterator<Item = (&'a str, usize)>,
) -> anyhow::Result<(Proxy, PathBuf, PathBuf)> {
    let prefix = folder(root, "haproxy-map")?;
    let listen = free_address()?;
    let map = prefix.join("hosts.map");
    let mut lines = String::new();
    for (host, to) in hosts {
        writeln!(lines, "{host} to{to}")?;
    }
    std::fs::write(&map, lines)?;
    let mut backends = String::new();
    for (at, address) in instances.iter().enumerate() {
        writeln!(backends, "backend to{at}\n    server instance{at} {address}")?;
    }
    let config = prefix.join("haproxy.cfg");
    let values =
        [("LISTEN", listen.to_string()), ("PREFIX", prefix.display().to_string()), ("BACKENDS", backends)];
    render(include_str!("../../peers/haproxy-map.cfg"), &values, &config)?;
    let proxy = start("HAProxy, map", &prefix, core, listen, &config).await?;
    Ok((proxy, prefix.join("admin.sock"), map))
}

async fn start(
    name: &str,
    prefix: &Path,
    core: usize,
    listen: SocketAddr,
    config: &Path,
) -> anyhow::Result<Proxy> {
    let mut command = on_core(core, "haproxy");
    command.arg("-db").arg("-f").arg(config);
    // It logs to its output.
    Proxy::start(name, &mut command, listen, &prefix.join("access.log")).await
}
