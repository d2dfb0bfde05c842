//! The `tpuscope` binary: parses the command line and leaves with its exit code.

#![forbid(unsafe_code)]
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
