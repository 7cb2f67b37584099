//! States: gates with their triggers, and where labels go from them.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use jiff::civil;
use serde_json::Value as Json;

use super::{
    action, keys,
    load::{Builder, DAY},
    model::{Alert, Daily, Deadline, DeadlineAt, Gate, Kind, Next, State, StateIndex, Trigger},
    read::Fields,
    yaml::{Mark, Node, Value},
    zone::ZoneRule,
};
use crate::schedule::Schedule;

/// Maximum number of state names that are compared with a misspelled one.
const COMPARED: usize = 1_000;
/// The highest limit that an alert can set for the number of labels.
const MAX_LABELS: u64 = 1_000_000_000;
/// Maximum number of state names that a hint lists if none is similar.
const LISTED: usize = 50;

impl Builder<'_, '_> {
    pub(super) fn states(&mut self, node: &Node) -> Option<Vec<State>> {
        let items = self.reader.list(node, "`states`")?;
        if items.is_empty() {
            self.reader.refuse(node.at, "a state machine needs at least one state");
            return None;
        }
        // Names are read first, because a state may lead to a later one.
        let mut named = Vec::new();
        for item in items {
            named.push(self.state_name(item));
        }
        self.names = named.iter().map(|name| name.clone().map_or(String::new(), |(name, _)| name)).collect();
        for (place, name) in self.names.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            self.places.entry(name.clone()).or_insert(place);
        }
        let mut seen = HashSet::new();
        for named in &named {
            if let Some((name, at)) = named
                && !seen.insert(name)
            {
                self.reader.refuse(*at, format!("a state named `{name}` exists already"));
            }
        }
        let mut states = Vec::new();
        for (n, (item, name)) in items.iter().zip(named).enumerate() {
            if self.reader.is_full() {
                return None;
            }
            let Some((name, _)) = name else { continue };
            let says = item.to_json().to_string().into();
            let read = self.state(item);
            if read.is_none() {
                self.broken.push(n);
            }
            // A placeholder replaces a state that cannot be read, so that the other states are still checked.
            let (kind, deadline) = read.unwrap_or((Kind::End, None));
            let alert = self.alert(item);
            let keeps = self.keeps(item);
            states.push(State {
                name: name.into(),
                index: StateIndex(n),
                kind,
                deadline,
                alert,
                keeps,
                says,
            });
            self.check_keeps(item, states.last());
        }
        (states.len() == items.len()).then_some(states)
    }

    fn state_name(&mut self, node: &Node) -> Option<(String, Mark)> {
        let Value::Map(entries) = &node.value else {
            self.reader.refuse_hint(node.at, "a state must be a map", "write `gate: NAME` or `action: NAME`");
            return None;
        };
        let mut names = entries.iter().filter(|(key, _)| matches!(key.name.as_str(), "gate" | "action"));
        match (names.next(), names.next()) {
            (Some((key, node)), None) => {
                let what = if key.name == "gate" { "a gate" } else { "an action" };
                let name = self.reader.name(node, what)?;
                Some((name.into(), node.at))
            }
            (Some(_), Some((key, _))) => {
                self.reader.refuse_hint(
                    key.at,
                    "a state cannot be both a gate and an action",
                    "begin another entry of the list, with a `-`",
                );
                None
            }
            (None, _) => {
                let at = entries.first().map_or(node.at, |(key, _)| key.at);
                self.reader.refuse_hint(
                    at,
                    "a state needs `gate` or `action`",
                    "write `gate: NAME` or `action: NAME`",
                );
                None
            }
        }
    }

    fn state(&mut self, node: &Node) -> Option<(Kind, Option<Deadline>)> {
        let Value::Map(entries) = &node.value else { return None };
        let deadline = match entries.iter().find(|(key, _)| key.name == "deadline") {
            None => Some(None),
            Some((_, node)) => self.deadline(node).map(Some),
        };
        if entries.iter().any(|(key, _)| key.name == "action") {
            let action = action::read(self, node);
            return Some((Kind::Action(action?), deadline?));
        }
        let kind = self.gate(node, deadline.as_ref().and_then(Option::as_ref));
        Some((kind?, deadline?))
    }

    /// The alert limits of a state. Invalid limits are reported, and the other checks continue without them.
    fn alert(&mut self, node: &Node) -> Option<Alert> {
        let Value::Map(entries) = &node.value else { return None };
        let (_, node) = entries.iter().find(|(key, _)| key.name == "alert")?;
        let fields = self.reader.fields(node, "an alert", &keys::ALERT)?;
        if fields.given(&keys::ALERT).is_empty() {
            let hint = "write `alert: {labels: 1000, age: 2h}`";
            self.reader.refuse_hint(fields.at, "an alert has a limit for `labels`, for `age`, or both", hint);
        }
        let labels =
            fields.get("labels").and_then(|node| self.reader.whole(node, "`labels`", 0..=MAX_LABELS));
        let age = fields.get("age").and_then(|node| self.reader.duration(node, "`age`", 1..=3650 * DAY));
        Some(Alert { labels, age })
    }

    /// Whether labels of the state stay on their version. Any other value is rejected.
    fn keeps(&mut self, node: &Node) -> bool {
        let Some(node) = entry(node, "on_apply") else { return false };
        let keeps = matches!(&node.value, Value::Text(word) if word == "keep");
        if !keeps {
            let hint = "write `on_apply: keep`: labels stay on their version until they leave the state";
            self.reader.refuse_hint(node.at, "invalid `on_apply`", hint);
        }
        keeps
    }

    /// Rejects `on_apply: keep` in a state that labels never leave: they would stay on their version
    /// permanently.
    fn check_keeps(&mut self, node: &Node, state: Option<&State>) {
        if let Some(node) = entry(node, "on_apply")
            && state.is_some_and(|state| state.keeps && state.targets().is_empty())
            && !self.broken.contains(&state.map_or(0, |state| state.index.0))
        {
            let message = "labels never leave this state, so they would stay on their version without an end";
            self.reader.refuse_hint(node.at, message, "remove `on_apply`, or add `next`");
        }
    }

    fn deadline(&mut self, node: &Node) -> Option<Deadline> {
        if matches!(node.value, Value::Text(_)) {
            let hint = "write `deadline: {after: 2h, next: STATE}`";
            self.reader.refuse_hint(node.at, "a deadline needs a time and a next state", hint);
            return None;
        }
        let fields = self.reader.fields(node, "a deadline", &keys::DEADLINE)?;
        let to = self.reader.required(&fields, "next", "a deadline").and_then(|node| self.target(node));
        let when = match (fields.get("after"), fields.get("at")) {
            (Some(node), None) => {
                self.reader.duration(node, "`after`", 1..=3650 * DAY).map(DeadlineAt::After)
            }
            (None, Some(node)) => self.reader.path(node, "`at`").map(DeadlineAt::At),
            _ => {
                self.reader.refuse(fields.at, "a deadline needs exactly one of `after` and `at`");
                None
            }
        };
        Some(Deadline { when: when?, to: to? })
    }

    fn gate(&mut self, node: &Node, deadline: Option<&Deadline>) -> Option<Kind> {
        let fields = self.reader.fields(node, "a gate", &keys::GATE)?;
        let together = ["exit_condition", "triggers", "next"];
        let given = fields.given(&together);
        if given.is_empty() {
            let Some(deadline) = deadline else { return Some(Kind::End) };
            // Only the deadline ends the stay.
            let never = signalbox_condition::Condition::parse("false", signalbox_condition::KnownFeeds::Any);
            let (condition, next) = (never.ok()?, Next::Constant(deadline.to));
            let zone = self.zone.clone()?;
            return Some(Kind::Gate(Gate { condition, triggers: Vec::new(), next, zone }));
        }
        // Other state machine engines write an end state as a gate with the condition `false`.
        let is_false = |node: &Node| match &node.value {
            Value::Bool(value) => !value,
            Value::Text(text) => text.trim() == "false",
            _ => false,
        };
        if !fields.has("next") && deadline.is_none() && fields.get("exit_condition").is_some_and(is_false) {
            return Some(Kind::End);
        }
        if given.len() < together.len() {
            let missing: Vec<&str> = together.into_iter().filter(|key| !given.contains(key)).collect();
            let message =
                format!("this gate has `{}`, but no `{}`", given.join("` and `"), missing.join("` and no `"));
            let hint = "`exit_condition`, `triggers` and `next` belong together; a gate with none of them is an end state";
            self.reader.refuse_hint(fields.key(given[0]), message, hint);
        }
        let condition = fields.get("exit_condition").and_then(|node| self.condition(node));
        let triggers = fields.get("triggers").and_then(|node| {
            let items = self.reader.list(node, "`triggers`")?;
            if items.is_empty() && deadline.is_none() && fields.has("next") {
                let hint = "add a trigger: {metadata: PATH}, {time: 18:30}, {interval: 5m}, {at: metadata.PATH}, {event: entry} or {topic: TOPIC}";
                let message = "this gate has no trigger: only an operator opens it (signalbox labels evaluate, or move)";
                self.reader.warn(node.at, message, Some(hint.to_owned()));
            }
            let triggers: Vec<Trigger> = items.iter().filter_map(|item| self.trigger(item)).collect();
            (triggers.len() == items.len()).then_some(triggers)
        });
        let next = fields.get("next").and_then(|node| self.next(node));
        let (condition, triggers, next) = (condition?, triggers?, next?);
        let zone = gate_zone(&triggers, self.zone.as_ref()?);
        Some(Kind::Gate(Gate { condition, triggers, next, zone }))
    }

    fn trigger(&mut self, node: &Node) -> Option<Trigger> {
        const KINDS: [&str; 7] = ["metadata", "time", "cron", "interval", "at", "event", "topic"];
        let fields = self.reader.fields(node, "a trigger", &keys::TRIGGER)?;
        let kinds = fields.given(&KINDS);
        let [kind] = &*kinds else {
            let (at, message) = match kinds.get(1) {
                Some(second) => (
                    fields.key(second),
                    format!("a trigger has exactly one kind, but this one has {}", kinds.join(" and ")),
                ),
                None => (fields.at, format!("a trigger needs one of {}", KINDS.join(", "))),
            };
            self.reader.refuse_hint(at, message, "begin another entry of the list, with a `-`");
            return None;
        };
        for extra in ["timezone", "grace", "days"] {
            let belongs = *kind == "time" || (*kind == "cron" && extra != "days");
            if !belongs && fields.has(extra) {
                let owners = if extra == "days" { "`time`" } else { "`time` and `cron`" };
                self.reader.refuse(fields.key(extra), format!("`{extra}` belongs to {owners} only"));
            }
        }
        let node = fields.get(kind)?;
        match *kind {
            "metadata" => self.reader.path(node, "`metadata`").map(Trigger::Metadata),
            "time" => {
                let time = self.time_of_day(node, "`time`");
                let schedule = time.and_then(|time| self.on_days(&fields, time));
                self.daily(&fields, schedule).map(Trigger::Time)
            }
            "cron" => {
                let schedule = self.reader.text(node, "`cron`").map(Schedule::cron);
                let schedule = schedule.and_then(|schedule| self.or_refuse(node, schedule));
                self.daily(&fields, schedule).map(Trigger::Time)
            }
            "interval" => self.reader.duration(node, "`interval`", 1..=365 * DAY).map(Trigger::Interval),
            "at" => self.reader.path(node, "`at`").map(Trigger::At),
            "topic" => self.reader.topic(node).map(Trigger::Topic),
            _ => match self.reader.text(node, "`event`")? {
                "entry" => Some(Trigger::Entry),
                other => {
                    let message = format!("unknown event `{other}`");
                    self.reader.refuse_hint(
                        node.at,
                        message,
                        "the only event is `entry`; for events of the bus, write `topic: TOPIC`",
                    );
                    None
                }
            },
        }
    }

    /// Reads a time of day.
    pub(super) fn time_of_day(&mut self, node: &Node, what: &str) -> Option<civil::Time> {
        let midnight = civil::Time::midnight();
        let time = match &node.value {
            Value::Text(text) => signalbox_condition::time_of_day(text).or_else(|| {
                let seconds = signalbox_condition::duration(text).filter(|seconds| *seconds < DAY)?;
                midnight.checked_add(Duration::from_secs(seconds)).ok()
            }),
            _ => None,
        };
        if time.is_none() {
            let hint = "write 18:30 or 18h30m, from 00:00 to 23:59:59";
            self.reader.refuse_hint(node.at, format!("{what} must be a time of day"), hint);
        }
        time
    }

    /// Reads the days on which a time applies.
    fn on_days(&mut self, fields: &Fields<'_>, time: civil::Time) -> Option<Schedule> {
        let Some(node) = fields.get("days") else { return Some(Schedule::daily(time)) };
        let items = self.reader.list(node, "`days`")?;
        let day = |item: &Node| match &item.value {
            Value::Text(text) => text.to_ascii_lowercase(),
            _ => item.to_json().to_string(),
        };
        let days: Vec<String> = items.iter().map(day).collect();
        let schedule = Schedule::on_days(time, &days);
        self.or_refuse(node, schedule)
    }

    fn or_refuse(&mut self, node: &Node, schedule: Result<Schedule, String>) -> Option<Schedule> {
        schedule.map_err(|problem| self.reader.refuse(node.at, problem)).ok()
    }

    /// The zone of a time trigger: its own, or the machine's.
    pub(super) fn zone_of(&mut self, fields: &Fields<'_>) -> Option<ZoneRule> {
        let machine = self.zone.clone();
        match fields.get("timezone").map(|node| (node, &node.value)) {
            None => machine,
            Some((node, Value::Text(text))) if text.starts_with("metadata.") => {
                let path = self.reader.path(node, "`timezone`");
                let default = machine.map(|rule| match rule {
                    ZoneRule::Fixed(zone) | ZoneRule::Metadata { default: zone, .. } => zone,
                });
                path.zip(default).map(|(path, default)| ZoneRule::Metadata { path, default })
            }
            Some((node, _)) => self.reader.zone(node).map(ZoneRule::Fixed),
        }
    }

    fn daily(&mut self, fields: &Fields<'_>, schedule: Option<Schedule>) -> Option<Daily> {
        let zone = self.zone_of(fields);
        let grace = self.duration(fields, "grace", 0..=365 * DAY, DAY);
        Some(Daily { schedule: schedule?, zone: zone?, grace: grace? })
    }

    pub(super) fn next(&mut self, node: &Node) -> Option<Next> {
        if let Value::Text(_) = node.value {
            return self.target(node).map(Next::Constant);
        }
        let fields = self.reader.fields(node, "`next`", &keys::NEXT)?;
        let kind = self.reader.required(&fields, "type", "`next`")?;
        let (kind_text, allowed): (&str, &[&str]) = match self.reader.text(kind, "`type`")? {
            "constant" => ("constant", &["type", "state"]),
            "context" => ("context", &["type", "path", "destinations", "default"]),
            "condition" => ("condition", &["type", "branches", "default"]),
            other => {
                let message = format!("unknown transition type `{other}`");
                self.reader.refuse_hint(kind.at, message, "the types are constant, context and condition");
                return None;
            }
        };
        for key in fields.given(&keys::NEXT) {
            if !allowed.contains(&key) {
                self.reader
                    .refuse(fields.key(key), format!("a transition of type `{kind_text}` has no `{key}`"));
            }
        }
        let what = format!("a transition of type `{kind_text}`");
        if kind_text == "constant" {
            let state = self.reader.required(&fields, "state", &what)?;
            return self.target(state).map(Next::Constant);
        }
        let default = self.reader.required(&fields, "default", &what).and_then(|node| self.target(node));
        if kind_text == "context" {
            let path = self.reader.required(&fields, "path", &what);
            let path = path.and_then(|node| {
                let feeds: Vec<&str> = self.feeds.iter().map(String::as_str).collect();
                self.reader.reference(node, &feeds)
            });
            let list = self.reader.required(&fields, "destinations", &what);
            let items = list.and_then(|node| self.reader.list(node, "`destinations`"))?;
            let destinations: Vec<_> = items.iter().filter_map(|item| self.destination(item)).collect();
            self.mapped_twice(&destinations);
            let destinations = destinations.into_iter().map(|(value, _, state)| (value, state)).collect();
            return Some(Next::Context { path: path?, destinations, default: default? });
        }
        let list = self.reader.required(&fields, "branches", &what);
        let items = list.and_then(|node| self.reader.list(node, "`branches`"))?;
        let mut branches = Vec::new();
        for item in items {
            let Some(fields) = self.reader.fields(item, "a branch", &keys::BRANCH) else { continue };
            let when = self.reader.required(&fields, "when", "a branch");
            let when = when.and_then(|node| self.condition(node));
            let state = self.reader.required(&fields, "state", "a branch");
            let state = state.and_then(|node| self.target(node));
            branches.extend(when.zip(state));
        }
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
                self.reader.refuse(*at, format!("the value {value} has a destination already"));
            }
            alike.push(value);
        }
    }

    fn condition(&mut self, node: &Node) -> Option<signalbox_condition::Condition> {
        let feeds: Vec<&str> = self.feeds.iter().map(String::as_str).collect();
        self.reader.condition(node, &feeds)
    }

    fn destination(&mut self, node: &Node) -> Option<(Json, Mark, StateIndex)> {
        let fields = self.reader.fields(node, "a destination", &keys::DESTINATION)?;
        let value = self.reader.required(&fields, "value", "a destination");
        let state = self.reader.required(&fields, "state", "a destination");
        let state = state.and_then(|node| self.target(node));
        let value = value?;
        if let Value::Text(text) = &value.value
            && self.reader.is_yes_or_no(value, text)
        {
            return None;
        }
        Some((value.to_json(), value.at, state?))
    }

    /// The index of the state with this name.
    pub(super) fn target(&mut self, node: &Node) -> Option<StateIndex> {
        let name = self.reader.text(node, "a state")?;
        if self.reader.is_yes_or_no(node, name) {
            return None;
        }
        let found = self.places.get(name).copied().map(StateIndex);
        if found.is_none() {
            let hint = self.near_state(name);
            let problem = self.reader.problem(node.at, format!("unknown state `{name}`"), hint);
            self.reader.add(node.at, problem);
        }
        found
    }
}

impl Builder<'_, '_> {
    /// A suggestion for an unknown state name. There is none if the file has too many problems or the machine
    /// has thousands of states, because comparing all names would take minutes.
    fn near_state(&self, name: &str) -> Option<String> {
        if self.reader.is_full() || self.names.len() > COMPARED {
            return None;
        }
        let near = signalbox_condition::nearest(name, self.names.iter().map(String::as_str));
        Some(match near {
            Some(near) => format!("did you mean `{near}`?"),
            None if self.names.len() > LISTED => return None,
            None => format!("the states are {}", self.names.join(", ")),
        })
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

/// The value of a key of a state.
fn entry<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Value::Map(entries) = &node.value else { return None };
    entries.iter().find(|(known, _)| known.name == key).map(|(_, node)| node)
}
