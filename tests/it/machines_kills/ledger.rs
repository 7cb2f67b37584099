//! A ledger of the events that are published about labels.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::plan::{Kind, MACHINE, Plan, TURNS, token};

/// The reports about one label.
struct Page {
    plan: Plan,
    /// The states that it entered, by the order of first receipts.
    path: Vec<String>,
    /// How many of these moves the definition's versions made.
    migrated: usize,
    /// Event → visit.
    ids: BTreeMap<u64, u64>,
    visit: watch::Sender<u64>,
    /// Ids of the events that its own action published, by lap.
    reported: BTreeMap<u64, BTreeSet<u64>>,
}

/// The ledger. Everybody reads in it while it is written.
pub(super) struct Ledger {
    pages: Mutex<HashMap<String, Page>>,
    flaws: Mutex<Vec<String>>,
}

impl Ledger {
    pub(super) fn new(plans: &[Plan]) -> Self {
        let page = |plan: &Plan| Page {
            plan: plan.clone(),
            path: Vec::new(),
            migrated: 0,
            ids: BTreeMap::new(),
            visit: watch::Sender::new(0),
            reported: BTreeMap::new(),
        };
        let pages = plans.iter().map(|plan| (plan.name.clone(), page(plan))).collect();
        Self { pages: Mutex::new(pages), flaws: Mutex::default() }
    }

    pub(super) fn flaw(&self, flaw: String) {
        self.flaws.lock().unwrap_or_else(PoisonError::into_inner).push(flaw);
    }

    fn pages(&self) -> std::sync::MutexGuard<'_, HashMap<String, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a delivery, which may have come before.
    pub(super) fn receive(&self, events: &[Value]) {
        let mut pages = self.pages();
        for event in events {
            let label = event["data"]["label"].as_str().unwrap_or_default();
            let Some(page) = pages.get_mut(label) else {
                self.flaw(format!("an event of an unknown label: {event}"));
                continue;
            };
            let Some(id) = event["id"].as_u64() else {
                self.flaw(format!("an event without an id: {event}"));
                continue;
            };
            if event["topic"] == "reported" {
                let lap = event["data"]["lap"].as_u64().unwrap_or_default();
                page.reported.entry(lap).or_default().insert(id);
            } else if let Err(why) = page.enter(id, event) {
                self.flaw(format!("{why}: {event}, after {:?}", page.path));
            }
        }
    }

    /// To be awaited: the number of a label's visit, without those that another version of the definition made.
    pub(super) fn visits(&self, label: &str) -> watch::Receiver<u64> {
        self.pages()[label].visit.subscribe()
    }

    /// How many labels have gone all their way, and how many moves were reported.
    pub(super) fn progress(&self) -> (usize, usize) {
        let pages = self.pages();
        let there = pages.values().filter(|page| page.progress() == page.plan.path().len()).count();
        (there, pages.values().map(|page| page.path.len()).sum())
    }

    /// Labels that have not got as far as they should, with where they are.
    pub(super) fn behind(&self) -> Vec<String> {
        let pages = self.pages();
        let behind = pages.values().filter(|page| page.progress() < page.plan.path().len());
        behind.map(|page| format!("{} {:?}", page.plan.name, page.path.last())).take(5).collect()
    }

    /// Unexpected or missing entries.
    pub(super) fn audit(&self) -> Vec<String> {
        let mut flaws = self.flaws.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for page in self.pages().values() {
            let expected: Vec<&str> = page.plan.path().iter().map(|(state, _)| *state).collect();
            if page.way() != expected {
                flaws.push(format!("{}: went {:?}, not {expected:?}", page.plan.name, page.path));
            }
            let asked = page.plan.laps.iter().enumerate().filter(|(_, kind)| **kind == Kind::Ask);
            let expected: Vec<u64> = asked.map(|(place, _)| place as u64 + 1).collect();
            let reported: Vec<u64> =
                page.reported.iter().flat_map(|(lap, ids)| std::iter::repeat_n(*lap, ids.len())).collect();
            if reported != expected {
                flaws.push(format!(
                    "{}: its action reported of {reported:?}, not of {expected:?}",
                    page.plan.name
                ));
            }
        }
        flaws
    }
}

impl Ledger {
    /// The number of labels.
    pub(super) fn len(&self) -> usize {
        self.pages().len()
    }

    /// The states that a label entered.
    pub(super) fn path(&self, label: &str) -> Vec<String> {
        self.pages()[label].path.clone()
    }

    /// By label, the tokens of its actions, each with whether an attempt is certain.
    pub(super) fn tokens(&self) -> BTreeMap<String, BTreeMap<String, bool>> {
        let tokens = |page: &Page| {
            let visits = page.path.iter().enumerate();
            let actions = visits.filter(|(_, state)| matches!(&***state, "call" | "finish" | "hopeless"));
            let token = |(place, state): (usize, &String)| {
                (token(&page.plan.name, place as u64 + 1, state), state != "hopeless")
            };
            actions.map(token).collect()
        };
        self.pages().iter().map(|(label, page)| (label.clone(), tokens(page))).collect()
    }

    /// How many moves the versions of the definition made.
    pub(super) fn migrated(&self) -> usize {
        self.pages().values().map(|page| page.migrated).sum()
    }
}

impl Page {
    /// How many of the planned moves it has made.
    fn progress(&self) -> usize {
        self.path.len() - self.migrated
    }

    /// The states that it entered, as the first version names them, without the moves that the versions made.
    fn way(&self) -> Vec<&str> {
        let mut way: Vec<&str> = Vec::new();
        for state in &self.path {
            let name = if TURNS.contains(&&**state) { TURNS[0] } else { &**state };
            if name != TURNS[0] || way.last() != Some(&TURNS[0]) {
                way.push(name);
            }
        }
        way
    }

    /// Enters a move; why it cannot be one.
    fn enter(&mut self, id: u64, event: &Value) -> Result<(), String> {
        let data = &event["data"];
        let visit = data["visit"].as_u64().unwrap_or_default();
        if let Some(known) = self.ids.get(&id) {
            return if *known == visit { Ok(()) } else { Err("the same event has other content".into()) };
        }
        let last = self.ids.last_key_value().map(|(id, _)| *id);
        if last.is_some_and(|last| last > id) {
            return Err(format!("it came after {last:?}"));
        }
        self.ids.insert(id, visit);
        if event["prev"] != json!(last) {
            return Err(format!("the one before it was {last:?}"));
        }
        if data["machine"] != MACHINE || visit != self.path.len() as u64 + 1 {
            return Err("its visit does not follow".into());
        }
        if data["from"] != json!(self.path.last()) {
            return Err("it was not there".into());
        }
        let to = data["to"].as_str().unwrap_or_default();
        if data["cause"] == "migrated" {
            let renames = self.path.last().is_some_and(|from| from != to && TURNS.contains(&&**from));
            if !renames || !TURNS.contains(&to) {
                return Err("no version moves it there".into());
            }
            self.migrated += 1;
        }
        self.path.push(to.to_owned());
        self.visit.send_replace(self.progress() as u64);
        Ok(())
    }
}
