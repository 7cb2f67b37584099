//! All decisions before the first process starts, and the program of each part.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use rand::RngExt as _;
use toml::{Table, Value};

use crate::{
    Error, Options, Part,
    acl::User,
    daemons::{self, Daemon},
    layout::{Layout, read_or_make},
    nginx::{self, Edge, Flavour, WorkerUser},
    programs, redis,
    secrets::Secrets,
    supervisor::Program,
};

/// The parts of `redis.memory_percent` that the fabric and each of the three other servers get, in percent.
const FABRIC_SHARE: u64 = 40;
const OTHER_SHARE: u64 = 20;
const MIN_MEMORY_BYTES: u64 = 64 << 20;
/// The address of the parts that are not nginx.
const LOCAL: &str = "127.0.0.1";
/// Assumed if the system reports no memory.
const UNKNOWN_MEMORY_BYTES: u64 = 1 << 30;

/// The parts that are not started. The Redis servers are always started.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Without {
    pub(crate) nginx: bool,
    pub(crate) pacemaker: bool,
    pub(crate) sidecar: bool,
}

/// The ports of one router's parts.
#[derive(Debug, Clone, Copy)]
pub struct RouterPorts {
    /// nginx, for applications.
    pub edge: u16,
    /// nginx, for operators.
    pub admin: u16,
    /// The routes replica.
    pub routes_replica: u16,
    /// The sidecar.
    pub sidecar: u16,
    /// nginx, for applications over HTTPS. Additional routers have none.
    pub edge_tls: Option<u16>,
}

/// The decisions.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    pub(crate) options: Options,
    pub(crate) without: Without,
    pub(crate) token: String,
    redis: PathBuf,
    flavour: Option<Flavour>,
    user: WorkerUser,
    pacemaker: Option<PathBuf>,
    sidecar: Option<PathBuf>,
}

impl Plan {
    /// Finds the programs, and creates token and folders. Nothing is started. Returns a note for the operator.
    pub(crate) fn make(
        layout: Layout,
        options: Options,
        without: Without,
        own: Option<&Path>,
    ) -> Result<(Self, Option<String>), Error> {
        let redis = redis::binary(&options.redis.binary)?;
        let flavour = if without.nginx { None } else { Some(Flavour::find(&options.edge.binary)?) };
        let daemon = |off, name| if off { Ok(None) } else { programs::own(name, own).map(Some) };
        let pacemaker = daemon(without.pacemaker, "signalbox-pacemaker")?;
        let sidecar = daemon(without.sidecar, "signalbox-sidecar")?;
        let (user, note) = WorkerUser::choose(&options.edge.user, layout.root())?;
        let secrets = Secrets::create(layout.root())?;
        if layout.is_fresh() {
            user.admit(layout.root())?;
        }
        for folder in [layout.run(), layout.logs(), secrets.users()] {
            user.admit(&folder)?;
        }
        user.admit_to_file(&secrets.password_file(User::Edge))?;
        let token = fs::read_to_string(secrets.token()).map_err(Error::file("read", secrets.token()))?;
        let token = token.trim().to_owned();
        Ok((Self { layout, options, without, token, redis, flavour, user, pacemaker, sidecar }, note))
    }

    /// The ports of the first router.
    pub(crate) fn first_router(&self) -> RouterPorts {
        let ports = &self.options.ports;
        RouterPorts {
            edge: ports.edge,
            admin: ports.admin,
            routes_replica: ports.routes_replica,
            sidecar: ports.sidecar,
            edge_tls: Some(ports.edge_tls),
        }
    }

    /// The parts of every stack, in stages in the order of starting. Parts of one stage are independent. Writes their
    /// configuration.
    pub(crate) fn programs(&self) -> Result<Vec<Vec<Program>>, Error> {
        let ports = self.first_router();
        let shared = &self.options.ports;
        let fabric = redis::Role::Fabric(self.options.redis.fabric_fsync);
        let pacemaker = self.pacemaker(1, shared.pacemaker)?;
        Ok(vec![
            vec![
                self.redis(Part::ROUTES_PRIMARY, &redis::Role::RoutesPrimary, shared.routes)?,
                self.redis(Part::STATS, &redis::Role::Stats, shared.stats)?,
                self.redis(Part::FABRIC, &fabric, shared.fabric)?,
            ],
            // A replica without a primary retries only a second later.
            vec![self.routes_replica(1, ports)?],
            [pacemaker, self.sidecar(1, ports)?].into_iter().flatten().collect(),
            // Last, so that it ends first: the sidecar counts the lines that nginx still writes.
            self.nginx(1, ports)?.into_iter().collect(),
        ])
    }

    /// Checks whether every port is available, before anything is started.
    pub(crate) fn check_ports(&self) -> Result<(), Error> {
        let Options { ports, edge, .. } = &self.options;
        let Without { nginx, pacemaker, sidecar } = self.without;
        // With the name, it has another address, or is off.
        let tls = nginx || edge.nginx.contains_key("EDGE_TLS_LISTEN");
        for (name, port) in ports.named() {
            let (off, part, address) = match name {
                "edge" => (nginx, Part::NGINX, &*edge.listen),
                "edge_tls" => (tls, Part::NGINX, &*edge.listen),
                "admin" => (nginx, Part::NGINX, &*edge.admin_listen),
                "pacemaker" => (pacemaker, Part::PACEMAKER, LOCAL),
                "sidecar" => (sidecar, Part::SIDECAR, LOCAL),
                "routes_replica" => (false, Part::ROUTES_REPLICA, LOCAL),
                other => (false, Part::named(other), LOCAL),
            };
            if !off {
                check_port(part, address, port, &format!("ports.{name}"))?;
            }
        }
        for other in &self.options.others {
            check_port(other.part.clone(), LOCAL, other.port, &other.key)?;
        }
        Ok(())
    }

    pub(crate) fn routes_replica(&self, number: usize, ports: RouterPorts) -> Result<Program, Error> {
        let role = redis::Role::RoutesReplica {
            primary_port: self.options.ports.routes,
            socket: self.layout.replica_socket(number),
        };
        self.redis(Part::ROUTES_REPLICA.numbered(number), &role, ports.routes_replica)
    }

    fn redis(&self, part: Part, role: &redis::Role, port: u16) -> Result<Program, Error> {
        let share = match role {
            redis::Role::Fabric(_) => FABRIC_SHARE,
            _ => OTHER_SHARE,
        };
        let percent = u64::from(self.options.redis.memory_percent) * share / 100;
        // At least what an empty server needs.
        let max_memory = (memory_bytes() / 100 * percent).max(MIN_MEMORY_BYTES);
        redis::program(&self.layout, &self.redis, part, role, port, max_memory)
    }

    /// How a daemon logs in to the Redis servers on these ports. The user is named in each URL and not once for all, so that a
    /// server of the operator, whose URL replaces one of these, gets no login that it does not know.
    fn redis_wiring<const N: usize>(&self, user: User, servers: [(&str, u16); N]) -> toml::Table {
        let password = self.layout.secrets().password_file(user);
        let url = |port| Value::from(format!("redis://{}@{}/", user.name(), local(port)));
        let mut wiring = table(servers.map(|(name, port)| (name, url(port))));
        wiring.insert("password_file".to_owned(), password.display().to_string().into());
        wiring
    }

    /// nginx of the `number`-th router; `None` if it is off.
    pub(crate) fn nginx(&self, number: usize, ports: RouterPorts) -> Result<Option<Program>, Error> {
        let Some(flavour) = &self.flavour else { return Ok(None) };
        let edge = Edge {
            router: number,
            options: &self.options.edge,
            flavour,
            user: &self.user,
            ports,
            pacemaker: local(self.options.ports.pacemaker),
            sidecar: local(ports.sidecar),
        };
        nginx::program(&self.layout, Part::NGINX.numbered(number), &edge).map(Some)
    }

    /// The `number`-th pacemaker; `None` if it is off.
    pub(crate) fn pacemaker(&self, number: usize, port: u16) -> Result<Option<Program>, Error> {
        let Some(binary) = &self.pacemaker else { return Ok(None) };
        let part = Part::PACEMAKER.numbered(number);
        let ports = &self.options.ports;
        let edge = &self.options.edge;
        let texts = |texts: Vec<String>| Value::Array(texts.into_iter().map(Value::from).collect());
        let mut reserved = vec![nginx::join(&edge.admin_listen, ports.admin), local(ports.sidecar)];
        reserved.extend(self.listener("ADMIN_LISTEN"));
        let mut served =
            vec![nginx::join(&edge.listen, ports.edge), nginx::join(&edge.listen, ports.edge_tls)];
        served.extend(
            ["EDGE_LISTEN", "EDGE_TLS_LISTEN", "EDGE_H2C_LISTEN"]
                .iter()
                .filter_map(|name| self.listener(name)),
        );
        let replica = format!("redis+unix://{}", self.layout.replica_socket(1).display());
        let servers = [("routes", ports.routes), ("stats", ports.stats), ("fabric", ports.fabric)];
        let mut redis = self.redis_wiring(User::Pacemaker, servers);
        redis.insert(
            "routes_replicas".to_owned(),
            texts(vec![format!("redis://{}/", local(ports.routes_replica)), replica]),
        );
        let mut wiring = table([
            ("listen", local(port).into()),
            ("root_token_file", self.layout.token().display().to_string().into()),
            ("node", part.as_str().into()),
            ("reserved_addresses", texts(reserved)),
            ("edge_addresses", texts(served)),
            // All parts are on this machine.
            ("routing", Value::Table(table([("check_local", true.into())]))),
            ("redis", Value::Table(redis)),
        ]);
        if !self.without.nginx {
            wiring.insert("edge_key_file".to_owned(), self.layout.edge_key().display().to_string().into());
        }
        let chosen = &self.options.pacemaker;
        daemons::program(&self.layout, Daemon { part, binary, port, wiring, chosen }).map(Some)
    }

    /// The address of a listener that the operator set in `edge.nginx`; a port alone listens on every address.
    fn listener(&self, name: &str) -> Option<String> {
        let listen = self.options.edge.nginx.get(name)?.split_ascii_whitespace().next()?;
        Some(if listen.contains(':') { listen.to_owned() } else { format!("0.0.0.0:{listen}") })
    }

    /// The sidecar of the `number`-th router; `None` if it is off.
    pub(crate) fn sidecar(&self, number: usize, ports: RouterPorts) -> Result<Option<Program>, Error> {
        let Some(binary) = &self.sidecar else { return Ok(None) };
        let node = read_or_make(&self.layout.node(number), 0o644, random_uuid)?;
        let path = |path: PathBuf| Value::from(path.display().to_string());
        let admin = nginx::address(&self.options.edge.admin_listen, ports.admin);
        let wiring = table([
            ("listen", local(ports.sidecar).into()),
            ("root_token_digest_file", path(self.layout.secrets().token_digest())),
            ("daemons_key_file", path(self.layout.secrets().daemons_key())),
            ("node", node.into()),
            ("access_log", path(self.layout.access_log(number))),
            ("nginx_pid_file", path(self.layout.nginx_pid_file(number))),
            ("edge_url", format!("http://{admin}").into()),
            ("snapshot_path", path(self.layout.snapshot(number))),
            (
                "redis",
                Value::Table(self.redis_wiring(
                    User::Sidecar,
                    [("stats", self.options.ports.stats), ("routes_replica", ports.routes_replica)],
                )),
            ),
        ]);
        let (part, port, chosen) = (Part::SIDECAR.numbered(number), ports.sidecar, &self.options.sidecar);
        daemons::program(&self.layout, Daemon { part, binary, port, wiring, chosen }).map(Some)
    }
}

/// The memory of this machine, or of the container or service that the stack runs in.
fn memory_bytes() -> u64 {
    let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    // Without a limit, the file contains `max`.
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
    total.into_iter().chain(limit).min().unwrap_or(UNKNOWN_MEMORY_BYTES)
}

/// Checks whether a port is available. `key` is the option that sets it.
fn check_port(part: Part, address: &str, port: u16, key: &str) -> Result<(), Error> {
    // The listener is closed immediately. Like the part's listener, it can bind a port with connections in TIME_WAIT.
    let Err(source) = TcpListener::bind((address, port)) else { return Ok(()) };
    let variable = key.replace('.', "_").to_uppercase();
    let remedy = format!("--set {key}=…, SIGNALBOX_{variable}, or {key} in signalbox.toml");
    if source.kind() == std::io::ErrorKind::AddrInUse {
        return Err(Error::PortTaken { port, part, holder: crate::proc::listener(port), remedy });
    }
    Err(Error::PortRefused { part, address: format!("{address}:{port}"), remedy, source })
}

fn local(port: u16) -> String {
    format!("{LOCAL}:{port}")
}

fn table<const N: usize>(entries: [(&str, Value); N]) -> Table {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A random UUID (version 4, RFC 9562).
fn random_uuid() -> String {
    let mut bytes: [u8; 16] = rand::rng().random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = HEXLOWER.encode(&bytes);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_reported_with_its_part_its_holder_and_the_remedy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = check_port(Part::ROUTES_REPLICA, "127.0.0.1", port, "ports.routes_replica")
            .unwrap_err()
            .to_string();
        for part in [
            format!("port {port} is taken by "),
            format!("(pid {})", std::process::id()),
            "routes-replica wants".to_owned(),
            "--set ports.routes_replica=…, SIGNALBOX_PORTS_ROUTES_REPLICA, or ports.routes_replica"
                .to_owned(),
        ] {
            assert!(error.contains(&part), "{error:?} does not contain {part:?}");
        }
    }

    #[test]
    fn a_uuid_has_the_standard_form() {
        let uuid = random_uuid();
        let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12], "{uuid}");
        assert_eq!(&uuid[14..15], "4");
    }
}
