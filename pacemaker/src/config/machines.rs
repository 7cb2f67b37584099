//! The keys of `[machines]`: in a file, in the environment and as flags.

use std::path::PathBuf;

use serde::Deserialize;

use super::Error;
use signalbox_machines::Options;

/// One source of the keys of `[machines]`; the same struct for files and flags.
#[derive(Debug, Default, Clone, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
#[command(next_help_heading = "State machines")]
pub(crate) struct MachinesLayer {
    /// Look after what is due; a pacemaker that does not only judges what is sent to it
    #[arg(
        id = "machines-serve",
        long = "machines-serve",
        value_name = "BOOL",
        env = "SIGNALBOX_PACEMAKER_MACHINES_SERVE"
    )]
    serve: Option<bool>,
    /// Folder with definitions that are applied at start
    #[arg(
        id = "machines-folder",
        long = "machines-folder",
        value_name = "FOLDER",
        env = "SIGNALBOX_PACEMAKER_MACHINES_FOLDER"
    )]
    folder: Option<PathBuf>,
    /// Environment variables that headers of definitions may name
    #[arg(
        id = "machines-environment",
        long = "machines-environment",
        value_name = "NAME",
        value_delimiter = ',',
        env = "SIGNALBOX_PACEMAKER_MACHINES_ENVIRONMENT"
    )]
    environment: Option<Vec<String>>,
    /// Labels of a wave that are judged between two notes of how far it came
    #[arg(
        id = "machines-page",
        long = "machines-page",
        value_name = "N",
        env = "SIGNALBOX_PACEMAKER_MACHINES_PAGE"
    )]
    page: Option<usize>,
    /// Labels that are worked on at a time
    #[arg(
        id = "machines-concurrency",
        long = "machines-concurrency",
        value_name = "N",
        env = "SIGNALBOX_PACEMAKER_MACHINES_CONCURRENCY"
    )]
    concurrency: Option<usize>,
}

impl MachinesLayer {
    /// Fills what is missing from `under`.
    pub(super) fn or(self, under: Self) -> Self {
        Self {
            serve: self.serve.or(under.serve),
            folder: self.folder.or(under.folder),
            environment: self.environment.or(under.environment),
            page: self.page.or(under.page),
            concurrency: self.concurrency.or(under.concurrency),
        }
    }

    /// The checked settings.
    pub(super) fn complete(self) -> Result<Options, Error> {
        let within = |key, value: Option<usize>, most: usize| {
            let value = super::required(key, value)?;
            if (1..=most).contains(&value) {
                return Ok(value);
            }
            Err(Error::Value { key, message: format!("must be between 1 and {most}") })
        };
        Ok(Options {
            serve: super::required("machines.serve", self.serve)?,
            folder: self.folder,
            environment: super::required("machines.environment", self.environment)?,
            page: within("machines.page", self.page, 10_000)?,
            concurrency: within("machines.concurrency", self.concurrency, 10_000)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::{DEFAULTS, Layer};

    use super::*;

    #[test]
    fn the_commented_file_says_what_the_code_does() {
        let file = Layer::parse(DEFAULTS, Path::new("defaults")).unwrap().machines.complete().unwrap();
        assert_eq!(format!("{file:#?}"), format!("{:#?}", Options::default()));
    }

    #[test]
    fn a_value_out_of_its_range_is_named() {
        let defaults = Layer::parse(DEFAULTS, Path::new("defaults")).unwrap().machines;
        let layer = MachinesLayer { page: Some(0), ..MachinesLayer::default() };
        let error = layer.or(defaults).complete().unwrap_err().to_string();
        assert_eq!(error, "machines.page: must be between 1 and 10000");
    }
}
