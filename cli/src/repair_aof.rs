//! `signalbox repair-aof`: the repair that `up` performs before it starts a Redis server, for servers that other programs start.

use std::path::Path;

use crate::{exit::Failure, terminal::out};

/// Prints how much was removed. A server that never ran has nothing to repair.
pub(crate) fn run(folder: &Path) -> Result<(), Failure> {
    let repair = signalbox_stack::repair_aof(folder)
        .map_err(|error| Failure::unavailable(format!("{}: {error}", folder.display())))?;
    for (bytes, what) in [
        (repair.holes, "zero bytes between commands"),
        (repair.transaction, "bytes of an incomplete transaction"),
    ] {
        if bytes > 0 {
            out!("{}: removed {bytes} {what}", folder.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_transaction_is_cut_off_and_a_complete_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path()).unwrap();
        let files = folder.path().join("appendonlydir");
        std::fs::create_dir(&files).unwrap();
        std::fs::write(files.join("appendonly.aof.manifest"), "file a.aof seq 1 type i\n").unwrap();
        let whole = "*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n";
        std::fs::write(files.join("a.aof"), format!("{whole}*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nDEL\r\n$1\r"))
            .unwrap();
        run(folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(files.join("a.aof")).unwrap(), whole);
    }
}
