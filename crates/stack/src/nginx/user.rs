//! The user of nginx's workers if root starts nginx.
//!
//! Workers must reach the replica's socket and reopen the access log after each rotation, so they need access to every folder
//! on the path. `/root`, for example, denies it. Then the workers remain root, and a note is printed: an edge that silently
//! stops counting at its first rotation would be worse.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown},
    path::Path,
};

use nix::unistd::{User, geteuid};

use crate::{Error, layout::set_mode};

/// The user of Debian's web servers.
const DEFAULT: &str = "www-data";

/// The chosen user.
#[derive(Debug, Clone)]
pub(crate) enum WorkerUser {
    /// The user that started the stack, including root.
    Same {
        /// Whether nginx.conf must set it, because nginx started by root would use its built-in user.
        root: bool,
    },
    /// Another user, because root started the stack.
    Other(User),
}

impl WorkerUser {
    /// The user for data at `root_folder`, and a note for the operator about the choice.
    pub(crate) fn choose(configured: &str, root_folder: &Path) -> Result<(Self, Option<String>), Error> {
        if !geteuid().is_root() {
            return Ok((Self::Same { root: false }, None));
        }
        let name = if configured.is_empty() { DEFAULT } else { configured };
        let user = User::from_name(name).ok().flatten();
        match user {
            _ if name == "root" => Ok((Self::Same { root: true }, None)),
            None if configured.is_empty() => Ok((
                Self::Same { root: true },
                Some(format!(
                    "nginx's workers run as root: the user {DEFAULT} does not exist; set edge.user"
                )),
            )),
            None => Err(Error::option("edge.user", format!("the user {name} does not exist"))),
            Some(user) => match obstacle(&user, root_folder) {
                None => Ok((Self::Other(user), None)),
                Some(folder) if configured.is_empty() => Ok((
                    Self::Same { root: true },
                    Some(format!(
                        "nginx's workers run as root: {DEFAULT} may not enter {}; \
                         open that folder (chmod o+x), or choose another --data-dir",
                        folder.display()
                    )),
                )),
                Some(folder) => {
                    let reason = format!("{name} may not enter {}, where the data is", folder.display());
                    Err(Error::option("edge.user", reason))
                }
            },
        }
    }

    /// nginx's `user` line.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Same { root: false } => String::new(),
            Self::Same { root: true } => "user root;".to_owned(),
            Self::Other(user) => format!("user {};", user.name),
        }
    }

    /// Grants only the workers access to a folder of the stack.
    pub(crate) fn admit(&self, folder: &Path) -> Result<(), Error> {
        let failed = Error::file("open to nginx's workers", folder);
        match self {
            Self::Same { .. } => set_mode(folder, 0o700),
            Self::Other(user) => {
                chown(folder, None, Some(user.gid.as_raw())).map_err(failed)?;
                // The group of what is created in it is that of the folder, so that workers can use the replica's socket.
                set_mode(folder, 0o2750)
            }
        }
    }

    /// Grants only the workers access to a file of a folder to which they are admitted.
    pub(crate) fn admit_to_file(&self, file: &Path) -> Result<(), Error> {
        let Self::Other(user) = self else { return Ok(()) };
        chown(file, None, Some(user.gid.as_raw())).map_err(Error::file("open to nginx's workers", file))?;
        set_mode(file, 0o640)
    }
}

/// The first folder on the path to `folder` that `user` cannot enter. Only mode bits are checked.
fn obstacle<'a>(user: &User, folder: &'a Path) -> Option<&'a Path> {
    let mut way: Vec<&Path> = folder.ancestors().collect();
    way.reverse();
    way.into_iter().find(|folder| {
        let Ok(metadata) = fs::metadata(folder) else { return true };
        let bit = match () {
            () if metadata.uid() == user.uid.as_raw() => 0o100,
            () if metadata.gid() == user.gid.as_raw() => 0o010,
            () => 0o001,
        };
        metadata.mode() & bit == 0
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_inaccessible_folder_on_the_path_is_named() {
        let Ok(Some(user)) = User::from_name("nobody") else { return };
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(obstacle(&user, &inner), Some(folder.path()));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert_eq!(obstacle(&user, &inner), None);
    }
}
