//! The parts of nginx.conf that an option enables or disables: listeners for TLS and HTTP/2, and trusted proxies. The template
//! itself has no conditions.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr, SocketAddrV4},
    path::Path,
};

use rcgen::{CertificateParams, KeyPair};

use crate::{Error, layout::set_mode};

/// Debian's bundle of authorities, which must have signed the certificates of instances.
const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The maximum length of an edge's name.
const MAX_NAME: usize = 64;

/// Adds the values that are derived from an operator's values.
pub(super) fn derive(values: &mut BTreeMap<String, String>) -> Result<(), Error> {
    let tls = values["EDGE_TLS_LISTEN"].clone();
    let h2c = values["EDGE_H2C_LISTEN"].clone();
    let folder = values["NGINX_DIR"].clone();
    if values["EDGE_HTTPS_PORT"].is_empty() {
        let port = tls.split_ascii_whitespace().next().and_then(|address| address.rsplit(':').next());
        values.insert("EDGE_HTTPS_PORT".to_owned(), port.unwrap_or("443").to_owned());
    }
    if values["EDGE_UPSTREAM_CA"].is_empty() {
        // nginx requires a file even if no instance uses TLS. Without a bundle, no certificate is trusted.
        let bundle = if Path::new(CA_BUNDLE).is_file() { CA_BUNDLE } else { &values["EDGE_TLS_CERTIFICATE"] };
        let bundle = bundle.to_owned();
        values.insert("EDGE_UPSTREAM_CA".to_owned(), bundle);
    }
    let needs_certificate = !tls.is_empty() || values["EDGE_UPSTREAM_CA"] == values["EDGE_TLS_CERTIFICATE"];
    if needs_certificate {
        self_signed(&values["EDGE_TLS_CERTIFICATE"], &values["EDGE_TLS_KEY"])?;
    }
    let tls_server = server(&tls, "ssl http2", |lines| {
        lines.push(format!("ssl_certificate {};", values["EDGE_TLS_CERTIFICATE"]));
        lines.push(format!("ssl_certificate_key {};", values["EDGE_TLS_KEY"]));
        lines.push(format!("include {folder}/tls.conf;"));
    });
    let tls_server = tls_server.replace("{folder}", &folder);
    let h2c_server = server(&h2c, "http2", |_| {}).replace("{folder}", &folder);
    let limit = address_limit(&values["ADDRESS_REQUESTS"])?;
    let (tls_server, h2c_server) =
        (tls_server.replace("{limit}", &limit), h2c_server.replace("{limit}", &limit));
    let name = edge_name(&values["EDGE_NAME"], &values["EDGE_LISTEN"])?;
    let admin_names = admin_names(&values["ADMIN_NAMES"])?;
    let (real_ip, list, forwarded) = forwarders(&values["EDGE_FORWARDERS"], &values["EDGE_REAL_IP_HEADER"])?;
    for (name, value) in [
        ("EDGE_ACME_LOCATION", acme(&values["EDGE_ACME"], &folder)?),
        ("EDGE_TLS_SERVER", tls_server),
        ("EDGE_CLEARTEXT_SERVER", h2c_server),
        ("EDGE_REAL_IP", real_ip),
        ("EDGE_FORWARDER_LIST", list),
        ("EDGE_FORWARDED", forwarded.to_owned()),
        ("EDGE_NAME_PATTERN", name.replace('.', "\\.")),
        ("EDGE_NAME", name),
        ("ADDRESS_LIMIT", limit),
        ("ADDRESS_KEY", address_key(values).to_owned()),
        ("ADMIN_NAME_LIST", admin_names),
    ] {
        values.insert(name.to_owned(), value);
    }
    Ok(())
}

/// The location for ACME challenges over plain HTTP (RFC 8555, 8.3), for all hosts and policies. Those of the pacemaker's own
/// orders are answered from the route table. Others are sent to `address`, or to the host's instances if it is empty.
fn acme(address: &str, folder: &str) -> Result<String, Error> {
    if address.is_empty() {
        return Ok(format!("include {folder}/challenge.conf;"));
    }
    let address: SocketAddr =
        address.parse().map_err(|_| Error::option("EDGE_ACME", format!("{address:?} is not an ip:port")))?;
    // A request that goes in loops leaves for @full.
    let check = "if ($edge_unusual = loop) { return 419; } error_page 419 = @full;";
    let answer = r#"content_by_lua_block { require("signalbox.challenge").serve("@acme") }"#;
    Ok(format!(
        "location ^~ /.well-known/acme-challenge/ {{ {check} {answer} }}\n        \
         location @acme {{ proxy_pass http://{address}; }}"
    ))
}

/// The line that limits the requests of one client address.
fn address_limit(requests: &str) -> Result<String, Error> {
    if requests == "off" {
        return Ok(String::new());
    }
    match requests.parse::<u16>() {
        Ok(number) if number > 0 => Ok(format!("limit_conn signalbox_addresses {number};")),
        _ => {
            let reason = format!("{requests:?} is not a number from 1 to 65535, or off");
            Err(Error::option("ADDRESS_REQUESTS", reason))
        }
    }
}

/// The variable that `ADDRESS_LIMIT` counts by. If a client can have an IPv6 address, that is a pattern for each request.
fn address_key(values: &BTreeMap<String, String>) -> &'static str {
    let ipv4 = |listen: &str| {
        let address = listen.split_ascii_whitespace().next();
        address.is_none_or(|address| address.parse::<SocketAddrV4>().is_ok())
    };
    let listeners = ["EDGE_LISTEN", "EDGE_TLS_LISTEN", "EDGE_H2C_LISTEN"];
    if values["EDGE_FORWARDERS"].is_empty() && listeners.iter().all(|name| ipv4(&values[*name])) {
        "$binary_remote_addr"
    } else {
        "$edge_client"
    }
}

/// The name of this edge in loop detection: `given`, or the host name and the port of `listen`.
fn edge_name(given: &str, listen: &str) -> Result<String, Error> {
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    if !given.is_empty() {
        if given.len() > MAX_NAME || !given.chars().all(valid) {
            let reason = format!("{given:?} is not 1 to {MAX_NAME} letters, digits, dots and dashes");
            return Err(Error::option("EDGE_NAME", reason));
        }
        return Ok(given.to_owned());
    }
    let host = signalbox_settings::host_name();
    let address = listen.split_ascii_whitespace().next().unwrap_or_default();
    let port = address.rsplit(':').next().unwrap_or_default();
    let name = format!("{host}-{port}");
    Ok(name.chars().map(|c| if valid(c) { c } else { '-' }).take(MAX_NAME).collect())
}

/// The lines of a `map` that accept `names`.
fn admin_names(names: &str) -> Result<String, Error> {
    let valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let lines: Result<Vec<String>, Error> = names
        .split_ascii_whitespace()
        .map(|name| match name.chars().all(valid) {
            true => Ok(format!("\"{}\" 1;", name.to_ascii_lowercase())),
            false => Err(Error::option("ADMIN_NAMES", format!("{name:?} is not a host name"))),
        })
        .collect();
    Ok(lines?.join("\n        "))
}

/// A server for HTTP/2; empty if it is off.
fn server(listen: &str, protocols: &str, more: impl FnOnce(&mut Vec<String>)) -> String {
    if listen.is_empty() {
        return String::new();
    }
    let mut lines =
        vec![format!("listen {listen} {protocols} default_server backlog=4096;"), "{limit}".to_owned()];
    more(&mut lines);
    lines.extend(["edge.conf", "h2.conf"].map(|file| format!("include {{folder}}/{file};")));
    format!("server {{\n        {}\n    }}", lines.join("\n        "))
}

/// The lines that trust `networks`, their list for `geo`, and the file with the headers for instances.
fn forwarders(networks: &str, header: &str) -> Result<(String, String, &'static str), Error> {
    let networks: Vec<&str> = networks.split_ascii_whitespace().collect();
    if let Some(wrong) = networks.iter().find(|network| !is_network(network)) {
        return Err(Error::option("EDGE_FORWARDERS", format!("{wrong:?} is not a network")));
    }
    if networks.is_empty() {
        return Ok((String::new(), String::new(), "forwarded-direct.conf"));
    }
    let mut lines: Vec<String> =
        networks.iter().map(|network| format!("set_real_ip_from {network};")).collect();
    lines.push(format!("real_ip_header {header};"));
    lines.push("real_ip_recursive on;".to_owned());
    let real_ip = lines.join("\n    ");
    if header == "proxy_protocol" {
        // It contains only the address. All headers are the client's.
        return Ok((real_ip, String::new(), "forwarded-direct.conf"));
    }
    let list = networks.iter().map(|network| format!("{network} 1;")).collect::<Vec<_>>().join("\n        ");
    Ok((real_ip, list, "forwarded-trusted.conf"))
}

/// An address or a network.
fn is_network(text: &str) -> bool {
    let (address, bits) = text.split_once('/').unwrap_or((text, "0"));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

/// Writes a self-signed certificate if there is none, because a TLS listener requires one.
fn self_signed(certificate: &str, key: &str) -> Result<(), Error> {
    if Path::new(certificate).exists() && Path::new(key).exists() {
        return Ok(());
    }
    let failed = |error: rcgen::Error| Error::option("EDGE_TLS_CERTIFICATE", error.to_string());
    let pair = KeyPair::generate().map_err(failed)?;
    let params = CertificateParams::new(vec!["signalbox.invalid".to_owned()]).map_err(failed)?;
    let made = params.self_signed(&pair).map_err(failed)?;
    fs::write(key, "").map_err(Error::file("write", key))?;
    set_mode(Path::new(key), 0o600)?;
    fs::write(key, pair.serialize_pem()).map_err(Error::file("write", key))?;
    fs::write(certificate, made.pem()).map_err(Error::file("write", certificate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(folder: &Path, set: &[(&str, &str)]) -> BTreeMap<String, String> {
        let names = [
            "EDGE_TLS_LISTEN",
            "EDGE_H2C_LISTEN",
            "EDGE_HTTPS_PORT",
            "EDGE_ACME",
            "EDGE_UPSTREAM_CA",
            "EDGE_FORWARDERS",
            "EDGE_REAL_IP_HEADER",
            "EDGE_NAME",
            "ADMIN_NAMES",
        ];
        let mut values: BTreeMap<String, String> = names.map(|name| (name.to_owned(), String::new())).into();
        values.insert("NGINX_DIR".into(), "/conf".into());
        values.insert("EDGE_LISTEN".into(), "0.0.0.0:8080".into());
        values.insert("ADDRESS_REQUESTS".into(), "1000".into());
        values.insert("EDGE_TLS_CERTIFICATE".into(), folder.join("c").display().to_string());
        values.insert("EDGE_TLS_KEY".into(), folder.join("k").display().to_string());
        values.extend(set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        values
    }

    #[test]
    fn addresses_are_counted_by_network_only_if_one_can_be_ipv6() {
        let folder = tempfile::tempdir().unwrap();
        let key = |set: &[(&str, &str)]| address_key(&values(folder.path(), set));
        assert_eq!(key(&[]), "$binary_remote_addr");
        assert_eq!(key(&[("EDGE_TLS_LISTEN", "127.0.0.1:8443 proxy_protocol")]), "$binary_remote_addr");
        for listen in ["[::]:8080", "8080", "edge.example:80", "unix:/run/edge.sock"] {
            assert_eq!(key(&[("EDGE_LISTEN", listen)]), "$edge_client", "{listen}");
        }
        assert_eq!(key(&[("EDGE_TLS_LISTEN", "[::]:8443")]), "$edge_client");
        assert_eq!(key(&[("EDGE_FORWARDERS", "10.0.0.1")]), "$edge_client");
    }

    #[test]
    fn listeners_exist_only_if_they_are_enabled() {
        let folder = tempfile::tempdir().unwrap();
        let mut off = values(folder.path(), &[("EDGE_UPSTREAM_CA", "/ca")]);
        derive(&mut off).unwrap();
        assert_eq!((&*off["EDGE_TLS_SERVER"], &*off["EDGE_CLEARTEXT_SERVER"]), ("", ""));
        assert_eq!(off["EDGE_HTTPS_PORT"], "443");
        assert!(!folder.path().join("c").exists());
        let mut on = values(
            folder.path(),
            &[("EDGE_TLS_LISTEN", "0.0.0.0:8443"), ("EDGE_H2C_LISTEN", "127.0.0.1:8082")],
        );
        derive(&mut on).unwrap();
        assert!(on["EDGE_TLS_SERVER"].contains("listen 0.0.0.0:8443 ssl http2"), "{on:?}");
        assert!(on["EDGE_TLS_SERVER"].contains("include /conf/h2.conf;"), "{on:?}");
        assert!(on["EDGE_CLEARTEXT_SERVER"].contains("listen 127.0.0.1:8082 http2"), "{on:?}");
        assert_eq!(on["EDGE_HTTPS_PORT"], "8443");
        for listener in ["EDGE_TLS_SERVER", "EDGE_CLEARTEXT_SERVER"] {
            assert!(on[listener].contains("limit_conn signalbox_addresses 1000;"), "{on:?}");
        }
        assert!(on["EDGE_NAME"].ends_with("-8080"), "{on:?}");
        let kept = fs::read(folder.path().join("c")).unwrap();
        derive(&mut on).unwrap();
        assert_eq!(fs::read(folder.path().join("c")).unwrap(), kept, "made once");
    }

    #[test]
    fn challenges_are_sent_to_one_address_or_to_the_instances() {
        assert_eq!(acme("", "/conf").unwrap(), "include /conf/challenge.conf;");
        assert!(acme("127.0.0.1:8089", "/conf").unwrap().contains("proxy_pass http://127.0.0.1:8089;"));
        for wrong in ["8089", "host:1", "127.0.0.1:1; include /etc/passwd"] {
            assert!(acme(wrong, "/conf").is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_edge_has_the_name_of_its_machine_and_port_or_its_own() {
        assert_eq!(edge_name("edge-1.example", "0.0.0.0:80").unwrap(), "edge-1.example");
        assert!(edge_name("", "[::]:80 proxy_protocol").unwrap().ends_with("-80"));
        for wrong in ["a b", "a;", "a|b", "a,b", &"x".repeat(65)] {
            assert!(edge_name(wrong, "80").is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_has_a_limit_unless_it_is_off() {
        assert_eq!(address_limit("20").unwrap(), "limit_conn signalbox_addresses 20;");
        assert_eq!(address_limit("off").unwrap(), "");
        for wrong in ["0", "-1", "65536", "", "1; deny all"] {
            assert!(address_limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_the_admin_listener_are_a_list_of_host_names() {
        assert_eq!(admin_names("").unwrap(), "");
        let list = admin_names("Admin.example router-1").unwrap();
        assert!(list.contains("\"admin.example\" 1;") && list.contains("\"router-1\" 1;"), "{list}");
        for wrong in ["*.example", "a;b", "a\"b", "~."] {
            assert!(admin_names(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn trusted_proxies_are_a_list_of_networks() {
        let (lines, list, file) = forwarders("10.0.0.0/8 ::1", "X-Forwarded-For").unwrap();
        assert!(lines.contains("set_real_ip_from 10.0.0.0/8;") && lines.contains("real_ip_recursive on;"));
        assert!(list.contains("::1 1;"));
        assert_eq!(file, "forwarded-trusted.conf");
        for wrong in ["10.0.0.0/33", "all", "10.0.0.0/8; include /etc/passwd", "unix:"] {
            assert!(forwarders(wrong, "X-Forwarded-For").is_err(), "{wrong}");
        }
    }
}
