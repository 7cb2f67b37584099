//! Writes the last-known-good route table from nginx's memory to disk, where nginx reads it at its next start.
//!
//! nginx defines the format (see `lua/signalbox/snapshot.lua`): a versioned first line, records, and a last line
//! `end TAB <records> TAB <CRC-32 of all before>`. The sidecar writes the file because a worker that wrote it would delay
//! its requests. Only a text with a correct checksum replaces the file, by rename, so nginx never reads a partial table.

use std::{
    fs::Permissions,
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tokio::{fs, io::AsyncWriteExt};

/// The first line begins with this.
const MAGIC: &[u8] = b"signalbox-routes 1 ";
/// The last line is shorter than this.
const MAX_END_BYTES: usize = 64;
/// The lines about the table as a whole come first and fit into this size.
const HEAD_BYTES: usize = 4096;

/// The mode of the file: nginx, which may be another user of the same group, reads it.
const MODE: u32 = 0o640;

/// A snapshot was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot fetch the snapshot")]
    Fetch(#[source] reqwest::Error),
    #[error("the snapshot is damaged: {0}")]
    Damaged(&'static str),
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Checks a snapshot while it is received.
#[derive(Debug, Default)]
struct Check {
    sum: crc32fast::Hasher,
    head: Vec<u8>,
    /// Bytes that may belong to the last line, which the checksum does not cover.
    held: Vec<u8>,
}

impl Check {
    fn take(&mut self, bytes: &[u8]) {
        let wanted = HEAD_BYTES.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..wanted]);
        self.held.extend_from_slice(bytes);
        let surplus = self.held.len().saturating_sub(MAX_END_BYTES);
        self.sum.update(&self.held[..surplus]);
        self.held.drain(..surplus);
    }

    /// Checks the end, and returns whether the snapshot is worth keeping. The empty table of an nginx that never received one
    /// must not replace a real table.
    fn finish(mut self) -> Result<bool, Error> {
        if !self.head.starts_with(MAGIC) {
            return Err(Error::Damaged("unknown version"));
        }
        let body = self.held.strip_suffix(b"\n").ok_or(Error::Damaged("no end"))?;
        let start = memchr::memrchr(b'\n', body).map_or(0, |newline| newline + 1);
        self.sum.update(&self.held[..start]);
        let last = std::str::from_utf8(&body[start..]).map_err(|_| Error::Damaged("no end"))?;
        let mut fields = last.split('\t');
        let (Some("end"), Some(records), Some(sum)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(Error::Damaged("no end"));
        };
        if sum != format!("{:08x}", self.sum.finalize()) {
            return Err(Error::Damaged("wrong checksum"));
        }
        let seen = self.head.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"serial\t"));
        Ok(seen || records != "0")
    }
}

/// Streams `response` into `path`. Returns whether the file was replaced.
pub(super) async fn write(mut response: reqwest::Response, path: &Path) -> Result<bool, Error> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let failed = |source| Error::Write { path: unfinished.clone(), source };
    // Policies may contain secrets in headers, whatever the umask is.
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(MODE).open(&unfinished).await;
    let mut file = opened.map_err(failed)?;
    // An older version may have left an unfinished file with another mode.
    file.set_permissions(Permissions::from_mode(MODE)).await.map_err(failed)?;
    let mut check = Check::default();
    while let Some(chunk) = response.chunk().await.map_err(Error::Fetch)? {
        check.take(&chunk);
        file.write_all(&chunk).await.map_err(failed)?;
    }
    let keep = check.finish()?;
    if keep {
        file.sync_all().await.map_err(failed)?;
        fs::rename(&unfinished, path).await.map_err(failed)?;
        // The rename is durable only after the folder is synced.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = fs::File::open(folder).await.map_err(failed)?;
        folder.sync_all().await.map_err(failed)?;
    }
    Ok(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(body: &str, records: u32) -> Vec<u8> {
        let body = format!("signalbox-routes 1 7\n{body}");
        format!("{body}end\t{records}\t{:08x}\n", crc32fast::hash(body.as_bytes())).into_bytes()
    }

    fn check(text: &[u8], piece: usize) -> Result<bool, Error> {
        let mut check = Check::default();
        text.chunks(piece).for_each(|chunk| check.take(chunk));
        check.finish()
    }

    #[test]
    fn a_whole_snapshot_is_kept_however_it_arrives() {
        let long = "route\tshop.example\t17\t\t127.0.0.1:9001\n".repeat(500);
        for body in ["serial\t5\n", &long] {
            let text = snapshot(body, 500);
            for piece in [1, 7, 64, 65, 100_000] {
                assert!(check(&text, piece).unwrap(), "in pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_damaged_snapshot_is_rejected() {
        let text = snapshot(&"route\ta\t1\t\t127.0.0.1:1\n".repeat(9), 9);
        for cut in 0..text.len() {
            assert!(check(&text[..cut], 50).is_err(), "cut at {cut}");
        }
        for at in 0..text.len() {
            let mut flipped = text.clone();
            flipped[at] ^= 1;
            // The checksum does not cover the number of records, which only distinguishes empty from not empty.
            let in_count = text[..at].ends_with(b"end\t");
            assert!(in_count || check(&flipped, 50).is_err(), "flipped at {at}");
        }
        for version in ["2", "hidden"] {
            let text = format!("signalbox-routes {version} 7\nend\t0\t00000000\n");
            assert!(check(text.as_bytes(), 50).is_err(), "{version}");
        }
    }

    #[test]
    fn a_table_that_was_never_received_does_not_replace_a_real_one() {
        assert!(!check(&snapshot("", 0), 50).unwrap());
        assert!(check(&snapshot("serial\t9\n", 0), 50).unwrap(), "received, and empty");
    }
}
