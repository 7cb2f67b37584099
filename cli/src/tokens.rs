//! `signalbox tokens`: manages API tokens.

use std::time::Duration;

use clap::{Subcommand, builder::PossibleValuesParser};
use jiff::Timestamp;
use serde_json::json;
use signalbox_client::{
    Client, Error, Time, segment,
    tokens::{NewToken, Rotation, Scope, Token, TokenList},
};

use crate::{
    confirm::Sure,
    exit::Failure,
    listing::{Cell, Listing, Shown as _, cells},
    remote::{self, Remote},
    terminal,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List tokens, without their secrets
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Create a token and print it once
    Create(Create),
    /// Create another secret for a token and print it once; the previous one stays valid for a while
    Rotate {
        /// Name of the token
        name: String,
        /// Time for which the previous secret stays valid
        #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = remote::duration)]
        overlap: Duration,
        /// End of the new secret: a time, or a duration from now [default: as the previous secret]
        #[arg(long, value_name = "TIME", value_parser = expiry)]
        expires: Option<Time>,
    },
    /// Revoke a token
    #[command(visible_alias = "rm", aliases = ["remove", "delete"])]
    Revoke {
        /// Name of the token
        name: String,
        #[command(flatten)]
        sure: Sure,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Name of the token
    name: String,
    /// Scope of the token; can be repeated
    #[arg(long, required = true, value_parser = PossibleValuesParser::new(Scope::words()))]
    scope: Vec<String>,
    /// Confine the token to this host name (or *.name); can be repeated
    #[arg(long, value_name = "NAME")]
    host: Option<Vec<String>>,
    /// Confine the token to this tenant; can be repeated
    #[arg(long, value_name = "NAME")]
    tenant: Option<Vec<String>>,
    /// Confine the token to this state machine; can be repeated
    #[arg(long, value_name = "NAME")]
    machine: Option<Vec<String>>,
    /// Let the token register instances under this version type only (or prefix*); can be repeated
    #[arg(long, value_name = "NAME")]
    version_type: Option<Vec<String>>,
    /// End of the token: a time, or a duration from now
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    expires: Option<Time>,
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    let secret = |token: &Token| terminal::line(&terminal::or_dash(token.token.as_ref()));
    let path = |name: &str| format!("/tokens/{}", segment(name));
    match command {
        Command::List(listing) => {
            listing.list(remote, async |client| Ok(tokens(&client).await?), HEADS, row).await
        }
        Command::Create(Create { name, scope, host, tenant, machine, version_type, expires }) => {
            let new = NewToken {
                name,
                // The parser accepts nothing but names of scopes.
                scopes: scope.iter().filter_map(|name| Scope::from_word(name)).collect(),
                hosts: host,
                tenants: tenant,
                machines: machine,
                version_types: version_type,
                expires_at: expires,
            };
            let token: Token = remote.client()?.send("POST", "/tokens", &new).await?;
            remote.show(&token, secret)
        }
        Command::Rotate { name, overlap, expires } => {
            let rotation = Rotation { overlap_seconds: Some(overlap.as_secs()), expires_at: expires };
            let path = format!("{}/rotate", path(&name));
            let token: Token = remote.client()?.send("POST", &path, &rotation).await?;
            remote.show(&token, secret)
        }
        Command::Revoke { name, sure } => {
            // The API accepts any name, so that a repeated call is no error. A typing error should be one.
            if !tokens(&remote.client()?).await?.iter().any(|token| token.name == name) {
                return Err(Failure::refused_because(format!(
                    "nothing was revoked: unknown token {name}; `signalbox tokens list` shows all"
                )));
            }
            sure.confirm(&format!("revoke the token {name}"))?;
            remote.call("DELETE", &path(&name), None).await?;
            remote.done(&json!({"revoked": true}), &format!("{name} revoked"))
        }
    }
}

async fn tokens(client: &Client) -> Result<Vec<Token>, Error> {
    Ok(client.get::<TokenList>("/tokens").await?.tokens)
}

const HEADS: [&str; 9] = [
    "TOKEN",
    "SCOPES",
    "HOSTS",
    "TENANTS",
    "MACHINES",
    "VERSION TYPES",
    "EXPIRES",
    "LAST USED",
    "+OLD SECRETS",
];

fn row(token: &Token) -> [Cell; 9] {
    let at = |time: Option<Time>| time.map_or_else(|| "never".cell(), |time| time.cell());
    cells![
        token.name,
        terminal::list(&token.scopes),
        token.hosts,
        token.tenants,
        token.machines,
        token.version_types,
        at(token.expires_at),
        at(token.last_used_at),
        token.replaced_until.len(),
    ]
}

/// A point in time, as a duration from now or as a timestamp.
pub(crate) fn expiry(text: &str) -> Result<Time, String> {
    let at = match text.parse::<Timestamp>() {
        Ok(at) => at,
        Err(_) => {
            let after = remote::duration(text).map_err(|_| {
                "must be a duration such as 90d, or a time such as 2027-01-31T00:00Z".to_owned()
            })?;
            Timestamp::now().checked_add(after).map_err(|error| error.to_string())?
        }
    };
    let ms = u64::try_from(at.as_millisecond()).map_err(|_| "must be after 1970".to_owned())?;
    Ok(Time::from_ms(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_duration_or_a_time() {
        assert_eq!(expiry("2027-01-31T00:00:00Z"), Ok(Time::from_ms(1_801_353_600_000)));
        let (soon, late) = (expiry("1h").unwrap(), expiry("90d").unwrap());
        assert!((7_772_400_000..7_772_500_000).contains(&(late.ms() - soon.ms())), "{soon} {late}");
        for bad in ["", "tomorrow", "5x", "-1h"] {
            expiry(bad).unwrap_err();
        }
    }
}
