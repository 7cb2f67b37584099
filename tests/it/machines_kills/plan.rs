//! The facts of every label, and the path they must lead to. It is computed in advance and without the engine.

use rand::{RngExt as _, rngs::StdRng};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

pub(super) const MACHINE: &str = "trial";

/// The two names of the gate that ends a lap: versions of the definition rename it.
pub(super) const TURNS: [&str; 2] = ["round", "turn"];

/// The machine, in one of its two versions. The state in which a label ends depends only on the updates it received, whatever
/// fails on the way, however often updates are repeated and in whichever order they arrive.
pub(super) fn definition(outside: &str, turn: &str) -> String {
    let retry = "retry: {attempts: 1000, first: 1s, factor: 1, longest: 1s}";
    format!(
        "
state_machines:
  {MACHINE}:
    limits: {{\"http://{outside}\": {{rate: 400, concurrent: 100}}}}
    feeds:
      - {{name: ways, url: \"http://{outside}/ways/<label>\", timeout: 3s}}
      - {{name: load, url: \"http://{outside}/load/<label>\", timeout: 3s, on_error: hold}}
      - {{name: maybe, url: \"http://{outside}/maybe/<label>\", timeout: 3s, on_error: {{default: {{ok: false}}}}}}
    inputs: [{{topic: answers, label: data.label, into: answer}}]
    states:
      - gate: start
        exit_condition: metadata.go = metadata.lap
        triggers: [{{metadata: go}}]
        next:
          type: context
          path: metadata.kind
          destinations: [{{value: look, state: look}}, {{value: ask, state: ask}}, {{value: late, state: late}}, {{value: due, state: due}}]
          default: call
      - gate: look
        exit_condition: 2s has passed since system.entered_state
        triggers: [{{interval: 1s}}]
        next: call
      - gate: late
        exit_condition: metadata.never
        triggers: [{{metadata: never}}]
        deadline: {{after: 2s, next: hopeless}}
        next: call
      - action: hopeless
        webhook: http://{outside}/hopeless/<label>
        timeout: 1s
        retry: {{attempts: 1000, first: 1s, factor: 1, longest: 1s}}
        deadline: {{after: 3s, next: call}}
        next: call
      - gate: due
        exit_condition: metadata.due is defined
        triggers: [{{at: metadata.due}}]
        next: call
      - gate: ask
        exit_condition: metadata.answer.lap = metadata.lap
        triggers: [{{topic: answers}}]
        next: report
      - action: report
        publish: {{topic: reported, url: \"https://trial.test/<label>\", data: {{label: <label>, lap: <metadata.lap>}}}}
        {retry}
        next: call
      - action: call
        webhook: http://{outside}/call/<label>
        timeout: 2s
        {retry}
        result: {{metadata.receipt: response.receipt}}
        next: {{type: context, path: feeds.ways.way, destinations: [{{value: left, state: left}}], default: right}}
      - gate: left
        exit_condition: feeds.load.value >= 1
        triggers: [{{event: entry}}, {{interval: 1h}}]
        next: {turn}
      - gate: right
        exit_condition: feeds.maybe.ok
        triggers: [{{event: entry}}, {{interval: 1s}}]
        next: {turn}
      - gate: {turn}
        exit_condition: metadata.round = metadata.lap
        triggers: [{{metadata: round}}]
        next: {{type: condition, branches: [{{when: metadata.last, state: finish}}], default: start}}
      - action: finish
        webhook: http://{outside}/finish/<label>
        timeout: 2s
        retry: {{attempts: 1000, first: 1s, factor: 1, longest: 1s, except: [422]}}
        on_error: [{{status: 422, next: rejected, into: metadata.failure}}]
        next: done
      - gate: done
      - gate: rejected
"
    )
}

/// How a lap begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// With the action.
    Call,
    /// With a wait.
    Look,
    /// With a question that events answer, and a word to others.
    Ask,
    /// With two waits that end at their deadlines, one of them in an action that never succeeds.
    Late,
    /// With a wait for a time that the metadata holds.
    Due,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Look => "look",
            Self::Ask => "ask",
            Self::Late => "late",
            Self::Due => "due",
        }
    }
}

/// The updates that a label receives.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) laps: Vec<Kind>,
    /// Whether the feed sends it to the left.
    pub(super) left: bool,
    /// Whether its last call is answered 410.
    pub(super) gone: bool,
    /// Whether its last action is answered 422.
    pub(super) refused: bool,
}

/// Answers to each question, the right one in the middle.
pub(super) const ANSWERS: usize = 5;

impl Plan {
    pub(super) fn new(number: usize, random: &mut StdRng) -> Self {
        let kinds = [Kind::Call, Kind::Look, Kind::Ask, Kind::Late, Kind::Due];
        let laps = (0..random.random_range(1..=3)).map(|_| kinds[random.random_range(0..5)]).collect();
        let (left, gone, refused) =
            (random.random_bool(0.5), random.random_bool(0.06), random.random_bool(0.3));
        Self { name: format!("l{number:05}"), laps, left, gone, refused }
    }

    /// Every state that it enters, in order, with the number of the lap. A change of the definition can add a move from the
    /// last gate of a lap to the one that replaces it.
    pub(super) fn path(&self) -> Vec<(&'static str, usize)> {
        let mut path = vec![("start", 0)];
        for (place, kind) in self.laps.iter().enumerate() {
            let (lap, last) = (place + 1, place + 1 == self.laps.len());
            let before: &[&str] = match kind {
                Kind::Call => &["call"],
                Kind::Look => &["look", "call"],
                Kind::Ask => &["ask", "report", "call"],
                Kind::Late => &["late", "hopeless", "call"],
                Kind::Due => &["due", "call"],
            };
            path.extend(before.iter().map(|state| (*state, lap)));
            if last && self.gone {
                return path;
            }
            let way = if self.left { "left" } else { "right" };
            path.extend([way, "round", if last { "finish" } else { "start" }].map(|state| (state, lap)));
        }
        path.push((if self.refused { "rejected" } else { "done" }, self.laps.len()));
        path
    }

    /// Whether its last action is refused.
    pub(super) fn is_refused(&self) -> bool {
        self.refused && !self.gone
    }

    /// The visit in which it is in this state in this lap.
    pub(super) fn visit(&self, state: &str, lap: usize) -> u64 {
        let place = self.path().iter().position(|one| *one == (state, lap));
        place.unwrap_or_else(|| panic!("{self:?} is never in {state} in lap {lap}")) as u64 + 1
    }

    pub(super) fn status(&self) -> &'static str {
        if self.gone { "errored" } else { "ended" }
    }

    /// The label's metadata at the end, apart from the time `due`, the number of attempts of a failure, and the receipt.
    pub(super) fn metadata(&self) -> Value {
        let laps = self.laps.len();
        let noise: Value = (1..=laps).map(|lap| (lap.to_string(), json!(lap))).collect();
        let mut metadata = json!({
            "created": true, "go": laps, "lap": laps, "kind": self.laps[laps - 1].word(), "last": true, "noise": noise,
        });
        let rounds = if self.gone { laps - 1 } else { laps };
        if rounds > 0 {
            metadata["round"] = json!(rounds);
        }
        if let Some(asked) = self.laps.iter().rposition(|kind| *kind == Kind::Ask) {
            metadata["answer"] = self.answer(asked + 1, ANSWERS - 1);
        }
        if self.is_refused() {
            metadata["failure"] = json!({"status": 422, "error": "answered 422"});
        }
        metadata
    }

    /// One of the answers to the question of a lap.
    pub(super) fn answer(&self, lap: usize, number: usize) -> Value {
        // The first two are to another question.
        json!({"label": self.name, "lap": if number < ANSWERS / 2 { 0 } else { lap }, "of": lap, "number": number})
    }
}

/// The idempotency key with which each label is created.
pub(super) const CREATE: &str = "create";

/// The token of the attempts of a visit. The key of its creation is a part of it.
pub(super) fn token(label: &str, visit: u64, state: &str) -> String {
    // As in the idempotency keys of labels: each part behind its length. The client is the root token.
    let mut key = Vec::new();
    for part in ["client", "root", CREATE] {
        key.extend((part.len() as u64).to_be_bytes());
        key.extend(part.as_bytes());
    }
    let origin =
        digest(&SHA256, &key).as_ref().iter().take(6).fold(0, |number, byte| number << 8 | u64::from(*byte));
    let text = format!("{MACHINE}\0{label}\0{origin}\0{}\0{visit}\0{state}", 1);
    digest(&SHA256, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
