//! What a typed request would get: method, URL, a header and the client's address, answered step by step.

use super::{View, Visit};
use crate::{
    api::routing::{line, visible_explanation},
    http::Problem,
};
use signalbox_api::routes::{By, Choice, Step, StepResult};
use signalbox_route_table::{Answer, Asked, Explanation, Hostname, Question, RequestPath};

/// Methods of the form.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// The form and its result, for the template.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) methods: Vec<(&'static str, bool)>,
    pub(super) url: String,
    pub(super) header: String,
    pub(super) address: String,
    /// Why the form cannot be answered, or the steps; empty before it is submitted.
    pub(super) answer: Result<Vec<Row>, String>,
    /// The same as a command.
    pub(super) command: String,
}

/// A step in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) title: String,
    /// The CSS class of the badge, and its text.
    pub(super) class: &'static str,
    pub(super) result: String,
    pub(super) detail: String,
}

pub(super) async fn of(visit: Visit<'_>, hostname: &Hostname) -> Trial {
    let view = visit.view;
    let method = if view.method.is_empty() { "GET" } else { &view.method };
    let answer = if view.url.is_empty() {
        Ok(Vec::new())
    } else {
        steps(visit, method, hostname).await.map_err(|problem| problem.detail().to_owned())
    };
    let url = if view.url.is_empty() { format!("http://{hostname}/") } else { view.url.clone() };
    Trial {
        methods: METHODS.into_iter().map(|one| (one, one == method)).collect(),
        command: command(&url, hostname.as_str(), view),
        url,
        header: view.header.clone(),
        address: view.address.clone(),
        answer,
    }
}

/// The same question as a command.
fn command(url: &str, hostname: &str, view: &View) -> String {
    // The command has no page whose host a path could belong to.
    let url = if url.starts_with('/') { format!("http://{hostname}{url}") } else { url.to_owned() };
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let flags = [("--header", &view.header), ("--address", &view.address)];
    let given = flags.into_iter().filter(|(_, value)| !value.trim().is_empty());
    let given = given.flat_map(|(flag, value)| [flag.to_owned(), quoted(value.trim())]);
    let words = ["signalbox routes explain".to_owned(), quoted(&url)].into_iter().chain(given);
    words.collect::<Vec<_>>().join(" ")
}

/// Scheme, host and path of a URL; the host of the page if there is only a path.
fn parts<'a>(url: &'a str, hostname: &'a str) -> (&'static str, &'a str, &'a str) {
    let (scheme, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => ("https", rest),
        (_, Some(rest)) => ("http", rest),
        _ if url.starts_with('/') => return ("http", hostname, url),
        _ => ("http", url),
    };
    let rest = rest.split('#').next().unwrap_or(rest);
    match rest.find(['/', '?']) {
        Some(at) if rest[at..].starts_with('/') => (scheme, &rest[..at], &rest[at..]),
        Some(at) => (scheme, &rest[..at], "/"),
        None => (scheme, rest, "/"),
    }
}

async fn steps(
    Visit { app, caller, view, .. }: Visit<'_>,
    method: &str,
    hostname: &Hostname,
) -> Result<Vec<Row>, Problem> {
    let (scheme, host, path) = parts(&view.url, hostname.as_str());
    let host = signalbox_route_table::host_of(host);
    let asked_host = Hostname::parse(&host)?;
    if !caller.may_touch(&asked_host) {
        return Err(signalbox_routing::Error::HostNotAllowed { hostname: host }.into());
    }
    let some = |text: &str| (!text.trim().is_empty()).then(|| text.trim().to_owned());
    let (header, address) = (some(&view.header), some(&view.address));
    // The form has one field for all headers that matter; a Cookie header has its own meaning.
    let cookie = header.as_deref().and_then(|line| line.split_once(':'));
    let cookie =
        cookie.filter(|(name, _)| name.trim().eq_ignore_ascii_case("cookie")).map(|(_, value)| value.trim());
    let plain = header.as_deref().filter(|_| cookie.is_none());
    let asked = Asked::parse(plain, cookie, address.as_deref())?;
    let secret = app.certificates.edge_key_for("sticky");
    let question =
        Question { asked: asked.as_ref(), secret: secret.as_ref(), line: line(Some(method), Some(scheme))? };
    let path = RequestPath::parse(path)?;
    let explanation = app.registry.explain(caller, host, Some(&path), question).await?;
    Ok(rows(&visible_explanation(explanation, caller)))
}

fn row(
    title: impl Into<String>,
    class: &'static str,
    result: impl Into<String>,
    detail: impl Into<String>,
) -> Row {
    Row { title: title.into(), class, result: result.into(), detail: detail.into() }
}

fn rows(explanation: &Explanation) -> Vec<Row> {
    let mut rows = vec![match &explanation.matched {
        Some(name) => {
            row("Host", "good", "found", format!("{} is served by the name {name}.", explanation.host))
        }
        None => row("Host", "bad", "404", format!("The route table has no name for {}.", explanation.host)),
    }];
    if explanation.matched.is_none() {
        return rows;
    }
    if let Some(path) = &explanation.path {
        rows.push(match (&path.rule, &path.service) {
            (Some(rule), Some(service)) => row(
                "Path",
                "good",
                "rule",
                format!("{rule} leads to {service}, which receives {}.", path.sent),
            ),
            (Some(rule), None) => {
                row("Path", "good", "rule", format!("{rule} applies; the host serves {}.", path.sent))
            }
            (None, _) => row("Path", "idle", "no rule", format!("The host itself serves {}.", path.sent)),
        });
    }
    rows.extend(explanation.steps.iter().map(step));
    if explanation.steps.last().is_some_and(|step| step.result == StepResult::Ends) {
        return rows;
    }
    rows.push(match explanation.answer {
        Answer::Proxied => instance(explanation),
        Answer::NoInstance => row("Instance", "bad", "503", "No instance can receive the request."),
        Answer::NoRoute => row("Instance", "bad", "404", "The route table has no match."),
    });
    rows
}

fn step(step: &Step) -> Row {
    let title = match step.check.as_str() {
        "addresses" => "Client address",
        "https" => "HTTPS",
        "basic" => "User name and password",
        "forward" => "Authentication",
        "body_bytes" => "Size of the body",
        "limits" => "Limits",
        "methods" => "Method",
        "pause" => "Pause",
        "redirect" => "Redirect",
        "maintenance" => "Maintenance",
        other => other,
    };
    let status = step.status.map_or_else(String::new, |status| status.to_string());
    match step.result {
        StepResult::Passes => row(title, "good", "passes", &step.detail),
        StepResult::Ends if step.status.is_some_and(|status| status < 400) => {
            row(title, "warn", status, &step.detail)
        }
        StepResult::Ends => row(title, "bad", status, &step.detail),
        StepResult::Depends => row(title, "warn", format!("or {status}"), &step.detail),
    }
}

fn instance(explanation: &Explanation) -> Row {
    let named = |address: &str| {
        let found = explanation.instances.iter().find(|one| one.address == address);
        found.and_then(|one| one.id.clone()).unwrap_or_else(|| address.to_owned())
    };
    let usable = explanation.instances.iter().filter(|one| one.usable).count();
    let detail = match &explanation.request {
        Some(Choice { by, address: Some(address), .. }) => {
            let why = match by {
                By::Session => "its session is there",
                By::Hash => "the hash of the request selects it",
                By::OnlyOne => "it is the only one",
                _ => "it is chosen",
            };
            format!("{} receives the request: {why}.", named(address))
        }
        Some(Choice { by: By::UnreadableSession, .. }) => {
            "It has a session, which this pacemaker cannot read: it has no edge_key_file.".to_owned()
        }
        _ => {
            let mut chances: Vec<_> = explanation.instances.iter().filter(|one| one.chance > 0.0).collect();
            chances.sort_by(|a, b| b.chance.total_cmp(&a.chance));
            let list: Vec<String> = chances
                .iter()
                .take(5)
                .map(|one| format!("{} {:.0}%", named(&one.address), one.chance * 100.0))
                .collect();
            let plural = if usable == 1 { "instance" } else { "instances" };
            format!("One of {usable} {plural}, by {}: {}.", explanation.algorithm, list.join(", "))
        }
    };
    row("Instance", "good", "routed", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_the_host_of_a_path() {
        let view = View { address: "192.0.2.1".to_owned(), ..View::default() };
        let shown = command("/x", "a.test", &view);
        assert_eq!(shown, "signalbox routes explain 'http://a.test/x' --address '192.0.2.1'");
    }

    #[test]
    fn a_request_is_typed_as_a_url_or_a_path() {
        assert_eq!(parts("https://a.test:8443/x?y#z", "h"), ("https", "a.test:8443", "/x?y"));
        assert_eq!(parts("a.test", "h"), ("http", "a.test", "/"));
        assert_eq!(parts("/x", "h"), ("http", "h", "/x"));
        assert_eq!(parts("http://a.test?x=1", "h"), ("http", "a.test", "/"));
    }
}
