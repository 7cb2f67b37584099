//! Where labels go, step by step.

use jiff::Timestamp;
use serde_json::{Value as Json, json};
use signalbox_machine::{
    Machine, load,
    step::{Cause, Decision, Event, Known, Label, MAX_MOVES, Rest, Status, decide},
};

pub(crate) fn machine(states: &str) -> Machine {
    let source = format!("state_machines:\n  m:\n{states}");
    let file = load("m.yaml", &source).unwrap_or_else(|refused| panic!("{refused}"));
    Machine::clone(&file.machines[0])
}

pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const NOW: &str = "2026-01-31T18:30:00Z";

struct Case<'m> {
    machine: &'m Machine,
    state: &'m str,
    status: Status,
    metadata: Json,
    entered: &'m str,
    facts_waiting: bool,
    topics_waiting: Vec<Box<str>>,
    feeds: Known<'m>,
}

impl<'m> Case<'m> {
    fn at(machine: &'m Machine, state: &'m str, metadata: Json) -> Self {
        let (status, entered, feeds) = (Status::Waiting, "2026-01-31T06:00:00Z", Known::nothing(machine));
        Self {
            machine,
            state,
            status,
            metadata,
            entered,
            facts_waiting: false,
            topics_waiting: Vec::new(),
            feeds,
        }
    }

    fn decide(&self, event: Event<'_>) -> Decision {
        let label = Label {
            name: "l",
            state: self.machine.state(self.state).unwrap().index(),
            status: self.status,
            metadata: &self.metadata,
            entered: at(self.entered),
            previous_state: None,
            facts_waiting: self.facts_waiting,
            topics_waiting: &self.topics_waiting,
        };
        decide(self.machine, label, event, at(NOW), &self.feeds)
    }
}

/// The names of the states that a label goes through.
fn through<'m>(machine: &'m Machine, decision: &Decision) -> Vec<&'m str> {
    decision.moves.iter().map(|step| machine.at(step.to).name()).collect()
}

const COURSE: &str = r#"
    feeds: [{name: f, url: "http://h/"}, {name: d, url: "http://h/", on_error: {default: {next: end}}}]
    states:
      - gate: facts
        exit_condition: metadata.a = 1
        triggers: [{metadata: a}]
        next: entry
      - gate: entry
        exit_condition: metadata.b
        triggers: [{event: entry}, {metadata: b}]
        next: act
      - action: act
        webhook: http://h/
        next: {type: context, path: feeds.f.next, destinations: [{value: again, state: fed}], default: by_default}
      - gate: fed
        exit_condition: feeds.f.open
        triggers: [{interval: 1m}, {metadata: a}]
        next: {type: condition, branches: [{when: feeds.f.open = 2, state: by_default}], default: end}
      - gate: by_default
        exit_condition: metadata.never
        triggers: [{metadata: never}]
        next: last
      - action: last
        webhook: http://h/
        next: {type: context, path: feeds.d.next, destinations: [{value: end, state: end}], default: facts}
      - gate: end
"#;

#[test]
fn a_mentioned_path_opens_a_gate_and_the_next_one_is_evaluated_only_on_entry() {
    let machine = machine(COURSE);
    let update = json!({"a": 1});
    let case = Case::at(&machine, "facts", json!({"a": 1, "b": true}));
    let decision = case.decide(Event::Facts(&update));
    assert_eq!(through(&machine, &decision), ["entry", "act"]);
    assert_eq!(decision.rest, Rest::Acting);
    assert_eq!((decision.moves[0].cause, decision.moves[1].cause), (Cause::Metadata, Cause::Entry));
    assert_eq!(decision.moves[0].trigger.as_deref(), Some("metadata.a"));
    // The entry gate stays shut without b, also when the update that opened the gate before it mentions b.
    let case = Case::at(&machine, "facts", json!({"a": 1}));
    let update = json!({"a": 1, "b": null});
    let decision = case.decide(Event::Facts(&update));
    assert_eq!(
        (through(&machine, &decision), decision.rest),
        (vec!["entry"], Rest::Waiting { failed_feed: None })
    );
    // A path that is not mentioned triggers nothing, whatever the condition's value.
    let case = Case::at(&machine, "facts", json!({"a": 1}));
    let update = json!({"b": 1});
    assert_eq!(case.decide(Event::Facts(&update)).rest, Rest::Unchanged);
}

#[test]
fn facts_that_come_during_an_action_wait_for_the_next_gate_with_a_metadata_trigger() {
    let machine = machine(COURSE);
    let update = json!({"never": 1});
    let mut case = Case::at(&machine, "act", json!({"never": 1}));
    case.status = Status::Acting;
    let decision = case.decide(Event::Facts(&update));
    assert_eq!((decision.rest, decision.facts_waiting), (Rest::Unchanged, true));
    case.facts_waiting = true;
    case.feeds.learn("f", Some(json!({})));
    let decision = case.decide(Event::Done);
    assert_eq!(through(&machine, &decision), ["by_default", "last"]);
    assert_eq!((decision.moves[1].cause, decision.facts_waiting), (Cause::Metadata, false));
    case.facts_waiting = false;
    assert_eq!(through(&machine, &case.decide(Event::Done)), ["by_default"]);
}

#[test]
fn only_the_feeds_that_are_reached_are_needed() {
    let machine = machine(COURSE);
    let mut case = Case::at(&machine, "fed", json!({}));
    let decision = case.decide(Event::Trigger(0));
    assert_eq!(decision.rest, Rest::NeedsFeed("f".into()));
    assert_eq!((decision.cause, decision.trigger.as_deref()), (Some(Cause::Interval), Some("interval 1m")));
    case.feeds.learn("f", Some(json!({"open": 2})));
    let again = Event::Again { cause: Cause::Interval, trigger: Some("interval 1m") };
    let decision = case.decide(again);
    assert_eq!(through(&machine, &decision), ["by_default"]);
    assert_eq!(decision.moves[0].trigger.as_deref(), Some("interval 1m"));
    // It failed: unknown opens nothing, and it is to be asked again.
    case.feeds.learn("f", None);
    assert_eq!(case.decide(again).rest, Rest::Waiting { failed_feed: Some("f".into()) });
}

#[test]
fn after_an_action_a_feed_that_failed_is_waited_for() {
    let machine = machine(COURSE);
    let mut case = Case::at(&machine, "act", json!({}));
    case.status = Status::Acting;
    assert_eq!(case.decide(Event::Done).rest, Rest::ChoosingNeedsFeed("f".into()));
    case.feeds.learn("f", None);
    let decision = case.decide(Event::Done);
    assert_eq!((decision.moves.len(), decision.rest), (0, Rest::Choosing("f".into())));
    case.feeds.learn("f", Some(json!({"next": "again"})));
    assert_eq!(through(&machine, &case.decide(Event::Done)), ["fed"]);
    // A default replaces a feed that has one.
    let mut case = Case::at(&machine, "last", json!({}));
    case.feeds.learn("d", None);
    let decision = case.decide(Event::Done);
    assert_eq!((through(&machine, &decision), decision.rest), (vec!["end"], Rest::Ended));
}

#[test]
fn a_loop_of_entry_gates_rests_after_fifty_moves() {
    let machine = machine(
        "    states:\n      - {gate: a, exit_condition: 'true', triggers: [{event: entry}], next: b}\n      \
         - {gate: b, exit_condition: 'true', triggers: [{event: entry}], next: a}\n",
    );
    let case = Case::at(&machine, "a", json!({}));
    let decision = case.decide(Event::Entered);
    assert_eq!((decision.moves.len(), &decision.rest), (MAX_MOVES, &Rest::Looping));
    assert_eq!((decision.cause, decision.status()), (Some(Cause::Entry), Some(Status::Looping)));
}

#[test]
fn late_events_change_nothing() {
    let machine = machine(COURSE);
    let update = json!({"a": 1});
    for (state, event) in [
        ("end", Event::Facts(&update)),
        ("end", Event::Done),
        ("end", Event::Trigger(0)),
        ("facts", Event::Done),
        ("facts", Event::Trigger(7)),
        ("facts", Event::Trigger(0)),
        ("facts", Event::Topic("orders")),
        ("act", Event::Trigger(0)),
    ] {
        let decision = Case::at(&machine, state, json!({"a": 1})).decide(event);
        assert_eq!((decision.moves.len(), decision.rest), (0, Rest::Unchanged), "{state} {event:?}");
    }
}

#[test]
fn an_event_evaluates_only_gates_with_a_trigger_for_its_topic() {
    let machine = machine(
        "    inputs: [{topic: orders, into: order}]\n    states:\n      - gate: a\n        exit_condition: metadata.order.paid\n        \
         triggers: [{topic: orders}]\n        next: b\n      - gate: b\n",
    );
    let case = Case::at(&machine, "a", json!({"order": {"paid": true}}));
    let decision = case.decide(Event::Topic("orders"));
    assert_eq!((decision.moves[0].cause, decision.rest), (Cause::Topic, Rest::Ended));
    assert_eq!(case.decide(Event::Topic("others")).rest, Rest::Unchanged);
}

#[test]
fn a_failed_comparison_is_reported() {
    let machine = machine(
        "    states:\n      - {gate: a, exit_condition: metadata.n > 5, triggers: [{metadata: n}], next: b}\n      - gate: b\n",
    );
    let update = json!({"n": "six"});
    let decision = Case::at(&machine, "a", json!({"n": "six"})).decide(Event::Facts(&update));
    assert_eq!(decision.error.as_deref(), Some("line 1: a string and a number have no order"));
}
