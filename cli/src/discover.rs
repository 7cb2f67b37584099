//! `signalbox discover`: finds instances in containers, files or DNS, and keeps them registered.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use clap::Subcommand;
use signalbox_client::routes::Health;
use signalbox_discovery::{Discovery, Dns, DnsOptions, Docker, Folder, Options, Source, system_nameserver};
use tokio_util::sync::CancellationToken;

use crate::{
    exit::Failure,
    remote::{System, duration},
    run::host_name,
    signals::Ending,
    terminal,
};

/// Sockets of engines, in the order in which they are tried.
const SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/podman/podman.sock"];
const DNS_PORT: u16 = 53;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Register containers of Docker or Podman by their labels
    Docker(Engine),
    /// Register the instances that the TOML and JSON files of a folder describe
    Folder(Files),
    /// Register the targets of the SRV records of a name
    Dns(Records),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Engine {
    /// Socket of the engine's API [default: that of Docker or Podman]
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Files {
    /// Folder
    folder: PathBuf,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Records {
    /// Name of the records, such as _http._tcp.shop.internal
    record: String,
    /// Host name that the targets serve; can be repeated
    #[arg(long, value_name = "NAME", required = true)]
    host: Vec<String>,
    /// Version type of the targets [default: the name of the records]
    #[arg(long, value_name = "ID")]
    version_type: Option<String>,
    /// Path that the pacemaker checks; without it, it checks whether a connection is accepted
    #[arg(long, value_name = "PATH")]
    health_path: Option<String>,
    /// Name server [default: the first one of /etc/resolv.conf]
    #[arg(long, value_name = "IP:PORT", value_parser = nameserver)]
    nameserver: Option<SocketAddr>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Prefix of the IDs of the instances; each discovery process of a system needs its own [default: the source and the host name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Read the source at least this often
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    interval: Duration,
    /// Drain an instance that is absent for this time, unless the source shows that it ended
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    confirm: Duration,
    /// Let a drained instance finish its requests for this time, then remove it
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    drain: Duration,
    #[command(flatten)]
    system: System,
}

/// `10.0.0.2`, or with a port.
fn nameserver(text: &str) -> Result<SocketAddr, String> {
    let plain = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DNS_PORT));
    plain
        .or_else(|_| text.parse())
        .map_err(|_| "must be an IP address, such as 10.0.0.2 or 10.0.0.2:8600".to_owned())
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Docker(Engine { socket, common }) => {
            let usual = || SOCKETS.iter().map(PathBuf::from).find(|socket| socket.exists());
            let socket = socket.or_else(usual).unwrap_or_else(|| PathBuf::from(SOCKETS[0]));
            discover("docker", common, Docker::new(socket)).await
        }
        Command::Folder(Files { folder, common }) => discover("folder", common, Folder::new(folder)).await,
        Command::Dns(args) => {
            let missing = || Failure::configuration("/etc/resolv.conf has no name server; use --nameserver");
            let health = match args.health_path {
                Some(path) => Health { path: Some(path), ..Health::default() },
                None => Health { tcp: true, ..Health::default() },
            };
            let options = DnsOptions {
                version_type: args.version_type.unwrap_or_else(|| args.record.clone()),
                name: args.record,
                hosts: args.host,
                health: Some(health),
                nameserver: args.nameserver.or_else(system_nameserver).ok_or_else(missing)?,
            };
            discover("dns", args.common, Dns::new(options)).await
        }
    }
}

async fn discover(kind: &str, common: Common, source: impl Source) -> Result<(), Failure> {
    let name = common.name.unwrap_or_else(|| format!("{kind}.{}", host_name()));
    let valid = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    if name.is_empty() || name.len() > 40 || !name.chars().all(valid) {
        return Err(Failure::configuration(format!(
            "invalid name `{name}`: 1 to 40 characters of a-z, A-Z, 0-9, `.`, `_` and `-`"
        )));
    }
    if common.interval.is_zero() || common.confirm < common.interval {
        return Err(Failure::configuration(
            "--interval must be longer than 0, and --confirm at least as long",
        ));
    }
    let options = Options { name, interval: common.interval, confirm: common.confirm, drain: common.drain };
    let client = common.system.client()?;
    let mut ending = Ending::listen()?;
    let shutdown = CancellationToken::new();
    let discovery = Discovery::new(client, options, Arc::new(terminal::error));
    let running = discovery.run(source, shutdown.clone());
    tokio::pin!(running);
    // A change that was begun is not interrupted.
    tokio::select! {
        () = &mut running => Ok(()),
        end = ending.wait() => { shutdown.cancel(); running.await; end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_server_may_have_a_port() {
        assert_eq!(nameserver("10.0.0.2"), Ok(SocketAddr::from(([10, 0, 0, 2], 53))));
        assert_eq!(nameserver("[::1]:8600"), Ok("[::1]:8600".parse().unwrap()));
        nameserver("dns.example").unwrap_err();
    }
}
