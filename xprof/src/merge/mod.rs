//! Merges the segments of one process into one valid XSpace; joins the traces of several processes of a host likewise.
//!
//! ```text
//! segment 1 ─┐ index      order by        per plane, joined by name:
//! segment 2 ─┤ each   →   session    →    stat metadata, event metadata (ids remapped),   →  one XSpace
//! segment 3 ─┘ once       start           stats, then line by line the events, shifted
//! ```
//!
//! Every input is read twice: once for its index, once for its events. The output is written in one go: the
//! lengths of planes and lines, which are not known before their events went by, are left open as varints of
//! five bytes and filled in at the end. That costs four bytes a line and saves a sizing pass over all events
//! or a second copy of the trace on disk.
//!
//! Memory is the indexes plus the ids of one plane's metadata, whatever the number of events. Times in the
//! output count from the start of the first segment, as in any XSpace; `Task Environment` tells that start
//! and the end of the last. Must never merge what cannot come from one process, and never drop an event.
//! Fields of lines that this build does not know are left out; all others are carried along.

mod ids;
mod inputs;
mod join;
mod output;
mod plane;
mod report;
mod rewrite;
mod steps;

#[cfg(test)]
mod join_tests;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, io};

pub use join::ProcessLabel;
pub use output::WriteSeek;
pub use report::{Gap, MergeReport, MergedSteps, MissingSteps, Segment};

use crate::{input::Input, reader::NoTrace, wire, wording::counted};
use inputs::Inputs;
use output::Output;
use plane::PlaneMerge;
use steps::Steps;

/// What the warning begins with that the merged trace carries where nothing was recorded between its segments.
pub const MERGED: &str = "merged by tpuscope: ";

/// A protobuf parser refuses messages of 2 GiB and more.
const PROTOBUF_LIMIT: u64 = (1 << 31) - 1;

/// The tag of a host name.
const HOSTNAME: u8 = 4 << 3 | 2;

/// Why nothing was merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// No file was named.
    #[error("there is nothing to merge")]
    Nothing,
    /// A file cannot be opened or read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// Name of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file is no XSpace, or damaged.
    #[error("{file}: {source}")]
    Input {
        /// Name of the file.
        file: String,
        /// The damage and its offset.
        source: wire::Error,
    },
    /// A file without a trace.
    #[error("{file} {why}")]
    NoTrace {
        /// Name of the file.
        file: String,
        /// What it is.
        why: NoTrace,
    },
    /// Without its start a segment cannot be placed beside others.
    #[error("{0} does not say when its session began (no profile_start_time in 'Task Environment')")]
    NoStart(String),
    /// Two files that cannot be segments of one process.
    #[error("{first} and {second} are not segments of one process: {why}")]
    NotOneProcess {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// The difference that shows it.
        why: String,
    },
    /// The output cannot be written.
    #[error("cannot write the merged trace: {0}")]
    Write(#[from] io::Error),
}

/// Errors inside a pass, before the offset is turned into a file and its own offset.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Wire(#[from] wire::Error),
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// Merges `inputs` into `out`, and says what the result holds and lacks. `progress` receives the bytes read so
/// far and in all.
///
/// # Errors
/// When an input is unreadable, damaged or of another process, or when `out` cannot be written: what was
/// written to it so far is then of no use.
pub fn merge(
    inputs: &[&dyn Input],
    out: &mut dyn WriteSeek,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<MergeReport, MergeError> {
    let mut inputs = Inputs::of_segments(inputs, progress)?;
    let mut report = inputs.report();
    write_all(&mut inputs, out, &mut report, &[])?;
    if report.bytes > PROTOBUF_LIMIT {
        report.warnings.push(format!(
            "the merged trace has {} bytes; XProf cannot open more than {PROTOBUF_LIMIT}: merge fewer segments",
            report.bytes
        ));
    }
    Ok(report)
}

/// Joins the traces of several processes of one host, recorded at the same time, into `out`: one XSpace in which they can be
/// told apart. Returns its length in bytes. `warnings` are added to it.
///
/// # Errors
/// When a trace is unreadable or damaged, or does not say when it began, or when `out` cannot be written: what was written to
/// it so far is then of no use.
pub fn join(
    processes: &[(&dyn Input, ProcessLabel)],
    out: &mut dyn WriteSeek,
    warnings: &[String],
) -> Result<u64, MergeError> {
    let mut progress = |_, _| {};
    let mut inputs = Inputs::of_processes(processes, &mut progress)?;
    let mut report = MergeReport::default();
    write_all(&mut inputs, out, &mut report, warnings)?;
    Ok(report.bytes)
}

fn write_all(
    inputs: &mut Inputs<'_>,
    out: &mut dyn WriteSeek,
    report: &mut MergeReport,
    warnings: &[String],
) -> Result<(), MergeError> {
    let mut steps = Steps::default();
    let mut output = Output::new(out);
    match write(inputs, &mut output, &mut steps, report, warnings) {
        Ok(()) => {}
        Err(PassError::Write(error)) => return Err(MergeError::Write(error)),
        Err(PassError::Wire(error)) => return Err(inputs.at_fault(error)),
    }
    report.bytes = output.finish()?;
    report.steps = steps.finish(report.gaps.len());
    Ok(())
}

fn write(
    inputs: &mut Inputs<'_>,
    out: &mut Output<'_>,
    steps: &mut Steps,
    report: &mut MergeReport,
    warnings: &[String],
) -> Result<(), PassError> {
    for members in inputs.planes() {
        report.planes += 1;
        PlaneMerge::new(inputs, &members).write(out, steps, report)?;
    }
    for warning in warnings.iter().cloned().chain(unrecorded(report)) {
        let mut raw = Vec::new();
        prost::encoding::string::encode(3, &warning, &mut raw);
        out.raw(&raw)?;
    }
    // Host names, errors and warnings, each once.
    let (mut seen, mut has_host) = (BTreeSet::new(), false);
    for span in inputs.others() {
        let raw = inputs.bytes(span)?;
        // Processes of one host in several containers may call it by several names; a trace has one.
        let is_host = raw.first() == Some(&HOSTNAME);
        if is_host && inputs.are_processes() && std::mem::replace(&mut has_host, true) {
            continue;
        }
        if seen.insert(ids::digest(&raw)) {
            out.raw(&raw)?;
        }
    }
    Ok(())
}

/// What the result tells its readers of the gaps: planes have no way to say that nothing was recorded.
fn unrecorded(report: &MergeReport) -> Option<String> {
    let lengths = report.gaps.iter().map(|gap| gap.stop_ns.saturating_sub(gap.start_ns)).filter(|&ns| ns > 0);
    let (gaps, ns) = lengths.fold((0_u64, 0_i64), |(gaps, sum), ns| (gaps + 1, sum.saturating_add(ns)));
    (gaps > 0).then(|| {
        format!(
            "{MERGED}{} with {} between them, {:.3} s together, in which nothing was recorded: idle time, time outside the steps and time without a program include them",
            counted(report.segments.len(), "segment"),
            counted(gaps, "gap"),
            ns as f64 / 1e9
        )
    })
}
