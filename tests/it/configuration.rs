//! Configuration of the programs: the reference page is current, and an invalid value ends a program with its place.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::up::program;

const TOKEN: &str = "an-unguessable-root-token-of-32-characters";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn run(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program().with_file_name(name));
    command.env_clear().args(arguments).envs(environment.iter().copied()).output().unwrap()
}

#[test]
fn the_reference_of_the_configuration_is_current() {
    let made = Command::new(root().join(".ci/reference")).arg(program().parent().unwrap()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    assert!(page.contains("SIGNALBOX_PACEMAKER_BUS_WORKERS"), "{page}");
    assert_eq!(String::from_utf8(made.stdout).unwrap(), page, "`make reference` writes it again");
}

#[test]
fn an_invalid_configuration_exits_64_with_its_place_and_without_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.toml");
    fs::write(&file, "[bus]\nworkers = 0\n").unwrap();
    let file = file.display().to_string();
    let daemons = ["signalbox-pacemaker", "signalbox-sidecar"];
    for (name, arguments, environment, expected) in [
        (
            daemons[0],
            &["--config", &file][..],
            &[][..],
            "p.toml:2:11: bus.workers: must be between 1 and 10000",
        ),
        (daemons[0], &[], &[("SIGNALBOX_PACEMAKER_CONFIG", &*file)], "p.toml:2:11: bus.workers: must be"),
        (
            daemons[0],
            &[],
            &[("SIGNALBOX_PACEMAKER_BUS_WORKERS", "x")],
            "SIGNALBOX_PACEMAKER_BUS_WORKERS: invalid",
        ),
        (daemons[0], &["--set", "bus.workers=0"], &[], "--set bus.workers: must be between 1 and 10000"),
        (daemons[0], &["--listen", "nowhere"], &[], "--listen: invalid socket address"),
        (daemons[0], &["--set", TOKEN], &[], "--set: needs KEY=VALUE"),
        (daemons[0], &["--no-such-flag"], &[], "--no-such-flag"),
        (daemons[0], &["--set", "root_token=short-secret"], &[], "--set root_token: must be at least 32"),
        (daemons[0], &[], &[], "root_token: is not set. Set it in the configuration file"),
        (
            daemons[1],
            &[],
            &[],
            "node: is not set. Set it in the configuration file, as SIGNALBOX_SIDECAR_NODE",
        ),
        (daemons[1], &["--node", "a:b"], &[], "--node: must be 1 to 64 letters"),
        (daemons[1], &["--node", "a", "--set", "log=a=b=c"], &[], "log: `a=b=c` is not a tracing filter"),
    ] {
        let output = run(name, arguments, environment);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?} {environment:?}: {message}");
        assert!(message.contains(expected), "{arguments:?} {environment:?}: {message}");
        assert!(!message.contains(TOKEN) && !message.contains("short-secret"), "{message}");
    }
}

#[test]
fn help_and_defaults_are_printed_without_values_of_the_environment() {
    let environment = [("SIGNALBOX_PACEMAKER_ROOT_TOKEN", TOKEN)];
    let help = run("signalbox-pacemaker", &["--help"], &environment);
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("--redis-fabric") && help.contains("SIGNALBOX_PACEMAKER_REDIS_FABRIC"), "{help}");
    assert!(!help.contains(TOKEN), "{help}");
    for name in ["signalbox-pacemaker", "signalbox-sidecar"] {
        let output = run(name, &["--print-defaults"], &environment);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        toml::from_str::<toml::Table>(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(text.contains("\n[traces]\n") && !text.contains(TOKEN), "{text}");
    }
}

#[test]
fn a_variable_of_no_key_is_a_warning() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (name, prefix) in [("signalbox-pacemaker", "PACEMAKER"), ("signalbox-sidecar", "SIDECAR")] {
        let variable = |key: &str| format!("SIGNALBOX_{prefix}_{key}");
        let (port, token, node) = (variable("PORT"), variable("ROOT_TOKEN"), variable("NODE"));
        let environment = [(&*port, "tcp://10.0.0.1:80"), (&*token, TOKEN), (&*node, "n1")];
        let output = run(name, &["--listen", &address], &environment);
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains("unknown environment variable ignored") && log.contains(&port), "{log}");
    }
}
