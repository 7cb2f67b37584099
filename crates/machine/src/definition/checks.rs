//! Checks of a machine as a whole: unreachable states, gates that can never open.

use super::{
    cycles::lowest_of_cycles,
    model::{Call, Gate, Kind, Machine, Next, Path, State, Trigger},
    outside::origin,
    read::Reader,
    yaml::{Key, Mark, Node, Value},
};

/// Checks the machine that was read last. `body` is its source.
pub(super) fn judge(reader: &mut Reader<'_>, machine: &Machine, body: &Node) {
    let items = body.get("states").map(Node::items).unwrap_or_default();
    let broken = &std::mem::take(&mut reader.known.broken);
    reachable(reader, machine, items, broken);
    for (state, node) in machine.states().iter().zip(items) {
        let Kind::Gate(gate) = state.kind() else { continue };
        can_open(reader, machine, gate, node);
    }
    if broken.is_empty() {
        cycles(reader, machine, items);
        limits_are_used(reader, machine, body);
    }
    hosts_are_named(reader, machine, items);
}

/// If the host of a `route` action comes from metadata, the machine must list the hosts that its actions may
/// change. A definition without this list that an earlier version stored can still be read, but its actions
/// are rejected when they run.
fn hosts_are_named(reader: &mut Reader<'_>, machine: &Machine, items: &[Node]) {
    if !machine.hosts.is_empty() {
        return;
    }
    for (state, node) in machine.states().iter().zip(items) {
        let Some(call @ Call::Route(_)) = state.action().map(|action| &action.call) else { continue };
        if call.constant_host().is_some() {
            continue;
        }
        let at = node.get("route").and_then(|route| route.get("host")).map_or(node.at, |host| host.at);
        let message =
            "the host comes from metadata, so the machine must list the hosts that its actions may change";
        let hint = "add `hosts: [\"*.shop.example\"]` to the machine";
        if reader.secrets.is_some() {
            reader.refuse_hint(at, message, hint);
        } else {
            reader.warn(at, message, Some(hint.to_owned()));
        }
    }
}

/// Rejects a limit whose address is not that of any webhook, because it would have no effect.
fn limits_are_used(reader: &mut Reader<'_>, machine: &Machine, body: &Node) {
    let called: Vec<String> =
        machine.states().iter().filter_map(|state| state.action()?.call.origin()).collect();
    for (key, _) in body.get("limits").map(Node::entries).unwrap_or_default() {
        let Some(target) = origin(&key.name).filter(|target| !called.contains(target)) else { continue };
        let message = format!("no webhook of this machine has an address of {target}");
        match signalbox_condition::nearest(&target, called.iter().map(String::as_str)) {
            Some(near) => reader.refuse_hint(key.at, message, format!("did you mean {near}?")),
            None => reader.refuse(key.at, message),
        }
    }
}

/// The position of a state's name in the file.
fn name_mark(node: &Node) -> Mark {
    node.get("gate").or_else(|| node.get("action")).map_or(node.at, |name| name.at)
}

fn reachable(reader: &mut Reader<'_>, machine: &Machine, items: &[Node], broken: &[usize]) {
    let mut reached = vec![false; machine.states().len()];
    let mut ahead = vec![machine.initial()];
    // A state that could not be read is assumed to lead to every state that it mentions.
    let mentioned: Vec<&str> = broken.iter().filter_map(|place| items.get(*place)).flat_map(texts).collect();
    ahead.extend(mentioned.iter().filter_map(|name| machine.state(name)));
    // A misspelled reference may be meant for this state. Then only the misspelling is reported.
    let meant = |state: &State| {
        let name = || std::iter::once(state.name());
        mentioned.iter().any(|text| signalbox_condition::nearest(text, name()).is_some())
    };
    while let Some(state) = ahead.pop() {
        if std::mem::replace(&mut reached[state.index().position()], true) {
            continue;
        }
        ahead.extend(state.targets().into_iter().map(|target| machine.at(target)));
    }
    for ((state, node), reached) in machine.states().iter().zip(items).zip(reached) {
        if !reached && !broken.contains(&state.index().position()) && !meant(state) {
            let hint = format!("labels begin in `{}`, the first state", machine.initial().name());
            reader.refuse_hint(name_mark(node), format!("no label can reach `{}`", state.name()), hint);
        }
    }
}

/// Every text at or below a node.
fn texts(node: &Node) -> Vec<&str> {
    match &node.value {
        Value::Text(text) => vec![text.as_str()],
        Value::List(items) => items.iter().flat_map(texts).collect(),
        Value::Map(entries) => entries
            .iter()
            .filter(|(key, _)| !matches!(key.name.as_str(), "gate" | "action"))
            .flat_map(|(_, node)| texts(node))
            .collect(),
        _ => Vec::new(),
    }
}

/// Whether the paths are equal, or one is a parent of the other.
pub(crate) fn related(one: &[Box<str>], other: &[Box<str>]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}

fn can_open(reader: &mut Reader<'_>, machine: &Machine, gate: &Gate, node: &Node) {
    let Some((Key { at, .. }, triggers)) = node.entry("triggers") else { return };
    if gate.triggers.is_empty() {
        return;
    }
    let at = *at;
    let has = |is: fn(&Trigger) -> bool| gate.triggers.iter().any(is);
    let timed = has(|trigger| matches!(trigger, Trigger::Time(_) | Trigger::Interval(_) | Trigger::At(_)));
    let never = match (gate.on_entry(), node.get("deadline").is_some()) {
        (_, true) => "this gate opens only at its deadline",
        (true, false) => "a label that does not pass this gate on entry can never leave it",
        (false, false) => "this gate can never open",
    };
    let topic = has(|trigger| matches!(trigger, Trigger::Topic(_)));
    let condition = &gate.condition;
    let feed = condition.feeds().next();
    if !timed && (condition.reads_clock() || feed.is_some()) {
        let what = match feed {
            Some(feed) => format!("it reads feeds.{feed}"),
            None => "it depends on the clock".to_owned(),
        };
        let hint =
            "add {interval: 5m} or {time: 18:30}: changes of time and feeds do not trigger an evaluation";
        let message = format!("{never} without an update: {what}, and no trigger evaluates it again");
        return reader.refuse_hint(at, message, hint);
    }
    let paths: Vec<&[Box<str>]> = condition.metadata_paths().collect();
    let covered = |path: &[Box<str>]| {
        gate.triggers.iter().any(|trigger| match trigger {
            Trigger::Metadata(trigger) => related(trigger.keys(), path),
            _ => false,
        })
    };
    if !timed && !topic && !paths.is_empty() {
        if !paths.iter().any(|path| covered(path)) {
            let read: Vec<String> = paths.iter().map(|path| Path::new(path.to_vec()).to_string()).collect();
            let message = format!("{never}: no trigger names {}, a parent or a child", read.join(", "));
            let path = read[0].strip_prefix("metadata.").unwrap_or(&read[0]);
            return reader.refuse_hint(at, message, format!("add {{metadata: {path}}}"));
        }
        for path in paths.iter().filter(|path| !covered(path)) {
            let path = Path::new(path.to_vec());
            let message = format!("no trigger names {path}, which the condition reads");
            let hint = "an update of this path takes effect only when another trigger fires";
            reader.warn(at, message, Some(hint.to_owned()));
        }
    }
    for (trigger, node) in gate.triggers.iter().zip(triggers.items()) {
        if let Trigger::Topic(topic) = trigger
            && !machine.inputs().iter().any(|input| input.topic == *topic)
        {
            let at = node.get("topic").map_or(node.at, |topic| topic.at);
            let message = format!("no input takes events of {topic}");
            reader.refuse_hint(at, message, format!("add `inputs: [{{topic: {topic}}}]` to the machine"));
        }
    }
}

/// Reports cycles in which labels never wait. Each cycle is reported once, at its first state.
fn cycles(reader: &mut Reader<'_>, machine: &Machine, items: &[Node]) {
    let states = machine.states();
    let on_entry: Vec<bool> = states
        .iter()
        .map(|state| state.gate().is_some_and(|gate| gate.on_entry() || has_time(state)))
        .collect();
    // Actions, and gates that every label passes immediately.
    let passed: Vec<bool> = states
        .iter()
        .map(|state| match state.kind() {
            Kind::Gate(gate) => gate.on_entry() && gate.condition.text().trim() == "true" || has_time(state),
            Kind::Action(_) => true,
            Kind::End => false,
        })
        .collect();
    let mut named = Vec::new();
    for (member, message) in
        [(&on_entry, "without any action"), (&passed, "without waiting, and repeat its actions")]
    {
        for first in lowest_of_cycles(&edges(machine, member)) {
            let (Some(state), Some(node)) = (states.get(first), items.get(first)) else { continue };
            if named.contains(&first) {
                continue;
            }
            named.push(first);
            let message = format!("labels can loop from `{}` back to it {message}", state.name());
            let hint =
                "after 50 transitions a label pauses for a second; put a gate that waits into the loop";
            reader.warn(name_mark(node), message, Some(hint.to_owned()));
        }
    }
}

/// Whether a label leaves the state immediately once a time of its metadata has passed.
fn has_time(state: &State) -> bool {
    state.deadline().is_some_and(|deadline| deadline.path().is_some())
}

/// The transitions between the member states.
fn edges(machine: &Machine, member: &[bool]) -> Vec<Vec<usize>> {
    let targets = |state: &State| -> Vec<usize> {
        if !member[state.index().position()] {
            return Vec::new();
        }
        // A gate without an entry trigger is a member only because of its deadline.
        let next = state.next().filter(|_| state.gate().is_none_or(Gate::on_entry)).into_iter();
        let failures = state.action().into_iter().flat_map(|action| &action.on_error).map(|case| case.to);
        let late = state.deadline().filter(|_| has_time(state)).map(|deadline| deadline.to);
        let targets = next.flat_map(Next::targets).chain(failures).chain(late);
        targets.map(super::StateIndex::position).filter(|target| member[*target]).collect()
    };
    machine.states().iter().map(targets).collect()
}
