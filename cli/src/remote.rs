//! Selects the system that a command uses, and the form of its output.

use std::{fs, path::PathBuf, time::Duration};

use serde::Serialize;
use signalbox_client::{Client, Error};
use signalbox_stack::Description;

use crate::{exit::Failure, terminal};

/// Flags of every command that calls a running system.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "System and output")]
pub(crate) struct Remote {
    /// Use the address and the root token in this data folder of a system on this machine
    #[arg(long, value_name = "DIR", env = "SIGNALBOX_DATA_DIR", default_value = ".signalbox")]
    data_dir: PathBuf,
    /// Use the API at this URL instead of the system in the data folder
    #[arg(long, value_name = "URL", env = "SIGNALBOX_URL")]
    url: Option<String>,
    /// Use this token instead of the one in the data folder
    #[arg(long, value_name = "TOKEN", env = "SIGNALBOX_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Trust the PEM certificates in this file in addition to those of the operating system
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Remote {
    /// A client with the default timeout.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        self.patient(Duration::from_secs(60))
    }

    /// A client with the timeout `patience`.
    pub(crate) fn patient(&self, patience: Duration) -> Result<Client, Failure> {
        let url = match &self.url {
            Some(url) => url.clone(),
            None => self.description()?.admin_url,
        };
        let mut builder = Client::builder(url).timeout(patience);
        if let Some(token) = self.token()? {
            builder = builder.token(token);
        }
        if let Some(file) = &self.ca_file {
            builder = builder.ca_file(file);
        }
        Ok(builder.build()?)
    }

    /// The system that runs in the data folder.
    pub(crate) fn description(&self) -> Result<Description, Failure> {
        let file = self.data_dir.join("run/stack.json");
        let text = fs::read_to_string(&file).map_err(|_| {
            Failure::unavailable(format!(
                "no system runs in {}; name another system with --url",
                self.data_dir.display()
            ))
        })?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::internal(format!("cannot read {}: {error}", file.display())))
    }

    /// The system in the data folder, unless another one is named.
    pub(crate) fn here(&self) -> Option<Description> {
        if self.url.is_some() { None } else { self.description().ok() }
    }

    /// Whether the system was named explicitly.
    pub(crate) fn is_named(&self) -> bool {
        self.url.is_some()
    }

    fn token(&self) -> Result<Option<String>, Failure> {
        if let Some(token) = &self.token {
            return Ok(Some(token.clone()));
        }
        let file = self.data_dir.join("token");
        match fs::read_to_string(&file) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            // The root token of this folder must not be sent to another system.
            Err(_) if self.url.is_some() => Ok(None),
            Err(error) => Err(Failure::configuration(format!("{}: {error}; use --token", file.display()))),
        }
    }

    /// Prints the answer: as JSON if requested, otherwise by `text`.
    pub(crate) fn show<T: Serialize>(&self, answer: &T, text: impl FnOnce(&T)) -> Result<(), Failure> {
        if !self.json {
            text(answer);
            return Ok(());
        }
        let json = serde_json::to_string_pretty(answer)
            .map_err(|error| Failure::internal(format!("cannot write the answer as JSON: {error}")))?;
        terminal::line(&json);
        Ok(())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = match &error {
            // serde's message contains the position of the difference.
            Error::Unreadable { source, .. } => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        match error.status() {
            Some(401) => {
                Self::configuration(format!("{message}; set a token with --token or SIGNALBOX_TOKEN"))
            }
            Some(403) => Self::configuration(message),
            _ if error.is_unavailable() => Self::unavailable(message),
            Some(_) if error.code().is_some() => Self::refused_because(message),
            _ => match error {
                Error::Address { .. } | Error::Token | Error::Trust { .. } => Self::configuration(message),
                _ => Self::unavailable(message),
            },
        }
    }
}

/// `5s`, `500ms`, `2m`, or `5` for seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit_ms = match &text[number.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("must end with ms, s, m or h".to_owned()),
    };
    let number: u64 =
        number.parse().map_err(|_| "must be a whole number and a unit, such as 30s".to_owned())?;
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(|| "too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        for (text, ms) in [("5s", 5_000), ("500ms", 500), ("5", 5_000), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "5x", "-5s", "1.5s", "99999999999999999999s", "9999999999999999h"] {
            duration(text).unwrap_err();
        }
    }
}
