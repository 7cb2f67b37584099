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

use super::{
    Problem,
    buffered::{Buffered, BufferedBytes},
};
use signalbox_access::Caller;
use signalbox_daemon::holding::LARGE;

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

/// The place of a request among those that its token has in progress, and a place for a list of large items. They are held by clones
/// until the response is sent, so a client that sends a body slowly, or reads a large response slowly, holds them as well. So are
/// the bytes of the request and of a large response.
#[derive(Debug, Clone, Default)]
pub struct InProgress(Arc<Taken>);

#[derive(Debug, Default)]
struct Taken {
    request: OnceLock<Slot>,
    list: OnceLock<Slot>,
    buffers: OnceLock<Buffers>,
    received: Mutex<Option<BufferedBytes>>,
    response: Mutex<Option<BufferedBytes>>,
}

/// The bytes of all tokens.
#[derive(Debug, Clone)]
pub struct Buffers {
    /// Of requests.
    pub received: Buffered,
    /// Of large responses that are not sent yet.
    pub unread: Buffered,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            received: Buffered::new(
                "Requests of this token have too many bytes. Send fewer of them at a time.",
            ),
            unread: Buffered::new(
                "Too many bytes of responses to this token are not read yet. Read them first.",
            ),
        }
    }
}

impl InProgress {
    /// Takes the place of the request, once. Its bytes and those of its response are counted from now on.
    ///
    /// # Errors
    /// As [`Slots::take`].
    pub(crate) fn take(&self, slots: &Slots, buffers: &Buffers, caller: &Caller) -> Result<(), Problem> {
        if self.0.request.get().is_none() {
            let _ = self.0.request.set(slots.take(caller)?);
            if !caller.is_root() {
                let _ = self.0.buffers.set(buffers.clone());
            }
        }
        Ok(())
    }

    /// Whether the token has read enough of its responses to get further ones.
    ///
    /// # Errors
    /// 429 `token_limit_reached`, except for root.
    pub(crate) fn check_unread(&self) -> Result<(), Problem> {
        match (self.0.buffers.get(), self.0.request.get()) {
            (Some(buffers), Some(slot)) => buffers.unread.check(&slot.client),
            _ => Ok(()),
        }
    }

    /// Counts bytes of the request.
    ///
    /// # Errors
    /// 429 `token_limit_reached` if those of all requests of the token are too many.
    pub(crate) fn receive(&self, bytes: u64) -> Result<(), Problem> {
        let (Some(buffers), Some(slot)) = (self.0.buffers.get(), self.0.request.get()) else { return Ok(()) };
        let mut received = self.0.received.lock();
        let is_within = if let Some(received) = &mut *received {
            received.grow(bytes)
        } else {
            let (first, is_within) = buffers.received.add(slot.client.clone(), bytes);
            *received = Some(first);
            is_within
        };
        if is_within { Ok(()) } else { Err(buffers.received.refused()) }
    }

    /// Counts bytes for a response whose size is not known yet, as soon as the token may have them; see [`Self::keep`].
    pub async fn reserve(&self, bytes: u64) -> Option<BufferedBytes> {
        match (self.0.buffers.get(), self.0.request.get()) {
            (Some(buffers), Some(slot)) => Some(buffers.unread.reserve(&slot.client, bytes).await),
            _ => None,
        }
    }

    /// Keeps reserved bytes until the response is sent.
    pub fn keep(&self, reserved: BufferedBytes) {
        *self.0.response.lock() = Some(reserved);
    }

    /// The error of a response for which no bytes could be reserved in time.
    pub fn unread(&self) -> Problem {
        self.0.buffers.get().cloned().unwrap_or_default().unread.refused()
    }

    /// Counts a response with so many bytes until it is sent, if it is large. Returns whether the request holds a place: one without
    /// a token holds none.
    pub(crate) fn responds(&self, bytes: u64) -> bool {
        let mut response = self.0.response.lock();
        let is_large = bytes >= LARGE;
        match (&mut *response, self.0.buffers.get(), self.0.request.get()) {
            (Some(reserved), ..) if is_large => _ = reserved.set(bytes),
            (None, Some(buffers), Some(slot)) if is_large => {
                *response = Some(buffers.unread.add(slot.client.clone(), bytes).0);
            }
            (response, ..) => *response = None,
        }
        is_large && self.0.request.get().is_some()
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
    use super::{super::buffered::MAX_BUFFERED, *};

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

    #[tokio::test(start_paused = true)]
    async fn a_token_that_does_not_read_gets_no_further_response() {
        let (slots, buffers) = (Slots::new("requests", 9, 9), Buffers::default());
        let [one, two] = ["one", "two"].map(|name| Caller::named(name.to_owned(), Vec::new(), None));
        let begin = |caller: &Caller, bytes: u64| {
            let place = InProgress::default();
            place.take(&slots, &buffers, caller).unwrap();
            place.check_unread().map_err(|problem| problem.code().to_string())?;
            assert!(place.responds(bytes));
            Ok::<_, String>(place)
        };
        let held = [begin(&one, MAX_BUFFERED - LARGE).unwrap(), begin(&one, LARGE).unwrap()];
        assert_eq!(begin(&one, LARGE).unwrap_err(), "token_limit_reached");
        drop((begin(&two, LARGE).unwrap(), begin(&Caller::root(), 2 * MAX_BUFFERED).unwrap()));
        // A request that waited gets its response when the others are read.
        let late = InProgress::default();
        late.take(&slots, &buffers, &one).unwrap();
        let (reserved, ()) = tokio::join!(late.reserve(LARGE), async {
            tokio::task::yield_now().await;
            drop(held);
        });
        late.keep(reserved.unwrap());
        assert!(!late.responds(LARGE - 1), "a small one is sent immediately");
        assert!(!InProgress::default().responds(LARGE), "one without a token");
        drop((late, begin(&one, LARGE).unwrap()));
    }

    #[test]
    fn a_token_sends_a_limited_number_of_bytes_at_a_time() {
        let (slots, buffers) = (Slots::new("requests", 9, 9), Buffers::default());
        let begin = |caller: &Caller, bytes: u64| {
            let place = InProgress::default();
            place.take(&slots, &buffers, caller).unwrap();
            place.receive(bytes).map(|()| place).map_err(|problem| problem.code().to_string())
        };
        let [one, two] = ["one", "two"].map(|name| Caller::named(name.to_owned(), Vec::new(), None));
        let held = [begin(&one, MAX_BUFFERED - 2).unwrap(), begin(&one, 1).unwrap()];
        held[1].receive(1).unwrap();
        assert_eq!(held[1].receive(1).unwrap_err().code(), "token_limit_reached");
        drop((begin(&two, 1).unwrap(), begin(&Caller::root(), 2 * MAX_BUFFERED).unwrap()));
        drop(held);
        begin(&one, 1).unwrap();
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
