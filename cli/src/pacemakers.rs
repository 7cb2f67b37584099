//! `signalbox pacemakers`: the pacemakers that serve.

use clap::Subcommand;

use crate::{
    exit::Failure,
    listing::{Cell, Listing},
};

/// Flags of `signalbox pacemakers`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the running pacemakers with their versions
    #[command(visible_alias = "ls")]
    List(Listing),
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let Command::List(listing) = args.command;
    listing
        .run(async || {
            let all = listing.client()?.health().pacemakers().await?;
            listing.show(&all, ["PACEMAKER", "VERSION", "REPORTED"], |one| {
                [one.node.clone().into(), one.version.clone().into(), Cell::ago(one.age_ms)]
            })
        })
        .await
}
