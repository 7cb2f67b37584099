//! `--demo`: sample applications next to the system.
//!
//! They are processes of another program, `signalbox-demo` (`examples/demo`), which uses the public API like any other
//! application. This module only finds the program, starts it, and waits for it.

use std::path::{Path, PathBuf};

use signalbox_stack::{Options, Probe, Program, Stack, own_program};
use tokio::process::Command;

use crate::exit::Failure;

const PROGRAM: &str = "signalbox-demo";
/// Name, host and version type of the applications that register themselves.
const APPLICATIONS: [(&str, &str, &str); 2] =
    [("hello", "hello.localhost", "1"), ("shop", "shop.localhost", "2")];
/// The prefix of the parts that alternately serve canary.localhost.
const CANARY: &str = "demo-canary-";

/// The running sample applications.
pub(crate) struct Demo {
    /// Routed host names.
    pub(crate) hosts: Vec<&'static str>,
    /// Address of the process that is not registered.
    pub(crate) spare: String,
    /// The program, as an operator would type it.
    pub(crate) program: String,
}

/// Finds the program, before `up` starts any process.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    Ok(own_program(PROGRAM, None)?)
}

/// Starts the sample applications, and waits until a request to each was routed and counted.
pub(crate) async fn start(stack: &Stack, options: &Options, program: &Path) -> Result<Demo, Failure> {
    let token = stack.layout().token().display().to_string();
    let mut prepare = Command::new(program);
    prepare.args(["prepare", "--admin-url", &stack.admin_url(), "--edge-url", &stack.edge_url()]);
    prepare.arg("--data-dir").arg(&options.data_dir).kill_on_drop(true);
    let mut spare = String::new();
    for other in &options.others {
        let (name, port) = (other.part.as_str(), other.port.to_string());
        let address = format!("127.0.0.1:{port}");
        let part = Program::new(other.part.clone(), program);
        let part = ["app", "--port", &port, "--instance", name].into_iter().fold(part, Program::arg);
        let part = match APPLICATIONS.iter().find(|(application, ..)| name.contains(application)) {
            Some((application, host, version_type)) => {
                prepare.args(["--instance", name]);
                [
                    "--name",
                    application,
                    "--register",
                    &stack.admin_url(),
                    "--token-file",
                    &token,
                    "--hostname",
                    host,
                    "--version-type-id",
                    version_type,
                ]
                .into_iter()
                .fold(part, Program::arg)
                .address(format!("http://{address} as {host}"))
            }
            None if name.starts_with(CANARY) => {
                prepare.args(["--canary", &address]);
                part.arg("--name").arg("canary-1").address(format!("http://{address} for canary.localhost"))
            }
            None => {
                prepare.args(["--receiver", &address]);
                spare.clone_from(&address);
                part.arg("--name").arg("new").address(format!("http://{address}, not registered"))
            }
        };
        stack.add(part.ready_when(Probe::Http(format!("http://{address}/health")))).await?;
    }
    for (_, host, version_type) in APPLICATIONS {
        prepare.arg("--host").arg(format!("{host}={version_type}"));
    }
    let failed = |error: String| Failure::unavailable(format!("cannot prepare the demo: {error}"));
    let status = prepare.status().await.map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        return Err(failed(status.to_string()));
    }
    Ok(Demo { hosts: APPLICATIONS.map(|(_, host, _)| host).into(), spare, program: typed(program) })
}

/// The path of the program next to this one, in the form in which the operator typed this one.
fn typed(program: &Path) -> String {
    let own = std::env::args().next().unwrap_or_default();
    match own.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{PROGRAM}"),
        None if own.is_empty() => program.display().to_string(),
        None => PROGRAM.to_owned(),
    }
}
