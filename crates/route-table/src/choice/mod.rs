//! The instance that the edge chooses for one request, as far as it is determined: the same computation as
//! `lua/signalbox/choose.lua`, for clients that ask before they send. Pure.
//!
//! ```text
//!   sticky cookie ─▶ share (version type), by header, cookie or session ─▶ algorithm
//! ```
//!
//! The request alone determines sessions, versions requested by name, and consistent hashing. Turns, random draws and
//! p2c are not determined; for those, the probabilities are returned. A router's own observations (ejections and load)
//! are not known here, and a signed target header is ignored.

mod asked;
mod hash;
mod session;

use signalbox_api::routes::{By, Chance, Choice};

pub use asked::Asked;
pub(crate) use session::Secret;

use super::explain::Policy;

/// The host whose record and policy decide.
#[derive(Debug)]
pub(super) struct Host<'a> {
    pub(super) name: &'a str,
    pub(super) policy: &'a Policy,
    pub(super) addresses: &'a [String],
    /// Why each address gets no new requests; `None` if it does.
    pub(super) reasons: &'a [Option<&'static str>],
    pub(super) fail_open: bool,
    pub(super) log_key: Option<&'a str>,
    pub(super) now_ms: u64,
}

impl<'a> Host<'a> {
    fn version_of(&self, address: &str) -> &'a str {
        self.policy.version_type(address).or(self.log_key).unwrap_or("null")
    }

    /// The addresses that routers use, sorted as routers sort them, each with its reason.
    fn routable(&self) -> Vec<(&'a str, Option<&'static str>)> {
        let mut list: Vec<_> = self
            .addresses
            .iter()
            .zip(self.reasons)
            .map(|(address, reason)| (address.as_str(), *reason))
            .filter(|(address, _)| {
                address.starts_with("unix:/") || address.parse::<std::net::SocketAddr>().is_ok()
            })
            .collect();
        list.sort_unstable();
        list
    }

    /// The choice for `asked`. `secret` is the key that reads session cookies.
    pub(super) fn choose(&self, asked: &Asked, secret: Option<&Secret>) -> Choice {
        let all = self.routable();
        let usable: Vec<&str> =
            all.iter().filter(|(_, reason)| reason.is_none()).map(|(address, _)| *address).collect();
        let cookie = self.policy.sticky().and_then(|name| asked.cookie(name));
        let session = match (cookie, secret) {
            (Some(value), Some(secret)) => {
                let of = |(address, _): &(&'a str, Option<&str>)| (*address, self.version_of(address));
                let instances: Vec<_> = all.iter().map(of).collect();
                session::read(secret, self.name, &instances, value)
            }
            (Some(_), None) => return nothing(By::UnreadableSession, None),
            (None, _) => session::Session::default(),
        };
        // The session's instance may be draining or have weight 0: existing sessions stay there until they
        // end. On standby, they have ended.
        let mut address = session.address.filter(|address| {
            (self.fail_open || !self.policy.lists("unhealthy", address))
                && !self.policy.lists("standby", address)
        });
        let mut version_type = session.version_type.map(ToOwned::to_owned);
        let mut lists = vec![(usable.clone(), 1.0)];
        let shares = self.policy.share_list();
        if !shares.is_empty() {
            let group = |id: &str| -> Vec<&'a str> {
                usable.iter().copied().filter(|address| self.version_of(address) == id).collect()
            };
            let has = |id: &str| shares.iter().any(|(own, percent)| *own == id && *percent > 0.0);
            let (header, by_cookie) = self.policy.shares_by();
            let served = |id: &&str| !group(id).is_empty();
            let forced =
                header.and_then(|name| self.policy.listed(asked.header(name)?)).filter(served).or_else(
                    || by_cookie.and_then(|name| self.policy.listed(asked.cookie(name)?)).filter(served),
                );
            let earlier = session.version_type;
            if forced.is_some_and(|id| earlier != Some(id)) || !earlier.is_some_and(has) {
                address = None;
            }
            let named = forced.or_else(|| earlier.filter(|id| served(id) && has(id)));
            version_type = named.map(ToOwned::to_owned);
            if let Some(id) = named {
                lists = vec![(group(id), 1.0)];
            } else {
                let served: Vec<_> = shares
                    .iter()
                    .map(|(id, percent)| (group(id), *percent))
                    .filter(|(list, percent)| !list.is_empty() && *percent > 0.0)
                    .collect();
                let total: f64 = served.iter().map(|(_, percent)| percent).sum();
                if total > 0.0 {
                    lists = served.into_iter().map(|(list, percent)| (list, percent / total)).collect();
                }
            }
        }
        if let Some(address) = address {
            return certain(By::Session, address, version_type);
        }
        self.outcome(&usable, &lists, asked, version_type)
    }

    /// The result of the host's algorithm for several lists of addresses, each with its probability.
    fn outcome(
        &self,
        usable: &[&'a str],
        lists: &[(Vec<&'a str>, f64)],
        asked: &Asked,
        version_type: Option<String>,
    ) -> Choice {
        let weightless = usable.iter().all(|address| self.policy.weight(address) == 0.0);
        let weight = |address: &str| {
            let own = if weightless { 1.0 } else { self.policy.weight(address) };
            own * self.policy.slow_start(address, self.now_ms).unwrap_or(1.0)
        };
        let uneven = usable.windows(2).any(|two| weight(two[0]) != weight(two[1]));
        let key = self.policy.hash_key(asked);
        let mut among: Vec<Chance> = Vec::new();
        let mut add = |address: &str, chance: f64| match among.iter_mut().find(|one| one.address == address) {
            Some(one) => one.chance += chance,
            None => among.push(Chance { address: address.to_owned(), chance }),
        };
        for (list, chance) in lists {
            let weighed: Vec<(&str, f64)> = list.iter().map(|address| (*address, weight(address))).collect();
            if let Some(key) = key {
                if let Some(address) = hash::pick(&weighed, key, uneven) {
                    add(address, *chance);
                }
                continue;
            }
            let total: f64 = weighed.iter().map(|(_, weight)| weight).sum();
            for (address, weight) in weighed {
                let part = if total > 0.0 { weight / total } else { 1.0 / list.len() as f64 };
                add(address, chance * part);
            }
        }
        match among.as_slice() {
            [] => nothing(By::NoInstance, version_type),
            [one] => {
                let alone = lists.iter().map(|(list, _)| list.len()).sum::<usize>() == 1;
                let by = if alone { By::OnlyOne } else { By::Hash };
                let address = one.address.clone();
                certain(by, &address, version_type)
            }
            _ => {
                among.sort_by(|a, b| b.chance.total_cmp(&a.chance));
                Choice { by: By::Chance, address: None, version_type, among }
            }
        }
    }
}

fn nothing(by: By, version_type: Option<String>) -> Choice {
    Choice { by, address: None, version_type, among: Vec::new() }
}

fn certain(by: By, address: &str, version_type: Option<String>) -> Choice {
    let among = vec![Chance { address: address.to_owned(), chance: 1.0 }];
    Choice { by, address: Some(address.to_owned()), version_type, among }
}
