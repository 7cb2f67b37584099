//! `signalbox secrets`: the tokens, keys, passwords and ACL files that `up` creates, for servers and daemons that other programs
//! start.

use std::path::PathBuf;

use signalbox_stack::Secrets;

use crate::{exit::Failure, terminal};

/// Flags of `signalbox secrets`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Existing secrets are kept, and files that follow from them are written again. To change one password, \
                        empty its file, run the command again, and send ACL LOAD to the Redis servers."
)]
pub(crate) struct Args {
    /// Folder for the secrets, such as /etc/signalbox
    folder: PathBuf,
}

/// Creates what is missing. Nothing secret is printed.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    Secrets::create(&args.folder)?;
    terminal::line(&format!(
        "{}: token, token.sha256, edge.key, and users/ for the Redis servers",
        args.folder.display()
    ));
    Ok(())
}
