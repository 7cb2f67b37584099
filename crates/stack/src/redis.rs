//! The Redis servers: configuration, program, readiness.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;

use signalbox_store::with_login;

use crate::{
    Error, Part, Probe,
    acl::{Server, User},
    layout::{Layout, set_mode},
    options::Fsync,
    programs,
    secrets::Secrets,
    supervisor::Program,
};

/// The role of a server, with its role-specific settings.
pub(crate) enum Role {
    RoutesPrimary,
    RoutesReplica { primary_port: u16, socket: PathBuf },
    Stats,
    Fabric(Fsync),
}

impl Role {
    fn server(&self) -> Server {
        match self {
            Self::RoutesPrimary => Server::Routes,
            Self::RoutesReplica { .. } => Server::RoutesReplica,
            Self::Stats => Server::Stats,
            Self::Fabric(_) => Server::Fabric,
        }
    }
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
    max_memory: u64,
) -> Result<Program, Error> {
    let folder = layout.redis(&part);
    fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
    set_mode(&folder, 0o700)?;
    let file = folder.join("redis.conf");
    let secrets = layout.secrets();
    fs::write(&file, configuration(role, port, &folder, max_memory, &secrets))
        .map_err(Error::file("write", &file))?;
    let (address, login) = (url(port), login(port, User::Operator, &secrets));
    let (probe, address) = match role {
        Role::RoutesPrimary => (Probe::RoutesPrimary(login), address),
        Role::RoutesReplica { socket, .. } => {
            (Probe::RoutesReplica(login), format!("{address} and {}", socket.display()))
        }
        Role::Stats => (Probe::Stats(login), address),
        Role::Fabric(_) => (Probe::Fabric(login), address),
    };
    let program = Program::new(part, binary).arg(file.display().to_string());
    let program = match role {
        Role::RoutesReplica { .. } => program,
        Role::RoutesPrimary | Role::Stats | Role::Fabric(_) => program.with_append_only_file(folder),
    };
    Ok(program.ready_when(probe).address(address).stop_with(Signal::SIGTERM, Duration::from_secs(10)))
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// A URL with which `user` logs in. It names the file of the password, so it is not a secret.
pub(crate) fn login(port: u16, user: User, secrets: &Secrets) -> String {
    with_login(&url(port), user.name(), Some(&secrets.password_file(user)), None)
}

/// The complete Redis configuration. Nothing in `/etc/redis` is read.
fn configuration(role: &Role, port: u16, folder: &Path, max_memory: u64, secrets: &Secrets) -> String {
    let mut text = format!(
        "# Written at each start of Signalbox; edits are lost.\n\
         bind 127.0.0.1\nport {port}\nprotected-mode yes\ndaemonize no\nsupervised no\nlogfile \"\"\n\
         dir {}\n\
         # Users, and what each may do. There is no access without a login.\n\
         aclfile {}\n\
         # A full server rejects writes instead of evicting routes, counters or events.\n\
         maxmemory {max_memory}\nmaxmemory-policy noeviction\n\
         # A replica that is away must not delay the end of its primary.\n\
         shutdown-timeout 2\n",
        quoted(folder),
        quoted(&secrets.acl_file(role.server()))
    );
    match role {
        Role::RoutesReplica { .. } => text.push_str("save 300 1\nappendonly no\n"),
        Role::RoutesPrimary | Role::Stats => {
            text.push_str("save \"\"\nappendonly yes\nappendfsync everysec\n")
        }
        Role::Fabric(fsync) => {
            let _infallible = write!(text, "save \"\"\nappendonly yes\nappendfsync {}\n", fsync.as_str());
        }
    }
    match role {
        // The delay waits for more replicas. A router would have to wait, too.
        Role::RoutesPrimary => text.push_str(
            "repl-diskless-sync yes\nrepl-diskless-sync-delay 0\n\
             # A router that was unavailable for a while catches up instead of loading the whole table again.\n\
             repl-backlog-size 16mb\nrepl-ping-replica-period 1\n",
        ),
        Role::RoutesReplica { primary_port, socket } => {
            let _infallible = write!(
                text,
                "replicaof 127.0.0.1 {primary_port}\ninclude {}\nreplica-read-only yes\n\
                 replica-serve-stale-data yes\n\
                 # The primary expires keys, so there is little periodic work. An idle router should rarely wake up.\nhz 2\n\
                 # A Sentinel must never promote a router's replica.\nreplica-priority 0\n\
                 unixsocket {}\nunixsocketperm 660\n",
                quoted(&secrets.replication_file()),
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

    fn text(role: &Role) -> String {
        configuration(role, 2, Path::new("/a \"b\""), 7, &Secrets::at(Path::new("/s")))
    }

    #[test]
    fn a_replica_logs_in_is_never_promoted_and_shares_its_socket_only_with_its_group() {
        let text = text(&Role::RoutesReplica { primary_port: 1, socket: "/run dir/s".into() });
        assert!(text.contains("replica-priority 0\n") && text.contains("replicaof 127.0.0.1 1\n"), "{text}");
        assert!(text.contains("include \"/s/users/replication.conf\"\n"), "{text}");
        assert!(text.contains("unixsocket \"/run dir/s\"\nunixsocketperm 660\n"), "{text}");
        assert!(text.contains("dir \"/a \\\"b\\\"\"\n"), "{text}");
    }

    #[test]
    fn every_server_has_users_and_a_limit_of_memory() {
        for (role, name) in [
            (Role::RoutesPrimary, "routes"),
            (Role::RoutesReplica { primary_port: 1, socket: "/s".into() }, "routes-replica"),
            (Role::Stats, "stats"),
            (Role::Fabric(Fsync::Everysec), "fabric"),
        ] {
            let text = text(&role);
            assert!(text.contains(&format!("aclfile \"/s/users/{name}.acl\"\n")), "{text}");
            assert!(text.contains("maxmemory 7\nmaxmemory-policy noeviction\n"), "{text}");
        }
    }

    #[test]
    fn the_fabric_can_sync_before_each_reply() {
        assert!(text(&Role::Fabric(Fsync::Always)).contains("appendfsync always\n"));
    }
}
