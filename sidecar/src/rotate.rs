//! Rotates the access log: rename, then ask nginx to open it anew (`USR1`).
//!
//! The follower needs no help to survive rotation; this only keeps the disk from filling. Rotated files are named
//! `<log>.<unix milliseconds>` and kept until there are more than `keep` of them. A file is deleted only when it is
//! counted to its end, and not within [`KEPT_AT_LEAST_MS`] of its last line: a statistics Redis that lost its last
//! second wants lines again that were counted already. So while Redis is away files pile up instead of being lost, and
//! the lag alarm says so.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Redis loses at most two seconds of its append-only file; a minute leaves room for its restart.
pub const KEPT_AT_LEAST_MS: u64 = 60_000;

/// How often nginx is asked again while it has not opened the log.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// When to rotate, and what to keep.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rotate when the log has reached this size.
    pub bytes: u64,
    /// How many rotated files to keep.
    pub keep: usize,
    /// Where nginx' master process wrote its id.
    pub pid_file: PathBuf,
}

/// Why the log could not be rotated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log could not be renamed, or an old one not deleted.
    #[error("renaming or deleting {path} failed")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process id in the file is not that of an nginx. A signal sent there might end a stranger.
    #[error("{path} does not name a running nginx")]
    NoNginx {
        /// The file with the process id.
        path: PathBuf,
    },
    /// nginx could not be signalled.
    #[error("asking nginx (process {pid}) to reopen its log failed")]
    Signal {
        /// The process.
        pid: i32,
        /// Why.
        #[source]
        source: nix::Error,
    },
}

/// A rotated log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotated {
    /// Where it is.
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
    asked: Option<Duration>,
}

impl Rotator {
    /// A rotator for the log that nginx writes at `log`.
    pub fn new(log: PathBuf, options: Options) -> Self {
        Self { log, options, asked: None }
    }

    /// Does what is due: rotates a log that is full, asks for one that is missing, deletes what is beyond keeping.
    /// `active_bytes` is the size of the log, if there is one. Returns whether it rotated.
    ///
    /// # Errors
    /// See [`Error`]. Nothing is half done: a log that was renamed but not reopened is asked for again.
    pub fn tend(
        &mut self,
        active_bytes: Option<u64>,
        rotated: &[Rotated],
        now: Duration,
        unix_ms: u64,
    ) -> Result<bool, Error> {
        match active_bytes {
            Some(bytes) if bytes >= self.options.bytes => {
                // Without an nginx to reopen it, renaming would only hide the log from whoever looks for it.
                let pid = self.nginx()?;
                let to = target(&self.log, unix_ms);
                fs::rename(&self.log, &to).map_err(|source| Error::File { path: to, source })?;
                self.ask(pid, now)?;
                Ok(true)
            }
            // A running nginx always has a log, unless somebody (we, before we died) renamed it and said nothing.
            None if self.asked.is_none_or(|asked| now.saturating_sub(asked) >= ASK_EVERY) => {
                if let Ok(pid) = self.nginx() {
                    self.ask(pid, now)?;
                }
                Ok(false)
            }
            _ => {
                self.delete(rotated, unix_ms)?;
                Ok(false)
            }
        }
    }

    fn ask(&mut self, pid: i32, now: Duration) -> Result<(), Error> {
        self.asked = Some(now);
        kill(Pid::from_raw(pid), Signal::SIGUSR1).map_err(|source| Error::Signal { pid, source })
    }

    /// The process in the pid file, if it is an nginx: the file may be stale and its number long be somebody else's.
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
                _ => tracing::info!(path = %path.display(), "deleted a counted log file"),
            }
        }
        Ok(())
    }
}

/// A free name: rename(2) would silently replace a file that was rotated in the same millisecond.
fn target(log: &Path, unix_ms: u64) -> PathBuf {
    let name = |number: u64| {
        let mut name = log.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    (unix_ms..).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(unix_ms))
}

/// What may be deleted: of the files that we named, those beyond the newest `keep`, counted, and old enough.
fn surplus<'a>(log: &Path, rotated: &'a [Rotated], keep: usize, unix_ms: u64) -> Vec<&'a PathBuf> {
    let mut ours: Vec<_> = rotated.iter().filter_map(|file| Some((number(log, &file.path)?, file))).collect();
    ours.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    ours.iter()
        .skip(keep)
        .filter(|(_, file)| file.counted && unix_ms.saturating_sub(file.modified_ms) >= KEPT_AT_LEAST_MS)
        .map(|(_, file)| &file.path)
        .collect()
}

/// The milliseconds in a name that [`target`] made.
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
    fn only_counted_files_of_ours_beyond_the_kept_ones_go() {
        let first = 1_700_000_000_000;
        let mut files: Vec<_> = (0..5).map(|n| rotated(first + n, n != 1)).collect();
        files.push(Rotated { path: "/log/access.log.1".into(), modified_ms: 0, counted: true });
        files.push(Rotated { path: "/log/access.log-20231114".into(), modified_ms: 0, counted: true });
        let later = first + KEPT_AT_LEAST_MS + 10;
        let gone = surplus(Path::new("/log/access.log"), &files, 2, later);
        assert_eq!(gone, [&files[2].path, &files[0].path], "the uncounted file 1 stays");
        assert!(surplus(Path::new("/log/access.log"), &files, 2, first + 10).is_empty(), "too fresh");
    }

    #[test]
    fn a_log_is_never_renamed_over_another() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("access.log");
        fs::write(folder.path().join("access.log.1700000000000"), "x").unwrap();
        assert_eq!(target(&log, 1_700_000_000_000), folder.path().join("access.log.1700000000001"));
    }

    #[test]
    fn a_stale_process_id_is_not_signalled() {
        let folder = tempfile::tempdir().unwrap();
        let (log, pid_file) = (folder.path().join("access.log"), folder.path().join("nginx.pid"));
        fs::write(&log, "x").unwrap();
        // This test's own process: alive, and no nginx. USR1 would end it.
        fs::write(&pid_file, std::process::id().to_string()).unwrap();
        let options = Options { bytes: 1, keep: 1, pid_file };
        let mut rotator = Rotator::new(log.clone(), options);
        let error = rotator.tend(Some(1), &[], Duration::ZERO, 1_700_000_000_000).unwrap_err();
        assert!(matches!(error, Error::NoNginx { .. }), "{error}");
        assert!(log.exists(), "the log stays where it is");
    }
}
