//! The `tpuscope` binary: runs the command line and returns its exit code.

#![forbid(unsafe_code)]
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
