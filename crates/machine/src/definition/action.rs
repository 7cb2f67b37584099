//! Actions: their calls and retries.

use super::{
    keys,
    load::Builder,
    model::{Action, Call, Failure, Method, OnFailure, Quiet, ResultPart, Retry},
    read,
    template::{Template, Text},
    yaml::{Node, Value},
};

const DAY: u64 = 86_400;
/// Maximum number of parts of an answer that become metadata.
const MAX_RESULTS: usize = 32;

pub(super) fn read(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Action> {
    let fields = builder.reader.fields(node, "an action", &keys::ACTION)?;
    let kinds = fields.given(&["webhook", "route", "publish"]);
    let call = match &*kinds {
        [] => {
            builder.reader.refuse(fields.at, "an action needs one of webhook, route and publish");
            None
        }
        ["webhook"] => {
            fields.get("webhook").and_then(|node| builder.reader.url(node, "`webhook`")).map(Call::Webhook)
        }
        ["route"] => fields.get("route").and_then(|node| route(builder, node)).map(Call::Route),
        ["publish"] => fields.get("publish").and_then(|node| publish(builder, node)).map(Call::Publish),
        more => {
            let message = format!(
                "an action can have only one of webhook, route and publish, but this one has {}",
                more.join(" and ")
            );
            builder.reader.refuse_hint(
                fields.key(more[1]),
                message,
                "write several actions, one after the other",
            );
            None
        }
    };
    let timeout = builder.duration(&fields, "timeout", 1..=300, 10);
    let retry = match fields.get("retry") {
        None => Some(Retry::default()),
        Some(node) => self::retry(builder, node),
    };
    let next = match fields.get("next") {
        None => Some(None),
        Some(node) => builder.next(node).map(Some),
    };
    let result = match fields.get("result") {
        None => Some(Vec::new()),
        Some(node) => {
            if !kinds.is_empty() && !fields.has("webhook") {
                builder.reader.refuse(fields.key("result"), "`result` is possible only with `webhook`");
            }
            result(builder, node)
        }
    };
    let on_error = match fields.get("on_error") {
        None => Some(Vec::new()),
        Some(node) => on_error(builder, node),
    };
    let quiet = match fields.get("quiet") {
        None => Some(None),
        Some(node) => quiet(builder, node).map(Some),
    };
    for key in ["method", "body"] {
        if !kinds.is_empty() && !fields.has("webhook") && fields.has(key) {
            builder.reader.refuse(fields.key(key), format!("only a `webhook` has a `{key}`"));
        }
    }
    let method = match fields.get("method") {
        None => Some(Method::default()),
        Some(node) => method(builder, node),
    };
    let body = match fields.get("body") {
        None => Some(None),
        Some(node) => template(builder, node).map(Some),
    };
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

fn method(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Method> {
    let name = builder.reader.text(node, "`method`")?;
    let found = Method::ALL.into_iter().find(|method| method.as_str() == name);
    if found.is_none() {
        let hint = "the methods are POST, PUT, PATCH and DELETE";
        builder.reader.refuse_hint(node.at, format!("unknown webhook method: {name:?}"), hint);
    }
    found
}

/// Reads `quiet`: the hours in which no attempt begins.
fn quiet(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Quiet> {
    let fields = builder.reader.fields(node, "`quiet`", &keys::QUIET)?;
    let mut time = |key: &str| {
        let node = builder.reader.required(&fields, key, "`quiet`")?;
        builder.time_of_day(node, &format!("`{key}`"))
    };
    let (from, to) = (time("from"), time("to"));
    let zone = builder.zone_of(&fields);
    if from.is_some() && from == to {
        builder.reader.refuse(node.at, "`quiet` would last all day: `from` and `to` are equal");
    }
    Some(Quiet { from: from?, to: to?, zone: zone? })
}

/// Reads `result`: the parts of the answer that become metadata.
fn result(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Vec<(super::Path, ResultPart)>> {
    let Value::Map(entries) = &node.value else {
        let hint = "write {metadata.order_id: response.id}";
        builder.reader.refuse_hint(node.at, format!("`result` must be a map, not {}", node.kind()), hint);
        return None;
    };
    if !(1..=MAX_RESULTS).contains(&entries.len()) {
        builder.reader.refuse(node.at, format!("`result` must have between 1 and {MAX_RESULTS} entries"));
    }
    let mut parts = Vec::new();
    for (key, node) in entries {
        let path = match read::metadata_path(&key.name) {
            Ok(path) if !path.keys().is_empty() => Some(path),
            Ok(_) => {
                builder.reader.refuse(key.at, "a result cannot replace all of the metadata");
                None
            }
            Err(why) => {
                builder
                    .reader
                    .refuse(key.at, format!("a key of `result` must be a path below metadata: {why}"));
                None
            }
        };
        parts.extend(path.zip(result_part(builder, node)));
    }
    for (n, (path, _)) in parts.iter().enumerate() {
        if parts[..n].iter().any(|(other, _)| super::checks::related(other.keys(), path.keys())) {
            builder.reader.refuse(node.at, format!("two results are at {path}, or one is below the other"));
        }
    }
    (parts.len() == entries.len()).then_some(parts)
}

fn result_part(builder: &mut Builder<'_, '_>, node: &Node) -> Option<ResultPart> {
    let text = builder.reader.text(node, "a part of the answer")?;
    let below = text.strip_prefix("response.").map(read::metadata_path);
    match (text, below) {
        ("status", _) => Some(ResultPart::Status),
        ("response", _) => Some(ResultPart::Body(super::Path::default())),
        (_, Some(Ok(path))) => Some(ResultPart::Body(path)),
        _ => {
            let hint = "write status, response or response.PATH";
            builder.reader.refuse_hint(node.at, format!("unknown part of an answer: {text:?}"), hint);
            None
        }
    }
}

/// Reads `on_error`: a state, one case, or a list of cases.
fn on_error(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Vec<OnFailure>> {
    let cases = match &node.value {
        Value::Text(_) => {
            let to = builder.target(node)?;
            return Some(vec![OnFailure { failures: Vec::new(), to, into: None }]);
        }
        Value::List(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if cases.is_empty() {
        builder.reader.refuse(node.at, "`on_error` needs at least one case");
    }
    let mut read = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        let Some(fields) = builder.reader.fields(case, "a case of `on_error`", &keys::FAILURE) else {
            continue;
        };
        let to = builder.reader.required(&fields, "next", "a case of `on_error`");
        let to = to.and_then(|node| builder.target(node));
        let failures = match fields.get("status") {
            None => Some(Vec::new()),
            Some(node) => failures(builder, node),
        };
        if failures.as_ref().is_some_and(Vec::is_empty) && n + 1 < cases.len() {
            builder.reader.refuse(fields.at, "this case covers all failures, so those after it never apply");
        }
        let into = match fields.get("into") {
            None => Some(None),
            Some(node) => into(builder, node).map(Some),
        };
        if let (Some(to), Some(failures), Some(into)) = (to, failures, into) {
            read.push(OnFailure { failures, to, into });
        }
    }
    (read.len() == cases.len()).then_some(read)
}

/// Reads a path below the metadata; the metadata as a whole is rejected.
fn into(builder: &mut Builder<'_, '_>, node: &Node) -> Option<super::Path> {
    let path = builder.reader.path(node, "`into`")?;
    if path.keys().is_empty() {
        builder.reader.refuse(node.at, "a failure cannot replace all of the metadata");
        return None;
    }
    Some(path)
}

/// One kind of failure, or a list of them.
fn failures(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Vec<Failure>> {
    let items = match &node.value {
        Value::List(items) if !items.is_empty() => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let read: Vec<Failure> = items.iter().filter_map(|item| failure(builder, item)).collect();
    (read.len() == items.len()).then_some(read)
}

fn failure(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Failure> {
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
    if found.is_none() {
        let hint = "write a status from 300 to 599, 3xx, 4xx, 5xx, no_answer (none in time), or invalid (a value is missing, or a change was rejected)";
        builder.reader.refuse_hint(node.at, "unknown kind of failure", hint);
    }
    found
}

fn retry(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Retry> {
    let fields = builder.reader.fields(node, "`retry`", &keys::RETRY)?;
    let default = Retry::default();
    let attempts = match fields.get("attempts") {
        None => Some(default.attempts.into()),
        Some(node) => builder.reader.whole(node, "`attempts`", 1..=1000),
    };
    let first = builder.duration(&fields, "first", 1..=DAY, default.first.as_secs());
    let factor = match fields.get("factor").map(|node| (node, &node.value)) {
        None => Some(default.factor),
        Some((_, Value::Number(number)))
            if number.as_f64().is_some_and(|factor| (1.0..=100.0).contains(&factor)) =>
        {
            number.as_f64()
        }
        Some((node, _)) => {
            builder.reader.refuse(node.at, "`factor` must be a number from 1 to 100");
            None
        }
    };
    let longest = builder.duration(&fields, "longest", 1..=DAY, default.longest.as_secs());
    let (first, longest) = (first?, longest?);
    if longest < first && fields.has("longest") {
        builder.reader.refuse(fields.key("longest"), "`longest` is shorter than `first`");
    }
    let except = match fields.get("except") {
        None => Some(Vec::new()),
        Some(node) => failures(builder, node),
    };
    let attempts = u32::try_from(attempts?).ok()?;
    Some(Retry { attempts, first, factor: factor?, longest: longest.max(first), except: except? })
}

/// Checks the parts of a `route` action that are known now. Parts with placeholders are checked when the
/// action runs.
fn route(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Template> {
    let fields = builder.reader.fields(node, "`route`", &keys::ROUTE)?;
    builder.reader.required(&fields, "host", "`route`")?;
    if fields.given(&["shares", "register", "retire"]).is_empty() {
        builder.reader.refuse(fields.at, "`route` changes nothing: it needs shares, register or retire");
    }
    if let Some(shares) = fields.get("shares")
        && !is_placeholder(shares)
    {
        for share in builder.reader.list(shares, "`shares`").unwrap_or_default() {
            needs(builder, share, "a share", &keys::SHARE, 2);
        }
    }
    if let Some(register) = fields.get("register") {
        needs(builder, register, "`register`", &keys::REGISTER, 2);
    }
    if let Some(retire) = fields.get("retire") {
        needs(builder, retire, "`retire`", &keys::RETIRE, 1);
        if let Value::Map(entries) = &retire.value
            && let Some((_, drain)) = entries.iter().find(|(key, _)| key.name == "drain")
            && !is_placeholder(drain)
        {
            builder.reader.duration(drain, "`drain`", 0..=DAY);
        }
    }
    template(builder, node)
}

/// Checks that a node is a map with only these keys, and that the first `required` of them are present.
fn needs(builder: &mut Builder<'_, '_>, node: &Node, what: &str, keys: &[&str], required: usize) {
    if let Some(fields) = builder.reader.fields(node, what, keys) {
        for key in &keys[..required] {
            builder.reader.required(&fields, key, what);
        }
    }
}

/// Whether the text is a single placeholder `<…>`, so that its value is not known yet.
fn is_placeholder(node: &Node) -> bool {
    match &node.value {
        Value::Text(text) => Text::parse(text).is_ok_and(|text| text.whole().is_some()),
        _ => false,
    }
}

fn publish(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Template> {
    let fields = builder.reader.fields(node, "`publish`", &keys::PUBLISH)?;
    for key in ["topic", "url"] {
        let given = builder.reader.required(&fields, key, "`publish`")?;
        builder.reader.text(given, &format!("`{key}`"))?;
    }
    let topic = fields.get("topic")?;
    if let Value::Text(text) = &topic.value
        && !text.contains('<')
    {
        let topic_name = builder.reader.topic(topic)?;
        if topic_name.starts_with("signalbox.") {
            let hint = "use letters from a to z and _";
            builder.reader.refuse_hint(
                topic.at,
                "applications cannot publish to topics that begin with `signalbox.`",
                hint,
            );
        }
    }
    if let Some(kind) = fields.get("type") {
        builder.reader.text(kind, "`type`")?;
    }
    let Template::Object(mut entries) = template(builder, node)? else { return None };
    if !fields.has("type") {
        entries.push(("type".into(), Template::Text(Text::parse("update").ok()?)));
    }
    Some(Template::Object(entries))
}

/// A JSON value whose texts may contain placeholders.
fn template(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Template> {
    Some(match &node.value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Template::Constant(node.to_json()),
        Value::Text(_) => Template::Text(builder.reader.template_text(node, "this")?),
        Value::List(items) => {
            let items: Vec<_> = items.iter().map(|item| template(builder, item)).collect();
            Template::List(items.into_iter().collect::<Option<_>>()?)
        }
        Value::Map(entries) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(key, node)| Some((key.name.as_str().into(), template(builder, node)?)))
                .collect();
            Template::Object(entries.into_iter().collect::<Option<_>>()?)
        }
    })
}
