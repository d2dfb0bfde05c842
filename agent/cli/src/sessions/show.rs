//! `tpuscope sessions show`: reads the parts of a session, or of several that are one, and prints their analysis.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use jiff::Timestamp;
use xprof::{
    analysis::{Report, Rules},
    session::{ClockOffset, SessionContext},
    wording::counted,
};

use super::{
    CommandResult,
    agents_parts::{self, AbsentHost, AgentsParts},
    context,
    joined::{JoinedSessions, SourceEntry},
    location::Location,
    show_text,
};
use crate::{
    client, exit::Exit, failure::Failure, hosts::HostsArgs, lifecycle::terminal::may_be_styled,
    output::one_line, remedies,
};

/// The number of operations, and of annotations, of each host that are printed as text.
const SHOWN_ROWS: usize = 10;

/// Arguments of `sessions show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a session of the agent; or a gs:// URL; or a path, which contains `/`, is `.` or ends in .xplane.pb. URLs and
    /// paths name a session folder, a logdir (its newest session is shown), or a file. Several are read as one session: the
    /// hosts of one window
    #[arg(value_name = "SESSION", required = true, value_parser = Location::parser())]
    sessions: Vec<Location>,
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
    pub(super) json: bool,
    #[command(flatten)]
    hosts: HostsArgs,
}

/// The answer: the report, and what its session's manifest says.
#[derive(Debug, serde::Serialize)]
struct Shown {
    /// The sessions that are read as one, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<SourceEntry>,
    /// When the session was made.
    created: Option<Timestamp>,
    context: SessionContext,
    /// How the clocks of hosts stood to that of the coordinator, by host.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    clocks: BTreeMap<String, ClockOffset>,
    #[serde(flatten)]
    report: Report,
}

pub(super) fn run(args: &Args) -> CommandResult {
    if !args.hosts.is_given() {
        return show(args, &JoinedSessions::open(&args.sessions, &args.agent)?, &[]);
    }
    if args.agent.is_given() {
        return Err(remedies::socket_of_another_host());
    }
    let [Location::Name(name)] = &args.sessions[..] else { return Err(remedies::no_name_for_hosts()) };
    // The connections outlive what is read over them.
    let (_agents, sessions, absent) = agents_parts::open(&args.hosts, name)?;
    show(args, &sessions, &absent)
}

fn show(args: &Args, sessions: &JoinedSessions, absent: &[AbsentHost]) -> CommandResult {
    let rules = if args.as_xprof { Rules::Xprof } else { Rules::True };
    let top = args.top.or((!args.json).then_some(SHOWN_ROWS));
    let mut shown = Shown {
        sources: sessions.entries(),
        created: sessions.created(),
        context: sessions.context(),
        clocks: sessions.clocks(),
        report: sessions.analysed(rules, top)?,
    };
    // A session without a manifest: what the traces themselves say.
    let said = shown.report.parts().flat_map(|part| &part.versions);
    for (library, version) in said {
        shown.context.versions.entry(library.clone()).or_default().insert(version.clone());
    }
    let remarks = AgentsParts::remarks(absent);
    print(&mut shown, args, sessions.others(), &remarks).or_else(closed_pipe)?;
    Ok(if shown.report.missing.is_empty() { Exit::Ok } else { Exit::Partial })
}

fn print(shown: &mut Shown, args: &Args, others: usize, remarks: &str) -> io::Result<()> {
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
        for source in &shown.sources {
            writeln!(out, "           {}", one_line(&source.to_string()))?;
        }
        context::print(&mut out, shown.created, &shown.context, bold)?;
        let shown_rows = args.top.unwrap_or(SHOWN_ROWS);
        show_text::print(&mut out, &shown.report, args.as_xprof, shown_rows, bold)?;
        if others > 0 {
            writeln!(
                out,
                "\n{} in the same logdir: name a session folder to show one of them",
                counted(others, "older session")
            )?;
        }
        out.write_all(remarks.as_bytes())?;
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
