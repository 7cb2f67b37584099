//! Static nginx, with one server for everything or a block for each host, and nginx with the lookup of Paasmaker's
//! router.

use std::{fmt::Write as _, net::SocketAddr, path::Path, process::Command};

use anyhow::ensure;

use super::{Proxy, folder, free_address, on_core, render, source};
use crate::{hosts::Table, process, redis::Server, tls::Identity};

/// The modules that Debian keeps in shared objects; nothing where they are built in (OpenResty).
const LUA_MODULES: [&str; 2] =
    ["/usr/lib/nginx/modules/ndk_http_module.so", "/usr/lib/nginx/modules/ngx_http_lua_module.so"];

/// The lines that load Lua into nginx.
pub(crate) fn load_modules() -> String {
    LUA_MODULES
        .iter()
        .filter(|module| Path::new(module).exists())
        .map(|module| format!("load_module {module};\n"))
        .collect()
}

/// The user of the workers: the one who runs the benchmark, so that they can access its folders.
pub(crate) fn user() -> String {
    nix::unistd::User::from_uid(nix::unistd::geteuid())
        .ok()
        .flatten()
        .map_or_else(|| "nobody".to_owned(), |user| user.name)
}

/// One server and one upstream for every host.
pub(crate) async fn plain(
    root: &Path,
    core: usize,
    instances: &[SocketAddr],
    workers: usize,
) -> anyhow::Result<Proxy> {
    let listen = free_address()?;
    let servers = format!(
        "upstream instances {{ {} keepalive 1024; keepalive_requests 1000000; }}\n\
         server {{ listen {listen} backlog=4096; server_name \"\"; location / {{ proxy_pass http://instances; }} }}\n",
        server_lines(instances)
    );
    let name =
        if workers == 1 { "static nginx".to_owned() } else { format!("static nginx, {workers} workers") };
    static_nginx(&name, root, core, listen, (&servers, workers)).await
}

/// A server block and an upstream for each host of the table, as generated configuration has it.
pub(crate) async fn server_blocks(root: &Path, core: usize, table: &Table) -> anyhow::Result<Proxy> {
    let listen = free_address()?;
    let mut servers = String::new();
    for (index, route) in table.routes().enumerate() {
        let backlog = if index == 0 { " backlog=4096" } else { "" };
        writeln!(
            servers,
            "upstream app{index} {{ {} keepalive 64; keepalive_requests 1000000; }}\n\
             server {{ listen {listen}{backlog}; server_name {}; location / {{ proxy_pass http://app{index}; }} }}",
            server_lines(&route.instances),
            route.host
        )?;
    }
    let name = format!("static nginx, {} server blocks", table.len());
    static_nginx(&name, root, core, listen, (&servers, 1)).await
}

/// A location and an upstream for each path of one host.
pub(crate) async fn locations(root: &Path, core: usize, services: &Table) -> anyhow::Result<Proxy> {
    let listen = free_address()?;
    let (mut upstreams, mut locations) = (String::new(), String::new());
    for (index, route) in services.routes().enumerate() {
        writeln!(
            upstreams,
            "upstream app{index} {{ {} keepalive 64; keepalive_requests 1000000; }}",
            server_lines(&route.instances)
        )?;
        writeln!(locations, "location {}/ {{ proxy_pass http://app{index}; }}", path_of(index))?;
    }
    let servers =
        format!("{upstreams}server {{ listen {listen} backlog=4096; server_name \"\"; {locations} }}\n");
    let name = format!("static nginx, {} locations", services.len());
    static_nginx(&name, root, core, listen, (&servers, 1)).await
}

/// The path that leads to a service.
pub(crate) fn path_of(index: usize) -> String {
    format!("/services/app-{index}")
}

/// One server and one upstream for every host, over TLS with the settings of the edge and a certificate in a file.
pub(crate) async fn with_tls(
    root: &Path,
    core: usize,
    instances: &[SocketAddr],
    identity: &Identity,
) -> anyhow::Result<Proxy> {
    let listen = free_address()?;
    let files = identity_files(root, identity)?;
    let settings = std::fs::read_to_string(source().join("nginx/tls.conf"))?;
    // Without Lua, and without comments, because all is one line.
    let settings = settings.lines().filter(|line| line.starts_with("ssl_") && !line.contains("_by_lua_"));
    let servers = format!(
        "upstream instances {{ {} keepalive 1024; keepalive_requests 1000000; }}\n\
         server {{ listen {listen} ssl http2 backlog=4096; server_name \"\"; {files} {} keepalive_requests 1000; \
         location / {{ proxy_pass http://instances; }} }}\n",
        server_lines(instances),
        settings.collect::<String>()
    );
    static_nginx("static nginx", root, core, listen, (&servers, 1)).await
}

/// Writes a certificate and its key, and returns the lines of a server that has them.
pub(super) fn identity_files(folder: &Path, identity: &Identity) -> anyhow::Result<String> {
    let (certificate, key) = (folder.join("listener.crt"), folder.join("listener.key"));
    std::fs::write(&certificate, &identity.certificate)?;
    std::fs::write(&key, &identity.private_key)?;
    Ok(format!("ssl_certificate {}; ssl_certificate_key {};", certificate.display(), key.display()))
}

/// Without `max_fails=0`, nginx excludes an instance for ten seconds after one failure. If instances restart within a second,
/// all of them are soon excluded.
fn server_lines(instances: &[SocketAddr]) -> String {
    instances.iter().map(|address| format!("server {address} max_fails=0;")).collect()
}

async fn static_nginx(
    name: &str,
    root: &Path,
    core: usize,
    listen: SocketAddr,
    (servers, workers): (&str, usize),
) -> anyhow::Result<Proxy> {
    let prefix = folder(root, &name.replace([' ', ','], "-"))?;
    let config = prefix.join("nginx.conf");
    let values = [
        ("USER", user()),
        ("PREFIX", prefix.display().to_string()),
        ("SERVERS", servers.to_owned()),
        ("WORKERS", workers.to_string()),
    ];
    render(include_str!("../../peers/static.conf"), &values, &config)?;
    start(name, &prefix, core, listen, workers).await
}

/// nginx that connects to Redis for each request.
pub(crate) async fn lookup(root: &Path, core: usize, redis: &Server) -> anyhow::Result<Proxy> {
    let prefix = folder(root, "lookup")?;
    let listen = free_address()?;
    let values = [
        ("LOAD_MODULES", load_modules()),
        ("USER", user()),
        ("PREFIX", prefix.display().to_string()),
        ("NGINX_DIR", source().join("nginx").display().to_string()),
        ("PEERS_DIR", source().join("bench/peers").display().to_string()),
        ("LISTEN", listen.to_string()),
        ("REDIS_HOST", redis.address.ip().to_string()),
        ("REDIS_PORT", redis.address.port().to_string()),
    ];
    render(include_str!("../../peers/lookup.conf"), &values, &prefix.join("nginx.conf"))?;
    let proxy = start("lookup per request", &prefix, core, listen, 1).await?;
    Ok(Proxy { helpers: vec![redis.id()], ..proxy })
}

/// Starts nginx in `prefix` with the `nginx.conf` there, and finds its workers, as many as are expected.
pub(crate) async fn start(
    name: &str,
    prefix: &Path,
    core: usize,
    listen: SocketAddr,
    expected: usize,
) -> anyhow::Result<Proxy> {
    let mut command: Command = on_core(core, "nginx");
    command.arg("-p").arg(prefix).arg("-c").arg(prefix.join("nginx.conf"));
    let proxy = Proxy::start(name, &mut command, listen, &prefix.join("output.log")).await?;
    // The master listens before its workers are there.
    let mut workers = process::children(proxy.process.id());
    for _ in 0..200 {
        if workers.len() >= expected {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        workers = process::children(proxy.process.id());
    }
    ensure!(workers.len() >= expected, "{name} has {} of {expected} workers", workers.len());
    workers.truncate(expected);
    Ok(Proxy { workers, ..proxy })
}
