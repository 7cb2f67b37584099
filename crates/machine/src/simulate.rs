//! The future of a label under assumptions: the engine's own step function with a clock that jumps.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use crate::{
    attempt::{self, Outcome, Verdict},
    definition::{Action, Machine, StateIndex},
    merge,
    render::Filling,
    step::{self, Cause, Event, Known, Label, Rest, Status},
};

/// Maximum number of steps in a simulation.
pub const MAX_STEPS: usize = 1000;
/// Maximum number of gate evaluations in a simulation.
const MAX_LOOKS: usize = 100_000;
/// How long a label pauses after [`step::MAX_MOVES`] transitions.
const LOOP_REST: Duration = Duration::from_secs(1);

/// The state of a label at the beginning of a simulation.
#[derive(Debug, Clone)]
pub struct Start {
    /// The label's name.
    pub name: String,
    /// The state that it is in.
    pub state: StateIndex,
    /// Its status in the state.
    pub status: Status,
    /// Its metadata.
    pub metadata: Json,
    /// When it entered the state.
    pub entered: Timestamp,
    /// The state that it came from.
    pub previous_state: Option<String>,
    /// Whether metadata was updated during an action.
    pub facts_waiting: bool,
    /// The topics whose events came during an action.
    pub topics_waiting: Vec<Box<str>>,
    /// Attempts of the action so far.
    pub attempts: u32,
    /// When the next attempt of the action, the next query of a failed feed, or the end of a pause is due; by default now.
    pub again: Option<Timestamp>,
    /// The number of consecutive failures of that feed.
    pub feed_failures: u32,
    /// The cause and the trigger of the gate's pending evaluation.
    pub held: Option<(Cause, Option<String>)>,
    /// Whether it has just entered the state, so that an `entry` trigger has not been processed yet.
    pub fresh: bool,
    /// Whether an operator has suspended it.
    pub suspended: bool,
}

/// The assumptions.
#[derive(Debug, Clone, Default)]
pub struct Assumed {
    /// Values of feeds. Null means that the feed fails.
    pub feeds: BTreeMap<String, Option<Json>>,
    /// The answer to a state's action; default 200.
    pub webhooks: BTreeMap<String, Assumption>,
}

/// The assumed answer to an action.
#[derive(Debug, Clone, PartialEq)]
pub struct Assumption {
    /// Its status.
    pub status: u16,
    /// Its JSON body, if it has one.
    pub body: Option<Json>,
}

impl From<u16> for Assumption {
    fn from(status: u16) -> Self {
        Self { status, body: None }
    }
}

/// A moment as the API shows all of them: with milliseconds.
fn millisecond<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{at:.3}"))
}

/// A step of a simulation, with its time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// The time.
    #[serde(serialize_with = "millisecond")]
    pub at: Timestamp,
    /// The step.
    #[serde(flatten)]
    pub what: What,
}

/// A step of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum What {
    /// The label makes a transition.
    Moves {
        /// The state that it left.
        from: String,
        /// The state that it entered.
        to: String,
        /// The cause of the transition.
        cause: Cause,
        /// The trigger, if there was one.
        #[serde(skip_serializing_if = "Option::is_none")]
        trigger: Option<String>,
    },
    /// An action is attempted.
    Tries {
        /// The state of the action.
        #[serde(rename = "attempt")]
        state: String,
        /// The status of the answer.
        status: u16,
    },
    /// An action has failed for good.
    Errs {
        /// The state of the action.
        #[serde(rename = "errored")]
        state: String,
        /// The failure.
        error: String,
    },
}

/// Why a simulation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The requested time was reached.
    Until,
    /// The label has reached an end state.
    Ended,
    /// It will not be evaluated again.
    Stuck,
    /// Its action failed for good.
    Errored,
    /// It is suspended.
    Suspended,
    /// The simulation needs a value of this feed.
    NeedsFeed(String),
    /// The simulation needs the answer to this state's action, because it becomes metadata.
    NeedsAnswer(String),
    /// It reached [`MAX_STEPS`] steps, the maximum number of evaluations, or the end of its time.
    Steps,
}

impl End {
    /// The name in the API.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Until => "until",
            Self::Ended => "ended",
            Self::Stuck => "stuck",
            Self::Errored => "errored",
            Self::Suspended => "suspended",
            Self::NeedsFeed(_) => "needs_feed",
            Self::NeedsAnswer(_) => "needs_answer",
            Self::Steps => "steps",
        }
    }
}

/// The simulated future of a label.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// The steps in their order.
    pub steps: Vec<Step>,
    /// Why the simulation ended.
    pub end: End,
    /// When the simulation ended.
    pub at: Timestamp,
    /// The name of the label's state at the end.
    pub state: String,
    /// The label at the end.
    pub last: Start,
}

impl Simulation {
    /// `{"steps":[{"at","from","to","cause","trigger"?}…],"end","feed"?,"state","status","since"}`.
    pub fn to_json(&self) -> Json {
        let mut json = json!({
            "steps": self.steps,
            "end": self.end.as_str(),
            "at": format!("{:.3}", self.at),
            "state": self.state,
            "status": self.last.status.as_str(),
            "since": format!("{:.3}", self.last.entered),
        });
        match &self.end {
            End::NeedsFeed(feed) => {
                json["feed"] = feed.as_str().into();
                json["hint"] =
                    format!("assume its value: --feeds '{{\"{feed}\": …}}', or `feeds` of the request")
                        .into();
            }
            End::NeedsAnswer(state) => {
                json["answer"] = state.as_str().into();
                let hint = format!(
                    "assume its answer: --webhooks '{{\"{state}\": {{\"status\": 200, \"body\": …}}}}', or `webhooks` of the request"
                );
                json["hint"] = hint.into();
            }
            _ => {}
        }
        json
    }
}

/// Simulates a label from `now` until `until`, its end, or until nothing more can happen. `facts` is an
/// optional metadata update that is merged first, as a PATCH would.
pub fn simulate(
    machine: &Machine,
    start: Start,
    assumed: &Assumed,
    facts: Option<&Json>,
    now: Timestamp,
    until: Timestamp,
) -> Simulation {
    simulate_while(&|| true, (machine, None), start, assumed, facts, (now, until))
}

/// As [`simulate`], as long as `goes_on` returns true: then the simulation ends as if it had too many steps. `active` is the
/// active version, if the label stays on an earlier one.
pub fn simulate_while(
    goes_on: &dyn Fn() -> bool,
    (machine, active): (&Machine, Option<&Machine>),
    start: Start,
    assumed: &Assumed,
    facts: Option<&Json>,
    (now, until): (Timestamp, Timestamp),
) -> Simulation {
    let mut simulator = Simulator { active, ..Simulator::new(machine, start, assumed, now) };
    if let Some(facts) = facts {
        simulator.facts(facts);
    }
    let end = simulator.run_while(goes_on, until);
    simulator.into_simulation(end)
}

/// A label with a simulated clock. Its metadata may be updated while time passes.
#[derive(Debug)]
pub struct Simulator<'m> {
    machine: &'m Machine,
    /// The active version, while the label stays on an earlier one.
    active: Option<&'m Machine>,
    webhooks: BTreeMap<String, Assumption>,
    feeds: Known<'m>,
    label: Start,
    now: Timestamp,
    rest: Rest,
    /// Transitions since the last rest: an action that is done immediately is not a rest.
    moved: usize,
    steps: Vec<Step>,
    looks: usize,
}

/// The next thing that happens to the label without an update.
enum Wake {
    At(Timestamp, Then),
    End(End),
}

enum Then {
    Look(usize),
    /// A feed was queried, a failed feed is queried again, or a pause is over.
    Again,
    /// Another attempt.
    Act,
    Choose,
    /// The state's deadline.
    Leave,
}

impl<'m> Simulator<'m> {
    /// Begins a simulation at `now`.
    pub fn new(machine: &'m Machine, start: Start, assumed: &Assumed, now: Timestamp) -> Self {
        let mut simulator = Self {
            machine,
            active: None,
            webhooks: BTreeMap::new(),
            feeds: Known::nothing(machine),
            label: start,
            now,
            rest: Rest::Waiting { failed_feed: None },
            moved: 0,
            steps: Vec::new(),
            looks: 0,
        };
        simulator.assume(assumed);
        let again = simulator.label.again.take().unwrap_or(now).max(now);
        if std::mem::take(&mut simulator.label.fresh) {
            simulator.decide(Event::Entered);
            return simulator;
        }
        (simulator.rest, simulator.label.again) = match simulator.label.status {
            // The evaluation will determine which feed it was.
            Status::Waiting if simulator.label.held.is_some() => {
                (Rest::Waiting { failed_feed: Some(String::new()) }, Some(again))
            }
            Status::Waiting => (Rest::Waiting { failed_feed: None }, None),
            Status::Choosing => (Rest::Choosing(String::new()), Some(again)),
            Status::Looping => (Rest::Looping, Some(again)),
            Status::Acting | Status::Errored => (Rest::Acting, Some(again)),
            Status::Ended | Status::Deleted => (Rest::Ended, None),
        };
        simulator
    }

    /// Adds assumptions that apply from now on.
    pub fn assume(&mut self, assumed: &Assumed) {
        for (name, value) in &assumed.feeds {
            self.feeds.learn(name, value.clone());
        }
        self.webhooks.extend(assumed.webhooks.iter().map(|(state, answer)| (state.clone(), answer.clone())));
    }

    /// Merges a metadata update.
    pub fn facts(&mut self, update: &Json) {
        merge::merge(&mut self.label.metadata, update);
        if !self.label.suspended {
            self.decide(Event::Facts(update));
        }
    }

    /// Processes an event of a topic that an input accepted for the label.
    pub fn topic(&mut self, topic: &str) {
        self.decide(Event::Topic(topic));
    }

    /// Advances the clock to this time. The clock never goes back.
    pub fn at(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// The label as it is now.
    pub fn label(&self) -> &Start {
        &self.label
    }

    /// The simulated time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The steps so far.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    fn into_simulation(mut self, end: End) -> Simulation {
        self.steps.truncate(MAX_STEPS);
        let state = self.machine.at(self.label.state).name().to_owned();
        Simulation { steps: self.steps, end, at: self.now, state, last: self.label }
    }

    /// Lets time pass until `until`, inclusive, or until nothing more can happen.
    pub fn run_until(&mut self, until: Timestamp) -> End {
        self.run_while(&|| true, until)
    }

    fn run_while(&mut self, goes_on: &dyn Fn() -> bool, until: Timestamp) -> End {
        loop {
            if self.steps.len() >= MAX_STEPS || self.looks >= MAX_LOOKS || !goes_on() {
                return End::Steps;
            }
            self.looks += 1;
            match self.next() {
                Wake::End(end) => return end,
                Wake::At(at, _) if at > until => {
                    self.now = until;
                    return End::Until;
                }
                Wake::At(at, then) => {
                    self.now = at.max(self.now);
                    match then {
                        Then::Look(trigger) => self.decide(Event::Trigger(trigger)),
                        Then::Again => {
                            let (cause, trigger) = self.label.held.take().unwrap_or((Cause::Feed, None));
                            self.decide(Event::Again { cause, trigger: trigger.as_deref() });
                        }
                        Then::Act => self.act(),
                        Then::Choose => self.decide(Event::Done),
                        Then::Leave => self.decide(Event::Deadline),
                    }
                }
            }
        }
    }

    fn next(&self) -> Wake {
        if self.label.suspended {
            return Wake::End(End::Suspended);
        }
        let state = self.machine.at(self.label.state);
        let deadline = state.deadline_of(self.label.entered, &self.label.metadata);
        // A label that loops pauses, even if its deadline has passed.
        let pause = self.label.again.filter(|_| self.rest == Rest::Looping);
        let deadline = deadline.map(|at| at.max(self.now).max(pause.unwrap_or(self.now)));
        match (deadline, self.next_work()) {
            // If both are due at the same time, the deadline takes precedence.
            (Some(deadline), Wake::At(at, _)) if deadline <= at => Wake::At(deadline, Then::Leave),
            (Some(deadline), Wake::End(End::Stuck | End::Errored | End::Ended)) => {
                Wake::At(deadline, Then::Leave)
            }
            (_, next) => next,
        }
    }

    /// The next thing that happens, without the state's deadline.
    fn next_work(&self) -> Wake {
        let again = self.label.again.unwrap_or(self.now);
        match &self.rest {
            Rest::Ended => Wake::End(End::Ended),
            Rest::NeedsFeed(feed) if self.feeds.has(feed) => Wake::At(self.now, Then::Again),
            Rest::ChoosingNeedsFeed(feed) if self.feeds.has(feed) => Wake::At(self.now, Then::Choose),
            Rest::NeedsFeed(feed) | Rest::ChoosingNeedsFeed(feed) => Wake::End(End::NeedsFeed(feed.clone())),
            Rest::Choosing(_) => Wake::At(again, Then::Choose),
            Rest::Looping => Wake::At(again, Then::Again),
            Rest::Acting if self.label.status == Status::Errored => Wake::End(End::Errored),
            Rest::Acting => match self.unknown_answer() {
                Some(state) => Wake::End(End::NeedsAnswer(state)),
                None => {
                    let quiet =
                        self.machine.at(self.label.state).action().and_then(|action| action.quiet.as_ref());
                    let begins = again.max(self.now);
                    let until = quiet.and_then(|quiet| quiet.until(&self.label.metadata, begins));
                    Wake::At(until.unwrap_or(begins), Then::Act)
                }
            },
            // A feed that is assumed to fail keeps failing, but time passes between the queries.
            Rest::Waiting { failed_feed: Some(_) } => match self.next_look() {
                Wake::At(at, then) if at <= again => Wake::At(at, then),
                _ => Wake::At(again, Then::Again),
            },
            Rest::Unchanged | Rest::Waiting { .. } => self.next_look(),
        }
    }

    fn after(&self, wait: Duration) -> Timestamp {
        self.now.checked_add(wait).unwrap_or(Timestamp::MAX)
    }

    /// Applies an event to a label at rest.
    fn decide(&mut self, event: Event<'_>) {
        self.moved = 0;
        self.go_on(event);
    }

    /// Applies an event to a label that has not rested since its last transition.
    fn go_on(&mut self, event: Event<'_>) {
        let label = borrowed(&self.label);
        let machine = self.machine;
        let decision = step::decide_after(self.moved, machine, label, event, self.now, &self.feeds);
        for step in &decision.moves {
            let (from, to) = (machine.at(step.from).name(), machine.at(step.to).name());
            let what = What::Moves {
                from: from.to_owned(),
                to: to.to_owned(),
                cause: step.cause,
                trigger: step.trigger.clone(),
            };
            self.steps.push(Step { at: self.now, what });
            self.moved += 1;
            self.label.previous_state = Some(from.to_owned());
            self.label.state = step.to;
            self.label.entered = self.now;
            self.label.attempts = 0;
            self.label.feed_failures = 0;
            let active = self.active.filter(|active| !step::keeps(machine, Some(active), to));
            if let Some((active, state)) = active.and_then(|active| Some((active, active.state(to)?))) {
                // The rest of the decision was made under the version that the label has left.
                (self.machine, self.active, self.label.state) = (active, None, state.index());
                self.feeds.change_machine(active);
                self.label.facts_waiting = step.facts_waiting;
                self.label.topics_waiting.clone_from(&step.topics_waiting);
                return self.go_on(Event::Entered);
            }
        }
        self.label.facts_waiting = decision.facts_waiting;
        self.label.topics_waiting.clone_from(&decision.topics_waiting);
        self.label.status = decision.status().unwrap_or(self.label.status);
        if decision.rest == Rest::Unchanged {
            return;
        }
        self.rest = decision.rest;
        let failed = matches!(self.rest, Rest::Choosing(_) | Rest::Waiting { failed_feed: Some(_) });
        self.label.feed_failures = if failed { self.label.feed_failures + 1 } else { 0 };
        self.label.held = match self.rest {
            Rest::NeedsFeed(_) | Rest::Looping => decision.cause.map(|cause| (cause, decision.trigger)),
            _ => None,
        };
        self.label.again = match self.rest {
            Rest::Acting => Some(self.now),
            Rest::Looping => Some(self.after(LOOP_REST)),
            _ if failed => Some(self.after(attempt::feed_wait(self.label.feed_failures))),
            _ => None,
        };
    }

    /// Attempts the action. Pauses between attempts take their maximum length.
    fn act(&mut self) {
        let state = self.machine.at(self.label.state);
        let Some(action) = state.action() else { return };
        self.label.attempts += 1;
        let filling = Filling {
            state_machine: self.machine.name(),
            label: &self.label.name,
            metadata: &self.label.metadata,
        };
        let answer = self.webhooks.get(state.name()).cloned().unwrap_or(Assumption::from(200));
        let (outcome, error) = match action.request(filling) {
            Ok(_) => {
                let (name, status) = (state.name().to_owned(), answer.status);
                self.steps.push(Step { at: self.now, what: What::Tries { state: name, status } });
                self.take_result(action, &answer)
            }
            Err(unfilled) => (Outcome::Refused, unfilled.to_string()),
        };
        match attempt::judge(&action.retry, self.label.attempts, outcome, 1.0) {
            Verdict::Done => self.go_on(Event::Done),
            Verdict::Again(wait) => {
                self.moved = 0;
                self.label.again = Some(self.after(wait));
            }
            Verdict::Errored if action.after(outcome).is_some() => {
                let Some(case) = action.after(outcome) else { return };
                if let Some(update) = case.update(outcome, &error, self.label.attempts) {
                    merge::merge(&mut self.label.metadata, &update);
                }
                self.go_on(Event::Failed { to: case.to, why: &outcome.word() });
            }
            Verdict::Errored => {
                self.label.status = Status::Errored;
                let what = What::Errs { state: state.name().to_owned(), error };
                self.steps.push(Step { at: self.now, what });
            }
        }
    }

    /// The state whose action would be attempted now, if its answer becomes metadata but is not specified.
    fn unknown_answer(&self) -> Option<String> {
        let state = self.machine.at(self.label.state);
        let needed = state.action().is_some_and(|action| !action.result.is_empty());
        (needed && !self.webhooks.contains_key(state.name())).then(|| state.name().to_owned())
    }

    /// Merges the parts of an answer that become metadata, as the engine does.
    fn take_result(&mut self, action: &Action, answer: &Assumption) -> (Outcome, String) {
        let status = answer.status;
        let done = Outcome::Status { code: status, retry_after: None };
        if !(200..300).contains(&status) {
            return (done, format!("the answer was {status}"));
        }
        match action.result_of(status, answer.body.as_ref()) {
            Ok(None) => {}
            Ok(Some(update)) => {
                merge::merge(&mut self.label.metadata, &update);
                self.label.facts_waiting = true;
            }
            Err(why) => return (Outcome::Silence, why),
        }
        (done, String::new())
    }

    /// The next time-based evaluation of the gate.
    fn next_look(&self) -> Wake {
        let label = borrowed(&self.label);
        let Some(gate) = self.machine.at(label.state).gate() else { return Wake::End(End::Ended) };
        let zone = step::gate_zone(self.machine, &label);
        let facts = step::facts(self.machine, &label, &self.feeds, &zone, self.now);
        let interval = gate.next_interval(&facts, label.metadata, label.entered, self.now);
        let daily = gate.next_daily(label.metadata, self.now);
        match interval.into_iter().chain(daily).min_by_key(|(_, at)| *at) {
            Some((n, at)) => Wake::At(at, Then::Look(n)),
            None => Wake::End(End::Stuck),
        }
    }
}

fn borrowed(label: &Start) -> Label<'_> {
    Label {
        name: &label.name,
        state: label.state,
        status: label.status,
        metadata: &label.metadata,
        entered: label.entered,
        previous_state: label.previous_state.as_deref(),
        facts_waiting: label.facts_waiting,
        topics_waiting: &label.topics_waiting,
    }
}

impl Start {
    /// A label that has just been created with this metadata.
    pub fn fresh(machine: &Machine, name: &str, metadata: Json, now: Timestamp) -> Self {
        Self {
            name: name.to_owned(),
            state: machine.initial().index(),
            status: Status::Waiting,
            metadata,
            entered: now,
            previous_state: None,
            facts_waiting: false,
            topics_waiting: Vec::new(),
            attempts: 0,
            again: None,
            feed_failures: 0,
            held: None,
            fresh: true,
            suspended: false,
        }
    }
}
