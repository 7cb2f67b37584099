//! An incomplete transaction at the end of an append-only file.
//!
//! Redis writes the effects of a script between MULTI and EXEC, so that all of them apply or none. A server that is
//! killed while it writes leaves an incomplete transaction. On the next start Redis 7.0 ignores it, but if the file ends
//! in the middle of a command, Redis truncates the file after the last complete command and not before MULTI. Later
//! writes are then part of that transaction, and the start after that applies the incomplete one: events in batches that
//! are never delivered, objects whose last event does not exist. So this module removes it before Redis reads the file.
//! `redis-check-aof --fix` does the same (valkey issue 4342 describes the fault), but it truncates at any damage and is
//! interactive; this module leaves damage of any other kind to Redis.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
};

/// MULTI and EXEC are shorter.
const MAX_NAME_BYTES: u64 = 16;

/// Cuts off a transaction without EXEC at the end of the append-only file of a stopped server, whose data folder is
/// `redis`. Returns how many bytes were cut off.
///
/// # Errors
/// When the file exists and cannot be read or cut.
pub fn cut_incomplete_transaction(redis: &Path) -> io::Result<u64> {
    let Some(path) = last_part(&redis.join("appendonlydir"))? else { return Ok(0) };
    let length = fs::metadata(&path)?.len();
    let Some(start) = incomplete_transaction(File::open(&path)?, length)? else { return Ok(0) };
    let file = File::options().write(true).open(&path)?;
    file.set_len(start)?;
    file.sync_all()?;
    Ok(length - start)
}

/// The file that is appended to: the last incremental one of the manifest.
fn last_part(folder: &Path) -> io::Result<Option<PathBuf>> {
    let manifest = match fs::read_to_string(folder.join("appendonly.aof.manifest")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        manifest => manifest?,
    };
    let name = manifest.lines().rev().find_map(|line| {
        let mut words = line.split(' ');
        let name = (words.next() == Some("file")).then(|| words.next()).flatten()?;
        line.ends_with("type i").then_some(name)
    });
    Ok(name.map(|name| folder.join(name)).filter(|path| path.is_file()))
}

/// The start of a transaction without an end.
fn incomplete_transaction(file: File, length: u64) -> io::Result<Option<u64>> {
    let mut reader = Reader { file: BufReader::with_capacity(1 << 18, file), at: 0, length };
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
        let gone = cut_incomplete_transaction(folder.path()).unwrap();
        let left = fs::read(files.join("a.2.incr.aof")).unwrap();
        assert_eq!(left.len() as u64 + gone, content.len() as u64);
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
        assert_eq!(cut_incomplete_transaction(folder.path()).unwrap(), 0);
    }
}
