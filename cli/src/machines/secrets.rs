//! `signalbox machines secrets`: values for headers and signatures of webhooks.

use std::path::PathBuf;

use signalbox_client::machines::Secret;

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    listing::{Cell, Listing},
    remote::Remote,
    terminal,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Secrets {
    /// Machine, which need not exist yet
    machine: String,
    /// Set this secret; its value is read from standard input, or from the file of `--from`
    #[arg(long, value_name = "NAME", requires = "address", conflicts_with = "delete")]
    set: Option<String>,
    /// Beginning of the addresses that the secret may be sent to
    #[arg(long, requires = "set")]
    address: Option<String>,
    /// File with the value; a line feed at its end is ignored
    #[arg(long, value_name = "FILE", default_value = "-", requires = "set")]
    from: PathBuf,
    /// Delete this secret
    #[arg(long, value_name = "NAME")]
    delete: Option<String>,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    listing: Listing,
}

pub(super) async fn run(args: Secrets) -> Result<(), Failure> {
    let Secrets { machine, set, address, from, delete, sure, listing } = args;
    if let Some((name, address)) = set.zip(address) {
        let value = input::text(&from)?;
        let value = value.strip_suffix('\n').unwrap_or(&value);
        let value = value.strip_suffix('\r').unwrap_or(value);
        let secret = listing.client()?.machines().set_secret(&machine, &name, (value, &address)).await?;
        let text = format!("{} is set, and sent only to {}", secret.name, secret.address);
        return Remote::show(&listing, &secret, |_| terminal::line(&text));
    }
    if let Some(name) = delete {
        sure.confirm(&format!("delete the secret {name} of {machine}"))?;
        listing.client()?.machines().delete_secret(&machine, &name).await?;
        terminal::line(&format!("{name} is deleted"));
        return Ok(());
    }
    listing
        .list(
            async |client| client.machines().secrets(&machine).await,
            ["SECRET", "ADDRESS", "BY", "SET"],
            |secret: &Secret| {
                [
                    secret.name.clone().into(),
                    secret.address.clone().into(),
                    secret.by.clone().into(),
                    Cell::at(&secret.at),
                ]
            },
        )
        .await
}
