//! The paths in the data folder.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};

use crate::{Error, Part, secrets::Secrets};

/// The maximum length of a unix socket's path (`sun_path` without its final zero).
const SOCKET_PATH_BYTES: usize = 107;

/// The mode of a new data folder until it is known as which user nginx's workers run.
const FRESH_MODE: u32 = 0o711;

/// The paths of one stack, derived from the absolute path of the data folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Creates the folders of a stack at `root`.
    ///
    /// # Errors
    /// If they cannot be created, or if `root` is too long for a unix socket below it.
    pub fn create(root: &Path) -> Result<Self, Error> {
        if !root.exists() {
            fs::create_dir_all(root).map_err(Error::file("create", root))?;
            set_mode(root, FRESH_MODE)?;
        }
        let root = root.canonicalize().map_err(Error::file("find", root))?;
        let layout = Self { root };
        for folder in [layout.run(), layout.logs()] {
            fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        }
        // The sockets of a hundred routers must fit.
        if layout.run().join("routes-99.sock").as_os_str().len() > SOCKET_PATH_BYTES {
            let reason = format!(
                "{} is too long: unix sockets are created below it, and the kernel allows {SOCKET_PATH_BYTES} bytes for them",
                layout.root.display()
            );
            return Err(Error::option("data_dir", reason));
        }
        Ok(layout)
    }

    /// Whether the data folder was created for this start. The mode of another folder is the choice of its owner.
    pub(crate) fn is_fresh(&self) -> bool {
        fs::metadata(&self.root).is_ok_and(|root| root.permissions().mode() & 0o7777 == FRESH_MODE)
    }

    /// The data folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Tokens, keys and passwords.
    pub fn secrets(&self) -> Secrets {
        Secrets::at(&self.root)
    }

    /// The file with the root token (0600).
    pub fn token(&self) -> PathBuf {
        self.secrets().token()
    }

    /// The file with the key that all routers share (0600): 64 hexadecimal digits.
    pub fn edge_key(&self) -> PathBuf {
        self.secrets().edge_key()
    }

    /// Folder of pid files, sockets and the lock.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The description of the running system as JSON; see [`crate::Description`].
    pub fn description(&self) -> PathBuf {
        self.run().join("stack.json")
    }

    /// The log of a part.
    pub fn log(&self, part: &Part) -> PathBuf {
        self.logs().join(format!("{part}.log"))
    }

    /// Data and configuration of a Redis.
    pub fn redis(&self, part: &Part) -> PathBuf {
        self.root.join("redis").join(part.as_str())
    }

    /// The configuration of a daemon.
    pub fn daemon_config(&self, part: &Part) -> PathBuf {
        self.root.join(format!("{part}.toml"))
    }

    /// The unix socket of the replica of the `router`-th router, counted from 1.
    pub fn replica_socket(&self, router: usize) -> PathBuf {
        self.run().join(format!("routes{}.sock", suffix(router)))
    }

    /// nginx's prefix: rendered configuration, temporary folders, snapshot.
    pub fn nginx_prefix(&self, router: usize) -> PathBuf {
        self.root.join(format!("nginx{}", suffix(router)))
    }

    /// nginx's PID file.
    pub fn nginx_pid_file(&self, router: usize) -> PathBuf {
        self.nginx_prefix(router).join("nginx.pid")
    }

    /// The last known good route table of a router.
    pub fn snapshot(&self, router: usize) -> PathBuf {
        self.nginx_prefix(router).join("routes.snapshot")
    }

    /// The JSON log that the sidecar counts.
    pub fn access_log(&self, router: usize) -> PathBuf {
        self.logs().join(format!("access{}.log", suffix(router)))
    }

    /// The file with the UUID of a router.
    pub fn node(&self, router: usize) -> PathBuf {
        self.root.join(format!("node{}", suffix(router)))
    }

    pub(crate) fn pid_file(&self, part: &Part) -> PathBuf {
        self.run().join(format!("{part}.pid"))
    }

    /// Folder of the logs.
    pub fn logs(&self) -> PathBuf {
        self.root.join("log")
    }

    /// Locks the folder for this process until the returned value is dropped or the process ends.
    pub(crate) fn lock(&self) -> Result<Flock<fs::File>, Error> {
        let path = self.run().join("lock");
        let file = fs::OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let file = file.map_err(Error::file("open", &path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                let write = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
                write.map_err(Error::file("write", &path))?;
                Ok(lock)
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                let holder = fs::read_to_string(&path).unwrap_or_default();
                let holder = holder.trim();
                let holder = if holder.is_empty() { String::new() } else { format!(" (pid {holder})") };
                Err(Error::Locked { data_dir: self.root.clone(), holder })
            }
            Err((_, errno)) => Err(Error::File { action: "lock", path, source: errno.into() }),
        }
    }
}

/// The suffix of the files of additional routers.
fn suffix(router: usize) -> String {
    if router == 1 { String::new() } else { format!("-{router}") }
}

/// Writes a file that only its owner can read: it may contain what an operator configured as a secret.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path);
    let mut file = file.map_err(Error::file("write", path))?;
    // A file of an earlier version may be readable by others.
    set_mode(path, 0o600)?;
    file.write_all(text.as_bytes()).map_err(Error::file("write", path))
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Error::file("set the mode of", path))
}

/// The content of `path`. If the file does not exist, it is created from `make` with mode `mode`.
pub(crate) fn read_or_make(path: &Path, mode: u32, make: impl FnOnce() -> String) -> Result<String, Error> {
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // An existing unreadable file belongs to another user. Replacing it would lock that user out.
        Err(error) => return Err(Error::file("read", path)(error)),
    }
    let text = make();
    replace(path, mode, &format!("{text}\n"))?;
    Ok(text)
}

/// Writes a file that is complete or absent at any time: a start that is killed here must not leave a partial token. The
/// mode is that of a new file. A replaced file keeps its mode, owner and group.
pub(crate) fn replace(path: &Path, mode: u32, text: &str) -> Result<(), Error> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    let old = fs::metadata(path).ok();
    let mode = old.as_ref().map_or(mode, |old| old.permissions().mode() & 0o7777);
    let file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&fresh);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::file("write", &fresh))?;
    if let Some(old) = old {
        chown(&fresh, Some(old.uid()), Some(old.gid())).map_err(Error::file("set the owner of", &fresh))?;
    }
    set_mode(&fresh, mode)?;
    fs::rename(&fresh, path).map_err(Error::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_by_one_copy_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::create(&folder.path().join("data")).unwrap();
        let lock = layout.lock().unwrap();
        let error = layout.lock().unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(lock);
        layout.lock().unwrap();
    }

    #[test]
    fn a_token_is_created_once_and_readable_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert_eq!(read_or_make(&path, 0o600, || "a".into()).unwrap(), "a");
        assert_eq!(read_or_make(&path, 0o600, || "b".into()).unwrap(), "a");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_replaced_file_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edge.password");
        replace(&path, 0o600, "a").unwrap();
        set_mode(&path, 0o640).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(read_or_make(&path, 0o600, || "b".into()).unwrap(), "b");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing temporary is left");
    }

    #[test]
    fn a_configuration_that_others_could_read_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pacemaker.toml");
        fs::write(&path, "old and longer").unwrap();
        set_mode(&path, 0o644).unwrap();
        write_private(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn only_a_folder_that_did_not_exist_is_fresh() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Layout::create(&folder.path().join("new")).unwrap().is_fresh());
        assert!(!Layout::create(folder.path()).unwrap().is_fresh());
    }

    #[test]
    fn a_folder_with_a_path_too_long_for_a_socket_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let error = Layout::create(&folder.path().join("d".repeat(100))).unwrap_err();
        assert!(error.to_string().starts_with("data_dir: "), "{error}");
    }
}
