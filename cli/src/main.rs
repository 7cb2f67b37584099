//! `signalbox`: the operator's command.
//!
//! `signalbox up` runs the whole system on this machine. Every other subcommand has its own module. Exit codes are stable,
//! see [`exit`].

mod api;
mod audit;
mod backends;
mod bulk;
mod certificates;
mod check;
mod clients;
mod completion;
mod condition;
mod contexts;
mod deploy;
mod discover;
mod doctor;
mod edge;
mod events;
mod exit;
mod hosts;
mod input;
mod labels;
mod listing;
mod machines;
#[cfg(test)]
mod manual;
mod objects;
mod outline;
mod pacemakers;
mod pages;
mod queues;
mod remote;
mod repair_aof;
mod routers;
mod routes;
mod run;
mod secrets;
mod settings;
mod stats;
mod status;
mod subscribers;
mod terminal;
mod tokens;
mod topics;
mod up;
mod upgrade;
mod why;
mod yaml;

use std::process::ExitCode;

use clap::{
    CommandFactory as _, Parser, Subcommand,
    error::{ContextKind, ContextValue},
};

use exit::Failure;

/// The operator's command of Signalbox.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110, after_help = exit::HELP)]
struct Cli {
    /// Color states: auto on a terminal unless NO_COLOR is set, always, or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    color: terminal::Color,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the whole system on this machine: Redis, nginx, pacemaker and sidecar
    Up(Box<up::Args>),
    /// Show whether the parts of a system on this machine respond
    Status(status::Args),
    /// Manage instances, and show which routers have the newest table
    #[command(visible_alias = "route")]
    Routes(routes::Args),
    /// Manage hosts: policies, traffic splits, promotion
    #[command(visible_alias = "host")]
    Hosts(Box<hosts::Args>),
    /// List routers, and how far each follows the route table
    #[command(visible_alias = "router")]
    Routers(routers::Args),
    /// List the running pacemakers
    #[command(visible_alias = "pacemaker")]
    Pacemakers(pacemakers::Args),
    /// Replace the instances of a host with those of a new version: all of them, or none if one is not healthy
    Deploy(Box<deploy::Args>),
    /// Run an application and keep its processes registered: health, leases, restarts, replacement without failed requests
    Run(Box<run::Args>),
    /// Register instances that are found in containers, files or DNS
    Discover(discover::Args),
    /// Show request statistics
    Stats(stats::Args),
    /// Publish events, and watch them
    #[command(visible_alias = "event")]
    Events(events::Args),
    /// Manage topics and their publishers
    #[command(visible_alias = "topic")]
    Topics(topics::Args),
    /// Manage the clients of the event bus and their tokens
    #[command(visible_alias = "client")]
    Clients(clients::Args),
    /// Manage subscribers and their dead letters
    #[command(visible_alias = "subscriber")]
    Subscribers(subscribers::Args),
    /// Manage pull queues
    #[command(visible_alias = "queue")]
    Queues(queues::Args),
    /// Manage objects with a backend, and show what blocks them
    #[command(visible_alias = "object")]
    Objects(objects::Args),
    /// Manage the backends of objects and their dead letters
    #[command(visible_alias = "backend")]
    Backends(backends::Args),
    /// List and upload certificates, and renew those that are obtained automatically
    #[command(visible_alias = "certificate")]
    Certificates(certificates::Args),
    /// Manage API tokens
    #[command(visible_alias = "token")]
    Tokens(tokens::Args),
    /// Show who changed what, log-ins, and refused calls
    Audit(audit::Args),
    /// Call the API directly, for calls without a command
    Api(api::Args),
    /// Manage names of systems, with their addresses and tokens
    #[command(visible_alias = "ctx")]
    Context(contexts::Args),
    /// Check whether events, queues, objects and labels are consistent (exit code 1 if not)
    Check(check::Args),
    /// Report what is misconfigured or unhealthy and how to fix it (exit code 1 if something is critical)
    Doctor(doctor::Args),
    /// Check whether the system can be upgraded to the version of this command (exit code 1 if not)
    Upgrade(upgrade::Args),
    /// Run nginx alone, configured by environment variables (for containers and services)
    Edge(edge::Args),
    /// Evaluate an exit condition
    Condition(condition::Args),
    /// Validate, test, plan and apply definitions of state machines
    #[command(visible_alias = "machine")]
    Machines(machines::Args),
    /// Manage labels of state machines and explain why they wait
    #[command(visible_alias = "label")]
    Labels(labels::Args),
    /// Create the missing tokens, keys and Redis users of a deployment (for containers and services)
    Secrets(secrets::Args),
    /// Remove an incomplete transaction and zero bytes from a stopped Redis server's append-only files
    RepairAof(repair_aof::Args),
    /// Print a script that lets the shell complete commands, flags and names
    Completions(completion::Scripts),
    /// Print what can follow on the command line (used by the script of `completions`)
    #[command(hide = true)]
    Complete(completion::Args),
    /// Print the manual page
    Man(pages::Man),
    /// End the processes of a system after the process that started them has ended (used by `up`)
    #[command(hide = true, name = signalbox_stack::GUARD_COMMAND)]
    Guard,
}

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => {
            terminal::set_color(cli.color);
            run(cli.command)
        }
        // Help and version are handled here, too. An invalid flag or variable is a configuration error, like an invalid file.
        Err(mut error) => {
            // clap's own usage shows options whose variables are set as if they were required.
            if error.use_stderr() {
                let _replaced = error.insert(ContextKind::Usage, ContextValue::StyledStr(usage()));
            }
            let _unwritten = error.print();
            return if error.use_stderr() { exit::code(exit::CONFIGURATION) } else { ExitCode::SUCCESS };
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The usage of the command whose name was typed.
fn usage() -> clap::builder::StyledStr {
    let mut command = Cli::command();
    command.build();
    for word in std::env::args().skip(1) {
        if let Some(named) = command.find_subcommand(&word) {
            command = named.clone();
        }
    }
    command.render_usage()
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(args) => asynchronously(up::run(*args)),
        Command::Status(args) => asynchronously(status::run(args)),
        Command::Routes(args) => asynchronously(routes::run(args)),
        Command::Hosts(args) => asynchronously(hosts::run(*args)),
        Command::Routers(args) => asynchronously(routers::run(args)),
        Command::Pacemakers(args) => asynchronously(pacemakers::run(args)),
        Command::Deploy(args) => asynchronously(deploy::run(*args)),
        Command::Run(args) => asynchronously(run::run(*args)),
        Command::Discover(args) => asynchronously(discover::run(args)),
        Command::Stats(args) => asynchronously(stats::run(args)),
        Command::Events(args) => asynchronously(events::run(args)),
        Command::Topics(args) => asynchronously(topics::run(args)),
        Command::Clients(args) => asynchronously(clients::run(args)),
        Command::Subscribers(args) => asynchronously(subscribers::run(args)),
        Command::Queues(args) => asynchronously(queues::run(args)),
        Command::Objects(args) => asynchronously(objects::run(args)),
        Command::Backends(args) => asynchronously(backends::run(args)),
        Command::Certificates(args) => asynchronously(certificates::run(args)),
        Command::Tokens(args) => asynchronously(tokens::run(args)),
        Command::Audit(args) => asynchronously(audit::run(args)),
        Command::Api(args) => asynchronously(api::run(args)),
        Command::Context(args) => asynchronously(contexts::run(args)),
        Command::Check(args) => asynchronously(check::run(args)),
        Command::Doctor(args) => asynchronously(doctor::run(args)),
        Command::Upgrade(args) => asynchronously(upgrade::run(args)),
        Command::Edge(args) => edge::run(&args),
        Command::Condition(args) => condition::run(args),
        Command::Machines(args) => asynchronously(machines::run(args)),
        Command::Labels(args) => asynchronously(labels::run(args)),
        Command::Secrets(args) => secrets::run(&args),
        Command::RepairAof(args) => repair_aof::run(&args),
        Command::Completions(args) => completion::script(&args),
        Command::Complete(args) => asynchronously(completion::run(args)),
        Command::Man(args) => pages::man(&args),
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
