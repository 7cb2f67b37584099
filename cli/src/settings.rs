//! The configuration of `signalbox up`: the default file, `signalbox.toml`, the environment and flags, merged by
//! `signalbox_settings`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use signalbox_settings::{Places, Program, within};
use signalbox_stack::{EdgeOptions, Options, OtherPort, Part, Ports, RedisOptions};

use crate::exit::Failure;

/// The content of `signalbox.toml`: [`Options`] and the sample applications.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) data_dir: PathBuf,
    #[serde(deserialize_with = "within::<_, _, 0, 65_535>")]
    port_offset: u16,
    restart: bool,
    ports: Ports,
    edge: EdgeOptions,
    redis: RedisOptions,
    pacemaker: toml::Table,
    sidecar: toml::Table,
    pub(crate) demo: Demo,
}

/// The sample applications.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Demo {
    pub(crate) enabled: bool,
    hello: Port,
    shop: Vec<Port>,
    spare: Port,
    canary: Vec<Port>,
    receiver: Port,
    acme: Port,
}

#[derive(Debug, Clone, Copy)]
struct Port(u16);

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        within::<_, _, 1, 65_535>(deserializer).map(Self)
    }
}

impl signalbox_settings::Settings for Settings {
    const PROGRAM: Program = Program {
        name: "signalbox up",
        prefix: "SIGNALBOX_",
        defaults: &[Options::DEFAULTS, include_str!("up/defaults.toml")],
        file: Some("signalbox.toml"),
        flags: &[("data-dir", "data_dir"), ("port-offset", "port_offset"), ("demo", "demo.enabled")],
    };
}

impl Settings {
    /// The options of the stack, with the offset applied.
    pub(crate) fn options(&self, places: &Places) -> Result<Options, Failure> {
        let Self { data_dir, port_offset, restart, ports, edge, redis, pacemaker, sidecar, demo } =
            self.clone();
        let others = if demo.enabled { demo.ports() } else { Vec::new() };
        let pacemaker = if demo.enabled {
            let receivers = [demo.spare, demo.receiver].map(|port| port.0.checked_add(port_offset));
            let pacemaker = deliver_to(pacemaker, receivers.into_iter().flatten());
            order_from(pacemaker, demo.acme.0.saturating_add(port_offset), &data_dir)
        } else {
            pacemaker
        };
        let options =
            Options { data_dir, port_offset, restart, ports, edge, redis, pacemaker, sidecar, others };
        options.resolve().map_err(|error| locate(places, error))
    }
}

/// An error of the stack, with the place in the configuration if it concerns a key.
pub(crate) fn locate(places: &Places, error: signalbox_stack::Error) -> Failure {
    match error {
        signalbox_stack::Error::Option { key, reason } => places.error(&key, reason).into(),
        other => other.into(),
    }
}

impl From<signalbox_settings::Error> for Failure {
    fn from(error: signalbox_settings::Error) -> Self {
        Self::configuration(format!("{:#}", anyhow::Error::from(error)))
    }
}

/// Orders certificates from an ACME server on this machine, if one is started (`examples/https/try`). The operator's settings win.
fn order_from(mut pacemaker: toml::Table, port: u16, data_dir: &Path) -> toml::Table {
    let authority = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned()).join("acme-ca.pem");
    pacemaker.entry("acme").or_insert_with(|| {
        let keys = [
            ("directory", format!("https://localhost:{port}/dir").into()),
            ("terms_agreed", true.into()),
            ("ca_file", authority.display().to_string().into()),
            ("retry_seconds", 2.into()),
        ];
        toml::Table::from_iter(keys.map(|(key, value): (&str, toml::Value)| (key.to_owned(), value))).into()
    });
    pacemaker
}

/// Permits deliveries to these ports of this machine over plain HTTP, and to no others. The operator's settings win.
fn deliver_to(mut pacemaker: toml::Table, ports: impl Iterator<Item = u16>) -> toml::Table {
    let bus = pacemaker.entry("bus").or_insert_with(|| toml::Table::new().into());
    if let Some(bus) = bus.as_table_mut() {
        bus.entry("allow_http").or_insert(true.into());
        bus.entry("allow_addresses")
            .or_insert_with(|| ports.map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().into());
    }
    pacemaker
}

impl Demo {
    /// The ports, in the order hello, spare, shop…, canary…
    fn ports(&self) -> Vec<OtherPort> {
        let other = |part: String, name: &str, port: Port| OtherPort {
            part: Part::named(part),
            key: format!("demo.{name}"),
            port: port.0,
        };
        let mut ports = vec![
            other("demo-hello".to_owned(), "hello", self.hello),
            other("demo-spare".to_owned(), "spare", self.spare),
        ];
        for (name, several) in [("shop", &self.shop), ("canary", &self.canary)] {
            let numbered = several.iter().zip(1..);
            ports.extend(numbered.map(|(port, n)| other(format!("demo-{name}-{n}"), name, *port)));
        }
        ports
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use signalbox_settings::{Flags, disagreements};

    use super::*;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        settings: Flags<Settings>,
    }

    fn load(text: &str, flags: &[&str]) -> Result<Options, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("signalbox.toml");
        std::fs::write(&file, text).unwrap();
        let args = Args::parse_from([&["signalbox", "--config", file.to_str().unwrap()], flags].concat());
        let options = args.settings.load().map_err(Failure::from);
        let options = options.and_then(|loaded| loaded.settings.options(&loaded.places));
        let prefix = format!("{}/", folder.path().display());
        options.map_err(|failure| format!("{failure:?}").replace(&prefix, ""))
    }

    #[test]
    fn the_default_file_and_the_types_have_the_same_keys() {
        assert_eq!(disagreements::<Settings>(), [""; 0]);
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let options = load("[ports]\nedge = 1\nadmin = 2\n", &["--set", "ports.edge=3"]).unwrap();
        assert_eq!((options.ports.edge, options.ports.admin), (3, 2));
        let options =
            load("", &["--set", "edge.nginx.KEEPALIVE='2'", "--set", "pacemaker.bus.workers=3"]).unwrap();
        assert_eq!(options.edge.nginx["KEEPALIVE"], "2");
        assert_eq!(options.pacemaker["bus"]["workers"].as_integer(), Some(3));
    }

    #[test]
    fn an_error_names_its_place() {
        for (text, expected) in [
            ("[ports]\nedge = 'x'\n", "signalbox.toml:2:8: ports.edge: invalid type: string"),
            ("\n[ports]\negde = 1\n", "signalbox.toml:3:1: unknown field `egde`"),
            ("data_dir = \n", "signalbox.toml:1:"),
            ("[edge]\nlog = 'sometimes'\n", "signalbox.toml:2:7: edge.log: unknown variant"),
            ("[ports]\nedge = 70000\n", "signalbox.toml:2:8: ports.edge: must be between 1 and 65535"),
            ("[ports]\nedge = 5\nstats = 5\n", "signalbox.toml:3:9: ports.stats: 5 is also ports.edge"),
            ("[edge]\nlisten = 'localhost'\n", "signalbox.toml:2:10: edge.listen: "),
            (
                "[demo]\nenabled = true\nspare = 8080\n",
                "signalbox.toml:3:9: demo.spare: 8080 is also ports.edge",
            ),
        ] {
            let error = load(text, &[]).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error}");
        }
        let error = load("", &["--set", "ports.stats=8080"]).unwrap_err();
        assert!(error.contains("--set ports.stats: 8080 is also ports.edge"), "{error}");
    }

    #[test]
    fn the_offset_moves_the_sample_applications_as_well() {
        let options = load("", &["--demo", "--port-offset", "100"]).unwrap();
        let ports: Vec<u16> = options.others.iter().map(|other| other.port).collect();
        assert_eq!(ports, [9101, 9103, 9102, 9104, 9105, 9106]);
        assert_eq!(options.ports.edge, 8180);
        let receivers = &options.pacemaker["bus"]["allow_addresses"];
        assert_eq!(*receivers, toml::Value::from(vec!["127.0.0.1:9103", "127.0.0.1:9110"]));
        assert!(load("[demo]\nenabled = true", &["--demo=false"]).unwrap().others.is_empty());
    }
}
