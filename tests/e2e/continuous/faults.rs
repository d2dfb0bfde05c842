//! Servers that lack a method, lose answers, or answer badly.

use fakes::{
    fake_profiler::{ContinuousFake, FakeProfiler, MissingMethods, Mode},
    wait::until,
};
use tempfile::TempDir;

use super::{Profiling, records};

fn start(fake: ContinuousFake) -> (FakeProfiler, TempDir, Profiling) {
    let profiler = FakeProfiler::start(fake.into());
    let state = TempDir::new().unwrap();
    // The fake is a part of this process.
    let profiling = Profiling::start(state.path(), &profiler.target(), std::process::id());
    (profiler, state, profiling)
}

#[test]
fn nothing_is_started_that_could_not_be_stopped() {
    for (missing, says) in [(MissingMethods::Stop, "cannot stop"), (MissingMethods::All, "cannot stop")] {
        let (profiler, state, profiling) = start(ContinuousFake { missing, ..ContinuousFake::default() });
        let refused = profiling.said("refused");
        assert!(refused.contains(says), "{missing:?}: {refused}");
        profiling.said("ended");
        assert_eq!((profiler.seen().starts, records(state.path())), (0, 0));
    }
}

#[test]
fn the_older_name_of_a_snapshot_is_known() {
    let fake = ContinuousFake { missing: MissingMethods::NewName, ..ContinuousFake::default() };
    let (profiler, state, mut profiling) = start(fake);
    profiling.said("drained");
    assert_eq!(profiling.stop(), "stopped Stopped");
    let seen = profiler.seen();
    assert_eq!((seen.is_open, seen.starts, records(state.path())), (false, 1, 0));
}

#[test]
fn a_server_that_denies_to_have_stop_when_asked_is_left_with_a_record() {
    let fake = ContinuousFake { missing: MissingMethods::StopWhenAsked, ..ContinuousFake::default() };
    let (profiler, state, mut profiling) = start(fake);
    profiling.said("started");
    assert_eq!(profiling.stop(), "stopped CannotStop");
    assert!(profiler.seen().is_open && records(state.path()) == 1);
}

#[test]
fn bad_answers_end_the_session_after_the_third() {
    let bad = [
        Mode::Silent,
        Mode::Reset,
        Mode::Zeros,
        Mode::HalfMessage,
        Mode::HalfThenGone,
        Mode::NoBytes,
        Mode::Endless,
        Mode::HugePrefix,
        Mode::Unserializable,
        Mode::Compressed,
        Mode::BrokenNesting,
    ];
    let started: Vec<_> = bad
        .map(|snapshot| (snapshot.clone(), start(ContinuousFake { snapshot, ..ContinuousFake::default() })))
        .into_iter()
        .collect();
    for (mode, (profiler, state, profiling)) in started {
        for _ in 0..2 {
            let lost = profiling.said("lost");
            assert!(lost.contains("since the last drain is lost"), "{mode:?}: {lost}");
        }
        let over = profiling.said("over");
        assert!(over.contains("third time in a row"), "{mode:?}: {over}");
        profiling.said("ended");
        let seen = profiler.seen();
        assert_eq!((seen.is_open, seen.starts, records(state.path())), (false, 1, 0), "{mode:?}");
    }
}

#[test]
fn an_empty_snapshot_is_no_fault_while_the_session_runs() {
    let fake = ContinuousFake { snapshot: Mode::Empty, ..ContinuousFake::default() };
    let (profiler, _state, mut profiling) = start(fake);
    assert!(profiling.said("drained").contains("events=0 "));
    profiling.said("drained");
    assert_eq!(profiling.stop(), "stopped Stopped");
    assert!(!profiler.seen().is_open);
}

#[test]
fn a_start_without_an_answer_is_stopped() {
    for start_mode in [Mode::Reset, Mode::Silent] {
        let (profiler, state, profiling) =
            start(ContinuousFake { start: start_mode.clone(), ..ContinuousFake::default() });
        let refused = profiling.said("refused");
        assert!(refused.contains("did not say whether"), "{start_mode:?}: {refused}");
        profiling.said("ended");
        until("the end of the session", || !profiler.seen().is_open);
        assert_eq!((profiler.seen().starts, records(state.path())), (1, 0));
    }
}
