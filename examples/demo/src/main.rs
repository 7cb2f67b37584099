//! `signalbox-demo`: what `signalbox up --demo` runs, as an example of how applications use Signalbox.
//!
//! It uses only the public API. [`app`] is an application behind the edge, [`prepare`] gives it a certificate and
//! a subscription, and [`canary`] deploys new versions of it with a state machine.

mod app;
mod canary;
mod exit;
mod prepare;
mod system;

use std::{io::Write as _, process::ExitCode};

use clap::{Parser, Subcommand};
use exit::Failure;

/// Sample applications for Signalbox, and a canary deployment to try.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a small sample application
    App(app::Args),
    /// Deploy a new version of canary.localhost step by step, and send requests until it is promoted or rolled back
    Canary(canary::Args),
    /// Wait for the sample applications, and set up what they need (used by `signalbox up --demo`)
    #[command(hide = true)]
    Prepare(prepare::Args),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let outcome = tokio::runtime::Runtime::new().map_err(Failure::from).and_then(|runtime| {
        runtime.block_on(async {
            match command {
                Command::App(args) => app::run(args).await,
                Command::Canary(args) => canary::run(args).await,
                Command::Prepare(args) => prepare::run(args).await,
            }
        })
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Writes a line to standard output. A closed pipe does not stop an application.
fn line(text: &str) {
    let _unwritten = writeln!(std::io::stdout(), "{text}");
}
