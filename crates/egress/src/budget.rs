//! The budget of outgoing calls: how many may be under way at the same time, in all, to one destination, for one client, and
//! for one owner.
//!
//! Owners (a machine, a subscriber, a backend) choose destinations that may never answer. Each call in progress holds a socket, so
//! without a budget one owner could use up the file descriptors of the process. A call that gets no [`Place`] waits here, without
//! a socket and without polling. A client can have any number of owners, so the places are divided between clients, and the
//! part of a client between its owners.
//!
//! * **No client can take everything.** A client gets another place only while it holds fewer places than are free, and the same
//!   holds for its places at one destination. So one client holds at most half of the places, two hold at most two thirds, and
//!   some always remain for a client that has none. In the same way, an owner gets another place only while it holds fewer than
//!   are free of its client's half.
//! * **The next place goes to the client that holds the fewest**, of these to the owner that holds the fewest, and in turns to
//!   those that hold equally many. The destinations of an owner take turns. So a client or an owner without a call under way
//!   does not wait for the queue of one that has many.
//!
//! **Cost.** Calls that wait for a full destination or owner are skipped as a whole. Finding the next call costs one step for
//! each owner that waits, and for each full destination of the owner, of which there are few: see [`Limits`].

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::Uri;
use tokio::sync::oneshot;

/// The part of the file descriptors of a process that its outgoing calls may use. As many may be used by connections that
/// are kept for the next call.
const PART_OF_FILES: usize = 4;
/// Maximum number of concurrent calls, however many descriptors there are: each needs memory, too.
const MAX_CALLS: usize = 1_024;
/// Minimum number of concurrent calls, however few descriptors there are.
const MIN_CALLS: usize = 16;

/// How many calls may be under way at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In all.
    pub calls: usize,
    /// To one destination: a host and a port.
    pub per_destination: usize,
    /// For all owners of one client together.
    pub per_client: usize,
}

impl Limits {
    /// The limits of a process that may open this many files.
    pub fn of_files(files: usize) -> Self {
        Self::of_calls((files / PART_OF_FILES).clamp(MIN_CALLS, MAX_CALLS))
    }

    /// How many files remain of those that the process may open, for everything except outgoing calls.
    pub fn files_left(&self, files: usize) -> usize {
        files.saturating_sub(2 * self.calls + self.drains())
    }

    /// Maximum number of health checks that are under way at the same time.
    pub fn health_checks(&self) -> usize {
        self.calls / 4
    }

    /// Maximum number of bodies that are read to their end concurrently, after their calls.
    pub(super) fn drains(&self) -> usize {
        self.calls / 4
    }

    fn of_calls(calls: usize) -> Self {
        Self { calls, per_destination: calls / 2, per_client: calls / 2 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::of_calls(MAX_CALLS)
    }
}

/// How many calls there are at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calls {
    /// Calls under way.
    pub running: usize,
    /// Calls that wait for a place.
    pub waiting: usize,
}

/// Who makes a call, and which client it counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    client: Arc<str>,
    name: Arc<str>,
}

impl Owner {
    /// An owner that belongs to a client.
    pub fn of(client: &str, name: &str) -> Self {
        Self { client: format!("client {client}").into(), name: name.into() }
    }

    /// An owner that belongs to no client, such as a machine of an operator.
    pub fn alone(name: &str) -> Self {
        Self { client: name.into(), name: name.into() }
    }
}

/// The budget. Clones share it: a process has one.
#[derive(Debug, Clone, Default)]
pub struct Budget(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    limits: Limits,
    state: Mutex<State>,
}

/// The permission to make a call. It is given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    shared: Arc<Shared>,
    owner: Owner,
    destination: Arc<str>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    waiting: usize,
    clients: HashMap<Arc<str>, Client>,
    owners: HashMap<Owner, Calling>,
    /// The calls under way to each destination.
    destinations: HashMap<Arc<str>, usize>,
    /// The owners with calls that wait, in the order of their turns.
    turns: BTreeMap<u64, Owner>,
    /// The number of the next turn or waiting call.
    next: u64,
}

/// The calls of a client that are under way.
#[derive(Debug, Default)]
struct Client {
    running: usize,
    /// By destination.
    to: HashMap<Arc<str>, usize>,
}

/// The calls of an owner.
#[derive(Debug, Default)]
struct Calling {
    running: usize,
    /// Its calls that wait, by destination.
    lanes: HashMap<Arc<str>, Lane>,
    /// The destinations of these calls, in the order of their turns.
    turns: BTreeMap<u64, Arc<str>>,
    /// Its own turn, while calls wait.
    turn: u64,
}

/// Calls of one owner to one destination that wait, the oldest first.
#[derive(Debug, Default)]
struct Lane {
    turn: u64,
    calls: BTreeMap<u64, oneshot::Sender<Place>>,
}

/// How many files this process may open.
pub fn open_files() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    // The limit of a shell on Debian; the number is missing if there is no limit.
    soft.unwrap_or(if line.is_some() { usize::MAX } else { 1_024 })
}

/// The destination of calls to this address: host and port.
pub fn destination(uri: &Uri) -> String {
    let default = if uri.scheme_str() == Some("http") { 80 } else { 443 };
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    format!("{host}:{}", uri.port_u16().unwrap_or(default))
}

impl Budget {
    /// A budget with these limits.
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared { limits, state: Mutex::default() }))
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// The number of calls at the moment.
    pub fn calls(&self) -> Calls {
        let state = self.0.lock();
        Calls { running: state.running, waiting: state.waiting }
    }

    /// Waits for a place. Dropping the future leaves the queue.
    pub async fn place(&self, owner: &Owner, destination: &str) -> Place {
        let destination: Arc<str> = destination.into();
        let (sender, place) = oneshot::channel();
        let mut waiting = {
            let mut state = self.0.lock();
            if state.may(&self.0.limits, owner, &destination) {
                state.begin(owner, &destination);
                return Place { shared: Arc::clone(&self.0), owner: owner.clone(), destination };
            }
            let id = state.wait(owner, &destination, sender);
            Waiting { shared: &self.0, owner, destination: &destination, id, place }
        };
        match (&mut waiting.place).await {
            Ok(place) => place,
            // A queued call keeps its sender until it has a place, and it is in the queue until `waiting` is dropped.
            Err(_) => std::future::pending().await,
        }
    }
}

/// A call that waits. It leaves the queue when this is dropped.
struct Waiting<'a> {
    shared: &'a Arc<Shared>,
    owner: &'a Owner,
    destination: &'a Arc<str>,
    id: u64,
    /// A place that arrives after the call was abandoned is dropped with this, which gives it back.
    place: oneshot::Receiver<Place>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.lock().leave(self.owner, self.destination, self.id);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.end(&self.owner, &self.destination);
        let mut admitted = Vec::new();
        while let Some((owner, destination, sender)) = state.admit(&self.shared.limits) {
            admitted.push((Self { shared: Arc::clone(&self.shared), owner, destination }, sender));
        }
        drop(state);
        for (place, sender) in admitted {
            // If the call was abandoned in the meantime, its place is dropped here, and the next one is admitted.
            drop(sender.send(place));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether an owner may begin another call, and how many its client and it have under way.
    fn owner_may(&self, limits: &Limits, owner: &Owner) -> Option<(usize, usize)> {
        let of_client = self.clients.get(&owner.client).map_or(0, |client| client.running);
        let own = self.owners.get(owner).map_or(0, |calling| calling.running);
        let may = of_client < limits.calls.saturating_sub(self.running)
            && own < limits.per_client.saturating_sub(of_client);
        may.then_some((of_client, own))
    }

    /// Whether an owner may begin another call to a destination, if it may begin any.
    fn lane_may(&self, limits: &Limits, owner: &Owner, destination: &str) -> bool {
        let running = self.destinations.get(destination).copied().unwrap_or(0);
        let of_client = self.clients.get(&owner.client).and_then(|client| client.to.get(destination));
        of_client.copied().unwrap_or(0) < limits.per_destination.saturating_sub(running)
    }

    fn may(&self, limits: &Limits, owner: &Owner, destination: &str) -> bool {
        self.owner_may(limits, owner).is_some() && self.lane_may(limits, owner, destination)
    }

    fn begin(&mut self, owner: &Owner, destination: &Arc<str>) {
        self.running += 1;
        *self.destinations.entry(Arc::clone(destination)).or_default() += 1;
        self.owners.entry(owner.clone()).or_default().running += 1;
        let client = self.clients.entry(Arc::clone(&owner.client)).or_default();
        client.running += 1;
        *client.to.entry(Arc::clone(destination)).or_default() += 1;
    }

    fn end(&mut self, owner: &Owner, destination: &Arc<str>) {
        self.running -= 1;
        decrement(&mut self.destinations, destination);
        if let Some(client) = self.clients.get_mut(&owner.client) {
            client.running -= 1;
            decrement(&mut client.to, destination);
            if client.running == 0 {
                self.clients.remove(&owner.client);
            }
        }
        if let Some(calling) = self.owners.get_mut(owner) {
            calling.running -= 1;
        }
        self.forget(owner);
    }

    /// Forgets an owner that neither calls nor waits.
    fn forget(&mut self, owner: &Owner) {
        if self.owners.get(owner).is_some_and(|calling| calling.running == 0 && calling.lanes.is_empty()) {
            self.owners.remove(owner);
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Adds a call to the queue.
    fn wait(&mut self, owner: &Owner, destination: &Arc<str>, sender: oneshot::Sender<Place>) -> u64 {
        let (id, turn) = (self.number(), self.number());
        let calling = self.owners.entry(owner.clone()).or_default();
        if calling.lanes.is_empty() {
            calling.turn = turn;
            self.turns.insert(turn, owner.clone());
        }
        let lane = calling.lanes.entry(Arc::clone(destination)).or_insert_with(|| {
            calling.turns.insert(turn, Arc::clone(destination));
            Lane { turn, calls: BTreeMap::new() }
        });
        lane.calls.insert(id, sender);
        self.waiting += 1;
        id
    }

    /// Removes a call from the queue, unless it has a place already.
    fn leave(&mut self, owner: &Owner, destination: &Arc<str>, id: u64) -> Option<oneshot::Sender<Place>> {
        let calling = self.owners.get_mut(owner)?;
        let lane = calling.lanes.get_mut(destination)?;
        let sender = lane.calls.remove(&id)?;
        self.waiting -= 1;
        if lane.calls.is_empty() {
            calling.turns.remove(&lane.turn);
            calling.lanes.remove(destination);
        }
        if calling.lanes.is_empty() {
            self.turns.remove(&calling.turn);
        }
        self.forget(owner);
        Some(sender)
    }

    /// Begins the call whose turn it is, if one may begin. Its owner, and the destination of that owner, have their next turns
    /// after all others.
    fn admit(&mut self, limits: &Limits) -> Option<(Owner, Arc<str>, oneshot::Sender<Place>)> {
        if self.running >= limits.calls {
            return None;
        }
        let eligible = self.turns.values().filter_map(|owner| {
            let running = self.owner_may(limits, owner)?;
            let calling = self.owners.get(owner)?;
            let destination = calling.turns.values().find(|to| self.lane_may(limits, owner, to))?;
            Some((running, owner, destination))
        });
        // Of those with equally few, the first in turn.
        let (_, owner, destination) = eligible.min_by_key(|(running, ..)| *running)?;
        let (owner, destination) = (owner.clone(), Arc::clone(destination));
        let turn = self.number();
        let calling = self.owners.get_mut(&owner)?;
        self.turns.remove(&calling.turn);
        calling.turn = turn;
        self.turns.insert(turn, owner.clone());
        let lane = calling.lanes.get_mut(&destination)?;
        calling.turns.remove(&lane.turn);
        lane.turn = turn;
        calling.turns.insert(turn, Arc::clone(&destination));
        let id = *lane.calls.keys().next()?;
        let sender = self.leave(&owner, &destination, id)?;
        self.begin(&owner, &destination);
        Some((owner, destination, sender))
    }
}

fn decrement(counts: &mut HashMap<Arc<str>, usize>, key: &Arc<str>) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::Pin, task::Poll};

    use super::*;

    type Pending<'a> = Pin<Box<dyn Future<Output = Place> + 'a>>;

    fn budget(calls: usize) -> Budget {
        Budget::new(Limits::of_calls(calls))
    }

    fn wait<'a>(budget: &'a Budget, owner: Owner, to: &'a str) -> Pending<'a> {
        Box::pin(async move { budget.place(&owner, to).await })
    }

    /// The place, if there is one now.
    async fn now(waiting: &mut Pending<'_>) -> Option<Place> {
        std::future::poll_fn(|context| match waiting.as_mut().poll(context) {
            Poll::Ready(place) => Poll::Ready(Some(place)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    /// Begins as many calls as possible. The rest waits.
    async fn fill<'a>(
        budget: &'a Budget,
        owner: &'a str,
        to: &'a str,
        calls: usize,
    ) -> (Vec<Place>, Vec<Pending<'a>>) {
        let (mut places, mut queue) = (Vec::new(), Vec::new());
        for _ in 0..calls {
            let mut waiting = wait(budget, Owner::alone(owner), to);
            match now(&mut waiting).await {
                Some(place) => places.push(place),
                None => queue.push(waiting),
            }
        }
        (places, queue)
    }

    #[tokio::test]
    async fn an_owner_with_20_000_calls_leaves_places_for_others() {
        let budget = budget(64);
        let (places, mut queue) = fill(&budget, "a", "slow:443", 20_000).await;
        assert_eq!((places.len(), budget.calls()), (16, Calls { running: 16, waiting: 19_984 }));
        // Another owner has a place for the same destination, and the first one for no other destination.
        let (others, _) = fill(&budget, "b", "slow:443", 1).await;
        assert_eq!(others.len(), 1);
        let mut elsewhere = wait(&budget, Owner::alone("a"), "fast:443");
        assert!(now(&mut elsewhere).await.is_none(), "the owner has its share");
        // The destinations of an owner take turns.
        drop(places);
        assert!(now(&mut queue[0]).await.is_some());
        assert!(now(&mut elsewhere).await.is_some());
        drop((queue, elsewhere, others));
        assert_eq!(budget.calls(), Calls { running: 0, waiting: 0 });
        let state = budget.0.lock();
        assert!(state.owners.is_empty() && state.clients.is_empty());
        assert!(state.turns.is_empty() && state.destinations.is_empty());
    }

    #[tokio::test]
    async fn an_owner_without_calls_gets_the_next_place() {
        let budget = budget(64);
        let mut hogs = Vec::new();
        for name in ["a", "b", "c", "d"] {
            hogs.push(fill(&budget, name, name, 20_000).await);
        }
        assert!(budget.calls().running < 64, "some places are left for those who have none");
        let names: Vec<String> = (0..64).map(|n| format!("small {n}")).collect();
        let mut small = Vec::new();
        for name in &names {
            small.extend(fill(&budget, name, name, 1).await.0);
        }
        assert_eq!(budget.calls().running, 64);
        let mut quiet = wait(&budget, Owner::alone("quiet"), "fast:443");
        assert!(now(&mut quiet).await.is_none());
        hogs[0].0.pop();
        assert!(now(&mut quiet).await.is_some(), "the queues of the others are not ahead of it");
    }

    #[tokio::test]
    async fn the_owners_of_a_client_share_its_half() {
        let budget = budget(64);
        let mut held = Vec::new();
        for n in 0..500 {
            let (name, to) = (format!("machine {n}"), format!("slow{}:443", n % 7));
            let mut waiting: Pending<'_> = {
                let (budget, owner) = (&budget, Owner::of("noisy", &name));
                Box::pin(async move { budget.place(&owner, &to).await })
            };
            let place = now(&mut waiting).await;
            held.push((place, waiting));
        }
        assert_eq!(budget.calls(), Calls { running: 32, waiting: 468 });
        let mut quiet = Vec::new();
        for n in 0..20 {
            let name = format!("quiet {n}");
            quiet.extend(fill(&budget, &name, "fast:443", 1).await.0);
        }
        assert_eq!(quiet.len(), 20, "the owners of one client take nothing of others");
        // The client gets what it gives back, as long as it holds no more than is free.
        drop(quiet);
        drop(held.remove(0));
        assert_eq!(budget.calls().running, 32);
        drop(held);
        let state = budget.0.lock();
        assert!(state.owners.is_empty() && state.clients.is_empty() && state.turns.is_empty());
    }

    #[tokio::test]
    async fn a_full_destination_delays_no_call_to_another_one() {
        let budget = budget(64);
        let names = ["b", "c", "d", "e", "f", "g"];
        let mut held = vec![fill(&budget, "a", "slow:443", 50).await];
        for name in names {
            held.push(fill(&budget, name, "slow:443", 50).await);
        }
        assert!(budget.calls().running <= 32, "{:?}", budget.calls());
        for name in names {
            assert_eq!(fill(&budget, name, "fast:443", 1).await.0.len(), 1, "{name}");
        }
    }

    #[tokio::test]
    async fn calls_of_an_owner_begin_in_order_and_an_abandoned_one_costs_no_place() {
        let budget = budget(16);
        let (mut places, mut queue) = fill(&budget, "a", "slow:443", 8).await;
        assert_eq!((places.len(), queue.len()), (4, 4));
        // Abandoned while it waits.
        drop(queue.remove(0));
        places.pop();
        // Abandoned after it was admitted, and before it noticed.
        drop(queue.remove(0));
        assert!(now(&mut queue[1]).await.is_none());
        assert!(now(&mut queue[0]).await.is_some());
        assert_eq!(budget.calls(), Calls { running: 4, waiting: 0 }, "the place of the last was handed on");
    }

    #[test]
    fn the_budget_is_a_share_of_the_files_that_may_be_open() {
        assert_eq!(Limits::of_files(1_024).calls, 256);
        assert_eq!(Limits::of_files(65_536).calls, 1_024);
        assert_eq!(Limits::of_files(10).calls, 16);
        assert_eq!(Limits::of_files(1_024).files_left(1_024), 448);
        assert!(open_files() >= 64, "{}", open_files());
        let to = |text: &str| destination(&text.parse().unwrap());
        assert_eq!(to("https://Example.com/a"), "example.com:443");
        assert_eq!(to("http://example.com"), "example.com:80");
        assert_eq!(to("https://[::1]:8443/"), "[::1]:8443");
    }
}
