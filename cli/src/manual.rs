//! Tests that compare the documentation with the command line: docs/cli.md contains every command, and every line of the
//! documentation that begins with `signalbox` is valid.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::{Command, CommandFactory as _};

use crate::{Cli, exit};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// README and everything below docs.
fn documents() -> Vec<(PathBuf, String)> {
    let (mut files, mut folders) = (vec![root().join("README.md")], vec![root().join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path);
            }
        }
    }
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(&file).unwrap())).collect()
}

/// The lines of code blocks, without prompts. A line that ends with a backslash is joined with the next one.
fn code_lines(text: &str) -> Vec<String> {
    let (mut lines, mut inside, mut begun) = (Vec::new(), false, String::new());
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
            continue;
        }
        if !inside {
            continue;
        }
        let line = line.trim();
        if let Some(start) = line.strip_suffix('\\') {
            begun += start;
            continue;
        }
        begun += line;
        lines.push(filled_in(std::mem::take(&mut begun).trim_start_matches("$ ")));
    }
    lines
}

/// A line with placeholders for shell expansions. Of `NAME=$(command)`, the command.
fn filled_in(line: &str) -> String {
    let assigned =
        line.split_once("=$(").filter(|(name, _)| name.chars().all(|char| char.is_ascii_uppercase()));
    let mut rest = match assigned.and_then(|(_, command)| command.strip_suffix(')')) {
        Some(command) => command,
        None => line,
    };
    let mut filled = String::new();
    while let Some((before, after)) = rest.split_once('$') {
        filled += before;
        if let Some((_, after)) = after.strip_prefix('(').and_then(|inside| inside.split_once(')')) {
            filled.push('1');
            rest = after;
        } else if after.starts_with(|char: char| char.is_ascii_uppercase()) {
            filled.push('1');
            rest = after.trim_start_matches(|char: char| char.is_ascii_uppercase() || char == '_');
        } else {
            filled.push('$');
            rest = after;
        }
    }
    filled + rest
}

/// The words of a line as a shell would split it, up to the next command. Sufficient for the documentation.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (Some(open), _) if open == char => quote = None,
            (Some('"'), '\\') => word.get_or_insert_default().extend(chars.next()),
            (Some(_), _) => word.get_or_insert_default().push(char),
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, '|' | '#' | ';' | '&' | '>') if word.is_none() || char != '#' => break,
            (None, ' ') => words.extend(word.take()),
            (None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, _) => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

/// Every command, such as `routes list`. A group alone is not a command.
fn commands(command: &Command, name: &str, found: &mut BTreeSet<String>) {
    let subs: Vec<_> =
        command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help").collect();
    if subs.is_empty() {
        found.insert(name.to_owned());
    }
    for sub in subs {
        commands(sub, format!("{name} {}", sub.get_name()).trim(), found);
    }
}

#[test]
fn words_are_split_as_in_a_shell() {
    assert_eq!(words("a 'b c' \"d \\\"e\" f\\ g # no"), ["a", "b c", "d \"e", "f g"]);
    assert_eq!(words("a --b '' | c"), ["a", "--b", ""]);
}

#[test]
fn shell_expansions_are_replaced() {
    assert_eq!(filled_in("a --id $ID --at $(date +%s000) 5$"), "a --id 1 --at 1 5$");
    assert_eq!(
        filled_in("ID=$(signalbox queues pull mail | head -n 1)"),
        "signalbox queues pull mail | head -n 1"
    );
}

#[test]
fn the_command_line_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_in_the_documentation_is_valid() {
    let (mut typed, mut wrong) = (0, Vec::new());
    for (file, text) in documents() {
        for line in code_lines(&text).iter().filter(|line| line.starts_with("signalbox ")) {
            // A synopsis is not a command.
            if line.contains(" [--") || line.ends_with(" <COMMAND>") {
                continue;
            }
            typed += 1;
            if let Err(error) = Cli::command().try_get_matches_from(words(line))
                && error.use_stderr()
            {
                wrong.push(format!("{}: {line}\n{error}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(typed > 30, "only {typed} commands found: the test reads the wrong files");
}

/// Commands that print rows, with their names.
fn lists(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let is_group = command.has_subcommands();
    let has_rows = command.get_arguments().any(|arg| arg.get_id() == "sort");
    if !is_group && (command.get_name() == "list" || about.starts_with("List ") || has_rows) {
        found.push((name.to_owned(), command.clone()));
    }
    for sub in command.get_subcommands() {
        lists(sub, format!("{name} {}", sub.get_name()).trim(), found);
    }
}

#[test]
fn every_list_has_the_same_flags() {
    let mut all = Vec::new();
    lists(&Cli::command(), "", &mut all);
    assert!(all.len() > 25, "{:?}", all.iter().map(|(name, _)| name).collect::<Vec<_>>());
    for (name, command) in all {
        let flags: BTreeSet<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        for flag in ["output", "json", "filter", "sort", "max", "no-headers", "watch"] {
            // `stats top` repeats its table at an interval of its own.
            let is_own = name == "stats top" && flag == "watch" && flags.contains("interval");
            assert!(is_own || flags.contains(flag), "`signalbox {name}` has no --{flag}");
        }
        let output = command.get_arguments().find(|arg| arg.get_long() == Some("output")).unwrap();
        let formats: Vec<String> =
            output.get_possible_values().iter().map(|one| one.get_name().to_owned()).collect();
        assert_eq!(formats, ["table", "wide", "json", "yaml", "name"], "{name}");
        assert_eq!(output.get_short(), Some('o'), "{name}");
    }
}

#[test]
fn docs_cli_md_has_every_command_and_every_exit_code() {
    let page = fs::read_to_string(root().join("docs/cli.md")).unwrap();
    let lines: Vec<Vec<String>> = code_lines(&page).iter().map(|line| words(line)).collect();
    let mut all = BTreeSet::new();
    commands(&Cli::command(), "", &mut all);
    assert!(all.contains("routes list") && all.contains("condition eval"), "{all:?}");
    for command in all {
        let typed: Vec<&str> = std::iter::once("signalbox").chain(command.split(' ')).collect();
        let shown = lines
            .iter()
            .any(|line| line.len() >= typed.len() && line.iter().zip(&typed).all(|(a, b)| a == b));
        assert!(shown, "docs/cli.md does not contain `signalbox {command}`");
    }
    let mut listed: Vec<u8> = vec![];
    // A meaning continues on lines that are indented like it.
    let joined = exit::HELP.replace("\n       ", " ");
    for line in joined.lines().skip(1) {
        let (code, meaning) = line.trim_start().split_once(' ').unwrap();
        let row = format!("| {code} | {} |", meaning.trim_start());
        assert!(page.contains(&row), "docs/cli.md does not contain the line of --help: {row}");
        listed.push(code.parse().unwrap());
    }
    let codes = [
        0,
        exit::BROKEN,
        exit::CONFIGURATION,
        exit::REFUSED,
        exit::UNAVAILABLE,
        exit::INTERNAL,
        exit::DENIED,
        exit::INTERRUPTED,
    ];
    assert_eq!(listed, codes, "--help describes other exit codes");
}
