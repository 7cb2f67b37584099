//! Envoy, one worker thread.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{Proxy, folder, free_address, on_core, render, wheels::ENVOY};

/// One cluster with all instances, for every host.
pub(crate) async fn plain(root: &Path, core: usize, instances: &[SocketAddr]) -> anyhow::Result<Proxy> {
    let hosts = json!([{"name": "all", "domains": ["*"], "routes": [route("all")]}]);
    let routes = format!("route_config: {}", json!({"name": "all", "virtual_hosts": hosts}));
    start(root, "Envoy", core, &routes, &json!([cluster("all", instances)])).await
}

/// A cluster for each instance, and hosts from a file that it watches. `hosts` is what [`hosts_file`] makes.
pub(crate) async fn dynamic(
    root: &Path,
    core: usize,
    instances: &[SocketAddr],
    hosts: &str,
) -> anyhow::Result<(Proxy, PathBuf)> {
    let file = folder(root, "Envoy-xds")?.join("hosts.json");
    std::fs::write(&file, hosts)?;
    let source = json!({"path_config_source": {"path": file}, "resource_api_version": "V3"});
    let routes = format!("rds: {}", json!({"route_config_name": "hosts", "config_source": source}));
    let clusters: Vec<Value> =
        (0..instances.len()).map(|at| cluster(&format!("to{at}"), &instances[at..=at])).collect();
    Ok((start(root, "Envoy, file xDS", core, &routes, &json!(clusters)).await?, file))
}

/// The file of hosts, each with the number of its cluster.
pub(crate) fn hosts_file<'a>(version: u64, hosts: impl Iterator<Item = (&'a str, usize)>) -> String {
    let hosts: Vec<Value> = hosts
        .map(|(host, to)| json!({"name": host, "domains": [host], "routes": [route(&format!("to{to}"))]}))
        .collect();
    json!({"version_info": version.to_string(), "resources": [{
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": "hosts", "virtual_hosts": hosts,
    }]})
    .to_string()
}

fn route(cluster: &str) -> Value {
    let predicate = json!({
        "name": "envoy.retry_host_predicates.previous_hosts",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
    });
    json!({"match": {"prefix": "/"}, "route": {"cluster": cluster, "retry_policy": {
        "retry_on": "connect-failure,refused-stream,reset,gateway-error", "num_retries": 3,
        "retry_host_predicate": [predicate], "host_selection_retry_max_attempts": 5,
    }}})
}

fn cluster(name: &str, instances: &[SocketAddr]) -> Value {
    let endpoint = |address: &SocketAddr| {
        let address = json!({"address": address.ip().to_string(), "port_value": address.port()});
        json!({"endpoint": {"address": {"socket_address": address}}})
    };
    let endpoints: Vec<Value> = instances.iter().map(endpoint).collect();
    json!({
        "name": name, "type": "STATIC", "connect_timeout": "2s", "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": {"thresholds": [{"max_connections": 4096, "max_pending_requests": 4096,
            "max_requests": 4096, "max_retries": 1024}]},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    })
}

async fn start(
    root: &Path,
    name: &str,
    core: usize,
    routes: &str,
    clusters: &Value,
) -> anyhow::Result<Proxy> {
    let program = ENVOY.program().await?;
    let prefix = folder(root, &name.replace([' ', ','], "-"))?;
    let listen = free_address()?;
    let config = prefix.join("envoy.yaml");
    let values = [
        ("PORT", listen.port().to_string()),
        ("PREFIX", prefix.display().to_string()),
        ("ROUTES", routes.to_owned()),
        ("CLUSTERS", clusters.to_string()),
    ];
    render(include_str!("../../peers/envoy.yaml"), &values, &config)?;
    let mut command = on_core(core, &program.display().to_string());
    command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]);
    // The identity that Envoy requires for a file of hosts.
    command.args(["--service-node", "bench", "--service-cluster", "bench", "-c"]).arg(&config);
    Proxy::start(name, &mut command, listen, &prefix.join("output.log")).await
}
