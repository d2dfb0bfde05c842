//! The hidden command that writes a trace as the user of a client of XProf. The agent starts it.

use std::path::PathBuf;

use server::xprof::written;

use super::{CommandResult, exit::Exit, failure::Failure};

/// Arguments of the hidden command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder of the settings
    root: PathBuf,
    /// The folder of the session below it
    below: PathBuf,
    /// The name of the file
    name: String,
    /// The number of its bytes, which come on standard input
    bytes: u64,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let written = written::run(&args.root, &args.below, &args.name, args.bytes);
    written.map(|()| Exit::Ok).map_err(|fault| Failure::new(Exit::Internal, fault.to_string()))
}
