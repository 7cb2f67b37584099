//! The part of a policy that decides who may use a host or a path, and where requests are redirected. The edge reads it in
//! `lua/signalbox/policy/access.lua`.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Hostname, Invalid, check_name, check_value, guards, invalid, require, within};

const MAX_NETWORKS: usize = 256;
const MAX_USERS: usize = 256;
const MAX_FORWARDED: usize = 32;
const MAX_URL: usize = 2048;
const MAX_CACHE_SECONDS: u64 = 3600;
const MAX_TIMEOUT_MS: u64 = 60_000;
/// Limits of the cost of hashes, because a worker of the edge is blocked while it checks a password.
const MAX_ROUNDS: u32 = 10_000;
const MAX_BCRYPT_COST: u32 = 6;

/// Replaces a password's hash in answers. In a policy that a client sets, it means that the stored hash is
/// kept.
pub(crate) const HIDDEN: &str = "(hidden)";

/// Who may use a host or a path. Every part that is present must admit the request.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Access {
    /// Networks or addresses of clients; others are rejected with 403.
    #[schema(example = json!(["10.0.0.0/8"]))]
    allow: Option<Vec<String>>,
    /// Networks or addresses that are rejected even if `allow` contains them.
    deny: Option<Vec<String>>,
    basic: Option<Basic>,
    forward: Option<Forward>,
}

/// User names and passwords.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Basic {
    /// What a browser shows. Default: `Restricted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    realm: Option<String>,
    /// User name → hash of the password, as `openssl passwd -6` (or `-5`) and `htpasswd -B` make it. Answers show
    /// `(hidden)`; a policy with `(hidden)` keeps the stored hash.
    #[schema(example = json!({"ann": "$6$…"}))]
    users: BTreeMap<String, String>,
}

/// An application that decides which requests pass.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Forward {
    /// The host whose instances are asked.
    #[schema(example = "auth.internal")]
    service: String,
    /// The path that is requested. Default: `/`.
    path: Option<String>,
    /// Headers of the request that the application receives, in addition to Authorization, Cookie and Accept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    send: Vec<String>,
    /// Headers of the application's answer that the instance receives. A client cannot set them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["X-User"]))]
    copy: Vec<String>,
    /// Seconds for which a positive answer is used again for an equal request, 1 to 3600. Default: none.
    cache_seconds: Option<u64>,
    /// Milliseconds to wait for the answer, 1 to 60,000. Default: 2000.
    timeout_ms: Option<u64>,
}

impl Access {
    pub(super) fn check(&mut self) -> Result<(), Invalid> {
        let allow = networks(self.allow.as_mut(), "access.allow")?;
        let deny = networks(self.deny.as_mut(), "access.deny")?;
        if let Some(never) = allow.iter().find(|one| deny.iter().any(|other| other.contains(*one))) {
            let detail = format!("deny contains the whole network {never}, so no client in it is allowed");
            return Err(invalid("access.allow", detail));
        }
        let one = self.basic.is_none() || self.forward.is_none();
        require(one, "access", "use either basic or forward: both read the header Authorization")?;
        self.basic.iter().try_for_each(Basic::check)?;
        self.forward.iter_mut().try_for_each(Forward::check)
    }

    /// The host that decides which requests pass.
    pub(super) fn service(&self) -> Option<&str> {
        self.forward.as_ref().map(|forward| &*forward.service)
    }

    /// The allowed and the denied networks.
    pub(super) fn networks(&self) -> (Option<&[String]>, Option<&[String]>) {
        (self.allow.as_deref(), self.deny.as_deref())
    }

    /// The checks in their order.
    pub(crate) fn checks(&self) -> Vec<&'static str> {
        let addresses = self.allow.is_some() || self.deny.is_some();
        [(addresses, "addresses"), (self.basic.is_some(), "basic"), (self.forward.is_some(), "forward")]
            .into_iter()
            .filter_map(|(checked, name)| checked.then_some(name))
            .collect()
    }

    /// Replaces hidden hashes with the stored ones of `before`.
    pub(super) fn keep_hidden(&mut self, before: Option<&Self>) -> Result<(), Invalid> {
        let stored = before.and_then(|before| before.basic.as_ref()).map(|basic| &basic.users);
        for (name, hash) in self.basic.iter_mut().flat_map(|basic| &mut basic.users) {
            if hash == HIDDEN {
                let kept = stored.and_then(|users| users.get(name)).ok_or_else(|| {
                    invalid("access.basic.users", format!("no password of {name} is stored; give its hash"))
                })?;
                hash.clone_from(kept);
            }
        }
        Ok(())
    }
}

/// Hides the hashes of passwords in a policy, or in rules for paths, as JSON.
pub(super) fn hide_passwords(policy: &mut Value) {
    hide_in(policy);
    policy.get_mut("paths").and_then(Value::as_array_mut).into_iter().flatten().for_each(hide_in);
}

fn hide_in(part: &mut Value) {
    let users = part.pointer_mut("/access/basic/users").and_then(Value::as_object_mut);
    users.into_iter().flat_map(|users| users.values_mut()).for_each(|hash| *hash = HIDDEN.into());
}

/// Validates networks and brings them into canonical form.
fn networks(list: Option<&mut Vec<String>>, field: &'static str) -> Result<Vec<IpNet>, Invalid> {
    let Some(list) = list else { return Ok(Vec::new()) };
    let fits = (1..=MAX_NETWORKS).contains(&list.len());
    require(fits, field, format!("list 1 to {MAX_NETWORKS} networks or addresses"))?;
    let mut networks = Vec::with_capacity(list.len());
    for text in list.iter_mut() {
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from));
        let Ok(network) = network else {
            let shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
            let detail = format!("`{shown}` is not a network such as 10.0.0.0/8, or an address");
            return Err(invalid(field, detail));
        };
        let network = plain_network(network);
        networks.push(network);
        *text = network.to_string();
    }
    Ok(networks)
}

/// The network without host bits. IPv4 addresses in IPv6 form become an IPv4 network, because clients are
/// compared by their IPv4 addresses.
fn plain_network(network: IpNet) -> IpNet {
    let mapped = network.addr().to_canonical();
    let prefix =
        network.prefix_len().checked_sub(96).filter(|_| mapped.is_ipv4() && network.addr().is_ipv6());
    prefix.and_then(|prefix| IpNet::new(mapped, prefix).ok()).unwrap_or(network).trunc()
}

impl Basic {
    fn check(&self) -> Result<(), Invalid> {
        let field = "access.basic.users";
        let fits = (1..=MAX_USERS).contains(&self.users.len());
        require(fits, field, format!("users must be 1 to {MAX_USERS} names with hashes"))?;
        self.realm.iter().try_for_each(|realm| check_value(realm, "access.basic.realm"))?;
        for (name, hash) in &self.users {
            let plain = |one: char| !one.is_control() && one != ':';
            let fits = (1..=128).contains(&name.len()) && name.chars().all(plain);
            require(fits, field, "a user name has 1 to 128 bytes, without `:` and control characters")?;
            // The error does not show the hash, which may be a password by mistake.
            check_hash(hash).map_err(|detail| invalid(field, format!("{name}: {detail}")))?;
        }
        Ok(())
    }
}

/// Checks the form and the cost of a password's hash.
fn check_hash(hash: &str) -> Result<(), String> {
    if hash == HIDDEN {
        return Ok(());
    }
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./".contains(&byte));
    let parts: Vec<&str> = hash.strip_prefix('$').map(|rest| rest.split('$').collect()).unwrap_or_default();
    let size = |kind: &str| if kind == "5" { 43 } else { 86 };
    match parts.as_slice() {
        [kind @ ("5" | "6"), salt, digest]
            if plain(salt) && salt.len() <= 16 && plain(digest) && digest.len() == size(kind) =>
        {
            Ok(())
        }
        [kind @ ("5" | "6"), rounds, salt, digest]
            if plain(salt) && salt.len() <= 16 && plain(digest) && digest.len() == size(kind) =>
        {
            let rounds = rounds.strip_prefix("rounds=").and_then(|rounds| rounds.parse::<u32>().ok());
            let fits = rounds.is_some_and(|rounds| (1000..=MAX_ROUNDS).contains(&rounds));
            fits.then_some(()).ok_or_else(|| format!("the hash must have 1000 to {MAX_ROUNDS} rounds"))
        }
        ["2a" | "2b" | "2y", cost, digest] if plain(digest) && digest.len() == 53 => {
            let fits = cost.len() == 2
                && cost.parse::<u32>().is_ok_and(|cost| (4..=MAX_BCRYPT_COST).contains(&cost));
            fits.then_some(()).ok_or_else(|| {
                format!("the cost of a bcrypt hash must be 4 to {MAX_BCRYPT_COST} (`htpasswd -B -C 5`)")
            })
        }
        _ => Err("give a hash of the password, as `openssl passwd -6` or `htpasswd -nB` makes it".to_owned()),
    }
}

/// Headers that describe the client's own connection and body. The call of forward authentication has others.
const FRAMING: [&str; 8] =
    ["connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade"];

impl Forward {
    fn check(&mut self) -> Result<(), Invalid> {
        self.service = service(&self.service, "access.forward.service")?;
        let path = self.path.as_deref().unwrap_or("/");
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        let fits = path.starts_with('/') && path.len() <= MAX_URL && path.bytes().all(plain);
        let detail =
            format!("path must start with `/` and have at most {MAX_URL} printable ASCII characters");
        require(fits, "access.forward.path", detail)?;
        for (names, field) in [(&self.send, "access.forward.send"), (&self.copy, "access.forward.copy")] {
            require(names.len() <= MAX_FORWARDED, field, format!("list at most {MAX_FORWARDED} headers"))?;
            names.iter().try_for_each(|name| check_name(name, field))?;
        }
        if let Some(name) = self.send.iter().find(|name| FRAMING.contains(&&*name.to_ascii_lowercase())) {
            let detail = format!("{name} belongs to the client's connection; it cannot be sent");
            return Err(invalid("access.forward.send", detail));
        }
        if let Some(name) =
            self.copy.iter().find(|name| guards::RESERVED.contains(&&*name.to_ascii_lowercase()))
        {
            let detail = format!("{name} is reserved for the connection or the edge; it cannot be copied");
            return Err(invalid("access.forward.copy", detail));
        }
        within(self.cache_seconds, 1..=MAX_CACHE_SECONDS, "access.forward.cache_seconds")?;
        within(self.timeout_ms, 1..=MAX_TIMEOUT_MS, "access.forward.timeout_ms")
    }
}

/// Validates the name of a host that serves requests of another host.
pub(super) fn service(name: &str, field: &'static str) -> Result<String, Invalid> {
    let service = Hostname::parse(name).map_err(|reason| invalid(field, reason.detail))?;
    require(!service.as_str().starts_with('*'), field, "give one host name, without `*`")?;
    Ok(service.to_string())
}

/// Where requests are redirected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redirect {
    /// An absolute URL, or a path.
    #[schema(example = "https://www.shop.example")]
    to: String,
    /// 301 or 308 (permanent), 302 or 307 (temporary). 307 and 308 keep the method. Default: 308.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u64>,
    /// Whether the path and the arguments of the request are appended to `to`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    keep_path: bool,
}

impl Redirect {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let authority = self.authority();
        let path = self.to.starts_with('/') && !self.to.starts_with("//") && !self.to.starts_with("/\\");
        let plain =
            self.to.len() <= MAX_URL && self.to.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        let url = authority.is_some_and(|authority| !authority.is_empty() && !authority.contains('@'));
        let detail = format!(
            "to must be an http or https URL, or a path, of at most {MAX_URL} printable ASCII characters"
        );
        require(plain && (path || url), "redirect.to", detail)?;
        let complete = path || self.to.ends_with('/') || self.to.contains(['?', '#']);
        let detail = "with keep_path, to must be a URL that does not end with `/` and has no arguments";
        require(!self.keep_path || !complete, "redirect.to", detail)?;
        let fits = matches!(self.status, None | Some(301 | 302 | 307 | 308));
        require(fits, "redirect.status", "status must be 301, 302, 307 or 308")
    }

    /// The status, the target, and whether the path is appended.
    pub(super) fn target(&self) -> (u16, &str, bool) {
        let status = self.status.and_then(|status| u16::try_from(status).ok());
        (status.unwrap_or(308), &self.to, self.keep_path)
    }

    fn authority(&self) -> Option<&str> {
        let rest = self.to.strip_prefix("https://").or_else(|| self.to.strip_prefix("http://"))?;
        rest.split(['/', '?', '#']).next()
    }

    /// Whether a redirect of the whole host `hostname` leads to itself.
    pub(super) fn leads_back_to(&self, hostname: &str) -> bool {
        let name = self.authority().map(|authority| authority.split(':').next().unwrap_or_default());
        name.is_none_or(|name| name.eq_ignore_ascii_case(hostname))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_checked_by_form_and_cost() {
        let sha = format!("$6$ab${}", "x".repeat(86));
        let bcrypt = |cost: &str| format!("$2y${cost}${}", "x".repeat(53));
        for hash in [sha.clone(), sha.replace("$6$", "$6$rounds=5000$"), bcrypt("05"), HIDDEN.to_owned()] {
            assert_eq!(check_hash(&hash), Ok(()), "{hash}");
        }
        for hash in [
            "secret".to_owned(),
            String::new(),
            sha.replace("$6$", "$5$"),
            sha.replace("$6$", "$6$rounds=10001$"),
            sha.replace("$6$", "$1$"),
            bcrypt("10"),
            bcrypt("5"),
            format!("{sha}\n"),
        ] {
            let error = check_hash(&hash).unwrap_err();
            assert!(hash.is_empty() || !error.contains(&*hash), "{error}");
        }
    }

    #[test]
    fn ipv4_networks_in_ipv6_form_are_ipv4_networks() {
        for (given, stored) in [
            ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
            ("::ffff:10.1.2.3", "10.1.2.3/32"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("::ffff:0:0/95", "::fffe:0:0/95"),
            ("fd00::1/8", "fd00::/8"),
        ] {
            let mut list = vec![given.to_owned()];
            networks(Some(&mut list), "access.deny").unwrap();
            assert_eq!(list, [stored], "{given}");
        }
    }

    #[test]
    fn a_redirect_to_the_host_itself_is_found() {
        let redirect = |to: &str| Redirect { to: to.to_owned(), status: None, keep_path: false };
        assert!(redirect("https://A.test:8443/x").leads_back_to("a.test"));
        assert!(redirect("/x").leads_back_to("a.test"));
        assert!(!redirect("https://www.a.test").leads_back_to("a.test"));
    }
}
