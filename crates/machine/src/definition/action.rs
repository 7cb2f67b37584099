//! Actions: their calls and retries.

use super::{
    keys,
    load::DAY,
    model::{Action, Call, Failure, METHODS, OnFailure, Path, Quiet, ResultPart, Retry},
    read::{Reader, metadata_path},
    template::{Template, Text},
    yaml::{Node, Value},
};

/// Maximum number of parts of an answer that become metadata.
const MAX_RESULTS: usize = 32;

impl Reader<'_> {
    pub(super) fn action(&mut self, node: &Node) -> Option<Action> {
        let fields = self.fields(node, "an action", &keys::ACTION)?;
        let kinds = fields.given(&["webhook", "route", "publish"]);
        let call = match &*kinds {
            [] => self.fail(fields.at, "an action needs one of webhook, route and publish"),
            ["webhook"] => {
                self.need(&fields, "webhook", |reader, node| reader.url(node, "`webhook`")).map(Call::Webhook)
            }
            ["route"] => self.need(&fields, "route", Self::route).map(Call::Route),
            ["publish"] => self.need(&fields, "publish", Self::publish).map(Call::Publish),
            more => {
                let message = format!(
                    "an action can have only one of webhook, route and publish, but this one has {}",
                    more.join(" and ")
                );
                self.fail_hint(fields.key(more[1]), message, "write several actions, one after the other")
            }
        };
        let calls_no_webhook = !kinds.is_empty() && !fields.has("webhook");
        if calls_no_webhook && fields.has("result") {
            self.refuse(fields.key("result"), "`result` is possible only with `webhook`");
        }
        for key in ["method", "body"] {
            if calls_no_webhook && fields.has(key) {
                self.refuse(fields.key(key), format!("only a `webhook` has a `{key}`"));
            }
        }
        let timeout = self.duration_or(&fields, "timeout", 1..=300, 10);
        let retry = self.or(&fields, "retry", Retry::default(), Self::retry);
        let next = self.maybe(&fields, "next", Self::next);
        let result = self.or(&fields, "result", Vec::new(), Self::result);
        let on_error = self.or(&fields, "on_error", Vec::new(), Self::on_error);
        let quiet = self.maybe(&fields, "quiet", Self::quiet);
        let method = self.or(&fields, "method", METHODS[0], Self::method);
        let body = self.maybe(&fields, "body", Self::template);
        Some(Action {
            method: method?,
            body: body?,
            quiet: quiet?,
            call: call?,
            timeout: timeout?,
            retry: retry?,
            next: next?,
            result: result?,
            on_error: on_error?,
        })
    }

    fn method(&mut self, node: &Node) -> Option<&'static str> {
        let name = self.text(node, "`method`")?;
        METHODS.into_iter().find(|method| *method == name).or_else(|| {
            let hint = "the methods are POST, PUT, PATCH and DELETE";
            self.fail_hint(node.at, format!("unknown webhook method: {name:?}"), hint)
        })
    }

    /// Reads `quiet`: the hours in which no attempt begins.
    fn quiet(&mut self, node: &Node) -> Option<Quiet> {
        let fields = self.fields(node, "`quiet`", &keys::QUIET)?;
        let from = self.need(&fields, "from", |reader, node| reader.time_of_day(node, "`from`"));
        let to = self.need(&fields, "to", |reader, node| reader.time_of_day(node, "`to`"));
        let zone = self.zone_of(&fields);
        if from.is_some() && from == to {
            self.refuse(node.at, "`quiet` would last all day: `from` and `to` are equal");
        }
        Some(Quiet { from: from?, to: to?, zone: zone? })
    }

    /// Reads `result`: the parts of the answer that become metadata.
    fn result(&mut self, node: &Node) -> Option<Vec<(Path, ResultPart)>> {
        let Value::Map(entries) = &node.value else {
            let hint = "write {metadata.order_id: response.id}";
            return self.fail_hint(node.at, format!("`result` must be a map, not {}", node.kind()), hint);
        };
        if !(1..=MAX_RESULTS).contains(&entries.len()) {
            self.refuse(node.at, format!("`result` must have between 1 and {MAX_RESULTS} entries"));
        }
        let mut parts = Vec::new();
        for (key, node) in entries {
            let path = match metadata_path(&key.name) {
                Ok(path) if !path.keys().is_empty() => Some(path),
                Ok(_) => self.fail(key.at, "a result cannot replace all of the metadata"),
                Err(why) => {
                    self.fail(key.at, format!("a key of `result` must be a path below metadata: {why}"))
                }
            };
            parts.extend(path.zip(self.result_part(node)));
        }
        for (n, (path, _)) in parts.iter().enumerate() {
            if parts[..n].iter().any(|(other, _)| super::checks::related(other.keys(), path.keys())) {
                self.refuse(node.at, format!("two results are at {path}, or one is below the other"));
            }
        }
        (parts.len() == entries.len()).then_some(parts)
    }

    fn result_part(&mut self, node: &Node) -> Option<ResultPart> {
        let text = self.text(node, "a part of the answer")?;
        match (text, text.strip_prefix("response.").map(metadata_path)) {
            ("status", _) => Some(ResultPart::Status),
            ("response", _) => Some(ResultPart::Body(Path::default())),
            (_, Some(Ok(path))) => Some(ResultPart::Body(path)),
            _ => {
                let hint = "write status, response or response.PATH";
                self.fail_hint(node.at, format!("unknown part of an answer: {text:?}"), hint)
            }
        }
    }

    /// Reads `on_error`: a state, one case, or a list of cases.
    fn on_error(&mut self, node: &Node) -> Option<Vec<OnFailure>> {
        let cases = match &node.value {
            Value::Text(_) => {
                let to = self.target(node)?;
                return Some(vec![OnFailure { failures: Vec::new(), to, into: None }]);
            }
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        if cases.is_empty() {
            self.refuse(node.at, "`on_error` needs at least one case");
        }
        let mut read = Vec::new();
        for (n, case) in cases.iter().enumerate() {
            read.extend(self.case(case, n + 1 == cases.len()));
        }
        (read.len() == cases.len()).then_some(read)
    }

    fn case(&mut self, node: &Node, is_last: bool) -> Option<OnFailure> {
        let fields = self.fields(node, "a case of `on_error`", &keys::FAILURE)?;
        let to = self.need(&fields, "next", Self::target);
        let failures = self.or(&fields, "status", Vec::new(), Self::failures);
        if !is_last && failures.as_ref().is_some_and(Vec::is_empty) {
            self.refuse(fields.at, "this case covers all failures, so those after it never apply");
        }
        let into = self.maybe(&fields, "into", |reader, node| {
            reader.path_below(node, "`into`", "a failure cannot replace all of the metadata")
        });
        Some(OnFailure { failures: failures?, to: to?, into: into? })
    }

    /// One kind of failure, or a list of them.
    fn failures(&mut self, node: &Node) -> Option<Vec<Failure>> {
        let items = match &node.value {
            Value::List(items) if !items.is_empty() => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        let read: Vec<Failure> = items.iter().filter_map(|item| self.failure(item)).collect();
        (read.len() == items.len()).then_some(read)
    }

    fn failure(&mut self, node: &Node) -> Option<Failure> {
        let found = match &node.value {
            Value::Number(number) => number
                .as_u64()
                .and_then(|status| u16::try_from(status).ok())
                .filter(|status| (300..=599).contains(status))
                .map(Failure::Status),
            Value::Text(text) => match text.as_str() {
                "3xx" => Some(Failure::Class(3)),
                "4xx" => Some(Failure::Class(4)),
                "5xx" => Some(Failure::Class(5)),
                "no_answer" => Some(Failure::NoAnswer),
                "invalid" => Some(Failure::Invalid),
                _ => None,
            },
            _ => None,
        };
        found.or_else(|| {
            let hint = "write a status from 300 to 599, 3xx, 4xx, 5xx, no_answer (none in time), or invalid (a value is \
                        missing, or a change was rejected)";
            self.fail_hint(node.at, "unknown kind of failure", hint)
        })
    }

    fn retry(&mut self, node: &Node) -> Option<Retry> {
        let fields = self.fields(node, "`retry`", &keys::RETRY)?;
        let default = Retry::default();
        let attempts = self.or(&fields, "attempts", default.attempts.into(), |reader, node| {
            reader.whole(node, "`attempts`", 1..=1000)
        });
        let first = self.duration_or(&fields, "first", 1..=DAY, default.first.as_secs());
        let factor = self.or(&fields, "factor", default.factor, |reader, node| {
            let factor = node.to_json().as_f64().filter(|factor| (1.0..=100.0).contains(factor));
            factor.or_else(|| reader.fail(node.at, "`factor` must be a number from 1 to 100"))
        });
        let longest = self.duration_or(&fields, "longest", 1..=DAY, default.longest.as_secs());
        let (first, longest) = (first?, longest?);
        if longest < first && fields.has("longest") {
            self.refuse(fields.key("longest"), "`longest` is shorter than `first`");
        }
        let except = self.or(&fields, "except", Vec::new(), Self::failures);
        let attempts = u32::try_from(attempts?).ok()?;
        Some(Retry { attempts, first, factor: factor?, longest: longest.max(first), except: except? })
    }

    /// Checks the parts of a `route` action that are known now. Parts with placeholders are checked when the
    /// action runs.
    fn route(&mut self, node: &Node) -> Option<Template> {
        let fields = self.fields(node, "`route`", &keys::ROUTE)?;
        self.required(&fields, "host")?;
        if fields.given(&["shares", "register", "retire"]).is_empty() {
            self.refuse(fields.at, "`route` changes nothing: it needs shares, register or retire");
        }
        if let Some(shares) = fields.get("shares").filter(|shares| !is_placeholder(shares)) {
            for share in self.list(shares, "`shares`").unwrap_or_default() {
                self.needs(share, "a share", &keys::SHARE, 2);
            }
        }
        if let Some(register) = fields.get("register") {
            self.needs(register, "`register`", &keys::REGISTER, 2);
        }
        if let Some(retire) = fields.get("retire") {
            self.needs(retire, "`retire`", &keys::RETIRE, 1);
            if let Some(drain) = retire.get("drain").filter(|drain| !is_placeholder(drain)) {
                self.duration(drain, "`drain`", 0..=DAY);
            }
        }
        self.template(node)
    }

    /// Checks that a node is a map with only these keys, and that the first `required` of them are present.
    fn needs(&mut self, node: &Node, what: &str, keys: &[&str], required: usize) {
        if let Some(fields) = self.fields(node, what, keys) {
            for key in &keys[..required] {
                self.required(&fields, key);
            }
        }
    }

    fn publish(&mut self, node: &Node) -> Option<Template> {
        let fields = self.fields(node, "`publish`", &keys::PUBLISH)?;
        let topic = self.required(&fields, "topic")?;
        let topic_name = self.text(topic, "`topic`")?;
        self.need(&fields, "url", |reader, node| reader.text(node, "`url`"))?;
        if !topic_name.contains('<') && self.topic(topic)?.starts_with("signalbox.") {
            let message = "applications cannot publish to topics that begin with `signalbox.`";
            self.refuse_hint(topic.at, message, "use letters from a to z and _");
        }
        self.maybe(&fields, "type", |reader, node| reader.text(node, "`type`"))?;
        let Template::Object(mut entries) = self.template(node)? else { return None };
        if !fields.has("type") {
            entries.push(("type".into(), Template::Text(Text::parse("update").ok()?)));
        }
        Some(Template::Object(entries))
    }

    /// A JSON value whose texts may contain placeholders.
    fn template(&mut self, node: &Node) -> Option<Template> {
        Some(match &node.value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Template::Constant(node.to_json()),
            Value::Text(_) => Template::Text(self.template_text(node, "this")?),
            Value::List(items) => {
                let items: Vec<_> = items.iter().map(|item| self.template(item)).collect();
                Template::List(items.into_iter().collect::<Option<_>>()?)
            }
            Value::Map(entries) => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|(key, node)| Some((key.name.as_str().into(), self.template(node)?)))
                    .collect();
                Template::Object(entries.into_iter().collect::<Option<_>>()?)
            }
        })
    }
}

/// Whether the text is a single placeholder `<…>`, so that its value is not known yet.
fn is_placeholder(node: &Node) -> bool {
    node.as_text().is_some_and(|text| Text::parse(text).is_ok_and(|text| text.whole().is_some()))
}
