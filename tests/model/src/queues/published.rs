//! The queue scripts as they were published: the ancestors of ours, with the faults that they have.
//!
//! A message goes to the list of its facet; a facet that is not in the set of facets is put into it and into the order
//! of facets. A pull takes the next facet of the order and the next message of that. Faults of language (`split` does not
//! exist, `.find` is no method, patterns are not regular expressions) are nothing that a model could show; these are:
//!
//! * `not redis.call('sismember', …)` is never true, because 0 is true in Lua: no facet is ever put into the order.
//! * A pull on an empty order calls `rpop` with `false`, which is an error.
//! * A pull forgets the message. A consumer that dies before it is done takes it along.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::{Facet, Message};
use crate::explore::Model;
use crate::{Violation, ensure};

/// The published scripts, some of them repaired.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// `sismember` is compared with 0.
    pub member_test_repaired: bool,
    /// A pull looks whether there is a facet.
    pub empty_pull_repaired: bool,
    /// How often a consumer dies.
    pub deaths: u8,
    /// How many messages each facet gets.
    pub pushes: Vec<(Facet, u8)>,
}

/// The keys, and what consumers have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    facets: BTreeSet<Facet>,
    order: VecDeque<Facet>,
    lists: BTreeMap<Facet, VecDeque<Message>>,
    in_hand: BTreeSet<Message>,
    done: BTreeSet<Message>,
    /// Pulls of the second facet since the last of the first, while the second has had something.
    since: BTreeMap<(Facet, Facet), u8>,
    to_push: Vec<(Facet, u8)>,
    deaths: u8,
}

/// One script, or what a consumer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A message is published.
    Push(Facet),
    /// A message is pulled.
    Pull,
    /// A consumer is done with a message.
    Done(Message),
    /// A consumer dies.
    Die(Message),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Push(facet) => write!(formatter, "push to facet {facet}"),
            Self::Pull => write!(formatter, "pull"),
            Self::Done(message) => write!(formatter, "{message} is processed"),
            Self::Die(message) => write!(formatter, "the consumer of {message} dies"),
        }
    }
}

impl State {
    fn push(&mut self, facet: Facet, member_test_repaired: bool) {
        let Some((_, left)) = self.to_push.iter_mut().find(|(other, _)| *other == facet) else { return };
        self.lists.entry(facet).or_default().push_back(u64::from(facet) * 10 + 9 - u64::from(*left));
        *left -= 1;
        // As printed, the condition is never true.
        if member_test_repaired && self.facets.insert(facet) {
            self.order.push_back(facet);
        }
    }

    fn pull(&mut self, empty_pull_repaired: bool) -> Result<(), Violation> {
        let Some(facet) = self.order.pop_front() else {
            return ensure(empty_pull_repaired, "F6", || "the script raises: RPOP of false".to_owned());
        };
        let list = self.lists.entry(facet).or_default();
        let message = list.pop_front();
        if list.is_empty() {
            self.facets.remove(&facet);
            self.lists.remove(&facet);
        } else {
            self.order.push_back(facet);
        }
        self.in_hand.extend(message);
        self.watch(facet)
    }

    /// F3 with all weights 1.
    fn watch(&mut self, pulled: Facet) -> Result<(), Violation> {
        for other in self.lists.keys().copied().filter(|other| *other != pulled) {
            let seen = self.since.insert((pulled, other), 0);
            ensure(seen != Some(0), "F3", || {
                format!("{pulled} was pulled twice, {other} not once meanwhile")
            })?;
        }
        for ((_, other), count) in &mut self.since {
            *count = if *other == pulled { 1 } else { *count };
        }
        let lists = &self.lists;
        self.since.retain(|(_, other), _| lists.contains_key(other));
        Ok(())
    }
}

impl Model for Published {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        State {
            facets: BTreeSet::new(),
            order: VecDeque::new(),
            lists: BTreeMap::new(),
            in_hand: BTreeSet::new(),
            done: BTreeSet::new(),
            since: BTreeMap::new(),
            to_push: self.pushes.clone(),
            deaths: self.deaths,
        }
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let pushes =
            state.to_push.iter().filter(|(_, left)| *left > 0).map(|(facet, _)| Action::Push(*facet));
        let mut actions: Vec<_> = pushes.collect();
        actions.push(Action::Pull);
        actions.extend(state.in_hand.iter().map(|message| Action::Done(*message)));
        if state.deaths > 0 {
            actions.extend(state.in_hand.iter().map(|message| Action::Die(*message)));
        }
        actions
    }

    fn apply(&self, state: &State, action: &Action) -> Result<State, Violation> {
        let mut next = state.clone();
        match *action {
            Action::Push(facet) => next.push(facet, self.member_test_repaired),
            Action::Pull => next.pull(self.empty_pull_repaired)?,
            Action::Done(message) => {
                next.in_hand.remove(&message);
                next.done.insert(message);
            }
            Action::Die(message) => {
                next.in_hand.remove(&message);
                next.deaths -= 1;
            }
        }
        Ok(next)
    }

    fn check(&self, state: &State) -> Result<(), Violation> {
        for facet in state.lists.keys() {
            let times = state.order.iter().filter(|other| *other == facet).count();
            ensure(times == 1, "F2", || {
                format!("facet {facet} has messages and is {times} times in the order")
            })?;
        }
        let pushed =
            self.pushes.iter().zip(&state.to_push).map(|((_, all), (_, left))| usize::from(all - left));
        let waiting: usize = state.lists.values().map(VecDeque::len).sum();
        let (pushed, found) = (pushed.sum::<usize>(), waiting + state.in_hand.len() + state.done.len());
        ensure(pushed == found, "F7", || format!("{pushed} messages were pushed, {found} are anywhere"))
    }

    fn is_fault(&self, action: &Action) -> bool {
        matches!(action, Action::Die(_) | Action::Push(_))
    }

    fn is_settled(&self, state: &State) -> bool {
        state.lists.is_empty() && state.in_hand.is_empty()
    }

    fn describe(&self, state: &State) -> String {
        format!(
            "order {:?}, lists {:?}, in hand {:?}, done {:?}",
            state.order, state.lists, state.in_hand, state.done
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::explore;

    #[track_caller]
    fn finds(model: Published, predicate: &str) {
        let pushes = vec![(1, 2), (2, 2), (3, 1)];
        let found = explore(&Published { pushes, ..model }, 100_000).expect_err("nothing was found");
        println!("{found}");
        assert_eq!(found.violation.predicate, predicate, "{found}");
    }

    #[test]
    fn as_published_no_facet_is_ever_served() {
        finds(Published { empty_pull_repaired: true, ..Published::default() }, "F2");
    }

    #[test]
    fn as_published_a_pull_of_nothing_is_an_error() {
        finds(Published { member_test_repaired: true, ..Published::default() }, "F6");
    }

    #[test]
    fn as_published_a_crash_after_a_pull_loses_the_message() {
        let repaired = Published {
            member_test_repaired: true,
            empty_pull_repaired: true,
            deaths: 1,
            ..Published::default()
        };
        finds(repaired, "F7");
    }

    #[test]
    fn what_was_meant_is_fair_while_nobody_dies() {
        let repaired = Published {
            member_test_repaired: true,
            empty_pull_repaired: true,
            deaths: 0,
            pushes: vec![(1, 3), (2, 2), (3, 2)],
        };
        match explore(&repaired, 1_000_000) {
            Ok(report) => println!("published queues, repaired, without deaths: {report}"),
            Err(found) => panic!("{found}"),
        }
    }
}
