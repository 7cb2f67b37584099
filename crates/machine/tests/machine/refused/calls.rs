//! Refusals of what a machine exchanges with others: feeds, inputs, limits, actions, headers with secrets.

use super::{problems, refused, states};
use signalbox_machine::{definition::SecretNames, load};

#[test]
fn invalid_feeds_inputs_and_headers_are_rejected() {
    let machine = |keys: &str| format!("state_machines:\n  m:\n    states: [{{gate: a}}]\n    {keys}\n");
    let feed = |keys: &str| machine(&format!("feeds: [{{{keys}}}]"));
    refused(&feed("name: stats, url: 'http://h/'"), "4:20 a feed cannot be named `stats`");
    refused(&feed("name: a-b, url: 'http://h/'"), "4:20 a feed cannot be called \"a-b\"");
    refused(&feed("name: a"), "4:14 a feed needs `url` or `stats`");
    refused(
        &feed("name: a, url: 'http://h/', stats: {node: a, window: 1m}"),
        "4:41 a feed cannot have both `url` and `stats`",
    );
    refused(
        &machine("feeds: [{name: a, url: 'http://h/'}, {name: a, url: 'http://h/'}]"),
        "4:49 a feed named `a` exists already",
    );
    for (url, message) in [
        ("h/x", "`url` is not a valid address: it must begin with http:// or https://"),
        ("ftp://h/x", "`url` is not a valid address: it must begin with http:// or https://"),
        ("http://", "`url` is not a valid address: empty host"),
        ("http://a b/", "`url` is not a valid address: it contains a space"),
        ("http://u:p@h/", "`url` is not a valid address: it contains credentials"),
        ("http://<label>/", "`url` is not a valid address: it has a placeholder in its scheme, host or port"),
        (
            "http://h:<metadata.port>/",
            "`url` is not a valid address: it has a placeholder in its scheme, host or port",
        ),
    ] {
        refused(&feed(&format!("name: a, url: '{url}'")), &format!("4:28 {message}"));
    }
    refused(&feed("name: a, url: 'http://h/${TOKEN}'"), "4:38 an address cannot contain secrets");
    refused(&feed("name: a, url: 'http://h/<lable>'"), "4:38 unknown placeholder `<lable>`");
    refused(
        &feed("name: a, url: 'http://h/', on_error: ignore"),
        "4:51 `on_error` must be `hold` or `{default: VALUE}`",
    );
    refused(&feed("name: a, url: 'http://h/', timeout: 2m"), "4:50 `timeout` must be from 1s to 30s");
    refused(
        &feed("name: a, stats: {window: 1m}"),
        "4:31 `stats` needs one of version_type, version, application, workspace, node",
    );
    refused(&feed("name: a, stats: {node: a, window: 7h}"), "4:48 `window` must be from 1s to 6h");
    refused(&machine("inputs: [{topic: a, label: key}]"), "4:32 events cannot name a label by \"key\"");
    refused(
        &machine("inputs: [{topic: a, create: 'true'}]"),
        "4:33 `create` must be true or false, not a text",
    );
    refused(
        &machine("webhooks: [{match: 'http://h/<label>', headers: {}}]"),
        "4:24 `match` cannot contain placeholders",
    );
    refused(
        &machine("webhooks: [{match: 'http://h/', headers: {'a b': c}}]"),
        "4:47 invalid header name \"a b\"",
    );
    refused(
        &machine("webhooks: [{match: 'http://h/', headers: {a: '${1}'}}]"),
        "4:50 `${` must be followed by the name of a secret",
    );
    refused(
        &machine("webhooks: [{match: 'http://h/', headers: {Host: a}}]"),
        "4:47 the header Host cannot be set, because Signalbox sets it",
    );
    refused(&machine("timezone: Mars/Olympus"), "4:15 unknown time zone \"Mars/Olympus\"");
    refused(&machine("timezone: {metadata: zone}"), "4:16 `timezone` needs `default`");
}

#[test]
fn limits_that_limit_nothing_or_have_other_bounds() {
    let limits = |text: &str| {
        format!(
            "state_machines:\n  m:\n    limits: {text}\n    states: [{{action: a, webhook: 'https://api.example/x/<label>'}}]\n"
        )
    };
    let fine = load("m.yaml", &limits("{'https://API.example:443/': {rate: 20, per: 1m, concurrent: 4}}"));
    let machine = fine.unwrap_or_else(|refused| panic!("{refused}")).machines[0].clone();
    let limit = machine.limit_of(machine.states()[0].action().unwrap()).unwrap();
    assert_eq!((&*limit.target, limit.concurrent), ("https://api.example", Some(4)));
    assert_eq!(limit.rate, Some((20, std::time::Duration::from_secs(60))));
    for (text, message) in [
        ("[]", "3:13 `limits` must be a map"),
        ("{}", "3:13 `limits` must have between 1 and 20 entries"),
        ("{'https://api.example': {}}", "3:37 a limit needs `rate`, `concurrent`, or both"),
        (
            "{'https://api.example': {concurrent: 0}}",
            "3:50 `concurrent` must be a whole number from 1 to 10000",
        ),
        ("{'https://api.example': {rate: 1.5}}", "3:44 `rate` must be a whole number from 1 to 10000"),
        ("{'https://api.example': {rate: 1, per: 2h}}", "3:52 `per` must be from 1s to 1h"),
        ("{'https://api.example': {concurrent: 1, per: 2s}}", "3:53 `per` needs `rate`"),
        ("{'https://api.example': {rates: 1}}", "3:38 a limit has no key `rates`"),
        ("{'api.example': {rate: 1}}", "3:14 \"api.example\" cannot have limits"),
        ("{'https://api.example/x': {rate: 1}}", "3:14 \"https://api.example/x\" cannot have limits"),
        ("{'https://a@api.example': {rate: 1}}", "3:14 \"https://a@api.example\" cannot have limits"),
        (
            "{'http://api.example': {rate: 1}}",
            "3:14 no webhook of this machine has an address of http://api.example",
        ),
        (
            "{'https://api.example': {rate: 1}, 'https://api.example/': {rate: 2}}",
            "3:48 https://api.example has limits already",
        ),
    ] {
        refused(&limits(text), message);
    }
}

#[test]
fn actions_that_are_none() {
    let action = |keys: &str| states(&format!("{{action: a, {keys}}}"));
    refused(&action("timeout: 5s"), "3:2 an action needs one of webhook, route and publish");
    refused(
        &action("webhook: 'http://h/', publish: {topic: a, url: b}"),
        "3:35 an action can have only one of webhook, route and publish, but this one has webhook and publish",
    );
    refused(
        &action("webhook: 'http://h/', retry: {attempts: 0}"),
        "3:53 `attempts` must be a whole number from 1 to 1000",
    );
    refused(
        &action("webhook: 'http://h/', retry: {first: 1m, longest: 1s}"),
        "3:54 `longest` is shorter than `first`",
    );
    refused(
        &action("webhook: 'http://h/', retry: {factor: 0.5}"),
        "3:51 `factor` must be a number from 1 to 100",
    );
    refused(&action("route: {host: a}"), "3:21 `route` changes nothing: it needs shares, register or retire");
    refused(&action("route: {host: a, shares: [{percent: 5}]}"), "3:40 a share needs `version_type`");
    refused(
        &action("route: {host: a, retire: {version_type: a, drain: soon}}"),
        "3:63 `drain` must be a duration",
    );
    refused(
        &action("publish: {topic: signalbox.labels, url: a}"),
        "3:30 applications cannot publish to topics that begin with `signalbox.`",
    );
    refused(&action("publish: {topic: a}"), "3:23 `publish` needs `url`");
    refused(&action("webhook: 'http://h/<metadata.>'"), "3:32 `<metadata.>` has no valid path");
}

#[test]
fn invalid_results_failures_and_deadlines_are_rejected() {
    let action = |more: &str| states(&format!("{{action: a, webhook: 'http://h/', {more}}}"));
    let wrong = |more: &str, part: &str| {
        let found = problems(&action(more));
        assert!(found.iter().any(|problem| problem.contains(part)), "{more}: {found:?}");
    };
    wrong("result: {metadata: response}", "a result cannot replace all of the metadata");
    wrong("result: {metadata.a: body.x}", "unknown part of an answer");
    wrong("result: {metadata.a: status, metadata.a.b: status}", "two results are at");
    wrong("result: {}", "`result` must have between 1 and 32 entries");
    wrong("on_error: b", "unknown state `b`");
    wrong("on_error: [{next: a}, {status: 409, next: a}]", "those after it never apply");
    wrong("on_error: {status: 200, next: a}", "unknown kind of failure");
    wrong("retry: {except: [often]}", "unknown kind of failure");
    wrong("deadline: 2h", "a deadline needs a time and a next state");
    wrong("deadline: {after: 2h, at: due, next: a}", "exactly one of `after` and `at`");
    wrong("deadline: {after: 0s, next: a}", "`after` must be from 1s");
    let published = states("{action: a, publish: {topic: t, url: 'http://h/'}, result: {a: status}}");
    let found = problems(&published);
    assert!(
        found.iter().any(|problem| problem.contains("`result` is possible only with `webhook`")),
        "{found:?}"
    );
    let unclosed = states("{action: a, webhook: 'http://h/<metadata.who'}");
    let found = problems(&unclosed);
    assert!(found.iter().any(|problem| problem.contains("this placeholder has no closing `>`")), "{found:?}");
}

#[test]
fn a_header_uses_only_secrets_that_the_machine_has() {
    let source = "state_machines:\n  m:\n    webhooks:\n      - {match: \"http://a.example/\", headers: \
                  {A: \"Bearer ${TOKEN}\", B: \"${TOKEM}${OTHER}\"}}\n    states: [{gate: a}]\n";
    let anywhere = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), String::new())).collect();
    let allowed: SecretNames = anywhere(&["TOKEN", "THIRD"]);
    let refused = signalbox_machine::definition::load_with("m.yaml", source, None, &allowed).unwrap_err();
    let found: Vec<_> = refused
        .problems
        .iter()
        .map(|p| format!("{}:{} {}; {}", p.line, p.column, p.message, p.hint.as_deref().unwrap_or_default()))
        .collect();
    assert_eq!(
        found,
        [
            "4:73 the machine has no secret TOKEM; did you mean ${TOKEN}?",
            "4:73 the machine has no secret OTHER; store it: signalbox machines secrets MACHINE --set OTHER --address https://…/"
        ]
    );
    let all = anywhere(&["TOKEN", "TOKEM", "OTHER"]);
    let file = signalbox_machine::definition::load_with("m.yaml", source, None, &all).unwrap();
    assert_eq!(file.machines[0].secrets(), ["OTHER", "TOKEM", "TOKEN"]);
    assert_eq!(file.machines[0].secrets_for("http://a.example/x"), ["OTHER", "TOKEM", "TOKEN"]);
    assert!(file.machines[0].secrets_for("http://b.example/x").is_empty());
    // The secrets of another machine of the file are not checked.
    let other = signalbox_machine::definition::load_with("m.yaml", source, Some("other"), &allowed);
    assert!(other.is_ok(), "{other:?}");
    load("m.yaml", source).unwrap();
}

#[test]
fn a_header_uses_a_secret_only_below_the_address_that_it_is_bound_to() {
    let source = "state_machines:\n  m:\n    webhooks:\n      - {match: \"MATCH\", headers: {A: \"${TOKEN}\"}}\n    \
                  states: [{gate: a}]\n";
    let bound = SecretNames::from([("TOKEN".to_owned(), "https://a.example/v1/".to_owned())]);
    for (prefix, allowed) in [
        ("https://a.example/v1/", true),
        ("https://a.example/v1/x", true),
        ("https://a.example/", false),
        ("https://a.example/v1", false),
        ("https://a.example/v1/../x", false),
        ("http://a.example/v1/", false),
        ("https://b.example/v1/", false),
    ] {
        let source = source.replace("MATCH", prefix);
        let loaded = signalbox_machine::definition::load_with("m.yaml", &source, Some("m"), &bound);
        assert_eq!(loaded.is_ok(), allowed, "{prefix} {loaded:?}");
    }
}

#[test]
fn a_route_of_a_host_from_metadata_needs_a_list_of_hosts() {
    let machine = |hosts: &str, host: &str| {
        format!(
            "state_machines:\n  m:\n    {hosts}\n    states:\n      - {{action: a, route: {{host: {host}, retire: \
             {{version_type: \"1\"}}}}}}\n"
        )
    };
    let load_with = |source: &str| {
        let none = SecretNames::new();
        signalbox_machine::definition::load_with("m.yaml", source, None, &none)
            .map(|file| file.machines[0].hosts().map(str::to_owned).collect::<Vec<_>>())
            .map_err(|refused| refused.to_string())
    };
    let no_hosts = machine("timezone: UTC", "<metadata.host>");
    assert!(load_with(&no_hosts).unwrap_err().contains("must list the hosts"));
    // A stored definition can still be read.
    let file = load("m.yaml", &no_hosts).unwrap();
    assert_eq!((file.machines[0].hosts().count(), file.warnings.len()), (0, 1));
    assert_eq!(load_with(&machine("timezone: UTC", "a.example")).unwrap(), ["a.example"]);
    let listed = machine("hosts: [\"*.B.example\", \"*\"]", "<metadata.host>");
    assert_eq!(load_with(&listed).unwrap(), ["*.b.example", "*"]);
    for wrong in ["a b", "", "a..b", "-a.example", "a.*.b", "**", "http://a", "<metadata.host>", "*."] {
        let wrong = machine(&format!("hosts: [\"{wrong}\"]"), "<metadata.host>");
        assert!(load_with(&wrong).unwrap_err().contains("not a valid host name"), "{wrong}");
    }
    assert!(load_with(&machine("hosts: []", "<metadata.host>")).unwrap_err().contains("between 1 and 100"));
}

#[test]
fn values_are_mapped_once_whatever_their_type() {
    let context = |values: &str| {
        states(&format!(
            "{{gate: one, exit_condition: metadata.a, triggers: [{{metadata: a}}], next: {{type: context, path: \
             metadata.b, destinations: [{values}], default: two}}}},\n{{gate: two}}"
        ))
    };
    let value = |value: &str| format!("{{value: {value}, state: two}}");
    let each = |values: &[&str]| values.iter().map(|text| value(text)).collect::<Vec<_>>().join(", ");
    load("m.yaml", &context(&each(&["1", "\"1\"", "true", "\"true\"", "null", "2", "[1]", "[2]", "{a: 1}"])))
        .unwrap();
    for twice in [["1", "1.0"], ["a", "\"a\""], ["[1]", "[1.0]"], ["{a: 1}", "{a: 1}"], ["null", "null"]] {
        let found = problems(&context(&each(&twice)));
        assert!(found.iter().any(|problem| problem.contains("has a destination already")), "{found:?}");
    }
}
