//! HAProxy, one thread.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

use super::{Proxy, folder, free_address, on_core, render};
use crate::process::Process;

/// One backend for every host.
///
/// # Errors
/// When HAProxy does not start.
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
        &[("LISTEN", &listen.to_string()), ("SERVERS", &servers)],
        &config,
    )?;
    let log = prefix.join("access.log");
    let mut command = on_core(core, "haproxy");
    command.arg("-db").arg("-f").arg(&config);
    let mut process = Process::start("HAProxy", &mut command, &log)?;
    process.listens_on(listen, &log).await?;
    let workers = vec![process.id()];
    Ok(Proxy {
        name: "HAProxy".to_owned(),
        address: listen,
        workers,
        helpers: Vec::new(),
        log,
        _process: process,
    })
}
