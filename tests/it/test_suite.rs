//! The configuration of the tests themselves: what `.config/nextest.toml` and the comparison name exists, and a test that passed only on a
//! retry is reported.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The Rust sources of the workspace.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The arguments of every `function(…)` in the filters of nextest's configuration.
fn arguments<'a>(filters: &[&'a str], function: &str) -> Vec<&'a str> {
    let starts = filters.iter().flat_map(|filter| filter.split(['|', '+', '&', '\n']));
    starts
        .filter_map(|term| term.trim().strip_prefix(function)?.strip_prefix('(')?.strip_suffix(')'))
        .collect()
}

/// Whether a file with a test whose name begins with `function` is, or is in, the module `module`.
fn is_in(path: &Path, module: &str) -> bool {
    path.with_extension("").iter().any(|part| part == module)
}

#[test]
fn every_test_that_nextest_is_configured_for_exists() {
    let text = fs::read_to_string(root().join(".config/nextest.toml")).unwrap();
    let configuration: toml::Table = text.parse().unwrap();
    let overrides = configuration["profile"]["default"]["overrides"].as_array().unwrap();
    let filters: Vec<&str> = overrides.iter().map(|one| one["filter"].as_str().unwrap()).collect();
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let names = arguments(&filters, "test");
    assert!(names.len() > 15, "only {names:?}: the filters are not read as they are written");
    for name in names {
        let mut segments = name.rsplit("::");
        let function = format!("fn {}", segments.next().unwrap());
        let modules: Vec<&str> = segments.collect();
        let exists = files
            .iter()
            .any(|(path, text)| text.contains(&function) && modules.iter().all(|module| is_in(path, module)));
        assert!(exists, "no test `{name}`: rename it in .config/nextest.toml as well");
    }
    for package in arguments(&filters, "package").into_iter().chain(arguments(&filters, "rdeps")) {
        let manifests = fs::read_to_string(root().join("Cargo.toml")).unwrap();
        assert!(manifests.contains(&format!("{package} = {{ path")), "no package `{package}`");
    }
}

#[test]
fn every_test_that_the_comparison_names_exists() {
    let page = fs::read_to_string(root().join("docs/comparison.md")).unwrap();
    let is_name = |text: &&str| {
        text.matches('_').count() >= 3
            && text.chars().all(|one| one.is_ascii_lowercase() || "_0123456789".contains(one))
    };
    let quoted: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let names: Vec<&str> = quoted.iter().copied().filter(is_name).collect();
    assert!(names.len() > 25, "only {names:?}: the page is not read as it is written");
    for name in names {
        let function = format!("fn {name}(");
        assert!(
            files.iter().any(|(_, text)| text.contains(&function)),
            "docs/comparison.md: no test `{name}`"
        );
    }
    for path in quoted.into_iter().filter(|path| path.contains("tests/") || path.ends_with(".rs")) {
        assert!(root().join(path).exists(), "docs/comparison.md: no file `{path}`");
    }
}

const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run"><testsuite name="a::it">
    <testcase name="passes" classname="a::it"/>
    <testcase name="fails" classname="a::it"><failure message="always"/><rerunFailure message="always"/></testcase>
    FLAKY
</testsuite></testsuites>"#;

/// The exit code and the output of `.ci/retried` for a report.
fn retried(report: &str, strict: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("junit.xml");
    fs::write(&path, report).unwrap();
    let output = Command::new(root().join(".ci/retried")).arg(&path).env("STRICT", strict).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_test_that_passed_only_on_a_retry_is_listed_and_fails_a_strict_run() {
    let none = REPORT.replace("FLAKY", "");
    assert_eq!(retried(&none, "1"), (Some(0), "No test needed a retry.\n".to_owned()));
    let flaky =
        r#"<testcase name="slow" classname="a::it"><flakyFailure message="waited&#10;30s"/></testcase>"#;
    let one = REPORT.replace("FLAKY", flaky);
    let list = "Tests that passed only on a retry: 1\n    a::it slow\n        waited 30s\n";
    assert_eq!(retried(&one, ""), (Some(0), list.to_owned()));
    assert_eq!(retried(&one, "0"), (Some(0), list.to_owned()));
    let (code, output) = retried(&one, "1");
    assert_eq!(code, Some(1));
    assert!(output.starts_with(list) && output.contains("STRICT"), "{output}");
}
