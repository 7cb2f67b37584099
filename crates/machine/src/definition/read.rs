//! From nodes to words, numbers and durations, with everything that is wrong collected on the way.

use std::{sync::Arc, time::Duration};

use signalbox_condition::{Condition, KnownFeeds, Reference, nearest};

use super::{
    SecretNames,
    model::Path,
    problem::Problem,
    template::Text,
    text,
    yaml::{Key, Mark, Node, Style, Value},
    zone::Zone,
};

/// Maximum number of problems and of warnings that are reported for a file. A file of one megabyte can
/// contain a hundred thousand.
const MAX_FOUND: usize = 100;
/// The maximum length of a source line that is shown with its problem, in bytes.
const MAX_LINE: usize = 4 * 1024;

/// The findings in a file so far.
pub(crate) struct Reader<'s> {
    file: Arc<str>,
    pub(crate) source: &'s str,
    /// The secrets of the machine that is being read; `None` if they are not checked.
    pub(crate) secrets: Option<&'s SecretNames>,
    pub(crate) problems: Vec<(Mark, Problem)>,
    pub(crate) warnings: Vec<(Mark, Problem)>,
}

/// The entries of a map whose keys are all known.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'n> {
    entries: &'n [(Key, Node)],
    pub(crate) at: Mark,
}

impl<'n> Fields<'n> {
    pub(crate) fn get(&self, name: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, node)| node)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The position of a key; that of the map if the key is missing.
    pub(crate) fn key(&self, name: &str) -> Mark {
        self.entries.iter().find(|(key, _)| key.name == name).map_or(self.at, |(key, _)| key.at)
    }

    /// The names that are present in the map.
    pub(crate) fn given<'k>(&self, names: &[&'k str]) -> Vec<&'k str> {
        names.iter().copied().filter(|name| self.has(name)).collect()
    }
}

impl<'s> Reader<'s> {
    pub(crate) fn new(file: &str, source: &'s str, secrets: Option<&'s SecretNames>) -> Self {
        Self { file: file.into(), source, secrets, problems: Vec::new(), warnings: Vec::new() }
    }

    pub(crate) fn problem(&self, at: Mark, message: String, hint: Option<String>) -> Problem {
        if self.is_full() {
            // This problem will not be reported, so its line is not needed.
            let (file, source) = (Arc::clone(&self.file), String::new());
            return Problem { file, line: 1, column: 1, length: 1, message, hint, source };
        }
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

    pub(crate) fn add(&mut self, at: Mark, problem: Problem) {
        if !self.is_full() {
            self.problems.push((at, problem));
        }
    }

    /// The nearest character boundary at or before a byte.
    fn boundary(&self, at: usize) -> usize {
        (0..=at.min(self.source.len())).rev().find(|at| self.source.is_char_boundary(*at)).unwrap_or(0)
    }

    pub(crate) fn refuse(&mut self, at: Mark, message: impl Into<String>) {
        let problem = self.problem(at, message.into(), None);
        self.add(at, problem);
    }

    pub(crate) fn refuse_hint(&mut self, at: Mark, message: impl Into<String>, hint: impl Into<String>) {
        let problem = self.problem(at, message.into(), Some(hint.into()));
        self.add(at, problem);
    }

    pub(crate) fn warn(&mut self, at: Mark, message: impl Into<String>, hint: Option<String>) {
        if self.warnings.len() < MAX_FOUND {
            let problem = self.problem(at, message.into(), hint);
            self.warnings.push((at, problem));
        }
    }

    /// Reads a map that may contain only these keys.
    pub(crate) fn fields<'n>(&mut self, node: &'n Node, what: &str, known: &[&str]) -> Option<Fields<'n>> {
        let Value::Map(entries) = &node.value else {
            let keys = known.join(", ");
            self.refuse_hint(
                node.at,
                format!("{what} must be a map, not {}", node.kind()),
                format!("its keys are {keys}"),
            );
            return None;
        };
        for (key, _) in entries {
            if !known.contains(&key.name.as_str()) {
                let hint = unknown_key(&key.name, known);
                self.refuse_hint(key.at, format!("{what} has no key `{}`", key.name), hint);
            }
        }
        let at = entries.first().map_or(node.at, |(key, _)| key.at);
        Some(Fields { entries, at })
    }

    pub(crate) fn required<'n>(&mut self, fields: &Fields<'n>, name: &str, what: &str) -> Option<&'n Node> {
        let found = fields.get(name);
        if found.is_none() {
            self.refuse(fields.at, format!("{what} needs `{name}`"));
        }
        found
    }

    pub(crate) fn list<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [Node]> {
        match &node.value {
            Value::List(items) => Some(items),
            _ => {
                self.refuse_hint(
                    node.at,
                    format!("{what} must be a list, not {}", node.kind()),
                    "write one entry to a line, each behind a `-`",
                );
                None
            }
        }
    }

    pub(crate) fn text<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) => Some(text),
            Value::Bool(_) | Value::Number(_) => {
                let written = self.source.get(node.at.start..node.at.end).unwrap_or_default();
                let hint = format!("put it in quotes: \"{}\"", written.trim());
                self.refuse_hint(node.at, format!("{what} must be a text, not {}", node.kind()), hint);
                None
            }
            _ => {
                self.refuse(node.at, format!("{what} must be a text, not {}", node.kind()));
                None
            }
        }
    }

    /// Rejects an unquoted word that other YAML parsers read as a boolean.
    pub(crate) fn is_yes_or_no(&mut self, node: &Node, text: &str) -> bool {
        let lower = text.to_ascii_lowercase();
        let ambiguous = matches!(&*lower, "yes" | "no" | "on" | "off" | "y" | "n")
            && text::style(self.source, node.at) == Style::Plain;
        if ambiguous {
            let hint = format!("write \"{text}\" for the text, or true or false for a boolean");
            self.refuse_hint(
                node.at,
                format!("`{text}` without quotes is ambiguous: some programs read a boolean, others a text"),
                hint,
            );
        }
        ambiguous
    }

    pub(crate) fn name(&mut self, node: &Node, what: &str) -> Option<Box<str>> {
        let text = self.text(node, what)?;
        (!self.is_yes_or_no(node, text) && self.valid_name(text, node.at, what, true)).then(|| text.into())
    }

    /// Names of machines and states may contain a hyphen; names of feeds may not, because they are used in paths.
    pub(crate) fn valid_name(&mut self, text: &str, at: Mark, what: &str, hyphen: bool) -> bool {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || hyphen && byte == b'-';
        let valid = (1..=64).contains(&text.len()) && text.bytes().all(letter);
        if !valid {
            let letters = if hyphen { "digits, _ and -" } else { "digits and _" };
            self.refuse_hint(
                at,
                format!("{what} cannot be called {text:?}"),
                format!("a name is 1 to 64 letters from A to Z, {letters}"),
            );
        }
        valid
    }

    pub(crate) fn boolean(&mut self, node: &Node, what: &str) -> Option<bool> {
        if let Value::Bool(value) = node.value {
            return Some(value);
        }
        self.refuse(node.at, format!("{what} must be true or false, not {}", node.kind()));
        None
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
        if number.is_none() {
            self.refuse(
                node.at,
                format!("{what} must be a whole number from {} to {}", bounds.start(), bounds.end()),
            );
        }
        number
    }

    /// Reads a duration; the bounds are in seconds.
    pub(crate) fn duration(
        &mut self,
        node: &Node,
        what: &str,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> Option<Duration> {
        let seconds = match &node.value {
            Value::Text(text) => signalbox_condition::duration(text),
            _ => None,
        };
        let Some(seconds) = seconds else {
            let hint = match &node.value {
                Value::Number(number) => format!("{number} seconds are written {number}s"),
                _ => "a duration is written 1d2h30m5s, units in this order, in whole numbers".to_owned(),
            };
            self.refuse_hint(node.at, format!("{what} must be a duration"), hint);
            return None;
        };
        let found = bounds.contains(&seconds).then(|| Duration::from_secs(seconds));
        if found.is_none() {
            let [least, most] =
                [*bounds.start(), *bounds.end()].map(|s| super::units(Duration::from_secs(s)));
            self.refuse(node.at, format!("{what} must be from {least} to {most}"));
        }
        found
    }

    pub(crate) fn zone(&mut self, node: &Node) -> Option<Zone> {
        let name = self.text(node, "a time zone")?;
        let zone = Zone::named(name);
        if zone.is_none() {
            let message = format!("unknown time zone {name:?}");
            self.refuse_hint(node.at, message, "use a name such as Europe/London or UTC");
        }
        zone
    }

    pub(crate) fn path(&mut self, node: &Node, what: &str) -> Option<Path> {
        let text = self.text(node, what)?;
        match metadata_path(text) {
            Ok(path) => Some(path),
            Err(why) => {
                let hint =
                    "keys are joined by dots: user.plan; a key with other characters needs double quotes";
                self.refuse_hint(node.at, format!("{what} must be a path below metadata: {why}"), hint);
                None
            }
        }
    }

    pub(crate) fn topic(&mut self, node: &Node) -> Option<Box<str>> {
        let topic = self.text(node, "a topic")?;
        if !is_topic(topic) {
            let hint =
                "use 1 to 64 letters from a to z and _; topics of Signalbox itself begin with signalbox.";
            self.refuse_hint(node.at, format!("invalid topic name {topic:?}"), hint);
            return None;
        }
        Some(topic.into())
    }

    /// Reads a text that may contain placeholders.
    pub(crate) fn template_text(&mut self, node: &Node, what: &str) -> Option<Text> {
        let text = self.text(node, what)?;
        match Text::parse(text) {
            Ok(text) => Some(text),
            Err(bad) => {
                let at = text::place(self.source, node.at, text, bad.at, bad.length);
                let problem = self.problem(at, bad.message, bad.hint);
                self.add(at, problem);
                None
            }
        }
    }

    /// Reads an address. Its scheme, host and port are fixed; metadata may fill in the path and the query.
    pub(crate) fn url(&mut self, node: &Node, what: &str) -> Option<Text> {
        let template = self.template_text(node, what)?;
        let Value::Text(written) = &node.value else { return None };
        if let Some(at) = written.find("${") {
            let at = text::place(self.source, node.at, written, at, 2);
            self.refuse_hint(at, "an address cannot contain secrets", "`${NAME}` is allowed only in headers");
            return None;
        }
        if let Err((message, hint)) = is_address(&template) {
            self.refuse_hint(node.at, format!("{what} is not a valid address: {message}"), hint);
            return None;
        }
        Some(template)
    }

    /// Reads a condition. Its errors are reported with their line of the file.
    pub(crate) fn condition(&mut self, node: &Node, feeds: &[&str]) -> Option<Condition> {
        let written = match &node.value {
            Value::Bool(value) => {
                let condition = Condition::parse(&value.to_string(), KnownFeeds::Only(feeds)).ok()?;
                for warning in condition.warnings() {
                    self.warn(node.at, warning.message(), None);
                }
                return Some(condition);
            }
            Value::Text(text) => text,
            _ => {
                let message = format!("a condition must be a text, true or false, not {}", node.kind());
                self.refuse(node.at, message);
                return None;
            }
        };
        if let Some((at, length)) = signalbox_condition::comment(written)
            && text::swallows(self.source, node.at)
        {
            let at = text::place(self.source, node.at, written, at, length);
            self.refuse_hint(
                at,
                "everything after this `#` would be a comment, because YAML joins these lines",
                "write the condition in a literal block: `exit_condition: |` and the lines below",
            );
            return None;
        }
        match Condition::parse(written, KnownFeeds::Only(feeds)) {
            Ok(condition) => {
                for warning in condition.warnings() {
                    let at = self.within(node, written, &warning);
                    self.warn(at, warning.message(), warning.hint().map(str::to_owned));
                }
                Some(condition)
            }
            Err(error) => {
                let at = self.within(node, written, &error);
                let problem = self.problem(at, error.message().to_owned(), error.hint().map(str::to_owned));
                self.add(at, problem);
                None
            }
        }
    }

    pub(crate) fn reference(&mut self, node: &Node, feeds: &[&str]) -> Option<Reference> {
        let written = self.text(node, "`path`")?;
        match Reference::parse(written, KnownFeeds::Only(feeds)) {
            Ok(path) => Some(path),
            Err(error) => {
                let at = self.within(node, written, &error);
                let problem = self.problem(at, error.message().to_owned(), error.hint().map(str::to_owned));
                self.add(at, problem);
                None
            }
        }
    }

    fn within(&self, node: &Node, written: &str, error: &signalbox_condition::Error) -> Mark {
        let at = text::offset(written, error.line(), error.column());
        let length = written[at..].chars().take(error.length()).map(char::len_utf8).sum();
        text::place(self.source, node.at, written, at, length)
    }
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
    let reference =
        Reference::parse(&whole, KnownFeeds::Only(&[])).map_err(|error| error.message().to_owned())?;
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
            super::template::Part::Literal(text) => filled.push_str(text),
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
