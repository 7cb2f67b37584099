//! Actions: their calls and retries.

use super::{
    keys,
    load::Builder,
    model::{Action, Call, Retry},
    template::{Template, Text},
    yaml::{Node, Value},
};

const DAY: u64 = 86_400;

pub(super) fn read(builder: &mut Builder<'_, '_>, node: &Node) -> Option<Action> {
    let fields = builder.reader.fields(node, "an action", &keys::ACTION)?;
    let kinds = fields.given(&["webhook", "route", "publish"]);
    let call = match &*kinds {
        [] => {
            builder.reader.refuse(fields.at, "an action does one of webhook, route and publish");
            None
        }
        ["webhook"] => {
            fields.get("webhook").and_then(|node| builder.reader.url(node, "`webhook`")).map(Call::Webhook)
        }
        ["route"] => fields.get("route").and_then(|node| route(builder, node)).map(Call::Route),
        ["publish"] => fields.get("publish").and_then(|node| publish(builder, node)).map(Call::Publish),
        more => {
            let message = format!("an action does one thing, and this one has {}", more.join(" and "));
            builder.reader.refuse_hint(fields.key(more[1]), message, "write one action after the other");
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
    Some(Action { call: call?, timeout: timeout?, retry: retry?, next: next? })
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
            builder.reader.refuse(node.at, "`factor` is a number from 1 to 100");
            None
        }
    };
    let longest = builder.duration(&fields, "longest", 1..=DAY, default.longest.as_secs());
    let (first, longest) = (first?, longest?);
    if longest < first && fields.has("longest") {
        builder.reader.refuse(fields.key("longest"), "`longest` is shorter than `first`");
    }
    let attempts = u32::try_from(attempts?).ok()?;
    Some(Retry { attempts, first, factor: factor?, longest: longest.max(first) })
}

/// Checks what can be checked before anything is filled in; the rest is for the moment of the call.
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

/// A map of these keys, the first `required` of which have to be there.
fn needs(builder: &mut Builder<'_, '_>, node: &Node, what: &str, keys: &[&str], required: usize) {
    if let Some(fields) = builder.reader.fields(node, what, keys) {
        for key in &keys[..required] {
            builder.reader.required(&fields, key, what);
        }
    }
}

/// Whether it is a single placeholder `<…>`, so that its value is unknown.
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
            let hint = "the topics of applications have letters from a to z and _";
            builder.reader.refuse_hint(topic.at, "topics that begin with signalbox. are its own", hint);
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

/// A tree whose texts may have placeholders.
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
