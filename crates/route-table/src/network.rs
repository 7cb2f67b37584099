//! Where instances may be: networks, and folders of Unix sockets.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde_with::DeserializeFromStr;

use crate::own::canonical_path;

/// A network that may contain instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, DeserializeFromStr)]
pub struct Network(pub(crate) IpNet);

impl Network {
    /// Whether an address is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "unix" => {
                Err("`unix` is not a network; list the folders of the sockets in routing.unix_folders".into())
            }
            text => text.parse().map(Self).map_err(|_| format!("`{text}` is not a network like 10.0.0.0/8")),
        }
    }
}

/// A folder below which instances may have Unix sockets.
#[derive(Debug, Clone, PartialEq, Eq, DeserializeFromStr)]
pub struct UnixFolder(String);

impl UnixFolder {
    /// Whether a socket is in this folder or below it. `path` must not contain `.` or `..`.
    pub(crate) fn covers(&self, path: &str) -> bool {
        canonical_path(path).strip_prefix(&self.0).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
    }
}

impl FromStr for UnixFolder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.trim();
        let path = path.strip_suffix('/').unwrap_or(path);
        let fits = |segment: &str| !matches!(segment, "" | "." | "..");
        if !path.starts_with('/') || !path.split('/').skip(1).all(fits) {
            return Err(format!("`{text}` is not an absolute path of a folder other than /"));
        }
        Ok(Self(canonical_path(path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_covers_what_is_below_it() {
        for spelling in ["/run/apps", "/run/apps/", "/var/run/apps"] {
            let folder: UnixFolder = spelling.parse().unwrap();
            for socket in ["/run/apps/a.sock", "/run/apps/b/c.sock", "/var/run/apps/a.sock"] {
                assert!(folder.covers(socket), "{spelling} {socket}");
            }
            for other in ["/run/apps", "/run/apps/", "/run/apps2/a.sock", "/run/docker.sock", "/a"] {
                assert!(!folder.covers(other), "{spelling} {other}");
            }
        }
        for wrong in ["", "/", "run/apps", "/run/../etc", "/run//apps", "/run/./apps"] {
            assert!(wrong.parse::<UnixFolder>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn unix_is_not_a_network() {
        assert!("unix".parse::<Network>().unwrap_err().contains("routing.unix_folders"));
        assert!("everything".parse::<Network>().is_err());
    }
}
