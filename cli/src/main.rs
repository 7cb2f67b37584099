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
mod confirm;
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
mod signals;
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

use std::{path::PathBuf, process::ExitCode};

use clap::{
    CommandFactory as _, Parser, Subcommand,
    error::{ContextKind, ContextValue},
};

use exit::Failure;
use remote::{Online, Remote};

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
    Status(Remote),
    /// Manage instances, and show which routers have the newest table
    #[command(subcommand, visible_alias = "route", visible_alias = "instances", alias = "instance")]
    Routes(Online<routes::Command>),
    /// Manage hosts: policies, traffic splits, promotion
    #[command(subcommand, visible_alias = "host")]
    Hosts(Box<Online<hosts::Command>>),
    /// List routers, and how far each follows the route table
    #[command(subcommand, visible_alias = "router")]
    Routers(Online<routers::Command>),
    /// List the running pacemakers
    #[command(subcommand, visible_alias = "pacemaker")]
    Pacemakers(Online<pacemakers::Command>),
    /// Replace the instances of a host with those of a new version: all of them, or none if one is not healthy
    Deploy(Box<deploy::Args>),
    /// Run an application and keep its processes registered: health, leases, restarts, replacement without failed requests
    Run(Box<run::Args>),
    /// Register instances that are found in containers, files or DNS
    #[command(subcommand)]
    Discover(discover::Command),
    /// Show request statistics
    #[command(subcommand)]
    Stats(Online<stats::Command>),
    /// Publish events, and watch them
    #[command(subcommand, visible_alias = "event")]
    Events(Online<events::Command>),
    /// Manage topics and their publishers
    #[command(subcommand, visible_alias = "topic")]
    Topics(Online<topics::Command>),
    /// Manage the clients of the event bus and their tokens
    #[command(subcommand, visible_alias = "client")]
    Clients(Online<clients::Command>),
    /// Manage subscribers and their dead letters
    #[command(subcommand, visible_alias = "subscriber")]
    Subscribers(Online<subscribers::Command>),
    /// Manage pull queues
    #[command(subcommand, visible_alias = "queue")]
    Queues(Online<queues::Command>),
    /// Manage objects with a backend, and show what blocks them
    #[command(subcommand, visible_alias = "object")]
    Objects(Online<objects::Command>),
    /// Manage the backends of objects and their dead letters
    #[command(subcommand, visible_alias = "backend")]
    Backends(Online<backends::Command>),
    /// List and upload certificates, and renew those that are obtained automatically
    #[command(subcommand, visible_alias = "certificate")]
    Certificates(Online<certificates::Command>),
    /// Manage API tokens
    #[command(subcommand, visible_alias = "token")]
    Tokens(Online<tokens::Command>),
    /// Show who changed what, log-ins, and refused calls
    Audit(audit::Args),
    /// Call the API directly, for calls without a command
    Api(api::Args),
    /// Manage names of systems, with their addresses and tokens
    #[command(subcommand, visible_alias = "ctx")]
    Context(contexts::Command),
    /// Check whether events, queues, objects and labels are consistent (exit code 1 if not)
    Check(Remote),
    /// Report what is misconfigured or unhealthy and how to fix it (exit code 1 if something is critical)
    Doctor(doctor::Args),
    /// Check whether the system can be upgraded to the version of this command (exit code 1 if not)
    Upgrade(upgrade::Args),
    /// Run nginx alone, configured by environment variables (for containers and services)
    #[command(subcommand)]
    Edge(edge::Action),
    /// Evaluate an exit condition
    #[command(subcommand)]
    Condition(condition::Command),
    /// Validate, test, plan and apply definitions of state machines
    #[command(subcommand, visible_alias = "machine")]
    Machines(machines::Command),
    /// Manage labels of state machines and explain why they wait
    #[command(subcommand, visible_alias = "label")]
    Labels(Online<labels::Command>),
    /// Create the missing tokens, keys and Redis users of a deployment (for containers and services)
    #[command(
        after_help = "Existing secrets are kept, and files that follow from them are written again. To change one password, \
                        empty its file, run the command again, and send ACL LOAD to the Redis servers."
    )]
    Secrets {
        /// Folder for the secrets, such as /etc/signalbox
        folder: PathBuf,
    },
    /// Remove an incomplete transaction and zero bytes from a stopped Redis server's append-only files
    RepairAof {
        /// Data folder of the server, which contains `appendonlydir`
        folder: PathBuf,
    },
    /// Print a script that lets the shell complete commands, flags and names
    Completions {
        /// Shell
        shell: completion::Shell,
    },
    /// Print what can follow on the command line (used by the script of `completions`)
    #[command(hide = true)]
    Complete {
        /// The words after `signalbox`, the last one as far as it is typed
        #[arg(last = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print the manual page
    Man {
        /// Write one page per command into this folder instead of one page to standard output
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
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
            return if error.use_stderr() { exit::CONFIGURATION.into() } else { ExitCode::SUCCESS };
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
        Command::Routes(group) => asynchronously(routes::run(group.command, &group.remote)),
        Command::Hosts(group) => asynchronously(hosts::run(group.command, &group.remote)),
        Command::Routers(group) => asynchronously(routers::run(group.command, &group.remote)),
        Command::Pacemakers(group) => asynchronously(pacemakers::run(group.command, &group.remote)),
        Command::Deploy(args) => asynchronously(deploy::run(*args)),
        Command::Run(args) => asynchronously(run::run(*args)),
        Command::Discover(command) => asynchronously(discover::run(command)),
        Command::Stats(group) => asynchronously(stats::run(group.command, &group.remote)),
        Command::Events(group) => asynchronously(events::run(group.command, &group.remote)),
        Command::Topics(group) => asynchronously(topics::run(group.command, &group.remote)),
        Command::Clients(group) => asynchronously(clients::run(group.command, &group.remote)),
        Command::Subscribers(group) => asynchronously(subscribers::run(group.command, &group.remote)),
        Command::Queues(group) => asynchronously(queues::run(group.command, &group.remote)),
        Command::Objects(group) => asynchronously(objects::run(group.command, &group.remote)),
        Command::Backends(group) => asynchronously(backends::run(group.command, &group.remote)),
        Command::Certificates(group) => asynchronously(certificates::run(group.command, &group.remote)),
        Command::Tokens(group) => asynchronously(tokens::run(group.command, &group.remote)),
        Command::Audit(args) => asynchronously(audit::run(args)),
        Command::Api(args) => asynchronously(api::run(args)),
        Command::Context(command) => asynchronously(contexts::run(command)),
        Command::Check(args) => asynchronously(check::run(args)),
        Command::Doctor(args) => asynchronously(doctor::run(args)),
        Command::Upgrade(args) => asynchronously(upgrade::run(args)),
        Command::Edge(action) => edge::run(action),
        Command::Condition(args) => condition::run(args),
        Command::Machines(command) => asynchronously(machines::run(command)),
        Command::Labels(group) => asynchronously(labels::run(group.command, &group.remote)),
        Command::Secrets { folder } => secrets::run(&folder),
        Command::RepairAof { folder } => repair_aof::run(&folder),
        Command::Completions { shell } => completion::script(shell),
        Command::Complete { words } => asynchronously(completion::run(&words)),
        Command::Man { dir } => pages::man(dir.as_deref()),
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Checks the help of a command and of all below it.
    fn check_width(mut command: clap::Command, checked: &mut usize) {
        let help = command.clone().term_width(80).render_help().to_string();
        // clap does not break the line with the usage.
        for line in help.lines().filter(|line| !line.starts_with("Usage: ")) {
            assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
        }
        *checked += 1;
        for below in command.get_subcommands_mut() {
            check_width(below.clone(), checked);
        }
    }

    #[test]
    fn the_help_of_every_command_fits_a_terminal_of_80_columns() {
        let mut command = Cli::command();
        command.build();
        let mut checked = 0;
        check_width(command, &mut checked);
        assert!(checked > 100, "{checked}");
    }

    /// Commands that remove something which another command restores.
    const RESTORED: &[&str] = &[
        // The same instance can be registered again, and deployments remove instances all the time.
        "routes remove",
        // The audit log has the policy.
        "hosts reset-policy",
        // Only on this machine.
        "context remove",
        // An event that is skipped is a dead letter, which can be redriven.
        "subscribers skip",
        "objects skip",
        // The label stays, and can be moved.
        "labels skip",
    ];

    #[test]
    fn every_command_that_cannot_be_undone_asks_for_a_confirmation() {
        let commands = Cli::command();
        let groups = commands.get_subcommands();
        let verbs = groups.flat_map(|group| group.get_subcommands().map(move |verb| (group, verb)));
        let mut asking = 0;
        for (group, verb) in verbs {
            let name = format!("{} {}", group.get_name(), verb.get_name());
            let has = |id| verb.get_arguments().any(|argument| argument.get_id() == id);
            let destroys = verb.get_name().split('-').any(|word| {
                ["remove", "delete", "revoke", "drop", "purge", "reset", "skip", "disable"].contains(&word)
            });
            asking += usize::from(has("yes"));
            assert_eq!(
                has("yes"),
                (destroys || has("delete") || name == "events initialize") && !RESTORED.contains(&&*name),
                "{name}"
            );
        }
        assert!(asking > 15, "{asking} commands ask");
    }

    #[test]
    fn the_same_verb_works_on_every_noun() {
        let commands = Cli::command();
        let groups = commands.get_subcommands();
        let verbs = groups.flat_map(|group| group.get_subcommands().map(move |verb| (group, verb)));
        for (group, verb) in verbs {
            let wanted: &[&str] = match verb.get_name() {
                "list" => &["ls"],
                "show" if group.get_name() != "stats" => &["get"],
                "remove" => &["rm", "delete"],
                "delete" => &["rm", "remove"],
                "revoke" => &["rm", "remove", "delete"],
                _ => &[],
            };
            let aliases: Vec<&str> = verb.get_all_aliases().collect();
            for alias in wanted {
                assert!(
                    aliases.contains(alias),
                    "{} {} has no alias {alias}",
                    group.get_name(),
                    verb.get_name()
                );
            }
        }
    }
}
