//! The state graph of a machine: boxes for states, lines for transitions, and their texts and positions.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use signalbox_machine::{
    Machine, State,
    definition::{Call, Failure, Next},
};

use crate::dashboard::graph::{self, Arrow, Graph, Rect};

/// Maximum characters of a state's name and of a line's label. Tooltips and the table have the full text.
const MAX_NAME_LENGTH: usize = 26;
const MAX_LABEL_LENGTH: usize = 30;
/// Maximum diagrams in the cache.
const MAX_DIAGRAMS: usize = 64;

/// The diagram of one definition.
#[derive(Debug, PartialEq)]
pub(super) struct Diagram {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) boxes: Vec<StateBox>,
    pub(super) lines: Vec<Line>,
}

#[derive(Debug, PartialEq)]
pub(super) struct StateBox {
    pub(super) name: String,
    pub(super) short: String,
    /// The CSS class: `gate`, `action` or `end`.
    pub(super) class: &'static str,
    /// The kind of the state, and whether it is the start or an end.
    pub(super) description: String,
    /// The outline as the `d` of an SVG path.
    pub(super) outline: String,
    /// The position of the texts: left edge, right edge, and the baselines of both lines.
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) first: f64,
    pub(super) second: f64,
}

#[derive(Debug, PartialEq)]
pub(super) struct Line {
    /// The `d` of an SVG path.
    pub(super) path: String,
    /// Whether it runs around the rows, on the right.
    pub(super) around: bool,
    /// Both states and the conditions.
    pub(super) description: String,
    pub(super) label: Option<Label>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Label {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) text: String,
}

/// A cache of diagrams, by the hash of the definition. `None` for a machine that is too large. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Diagrams(Arc<Mutex<HashMap<String, Option<Arc<Diagram>>>>>);

impl Diagrams {
    /// The diagram of a machine; `None` if the machine is too large.
    pub(super) fn of(&self, machine: &Machine) -> Option<Arc<Diagram>> {
        let cached = self.0.lock().get(machine.hash()).cloned();
        if let Some(cached) = cached {
            return cached;
        }
        let drawn = draw(machine).map(Arc::new);
        let mut all = self.0.lock();
        if all.len() >= MAX_DIAGRAMS {
            all.clear();
        }
        all.insert(machine.hash().to_owned(), drawn.clone());
        drawn
    }
}

/// The CSS class of a state's box, and the kind of the state.
pub(super) fn kind(state: &State) -> (&'static str, &'static str) {
    let call = state.action().map(|action| match action.call {
        Call::Webhook(_) => "webhook",
        Call::Route(_) => "route",
        Call::Publish(_) => "publish",
    });
    match call {
        Some(call) => ("action", call),
        None if state.gate().is_some() => ("gate", "gate"),
        None => ("end", "end"),
    }
}

/// The transitions of a state: each target once, with its conditions. Those after a failure and at the deadline are last.
pub(super) fn transitions(machine: &Machine, state: &State) -> Vec<(usize, Vec<String>)> {
    // A gate without a condition has only its deadline, and `next` repeats it.
    let opens = |next: &&Next| {
        let deadline = state.deadline().map(|deadline| deadline.to);
        let closed = state.gate().is_some_and(|gate| gate.triggers.is_empty());
        !(closed && matches!(next, Next::Constant(to) if Some(*to) == deadline))
    };
    let mut all = state.next().filter(opens).map(by_condition).unwrap_or_default();
    for failure in state.action().into_iter().flat_map(|action| &action.on_error) {
        let kinds: Vec<String> = failure.failures.iter().map(failure_name).collect();
        let kinds =
            if kinds.is_empty() { "failed".to_owned() } else { format!("failed {}", kinds.join(", ")) };
        all.push((failure.to.position(), kinds));
    }
    all.extend(state.deadline().map(|deadline| (deadline.to.position(), deadline.to_string())));
    // An unconditional transition is named if another one leads to the same state.
    if let [(to, text), others @ ..] = &mut *all
        && text.is_empty()
        && others.iter().any(|(other, _)| other == to)
    {
        *text = "next".to_owned();
    }
    debug_assert!(all.iter().all(|(to, _)| *to < machine.states().len()));
    let mut order: Vec<usize> = Vec::new();
    let mut by_target: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (to, condition) in all {
        let conditions = by_target.entry(to).or_insert_with(|| {
            order.push(to);
            Vec::new()
        });
        conditions.extend(Some(condition).filter(|condition| !condition.is_empty()));
    }
    order.into_iter().map(|to| (to, by_target.remove(&to).unwrap_or_default())).collect()
}

fn failure_name(failure: &Failure) -> String {
    match failure {
        Failure::Status(status) => status.to_string(),
        Failure::Class(class) => format!("{class}xx"),
        Failure::NoAnswer => "no_answer".to_owned(),
        Failure::Invalid => "invalid".to_owned(),
    }
}

/// Where `next` leads, each time with the condition; without one if there is no choice.
fn by_condition(next: &Next) -> Vec<(usize, String)> {
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    match next {
        Next::Constant(to) => vec![(to.position(), String::new())],
        Next::Context { path, destinations, default } => {
            let one = |(value, to): &(serde_json::Value, signalbox_machine::StateIndex)| {
                (to.position(), format!("{} = {value}", path.text()))
            };
            destinations.iter().map(one).chain([(default.position(), "else".to_owned())]).collect()
        }
        Next::Condition { branches, default } => {
            let one = |(condition, to): &(signalbox_condition::Condition, signalbox_machine::StateIndex)| {
                (to.position(), flat(condition.text()))
            };
            branches.iter().map(one).chain([(default.position(), "else".to_owned())]).collect()
        }
    }
}

fn draw(machine: &Machine) -> Option<Diagram> {
    let states = machine.states();
    let shorts: Vec<String> = states.iter().map(|state| shortened(state.name(), MAX_NAME_LENGTH)).collect();
    let mut graph =
        Graph { widths: shorts.iter().map(|short| box_width(short)).collect(), arrows: Vec::new() };
    let mut texts: Vec<(String, String)> = Vec::new();
    for (from, state) in states.iter().enumerate() {
        for (to, conditions) in transitions(machine, state) {
            let label = shortened(&conditions.join(" | "), MAX_LABEL_LENGTH);
            let width = if label.is_empty() { 0.0 } else { text_width(&label, 6.7) + 8.0 };
            graph.arrows.push(Arrow { from, to, label: width });
            let suffix =
                if conditions.is_empty() { String::new() } else { format!(": {}", conditions.join(" or ")) };
            texts.push((label, format!("{} → {}{suffix}", state.name(), states[to].name())));
        }
    }
    let drawing = graph::draw(&graph)?;
    let state_box = |((state, short), rect): ((&State, String), &Rect)| {
        let (class, kind) = kind(state);
        let start = if state.index() == machine.initial().index() { " · start" } else { "" };
        let end = if state.ends() && class != "end" { " · end" } else { "" };
        StateBox {
            name: state.name().to_owned(),
            short,
            class,
            description: format!("{kind}{start}{end}"),
            outline: outline(class, rect),
            left: rect.x + 14.0,
            right: rect.x + rect.width - 14.0,
            first: rect.y + 19.0,
            second: rect.y + 35.0,
        }
    };
    let line = |(line, (text, description)): (&graph::Line, (String, String))| Line {
        path: line.path(),
        around: line.around,
        description,
        label: line.label.map(|rect| Label {
            x: rect.x + rect.width / 2.0,
            y: rect.y + rect.height - 5.0,
            text,
        }),
    };
    Some(Diagram {
        width: drawing.width,
        height: drawing.height,
        boxes: states.iter().zip(shorts).zip(&drawing.boxes).map(state_box).collect(),
        lines: drawing.lines.iter().zip(texts).map(line).collect(),
    })
}

/// Gates have rounded corners, actions have pointed sides, and ends are round.
fn outline(class: &str, rect: &Rect) -> String {
    let Rect { x, y, width, height } = *rect;
    let (right, bottom, middle) = (x + width, y + height, y + height / 2.0);
    if class == "action" {
        let (left_in, right_in) = (x + 9.0, right - 9.0);
        return format!(
            "M{left_in:.1} {y:.1}H{right_in:.1}L{right:.1} {middle:.1}L{right_in:.1} {bottom:.1}H{left_in:.1}L{x:.1} {middle:.1}Z"
        );
    }
    let round = if class == "end" { height / 2.0 } else { 6.0 };
    let corner = |dx: f64, dy: f64| format!("a{round:.1} {round:.1} 0 0 1 {dx:.1} {dy:.1}");
    let (across, down) = (width - 2.0 * round, height - 2.0 * round);
    format!(
        "M{:.1} {y:.1}h{across:.1}{}v{down:.1}{}h{:.1}{}v{:.1}{}Z",
        x + round,
        corner(round, round),
        corner(-round, round),
        -across,
        corner(-round, -round),
        -down,
        corner(round, -round),
    )
}

fn box_width(name: &str) -> f64 {
    // The second line has the kind and the number of labels, whatever the length of the name.
    (text_width(name, 8.0) + 34.0).max(150.0)
}

/// An estimate of the width of a text. Characters outside ASCII may be wider.
fn text_width(text: &str, letter: f64) -> f64 {
    text.chars().map(|c| if c.is_ascii() { letter } else { 2.0 * letter }).sum()
}

fn shortened(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(text: &str) -> Arc<Machine> {
        let file = signalbox_machine::load("test", text).unwrap();
        Arc::clone(&file.machines[0])
    }

    const COURSE: &str = r#"
state_machines:
  course:
    states:
      - gate: begun
        exit_condition: metadata.ready
        triggers: [{metadata: ready}]
        next:
          type: context
          path: metadata.kind
          destinations: [{value: short, state: over}, {value: none, state: over}]
          default: notify
      - action: notify
        webhook: http://localhost:9/notify
        next: again
      - gate: again
        exit_condition: metadata.more
        triggers: [{metadata: more}]
        next:
          type: condition
          branches: [{when: "metadata.more   and not metadata.stop", state: begun}]
          default: over
      - gate: over
"#;

    #[test]
    fn failures_and_deadlines_have_lines() {
        let machine = machine(
            "
state_machines:
  charge:
    states:
      - action: charge
        webhook: http://localhost:9/charge
        on_error: [{status: [402, 5xx], next: rejected}, {status: no_answer, next: wait}, {next: rejected}]
        deadline: {after: 2h, next: wait}
        next: charged
      - {action: refund, webhook: http://localhost:9/refund, on_error: rejected, next: rejected}
      - {gate: charged, exit_condition: metadata.ok, triggers: [{metadata: ok}], deadline: {at: metadata.due, next: wait}, next: refund}
      - {gate: wait, deadline: {after: 14d, next: rejected}}
      - {gate: rejected}
",
        );
        let transitions = |name: &str| transitions(&machine, machine.state(name).unwrap());
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            transitions("charge"),
            [
                (2, texts(&[])),
                (4, texts(&["failed 402, 5xx", "failed"])),
                (3, texts(&["failed no_answer", "deadline 2h"])),
            ]
        );
        assert_eq!(transitions("refund"), [(4, texts(&["next", "failed"]))]);
        assert_eq!(transitions("charged"), [(1, texts(&[])), (3, texts(&["deadline metadata.due"]))]);
        assert_eq!(transitions("wait"), [(4, texts(&["deadline 14d"]))]);
        // Every state that labels may go to has a line.
        let lines = draw(&machine).unwrap().lines.len();
        assert_eq!(lines, machine.states().iter().map(|state| state.targets().len()).sum::<usize>());
    }

    #[test]
    fn boxes_and_lines_match_the_definition() {
        let machine = machine(COURSE);
        let transitions = |name: &str| transitions(&machine, machine.state(name).unwrap());
        let both = vec!["metadata.kind = \"short\"".to_owned(), "metadata.kind = \"none\"".to_owned()];
        assert_eq!(transitions("begun"), [(3, both), (1, vec!["else".to_owned()])]);
        assert_eq!(transitions("notify"), [(2, Vec::new())]);
        assert_eq!(transitions("again")[0], (0, vec!["metadata.more and not metadata.stop".to_owned()]));
        assert_eq!(transitions("over"), []);

        let diagrams = Diagrams::default();
        let drawn = diagrams.of(&machine).unwrap();
        let boxes: Vec<(&str, &str)> = drawn.boxes.iter().map(|one| (one.class, &*one.description)).collect();
        assert_eq!(
            boxes,
            [("gate", "gate · start"), ("action", "webhook"), ("gate", "gate"), ("end", "end")]
        );
        assert_eq!(drawn.lines.len(), 5);
        let back: Vec<&str> =
            drawn.lines.iter().filter(|line| line.around).map(|line| line.description.as_str()).collect();
        assert_eq!(back, ["again → begun: metadata.more and not metadata.stop"]);
        assert!(drawn.lines[0].label.as_ref().is_some_and(|label| label.text.ends_with('…')));
        assert!(drawn.lines[2].label.is_none());
        // The second call returns the cached diagram.
        assert!(Arc::ptr_eq(&drawn, &diagrams.of(&machine).unwrap()));
    }
}
