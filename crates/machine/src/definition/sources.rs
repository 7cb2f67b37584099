//! A machine's external data: feeds, inputs, headers.

use regex::RegexBuilder;
use signalbox_condition::nearest;

use crate::render::is_below;

use super::{
    keys,
    load::{Builder, DAY, HOUR},
    outside::{
        EventPath, Feed, FeedSource, Header, HeaderPart, Input, Limit, OnError, Pattern, Stats, StatsOf,
        Webhook, origin,
    },
    yaml::{Key, Node, Value},
};

/// Maximum size of a compiled regular expression, bytes.
const MAX_PATTERN_BYTES: usize = 256 * 1024;
/// Maximum number of addresses with limits.
const MAX_LIMITS: usize = 20;
/// Maximum value of a rate, and of the number of attempts in progress.
const MAX_ATTEMPTS: u64 = 10_000;

impl Builder<'_, '_> {
    pub(super) fn feed(&mut self, node: &Node) -> Option<Feed> {
        let fields = self.reader.fields(node, "a feed", &keys::FEED)?;
        let name = self.reader.required(&fields, "name", "a feed");
        let name = name.and_then(|node| {
            let name = self.reader.text(node, "a name")?;
            if self.reader.is_yes_or_no(node, name) {
                return None;
            }
            if name == "stats" {
                let hint = "`stats` is a kind of feed; choose a name that describes what it counts";
                self.reader.refuse_hint(node.at, "a feed cannot be named `stats`", hint);
                return None;
            }
            self.reader.valid_name(name, node.at, "a feed", false).then(|| name.to_owned())
        });
        // The name is registered before the feed is checked, so that an invalid feed does not invalidate the
        // conditions that read it.
        self.feeds.extend(name.clone());
        let source = match (fields.get("url"), fields.get("stats")) {
            (Some(url), None) => self.reader.url(url, "`url`").map(FeedSource::Url),
            (None, Some(stats)) => self.stats(stats).map(FeedSource::Stats),
            (Some(_), Some(_)) => {
                self.reader.refuse(fields.key("stats"), "a feed cannot have both `url` and `stats`");
                None
            }
            (None, None) => {
                self.reader.refuse(fields.at, "a feed needs `url` or `stats`");
                None
            }
        };
        let timeout = self.duration(&fields, "timeout", 1..=30, 2);
        let ttl = self.duration(&fields, "ttl", 0..=DAY, 0);
        let on_error = match fields.get("on_error").map(|node| (node, &node.value)) {
            None => Some(OnError::Hold),
            Some((_, Value::Text(text))) if text == "hold" => Some(OnError::Hold),
            Some((node, Value::Map(_))) => {
                let fields = self.reader.fields(node, "`on_error`", &keys::ON_ERROR)?;
                let value = self.reader.required(&fields, "default", "`on_error`");
                value.map(|node| OnError::Default(node.to_json()))
            }
            Some((node, _)) => {
                self.reader.refuse(node.at, "`on_error` must be `hold` or `{default: VALUE}`");
                None
            }
        };
        Some(Feed { name: name?.into(), source: source?, timeout: timeout?, ttl: ttl?, on_error: on_error? })
    }

    fn stats(&mut self, node: &Node) -> Option<Stats> {
        let names: Vec<&str> = StatsOf::ALL.iter().map(|(name, _)| *name).collect();
        let fields = self.reader.fields(node, "`stats`", &keys::STATS)?;
        let given = fields.given(&names);
        let [name] = &*given else {
            let message = format!("`stats` needs one of {}", names.join(", "));
            self.reader.refuse(fields.at, message);
            return None;
        };
        let of = StatsOf::ALL.iter().find(|(known, _)| known == name).map(|(_, of)| *of);
        // The edge's ids are often numbers.
        let id = fields.get(name).and_then(|node| match &node.value {
            Value::Number(number) => super::Text::parse(&number.to_string()).ok(),
            _ => self.reader.template_text(node, "an id"),
        });
        let window = self.reader.required(&fields, "window", "`stats`");
        let window = window.and_then(|node| self.reader.duration(node, "`window`", 1..=6 * HOUR));
        Some(Stats { of: of?, id: id?, window: window? })
    }

    /// Reads a host name or pattern of the route table.
    pub(super) fn host(&mut self, node: &Node) -> Option<Box<str>> {
        let text = self.reader.text(node, "a host")?;
        if is_host(text) {
            return Some(text.to_ascii_lowercase().into());
        }
        let hint = "write shop.example, *.shop.example for all names below, or * for every host";
        self.reader.refuse_hint(node.at, format!("{text:?} is not a valid host name"), hint);
        None
    }

    pub(super) fn input(&mut self, node: &Node) -> Option<Input> {
        let fields = self.reader.fields(node, "an input", &keys::INPUT)?;
        let topic = self.reader.required(&fields, "topic", "an input");
        let topic = topic.and_then(|node| self.input_topic(node));
        let label = match fields.get("label") {
            None => Some(EventPath::Object),
            Some(node) => self.event_path(node),
        };
        let into = match fields.get("into") {
            None => Some(None),
            Some(node) => self.reader.path(node, "`into`").map(Some),
        };
        let create = match fields.get("create") {
            None => Some(false),
            Some(node) => self.reader.boolean(node, "`create`"),
        };
        Some(Input { topic: topic?, label: label?, into: into?, create: create? })
    }

    fn input_topic(&mut self, node: &Node) -> Option<Box<str>> {
        let topic = self.reader.topic(node)?;
        if &*topic == "signalbox.audit" {
            let hint = "a token with the scopes subscribe and audit can subscribe a webhook to it";
            self.reader.refuse_hint(node.at, "state machines do not receive the audit log", hint);
            return None;
        }
        Some(topic)
    }

    fn event_path(&mut self, node: &Node) -> Option<EventPath> {
        let text = self.reader.text(node, "`label`")?;
        let below = text.strip_prefix("data.").map(super::metadata_path);
        match (text, below) {
            ("object", _) => Some(EventPath::Object),
            ("url", _) => Some(EventPath::Url),
            ("environment", _) => Some(EventPath::Environment),
            (_, Some(Ok(path))) => Some(EventPath::Data(path.keys)),
            _ => {
                let message = format!("events cannot name a label by {text:?}");
                self.reader.refuse_hint(node.at, message, "write object, url, environment or data.KEY");
                None
            }
        }
    }

    /// Reads the limits of addresses.
    pub(super) fn limits(&mut self, node: &Node) -> Vec<Limit> {
        let Value::Map(entries) = &node.value else {
            let hint = "write `limits: {\"https://api.example.com\": {rate: 20, concurrent: 4}}`";
            self.reader.refuse_hint(node.at, "`limits` must be a map", hint);
            return Vec::new();
        };
        if !(1..=MAX_LIMITS).contains(&entries.len()) {
            self.reader.refuse(node.at, format!("`limits` must have between 1 and {MAX_LIMITS} entries"));
        }
        let mut limits: Vec<Limit> = Vec::new();
        for (key, node) in entries {
            let Some(limit) = self.limit(key, node) else { continue };
            if limits.iter().any(|known| known.target == limit.target) {
                self.reader.refuse(key.at, format!("{} has limits already", limit.target));
            }
            limits.push(limit);
        }
        limits.sort_by(|a, b| a.target.cmp(&b.target));
        limits
    }

    fn limit(&mut self, key: &Key, node: &Node) -> Option<Limit> {
        let fields = self.reader.fields(node, "a limit", &keys::LIMIT)?;
        let target = limited(&key.name);
        if target.is_none() {
            let hint = "write scheme, host and port only, like https://api.example.com";
            self.reader.refuse_hint(key.at, format!("{:?} cannot have limits", key.name), hint);
        }
        if fields.given(&["rate", "concurrent"]).is_empty() {
            self.reader.refuse(node.at, "a limit needs `rate`, `concurrent`, or both");
        }
        if fields.has("per") && !fields.has("rate") {
            self.reader.refuse(fields.key("per"), "`per` needs `rate`");
        }
        let mut number = |name: &str| {
            let node = fields.get(name)?;
            let number = self.reader.whole(node, &format!("`{name}`"), 1..=MAX_ATTEMPTS)?;
            u32::try_from(number).ok()
        };
        let (rate, concurrent) = (number("rate"), number("concurrent"));
        let per = self.duration(&fields, "per", 1..=HOUR, 1)?;
        Some(Limit { target: target?.into(), rate: rate.map(|rate| (rate, per)), concurrent })
    }

    pub(super) fn webhook(&mut self, node: &Node) -> Option<Webhook> {
        let fields = self.reader.fields(node, "an entry of `webhooks`", &keys::WEBHOOK)?;
        let matched = self.reader.required(&fields, "match", "an entry of `webhooks`");
        let matched = matched.and_then(|node| self.matched(node));
        let prefix =
            matched.as_ref().filter(|(_, pattern)| pattern.is_none()).map(|(prefix, _)| prefix.clone());
        let secret = match fields.get("secret") {
            None => None,
            Some(node) => Some(self.signing_secret(node, prefix.as_deref())?),
        };
        let headers = match (fields.get("headers"), &secret) {
            (Some(headers), _) => headers,
            (None, None) => self.reader.required(&fields, "headers", "an entry of `webhooks`")?,
            (None, Some(_)) => {
                let (prefix, pattern) = matched?;
                return Some(Webhook { prefix, pattern, headers: Vec::new(), secret });
            }
        };
        let Value::Map(entries) = &headers.value else {
            self.reader.refuse_hint(
                headers.at,
                "`headers` must be a map",
                "write `Authorization: \"Bearer ${TOKEN}\"`",
            );
            return None;
        };
        let mut read = Vec::new();
        for (key, node) in entries {
            let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if key.name.is_empty() || !key.name.bytes().all(token) {
                self.reader.refuse(key.at, format!("invalid header name {:?}", key.name));
            }
            let fixed = [
                "host",
                "content-length",
                "content-type",
                "transfer-encoding",
                "connection",
                "x-idempotency-token",
                "webhook-id",
                "webhook-timestamp",
                "webhook-signature",
            ];
            if fixed.contains(&key.name.to_ascii_lowercase().as_str()) {
                self.reader.refuse(
                    key.at,
                    format!("the header {} cannot be set, because Signalbox sets it", key.name),
                );
            }
            if let Some(parts) = self.header(node, prefix.as_deref()) {
                read.push(Header { name: key.name.as_str().into(), parts });
            }
        }
        let (prefix, pattern) = matched?;
        Some(Webhook { prefix, pattern, headers: read, secret })
    }

    /// Reads the name of the secret that signs webhooks.
    fn signing_secret(&mut self, node: &Node, prefix: Option<&str>) -> Option<Box<str>> {
        let parts = self.header(node, prefix)?;
        if let [HeaderPart::Secret(name)] = &*parts {
            return Some(name.clone());
        }
        let hint = "write `secret: ${NAME}`; its value has the form whsec_BASE64";
        self.reader.refuse_hint(node.at, "`secret` names a secret of the machine", hint);
        None
    }

    /// Reads an address prefix or a regular expression.
    fn matched(&mut self, node: &Node) -> Option<(Box<str>, Option<Pattern>)> {
        let text = self.reader.text(node, "`match`")?;
        let is_address = text.starts_with("https://") || text.starts_with("http://");
        if is_address && !["\\", ".*", ".+", "[", "(", "|", "^"].iter().any(|sign| text.contains(sign)) {
            let template = self.reader.url(node, "`match`")?;
            let constant = template.constant().map(Into::into);
            if constant.is_none() {
                self.reader.refuse(node.at, "`match` cannot contain placeholders");
            }
            return Some((constant?, None));
        }
        match RegexBuilder::new(text).size_limit(MAX_PATTERN_BYTES).build() {
            Ok(pattern) if !text.is_empty() => Some((text.into(), Some(Pattern(pattern)))),
            _ => {
                let hint =
                    "write the beginning of an address, https://…, or a regular expression for a part of it";
                self.reader.refuse_hint(node.at, "invalid `match`", hint);
                None
            }
        }
    }

    fn header(&mut self, node: &Node, prefix: Option<&str>) -> Option<Vec<HeaderPart>> {
        let text = self.reader.text(node, "a header")?;
        if text.chars().any(|c| c.is_control()) {
            self.reader.refuse(node.at, "a header cannot contain control characters");
            return None;
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once("${") {
            let name = behind.split_once('}').filter(|(name, _)| {
                !name.is_empty()
                    && !name.starts_with(|c: char| c.is_ascii_digit())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            });
            let Some((name, behind)) = name else {
                self.reader.refuse_hint(
                    node.at,
                    "`${` must be followed by the name of a secret",
                    "write ${NAME}",
                );
                return None;
            };
            if !before.is_empty() {
                parts.push(HeaderPart::Text(before.into()));
            }
            self.may_be_asked(node, name, prefix);
            parts.push(HeaderPart::Secret(name.into()));
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(HeaderPart::Text(rest.into()));
        }
        Some(parts)
    }

    /// Rejects a secret that is not stored, or is bound to other addresses.
    fn may_be_asked(&mut self, node: &Node, name: &str, prefix: Option<&str>) {
        let Some(allowed) = self.reader.secrets else { return };
        if let Some(bound) = allowed.get(name) {
            if !bound.is_empty() && prefix.is_some_and(|prefix| !is_below(bound, prefix)) {
                let hint = format!("`match` must begin with {bound}");
                self.reader.refuse_hint(
                    node.at,
                    format!("the secret {name} is bound to other addresses"),
                    hint,
                );
            }
            return;
        }
        let hint = match nearest(name, allowed.keys().map(String::as_str)) {
            Some(near) => format!("did you mean ${{{near}}}?"),
            None => {
                format!("store it: signalbox machines secrets MACHINE --set {name} --address https://…/")
            }
        };
        self.reader.refuse_hint(node.at, format!("the machine has no secret {name}"), hint);
    }
}

/// Reads the target of a limit: an address with only a scheme, a host, and optionally a port.
fn limited(address: &str) -> Option<String> {
    let address = address.strip_suffix('/').unwrap_or(address);
    let url = url::Url::parse(address).ok()?;
    let is_web =
        matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|host| !host.is_empty());
    let target = origin(address)?;
    let is_bare =
        address.split_once("://").is_some_and(|(_, rest)| !rest.contains(['/', '?', '#', '@', '<']));
    (is_web && is_bare).then_some(target)
}

/// Whether a text is a host pattern of the route table: `*`, a name, or `*.` and a name.
fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text == "*" || (text.len() <= 253 && text.strip_prefix("*.").unwrap_or(text).split('.').all(label))
}
