//! `signalbox secrets`: the tokens, keys, passwords and ACL files that `up` creates, for servers and daemons that other programs
//! start.

use std::path::Path;

use signalbox_stack::Secrets;

use crate::{exit::Failure, terminal::out};

/// Creates what is missing. Nothing secret is printed.
pub(crate) fn run(folder: &Path) -> Result<(), Failure> {
    Secrets::create(folder)?;
    out!(
        "{}: token, token.sha256, edge.key, daemons.key, and users/ for the Redis servers",
        folder.display()
    );
    Ok(())
}
