//! A machine's interfaces: feeds, inputs, headers.

use std::{fmt, time::Duration};

use serde_json::Value as Json;

use super::{model::Path, template::Text};

/// A source of values that conditions may read as `feeds.NAME`.
#[derive(Debug, Clone, PartialEq)]
pub struct Feed {
    /// Its name.
    pub name: Box<str>,
    /// Where the value comes from.
    pub source: FeedSource,
    /// The timeout of a query.
    pub timeout: Duration,
    /// How long an answer may be reused.
    pub ttl: Duration,
    /// What conditions read if the feed cannot be queried.
    pub on_error: OnError,
}

/// Where a feed's value comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedSource {
    /// GET of a JSON text.
    Url(Text),
    /// The statistics of the edge.
    Stats(Stats),
}

/// A query of the edge's statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// The kind of subject: `version_type`, `version`, `application`, `workspace` or `node`.
    pub of: &'static str,
    /// The id of the subject.
    pub id: Text,
    /// The length of the time window, in whole seconds. The window ends with the last complete second.
    pub window: Duration,
}

/// How a failed feed is treated.
#[derive(Debug, Clone, PartialEq)]
pub enum OnError {
    /// Its values are unknown, and it is queried again later.
    Hold,
    /// This value is used instead.
    Default(Json),
}

/// An input: a topic whose events update the metadata of labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The topic.
    pub topic: Box<str>,
    /// The part of an event that names the label.
    pub label: EventPath,
    /// The metadata path into which the event's `data` is merged.
    pub into: Option<Path>,
    /// Whether a label that does not exist is created.
    pub create: bool,
}

/// A part of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of an event")]
pub enum EventPath {
    Object,
    Url,
    Tenant,
    /// A path below `data`.
    Data(Path),
}

/// Limits of the webhook attempts to one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Scheme, host and port in the spelling of [`origin`].
    pub target: Box<str>,
    /// The maximum number of attempts that may begin in a period, and the length of the period.
    pub rate: Option<(u32, Duration)>,
    /// The maximum number of attempts in progress.
    pub concurrent: Option<u32>,
}

/// Scheme, host and port of an address in canonical form: lower case, without the default port.
pub(super) fn origin(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().filter(|authority| !authority.is_empty())?;
    let scheme = scheme.to_ascii_lowercase();
    let default = if scheme == "http" { ":80" } else { ":443" };
    let authority = authority.strip_suffix(default).unwrap_or(authority).to_ascii_lowercase();
    Some(format!("{scheme}://{authority}"))
}

/// Headers for outgoing calls to matching addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// The beginning of the address, or the text of the regular expression.
    pub prefix: Box<str>,
    /// A regular expression that must match a part of the address; it replaces the prefix.
    pub pattern: Option<Pattern>,
    /// The headers to send.
    pub headers: Vec<Header>,
    /// The name of the secret that signs webhooks.
    pub secret: Option<Box<str>>,
}

/// A regular expression. Two expressions are equal if their texts are equal.
#[derive(Debug, Clone)]
pub struct Pattern(pub(crate) regex::Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

/// A header of outgoing calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: Box<str>,
    /// Its value. Secrets (`${NAME}`) are not filled in yet.
    pub parts: Vec<HeaderPart>,
}

/// A part of a header's value.
#[derive(Clone, PartialEq, Eq)]
pub enum HeaderPart {
    /// Literal text.
    Text(Box<str>),
    /// The value of the secret with this name.
    Secret(Box<str>),
}

impl fmt::Debug for HeaderPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The text may contain a password.
            Self::Text(_) => f.write_str("…"),
            Self::Secret(name) => write!(f, "${{{name}}}"),
        }
    }
}
