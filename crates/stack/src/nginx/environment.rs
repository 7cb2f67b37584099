//! nginx.conf from environment variables, for containers and services that run only nginx (`signalbox edge`).
//!
//! The variables are the names of the template. The template is rendered by the same code as for `signalbox up`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{Flavour, files::Source, listeners, refuse_special, template, worker_limits};
use crate::Error;

/// The folder in which the package and the container image install `nginx/` and `lua/`.
const INSTALLED: &str = "/usr/lib/signalbox";

/// Whether an empty value is a value, or means that the variable is not set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Empty {
    Allowed,
    Default,
}

/// Every name with its default, also for `signalbox up`. `PREFIX` in a default is replaced.
const VARIABLES: [(&str, &str, Empty); 48] = [
    ("PREFIX", "/run/signalbox", Empty::Default),
    ("TEMP_DIR", "PREFIX", Empty::Default),
    ("TEMP_LIMIT", "0", Empty::Default),
    ("NGINX_DIR", "", Empty::Default),
    ("LUA_DIR", "", Empty::Default),
    // Not set: what the nginx that is found needs.
    ("LOAD_MODULES", "", Empty::Allowed),
    ("USER_LINE", "user www-data;", Empty::Allowed),
    ("WORKER_PROCESSES", "auto", Empty::Default),
    // Not set: as far as the limit of open files permits.
    ("WORKER_CONNECTIONS", "", Empty::Default),
    ("WORKER_NOFILE", "", Empty::Default),
    ("WORKER_SHUTDOWN", "30s", Empty::Default),
    ("ERROR_LOG", "stderr", Empty::Default),
    ("ERROR_LOG_LEVEL", "warn", Empty::Default),
    ("ACCESS_LOG", "/var/log/signalbox/access.log", Empty::Default),
    ("ACCESS_LOG_BUFFER", "buffer=64k flush=200ms", Empty::Allowed),
    ("EDGE_LISTEN", "0.0.0.0:8080", Empty::Default),
    ("ADMIN_LISTEN", "127.0.0.1:8081", Empty::Default),
    ("ADMIN_ALLOW", "allow 127.0.0.0/8; allow ::1;", Empty::Default),
    ("ADMIN_NAMES", "", Empty::Allowed),
    ("ROUTES_REPLICA", "127.0.0.1:6402", Empty::Default),
    ("ROUTES_REPLICA_USER", "", Empty::Allowed),
    ("ROUTES_REPLICA_PASSWORD_FILE", "", Empty::Allowed),
    ("ROUTES_SHM", "128m", Empty::Default),
    ("SNAPSHOT_PATH", "/var/lib/signalbox/routes.snapshot", Empty::Default),
    ("EDGE_KEY_FILE", "", Empty::Allowed),
    ("EDGE_TLS_LISTEN", "", Empty::Allowed),
    ("EDGE_H2C_LISTEN", "", Empty::Allowed),
    ("EDGE_TLS_CERTIFICATE", "PREFIX/tls.crt", Empty::Default),
    ("EDGE_TLS_KEY", "PREFIX/tls.key", Empty::Default),
    ("EDGE_HTTPS_PORT", "443", Empty::Default),
    // Empty: the host name and the port of EDGE_LISTEN.
    ("EDGE_NAME", "", Empty::Allowed),
    ("EDGE_FORWARDERS", "", Empty::Allowed),
    ("EDGE_REAL_IP_HEADER", "X-Forwarded-For", Empty::Default),
    // Empty: the system's bundle, if it exists.
    ("EDGE_UPSTREAM_CA", "", Empty::Allowed),
    ("EDGE_ACME", "", Empty::Allowed),
    ("PACEMAKER", "127.0.0.1:8700", Empty::Default),
    ("SIDECAR", "127.0.0.1:8701", Empty::Default),
    ("KEEPALIVE", "1024", Empty::Default),
    ("KEEPALIVE_TIMEOUT", "4s", Empty::Default),
    ("CONNECT_TIMEOUT", "2s", Empty::Default),
    ("READ_TIMEOUT", "60s", Empty::Default),
    ("RETRY_TIMEOUT", "10s", Empty::Default),
    ("BODY_LIMIT", "10m", Empty::Default),
    ("RESPONSE_HEADERS", "16k", Empty::Default),
    ("ADDRESS_REQUESTS", "1000", Empty::Default),
    ("HEADER_TIMEOUT", "10s", Empty::Default),
    ("BODY_TIMEOUT", "15s", Empty::Default),
    ("SEND_TIMEOUT", "30s", Empty::Default),
];

/// The values of all names if none is set.
pub(super) fn defaults(prefix: &str) -> BTreeMap<String, String> {
    let of_prefix = |default: &str| default.replace("PREFIX", prefix);
    VARIABLES.iter().map(|(name, default, _)| ((*name).to_owned(), of_prefix(default))).collect()
}

/// The program; nginx or OpenResty from the search path if it is not set. It is not called `NGINX`, because nginx takes a
/// variable of that name for a list of sockets.
const BINARY: &str = "NGINX_BINARY";

/// An nginx that can be started.
#[derive(Debug)]
pub struct RenderedEdge {
    /// Its program.
    pub binary: PathBuf,
    /// Its folder, for `-p`.
    pub prefix: PathBuf,
    /// Its configuration, for `-c`.
    pub configuration: PathBuf,
}

/// The names of the environment variables that [`render_edge`] reads.
pub fn edge_variables() -> impl Iterator<Item = &'static str> {
    VARIABLES.iter().map(|(name, ..)| *name).chain([BINARY])
}

/// Writes `PREFIX/nginx.conf` with the variables that `environment` returns.
///
/// # Errors
/// If a value is invalid, the template contains an unknown name, or a file cannot be read or written.
pub fn render_edge(environment: impl Fn(&str) -> Option<String>) -> Result<RenderedEdge, Error> {
    let set = |name: &str, empty: Empty| {
        environment(name).filter(|value| empty == Empty::Allowed || !value.is_empty())
    };
    let prefix = set("PREFIX", Empty::Default).unwrap_or_else(|| VARIABLES[0].1.to_owned());
    let folder = |name: &str, folder: &str| {
        set(name, Empty::Default).map_or_else(|| Path::new(INSTALLED).join(folder), PathBuf::from)
    };
    let source = Source { nginx: folder("NGINX_DIR", "nginx"), lua: folder("LUA_DIR", "lua") };
    let mut values = defaults(&prefix);
    values.extend(
        VARIABLES.iter().filter_map(|(name, _, empty)| Some(((*name).to_owned(), set(name, *empty)?))),
    );
    values.insert("NGINX_DIR".to_owned(), source.nginx.display().to_string());
    values.insert("LUA_DIR".to_owned(), source.lua.display().to_string());
    let (connections, open_files) = worker_limits();
    for (name, limit) in [("WORKER_CONNECTIONS", connections), ("WORKER_NOFILE", open_files)] {
        values.entry(name.to_owned()).and_modify(|value| {
            if value.is_empty() {
                *value = limit.to_string();
            }
        });
    }
    for path in ["PREFIX", "TEMP_DIR", "NGINX_DIR", "LUA_DIR", "ACCESS_LOG"] {
        refuse_special(path, &values[path])?;
    }
    for folder in [&prefix, &values["TEMP_DIR"]] {
        fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    }
    let binary = match (set(BINARY, Empty::Default), set("LOAD_MODULES", Empty::Allowed)) {
        (Some(binary), Some(_)) => binary.into(),
        (binary, modules) => {
            let found = Flavour::find(&binary.unwrap_or_default())?;
            values.insert("LOAD_MODULES".to_owned(), modules.unwrap_or_else(|| found.load_modules()));
            found.binary
        }
    };
    listeners::derive(&mut values)?;
    let text =
        template::render(&source.template()?, &values).map_err(|unknown| unknown.in_option("NGINX_DIR"))?;
    let prefix = PathBuf::from(prefix);
    let configuration = prefix.join("nginx.conf");
    fs::write(&configuration, text).map_err(Error::file("write", &configuration))?;
    Ok(RenderedEdge { binary, prefix, configuration })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn rendered(folder: &Path, set: &[(&str, &str)]) -> Result<String, Error> {
        let edge = render_edge(|name| {
            let own = set.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
            own.or_else(|| match name {
                "PREFIX" => Some(folder.join("prefix").display().to_string()),
                "NGINX_DIR" => Some(root().join("nginx").display().to_string()),
                "LUA_DIR" => Some(root().join("lua").display().to_string()),
                _ => None,
            })
        })?;
        Ok(fs::read_to_string(edge.configuration).unwrap())
    }

    #[test]
    fn every_name_of_the_template_has_a_value() {
        let folder = tempfile::tempdir().unwrap();
        let text = rendered(folder.path(), &[]).unwrap();
        assert!(text.contains("user www-data;") && text.contains("listen 0.0.0.0:8080"), "{text}");
        let (connections, open_files) = worker_limits();
        assert!(text.contains(&format!("worker_connections {connections};")), "{text}");
        assert!(text.contains(&format!("worker_rlimit_nofile {open_files};")), "{text}");
    }

    /// The header of nginx.conf is the source of the reference in docs/configuration.md.
    #[test]
    fn the_header_of_the_template_lists_every_name_with_its_default() {
        let explained = fs::read_to_string(root().join("nginx/nginx.conf")).unwrap();
        let rows = explained.lines().filter_map(|line| line.strip_prefix("#   ")).skip(1);
        let rows = rows.filter_map(|row| {
            let (name, rest) = row.split_once(' ').filter(|(name, _)| !name.is_empty())?;
            Some((name, rest.trim_start().split_once("  ").unwrap().0))
        });
        let installed = |folder| Path::new(INSTALLED).join(folder).display().to_string();
        let (nginx, lua) = (installed("nginx"), installed("lua"));
        let variables = VARIABLES.iter().map(|(name, default, _)| match (*name, *default) {
            ("NGINX_DIR", _) => ("NGINX_DIR", &*nginx),
            ("LUA_DIR", _) => ("LUA_DIR", &*lua),
            (name, "") => (name, "empty"),
            same => same,
        });
        assert_eq!(rows.collect::<BTreeMap<_, _>>(), variables.collect::<BTreeMap<_, _>>());
    }

    #[test]
    fn an_empty_variable_is_a_value_only_where_it_has_a_meaning() {
        let folder = tempfile::tempdir().unwrap();
        let text = rendered(folder.path(), &[("USER_LINE", ""), ("EDGE_LISTEN", "")]).unwrap();
        let user = text.lines().any(|line| line == "user www-data;");
        assert!(!user && text.contains("listen 0.0.0.0:8080"), "{text}");
    }

    #[test]
    fn an_nginx_from_the_search_path_gets_its_modules_and_a_given_one_what_it_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let found = Flavour::find("").unwrap();
        let text = rendered(folder.path(), &[]).unwrap();
        assert!(text.contains(&found.load_modules()), "{text}");
        let set = [("NGINX_BINARY", "/opt/nginx"), ("LOAD_MODULES", "load_module /opt/lua.so;")];
        let text = rendered(folder.path(), &set).unwrap();
        assert!(text.contains("load_module /opt/lua.so;"), "{text}");
        assert!(found.load_modules().is_empty() || !text.contains(&found.load_modules()), "{text}");
        let error = rendered(folder.path(), &[("NGINX_BINARY", "/does/not/exist")]).unwrap_err();
        assert!(error.to_string().contains("/does/not/exist"), "{error}");
    }

    #[test]
    fn listeners_and_proxies_are_derived_as_for_up() {
        let folder = tempfile::tempdir().unwrap();
        let set = [("EDGE_TLS_LISTEN", "0.0.0.0:8443"), ("EDGE_FORWARDERS", "10.0.0.0/8")];
        let text = rendered(folder.path(), &set).unwrap();
        assert!(text.contains("listen 0.0.0.0:8443 ssl http2"), "{text}");
        assert!(text.contains("set_real_ip_from 10.0.0.0/8;"), "{text}");
        assert!(folder.path().join("prefix/tls.crt").exists(), "a certificate for names without one");
        let error = rendered(folder.path(), &[("EDGE_FORWARDERS", "all")]).unwrap_err();
        assert!(error.to_string().contains("EDGE_FORWARDERS"), "{error}");
    }

    #[test]
    fn temporary_files_are_in_a_folder_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let temp = folder.path().join("cache").display().to_string();
        let text = rendered(folder.path(), &[("TEMP_DIR", &temp)]).unwrap();
        for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            assert!(text.contains(&format!("{temp}/{name};")), "{name}: {text}");
        }
        assert!(Path::new(&temp).is_dir());
        let prefix = folder.path().join("prefix").display().to_string();
        assert!(rendered(folder.path(), &[]).unwrap().contains(&format!("{prefix}/client_body;")));
    }

    #[test]
    fn a_template_with_an_unknown_name_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("nginx.conf"), "worker_processes ${NEW_NAME};").unwrap();
        let dir = folder.path().display().to_string();
        let error = rendered(folder.path(), &[("NGINX_DIR", &dir)]).unwrap_err();
        assert!(
            error.to_string().starts_with("NGINX_DIR: ") && error.to_string().contains("NEW_NAME"),
            "{error}"
        );
    }

    #[test]
    fn a_path_that_nginx_would_misread_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            rendered(folder.path(), &[("ACCESS_LOG", "/var/log/a; include /etc/passwd")]).unwrap_err();
        assert!(error.to_string().starts_with("ACCESS_LOG: "), "{error}");
    }
}
