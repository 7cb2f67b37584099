//! `signalbox routers`: the routers, and how far each follows the route table.

use clap::Subcommand;
use signalbox_client::routes::{Liveness, Router};

use crate::{
    exit::Failure,
    listing::{Cell, Listing},
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

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    let Command::List(listing) = command;
    listing
        .run(async || {
            let state = listing.client()?.routes().convergence().await?;
            listing.show(&state.routers, HEADS, row)
        })
        .await
}

fn row(router: &Router) -> [Cell; 8] {
    let state = match router.state {
        Liveness::Live => "live",
        Liveness::Silent => "silent",
        Liveness::Excluded => "excluded",
    };
    [
        router.node.clone().into(),
        state.into(),
        router.serial.to_string().into(),
        router.behind_by.map_or_else(|| "other table".to_owned(), |changes| changes.to_string()).into(),
        terminal::or_dash(router.propagation.as_ref().map(|time| format!("{:.1} ms", time.p99_ms))).into(),
        Cell::ago(router.age_ms),
        terminal::or_dash(router.alarm.as_ref()).into(),
        terminal::or_dash(router.address.as_ref()).into(),
    ]
}
