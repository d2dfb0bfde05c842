//! Ledgers of stored marks beside the calculator over the same entries.

use goodput::answer::JobAnswer;
use model::{time::ManualClock, workload::WorkloadId};
use store::{
    marks::{MarkBatch, MarkLimits, NewMark},
    settings::MinFree,
    state::StateDb,
};
use tempfile::TempDir;

use super::*;

const START: i64 = 1_772_323_200;

struct Host {
    _folder: TempDir,
    clock: Arc<ManualClock>,
    marks: Arc<Marks>,
    ledgers: MarkLedgers,
    numbers: BTreeMap<&'static str, u64>,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(Timestamp(START * 1_000_000_000)));
        let db = Arc::new(StateDb::new(folder.path(), clock.clone()));
        let marks = Arc::new(Marks::new(folder.path(), db, limits(64 << 20), clock.clone()));
        let ledgers = MarkLedgers::new(Arc::clone(&marks), clock.clone());
        Self { _folder: folder, clock, marks, ledgers, numbers: BTreeMap::new() }
    }

    /// A mark of the job `j` at a second after the start, in the clock of its recorder.
    fn mark(&mut self, recorder: &'static str, second: i64, payload: &str) {
        let number = self.numbers.entry(recorder).or_insert(0);
        *number += 1;
        let mark = NewMark {
            job: "j".into(),
            workload: None::<WorkloadId>,
            at: Timestamp((START + second) * 1_000_000_000),
            payload: payload.replace("@", &format!("{}.0", START + second)),
        };
        let numbered = Some((recorder.to_owned(), *number));
        self.marks
            .append(&[MarkBatch { uid: 7, numbered, marks: vec![Some(mark)], refused_of: Vec::new() }])
            .unwrap();
    }

    fn step(&mut self, recorder: &'static str, second: i64, step: i64) {
        self.mark(recorder, second, &format!(r#"{{"step_count":{step},"step_start_time":@}}"#));
    }

    /// A job start, and ten steps of two seconds.
    fn ten_steps(&mut self) {
        self.mark("a", 0, r#"{"job_start_time":@}"#);
        for step in 0..10 {
            self.step("a", 10 + 2 * step, step);
        }
    }

    fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    fn job(&self) -> i64 {
        self.marks.jobs(Some("j"), None).unwrap()[0].number
    }

    fn asked(&self, ledgers: &MarkLedgers, ledger: MarkLedger) -> JobAnswer {
        let (_, answer) = ledgers.ask(self.job(), &question(ledger)).unwrap();
        let answer = match answer {
            MarkAnswer::Exact(answer) => answer,
            MarkAnswer::Strict(answer) => answer.answer,
        };
        match answer {
            LedgerAnswer::Job(answer) => *answer,
            other => panic!("{other:?}"),
        }
    }

    /// The exact answer of the ledgers, which must be that of ledgers that read everything now.
    fn exact(&self) -> JobAnswer {
        let kept = self.asked(&self.ledgers, MarkLedger::Exact);
        let new = MarkLedgers::new(Arc::clone(&self.marks), self.clock.clone());
        let read = self.asked(&new, MarkLedger::Exact);
        let json = |answer: &JobAnswer| serde_json::to_value(answer).unwrap();
        assert_eq!(json(&kept), json(&read));
        kept
    }
}

fn limits(max_bytes: u64) -> MarkLimits {
    MarkLimits { keep: Duration::from_secs(1 << 40), max_bytes, min_free: MinFree::Share(0) }
}

fn question(ledger: MarkLedger) -> MarkLedgerQuestion {
    let labels = SeriesLabels {
        location: String::new(),
        workload_id: "j".into(),
        replica_id: String::new(),
        accelerator_type: String::new(),
        cluster_name: None,
    };
    MarkLedgerQuestion { ledger, now: None, window: None, elastic: false, labels }
}

#[test]
fn each_question_reads_only_on_and_says_the_same() {
    let mut host = Host::new();
    host.ten_steps();
    host.advance(30);
    let answer = host.exact();
    assert_eq!((answer.productive_seconds, answer.total_elapsed_seconds), (18.0, 30.0));
    host.step("a", 30, 10);
    host.step("a", 32, 11);
    host.advance(10);
    let answer = host.exact();
    assert_eq!((answer.productive_seconds, answer.total_elapsed_seconds), (22.0, 40.0));
    // A mark of another recorder that was sent late.
    host.mark("b", 5, r#"{"tpu_init_start_time":@}"#);
    host.mark("b", 9, r#"{"tpu_init_end_time":@}"#);
    let answer = host.exact();
    assert_eq!(answer.unproductive_seconds.seconds(goodput::badput::BadputType::TpuInitialization), 4.0);
    host.mark("a", 40, r#"{"job_end_time":@}"#);
    host.advance(500);
    let answer = host.exact();
    assert!(answer.period.job_end_logged);
    assert_eq!(answer.total_elapsed_seconds, 40.0);
}

#[test]
fn a_clock_that_is_set_back_reorders_nothing() {
    let mut host = Host::new();
    host.ten_steps();
    host.clock.step(-3600 * 1_000_000_000);
    for step in 10..15 {
        host.step("a", 10 + 2 * step - 3600, step);
    }
    host.advance(40);
    let answer = host.exact();
    // 13 steps of two seconds, of which the start-up takes a part; the step across the change has no length.
    assert!((25.5..=26.0).contains(&answer.productive_seconds), "{answer:?}");
    assert_eq!((answer.disruptions, answer.last_recorded_step), (0, 14));
    let strict = host.asked(&host.ledgers, MarkLedger::Strict);
    assert_eq!((strict.disruptions, strict.last_recorded_step), (0, 14));
    assert!((25.5..=26.0).contains(&strict.productive_seconds), "{strict:?}");
    assert!((36.0..36.1).contains(&strict.total_elapsed_seconds), "the clock goes on from 28 s: {strict:?}");
}

#[test]
fn a_clock_that_is_right_again_is_believed() {
    let mut clock = RecorderClock { latest: 100 * SET_BACK, set_back: 0 };
    let mut next = |seconds: i64| {
        clock.next(seconds * SET_BACK);
        (clock.latest / SET_BACK, clock.set_back / SET_BACK)
    };
    assert_eq!(next(101), (101, 0));
    assert_eq!(next(41), (101, 60));
    assert_eq!(next(43), (103, 60));
    assert_eq!(next(3), (103, 100));
    assert_eq!(next(120), (120, 0));
    let mut clock = RecorderClock { latest: 100 * SET_BACK, set_back: 0 };
    clock.next(100 * SET_BACK - 5);
    assert_eq!((clock.latest, clock.set_back), (100 * SET_BACK, 0), "two threads");
}

#[test]
fn a_window_of_the_strict_ledger_ends_at_the_present() {
    let mut host = Host::new();
    host.ten_steps();
    host.advance(60);
    let at = |second: i64| Micros((START + second) * 1_000_000);
    let window = MarkLedgerQuestion { window: Some((at(0), at(1_000_000))), ..question(MarkLedger::Strict) };
    let (_, MarkAnswer::Strict(answer)) = host.ledgers.ask(host.job(), &window).unwrap() else { panic!() };
    let LedgerAnswer::Window(answer) = answer.answer else { panic!("a window") };
    assert_eq!(answer.total_seconds, 60.0);
}

#[test]
fn a_job_of_years_is_answered_from_its_start() {
    let mut host = Host::new();
    host.ten_steps();
    let day = 86_400;
    host.step("a", 400 * day, 10);
    host.step("a", 400 * day + 2, 11);
    host.advance(u64::try_from(400 * day).unwrap() + 4);
    let answer = host.exact();
    assert_eq!(answer.total_elapsed_seconds, 400.0 * 86_400.0 + 4.0);
    assert_eq!(answer.last_recorded_step, 11);
}

#[test]
fn windows_and_past_times_are_answered_without_the_kept_state() {
    let mut host = Host::new();
    host.ten_steps();
    host.advance(60);
    let before = host.exact();
    let at = |second: i64| Micros((START + second) * 1_000_000);
    let window = MarkLedgerQuestion { window: Some((at(11), at(20))), ..question(MarkLedger::Exact) };
    let (_, MarkAnswer::Exact(LedgerAnswer::Window(answer))) = host.ledgers.ask(host.job(), &window).unwrap()
    else {
        panic!("a window")
    };
    assert_eq!((answer.total_seconds, answer.goodput_percent), (8.0, 100.0));
    let past = MarkLedgerQuestion { now: Some(at(21)), ..question(MarkLedger::Exact) };
    let (_, MarkAnswer::Exact(LedgerAnswer::Job(answer))) = host.ledgers.ask(host.job(), &past).unwrap()
    else {
        panic!("a job")
    };
    assert_eq!((answer.total_elapsed_seconds, answer.productive_seconds), (21.0, 10.0));
    let json = |answer: &JobAnswer| serde_json::to_value(answer).unwrap();
    assert_eq!(json(&host.exact()), json(&before));
}

#[test]
fn a_part_of_a_job_is_read_as_the_whole_job_says_it() {
    let mut host = Host::new();
    host.ten_steps();
    host.advance(60);
    let at = |second: i64| Micros((START + second) * 1_000_000);
    let window = (at(11), at(20));
    let question = MarkLedgerQuestion { window: Some(window), ..question(MarkLedger::Exact) };
    let (_, MarkAnswer::Exact(whole)) = host.ledgers.ask(host.job(), &question).unwrap() else { panic!() };
    let mut part = JobLog::of_window(window);
    part.read_new(&host.marks, host.job()).unwrap();
    assert_eq!(part.log.len(), 5);
    let MarkAnswer::Exact(read) = part.answer(&question, at(60)) else { panic!() };
    assert_eq!(serde_json::to_value(read).unwrap(), serde_json::to_value(whole).unwrap());
}

#[test]
fn marks_that_were_removed_are_not_remembered() {
    let mut host = Host::new();
    host.ten_steps();
    host.advance(60);
    host.exact();
    let bytes = 11 * (40 + 48);
    host.marks.set_limits(limits(bytes));
    host.marks.prune().unwrap();
    let question = question(MarkLedger::Exact);
    let (row, answer) = host.ledgers.ask(host.job(), &question).unwrap();
    assert!(row.removed > 0 && row.marks + row.removed == 11, "{row:?}");
    assert!(
        matches!(answer, MarkAnswer::Exact(LedgerAnswer::Failed(_))),
        "the job start is gone: {answer:?}"
    );
    let number = host.job();
    host.marks.set_limits(limits(0));
    host.marks.prune().unwrap();
    assert!(matches!(host.ledgers.ask(number, &question), Err(MarkLedgerError::Gone)));
    assert!(host.ledgers.kept().is_empty());
}

#[test]
fn what_nobody_asks_about_is_forgotten() {
    let mut host = Host::new();
    host.ten_steps();
    host.advance(60);
    host.exact();
    host.advance(KEEP.as_secs() - 1);
    host.ledgers.forget_idle();
    assert_eq!(host.ledgers.kept().len(), 1);
    host.advance(1);
    host.ledgers.forget_idle();
    assert!(host.ledgers.kept().is_empty());
}

#[test]
fn the_logs_that_are_kept_fit_into_the_limit() {
    let host = Host::new();
    for job in 1..=3 {
        host.ledgers.log(job);
        host.advance(1);
        host.ledgers.keep(job, MAX_BYTES / 2);
    }
    let kept: Vec<i64> = host.ledgers.kept().keys().copied().collect();
    assert_eq!(kept, [2, 3]);
    host.ledgers.keep(2, MAX_BYTES + 1);
    assert_eq!(host.ledgers.kept().len(), 1, "the one that was just asked about stays");
}
