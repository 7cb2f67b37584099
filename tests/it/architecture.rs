//! ARCHITECTURE.md agrees with Cargo: its code map lists every crate with its dependencies, and its picture has every arrow.
//!
//! Cargo rejects cycles between crates. This test also keeps the picture readable: a crate is drawn above all crates that it
//! depends on, and an arrow that follows from others is not drawn.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// Crates that serve HTTP. No other crate of the product may depend on axum, not even indirectly.
const SERVERS: &[&str] = &["admin-api", "demo", "pacemaker", "sidecar"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A dependency as a manifest names it, tests apart.
struct Dependency {
    name: String,
    /// The folder, for a crate of the workspace.
    krate: Option<String>,
    optional: bool,
    features: Vec<String>,
}

struct Crate {
    dependencies: Vec<Dependency>,
    /// Each feature with what it enables.
    features: BTreeMap<String, Vec<String>>,
}

impl Crate {
    /// The crates of the workspace that it depends on.
    fn uses(&self) -> BTreeSet<&str> {
        self.dependencies.iter().filter_map(|dependency| dependency.krate.as_deref()).collect()
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The name of a crate in ARCHITECTURE.md: its folder without `crates/` or `examples/`.
fn called(folder: &Path) -> String {
    let folder = folder.strip_prefix(root()).unwrap().to_str().unwrap();
    let short = folder.strip_prefix("crates/").or_else(|| folder.strip_prefix("examples/"));
    short.unwrap_or(folder).to_owned()
}

/// The crates of the workspace, by the name that ARCHITECTURE.md uses.
fn crates() -> BTreeMap<String, Crate> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let made = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let metadata: Value = serde_json::from_slice(&made.stdout).unwrap();
    let read = |dependency: &Value| Dependency {
        name: dependency["name"].as_str().unwrap().to_owned(),
        krate: dependency["path"].as_str().map(|path| called(Path::new(path))),
        optional: dependency["optional"].as_bool().unwrap(),
        features: texts(&dependency["features"]),
    };
    let packages = metadata["packages"].as_array().unwrap().iter().map(|package| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let dependencies = package["dependencies"].as_array().unwrap();
        let features = package["features"].as_object().unwrap();
        let krate = Crate {
            dependencies: dependencies.iter().filter(|one| one["kind"].is_null()).map(read).collect(),
            features: features.iter().map(|(name, enabled)| (name.clone(), texts(enabled))).collect(),
        };
        (called(manifest.parent().unwrap()), krate)
    });
    packages.collect()
}

fn page() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// The rows of the tables whose header is `| crate | … | depends on |`: the crate, and what it depends on.
fn code_map(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let names = |cell: &str| {
        let parts = cell.split('`').skip(1).step_by(2);
        parts.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut rows = BTreeMap::new();
    let mut inside = false;
    for line in page.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if cells.len() < 5 {
            inside = false;
        } else if cells[1] == "crate" && cells[cells.len() - 2] == "depends on" {
            inside = true;
        } else if inside && !cells[1].starts_with('-') {
            let [name] = &names(cells[1])[..] else { panic!("the first cell must be one crate: {line}") };
            let uses = names(cells[cells.len() - 2]).into_iter().collect();
            assert!(rows.insert(name.clone(), uses).is_none(), "{name} has two rows");
        }
    }
    rows
}

/// The picture of the crates: each line `name ─▶ name, name`, from top to bottom; a line without an arrow lists crates that
/// depend on no other.
fn picture(page: &str, crates: &BTreeMap<String, Crate>) -> Vec<(String, Vec<String>)> {
    let section = page.split("\n## The crates\n").nth(1).expect("a section `The crates`");
    let text = section.split("```").nth(1).expect("a picture");
    let known = |word: &&str| crates.contains_key(*word);
    let mut lines = Vec::new();
    for line in text.lines().skip(1) {
        if let Some((from, to)) = line.split_once('▶') {
            let from = from.trim_end_matches('─').split_whitespace().last().unwrap_or_default().to_owned();
            let to = to.split(',').map(|name| name.trim().to_owned()).collect();
            lines.push((from, to));
        } else {
            let leaves = line.split_whitespace().filter(known);
            lines.extend(leaves.map(|name| (name.to_owned(), Vec::new())));
        }
    }
    lines
}

fn is_of_the_product(name: &str) -> bool {
    !["bench", "bus/testkit", "testkit", "tests", "tests/model"].contains(&name)
}

/// Whether `to` can be reached from `from` by the arrows.
fn leads(arrows: &BTreeMap<&str, Vec<&str>>, from: &str, to: &str) -> bool {
    arrows.get(from).is_some_and(|next| next.iter().any(|next| *next == to || leads(arrows, next, to)))
}

#[test]
fn the_code_map_lists_every_crate_with_its_dependencies() {
    let (crates, mut rows) = (crates(), code_map(&page()));
    assert!(crates.len() > 20, "only {} crates: the test does not find them", crates.len());
    let mut wrong = Vec::new();
    for (name, krate) in &crates {
        let uses: BTreeSet<String> = krate.uses().into_iter().map(str::to_owned).collect();
        if rows.remove(name).as_ref() != Some(&uses) {
            let uses: Vec<_> = uses.iter().map(|name| format!("`{name}`")).collect();
            wrong.push(format!(
                "| `{name}` | … | {} |",
                if uses.is_empty() { "–".to_owned() } else { uses.join(" ") }
            ));
        }
    }
    assert!(wrong.is_empty(), "the code map in ARCHITECTURE.md needs these rows:\n{}", wrong.join("\n"));
    assert!(rows.is_empty(), "the code map in ARCHITECTURE.md lists what is not a crate: {:?}", rows.keys());
}

#[test]
fn the_picture_has_every_arrow_between_crates_and_no_other() {
    let (crates, page) = (crates(), page());
    let lines = picture(&page, &crates);
    let drawn: Vec<&str> = lines.iter().map(|(name, _)| name.as_str()).collect();
    for name in crates.keys().filter(|name| is_of_the_product(name)) {
        let times = drawn.iter().filter(|one| *one == name).count();
        assert_eq!(times, 1, "{name} must have one line in the picture");
    }
    let arrows: BTreeMap<&str, Vec<&str>> =
        lines.iter().map(|(from, to)| (&**from, to.iter().map(String::as_str).collect())).collect();
    for (at, (from, to)) in lines.iter().enumerate() {
        let uses = crates.get(from).unwrap_or_else(|| panic!("{from} is not a crate")).uses();
        for to in to {
            assert!(uses.contains(&**to), "the picture has an arrow {from} ─▶ {to}, and Cargo has none");
            assert!(drawn[at + 1..].contains(&&**to), "{to} must be below {from} in the picture");
        }
    }
    for (from, to) in lines.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to))) {
        let other = arrows[&**from].iter().find(|other| *other != to && leads(&arrows, other, to));
        assert!(other.is_none(), "do not draw {from} ─▶ {to}: it follows from {from} ─▶ {other:?}");
    }
    for (name, krate) in crates.iter().filter(|(name, _)| is_of_the_product(name)) {
        for to in krate.uses() {
            assert!(leads(&arrows, name, to), "the picture needs an arrow {name} ─▶ {to}");
        }
    }
}

/// Whether a dependency on this crate with these features brings in axum.
fn brings_axum(crates: &BTreeMap<String, Crate>, name: &str, features: &[String]) -> bool {
    let krate = &crates[name];
    let enabled = |dependency: &Dependency| {
        let wanted = [dependency.name.clone(), format!("dep:{}", dependency.name)];
        let named = features.iter().chain(["default".to_owned()].iter()).any(|feature| {
            krate.features.get(feature).is_some_and(|enabled| enabled.iter().any(|one| wanted.contains(one)))
        });
        !dependency.optional || named
    };
    krate.dependencies.iter().filter(|dependency| enabled(dependency)).any(|dependency| {
        let inner = dependency.krate.as_deref();
        dependency.name == "axum"
            || inner.is_some_and(|inner| brings_axum(crates, inner, &dependency.features))
    })
}

#[test]
fn a_crate_that_does_not_serve_http_does_not_depend_on_axum() {
    let crates = crates();
    let found: Vec<_> = crates
        .keys()
        .filter(|name| is_of_the_product(name) && brings_axum(&crates, name, &[]))
        .map(String::as_str)
        .collect();
    assert_eq!(found, SERVERS);
}

/// Folders that paths in a page start with.
const FOLDERS: &[&str] = &[
    ".ci/",
    ".config/",
    "bench/",
    "cli/",
    "crates/",
    "docker/",
    "docs/",
    "examples/",
    "lua/",
    "nginx/",
    "pacemaker/",
    "packaging/",
    "sidecar/",
    "tests/",
];

/// The pages: those at the top, in `docs/` and in `docs/decisions/`. The changelog names files that were removed.
fn pages() -> Vec<PathBuf> {
    let root = root();
    let folders = [root.clone(), root.join("docs"), root.join("docs/decisions")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_page = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "md") && !path.ends_with("CHANGELOG.md")
    };
    paths.filter(is_page).collect()
}

#[test]
fn every_file_that_a_page_names_exists() {
    let (root, mut found, mut missing) = (root(), 0, Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for span in text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let is_path = FOLDERS.iter().any(|folder| span.starts_with(folder))
                && span.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c));
            if is_path {
                found += 1;
                if !root.join(span).exists() {
                    missing.push(format!("{}: {span}", page.strip_prefix(&root).unwrap().display()));
                }
            }
        }
    }
    assert!(found > 50, "only {found} paths: the test does not find them");
    assert!(missing.is_empty(), "these files do not exist:\n{}", missing.join("\n"));
}
