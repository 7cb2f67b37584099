//! The API against its OpenAPI document. schemathesis sends what the document allows, and every answer must conform to the
//! document. A client that openapi-python-client generates from the document works.
//!
//! Every run is the same: the versions of all packages are pinned in `tests/schemathesis/` and `tests/openapi-client/`.

use std::{
    env,
    path::{Path, PathBuf},
    process::Output,
};

use signalbox_tests::{system::System, upstream::App};
use tokio::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Installs the programs of `tests/<name>/`, and returns their folder.
async fn install(name: &str) -> PathBuf {
    let installed = Command::new(root().join(".ci/python")).arg(name).status().await.unwrap();
    assert!(installed.success(), "{installed}: the output above shows what is missing");
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join(name)
}

async fn run(command: &mut Command) -> Output {
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn schemathesis_finds_nothing() {
    let programs = install("schemathesis").await;
    let system = System::start("schemathesis").await;
    // Something that is there, so that not every answer is 404.
    let app = App::start("app").await;
    system.register("i-7", &app, "shop.example", "7").await;
    let mut schemathesis = Command::new(programs.join("bin/schemathesis"));
    schemathesis
        .arg("--config-file")
        .arg(root().join("tests/schemathesis/schemathesis.toml"))
        .arg("run")
        .arg(format!("http://{}/openapi.json", system.pacemaker))
        .args(["--no-color", "--header", &format!("Authorization: Bearer {}", system.token)])
        // It writes what it remembers of a run where it is.
        .current_dir(programs.parent().unwrap());
    let output = run(&mut schemathesis).await;
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("Selected: "), "it sent no requests: {report}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_generated_from_the_document_works() {
    let programs = install("openapi-client").await;
    let system = System::start("openapi-client").await;
    let app = App::start("app").await;
    let folder = tempfile::tempdir().unwrap();
    let ours = root().join("tests/openapi-client");
    let mut generator = Command::new(programs.join("bin/openapi-python-client"));
    generator
        .args(["generate", "--meta", "none", "--fail-on-warning", "--url"])
        .arg(format!("http://{}/openapi.json", system.admin))
        .arg("--config")
        .arg(ours.join("config.yaml"))
        .args(["--output-path", "generated"])
        .current_dir(folder.path());
    run(&mut generator).await;
    let mut client = Command::new(programs.join("bin/python"));
    client
        .arg(ours.join("use.py"))
        .args([format!("http://{}", system.admin), system.token.clone(), app.address.to_string()])
        .env("PYTHONPATH", folder.path());
    run(&mut client).await;
    system.stop().await;
}
