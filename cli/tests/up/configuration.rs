//! Bad configuration is told with its place, and exits 64 before anything is touched.

use std::fs;

use crate::running::Place;

#[tokio::test]
async fn a_bad_file_exits_64_with_line_and_column() {
    for (text, expected) in [
        ("[ports]\nedgee = 1\n", "signalbox.toml:2:1: unknown field `edgee`"),
        ("[redis]\nfabric_fsync = 1\n", "signalbox.toml:2:16: "),
        (
            "[edge]\n\nlisten = \"nowhere\"\n",
            "signalbox.toml:3:10: edge.listen: \"nowhere\" is no IP address",
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
async fn the_default_file_is_printed() {
    let output = Place::new().command(&["--print-defaults"]).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("# The configuration of `signalbox up`") && text.contains("\n[ports]\n"),
        "{text}"
    );
}
