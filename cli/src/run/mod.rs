//! `signalbox run`: runs an application, registers its processes, and replaces them without a failed request.
//!
//! Each copy of a process has a [`slot`]. This module starts the slots and handles signals:
//!
//! | signal | effect |
//! |---|---|
//! | SIGHUP, `signalbox run replace` | reads the application again, and replaces one copy after the other |
//! | SIGTERM, Ctrl-C | drains all copies, and ends them when their requests are finished |
//! | a second one | ends immediately |

mod app;
mod child;
mod control;
mod output;
mod ready;
mod registration;
mod slot;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    signal::unix::{Signal, SignalKind},
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    exit::Failure,
    remote::{System, duration},
    signals::{Ending, listen},
};
use app::{App, Source};
pub(crate) use control::groups;
use control::{Request, Socket, Status};
use output::Output;
use slot::{Context, Slot, Version};

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "`signalbox run replace` and SIGHUP replace the copies one after the other; SIGTERM drains and ends them."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<control::Command>,
    #[command(flatten)]
    source: Source,
    /// IP address of this machine at which routers reach the copies
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Name of this machine, which is part of the IDs of its instances [default: the host name]
    #[arg(long, value_name = "ID")]
    node: Option<String>,
    /// Remove an instance after this time without a heartbeat
    #[arg(long, value_name = "DURATION", value_parser = whole_seconds, default_value = "15s")]
    lease: Duration,
    /// Restart or give up a copy that is not healthy after this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    timeout: Duration,
    /// Let a copy that receives no new requests finish its requests for this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    drain: Duration,
    /// Send SIGKILL to a process that has not ended this time after SIGTERM
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    stop_timeout: Duration,
    #[command(flatten)]
    system: System,
}

fn whole_seconds(text: &str) -> Result<Duration, String> {
    let lease: u32 = crate::remote::seconds(text)?;
    if (3..=86_400).contains(&lease) {
        Ok(Duration::from_secs(lease.into()))
    } else {
        Err("must be 3s to 1d".to_owned())
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if let Some(command) = args.command {
        return control::run(command).await;
    }
    let app = args.source.read()?;
    let longest = app.processes.iter().map(|process| process.name.len() + 3).max().unwrap_or_default();
    let context = Context {
        client: args.system.client()?,
        output: Output::new(longest),
        node: args.node.clone().unwrap_or_else(host_name),
        address: args.address,
        lease: args.lease,
        timeout: args.timeout,
        drain: args.drain,
        stop_timeout: args.stop_timeout,
        stop: CancellationToken::new(),
        draining: TaskTracker::new(),
    };
    let (mut signals, mut replace) = (Ending::listen()?, listen(SignalKind::hangup())?);
    let status =
        Arc::new(Mutex::new(Status { name: app.name.clone(), pid: std::process::id(), ..Status::default() }));
    let (sender, mut requests) = mpsc::channel(1);
    let output = context.output.clone();
    let socket = Socket::listen(&app.name, status.clone(), sender).await;
    if let Err(reason) = &socket {
        output.say(&format!("only SIGHUP can replace copies: {reason}"));
    }
    let mut fleet = Fleet { context: Arc::new(context), slots: BTreeMap::new(), colors: 0, status };
    let mut wishes = Wishes { signals: &mut replace, requests: &mut requests };
    let outcome = serve(&mut fleet, app, &args.source, &mut signals, &mut wishes).await;
    drop(socket);
    output.say("stopping; press Ctrl-C again to stop immediately");
    notify("STOPPING=1");
    tokio::select! {
        () = fleet.end() => output.say("stopped"),
        _again = signals.wait() => output.say("stopped immediately"),
    }
    outcome
}

/// Runs until a signal ends it.
async fn serve(
    fleet: &mut Fleet,
    app: App,
    source: &Source,
    signals: &mut Ending,
    wishes: &mut Wishes<'_>,
) -> Result<(), Failure> {
    let output = fleet.context.output.clone();
    tokio::select! {
        failed = fleet.change(app) => match failed {
            Ok(()) => output.say("every copy runs"),
            Err(reason) => output.say(&reason),
        },
        end = signals.wait() => return end,
    }
    notify("READY=1");
    loop {
        let wish = tokio::select! {
            end = signals.wait() => return end,
            wish = wishes.next() => wish,
        };
        output.say("replacing every copy, one after the other");
        let result = match source.read() {
            Err(failure) => Err(format!("nothing was replaced: {}", failure.message())),
            Ok(app) => tokio::select! {
                end = signals.wait() => return end,
                replaced = fleet.change(app) => {
                    replaced.map_err(|reason| format!("the replacement ended early: {reason}"))
                }
            },
        };
        output.say(result.as_ref().map_or_else(String::as_str, |()| "every copy was replaced"));
        if let Some(reply) = wish {
            let _gone = reply.send(result);
        }
    }
}

/// What asks for a replacement.
struct Wishes<'a> {
    signals: &'a mut Signal,
    requests: &'a mut mpsc::Receiver<Request>,
}

impl Wishes<'_> {
    /// Waits for the next wish. A client of the socket waits for the result; a signal has no sender.
    async fn next(&mut self) -> Option<Request> {
        tokio::select! {
            _ = self.signals.recv() => None,
            Some(request) = self.requests.recv() => Some(request),
        }
    }
}

/// All slots, by the name of their process.
struct Fleet {
    context: Arc<Context>,
    slots: BTreeMap<String, Vec<Slot>>,
    colors: usize,
    /// What `signalbox run list` shows.
    status: Arc<Mutex<Status>>,
}

impl Fleet {
    /// Replaces the copies that run, one after the other; then starts those that are missing, and ends those that are too many.
    /// The first failure ends it, so that a version that does not start leaves the other copies as they are.
    async fn change(&mut self, app: App) -> Result<(), String> {
        let version = app.version.clone();
        let changed = self.change_slots(app).await;
        if let Ok(mut status) = self.status.lock() {
            status.copies = self.slots.values().map(Vec::len).sum();
            if changed.is_ok() || status.version.is_empty() {
                status.version = version;
            }
        }
        changed
    }

    async fn change_slots(&mut self, app: App) -> Result<(), String> {
        let mut started = Vec::new();
        let mut removed: Vec<String> = self.slots.keys().cloned().collect();
        for process in app.processes {
            removed.retain(|name| *name != process.name);
            let version = Arc::new(Version {
                app: app.name.clone(),
                version_type: app.version.clone(),
                process: process.clone(),
            });
            let slots = self.slots.entry(process.name.clone()).or_default();
            for (slot, number) in slots.iter().take(process.copies.into()).zip(1..) {
                slot.replace(version.clone())
                    .await
                    .map_err(|why| format!("{}.{number} {why}", process.name))?;
            }
            for number in (slots.len() + 1)..=usize::from(process.copies) {
                let number = u16::try_from(number).unwrap_or(u16::MAX);
                let (slot, first) = Slot::start(self.context.clone(), number, self.colors, version.clone());
                self.colors += 1;
                slots.push(slot);
                started.push(first);
            }
            while slots.len() > process.copies.into() {
                if let Some(slot) = slots.pop() {
                    slot.retire().await;
                }
            }
        }
        for name in removed {
            for slot in self.slots.remove(&name).unwrap_or_default() {
                slot.retire().await;
            }
        }
        for first in started {
            // The slot has reported the reason, and tries again.
            if !matches!(first.await, Ok(Ok(()))) {
                return Err("not every copy runs yet".to_owned());
            }
        }
        Ok(())
    }

    /// Drains and ends everything.
    async fn end(self) {
        self.context.stop.cancel();
        for slot in self.slots.into_values().flatten() {
            slot.ended().await;
        }
        self.context.draining.close();
        self.context.draining.wait().await;
    }
}

/// The name of this machine, with characters that IDs may have.
pub(crate) fn host_name() -> String {
    let name = signalbox_settings::host_name();
    let plain = |char: char| if char.is_ascii_alphanumeric() || "._-".contains(char) { char } else { '_' };
    name.chars().map(plain).take(40).collect()
}

/// Reports a state to systemd (`Type=notify`), if it started this program.
fn notify(state: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    // A service manager that does not listen cannot be reported to.
    let _unsent =
        address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_long_enough_for_three_heartbeats() {
        assert_eq!(whole_seconds("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(whole_seconds("1d"), Ok(Duration::from_secs(86_400)));
        for bad in ["2s", "2d", "3500ms", "x"] {
            whole_seconds(bad).unwrap_err();
        }
    }
}
