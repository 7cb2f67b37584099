//! The policy of a host in words, and its editor.
//!
//! The editor has a field for each common part, a table for path rules, and the whole policy as JSON. The fields only change
//! the JSON, which is what the API receives, so a part without a field is never lost.

use askama::Template;
use serde_json::Value;

use super::{Content, Kind, Visit, link, plain, segment};
use crate::{api::routing::visible_policy, http::Problem};
use signalbox_access::Scope;
use signalbox_route_table::{Hostname, Policy};
use signalbox_routing::Error;

/// A group of fields of the editor.
#[derive(Debug)]
pub(super) struct Group {
    title: &'static str,
    fields: &'static [Field],
}

/// A field of the editor.
#[derive(Debug)]
pub(super) struct Field {
    /// Its path in the policy. The API names fields in the same way.
    name: &'static str,
    label: &'static str,
    /// How it is typed: `number`, `text`, `lines`, `words`, or `select`.
    kind: &'static str,
    choices: &'static [&'static str],
    /// What an empty field means, or the form of a value.
    hint: &'static str,
}

const fn field(name: &'static str, label: &'static str, kind: &'static str, hint: &'static str) -> Field {
    Field { name, label, kind, choices: &[], hint }
}

const fn choice(
    name: &'static str,
    label: &'static str,
    choices: &'static [&'static str],
    hint: &'static str,
) -> Field {
    Field { name, label, kind: "select", choices, hint }
}

const GROUPS: [Group; 5] = [
    Group {
        title: "Access",
        fields: &[
            field(
                "access.allow",
                "Allowed networks",
                "lines",
                "one per line, such as 10.0.0.0/8; empty: all",
            ),
            field("access.deny", "Denied networks", "lines", "also within allowed ones"),
            field("access.forward.service", "Authentication by host", "text", "empty: none"),
            field("access.forward.path", "Its path", "text", "default: /"),
            field("methods", "Methods", "words", "such as GET POST; empty: all"),
            choice(
                "https",
                "Without HTTPS",
                &["redirect", "only", "any"],
                "redirect, reject (only), or serve (any)",
            ),
        ],
    },
    Group {
        title: "Limits",
        fields: &[
            field(
                "limits.requests.per_second",
                "Requests per second and client",
                "number",
                "empty: no limit",
            ),
            field("limits.requests.burst", "Burst", "number", "default: the requests of one second"),
            field("limits.connections.most", "Requests in flight per client", "number", "empty: no limit"),
            field("body_bytes", "Bytes of a request body", "number", "empty: no limit"),
        ],
    },
    Group {
        title: "Balancing",
        fields: &[
            choice("balance.algorithm", "Algorithm", &["round_robin", "p2c", "hash"], "default: round_robin"),
            field("balance.header", "Hash of header", "text", "for hash"),
            field("sticky.cookie", "Sticky sessions: cookie", "text", "empty: none"),
            field("slow_start_ms", "Slow start, ms", "number", "1 to 3,600,000"),
        ],
    },
    Group {
        title: "Failures",
        fields: &[
            field("retries.attempts", "Attempts", "number", "default: one per instance"),
            field("retries.budget_percent", "Retry budget, %", "number", "default: 20"),
            field("hold_ms", "Wait for an instance, ms", "number", "while the host has none, at most 60,000"),
            field("timeouts.connect_ms", "Connect timeout, ms", "number", ""),
            field("timeouts.read_ms", "Read timeout, ms", "number", "between two reads"),
            field("timeouts.send_ms", "Send timeout, ms", "number", "between two writes"),
            choice("buffering", "Buffer responses", &["true", "false"], "true: read ahead of slow clients"),
        ],
    },
    Group {
        title: "Redirect and maintenance",
        fields: &[
            field("redirect.to", "Redirect to", "text", "a URL or a path; empty: none"),
            choice(
                "redirect.status",
                "Status of the redirect",
                &["301", "302", "307", "308"],
                "default: 308",
            ),
            field("maintenance.status", "Maintenance status", "number", "answers every request; empty: none"),
            field("maintenance.body", "Maintenance text", "text", ""),
        ],
    },
];

#[derive(Debug, Template)]
#[template(path = "dashboard/policy.html")]
struct Page {
    name: Hostname,
    /// The revision that is shown; 0 without a policy.
    revision: u64,
    groups: &'static [Group],
    policy: String,
    may_change: bool,
}

/// The policy of a host in words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) paths: Vec<PathRow>,
    /// Who may use the host, and everything else: name and value.
    pub(super) access: Vec<(String, String)>,
    pub(super) rest: Vec<(String, String)>,
    /// The policy with line breaks; empty without one.
    pub(super) json: String,
}

/// A rule for a path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PathRow {
    pub(super) path: String,
    pub(super) exact: bool,
    pub(super) leads_to: String,
    /// The address of the page of the host that it leads to; empty if there is none.
    pub(super) link: String,
    pub(super) strip: bool,
    pub(super) access: String,
}

pub(super) async fn content(Visit { app, caller, view, .. }: Visit<'_>) -> Result<Content, Problem> {
    let hostname = Hostname::parse(&view.name)?;
    if !caller.may_touch(&hostname) {
        return Err(Error::HostNotAllowed { hostname: hostname.to_string() }.into());
    }
    let stored = app.registry.store().policy(&hostname).await?;
    let revision = stored.as_ref().map_or(0, |wanted| wanted.revision);
    let policy = stored.map(|wanted| visible_policy(wanted.value, caller)).unwrap_or_default();
    plain(&Page {
        name: hostname,
        revision,
        groups: &GROUPS,
        policy: serde_json::to_string_pretty(&policy).unwrap_or_else(|_| "{}".to_owned()),
        may_change: caller.has_any(&[Scope::Routes]),
    })
}

pub(super) fn shown(policy: Option<&Policy>) -> Shown {
    let value = policy.and_then(|policy| serde_json::to_value(policy).ok()).unwrap_or_default();
    let Some(members) = value.as_object().filter(|members| !members.is_empty()) else {
        return Shown::default();
    };
    let mut rest = Vec::new();
    for (name, value) in members.iter().filter(|(name, _)| !matches!(&***name, "access" | "paths")) {
        flatten(name, value, &mut rest);
    }
    let mut access = Vec::new();
    if let Some(rules) = members.get("access") {
        flatten("", &users_only(rules), &mut access);
    }
    Shown {
        paths: members.get("paths").and_then(Value::as_array).into_iter().flatten().map(path_row).collect(),
        access,
        rest,
        json: serde_json::to_string_pretty(&value).unwrap_or_default(),
    }
}

/// Access rules with the names of users instead of their hidden passwords.
fn users_only(rules: &Value) -> Value {
    let mut rules = rules.clone();
    if let Some(users) = rules.pointer_mut("/basic/users") {
        let names: Vec<Value> =
            users.as_object().into_iter().flat_map(|users| users.keys().cloned().map(Value::from)).collect();
        *users = names.into();
    }
    rules
}

fn path_row(rule: &Value) -> PathRow {
    let text = |name: &str| rule[name].as_str().unwrap_or_default().to_owned();
    let mut access = Vec::new();
    flatten("", &users_only(&rule["access"]), &mut access);
    let access = match (rule["access"].is_object(), access.is_empty()) {
        (false, _) => "as the host".to_owned(),
        (true, true) => "every client".to_owned(),
        (true, false) => {
            access.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("; ")
        }
    };
    let (service, redirect) = (text("service"), rule["redirect"]["to"].as_str());
    PathRow {
        path: text("path"),
        exact: rule["match"] == "exact",
        link: if service.is_empty() { String::new() } else { link(Kind::Host, &service) },
        leads_to: match redirect {
            Some(to) => format!("redirect to {to}"),
            None if service.is_empty() => "this host".to_owned(),
            None => service,
        },
        strip: rule["strip"] == true,
        access,
    }
}

/// Each value with its path in words: `limits requests per second`.
fn flatten(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let words = || name.replace(['.', '_'], " ");
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Object(members) => {
            for (member, value) in members {
                let path = if name.is_empty() { member.clone() } else { format!("{name}.{member}") };
                flatten(&path, value, rows);
            }
        }
        Value::Array(list) if list.iter().all(|one| !one.is_object()) => {
            rows.push((words(), list.iter().map(text).collect::<Vec<_>>().join(", ")));
        }
        Value::Array(list) => {
            let one = |item: &Value| match item.as_object() {
                Some(members) => members.values().map(text).collect::<Vec<_>>().join(": "),
                None => text(item),
            };
            rows.push((words(), list.iter().map(one).collect::<Vec<_>>().join(", ")));
        }
        Value::Null => {}
        _ => rows.push((words(), text(value))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn policy(json: &str) -> Policy {
        serde_json::from_str::<Policy>(json).unwrap().check().unwrap()
    }

    #[test]
    fn a_policy_is_shown_in_words_without_passwords() {
        let policy = policy(
            r#"{"access":{"allow":["10.0.0.0/8"],"basic":{"users":{"ann":"(hidden)"}}},"hold_ms":5,
            "shares":[{"version_type":"7","percent":100}],
            "paths":[{"path":"/api","service":"b.test","strip":true,"access":{}},{"path":"/x","match":"exact","redirect":{"to":"/y"}}]}"#,
        );
        let shown = shown(Some(&policy));
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        assert_eq!(
            shown.access,
            [("allow", "10.0.0.0/8"), ("basic users", "ann")].iter().map(pair).collect::<Vec<_>>()
        );
        assert_eq!(shown.rest, [("hold ms", "5"), ("shares", "100: 7")].iter().map(pair).collect::<Vec<_>>());
        let paths: Vec<_> =
            shown.paths.iter().map(|row| (&*row.leads_to, row.exact, row.strip, &*row.access)).collect();
        assert_eq!(
            paths,
            [("b.test", false, true, "every client"), ("redirect to /y", true, false, "as the host")]
        );
        assert_eq!(super::shown(None), Shown::default());
    }

    #[test]
    fn every_field_of_the_editor_is_a_field_of_a_policy() {
        let mut names = BTreeSet::new();
        for field in GROUPS.iter().flat_map(|group| group.fields) {
            assert!(names.insert(field.name), "{} occurs twice", field.name);
            let value = match (field.kind, field.choices) {
                ("number", _) => Value::from(500),
                ("lines" | "words", _) => Value::from(vec!["192.0.2.1"]),
                // As the editor's script reads it.
                ("select", [first, ..]) => {
                    serde_json::from_str(first).unwrap_or_else(|_| Value::from(*first))
                }
                _ => Value::from("x"),
            };
            let nested = field.name.rsplit('.').fold(value, |value, part| {
                let mut object = serde_json::Map::new();
                object.insert(part.to_owned(), value);
                Value::Object(object)
            });
            // Some parts have other required members, but none may be unknown.
            if let Err(error) = serde_json::from_value::<Policy>(nested) {
                assert!(error.to_string().contains("missing field"), "{}: {error}", field.name);
            }
        }
    }
}
