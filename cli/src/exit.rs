//! The stable exit codes (the numbers of BSD's `sysexits.h`).

use std::process::ExitCode;

use crate::terminal;

/// `check`, `doctor` or `upgrade --check` found a problem, or a subscriber rejected a test delivery.
pub(crate) const BROKEN: u8 = 1;
/// A flag, a variable or a file is invalid, or a confirmation is missing.
pub(crate) const CONFIGURATION: u8 = 64;
/// The input is invalid (a condition, a definition, a scenario that fails), or the API rejected the request.
pub(crate) const REFUSED: u8 = 65;
/// A required resource is in use, missing, or does not respond.
pub(crate) const UNAVAILABLE: u8 = 69;
/// A defect, or the operating system rejects an operation.
pub(crate) const INTERNAL: u8 = 70;
/// The API does not accept the token, or the token lacks a permission.
pub(crate) const DENIED: u8 = 77;
/// Ended by Ctrl-C (128 + SIGINT), cleanly.
pub(crate) const INTERRUPTED: u8 = 130;

/// The list in `--help`, in lines of at most 80 characters. docs/cli.md has the same texts.
pub(crate) const HELP: &str = "Exit codes:
  0    success; for `up` also: ended by SIGTERM
  1    `check`, `doctor` or `upgrade --check` found a problem, or a subscriber
       rejected a test delivery
  64   invalid flag, variable or file, or a confirmation is missing
  65   invalid input (a condition, a definition, a scenario), or the API rejected
       the request
  69   a required resource is in use, missing or does not respond, or an
       operation timed out; retry later
  70   a defect of Signalbox, or the operating system rejects files or
       processes
  77   the token is missing or unknown, or lacks a permission
  130  ended by Ctrl-C";

/// The failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: Option<String>,
}

impl Failure {
    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Self { code: CONFIGURATION, message: Some(message.into()) }
    }

    pub(crate) fn denied(message: impl Into<String>) -> Self {
        Self { code: DENIED, message: Some(message.into()) }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: UNAVAILABLE, message: Some(message.into()) }
    }

    pub(crate) fn broken(message: impl Into<String>) -> Self {
        Self { code: BROKEN, message: Some(message.into()) }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { code: INTERNAL, message: Some(message.into()) }
    }

    /// The input is invalid, and the reason has been printed.
    pub(crate) fn refused() -> Self {
        Self { code: REFUSED, message: None }
    }

    /// The API rejected the request, or the input is invalid.
    pub(crate) fn refused_because(message: impl Into<String>) -> Self {
        Self { code: REFUSED, message: Some(message.into()) }
    }

    /// The operator pressed Ctrl-C, and everything ended cleanly.
    pub(crate) fn interrupted() -> Self {
        Self { code: INTERRUPTED, message: None }
    }

    /// The reason, for a command that continues.
    pub(crate) fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }

    /// Prints the message and returns the code.
    pub(crate) fn report(self) -> ExitCode {
        if let Some(message) = self.message {
            terminal::error(&format!("signalbox: {message}"));
        }
        self.code.into()
    }
}

impl From<signalbox_stack::Error> for Failure {
    fn from(error: signalbox_stack::Error) -> Self {
        let code = match error.kind() {
            signalbox_stack::Kind::Configuration => CONFIGURATION,
            signalbox_stack::Kind::Unavailable => UNAVAILABLE,
            signalbox_stack::Kind::Internal => INTERNAL,
        };
        // With every cause. The last one comes from the operating system.
        Self { code, message: Some(format!("{:#}", anyhow::Error::from(error))) }
    }
}
