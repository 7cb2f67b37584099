//! Which Lua script may become part of which program: what Cargo cannot see.
//!
//! A script is in the folder `scripts/` of the module that runs it, and only that module includes it. Otherwise a module
//! could depend on the keys of another one although its crate does not.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

/// Exceptions: the module that includes a script, and the script. A module is called by the folder that contains its
/// `scripts/`, or by its crate if that folder is `src/`.
const ALLOWED: &[(&str, &str)] = &[
    // A test of what routers report runs the script with which they report.
    ("routing", "edge/scripts/report.lua"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The files below a folder that end in `.rs`.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// The `src` folders of all crates in the workspace.
fn crates() -> Vec<PathBuf> {
    let manifest: toml::Table = fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let folders = members.iter().map(|member| root().join(member.as_str().unwrap()).join("src"));
    folders.filter(|folder| folder.is_dir()).collect()
}

/// The path literals in a source that name a script or a folder of scripts: `"../scripts/ack.lua"`, and the first half of
/// `concat!("../scripts/", $name, ".lua")`. Comments are skipped.
fn script_paths(text: &str) -> Vec<&str> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(|line| line.match_indices("scripts/").map(move |(at, _)| (line, at)))
        .filter_map(|(line, at)| {
            let start = line[..at].rfind('"')? + 1;
            let end = at + line[at..].find('"')?;
            let path = &line[start..end];
            let is_path = path.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c));
            (is_path && (path.ends_with(".lua") || path.ends_with('/'))).then_some(path)
        })
        .collect()
}

/// The path without `.` and `..`.
fn normalized(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(result.pop()),
            Component::CurDir => {}
            other => result.push(other),
        }
    }
    result
}

/// The nearest folder around `file` that has `scripts/`.
fn module(file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).find(|folder| folder.join("scripts").is_dir())
}

fn name(module: &Path) -> String {
    let folder = if module.ends_with("src") { module.parent().unwrap() } else { module };
    folder.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn path_literals_of_scripts_are_found_in_every_form() {
    let text = "include_str!(\"../scripts/ack.lua\"), include_str!(concat!(\"scripts/\", $name, \".lua\"))\n\
                // include_str!(\"scripts/comment.lua\")\n\
                let message = \"no scripts/ here\"; table_script!(\"a/b\", \"../../x/scripts/c.lua\");";
    assert_eq!(script_paths(text), ["../scripts/ack.lua", "scripts/", "../../x/scripts/c.lua"]);
}

#[test]
fn a_script_is_included_only_by_the_module_that_owns_it() {
    let (mut includes, mut used) = (0, BTreeSet::new());
    for file in crates().iter().flat_map(|folder| rust_files(folder)) {
        let text = fs::read_to_string(&file).unwrap();
        let shown = file.strip_prefix(root()).unwrap().display();
        for path in script_paths(&text) {
            let script = normalized(&file.parent().unwrap().join(path));
            // Another use of a path: the compiler finds includes that do not exist.
            if !script.exists() {
                continue;
            }
            includes += 1;
            let scripts = script.ancestors().find(|folder| folder.ends_with("scripts")).unwrap();
            let owner = scripts.parent().unwrap();
            if file.starts_with(owner) {
                continue;
            }
            let from = module(&file).map(name).unwrap_or_default();
            let wanted = format!("{}/{}", name(owner), script.strip_prefix(owner).unwrap().display());
            let allowed = ALLOWED.iter().find(|(module, script)| *module == from && *script == wanted);
            let entry = allowed.unwrap_or_else(|| {
                panic!(
                    "{shown} of `{from}` may not include {wanted}: move the script to the module that runs it"
                )
            });
            used.insert(*entry);
        }
    }
    assert!(includes > 30, "only {includes} includes: the test does not find them");
    for entry in ALLOWED {
        assert!(used.contains(entry), "{entry:?} is not included any more: remove it from ALLOWED");
    }
}
