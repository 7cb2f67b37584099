//! `signalbox up`: the whole system on this machine, in the foreground.
//!
//! It starts everything, says where everything is, starts again what dies, and ends everything on Ctrl-C, SIGTERM or
//! when its terminal goes away. A second Ctrl-C does not wait for parts that take their time.

mod demo;
mod report;

use std::path::Path;

use signalbox_settings::{Flags, Loaded};
use signalbox_stack::Stack;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    exit::Failure,
    settings::{Settings, locate},
    terminal,
};

/// Flags of `signalbox up`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Flags<Settings>,
}

/// Runs until it is told to end.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if let Some(text) = args.settings.print() {
        terminal::line(text.trim_end());
        return Ok(());
    }
    let Loaded { settings, places, .. } = args.settings.load()?;
    let options = settings.options(&places)?;
    let demo = if settings.demo.enabled { Some(demo::program()?) } else { None };
    // From here on Ctrl-C must not end this process by itself.
    let mut ending = Ending::listen()?;
    let start =
        Stack::builder().options(options.clone()).on_event(|event| terminal::line(&event.to_string()));
    let stack = tokio::select! {
        stack = start.start() => stack.map_err(|error| locate(&places, error))?,
        // Dropping the half-started stack ends what there is of it.
        end = ending.wait() => return end.outcome(),
    };
    let outcome = tokio::select! {
        outcome = serve(&stack, &settings, &options, demo.as_deref()) => outcome,
        end = ending.wait() => end.outcome(),
    };
    terminal::line("ending; once more Ctrl-C does not wait");
    tokio::select! {
        () = stack.stop() => terminal::line("everything has ended"),
        _end = ending.wait() => terminal::line("ended at once"),
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

/// The signals that end a foreground program.
struct Ending {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

/// Which of them came.
enum End {
    Interrupted,
    Terminated,
}

impl Ending {
    fn listen() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::internal(format!("cannot catch signals: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn wait(&mut self) -> End {
        tokio::select! {
            _ = self.interrupt.recv() => End::Interrupted,
            _ = self.terminate.recv() => End::Terminated,
            _ = self.hang_up.recv() => End::Terminated,
        }
    }
}

impl End {
    /// Being told to end by a service manager is success; a shell wants to know of Ctrl-C.
    fn outcome(self) -> Result<(), Failure> {
        match self {
            Self::Interrupted => Err(Failure::interrupted()),
            Self::Terminated => Ok(()),
        }
    }
}
