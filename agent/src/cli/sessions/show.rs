//! `tpuscope sessions show`: reads the parts of a session one after another and prints what they say.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

use xprof::{
    analysis::{self, HostTrace, MissingPart, Report, Rules},
    reader::Reader,
    session::{self, Part, Session},
};

use super::{Outcome, show_text, unresolved};
use crate::cli::exit::{Exit, Failure};

/// How many operations a terminal gets to see.
const SHOWN_OPS: usize = 10;

/// Arguments of `sessions show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A session folder, a logdir (its newest session is shown), or one .xplane.pb file
    path: PathBuf,
    /// Give XProf's figures, quirks included, to compare with it
    #[arg(long)]
    as_xprof: bool,
    /// How many operations to list per host [default: 10, with --json all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Outcome {
    let rules = if args.as_xprof { Rules::Xprof } else { Rules::True };
    let (session, others) = newest(&args.path)?;
    let certain = session.manifest.is_some();
    let mut missing: Vec<MissingPart> = session
        .faults
        .iter()
        .map(|fault| MissingPart { file: fault.file.clone(), why: fault.kind.to_string() })
        .collect();
    let mut hosts = Vec::new();
    let mut first_failure = None;
    for part in &session.parts {
        match read(part, certain, rules) {
            Ok(trace) => hosts.push(trace),
            Err(failure) => {
                let file = file_name(&part.path);
                missing.push(MissingPart { file, why: failure.what.clone() });
                first_failure.get_or_insert(failure);
            }
        }
    }
    if hosts.is_empty() {
        return Err(nothing_to_show(&args.path, &missing, first_failure));
    }
    note_same_host(&mut hosts);
    let top = args.top.or((!args.json).then_some(SHOWN_OPS));
    let report = analysis::session(session.name, hosts, missing, rules, top);
    print(&report, args, others).or_else(closed_pipe)?;
    Ok(if report.missing.is_empty() { Exit::Ok } else { Exit::Partial })
}

/// The session to show, and how many others the path leads to.
fn newest(path: &Path) -> Result<(Session, usize), Failure> {
    let mut sessions = session::resolve(path).map_err(|error| unresolved(&error))?;
    // By name: XProf's names, and ours, begin with the date.
    let Some(last) = sessions.pop() else {
        return Err(Failure::new(Exit::NotFound, format_args!("{}: no session", path.display())));
    };
    Ok((last, sessions.len()))
}

fn read(part: &Part, certain: bool, rules: Rules) -> Result<HostTrace, Failure> {
    let file = File::open(&part.path).map_err(|error| super::unopened(&part.path, &error))?;
    let damaged = |error| super::unreadable(&part.path, &error);
    let mut reader = Reader::open(file).map_err(damaged)?;
    if reader.index().planes.is_empty() {
        let what = format_args!("{}: a trace without any plane", part.path.display());
        return Err(Failure::new(Exit::EmptyTrace, what).remedy("capture again while the workload runs"));
    }
    analysis::read(&mut reader, &part.host, certain, &file_name(&part.path), rules).map_err(damaged)
}

/// Two parts of one host are two processes, or one file twice.
fn note_same_host(hosts: &mut [HostTrace]) {
    for at in 1..hosts.len() {
        let (before, rest) = hosts.split_at_mut(at);
        let Some(host) = rest.first_mut() else { continue };
        let Some(same) = before.iter().find(|other| other.host == host.host) else { continue };
        let planes =
            |host: &HostTrace| -> Vec<String> { host.cores.iter().map(|core| core.plane.clone()).collect() };
        let shared = planes(host).iter().any(|plane| planes(same).contains(plane));
        host.warnings.push(if shared {
            format!("{} is of the same host and has the same cores: the file may be a copy", same.file)
        } else {
            format!("{} is of the same host: another process", same.file)
        });
    }
}

fn nothing_to_show(path: &Path, missing: &[MissingPart], failure: Option<Failure>) -> Failure {
    match (failure, missing) {
        (Some(failure), [_]) => failure,
        (failure, [first, ..]) => {
            let exit = failure.map_or(Exit::BadInput, |failure| failure.exit);
            let others = match missing.len() {
                1 => String::new(),
                all => format!(", and {} more", all - 1),
            };
            let what =
                format!("{}: no part can be read: {} {}{others}", path.display(), first.file, first.why);
            Failure::new(exit, what).remedy("capture again, or name a part that is whole")
        }
        (failure, []) => failure.unwrap_or_else(|| {
            Failure::new(Exit::NotFound, format_args!("{}: a session without parts", path.display()))
        }),
    }
}

fn print(report: &Report, args: &Args, others: usize) -> io::Result<()> {
    let stdout = io::stdout();
    let mut out = io::BufWriter::new(stdout.lock());
    if args.json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        show_text::print(&mut out, report, args.as_xprof, io::stdout().is_terminal())?;
        if others > 0 {
            writeln!(
                out,
                "\n{others} older sessions lie beside this one: name a session's folder to see it"
            )?;
        }
    }
    out.flush()
}

/// A reader that has seen enough (`| head`) is no failure.
fn closed_pipe(error: io::Error) -> Result<(), Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(Failure::new(Exit::Internal, format_args!("cannot print: {error}"))),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
