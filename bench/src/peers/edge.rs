//! The edge itself: the product's nginx configuration and Lua, with one worker, on a Redis that takes the place of the replica.
//!
//! Not by way of the whole stack: what is compared here is one nginx with another, and three daemons that follow the
//! log and the table would only take time from the core of the load generator.

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use signalbox_stack::render_edge;

use super::{Proxy, folder, free_address, nginx, source};
use crate::tls::Identity;

/// Where the edge's parts are taken from, so that a changed copy can be measured against the original.
#[derive(Debug, Clone)]
pub(crate) struct Variant {
    /// Its name in tables.
    pub(crate) name: String,
    /// The folder that holds `nginx/` and `lua/`.
    pub(crate) source: PathBuf,
}

impl Default for Variant {
    fn default() -> Self {
        Self { name: "edge".to_owned(), source: source() }
    }
}

/// An edge that runs, and its listener for operators.
#[derive(Debug)]
pub(crate) struct Edge {
    /// The measured proxy.
    pub(crate) proxy: Proxy,
    /// Where `/edge/status` is.
    pub(crate) admin: SocketAddr,
}

/// Starts one that looks up its routes in `replica` (`unix:` and a path, or host and port).
pub(crate) async fn start(
    root: &Path,
    core: usize,
    variant: &Variant,
    replica: &str,
    workers: usize,
) -> anyhow::Result<Edge> {
    let prefix = folder(root, &variant.name.replace([' ', '/'], "-"))?;
    start_with(
        prefix,
        core,
        variant,
        vec![("ROUTES_REPLICA", replica.to_owned()), ("WORKER_PROCESSES", workers.to_string())],
    )
    .await
}

/// Starts one whose address is that of its listener for HTTPS, with this key file.
pub(crate) async fn start_with_tls(
    root: &Path,
    core: usize,
    replica: &str,
    identity: &Identity,
) -> anyhow::Result<(Proxy, SocketAddr)> {
    let prefix = folder(root, "edge")?;
    let tls = free_address()?;
    let key_file = prefix.join("edge.key");
    fs::write(&key_file, &identity.key_file)?;
    fs::set_permissions(&key_file, Permissions::from_mode(0o600))?;
    let edge = start_with(
        prefix,
        core,
        &Variant::default(),
        vec![
            ("ROUTES_REPLICA", replica.to_owned()),
            ("WORKER_PROCESSES", "1".to_owned()),
            ("EDGE_TLS_LISTEN", tls.to_string()),
            ("EDGE_KEY_FILE", key_file.display().to_string()),
        ],
    )
    .await?;
    Ok((edge.proxy, tls))
}

/// Renders the configuration as `signalbox edge` does, and starts nginx.
async fn start_with(
    prefix: PathBuf,
    core: usize,
    variant: &Variant,
    mut values: Vec<(&'static str, String)>,
) -> anyhow::Result<Edge> {
    let (listen, admin) = (free_address()?, free_address()?);
    let path = |path: PathBuf| path.display().to_string();
    // Nothing listens there: neither daemon takes part.
    let absent = "127.0.0.1:1";
    values.extend([
        ("PREFIX", path(prefix.clone())),
        ("NGINX_DIR", path(variant.source.join("nginx"))),
        ("LUA_DIR", path(variant.source.join("lua"))),
        ("USER_LINE", format!("user {};", nginx::user())),
        ("WORKER_CONNECTIONS", "8192".to_owned()),
        ("WORKER_NOFILE", "20000".to_owned()),
        ("WORKER_SHUTDOWN", "5s".to_owned()),
        ("ERROR_LOG", path(prefix.join("error.log"))),
        ("ACCESS_LOG", path(prefix.join("access.log"))),
        ("EDGE_LISTEN", listen.to_string()),
        ("ADMIN_LISTEN", admin.to_string()),
        ("ROUTES_SHM", "256m".to_owned()),
        ("SNAPSHOT_PATH", path(prefix.join("routes.snapshot"))),
        ("EDGE_NAME", "bench".to_owned()),
        ("PACEMAKER", absent.to_owned()),
        ("SIDECAR", absent.to_owned()),
        // As long as that of static nginx (its default), so that neither opens connections more often.
        ("KEEPALIVE_TIMEOUT", "60s".to_owned()),
        ("BODY_LIMIT", "100m".to_owned()),
    ]);
    let value = |name: &str| values.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone());
    render_edge(value).context("rendering nginx.conf")?;
    let workers = value("WORKER_PROCESSES").context("a number of workers")?.parse()?;
    let proxy = nginx::start(&variant.name, &prefix, core, listen, workers).await?;
    Ok(Edge { proxy, admin })
}
