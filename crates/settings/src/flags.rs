//! The command line of a program: `--config`, `--set`, and flags for frequent keys.

use std::{fmt, marker::PhantomData, path::PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};

use crate::{
    Error, Flag, Loaded, Program, Settings, Sources,
    known::{self, Key, Kind},
    load, reference,
};

/// The parsed flags. Flatten it into the arguments of a program.
pub struct Flags<T> {
    config: Option<PathBuf>,
    print_defaults: bool,
    print_reference: bool,
    /// `KEY=VALUE`.
    set: Vec<String>,
    flags: Vec<Flag>,
    settings: PhantomData<fn() -> T>,
}

/// Omits values, which may be secret.
impl<T> fmt::Debug for Flags<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flags").field("config", &self.config).field("flags", &self.flags).finish()
    }
}

impl<T: Settings> Flags<T> {
    /// The text to print instead of running.
    pub fn print(&self) -> Option<String> {
        if self.print_defaults {
            return Some(T::PROGRAM.defaults());
        }
        self.print_reference.then(reference::<T>)
    }

    /// Loads the configuration from file, environment and flags.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn load(&self) -> Result<Loaded<T>, Error> {
        let mut flags = self.flags.clone();
        for entry in &self.set {
            let (key, value) = entry
                .split_once('=')
                .filter(|(key, _)| key.trim().split('.').all(|name| !name.is_empty()))
                .ok_or_else(|| Error::invalid("--set", "needs KEY=VALUE, such as log=debug"))?;
            let key = key.trim().to_owned();
            flags.push(Flag { name: format!("--set {key}"), key, value: value.to_owned() });
        }
        load(&Sources { file: self.config.clone(), environment: Sources::environment(), flags })
    }
}

impl<T: Settings> clap::Args for Flags<T> {
    fn augment_args(command: Command) -> Command {
        let program = T::PROGRAM;
        let keys = known::keys(&program.defaults());
        let variable = program.variable("config");
        let default =
            program.file.map_or_else(String::new, |file| format!(" [default: {file}, if it exists]"));
        let command = command
            .arg(
                Arg::new("config")
                    .long("config")
                    .value_name("FILE")
                    .value_parser(clap::value_parser!(PathBuf))
                    .help(format!("Configuration file (TOML){default} [env: {variable}]")),
            )
            .arg(
                Arg::new("set")
                    .long("set")
                    .value_name("KEY=VALUE")
                    .action(ArgAction::Append)
                    .help("Set any key of the configuration, such as log=debug"),
            )
            .arg(
                Arg::new("print-defaults")
                    .long("print-defaults")
                    .action(ArgAction::SetTrue)
                    .help("Print the commented default configuration and exit"),
            )
            .arg(Arg::new("print-reference").long("print-reference").action(ArgAction::SetTrue).hide(true));
        program.flags.iter().fold(command, |command, (flag, path)| {
            let key = keys.iter().find(|key| key.path == *path);
            command.arg(key.map_or_else(|| Arg::new(*flag).long(*flag), |key| argument(&program, flag, key)))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The flag of a key, with the first sentence of its description.
fn argument(program: &Program, flag: &'static str, key: &Key) -> Arg {
    let about = key.description.split(". ").next().unwrap_or_default().trim_end_matches('.');
    let default = key.default.as_deref().filter(|_| key.kind != Kind::Switch);
    let default = default.map_or_else(String::new, |text| format!(" [default: {}]", text.trim_matches('"')));
    let help = format!("{about}{default} [env: {}]", program.variable(&key.path));
    let arg = Arg::new(flag).long(flag).help(help);
    match key.kind {
        Kind::Switch => {
            arg.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        _ => arg.value_name("VALUE"),
    }
}

impl<T: Settings> clap::FromArgMatches for Flags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |(flag, key): &(&str, &str)| {
            let typed = matches.value_source(flag) == Some(ValueSource::CommandLine);
            let value = matches.get_one::<String>(flag).filter(|_| typed)?.clone();
            Some(Flag { name: format!("--{flag}"), key: (*key).to_owned(), value })
        };
        Ok(Self {
            config: matches.get_one("config").cloned(),
            print_defaults: matches.get_flag("print-defaults"),
            print_reference: matches.get_flag("print-reference"),
            set: matches.get_many("set").unwrap_or_default().cloned().collect(),
            flags: T::PROGRAM.flags.iter().filter_map(given).collect(),
            settings: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
