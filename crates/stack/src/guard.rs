//! The guard: a small process that ends the parts if the starting process cannot.
//!
//! A stack's processes form one process group, which the guard leads. The guard's standard input is a pipe whose other
//! end only the starting process holds. When that process ends in whatever way, kill -9 included, the kernel closes
//! the pipe and the guard ends every other member of the group: first with SIGTERM, after [`PATIENCE`] with SIGKILL.
//! (`PR_SET_PDEATHSIG` was rejected. It needs no process, but it can only be set from unsafe code between fork and exec, it
//! has no grace period, and nginx's workers would not inherit it.)
//!
//! The ID of a process group is not reused while a member lives, so nothing here depends on PIDs that may have been reused.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{getpgrp, getpid},
};

use crate::proc;

/// The time that parts have to end after the starting process is gone: Redis may wait for a slow disk, nginx for a running
/// request.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(20);

/// The subcommand that must call [`guard_main`].
pub const GUARD_COMMAND: &str = "guard";

/// Runs the guard: waits until standard input ends, then ends its own process group, including itself.
///
/// The process must do nothing else and have no async runtime.
pub fn guard_main() {
    let mut sink = Vec::new();
    // An error means the same as the end of the pipe: the starting process is gone.
    let _ended = io::stdin().read_to_end(&mut sink);
    let others = others();
    if others.is_empty() {
        return;
    }
    let names: Vec<String> =
        others.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect();
    let _unwritten = writeln!(io::stderr(), "the starting process is gone; ending {}", names.join(", "));
    for process in &others {
        let _gone = kill(process.pid(), Signal::SIGTERM);
        // A stopped process receives the signal when it continues.
        let _gone = kill(process.pid(), Signal::SIGCONT);
    }
    for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
        if self::others().is_empty() {
            return;
        }
        #[allow(clippy::disallowed_methods, reason = "the guard is a separate process without a runtime")]
        std::thread::sleep(STEP);
    }
    let _gone = killpg(getpgrp(), Signal::SIGKILL);
}

fn others() -> Vec<proc::Process> {
    let me = getpid().as_raw();
    proc::group(getpgrp().as_raw()).into_iter().filter(|process| process.pid != me).collect()
}
