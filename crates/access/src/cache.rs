//! Tokens that were looked up a moment ago, and when tokens were last used. Pure: the time is passed in.
//!
//! The map is bounded. When it is full it is emptied, which costs one lookup for each token in use.

use std::collections::HashMap;

use super::model::Caller;

/// How long another pacemaker's change of a token may stay unnoticed.
const KEEP_MS: u64 = 1_000;
/// The maximum number of tokens in the cache.
const MAX_TOKENS: usize = 4_096;
/// The precision of the time of the last use.
const USE_MS: u64 = 60_000;
/// The maximum number of names whose last use is remembered.
const MAX_NAMES: usize = 16_384;

#[derive(Debug)]
struct Entry {
    caller: Caller,
    /// When it was read.
    at_ms: u64,
    /// When the token ends.
    end_ms: Option<u64>,
}

/// Valid tokens by digest.
#[derive(Debug, Default)]
pub(super) struct Cache {
    tokens: HashMap<String, Entry>,
}

impl Cache {
    pub(super) fn get(&self, digest: &str, now_ms: u64) -> Option<Caller> {
        let entry = self.tokens.get(digest)?;
        let fresh = now_ms.abs_diff(entry.at_ms) < KEEP_MS && entry.end_ms.is_none_or(|end| now_ms < end);
        fresh.then(|| entry.caller.clone())
    }

    pub(super) fn put(&mut self, digest: &str, caller: Caller, end_ms: Option<u64>, now_ms: u64) {
        if self.tokens.len() >= MAX_TOKENS {
            self.tokens.clear();
        }
        self.tokens.insert(digest.to_owned(), Entry { caller, at_ms: now_ms, end_ms });
    }

    pub(super) fn forget(&mut self, digest: &str) {
        self.tokens.remove(digest);
    }
}

/// When tokens were last used, to the minute.
#[derive(Debug, Default)]
pub(super) struct Uses {
    noted: HashMap<String, u64>,
    unwritten: HashMap<String, u64>,
}

impl Uses {
    pub(super) fn note(&mut self, name: &str, now_ms: u64) {
        match self.noted.get_mut(name) {
            Some(noted) if now_ms.abs_diff(*noted) < USE_MS => return,
            Some(noted) => *noted = now_ms,
            None => {
                if self.noted.len() >= MAX_NAMES {
                    self.noted.clear();
                }
                self.noted.insert(name.to_owned(), now_ms);
            }
        }
        if self.unwritten.len() < MAX_NAMES {
            self.unwritten.insert(name.to_owned(), now_ms);
        }
    }

    /// Forgets a name, so that a new token of that name is noted at its first use.
    pub(super) fn forget(&mut self, name: &str) {
        self.noted.remove(name);
        self.unwritten.remove(name);
    }

    /// Uses that have not been written yet.
    pub(super) fn take(&mut self) -> HashMap<String, u64> {
        std::mem::take(&mut self.unwritten)
    }

    /// Returns what could not be written. Newer times are kept.
    pub(super) fn put_back(&mut self, uses: HashMap<String, u64>) {
        for (name, at_ms) in uses {
            self.unwritten.entry(name).or_insert(at_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_api::tokens::Scope;

    fn caller(name: &str) -> Caller {
        Caller::named(name.to_owned(), vec![Scope::Read], None)
    }

    #[test]
    fn a_cached_token_is_used_for_a_second_and_not_after_its_end() {
        let mut cache = Cache::default();
        cache.put("a", caller("a"), None, 10_000);
        cache.put("b", caller("b"), Some(10_500), 10_000);
        assert_eq!(cache.get("a", 10_999), Some(caller("a")));
        assert_eq!(cache.get("a", 11_000), None);
        assert_eq!(cache.get("a", 8_999), None, "the clock went back");
        assert_eq!((cache.get("b", 10_499), cache.get("b", 10_500)), (Some(caller("b")), None));
        cache.forget("a");
        assert_eq!(cache.get("a", 10_000), None);
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut cache = Cache::default();
        for n in 0..3 * MAX_TOKENS {
            cache.put(&n.to_string(), caller("a"), None, 0);
            assert!(cache.tokens.len() <= MAX_TOKENS);
        }
    }

    #[test]
    fn a_use_is_noted_once_a_minute() {
        let mut uses = Uses::default();
        uses.note("a", 100_000);
        uses.note("a", 159_999);
        let first = uses.take();
        assert_eq!(first, [("a".to_owned(), 100_000)].into());
        uses.note("a", 159_999);
        assert!(uses.take().is_empty());
        uses.note("a", 160_000);
        uses.put_back(first);
        assert_eq!(uses.take(), [("a".to_owned(), 160_000)].into(), "the newer time is kept");
        uses.forget("a");
        uses.note("a", 160_001);
        assert_eq!(uses.take().len(), 1);
    }
}
