//! The configuration of `signalbox up`: file, then environment, then flags.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use clap::builder::TypedValueParser as _;
use serde::Deserialize;
use signalbox_stack::{EdgeOptions, Fsync, LogMode, Options, OtherPort, Part, Ports, RedisOptions};

use crate::exit::Failure;

/// The commented default file, which is the reference of the keys.
pub(crate) const DEFAULTS: &str = include_str!("up/defaults.toml");
/// Read when no file is named, if it is there.
const DEFAULT_FILE: &str = "signalbox.toml";

/// Everything that `signalbox.toml` can say.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    data_dir: PathBuf,
    port_offset: u16,
    restart: bool,
    ports: Ports,
    edge: EdgeOptions,
    redis: RedisOptions,
    pacemaker: toml::Table,
    sidecar: toml::Table,
    pub(crate) demo: Demo,
}

impl Default for Settings {
    fn default() -> Self {
        let Options { data_dir, port_offset, restart, ports, edge, redis, pacemaker, sidecar, others: _ } =
            Options::default();
        Self { data_dir, port_offset, restart, ports, edge, redis, pacemaker, sidecar, demo: Demo::default() }
    }
}

/// The sample applications.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Demo {
    pub(crate) enabled: bool,
    pub(crate) hello: u16,
    pub(crate) shop: Vec<u16>,
    pub(crate) spare: u16,
    pub(crate) canary: Vec<u16>,
}

impl Default for Demo {
    fn default() -> Self {
        Self { enabled: false, hello: 9001, shop: vec![9002, 9004], spare: 9003, canary: vec![9005, 9006] }
    }
}

/// Flags, each with its environment variable. One that is absent leaves the file's value.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Overrides {
    /// State, logs and the root token stand here [default: .signalbox]
    #[arg(long, value_name = "DIR", env = "SIGNALBOX_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Added to every port
    #[arg(long, value_name = "N", env = "SIGNALBOX_PORT_OFFSET")]
    port_offset: Option<u16>,
    /// Start a part that dies again
    #[arg(long, value_name = "BOOL", env = "SIGNALBOX_RESTART")]
    restart: Option<bool>,
    /// nginx, for applications [default: 8080]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_PORTS_EDGE", help_heading = "Ports")]
    edge_port: Option<u16>,
    /// nginx, for applications over HTTPS [default: 8443]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_PORTS_EDGE_TLS", help_heading = "Ports")]
    edge_tls_port: Option<u16>,
    /// nginx, for operators [default: 8081]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_PORTS_ADMIN", help_heading = "Ports")]
    admin_port: Option<u16>,
    /// Pacemaker [default: 8700]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_PORTS_PACEMAKER", help_heading = "Ports")]
    pacemaker_port: Option<u16>,
    /// Sidecar [default: 8701]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_PORTS_SIDECAR", help_heading = "Ports")]
    sidecar_port: Option<u16>,
    /// Redis: routes master [default: 6401]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_PORTS_ROUTES", help_heading = "Ports")]
    routes_port: Option<u16>,
    /// Redis: routes replica [default: 6402]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_PORTS_ROUTES_REPLICA", help_heading = "Ports")]
    routes_replica_port: Option<u16>,
    /// Redis: statistics [default: 6403]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_PORTS_STATS", help_heading = "Ports")]
    stats_port: Option<u16>,
    /// Redis: desired state and events [default: 6404]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_PORTS_FABRIC", help_heading = "Ports")]
    fabric_port: Option<u16>,
    /// Address on which applications are served [default: 0.0.0.0]
    #[arg(long, value_name = "IP", env = "SIGNALBOX_EDGE_LISTEN", help_heading = "nginx and Redis")]
    edge_listen: Option<String>,
    /// Address on which operators are served [default: 127.0.0.1]
    #[arg(long, value_name = "IP", env = "SIGNALBOX_EDGE_ADMIN_LISTEN", help_heading = "nginx and Redis")]
    admin_listen: Option<String>,
    /// The nginx program
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_EDGE_BINARY", help_heading = "nginx and Redis")]
    nginx: Option<String>,
    /// As whom nginx' workers run when root starts Signalbox
    #[arg(long, value_name = "USER", env = "SIGNALBOX_EDGE_USER", help_heading = "nginx and Redis")]
    nginx_user: Option<String>,
    /// nginx' worker processes; 0: one for each core
    #[arg(long, value_name = "N", env = "SIGNALBOX_EDGE_WORKERS", help_heading = "nginx and Redis")]
    workers: Option<u16>,
    /// When a line reaches the access log [default: buffered]
    #[arg(
        long, value_name = "MODE", env = "SIGNALBOX_EDGE_LOG", help_heading = "nginx and Redis",
        value_parser = clap::builder::PossibleValuesParser::new(["buffered", "exact"]).map(log_mode)
    )]
    access_log: Option<LogMode>,
    /// A checkout whose nginx/ and lua/ are used instead of the embedded ones
    #[arg(long, value_name = "DIR", env = "SIGNALBOX_EDGE_FILES", help_heading = "nginx and Redis")]
    edge_files: Option<PathBuf>,
    /// The redis-server program
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_REDIS_BINARY", help_heading = "nginx and Redis")]
    redis: Option<String>,
    /// When the fabric's append-only file reaches the disk [default: everysec]
    #[arg(
        long, value_name = "WHEN", env = "SIGNALBOX_REDIS_FABRIC_FSYNC", help_heading = "nginx and Redis",
        value_parser = clap::builder::PossibleValuesParser::new(["everysec", "always"]).map(fsync)
    )]
    fabric_fsync: Option<Fsync>,
    /// Add the sample applications
    #[arg(
        long, env = "SIGNALBOX_DEMO_ENABLED", help_heading = "Demo",
        num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"
    )]
    demo: Option<bool>,
    /// Port of hello.localhost [default: 9001]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_DEMO_HELLO", help_heading = "Demo")]
    demo_hello_port: Option<u16>,
    /// Ports of shop.localhost [default: 9002,9004]
    #[arg(
        long,
        value_name = "PORTS",
        env = "SIGNALBOX_DEMO_SHOP",
        help_heading = "Demo",
        value_delimiter = ','
    )]
    demo_shop_ports: Option<Vec<u16>>,
    /// Port of the sample application that is not registered [default: 9003]
    #[arg(long, value_name = "PORT", env = "SIGNALBOX_DEMO_SPARE", help_heading = "Demo")]
    demo_spare_port: Option<u16>,
    /// Ports of canary.localhost, which take turns [default: 9005,9006]
    #[arg(
        long,
        value_name = "PORTS",
        env = "SIGNALBOX_DEMO_CANARY",
        help_heading = "Demo",
        value_delimiter = ','
    )]
    demo_canary_ports: Option<Vec<u16>>,
}

fn log_mode(name: String) -> LogMode {
    if name == "exact" { LogMode::Exact } else { LogMode::Buffered }
}

fn fsync(name: String) -> Fsync {
    if name == "always" { Fsync::Always } else { Fsync::Everysec }
}

/// The file as it was read, to say later where in it a value stands.
#[derive(Debug)]
pub(crate) struct Source {
    name: String,
    text: String,
}

impl Settings {
    /// Reads `file` (or `signalbox.toml`, if there is one) and lays `overrides` on top.
    pub(crate) fn load(file: Option<&Path>, overrides: Overrides) -> Result<(Self, Source), Failure> {
        let source = Source::read(file)?;
        let mut settings: Self = toml::from_str(&source.text).map_err(|error| {
            let place = error.span().map(|span| source.place(&span)).unwrap_or_default();
            Failure::configuration(format!("{}{place}: {}", source.name, error.message()))
        })?;
        settings.override_with(overrides);
        Ok((settings, source))
    }

    fn override_with(&mut self, overrides: Overrides) {
        let o = overrides;
        set(&mut self.data_dir, o.data_dir);
        set(&mut self.port_offset, o.port_offset);
        set(&mut self.restart, o.restart);
        set(&mut self.ports.edge, o.edge_port);
        set(&mut self.ports.edge_tls, o.edge_tls_port);
        set(&mut self.ports.admin, o.admin_port);
        set(&mut self.ports.pacemaker, o.pacemaker_port);
        set(&mut self.ports.sidecar, o.sidecar_port);
        set(&mut self.ports.routes, o.routes_port);
        set(&mut self.ports.routes_replica, o.routes_replica_port);
        set(&mut self.ports.stats, o.stats_port);
        set(&mut self.ports.fabric, o.fabric_port);
        set(&mut self.edge.listen, o.edge_listen);
        set(&mut self.edge.admin_listen, o.admin_listen);
        set(&mut self.edge.binary, o.nginx);
        set(&mut self.edge.user, o.nginx_user);
        set(&mut self.edge.workers, o.workers);
        set(&mut self.edge.log, o.access_log);
        set(&mut self.edge.files, o.edge_files);
        set(&mut self.redis.binary, o.redis);
        set(&mut self.redis.fabric_fsync, o.fabric_fsync);
        set(&mut self.demo.enabled, o.demo);
        set(&mut self.demo.hello, o.demo_hello_port);
        set(&mut self.demo.shop, o.demo_shop_ports);
        set(&mut self.demo.spare, o.demo_spare_port);
        set(&mut self.demo.canary, o.demo_canary_ports);
    }

    /// Where state stands, as the operator wrote it.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// What the stack is started with, offset applied. An impossible value is reported with its place in the file.
    pub(crate) fn options(&self, source: &Source) -> Result<Options, Failure> {
        let Self { data_dir, port_offset, restart, ports, edge, redis, pacemaker, sidecar, demo } =
            self.clone();
        let others = if demo.enabled { demo.ports() } else { Vec::new() };
        let pacemaker = if demo.enabled { deliver_to_this_machine(pacemaker) } else { pacemaker };
        let options =
            Options { data_dir, port_offset, restart, ports, edge, redis, pacemaker, sidecar, others };
        options.resolve().map_err(|error| source.locate(error))
    }
}

/// The sample receiver of events stands on this machine and speaks plain HTTP. What the operator chose stays.
fn deliver_to_this_machine(mut pacemaker: toml::Table) -> toml::Table {
    let bus = pacemaker.entry("bus").or_insert_with(|| toml::Table::new().into());
    if let Some(bus) = bus.as_table_mut() {
        bus.entry("allow_http").or_insert(true.into());
        bus.entry("allow_networks").or_insert(vec!["127.0.0.0/8"].into());
    }
    pacemaker
}

fn set<T>(value: &mut T, over: Option<T>) {
    if let Some(over) = over {
        *value = over;
    }
}

impl Demo {
    /// The ports, in the order hello, spare, shop…, canary…
    fn ports(&self) -> Vec<OtherPort> {
        let other = |part: String, name: &str, flag: &str, port| OtherPort {
            part: Part::named(part),
            key: format!("demo.{name}"),
            remedy: format!(
                "--{flag}, SIGNALBOX_DEMO_{}, or demo.{name} in signalbox.toml",
                name.to_uppercase()
            ),
            port,
        };
        let mut ports = vec![
            other("demo-hello".to_owned(), "hello", "demo-hello-port", self.hello),
            other("demo-spare".to_owned(), "spare", "demo-spare-port", self.spare),
        ];
        for (name, flag, several) in
            [("shop", "demo-shop-ports", &self.shop), ("canary", "demo-canary-ports", &self.canary)]
        {
            let numbered = several.iter().zip(1..);
            ports.extend(numbered.map(|(port, n)| other(format!("demo-{name}-{n}"), name, flag, *port)));
        }
        ports
    }
}

impl Source {
    fn read(file: Option<&Path>) -> Result<Self, Failure> {
        let path = file.unwrap_or(Path::new(DEFAULT_FILE));
        let name = path.display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Ok(Self { name, text }),
            Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self { name, text: String::new() })
            }
            Err(error) => Err(Failure::configuration(format!("cannot read {name}: {error}"))),
        }
    }

    /// `:line:column` of the start of `span`, counted from 1, columns in characters.
    fn place(&self, span: &Range<usize>) -> String {
        let before = self.text.get(..span.start).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let (line, column) = (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1);
        format!(":{line}:{column}")
    }

    /// Puts the place of the key in front of an error that is about one.
    pub(crate) fn locate(&self, error: signalbox_stack::Error) -> Failure {
        let span = match &error {
            signalbox_stack::Error::Option { key, .. } => self.span_of(key),
            _ => None,
        };
        match span {
            Some(span) => Failure::configuration(format!("{}{}: {error}", self.name, self.place(&span))),
            None => error.into(),
        }
    }

    /// Where the value of a dotted key stands.
    fn span_of(&self, key: &str) -> Option<Range<usize>> {
        let document = toml::de::DeTable::parse(&self.text).ok()?;
        let mut keys = key.split('.');
        let mut value = document.get_ref().get(keys.next()?)?;
        for key in keys {
            value = value.get_ref().as_table()?.get(key)?;
        }
        Some(value.span())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        overrides: Overrides,
    }

    fn load(text: &str, flags: &[&str]) -> Result<Options, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("signalbox.toml");
        fs::write(&file, text).unwrap();
        let flags = Flags::parse_from([&["signalbox"], flags].concat());
        let loaded = Settings::load(Some(&file), flags.overrides);
        let options = loaded.and_then(|(settings, source)| settings.options(&source));
        let prefix = format!("{}/", folder.path().display());
        options.map_err(|failure| format!("{failure:?}").replace(&prefix, ""))
    }

    #[test]
    fn the_default_file_says_what_the_code_does() {
        let written: Settings = toml::from_str(DEFAULTS).unwrap();
        assert_eq!(format!("{written:?}"), format!("{:?}", Settings::default()));
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let options = load("[ports]\nedge = 1\nadmin = 2\n", &["--edge-port", "3"]).unwrap();
        assert_eq!((options.ports.edge, options.ports.admin), (3, 2));
    }

    #[test]
    fn an_error_says_where_it_is() {
        for (text, expected) in [
            ("[ports]\nedge = \"x\"\n", "signalbox.toml:2:8: invalid type: string"),
            ("\n[ports]\negde = 1\n", "signalbox.toml:3:1: unknown field `egde`"),
            ("data_dir = \n", "signalbox.toml:1:"),
            ("[edge]\nlog = \"sometimes\"\n", "signalbox.toml:2:7: unknown variant"),
            ("[ports]\nedge = 70000\n", "signalbox.toml:2:8: "),
            ("[ports]\nedge = 5\nstats = 5\n", "signalbox.toml:3:9: ports.stats: 5 is also ports.edge"),
            ("[edge]\nlisten = \"localhost\"\n", "signalbox.toml:2:10: edge.listen: "),
            (
                "[demo]\nenabled = true\nspare = 8080\n",
                "signalbox.toml:3:9: demo.spare: 8080 is also ports.edge",
            ),
        ] {
            let error = load(text, &[]).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error}");
        }
    }

    #[test]
    fn the_offset_moves_the_sample_applications_as_well() {
        let options = load("", &["--demo", "--port-offset", "100"]).unwrap();
        let ports: Vec<u16> = options.others.iter().map(|other| other.port).collect();
        assert_eq!(ports, [9101, 9103, 9102, 9104, 9105, 9106]);
        assert_eq!(options.ports.edge, 8180);
    }
}
