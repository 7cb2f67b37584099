//! Configuration in which every key is declared in exactly two places: a commented default file, and the type that the
//! program reads it into.
//!
//! ```text
//!  default file < configuration file < environment < flags
//!        ╰──────────────┴──────┬──────┴───────────╯
//!                     one merged TOML table ──▶ T: Settings
//! ```
//!
//! * The default file names every key, its default and its description. A key without a default is commented out there,
//!   with an example: `# node = "router-1"`.
//! * The type decides which values are valid ([`within`] declares a range), so a value is checked in the same way
//!   wherever it comes from. An error names the place: file, line and column, the environment variable, or the flag.
//! * Names of environment variables, flags with their help, and the reference page are derived from these two.
//! * If there are keys `x` and `x_file`, the second names a file that contains the value of `x`. Only one of them can be
//!   set in the same source. If a source sets one, both are ignored in the sources before it.

mod error;
#[cfg(feature = "flags")]
mod flags;
mod known;
mod machine;
mod merge;
mod range;
mod reference;

use std::path::PathBuf;

use serde::de::DeserializeOwned;

pub use error::Error;
#[cfg(feature = "flags")]
pub use flags::Flags;
pub use machine::host_name;
pub use merge::{Loaded, Places};
pub use range::{milliseconds, within};
pub use reference::{disagreements, reference};

/// The configuration of a program, apart from the type.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its name: `signalbox-sidecar`.
    pub name: &'static str,
    /// The prefix of its environment variables: `SIGNALBOX_SIDECAR_`.
    pub prefix: &'static str,
    /// The commented default file, in parts.
    pub defaults: &'static [&'static str],
    /// The file that is read if none is named and it exists.
    pub file: Option<&'static str>,
    /// Flags for keys that are often typed: the name of the flag, and the key.
    pub flags: &'static [(&'static str, &'static str)],
}

impl Program {
    /// The commented default file.
    pub fn defaults(&self) -> String {
        self.defaults.join("\n")
    }

    /// The environment variable of a key.
    pub fn variable(&self, key: &str) -> String {
        format!("{}{}", self.prefix, key.replace('.', "_").to_uppercase())
    }
}

/// The type of a program's configuration.
pub trait Settings: DeserializeOwned {
    /// Its keys.
    const PROGRAM: Program;
}

/// The sources of values, apart from the default file.
#[derive(Debug, Default, Clone)]
pub struct Sources {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// Environment variables. Those that do not begin with the program's prefix are ignored.
    pub environment: Vec<(String, String)>,
    /// Values from the command line; a later one wins.
    pub flags: Vec<Flag>,
}

/// A value from the command line.
#[derive(Clone)]
pub struct Flag {
    /// The flag without the value: `--listen`, `--set bus.workers`.
    pub name: String,
    /// The key.
    pub key: String,
    /// The value: TOML, or text without quotation marks.
    pub value: String,
}

/// Without the value, which may be secret.
impl std::fmt::Debug for Flag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Flag").field(&self.name).finish()
    }
}

impl Sources {
    /// The environment of this process.
    pub fn environment() -> Vec<(String, String)> {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        std::env::vars_os().filter_map(text).collect()
    }
}

/// Merges `sources` into the configuration.
///
/// # Errors
/// If a file cannot be read, a key is unknown or missing, or a value is invalid.
pub fn load<T: Settings>(sources: &Sources) -> Result<Loaded<T>, Error> {
    merge::load(&T::PROGRAM, sources)
}

/// The value of one section of a default file, such as the options of a part that is used without its program.
///
/// # Panics
/// If `defaults` has no valid `[section]`: both are part of the program.
pub fn section<T: DeserializeOwned>(section: &str, defaults: &str) -> T {
    let value = toml::from_str::<toml::Table>(defaults)
        .and_then(|mut sections| sections.remove(section).map(toml::Value::try_into).transpose());
    match value {
        Ok(Some(value)) => value,
        Ok(None) => panic!("the default file has no [{section}]"),
        Err(error) => panic!("the default file is not valid: {error}"),
    }
}
