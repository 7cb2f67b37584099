//! How much of a shared resource one token may hold at a time: requests in progress, open streams, waiting requests.
//!
//! A limit for all clients together protects the process, and a limit for each token keeps a token from taking the places of
//! all others. Each person for whom an authenticating proxy uses a token has places of its own. Root is subject only to the
//! limit for all.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use axum::http::StatusCode;
use parking_lot::Mutex;

use super::Problem;
use signalbox_access::Caller;

/// Places for one kind of resource. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Slots(Arc<Places>);

#[derive(Debug)]
struct Places {
    /// The use of a slot, in the plural.
    what: &'static str,
    total: usize,
    per_token: usize,
    held: Mutex<HashMap<String, usize>>,
}

/// A place that is held until this is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Slots,
    client: String,
}

impl Slots {
    /// At most `total` places, of which one token holds at most `per_token`. `what` names them in the plural.
    pub fn new(what: &'static str, total: usize, per_token: usize) -> Self {
        Self(Arc::new(Places { what, total, per_token, held: Mutex::default() }))
    }

    /// Takes a place.
    ///
    /// # Errors
    /// 429 `token_limit_reached` if the token holds all places that it may hold; 503 `too_many_waiting` if none is free.
    pub fn take(&self, caller: &Caller) -> Result<Slot, Problem> {
        let Places { what, total, per_token, held } = &*self.0;
        let client = caller.limited_as().into_owned();
        let mut held = held.lock();
        if !caller.is_root() && held.get(&client).is_some_and(|count| count >= per_token) {
            let detail = format!(
                "Limit of {what} for one token reached ({per_token}). End one of them, or use another token."
            );
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", detail);
            return Err(problem.with("limit", *per_token).retry_after(1));
        }
        if held.values().sum::<usize>() >= *total {
            let detail =
                format!("Limit of {what} reached on this pacemaker ({total}). Use another pacemaker.");
            return Err(Problem::unavailable("too_many_waiting", detail));
        }
        *held.entry(client.clone()).or_default() += 1;
        drop(held);
        Ok(Slot { slots: self.clone(), client })
    }
}

/// The place of a request among those that its token has in progress, and a place for a list of large items. They are held by clones
/// until the response is sent, so a client that sends a body slowly, or reads a large response slowly, holds them as well.
#[derive(Debug, Clone, Default)]
pub(crate) struct InProgress(Arc<Taken>);

#[derive(Debug, Default)]
struct Taken {
    request: OnceLock<Slot>,
    list: OnceLock<Slot>,
}

impl InProgress {
    /// Takes the place of the request, once.
    ///
    /// # Errors
    /// As [`Slots::take`].
    pub(crate) fn take(&self, slots: &Slots, caller: &Caller) -> Result<(), Problem> {
        if self.0.request.get().is_none() {
            let _ = self.0.request.set(slots.take(caller)?);
        }
        Ok(())
    }

    /// Takes a place for a list.
    ///
    /// # Errors
    /// As [`Slots::take`].
    pub(crate) fn take_list(&self, slots: &Slots, caller: &Caller) -> Result<(), Problem> {
        let _ = self.0.list.set(slots.take(caller)?);
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = self.slots.0.held.lock();
        if let Some(count) = held.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_holds_its_share_and_root_all() {
        let slots = Slots::new("streams", 5, 2);
        let [one, two] = ["one", "two"].map(|name| Caller::named(name.to_owned(), Vec::new(), None));
        let held: Vec<Slot> = (0..2).map(|_| slots.take(&one).unwrap()).collect();
        let refused = slots.take(&one).unwrap_err();
        assert_eq!((refused.status().as_u16(), &*refused.code()), (429, "token_limit_reached"));
        assert!(
            refused.detail().contains("Limit of streams") && refused.detail().contains("(2)"),
            "{refused:?}"
        );
        let _other = slots.take(&two).unwrap();
        let _root: Vec<Slot> = (0..2).map(|_| slots.take(&Caller::root()).unwrap()).collect();
        assert_eq!(slots.take(&Caller::root()).unwrap_err().code(), "too_many_waiting");
        // Persons of one token of an authenticating proxy do not share places.
        drop(held);
        let person = |name: &str| one.clone().for_person(name.to_owned());
        let first: Vec<Slot> = (0..2).map(|_| slots.take(&person("ann")).unwrap()).collect();
        assert_eq!(slots.take(&person("ann")).unwrap_err().code(), "token_limit_reached");
        assert_eq!(
            slots.take(&person("bob")).unwrap_err().code(),
            "too_many_waiting",
            "not a limit of its own"
        );
        drop(first);
        assert!(slots.take(&one).is_ok() && slots.take(&Caller::root()).is_ok());
        drop((_other, _root));
        assert!(slots.0.held.lock().is_empty(), "a client without places is forgotten");
    }
}
