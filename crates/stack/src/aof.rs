//! Two kinds of damage in append-only files that Redis causes itself, and that its next start does not survive.
//!
//! **Holes.** If the disk is full, Redis 7.0 writes a part of its buffer, cuts that part off again, and repeats the whole
//! buffer later. But after a rewrite (and so on every replica) the file is not opened for appending, and its position
//! stays behind the cut. So as many zero bytes as were cut off remain before the repeated buffer, and the next start rejects the
//! file. The hole is between two commands, because Redis cuts where its last complete buffer ended. Removing it
//! restores the file that Redis meant.
//!
//! **An incomplete transaction at the end.** Redis writes the effects of a script between MULTI and EXEC, so that all of them apply or none. A server that is
//! killed while it writes leaves an incomplete transaction. On the next start Redis 7.0 ignores it, but if the file ends
//! in the middle of a command, Redis truncates the file after the last complete command and not before MULTI. Later
//! writes are then part of that transaction, and the start after that applies the incomplete one: events in batches that
//! are never delivered, objects whose last event does not exist. So this module removes it before Redis reads the file.
//! `redis-check-aof --fix` does the same (valkey issue 4342 describes the fault), but it truncates at any damage and is
//! interactive. This module leaves damage of any other kind to Redis.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    ops::Range,
    os::unix::fs::{MetadataExt as _, fchown},
    path::{Path, PathBuf},
};

/// MULTI and EXEC are shorter.
const MAX_NAME_BYTES: u64 = 16;

/// Bytes that were removed from append-only files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AofRepair {
    /// Zero bytes between commands.
    pub holes: u64,
    /// A transaction without EXEC at the end.
    pub transaction: u64,
}

impl AofRepair {
    /// Whether the files were as Redis meant them.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Repairs the append-only files of a stopped server, whose data folder is `redis`.
///
/// # Errors
/// When a file exists and cannot be read or written.
pub fn repair_aof(redis: &Path) -> io::Result<AofRepair> {
    let parts = incremental_parts(&redis.join("appendonlydir"))?;
    let mut repair = AofRepair::default();
    for path in &parts {
        repair.holes += remove_holes(path)?;
    }
    if let Some(last) = parts.last() {
        repair.transaction = cut_incomplete_transaction(last)?;
    }
    Ok(repair)
}

/// Removes zero bytes between commands. Returns how many.
fn remove_holes(path: &Path) -> io::Result<u64> {
    let length = fs::metadata(path)?.len();
    let holes = Reader::open(path, length)?.holes()?;
    if holes.is_empty() {
        return Ok(0);
    }
    // A kill in between leaves the damaged file, which the next start repairs.
    let fresh = path.with_extension("repair");
    let mut source = File::open(path)?;
    let mut target = File::create(&fresh)?;
    let mut at = 0;
    for hole in holes.iter().cloned().chain(std::iter::once(length..length)) {
        source.seek(SeekFrom::Start(at))?;
        io::copy(&mut (&mut source).take(hole.start - at), &mut target)?;
        at = hole.end;
    }
    target.flush()?;
    target.set_permissions(fs::metadata(path)?.permissions())?;
    let owner = fs::metadata(path)?;
    fchown(&target, Some(owner.uid()), Some(owner.gid()))?;
    target.sync_all()?;
    fs::rename(&fresh, path)?;
    Ok(holes.iter().map(|hole| hole.end - hole.start).sum())
}

/// Cuts off a transaction without EXEC at the end. Returns how many bytes were cut off.
fn cut_incomplete_transaction(path: &Path) -> io::Result<u64> {
    let length = fs::metadata(path)?.len();
    let Some(start) = incomplete_transaction(Reader::open(path, length)?)? else { return Ok(0) };
    let file = File::options().write(true).open(path)?;
    file.set_len(start)?;
    file.sync_all()?;
    Ok(length - start)
}

/// The incremental files of the manifest. The last one is appended to.
fn incremental_parts(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let manifest = match fs::read_to_string(folder.join("appendonly.aof.manifest")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        manifest => manifest?,
    };
    let names = manifest.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let name = (words.next() == Some("file")).then(|| words.next()).flatten()?;
        line.ends_with("type i").then_some(name)
    });
    Ok(names.map(|name| folder.join(name)).filter(|path| path.is_file()).collect())
}

/// The start of a transaction without an end.
fn incomplete_transaction(mut reader: Reader) -> io::Result<Option<u64>> {
    let mut open = None;
    loop {
        let start = reader.at;
        match reader.command()? {
            Command::Whole(name) if name.eq_ignore_ascii_case(b"multi") => {
                if open.replace(start).is_some() {
                    // Redis has already appended after an incomplete one. Which commands belong to which is unknown.
                    return Ok(None);
                }
            }
            Command::Whole(name) if name.eq_ignore_ascii_case(b"exec") => open = None,
            Command::Whole(_) => {}
            Command::Cut => return Ok(open),
            Command::Strange => return Ok(None),
        }
    }
}

enum Command {
    /// Its name; empty for an annotation.
    Whole(Vec<u8>),
    /// The file ends before it does.
    Cut,
    /// Not a command.
    Strange,
}

struct Reader {
    file: BufReader<File>,
    at: u64,
    length: u64,
}

impl Reader {
    fn open(path: &Path, length: u64) -> io::Result<Self> {
        Ok(Self { file: BufReader::with_capacity(1 << 18, File::open(path)?), at: 0, length })
    }

    /// The zero bytes between two commands. Zeros in any other place are not what Redis leaves.
    fn holes(mut self) -> io::Result<Vec<Range<u64>>> {
        let mut holes = Vec::new();
        loop {
            let hole = self.at..self.skip_zeros()?;
            if !hole.is_empty() && self.file.fill_buf()?.first() == Some(&b'*') {
                holes.push(hole);
            }
            match self.command()? {
                Command::Whole(_) => {}
                Command::Cut | Command::Strange => return Ok(holes),
            }
        }
    }

    /// The position of the next byte that is not zero.
    fn skip_zeros(&mut self) -> io::Result<u64> {
        loop {
            let zeros = self.file.fill_buf()?.iter().take_while(|byte| **byte == 0).count();
            if zeros == 0 {
                return Ok(self.at);
            }
            self.file.consume(zeros);
            self.at += zeros as u64;
        }
    }

    fn command(&mut self) -> io::Result<Command> {
        let Some(head) = self.line()? else { return Ok(Command::Cut) };
        if head.starts_with(b"#") {
            return Ok(Command::Whole(Vec::new()));
        }
        let Some(words) = number(&head, b'*') else { return Ok(Command::Strange) };
        let mut name = Vec::new();
        for word in 0..words {
            let Some(head) = self.line()? else { return Ok(Command::Cut) };
            let Some(size) = number(&head, b'$') else { return Ok(Command::Strange) };
            let Some(next) = self.at.checked_add(size).and_then(|end| end.checked_add(2)) else {
                return Ok(Command::Strange);
            };
            if next > self.length {
                return Ok(Command::Cut);
            }
            if word == 0 && size <= MAX_NAME_BYTES {
                (&mut self.file).take(size).read_to_end(&mut name)?;
                self.file.seek_relative(2)?;
            } else {
                self.file.seek_relative(i64::try_from(size + 2).map_err(io::Error::other)?)?;
            }
            self.at = next;
        }
        Ok(Command::Whole(name))
    }

    /// A line with its end, or nothing if the file ends first.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        self.file.read_until(b'\n', &mut line)?;
        self.at += line.len() as u64;
        Ok(line.ends_with(b"\n").then_some(line))
    }
}

/// The number of a line such as `*3` or `$5`.
fn number(line: &[u8], kind: u8) -> Option<u64> {
    let text = line.strip_prefix(&[kind])?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";
    const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
    const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

    /// Writes a file as Redis keeps it, cuts it, and returns what is left.
    fn cut(content: &[u8]) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path().join("appendonlydir");
        fs::create_dir(&files).unwrap();
        let manifest = "file a.1.base.rdb seq 1 type b\nfile a.1.incr.aof seq 1 type i\nfile a.2.incr.aof seq 2 type i\n";
        fs::write(files.join("appendonly.aof.manifest"), manifest).unwrap();
        fs::write(files.join("a.1.incr.aof"), MULTI).unwrap();
        fs::write(files.join("a.2.incr.aof"), content).unwrap();
        let gone = repair_aof(folder.path()).unwrap();
        let left = fs::read(files.join("a.2.incr.aof")).unwrap();
        assert_eq!(left.len() as u64 + gone.transaction + gone.holes, content.len() as u64);
        assert_eq!(fs::read(files.join("a.1.incr.aof")).unwrap(), MULTI, "only the last is written to");
        left
    }

    #[test]
    fn an_incomplete_transaction_is_removed_wherever_it_ends() {
        let before = [SET, b"#TS:1\r\n", MULTI, SET, EXEC].concat();
        let half = [MULTI, SET, SET].concat();
        // A file that ends within MULTI has no transaction yet. Redis truncates it.
        for length in MULTI.len()..=half.len() {
            let content = [&before[..], &half[..length]].concat();
            assert_eq!(cut(&content), before, "{length} bytes of the half");
        }
    }

    #[test]
    fn holes_between_commands_are_removed() {
        let hole = [0; 149];
        let damaged = [SET, &hole, MULTI, SET, EXEC, &hole[..1], SET, &hole, MULTI, SET].concat();
        assert_eq!(cut(&damaged), [SET, MULTI, SET, EXEC, SET].concat());
        // Zeros inside a value are data, and zeros before anything else are not understood.
        let data = [SET, b"*2\r\n$3\r\nGET\r\n$4\r\n\0\0\0\0\r\n", SET].concat();
        let tail = [SET, &hole].concat();
        for content in [data, tail, [SET, &hole, b"x"].concat()] {
            assert_eq!(cut(&content), content);
        }
    }

    #[test]
    fn complete_files_are_unchanged() {
        let whole = [SET, MULTI, SET, EXEC, SET].concat();
        let appended = [MULTI, SET, MULTI, SET, EXEC].concat();
        let strange = [MULTI, SET, b"\0\0\0\0\n"].concat();
        let long = [MULTI, b"*1\r\n$18446744073709551615\r\n"].concat();
        for content in [&whole[..], &whole[..whole.len() - 3], b"", &appended, &strange, &long] {
            assert_eq!(cut(content), content);
        }
    }

    #[test]
    fn a_server_that_never_ran_needs_no_repair() {
        let folder = tempfile::tempdir().unwrap();
        assert!(repair_aof(folder.path()).unwrap().is_empty());
    }
}
