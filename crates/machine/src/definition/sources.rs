//! A machine's external data: feeds, inputs, headers.

use regex::RegexBuilder;
use signalbox_condition::nearest;

use crate::render::is_below;

use super::{
    keys,
    load::{DAY, HOUR},
    outside::{
        EventPath, Feed, FeedSource, Header, HeaderPart, Input, Limit, OnError, Pattern, Stats, Webhook,
        origin,
    },
    read::{Reader, metadata_path},
    template::Text,
    yaml::{Key, Node, Value},
};

/// Maximum size of a compiled regular expression, bytes.
const MAX_PATTERN_BYTES: usize = 64 * 1024;
/// Maximum number of regular expressions in a file, however many machines it has.
const MAX_PATTERNS: usize = 128;
/// Maximum number of addresses with limits.
const MAX_LIMITS: usize = 20;
/// Maximum value of a rate, and of the number of attempts in progress.
const MAX_ATTEMPTS: u64 = 10_000;

impl Reader<'_> {
    pub(super) fn feed(&mut self, node: &Node) -> Option<Feed> {
        let fields = self.fields(node, "a feed", &keys::FEED)?;
        let name = self.need(&fields, "name", Self::feed_name);
        // The name is registered before the feed is checked, so that an invalid feed does not invalidate the
        // conditions that read it.
        self.known.feeds.extend(name.clone());
        let source = match (fields.get("url"), fields.get("stats")) {
            (Some(url), None) => self.url(url, "`url`").map(FeedSource::Url),
            (None, Some(stats)) => self.stats(stats).map(FeedSource::Stats),
            (Some(_), Some(_)) => self.fail(fields.key("stats"), "a feed cannot have both `url` and `stats`"),
            (None, None) => self.fail(fields.at, "a feed needs `url` or `stats`"),
        };
        let timeout = self.duration_or(&fields, "timeout", 1..=30, 2);
        let ttl = self.duration_or(&fields, "ttl", 0..=DAY, 0);
        let on_error = self.or(&fields, "on_error", OnError::Hold, Self::feed_failure);
        Some(Feed { name: name?.into(), source: source?, timeout: timeout?, ttl: ttl?, on_error: on_error? })
    }

    fn feed_name(&mut self, node: &Node) -> Option<String> {
        let name = self.text(node, "a name")?;
        if self.is_yes_or_no(node, name) {
            return None;
        }
        if name == "stats" {
            let hint = "`stats` is a kind of feed; choose a name that describes what it counts";
            return self.fail_hint(node.at, "a feed cannot be named `stats`", hint);
        }
        self.valid_name(name, node.at, "a feed", false).then(|| name.to_owned())
    }

    fn feed_failure(&mut self, node: &Node) -> Option<OnError> {
        match &node.value {
            Value::Text(text) if text == "hold" => Some(OnError::Hold),
            Value::Map(_) => {
                let fields = self.fields(node, "`on_error`", &keys::ON_ERROR)?;
                self.required(&fields, "default").map(|node| OnError::Default(node.to_json()))
            }
            _ => self.fail(node.at, "`on_error` must be `hold` or `{default: VALUE}`"),
        }
    }

    fn stats(&mut self, node: &Node) -> Option<Stats> {
        let [subjects @ .., _window] = &keys::STATS;
        let fields = self.fields(node, "`stats`", &keys::STATS)?;
        let [of] = *fields.given(subjects) else {
            return self.fail(fields.at, format!("`stats` needs one of {}", subjects.join(", ")));
        };
        // The edge's ids are often numbers.
        let id = fields.get(of).and_then(|node| match &node.value {
            Value::Number(number) => Text::parse(&number.to_string()).ok(),
            _ => self.template_text(node, "an id"),
        });
        let window =
            self.need(&fields, "window", |reader, node| reader.duration(node, "`window`", 1..=6 * HOUR));
        Some(Stats { of, id: id?, window: window? })
    }

    /// Reads a host name or pattern of the route table.
    pub(super) fn host(&mut self, node: &Node) -> Option<Box<str>> {
        let text = self.text(node, "a host")?;
        if is_host(text) {
            return Some(text.to_ascii_lowercase().into());
        }
        let hint = "write shop.example, *.shop.example for all names below, or * for every host";
        self.fail_hint(node.at, format!("{text:?} is not a valid host name"), hint)
    }

    pub(super) fn input(&mut self, node: &Node) -> Option<Input> {
        let fields = self.fields(node, "an input", &keys::INPUT)?;
        let topic = self.need(&fields, "topic", Self::input_topic);
        let label = self.or(&fields, "label", EventPath::Object, Self::event_path);
        let into = self.maybe(&fields, "into", |reader, node| reader.path(node, "`into`"));
        let create = self.or(&fields, "create", false, |reader, node| reader.boolean(node, "`create`"));
        Some(Input { topic: topic?, label: label?, into: into?, create: create? })
    }

    fn input_topic(&mut self, node: &Node) -> Option<Box<str>> {
        let topic = self.topic(node)?;
        if &*topic == "signalbox.audit" {
            let hint = "a token with the scopes subscribe and audit can subscribe a webhook to it";
            return self.fail_hint(node.at, "state machines do not receive the audit log", hint);
        }
        Some(topic)
    }

    fn event_path(&mut self, node: &Node) -> Option<EventPath> {
        let text = self.text(node, "`label`")?;
        match (text, text.strip_prefix("data.").map(metadata_path)) {
            ("object", _) => Some(EventPath::Object),
            ("url", _) => Some(EventPath::Url),
            // Definitions of earlier releases have `environment`.
            ("tenant" | "environment", _) => Some(EventPath::Tenant),
            (_, Some(Ok(path))) => Some(EventPath::Data(path)),
            _ => {
                let message = format!("events cannot name a label by {text:?}");
                self.fail_hint(node.at, message, "write object, url, tenant or data.KEY")
            }
        }
    }

    /// Reads the limits of addresses.
    pub(super) fn limits(&mut self, node: &Node) -> Vec<Limit> {
        let Value::Map(entries) = &node.value else {
            let hint = "write `limits: {\"https://api.example.com\": {rate: 20, concurrent: 4}}`";
            self.refuse_hint(node.at, "`limits` must be a map", hint);
            return Vec::new();
        };
        if !(1..=MAX_LIMITS).contains(&entries.len()) {
            self.refuse(node.at, format!("`limits` must have between 1 and {MAX_LIMITS} entries"));
        }
        let mut limits: Vec<Limit> = Vec::new();
        for (key, node) in entries {
            let Some(limit) = self.limit(key, node) else { continue };
            if limits.iter().any(|known| known.target == limit.target) {
                self.refuse(key.at, format!("{} has limits already", limit.target));
            }
            limits.push(limit);
        }
        limits.sort_by(|a, b| a.target.cmp(&b.target));
        limits
    }

    fn limit(&mut self, key: &Key, node: &Node) -> Option<Limit> {
        let fields = self.fields(node, "a limit", &keys::LIMIT)?;
        let target = limited(&key.name);
        if target.is_none() {
            let hint = "write scheme, host and port only, like https://api.example.com";
            self.refuse_hint(key.at, format!("{:?} cannot have limits", key.name), hint);
        }
        if fields.given(&["rate", "concurrent"]).is_empty() {
            self.refuse(node.at, "a limit needs `rate`, `concurrent`, or both");
        }
        if fields.has("per") && !fields.has("rate") {
            self.refuse(fields.key("per"), "`per` needs `rate`");
        }
        let mut number = |name: &str| {
            let number = self.whole(fields.get(name)?, &format!("`{name}`"), 1..=MAX_ATTEMPTS)?;
            u32::try_from(number).ok()
        };
        let (rate, concurrent) = (number("rate"), number("concurrent"));
        let per = self.duration_or(&fields, "per", 1..=HOUR, 1)?;
        Some(Limit { target: target?.into(), rate: rate.map(|rate| (rate, per)), concurrent })
    }

    pub(super) fn webhook(&mut self, node: &Node) -> Option<Webhook> {
        let fields = self.fields(node, "an entry of `webhooks`", &keys::WEBHOOK)?;
        let matched = self.need(&fields, "match", Self::matched);
        let prefix = matched.as_ref().filter(|(_, pattern)| pattern.is_none()).map(|(prefix, _)| &**prefix);
        let secret = self.maybe(&fields, "secret", |reader, node| reader.signing_secret(node, prefix))?;
        let headers = if secret.is_some() && !fields.has("headers") {
            Vec::new()
        } else {
            self.need(&fields, "headers", |reader, node| reader.headers(node, prefix))?
        };
        let (prefix, pattern) = matched?;
        Some(Webhook { prefix, pattern, headers, secret })
    }

    fn headers(&mut self, node: &Node, prefix: Option<&str>) -> Option<Vec<Header>> {
        const FIXED: [&str; 9] = [
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
        let Value::Map(entries) = &node.value else {
            let hint = "write `Authorization: \"Bearer ${TOKEN}\"`";
            return self.fail_hint(node.at, "`headers` must be a map", hint);
        };
        let mut headers = Vec::new();
        for (Key { name, at }, node) in entries {
            let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || !name.bytes().all(token) {
                self.refuse(*at, format!("invalid header name {name:?}"));
            }
            if FIXED.contains(&name.to_ascii_lowercase().as_str()) {
                self.refuse(*at, format!("the header {name} cannot be set, because Signalbox sets it"));
            }
            let parts = self.header(node, prefix);
            headers.extend(parts.map(|parts| Header { name: name.as_str().into(), parts }));
        }
        Some(headers)
    }

    /// Reads the name of the secret that signs webhooks.
    fn signing_secret(&mut self, node: &Node, prefix: Option<&str>) -> Option<Box<str>> {
        let parts = self.header(node, prefix)?;
        if let [HeaderPart::Secret(name)] = &*parts {
            return Some(name.clone());
        }
        let hint = "write `secret: ${NAME}`; its value has the form whsec_BASE64";
        self.fail_hint(node.at, "`secret` names a secret of the machine", hint)
    }

    /// Reads an address prefix or a regular expression.
    fn matched(&mut self, node: &Node) -> Option<(Box<str>, Option<Pattern>)> {
        let text = self.text(node, "`match`")?;
        let is_address = text.starts_with("https://") || text.starts_with("http://");
        if is_address && !["\\", ".*", ".+", "[", "(", "|", "^"].iter().any(|sign| text.contains(sign)) {
            let template = self.url(node, "`match`")?;
            return match template.constant() {
                Some(prefix) => Some((prefix.into(), None)),
                None => self.fail(node.at, "`match` cannot contain placeholders"),
            };
        }
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return self
                .fail(node.at, format!("limit of regular expressions in a file reached ({MAX_PATTERNS})"));
        }
        match RegexBuilder::new(text).size_limit(MAX_PATTERN_BYTES).build() {
            Ok(pattern) if !text.is_empty() => Some((text.into(), Some(Pattern(pattern)))),
            _ => {
                let hint =
                    "write the beginning of an address, https://…, or a regular expression for a part of it";
                self.fail_hint(node.at, "invalid `match`", hint)
            }
        }
    }

    fn header(&mut self, node: &Node, prefix: Option<&str>) -> Option<Vec<HeaderPart>> {
        let text = self.text(node, "a header")?;
        if text.chars().any(|c| c.is_control()) {
            return self.fail(node.at, "a header cannot contain control characters");
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once("${") {
            let name = behind.split_once('}').filter(|(name, _)| {
                !name.is_empty()
                    && !name.starts_with(|c: char| c.is_ascii_digit())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            });
            let Some((name, behind)) = name else {
                let message = "`${` must be followed by the name of a secret";
                return self.fail_hint(node.at, message, "write ${NAME}");
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
        let Some(allowed) = self.secrets else { return };
        if let Some(bound) = allowed.get(name) {
            if !bound.is_empty() && prefix.is_some_and(|prefix| !is_below(bound, prefix)) {
                let message = format!("the secret {name} is bound to other addresses");
                self.refuse_hint(node.at, message, format!("`match` must begin with {bound}"));
            }
            return;
        }
        let hint = match nearest(name, allowed.keys().map(String::as_str)) {
            Some(near) => format!("did you mean ${{{near}}}?"),
            None => {
                format!("store it: signalbox machines secrets MACHINE --set {name} --address https://…/")
            }
        };
        self.refuse_hint(node.at, format!("the machine has no secret {name}"), hint);
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
