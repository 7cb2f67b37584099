//! States: gates with their triggers, and where labels go from them.

use std::{collections::HashMap, time::Duration};

use jiff::civil;
use serde_json::Value as Json;
use signalbox_condition::{Condition, KnownFeeds};

use super::{
    keys,
    load::DAY,
    model::{Alert, Daily, Deadline, DeadlineAt, Gate, Kind, Next, State, StateIndex, Trigger},
    read::{Fields, Reader},
    yaml::{Mark, Node, Value},
    zone::ZoneRule,
};
use crate::schedule::Schedule;

/// Maximum number of states of a machine. Counts, metrics and searches read an index of each state, in every shard and at the cost
/// of all clients; a megabyte has room for ten thousand states. A machine that is written by hand has fewer than a hundred.
const MAX_STATES: usize = 1_000;
/// Maximum number of state names that are compared with a misspelled one.
const COMPARED: usize = 1_000;
/// The highest limit that an alert can set for the number of labels.
const MAX_LABELS: u64 = 1_000_000_000;
/// Maximum number of state names that a hint lists if none is similar.
const LISTED: usize = 50;

impl Reader<'_> {
    pub(super) fn states(&mut self, node: &Node) -> Option<Vec<State>> {
        let items = self.list(node, "`states`")?;
        if items.is_empty() {
            return self.fail(node.at, "a state machine needs at least one state");
        }
        if let Some(excess) = items.get(MAX_STATES).filter(|_| !self.is_stored) {
            let hint =
                "divide it into several machines, or keep what differs between labels in their metadata";
            let message =
                format!("a state machine can have at most {MAX_STATES} states, not {}", items.len());
            return self.fail_hint(excess.at, message, hint);
        }
        // Names are read first, because a state may lead to a later one.
        let named: Vec<_> = items.iter().map(|item| self.state_name(item)).collect();
        self.known.names = named.iter().flatten().map(|(name, _)| name.clone()).collect();
        for (place, named) in named.iter().enumerate() {
            let Some((name, at)) = named else { continue };
            if self.known.places.contains_key(name) {
                self.refuse(*at, format!("a state named `{name}` exists already"));
            } else {
                self.known.places.insert(name.clone(), place);
            }
        }
        let mut states = Vec::new();
        for (n, (item, named)) in items.iter().zip(named).enumerate() {
            if self.is_full() {
                return None;
            }
            let Some((name, _)) = named else { continue };
            let read = self.state(item);
            if read.is_none() {
                self.known.broken.push(n);
            }
            // A placeholder replaces a state that cannot be read, so that the other states are still checked.
            let (kind, deadline) = read.unwrap_or((Kind::End, None));
            let (alert, keeps) = (self.alert(item), self.keeps(item));
            let (name, index, says) = (name.into(), StateIndex(n), item.to_json().to_string().into());
            let state = State { name, index, kind, deadline, alert, keeps, says };
            self.check_keeps(item, &state);
            states.push(state);
        }
        (states.len() == items.len()).then_some(states)
    }

    fn state_name(&mut self, node: &Node) -> Option<(String, Mark)> {
        let hint = "write `gate: NAME` or `action: NAME`";
        let Value::Map(entries) = &node.value else {
            return self.fail_hint(node.at, "a state must be a map", hint);
        };
        let mut names = entries.iter().filter(|(key, _)| matches!(key.name.as_str(), "gate" | "action"));
        match (names.next(), names.next()) {
            (Some((key, node)), None) => {
                let what = if key.name == "gate" { "a gate" } else { "an action" };
                let name = self.text(node, what)?;
                let valid = !self.is_yes_or_no(node, name) && self.valid_name(name, node.at, what, true);
                valid.then(|| (name.to_owned(), node.at))
            }
            (Some(_), Some((key, _))) => {
                let hint = "begin another entry of the list, with a `-`";
                self.fail_hint(key.at, "a state cannot be both a gate and an action", hint)
            }
            (None, _) => {
                let at = entries.first().map_or(node.at, |(key, _)| key.at);
                self.fail_hint(at, "a state needs `gate` or `action`", hint)
            }
        }
    }

    fn state(&mut self, node: &Node) -> Option<(Kind, Option<Deadline>)> {
        let deadline = node.get("deadline").map_or(Some(None), |node| self.deadline(node).map(Some));
        let kind = if node.get("action").is_some() {
            self.action(node).map(Kind::Action)
        } else {
            self.gate(node, deadline.as_ref().and_then(Option::as_ref))
        };
        Some((kind?, deadline?))
    }

    /// The alert limits of a state. Invalid limits are reported, and the other checks continue without them.
    fn alert(&mut self, node: &Node) -> Option<Alert> {
        let fields = self.fields(node.get("alert")?, "an alert", &keys::ALERT)?;
        if fields.given(&keys::ALERT).is_empty() {
            let hint = "write `alert: {labels: 1000, age: 2h}`";
            self.refuse_hint(fields.at, "an alert has a limit for `labels`, for `age`, or both", hint);
        }
        let labels = fields.get("labels").and_then(|node| self.whole(node, "`labels`", 0..=MAX_LABELS));
        let age = fields.get("age").and_then(|node| self.duration(node, "`age`", 1..=3650 * DAY));
        Some(Alert { labels, age })
    }

    /// Whether labels of the state stay on their version. Any other value is rejected.
    fn keeps(&mut self, node: &Node) -> bool {
        let Some(node) = node.get("on_apply") else { return false };
        let keeps = node.as_text() == Some("keep");
        if !keeps {
            let hint = "write `on_apply: keep`: labels stay on their version until they leave the state";
            self.refuse_hint(node.at, "invalid `on_apply`", hint);
        }
        keeps
    }

    /// Rejects `on_apply: keep` in a state that labels never leave: they would stay on their version
    /// permanently.
    fn check_keeps(&mut self, node: &Node, state: &State) {
        if let Some(node) = node.get("on_apply")
            && state.keeps
            && state.targets().is_empty()
            && !self.known.broken.contains(&state.index.0)
        {
            let message = "labels never leave this state, so they would stay on their version without an end";
            self.refuse_hint(node.at, message, "remove `on_apply`, or add `next`");
        }
    }

    fn deadline(&mut self, node: &Node) -> Option<Deadline> {
        if matches!(node.value, Value::Text(_)) {
            let hint = "write `deadline: {after: 2h, next: STATE}`";
            return self.fail_hint(node.at, "a deadline needs a time and a next state", hint);
        }
        let fields = self.fields(node, "a deadline", &keys::DEADLINE)?;
        let to = self.need(&fields, "next", Self::target);
        let when = match (fields.get("after"), fields.get("at")) {
            (Some(node), None) => self.duration(node, "`after`", 1..=3650 * DAY).map(DeadlineAt::After),
            (None, Some(node)) => self.path(node, "`at`").map(DeadlineAt::At),
            _ => self.fail(fields.at, "a deadline needs exactly one of `after` and `at`"),
        };
        Some(Deadline { when: when?, to: to? })
    }

    fn gate(&mut self, node: &Node, deadline: Option<&Deadline>) -> Option<Kind> {
        let fields = self.fields(node, "a gate", &keys::GATE)?;
        let together = ["exit_condition", "triggers", "next"];
        let given = fields.given(&together);
        if given.is_empty() {
            let Some(deadline) = deadline else { return Some(Kind::End) };
            // Only the deadline ends the stay.
            let condition = Condition::parse("false", KnownFeeds::Any).ok()?;
            let (next, zone) = (Next::Constant(deadline.to), self.known.zone.clone()?);
            return Some(Kind::Gate(Gate { condition, triggers: Vec::new(), next, zone }));
        }
        // Other state machine engines write an end state as a gate with the condition `false`.
        let is_false = |node: &Node| match &node.value {
            Value::Bool(value) => !value,
            Value::Text(text) => text.trim() == "false",
            _ => false,
        };
        if !fields.has("next") && deadline.is_none() && fields.get("exit_condition").is_some_and(is_false) {
            return self.end(&fields);
        }
        if given.len() < together.len() {
            let missing: Vec<&str> = together.into_iter().filter(|key| !given.contains(key)).collect();
            let message =
                format!("this gate has `{}`, but no `{}`", given.join("` and `"), missing.join("` and no `"));
            let hint = "`exit_condition`, `triggers` and `next` belong together; a gate with none of them is an end state";
            self.refuse_hint(fields.key(given[0]), message, hint);
        }
        let condition = fields.get("exit_condition").and_then(|node| self.condition(node));
        let triggers = fields.get("triggers").and_then(|node| {
            let items = self.list(node, "`triggers`")?;
            if items.is_empty() && deadline.is_none() && fields.has("next") {
                let hint = "add a trigger: {metadata: PATH}, {time: 18:30}, {interval: 5m}, {at: metadata.PATH}, {event: entry} or {topic: TOPIC}";
                let message = "this gate has no trigger: only an operator opens it (signalbox labels evaluate, or move)";
                self.warn(node.at, message, Some(hint.to_owned()));
            }
            let triggers: Vec<Trigger> = items.iter().filter_map(|item| self.trigger(item)).collect();
            (triggers.len() == items.len()).then_some(triggers)
        });
        let next = fields.get("next").and_then(|node| self.next(node));
        let (condition, triggers, next) = (condition?, triggers?, next?);
        let zone = gate_zone(&triggers, self.known.zone.as_ref()?);
        Some(Kind::Gate(Gate { condition, triggers, next, zone }))
    }

    /// An end state that is written as a gate. Its triggers do nothing, but are checked: a `next` may be missing.
    fn end(&mut self, fields: &Fields<'_>) -> Option<Kind> {
        let Some(node) = fields.get("triggers") else { return Some(Kind::End) };
        let items = self.list(node, "`triggers`")?;
        if !items.is_empty() {
            let hint = "remove them, or add `next`".to_owned();
            self.warn(node.at, "triggers of an end state do nothing", Some(hint));
        }
        let valid = items.iter().filter(|item| self.trigger(item).is_some()).count();
        (valid == items.len()).then_some(Kind::End)
    }

    fn trigger(&mut self, node: &Node) -> Option<Trigger> {
        const KINDS: [&str; 7] = ["metadata", "time", "cron", "interval", "at", "event", "topic"];
        let fields = self.fields(node, "a trigger", &keys::TRIGGER)?;
        let kinds = fields.given(&KINDS);
        let [kind] = &*kinds else {
            let (at, message) = match kinds.get(1) {
                Some(second) => (
                    fields.key(second),
                    format!("a trigger has exactly one kind, but this one has {}", kinds.join(" and ")),
                ),
                None => (fields.at, format!("a trigger needs one of {}", KINDS.join(", "))),
            };
            return self.fail_hint(at, message, "begin another entry of the list, with a `-`");
        };
        for extra in ["timezone", "grace", "days"] {
            let belongs = *kind == "time" || (*kind == "cron" && extra != "days");
            if !belongs && fields.has(extra) {
                let owners = if extra == "days" { "`time`" } else { "`time` and `cron`" };
                self.refuse(fields.key(extra), format!("`{extra}` belongs to {owners} only"));
            }
        }
        let node = fields.get(kind)?;
        match *kind {
            "metadata" => self.path(node, "`metadata`").map(Trigger::Metadata),
            "time" => {
                let time = self.time_of_day(node, "`time`");
                let schedule = time.and_then(|time| self.on_days(&fields, time));
                self.daily(&fields, schedule)
            }
            "cron" => {
                let schedule = self.text(node, "`cron`").map(Schedule::cron);
                let schedule = schedule.and_then(|schedule| self.or_refuse(node, schedule));
                self.daily(&fields, schedule)
            }
            "interval" => self.duration(node, "`interval`", 1..=365 * DAY).map(Trigger::Interval),
            "at" => self.path(node, "`at`").map(Trigger::At),
            "topic" => self.topic(node).map(Trigger::Topic),
            _ => match self.text(node, "`event`")? {
                "entry" => Some(Trigger::Entry),
                other => {
                    let hint = "the only event is `entry`; for events of the bus, write `topic: TOPIC`";
                    self.fail_hint(node.at, format!("unknown event `{other}`"), hint)
                }
            },
        }
    }

    /// Reads a time of day.
    pub(super) fn time_of_day(&mut self, node: &Node, what: &str) -> Option<civil::Time> {
        let time = node.as_text().and_then(|text| {
            signalbox_condition::time_of_day(text).or_else(|| {
                let seconds = signalbox_condition::duration(text).filter(|seconds| *seconds < DAY)?;
                civil::Time::midnight().checked_add(Duration::from_secs(seconds)).ok()
            })
        });
        time.or_else(|| {
            let hint = "write 18:30 or 18h30m, from 00:00 to 23:59:59";
            self.fail_hint(node.at, format!("{what} must be a time of day"), hint)
        })
    }

    /// Reads the days on which a time applies.
    fn on_days(&mut self, fields: &Fields<'_>, time: civil::Time) -> Option<Schedule> {
        let Some(node) = fields.get("days") else { return Some(Schedule::daily(time)) };
        let items = self.list(node, "`days`")?;
        let day = |item: &Node| match &item.value {
            Value::Text(text) => text.to_ascii_lowercase(),
            _ => item.to_json().to_string(),
        };
        let days: Vec<String> = items.iter().map(day).collect();
        self.or_refuse(node, Schedule::on_days(time, &days))
    }

    fn or_refuse(&mut self, node: &Node, schedule: Result<Schedule, String>) -> Option<Schedule> {
        schedule.map_err(|problem| self.refuse(node.at, problem)).ok()
    }

    /// The zone of a time trigger: its own, or the machine's.
    pub(super) fn zone_of(&mut self, fields: &Fields<'_>) -> Option<ZoneRule> {
        let machine = self.known.zone.clone();
        match fields.get("timezone") {
            None => machine,
            Some(node) if node.as_text().is_some_and(|text| text.starts_with("metadata.")) => {
                let path = self.path(node, "`timezone`");
                let default = machine.map(|rule| rule.default().clone());
                path.zip(default).map(|(path, default)| ZoneRule::Metadata { path, default })
            }
            Some(node) => self.zone(node).map(ZoneRule::Fixed),
        }
    }

    fn daily(&mut self, fields: &Fields<'_>, schedule: Option<Schedule>) -> Option<Trigger> {
        let zone = self.zone_of(fields);
        let grace = self.duration_or(fields, "grace", 0..=365 * DAY, DAY);
        Some(Trigger::Time(Daily { schedule: schedule?, zone: zone?, grace: grace? }))
    }

    pub(super) fn next(&mut self, node: &Node) -> Option<Next> {
        if let Value::Text(_) = node.value {
            return self.target(node).map(Next::Constant);
        }
        let fields = self.fields(node, "`next`", &keys::NEXT)?;
        let kind_node = self.required(&fields, "type")?;
        let kind = self.text(kind_node, "`type`")?;
        let allowed: &[&str] = match kind {
            "constant" => &["type", "state"],
            "context" => &["type", "path", "destinations", "default"],
            "condition" => &["type", "branches", "default"],
            other => {
                let message = format!("unknown transition type `{other}`");
                let hint = "the types are constant, context and condition";
                return self.fail_hint(kind_node.at, message, hint);
            }
        };
        let what = format!("a transition of type `{kind}`");
        for key in fields.given(&keys::NEXT).into_iter().filter(|key| !allowed.contains(key)) {
            self.refuse(fields.key(key), format!("{what} has no `{key}`"));
        }
        let fields = Fields { what: &what, ..fields };
        if kind == "constant" {
            return self.need(&fields, "state", Self::target).map(Next::Constant);
        }
        let default = self.need(&fields, "default", Self::target);
        if kind == "context" {
            let path = self.need(&fields, "path", Self::reference);
            let items =
                self.need(&fields, "destinations", |reader, node| reader.list(node, "`destinations`"))?;
            let destinations: Vec<_> = items.iter().filter_map(|item| self.destination(item)).collect();
            self.mapped_twice(&destinations);
            let destinations = destinations.into_iter().map(|(value, _, state)| (value, state)).collect();
            return Some(Next::Context { path: path?, destinations, default: default? });
        }
        let items = self.need(&fields, "branches", |reader, node| reader.list(node, "`branches`"))?;
        let branches = items.iter().filter_map(|item| self.branch(item)).collect();
        Some(Next::Condition { branches, default: default? })
    }

    /// Rejects values that are mapped twice.
    fn mapped_twice(&mut self, destinations: &[(Json, Mark, StateIndex)]) {
        let mut seen: HashMap<String, Vec<&Json>> = HashMap::new();
        for (value, at, _) in destinations {
            // Equal values have the same text. Comparing only values with the same text keeps long lists
            // fast.
            let alike = match value {
                Json::Number(number) => format!("{:?}", number.as_f64()),
                Json::Array(_) | Json::Object(_) => String::new(),
                scalar => scalar.to_string(),
            };
            let alike = seen.entry(alike).or_default();
            if alike.iter().any(|other| signalbox_condition::same(value, other)) {
                self.refuse(*at, format!("the value {value} has a destination already"));
            }
            alike.push(value);
        }
    }

    fn branch(&mut self, node: &Node) -> Option<(Condition, StateIndex)> {
        let fields = self.fields(node, "a branch", &keys::BRANCH)?;
        let when = self.need(&fields, "when", Self::condition);
        let state = self.need(&fields, "state", Self::target);
        when.zip(state)
    }

    fn destination(&mut self, node: &Node) -> Option<(Json, Mark, StateIndex)> {
        let fields = self.fields(node, "a destination", &keys::DESTINATION)?;
        let value = self.required(&fields, "value");
        let state = self.need(&fields, "state", Self::target);
        let value = value?;
        if value.as_text().is_some_and(|text| self.is_yes_or_no(value, text)) {
            return None;
        }
        Some((value.to_json(), value.at, state?))
    }

    /// The index of the state with this name.
    pub(super) fn target(&mut self, node: &Node) -> Option<StateIndex> {
        let name = self.text(node, "a state")?;
        if self.is_yes_or_no(node, name) {
            return None;
        }
        let found = self.known.places.get(name).copied().map(StateIndex);
        if found.is_none() {
            self.report(node.at, format!("unknown state `{name}`"), self.near_state(name));
        }
        found
    }

    /// A suggestion for an unknown state name. There is none if the file has too many problems or the machine
    /// has thousands of states, because comparing all names would take minutes.
    fn near_state(&self, name: &str) -> Option<String> {
        let names = &self.known.names;
        if self.is_full() || names.len() > COMPARED {
            return None;
        }
        match signalbox_condition::nearest(name, names.iter().map(String::as_str)) {
            Some(near) => Some(format!("did you mean `{near}`?")),
            None if names.len() > LISTED => None,
            None => Some(format!("the states are {}", names.join(", "))),
        }
    }
}

/// The zone of the time triggers if they all have the same, otherwise the machine's.
fn gate_zone(triggers: &[Trigger], machine: &ZoneRule) -> ZoneRule {
    let mut zones = triggers.iter().filter_map(|trigger| match trigger {
        Trigger::Time(daily) => Some(&daily.zone),
        _ => None,
    });
    match zones.next() {
        Some(first) if zones.all(|zone| zone == first) => first.clone(),
        _ => machine.clone(),
    }
}
