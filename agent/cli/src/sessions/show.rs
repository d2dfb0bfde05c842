//! `tpuscope sessions show`: reads the parts of a session and prints their analysis.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use xprof::analysis::{Report, Rules};

use super::{CommandResult, load, show_text};
use crate::{exit::Exit, failure::Failure, lifecycle::terminal::may_be_styled, remedies};

/// The number of operations that are printed as text.
const SHOWN_OPS: usize = 10;

/// Arguments of `sessions show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Session folder, logdir (its newest session is shown), or .xplane.pb file
    path: PathBuf,
    /// Compute the figures as XProf does, including its faults, for comparison
    #[arg(long)]
    as_xprof: bool,
    /// Number of operations per host [default: 10; with --json all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let rules = if args.as_xprof { Rules::Xprof } else { Rules::True };
    let loaded = load::parts(&args.path)?;
    let others = loaded.others;
    let top = args.top.or((!args.json).then_some(SHOWN_OPS));
    let report = loaded.analysed_by_job(&args.path, rules, top)?;
    print(&report, args, others).or_else(closed_pipe)?;
    Ok(if report.missing.is_empty() { Exit::Ok } else { Exit::Partial })
}

fn print(report: &Report, args: &Args, others: usize) -> io::Result<()> {
    let stdout = io::stdout();
    let mut out = io::BufWriter::new(stdout.lock());
    if args.json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        show_text::print(&mut out, report, args.as_xprof, may_be_styled(&io::stdout()))?;
        if others > 0 {
            writeln!(
                out,
                "\n{others} older sessions are in the same logdir: name a session folder to show one of them"
            )?;
        }
    }
    out.flush()
}

/// A closed pipe (`| head`) is not a failure.
fn closed_pipe(error: io::Error) -> Result<(), Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(remedies::unprinted(&error)),
    }
}
