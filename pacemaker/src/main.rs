//! The entry point.

use std::process::ExitCode;

/// A quarter of a pacemaker's time went into glibc's allocator: events are many small pieces that one thread makes and
/// another drops, between the large ones of calls and deliveries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    signalbox_pacemaker::main()
}
