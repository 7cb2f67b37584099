use std::path::PathBuf;

use serde::Deserialize;

use crate::{Flag, Program, Settings, disagreements, load, milliseconds, reference, within};

use super::*;

const DEFAULTS: &str = "\
# Address of the HTTP API.
listen = \"127.0.0.1:1\"
# The token.
# token = \"…\"
# A file that contains the token.
# token_file = \"token\"
# The share, from 0 to 1.
ratio = 1.0
# Follow.
deliver = true
# How the log is written.
log = \"plain\"

[bus]
# Deliveries in parallel.
workers = 16
# Ports.
ports = [1]
# Networks.
names = []
# The interval.
interval_ms = 1000

[free]
";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    listen: std::net::SocketAddr,
    token: String,
    ratio: f64,
    deliver: bool,
    log: Log,
    bus: Bus,
    #[expect(dead_code)]
    free: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Log {
    Plain,
    Json,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bus {
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    workers: usize,
    ports: Vec<u16>,
    names: Vec<String>,
    #[serde(rename = "interval_ms", deserialize_with = "milliseconds::<_, 10, 60_000>")]
    interval: std::time::Duration,
}

impl Settings for Example {
    const PROGRAM: Program = Program {
        name: "example",
        prefix: "EXAMPLE_",
        defaults: &[DEFAULTS, "# The part.\n"],
        file: None,
        flags: &[("listen", "listen")],
    };
}

struct Given {
    folder: tempfile::TempDir,
    sources: Sources,
}

impl Given {
    fn new(file: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        fs::write(&path, file).unwrap();
        Self { folder, sources: Sources { file: Some(path), ..Sources::default() } }
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.sources.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn flag(mut self, key: &str, value: &str) -> Self {
        let (name, key, value) = (format!("--set {key}"), key.to_owned(), value.to_owned());
        self.sources.flags.push(Flag { name, key, value });
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn load(&self) -> Result<Loaded<Example>, String> {
        let error =
            |error: Error| error.to_string().replace(&format!("{}/", self.folder.path().display()), "");
        load(&self.sources).map_err(error)
    }

    #[track_caller]
    fn good(&self) -> Example {
        self.load().unwrap().settings
    }

    #[track_caller]
    fn bad(&self) -> String {
        self.load().unwrap_err()
    }
}

#[test]
fn a_later_source_wins_key_by_key() {
    let given = Given::new("token = 't'\n[bus]\nworkers = 2\nports = [5]");
    let read = given.good();
    assert_eq!((read.bus.workers, read.bus.ports, read.listen.port()), (2, vec![5], 1));
    let given = given.variable("EXAMPLE_BUS_WORKERS", "3").variable("EXAMPLE_LISTEN", "127.0.0.1:3");
    let read = given.good();
    assert_eq!((read.bus.workers, read.listen.port()), (3, 3));
    let given = given.flag("bus.workers", "4").flag("bus.workers", "5");
    let read = given.good();
    assert_eq!((read.bus.workers, read.listen.port()), (5, 3));
    assert_eq!(read.bus.interval.as_secs(), 1);
}

#[test]
fn text_from_the_environment_is_parsed_like_the_default() {
    let read = Given::new("")
        .variable("EXAMPLE_TOKEN", "7")
        .variable("EXAMPLE_RATIO", "1")
        .variable("EXAMPLE_DELIVER", "false")
        .variable("EXAMPLE_LOG", "json")
        .variable("EXAMPLE_BUS_PORTS", "7, 8")
        .variable("EXAMPLE_BUS_NAMES", "7,b")
        .good();
    assert_eq!((read.token.as_str(), read.ratio, read.deliver, read.log), ("7", 1.0, false, Log::Json));
    assert_eq!((read.bus.ports, read.bus.names), (vec![7, 8], vec!["7".to_owned(), "b".to_owned()]));
    assert!(Given::new("token = 't'").variable("EXAMPLE_BUS_NAMES", "").good().bus.names.is_empty());
}

#[test]
fn a_flag_accepts_toml_and_unquoted_text() {
    for (value, expected) in [("abc", "abc"), ("'a b'", "a b"), ("7", "7"), ("a = b", "a = b")] {
        assert_eq!(Given::new("").flag("token", value).good().token, expected, "{value}");
    }
    let read = Given::new("token = 't'").flag("bus.names", "['a,b', 'c']").flag("bus.ports", "1,2").good();
    assert_eq!((read.bus.names, read.bus.ports), (vec!["a,b".to_owned(), "c".to_owned()], vec![1, 2]));
    let bad = Given::new("token = 't'").flag("free.NAME", "7").bad();
    assert_eq!(bad, "--set free.NAME: invalid type: integer `7`, expected a string");
}

#[test]
fn an_error_names_file_line_column_and_key() {
    for (file, expected) in [
        ("token = 't'\nlisten = 'nowhere'", "p.toml:2:10: listen: invalid socket address syntax"),
        ("lisen = 1", "p.toml:1:1: unknown field `lisen`, expected one of"),
        ("[bus]\nworker = 1", "p.toml:2:1: unknown field `worker`"),
        ("[bus]\n  workers = 0", "p.toml:2:13: bus.workers: must be between 1 and 10000"),
        ("[bus]\nworkers = -1", "p.toml:2:11: bus.workers: must be between 1 and 10000"),
        (
            "bus.workers = 'x'",
            "p.toml:1:15: bus.workers: invalid type: string \"x\", expected an integer between 1",
        ),
        ("bus.interval_ms = 1.5", "p.toml:1:19: bus.interval_ms: invalid type: floating point"),
        ("[bus]\nports = [1,\n 70000]", "p.toml:3:2: bus.ports: "),
        ("log = 'loud'", "p.toml:1:7: log: unknown variant `loud`, expected `plain` or `json`"),
        ("bus = 3", "p.toml:1:7: bus: invalid type: integer `3`"),
        ("listen = ", "p.toml:1:"),
        ("token = 1\n\u{e4} = 'x'\n", "p.toml:2:1"),
    ] {
        let error = Given::new(file).bad();
        assert!(error.starts_with(expected), "{file}: {error}");
    }
}

#[test]
fn an_error_names_the_variable_or_the_flag() {
    let given = Given::new("token = 't'\n[bus]\nworkers = 2").variable("EXAMPLE_BUS_WORKERS", "many");
    assert_eq!(
        given.bad(),
        "EXAMPLE_BUS_WORKERS: invalid type: string \"many\", expected an integer between 1 and 10000"
    );
    let given = given.flag("bus.workers", "10_001");
    assert_eq!(given.bad(), "--set bus.workers: must be between 1 and 10000");
    let error = Given::new("token = 't'").flag("bus.worker", "1").bad();
    assert!(error.starts_with("--set bus.worker: unknown field `worker`"), "{error}");
}

#[test]
fn an_error_after_loading_has_the_place_of_the_value() {
    let places = |given: &Given| given.load().unwrap().places;
    let given = Given::new("token = 't'\n\n[bus]\nworkers = 2");
    let error = places(&given).error("bus.workers", "too few").to_string();
    assert!(error.ends_with("p.toml:4:11: bus.workers: too few"), "{error}");
    assert_eq!(places(&given).error("listen", "is taken").to_string(), "listen: is taken");
    let given = given.flag("bus.workers", "3");
    assert_eq!(places(&given).error("bus.workers", "too few").to_string(), "--set bus.workers: too few");
}

#[test]
fn a_key_without_a_default_is_required() {
    assert_eq!(
        Given::new("").bad(),
        "token: is not set. Set it in the configuration file, as EXAMPLE_TOKEN, or with --set token=VALUE; \
         or name a file that contains it with token_file"
    );
}

#[test]
fn a_value_can_be_read_from_a_separate_file() {
    let given = Given::new("token = 'below'");
    let path = given.path("token");
    fs::write(&path, "from a file").unwrap();
    let path = path.display().to_string();
    let given = given.variable("EXAMPLE_TOKEN_FILE", &path);
    assert_eq!(given.good().token, "from a file");
    let given = given.flag("token", "above");
    assert_eq!(given.good().token, "above", "a flag hides the variable below");
    let both = Given::new(&format!("token = 'x'\ntoken_file = '{path}'"));
    assert_eq!(both.bad(), "p.toml:2:14: token: set either token or token_file, not both");
    let error = Given::new("token_file = '/nowhere/token'").bad();
    assert_eq!(error, "cannot read /nowhere/token");
}

#[test]
fn unknown_variables_are_listed_and_not_errors() {
    let given = Given::new("token = 't'")
        .variable("EXAMPLE_PORT", "tcp://10.0.0.1:80")
        .variable("EXAMPLE_CONFIG", "/ignored: a file is named")
        .variable("PATH", "/bin");
    assert_eq!(given.load().unwrap().ignored, ["EXAMPLE_PORT"]);
}

#[test]
fn the_environment_can_name_the_file() {
    let mut given = Given::new("token = 'of the file'");
    let path = given.sources.file.take().unwrap();
    assert!(given.bad().starts_with("token: is not set"));
    assert_eq!(given.variable("EXAMPLE_CONFIG", path.to_str().unwrap()).good().token, "of the file");
}

#[test]
fn the_reference_takes_accepted_values_from_the_type() {
    let page = reference::<Example>();
    for line in [
        "| `listen`<br>`EXAMPLE_LISTEN` | socket address | `\"127.0.0.1:1\"` | Address of the HTTP API. |",
        "| `token_file`<br>`EXAMPLE_TOKEN_FILE` | path |  | A file that contains the token. |",
        "| `deliver`<br>`EXAMPLE_DELIVER` | `true` or `false` | `true` | Follow. |",
        "| `log`<br>`EXAMPLE_LOG` | `plain` or `json` | `\"plain\"` | How the log is written. |",
        "| `bus.workers`<br>`EXAMPLE_BUS_WORKERS` | integer between 1 and 10000 | `16` | Deliveries in parallel. |",
        "| `bus.ports`<br>`EXAMPLE_BUS_PORTS` | list: u16 | `[1]` | Ports. |",
        "### `[bus]`",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n is not in \n{page}");
    }
}

#[test]
fn the_default_file_and_the_type_are_compared() {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code)]
    struct Other {
        known: Option<u8>,
        forgotten: Option<u8>,
        part: Part,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code)]
    struct Part {
        inside: u8,
        lost: Option<u8>,
    }
    impl Settings for Other {
        const PROGRAM: Program = Program {
            defaults: &["# A key.\nknown = 1\n# No field.\n# gone = 1\n[part]\ninside = 1"],
            ..Example::PROGRAM
        };
    }
    assert_eq!(
        disagreements::<Other>(),
        [
            "gone is not in the type",
            "part.inside has no description",
            "--listen sets listen, which is not in the default file",
            "forgotten is not in the default file",
            "part.lost is not in the default file",
        ]
    );
    assert_eq!(disagreements::<Example>(), ["free has no description"]);
}
