//! The program `signalbox-sidecar`. The library describes it.

use std::{process::ExitCode, sync::Arc};

use anyhow::Context;
use clap::Parser;
use signalbox_daemon::{
    EXIT_USAGE,
    door::Door,
    log_to_stderr, serve,
    traces::{Exporter, Service},
};
use signalbox_seal::Statement;
use signalbox_sidecar::{
    api, clock,
    commit::RedisStore,
    config::{Args, Config},
    edge, follow,
    metrics::Metrics,
    rotate,
};
use signalbox_store::{Options, Redis, RoutesReplica, Stats, with_login};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    task,
};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let document = || args.print_openapi.then(api::document);
    if let Some(text) = args.settings.print().or_else(document) {
        #[expect(clippy::print_stdout, reason = "the output of the flag")]
        {
            print!("{text}");
        }
        return ExitCode::SUCCESS;
    }
    let (config, exporter) = match configuration(&args) {
        Ok(ready) => ready,
        Err(error) => return refuse(&error),
    };
    match run(config, exporter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped by an error");
            ExitCode::FAILURE
        }
    }
}

fn configuration(args: &Args) -> anyhow::Result<(Config, Option<Exporter>)> {
    let loaded = args.settings.load()?;
    let ignored = loaded.ignored.clone();
    let config = Config::complete(loaded)?;
    let service = Service {
        name: "signalbox-sidecar",
        instance: config.node.as_str(),
        version: env!("CARGO_PKG_VERSION"),
    };
    let exporter = log_to_stderr(&config.log, &config.traces, service)?;
    for name in ignored {
        tracing::warn!(name, "unknown environment variable ignored");
    }
    Ok((config, exporter))
}

#[expect(clippy::print_stderr, reason = "the log does not exist before the configuration is read")]
fn refuse(error: &anyhow::Error) -> ExitCode {
    eprintln!("signalbox-sidecar: {error:#}");
    ExitCode::from(EXIT_USAGE)
}

// One thread is enough for everything but the log, and an idle router wakes up half as often as with several.
#[tokio::main(flavor = "current_thread")]
async fn run(config: Config, exporter: Option<Exporter>) -> anyhow::Result<()> {
    let spans = exporter.as_ref().map(Exporter::counts).unwrap_or_default();
    // The exporter ends last, because the commit of the last lines is a span, too.
    let export_end = CancellationToken::new();
    let exporting = exporter.map(|exporter| task::spawn(exporter.run(export_end.clone())));
    // Before the port is bound: without a handler, a signal would end the process in the middle of a commit.
    let signals = Signals::listen().context("listening for signals")?;
    let stopping = CancellationToken::new();
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("listening on {} (set `listen` to a free address)", config.listen))?;
    // Redis errors that name the URL would put its password into the log.
    let open_stats = || Redis::open(&config.redis.login(&config.redis.stats), Options::default());
    let stats: Stats = open_stats().context("opening redis.stats")?;
    // Long answers to readers must not delay the commits and the router's report.
    let read_stats: Stats = open_stats().context("opening redis.stats")?;
    let owner = format!("{}-{}-{:08x}", std::process::id(), clock::unix_ms(), rand::random::<u32>());
    let store =
        RedisStore::new(stats.clone(), tokio::runtime::Handle::current(), config.node.as_str(), owner);
    let rotate = config.rotate_bytes.map(|bytes| rotate::Options {
        bytes,
        keep: config.rotate_keep,
        pid_file: config.nginx_pid_file.clone(),
    });
    let options =
        follow::service::Options { access_log: config.access_log.clone(), rotate, clock: clock::unix_ms };
    let follower = follow::service::start(store, options).context("starting the follower's thread")?;
    let edge = edge::Watch::default();
    let replica = config.redis.routes_replica.as_ref();
    let replica = replica.map(|url| Redis::open(&config.redis.login(url), Options::default()));
    let replica = replica.transpose().context("opening redis.routes_replica")?;
    let primary = config.redis.routes_primary.as_ref();
    let primary = primary.map(|url| with_login(url.as_str(), "", None, config.redis.ca_file.as_deref()));
    let primary = primary.map(|url| Redis::open(&url, Options::default())).transpose();
    let primary = primary.context("opening redis.routes_primary")?;
    let mut background = task::JoinSet::new();
    if let (Some(replica), Some(primary)) = (replica.clone(), primary) {
        background.spawn(edge::follow_primary(replica, primary, stopping.clone()));
    }
    watch_edge(&config, &stats, &replica, &follower.watch(), &edge, &stopping, &mut background)?;
    let metrics = Arc::new(Metrics::new(follower.watch(), edge.clone(), spans, clock::unix_ms));
    let keys = config.daemons_keys.clone();
    let is_proven = move |proof: &str, client: &str| {
        keys.is_proven(Statement::Client(client), proof, clock::unix_ms() / 1000)
    };
    let door = Door::new(&config.names, &signalbox_settings::host_name(), Some(Arc::new(is_proven)));
    let api = api::router(
        read_stats,
        replica,
        config.root_token_digest.as_ref(),
        door,
        metrics,
        follower.watch(),
        edge,
        stopping.clone(),
    );
    tracing::info!(listen = %config.listen, node = config.node.as_str(), log = %config.access_log.display(), "started");
    let limits = serve::Limits { connections: config.connections };
    let mut server = Box::pin(serve::serve(listener, api, limits, stopping.clone()));
    tokio::select! {
        () = &mut server => {}
        () = signals.stop() => {
            tracing::info!("stopping");
            stopping.cancel();
            // Connections that stay open must not delay the counting of the last lines.
            if tokio::time::timeout(std::time::Duration::from_secs(2), server).await.is_err() {
                tracing::debug!("closing connections that are still open");
            }
        }
    }
    while background.join_next().await.is_some() {}
    task::spawn_blocking(move || follower.stop()).await.context("stopping the follower")?;
    export_end.cancel();
    if let Some(exporting) = exporting {
        exporting.await.context("sending the last spans")?;
    }
    Ok(())
}

fn watch_edge(
    config: &Config,
    stats: &Stats,
    replica: &Option<RoutesReplica>,
    follower: &follow::service::Watch,
    watch: &edge::Watch,
    stopping: &CancellationToken,
    background: &mut task::JoinSet<()>,
) -> anyhow::Result<()> {
    if let Some(url) = &config.edge_url {
        let options = edge::Options {
            url: url.as_str().to_owned(),
            node: config.node.as_str().to_owned(),
            snapshot_path: config.snapshot_path.clone(),
            keys: config.daemons_keys.clone(),
            clock: clock::unix_ms,
        };
        let service = edge::Service::new(options, stats.clone(), follower.clone(), watch.clone())
            .context("creating the HTTP client for the edge")?;
        background.spawn(service.run(stopping.clone()));
    }
    if let Some(replica) = replica {
        background.spawn(edge::watch_replica(replica.clone(), watch.clone(), stopping.clone()));
    }
    Ok(())
}

/// The signals that stop the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn stop(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
