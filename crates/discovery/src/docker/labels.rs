//! What the labels of a container mean. Pure.

use std::net::{IpAddr, SocketAddr};

use signalbox_client::routes::{Health, NewInstance};

use super::engine::Container;

/// The beginning of all labels that are read.
pub const PREFIX: &str = "signalbox.";
/// The labels, without the prefix.
const LABELS: [&str; 7] = ["host", "port", "version-type", "application", "weight", "health", "network"];

/// The instance that a container is; nothing while its own health check has not passed yet.
///
/// # Errors
/// The reason why it cannot be registered.
pub(super) fn read(container: &Container) -> Result<Option<NewInstance>, String> {
    let label = |name: &str| container.labels.get(&format!("{PREFIX}{name}")).map(|value| value.trim());
    for name in container.labels.keys().filter_map(|name| name.strip_prefix(PREFIX)) {
        if !LABELS.contains(&name) {
            return Err(format!("unknown label {PREFIX}{name}; expected one of {}", LABELS.join(", ")));
        }
    }
    if container.status.contains("(health: starting)") {
        return Ok(None);
    }
    if container.status.contains("(unhealthy)") {
        return Err("the engine reports it as unhealthy".to_owned());
    }
    let hosts: Vec<&str> =
        label("host").unwrap_or_default().split(',').map(str::trim).filter(|host| !host.is_empty()).collect();
    if hosts.is_empty() {
        return Err(format!("the label {PREFIX}host has no host name"));
    }
    let address = SocketAddr::new(ip(container, label("network"))?, port(container, label("port"))?);
    let version = label("version-type").filter(|version| !version.is_empty()).unwrap_or(&container.image);
    let mut instance = NewInstance::new(address.to_string(), hosts, version);
    instance.application_id = label("application").map(str::to_owned);
    instance.weight = match label("weight") {
        Some(weight) => {
            Some(weight.parse().ok().filter(|weight| *weight <= 1000).ok_or("the weight must be 0 to 1000")?)
        }
        None => None,
    };
    instance.health = match label("health") {
        Some("tcp") => Some(Health { tcp: true, ..Health::default() }),
        Some(path) if path.starts_with('/') => {
            Some(Health { path: Some(path.to_owned()), ..Health::default() })
        }
        Some(_) => return Err(format!("the label {PREFIX}health must be a path that begins with /, or tcp")),
        None => None,
    };
    Ok(Some(instance))
}

fn ip(container: &Container, network: Option<&str>) -> Result<IpAddr, String> {
    if container.host_config.network_mode == "host" {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    let networks = &container.network_settings.networks;
    let address = |address: &str| address.parse::<IpAddr>().ok();
    if let Some(name) = network {
        let found = networks.get(name).ok_or_else(|| format!("it is not in the network {name}"))?;
        return address(&found.ip_address).ok_or_else(|| format!("it has no address in the network {name}"));
    }
    let mut addresses = networks.values().filter_map(|network| address(&network.ip_address));
    match (addresses.next(), addresses.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err("it has no address in a network".to_owned()),
        _ => Err(format!("it is in several networks; name one with the label {PREFIX}network")),
    }
}

fn port(container: &Container, named: Option<&str>) -> Result<u16, String> {
    if let Some(port) = named {
        let port = port.parse().ok().filter(|port| *port > 0);
        return port.ok_or_else(|| format!("the label {PREFIX}port must be 1 to 65535"));
    }
    let mut ports: Vec<u16> = container
        .ports
        .iter()
        .filter(|port| port.r#type.is_empty() || port.r#type == "tcp")
        .map(|port| port.private_port)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    match ports[..] {
        [only] => Ok(only),
        _ => Err(format!("it exposes {} ports; name one with the label {PREFIX}port", ports.len())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container(change: impl FnOnce(&mut serde_json::Value)) -> Result<Option<NewInstance>, String> {
        let mut text = json!({
            "Id": "0123456789abcdef", "Names": ["/shop-1"], "Image": "shop:7", "Status": "Up 5 minutes",
            "Labels": {"signalbox.host": "shop.test, *.shop.test", "other": "x"},
            "Ports": [{"PrivatePort": 80, "Type": "tcp"}, {"PrivatePort": 80, "PublicPort": 8000, "Type": "tcp"}],
            "NetworkSettings": {"Networks": {"web": {"IPAddress": "172.18.0.3"}}},
            "HostConfig": {"NetworkMode": "web"},
        });
        change(&mut text);
        read(&serde_json::from_value(text).unwrap())
    }

    #[test]
    fn a_container_is_an_instance() {
        let instance = container(|_| ()).unwrap().unwrap();
        assert_eq!(instance.address, "172.18.0.3:80");
        assert_eq!(instance.hostnames, ["shop.test", "*.shop.test"]);
        assert_eq!((&*instance.version_type_id, instance.weight), ("shop:7", None));
        let instance = container(|one| {
            let labels = one["Labels"].as_object_mut().unwrap();
            for (label, value) in [
                ("port", "81"),
                ("version-type", "8"),
                ("weight", "0"),
                ("health", "/up"),
                ("application", "shop"),
            ] {
                labels.insert(format!("signalbox.{label}"), value.into());
            }
            one["NetworkSettings"]["Networks"]["other"] = json!({"IPAddress": "fd00::3"});
            labels_network(one, "other");
        });
        let instance = instance.unwrap().unwrap();
        assert_eq!((&*instance.address, instance.weight), ("[fd00::3]:81", Some(0)));
        assert_eq!(instance.health.unwrap().path.as_deref(), Some("/up"));
        let host = container(|one| one["HostConfig"]["NetworkMode"] = json!("host")).unwrap().unwrap();
        assert_eq!(host.address, "127.0.0.1:80");
        assert!(container(|one| one["Status"] = json!("Up 1 second (health: starting)")).unwrap().is_none());
    }

    fn labels_network(one: &mut serde_json::Value, name: &str) {
        one["Labels"]["signalbox.network"] = json!(name);
    }

    #[test]
    fn an_entry_that_cannot_be_registered_has_a_reason() {
        type Change = fn(&mut serde_json::Value);
        let cases: [(Change, &str); 11] = [
            (|one| one["Labels"]["signalbox.hosts"] = json!("x"), "unknown label signalbox.hosts"),
            (|one| one["Labels"]["signalbox.host"] = json!(" , "), "has no host name"),
            (|one| one["Labels"]["signalbox.port"] = json!("0"), "must be 1 to 65535"),
            (|one| one["Labels"]["signalbox.weight"] = json!("1001"), "the weight must be 0 to 1000"),
            (
                |one| one["Labels"]["signalbox.health"] = json!("up"),
                "must be a path that begins with /, or tcp",
            ),
            (|one| one["Labels"]["signalbox.network"] = json!("db"), "it is not in the network db"),
            (|one| one["Status"] = json!("Up 5 minutes (unhealthy)"), "reports it as unhealthy"),
            (|one| one["Ports"] = json!([]), "it exposes 0 ports"),
            (|one| one["Ports"][0]["PrivatePort"] = json!(443), "it exposes 2 ports"),
            (|one| one["NetworkSettings"]["Networks"] = json!(null), "it has no address in a network"),
            (
                |one| one["NetworkSettings"]["Networks"]["b"] = json!({"IPAddress": "10.0.0.1"}),
                "it is in several networks",
            ),
        ];
        for (change, expected) in cases {
            let error = container(change).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
