//! The control plane of Signalbox.
//!
//! The subsystems and the API are separate crates; this crate combines them. `config` reads their configuration, `service`
//! starts and ends them, and `dashboard` has the pages at `/`.

mod config;
mod dashboard;
mod own_addresses;
mod service;
#[cfg(test)]
mod tests;

use std::{io::Write as _, process::ExitCode};

use anyhow::Context as _;
use clap::Parser as _;
use signalbox_daemon::{
    EXIT_USAGE, log_to_stderr,
    traces::{Exporter, Service},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use config::{Args, Config};
use signalbox_admin_api::{App, api, http};

/// The program: reads its configuration and serves until it is stopped.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    if let Some(text) = args.settings.print() {
        return print(&text);
    }
    if args.print_openapi {
        return print(&signalbox_admin_api::document(dashboard::described()));
    }
    match start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(error)) => complain(&error, EXIT_USAGE),
        Err(Failure::Running(error)) => complain(&error, 1),
    }
}

enum Failure {
    Usage(anyhow::Error),
    Running(anyhow::Error),
}

fn start(args: &Args) -> Result<(), Failure> {
    let loaded = args.settings.load().map_err(|error| Failure::Usage(error.into()))?;
    let ignored = loaded.ignored.clone();
    let config = Config::complete(loaded).map_err(|error| Failure::Usage(error.into()))?;
    let service =
        Service { name: "signalbox-pacemaker", instance: &config.node, version: env!("CARGO_PKG_VERSION") };
    let exporter =
        log_to_stderr(&config.log, &config.traces, service).map_err(|error| Failure::Usage(error.into()))?;
    for name in ignored {
        tracing::warn!(name, "unknown environment variable ignored");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Running(error.into()))?;
    runtime.block_on(serve(config, exporter)).map_err(Failure::Running)
}

async fn serve(config: Config, exporter: Option<Exporter>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        format!("{} cannot be listened on; set `listen` to a free address", config.listen)
    })?;
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let signalled = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        signalled.cancel();
    });
    service::run(config, listener, exporter, shutdown).await
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn complain(error: &anyhow::Error, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "signalbox-pacemaker: {error:#}");
    ExitCode::from(code)
}
