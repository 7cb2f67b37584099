//! The dashboard in a real browser: `tests/browser/` says what a person does there and sees.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time};

use crate::bus_api::Bus;

/// Within what the runner gives one test, so that a hang is told in words.
const PATIENCE: Duration = Duration::from_secs(400);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Where the browser's parts are installed and its pictures are left.
fn folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => root().join(target).join("browser"),
        None => root().join("target/browser"),
    }
}

async fn run(what: &str, command: &mut Command) {
    let output = command.current_dir(root()).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = time::timeout(PATIENCE, output).await;
    let output = output.unwrap_or_else(|_| panic!("{what} does not end")).expect("it can be started");
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{said}");
    assert!(
        output.status.success(),
        "{what}: {}; pictures are in {}\n{said}",
        output.status,
        folder().display()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_works_in_a_browser() {
    // Nothing is installed when all is there. What cannot be installed fails here: a test that is passed over is none.
    run("the installation of the browser", &mut Command::new(root().join(".ci/browser"))).await;
    let bus = Bus::with("dashboard", &[("max_attempts", 1)]).await;
    let shots = folder().join("shots");
    std::fs::create_dir_all(&shots).unwrap();
    let script = root().join("tests/browser/run.mjs");
    let mut node = Command::new("node");
    node.arg(script)
        .env("SIGNALBOX_ADMIN", format!("http://{}", bus.system.admin))
        .env("SIGNALBOX_EDGE", format!("http://{}", bus.system.edge))
        .env("SIGNALBOX_TOKEN", &bus.system.token)
        .env("SIGNALBOX_BROWSER_MODULES", folder())
        .env("SIGNALBOX_SHOTS", shots);
    run("the browser", &mut node).await;
    bus.system.stop().await;
}
