//! A limit on how many systems run at the same time.
//!
//! Each system is nine processes, and a build machine has few cores: with too many at a time, all are slow. The slots are
//! locked files, so that they limit several test processes as well as the threads of one.

use std::{fs::File, time::Duration};

use nix::fcntl::{Flock, FlockArg};
use tokio::time;

/// The right to run a system, given back by dropping it.
#[derive(Debug)]
pub struct Slot {
    _file: Flock<File>,
}

/// Waits for a slot. There are three for each core, as `.ci/test` runs tests: they mostly wait, for processes to start
/// and to end.
///
/// # Panics
/// When the temporary folder cannot be written.
pub async fn take() -> Slot {
    let count = std::thread::available_parallelism().map_or(3, |cores| 3 * cores.get());
    let folder = std::env::temp_dir().join("signalbox-tests-slots");
    std::fs::create_dir_all(&folder).expect("a temporary folder that can be written");
    // No patience here: the queue is as long as the suite.
    loop {
        for number in 0..count {
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(folder.join(number.to_string()))
                .expect("a lock file");
            if let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                return Slot { _file: file };
            }
        }
        time::sleep(Duration::from_millis(20)).await;
    }
}
