//! nginx: its program, modules, user and rendered configuration.
//!
//! `nginx/` and `lua/` of this repository are embedded in the program and written to the prefix at each start, so that
//! an installed `signalbox` needs no checkout and never uses files of another version. A developer sets `edge.files` to the
//! checkout, and reloads nginx after a change.

mod environment;
mod files;
mod flavour;
mod listeners;
mod template;
mod user;

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;

pub use environment::{RenderedEdge, edge_variables, render_edge};
pub(crate) use flavour::Flavour;
pub(crate) use user::WorkerUser;

use crate::{
    Error, Part, Probe,
    acl::User,
    layout::Layout,
    options::{EdgeOptions, LogMode},
    plan::RouterPorts,
    proc,
    supervisor::Program,
};

/// The desired limit of open files of a worker: connections to clients and instances, and files.
const CONNECTIONS: u64 = 16_384;
const OPEN_FILES: u64 = 40_000;
/// How long a stop waits for running requests before it aborts them.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// The addresses and files that one router's nginx uses.
pub(crate) struct Edge<'a> {
    pub(crate) router: usize,
    pub(crate) options: &'a EdgeOptions,
    pub(crate) flavour: &'a Flavour,
    pub(crate) user: &'a WorkerUser,
    pub(crate) ports: RouterPorts,
    pub(crate) pacemaker: String,
    pub(crate) sidecar: String,
}

/// Connections and open files of a worker, as far as the limit of this process permits. nginx logs an alert for a higher one.
fn worker_limits() -> (u64, u64) {
    let open_files = proc::open_files_limit().map_or(OPEN_FILES, |limit| limit.min(OPEN_FILES));
    (CONNECTIONS.min(open_files / 2), open_files)
}

/// Writes all files of nginx, and returns its program.
pub(crate) fn program(layout: &Layout, part: Part, edge: &Edge<'_>) -> Result<Program, Error> {
    let prefix = layout.nginx_prefix(edge.router);
    fs::create_dir_all(&prefix).map_err(Error::file("create", &prefix))?;
    let source = files::Source::choose(&edge.options.files, &prefix)?;
    let values = values(layout, &part, edge, &source)?;
    let text =
        template::render(&source.template()?, &values).map_err(|unknown| unknown.in_option("edge.files"))?;
    let file = prefix.join("nginx.conf");
    fs::write(&file, text).map_err(Error::file("write", &file))?;
    let admin = format!("http://{}", address(&edge.options.admin_listen, edge.ports.admin));
    let program = Program::new(part, &edge.flavour.binary)
        .arg("-p")
        .arg(prefix.display().to_string())
        .arg("-c")
        .arg(file.display().to_string())
        // Errors before the configuration is read are written here, not to a file of the system.
        .arg("-e")
        .arg("stderr")
        // nginx takes a variable of this name for a list of sockets to inherit.
        .without_env("NGINX")
        .ready_when(Probe::Http(format!("{admin}/edge/status")))
        .address(format!("http://{} and {admin}", address(&edge.options.listen, edge.ports.edge)))
        .stop_with(Signal::SIGQUIT, STOP_WITHIN);
    Ok(program)
}

/// The address to call for a listen address: a wildcard cannot be called.
pub(crate) fn address(listen: &str, port: u16) -> String {
    match listen.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => format!("127.0.0.1:{port}"),
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => format!("[::1]:{port}"),
        _ => join(listen, port),
    }
}

/// A listen address as `ip:port`.
pub(crate) fn join(listen: &str, port: u16) -> String {
    if listen.contains(':') { format!("[{listen}]:{port}") } else { format!("{listen}:{port}") }
}

fn values(
    layout: &Layout,
    part: &Part,
    edge: &Edge<'_>,
    source: &files::Source,
) -> Result<BTreeMap<String, String>, Error> {
    let show = |path: PathBuf| path.display().to_string();
    let prefix = show(layout.nginx_prefix(edge.router));
    let options = edge.options;
    let (connections, open_files) = worker_limits();
    let workers = if options.workers == 0 { "auto".to_owned() } else { options.workers.to_string() };
    let buffer = match options.log {
        LogMode::Exact => "",
        LogMode::Buffered => "buffer=64k flush=200ms",
    };
    let mut values = environment::defaults(&prefix);
    let own = [
        ("PREFIX", prefix),
        ("NGINX_DIR", show(source.nginx.clone())),
        ("LUA_DIR", show(source.lua.clone())),
        ("LOAD_MODULES", edge.flavour.load_modules()),
        ("USER_LINE", edge.user.line()),
        ("WORKER_PROCESSES", workers),
        ("WORKER_CONNECTIONS", connections.to_string()),
        ("WORKER_NOFILE", open_files.to_string()),
        ("ERROR_LOG", show(layout.log(part))),
        ("ACCESS_LOG", show(layout.access_log(edge.router))),
        ("ACCESS_LOG_BUFFER", buffer.to_owned()),
        ("EDGE_LISTEN", join(&options.listen, edge.ports.edge)),
        ("ADMIN_LISTEN", join(&options.admin_listen, edge.ports.admin)),
        ("ROUTES_REPLICA", format!("unix:{}", layout.replica_socket(edge.router).display())),
        ("ROUTES_REPLICA_USER", User::Edge.name().to_owned()),
        ("ROUTES_REPLICA_PASSWORD_FILE", show(layout.secrets().password_file(User::Edge))),
        ("SNAPSHOT_PATH", show(layout.snapshot(edge.router))),
        ("EDGE_KEY_FILE", show(layout.edge_key())),
        ("EDGE_TLS_LISTEN", edge.ports.edge_tls.map_or_else(String::new, |port| join(&options.listen, port))),
        // That of EDGE_TLS_LISTEN.
        ("EDGE_HTTPS_PORT", String::new()),
        ("PACEMAKER", edge.pacemaker.clone()),
        ("SIDECAR", edge.sidecar.clone()),
    ];
    values.extend(own.map(|(name, value)| (name.to_owned(), value)));
    for path in ["PREFIX", "NGINX_DIR", "LUA_DIR", "ACCESS_LOG"] {
        refuse_special("data_dir", &values[path])?;
    }
    for (name, value) in &options.nginx {
        let known = values.get_mut(name).ok_or_else(|| {
            Error::option(format!("edge.nginx.{name}"), "the template nginx/nginx.conf has no such name")
        })?;
        known.clone_from(value);
    }
    listeners::derive(&mut values).map_err(|error| error.within("edge.nginx"))?;
    Ok(values)
}

/// The template uses paths without quotes, and `$` starts a variable in some places.
fn refuse_special(option: &str, path: &str) -> Result<(), Error> {
    let special = |c: char| c.is_whitespace() || c.is_control() || "$;{}\"'\\?".contains(c);
    match path.chars().find(|c| special(*c)) {
        Some(c) => Err(Error::option(option, format!("nginx cannot use a path with {c:?}: {path}"))),
        None => Ok(()),
    }
}

/// Whether `path` is an existing folder with a file called `file`.
fn has(path: &Path, file: &str) -> bool {
    path.join(file).is_file()
}
