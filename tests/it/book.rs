//! The book agrees with itself and with the programs: links lead somewhere, every page is in the table of contents, and the
//! references of errors, API, alerts and findings are complete.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::up::program;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The pages of the book, by their path below the checkout.
fn pages() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// The lines outside of fences.
fn unfenced(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((at + 1, line))
    })
}

/// The anchors of a page's headings, as GitHub and mdBook form them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut times = BTreeMap::<String, usize>::new();
    let headings = unfenced(text).filter_map(|(_, line)| {
        let heading = line.trim_start_matches('#');
        (line.starts_with('#') && heading.starts_with(' ')).then(|| heading.trim())
    });
    let slug = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings
        .map(|heading| {
            let slug = slug(heading);
            let seen = times.entry(slug.clone()).or_default();
            *seen += 1;
            if *seen == 1 { slug } else { format!("{slug}-{}", *seen - 1) }
        })
        .collect()
}

/// The targets of a page's links, with their line. Inline code has none.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in unfenced(text) {
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for rest in plain.split("](").skip(1) {
            found.push((at, rest.split(')').next().unwrap_or_default().to_owned()));
        }
    }
    found
}

#[test]
fn every_link_leads_somewhere() {
    let (mut found, mut broken) = (0, Vec::new());
    let top = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"];
    for page in pages().into_iter().chain(top.map(str::to_owned)) {
        let text = read(&page);
        for (line, target) in links(&text) {
            if target.contains("://") {
                continue;
            }
            found += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() {
                root().join(&page)
            } else {
                root().join(&page).parent().unwrap().join(file)
            };
            if !path.exists() {
                broken.push(format!("{page}:{line}: {target}: no such file"));
            } else if !anchor.is_empty()
                && !anchors(&fs::read_to_string(&path).unwrap_or_default()).contains(anchor)
            {
                broken.push(format!("{page}:{line}: {target}: no such heading"));
            }
        }
    }
    assert!(found > 300, "only {found} links: the test does not find them");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_table_of_contents_has_every_page_once() {
    let contents = read("docs/SUMMARY.md");
    let mut listed: Vec<String> =
        links(&contents).into_iter().map(|(_, path)| format!("docs/{path}")).collect();
    listed.sort();
    let pages: Vec<String> = pages().into_iter().filter(|page| page != "docs/SUMMARY.md").collect();
    assert_eq!(listed, pages);
}

/// The words of a text that are error codes, such as `invalid_topic`.
fn codes(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_ascii_lowercase() && c != '_')
        .filter(|word| word.contains('_') && !word.starts_with('_') && !word.ends_with('_'))
        .map(str::to_owned)
}

/// The codes of a daemon, from the descriptions of error responses in its OpenAPI document.
fn codes_of_the_api(daemon: &str) -> BTreeSet<String> {
    let made = Command::new(program().with_file_name(daemon)).arg("--print-openapi").output().unwrap();
    let document: Value = serde_json::from_slice(&made.stdout).unwrap();
    let operations = document["paths"].as_object().unwrap().values().filter_map(Value::as_object);
    let responses = operations.flat_map(|path| path.values()).filter_map(|one| one["responses"].as_object());
    let errors = responses.flatten().filter(|(status, _)| status.as_str() >= "400");
    let described = errors.filter_map(|(_, response)| response["description"].as_str());
    // The description of a response begins with its codes; prose may follow.
    described
        .flat_map(|text| {
            text.split(|c| [',', ';', ':', ' '].contains(&c)).map(str::to_owned).collect::<Vec<_>>()
        })
        .flat_map(|word| codes(&word).collect::<Vec<_>>())
        .filter(|code| code != "edge_key_file")
        .collect()
}

/// The codes of nginx: the reasons of `nginx/log.conf`, and those that Lua answers with.
fn codes_of_the_edge() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let map = read("nginx/log.conf");
    let map = map.split("$edge_reason {").nth(1).unwrap().split('}').next().unwrap().to_owned();
    let reasons =
        map.lines().filter_map(|line| line.trim().strip_suffix(';')?.split_whitespace().next_back());
    found.extend(
        reasons.filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '_')).map(str::to_owned),
    );
    for entry in fs::read_dir(root().join("lua/signalbox")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "lua") {
            let text = fs::read_to_string(&path).unwrap();
            for call in text.split("answer.problem(").skip(1) {
                let call = call.split("answer.").next().unwrap_or_default();
                // The second argument; a status that is an expression has none of these characters.
                let code = call.split_once(',').and_then(|(_, rest)| rest.trim_start().strip_prefix('"'));
                found.extend(code.and_then(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }
    found
}

#[test]
fn the_reference_of_errors_has_every_code() {
    let page = read("docs/errors.md");
    let listed: BTreeSet<&str> = page.split('`').skip(1).step_by(2).collect();
    let (mut api, edge) = (codes_of_the_api("signalbox-pacemaker"), codes_of_the_edge());
    let statistics = codes_of_the_api("signalbox-sidecar");
    assert!(statistics.len() > 10, "the test does not find the codes: {statistics:?}");
    api.extend(statistics);
    assert!(api.len() > 70 && edge.len() > 20, "the test does not find the codes: {api:?} {edge:?}");
    let missing: Vec<&String> = api.union(&edge).filter(|code| !listed.contains(code.as_str())).collect();
    assert!(missing.is_empty(), "docs/errors.md does not describe {missing:?}");
}

#[test]
fn the_references_of_api_and_command_line_are_current() {
    for (script, page) in
        [(".ci/api-reference", "docs/api.md"), (".ci/cli-reference", "docs/cli-reference.md")]
    {
        let made = Command::new(root().join(script)).arg(program().parent().unwrap()).output().unwrap();
        assert!(made.status.success(), "{script}: {}", String::from_utf8_lossy(&made.stderr));
        assert_eq!(
            String::from_utf8(made.stdout).unwrap(),
            read(page),
            "{page}: `make reference` writes it again"
        );
    }
}

#[test]
fn every_alert_and_every_finding_has_a_runbook() {
    let anchors = anchors(&read("docs/runbooks.md"));
    let alerts = read("docs/grafana/alerts.yaml");
    let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let anchor = name.to_lowercase();
        assert!(anchors.contains(&anchor), "docs/runbooks.md has no section {name}");
        let link = format!("runbook: \"docs/runbooks.md#{anchor}\"");
        assert!(alerts.contains(&link), "docs/grafana/alerts.yaml: {name} needs {link}");
    }
    // Identifiers of findings are the literals in kebab case, apart from these names of other things.
    let others = [
        "allkeys-lru",
        "idempotency-keys",
        "request-counting",
        "routes-replica",
        "time-zones",
        "volatile-ttl",
    ];
    let mut found = 0;
    for entry in fs::read_dir(root().join("crates/diagnosis/src")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for literal in text.split('"').skip(1).step_by(2) {
            let kebab = literal.contains('-') && literal.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            if kebab && !literal.starts_with('-') && !others.contains(&literal) {
                found += 1;
                assert!(anchors.contains(literal), "docs/runbooks.md has no section {literal}");
            }
        }
    }
    assert!(found > 40, "only {found} findings: the test does not find them");
}

#[test]
fn the_figures_of_the_readme_are_those_of_the_measurements() {
    let (readme, measured) = (read("README.md"), read("docs/performance.md"));
    let is_row = |line: &&str| line.starts_with("| ") && (line.contains(" ms") || line.contains("µs"));
    let table = readme.lines().filter(is_row);
    let mut found = 0;
    for line in table {
        for cell in line.split('|').skip(2) {
            for word in cell.split(|c: char| !c.is_ascii_digit() && c != '.' && c != ',') {
                let figure = word.trim_matches(['.', ',']);
                if figure.contains(['.', ',']) {
                    found += 1;
                    assert!(
                        measured.contains(figure),
                        "README.md has {figure}, docs/performance.md has not: {line}"
                    );
                }
            }
        }
    }
    assert!(found > 10, "only {found} figures: the test does not find them");
}

/// A cell of docs/performance.md: in the first table after `place`, the row that begins with `row`, the column whose head
/// contains `column`.
fn measured(place: &str, row: &str, column: &str) -> String {
    let text = read("docs/performance.md");
    let at = text.find(place).unwrap_or_else(|| panic!("docs/performance.md has no {place}"));
    let line = text[..at].rfind('\n').map_or(0, |at| at + 1);
    let mut lines = text[line..]
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let heads = cells(lines.next().unwrap());
    let at =
        heads.iter().position(|head| head.contains(column)).unwrap_or_else(|| panic!("no column {column}"));
    let found = lines.find(|line| line.trim_start_matches(['|', ' ']).starts_with(row));
    cells(found.unwrap_or_else(|| panic!("{place}: no row {row}")))[at].clone()
}

/// How many times as much the first is as the second, as a word.
fn times(first: f64, second: f64) -> &'static str {
    let words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    let ratio = (first / second).round() as usize;
    words.get(ratio).unwrap_or_else(|| panic!("{first} is {ratio} times {second}"))
}

#[test]
fn figures_that_pages_quote_are_those_of_the_measurements() {
    const CPU: &str = "CPU µs per message";
    const ONE_BY_ONE: &str = "Compared with brokers";
    const ORDERED: &str = "Every event was in order";
    const LABELS: &str = "| 30,000 labels |";
    let number = |text: &str| text.replace(',', "").parse::<f64>().unwrap();
    let cost = |place: &str, row: &str| measured(place, row, CPU);
    let [bus, streams] = ["bus, in order", "Redis Streams"].map(|row| cost(ONE_BY_ONE, row));
    let [rabbit, bullmq] = ["RabbitMQ", "BullMQ, 64"].map(|row| cost(ONE_BY_ONE, row));
    let ratio = |place, of: &str| times(number(&cost(place, of)), number(&cost(place, "Redis Streams")));
    let (least, most) = (ratio("Published 100 at a time", "bus"), ratio(ORDERED, "objects through the bus"));
    let [queue, jobs] = ["a queue, 16 consumers", "BullMQ, 64"];
    let rate = |row: &str| measured(ORDERED, row, "messages/s");
    let both = |place: &str, row: &str| {
        let (pacemaker, redis) = (measured(place, row, "pacemaker"), measured(place, row, "Redis"));
        format!("{pacemaker} µs of the pacemaker, {redis} µs of the fabric Redis")
    };
    let hot = measured("### Requests", "one hot host", "CPU µs");
    let quoted = [
        (
            "docs/comparison.md",
            format!(
                "| {bus} µs | {streams} µs | {rabbit} µs, in an earlier run | {bullmq} µs, in no order |"
            ),
        ),
        ("README.md", format!("{least} to {most} times as much CPU per message as a Redis Stream")),
        (
            "docs/migrate-bullmq.md",
            format!("handled {} messages per second with {} µs", rate(queue), cost(ORDERED, queue)),
        ),
        (
            "docs/migrate-bullmq.md",
            format!("no order handled {} with {} µs", rate(jobs), cost(ORDERED, jobs)),
        ),
        ("docs/sizing.md", format!("| request for a hot host, without a policy | {hot} µs")),
        ("docs/sizing.md", both("### Event bus", "one by one, 256 connections | 1 |")),
        ("docs/sizing.md", both("### Queues and ordered work", "10 |")),
        ("docs/sizing.md", both(LABELS, "updates over HTTP, one pacemaker")),
    ];
    for (page, text) in quoted {
        assert!(read(page).contains(&text), "{page} does not have: {text}");
    }
}

/// The targets that a text makes: `make` at the beginning of a command, in a fence or in backticks.
fn made(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let spans = line.split('`').skip(1).step_by(2);
        let code: Vec<&str> = if fenced { vec![line] } else { spans.collect() };
        for command in code.iter().flat_map(|code| code.split("&&")) {
            let mut words = command.split_whitespace().skip_while(|word| word.contains('='));
            if words.next() == Some("make") {
                found.extend(
                    words.next().filter(|word| word.starts_with(char::is_lowercase)).map(str::to_owned),
                );
            }
        }
    }
    found
}

#[test]
fn every_make_target_of_the_documentation_exists() {
    let makefile = read("Makefile");
    let targets: BTreeSet<&str> =
        makefile.lines().filter_map(|line| line.split_once(':').map(|(name, _)| name)).collect();
    let mut found = 0;
    for page in pages().into_iter().chain(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned))
    {
        for target in made(&read(&page)) {
            found += 1;
            assert!(targets.contains(&*target), "{page}: the Makefile has no target {target}");
        }
    }
    assert!(found > 15, "only {found} targets: the test does not find them");
    let page = "`make a` make b\n```\nX=1 make c && make d # make e\n```\n";
    assert_eq!(made(page), BTreeSet::from(["a", "c", "d"].map(str::to_owned)));
}

#[test]
fn anchors_are_formed_as_readers_form_them() {
    let page = "# One\n## `two` & three, four's\n```\n# no\n```\n## One\n";
    assert_eq!(anchors(page), BTreeSet::from(["one", "one-1", "two--three-fours"].map(str::to_owned)));
    let page = "a [b](c.md#d) `[e](f)` [g](h)\n```\n[i](j)\n```\n";
    assert_eq!(links(page), [(1, "c.md#d".to_owned()), (1, "h".to_owned())]);
}

/// Subcommands that only call the API, so that they can be typed where nothing runs.
const CALLS: [&str; 15] = [
    "audit",
    "backends",
    "certificates",
    "clients",
    "hosts",
    "labels",
    "machines",
    "objects",
    "pacemakers",
    "queues",
    "routers",
    "routes",
    "subscribers",
    "tokens",
    "topics",
];

/// The commands of a page with flags: in code between backticks, and as lines of blocks.
fn typed_commands(text: &str) -> BTreeSet<String> {
    let spans = text.split('`').skip(1).step_by(2).map(str::to_owned);
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("$ ").to_owned());
    let commands = spans.chain(lines).filter_map(|text| {
        let text = text.strip_prefix("signalbox ").unwrap_or(&text);
        let calls =
            CALLS.iter().any(|call| text.strip_prefix(call).is_some_and(|rest| rest.starts_with(' ')));
        let plain = !text.contains(['|', '>', '<', '$', '[', '\u{2026}', '\n', '\\', '(', ';']);
        (calls && plain && text.contains(" --")).then(|| text.to_owned())
    });
    commands.collect()
}

#[test]
fn flags_and_their_values_exist_in_every_command_that_a_page_names() {
    let mut checked = 0;
    for page in pages().into_iter().filter(|page| !page.ends_with("cli-reference.md")) {
        for command in typed_commands(&read(&page)) {
            let signalbox = program();
            let mut shell = Command::new("timeout");
            shell.args(["10", "bash", "-c", &format!("{} {command} </dev/null", signalbox.display())]);
            shell.env("SIGNALBOX_URL", "http://127.0.0.1:9").env("SIGNALBOX_TOKEN", "t");
            let wrong = String::from_utf8(shell.output().unwrap().stderr).unwrap();
            for sign in
                ["unknown column", "[possible values", "unexpected argument", "unrecognized subcommand"]
            {
                assert!(!wrong.contains(sign), "{page}: signalbox {command}: {wrong}");
            }
            checked += 1;
        }
    }
    assert!(checked > 50, "{checked} commands");
}
