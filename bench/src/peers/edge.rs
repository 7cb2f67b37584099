//! The edge itself: the product's nginx configuration and Lua, with one worker, on a Redis that takes the place of the replica.
//!
//! Not by way of the whole stack: what is compared here is one nginx with another, and three daemons that follow the
//! log and the table would only take time from the core of the load generator.

use std::{
    fs::Permissions,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::{Proxy, folder, free_address, nginx, render, source};
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
///
/// # Errors
/// When nginx does not start.
pub(crate) async fn start(
    root: &Path,
    core: usize,
    variant: &Variant,
    replica: &str,
    workers: usize,
) -> anyhow::Result<Edge> {
    let prefix = folder(root, &variant.name.replace([' ', '/'], "-"))?;
    let (listen, admin) = (free_address()?, free_address()?);
    let template = std::fs::read_to_string(variant.source.join("nginx/nginx.conf"))?;
    let values = values(&prefix, &variant.source, replica, (listen, admin), workers);
    let values: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    render(&template, &values, &prefix.join("nginx.conf"))?;
    let proxy = nginx::start(&variant.name, &prefix, core, listen, workers).await?;
    Ok(Edge { proxy, admin })
}

/// Starts one with a listener for HTTPS, whose address is returned, and which has the certificate of `listener`.
///
/// # Errors
/// When nginx does not start.
pub(crate) async fn start_with_tls(
    root: &Path,
    core: usize,
    replica: &str,
    listener: &Identity,
) -> anyhow::Result<(Proxy, SocketAddr)> {
    let prefix = folder(root, "edge")?;
    let (listen, admin, tls) = (free_address()?, free_address()?, free_address()?);
    let template = std::fs::read_to_string(source().join("nginx/nginx.conf"))?;
    let key_file = prefix.join("edge.key");
    std::fs::write(&key_file, &listener.key_file)?;
    std::fs::set_permissions(&key_file, Permissions::from_mode(0o600))?;
    let files = nginx::identity_files(&prefix, listener)?;
    let parts = ["tls", "h2", "edge"].map(|name| {
        format!("include {};", source().join("nginx").join(name).with_extension("conf").display())
    });
    let server = format!("server {{ listen {tls} ssl http2 backlog=4096; {files} {} }}", parts.concat());
    let mut values = values(&prefix, &source(), replica, (listen, admin), 1);
    for (name, value) in &mut values {
        match *name {
            "EDGE_TLS_SERVER" => value.clone_from(&server),
            "EDGE_KEY_FILE" => *value = key_file.display().to_string(),
            _ => {}
        }
    }
    let values: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    render(&template, &values, &prefix.join("nginx.conf"))?;
    Ok((nginx::start("edge", &prefix, core, listen, 1).await?, tls))
}

/// The values of the template's names.
fn values(
    prefix: &Path,
    source: &Path,
    replica: &str,
    (listen, admin): (SocketAddr, SocketAddr),
    workers: usize,
) -> Vec<(&'static str, String)> {
    // Nothing listens there: neither daemon takes part.
    let absent = "127.0.0.1:1";
    vec![
        ("PREFIX", prefix.display().to_string()),
        ("TEMP_DIR", prefix.display().to_string()),
        ("TEMP_LIMIT", "0".to_owned()),
        ("NGINX_DIR", source.join("nginx").display().to_string()),
        ("LUA_DIR", source.join("lua").display().to_string()),
        ("LOAD_MODULES", nginx::load_modules()),
        ("USER_LINE", format!("user {};", nginx::user())),
        ("WORKER_PROCESSES", workers.to_string()),
        ("WORKER_CONNECTIONS", "8192".to_owned()),
        ("WORKER_NOFILE", "20000".to_owned()),
        ("WORKER_SHUTDOWN", "5s".to_owned()),
        ("ERROR_LOG", prefix.join("error.log").display().to_string()),
        ("ERROR_LOG_LEVEL", "warn".to_owned()),
        ("ACCESS_LOG", prefix.join("access.log").display().to_string()),
        ("ACCESS_LOG_BUFFER", "buffer=64k flush=200ms".to_owned()),
        ("EDGE_LISTEN", listen.to_string()),
        ("ADMIN_LISTEN", admin.to_string()),
        ("ADMIN_ALLOW", "allow 127.0.0.0/8;".to_owned()),
        ("ADMIN_NAME_LIST", String::new()),
        ("ROUTES_REPLICA", replica.to_owned()),
        ("ROUTES_REPLICA_USER", String::new()),
        ("ROUTES_REPLICA_PASSWORD_FILE", String::new()),
        ("ROUTES_SHM", "256m".to_owned()),
        ("SNAPSHOT_PATH", prefix.join("routes.snapshot").display().to_string()),
        ("EDGE_KEY_FILE", String::new()),
        ("EDGE_TLS_SERVER", String::new()),
        ("EDGE_CLEARTEXT_SERVER", String::new()),
        ("EDGE_ACME_LOCATION", String::new()),
        ("EDGE_REAL_IP", String::new()),
        ("EDGE_FORWARDER_LIST", String::new()),
        ("EDGE_FORWARDED", "forwarded-direct.conf".to_owned()),
        ("EDGE_TLS_LISTEN", String::new()),
        ("EDGE_NAME", "bench".to_owned()),
        ("EDGE_NAME_PATTERN", "bench".to_owned()),
        ("ADDRESS_KEY", "$binary_remote_addr".to_owned()),
        ("ADDRESS_LIMIT", "limit_conn signalbox_addresses 1000;".to_owned()),
        ("EDGE_HTTPS_PORT", "443".to_owned()),
        ("EDGE_UPSTREAM_CA", "/etc/ssl/certs/ca-certificates.crt".to_owned()),
        ("PACEMAKER", absent.to_owned()),
        ("SIDECAR", absent.to_owned()),
        ("KEEPALIVE", "1024".to_owned()),
        // As long as that of static nginx (its default), so that neither opens connections more often.
        ("KEEPALIVE_TIMEOUT", "60s".to_owned()),
        ("CONNECT_TIMEOUT", "2s".to_owned()),
        ("READ_TIMEOUT", "60s".to_owned()),
        ("RETRY_TIMEOUT", "10s".to_owned()),
        ("BODY_LIMIT", "100m".to_owned()),
        ("RESPONSE_HEADERS", "16k".to_owned()),
        ("HEADER_TIMEOUT", "10s".to_owned()),
        ("BODY_TIMEOUT", "15s".to_owned()),
        ("SEND_TIMEOUT", "30s".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;

    /// `${NAME}` in upper case; lower-case names are nginx's own variables.
    fn names(text: &str) -> impl Iterator<Item = &str> {
        let names = text.split("${").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
        names.filter(|name| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
        })
    }

    #[test]
    fn every_name_of_the_template_has_a_value_and_every_value_a_name() {
        let folder = source().join("nginx");
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let values = values(&folder, &source(), "unix:/r", (nowhere, nowhere), 1);
        let known: BTreeSet<&str> = values.iter().map(|(name, _)| *name).collect();
        let mut asked = BTreeSet::new();
        for file in fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|end| end == "conf") {
                let text = fs::read_to_string(&path).unwrap();
                asked.extend(names(&text).map(str::to_owned));
            }
        }
        let asked: BTreeSet<&str> = asked.iter().map(String::as_str).collect();
        assert_eq!(known, asked, "the names of nginx/*.conf against those of the bench");
        assert_eq!(known.len(), values.len(), "a repeated name");
    }
}
