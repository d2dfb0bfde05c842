//! `tpuscope sessions merge`.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use indicatif::HumanBytes;
use xprof::{
    input::{FileInput, Input},
    merge::{MergeError, MergedSteps, Report, merge},
    wire,
};

use super::{
    Outcome,
    outfile::{OutFile, unwritten},
    progress::Progress,
};
use crate::{
    exit::{Exit, Failure, one_line},
    output,
};

/// How many gaps and missing steps are listed for a reader.
const SHOWN: usize = 20;

/// Arguments of `sessions merge`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The segments (.xplane.pb) of one process, in any order
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The merged trace; name it *.xplane.pb for XProf to open it
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON answer.
#[derive(Debug, serde::Serialize)]
struct Answer<'a> {
    output: &'a Path,
    #[serde(flatten)]
    report: &'a Report,
}

pub(super) fn run(args: &Args) -> Outcome {
    let paths: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    if let Some(folder) = paths.iter().find(|path| path.is_dir()) {
        return Err(Failure::new(Exit::NotFound, format_args!("{} is a folder", folder.display()))
            .remedy("name the .xplane.pb files of one process"));
    }
    not_twice(&paths)?;
    let files: Vec<FileInput> = args.files.iter().map(FileInput::new).collect();
    let inputs: Vec<&dyn Input> = files.iter().map(|file| file as &dyn Input).collect();
    let (out, file) = OutFile::create(&args.output, &paths)?;
    let mut progress = Progress::new("merging");
    let merged = merge(&inputs, &mut &file, &mut |done, all| progress.at(done, all));
    drop(progress);
    let report = merged.map_err(|error| failure(&error, &args.output))?;
    out.finish(&file)?;
    if args.json {
        output::json(&Answer { output: &args.output, report: &report })?;
    } else {
        output::print(&text(&report, &args.output))?;
    }
    Ok(Exit::Ok)
}

/// A file beside itself would pass for two segments at the same time.
fn not_twice(paths: &[&Path]) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for path in paths {
        let Ok(meta) = fs::metadata(path) else { continue };
        if !seen.insert((meta.dev(), meta.ino())) {
            return Err(Failure::new(Exit::Usage, format_args!("{} is named twice", path.display()))
                .remedy("name each segment once"));
        }
    }
    Ok(())
}

fn failure(error: &MergeError, place: &Path) -> Failure {
    let failed = |exit| Failure::new(exit, error);
    match error {
        MergeError::Write(error) => unwritten(place, error),
        MergeError::Read { file, source } => {
            if let Some(failure) = super::foreign::remote(Path::new(file)) {
                return failure;
            }
            let exit = super::unopened_exit(source);
            failed(exit).remedy(super::unopened_remedy(exit))
        }
        // A file that ends before its length is damaged, also where it was cut off while it was read.
        MergeError::Input { source: wire::Error::Io { source, .. }, .. }
            if source.kind() != io::ErrorKind::UnexpectedEof =>
        {
            failed(Exit::Internal)
        }
        MergeError::NoTrace { file, why } => super::no_trace(file, *why),
        MergeError::Input { file, .. } => super::foreign::foreign(Path::new(file)).unwrap_or_else(|| {
            failed(Exit::BadInput).remedy(
                "leave it out, or copy or capture it again; it must be an .xplane.pb as the profiler wrote it",
            )
        }),
        MergeError::NoStart(_) => {
            failed(Exit::BadInput).remedy("leave it out: nothing tells where it belongs")
        }
        MergeError::NotOneProcess { .. } => failed(Exit::BadInput).remedy(
            "merge each process by itself; `sessions export` brings several hosts onto one time line",
        ),
        MergeError::Nothing => failed(Exit::Usage),
    }
}

/// Nanoseconds since the epoch as a reader's time.
fn time(ns: i64) -> String {
    model::time::Timestamp(ns).to_string()
}

fn text(report: &Report, place: &Path) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_text(&mut text, report, place);
    text
}

fn write_text(text: &mut String, report: &Report, place: &Path) -> std::fmt::Result {
    writeln!(
        text,
        "{}: {} segment(s), {} planes, {} lines, {} events, {}",
        one_line(&place.display().to_string()),
        report.segments.len(),
        report.planes,
        report.lines,
        report.events,
        HumanBytes(report.bytes)
    )?;
    let stop = report.segments.iter().filter_map(|segment| segment.stop_ns).max();
    if let (Some(start), Some(stop)) =
        (report.segments.iter().filter_map(|segment| segment.start_ns).min(), stop)
    {
        let seconds = stop.saturating_sub(start) as f64 / 1e9;
        writeln!(text, "covers {} to {} ({seconds:.3} s)", time(start), time(stop))?;
    }
    for (at, gap) in report.gaps.iter().enumerate().take(SHOWN) {
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
        "steps {} on {}: {} to {}, {} there",
        one_line(&steps.name),
        one_line(&steps.line),
        steps.first,
        steps.last,
        steps.count
    )?;
    for missing in steps.missing.iter().take(SHOWN) {
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
    more(text, steps.missing.len(), "stretches of missing steps")?;
    if steps.repeated > 0 {
        writeln!(text, "  {} numbers are there more than once", steps.repeated)?;
    }
    Ok(())
}

fn more(text: &mut String, count: usize, what: &str) -> std::fmt::Result {
    match count.checked_sub(SHOWN) {
        Some(more) if more > 0 => writeln!(text, "  … and {more} more {what} (--json lists all)"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_off_while_it_is_read_is_bad_input() {
        let exit = |kind: io::ErrorKind| {
            let source = wire::Error::Io { offset: 7, source: kind.into() };
            failure(&MergeError::Input { file: "a".to_owned(), source }, Path::new("out")).exit
        };
        assert_eq!(exit(io::ErrorKind::UnexpectedEof), Exit::BadInput);
        assert_eq!(exit(io::ErrorKind::Other), Exit::Internal);
    }
}
