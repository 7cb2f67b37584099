//! The system of a data folder.

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use signalbox_client::Client;
use signalbox_stack::Description;

use crate::exit::Failure;

/// Selects the system.
#[derive(Debug, clap::Args)]
pub(crate) struct System {
    /// Data folder of a system on this machine
    #[arg(long, value_name = "DIR", env = "SIGNALBOX_DATA_DIR", default_value = ".signalbox")]
    data_dir: PathBuf,
}

impl System {
    /// The system that runs in the data folder.
    pub(crate) fn description(&self) -> Result<Description, Failure> {
        let file = self.data_dir.join("run/stack.json");
        let text = fs::read_to_string(&file).map_err(|_| {
            let folder = self.data_dir.display();
            Failure::unavailable(format!(
                "no system runs in {folder}: start `signalbox up --demo`, or use --data-dir"
            ))
        })?;
        Ok(serde_json::from_str(&text).with_context(|| format!("cannot read {}", file.display()))?)
    }

    /// A client with the root token of the data folder.
    pub(crate) fn client(&self, admin_url: &str) -> Result<Client, Failure> {
        let file = self.data_dir.join("token");
        let token = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Client::builder(admin_url).token(token.trim()).build()?)
    }
}
