//! A book of instances and of what befalls them, by which every request is judged.
//!
//! An instance is **healthy** from the moment when its host's every worker has acknowledged it and it answers, until the
//! moment before something is done to it: killed, hung, slowed, drained or taken out. A request **had to succeed** when
//! some instance of its host was healthy all the time from before the request was sent until after its end. That an
//! instance was healthy now and again, or that another one was at each moment, is not enough: nobody could have known.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// An instance: its host and its number within it.
pub type Place = (usize, usize);

#[derive(Debug, Default)]
struct Book {
    /// Of the healthy ones, since which turn of fate.
    healthy: BTreeMap<Place, u64>,
    turns: u64,
}

/// The book. Everybody writes into it at once.
#[derive(Debug, Default)]
pub struct Fates(Mutex<Book>);

/// Who of a host was healthy as a request was sent.
#[derive(Debug, Clone)]
pub struct Before(Vec<(Place, u64)>);

impl Fates {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It answers, and every worker knows it.
    pub fn well(&self, place: Place) {
        let mut book = self.book();
        book.turns += 1;
        let turn = book.turns;
        book.healthy.insert(place, turn);
    }

    /// Something is about to be done to it.
    pub fn ill(&self, place: Place) {
        self.book().healthy.remove(&place);
    }

    /// Something is about to be done to it, unless its host would have fewer than `least` healthy ones then.
    pub fn may_fall(&self, place: Place, least: usize) -> bool {
        let mut book = self.book();
        let healthy = book.healthy.range((place.0, 0)..(place.0 + 1, 0)).count();
        healthy > least && book.healthy.remove(&place).is_some()
    }

    /// To be asked before a request is sent.
    pub fn before(&self, host: usize) -> Before {
        let book = self.book();
        Before(book.healthy.range((host, 0)..(host + 1, 0)).map(|(place, turn)| (*place, *turn)).collect())
    }

    /// Whether a request that has just ended had to succeed.
    pub fn had_to_succeed(&self, before: &Before) -> bool {
        let book = self.book();
        before.0.iter().any(|(place, turn)| book.healthy.get(place) == Some(turn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_had_to_succeed_when_one_instance_was_healthy_all_along() {
        let fates = Fates::default();
        let none = fates.before(1);
        fates.well((1, 0));
        fates.well((1, 1));
        fates.well((2, 0));
        assert!(!fates.had_to_succeed(&none), "it came after the request was sent");
        let before = fates.before(1);
        fates.ill((1, 0));
        assert!(fates.had_to_succeed(&before), "the other one was there");
        fates.ill((1, 1));
        fates.well((1, 1));
        assert!(!fates.had_to_succeed(&before), "each was away for a moment");
    }

    #[test]
    fn the_last_ones_do_not_fall() {
        let fates = Fates::default();
        for number in 0..3 {
            fates.well((1, number));
        }
        fates.well((2, 0));
        assert!(fates.may_fall((1, 2), 1) && fates.may_fall((1, 0), 1));
        assert!(!fates.may_fall((1, 1), 1), "the last one");
        assert!(!fates.may_fall((1, 2), 0), "fallen already");
    }
}
