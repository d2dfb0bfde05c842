//! What a trace of one window says of its steps and of what it lost: it is read once more, as `tpuscope sessions show`
//! reads it, in memory that is bounded by the steps.

use std::fs::File;

use store::segments::{NumberedSteps, SegmentSteps};
use xprof::{
    analysis::{self, HostTrace, Rules},
    loss::Loss,
    reader::AnyReader,
};

/// What a reading found.
#[derive(Debug, Default)]
pub(super) struct TraceReading {
    /// The steps that lie wholly inside; `None` without any.
    pub(super) steps: Option<SegmentSteps>,
    /// What it lost.
    pub(super) losses: Vec<Loss>,
}

/// One step: its number, when it began in nanoseconds since the epoch, and how long it took in nanoseconds.
type StepTime = (Option<i64>, i64, u64);

/// Reads a trace. Blocks.
///
/// # Errors
/// Why it cannot be read.
pub(super) fn read(file: File) -> Result<TraceReading, String> {
    let mut reader = AnyReader::open_any(Box::new(file)).map_err(|error| error.to_string())?;
    let trace = analysis::read_any(&mut reader, "", true, "", Rules::True);
    let trace = trace.map_err(|error| error.to_string())?;
    Ok(TraceReading { steps: summary(&step_times(&trace)), losses: trace.losses })
}

/// The steps of the first core that has some; without one those that the host marked.
fn step_times(trace: &HostTrace) -> Vec<StepTime> {
    let begin = trace.profile_start_ns.unwrap_or(0);
    let time = |number, start_ps: i64, length_ps: i64| {
        (number, begin.saturating_add(start_ps / 1000), u64::try_from(length_ps / 1000).unwrap_or(0))
    };
    let core = trace.cores.iter().find(|core| core.steps.iter().any(|step| step.step_num.is_some()));
    match core {
        Some(core) => {
            core.steps.iter().map(|step| time(step.step_num, step.start_ps, step.duration_ps)).collect()
        }
        None => {
            let marked = trace.host_steps.iter();
            marked.map(|step| time(step.step_num, step.start_ps, step.end_ps - step.start_ps)).collect()
        }
    }
}

fn summary(steps: &[StepTime]) -> Option<SegmentSteps> {
    let mut lengths: Vec<u64> = steps.iter().map(|(.., length)| *length).collect();
    lengths.sort_unstable();
    let longest_ns = *lengths.last()?;
    let median_ns = lengths[lengths.len() / 2];
    Some(SegmentSteps { count: lengths.len() as u64, median_ns, longest_ns, numbered: numbered(steps) })
}

/// The first and the last number, unless the numbers do not rise with time: then they do not count steps.
fn numbered(steps: &[StepTime]) -> Option<NumberedSteps> {
    let mut numbers: Vec<(i64, i64)> =
        steps.iter().filter_map(|(number, start, _)| Some((*start, (*number)?))).collect();
    numbers.sort_unstable();
    let rises = numbers.windows(2).all(|pair| pair[0].1 <= pair[1].1);
    let (first, last) = (*numbers.first()?, *numbers.last()?);
    let ends = NumberedSteps { first: first.1, last: last.1, first_start_ns: first.0, last_start_ns: last.0 };
    rises.then_some(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_summed_up() {
        let steps = [(Some(5), 1000, 10), (Some(6), 2000, 30), (Some(7), 3000, 20)];
        let numbered = NumberedSteps { first: 5, last: 7, first_start_ns: 1000, last_start_ns: 3000 };
        let expected = SegmentSteps { count: 3, median_ns: 20, longest_ns: 30, numbered: Some(numbered) };
        assert_eq!(summary(&steps), Some(expected));
        assert_eq!(summary(&[]), None);
        // Numbers that go back count something else.
        let back = [(Some(6), 1000, 10), (Some(5), 2000, 30)];
        assert_eq!(summary(&back).and_then(|steps| steps.numbered), None);
        assert_eq!(summary(&[(None, 1, 2)]).map(|steps| (steps.count, steps.numbered)), Some((1, None)));
    }
}
