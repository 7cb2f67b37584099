//! Outgoing data: addresses, bodies, headers and tokens, with all placeholders filled in.
//!
//! Inside an address a value is percent-encoded, so that it can never become another path, query or host. A value that
//! consists of a single placeholder keeps its type.

use std::collections::BTreeSet;

use data_encoding::HEXLOWER;
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

use crate::definition::{Action, Call, Header, HeaderPart, Machine, Part, Path, Template, Text, Webhook};

/// A placeholder whose value is missing, is null, or is not allowed in its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfilled {
    /// `missing_fact`: the value is missing or null.
    #[error("missing_fact: {0} is null")]
    Missing(String),
    /// The value is a list or an object, which cannot be part of a text.
    #[error("{0} is a list or an object, and cannot be part of a text")]
    NotText(String),
    /// The result is not valid for a route action.
    #[error("{0}")]
    Unfit(String),
}

impl Unfilled {
    /// A stable identifier for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing(_) => "missing_fact",
            Self::NotText(_) | Self::Unfit(_) => "unfit_fact",
        }
    }
}

/// The values of placeholders.
#[derive(Debug, Clone, Copy)]
pub struct Filling<'a> {
    /// `<state_machine>`.
    pub state_machine: &'a str,
    /// `<label>`.
    pub label: &'a str,
    /// `<metadata.PATH>`.
    pub metadata: &'a Json,
}

impl Filling<'_> {
    fn value(&self, part: &Part) -> Result<Json, Unfilled> {
        match part {
            Part::Literal(text) => Ok((&**text).into()),
            Part::Label => Ok(self.label.into()),
            Part::StateMachine => Ok(self.state_machine.into()),
            Part::Metadata(path) => match path.of(self.metadata) {
                Json::Null => Err(Unfilled::Missing(path.to_string())),
                value => Ok(value.clone()),
            },
        }
    }

    fn text_of(&self, part: &Part) -> Result<String, Unfilled> {
        match self.value(part)? {
            Json::String(text) => Ok(text),
            value @ (Json::Number(_) | Json::Bool(_)) => Ok(value.to_string()),
            _ => Err(Unfilled::NotText(match part {
                Part::Metadata(path) => Path::to_string(path),
                _ => String::new(),
            })),
        }
    }
}

impl Text {
    /// Fills the template in as an address: values are percent-encoded.
    ///
    /// # Errors
    /// If a value is missing, or is not a scalar.
    pub fn address(&self, filling: Filling<'_>) -> Result<String, Unfilled> {
        let mut address = String::new();
        for part in self.parts() {
            match part {
                Part::Literal(text) => address.push_str(text),
                part => address.push_str(&percent_encoded(&filling.text_of(part)?)),
            }
        }
        if self.constant().is_none() && leaves_its_path(&address) {
            return Err(Unfilled::Unfit("a value would lead out of the address's path".into()));
        }
        Ok(address)
    }

    /// Fills the template in as text: values are inserted unchanged.
    ///
    /// # Errors
    /// If a value is missing, or is not a scalar.
    pub fn fill(&self, filling: Filling<'_>) -> Result<String, Unfilled> {
        self.parts().iter().map(|part| filling.text_of(part)).collect()
    }
}

/// Whether a segment of the path is `.` or `..`, encoded or not. Servers resolve these.
fn leaves_its_path(address: &str) -> bool {
    let path = address.split_once("://").map_or(address, |(_, rest)| rest);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    path.split('/').skip(1).any(|segment| matches!(segment, "." | ".."))
}

/// Whether a receiver that decodes the path before resolving it could leave the path.
fn may_leave_its_path(address: &str) -> bool {
    let path = address.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    leaves_its_path(&path.replace("%2e", ".").replace("%2f", "/").replace("%5c", "/").replace('\\', "/"))
}

/// A text with all characters percent-encoded except the unreserved ones of RFC 3986.
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

impl Template {
    /// Fills in all placeholders.
    ///
    /// # Errors
    /// If a value is missing, or is not a scalar where a text is required.
    pub fn fill(&self, filling: Filling<'_>) -> Result<Json, Unfilled> {
        Ok(match self {
            Self::Constant(value) => value.clone(),
            Self::Text(text) => match text.whole() {
                Some(part) => filling.value(part)?,
                None => text.fill(filling)?.into(),
            },
            Self::List(items) => {
                Json::Array(items.iter().map(|item| item.fill(filling)).collect::<Result<_, _>>()?)
            }
            Self::Object(entries) => {
                let entries = entries.iter().map(|(key, value)| Ok((key.to_string(), value.fill(filling)?)));
                Json::Object(entries.collect::<Result<Map<_, _>, _>>()?)
            }
        })
    }
}

/// The request of an action, ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Send this body to this address.
    Webhook {
        /// The address.
        url: String,
        /// `{"label", "metadata"}`.
        body: Json,
    },
    /// Change the route table.
    Route(RouteChange),
    /// Publish an event.
    Publish {
        /// The topic.
        topic: String,
        /// The type of the event.
        kind: String,
        /// The URL of its subject.
        url: String,
        /// Its payload.
        data: Option<Json>,
    },
}

/// A change of the route table. It is applied in the order `shares`, `register`, `retire`.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteChange {
    /// The host.
    pub host: String,
    /// The traffic split between version types, in percent.
    pub shares: Option<Vec<(String, f64)>>,
    /// Instances to register.
    pub register: Option<Register>,
    /// The version type whose instances are removed.
    pub retire: Option<Retire>,
}

/// Instances of a version type to register.
#[derive(Debug, Clone, PartialEq)]
pub struct Register {
    /// The version type.
    pub version_type: String,
    /// The instances as the metadata lists them: addresses, or objects as `PUT /instances` accepts them.
    pub instances: Vec<Json>,
}

/// A version type to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retire {
    /// The version type.
    pub version_type: String,
    /// The maximum time for its instances to finish their requests.
    pub drain: std::time::Duration,
}

impl Call {
    /// The request of an action for one visit.
    ///
    /// # Errors
    /// If a value is missing or invalid.
    pub fn request(&self, filling: Filling<'_>) -> Result<Request, Unfilled> {
        match self {
            Self::Webhook(url) => Ok(Request::Webhook {
                url: url.address(filling)?,
                body: json!({ "label": filling.label, "metadata": filling.metadata }),
            }),
            Self::Route(template) => route(&template.fill(filling)?).map(Request::Route),
            Self::Publish(template) => {
                let text = |key: &str| match template.get(key).map(|value| value.fill(filling)).transpose()? {
                    Some(Json::String(text)) => Ok(text),
                    Some(other @ (Json::Number(_) | Json::Bool(_))) => Ok(other.to_string()),
                    _ => Err(Unfilled::Unfit(format!("`{key}` of the event is not a text"))),
                };
                let url = match template.get("url") {
                    // A placeholder alone is a complete address already; a placeholder within a text is one
                    // part of an address.
                    Some(Template::Text(url)) if url.whole().is_none() => url.address(filling)?,
                    _ => text("url")?,
                };
                let data = template.get("data").map(|data| data.fill(filling)).transpose()?;
                Ok(Request::Publish { topic: text("topic")?, kind: text("type")?, url, data })
            }
        }
    }
}

/// Maximum size of the body of a webhook, bytes.
const MAX_BODY: usize = 128 * 1024;

impl Action {
    /// The request of an attempt.
    ///
    /// # Errors
    /// If a value is missing or invalid, or makes the body too large.
    pub fn request(&self, filling: Filling<'_>) -> Result<Request, Unfilled> {
        let mut request = self.call.request(filling)?;
        if let (Request::Webhook { body, .. }, Some(template)) = (&mut request, &self.body) {
            *body = template.fill(filling)?;
            if body.to_string().len() > MAX_BODY {
                return Err(Unfilled::Unfit(format!("the body is larger than {} KiB", MAX_BODY / 1024)));
            }
        }
        Ok(request)
    }
}

fn route(filled: &Json) -> Result<RouteChange, Unfilled> {
    let unfit = |what: &str| Unfilled::Unfit(format!("{what} of the route action"));
    // Ids may be texts or numbers.
    let id = |value: &Json, what: &str| match value {
        Json::String(text) if !text.is_empty() => Ok(text.clone()),
        Json::Number(number) => Ok(number.to_string()),
        other => Err(unfit(&format!("{what} cannot be {other}: `{what}` needs a text"))),
    };
    let shares = match filled.get("shares") {
        None => None,
        Some(Json::Array(shares)) => Some(
            shares
                .iter()
                .map(|share| {
                    let percent = share["percent"].as_f64().filter(|percent| (0.0..=100.0).contains(percent));
                    let percent = percent.ok_or_else(|| unfit("`shares` needs percentages from 0 to 100"))?;
                    Ok((id(&share["version_type"], "version_type")?, percent))
                })
                .collect::<Result<Vec<_>, Unfilled>>()?,
        ),
        Some(_) => return Err(unfit("`shares` must be a list")),
    };
    let register = filled.get("register").map(|register| {
        let instances = register["instances"].as_array().filter(|list| !list.is_empty());
        let instances = instances.ok_or_else(|| unfit("`register` must be a list of instances"))?;
        Ok(Register {
            version_type: id(&register["version_type"], "version_type")?,
            instances: instances.clone(),
        })
    });
    let retire = filled.get("retire").map(|retire| {
        let drain = match retire.get("drain") {
            None => Some(30),
            Some(Json::String(text)) => signalbox_condition::duration(text),
            Some(other) => other.as_u64(),
        };
        let drain = drain.filter(|seconds| *seconds <= 86_400);
        let drain = drain.ok_or_else(|| unfit("`drain` must be a duration of at most a day"))?;
        Ok(Retire {
            version_type: id(&retire["version_type"], "version_type")?,
            drain: std::time::Duration::from_secs(drain),
        })
    });
    Ok(RouteChange {
        host: id(&filled["host"], "host")?,
        shares,
        register: register.transpose()?,
        retire: retire.transpose()?,
    })
}

/// The idempotency token that all attempts of a visit share: the hexadecimal SHA-256 of machine, label, its
/// origin, its incarnation, visit and state, separated by NUL.
pub fn token(
    machine: &str,
    label: &str,
    (origin, incarnation): (u64, u32),
    visit: u64,
    state: &str,
) -> String {
    let text = format!("{machine}\0{label}\0{origin}\0{incarnation}\0{visit}\0{state}");
    HEXLOWER.encode(&Sha256::digest(text.as_bytes()))
}

impl Webhook {
    /// Whether an address begins with the prefix, or contains a match of the regular expression. A prefix
    /// never matches only a part of a host name.
    pub fn applies_to(&self, url: &str) -> bool {
        match &self.pattern {
            Some(pattern) => pattern.0.is_match(url),
            None => is_below(&self.prefix, url),
        }
    }
}

/// Whether an address begins with `prefix`. A prefix never matches only a part of a host name. An address
/// with `..` in its path never matches, because its receiver may resolve it to a path outside of the prefix.
pub fn is_below(prefix: &str, url: &str) -> bool {
    let Some(rest) = url.strip_prefix(prefix) else { return false };
    let whole_authority = prefix.split_once("://").is_some_and(|(_, rest)| rest.contains(['/', '?', '#']));
    (whole_authority || rest.is_empty() || rest.starts_with(['/', '?', '#'])) && !may_leave_its_path(url)
}

impl Header {
    fn secrets(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            HeaderPart::Secret(name) => Some(&**name),
            HeaderPart::Text(_) => None,
        })
    }

    /// The header's value with the secrets filled in. `None` if one is missing.
    pub fn value(&self, secret: impl Fn(&str) -> Option<String>) -> Option<String> {
        self.parts
            .iter()
            .map(|part| match part {
                HeaderPart::Text(text) => Some(text.to_string()),
                HeaderPart::Secret(name) => secret(name),
            })
            .collect()
    }
}

impl Machine {
    /// The names of all secrets that a call to an address needs, sorted, without repeats.
    pub fn secrets_for(&self, url: &str) -> Vec<&str> {
        let in_headers = self.headers_for(url).into_iter().flat_map(Header::secrets);
        in_headers.chain(self.secret_for(url)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The names of the secrets that headers and signatures use, sorted, without repeats.
    pub fn secrets(&self) -> Vec<&str> {
        let in_headers =
            self.webhooks().iter().flat_map(|webhook| &webhook.headers).flat_map(Header::secrets);
        let secrets = self.webhooks().iter().filter_map(|webhook| webhook.secret.as_deref());
        in_headers.chain(secrets).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The name of the secret that signs webhooks to an address: that of the entry with the longest matching
    /// prefix.
    pub fn secret_for(&self, url: &str) -> Option<&str> {
        let applying = self.webhooks().iter().filter(|entry| entry.secret.is_some() && entry.applies_to(url));
        applying.max_by_key(|entry| entry.prefix.len())?.secret.as_deref()
    }

    /// The headers for a call to an address. Of two with the same name, the one with the longer prefix is
    /// sent.
    pub fn headers_for(&self, url: &str) -> Vec<&Header> {
        let mut applying: Vec<&Webhook> =
            self.webhooks().iter().filter(|entry| entry.applies_to(url)).collect();
        applying.sort_by_key(|entry| std::cmp::Reverse(entry.prefix.len()));
        let mut headers: Vec<&Header> = Vec::new();
        for header in applying.into_iter().flat_map(|entry| &entry.headers) {
            if !headers.iter().any(|known| known.name.eq_ignore_ascii_case(&header.name)) {
                headers.push(header);
            }
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Text {
        Text::parse(text).unwrap()
    }

    const MACHINE: &str = "drip";

    #[test]
    fn inside_an_address_values_are_encoded() {
        let metadata = json!({"n": 5, "s": "a/b?c=ä", "o": {}, "d": "..", "dot": "."});
        let filling = Filling { state_machine: MACHINE, label: "a b/../c", metadata: &metadata };
        let address = |template: &str| text(template).address(filling);
        assert_eq!(
            address("http://h/<state_machine>/<label>?n=<metadata.n>").unwrap(),
            "http://h/drip/a%20b%2F..%2Fc?n=5"
        );
        assert_eq!(address("http://h/<metadata.s>").unwrap(), "http://h/a%2Fb%3Fc%3D%C3%A4");
        assert_eq!(address("http://h/v<metadata.d>5").unwrap(), "http://h/v..5");
        for up in ["http://h/a/<metadata.d>", "http://h/<metadata.d>?a", "http://h/a/<metadata.dot>./b"] {
            assert_eq!(address(up).unwrap_err().code(), "unfit_fact", "{up}");
        }
        assert_eq!(address("http://h/<metadata.x>"), Err(Unfilled::Missing("metadata.x".into())));
        assert_eq!(address("http://h/<metadata.o>"), Err(Unfilled::NotText("metadata.o".into())));
        assert_eq!(address("http://h/<metadata.x>").unwrap_err().code(), "missing_fact");
    }

    #[test]
    fn a_placeholder_alone_keeps_the_type_of_its_value() {
        let metadata = json!({"list": [1, {"a": null}], "n": 5});
        let filling = Filling { state_machine: MACHINE, label: "l", metadata: &metadata };
        let template = Template::Object(vec![
            ("list".into(), Template::Text(text("<metadata.list>"))),
            ("n".into(), Template::Text(text("<metadata.n>"))),
            ("text".into(), Template::Text(text("n is <metadata.n>"))),
            (
                "deep".into(),
                Template::List(vec![Template::Constant(json!(true)), Template::Text(text("a < b"))]),
            ),
        ]);
        assert_eq!(
            template.fill(filling).unwrap(),
            json!({"list": [1, {"a": null}], "n": 5, "text": "n is 5", "deep": [true, "a < b"]})
        );
    }

    #[test]
    fn a_token_is_of_one_visit() {
        let one = token("m", "l", (5, 1), 2, "s");
        assert_eq!(one.len(), 64);
        assert_eq!(one, token("m", "l", (5, 1), 2, "s"));
        for other in [
            token("m", "l", (5, 1), 3, "s"),
            token("m", "l", (5, 2), 2, "s"),
            token("m", "l", (6, 1), 2, "s"),
            token("m", "l2", (5, 1), 2, "s"),
            token("m", "l", (5, 12), 0, "s"),
            token("m", "l", (5, 1), 2, "t"),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_prefix_never_reaches_another_host() {
        let webhook = |prefix: &str| Webhook {
            prefix: prefix.into(),
            pattern: None,
            headers: Vec::new(),
            secret: None,
        };
        for (prefix, url, applies) in [
            ("https://api.example", "https://api.example/a", true),
            ("https://api.example", "https://api.example?a", true),
            ("https://api.example", "https://api.example", true),
            ("https://api.example", "https://api.example.evil/a", false),
            ("https://api.example", "https://api.example:8443/a", false),
            ("https://api.example", "https://api.example@evil/a", false),
            ("https://api.example/", "https://api.example/a", true),
            ("https://api.example/v1", "https://api.example/v12", true),
            ("https://api.example", "http://api.example/a", false),
            ("https://api.example/v1/", "https://api.example/v1/../v2", false),
            ("https://api.example/v1/", "https://api.example/v1/%2E%2e/v2", false),
            ("https://api.example/v1/", "https://api.example/v1/..%2fv2", false),
            ("https://api.example/v1/", "https://api.example/v1/..%5cv2", false),
            ("https://api.example/v1/", "https://api.example/v1/a?b=../c", true),
        ] {
            assert_eq!(webhook(prefix).applies_to(url), applies, "{prefix} {url}");
        }
    }

    #[test]
    fn a_route_is_checked_when_it_is_filled_in() {
        let change = route(&json!({"host": "shop", "shares": [{"version_type": 18, "percent": 5}],
            "retire": {"version_type": "17", "drain": "1m"}}))
        .unwrap();
        assert_eq!(change.shares, Some(vec![("18".into(), 5.0)]));
        assert_eq!(change.retire.unwrap().drain.as_secs(), 60);
        for bad in [
            json!({"host": {}}),
            json!({"host": "a", "shares": 1}),
            json!({"host": "a", "shares": [{"version_type": "1", "percent": 101}]}),
            json!({"host": "a", "register": {"version_type": "1", "instances": []}}),
            json!({"host": "a", "retire": {"version_type": "1", "drain": "2d"}}),
        ] {
            assert_eq!(route(&bad).unwrap_err().code(), "unfit_fact", "{bad}");
        }
    }
}
