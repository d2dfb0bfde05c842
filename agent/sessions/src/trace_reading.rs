//! What a whole trace tells of its steps and of what it lost: the file is read once more, as `tpuscope sessions show` reads it, in
//! memory that is bounded by the steps.
//!
//! The checker that sees a trace arrive counts, but cannot compare the runs of cores with each other or with the
//! host's launches: they come in any order, and by clocks that jump. A reading takes about 2 ms of CPU time for a MB (0.45 s and
//! less than 3 MiB for 257 MB of a real trace), less than the arrival did. There is one at a time, and each has a limit of time and
//! of bytes. Must never run on the thread of the asynchronous tasks.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use model::{
    step_times::{NumberedSteps, TraceSteps},
    time::Clock,
};
use xprof::{
    analysis::{self, Core, HostTrace, Rules},
    loss::Loss,
    reader::AnyReader,
};

/// The longest time of one reading.
const LIMIT: Duration = Duration::from_secs(30);
/// Larger traces are not read: no profiler can send one.
const MAX_BYTES: u64 = 2 << 30;
/// A share of all, in millionths.
const WHOLE: f64 = 1e6;

/// What a reading found.
#[derive(Debug, Default)]
pub(crate) struct TraceReading {
    /// The steps that lie wholly inside; `None` without any.
    pub(crate) steps: Option<TraceSteps>,
    /// What it lost.
    pub(crate) losses: Vec<Loss>,
}

/// Reads traces, one at a time.
pub struct TraceReader {
    clock: Arc<dyn Clock>,
    one: Mutex<()>,
}

/// One step: its number, when it began in nanoseconds since the epoch, and how long it took in nanoseconds.
type StepTime = (Option<i64>, i64, u64);

impl TraceReader {
    /// A reader whose limit of time is measured with `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, one: Mutex::new(()) })
    }

    /// Reads a trace. Blocks, also while another one is read.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) fn read(&self, file: File) -> Result<TraceReading, String> {
        let bytes = file.metadata().map_err(|error| error.to_string())?.len();
        if bytes > MAX_BYTES {
            return Err(format!("it has {bytes} bytes, and at most {MAX_BYTES} are read again"));
        }
        let _one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        let file = LimitedFile { file, clock: Arc::clone(&self.clock), until: self.clock.uptime() + LIMIT };
        let mut reader = AnyReader::open_any(Box::new(file)).map_err(|error| error.to_string())?;
        let trace = analysis::read_any(&mut reader, "", true, "", Rules::True);
        let mut trace = trace.map_err(|error| error.to_string())?;
        let losses = std::mem::take(&mut trace.losses);
        Ok(TraceReading { steps: steps(trace), losses })
    }
}

/// A file that cannot be read any more when its time is over.
struct LimitedFile {
    file: File,
    clock: Arc<dyn Clock>,
    until: Duration,
}

impl Read for LimitedFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.clock.uptime() > self.until {
            let why = format!("reading it took longer than {} s", LIMIT.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        self.file.read(bytes)
    }
}

impl Seek for LimitedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// The steps of a trace, with the shares of its time.
fn steps(trace: HostTrace) -> Option<TraceSteps> {
    let summary = summary(&step_times(&trace))?;
    let busy_ppm = busy(&trace.cores);
    let report = analysis::session(String::new(), vec![trace], Vec::new(), Rules::True, Some(0));
    let input_ppm = report.input.map(|input| millionths(input.share));
    Some(TraceSteps { input_ppm, busy_ppm, ..summary })
}

/// The mean of the TensorCores that had time at all.
fn busy(cores: &[Core]) -> Option<u32> {
    let timed = cores.iter().filter(|core| !core.sparse && core.busy_ps.saturating_add(core.idle_ps) > 0);
    let shares: Vec<f64> = timed.map(Core::duty_cycle).collect();
    #[expect(clippy::cast_precision_loss, reason = "a few cores")]
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    (!shares.is_empty()).then(|| millionths(mean))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number from 0 to 1000000")]
fn millionths(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * WHOLE).round() as u32
}

/// The numbered steps of the first core that has some; without one those that the host marked; without any the steps of a core
/// that follow from its programs.
fn step_times(trace: &HostTrace) -> Vec<StepTime> {
    let begin = trace.profile_start_ns.unwrap_or(0);
    let time = |number, start_ps: i64, length_ps: i64| {
        (number, begin.saturating_add(start_ps / 1000), u64::try_from(length_ps / 1000).unwrap_or(0))
    };
    let cores = || trace.cores.iter().filter(|core| !core.sparse);
    let numbered = cores().find(|core| core.steps.iter().any(|step| step.step_num.is_some()));
    let unnumbered = || cores().find(|core| !core.steps.is_empty()).filter(|_| trace.host_steps.is_empty());
    match numbered.or_else(unnumbered) {
        Some(core) => {
            core.steps.iter().map(|step| time(step.step_num, step.start_ps, step.duration_ps)).collect()
        }
        None => {
            let marked = trace.host_steps.iter();
            marked.map(|step| time(step.step_num, step.start_ps, step.end_ps - step.start_ps)).collect()
        }
    }
}

fn summary(steps: &[StepTime]) -> Option<TraceSteps> {
    let mut lengths: Vec<u64> = steps.iter().map(|(.., length)| *length).collect();
    lengths.sort_unstable();
    let longest_ns = *lengths.last()?;
    let (count, median_ns) = (lengths.len() as u64, lengths[lengths.len() / 2]);
    let sum = lengths.iter().fold(0_u64, |sum, length| sum.saturating_add(*length));
    let numbered = numbered(steps);
    Some(TraceSteps {
        count,
        median_ns,
        mean_ns: mean(numbered).unwrap_or(sum / count),
        longest_ns,
        numbered,
        ..TraceSteps::default()
    })
}

/// The mean time from one numbered step to the next: what lies between two steps is a part of it.
fn mean(numbered: Option<NumberedSteps>) -> Option<u64> {
    let NumberedSteps { first, last, first_start_ns, last_start_ns } = numbered?;
    let steps = u64::try_from(last.checked_sub(first)?).ok()?;
    let elapsed = u64::try_from(last_start_ns.checked_sub(first_start_ns)?).ok()?;
    elapsed.checked_div(steps).filter(|mean| *mean > 0)
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
    use model::time::{ManualClock, Timestamp};

    use super::*;

    #[test]
    fn steps_are_summed_up() {
        let steps = [(Some(5), 1000, 10), (Some(6), 2000, 30), (Some(7), 3000, 20)];
        let numbered = NumberedSteps { first: 5, last: 7, first_start_ns: 1000, last_start_ns: 3000 };
        let expected = TraceSteps {
            count: 3,
            median_ns: 20,
            mean_ns: 1000,
            longest_ns: 30,
            numbered: Some(numbered),
            ..TraceSteps::default()
        };
        assert_eq!(summary(&steps), Some(expected));
        assert_eq!(summary(&[]), None);
        // Numbers that go back count something else.
        let back = [(Some(6), 1000, 10), (Some(5), 2000, 30)];
        assert_eq!(summary(&back).and_then(|steps| steps.numbered), None);
        let alone = summary(&[(None, 1, 2)]).map(|steps| (steps.count, steps.mean_ns, steps.numbered));
        assert_eq!(alone, Some((1, 2, None)));
    }

    /// The steps of a recorded trace, and what is true of it.
    fn vector(case: &str) -> (TraceSteps, serde_json::Value) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/data/golden/xplane")
            .join(case);
        let truth = std::fs::read(folder.join("truth.json")).unwrap();
        let mut files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let trace = files.find(|path| path.extension().is_some_and(|end| end == "pb")).unwrap();
        let reader = TraceReader::new(Arc::new(ManualClock::at(Timestamp(0))));
        let reading = reader.read(File::open(trace).unwrap()).unwrap();
        (reading.steps.unwrap(), serde_json::from_slice(&truth).unwrap())
    }

    #[test]
    fn a_trace_with_a_core_tells_of_input_and_of_busy_time() {
        let (steps, truth) = vector("host_input_bound");
        let of_core = truth["hosts"][0]["cores"][0]["steps"].as_array().unwrap();
        let ps = |step: &serde_json::Value, field: &str| step[field].as_f64().unwrap();
        let busy: f64 = of_core.iter().map(|step| ps(step, "end_ps") - ps(step, "start_ps")).sum();
        let share = busy / (ps(&of_core[9], "end_ps") - ps(&of_core[0], "start_ps"));
        let off = f64::from(steps.busy_ppm.unwrap()) / 1e6 - share;
        assert!(off.abs() < 0.02, "{share}: {steps:?}");
        // What the core does not work, it waits for input: all but the first step do.
        let input = f64::from(steps.input_ppm.unwrap()) / 1e6;
        assert!((input - (1.0 - share)).abs() < 0.1, "{input} {share}");
        let numbered = steps.numbered.unwrap();
        assert_eq!((steps.count, numbered.first, numbered.last), (10, 0, 9));
        let begin = truth["hosts"][0]["profile_start_time_ns"].as_i64().unwrap();
        assert_eq!(numbered.last_start_ns - begin, of_core[9]["start_ps"].as_i64().unwrap() / 1000);
    }

    #[test]
    fn a_trace_without_a_core_tells_of_marked_steps_alone() {
        let (steps, truth) = vector("real_jax_cpu");
        let marked = truth["steps"].as_array().unwrap();
        assert_eq!((steps.input_ppm, steps.busy_ppm, steps.count), (None, None, marked.len() as u64));
        let numbered = steps.numbered.unwrap();
        let number = |step: Option<&serde_json::Value>| step.unwrap()["step_num"].as_i64().unwrap();
        assert_eq!((numbered.first, numbered.last), (number(marked.first()), number(marked.last())));
        let begin = truth["profile_start_time_ns"].as_i64().unwrap();
        let last = (numbered.last_start_ns - begin) * 1000;
        let bounds =
            marked.last().map(|step| (step["outer_start_ps"].as_i64(), step["outer_end_ps"].as_i64()));
        assert!(bounds.is_some_and(|(from, to)| Some(last) >= from && Some(last) <= to), "{last} {bounds:?}");
    }

    #[test]
    fn a_reading_ends_in_time() {
        let clock = Arc::new(ManualClock::at(Timestamp(0)));
        let file = tempfile::tempfile().unwrap();
        let until = clock.uptime() + LIMIT;
        let mut limited = LimitedFile { file, clock: clock.clone(), until };
        assert_eq!(limited.read(&mut [0]).unwrap(), 0);
        clock.advance(LIMIT + Duration::from_nanos(1));
        assert_eq!(limited.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
