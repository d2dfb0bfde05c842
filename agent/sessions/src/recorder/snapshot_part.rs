//! One part of a snapshot: the segments of a process, unpacked and merged over time into its file.

use std::{fs::File, io, path::PathBuf};

use model::time::Timestamp;
use store::segments::{SegmentError, SegmentGap, Segments, StoredSegment, UnpackedTrace};
use tokio_util::sync::CancellationToken;
use xprof::{
    input::{Input, ReadSeek},
    merge::{MergeReport, merge},
    session::{GapEntry, PartEntry, PartFacts, PartName, PartWriter, SessionWriter, Window},
};

use super::time_line::TimeLine;
use crate::CaptureError;

/// The most gaps of a part that its manifest lists.
const MAX_GAPS: usize = 1000;

/// What a part is made of.
pub(super) struct PartSource<'a> {
    pub(super) segments: &'a Segments,
    /// Of one process. Not empty.
    pub(super) past: &'a [StoredSegment],
    pub(super) gaps: &'a [SegmentGap],
    /// The time that was asked for.
    pub(super) window: (Timestamp, Timestamp),
    pub(super) cancel: &'a CancellationToken,
}

/// A segment as an input of the merge.
struct SegmentInput {
    name: String,
    path: PathBuf,
}

/// A segment as an input, and its file.
type UnpackedSegment = (SegmentInput, UnpackedTrace);

impl Input for SegmentInput {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        Ok(Box::new(File::open(&self.path)?))
    }
}

impl PartSource<'_> {
    /// Writes the part and makes it visible. `progress` receives the bytes of each segment that was unpacked. Blocks.
    ///
    /// # Errors
    /// If none of the segments can be read, they cannot be merged, or the disk refuses.
    pub(super) fn write(
        &self,
        writer: &SessionWriter,
        name: &PartName,
        progress: &mut dyn FnMut(u64),
    ) -> Result<PartEntry, CaptureError> {
        let line = TimeLine::of(self.past);
        let (unpacked, damaged) = self.unpack(&line, progress)?;
        let mut part = writer.part(name)?;
        let report = self.merge(&unpacked, &mut part)?;
        drop(unpacked);
        self.check_cancelled()?;
        part.read_back()?;
        self.check_cancelled()?;
        Ok(part.commit(self.facts(&line, &report, damaged))?)
    }

    fn check_cancelled(&self) -> Result<(), CaptureError> {
        if self.cancel.is_cancelled() { Err(CaptureError::Cancelled) } else { Ok(()) }
    }

    /// The segments that can be read, and why the others cannot.
    fn unpack(
        &self,
        line: &TimeLine<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Vec<UnpackedSegment>, Vec<String>), CaptureError> {
        let (mut unpacked, mut last) = (Vec::new(), None);
        let left_out = line.left_out.iter();
        let mut damaged: Vec<String> =
            left_out.map(|gap| format!("the segment of {} is left out: {}", gap.start, gap.reason)).collect();
        for &segment in &line.kept {
            self.check_cancelled()?;
            match self.segments.unpack(segment) {
                Ok(trace) => {
                    let name = format!("the segment of {}", segment.start);
                    unpacked.push((SegmentInput { name, path: trace.path().to_owned() }, trace));
                }
                Err(error) if is_lost(&error) => {
                    damaged.push(format!("the segment of {} cannot be read: {error}", segment.start));
                    last = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
            progress(segment.trace_bytes);
        }
        match last {
            Some(error) if unpacked.is_empty() => Err(error.into()),
            _ => Ok((unpacked, damaged)),
        }
    }

    fn merge(
        &self,
        unpacked: &[UnpackedSegment],
        part: &mut PartWriter,
    ) -> Result<MergeReport, CaptureError> {
        let inputs: Vec<&dyn Input> = unpacked.iter().map(|(input, _)| input as &dyn Input).collect();
        let pid = self.past[0].process.process.pid;
        merge(&inputs, part.file(), &mut |_, _| {})
            .map_err(|error| CaptureError::Merge { pid, error: error.into() })
    }

    fn facts(&self, line: &TimeLine<'_>, report: &MergeReport, damaged: Vec<String>) -> PartFacts {
        // What the newest segment says of the process holds.
        let segment = line.kept[line.kept.len() - 1];
        let (process, facts) = (&segment.process, &segment.facts);
        let of_segments = line.kept.iter().flat_map(|segment| segment.facts.warnings.iter().cloned());
        let mut warnings = Vec::new();
        for warning in damaged.into_iter().chain(of_segments).chain(report.warnings.iter().cloned()) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        let mut losses = Vec::new();
        for loss in line.kept.iter().flat_map(|segment| &segment.facts.losses) {
            if !losses.contains(loss) {
                losses.push(loss.clone());
            }
        }
        let recorded = self.recorded(report);
        PartFacts {
            pid: Some(process.process.pid),
            command: (!facts.command.is_empty()).then(|| facts.command.clone()),
            uid: Some(process.uid),
            user: facts.user.clone(),
            versions: facts.versions.clone(),
            address: Some(facts.address.clone()),
            job: facts.job.clone().map(Box::new),
            planes: report.planes,
            lines: report.lines,
            events: report.events,
            window: covered(&recorded),
            late_start_ns: None,
            steps: None,
            warnings,
            losses,
            gaps: self.gap_entries(&recorded, &line.left_out),
            recorded: recorded.iter().filter_map(|&(start, stop)| window(start, stop)).collect(),
        }
    }

    /// What the merged segments cover, by time.
    fn recorded(&self, report: &MergeReport) -> Vec<(Timestamp, Timestamp)> {
        let covered = report.segments.iter();
        covered
            .filter_map(|segment| Some((Timestamp(segment.start_ns?), Timestamp(segment.stop_ns?))))
            .collect()
    }

    /// The stretches of the wanted time that no segment covers, each with what is known of the reason.
    fn gap_entries(&self, recorded: &[(Timestamp, Timestamp)], left_out: &[SegmentGap]) -> Vec<GapEntry> {
        let mut gaps = Vec::new();
        let mut at = self.window.0;
        for &(start, stop) in recorded.iter().chain([&(self.window.1, self.window.1)]) {
            if start > at && gaps.len() < MAX_GAPS {
                let is_first = at == self.window.0;
                let is_last = start == self.window.1;
                let why =
                    self.why(at, start, left_out).unwrap_or_else(|| between(is_first, is_last).to_owned());
                gaps.push(GapEntry { start: at.into(), stop: start.into(), why });
            }
            at = at.max(stop);
        }
        gaps
    }

    /// What was noted of a stretch.
    fn why(&self, start: Timestamp, stop: Timestamp, left_out: &[SegmentGap]) -> Option<String> {
        let noted = self.gaps.iter().chain(left_out).filter(|gap| gap.start < stop && gap.stop > start);
        let mut reasons: Vec<&str> = noted.map(|gap| gap.reason.as_str()).collect();
        reasons.dedup();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Why nothing was recorded in a stretch in which no window was due.
fn between(is_first: bool, is_last: bool) -> &'static str {
    match (is_first, is_last) {
        (true, _) => "before the first window that is kept",
        (false, true) => "no window was due since the last one",
        (false, false) => "between two windows",
    }
}

/// From the begin of the first to the end of the last.
fn covered(recorded: &[(Timestamp, Timestamp)]) -> Option<Window> {
    let (first, last) = (recorded.first()?, recorded.iter().map(|(_, stop)| *stop).max()?);
    window(first.0, last)
}

fn window(start: Timestamp, stop: Timestamp) -> Option<Window> {
    Window::from_ns(u64::try_from(start.0).ok()?, u64::try_from(stop.0).ok()?)
}

/// Whether a segment is damaged, or was removed meanwhile.
fn is_lost(error: &SegmentError) -> bool {
    match error {
        SegmentError::Damaged { .. } => true,
        SegmentError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        SegmentError::LowDisk { .. } | SegmentError::State(_) => false,
    }
}
