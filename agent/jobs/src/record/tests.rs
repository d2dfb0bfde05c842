//! Tests of the merging rule: stories as they happen, and properties of any order of events.

use proptest::prelude::*;

use super::*;

fn slurm() -> JobRecord {
    job(JobKind::Slurm)
}

fn job(kind: JobKind) -> JobRecord {
    JobRecord::new(JobKey { kind, id: "12".into(), ..JobKey::default() })
}

fn process(pid: u32) -> ProcessKey {
    ProcessKey { pid, start_ticks: 1 }
}

fn seen(pids: &[u32]) -> Happening {
    let processes = pids.iter().copied().map(process).collect();
    Happening::Seen(Sighting { processes, chips: vec![ChipIndex(0)], ..Sighting::default() })
}

fn hook_started() -> Happening {
    Happening::HookStarted(JobDescription::default())
}

fn run_started(pid: u32) -> Happening {
    Happening::RunStarted(JobDescription::default(), process(pid))
}

fn tell(job: &mut JobRecord, attempt: Option<u32>, at: i64, what: Happening) -> Option<u32> {
    job.apply(&AttemptEvent { attempt, at: Timestamp(at), what })
}

/// Number, start, end.
type Shown = (u32, Option<i64>, Option<(i64, Ending)>);

fn shown(job: &JobRecord) -> Vec<Shown> {
    let end = |end: AttemptEnd| (end.at.0, end.how);
    job.attempts
        .iter()
        .map(|attempt| (attempt.number, attempt.start.map(|at| at.0), attempt.end.map(end)))
        .collect()
}

#[test]
fn hooks_say_when_a_job_ran_and_processes_between_them_change_nothing() {
    let mut job = slurm();
    tell(&mut job, Some(0), 10, hook_started());
    tell(&mut job, Some(0), 20, seen(&[7]));
    tell(&mut job, Some(0), 30, Happening::Gone);
    assert_eq!(shown(&job), [(0, Some(10), None)], "between two steps");
    tell(&mut job, Some(0), 40, seen(&[8]));
    tell(&mut job, Some(0), 50, Happening::HookEnded(Ending::Exit(3), Vec::new()));
    let ended = [(0, Some(10), Some((50, Ending::Exit(3))))];
    assert_eq!(shown(&job), ended);
    tell(&mut job, Some(0), 60, seen(&[8]));
    tell(&mut job, Some(0), 70, Happening::Gone);
    assert_eq!(shown(&job), ended, "a process that was left over");
}

#[test]
fn a_hook_that_comes_late_or_twice_adds_what_was_not_known() {
    let mut job = slurm();
    tell(&mut job, Some(0), 20, seen(&[7]));
    tell(&mut job, Some(0), 10, hook_started());
    tell(&mut job, Some(0), 11, hook_started());
    assert_eq!(shown(&job), [(0, Some(10), None)]);
    tell(&mut job, Some(0), 50, Happening::HookEnded(Ending::Exit(0), Vec::new()));
    tell(&mut job, Some(0), 50, Happening::HookEnded(Ending::Exit(0), Vec::new()));
    tell(&mut job, Some(0), 9, hook_started());
    assert_eq!(shown(&job), [(0, Some(9), Some((50, Ending::Exit(0))))]);
}

#[test]
fn a_hook_that_knows_no_number_runs_twice_for_one_attempt() {
    let mut job = slurm();
    assert_eq!(tell(&mut job, None, 10, hook_started()), Some(0));
    assert_eq!(tell(&mut job, None, 12, hook_started()), Some(0));
    assert_eq!(shown(&job), [(0, Some(10), None)]);
    tell(&mut job, None, 50, Happening::HookEnded(Ending::Exit(0), Vec::new()));
    assert_eq!(tell(&mut job, None, 60, hook_started()), Some(1), "after its end it starts again");
    assert_eq!(shown(&job), [(0, Some(10), Some((50, Ending::Exit(0)))), (1, Some(60), None)]);
    let mut seen_first = slurm();
    tell(&mut seen_first, None, 20, seen(&[7]));
    assert_eq!(tell(&mut seen_first, None, 21, hook_started()), Some(0));
}

#[test]
fn a_hook_corrects_an_end_that_was_concluded() {
    let mut job = slurm();
    tell(&mut job, None, 20, seen(&[7]));
    tell(&mut job, None, 30, Happening::Gone);
    assert_eq!(shown(&job), [(0, Some(20), Some((30, Ending::Unknown)))]);
    tell(&mut job, Some(0), 31, Happening::HookEnded(Ending::Signal(9), Vec::new()));
    assert_eq!(shown(&job), [(0, Some(20), Some((31, Ending::Signal(9))))]);
}

#[test]
fn the_end_of_a_job_never_seen_is_kept() {
    let mut job = slurm();
    tell(&mut job, Some(2), 50, Happening::HookEnded(Ending::Exit(1), Vec::new()));
    assert_eq!(shown(&job), [(2, None, Some((50, Ending::Exit(1))))]);
}

#[test]
fn the_end_of_a_requeued_job_has_the_number_of_the_next_attempt() {
    let mut job = slurm();
    tell(&mut job, Some(0), 10, hook_started());
    tell(&mut job, Some(1), 20, Happening::HookEnded(Ending::Signal(15), Vec::new()));
    assert_eq!(shown(&job), [(0, Some(10), Some((20, Ending::Requeued)))]);
    tell(&mut job, Some(1), 140, hook_started());
    tell(&mut job, Some(1), 150, Happening::HookEnded(Ending::Exit(0), Vec::new()));
    let both = [(0, Some(10), Some((20, Ending::Requeued))), (1, Some(140), Some((150, Ending::Exit(0))))];
    assert_eq!(shown(&job), both);
}

#[test]
fn the_next_attempt_ends_one_whose_end_nobody_told() {
    let mut job = slurm();
    tell(&mut job, Some(0), 10, hook_started());
    tell(&mut job, Some(1), 140, hook_started());
    assert_eq!(shown(&job), [(0, Some(10), Some((140, Ending::Requeued))), (1, Some(140), None)]);
    // Its own hook comes minutes late: a node that was away.
    tell(&mut job, Some(0), 160, Happening::HookEnded(Ending::Signal(9), Vec::new()));
    assert_eq!(shown(&job)[0], (0, Some(10), Some((160, Ending::Signal(9)))));
    assert_eq!(shown(&job)[1], (1, Some(140), None));
}

#[test]
fn processes_that_replaced_all_others_are_the_next_attempt_where_none_says_its_number() {
    let mut job = job(JobKind::Jobset);
    tell(&mut job, None, 10, seen(&[7, 8]));
    tell(&mut job, None, 20, seen(&[8]));
    tell(&mut job, None, 30, seen(&[9]));
    assert_eq!(shown(&job), [(0, Some(10), Some((30, Ending::Requeued))), (1, Some(30), None)]);
    tell(&mut job, None, 40, Happening::Gone);
    tell(&mut job, None, 50, seen(&[9]));
    assert_eq!(job.attempts.len(), 3);
}

#[test]
fn the_steps_of_a_slurm_job_are_one_attempt_without_hooks_too() {
    let mut job = slurm();
    tell(&mut job, None, 10, seen(&[7]));
    tell(&mut job, None, 20, Happening::Gone);
    tell(&mut job, None, 30, seen(&[8]));
    assert_eq!(shown(&job), [(0, Some(10), None)]);
}

#[test]
fn runs_of_one_name_may_be_beside_each_other() {
    let mut job = job(JobKind::Run);
    assert_eq!(tell(&mut job, None, 10, run_started(7)), Some(0));
    assert_eq!(tell(&mut job, None, 20, run_started(8)), Some(1));
    tell(&mut job, Some(0), 25, seen(&[70]));
    tell(&mut job, Some(0), 30, Happening::CommandEnded(Some(Ending::Exit(3))));
    assert_eq!(shown(&job), [(0, Some(10), None), (1, Some(20), None)], "a process of it is left");
    tell(&mut job, Some(0), 40, Happening::Gone);
    tell(&mut job, Some(1), 50, Happening::CommandEnded(None));
    let both = [(0, Some(10), Some((40, Ending::Exit(3)))), (1, Some(20), Some((50, Ending::Unknown)))];
    assert_eq!(shown(&job), both);
}

#[test]
fn a_reboot_ends_what_ran_when_it_was_last_heard_of() {
    let mut job = slurm();
    tell(&mut job, Some(0), 10, hook_started());
    tell(&mut job, Some(0), 20, seen(&[7]));
    tell(&mut job, None, 990, Happening::Rebooted);
    assert_eq!(shown(&job), [(0, Some(10), Some((20, Ending::NodeLost)))]);
}

#[test]
fn a_clock_that_steps_back_makes_no_end_before_a_start() {
    let mut job = slurm();
    tell(&mut job, Some(0), 5000, hook_started());
    tell(&mut job, Some(0), 1400, Happening::HookEnded(Ending::Exit(0), Vec::new()));
    assert_eq!(shown(&job), [(0, Some(5000), Some((5000, Ending::Exit(0))))]);
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        Just(hook_started()),
        (0_u32..6).prop_map(run_started),
        prop::collection::vec(0_u32..6, 1..3).prop_map(|pids| seen(&pids)),
        Just(Happening::Gone),
        Just(Happening::CommandEnded(None)),
        any::<u8>().prop_map(|code| Happening::CommandEnded(Some(Ending::Exit(code)))),
        any::<u8>().prop_map(|code| Happening::HookEnded(Ending::Exit(code), Vec::new())),
        Just(Happening::HookEnded(Ending::Requeued, Vec::new())),
        Just(Happening::Rebooted),
        Just(Happening::Silent),
    ]
}

fn events() -> impl Strategy<Value = Vec<AttemptEvent>> {
    let event = (prop::option::of(0_u32..4), 0_i64..100, happening());
    let event = event.prop_map(|(attempt, at, what)| AttemptEvent { attempt, at: Timestamp(at), what });
    prop::collection::vec(event, 1..60)
}

fn kind() -> impl Strategy<Value = JobKind> {
    prop::sample::select(vec![JobKind::Slurm, JobKind::Jobset, JobKind::Run, JobKind::Process])
}

proptest! {
    /// Whatever is said, in whatever order, with whatever clock.
    #[test]
    fn attempts_stay_in_order_and_whole((kind, events) in (kind(), events())) {
        let mut job = job(kind);
        for event in &events {
            let about = job.apply(event);
            if let Some(number) = about {
                prop_assert!(job.attempts.iter().any(|attempt| attempt.number == number));
            }
            prop_assert!(job.attempts.is_sorted_by(|a, b| a.number < b.number));
            prop_assert!(job.attempts.len() <= MAX_ATTEMPTS);
            for attempt in &job.attempts {
                let end = attempt.end.map(|end| end.at);
                prop_assert!(end.is_none_or(|end| attempt.start.is_none_or(|start| start <= end)), "{attempt:?}");
                prop_assert!(attempt.start.is_some() || attempt.end.is_some(), "{attempt:?}");
                prop_assert!(attempt.is_open() || !attempt.awaits_hook, "{attempt:?}");
                prop_assert!(attempt.is_open() || attempt.command.is_none(), "{attempt:?}");
            }
            if kind != JobKind::Run {
                let open = job.attempts.iter().filter(|attempt| attempt.is_open()).count();
                prop_assert!(open <= 1, "{:?}", job.attempts);
            }
        }
    }

    /// An event with a number that is said again at once changes nothing.
    #[test]
    fn what_is_said_twice_is_said_once((kind, events) in (kind(), events())) {
        let mut job = job(kind);
        for event in &events {
            job.apply(event);
            let once = job.clone();
            if event.attempt.is_some_and(|number| job.attempts.iter().any(|attempt| attempt.number == number)) {
                job.apply(event);
                prop_assert_eq!(&job, &once, "{:?}", event);
            }
        }
    }

    /// An end that a hook told is only replaced by another hook, by a start after it, or by what is about another attempt.
    #[test]
    fn what_a_hook_ended_no_process_opens_again((kind, events) in (kind(), events())) {
        let mut job = job(kind);
        for event in &events {
            let before = job.clone();
            job.apply(event);
            let by_process = matches!(event.what, Happening::Seen(_) | Happening::Gone | Happening::CommandEnded(None));
            for old in before.attempts.iter().filter(|old| by_process && old.end.is_some_and(|end| end.told)) {
                let new = job.attempts.iter().find(|new| new.number == old.number).unwrap();
                prop_assert_eq!(new.end.map(|end| end.how), old.end.map(|end| end.how));
            }
        }
    }

    /// The hooks of one attempt, with whatever its processes do between them, say when it ran.
    #[test]
    fn hooks_decide(
        between in prop::collection::vec(
            (10_i64..50, prop_oneof![Just(seen(&[7])), Just(seen(&[8])), Just(Happening::Gone), Just(hook_started())]),
            0..12,
        )
    ) {
        let mut job = slurm();
        tell(&mut job, Some(0), 10, hook_started());
        for (at, what) in between {
            tell(&mut job, Some(0), at, what);
        }
        tell(&mut job, Some(0), 50, Happening::HookEnded(Ending::Exit(0), Vec::new()));
        prop_assert_eq!(shown(&job), [(0, Some(10), Some((50, Ending::Exit(0))))]);
    }
}

#[test]
fn a_job_of_which_nothing_is_heard_ended_when_it_was_last_heard_of_until_its_hook_says_more() {
    let mut job = slurm();
    tell(&mut job, Some(0), 10, hook_started());
    tell(&mut job, Some(0), 20, seen(&[7]));
    tell(&mut job, Some(0), 30, Happening::Gone);
    tell(&mut job, Some(0), 900, Happening::Silent);
    assert_eq!(shown(&job), [(0, Some(10), Some((30, Ending::Unknown)))]);
    tell(&mut job, Some(0), 950, Happening::HookEnded(Ending::Exit(0), Vec::new()));
    assert_eq!(shown(&job), [(0, Some(10), Some((950, Ending::Exit(0))))]);
}

#[test]
fn there_is_no_attempt_after_the_greatest_number() {
    let mut job = job(JobKind::Run);
    for _ in 0..3 {
        tell(&mut job, Some(u32::MAX), 10, run_started(7));
        tell(&mut job, None, 20, run_started(8));
    }
    assert_eq!(job.attempts.len(), 1);
}
