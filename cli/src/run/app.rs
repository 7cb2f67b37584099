//! The processes of an application: from the command line, a `signalbox.app.toml`, or a `Procfile`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer};

use crate::exit::Failure;

/// The files that are read if no command is given, in this order.
const FILES: [&str; 2] = ["signalbox.app.toml", "Procfile"];
/// The process that `--host` and the flags next to it describe.
const WEB: &str = "web";
const MAX_COPIES: u16 = 100;
/// The maximum length of a name, so that the IDs of instances stay valid.
const MAX_NAME_BYTES: usize = 40;

/// An application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct App {
    /// The first part of the IDs of its instances.
    pub(super) name: String,
    /// The version type under which its requests are counted.
    pub(super) version: String,
    pub(super) processes: Vec<Process>,
}

/// A process, of which several copies run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Process {
    /// In a file, its key.
    #[serde(skip)]
    pub(super) name: String,
    /// The program and its arguments.
    #[serde(deserialize_with = "words")]
    pub(super) command: Vec<String>,
    /// The host names that it serves. Without one it gets no port and is not registered.
    #[serde(default)]
    pub(super) hosts: Vec<String>,
    #[serde(default = "one")]
    pub(super) copies: u16,
    /// The path that must be answered with a status of 200 to 399. Without it, accepting a connection is enough.
    pub(super) health_path: Option<String>,
    pub(super) weight: Option<u32>,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
}

/// The flags that describe an application.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Source {
    /// Host name that the process serves; can be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) host: Vec<String>,
    /// Number of copies that run at the same time
    #[arg(long, value_name = "COUNT")]
    pub(super) copies: Option<u16>,
    /// Path that must be answered with a status of 200 to 399; without it, accepting a connection is enough
    #[arg(long, value_name = "PATH")]
    pub(super) health_path: Option<String>,
    /// Application file: TOML, or a Procfile [default: signalbox.app.toml or Procfile in this folder]
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub(super) file: Option<PathBuf>,
    /// Name of the application, which begins the IDs of its instances [default: that of the file, of its folder, or of the program]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Version type under which requests are counted [default: the name of the application]
    #[arg(long, value_name = "ID")]
    pub(super) version: Option<String>,
    /// Program and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

impl Source {
    /// Reads the application. Called again for a replacement, when the file may have changed.
    pub(super) fn read(&self) -> Result<App, Failure> {
        let app = if self.command.is_empty() { self.of_file()? } else { self.of_command()? };
        check(&app).map_err(Failure::configuration)?;
        Ok(app)
    }

    fn of_command(&self) -> Result<App, Failure> {
        if self.host.is_empty() {
            return Err(Failure::configuration("name the host to serve with --host"));
        }
        let program = Path::new(&self.command[0]).file_stem().unwrap_or_default();
        let name = self.name.clone().unwrap_or_else(|| plain(&program.to_string_lossy()));
        Ok(self.app(name, vec![self.web(self.command.clone())]))
    }

    fn web(&self, command: Vec<String>) -> Process {
        Process {
            name: WEB.to_owned(),
            command,
            hosts: self.host.clone(),
            copies: self.copies.unwrap_or(1),
            health_path: self.health_path.clone(),
            ..Process::default()
        }
    }

    fn app(&self, name: String, processes: Vec<Process>) -> App {
        let version = self.version.clone().unwrap_or_else(|| name.clone());
        App { name, version, processes }
    }

    fn of_file(&self) -> Result<App, Failure> {
        let found = || FILES.iter().map(PathBuf::from).find(|file| file.exists());
        let path = self.file.clone().or_else(found).ok_or_else(|| {
            Failure::configuration(
                "nothing to run: add a command after --, or create signalbox.app.toml or Procfile in this folder",
            )
        })?;
        let failed =
            |error: &dyn std::fmt::Display| Failure::configuration(format!("{}: {error}", path.display()));
        let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        let name = self.name.clone().unwrap_or_else(|| folder(&path));
        if path.extension().is_some_and(|extension| extension == "toml") {
            return self.of_toml(&text, name).map_err(|error| failed(&error));
        }
        let processes = procfile(&text).map_err(|error| failed(&error))?;
        let web = |(name, command): (String, Vec<String>)| {
            if name == WEB {
                self.web(command)
            } else {
                Process { name, command, copies: 1, ..Process::default() }
            }
        };
        Ok(self.app(name, processes.into_iter().map(web).collect()))
    }

    fn of_toml(&self, text: &str, name: String) -> Result<App, String> {
        if !self.host.is_empty() || self.copies.is_some() || self.health_path.is_some() {
            return Err(
                "it sets hosts, copies and health_path; omit --host, --copies and --health-path".to_owned()
            );
        }
        let file: File = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        let name = self.name.clone().or(file.name).unwrap_or(name);
        let version = self.version.clone().or(file.version).unwrap_or_else(|| name.clone());
        let process = |(name, one): (String, Process)| Process { name, ..one };
        Ok(App { name, version, processes: file.processes.into_iter().map(process).collect() })
    }
}

/// `signalbox.app.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    version: Option<String>,
    processes: BTreeMap<String, Process>,
}

fn one() -> u16 {
    1
}

/// Words are executed as they are; a text is executed by the shell.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a command is a text for the shell, or a list of words")]
enum Command {
    Shell(String),
    Words(Vec<String>),
}

fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match Command::deserialize(deserializer)? {
        Command::Shell(line) => shell(&line),
        Command::Words(words) => words,
    })
}

fn shell(line: &str) -> Vec<String> {
    ["sh", "-c", line].map(str::to_owned).to_vec()
}

/// The lines `name: command` of a Procfile.
fn procfile(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(at, line)| {
            let (name, command) =
                line.split_once(':').ok_or_else(|| format!("line {at}: expected `name: command`"))?;
            Ok((name.trim().to_owned(), shell(command.trim())))
        })
        .collect()
}

/// The name of the folder that contains the file.
fn folder(file: &Path) -> String {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let folder = absolute.parent().and_then(Path::file_name).unwrap_or_default();
    plain(&folder.to_string_lossy())
}

/// Only characters that are valid in a name.
fn plain(text: &str) -> String {
    let valid = |char: &char| char.is_ascii_alphanumeric() || "._-".contains(*char);
    let name: String = text.chars().filter(valid).take(MAX_NAME_BYTES).collect();
    if name.is_empty() { "app".to_owned() } else { name }
}

/// What no server needs to reject.
fn check(app: &App) -> Result<(), String> {
    let name_is_valid = |name: &str| !name.is_empty() && plain(name) == name;
    let invalid = |kind: &str, name: &str| {
        format!(
            "invalid {kind} `{name}`: 1 to {MAX_NAME_BYTES} characters of a-z, A-Z, 0-9, `.`, `_` and `-`"
        )
    };
    if !name_is_valid(&app.name) {
        return Err(invalid("name", &app.name));
    }
    if app.processes.is_empty() {
        return Err("the application has no process".to_owned());
    }
    for (at, process) in app.processes.iter().enumerate() {
        let name = &process.name;
        if !name_is_valid(name) {
            return Err(invalid("name of a process", name));
        }
        if app.processes[..at].iter().any(|other| other.name == *name) {
            return Err(format!("two processes have the name {name}"));
        }
        if process.command.first().is_none_or(|program| program.trim().is_empty())
            || process.command.last().is_some_and(|line| process.command[0] == "sh" && line.is_empty())
        {
            return Err(format!("process {name} has no command"));
        }
        if process.copies > MAX_COPIES {
            return Err(format!("process {name}: copies must be 0 to {MAX_COPIES}"));
        }
        if process.hosts.is_empty() && (process.health_path.is_some() || process.weight.is_some()) {
            return Err(format!("process {name} serves no host; health_path and weight need hosts"));
        }
        if process.health_path.as_ref().is_some_and(|path| !path.starts_with('/')) {
            return Err(format!("process {name}: health_path must begin with /"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_toml(text: &str) -> Result<App, String> {
        let app = Source::default().of_toml(text, "folder".to_owned())?;
        check(&app).map(|()| app)
    }

    #[test]
    fn a_command_serves_its_hosts() {
        let source = Source {
            host: vec!["app.localhost".to_owned()],
            copies: Some(4),
            command: ["./my server.sh", "--fast"].map(str::to_owned).to_vec(),
            ..Source::default()
        };
        let app = source.read().unwrap();
        assert_eq!((&*app.name, &*app.version), ("myserver", "myserver"));
        assert_eq!((app.processes[0].copies, &app.processes[0].command[1]), (4, &"--fast".to_owned()));
        Source { host: Vec::new(), ..source }.read().unwrap_err();
    }

    #[test]
    fn a_file_describes_several_processes() {
        let app = from_toml(
            "version = '7'\n[processes.web]\ncommand = ['./server']\nhosts = ['a.test']\ncopies = 2\n\
             [processes.web.environment]\nLOG = 'info'\n[processes.clock]\ncommand = './clock | tee log'\n",
        )
        .unwrap();
        assert_eq!((&*app.name, &*app.version), ("folder", "7"));
        let [clock, web] = &app.processes[..] else { panic!("{app:?}") };
        assert_eq!(clock.command, ["sh", "-c", "./clock | tee log"]);
        assert_eq!((web.command.len(), web.copies, &*web.environment["LOG"]), (1, 2, "info"));
    }

    #[test]
    fn an_invalid_file_is_rejected_with_its_place() {
        for (text, expected) in [
            ("[processes.web]\ncomand = 'x'\n", "line 2, column 1"),
            ("processes = {}\n", "has no process"),
            ("[processes.web]\ncommand = 7\n", "a text for the shell, or a list of words"),
            ("[processes.web]\ncommand = []\n", "process web has no command"),
            ("[processes.web]\ncommand = ''\n", "process web has no command"),
            ("[processes.'a b']\ncommand = 'x'\n", "invalid name of a process `a b`"),
            ("[processes.web]\ncommand = 'x'\ncopies = 101\n", "copies must be 0 to 100"),
            ("[processes.web]\ncommand = 'x'\nhealth_path = '/'\n", "serves no host"),
            ("[processes.web]\ncommand = 'x'\nhosts = ['a.test']\nhealth_path = 'up'\n", "must begin with /"),
        ] {
            let error = from_toml(text).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error}");
        }
    }

    #[test]
    fn a_procfile_has_a_command_per_line() {
        let lines = procfile("# comment\nweb: ./server --port $PORT\n\n worker : ./work\n").unwrap();
        assert_eq!(lines[0], ("web".to_owned(), shell("./server --port $PORT")));
        assert_eq!(lines[1], ("worker".to_owned(), shell("./work")));
        assert_eq!(procfile("web ./server").unwrap_err(), "line 1: expected `name: command`");
    }
}
