//! The section `[machines]` of the configuration.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de::Error as _};
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

/// Names of environment variables with the beginning of the addresses that may get their values.
fn environment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Environment, D::Error> {
    let environment = Environment::deserialize(deserializer)?;
    for (name, prefix) in &environment {
        let address = prefix.strip_prefix("https://").or_else(|| prefix.strip_prefix("http://"));
        let host = address.and_then(|address| address.split('/').next()).unwrap_or_default();
        if host.is_empty() || prefix.contains(['?', '#', '@', ' ']) {
            let message =
                format!("{name} must be the beginning of an address such as https://warehouse.example/");
            return Err(D::Error::custom(message));
        }
    }
    Ok(environment)
}
