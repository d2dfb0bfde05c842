//! `tpuscope sessions show`: reads the parts of a session and prints their analysis.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use jiff::Timestamp;
use xprof::{
    analysis::{Report, Rules},
    session::{ClockOffset, Manifest, SessionContext},
    wording::counted,
};

use super::{CommandResult, context, load, location::Location, show_text};
use crate::{client, exit::Exit, failure::Failure, lifecycle::terminal::may_be_styled, remedies};

/// The number of operations, and of annotations, of each host that are printed as text.
const SHOWN_ROWS: usize = 10;

/// Arguments of `sessions show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a session of the agent; or a gs:// URL; or a path, which contains `/`, is `.` or ends in .xplane.pb. URLs and
    /// paths name a session folder, a logdir (its newest session is shown), or a file
    #[arg(value_parser = Location::parser())]
    session: Location,
    /// Compute the figures as XProf does, including its faults, for comparison
    #[arg(long)]
    as_xprof: bool,
    /// Number of operations and of annotations that are shown of each host [default: 10; with --json all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The answer: the report, and what its session's manifest says.
#[derive(Debug, serde::Serialize)]
struct Shown {
    /// When the session was made.
    created: Option<Timestamp>,
    context: SessionContext,
    /// How the clocks of hosts stood to that of the coordinator, by host.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    clocks: BTreeMap<String, ClockOffset>,
    #[serde(flatten)]
    report: Report,
}

/// The clocks that a manifest knows.
struct Clocks {
    /// By host.
    hosts: BTreeMap<String, ClockOffset>,
    /// Of a part's host, by the part's file.
    files: BTreeMap<String, ClockOffset>,
}

impl Clocks {
    fn of(manifest: Option<&Manifest>) -> Self {
        let hosts = manifest.map(|manifest| &manifest.hosts[..]).unwrap_or_default();
        let measured = hosts.iter().filter_map(|host| Some((host, host.clock?)));
        let hosts = measured.clone().map(|(host, clock)| (host.host.clone(), clock)).collect();
        let files =
            measured.flat_map(|(host, clock)| host.parts.iter().map(move |part| (part.file.clone(), clock)));
        Self { hosts, files: files.collect() }
    }
}

pub(super) fn run(args: &Args) -> CommandResult {
    let rules = if args.as_xprof { Rules::Xprof } else { Rules::True };
    let loaded = load::parts(&args.session, &args.agent)?;
    let others = loaded.others;
    let top = args.top.or((!args.json).then_some(SHOWN_ROWS));
    let manifest = loaded.session.manifest.as_ref();
    let (created, context) =
        (manifest.and_then(Manifest::created_at), manifest.map(SessionContext::of).unwrap_or_default());
    let clocks = Clocks::of(manifest);
    let mut shown = Shown { created, context, clocks: clocks.hosts, report: loaded.analysed(rules, top)? };
    // A session without a manifest: what the traces themselves say.
    let said = shown.report.parts().flat_map(|part| &part.versions);
    for (library, version) in said {
        shown.context.versions.entry(library.clone()).or_default().insert(version.clone());
    }
    print(&mut shown, &clocks.files, args, others).or_else(closed_pipe)?;
    Ok(if shown.report.missing.is_empty() { Exit::Ok } else { Exit::Partial })
}

fn print(
    shown: &mut Shown,
    clocks: &BTreeMap<String, ClockOffset>,
    args: &Args,
    others: usize,
) -> io::Result<()> {
    let stdout = io::stdout();
    let mut out = io::BufWriter::new(stdout.lock());
    if args.json {
        let rows = args.top.unwrap_or(usize::MAX);
        shown
            .report
            .parts_mut()
            .filter_map(|part| part.annotations.as_mut())
            .for_each(|annotations| annotations.cut(rows));
        serde_json::to_writer(&mut out, shown)?;
        writeln!(out)?;
    } else {
        let bold = may_be_styled(&io::stdout());
        show_text::title(&mut out, &shown.report, bold)?;
        context::print(&mut out, shown.created, &shown.context, bold)?;
        let shown_rows = args.top.unwrap_or(SHOWN_ROWS);
        show_text::print(&mut out, &shown.report, args.as_xprof, shown_rows, clocks, bold)?;
        if others > 0 {
            writeln!(
                out,
                "\n{} in the same logdir: name a session folder to show one of them",
                counted(others, "older session")
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
