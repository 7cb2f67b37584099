//! Places for work that may take long, shared fairly between machines and the clients that applied them.
//!
//! A place goes to the client that uses the fewest places, of its machines to the one that uses the fewest, and among equals to
//! the one whose turn was longest ago. So a client with any amount of work delays another by the work of one place, and a part
//! of the places is never used by one client.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::Version;

/// The machine that work is for, and the client that pays for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Payer {
    pub(crate) client: Arc<str>,
    pub(crate) machine: Arc<str>,
}

impl Payer {
    /// The client that applied the version. A machine of an operator pays for itself.
    pub(crate) fn of(version: &Version) -> Self {
        let machine = version.machine.name();
        match version.author.client() {
            Some(client) => Self::of_client(client, machine),
            None => Self::alone(machine),
        }
    }

    /// A client, for one of its machines.
    pub(crate) fn of_client(client: &str, machine: &str) -> Self {
        Self { client: format!("client {client}").into(), machine: machine.into() }
    }

    /// A machine whose version this process has not read yet. All of these are one client, so that many of them are not many.
    pub(crate) fn unknown(machine: &str) -> Self {
        Self { client: "".into(), machine: machine.into() }
    }

    /// A machine without a version that could be read.
    pub(crate) fn alone(machine: &str) -> Self {
        Self { client: format!("machine {machine}").into(), machine: machine.into() }
    }
}

/// What is in use, by client and by machine.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    all: usize,
    clients: HashMap<Arc<str>, usize>,
    machines: HashMap<Payer, usize>,
}

/// Maximum of what is in use, altogether, by one client, and by one machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) all: usize,
    pub(crate) client: usize,
    pub(crate) machine: usize,
}

impl Usage {
    /// What the payer's client uses, and what its machine uses.
    fn of(&self, payer: &Payer) -> (usize, usize) {
        let client = self.clients.get(&payer.client).copied().unwrap_or(0);
        (client, self.machines.get(payer).copied().unwrap_or(0))
    }

    /// Whether the client and the machine may use more.
    fn allows(&self, payer: &Payer, caps: Caps) -> bool {
        let (client, machine) = self.of(payer);
        client < caps.client && machine < caps.machine
    }

    /// Adds one if the caps allow it. A client that uses nothing may always use one.
    pub(crate) fn try_add(&mut self, payer: &Payer, caps: Caps) -> bool {
        let (client, _) = self.of(payer);
        let allowed = self.allows(payer, caps) && (self.all < caps.all || client == 0);
        if allowed {
            self.add(payer);
        }
        allowed
    }

    fn add(&mut self, payer: &Payer) {
        self.all += 1;
        *self.clients.entry(Arc::clone(&payer.client)).or_default() += 1;
        *self.machines.entry(payer.clone()).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, payer: &Payer) {
        self.all = self.all.saturating_sub(1);
        if let Some(count) = self.clients.get_mut(&payer.client) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&payer.client);
            }
        }
        if let Some(count) = self.machines.get_mut(payer) {
            *count -= 1;
            if *count == 0 {
                self.machines.remove(payer);
            }
        }
    }
}

/// The places of this process for one kind of work. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct FairPlaces(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    caps: Caps,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: Usage,
    waiting: BTreeMap<Payer, Queue>,
    /// The number of the last turn.
    turn: u64,
}

/// Those who wait for a place of one machine.
#[derive(Debug)]
struct Queue {
    /// The turn in which the machine got a place, or began to wait.
    since: u64,
    waiters: VecDeque<oneshot::Sender<Claim>>,
}

/// A place. It is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    places: FairPlaces,
    payer: Payer,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.places.0.state.lock().used.remove(&self.payer);
        self.places.hand_out();
    }
}

impl FairPlaces {
    pub(crate) fn new(caps: Caps) -> Self {
        Self(Arc::new(Shared { caps, state: Mutex::default() }))
    }

    /// Waits for a place.
    pub(crate) async fn take(&self, payer: &Payer) -> Claim {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.0.state.lock();
            let since = state.turn;
            let queue = state.waiting.entry(payer.clone());
            queue.or_insert_with(|| Queue { since, waiters: VecDeque::new() }).waiters.push_back(sender);
        }
        self.hand_out();
        match receiver.await {
            Ok(claim) => claim,
            // The queue exists as long as the places do.
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives free places to those who wait.
    fn hand_out(&self) {
        loop {
            let next = self.0.state.lock().next(self.0.caps);
            let Some((payer, sender)) = next else { return };
            // If the one who waited has left, the place is dropped, and given to the next.
            drop(sender.send(Claim { places: self.clone(), payer }));
        }
    }
}

impl State {
    /// The next one to get a place, which is then in use.
    fn next(&mut self, caps: Caps) -> Option<(Payer, oneshot::Sender<Claim>)> {
        if self.used.all >= caps.all {
            return None;
        }
        self.waiting.retain(|_, queue| {
            while queue.waiters.front().is_some_and(oneshot::Sender::is_closed) {
                queue.waiters.pop_front();
            }
            !queue.waiters.is_empty()
        });
        let allowed = self.waiting.iter().filter(|(payer, _)| self.used.allows(payer, caps));
        let (payer, _) = allowed.min_by_key(|(payer, queue)| (self.used.of(payer), queue.since))?;
        let payer = payer.clone();
        self.turn += 1;
        let queue = self.waiting.get_mut(&payer)?;
        queue.since = self.turn;
        let sender = queue.waiters.pop_front()?;
        self.used.add(&payer);
        Some((payer, sender))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn payer(client: &str, machine: &str) -> Payer {
        Payer { client: client.into(), machine: machine.into() }
    }

    #[tokio::test]
    async fn a_free_place_goes_to_the_client_that_uses_fewest_and_then_in_turns() {
        let places = FairPlaces::new(Caps { all: 3, client: 2, machine: 1 });
        let (one, two, three, other) = (payer("a", "1"), payer("a", "2"), payer("a", "3"), payer("b", "1"));
        let held = [places.take(&one).await, places.take(&two).await];
        // The client uses its part, although a place is free.
        let mut waiting = Vec::from_iter((0..3).map(|_| Box::pin(places.take(&one))));
        let mut third = Box::pin(places.take(&three));
        assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
        assert!((&mut third).now_or_never().is_none());
        let others = places.take(&other).now_or_never().unwrap();
        let mut second = Box::pin(places.take(&other));
        assert!((&mut second).now_or_never().is_none());
        drop(held);
        // A machine of the client that has not had a turn is the first.
        let third = (&mut third).now_or_never().unwrap();
        let first = waiting.remove(0).now_or_never().unwrap();
        assert!(waiting[0].as_mut().now_or_never().is_none());
        drop(others);
        let second = (&mut second).now_or_never().unwrap();
        // Those who left get none, and what is free is not lost.
        drop(waiting);
        drop((third, first, second));
        let claims = [places.take(&one).now_or_never(), places.take(&two).now_or_never()];
        assert!(claims.iter().all(Option::is_some));
        assert_eq!(places.0.state.lock().used.all, 2);
        drop(claims);
        assert_eq!(places.0.state.lock().used.all, 0);
        assert!(places.0.state.lock().waiting.is_empty());
    }
}
