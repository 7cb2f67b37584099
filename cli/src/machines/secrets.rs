//! `signalbox machines secrets`: values for headers and signatures of webhooks.

use std::path::PathBuf;

use signalbox_client::{
    Client,
    machines::{self, NewSecret, Secret},
    segment,
};

use super::path;
use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    listing::{Listing, cells},
    remote::Remote,
    terminal::out,
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

pub(super) async fn run(args: Secrets, remote: &Remote) -> Result<(), Failure> {
    let Secrets { machine, set, address, from, delete, sure, listing } = args;
    let of = |name: &str| path(&machine, &format!("/secrets/{}", segment(name)));
    if let Some((name, address)) = set.zip(address) {
        let value = input::text(&from)?;
        let value = value.strip_suffix('\n').unwrap_or(&value);
        let value = value.strip_suffix('\r').unwrap_or(value).to_owned();
        let secret: Secret = remote.client()?.send("PUT", &of(&name), &NewSecret { value, address }).await?;
        return remote.show(&secret, |secret| {
            out!("{} is set, and sent only to {}", secret.name, secret.address);
        });
    }
    if let Some(name) = delete {
        sure.confirm(&format!("delete the secret {name} of {machine}"))?;
        remote.call("DELETE", &of(&name), None).await?;
        out!("{name} is deleted");
        return Ok(());
    }
    let path = path(&machine, "/secrets");
    let read = async |client: Client| Ok(client.get::<machines::Secrets>(&path).await?.secrets);
    let row = |secret: &Secret| cells![secret.name, secret.address, secret.by, secret.at];
    listing.list(remote, read, ["SECRET", "ADDRESS", "BY", "SET"], row).await
}
