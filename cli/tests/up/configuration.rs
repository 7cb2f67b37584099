//! Invalid configuration is reported with its place, and exits 64 before anything is changed.

use std::{fs, net::TcpListener};

use tokio::process::Command;

use crate::running::Place;

#[tokio::test]
async fn a_bad_file_exits_64_with_line_and_column() {
    for (text, expected) in [
        ("[ports]\nedgee = 1\n", "signalbox.toml:2:1: unknown field `edgee`"),
        ("[redis]\nfabric_fsync = 1\n", "signalbox.toml:2:16: "),
        (
            "[edge]\n\nlisten = \"nowhere\"\n",
            "signalbox.toml:3:10: edge.listen: \"nowhere\" is not a valid IP address",
        ),
        ("[edge.nginx]\nKEEP = \"1\"\n", "signalbox.toml:2:8: edge.nginx.KEEP: "),
    ] {
        let place = Place::new();
        fs::write(place.folder().join("signalbox.toml"), text).unwrap();
        let (code, error) = place.fail(&[]).await;
        assert_eq!(code, Some(64), "{text:?}: {error}");
        assert!(error.contains(expected), "{text:?} gave {error:?}");
    }
}

#[tokio::test]
async fn bad_flags_variables_and_missing_files_exit_64() {
    let place = Place::new();
    for flags in [&["--no-such-flag"][..], &["--port-offset", "x"], &["--config", "absent.toml"]] {
        let (code, error) = place.fail(flags).await;
        assert_eq!(code, Some(64), "{flags:?}: {error}");
    }
    let mut command = place.command(&[]);
    let output = command.env("SIGNALBOX_PORT_OFFSET", "many").output().await.unwrap();
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(!place.data_dir().exists());
}

#[tokio::test]
async fn a_missing_demo_program_is_reported_before_anything_starts() {
    let place = Place::new();
    let alone = place.folder().join("signalbox");
    fs::copy(env!("CARGO_BIN_EXE_signalbox"), &alone).unwrap();
    let mut command = Command::new(&alone);
    // Neither next to it nor on the search path.
    command.args(["up", "--demo"]).env("PATH", place.folder()).current_dir(place.folder());
    let output = command.output().await.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{error}");
    assert!(error.contains("signalbox-demo was not found") && error.contains("cargo build"), "{error}");
    assert!(!place.folder().join(".signalbox").exists());
}

#[tokio::test]
async fn the_default_file_is_printed() {
    let output = Place::new().command(&["--print-defaults"]).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("# The configuration of `signalbox up`") && text.contains("\n[ports]\n"),
        "{text}"
    );
}

#[tokio::test]
async fn file_then_environment_then_flag() {
    // Occupied ports, so that the error shows which one it would use.
    let taken: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let [file, environment, flag] =
        [0, 1, 2].map(|index| taken[index].local_addr().unwrap().port().to_string());
    let place = Place::new();
    fs::write(place.folder().join("signalbox.toml"), format!("[ports]\nedge = {file}\n")).unwrap();
    let in_environment = [("SIGNALBOX_PORTS_EDGE", environment.as_str())];
    for (variables, flags, expected) in [
        (&[][..], &[][..], &file),
        (&in_environment, &[], &environment),
        (&in_environment, &["--set", &format!("ports.edge={flag}")], &flag),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_signalbox"));
        command.current_dir(place.folder()).arg("up").args(flags).envs(variables.iter().copied());
        let output = command.output().await.unwrap();
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(&format!("port {expected} is taken")), "{error}");
    }
}

#[tokio::test]
async fn a_daemon_that_refuses_its_settings_makes_it_exit_64() {
    let place = Place::new();
    fs::write(place.folder().join("signalbox.toml"), "[sidecar]\nno_such_key = 1\n").unwrap();
    let (code, error) = place.fail(&[]).await;
    assert_eq!(code, Some(64), "{error}");
    assert!(error.contains("no_such_key"), "{error}");
}
