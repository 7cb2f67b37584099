//! Detects the kind of nginx: Debian's with Lua in shared objects, or one with built-in Lua (OpenResty).

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::has;
use crate::{Error, programs};

const HINT: &str = "install Debian's nginx, libnginx-mod-http-lua, lua-resty-core and lua-cjson (`make run` \
                    does), or OpenResty, or set edge.binary (for `signalbox edge`: NGINX_BINARY and LOAD_MODULES)";
/// In the order in which nginx must load them.
const MODULES: [&str; 2] = ["ndk_http_module.so", "ngx_http_lua_module.so"];

/// An nginx that can run the edge.
#[derive(Debug, Clone)]
pub(crate) struct Flavour {
    pub(crate) binary: PathBuf,
    /// The folder of its Lua modules; `None` if Lua is built in.
    modules: Option<PathBuf>,
}

impl Flavour {
    /// Finds an nginx with Lua.
    pub(crate) fn find(configured: &str) -> Result<Self, Error> {
        let candidates = programs::server(configured, &["nginx", "openresty"], HINT)?;
        let found = candidates.iter().find_map(|binary| Self::of(binary));
        found.ok_or_else(|| Error::ProgramMissing {
            program: format!("an nginx with Lua (tried {})", candidates[0].display()),
            hint: HINT.to_owned(),
        })
    }

    fn of(binary: &Path) -> Option<Self> {
        // Where nginx was built to look for everything; it prints that to standard error.
        let output = Command::new(binary).arg("-V").output().ok()?;
        let built = String::from_utf8_lossy(&output.stderr).into_owned();
        if built.contains("openresty") || built.contains("--add-module=") && built.contains("lua") {
            return Some(Self { binary: binary.to_owned(), modules: None });
        }
        let folder = modules_folder(&built)?;
        let complete = MODULES.iter().all(|module| has(&folder, module));
        complete.then(|| Self { binary: binary.to_owned(), modules: Some(folder) })
    }

    pub(crate) fn load_modules(&self) -> String {
        let Some(folder) = &self.modules else { return String::new() };
        MODULES.map(|module| format!("load_module {};", folder.join(module).display())).join("\n")
    }
}

/// `--modules-path` of the build; its default is below `--prefix`.
fn modules_folder(built: &str) -> Option<PathBuf> {
    let option = |name: &str| built.split_ascii_whitespace().find_map(|word| word.strip_prefix(name));
    let folder = option("--modules-path=").map(PathBuf::from);
    folder.or_else(|| Some(Path::new(option("--prefix=")?).join("modules")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_are_found_by_the_build_options() {
        let built =
            "configure arguments: --prefix=/usr/share/nginx --modules-path=/usr/lib/nginx/modules --with-x";
        assert_eq!(modules_folder(built), Some(PathBuf::from("/usr/lib/nginx/modules")));
        assert_eq!(
            modules_folder("arguments: --prefix=/opt/nginx"),
            Some(PathBuf::from("/opt/nginx/modules"))
        );
    }
}
