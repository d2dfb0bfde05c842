//! `tpuscope sessions diff`: compares two sessions.
//!
//! They are read one after the other, and of the first one only its figures are kept.

use jiff::Timestamp;
use xprof::{
    analysis::{MissingPart, Rules},
    comparison::{Comparison, Pair, SessionFigures, compare},
    session::SessionContext,
};

use super::{CommandResult, diff_text, joined::JoinedSessions, location::Location};
use crate::{client, exit::Exit, failure::Failure, lifecycle::terminal, output, remedies};

/// The number of operations that are printed as text.
const SHOWN_ROWS: usize = 8;

/// Arguments of `sessions diff`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session before: name of a session of the agent, path or gs:// URL, as for `sessions show`
    #[arg(value_name = "A", value_parser = Location::parser())]
    a: Location,
    /// The session after, which is compared with it
    #[arg(value_name = "B", value_parser = Location::parser())]
    b: Location,
    /// Number of operations that are shown [default: 8; with --json all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// One of the two sessions.
#[derive(Debug, serde::Serialize)]
pub(super) struct ComparedSession {
    pub(super) session: String,
    /// What was named.
    pub(super) place: String,
    pub(super) created: Option<Timestamp>,
    context: SessionContext,
    /// The parts that are missing or cannot be read.
    pub(super) missing: Vec<MissingPart>,
}

/// The answer.
#[derive(Debug, serde::Serialize)]
pub(super) struct Diff {
    pub(super) sessions: Pair<ComparedSession>,
    #[serde(flatten)]
    pub(super) comparison: Comparison,
}

pub(super) fn run(args: &Args) -> CommandResult {
    // Both are found before the first is read: a wrong name should not take long.
    let sources = JoinedSessions::open(&[args.a.clone(), args.b.clone()], &args.agent)?.one_by_one();
    let [before, after] = &sources[..] else { return Err(Failure::internal("two sessions were named")) };
    if before.is_same_session(after) {
        return Err(remedies::same_session(&args.a, &args.b));
    }
    let (a, figures_a) = read(before, &args.a)?;
    let (b, figures_b) = read(after, &args.b)?;
    let figures = Pair { a: figures_a, b: figures_b };
    let comparison = compare(&figures).map_err(|error| remedies::not_comparable(&error))?;
    drop(figures);
    let mut diff = Diff { sessions: Pair { a, b }, comparison };
    diff.comparison.operations.truncate(args.top.unwrap_or(if args.json { usize::MAX } else { SHOWN_ROWS }));
    if args.json {
        output::json(&diff)?;
    } else {
        output::print(&diff_text::page(&diff, terminal::may_be_styled(&std::io::stdout())))?;
    }
    let is_whole = diff.sessions.a.missing.is_empty() && diff.sessions.b.missing.is_empty();
    Ok(if is_whole { Exit::Ok } else { Exit::Partial })
}

fn read(source: &JoinedSessions, named: &Location) -> Result<(ComparedSession, SessionFigures), Failure> {
    let report = source.analysed(Rules::True, None)?;
    if !report.jobs.is_empty() {
        return Err(remedies::several_jobs(named, report.jobs.len()));
    }
    let mut context = source.context();
    for (library, version) in report.parts().flat_map(|part| &part.versions) {
        context.versions.entry(library.clone()).or_default().insert(version.clone());
    }
    let figures = SessionFigures::of(&report, context.clone());
    let compared = ComparedSession {
        session: report.session,
        place: named.to_string(),
        created: source.created(),
        context,
        missing: report.missing,
    };
    Ok((compared, figures))
}
