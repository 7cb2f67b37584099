//! The Redis servers: configuration, program, readiness.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::{
    Error, Part, Probe,
    layout::{Layout, set_mode},
    options::Fsync,
    programs,
    supervisor::Program,
};

/// The role of a server, with its role-specific settings.
pub(crate) enum Role {
    RoutesMaster,
    RoutesReplica {
        master_port: u16,
        socket: PathBuf,
        /// Whether nginx's workers run as another user than Redis.
        shared: bool,
    },
    Stats,
    Fabric(Fsync),
}

/// Finds redis-server.
pub(crate) fn binary(configured: &str) -> Result<PathBuf, Error> {
    let found = programs::server(
        configured,
        &["redis-server"],
        "install Debian's redis-server, or set redis.binary",
    )?;
    Ok(found[0].clone())
}

/// Writes the configuration of a server, and returns its program.
pub(crate) fn program(
    layout: &Layout,
    binary: &Path,
    part: Part,
    role: &Role,
    port: u16,
) -> Result<Program, Error> {
    let folder = layout.redis(&part);
    fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
    set_mode(&folder, 0o700)?;
    let file = folder.join("redis.conf");
    fs::write(&file, configuration(role, port, &folder)).map_err(Error::file("write", &file))?;
    let url = url(port);
    let (probe, address) = match role {
        Role::RoutesMaster => (Probe::RoutesMaster(url.clone()), url),
        Role::RoutesReplica { socket, .. } => {
            (Probe::RoutesReplica(url.clone()), format!("{url} and {}", socket.display()))
        }
        Role::Stats => (Probe::Stats(url.clone()), url),
        Role::Fabric(_) => (Probe::Fabric(url.clone()), url),
    };
    let program = Program::new(part, binary).arg(file.display().to_string());
    let program = match role {
        Role::RoutesReplica { .. } => program,
        Role::RoutesMaster | Role::Stats | Role::Fabric(_) => program.with_append_only_file(folder),
    };
    Ok(program.ready_when(probe).address(address).stop_with(Signal::SIGTERM, Duration::from_secs(10)))
}

pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// The complete Redis configuration. Nothing in `/etc/redis` is read.
fn configuration(role: &Role, port: u16, folder: &Path) -> String {
    let mut text = format!(
        "# Written at each start of Signalbox; edits are lost.\n\
         bind 127.0.0.1\nport {port}\nprotected-mode yes\ndaemonize no\nsupervised no\nlogfile \"\"\n\
         dir {}\n\
         # A full server refuses writes instead of forgetting routes, counters or events.\n\
         maxmemory-policy noeviction\n\
         # An unavailable replica must not delay the end of its master.\n\
         shutdown-timeout 2\n",
        quoted(folder)
    );
    match role {
        Role::RoutesReplica { .. } => text.push_str("save 300 1\nappendonly no\n"),
        Role::RoutesMaster | Role::Stats => {
            text.push_str("save \"\"\nappendonly yes\nappendfsync everysec\n")
        }
        Role::Fabric(fsync) => {
            let _infallible = write!(text, "save \"\"\nappendonly yes\nappendfsync {}\n", fsync.as_str());
        }
    }
    match role {
        // The delay waits for more replicas. A router would have to wait, too.
        Role::RoutesMaster => text.push_str(
            "repl-diskless-sync yes\nrepl-diskless-sync-delay 0\n\
             # A router that was unavailable for a while catches up instead of loading the whole table again.\n\
             repl-backlog-size 16mb\nrepl-ping-replica-period 1\n",
        ),
        Role::RoutesReplica { master_port, socket, shared } => {
            // Only these two users have access to the folder.
            let mode = if *shared { "777" } else { "700" };
            let _infallible = write!(
                text,
                "replicaof 127.0.0.1 {master_port}\nreplica-read-only yes\nreplica-serve-stale-data yes\n\
                 # A Sentinel must never make a router's copy the master.\nreplica-priority 0\n\
                 unixsocket {}\nunixsocketperm {mode}\n",
                quoted(socket)
            );
        }
        Role::Stats | Role::Fabric(_) => {}
    }
    text
}

/// A path in the syntax of Redis: in double quotes, with `\"` and `\\`.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_never_becomes_master_and_opens_its_socket_to_another_user_only_if_needed() {
        let role = |shared| Role::RoutesReplica { master_port: 1, socket: "/run dir/s".into(), shared };
        let text = configuration(&role(false), 2, Path::new("/a \"b\""));
        assert!(text.contains("replica-priority 0\n") && text.contains("replicaof 127.0.0.1 1\n"), "{text}");
        assert!(text.contains("unixsocket \"/run dir/s\"\nunixsocketperm 700\n"), "{text}");
        assert!(text.contains("dir \"/a \\\"b\\\"\"\n"), "{text}");
        assert!(configuration(&role(true), 2, Path::new("/a")).contains("unixsocketperm 777\n"));
    }

    #[test]
    fn the_fabric_can_sync_before_each_reply() {
        let text = configuration(&Role::Fabric(Fsync::Always), 2, Path::new("/a"));
        assert!(
            text.contains("appendfsync always\n") && text.contains("maxmemory-policy noeviction\n"),
            "{text}"
        );
    }
}
