//! Marks in a real database: numbers, losses, users, limits.

use model::{job::JobKind, time::ManualClock};
use tempfile::TempDir;

use super::*;

struct Host {
    _folder: TempDir,
    clock: Arc<ManualClock>,
    marks: Marks,
}

const KEEP: Duration = Duration::from_secs(3600);

fn limits(max_bytes: u64) -> MarkLimits {
    MarkLimits { keep: KEEP, max_bytes, min_free: MinFree::Share(0) }
}

impl Host {
    fn new(max_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(Timestamp(1_700_000_000_000_000_000)));
        let db = Arc::new(StateDb::new(folder.path(), clock.clone()));
        let marks = Marks::new(folder.path(), db, limits(max_bytes), clock.clone());
        Self { _folder: folder, clock, marks }
    }

    fn append(&self, batch: MarkBatch) -> Appended {
        self.marks.append(&[batch]).unwrap()[0]
    }

    /// Name, marks, lost, refused and removed of each job of a user.
    fn counts(&self, uid: u32) -> Vec<(String, u64, u64, u64, u64)> {
        let jobs = self.marks.jobs(None, Some(uid)).unwrap();
        jobs.into_iter().map(|job| (job.name, job.marks, job.lost, job.refused, job.removed)).collect()
    }
}

fn mark(job: &str, at: i64) -> NewMark {
    NewMark { job: job.to_owned(), workload: None, at: Timestamp(at), payload: format!(r#"{{"at":{at}}}"#) }
}

fn batch(uid: u32, recorder: &str, first: u64, marks: &[Option<NewMark>]) -> MarkBatch {
    MarkBatch {
        uid,
        numbered: Some((recorder.to_owned(), first)),
        marks: marks.to_vec(),
        refused_of: Vec::new(),
    }
}

fn several(job: &str, count: i64) -> Vec<Option<NewMark>> {
    (0..count).map(|at| Some(mark(job, at))).collect()
}

#[test]
fn what_is_sent_again_is_stored_once_and_what_never_came_is_counted() {
    let host = Host::new(1 << 20);
    let first = host.append(batch(7, "r", 1, &several("j", 3)));
    assert_eq!(first, Appended { stored: 3, added: 3, doubled: 0, lost: 0 });
    let again = host.append(batch(7, "r", 2, &several("j", 4)));
    assert_eq!(again, Appended { stored: 5, added: 2, doubled: 2, lost: 0 });
    let gap = host.append(batch(7, "r", 9, &several("j", 1)));
    assert_eq!(gap, Appended { stored: 9, added: 1, doubled: 0, lost: 3 });
    // What was given up comes too late.
    let late = host.append(batch(7, "r", 6, &several("j", 2)));
    assert_eq!(late, Appended { stored: 9, added: 0, doubled: 2, lost: 0 });
    assert_eq!(host.counts(7), [("j".to_owned(), 6, 3, 0, 0)]);
    let read = host.marks.read(host.marks.jobs(Some("j"), None).unwrap()[0].number, 0, 100, None).unwrap();
    let times: Vec<i64> = read.iter().map(|mark| mark.at.0).collect();
    assert_eq!(times, [0, 1, 2, 2, 3, 0]);
    assert!(read.is_sorted_by_key(|mark| mark.number));
    let job = host.marks.jobs(Some("j"), None).unwrap()[0].number;
    let window = Some((Timestamp(0), Timestamp(2)));
    let times: Vec<i64> =
        host.marks.read(job, 0, 100, window).unwrap().iter().map(|mark| mark.at.0).collect();
    assert_eq!(times, [1, 2, 2]);
}

#[test]
fn the_highest_numbers_lose_more_than_a_job_can_count() {
    let host = Host::new(1 << 20);
    let top = i64::MAX.unsigned_abs();
    for recorder in ["a", "b"] {
        let appended = host.append(batch(7, recorder, top, &several("j", 1)));
        assert_eq!(appended, Appended { stored: top, added: 1, doubled: 0, lost: top - 1 });
    }
    assert_eq!(host.counts(7), [("j".to_owned(), 2, top, 0, 0)]);
}

#[test]
fn losses_before_the_first_mark_are_those_of_its_job() {
    let host = Host::new(1 << 20);
    host.append(batch(7, "r", 4, &[None, None]));
    assert_eq!(host.counts(7), []);
    host.append(batch(7, "r", 6, &[Some(mark("j", 1)), None]));
    assert_eq!(host.counts(7), [("j".to_owned(), 1, 3, 3, 0)]);
}

#[test]
fn a_refused_mark_without_a_number_is_one_of_its_job() {
    let host = Host::new(1 << 20);
    let refused =
        |job: &str| MarkBatch { uid: 7, numbered: None, marks: vec![None], refused_of: vec![job.to_owned()] };
    host.append(refused("j"));
    host.append(MarkBatch { marks: several("j", 2), refused_of: Vec::new(), ..refused("j") });
    host.append(refused("j"));
    host.append(refused("k"));
    let counts = [("k".to_owned(), 0, 0, 1, 0), ("j".to_owned(), 2, 0, 2, 0)];
    assert_eq!(host.counts(7), counts);
}

#[test]
fn users_and_recorders_do_not_mix() {
    let host = Host::new(1 << 20);
    for (uid, recorder) in [(7, "r"), (8, "r"), (7, "s")] {
        assert_eq!(host.append(batch(uid, recorder, 1, &several("j", 2))).added, 2);
    }
    let refused_of = Vec::new();
    let unnumbered = MarkBatch { uid: 7, numbered: None, marks: several("j", 2), refused_of };
    assert_eq!(host.append(unnumbered.clone()), Appended { added: 2, ..Appended::default() });
    host.append(unnumbered);
    assert_eq!(host.counts(7), [("j".to_owned(), 8, 0, 0, 0)]);
    assert_eq!(host.counts(8), [("j".to_owned(), 2, 0, 0, 0)]);
    assert_eq!(host.marks.jobs(Some("j"), None).unwrap().len(), 2);
    assert_eq!(host.marks.jobs(Some("k"), None).unwrap(), []);
}

#[test]
fn a_job_is_found_by_its_workload_too() {
    let host = Host::new(1 << 20);
    let workload = WorkloadId { kind: JobKind::Slurm, job: "12".to_owned(), uid: 7 };
    let with = NewMark { workload: Some(workload.clone()), ..mark("name:x", 1) };
    host.append(batch(7, "r", 1, &[Some(with), Some(mark("name:x", 2)), Some(mark("13", 3))]));
    for name in ["name:x", "12", "slurm:12"] {
        let jobs = host.marks.jobs(Some(name), Some(7)).unwrap();
        assert_eq!(jobs.len(), 1, "{name}");
        assert_eq!((jobs[0].name.as_str(), jobs[0].workload.as_ref()), ("name:x", Some(&workload)));
    }
    for name in ["run:12", "slurm:13", "slurm:", "run:name:x"] {
        assert_eq!(host.marks.jobs(Some(name), Some(7)).unwrap(), [], "{name}");
    }
}

#[test]
fn a_named_run_is_found_as_the_registry_calls_it() {
    let host = Host::new(1 << 20);
    // A command of `tpuscope run --name mk` without chips: the mark has the name, and no workload.
    host.append(batch(7, "r", 1, &several("mk", 1)));
    assert_eq!(host.marks.jobs(Some("run:mk"), Some(7)).unwrap().len(), 1);
    assert_eq!(host.marks.jobs(Some("slurm:mk"), Some(7)).unwrap(), []);
}

#[test]
fn the_job_of_a_workload_is_that_of_its_user() {
    let host = Host::new(1 << 20);
    let of = |uid| WorkloadId { kind: JobKind::Run, job: "clash".to_owned(), uid };
    for uid in [7, 8] {
        let with = NewMark { workload: Some(of(uid)), ..mark("clash", 1) };
        host.append(batch(uid, "r", 1, &[Some(with)]));
    }
    for uid in [7, 8] {
        let job = host.marks.last_of(&of(uid)).unwrap().unwrap();
        assert_eq!((job.uid, job.workload), (uid, Some(of(uid))));
    }
    assert_eq!(host.marks.last_of(&of(9)).unwrap(), None);
}

#[test]
fn what_is_stored_outlives_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp(5)));
    let open = || {
        let db = Arc::new(StateDb::new(folder.path(), clock.clone()));
        Marks::new(folder.path(), db, limits(1 << 20), clock.clone())
    };
    open().append(&[batch(7, "r", 1, &several("j", 3))]).unwrap();
    let appended = open().append(&[batch(7, "r", 3, &several("j", 2))]).unwrap();
    assert_eq!(appended, [Appended { stored: 4, added: 1, doubled: 1, lost: 0 }]);
}

#[test]
fn a_job_that_is_silent_for_too_long_is_forgotten() {
    let host = Host::new(1 << 20);
    host.append(batch(7, "r", 1, &several("old", 3)));
    host.clock.advance(KEEP);
    host.append(batch(7, "s", 1, &several("new", 3)));
    host.marks.prune().unwrap();
    assert_eq!(host.counts(7).len(), 2);
    host.clock.advance(Duration::from_nanos(1));
    host.marks.prune().unwrap();
    assert_eq!(host.counts(7), [("new".to_owned(), 3, 0, 0, 0)]);
    // The recorder is forgotten too: its numbers begin again.
    assert_eq!(host.append(batch(7, "r", 1, &several("old", 1))).added, 1);
}

#[test]
fn who_has_the_most_bytes_makes_room() {
    let host = Host::new(16 << 10);
    host.append(batch(8, "r", 1, &several("small", 10)));
    host.append(batch(7, "r", 1, &several("first", 100)));
    host.clock.advance(Duration::from_secs(1));
    host.append(batch(7, "s", 1, &several("second", 300)));
    host.marks.prune().unwrap();
    assert_eq!(host.counts(8), [("small".to_owned(), 10, 0, 0, 0)]);
    let [(name, marks, _, _, removed)] = &host.counts(7)[..] else { panic!("the silent job goes first") };
    assert_eq!((name.as_str(), marks + removed), ("second", 300));
    assert!((150..300).contains(marks), "{marks}");
    let job = host.marks.jobs(Some("second"), None).unwrap().remove(0);
    assert_eq!(host.marks.job(job.number).unwrap().unwrap(), job);
    let oldest = host.marks.read(job.number, 0, 1, None).unwrap()[0].at;
    assert_eq!(oldest.0.unsigned_abs(), *removed, "the oldest marks go");
    host.marks.set_limits(limits(0));
    host.marks.prune().unwrap();
    assert_eq!((host.counts(7), host.counts(8)), (vec![], vec![]));
}

#[test]
fn a_disk_that_is_nearly_full_takes_no_marks() {
    let host = Host::new(1 << 20);
    host.marks.set_limits(MarkLimits { min_free: MinFree::Size(Bytes::new(u64::MAX)), ..limits(1 << 20) });
    let refused = host.marks.append(&[batch(7, "r", 1, &several("j", 1))]).unwrap_err();
    assert!(matches!(refused, MarksError::LowDisk { .. }), "{refused}");
}
