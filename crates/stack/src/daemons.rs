//! The pacemaker and the sidecar: configuration, program, readiness.

use std::{path::Path, time::Duration};

use nix::sys::signal::Signal;
use toml::{Table, Value};

use crate::{
    Error, Part, Probe,
    layout::{Layout, write_private},
    supervisor::Program,
};

/// The program and configuration of a daemon.
pub(crate) struct Daemon<'a> {
    pub(crate) part: Part,
    pub(crate) binary: &'a Path,
    pub(crate) port: u16,
    /// The keys that connect it with the other parts.
    pub(crate) wiring: Table,
    /// The operator's settings, which win.
    pub(crate) chosen: &'a Table,
}

/// Writes the configuration of a daemon, and returns its program.
pub(crate) fn program(layout: &Layout, daemon: Daemon<'_>) -> Result<Program, Error> {
    let Daemon { part, binary, port, mut wiring, chosen } = daemon;
    merge(&mut wiring, chosen);
    let text = toml::to_string(&wiring).map_err(|error| Error::option(part.as_str(), error.to_string()))?;
    let file = layout.daemon_config(&part);
    let text = format!(
        "# Written at each start of Signalbox; edits are lost. Use [{part}] of signalbox.toml.\n{text}"
    );
    write_private(&file, &text)?;
    let url = format!("http://127.0.0.1:{port}");
    Ok(Program::new(part, binary)
        .arg("--config")
        .arg(file.display().to_string())
        // Its output is a file.
        .env("NO_COLOR", "1")
        .ready_when(Probe::Http(format!("{url}/health")))
        .address(url)
        .stop_with(Signal::SIGTERM, Duration::from_secs(10)))
}

/// Merges `over` into `table`, table by table.
fn merge(table: &mut Table, over: &Table) {
    for (key, value) in over {
        match (table.get_mut(key), value) {
            (Some(Value::Table(inner)), Value::Table(over)) => merge(inner, over),
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_settings_win_key_by_key() {
        let mut table: Table = toml::from_str("a = 1\n[redis]\nstats = \"x\"\nroutes = \"y\"").unwrap();
        merge(&mut table, &toml::from_str("b = 2\n[redis]\nstats = \"z\"").unwrap());
        let expected: Table = toml::from_str("a = 1\nb = 2\n[redis]\nstats = \"z\"\nroutes = \"y\"").unwrap();
        assert_eq!(table, expected);
    }
}
