//! Shares the places for checks that are under way between tokens and between hosts. Pure.
//!
//! A token may have as many places as are free, and a host half as many. So one token alone gets half of the places, two get a
//! third each, and a token without a check under way always finds a place soon, however long the checks of others last. Checks
//! that have to wait take turns: first by token, then by host.

use std::collections::{HashMap, VecDeque};

use signalbox_route_table::InstanceId;

/// Whose check it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Party {
    /// The token that registered the instance; empty if it is not known.
    pub(super) token: String,
    pub(super) host: String,
}

/// A number of places, and the checks that wait for one.
#[derive(Debug)]
pub(super) struct Places {
    limit: usize,
    taken: usize,
    by_token: HashMap<String, usize>,
    by_host: HashMap<(String, String), usize>,
    waiting: Ring<Ring<VecDeque<InstanceId>>>,
}

impl Places {
    pub(super) fn new(limit: usize) -> Self {
        let (by_token, by_host) = (HashMap::new(), HashMap::new());
        Self { limit, taken: 0, by_token, by_host, waiting: Ring::default() }
    }

    pub(super) fn push(&mut self, party: &Party, id: InstanceId) {
        self.waiting.member(&party.token).member(&party.host).push_back(id);
    }

    pub(super) fn forget_waiting(&mut self) {
        self.waiting = Ring::default();
    }

    /// The next waiting check whose token and host may have a place. The search is short, because a token or host is passed
    /// over only if it has a check under way.
    pub(super) fn next(&mut self) -> Option<InstanceId> {
        let free = self.limit.saturating_sub(self.taken);
        let (by_token, by_host) = (&self.by_token, &self.by_host);
        if free == 0 {
            return None;
        }
        self.waiting.turn(|token, hosts| {
            if by_token.get(token).is_some_and(|taken| *taken >= free) {
                return None;
            }
            hosts.turn(|host, ids| {
                let taken = by_host.get(&(token.to_owned(), host.to_owned())).copied().unwrap_or(0);
                (taken < half(free)).then(|| ids.pop_front()).flatten()
            })
        })
    }

    /// Takes a place, if one is left for the token and the host.
    pub(super) fn try_take(&mut self, party: &Party) -> bool {
        let free = self.limit.saturating_sub(self.taken);
        let taken = self.by_token.get(&party.token).copied().unwrap_or(0);
        let by_host = self.by_host.get(&key(party)).copied().unwrap_or(0);
        let fits = taken < free && by_host < half(free);
        if fits {
            self.take(party);
        }
        fits
    }

    pub(super) fn take(&mut self, party: &Party) {
        self.taken += 1;
        *self.by_token.entry(party.token.clone()).or_default() += 1;
        *self.by_host.entry(key(party)).or_default() += 1;
    }

    pub(super) fn give_back(&mut self, party: &Party) {
        self.taken = self.taken.saturating_sub(1);
        subtract(&mut self.by_token, &party.token);
        subtract(&mut self.by_host, &key(party));
    }
}

fn half(free: usize) -> usize {
    free.div_ceil(2)
}

fn key(party: &Party) -> (String, String) {
    (party.token.clone(), party.host.clone())
}

fn subtract<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Members that take turns. Empty ones leave.
#[derive(Debug)]
struct Ring<T> {
    order: VecDeque<String>,
    members: HashMap<String, T>,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { order: VecDeque::new(), members: HashMap::new() }
    }
}

trait Line {
    fn is_empty(&self) -> bool;
}

impl Line for VecDeque<InstanceId> {
    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

impl<T> Line for Ring<T> {
    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl<T: Default + Line> Ring<T> {
    fn member(&mut self, name: &str) -> &mut T {
        if !self.members.contains_key(name) {
            self.order.push_back(name.to_owned());
        }
        self.members.entry(name.to_owned()).or_default()
    }

    /// Offers the turn to one member after the other, until one of them takes it.
    fn turn<R>(&mut self, mut take: impl FnMut(&str, &mut T) -> Option<R>) -> Option<R> {
        for _ in 0..self.order.len() {
            let name = self.order.pop_front()?;
            let Some(member) = self.members.get_mut(&name) else { continue };
            let taken = take(&name, member);
            if member.is_empty() {
                self.members.remove(&name);
            } else {
                self.order.push_back(name);
            }
            if taken.is_some() {
                return taken;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(token: &str, host: &str) -> Party {
        Party { token: token.to_owned(), host: host.to_owned() }
    }

    fn id(text: &str) -> InstanceId {
        InstanceId::parse(text).unwrap()
    }

    #[test]
    fn a_token_and_a_host_leave_places_for_others() {
        let mut places = Places::new(64);
        let take_all = |places: &mut Places, token: &str, hosts: usize| {
            let fits =
                |places: &mut Places| (0..hosts).any(|n| places.try_take(&party(token, &n.to_string())));
            std::iter::repeat_with(|| fits(places)).take_while(|fits| *fits).count()
        };
        assert_eq!(take_all(&mut places, "one", 1), 22, "one host");
        assert_eq!(take_all(&mut places, "one", 100), 10, "all hosts of the token have half of the places");
        assert_eq!(take_all(&mut places, "two", 100), 16);
        assert_eq!(take_all(&mut places, "three", 100), 8);
        (0..22).for_each(|_| places.give_back(&party("one", "0")));
        assert_eq!(take_all(&mut places, "four", 100), 15);
    }

    #[test]
    fn tokens_and_hosts_take_turns() {
        let mut places = Places::new(1);
        for n in 0..3 {
            places.push(&party("one", "a"), id(&format!("a{n}")));
        }
        places.push(&party("one", "b"), id("b0"));
        places.push(&party("two", "c"), id("c0"));
        let order: Vec<_> = std::iter::from_fn(|| places.next()).map(|id| id.to_string()).collect();
        assert_eq!(order, ["a0", "c0", "b0", "a1", "a2"]);
        places.push(&party("one", "a"), id("a3"));
        places.take(&party("two", "c"));
        assert_eq!(places.next(), None);
        places.give_back(&party("two", "c"));
        assert_eq!(places.next(), Some(id("a3")));
    }
}
