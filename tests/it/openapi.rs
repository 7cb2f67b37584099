//! The API against its own document, by schemathesis: what the document allows is sent, and what comes back has to be what
//! the document says.
//!
//! `make schemathesis` installs it below `target/` and runs this. Without it there is nothing to run: it comes from
//! PyPI, and neither a build nor the other tests may need that.

use std::path::Path;

use signalbox_tests::{system::System, upstream::App};
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn schemathesis_finds_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let program = root.join("target/schemathesis/bin/schemathesis");
    if !program.exists() {
        println!("schemathesis is not installed: `make schemathesis` does, and runs it");
        return;
    }
    let system = System::start("schemathesis").await;
    // Something that is there, so that not every answer is 404.
    let app = App::start("app").await;
    system.register("i-7", &app, "shop.example", "7").await;
    let output = Command::new(program)
        .arg("--config-file")
        .arg(root.join("tests/schemathesis/schemathesis.toml"))
        .arg("run")
        .arg(format!("http://{}/openapi.json", system.pacemaker))
        .args(["--no-color", "--header", &format!("Authorization: Bearer {}", system.token)])
        // It writes what it remembers of a run where it is.
        .current_dir(root.join("target"))
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Selected: "), "it has asked nothing: {said}");
    system.stop().await;
}
