//! `signalbox routers`: the routers, and how far each follows the route table.

use clap::Subcommand;
use signalbox_client::{Client, routes::Router};

use crate::{
    exit::Failure,
    listing::{Cell, Listing, cells},
    remote::Remote,
    terminal,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the routers that reported in the last minute, with the changes that each has not received yet
    #[command(visible_alias = "ls")]
    List(Listing),
}

const HEADS: [&str; 8] =
    ["ROUTER", "STATE", "SERIAL", "BEHIND", "PROPAGATION", "REPORTED", "ALARM", "+ADDRESS"];

pub(crate) async fn run(Command::List(listing): Command, remote: &Remote) -> Result<(), Failure> {
    let read = async |client: Client| Ok(client.routes().convergence().await?.routers);
    listing.list(remote, read, HEADS, row).await
}

fn row(router: &Router) -> [Cell; 8] {
    cells![
        router.node,
        terminal::word(router.state),
        router.serial,
        router.behind_by.map_or_else(|| "other table".to_owned(), |changes| changes.to_string()),
        router.propagation.as_ref().map(|time| format!("{:.1} ms", time.p99_ms)),
        Cell::ago(router.age_ms),
        router.alarm,
        router.address,
    ]
}
