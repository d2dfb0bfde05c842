//! `tpuscope sessions merge`.

#![expect(clippy::cast_precision_loss, reason = "figures for people, rounded when printed")]

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use indicatif::HumanBytes;
use xprof::{
    input::{FileInput, Input},
    merge::{MergeReport, MergedSteps, merge},
    wording::counted,
};

use super::{
    CommandResult,
    load::{self, Loaded},
    location::Location,
    outfile::OutFile,
    progress::ByteProgress,
};
use crate::{
    client,
    exit::Exit,
    failure::Failure,
    output::{self, one_line},
    output_path, remedies,
};

/// The largest number of gaps and of missing steps that are printed.
const MAX_ROWS: usize = 20;

/// Arguments of `sessions merge`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Trace segments of one process, in any order: paths or gs:// URLs of .xplane.pb files, or sessions with one part,
    /// by the agent's name or by URL
    #[arg(required = true, value_parser = Location::parser())]
    files: Vec<Location>,
    /// Path of the merged trace; XProf opens it if the name ends in .xplane.pb
    #[arg(short, long, value_name = "OUT", value_parser = output_path::parser())]
    output: PathBuf,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON answer.
#[derive(Debug, serde::Serialize)]
struct MergeAnswer<'a> {
    output: &'a Path,
    #[serde(flatten)]
    report: &'a MergeReport,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let paths: Vec<&Path> = args.files.iter().filter_map(Location::path).collect();
    if let Some(folder) = paths.iter().find(|path| path.is_dir()) {
        return Err(remedies::segment_is_a_folder(folder));
    }
    not_twice(&paths)?;
    let remote = args.files.iter().filter(|file| file.path().is_none());
    let sessions = remote.map(|file| one_part(file, args)).collect::<Result<Vec<_>, _>>()?;
    let files = paths.iter().map(|path| Box::new(FileInput::new(*path)) as Box<dyn Input>);
    let parts = sessions
        .iter()
        .flat_map(|loaded| loaded.session.parts.iter().map(|part| load::input(part, loaded.remote.as_ref())));
    let files: Vec<Box<dyn Input + '_>> = files.chain(parts).collect();
    let inputs: Vec<&dyn Input> = files.iter().map(|file| &**file as &dyn Input).collect();
    let (out, file) = OutFile::create(&args.output, &paths)?;
    let mut progress = ByteProgress::new("merging");
    let merged = merge(&inputs, &mut &file, &mut |done, all| progress.at(done, all));
    drop(progress);
    // A call that failed says nothing of the trace.
    let call = || sessions.iter().find_map(|loaded| loaded.remote.as_ref()?.failure());
    let report = merged.map_err(|error| call().unwrap_or_else(|| remedies::merge(error, &args.output)))?;
    out.finish(&file)?;
    if args.json {
        output::json(&MergeAnswer { output: &args.output, report: &report })?;
    } else {
        output::print(&text(&report, &args.output))?;
    }
    Ok(Exit::Ok)
}

/// A session of the agent or in a bucket that has one part.
fn one_part(location: &Location, args: &Args) -> Result<Loaded, Failure> {
    let loaded = load::parts(location, &args.agent)?;
    match &loaded.session.parts[..] {
        [_] => Ok(loaded),
        parts => {
            let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
            Err(remedies::merged_session(&loaded.session.name, &location.to_string(), &names))
        }
    }
}

/// Refuses a file that is given twice: it would look like two segments of the same time.
fn not_twice(paths: &[&Path]) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for path in paths {
        let Ok(meta) = fs::metadata(path) else { continue };
        if !seen.insert((meta.dev(), meta.ino())) {
            return Err(remedies::segment_twice(path));
        }
    }
    Ok(())
}

/// Nanoseconds since the epoch as RFC 3339.
fn time(ns: i64) -> String {
    model::time::Timestamp(ns).to_string()
}

fn text(report: &MergeReport, path: &Path) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_text(&mut text, report, path);
    text
}

fn write_text(text: &mut String, report: &MergeReport, path: &Path) -> std::fmt::Result {
    writeln!(
        text,
        "{}: {}, {}, {}, {}, {}",
        one_line(&path.display().to_string()),
        counted(report.segments.len(), "segment"),
        counted(report.planes, "plane"),
        counted(report.lines, "line"),
        counted(report.events, "event"),
        HumanBytes(report.bytes)
    )?;
    let stop = report.segments.iter().filter_map(|segment| segment.stop_ns).max();
    if let (Some(start), Some(stop)) =
        (report.segments.iter().filter_map(|segment| segment.start_ns).min(), stop)
    {
        let seconds = stop.saturating_sub(start) as f64 / 1e9;
        writeln!(text, "covers {} to {} ({seconds:.3} s)", time(start), time(stop))?;
    }
    for (at, gap) in report.gaps.iter().enumerate().take(MAX_ROWS) {
        let length = gap.stop_ns.saturating_sub(gap.start_ns) as f64 / 1e6;
        writeln!(text, "gap {at}: {length:.3} ms from {}", time(gap.start_ns))?;
    }
    more(text, report.gaps.len(), "gaps")?;
    for steps in &report.steps {
        write_steps(text, steps)?;
    }
    for warning in &report.warnings {
        writeln!(text, "warning: {}", one_line(warning))?;
    }
    Ok(())
}

fn write_steps(text: &mut String, steps: &MergedSteps) -> std::fmt::Result {
    writeln!(
        text,
        "steps {} on {}: {} to {}, {} found",
        one_line(&steps.name),
        one_line(&steps.line),
        steps.first,
        steps.last,
        steps.count
    )?;
    for missing in steps.missing.iter().take(MAX_ROWS) {
        let numbers = match missing.last.saturating_sub(missing.first) {
            0 => format!("{}", missing.first),
            _ => format!("{} to {}", missing.first, missing.last),
        };
        let why = match missing.cut_by() {
            None => "not marked by the job".to_owned(),
            Some((first, last)) if first == last => format!("cut by gap {first}"),
            Some((first, last)) => format!("cut by gaps {first} to {last}, or between them"),
        };
        writeln!(text, "  missing {numbers}: {why}")?;
    }
    more(text, steps.missing.len(), "ranges of missing steps")?;
    if steps.repeated > 0 {
        writeln!(text, "  repeated: {}", counted(steps.repeated, "number"))?;
    }
    Ok(())
}

fn more(text: &mut String, count: usize, what: &str) -> std::fmt::Result {
    match count.checked_sub(MAX_ROWS) {
        Some(more) if more > 0 => writeln!(text, "  … and {more} more {what} (--json lists all)"),
        _ => Ok(()),
    }
}
