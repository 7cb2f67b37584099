//! Rotates the access log: renames it, then signals nginx to reopen it (`USR1`).
//!
//! The follower handles rotation by any program; this module only keeps the disk from filling. Rotated files are named
//! `<log>.<unix milliseconds>` and kept until there are more than `keep` of them. A file is deleted only after it is
//! counted to its end and [`KEPT_AT_LEAST_MS`] have passed since its last line: a statistics Redis that lost its last
//! second needs counted lines again. While Redis is unavailable, files accumulate instead of being lost, and the lag alarm
//! is raised.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Redis loses at most two seconds of its append-only file. A minute allows for its restart.
pub const KEPT_AT_LEAST_MS: u64 = 60_000;

/// Interval between signals to nginx while it has not reopened the log.
const SIGNAL_INTERVAL: Duration = Duration::from_secs(1);

/// When to rotate, and how many files to keep.
#[derive(Debug, Clone)]
pub struct Options {
    /// The size at which the log is rotated.
    pub bytes: u64,
    /// The number of rotated files to keep.
    pub keep: usize,
    /// The file with the process ID of nginx's master process.
    pub pid_file: PathBuf,
}

/// The log was not rotated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log cannot be renamed, or an old one cannot be deleted.
    #[error("cannot rename or delete {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The process ID in the file does not belong to nginx. A signal could end an unrelated process.
    #[error("{path} does not name a running nginx")]
    NoNginx {
        /// The file with the process ID.
        path: PathBuf,
    },
    /// nginx cannot be signaled.
    #[error("cannot signal nginx (process {pid}) to reopen its log")]
    Signal {
        /// The process.
        pid: i32,
        /// The error of the system.
        #[source]
        source: nix::Error,
    },
}

/// A rotated log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotated {
    /// Its path.
    pub path: PathBuf,
    /// When it was last written, in unix milliseconds.
    pub modified_ms: u64,
    /// Whether every complete line of it is counted.
    pub counted: bool,
}

/// Rotates one log.
#[derive(Debug)]
pub struct Rotator {
    log: PathBuf,
    options: Options,
    signaled: Option<Duration>,
}

impl Rotator {
    /// A rotator for the log that nginx writes at `log`.
    pub fn new(log: PathBuf, options: Options) -> Self {
        Self { log, options, signaled: None }
    }

    /// Performs the steps that are due: rotates a full log, makes nginx create a missing one, and deletes
    /// surplus files. `active_bytes` is the size of the log, if there is one. Returns whether it rotated.
    ///
    /// # Errors
    /// See [`Error`]. If the log was renamed but not reopened, the next call signals nginx again.
    pub fn tend(
        &mut self,
        active_bytes: Option<u64>,
        rotated: &[Rotated],
        now: Duration,
        unix_ms: u64,
    ) -> Result<bool, Error> {
        match active_bytes {
            Some(bytes) if bytes >= self.options.bytes => {
                // Without an nginx that reopens it, renaming would only hide the log.
                let pid = self.nginx()?;
                let to = target(&self.log, unix_ms);
                fs::rename(&self.log, &to).map_err(|source| Error::File { path: to, source })?;
                self.signal(pid, now)?;
                Ok(true)
            }
            // A running nginx always has a log, unless a process (such as an earlier sidecar that crashed)
            // renamed it without a signal.
            None if self.signaled.is_none_or(|signaled| now.saturating_sub(signaled) >= SIGNAL_INTERVAL) => {
                if let Ok(pid) = self.nginx() {
                    self.signal(pid, now)?;
                }
                Ok(false)
            }
            _ => {
                self.delete(rotated, unix_ms)?;
                Ok(false)
            }
        }
    }

    fn signal(&mut self, pid: i32, now: Duration) -> Result<(), Error> {
        self.signaled = Some(now);
        kill(Pid::from_raw(pid), Signal::SIGUSR1).map_err(|source| Error::Signal { pid, source })
    }

    /// The process in the pid file, if it is an nginx. The file may be stale, and its number may belong to another process.
    fn nginx(&self) -> Result<i32, Error> {
        let path = &self.options.pid_file;
        let pid = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i32>().ok());
        let is_nginx = |pid: &i32| {
            *pid > 1
                && fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|name| name.starts_with("nginx") || name.starts_with("openresty"))
        };
        pid.filter(is_nginx).ok_or_else(|| Error::NoNginx { path: path.clone() })
    }

    fn delete(&self, rotated: &[Rotated], unix_ms: u64) -> Result<(), Error> {
        for path in surplus(&self.log, rotated, self.options.keep, unix_ms) {
            match fs::remove_file(path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::File { path: path.clone(), source });
                }
                _ => tracing::info!(path = %path.display(), "counted log file deleted"),
            }
        }
        Ok(())
    }
}

/// Returns an unused name. rename(2) would silently replace a file that was rotated in the same millisecond.
fn target(log: &Path, unix_ms: u64) -> PathBuf {
    let name = |number: u64| {
        let mut name = log.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    (unix_ms..).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(unix_ms))
}

/// The files that can be deleted: named by this module, older than the newest `keep`, counted, and old enough.
fn surplus<'a>(log: &Path, rotated: &'a [Rotated], keep: usize, unix_ms: u64) -> Vec<&'a PathBuf> {
    let mut ours: Vec<_> = rotated.iter().filter_map(|file| Some((number(log, &file.path)?, file))).collect();
    ours.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    ours.iter()
        .skip(keep)
        .filter(|(_, file)| file.counted && unix_ms.saturating_sub(file.modified_ms) >= KEPT_AT_LEAST_MS)
        .map(|(_, file)| &file.path)
        .collect()
}

/// The milliseconds in a name from [`target`].
fn number(log: &Path, path: &Path) -> Option<u64> {
    let name = path.as_os_str().as_encoded_bytes();
    let digits = name.strip_prefix(log.as_os_str().as_encoded_bytes())?.strip_prefix(b".")?;
    std::str::from_utf8(digits).ok().filter(|digits| digits.len() >= 13)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotated(number: u64, counted: bool) -> Rotated {
        Rotated { path: format!("/log/access.log.{number}").into(), modified_ms: number, counted }
    }

    #[test]
    fn only_counted_files_beyond_the_kept_ones_are_deleted() {
        let first = 1_700_000_000_000;
        let mut files: Vec<_> = (0..5).map(|n| rotated(first + n, n != 1)).collect();
        files.push(Rotated { path: "/log/access.log.1".into(), modified_ms: 0, counted: true });
        files.push(Rotated { path: "/log/access.log-20231114".into(), modified_ms: 0, counted: true });
        let later = first + KEPT_AT_LEAST_MS + 10;
        let gone = surplus(Path::new("/log/access.log"), &files, 2, later);
        assert_eq!(gone, [&files[2].path, &files[0].path], "the uncounted file 1 stays");
        assert!(surplus(Path::new("/log/access.log"), &files, 2, first + 10).is_empty(), "too recent");
    }

    #[test]
    fn a_rotated_log_never_replaces_another() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("access.log");
        fs::write(folder.path().join("access.log.1700000000000"), "x").unwrap();
        assert_eq!(target(&log, 1_700_000_000_000), folder.path().join("access.log.1700000000001"));
    }

    #[test]
    fn a_stale_process_id_is_not_signaled() {
        let folder = tempfile::tempdir().unwrap();
        let (log, pid_file) = (folder.path().join("access.log"), folder.path().join("nginx.pid"));
        fs::write(&log, "x").unwrap();
        // The process of this test is alive and is not nginx. USR1 would end it.
        fs::write(&pid_file, std::process::id().to_string()).unwrap();
        let options = Options { bytes: 1, keep: 1, pid_file };
        let mut rotator = Rotator::new(log.clone(), options);
        let error = rotator.tend(Some(1), &[], Duration::ZERO, 1_700_000_000_000).unwrap_err();
        assert!(matches!(error, Error::NoNginx { .. }), "{error}");
        assert!(log.exists(), "the log stays where it is");
    }
}
