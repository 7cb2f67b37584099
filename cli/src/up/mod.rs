//! `signalbox up`: runs the whole system on this machine, in the foreground.
//!
//! It starts every part, prints the addresses, restarts parts that die, and ends everything on Ctrl-C, SIGTERM or when its
//! terminal closes. A second Ctrl-C ends slow parts immediately.

mod demo;
mod report;

use std::path::Path;

use signalbox_settings::{Flags, Loaded};
use signalbox_stack::Stack;

use crate::{
    exit::Failure,
    settings::{Settings, locate},
    signals::Ending,
    terminal,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Flags<Settings>,
}

/// Runs until a signal.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if let Some(text) = args.settings.print() {
        terminal::line(text.trim_end());
        return Ok(());
    }
    let Loaded { settings, places, .. } = args.settings.load()?;
    let options = settings.options(&places)?;
    let demo = if settings.demo.enabled { Some(demo::program()?) } else { None };
    // From here on, Ctrl-C must not end this process directly.
    let mut ending = Ending::listen()?.or_hang_up()?;
    let start =
        Stack::builder().options(options.clone()).on_event(|event| terminal::line(&event.to_string()));
    let stack = tokio::select! {
        stack = start.start() => stack.map_err(|error| locate(&places, error))?,
        // Dropping the partly started stack ends its processes.
        end = ending.wait() => return end,
    };
    let outcome = tokio::select! {
        outcome = serve(&stack, &settings, &options, demo.as_deref()) => outcome,
        end = ending.wait() => end,
    };
    terminal::line("stopping; press Ctrl-C again to stop immediately");
    tokio::select! {
        () = stack.stop() => terminal::line("stopped"),
        _end = ending.wait() => terminal::line("stopped immediately"),
    }
    outcome
}

/// Adds the sample applications, reports, and then waits for a signal.
async fn serve(
    stack: &Stack,
    settings: &Settings,
    options: &signalbox_stack::Options,
    demo: Option<&Path>,
) -> Result<(), Failure> {
    let demo = match demo {
        Some(program) => Some(demo::start(stack, options, program).await?),
        None => None,
    };
    report::ready(stack, &settings.data_dir, demo.as_ref());
    std::future::pending().await
}
