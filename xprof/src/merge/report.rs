//! What a merge says about its result.

use serde::Serialize;

/// What the merged trace holds, and what it cannot hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MergeReport {
    /// The segments, by time.
    pub segments: Vec<Segment>,
    /// The stretches between them: what was in flight there is in neither.
    pub gaps: Vec<Gap>,
    /// The numbered steps of each thread that marked steps.
    pub steps: Vec<MergedSteps>,
    /// Planes written.
    pub planes: u64,
    /// Lines written.
    pub lines: u64,
    /// Events written: as many as were read.
    pub events: u64,
    /// Bytes written.
    pub bytes: u64,
    /// What a reader should know.
    pub warnings: Vec<String>,
}

/// One input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Segment {
    /// Its name.
    pub file: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its events.
    pub events: u64,
    /// When it began, in nanoseconds since the epoch.
    pub start_ns: Option<i64>,
    /// When it ended.
    pub stop_ns: Option<i64>,
}

/// The stretch between two segments that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// The segment before it, counted from 0; the one after it is the next.
    pub after_segment: usize,
    /// Where the segment before it ends, in nanoseconds since the epoch.
    pub start_ns: i64,
    /// Where the segment after it begins; not before `start_ns`.
    pub stop_ns: i64,
}

/// The steps of one name on one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MergedSteps {
    /// The marker's name, such as `train`.
    pub name: String,
    /// The line (thread) that it is on.
    pub line: String,
    /// The least step number.
    pub first: i64,
    /// The greatest.
    pub last: i64,
    /// How many steps there are.
    pub count: u64,
    /// How many of them have a number that another one has too.
    pub repeated: u64,
    /// The numbers between `first` and `last` that are not there.
    pub missing: Vec<MissingSteps>,
    /// Whether there were more stretches of steps than are kept, so that `missing` is cut.
    pub cut: bool,
}

/// Numbers that are missing in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingSteps {
    /// The first of them.
    pub first: i64,
    /// The last.
    pub last: i64,
    /// The gaps, counted from 0, that lie between the steps before and after: these steps were cut by one of
    /// them or ran inside. Empty where both neighbours are in one segment: then the job did not mark them. Only
    /// the first [`MOST_GAPS`] are listed.
    pub gaps: Vec<usize>,
    /// How many gaps follow those listed, without a hole.
    pub more_gaps: usize,
}

/// How many gaps are listed for each stretch of missing numbers: there may be as many stretches as steps, and
/// as many gaps as segments between any two.
pub(super) const MOST_GAPS: usize = 8;

impl MissingSteps {
    /// The first and the last of the gaps that explain them.
    pub fn cut_by(&self) -> Option<(usize, usize)> {
        Some((*self.gaps.first()?, self.gaps.last()? + self.more_gaps))
    }
}
