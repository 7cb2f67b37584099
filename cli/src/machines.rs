//! `signalbox machines`: validates definitions of state machines and runs their scenarios without a running system; plans
//! and applies them in a running system.

mod flow;
mod plans;
mod secrets;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use clap::Subcommand;
use serde_json::{Value as Json, json};
use signalbox_client::segment;
use signalbox_machine::{
    definition::{self, File, Problem, Refused, SecretNames},
    scenario,
};

use crate::{
    exit::Failure,
    remote::Online,
    terminal::{self, out},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Local(Local),
    #[command(flatten)]
    Online(Box<Online<plans::Command>>),
}

/// Commands that need no running system.
#[derive(Debug, Subcommand)]
pub(crate) enum Local {
    /// Validate definition files; exit code 65 if any is invalid (docs/machines.md)
    Validate {
        /// Secrets that headers and signatures may use, optionally with the beginning of their addresses [default: all]
        #[arg(long, value_name = "NAME[=ADDRESS]", value_delimiter = ',')]
        secrets: Option<Vec<String>>,
        #[command(flatten)]
        files: Files,
    },
    /// Run the scenarios next to definition files: NAME.test.yaml for NAME.yaml; exit code 65 if any fails
    Test(Files),
    /// Convert a definition of Thread's Routemaster, and explain what was changed
    Import {
        /// File to convert
        file: PathBuf,
        /// File to write; it must not exist [default: standard output]
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
    /// Print the JSON Schema of definitions, for editors
    Schema,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Files {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// The path of a machine.
pub(crate) fn path(machine: &str, below: &str) -> String {
    format!("/state-machines/{}{below}", segment(machine))
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Local(Local::Validate { secrets, files }) => {
            let entry = |text: String| match text.split_once('=') {
                Some((name, address)) => (name.to_owned(), address.to_owned()),
                None => (text, String::new()),
            };
            let secrets = secrets.map(|names| names.into_iter().map(entry).collect());
            validate(&files, secrets.as_ref())
        }
        Command::Local(Local::Test(files)) => test(&files),
        Command::Local(Local::Import { file, output }) => import(&file, output.as_deref()),
        Command::Local(Local::Schema) => {
            terminal::line(definition::SCHEMA.trim_end());
            Ok(())
        }
        Command::Online(group) => plans::run(group.command, &group.remote).await,
    }
}

fn import(file: &Path, output: Option<&Path>) -> Result<(), Failure> {
    let name = file.display().to_string();
    let imported = match signalbox_machine::import::import(&name, &read(file)?) {
        Ok(imported) => imported,
        Err(refused) => {
            terminal::error(&refused.to_string());
            return Err(Failure::refused());
        }
    };
    match output {
        None => terminal::line(imported.yaml.trim_end()),
        Some(path) => {
            let written =
                fs::File::create_new(path).and_then(|mut file| file.write_all(imported.yaml.as_bytes()));
            written.map_err(|error| Failure::configuration(format!("{}: {error}", path.display())))?;
        }
    }
    for change in &imported.changes {
        terminal::error(&format!("changed: {change}"));
    }
    if imported.problems.is_empty() {
        return Ok(());
    }
    for problem in &imported.problems {
        terminal::error(&format!("in the converted file: {problem}"));
    }
    Err(Failure::refused())
}

fn read(path: &Path) -> Result<String, Failure> {
    let bytes =
        fs::read(path).map_err(|error| Failure::configuration(format!("{}: {error}", path.display())))?;
    String::from_utf8(bytes).map_err(|_| Failure::configuration(format!("{}: not UTF-8", path.display())))
}

/// Reads every file before any is validated, so that unreadable files are reported first.
fn sources(files: &[PathBuf]) -> Result<Vec<(String, String)>, Failure> {
    files.iter().map(|path| Ok((path.display().to_string(), read(path)?))).collect()
}

fn judged(name: &str, source: &str, secrets: Option<&SecretNames>) -> Result<File, Refused> {
    match secrets {
        Some(secrets) => definition::load_with(name, source, None, secrets),
        None => definition::load(name, source),
    }
}

fn validate(files: &Files, secrets: Option<&SecretNames>) -> Result<(), Failure> {
    let mut refused = false;
    let mut reports = Vec::new();
    // A machine must be defined in one file only.
    let mut seen: Vec<(String, String)> = Vec::new();
    for (name, source) in sources(&files.files)? {
        let (machines, warnings, problems) = match judged(&name, &source, secrets) {
            Ok(File { machines, warnings }) => (machines, warnings, Vec::new()),
            Err(Refused { problems }) => (Vec::new(), Vec::new(), problems),
        };
        let mut problems: Vec<Json> = listed(files, "", &problems);
        for machine in &machines {
            if let Some((_, other)) = seen.iter().find(|(known, _)| known == machine.name()) {
                let message = format!("the machine `{}` is already defined in {other}", machine.name());
                if !files.json {
                    terminal::error(&format!("{name}: {message}"));
                }
                problems.push(json!({ "file": name, "message": message }));
            }
            seen.push((machine.name().to_owned(), name.clone()));
        }
        let warnings = listed(files, "warning: ", &warnings);
        refused |= !problems.is_empty();
        if !files.json && problems.is_empty() {
            let machines = machines
                .iter()
                .map(|machine| format!("{} ({} states)", machine.name(), machine.states().len()));
            out!("{name}: {}", machines.collect::<Vec<_>>().join(", "));
        }
        let machines = machines.iter().map(|machine| {
            json!({ "name": machine.name(), "states": machine.states().len(), "hash": machine.hash(),
                "secrets": machine.secrets() })
        });
        reports.push(json!({ "file": name, "machines": machines.collect::<Json>(),
            "problems": problems, "warnings": warnings }));
    }
    finish(files, json!({ "valid": !refused, "files": reports }), refused)
}

fn test(files: &Files) -> Result<(), Failure> {
    let mut failed = false;
    let mut reports = Vec::new();
    let pairs = files.files.iter().map(|path| Ok((path, read(path)?, scenarios_of(path)?)));
    let pairs: Vec<_> = pairs.collect::<Result<_, Failure>>()?;
    for (path, source, (test_path, test)) in pairs {
        let name = path.display().to_string();
        let outcomes = definition::load(&name, &source)
            .and_then(|file| scenario::run(&test_path.display().to_string(), &test, &file.machines));
        let report = match outcomes {
            Ok(outcomes) => {
                failed |= outcomes.iter().any(|outcome| outcome.failed.is_some());
                let outcomes = outcomes.iter().map(|outcome| scenario_json(files, outcome));
                json!({ "file": name, "scenarios": outcomes.collect::<Json>() })
            }
            Err(Refused { problems }) => {
                failed = true;
                json!({ "file": name, "problems": listed(files, "", &problems) })
            }
        };
        reports.push(report);
    }
    finish(files, json!({ "passed": !failed, "files": reports }), failed)
}

/// `drip.test.yaml` for `drip.yaml`.
fn scenarios_of(path: &Path) -> Result<(PathBuf, String), Failure> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("yaml");
    let beside = path.with_extension(format!("test.{extension}"));
    let source = read(&beside)?;
    Ok((beside, source))
}

fn scenario_json(files: &Files, outcome: &scenario::Outcome) -> Json {
    if !files.json {
        match &outcome.failed {
            None => out!("ok      {}", outcome.name),
            Some(problem) => {
                out!("FAILED  {}", outcome.name);
                terminal::error(&problem.to_string());
            }
        }
    }
    json!({ "name": outcome.name, "passed": outcome.failed.is_none(),
        "problem": outcome.failed.as_ref().map(Problem::to_json) })
}

fn listed(files: &Files, kind: &str, problems: &[Problem]) -> Vec<Json> {
    if !files.json {
        problems.iter().for_each(|problem| terminal::error(&format!("{kind}{problem}")));
    }
    problems.iter().map(Problem::to_json).collect()
}

fn finish(files: &Files, report: Json, refused: bool) -> Result<(), Failure> {
    if files.json {
        terminal::line(&report.to_string());
    }
    if refused { Err(Failure::refused()) } else { Ok(()) }
}
