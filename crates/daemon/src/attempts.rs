//! Limits failed attempts to authenticate, per address. Pure: the time is passed in.
//!
//! An address may fail [`FREE`] times. Each further failure blocks it, the first time for a second, then twice as long each
//! time, up to a minute. While an address is blocked, an attempt is rejected before it is evaluated, so its outcome is
//! not revealed. After ten minutes without a failure, an address is forgotten.
//!
//! A client that repeats the same invalid token is misconfigured, not guessing. A repeated token is counted once, and for
//! two seconds it is answered from memory.
//!
//! **Memory** is bounded: when the number of addresses reaches its limit, the one that failed first is forgotten. IPv6
//! addresses of the same /64 network are one, because one client usually has a whole network.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::IpAddr,
};

/// Failures without consequence.
const FREE: u32 = 20;
/// The longest block.
const MAX_BLOCK_MS: u64 = 60_000;
/// An address is forgotten after so long without a failure.
const FORGET_MS: u64 = 600_000;
/// The maximum number of addresses that are remembered.
const MAX_ADDRESSES: usize = 8_192;
/// Invalid tokens that are remembered for each address, in order to count each once.
const RECENT: usize = 8;
/// How long an invalid token is answered from memory. A token that is created elsewhere is accepted after that time.
const UNKNOWN_MS: u64 = 2_000;
/// The maximum number of invalid tokens that are answered from memory.
const MAX_UNKNOWN: usize = 4_096;

/// The maximum number of valid tokens that are remembered.
const MAX_VALID: usize = 16_384;

#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last_ms: u64,
    blocked_until_ms: u64,
    recent: VecDeque<u64>,
}

/// Failed attempts of all addresses.
#[derive(Debug, Default)]
pub struct Attempts {
    addresses: HashMap<IpAddr, Failures>,
    /// Addresses in the order in which they failed first.
    order: VecDeque<IpAddr>,
    /// Invalid tokens by digest, with the time of their lookup.
    unknown: HashMap<String, u64>,
    /// Digests of tokens that were valid when they were last looked up.
    valid: HashSet<String>,
}

impl Attempts {
    /// Whether an attempt from `address` is evaluated now.
    ///
    /// # Errors
    /// The number of seconds after which the next attempt is evaluated.
    pub fn check(&self, address: IpAddr, now_ms: u64) -> Result<(), u32> {
        let blocked = self.addresses.get(&network(address)).map_or(0, |one| one.blocked_until_ms);
        match blocked.saturating_sub(now_ms) {
            0 => Ok(()),
            // A clock that was set back must not extend a block beyond its length.
            left => Err(u32::try_from(left.min(MAX_BLOCK_MS).div_ceil(1000)).unwrap_or(u32::MAX)),
        }
    }

    /// Whether this token was looked up a moment ago and is unknown.
    pub fn is_unknown(&self, digest: &str, now_ms: u64) -> bool {
        self.unknown.get(digest).is_some_and(|at| now_ms.abs_diff(*at) < UNKNOWN_MS)
    }

    /// Whether this token was valid when it was last looked up. Such a token is looked up even while its address is blocked,
    /// so that a client is not locked out by another one behind the same address.
    pub fn was_valid(&self, digest: &str) -> bool {
        self.valid.contains(digest)
    }

    /// Records a successful attempt.
    pub fn succeeded(&mut self, digest: &str) {
        if self.valid.len() >= MAX_VALID {
            self.valid.clear();
        }
        self.valid.insert(digest.to_owned());
    }

    /// Records a failed attempt with the token of this digest. Returns whether it was counted: a repetition is not.
    pub fn failed(&mut self, address: IpAddr, digest: &str, now_ms: u64) -> bool {
        self.valid.remove(digest);
        if self.unknown.len() >= MAX_UNKNOWN {
            self.unknown.clear();
        }
        self.unknown.insert(digest.to_owned(), now_ms);
        let address = network(address);
        if !self.addresses.contains_key(&address) {
            if self.order.len() >= MAX_ADDRESSES
                && let Some(oldest) = self.order.pop_front()
            {
                self.addresses.remove(&oldest);
            }
            self.order.push_back(address);
        }
        let failures = self.addresses.entry(address).or_default();
        if now_ms.abs_diff(failures.last_ms) >= FORGET_MS {
            *failures = Failures::default();
        }
        let mark = mark(digest);
        if failures.recent.contains(&mark) {
            return false;
        }
        if failures.recent.len() >= RECENT {
            failures.recent.pop_front();
        }
        failures.recent.push_back(mark);
        failures.count = failures.count.saturating_add(1);
        failures.last_ms = now_ms;
        if failures.count > FREE {
            let doublings = (failures.count - FREE - 1).min(6);
            failures.blocked_until_ms = now_ms + (1_000 << doublings).min(MAX_BLOCK_MS);
        }
        true
    }

    /// Forgets that a token was unknown, because it has been created.
    pub fn created(&mut self, digest: &str) {
        self.unknown.remove(digest);
    }
}

/// The first half of a digest as a number. A collision would let one guess go uncounted.
fn mark(digest: &str) -> u64 {
    digest.get(..16).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or_default()
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[8..].fill(0);
            IpAddr::from(octets)
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn guess(number: u32) -> String {
        format!("{number:016x}")
    }

    #[test]
    fn an_address_that_guesses_waits_twice_as_long_each_time() {
        let mut attempts = Attempts::default();
        let here = ip("10.0.0.1");
        for n in 0..FREE {
            assert!(attempts.failed(here, &guess(n), 0));
            assert_eq!(attempts.check(here, 0), Ok(()));
        }
        let mut now = 0;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            attempts.failed(here, &guess(1_000 + seconds + u32::try_from(now).unwrap()), now);
            assert_eq!(attempts.check(here, now), Err(seconds));
            assert_eq!(attempts.check(here, now + u64::from(seconds) * 1000 - 1), Err(1));
            now += u64::from(seconds) * 1000;
            assert_eq!(attempts.check(here, now), Ok(()));
        }
        assert_eq!(attempts.check(ip("10.0.0.2"), 0), Ok(()));
        attempts.failed(here, &guess(7_000_000), now + FORGET_MS);
        assert_eq!(attempts.check(here, now + FORGET_MS), Ok(()), "it was forgotten");
    }

    #[test]
    fn a_repeated_token_is_counted_once() {
        let mut attempts = Attempts::default();
        let here = ip("10.0.0.1");
        assert!(attempts.failed(here, "abc", 0));
        for n in 0..10 * u64::from(FREE) {
            assert!(!attempts.failed(here, "abc", n));
        }
        assert_eq!(attempts.check(here, 0), Ok(()));
        assert!(attempts.is_unknown("abc", 1_000) && !attempts.is_unknown("abc", 5_000));
        attempts.created("abc");
        assert!(!attempts.is_unknown("abc", 1_000));
    }

    #[test]
    fn a_token_that_was_valid_is_looked_up_until_it_fails() {
        let mut attempts = Attempts::default();
        attempts.succeeded("abc");
        assert!(attempts.was_valid("abc") && !attempts.was_valid("abd"));
        attempts.failed(ip("10.0.0.1"), "abc", 0);
        assert!(!attempts.was_valid("abc"));
    }

    #[test]
    fn one_ipv6_network_is_one_client() {
        let mut attempts = Attempts::default();
        for n in 0..=FREE {
            attempts.failed(ip(&format!("2001:db8:1:2::{n:x}")), &guess(n), 0);
        }
        assert_eq!(attempts.check(ip("2001:db8:1:2:ffff::1"), 0), Err(1));
        assert_eq!(attempts.check(ip("2001:db8:1:3::1"), 0), Ok(()));
        for n in 0..=FREE {
            attempts.failed(ip("::ffff:10.0.0.9"), &guess(n), 0);
        }
        assert_eq!(attempts.check(ip("10.0.0.9"), 0), Err(1));
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut attempts = Attempts::default();
        for n in 0..u32::try_from(3 * MAX_ADDRESSES).unwrap() {
            attempts.failed(IpAddr::from(n.to_be_bytes()), &guess(n), 0);
            assert!(attempts.addresses.len() <= MAX_ADDRESSES && attempts.order.len() <= MAX_ADDRESSES);
            assert!(attempts.unknown.len() <= MAX_UNKNOWN);
        }
        assert_eq!(attempts.addresses.len(), attempts.order.len());
    }
}
