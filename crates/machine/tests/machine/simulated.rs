//! The simulation compared with the step function, called every second: a skipped second must not matter.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use signalbox_machine::{
    Machine,
    plan::{self, Outlook},
    simulate::{Assumed, End, Simulator, Start, What, simulate},
    step::{Event, Known, Label, Rest, Status, decide},
};

use crate::steps::{at, machine};

/// Moves by asking at every second whether a trigger of the gate is due, with no analysis of anything.
fn second_by_second(
    machine: &Machine,
    metadata: &Json,
    feeds: &Known<'_>,
    from: Timestamp,
    seconds: i64,
) -> Vec<(Timestamp, String)> {
    let mut moves = Vec::new();
    let (mut state, mut entered, mut previous): (_, _, Option<String>) =
        (machine.initial().index(), from, None);
    let mut event = Some(Event::Entered);
    let mut second = 0;
    while second <= seconds {
        let now = from + second.seconds();
        let due = event.take().or_else(|| {
            let gate = machine.at(state).gate()?;
            let passed = now.as_second() - entered.as_second();
            let interval = gate.intervals().find(|(_, every)| {
                let every = i64::try_from(every.as_secs()).unwrap();
                passed > 0 && passed % every == 0
            });
            let daily = gate.daily().find(|(_, daily)| {
                let zone = daily.zone.of(metadata).zone;
                now > entered && daily.schedule.last(zone.rules(), now) == Some(now)
            });
            interval.map(|(n, _)| Event::Trigger(n)).or(daily.map(|(n, _)| Event::Trigger(n)))
        });
        let Some(due) = due else {
            second += 1;
            continue;
        };
        let label = Label {
            name: "l",
            state,
            status: Status::Waiting,
            metadata,
            entered,
            previous_state: previous.as_deref(),
            facts_waiting: false,
            topics_waiting: &[],
        };
        let decision = decide(machine, label, due, now, feeds);
        for step in &decision.moves {
            moves.push((now, machine.at(step.to).name().to_owned()));
            previous = Some(machine.at(step.from).name().to_owned());
            (state, entered) = (step.to, now);
        }
        match decision.rest {
            // The action is done immediately.
            Rest::Acting => event = Some(Event::Done),
            Rest::Ended | Rest::NeedsFeed(_) => return moves,
            _ => second += 1,
        }
    }
    moves
}

fn conditions() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("90s has passed since system.entered_state"),
        Just("metadata.wait has passed since system.entered_state and metadata.a"),
        Just("system.time >= 00:10 and system.time < 00:20"),
        Just("system.weekday = 'thursday'"),
        Just("system.date = '2026-01-02' and 5m has passed since system.entered_state"),
        Just("metadata.a or system.time > 00:30:30"),
        Just("history.previous_state = 's0' and 61s has passed since metadata.since"),
        Just("not system.now < metadata.since"),
        Just("feeds.f > 3 and 2m has passed since system.entered_state"),
        Just("metadata.never and system.time > 00:05"),
        Just("true"),
    ]
}

fn triggers() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("{interval: 7s}"),
        Just("{interval: 60s}"),
        Just("{time: '00:15'}, {interval: 11m}"),
        Just("{time: '00:15:30', timezone: Asia/Tokyo}"),
        Just("{time: '09:15', timezone: metadata.zone}, {interval: 300s}"),
        Just("{event: entry}, {interval: 45s}"),
    ]
}

fn machines() -> impl Strategy<Value = Machine> {
    proptest::collection::vec((any::<bool>(), conditions(), triggers()), 2..6).prop_map(|states| {
        let last = states.len();
        let mut text = String::from("    feeds: [{name: f, url: 'http://h/'}]\n    states:\n");
        for (n, (action, condition, triggers)) in states.into_iter().enumerate() {
            let next = if n + 1 == last { "end".to_owned() } else { format!("s{}", n + 1) };
            if action && n > 0 {
                text.push_str(&format!("      - {{action: s{n}, webhook: 'http://h/<label>', next: {next}}}\n"));
            } else {
                text.push_str(&format!(
                    "      - gate: s{n}\n        exit_condition: \"{condition}\"\n        triggers: [{triggers}]\n        \
                     next: {{type: condition, branches: [{{when: metadata.back, state: s0}}], default: {next}}}\n"
                ));
            }
        }
        text.push_str("      - gate: end\n");
        machine(&text)
    })
}

fn facts() -> impl Strategy<Value = Json> {
    (any::<bool>(), any::<bool>(), 0..400_u32, prop_oneof![Just(json!(2)), Just(json!(5)), Just(Json::Null)])
        .prop_map(|(a, zone, wait, feed)| {
            let zone = if zone { "Asia/Tokyo" } else { "Europe/London" };
            json!({"a": a, "wait": wait, "zone": zone, "since": "2026-01-01T00:03:20Z", "feed": feed})
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_simulation_moves_when_the_step_would(machine in machines(), metadata in facts()) {
        let from = at("2026-01-01T00:00:00Z");
        let seconds = 2 * 3600;
        let mut feeds = Known::nothing(&machine);
        feeds.learn("f", Some(metadata["feed"].clone()));
        let expected = second_by_second(&machine, &metadata, &feeds, from, seconds);
        let assumed = Assumed {
            feeds: [("f".to_owned(), Some(metadata["feed"].clone()))].into(),
            webhooks: BTreeMap::new(),
        };
        let start = Start::fresh(&machine, "l", metadata, from);
        let simulation = simulate(&machine, start, &assumed, None, from, from + seconds.seconds());
        let moves: Vec<(Timestamp, String)> = simulation.steps.into_iter().filter_map(|step| match step.what {
            What::Moves { to, .. } => Some((step.at, to)),
            _ => None,
        }).collect();
        prop_assert_eq!(moves, expected);
    }

    #[test]
    fn the_predictions_of_a_plan_come_true(machine in machines(), metadata in facts(), later in 0..7200_i64) {
        let from = at("2026-01-01T00:00:00Z");
        let now = from + later.seconds();
        let mut feeds = Known::nothing(&machine);
        feeds.learn("f", Some(metadata["feed"].clone()));
        for state in machine.states() {
            let label = Label {
                name: "l", state: state.index(), status: Status::Waiting, metadata: &metadata, entered: from,
                previous_state: Some("s0"), facts_waiting: false, topics_waiting: &[],
            };
            let outlook = plan::outlook(&machine, state.name(), label, &feeds, now);
            // It moves if, and only if, an evaluation at this moment moves it.
            let opens = state.gate().is_some_and(|gate| {
                (0..gate.triggers.len()).any(|n| !decide(&machine, label, Event::Trigger(n), now, &feeds).moves.is_empty())
            });
            prop_assert_eq!(outlook == Outlook::Moves, opens, "{}", state.name());
        }
        prop_assert_eq!(plan::outlook(&machine, "gone", Label {
            name: "l", state: machine.initial().index(), status: Status::Waiting, metadata: &metadata, entered: from,
            previous_state: None, facts_waiting: false, topics_waiting: &[],
        }, &feeds, now), Outlook::Removed);
    }
}

#[test]
fn a_simulation_reports_why_it_ended() {
    let machine = machine(
        "    feeds: [{name: f, url: 'http://h/'}]\n    states:\n      - gate: a\n        exit_condition: metadata.go\n        \
         triggers: [{metadata: go}]\n        next: b\n      - action: b\n        webhook: http://h/\n        retry: {attempts: 3}\n        next: c\n      \
         - gate: c\n        exit_condition: feeds.f\n        triggers: [{interval: 1m}]\n        next: d\n      - gate: d\n",
    );
    let from = at("2026-01-01T00:00:00Z");
    let until = from + 48.hours();
    let run = |facts: Json, assumed: &Assumed| {
        let start = Start::fresh(&machine, "l", json!({}), from);
        simulate(&machine, start, assumed, Some(&facts), from, until)
    };
    assert_eq!(run(json!({}), &Assumed::default()).end, End::Stuck);
    let go = json!({"go": true});
    let asking = run(go.clone(), &Assumed::default());
    assert_eq!(
        (asking.end, asking.at.to_string().as_str()),
        (End::NeedsFeed("f".into()), "2026-01-01T00:01:00Z")
    );
    let failing = Assumed { webhooks: [("b".to_owned(), 500.into())].into(), ..Assumed::default() };
    let errored = run(go.clone(), &failing);
    // After one second, after two more, and then the attempts are spent.
    assert_eq!((errored.end, errored.at.to_string().as_str()), (End::Errored, "2026-01-01T00:00:03Z"));
    let tries = errored.steps.iter().filter(|step| matches!(step.what, What::Tries { .. })).count();
    assert_eq!(tries, 3);
    let closed = Assumed { feeds: [("f".to_owned(), Some(json!(false)))].into(), ..Assumed::default() };
    assert_eq!(run(go.clone(), &closed).end, End::Until);
    let open = Assumed { feeds: [("f".to_owned(), Some(json!(true)))].into(), ..Assumed::default() };
    let ended = run(go, &open);
    assert_eq!(ended.end, End::Ended);
    assert_eq!(ended.to_json()["steps"][0]["cause"], json!("metadata"));
    assert_eq!(ended.to_json()["state"], json!("d"));
}

#[test]
fn a_label_that_runs_in_a_loop_stops_after_a_thousand_steps() {
    let machine = machine(
        "    states:\n      - {gate: a, exit_condition: 'true', triggers: [{event: entry}], next: b}\n      \
         - {gate: b, exit_condition: 'true', triggers: [{event: entry}], next: a}\n",
    );
    let from = at("2026-01-01T00:00:00Z");
    let mut simulator =
        Simulator::new(&machine, Start::fresh(&machine, "l", json!({}), from), &Assumed::default(), from);
    assert_eq!(simulator.run_until(from + 48.hours()), End::Steps);
    // Fifty in one go, then a second of rest.
    assert_eq!(simulator.steps()[49].at, from);
    assert_eq!(simulator.steps()[50].at, from + 1.second());
    assert_eq!(simulator.steps().len(), 1000);
}

#[test]
fn two_versions_are_compared_by_their_states() {
    let one = machine(
        "    states:\n      - {gate: a, exit_condition: metadata.x, triggers: [{metadata: x}], next: b}\n      - gate: b\n",
    );
    let two = machine(
        "    states:\n      - {gate: a, exit_condition: metadata.y, triggers: [{metadata: y}], next: c}\n      - gate: c\n",
    );
    let states = plan::states(&one, &two);
    assert_eq!(
        (states.added, states.removed, states.changed),
        (vec!["c".to_owned()], vec!["b".to_owned()], vec!["a".to_owned()])
    );
    assert_eq!(plan::states(&one, &one), signalbox_api::machines::StateChanges::default());
}

/// The differences other than states, and the states whose meaning changes because of them.
#[track_caller]
fn differs(one: &str, two: &str, outside: &[&str], changed: &[&str], reindexed: &[&str]) {
    let read = |text: &str| {
        let text = format!("state_machines:\n  m:\n{text}{GATES}");
        let file = signalbox_machine::load("m.yaml", &text).unwrap_or_else(|refused| panic!("{refused}"));
        std::sync::Arc::clone(&file.machines[0])
    };
    let (old, new) = (read(one), read(two));
    assert_eq!(plan::outside(&old, &new), outside, "{two}");
    assert_eq!(plan::states(&old, &new).changed, changed, "{two}");
    assert_eq!(plan::reindexed(&old, &new), reindexed, "{two}");
    assert_eq!(plan::outside(&new, &new), [""; 0]);
}

const GATES: &str = "    states:
      - {gate: facts, exit_condition: metadata.x, triggers: [{metadata: x}], next: fed}
      - {gate: fed, exit_condition: feeds.crm.ok, triggers: [{interval: 1m}], next: branched}
      - gate: branched
        exit_condition: metadata.x
        triggers: [{metadata: x}]
        next: {type: condition, branches: [{when: feeds.crm.gold, state: daily}], default: daily}
      - {gate: daily, exit_condition: metadata.x, triggers: [{time: 18:30}], next: fixed}
      - {gate: fixed, exit_condition: metadata.x, triggers: [{time: 18:30, timezone: Asia/Tokyo}], next: clocked}
      - {gate: clocked, exit_condition: 'system.time > 12:00', triggers: [{interval: 1m}], next: updated}
      - {gate: updated, exit_condition: metadata.x, triggers: [{topic: orders}], next: sent}
      - action: sent
        webhook: http://127.0.0.1:1/
        next: {type: context, path: system.weekday, destinations: [{value: monday, state: end}], default: end}
      - gate: end
";
const OUTSIDE: &str = "    timezone: Europe/London
    feeds: [{name: crm, url: 'http://127.0.0.1:1/', ttl: 1m}]
    inputs: [{topic: orders}, {topic: news}]
    webhooks: [{match: 'http://127.0.0.1:1/', headers: {A: b}}]
";

#[test]
fn versions_that_differ_in_feeds_zone_or_inputs_name_the_states_that_feel_it() {
    differs(OUTSIDE, OUTSIDE, &[], &[], &[]);
    let limited = format!("{OUTSIDE}    limits: {{'http://127.0.0.1:1': {{concurrent: 1}}}}\n");
    differs(OUTSIDE, &limited, &["limits"], &[], &[]);
    for feed in ["ttl: 2m", "ttl: 1m, timeout: 9s", "ttl: 1m, on_error: {default: {ok: true}}"] {
        differs(OUTSIDE, &OUTSIDE.replace("ttl: 1m", feed), &["feeds.crm"], &["fed", "branched"], &[]);
    }
    for zone in ["Asia/Tokyo", "{metadata: tz, default: Europe/London}"] {
        let other = OUTSIDE.replace("timezone: Europe/London", &format!("timezone: {zone}"));
        differs(OUTSIDE, &other, &["timezone"], &["daily", "clocked", "sent"], &[]);
    }
    let other = OUTSIDE.replace("topic: orders", "topic: orders, into: order");
    differs(OUTSIDE, &other, &["inputs.orders"], &["updated"], &[]);
    let other = OUTSIDE.replace(", {topic: news}", "");
    differs(OUTSIDE, &other, &["inputs.news"], &[], &[]);
    let other = OUTSIDE.replace("A: b", "A: c");
    differs(OUTSIDE, &other, &["webhooks"], &[], &[]);
}

/// "Remind until paid", with a time that has passed.
const REMIND: &str = "
state_machines:
  m:
    states:
      - {gate: sent, exit_condition: metadata.paid, triggers: [{metadata: paid}], next: done, deadline: {at: metadata.due, next: remind}}
      - {action: remind, webhook: https://a.example/, next: sent}
      - {gate: done}
";

#[test]
fn a_loop_through_a_deadline_that_has_passed_pauses_and_is_reported() {
    let file = signalbox_machine::load("m.yaml", REMIND).unwrap();
    assert!(
        file.warnings.iter().any(|warning| warning.message.contains("can loop from")),
        "{:?}",
        file.warnings
    );
    let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let until = "2026-01-01T00:00:10Z".parse().unwrap();
    let metadata = serde_json::json!({"due": 1_700_000_000.5});
    let start = signalbox_machine::simulate::Start::fresh(&file.machines[0], "a", metadata, now);
    let simulation = signalbox_machine::simulate::simulate(
        &file.machines[0],
        start,
        &signalbox_machine::simulate::Assumed::default(),
        None,
        now,
        until,
    );
    assert!(simulation.steps.len() < 1_000, "{} steps in ten seconds", simulation.steps.len());
    assert_eq!(simulation.end.as_str(), "until");
}

#[test]
fn a_simulation_ends_when_its_time_is_used_up() {
    let file = signalbox_machine::load("m.yaml", REMIND).unwrap();
    let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let start = signalbox_machine::simulate::Start::fresh(&file.machines[0], "a", serde_json::json!({}), now);
    let simulation = signalbox_machine::simulate::simulate_while(
        &|| false,
        (&file.machines[0], None),
        start,
        &signalbox_machine::simulate::Assumed::default(),
        None,
        (now, jiff::Timestamp::MAX),
    );
    assert_eq!(simulation.end.as_str(), "steps");
}
