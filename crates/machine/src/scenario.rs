//! Scenarios: metadata and times in, states out, written next to a definition (`drip.yaml`, `drip.test.yaml`) and run
//! without any server, by `signalbox machines test`.
//!
//! A scenario simulates a label that gets metadata at certain times. After the updates of a time, and their immediate
//! consequences, the label has to be in the expected state.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value as Json;

use crate::{
    definition::{
        Machine, Problem, Refused, StateIndex,
        read::{Fields, Reader},
        yaml::{Mark, Node, Value},
    },
    merge,
    simulate::{Assumed, Assumption, End, Simulator, Start, What},
};

/// The result of a scenario.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// The first difference from what the scenario expects; `None` if it passed.
    pub failed: Option<Problem>,
}

/// Runs the scenarios of a file; `file` is its name in messages.
///
/// # Errors
/// If the file itself is invalid.
pub fn run(file: &str, source: &str, machines: &[Arc<Machine>]) -> Result<Vec<Outcome>, Refused> {
    let mut reader = Reader::new(file, source);
    let root = reader.parse();
    let scenarios = root.map(|root| read(&mut reader, &root, machines)).unwrap_or_default();
    if reader.problems.is_empty() {
        return Ok(scenarios.into_iter().map(|scenario| scenario.run(&reader)).collect());
    }
    Err(reader.refused())
}

struct Scenario<'m> {
    name: String,
    machine: &'m Machine,
    start: Timestamp,
    label: String,
    metadata: Json,
    assumed: Assumed,
    steps: Vec<Moment>,
}

struct Moment {
    place: Mark,
    when: When,
    metadata: Option<Json>,
    topic: Option<(String, Json)>,
    assumed: Assumed,
    expect: Option<Expect>,
}

enum When {
    At(Timestamp),
    After(std::time::Duration),
}

struct Expect {
    place: Mark,
    state: Option<String>,
    status: Option<String>,
    through: Option<Vec<String>>,
}

fn read<'m>(reader: &mut Reader<'_>, root: &Node, machines: &'m [Arc<Machine>]) -> Vec<Scenario<'m>> {
    let fields = reader.fields(root, "the file", &["scenarios"]);
    let Some(node) = fields.and_then(|fields| reader.required(&fields, "scenarios")) else {
        return Vec::new();
    };
    let items = reader.list(node, "`scenarios`").unwrap_or_default();
    if items.is_empty() {
        reader.refuse(node.at, "no scenario found");
    }
    items.iter().filter_map(|item| scenario(reader, item, machines)).collect()
}

fn scenario<'m>(reader: &mut Reader<'_>, node: &Node, machines: &'m [Arc<Machine>]) -> Option<Scenario<'m>> {
    let keys = ["name", "machine", "start", "label", "metadata", "feeds", "webhooks", "steps"];
    let fields = reader.fields(node, "a scenario", &keys)?;
    let name = reader.need(&fields, "name", |reader, node| reader.text(node, "a name"));
    let machine = match fields.get("machine") {
        Some(node) => {
            let name = reader.text(node, "a machine")?;
            let found = machines.iter().find(|machine| machine.name() == name);
            found.or_else(|| {
                reader.fail(node.at, format!("unknown machine `{name}` in the file next to this one"))
            })
        }
        None if machines.len() == 1 => machines.first(),
        None => reader.fail(fields.at, "the definition has several machines, so `machine` must name one"),
    }?;
    let start = reader.need(&fields, "start", instant);
    let label = reader.or(&fields, "label", "label", |reader, node| reader.text(node, "a label"))?;
    let metadata = reader.or(&fields, "metadata", Json::Object(serde_json::Map::new()), object)?;
    let assumed = assumed(reader, &fields, machine);
    let steps = reader.need(&fields, "steps", |reader, node| reader.list(node, "`steps`"))?;
    let moments: Vec<Moment> = steps.iter().filter_map(|step| moment(reader, step, machine)).collect();
    let (name, label) = (name?.to_owned(), label.to_owned());
    Some(Scenario { name, machine, start: start?, label, metadata, assumed, steps: moments })
}

fn instant(reader: &mut Reader<'_>, node: &Node) -> Option<Timestamp> {
    let found = signalbox_condition::instant(reader.text(node, "a moment")?);
    found.or_else(|| reader.fail_hint(node.at, "invalid time", "write RFC 3339, like 2026-01-31T18:30:00Z"))
}

fn object(reader: &mut Reader<'_>, node: &Node) -> Option<Json> {
    match node.value {
        Value::Map(_) => Some(node.to_json()),
        _ => reader.fail(node.at, format!("metadata must be a map, not {}", node.kind())),
    }
}

fn assumed(reader: &mut Reader<'_>, fields: &Fields<'_>, machine: &Machine) -> Assumed {
    let mut assumed = Assumed::default();
    let feeds: Vec<&str> = machine.feeds().iter().map(|feed| &*feed.name).collect();
    if let Some(node) = fields.get("feeds")
        && reader.fields(node, "`feeds`", &feeds).is_some()
    {
        for (key, value) in node.entries() {
            let value = value.to_json();
            assumed.feeds.insert(key.name.clone(), (!value.is_null()).then_some(value));
        }
    }
    let actions = machine.states().iter().filter(|state| state.action().is_some());
    let actions: Vec<&str> = actions.map(|state| state.name()).collect();
    if let Some(node) = fields.get("webhooks")
        && reader.fields(node, "`webhooks`", &actions).is_some()
    {
        for (key, value) in node.entries() {
            let answer = answer(reader, value);
            assumed.webhooks.extend(answer.map(|answer| (key.name.clone(), answer)));
        }
    }
    assumed
}

/// Reads an answer: a status, or `{status, body}`.
fn answer(reader: &mut Reader<'_>, node: &Node) -> Option<Assumption> {
    let whole = |reader: &mut Reader<'_>, node: &Node| {
        let status = reader.whole(node, "the answer of an action", 100..=599)?;
        u16::try_from(status).ok()
    };
    if !matches!(node.value, Value::Map(_)) {
        return whole(reader, node).map(Assumption::from);
    }
    let fields = reader.fields(node, "the answer of an action", &["status", "body"])?;
    let status = reader.or(&fields, "status", 200, whole)?;
    Some(Assumption { status, body: fields.get("body").map(Node::to_json) })
}

fn moment(reader: &mut Reader<'_>, node: &Node, machine: &Machine) -> Option<Moment> {
    let keys = ["at", "after", "metadata", "topic", "data", "feeds", "webhooks", "expect"];
    let fields = reader.fields(node, "a step", &keys)?;
    let when = match (fields.get("at"), fields.get("after")) {
        (Some(node), None) => instant(reader, node).map(When::At),
        (None, Some(node)) => reader.duration(node, "`after`", 0..=3650 * 86_400).map(When::After),
        _ => {
            let message = "a step needs exactly one of `at` and `after`";
            reader.fail_hint(fields.at, message, "`after` counts from the previous step")
        }
    };
    let metadata = reader.maybe(&fields, "metadata", object)?;
    let topic = reader.maybe(&fields, "topic", |reader, node| {
        let topic = reader.topic(node)?;
        if !machine.inputs().iter().any(|input| input.topic == topic) {
            reader.refuse(node.at, format!("no input takes events of {topic}"));
        }
        Some((topic.into(), fields.get("data").map_or(Json::Null, Node::to_json)))
    })?;
    let expect = reader.maybe(&fields, "expect", |reader, node| expect(reader, node, machine))?;
    let assumed = assumed(reader, &fields, machine);
    Some(Moment { place: fields.at, when: when?, metadata, topic, assumed, expect })
}

fn expect(reader: &mut Reader<'_>, node: &Node, machine: &Machine) -> Option<Expect> {
    let fields = reader.fields(node, "`expect`", &["state", "status", "through"])?;
    let state = |reader: &mut Reader<'_>, node: &Node| {
        let name = reader.text(node, "a state")?;
        if machine.state(name).is_none() {
            let near = signalbox_condition::nearest(name, machine.states().iter().map(|state| state.name()));
            let hint = near.map_or("see the definition".to_owned(), |near| format!("did you mean `{near}`?"));
            reader.refuse_hint(node.at, format!("unknown state `{name}`"), hint);
        }
        Some(name.to_owned())
    };
    let through = reader.maybe(&fields, "through", |reader, node| {
        let items = reader.list(node, "`through`")?;
        Some(items.iter().filter_map(|item| state(reader, item)).collect())
    })?;
    let status = reader.maybe(&fields, "status", |reader, node| {
        let status = reader.text(node, "a status")?;
        let known = ["waiting", "acting", "choosing", "errored", "looping", "ended"];
        if !known.contains(&status) {
            reader.refuse(node.at, format!("a status must be one of {}", known.join(", ")));
        }
        Some(status.to_owned())
    })?;
    let state = fields.get("state").and_then(|node| state(reader, node));
    Some(Expect { place: fields.at, state, status, through })
}

impl Scenario<'_> {
    fn run(self, reader: &Reader<'_>) -> Outcome {
        let failed = self.follow(reader).err();
        Outcome { name: self.name, failed: failed.map(|problem| *problem) }
    }

    fn follow(&self, reader: &Reader<'_>) -> Result<(), Box<Problem>> {
        let start = Start::fresh(self.machine, &self.label, self.metadata.clone(), self.start);
        let mut simulator = Simulator::new(self.machine, start, &self.assumed, self.start);
        let (mut clock, mut seen) = (self.start, 0);
        for step in &self.steps {
            let wrong = |place: Mark, message: String| Box::new(reader.problem(place, message, None));
            let at = match step.when {
                When::At(at) => at,
                When::After(wait) => clock.checked_add(wait).unwrap_or(Timestamp::MAX),
            };
            if at < clock {
                return Err(wrong(step.place, format!("{at} is before the previous step, at {clock}")));
            }
            clock = at;
            // First time passes until `at`, then the updates of that time are applied, then their immediate
            // consequences follow.
            needs(simulator.run_until(at), step.place, reader)?;
            simulator.at(at);
            simulator.assume(&step.assumed);
            if let Some(update) = &step.metadata {
                simulator.facts(update);
            }
            if let Some((topic, data)) = &step.topic {
                self.event(&mut simulator, topic, data);
            }
            needs(simulator.run_until(at), step.place, reader)?;
            let moves = simulator.steps().get(seen..).unwrap_or_default();
            let passed: Vec<String> = moves
                .iter()
                .filter_map(|step| match &step.what {
                    What::Moves { to, .. } => Some(to.clone()),
                    _ => None,
                })
                .collect();
            seen = simulator.steps().len();
            // The last failure, if it left the label errored.
            let failure = moves.iter().rev().find_map(|step| match &step.what {
                What::Errs { error, .. } => Some(error.as_str()),
                _ => None,
            });
            if let Some(expect) = &step.expect
                && let Some(message) = differs(expect, self.machine, simulator.label(), &passed, failure)
            {
                return Err(wrong(expect.place, format!("at {at} {message}")));
            }
        }
        Ok(())
    }

    /// Processes an event as the machine's inputs would.
    fn event(&self, simulator: &mut Simulator<'_>, topic: &str, data: &Json) {
        for input in self.machine.inputs().iter().filter(|input| &*input.topic == topic) {
            if let Some(path) = &input.into {
                simulator.facts(&merge::at_path(path, data.clone()));
            }
        }
        simulator.topic(topic);
    }
}

fn needs(end: End, place: Mark, reader: &Reader<'_>) -> Result<(), Box<Problem>> {
    let message = match end {
        End::NeedsFeed(feed) => format!("the scenario needs an answer of the feed `{feed}`"),
        End::NeedsAnswer(state) => format!(
            "the answer to `{state}` becomes metadata, so the scenario must specify it: `webhooks: {{{state}: {{status: 200, body: …}}}}`"
        ),
        End::Steps => "the label makes transitions without end".to_owned(),
        _ => return Ok(()),
    };
    Err(Box::new(reader.problem(place, message, None)))
}

fn differs(
    expect: &Expect,
    machine: &Machine,
    label: &Start,
    passed: &[String],
    failure: Option<&str>,
) -> Option<String> {
    let name = |state: StateIndex| machine.at(state).name();
    let because = failure.map(|failure| format!(" ({failure})")).unwrap_or_default();
    let is = format!("the label is `{}` in `{}`{because}", label.status.as_str(), name(label.state));
    let state = expect.state.as_deref().filter(|state| *state != name(label.state));
    if let Some(state) = state {
        return Some(format!("{is}, not in `{state}`"));
    }
    let status = expect.status.as_deref().filter(|status| *status != label.status.as_str());
    if let Some(status) = status {
        return Some(format!("{is}, not `{status}`"));
    }
    let through = expect.through.as_deref().filter(|through| *through != passed)?;
    Some(format!("the label went through [{}], not through [{}]", passed.join(", "), through.join(", ")))
}
