//! Text is plain technical English: documentation, help texts, the dashboard, findings, the answers of nginx, and comments
//! contain no word that needs a second reading, in one spelling.
//!
//! The lists contain only words that are wrong wherever they appear. [`ALLOWED`] has the exceptions.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::up::program;

/// A word or phrase, and what to write.
const WORDS: &[(&str, &str)] = &[
    ("anew", "again"),
    ("at once", "immediately"),
    ("believed", "accepted"),
    ("believes", "accepts"),
    ("beside", "next to"),
    ("bus of old", "Routemaster"),
    ("by itself", "automatically"),
    ("can be no", "is not a valid"),
    ("came back", "was restored"),
    ("facet", "tenant"),
    ("facets", "tenants"),
    ("for ever", "without a limit"),
    ("forever", "without a limit"),
    ("given up", "dropped, became a dead letter"),
    ("gives up", "drops"),
    ("go on", "continue"),
    ("goes on", "continues"),
    ("held against", "compared with"),
    ("held up", "delayed, blocked"),
    ("holds up", "delays, blocks"),
    ("look at", "check, show"),
    ("looked at", "evaluated, checked"),
    ("looks at", "evaluates, checks"),
    ("meanwhile", "in the meantime"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("mends", "fixes"),
    ("nobody", "no client, no operator"),
    ("of old", "earlier"),
    ("somebody", "an operator, a client"),
    ("stands", "is, is stored"),
    ("taken back", "rolled back"),
    ("taken out", "removed"),
    ("takes back", "rolls back"),
    ("tell", "report, notify, update"),
    ("tells", "reports, shows"),
    ("the original bus", "Routemaster"),
    ("this is no", "this is not a valid"),
    ("told", "reported, notified"),
    ("took less", "p50, p95, p99"),
    ("unseen", "skipped"),
    ("went back", "was rolled back"),
    ("whoever", "any client, any worker"),
];

/// Misspellings and British spellings, each with the spelling to use.
const SPELLING: &[(&str, &str)] = &[
    ("accross", "across"),
    ("adress", "address"),
    ("amongst", "among"),
    ("analyse", "analyze"),
    ("artefact", "artifact"),
    ("artefacts", "artifacts"),
    ("authorise", "authorize"),
    ("authorised", "authorized"),
    ("begining", "beginning"),
    ("behaviour", "behavior"),
    ("behaviours", "behaviors"),
    ("cancelled", "canceled"),
    ("cancelling", "canceling"),
    ("catalogue", "catalog"),
    ("centre", "center"),
    ("colour", "color"),
    ("colours", "colors"),
    ("comming", "coming"),
    ("commited", "committed"),
    ("consistant", "consistent"),
    ("customise", "customize"),
    ("defence", "defense"),
    ("dependancy", "dependency"),
    ("enviroment", "tenant"),
    ("existant", "existent"),
    ("explicitely", "explicitly"),
    ("favour", "favor"),
    ("favourite", "favorite"),
    ("fulfil", "fulfill"),
    ("grey", "gray"),
    ("honour", "honor"),
    ("honoured", "honored"),
    ("immediatly", "immediately"),
    ("independant", "independent"),
    ("initialise", "initialize"),
    ("initialised", "initialized"),
    ("initialises", "initializes"),
    ("judgement", "judgment"),
    ("labelled", "labeled"),
    ("labelling", "labeling"),
    ("lenght", "length"),
    ("licence", "license"),
    ("modelled", "modeled"),
    ("modelling", "modeling"),
    ("neccessary", "necessary"),
    ("neighbour", "neighbor"),
    ("neighbouring", "neighboring"),
    ("normalise", "normalize"),
    ("occured", "occurred"),
    ("occurence", "occurrence"),
    ("optimise", "optimize"),
    ("optimised", "optimized"),
    ("organisation", "organization"),
    ("organise", "organize"),
    ("organised", "organized"),
    ("overriden", "overridden"),
    ("paramater", "parameter"),
    ("persistant", "persistent"),
    ("priviledge", "privilege"),
    ("programme", "program"),
    ("recieve", "receive"),
    ("recognise", "recognize"),
    ("recognised", "recognized"),
    ("refered", "referred"),
    ("retreive", "retrieve"),
    ("seperate", "separate"),
    ("serialise", "serialize"),
    ("serialised", "serialized"),
    ("signalled", "signaled"),
    ("signalling", "signaling"),
    ("succesful", "successful"),
    ("summarise", "summarize"),
    ("synchronise", "synchronize"),
    ("teh", "the"),
    ("threshhold", "threshold"),
    ("transfered", "transferred"),
    ("travelled", "traveled"),
    ("travelling", "traveling"),
    ("untill", "until"),
    ("whilst", "while"),
    ("wich", "which"),
];

/// Files with a phrase that is right there.
const ALLOWED: &[(&str, &str)] = &[
    // Renamed commands and fields are quoted with their old names.
    ("CHANGELOG.md", "unseen"),
];

/// Folders with code, and the beginning of a comment in files of each extension.
const CODE: &[&str] = &[
    ".ci",
    "bench",
    "cli",
    "crates",
    "docker",
    "examples",
    "lua",
    "nginx",
    "pacemaker",
    "packaging",
    "sidecar",
    "tests",
];
const COMMENTS: &[(&str, &str)] = &[
    ("conf", "#"),
    ("env", "#"),
    ("js", "//"),
    ("lua", "--"),
    ("mjs", "//"),
    ("py", "#"),
    ("rb", "#"),
    ("rs", "//"),
    ("service", "#"),
    ("sh", "#"),
    ("toml", "#"),
    ("yaml", "#"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The files below `folder` with this extension, sorted.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Replaces everything from `open` to the next `close` by spaces, and keeps line breaks.
fn without(text: &str, open: &str, close: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(open) {
        let end =
            rest[at + open.len()..].find(close).map_or(rest.len(), |end| at + open.len() + end + close.len());
        out += &rest[..at];
        out.extend(rest[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[end..];
    }
    out + rest
}

/// The prose of a page: without code, comments and targets of links.
fn prose(page: &str) -> String {
    let mut fenced = false;
    let lines = page.lines().map(|line| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return String::new();
        }
        if fenced { String::new() } else { without(&without(line, "](", ")"), "`", "`") }
    });
    without(&lines.collect::<Vec<_>>().join("\n"), "<!--", "-->")
}

/// The string literals of a source file that are sentences, each on the line on which it begins. Comments are left out.
fn sentences(source: &str, comment: &str) -> String {
    let lines = source.lines().map(|line| {
        let code = if line.trim_start().starts_with(comment) { "" } else { line };
        let literals = code.split('"').skip(1).step_by(2).filter(|literal| literal.contains(' '));
        literals.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The comments of a source file, each on its line, without code in backticks.
fn comments(source: &str, mark: &str) -> String {
    let lines = source.lines().map(|line| {
        let starts = line.match_indices(mark).map(|(at, _)| at);
        // The slashes of an address do not begin a comment.
        let start = starts.filter(|at| !line[..*at].ends_with(':')).min();
        start.map_or(String::new(), |at| without(&line[at..], "`", "`"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether `line` has `phrase` between two ends of words, in any case.
fn contains(line: &str, phrase: &str) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
    line.match_indices(phrase).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + phrase.len()..].chars().next());
        !is_word(before) && !is_word(after)
    })
}

/// Adds the errors in `text`, which is all or a part of `name`.
fn wrong(name: &str, text: &str, found: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for (phrase, better) in WORDS.iter().chain(SPELLING) {
            if contains(&lower, phrase) && !ALLOWED.contains(&(name, *phrase)) {
                found.push(format!("{name}:{}: `{phrase}`: write `{better}`: {}", number + 1, line.trim()));
            }
        }
    }
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_string_lossy().into_owned()
}

#[test]
fn documentation_is_written_in_plain_language() {
    let mut found = Vec::new();
    let mut pages = files("docs", "md");
    pages.extend(
        ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"]
            .map(|name| root().join(name)),
    );
    assert!(pages.len() > 40, "{pages:?}");
    for page in pages {
        let mut text = prose(&fs::read_to_string(&page).unwrap());
        if page.ends_with("docs/keys.md") {
            // The rows repeat the catalog in `crates/store/src/keys`, word by word.
            text = text
                .lines()
                .map(|line| if line.starts_with('|') { "" } else { line })
                .collect::<Vec<_>>()
                .join("\n");
        }
        wrong(&relative(&page), &text, &mut found);
    }
    let alerts = "docs/grafana/alerts.yaml";
    wrong(alerts, &fs::read_to_string(root().join(alerts)).unwrap(), &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn help_texts_are_written_in_plain_language() {
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new(program()).args(["man", "--dir"]).arg(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (mut found, mut pages) = (Vec::new(), 0);
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let text =
            fs::read_to_string(&path).unwrap().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        wrong(&path.file_name().unwrap().to_string_lossy(), &text, &mut found);
        pages += 1;
    }
    assert!(pages > 20, "{pages} manual pages");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn answers_findings_and_pages_are_written_in_plain_language() {
    let mut found = Vec::new();
    let mut read = 0;
    for (folder, extension, comment) in
        [("lua/signalbox", "lua", "--"), ("nginx", "conf", "#"), ("crates/diagnosis/src", "rs", "//")]
    {
        for path in files(folder, extension) {
            let text = fs::read_to_string(&path).unwrap();
            // Unit tests have sentences of their own.
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            wrong(&relative(&path), &sentences(text, comment), &mut found);
            read += 1;
        }
    }
    for path in files("pacemaker/templates", "html") {
        let text = fs::read_to_string(&path).unwrap();
        let text = without(&without(&without(&text, "{#", "#}"), "{%", "%}"), "{{", "}}");
        wrong(&relative(&path), &text, &mut found);
        read += 1;
    }
    assert!(read > 50, "only {read} files: the test looks in the wrong place");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn comments_are_written_in_plain_language() {
    let (mut found, mut read) = (Vec::new(), 0);
    for (extension, mark) in COMMENTS {
        for path in CODE.iter().flat_map(|folder| files(folder, extension)) {
            let name = relative(&path);
            // The lists of this file quote the phrases.
            if name != "tests/it/wording.rs" {
                wrong(&name, &comments(&fs::read_to_string(&path).unwrap(), mark), &mut found);
                read += 1;
            }
        }
    }
    assert!(read > 500, "only {read} files: the test looks in the wrong place");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_phrase_is_found_only_as_a_whole_word_outside_of_code() {
    assert!(contains("it is told, and waits", "told") && contains("told", "told"));
    assert!(!contains("untold stories", "told") && !contains("a-told-b told_x", "told"));
    let page = "is `told` here\n```sh\ntold\n```\n<!-- told\ntold -->\n[a](told.md) b\nTold you\n";
    let mut found = Vec::new();
    wrong("page.md", &prose(page), &mut found);
    assert_eq!(found, ["page.md:8: `told`: write `reported, notified`: Told you"]);
    assert_eq!(sentences("-- \"it is told\"\nx(\"a b\", \"c\")\n", "--"), "\na b");
    assert_eq!(comments("told // `told` https://a\n\"http://told\"", "//"), "//        https://a\n");
}
