//! Segments are kept, found, bounded and removed with what the index says of them.

use std::io::Write as _;

use model::{job::JobKind, time::ManualClock};

use super::*;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000_000);
const SECOND: i64 = 1_000_000_000;

struct SegmentFolder {
    state: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl SegmentFolder {
    fn new() -> Self {
        Self { state: tempfile::tempdir().unwrap(), clock: Arc::new(ManualClock::at(NOW)) }
    }

    fn open(&self, max_bytes: u64) -> Segments {
        let db = Arc::new(StateDb::new(self.state.path(), self.clock.clone()));
        let min_free = MinFree::Size(Bytes::new(0));
        let limits = SegmentLimits {
            keep: Duration::from_secs(60),
            keep_continuous: Duration::from_secs(10),
            max_bytes,
            min_free,
        };
        Segments::open(self.state.path(), db, limits, self.clock.clone())
    }

    fn files(&self) -> usize {
        fs::read_dir(self.state.path().join("recorder")).map_or(0, Iterator::count)
    }
}

fn process(pid: u32) -> RecordedProcess {
    RecordedProcess {
        workload: WorkloadId { kind: JobKind::Slurm, job: "7".into() },
        process: ProcessKey { pid, start_ticks: 5 },
        port: 9012,
        uid: 1000,
    }
}

fn keep(segments: &Segments, start: i64, bytes: &[u8]) -> StoredSegment {
    keep_of("periodic", segments, start, bytes)
}

fn keep_of(strategy: &str, segments: &Segments, start: i64, bytes: &[u8]) -> StoredSegment {
    let mut raw = segments.begin().unwrap();
    raw.write_all(bytes).unwrap();
    let window = (Timestamp(NOW.0 + start * SECOND), Timestamp(NOW.0 + (start + 2) * SECOND));
    let facts = SegmentFacts { strategy: strategy.into(), events: 3, ..SegmentFacts::default() };
    segments.keep(raw, process(1), window, facts).unwrap()
}

/// Bytes that do not compress.
fn noise(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..bytes).map(|_| random.u8(..)).collect()
}

#[test]
fn a_segment_is_read_as_it_was_kept_and_outlives_its_agent() {
    let folder = SegmentFolder::new();
    let bytes = b"trace ".repeat(5000);
    let kept = keep(&folder.open(1 << 20), 0, &bytes);
    assert!(kept.bytes < kept.trace_bytes && kept.trace_bytes == bytes.len() as u64);
    let segments = folder.open(1 << 20);
    let listed = segments.list(&SegmentQuery::default()).unwrap();
    assert_eq!(listed, [kept]);
    let unpacked = segments.unpack(&listed[0]).unwrap();
    assert_eq!(fs::read(unpacked.path()).unwrap(), bytes);
    drop(unpacked);
    assert_eq!(folder.files(), 1);
}

#[test]
fn what_a_dead_agent_had_half_done_goes_at_the_next_start() {
    let folder = SegmentFolder::new();
    let segments = folder.open(1 << 20);
    let (kept, lost) = (keep(&segments, 0, b"a"), keep(&segments, 10, b"b"));
    // A trace that arrived by half, a file that the index does not know, and a row whose file is gone.
    fs::write(folder.state.path().join("recorder/16.0.raw"), "half").unwrap();
    fs::write(folder.state.path().join("recorder/17.xplane.pb.gz"), "x").unwrap();
    fs::remove_file(segments.path(lost.number)).unwrap();
    drop(segments);
    let segments = folder.open(1 << 20);
    assert_eq!(segments.list(&SegmentQuery::default()).unwrap(), [kept]);
    assert_eq!(folder.files(), 1);
}

#[test]
fn age_and_bytes_are_bounded_and_the_newest_stays() {
    let folder = SegmentFolder::new();
    let segments = folder.open(5000);
    let noise = noise(3000);
    for start in 0..3 {
        folder.clock.advance(Duration::from_secs(10));
        keep(&segments, start * 10, &noise);
    }
    let starts = |segments: &Segments| -> Vec<i64> {
        let listed = segments.list(&SegmentQuery::default()).unwrap();
        listed.iter().map(|segment| (segment.start.0 - NOW.0) / SECOND).collect()
    };
    assert_eq!(starts(&segments), [20], "there is room for one");
    keep(&segments, 30, &[noise.clone(), noise.clone()].concat());
    assert_eq!(starts(&segments), [30], "the newest stays, larger than all may be");
    folder.clock.advance(Duration::from_secs(70));
    segments.prune().unwrap();
    assert_eq!((starts(&segments), folder.files()), (Vec::new(), 0));
}

#[test]
fn what_was_kept_before_the_clock_was_set_back_is_the_oldest() {
    let folder = SegmentFolder::new();
    let segments = folder.open(8000);
    let noise = noise(3000);
    let starts = || -> Vec<i64> {
        let mut listed = segments.list(&SegmentQuery::default()).unwrap();
        listed.sort_by_key(|segment| segment.order);
        listed.iter().map(|segment| (segment.start.0 - NOW.0) / SECOND).collect()
    };
    keep(&segments, 0, &noise);
    keep(&segments, 10, &noise);
    folder.clock.step(-3600 * SECOND);
    let back = keep(&segments, -3590, &noise);
    assert_eq!((back.order, starts()), (3, vec![10, -3590]), "the first that was kept goes, not what is new");
    keep(&segments, -3580, &noise);
    assert_eq!(starts(), [-3590, -3580]);
    // What was kept before something old is old, although its time is still to come.
    let limits = *segments.limits();
    segments.set_limits(SegmentLimits { max_bytes: 1 << 20, ..limits });
    keep(&segments, 20, &noise);
    keep(&segments, -3570, &noise);
    folder.clock.advance(Duration::from_secs(95));
    segments.prune().unwrap();
    assert_eq!(starts(), Vec::<i64>::new());
}

#[test]
fn a_gap_after_the_clock_was_set_back_is_one_of_its_own() {
    let folder = SegmentFolder::new();
    let segments = folder.open(1 << 20);
    for start in [0, 10, -3600, -3590] {
        let at = |second: i64| Timestamp(NOW.0 + second * SECOND);
        let reason = "off".to_owned();
        let gap =
            SegmentGap { process: process(1), start: at(start), stop: at(start + 2), windows: 1, reason };
        segments.note_gap(&gap);
    }
    let seen: Vec<_> = segments.gaps(&SegmentQuery::default()).unwrap();
    let seen: Vec<_> = seen.iter().map(|gap| ((gap.start.0 - NOW.0) / SECOND, gap.windows)).collect();
    assert_eq!(seen, [(-3600, 2), (0, 2)]);
}

#[test]
fn a_query_gives_what_overlaps_it() {
    let folder = SegmentFolder::new();
    let segments = folder.open(1 << 20);
    for start in [0, 10, 20] {
        keep(&segments, start, b"x");
    }
    let count = |from: i64, to: i64, job: &str| {
        let at = |second: i64| Some(Timestamp(NOW.0 + second * SECOND));
        let query = SegmentQuery { from: at(from), to: at(to), job: Some(job.to_owned()) };
        segments.list(&query).unwrap().len()
    };
    assert_eq!((count(1, 11, "7"), count(2, 10, "7"), count(0, 99, "7"), count(0, 99, "8")), (2, 0, 3, 0));
    let of_kind = |job: &str| count(0, 99, job);
    assert_eq!((of_kind("slurm:7"), of_kind("run:7"), of_kind("slurm:8")), (3, 0, 0));
}

#[test]
fn neighbouring_gaps_of_one_reason_are_one() {
    let folder = SegmentFolder::new();
    let segments = folder.open(1 << 20);
    let note = |start: i64, reason: &str| {
        let at = |second: i64| Timestamp(NOW.0 + second * SECOND);
        let reason = reason.to_owned();
        let gap =
            SegmentGap { process: process(1), start: at(start), stop: at(start + 2), windows: 1, reason };
        segments.note_gap(&gap);
    };
    for (start, reason) in [(0, "a"), (10, "a"), (20, "b"), (30, "a")] {
        note(start, reason);
    }
    keep(&segments, 40, b"x");
    note(50, "a");
    let gaps = segments.gaps(&SegmentQuery::default()).unwrap();
    let seen: Vec<_> =
        gaps.iter().map(|gap| ((gap.start.0 - NOW.0) / SECOND, gap.windows, gap.reason.as_str())).collect();
    assert_eq!(seen, [(0, 2, "a"), (20, 1, "b"), (30, 1, "a"), (50, 1, "a")]);
}

#[test]
fn a_choice_replaces_the_one_before_and_ends_what_was_known_of_other_programs() {
    let folder = SegmentFolder::new();
    let segments = folder.open(1 << 20);
    segments.note_foreign_use(process(1).process, "busy").unwrap();
    segments.note_foreign_use(process(2).process, "busy").unwrap();
    let choice = |is_on| RecorderChoice { workload: process(1).workload, uid: 1000, is_on, strategy: None };
    segments.choose(&choice(false), &[]).unwrap();
    segments.choose(&choice(true), &[process(1).process]).unwrap();
    drop(segments);
    let segments = folder.open(1 << 20);
    assert_eq!(segments.choices().unwrap(), [choice(true)]);
    let left: Vec<u32> = segments.foreign_uses().unwrap().keys().map(|process| process.pid).collect();
    assert_eq!(left, [2]);
}

#[test]
fn what_was_recorded_continuously_goes_earlier_and_the_end_of_each_process_is_known() {
    let folder = SegmentFolder::new();
    let segments = folder.open(1 << 20);
    keep_of("periodic", &segments, 0, b"window");
    keep_of("drain", &segments, 2, b"drained");
    keep_of("ring", &segments, 4, b"ring");
    assert_eq!(
        segments.ends().unwrap(),
        BTreeMap::from([(process(1).process, Timestamp(NOW.0 + 6 * SECOND))])
    );
    folder.clock.advance(Duration::from_secs(15));
    segments.prune().unwrap();
    let kept: Vec<String> = segments
        .list(&SegmentQuery::default())
        .unwrap()
        .into_iter()
        .map(|segment| segment.facts.strategy)
        .collect();
    assert_eq!(kept, ["periodic", "ring"]);
    let gap = SegmentGap {
        process: process(1),
        start: Timestamp(NOW.0),
        stop: Timestamp(NOW.0 + 9 * SECOND),
        windows: 0,
        reason: "off".into(),
    };
    segments.note_gap(&gap);
    assert_eq!(segments.ends().unwrap()[&process(1).process], gap.stop);
}

#[test]
fn a_damaged_segment_is_said_to_be_damaged() {
    let folder = SegmentFolder::new();
    let segments = folder.open(1 << 20);
    let kept = keep(&segments, 0, &noise(3000));
    let path = segments.path(kept.number);
    let mut bytes = fs::read(&path).unwrap();
    for damage in [bytes.len() / 2, bytes.len() - 6] {
        bytes[damage] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = segments.unpack(&kept).unwrap_err();
        assert!(matches!(error, SegmentError::Damaged { .. }), "{error}");
        bytes[damage] ^= 1;
    }
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(segments.unpack(&kept).unwrap_err(), SegmentError::Damaged { .. }));
    assert_eq!(folder.files(), 1);
}

#[test]
fn a_disk_that_is_to_stay_free_is_left_alone() {
    let folder = SegmentFolder::new();
    let segments = folder.open(1 << 20);
    let min_free = MinFree::Size(Bytes::new(1 << 60));
    let age = Duration::from_secs(60);
    segments.set_limits(SegmentLimits { keep: age, keep_continuous: age, max_bytes: 1, min_free });
    let error = segments.begin().unwrap_err();
    assert!(error.is_no_space() && error.to_string().contains("store.min_free"), "{error}");
}

#[test]
fn a_host_that_never_recorded_has_no_database() {
    let folder = SegmentFolder::new();
    let segments = folder.open(1 << 20);
    assert_eq!(segments.choices().unwrap(), []);
    segments.prune().unwrap();
    assert_eq!(fs::read_dir(folder.state.path()).unwrap().count(), 0);
}
