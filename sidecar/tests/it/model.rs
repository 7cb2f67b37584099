//! A statistics server in memory, with the scripts' rules and the faults of a network.

use std::{cell::RefCell, collections::BTreeMap, collections::VecDeque, rc::Rc};

use signalbox_sidecar::{
    commit::{Claim, Commit, Error, Outcome, Store, Tally, Window},
    fold::{Field, Hash, TOTAL},
    place::Place,
};
use signalbox_store::Kind;

/// A fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It never arrives.
    LostRequest,
    /// It is executed, but its reply is lost.
    LostReply,
    /// It times out and is executed later.
    Late,
    /// There is no memory left.
    Refused,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    owner: String,
    claim: u64,
    pub(crate) place: Place,
    /// The partly counted window.
    pub(crate) window: Option<Window>,
    /// Partly counted windows that became gaps.
    pub(crate) given_up: u64,
    pub(crate) tally: Tally,
    /// Requests by key.
    pub(crate) requests: BTreeMap<String, u64>,
    /// Requests by key in the history, which must be equal.
    pub(crate) history: BTreeMap<String, u64>,
}

#[derive(Debug, Clone)]
struct Written {
    owner: String,
    claim: u64,
    from: (u64, u64),
    to: Place,
    under_way: Option<Window>,
    then: Option<Window>,
    tally: Tally,
    requests: Vec<(String, u64)>,
    history: Vec<(String, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) state: State,
    /// The states to which a restart may fall back, oldest first.
    saved: VecDeque<State>,
    faults: VecDeque<Fault>,
    late: Vec<Written>,
    /// The number of the last claim, which is not rolled back.
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

    /// Whether requests that timed out may still be executed.
    pub(crate) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Requests that timed out are executed.
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
        // Pending requests are lost with the connections.
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
        let stored = (state.place.generation, state.place.position);
        if state.owner != written.owner || state.claim != written.claim || stored != written.from {
            return false;
        }
        if state.window != written.under_way {
            return false;
        }
        self.save();
        let state = &mut self.state;
        state.window = written.then;
        if written.then.is_none() {
            state.place = written.to.clone();
            state.tally += written.tally;
            // A window is committed without gaps, or left with one.
            state.given_up += u64::from(written.under_way.is_some() && written.tally.gaps > 0);
        }
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
        let State { place, tally, window, .. } = &server.state;
        Ok(Claim::Owned { place: place.clone(), tally: *tally, window: *window })
    }

    fn commit(&mut self, commit: &Commit<'_>) -> Result<Outcome, Error> {
        let hashes: Vec<_> = commit.part.hashes().collect();
        let cost: usize = hashes.iter().map(|hash| hash.fields.len()).sum();
        assert_eq!(cost, commit.part.len(), "a part knows what it costs");
        assert!(cost <= 2_000, "a script of {cost} increments");
        let key = |name: &str| name.split(':').nth(1).map(str::to_owned).unwrap_or_default();
        let requests = |hash: &Hash<'_>| {
            let field = hash.fields.iter().find(|(field, _)| *field == Field::Metric("requests"))?;
            let name = hash.key.as_str();
            (name.starts_with("stat:") && key(name) != TOTAL).then(|| (key(hash.key.as_str()), field.1))
        };
        let history = |hash: &Hash<'_>| {
            let name = hash.key.as_str();
            let wanted = name.starts_with("history:") && name.ends_with(":requests") && key(name) != TOTAL;
            wanted.then(|| (key(name), hash.fields.iter().map(|(_, more)| more).sum()))
        };
        let written = Written {
            owner: self.owner.clone(),
            claim: self.claim,
            from: (commit.from.generation, commit.from.position),
            to: commit.to.clone(),
            under_way: commit.under_way,
            then: commit.then,
            tally: commit.tally(),
            requests: hashes.iter().filter_map(requests).collect(),
            history: hashes.iter().filter_map(history).collect(),
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
