//! `tpuscope sessions show`.

use std::{fs::File, path::PathBuf};

use xprof::reader::Reader;

use super::{super::exit::one_line, Outcome, unopened, unreadable};
use crate::cli::exit::Exit;

/// Arguments of `sessions show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A trace file
    path: PathBuf,
}

pub(super) fn run(args: &Args) -> Outcome {
    let file = File::open(&args.path).map_err(|error| unopened(&args.path, &error))?;
    let mut reader = Reader::open(file).map_err(|error| unreadable(&args.path, &error))?;
    let index = reader.take_index();
    for plane in &index.planes {
        let events: u64 = plane.lines.iter().map(|line| line.events).sum();
        println!("{}: {} lines, {events} events", one_line(&plane.name), plane.lines.len());
    }
    Ok(Exit::Ok)
}
