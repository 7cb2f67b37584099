//! `signalbox`: the operator's command.
//!
//! `signalbox up` runs the whole system on this machine; each further subcommand is a module of its own. Exit codes
//! are stable, see [`exit`].

mod check;
mod condition;
mod demo_app;
mod exit;
mod settings;
mod status;
mod terminal;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use exit::Failure;

/// The operator's command of Signalbox.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the whole system on this machine: Redis, nginx, pacemaker and sidecar
    Up(Box<up::Args>),
    /// Show whether the parts of a running system answer
    Status(status::Args),
    /// Check whether events, queues and objects of a running system are as they must be (exit code 1 if not)
    Check(check::Args),
    /// Try an exit condition out
    Condition(condition::Args),
    /// Run a small sample application, as `up --demo` does
    DemoApp(demo_app::Args),
    /// End a stack's processes when the process that started them is gone (used by `up`)
    #[command(hide = true, name = signalbox_stack::GUARD_COMMAND)]
    Guard,
}

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => run(cli.command),
        // Help and version come this way, too; a wrong flag or variable is bad configuration like a wrong file.
        Err(error) => {
            let _unwritten = error.print();
            return if error.use_stderr() { exit::code(exit::CONFIGURATION) } else { ExitCode::SUCCESS };
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(args) => asynchronously(up::run(*args)),
        Command::Status(args) => asynchronously(status::run(args)),
        Command::Check(args) => asynchronously(check::run(args)),
        Command::Condition(args) => condition::run(args),
        Command::DemoApp(args) => asynchronously(demo_app::run(args)),
        Command::Guard => {
            signalbox_stack::guard_main();
            Ok(())
        }
    }
}

fn asynchronously(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?
        .block_on(command)
}
