//! The compared proxies. Each is started with one worker on the measured core, in a separate folder, with a
//! configuration from `bench/peers/`.

pub(crate) mod caddy;
pub(crate) mod edge;
pub(crate) mod envoy;
pub(crate) mod haproxy;
pub(crate) mod nginx;
pub(crate) mod sozu;
pub(crate) mod traefik;
mod wheels;

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

use crate::process::{Pid, Process};

/// A proxy that runs.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// Its name in tables.
    pub(crate) name: String,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The processes that do its work.
    pub(crate) workers: Vec<Pid>,
    /// Processes that it needs for that.
    pub(crate) helpers: Vec<Pid>,
    /// Its log, which grows by gigabytes and is cut between measurements.
    pub(crate) log: PathBuf,
    /// The first of its processes; the others end with it.
    process: Process,
}

impl Proxy {
    /// Starts a proxy of one process, which has its output in `output`, and waits until it listens.
    pub(crate) async fn start(
        name: &str,
        command: &mut Command,
        address: SocketAddr,
        output: &Path,
    ) -> anyhow::Result<Self> {
        let mut process = Process::start(name, command, output)?;
        process.listens_on(address).await?;
        let log = output.with_file_name("access.log");
        let workers = vec![process.id()];
        Ok(Self { name: name.to_owned(), address, workers, helpers: Vec::new(), log, process })
    }

    /// The same with another of its listeners.
    pub(crate) fn with_address(self, address: SocketAddr) -> Self {
        Self { address, ..self }
    }

    /// Empties the access log. All of them append, so they continue at the new end.
    pub(crate) fn cut_log(&self) -> anyhow::Result<()> {
        match fs::OpenOptions::new().write(true).open(&self.log) {
            Ok(file) => file.set_len(0).context("emptying an access log"),
            // Caddy opens it with the first request.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).context("opening an access log"),
        }
    }
}

/// A program that is to run on one core only, from its first thread on.
pub(crate) fn on_core(core: usize, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), program]);
    command
}

/// A loopback address without a listener. If another process takes it before the proxy does, the proxy reports the
/// error.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr())?)
}

/// Makes a new folder for a proxy.
pub(crate) fn folder(root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let folder = root.join(name);
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder)
}

/// Fills the `${NAME}` places of a template and writes it to `path`. nginx's own variables are lower case and stay.
pub(crate) fn render(template: &str, values: &[(&str, String)], path: &Path) -> anyhow::Result<()> {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("${{{name}}}"), value);
    }
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// The folder that holds `nginx/`, `lua/` and `bench/`.
pub(crate) fn source() -> PathBuf {
    // The workspace is one folder above this package, wherever it was built.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_and_variables_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        render("a ${NAME} $host ${other}", &[("NAME", "x y".to_owned())], &path).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "a x y $host ${other}");
    }
}
