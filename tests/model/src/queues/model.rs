//! A queue with everything that producers, consumers, operators and time can do to it.
//!
//! Consumers are not modeled individually: for the queue, a consumer that crashed, is slow, or acknowledges twice or
//! too late, differs only in which receipts it presents and when. So in every state every valid receipt may be
//! presented or not, every lease may expire, and every invalid receipt is tried and must be rejected. The state only
//! records receipts that no consumer can present any longer: those of a pull whose reply was lost or whose consumer
//! died.
//!
//! F3 concerns a history. For each pair of tenants the state holds how often one was pulled since each of the last
//! pulls of the other, for as long as it has been eligible without interruption, which is exactly what a window needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::reference::Reference;
use super::{Message, Place, Receipt, Settings, Tenant, Verdict};
use crate::explore::Model;
use crate::{Violation, ensure};

/// The explored configuration.
#[derive(Clone, Debug)]
pub struct Queues {
    /// The first settings are the initial ones, to which an operator can always return; the others are possible
    /// changes.
    pub settings: Vec<Settings>,
    /// How many messages are pushed to each tenant.
    pub pushes: Vec<(Tenant, u8)>,
    /// How often it is reconfigured, a tenant is dropped, and one is purged.
    pub operations: [u8; 3],
    /// How often a message is given back, without and with delay.
    pub nacks: [u8; 2],
    /// How many of the pushes may be delayed, and how many messages may be rejected.
    pub extras: [u8; 2],
    /// Which pulls there are.
    pub pulls: Vec<Action>,
    /// The queue that it begins with, to leave out a part of the protocol.
    pub queue: Reference,
}

/// A queue, and what may still be done to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    queue: Reference,
    in_force: usize,
    to_push: Vec<(Tenant, u8)>,
    operations: [u8; 3],
    nacks: [u8; 2],
    extras: [u8; 2],
    /// In flight, and no consumer has the receipt.
    lost: BTreeSet<Message>,
    /// For each two tenants: pulls of the second since each of the last pulls of the first.
    since: BTreeMap<(Tenant, Tenant), Vec<u32>>,
}

/// One call of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A message is published.
    Push(Tenant),
    /// A message is published that becomes available later.
    PushLater(Tenant),
    /// One message is pulled.
    Pull,
    /// One message is pulled, and the reply is lost, or its consumer dies.
    PullLost,
    /// One message is pulled and forgotten.
    PullAutoAck,
    /// A consumer presents the valid receipt.
    Ack(Message),
    /// The message is returned.
    Nack(Message),
    /// Two are given back in one call, in this order.
    NackTwo(Message, Message),
    /// It is given back for later.
    Delay(Message),
    /// A consumer makes it a dead letter.
    Reject(Message),
    /// The sweep has found that the rate of a tenant allows messages again.
    GoOn(Tenant),
    /// Its lease has run out, or its delay is over, and the sweep has seen it.
    Due(Message),
    /// All leases and delays expire together.
    DueAll,
    /// An operator changes the settings to those of this number.
    Configure(usize),
    /// An operator drops a tenant.
    Drop(Tenant),
    /// An operator purges a tenant.
    Purge(Tenant),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Push(tenant) => write!(formatter, "push to tenant {tenant}"),
            Self::PushLater(tenant) => write!(formatter, "push to tenant {tenant} with a delay"),
            Self::Reject(message) => write!(formatter, "reject {message}"),
            Self::GoOn(tenant) => write!(formatter, "sweep: tenant {tenant} may go on"),
            Self::Pull => write!(formatter, "pull"),
            Self::PullLost => write!(formatter, "pull, and the reply is lost"),
            Self::PullAutoAck => write!(formatter, "pull with auto-ack"),
            Self::Ack(message) => write!(formatter, "ack {message}"),
            Self::Nack(message) => write!(formatter, "nack {message}"),
            Self::NackTwo(one, other) => write!(formatter, "nack {one} and {other}"),
            Self::Delay(message) => write!(formatter, "nack {message} with a delay"),
            Self::Due(message) => write!(formatter, "sweep: {message} is due"),
            Self::DueAll => write!(formatter, "sweep: everything is due"),
            Self::Configure(number) => write!(formatter, "configure as settings {number}"),
            Self::Drop(tenant) => write!(formatter, "drop tenant {tenant}"),
            Self::Purge(tenant) => write!(formatter, "purge tenant {tenant}"),
        }
    }
}

impl Queues {
    /// A queue to which each tenant's messages are pushed, and to which nothing else is done.
    #[must_use]
    pub fn new(settings: Settings, pushes: &[(Tenant, u8)]) -> Self {
        Self {
            queue: Reference::new(settings.clone()),
            settings: vec![settings],
            pushes: pushes.to_vec(),
            operations: [0; 3],
            nacks: [0; 2],
            extras: [0; 2],
            pulls: vec![Action::Pull],
        }
    }

    fn pull(state: &mut State, auto_ack: bool, lost: bool) -> Result<(), Violation> {
        let eligible = state.to_push.iter().any(|(tenant, _)| state.queue.is_eligible(*tenant));
        let pulled = state.queue.pull(1, auto_ack, 0).pop();
        ensure(pulled.is_some() == eligible, "F6", || {
            format!("something is eligible: {eligible}, pulled: {pulled:?}")
        })?;
        let Some(pulled) = pulled else { return Ok(()) };
        if lost {
            state.lost.insert(pulled.message);
        }
        state.watch(pulled.tenant)
    }

    /// Shows the good receipts of these messages, which must be taken.
    fn settle(
        state: &mut State,
        messages: &[Message],
        with: impl FnOnce(&mut Reference, &[Receipt]) -> Vec<Verdict>,
    ) -> Result<(), Violation> {
        let receipts: Vec<_> =
            messages.iter().filter_map(|message| state.queue.receipt_of(*message)).collect();
        let verdicts = with(&mut state.queue, &receipts);
        ensure(verdicts.iter().all(|verdict| *verdict == Verdict::Done), "F7", || {
            format!("{receipts:?} are good and were answered {verdicts:?}")
        })
    }
}

impl State {
    fn in_flight(&self) -> Vec<Message> {
        let entries = self.queue.messages.iter();
        entries
            .filter(|(_, entry)| matches!(entry.place, Place::InFlight(_)))
            .map(|(message, _)| *message)
            .collect()
    }

    fn delayed(&self) -> Vec<Message> {
        let entries = self.queue.messages.iter();
        entries
            .filter(|(_, entry)| matches!(entry.place, Place::Delayed(_)))
            .map(|(message, _)| *message)
            .collect()
    }

    /// F3: between the first and the last of `weight + 1` pulls of one tenant, each other that was eligible throughout has
    /// had its whole turn.
    fn watch(&mut self, pulled: Tenant) -> Result<(), Violation> {
        let settings = self.queue.settings.clone();
        let others: Vec<_> =
            self.to_push.iter().map(|(tenant, _)| *tenant).filter(|tenant| *tenant != pulled).collect();
        for other in others {
            let window = self.since.entry((pulled, other)).or_default();
            let (weight, due) = (settings.weight(pulled) as usize, settings.weight(other));
            if window.len() >= weight {
                let seen = window.remove(0);
                ensure(seen >= due, "F3", || {
                    format!(
                        "tenant {other} was pulled {seen} times of {due} in {} pulls of {pulled}",
                        weight + 1
                    )
                })?;
            }
            window.push(0);
            if let Some(window) = self.since.get_mut(&(other, pulled)) {
                let enough = settings.weight(pulled);
                window.iter_mut().for_each(|count| *count = (*count + 1).min(enough));
            }
        }
        Ok(())
    }

    /// A window ends where the other tenant is not eligible.
    fn end_windows(&mut self) {
        let queue = &self.queue;
        self.since.retain(|(_, other), window| queue.is_eligible(*other) && !window.is_empty());
    }
}

impl Model for Queues {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        State {
            queue: self.queue.clone(),
            in_force: 0,
            to_push: self.pushes.clone(),
            operations: self.operations,
            nacks: self.nacks,
            extras: self.extras,
            lost: BTreeSet::new(),
            since: BTreeMap::new(),
        }
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        let tenants = || state.to_push.iter().map(|(tenant, _)| *tenant);
        actions.extend(
            state.to_push.iter().filter(|(_, left)| *left > 0).map(|(tenant, _)| Action::Push(*tenant)),
        );
        if state.extras[0] > 0 {
            let left = state.to_push.iter().filter(|(_, left)| *left > 0);
            actions.extend(left.map(|(tenant, _)| Action::PushLater(*tenant)));
        }
        actions.extend(tenants().filter(|tenant| state.queue.is_throttled(*tenant)).map(Action::GoOn));
        actions.extend(&self.pulls);
        let (in_flight, delayed) = (state.in_flight(), state.delayed());
        actions.extend(in_flight.iter().map(|message| Action::Due(*message)));
        let in_hand: Vec<_> =
            in_flight.iter().filter(|message| !state.lost.contains(message)).copied().collect();
        for &message in &in_hand {
            actions.push(Action::Ack(message));
            if state.nacks[0] > 0 {
                actions.push(Action::Nack(message));
                let others = in_hand.iter().filter(|other| **other != message);
                actions.extend(others.map(|other| Action::NackTwo(message, *other)));
            }
            if state.nacks[1] > 0 {
                actions.push(Action::Delay(message));
            }
            if state.extras[1] > 0 {
                actions.push(Action::Reject(message));
            }
        }
        actions.extend(delayed.iter().map(|message| Action::Due(*message)));
        if in_flight.len() + delayed.len() > 1 {
            actions.push(Action::DueAll);
        }
        let reachable = |number: &usize| *number == 0 || state.operations[0] > 0;
        let other = |number: &usize| *number != state.in_force && reachable(number);
        actions.extend((0..self.settings.len()).filter(other).map(Action::Configure));
        if state.operations[1] > 0 {
            actions.extend(tenants().map(Action::Drop));
        }
        if state.operations[2] > 0 {
            actions.extend(tenants().map(Action::Purge));
        }
        actions
    }

    fn apply(&self, state: &State, action: &Action) -> Result<State, Violation> {
        let mut next = state.clone();
        match *action {
            Action::Push(tenant) | Action::PushLater(tenant) => {
                if let Some((_, left)) = next.to_push.iter_mut().find(|(other, _)| *other == tenant) {
                    // Named by its tenant, so that who pushed first makes no difference where it makes none.
                    let message = u64::from(tenant) * 10 + 9 - u64::from(*left);
                    *left -= 1;
                    if matches!(action, Action::PushLater(_)) {
                        next.extras[0] -= 1;
                        next.queue.push_later(tenant, message, 1);
                    } else if next.queue.takes(tenant) {
                        next.queue.push(tenant, message);
                        next.queue.keep_bounds(tenant);
                    }
                }
            }
            Action::Reject(message) => {
                next.extras[1] -= 1;
                Self::settle(&mut next, &[message], Reference::reject)?;
            }
            Action::GoOn(tenant) => next.queue.go_on(tenant),
            Action::Pull => Self::pull(&mut next, false, false)?,
            Action::PullLost => Self::pull(&mut next, false, true)?,
            Action::PullAutoAck => Self::pull(&mut next, true, false)?,
            Action::Ack(message) => Self::settle(&mut next, &[message], Reference::ack)?,
            Action::Nack(message) => {
                next.nacks[0] -= 1;
                Self::settle(&mut next, &[message], |queue, receipts| queue.nack(receipts, 0, 0))?;
            }
            Action::NackTwo(one, other) => {
                next.nacks[0] -= 1;
                Self::settle(&mut next, &[one, other], |queue, receipts| queue.nack(receipts, 0, 0))?;
            }
            Action::Delay(message) => {
                next.nacks[1] -= 1;
                Self::settle(&mut next, &[message], |queue, receipts| queue.nack(receipts, 1, 0))?;
            }
            Action::Due(message) => next.queue.bring_back(&[message], 0),
            Action::DueAll => {
                next.queue.sweep(i64::MAX);
            }
            Action::Configure(number) => {
                next.operations[0] -= u8::from(number != 0);
                next.in_force = number;
                next.queue.configure(self.settings[number].clone());
                next.since.clear();
            }
            Action::Drop(tenant) => {
                next.operations[1] -= 1;
                next.queue.drop_tenant(tenant);
            }
            Action::Purge(tenant) => {
                next.operations[2] -= 1;
                next.queue.purge(tenant);
            }
        }
        next.end_windows();
        let State { queue, lost, .. } = &mut next;
        lost.retain(|message| queue.receipt_of(*message).is_some());
        Ok(next)
    }

    fn check(&self, state: &State) -> Result<(), Violation> {
        state.queue.check()?;
        for (message, entry) in &state.queue.messages {
            let good = state.queue.receipt_of(*message);
            for delivery in entry.deliveries.saturating_sub(1)..=entry.deliveries + 1 {
                let receipt = Receipt { message: *message, delivery };
                let taken = state.queue.lease_of(receipt).is_some();
                ensure(taken == (Some(receipt) == good), "F7", || {
                    format!("{receipt:?} is taken: {taken}; the message is under {good:?}")
                })?;
            }
        }
        Ok(())
    }

    fn is_fault(&self, action: &Action) -> bool {
        // A client that wants to finish pulls, acknowledges, waits, and returns to the settings that pause no tenant.
        let consumes = matches!(action, Action::Pull | Action::PullAutoAck | Action::Ack(_));
        let waits =
            matches!(action, Action::Due(_) | Action::DueAll | Action::GoOn(_) | Action::Configure(0));
        !consumes && !waits
    }

    fn is_settled(&self, state: &State) -> bool {
        let mut places = state.queue.messages.values().map(|entry| entry.place);
        places.all(|place| matches!(place, Place::Acked | Place::Dead | Place::Dropped))
    }

    fn describe(&self, state: &State) -> String {
        let mut line = format!("ring {:?}, used {}", state.queue.ring(), state.queue.used());
        for tenant in state.queue.active() {
            let view = state.queue.tenant(tenant);
            let (waiting, in_flight) = (view.waiting, view.in_flight);
            line += &format!("; {tenant}: waiting {waiting:?}, in flight {in_flight:?}");
            if !view.delayed.is_empty() {
                line += &format!(", delayed {:?}", view.delayed);
            }
        }
        if !state.queue.dead().is_empty() {
            line += &format!("; dead {:?}", state.queue.dead());
        }
        line
    }

    /// How often a message was pulled counts only up to its limit, and up to the one receipt that is no longer good.
    fn canonical(&self, state: &State) -> State {
        let mut canonical = state.clone();
        let limit = canonical.queue.settings.max_attempts.unwrap_or(0);
        let entries = std::mem::take(&mut canonical.queue.messages);
        for (message, mut entry) in entries {
            entry.attempts = entry.attempts.min(limit);
            entry.deliveries = entry.deliveries.min(2);
            // A settled message needs no other data.
            if matches!(entry.place, Place::Acked | Place::Dropped) {
                (entry.attempts, entry.deliveries, entry.place, entry.joined) = (0, 0, Place::Acked, 0);
            }
            canonical.queue.messages.insert(message, entry);
        }
        canonical.queue.dead.sort_unstable();
        canonical
    }
}
