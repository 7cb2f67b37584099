//! `signalbox tokens`: manages API tokens.

use clap::{Subcommand, builder::PossibleValuesParser};
use serde_json::json;
use signalbox_client::tokens::{NewToken, Scope, Token};

use crate::{exit::Failure, remote::Remote, terminal};

/// Flags of `signalbox tokens`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List tokens, without their secrets
    List(All),
    /// Create a token and print it once
    Create(Create),
    /// Revoke a token
    Revoke(One),
}

#[derive(Debug, clap::Args)]
struct All {
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Name of the token
    name: String,
    /// Scope of the token; can be repeated
    #[arg(long, required = true, value_parser = PossibleValuesParser::new(Scope::ALL.iter().map(|scope| scope.as_str())))]
    scope: Vec<String>,
    /// Confine the token to this host name (or *.name); can be repeated
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Confine the token to this environment; can be repeated
    #[arg(long, value_name = "NAME")]
    environment: Vec<String>,
    /// Confine the token to this state machine; can be repeated
    #[arg(long, value_name = "NAME")]
    machine: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name of the token
    name: String,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::List(All { remote }) => {
            let tokens = remote.client()?.tokens().list().await?;
            remote.show(&tokens, |tokens| print(tokens))
        }
        Command::Create(Create { name, scope, host, environment, machine, remote }) => {
            let some = |names: Vec<String>| (!names.is_empty()).then_some(names);
            // The parser accepts nothing but names of scopes.
            let scopes = scope.iter().filter_map(|name| Scope::from_name(name)).collect();
            let new = NewToken {
                name,
                scopes,
                hosts: some(host),
                environments: some(environment),
                machines: some(machine),
            };
            let token = remote.client()?.tokens().create(&new).await?;
            remote.show(&token, |token| terminal::line(&terminal::or_dash(token.token.as_ref())))
        }
        Command::Revoke(One { name, remote }) => {
            remote.client()?.tokens().revoke(&name).await?;
            remote.show(&json!({"revoked": true}), |_| terminal::line(&format!("{name} revoked")))
        }
    }
}

fn print(tokens: &[Token]) {
    let names = |names: &Option<Vec<String>>| terminal::or_dash(names.as_ref().map(|names| names.join(",")));
    let rows: Vec<_> = tokens
        .iter()
        .map(|token| {
            [
                token.name.clone(),
                terminal::list(&token.scopes),
                names(&token.hosts),
                names(&token.environments),
                names(&token.machines),
            ]
        })
        .collect();
    terminal::table(["TOKEN", "SCOPES", "HOSTS", "ENVIRONMENTS", "MACHINES"], &rows);
}
