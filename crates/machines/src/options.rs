//! The section `[machines]` of the configuration.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Deserializer};
use signalbox_machine::definition::Environment;
use signalbox_settings::{section, within};

/// The settings of the machines. [`Options::DEFAULTS`] describes them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct Options {
    pub serve: bool,
    pub folder: Option<PathBuf>,
    #[serde(deserialize_with = "environment")]
    pub environment: Environment,
    #[serde(deserialize_with = "within::<_, _, 0, 1_000_000_000>")]
    pub labels: u64,
    #[serde(deserialize_with = "within::<_, _, 0, 8_760>")]
    pub history_hours: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000>")]
    pub history_lines: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub page: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub concurrency: usize,
}

impl Options {
    /// The section of the default file: every key with its default and description.
    pub const DEFAULTS: &str = include_str!("defaults.toml");
}

impl Default for Options {
    fn default() -> Self {
        section("machines", Self::DEFAULTS)
    }
}

/// The beginning of the addresses that may get the value of an environment variable.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Prefix(String);

impl TryFrom<String> for Prefix {
    type Error = &'static str;

    fn try_from(prefix: String) -> Result<Self, Self::Error> {
        let address = prefix.strip_prefix("https://").or_else(|| prefix.strip_prefix("http://"));
        let host = address.and_then(|address| address.split('/').next()).unwrap_or_default();
        if host.is_empty() || prefix.contains(['?', '#', '@', ' ']) {
            return Err("must be the beginning of an address such as https://warehouse.example/");
        }
        Ok(Self(prefix))
    }
}

fn environment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Environment, D::Error> {
    let environment = BTreeMap::<String, Prefix>::deserialize(deserializer)?;
    Ok(environment.into_iter().map(|(name, Prefix(prefix))| (name, prefix)).collect())
}
