//! From nodes to words, numbers and durations, with everything that is wrong collected on the way.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use signalbox_condition::{Condition, KnownFeeds, Reference, nearest};

use super::{
    Refused, SecretNames,
    model::Path,
    problem::Problem,
    template::{BadText, Part, Text},
    text,
    yaml::{self, Mark, Node, Style, Value},
    zone::{Zone, ZoneRule},
};

/// Maximum number of problems and of warnings that are reported for a file. A file of one megabyte can
/// contain a hundred thousand.
const MAX_FOUND: usize = 100;
/// The maximum length of a source line that is shown with its problem, in bytes.
const MAX_LINE: usize = 4 * 1024;

/// The findings in a file so far, and the machine that is being read.
pub(crate) struct Reader<'s> {
    file: Arc<str>,
    pub(crate) source: &'s str,
    pub(crate) problems: Vec<(Mark, Problem)>,
    pub(crate) warnings: Vec<(Mark, Problem)>,
    /// The secrets of the machine; `None` if they are not checked.
    pub(crate) secrets: Option<&'s SecretNames>,
    /// Whether the definition was accepted before, when it could have more states.
    pub(crate) is_stored: bool,
    /// The number of regular expressions so far.
    pub(crate) patterns: usize,
    pub(crate) known: Known,
}

/// What is known of the machine that is being read.
#[derive(Default)]
pub(crate) struct Known {
    /// The names of the feeds.
    pub(crate) feeds: Vec<String>,
    /// The names of the states.
    pub(crate) names: Vec<String>,
    /// The index of each name; if a name is repeated, that of its first state.
    pub(crate) places: HashMap<String, usize>,
    /// The zone of the machine's labels.
    pub(crate) zone: Option<ZoneRule>,
    /// The indexes of states that could not be read.
    pub(crate) broken: Vec<usize>,
}

/// A map whose keys are all known.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'n> {
    pub(crate) node: &'n Node,
    /// What it is, for messages.
    pub(crate) what: &'n str,
    pub(crate) at: Mark,
}

impl<'n> Fields<'n> {
    pub(crate) fn get(&self, name: &str) -> Option<&'n Node> {
        self.node.get(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The position of a key; that of the map if the key is missing.
    pub(crate) fn key(&self, name: &str) -> Mark {
        self.node.entry(name).map_or(self.at, |(key, _)| key.at)
    }

    /// The names that are present in the map.
    pub(crate) fn given<'k>(&self, names: &[&'k str]) -> Vec<&'k str> {
        names.iter().copied().filter(|name| self.has(name)).collect()
    }
}

impl<'s> Reader<'s> {
    pub(crate) fn new(file: &str, source: &'s str) -> Self {
        // Some editors begin a file with a byte order mark.
        let source = source.strip_prefix('\u{feff}').unwrap_or(source);
        let (problems, warnings) = (Vec::new(), Vec::new());
        Self {
            file: file.into(),
            source,
            problems,
            warnings,
            secrets: None,
            is_stored: false,
            patterns: 0,
            known: Known::default(),
        }
    }

    /// Reads the file as YAML.
    pub(crate) fn parse(&mut self) -> Option<Node> {
        yaml::parse(self.source).map_err(|bad| self.report(bad.at, bad.message, bad.hint)).ok()
    }

    pub(crate) fn problem(&self, at: Mark, message: String, hint: Option<String>) -> Problem {
        let (start, end) = (self.boundary(at.start), self.boundary(at.end));
        let line_start = self.source[..start].rfind('\n').map_or(0, |end| end + 1);
        let line_end = self.source[start..].find('\n').map_or(self.source.len(), |end| start + end);
        let line = self.source[line_start..line_end].trim_end_matches('\r');
        let marked = &self.source[start..end.clamp(start, line_start + line.len().max(start - line_start))];
        Problem {
            file: Arc::clone(&self.file),
            line: self.source[..start].matches('\n').count() + 1,
            column: self.source[line_start..start].chars().count() + 1,
            length: marked.trim_end().chars().count().max(1),
            message,
            hint,
            source: if line.len() > MAX_LINE { String::new() } else { line.to_owned() },
        }
    }

    /// Whether the maximum number of problems has been reached.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() >= MAX_FOUND
    }

    /// The nearest character boundary at or before a byte.
    fn boundary(&self, at: usize) -> usize {
        (0..=at.min(self.source.len())).rev().find(|at| self.source.is_char_boundary(*at)).unwrap_or(0)
    }

    /// Reports a problem.
    pub(crate) fn report(&mut self, at: Mark, message: impl Into<String>, hint: Option<String>) {
        if !self.is_full() {
            let problem = self.problem(at, message.into(), hint);
            self.problems.push((at, problem));
        }
    }

    pub(crate) fn refuse(&mut self, at: Mark, message: impl Into<String>) {
        self.report(at, message, None);
    }

    pub(crate) fn refuse_hint(&mut self, at: Mark, message: impl Into<String>, hint: impl Into<String>) {
        self.report(at, message, Some(hint.into()));
    }

    /// Reports a problem because of which there is no value.
    pub(crate) fn fail<T>(&mut self, at: Mark, message: impl Into<String>) -> Option<T> {
        self.report(at, message, None);
        None
    }

    pub(crate) fn fail_hint<T>(
        &mut self,
        at: Mark,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Option<T> {
        self.report(at, message, Some(hint.into()));
        None
    }

    pub(crate) fn warn(&mut self, at: Mark, message: impl Into<String>, hint: Option<String>) {
        if self.warnings.len() < MAX_FOUND {
            let problem = self.problem(at, message.into(), hint);
            self.warnings.push((at, problem));
        }
    }

    /// Why the file is rejected.
    pub(crate) fn refused(self) -> Refused {
        Refused { problems: in_order(self.problems) }
    }

    /// Reads a map that may contain only these keys.
    pub(crate) fn fields<'n>(&mut self, node: &'n Node, what: &'n str, known: &[&str]) -> Option<Fields<'n>> {
        let Value::Map(entries) = &node.value else {
            let message = format!("{what} must be a map, not {}", node.kind());
            return self.fail_hint(node.at, message, format!("its keys are {}", known.join(", ")));
        };
        for (key, _) in entries {
            if !known.contains(&key.name.as_str()) {
                let hint = unknown_key(&key.name, known);
                self.refuse_hint(key.at, format!("{what} has no key `{}`", key.name), hint);
            }
        }
        let at = entries.first().map_or(node.at, |(key, _)| key.at);
        Some(Fields { node, what, at })
    }

    pub(crate) fn required<'n>(&mut self, fields: &Fields<'n>, name: &str) -> Option<&'n Node> {
        fields.get(name).or_else(|| self.fail(fields.at, format!("{} needs `{name}`", fields.what)))
    }

    /// Reads the value of a key that is required.
    pub(crate) fn need<'n, T>(
        &mut self,
        fields: &Fields<'n>,
        name: &str,
        read: impl FnOnce(&mut Self, &'n Node) -> Option<T>,
    ) -> Option<T> {
        let node = self.required(fields, name)?;
        read(self, node)
    }

    /// Reads the value of a key. It is `default` if the key is missing.
    pub(crate) fn or<'n, T>(
        &mut self,
        fields: &Fields<'n>,
        name: &str,
        default: T,
        read: impl FnOnce(&mut Self, &'n Node) -> Option<T>,
    ) -> Option<T> {
        match fields.get(name) {
            None => Some(default),
            Some(node) => read(self, node),
        }
    }

    /// Reads the value of a key. It is `Some(None)` if the key is missing.
    #[allow(clippy::option_option, reason = "a missing value differs from an invalid one")]
    pub(crate) fn maybe<'n, T>(
        &mut self,
        fields: &Fields<'n>,
        name: &str,
        read: impl FnOnce(&mut Self, &'n Node) -> Option<T>,
    ) -> Option<Option<T>> {
        self.or(fields, name, None, |reader, node| read(reader, node).map(Some))
    }

    pub(crate) fn list<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [Node]> {
        let Value::List(items) = &node.value else {
            let message = format!("{what} must be a list, not {}", node.kind());
            return self.fail_hint(node.at, message, "write one entry to a line, each behind a `-`");
        };
        Some(items)
    }

    pub(crate) fn text<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n str> {
        let message = || format!("{what} must be a text, not {}", node.kind());
        match &node.value {
            Value::Text(text) => Some(text),
            Value::Bool(_) | Value::Number(_) => {
                let written = self.source.get(node.at.start..node.at.end).unwrap_or_default();
                self.fail_hint(node.at, message(), format!("put it in quotes: \"{}\"", written.trim()))
            }
            _ => self.fail(node.at, message()),
        }
    }

    /// Rejects an unquoted word that other YAML parsers read as a boolean.
    pub(crate) fn is_yes_or_no(&mut self, node: &Node, text: &str) -> bool {
        let lower = text.to_ascii_lowercase();
        let ambiguous = matches!(&*lower, "yes" | "no" | "on" | "off" | "y" | "n")
            && text::style(self.source, node.at) == Style::Plain;
        if ambiguous {
            let message =
                format!("`{text}` without quotes is ambiguous: some programs read a boolean, others a text");
            let hint = format!("write \"{text}\" for the text, or true or false for a boolean");
            self.refuse_hint(node.at, message, hint);
        }
        ambiguous
    }

    /// Names of machines and states may contain a hyphen; names of feeds may not, because they are used in paths.
    pub(crate) fn valid_name(&mut self, text: &str, at: Mark, what: &str, hyphen: bool) -> bool {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || hyphen && byte == b'-';
        let valid = (1..=64).contains(&text.len()) && text.bytes().all(letter);
        if !valid {
            let letters = if hyphen { "digits, _ and -" } else { "digits and _" };
            let hint = format!("a name is 1 to 64 letters from A to Z, {letters}");
            self.refuse_hint(at, format!("{what} cannot be called {text:?}"), hint);
        }
        valid
    }

    pub(crate) fn boolean(&mut self, node: &Node, what: &str) -> Option<bool> {
        match node.value {
            Value::Bool(value) => Some(value),
            _ => self.fail(node.at, format!("{what} must be true or false, not {}", node.kind())),
        }
    }

    /// Reads a whole number within bounds.
    pub(crate) fn whole(
        &mut self,
        node: &Node,
        what: &str,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> Option<u64> {
        let number = match &node.value {
            Value::Number(number) => number.as_u64().filter(|number| bounds.contains(number)),
            _ => None,
        };
        number.or_else(|| {
            let (least, most) = bounds.into_inner();
            self.fail(node.at, format!("{what} must be a whole number from {least} to {most}"))
        })
    }

    /// Reads a duration; the bounds are in seconds.
    pub(crate) fn duration(
        &mut self,
        node: &Node,
        what: &str,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> Option<Duration> {
        let Some(seconds) = node.as_text().and_then(signalbox_condition::duration) else {
            let hint = match &node.value {
                Value::Number(number) => format!("{number} seconds are written {number}s"),
                _ => "a duration is written 1d2h30m5s, units in this order, in whole numbers".to_owned(),
            };
            return self.fail_hint(node.at, format!("{what} must be a duration"), hint);
        };
        if bounds.contains(&seconds) {
            return Some(Duration::from_secs(seconds));
        }
        let [least, most] = [*bounds.start(), *bounds.end()].map(|s| super::units(Duration::from_secs(s)));
        self.fail(node.at, format!("{what} must be from {least} to {most}"))
    }

    /// Reads the duration at a key; the bounds and the default are in seconds.
    pub(crate) fn duration_or(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        bounds: std::ops::RangeInclusive<u64>,
        default: u64,
    ) -> Option<Duration> {
        self.or(fields, key, Duration::from_secs(default), |reader, node| {
            reader.duration(node, &format!("`{key}`"), bounds)
        })
    }

    pub(crate) fn zone(&mut self, node: &Node) -> Option<Zone> {
        let name = self.text(node, "a time zone")?;
        Zone::named(name).or_else(|| {
            let message = format!("unknown time zone {name:?}");
            self.fail_hint(node.at, message, "use a name such as Europe/London or UTC")
        })
    }

    pub(crate) fn path(&mut self, node: &Node, what: &str) -> Option<Path> {
        match metadata_path(self.text(node, what)?) {
            Ok(path) => Some(path),
            Err(why) => {
                let hint =
                    "keys are joined by dots: user.plan; a key with other characters needs double quotes";
                self.fail_hint(node.at, format!("{what} must be a path below metadata: {why}"), hint)
            }
        }
    }

    /// Reads a path that is not the metadata as a whole, for which `whole` is the message.
    pub(crate) fn path_below(&mut self, node: &Node, what: &str, whole: &str) -> Option<Path> {
        let path = self.path(node, what)?;
        if path.keys().is_empty() { self.fail(node.at, whole) } else { Some(path) }
    }

    pub(crate) fn topic(&mut self, node: &Node) -> Option<Box<str>> {
        let topic = self.text(node, "a topic")?;
        if is_topic(topic) {
            return Some(topic.into());
        }
        let hint = "use 1 to 64 letters from a to z and _; topics of Signalbox itself begin with signalbox.";
        self.fail_hint(node.at, format!("invalid topic name {topic:?}"), hint)
    }

    /// Reads a text that may contain placeholders.
    pub(crate) fn template_text(&mut self, node: &Node, what: &str) -> Option<Text> {
        let text = self.text(node, what)?;
        let report = |bad: BadText| {
            let at = text::place(self.source, node.at, text, bad.at, bad.length);
            self.report(at, bad.message, bad.hint);
        };
        Text::parse(text).map_err(report).ok()
    }

    /// Reads an address. Its scheme, host and port are fixed; metadata may fill in the path and the query.
    pub(crate) fn url(&mut self, node: &Node, what: &str) -> Option<Text> {
        let template = self.template_text(node, what)?;
        let written = node.as_text()?;
        if let Some(at) = written.find("${") {
            let at = text::place(self.source, node.at, written, at, 2);
            let hint = "`${NAME}` is allowed only in headers";
            return self.fail_hint(at, "an address cannot contain secrets", hint);
        }
        match is_address(&template) {
            Ok(()) => Some(template),
            Err((message, hint)) => {
                self.fail_hint(node.at, format!("{what} is not a valid address: {message}"), hint)
            }
        }
    }

    /// Reads a condition. Its errors are reported with their line of the file.
    pub(crate) fn condition(&mut self, node: &Node) -> Option<Condition> {
        let written: Cow<'_, str> = match &node.value {
            Value::Bool(value) => value.to_string().into(),
            Value::Text(text) => text.into(),
            _ => {
                let message = format!("a condition must be a text, true or false, not {}", node.kind());
                return self.fail(node.at, message);
            }
        };
        if let Some((at, length)) = signalbox_condition::comment(&written)
            && text::swallows(self.source, node.at)
        {
            return self.fail_hint(
                text::place(self.source, node.at, &written, at, length),
                "everything after this `#` would be a comment, because YAML joins these lines",
                "write the condition in a literal block: `exit_condition: |` and the lines below",
            );
        }
        let parsed = Condition::parse(&written, KnownFeeds::Only(&self.feeds()));
        for warning in parsed.iter().flat_map(Condition::warnings) {
            let at = self.within(node, &written, &warning);
            self.warn(at, warning.message, warning.hint);
        }
        parsed.map_err(|error| self.report_within(node, &written, error)).ok()
    }

    pub(crate) fn reference(&mut self, node: &Node) -> Option<Reference> {
        let written = self.text(node, "`path`")?;
        let parsed = Reference::parse(written, KnownFeeds::Only(&self.feeds()));
        parsed.map_err(|error| self.report_within(node, written, error)).ok()
    }

    fn feeds(&self) -> Vec<&str> {
        self.known.feeds.iter().map(String::as_str).collect()
    }

    fn report_within(&mut self, node: &Node, written: &str, error: signalbox_condition::Error) {
        self.report(self.within(node, written, &error), error.message, error.hint);
    }

    fn within(&self, node: &Node, written: &str, error: &signalbox_condition::Error) -> Mark {
        let at = text::offset(written, error.line, error.column);
        let length = written[at..].chars().take(error.length).map(char::len_utf8).sum();
        text::place(self.source, node.at, written, at, length)
    }
}

/// The findings in the order of the file.
pub(crate) fn in_order(mut found: Vec<(Mark, Problem)>) -> Vec<Problem> {
    found.sort_by_key(|(at, _)| *at);
    // If an alias repeats a mistake in several places, it is reported once.
    found.dedup();
    found.into_iter().map(|(_, problem)| problem).collect()
}

fn unknown_key(key: &str, known: &[&str]) -> String {
    match key {
        "plugins" => "plugins are not supported: external data comes as metadata or from feeds".into(),
        "placeholders" => "the placeholders are fixed: <label>, <state_machine> and <metadata.PATH>".into(),
        _ => match nearest(key, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("its keys are {}", known.join(", ")),
        },
    }
}

/// Reads a path that may begin with one `metadata.`. `metadata` alone is the metadata as a whole.
pub(crate) fn metadata_path(text: &str) -> Result<Path, String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    let whole = if text == "metadata" || text.starts_with("metadata.") {
        text.to_owned()
    } else {
        format!("metadata.{text}")
    };
    let reference = Reference::parse(&whole, KnownFeeds::Only(&[])).map_err(|error| error.message)?;
    Ok(Path { keys: reference.metadata_keys().unwrap_or_default() })
}

fn is_topic(topic: &str) -> bool {
    let plain = |text: &str| {
        (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    plain(topic) || topic.strip_prefix("signalbox.").is_some_and(plain)
}

/// Checks that the text is a valid http or https address once its placeholders are filled in. The error is a
/// message and a hint.
fn is_address(template: &Text) -> Result<(), (String, String)> {
    const HINT: &str = "like https://mail.example/send/<label>";
    let mut filled = String::new();
    for part in template.parts() {
        match part {
            Part::Literal(text) => filled.push_str(text),
            _ => {
                let authority = filled.split_once("://").map(|(_, rest)| rest);
                // Otherwise metadata could direct credentials to any host.
                if !authority.is_some_and(|rest| rest.contains(['/', '?', '#'])) {
                    return Err((
                        "it has a placeholder in its scheme, host or port".into(),
                        "placeholders are allowed after the first slash of the path".into(),
                    ));
                }
                filled.push('x');
            }
        }
    }
    if !(filled.starts_with("http://") || filled.starts_with("https://")) {
        return Err(("it must begin with http:// or https://".into(), HINT.into()));
    }
    if filled.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(("it contains a space".into(), "write a space as %20".into()));
    }
    match url::Url::parse(&filled) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            Err(("it contains credentials".into(), "put them into a header, below `webhooks`".into()))
        }
        Ok(url) if url.host_str().is_none_or(str::is_empty) => Err(("it has no host".into(), HINT.into())),
        Ok(_) => Ok(()),
        Err(error) => Err((error.to_string(), HINT.into())),
    }
}
