//! `signalbox pacemakers`: the pacemakers that serve.

use clap::Subcommand;

use crate::{
    exit::Failure,
    listing::{Cell, Listing},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the running pacemakers with their versions
    #[command(visible_alias = "ls")]
    List(Listing),
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    let Command::List(listing) = command;
    listing
        .list(
            async |client| client.health().pacemakers().await,
            ["PACEMAKER", "VERSION", "REPORTED"],
            |one| [one.node.clone().into(), one.version.clone().into(), Cell::ago(one.age_ms)],
        )
        .await
}
