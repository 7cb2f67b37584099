//! Addresses of instances, as nginx connects to them.

use std::{fmt, net::SocketAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use super::Invalid;
use crate::{Network, OwnAddresses, UnixFolder};

/// An address such as `127.0.0.1:9001`, `[::1]:9001` or `unix:/run/app.sock`, in one canonical spelling,
/// because the table compares addresses as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Address(String);

/// The rules for addresses of instances, from the configuration.
#[derive(Debug, Clone, Default)]
pub struct AddressRules {
    /// The networks that may contain instances.
    pub networks: Vec<Network>,
    /// The folders below which instances may have Unix sockets.
    pub unix_folders: Vec<UnixFolder>,
    /// Addresses that belong to Signalbox itself, and are therefore rejected.
    pub own: OwnAddresses,
    /// Whether instances on loopback addresses and Unix sockets can have health checks. This requires that
    /// the pacemaker and the routers run on one machine, because otherwise such an address is a different
    /// machine for each of them.
    pub check_local: bool,
}

/// Maximum length of a path in a socket address (`sun_path`, with its final zero).
const MAX_UNIX_PATH: usize = 107;

impl Address {
    /// The address as text, as in the table.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Creates an address that was accepted before.
    #[cfg(test)]
    pub(crate) fn trusted(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl AddressRules {
    /// Parses an address and checks it against the rules. Host names are rejected: the edge's balancer
    /// accepts only IP addresses, and a name could later resolve to an address outside of the allowed
    /// networks.
    pub fn admit(&self, text: &str) -> Result<Address, Invalid> {
        match text.strip_prefix("unix:") {
            Some(path) => self.admit_unix(path),
            None => self.admit_socket(text),
        }
    }

    /// Whether the pacemaker may connect to an address for a health check.
    pub fn may_check(&self, address: &str) -> bool {
        let local = match address.parse::<SocketAddr>() {
            // The table may have been written manually, so all spellings are accepted.
            Ok(socket) => matches!(socket.ip().to_canonical(), ip if ip.is_loopback() || ip.is_unspecified()),
            Err(_) => true,
        };
        (self.check_local || !local) && self.admit(address).is_ok()
    }

    fn admit_socket(&self, text: &str) -> Result<Address, Invalid> {
        let invalid = || {
            let detail = "an address is an IP with a port (`127.0.0.1:9001`, `[::1]:9001`) or `unix:/path`";
            Invalid::new("invalid_address", "address", detail)
        };
        let socket = SocketAddr::from_str(text).map_err(|_| invalid())?;
        if socket.port() == 0 || matches!(socket, SocketAddr::V6(v6) if v6.scope_id() != 0) {
            return Err(invalid());
        }
        // ::ffff:127.0.0.1 is another spelling of 127.0.0.1. It is checked and stored in that form.
        let socket = SocketAddr::new(socket.ip().to_canonical(), socket.port());
        if self.own.forbids_instance(socket) {
            let detail = "this address belongs to Signalbox itself";
            return Err(Invalid::new("reserved_address", "address", detail));
        }
        let inside = |network: &Network| network.0.contains(&socket.ip());
        if !self.networks.iter().any(inside) {
            let detail = "the address is in none of the configured instance_networks";
            return Err(Invalid::new("address_not_allowed", "address", detail));
        }
        Ok(Address(socket.to_string()))
    }

    fn admit_unix(&self, path: &str) -> Result<Address, Invalid> {
        // The path is used in nginx and in JSON, so only simple characters are allowed.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._@+-".contains(&byte);
        let segments_fit = path.split('/').skip(1).all(|segment| !matches!(segment, "" | "." | ".."));
        if !path.starts_with('/') || path.len() > MAX_UNIX_PATH || !path.bytes().all(plain) || !segments_fit {
            let detail =
                "a Unix socket must be given as `unix:` and an absolute path of at most 107 plain characters";
            return Err(Invalid::new("invalid_address", "address", detail));
        }
        if self.own.forbids_socket(path) {
            let detail = "this socket belongs to Signalbox itself";
            return Err(Invalid::new("reserved_address", "address", detail));
        }
        if !self.unix_folders.iter().any(|folder| folder.covers(path)) {
            let detail = "the socket is in none of the configured routing.unix_folders";
            return Err(Invalid::new("address_not_allowed", "address", detail));
        }
        Ok(Address(format!("unix:{path}")))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules() -> AddressRules {
        let networks = ["127.0.0.0/8", "10.0.0.0/8", "::1/128"];
        let own = vec!["127.0.0.1:6401".parse().unwrap(), "unix:/run/routes.sock".parse().unwrap()];
        AddressRules {
            networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
            unix_folders: vec!["/run".parse().unwrap()],
            own: OwnAddresses::new(own, Vec::new(), |_| false),
            check_local: false,
        }
    }

    fn code(text: &str) -> &'static str {
        rules().admit(text).map_or_else(|invalid| invalid.code, |_| "ok")
    }

    #[test]
    fn an_address_has_one_spelling() {
        for (text, address) in [
            ("127.0.0.1:9001", "127.0.0.1:9001"),
            ("[0:0:0:0:0:0:0:1]:9001", "[::1]:9001"),
            ("[::ffff:10.1.2.3]:80", "10.1.2.3:80"),
            ("unix:/run/app.sock", "unix:/run/app.sock"),
        ] {
            assert_eq!(rules().admit(text).unwrap().as_str(), address);
        }
    }

    #[test]
    fn names_and_incomplete_addresses_are_rejected() {
        for text in [
            "",
            "localhost:9001",
            "127.0.0.1",
            "127.0.0.1:0",
            "127.0.0.1:70000",
            "::1:9001",
            "[::1]",
            "[fe80::1%2]:1",
            "127.0.0.1:9001 ",
            "http://127.0.0.1:9001",
            "127.1:9001",
            "unix:run/a",
            "unix:/",
            "unix:/a/../b",
            "unix:/a b",
            "unix:/a\"b",
            "unix:/a:b",
            "unix:/a\n",
        ] {
            assert_eq!(code(text), "invalid_address", "{text:?}");
        }
        assert_eq!(code(&format!("unix:/{}", "a".repeat(107))), "invalid_address");
    }

    #[test]
    fn the_rules_reject_foreign_addresses_and_our_own() {
        assert_eq!(code("192.0.2.1:80"), "address_not_allowed");
        assert_eq!(code("[::ffff:192.0.2.1]:80"), "address_not_allowed");
        assert_eq!(code("0.0.0.0:80"), "address_not_allowed");
        for own in
            ["127.0.0.1:6401", "127.0.0.2:6401", "[::1]:6401", "[::ffff:127.0.0.1]:6401", "0.0.0.0:6401"]
        {
            assert_eq!(code(own), "reserved_address", "{own}");
        }
        assert_eq!(code("unix:/run/routes.sock"), "reserved_address");
        assert_eq!(code("unix:/var/run/routes.sock"), "reserved_address");
        assert_eq!(code("unix:/srv/app.sock"), "address_not_allowed");
        let no_unix = AddressRules { networks: vec!["10.0.0.0/8".parse().unwrap()], ..Default::default() };
        assert_eq!(no_unix.admit("unix:/run/app.sock").unwrap_err().code, "address_not_allowed");
    }

    #[test]
    fn only_addresses_of_other_machines_are_checked_unless_all_is_one_machine() {
        let one_machine = AddressRules { check_local: true, ..rules() };
        for (address, elsewhere) in [
            ("10.0.0.1:80", true),
            ("127.0.0.1:80", false),
            ("[::1]:80", false),
            ("[::ffff:127.0.0.1]:80", false),
            ("unix:/run/a.sock", false),
        ] {
            assert_eq!(rules().may_check(address), elsewhere, "{address}");
            assert!(one_machine.may_check(address), "{address}");
        }
        let open = AddressRules { networks: vec!["0.0.0.0/0".parse().unwrap()], ..rules() };
        assert!(open.may_check("192.0.2.1:80") && !open.may_check("0.0.0.0:80"), "0.0.0.0 is this machine");
        assert!(!one_machine.may_check("127.0.0.1:6401") && !one_machine.may_check("192.0.2.1:80"));
    }

    proptest! {
        #[test]
        fn an_admitted_address_is_admitted_as_itself(text in "(\\[[0-9a-f:.]{2,20}\\]|[0-9.]{7,15}):[0-9]{1,5}|unix:[/a-z.]{1,20}") {
            if let Ok(address) = rules().admit(&text) {
                prop_assert_eq!(&rules().admit(address.as_str()).unwrap(), &address);
            }
        }
    }

    /// An accepted address has one canonical spelling, and satisfies the rules in this spelling.
    #[test]
    fn fuzz_addresses() {
        let examples = [
            "127.0.0.1:9001",
            "[0:0:0:0:0:0:0:1]:9001",
            "[::ffff:10.1.2.3]:80",
            "unix:/run/app.sock",
            "10.0.0.9:65535",
        ];
        let words = [
            "unix:",
            "//",
            "/../",
            "/./",
            "[",
            "]",
            "%1",
            ":0",
            "::ffff:",
            "127.0.0.1:6401",
            "/routes.sock",
            "0x7f",
            "01",
        ];
        let rules = rules();
        let mut fuzz = signalbox_testkit::Fuzz::new("addresses", examples, &words);
        while let Some(text) = fuzz.text() {
            let Ok(address) = rules.admit(&text) else { continue };
            assert_eq!(rules.admit(address.as_str()).ok().as_ref(), Some(&address), "{text}");
            match address.as_str().strip_prefix("unix:") {
                Some(path) => assert!(path.starts_with("/run/") && path != "/run/routes.sock", "{text}"),
                None => {
                    let socket: SocketAddr = address.as_str().parse().expect("a literal");
                    assert!(rules.networks.iter().any(|network| network.contains(socket.ip())), "{text}");
                    assert!(socket != "127.0.0.1:6401".parse().unwrap() && socket.port() != 0, "{text}");
                }
            }
            fuzz.accepted();
        }
    }
}
