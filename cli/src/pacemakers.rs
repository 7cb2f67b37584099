//! `signalbox pacemakers`: the pacemakers that serve.

use clap::Subcommand;
use signalbox_client::{
    Client,
    health::{Pacemaker, PacemakerList},
};

use crate::{
    exit::Failure,
    listing::{Cell, Listing, cells},
    remote::Remote,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the running pacemakers with their versions
    #[command(visible_alias = "ls")]
    List(Listing),
}

pub(crate) async fn run(Command::List(listing): Command, remote: &Remote) -> Result<(), Failure> {
    let read = async |client: Client| Ok(client.get::<PacemakerList>("/pacemakers").await?.pacemakers);
    let row = |one: &Pacemaker| cells![one.node, one.version, Cell::ago(one.age_ms)];
    listing.list(remote, read, ["PACEMAKER", "VERSION", "REPORTED"], row).await
}
