//! Finds the programs of a stack.

use std::{
    env,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::Error;

/// Debian installs servers in `sbin`, which is not on every user's search path.
const SERVER_FOLDERS: [&str; 4] =
    ["/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/local/openresty/nginx/sbin"];

/// Finds a program of Signalbox (`signalbox`, `signalbox-pacemaker`, …): in `folder` if given, else next to the running
/// program, else on the search path.
///
/// A test or benchmark runs in `target/<profile>/deps`, one folder below the programs.
///
/// # Errors
/// [`Error::ProgramMissing`] names the build command.
pub fn own(name: &str, folder: Option<&Path>) -> Result<PathBuf, Error> {
    let beside: Vec<PathBuf> = match folder {
        Some(folder) => vec![folder.to_owned()],
        None => env::current_exe()
            .ok()
            .iter()
            .flat_map(|program| program.ancestors().skip(1).take(2))
            .map(Path::to_owned)
            .collect(),
    };
    let found = beside.into_iter().map(|folder| folder.join(name)).find(|file| is_program(file));
    let found = found.or_else(|| if folder.is_none() { on_search_path(name) } else { None });
    found.ok_or_else(|| Error::ProgramMissing {
        program: name.to_owned(),
        hint: "build it with `cargo build --workspace`, or install it next to the `signalbox` command"
            .to_owned(),
    })
}

/// Finds a server of the system: `configured` if not empty, else the first of `names` that exists.
pub(crate) fn server(configured: &str, names: &[&str], hint: &str) -> Result<Vec<PathBuf>, Error> {
    let missing = |program: String| Error::ProgramMissing { program, hint: hint.to_owned() };
    if configured.is_empty() {
        let found: Vec<PathBuf> = names.iter().filter_map(|name| on_search_path(name)).collect();
        if found.is_empty() { Err(missing(names.join(" or "))) } else { Ok(found) }
    } else {
        let path = Path::new(configured);
        let found =
            if path.components().count() > 1 { Some(path.to_owned()) } else { on_search_path(configured) };
        let found = found.filter(|file| is_program(file)).ok_or_else(|| missing(configured.to_owned()))?;
        Ok(vec![found])
    }
}

fn on_search_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(SERVER_FOLDERS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
