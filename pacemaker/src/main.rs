//! The entry point.

use std::process::ExitCode;

fn main() -> ExitCode {
    signalbox_pacemaker::main()
}
