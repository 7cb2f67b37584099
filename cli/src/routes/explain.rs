//! `signalbox routes explain`: what a request would get, and why.

use signalbox_client::{
    routes::{Answer, By, Choice, Explanation, StepResult},
    with_query,
};

use crate::{
    exit::Failure,
    remote::Remote,
    terminal::{self, out},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// Host name of the request, or its URL
    host: String,
    /// Path of the request
    #[arg(long)]
    path: Option<String>,
    /// A header of the request, such as 'X-User: ann'
    #[arg(long, value_name = "HEADER")]
    header: Option<String>,
    /// The cookies of the request, such as 'sid=1f7a'
    #[arg(long, value_name = "COOKIES")]
    cookie: Option<String>,
    /// The IP address of the client
    #[arg(long, value_name = "IP")]
    address: Option<String>,
}

/// Host and path of a URL; a host name has no path.
fn target(text: &str) -> Result<(&str, Option<&str>), Failure> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return match text.split_once('/') {
            None => Ok((text, None)),
            Some((host, _)) => Ok((host, Some(text.get(host.len()..).unwrap_or_default()))),
        };
    };
    if !["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) {
        return Err(Failure::configuration(format!(
            "{text}: must be a host name, or begin with http:// or https://"
        )));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let path = path.split('#').next().unwrap_or_default();
    Ok((host, Some(if path.starts_with('/') { path } else { "/" })))
}

pub(super) async fn run(args: Explain, remote: &Remote) -> Result<(), Failure> {
    let (host, path) = target(&args.host)?;
    let scheme = args.host.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    let pairs = [
        ("host", Some(host)),
        ("path", args.path.as_deref().or(path)),
        ("header", args.header.as_deref()),
        ("cookie", args.cookie.as_deref()),
        ("address", args.address.as_deref()),
        ("method", Some("GET")),
        ("scheme", scheme.as_deref()),
    ];
    let explanation: Explanation = remote.client()?.get(&with_query("/routes/explain", &pairs)).await?;
    remote.show(&explanation, print)
}

/// The instance of the request that the flags describe.
fn chosen(request: &Choice) -> String {
    let address = request.address.as_deref().unwrap_or("-");
    match request.by {
        By::Session => format!("Its session leads it to {address}."),
        By::Hash => format!("Its hash leads it to {address}."),
        By::OnlyOne => format!("Only {address} is possible."),
        By::Chance => "Any of the usable instances is possible.".to_owned(),
        By::NoInstance => "No instance receives it.".to_owned(),
        By::UnreadableSession => {
            "It has a session that this pacemaker cannot read (edge_key_file is not set).".to_owned()
        }
    }
}

fn print(explanation: &Explanation) {
    let last = explanation.steps.last().filter(|step| step.result == StepResult::Ends);
    let answer = match (last, explanation.answer) {
        (Some(step), _) => {
            let status = step.status.map_or_else(String::new, |status| format!(" with {status}"));
            format!("is answered by the edge{status} ({})", step.check)
        }
        // The table of paths was not asked.
        (None, Answer::Proxied) if explanation.path.is_none() => {
            "is routed to an instance, unless a rule for its path says otherwise".to_owned()
        }
        (None, Answer::Proxied) => "is routed to an instance".to_owned(),
        (None, Answer::NoInstance) => "is answered 503: no instance is available".to_owned(),
        (None, Answer::NoRoute) => "is answered 404: the host is not in the table".to_owned(),
    };
    out!("A request for {} {answer}.", explanation.host);
    if let Some(state) = &explanation.state {
        out!("  {}", state.summary);
    }
    for candidate in &explanation.candidates {
        let found = match (candidate.exists, explanation.matched.as_deref() == Some(&candidate.name)) {
            (true, true) => "matches",
            (true, false) => "is in the table, but a more specific name matches",
            (false, _) => "is not in the table",
        };
        out!("  {} {found}", candidate.name);
    }
    if let Some(path) = &explanation.path {
        let why = match (&path.rule, &path.service) {
            (Some(rule), Some(service)) => format!("the rule {rule} leads it to {service}"),
            (Some(rule), None) => format!("the rule {rule} applies"),
            (None, _) => "no rule matches".to_owned(),
        };
        out!("  The instance receives the path {}: {why}.", path.sent);
    }
    for step in &explanation.steps {
        out!("  {}: {}", step.check, step.detail);
    }
    if let Some(request) = &explanation.request {
        out!("  {}", chosen(request));
    }
    for share in explanation.shares.iter().filter(|share| share.percent > 0.0 && share.instances == 0) {
        let version = &share.version_type;
        out!(
            "  Problem: {version} has a share of {}%, and no usable instance; others receive it.",
            share.percent
        );
    }
    for instance in &explanation.instances {
        let id = terminal::or_dash(instance.id.as_ref());
        let why = match (&instance.reason, instance.usable) {
            (_, true) => "receives requests".to_owned(),
            (Some(reason), false) => format!("receives no requests: {reason}"),
            (None, false) => "receives no requests".to_owned(),
        };
        out!("  {} ({id}) {why}", instance.address);
    }
    if explanation.fail_open {
        terminal::line("  More than half of the instances are unhealthy, so health checks are ignored.");
    }
    if let Some(key) = &explanation.log_key {
        out!("Counted under version type {key}; instance chosen by {}.", explanation.algorithm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_named_by_its_host_or_its_url() {
        for (text, host, path) in [
            ("shop.test", "shop.test", None),
            ("shop.test/cart", "shop.test", Some("/cart")),
            ("http://shop.test", "shop.test", Some("/")),
            ("HTTPS://shop.test:8443/a?b=c#d", "shop.test:8443", Some("/a?b=c")),
            ("http://shop.test?b", "shop.test", Some("/")),
        ] {
            assert_eq!(target(text).unwrap(), (host, path), "{text}");
        }
        assert!(target("ftp://shop.test/").unwrap_err().message().contains("must be a host name"));
    }
}
