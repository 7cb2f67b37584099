//! Traefik, one core, with hosts from a file that it watches.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{Proxy, folder, free_address, on_core, wheels::TRAEFIK};

/// One service with all instances, for every host.
pub(crate) async fn plain(root: &Path, core: usize, instances: &[SocketAddr]) -> anyhow::Result<Proxy> {
    let file = json!({"http": {
        "routers": {"all": {"rule": "PathPrefix(`/`)", "service": "all", "middlewares": ["again"]}},
        "middlewares": again(),
        "services": {"all": service(instances)},
    }});
    Ok(start(root, "Traefik", core, &file.to_string()).await?.0)
}

/// A service for each instance, and hosts as [`hosts_file`] makes them.
pub(crate) async fn dynamic(root: &Path, core: usize, hosts: &str) -> anyhow::Result<(Proxy, PathBuf)> {
    start(root, "Traefik, file provider", core, hosts).await
}

/// The file of hosts, each with the number of its instance.
pub(crate) fn hosts_file<'a>(
    instances: &[SocketAddr],
    hosts: impl Iterator<Item = (&'a str, usize)>,
) -> String {
    let router =
        |host: &str, to: usize| json!({"rule": format!("Host(`{host}`)"), "service": format!("to{to}")});
    let routers: Map<String, Value> =
        hosts.map(|(host, to)| (host.replace('.', "-"), router(host, to))).collect();
    let services: Map<String, Value> =
        (0..instances.len()).map(|at| (format!("to{at}"), service(&instances[at..=at]))).collect();
    json!({"http": {"routers": routers, "services": services}}).to_string()
}

fn again() -> Value {
    json!({"again": {"retry": {"attempts": 4}}})
}

fn service(instances: &[SocketAddr]) -> Value {
    let servers: Vec<Value> =
        instances.iter().map(|address| json!({"url": format!("http://{address}")})).collect();
    json!({"loadBalancer": {"servers": servers, "passHostHeader": true}})
}

/// The file is JSON, which is YAML too.
async fn start(root: &Path, name: &str, core: usize, hosts: &str) -> anyhow::Result<(Proxy, PathBuf)> {
    let program = TRAEFIK.program().await?;
    let prefix = folder(root, &name.replace([' ', ','], "-"))?;
    let watched = folder(&prefix, "hosts")?;
    let file = watched.join("hosts.yml");
    std::fs::write(&file, hosts)?;
    let listen = free_address()?;
    let mut command = on_core(core, &program.display().to_string());
    command.args([
        format!("--entryPoints.edge.address={listen}"),
        format!("--providers.file.directory={}", watched.display()),
        "--providers.file.watch=true".to_owned(),
        // Two seconds otherwise, in which changes are gathered.
        "--providers.providersThrottleDuration=100ms".to_owned(),
        format!("--accessLog.filePath={}", prefix.join("access.log").display()),
        "--accessLog.format=json".to_owned(),
        "--accessLog.bufferingSize=100".to_owned(),
        "--log.level=ERROR".to_owned(),
        "--global.checkNewVersion=false".to_owned(),
        "--global.sendAnonymousUsage=false".to_owned(),
    ]);
    command.env("GOMAXPROCS", "1").env("HOME", &prefix);
    let proxy = Proxy::start(name, &mut command, listen, &prefix.join("output.log")).await?;
    Ok((proxy, file))
}
