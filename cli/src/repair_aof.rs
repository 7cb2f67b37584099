//! `signalbox repair-aof`: the repair that `up` performs before it starts a Redis server, for servers that other programs start.

use std::path::PathBuf;

use crate::{exit::Failure, terminal};

/// Flags of `signalbox repair-aof`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Data folder of the server, which contains `appendonlydir`
    folder: PathBuf,
}

/// Prints how much was removed. A server that never ran has nothing to repair.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let repair = signalbox_stack::repair_aof(&args.folder)
        .map_err(|error| Failure::unavailable(format!("{}: {error}", args.folder.display())))?;
    for (bytes, what) in [
        (repair.holes, "zero bytes between commands"),
        (repair.transaction, "bytes of an incomplete transaction"),
    ] {
        if bytes > 0 {
            terminal::line(&format!("{}: removed {bytes} {what}", args.folder.display()));
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
        run(&Args { folder: folder.path().to_owned() }).unwrap();
        let files = folder.path().join("appendonlydir");
        std::fs::create_dir(&files).unwrap();
        std::fs::write(files.join("appendonly.aof.manifest"), "file a.aof seq 1 type i\n").unwrap();
        let whole = "*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n";
        std::fs::write(files.join("a.aof"), format!("{whole}*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nDEL\r\n$1\r"))
            .unwrap();
        run(&Args { folder: folder.path().to_owned() }).unwrap();
        assert_eq!(std::fs::read_to_string(files.join("a.aof")).unwrap(), whole);
    }
}
