//! The guard: a small process that ends the parts when nobody else can.
//!
//! A stack's processes form one process group, which the guard leads. The guard's standard input is a pipe whose other
//! end only the starting process holds. When that process ends in whatever way, kill -9 included, the kernel closes
//! the pipe and the guard ends every other member of the group: politely first, for certain after [`PATIENCE`].
//! (`PR_SET_PDEATHSIG` would do without a process of its own, but it can only be set from unsafe code between fork and
//! exec, it knows no politeness, and nginx' workers would not inherit it.)
//!
//! A process group cannot be mistaken for another as long as one member lives, so nothing here depends on pids that
//! may have been given away again.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{getpgrp, getpid},
};

use crate::proc;

/// How long parts may take to end by themselves once the starting process is gone. Redis answers a slow disk, nginx a
/// running request.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(20);

/// The subcommand under which a program has to call [`guard_main`].
pub const GUARD_COMMAND: &str = "guard";

/// Runs the guard: waits until standard input ends, then ends the process group it is in, itself included.
///
/// Meant to be all that a process does, without an async runtime.
pub fn guard_main() {
    let mut sink = Vec::new();
    // An error means the same as the end of the pipe: there is nobody to listen to any more.
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
        // A stopped process takes the signal when it goes on.
        let _gone = kill(process.pid(), Signal::SIGCONT);
    }
    for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
        if self::others().is_empty() {
            return;
        }
        #[allow(clippy::disallowed_methods, reason = "the guard is a process of its own without a runtime")]
        std::thread::sleep(STEP);
    }
    let _gone = killpg(getpgrp(), Signal::SIGKILL);
}

fn others() -> Vec<proc::Process> {
    let me = getpid().as_raw();
    proc::group(getpgrp().as_raw()).into_iter().filter(|process| process.pid != me).collect()
}
