//! How much of a shared resource one token may hold at a time: requests in progress, open streams, waiting requests.
//!
//! A limit for all clients together protects the process, and a limit for each token keeps a token from taking the places of
//! all others. Each person for whom an authenticating proxy uses a token has places of its own. Root is subject only to the
//! limit for all, of which an eighth is left to root.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::{sync::Notify, time};

use super::Problem;
use signalbox_access::Caller;

/// How long a list waits for a place: a client that reads several at a time does not have to count them.
const PATIENCE: Duration = Duration::from_secs(2);
/// Lists that wait, of all tokens and of one: each place that becomes free wakes all of them.
const MAX_WAITING: usize = 512;
const MAX_WAITING_PER_TOKEN: usize = 128;

/// The part of all places that only root gets: tokens that hold all others keep no operator out.
const PART_OF_ROOT: usize = 8;

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
    waiting: Option<Waiting>,
}

/// For places for which requests may wait.
#[derive(Debug)]
struct Waiting {
    /// Places of the requests that wait.
    places: Slots,
    /// Notified of each place that becomes free.
    freed: Notify,
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
        Self(Arc::new(Places { what, total, per_token, held: Mutex::default(), waiting: None }))
    }

    /// The same, and a request may [wait](Self::wait) for a place.
    pub fn with_waiting(what: &'static str, total: usize, per_token: usize) -> Self {
        let places = Self::new("lists that wait", MAX_WAITING, MAX_WAITING_PER_TOKEN);
        let waiting = Some(Waiting { places, freed: Notify::new() });
        Self(Arc::new(Places { what, total, per_token, held: Mutex::default(), waiting }))
    }

    /// Takes a place.
    ///
    /// # Errors
    /// 429 `token_limit_reached` if the token holds all places that it may hold; 503 `too_many_waiting` if none is free.
    pub fn take(&self, caller: &Caller) -> Result<Slot, Problem> {
        let Places { what, total, per_token, held, .. } = &*self.0;
        let client = caller.limited_as().into_owned();
        let mut held = held.lock();
        if !caller.is_root() && held.get(&client).is_some_and(|count| count >= per_token) {
            let detail = format!(
                "Limit of {what} for one token reached ({per_token}). End one of them, or use another token."
            );
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", detail);
            return Err(problem.with("limit", *per_token).retry_after(1));
        }
        let total = if caller.is_root() { *total } else { total - total / PART_OF_ROOT };
        if held.values().sum::<usize>() >= total {
            let detail =
                format!("Limit of {what} reached on this pacemaker ({total}). Use another pacemaker.");
            return Err(Problem::unavailable("too_many_waiting", detail));
        }
        *held.entry(client.clone()).or_default() += 1;
        drop(held);
        Ok(Slot { slots: self.clone(), client })
    }

    /// Takes a place, and waits a moment for one.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn wait(&self, caller: &Caller) -> Result<Slot, Problem> {
        let problem = match self.take(caller) {
            Err(problem) => problem,
            taken => return taken,
        };
        let Some(Waiting { places, freed }) = &self.0.waiting else { return Err(problem) };
        let Ok(_waiting) = places.take(caller) else { return Err(problem) };
        let deadline = time::Instant::now() + PATIENCE;
        loop {
            // From here on, no place becomes free unnoticed.
            let freed = freed.notified();
            match self.take(caller) {
                Err(problem) if time::timeout_at(deadline, freed).await.is_err() => return Err(problem),
                Err(_) => {}
                taken => return taken,
            }
        }
    }
}

/// Bytes of large responses that are not sent yet, of one token: with more, it cannot read further ones.
const MAX_UNSENT: u64 = 64 << 20;

/// Bytes of large responses that are not sent yet, by token. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Unsent(Arc<Mutex<HashMap<String, u64>>>);

impl Unsent {
    fn check(&self, client: &str) -> Result<(), Problem> {
        if self.0.lock().get(client).is_none_or(|bytes| *bytes < MAX_UNSENT) {
            return Ok(());
        }
        let most = MAX_UNSENT >> 20;
        let detail =
            format!("Responses of more than {most} MiB to this token are not read yet. Read them first.");
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", detail);
        Err(problem.with("limit", MAX_UNSENT).retry_after(1))
    }

    fn add(&self, client: String, bytes: u64) -> UnsentResponse {
        *self.0.lock().entry(client.clone()).or_default() += bytes;
        UnsentResponse { all: self.clone(), client, bytes }
    }
}

/// A response that is counted until this is dropped.
#[derive(Debug)]
struct UnsentResponse {
    all: Unsent,
    client: String,
    bytes: u64,
}

impl Drop for UnsentResponse {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(bytes) = all.get_mut(&self.client) {
            *bytes = bytes.saturating_sub(self.bytes);
            if *bytes == 0 {
                all.remove(&self.client);
            }
        }
    }
}

/// The place of a request among those that its token has in progress, and a place for a list of large items. They are held by clones
/// until the response is sent, so a client that sends a body slowly, or reads a large response slowly, holds them as well.
#[derive(Debug, Clone, Default)]
pub struct InProgress(Arc<Taken>);

#[derive(Debug, Default)]
struct Taken {
    request: OnceLock<Slot>,
    list: OnceLock<Slot>,
    /// Set if the request reads.
    unsent: OnceLock<Unsent>,
    response: OnceLock<UnsentResponse>,
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

    /// Counts the response of a request that reads, if it is large, until it is sent.
    ///
    /// # Errors
    /// 429 `token_limit_reached` if too much of earlier ones is not sent yet, except for root.
    pub(crate) fn read(&self, unsent: &Unsent, caller: &Caller) -> Result<(), Problem> {
        if self.0.unsent.get().is_none() {
            if !caller.is_root() {
                unsent.check(&caller.limited_as())?;
            }
            let _ = self.0.unsent.set(unsent.clone());
        }
        Ok(())
    }

    /// Counts a large response with so many bytes until it is sent. Returns whether the request holds a place: one without a token
    /// holds none.
    pub(crate) fn responds(&self, bytes: u64) -> bool {
        let Some(slot) = self.0.request.get() else { return false };
        if let Some(unsent) = self.0.unsent.get() {
            let _ = self.0.response.set(unsent.add(slot.client.clone(), bytes));
        }
        true
    }

    /// Takes a place for a list, once, and waits for it for two seconds at most.
    ///
    /// # Errors
    /// As [`Slots::take`].
    pub async fn take_list(&self, slots: &Slots, caller: &Caller) -> Result<(), Problem> {
        if self.0.list.get().is_none() {
            let _ = self.0.list.set(slots.wait(caller).await?);
        }
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
        drop(held);
        if let Some(waiting) = &self.slots.0.waiting {
            waiting.freed.notify_waiters();
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

    #[test]
    fn a_token_that_does_not_read_gets_no_further_response() {
        let (slots, unsent) = (Slots::new("requests", 9, 9), Unsent::default());
        let [one, two] = ["one", "two"].map(|name| Caller::named(name.to_owned(), Vec::new(), None));
        let begin = |caller: &Caller, bytes: u64| {
            let place = InProgress::default();
            place.take(&slots, caller).unwrap();
            place.read(&unsent, caller).map_err(|problem| problem.code().to_string())?;
            assert!(place.responds(bytes));
            Ok::<_, String>(place)
        };
        let held = [begin(&one, MAX_UNSENT - 1).unwrap(), begin(&one, 1).unwrap()];
        assert_eq!(begin(&one, 1).unwrap_err(), "token_limit_reached");
        drop((begin(&two, 1).unwrap(), begin(&Caller::root(), 2 * MAX_UNSENT).unwrap()));
        drop(held);
        drop(begin(&one, 1).unwrap());
        assert!(unsent.0.lock().is_empty() && !InProgress::default().responds(1));
    }

    #[test]
    fn tokens_leave_an_eighth_to_root() {
        let slots = Slots::new("lists", 16, 8);
        let token = |name: &str| Caller::named(name.to_owned(), Vec::new(), None);
        let take = |caller: &Caller| slots.take(caller).map_err(|problem| problem.code().to_string());
        let mut held = Vec::new();
        for name in ["one", "two"] {
            let caller = token(name);
            held.extend(std::iter::repeat_with(|| take(&caller).ok()).take(8).flatten());
        }
        assert_eq!((held.len(), take(&token("three")).unwrap_err().as_str()), (14, "too_many_waiting"));
        held.extend((0..2).map(|_| take(&Caller::root()).unwrap()));
        assert_eq!(take(&Caller::root()).unwrap_err(), "too_many_waiting");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_waits_a_moment_for_a_place() {
        let slots = Slots::with_waiting("lists", 8, 1);
        let caller = Caller::named("one".to_owned(), Vec::new(), None);
        let held = slots.take(&caller).unwrap();
        let ends = async {
            time::sleep(PATIENCE / 2).await;
            drop(held);
        };
        let (got, ()) = tokio::join!(slots.wait(&caller), ends);
        let _held = got.unwrap();
        let begun = time::Instant::now();
        assert_eq!(slots.wait(&caller).await.unwrap_err().code(), "token_limit_reached");
        assert_eq!(begun.elapsed(), PATIENCE);
    }
}
