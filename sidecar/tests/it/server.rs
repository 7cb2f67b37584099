//! A statistics server in memory, with the scripts' rules and the faults of a network.

use std::{cell::RefCell, collections::BTreeMap, collections::VecDeque, rc::Rc};

use signalbox_sidecar::{
    commit::{Claim, Commit, Error, Outcome, Store, Tally},
    place::Place,
};
use signalbox_store::Kind;

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It never arrives.
    LostRequest,
    /// It is carried out, but nobody hears of it.
    LostReply,
    /// It lies in a socket, is given up, and carried out later.
    Late,
    /// There is no memory left.
    Refused,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    owner: String,
    claim: u64,
    pub(crate) place: Place,
    pub(crate) tally: Tally,
    /// Requests by key.
    pub(crate) requests: BTreeMap<String, u64>,
    /// Requests by key in the history, which must say the same.
    pub(crate) history: BTreeMap<String, u64>,
}

#[derive(Debug, Clone)]
struct Written {
    owner: String,
    claim: u64,
    from: (u64, u64),
    to: Place,
    tally: Tally,
    requests: Vec<(String, u64)>,
    history: Vec<(String, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) state: State,
    /// What a restart may fall back to, oldest first.
    saved: VecDeque<State>,
    faults: VecDeque<Fault>,
    late: Vec<Written>,
    /// Numbers claims, and does not go back with the rest.
    clock: u64,
}

impl Server {
    pub(crate) fn fail_next(&mut self, fault: Fault) {
        self.faults.push_back(fault);
    }

    pub(crate) fn heal(&mut self) {
        self.faults.clear();
        self.deliver_late();
    }

    /// Requests that were given up arrive after all.
    pub(crate) fn deliver_late(&mut self) {
        for written in std::mem::take(&mut self.late) {
            self.apply(&written);
        }
    }

    /// A restart that lost the last `transactions`.
    pub(crate) fn go_back(&mut self, transactions: usize) {
        for _ in 0..transactions {
            if let Some(saved) = self.saved.pop_back() {
                self.state = saved;
            }
        }
        // What was on its way died with the connections.
        self.late.clear();
    }

    fn save(&mut self) {
        self.saved.push_back(self.state.clone());
        if self.saved.len() > 50 {
            self.saved.pop_front();
        }
    }

    fn apply(&mut self, written: &Written) -> bool {
        let state = &self.state;
        let stands = (state.place.generation, state.place.position);
        if state.owner != written.owner || state.claim != written.claim || stands != written.from {
            return false;
        }
        self.save();
        let state = &mut self.state;
        state.place = written.to.clone();
        state.tally += written.tally;
        for (key, more) in &written.requests {
            *state.requests.entry(key.clone()).or_default() += more;
        }
        for (key, more) in &written.history {
            *state.history.entry(key.clone()).or_default() += more;
        }
        true
    }
}

/// A sidecar's connection to the [`Server`].
#[derive(Debug)]
pub(crate) struct Connection {
    server: Rc<RefCell<Server>>,
    owner: String,
    claim: u64,
}

impl Connection {
    pub(crate) fn new(server: &Rc<RefCell<Server>>, owner: impl Into<String>) -> Self {
        Self { server: Rc::clone(server), owner: owner.into(), claim: 0 }
    }
}

impl Store for Connection {
    fn claim(&mut self, again: bool) -> Result<Claim, Error> {
        let mut server = self.server.borrow_mut();
        let fault = server.faults.pop_front();
        match fault {
            Some(Fault::Refused) => return Err(Error::new(Kind::Refused)),
            Some(Fault::LostRequest | Fault::Late) => return Err(Error::new(Kind::Unavailable)),
            Some(Fault::LostReply) | None => {}
        }
        let mine = if again { self.claim } else { 0 };
        let state = &server.state;
        if mine == 0 || state.claim < mine {
            let claim = if mine == 0 { server.clock + 1 } else { mine };
            server.clock = server.clock.max(claim);
            server.save();
            server.state.owner.clone_from(&self.owner);
            server.state.claim = claim;
        } else if state.owner != self.owner {
            return Ok(Claim::Fenced { owner: state.owner.clone() });
        }
        if fault.is_some() {
            return Err(Error::new(Kind::Unavailable));
        }
        self.claim = server.state.claim;
        Ok(Claim::Owned { place: server.state.place.clone(), tally: server.state.tally })
    }

    fn commit(&mut self, commit: &Commit<'_>) -> Result<Outcome, Error> {
        let increments = commit.fold.increments();
        let cost: usize = increments.iter().map(|hash| hash.fields.len()).sum();
        assert_eq!(cost, commit.fold.cost(), "the fold knows what it costs");
        assert!(cost <= 2_000, "a commit of {cost} increments");
        let requests = |hash: &&signalbox_sidecar::fold::Increments| hash.key.as_str().starts_with("stat:");
        let key = |name: &str| name.split(':').nth(1).map(str::to_owned).unwrap_or_default();
        let written = Written {
            owner: self.owner.clone(),
            claim: self.claim,
            from: (commit.from.generation, commit.from.position),
            to: commit.to.clone(),
            tally: commit.tally(),
            requests: increments
                .iter()
                .filter(requests)
                .filter_map(|hash| {
                    let field = hash.fields.iter().find(|(field, _)| field.to_string() == "requests")?;
                    Some((key(hash.key.as_str()), field.1))
                })
                .collect(),
            history: increments
                .iter()
                .filter(|hash| {
                    hash.key.as_str().starts_with("history:") && hash.key.as_str().ends_with(":requests")
                })
                .map(|hash| (key(hash.key.as_str()), hash.fields.iter().map(|(_, more)| more).sum()))
                .collect(),
        };
        let mut server = self.server.borrow_mut();
        let done = match server.faults.pop_front() {
            Some(Fault::Refused) => return Err(Error::new(Kind::Refused)),
            Some(Fault::LostRequest) => return Err(Error::new(Kind::Unavailable)),
            Some(Fault::Late) => {
                server.late.push(written);
                return Err(Error::new(Kind::Unavailable));
            }
            Some(Fault::LostReply) => {
                server.apply(&written);
                return Err(Error::new(Kind::Unavailable));
            }
            None => server.apply(&written),
        };
        Ok(if done { Outcome::Committed { refused: 0 } } else { Outcome::Elsewhere })
    }
}
