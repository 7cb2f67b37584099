//! The exit codes, which are those of `signalbox`.

use std::{io::Write as _, process::ExitCode};

/// The failure of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The canary did not end in the expected state.
    Broken(String),
    /// A required resource is missing or does not respond.
    Unavailable(anyhow::Error),
    /// Ctrl-C.
    Interrupted,
}

impl Failure {
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable(anyhow::Error::msg(message.into()))
    }

    pub(crate) fn report(self) -> ExitCode {
        let (code, message) = match self {
            Self::Broken(message) => (1, message),
            Self::Unavailable(error) => (69, format!("{error:#}")),
            Self::Interrupted => return ExitCode::from(130),
        };
        let _unwritten = writeln!(std::io::stderr(), "signalbox-demo: {message}");
        ExitCode::from(code)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Unavailable(error.into())
    }
}
