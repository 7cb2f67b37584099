//! The source of nginx's configuration and Lua modules.

use std::{
    fs,
    path::{Path, PathBuf},
};

use include_dir::{Dir, include_dir};

use super::has;
use crate::Error;

static NGINX: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../nginx");
static LUA: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../lua");

/// The folders in use.
pub(super) struct Source {
    pub(super) nginx: PathBuf,
    pub(super) lua: PathBuf,
}

impl Source {
    /// The checkout at `configured`, or, when that is empty, the embedded files written below `prefix`.
    pub(super) fn choose(configured: &Path, prefix: &Path) -> Result<Self, Error> {
        if configured.as_os_str().is_empty() {
            let source = Self { nginx: prefix.join("conf"), lua: prefix.join("lua") };
            write(&NGINX, &source.nginx)?;
            write(&LUA, &source.lua)?;
            return Ok(source);
        }
        let folder = configured.canonicalize().map_err(Error::file("find", configured))?;
        let source = Self { nginx: folder.join("nginx"), lua: folder.join("lua") };
        if !has(&source.nginx, "nginx.conf") || !source.lua.join("signalbox").is_dir() {
            let reason = format!("{} has no nginx/nginx.conf or no lua/signalbox/", folder.display());
            return Err(Error::option("edge.files", reason));
        }
        Ok(source)
    }

    pub(super) fn template(&self) -> Result<String, Error> {
        let file = self.nginx.join("nginx.conf");
        fs::read_to_string(&file).map_err(Error::file("read", file))
    }
}

/// Replaces `target` by `dir`, so that modules of an earlier version are removed.
fn write(dir: &Dir<'_>, target: &Path) -> Result<(), Error> {
    if target.exists() {
        fs::remove_dir_all(target).map_err(Error::file("replace", target))?;
    }
    fs::create_dir_all(target).map_err(Error::file("create", target))?;
    // Not Dir::extract, which uses paths from the root of the embedded folder and would also write the specs.
    for file in dir.files() {
        let path = target.join(file.path().file_name().unwrap_or_default());
        fs::write(&path, file.contents()).map_err(Error::file("write", path))?;
    }
    for folder in dir.dirs() {
        let name = folder.path().file_name().unwrap_or_default();
        if name != "spec" {
            write(folder, &target.join(name))?;
        }
    }
    Ok(())
}
