//! The API against its OpenAPI document, by schemathesis: it sends what the document allows, and every answer must conform to
//! the document.
//!
//! Every run is the same: the seed and the versions of all packages are pinned in `tests/schemathesis/`.

use std::{env, path::Path};

use signalbox_tests::{system::System, upstream::App};
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn schemathesis_finds_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    let installed = Command::new(root.join(".ci/schemathesis")).status().await.unwrap();
    assert!(installed.success(), "{installed}: the output above shows what is missing");
    let system = System::start("schemathesis").await;
    // Something that is there, so that not every answer is 404.
    let app = App::start("app").await;
    system.register("i-7", &app, "shop.example", "7").await;
    let output = Command::new(target.join("schemathesis/bin/schemathesis"))
        .arg("--config-file")
        .arg(root.join("tests/schemathesis/schemathesis.toml"))
        .arg("run")
        .arg(format!("http://{}/openapi.json", system.pacemaker))
        .args(["--no-color", "--header", &format!("Authorization: Bearer {}", system.token)])
        // It writes what it remembers of a run where it is.
        .current_dir(target)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Selected: "), "it sent no requests: {said}");
    system.stop().await;
}
