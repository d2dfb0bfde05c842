//! The strict ledger: its invariants on arbitrary entries, and each of the library's faults that it repairs.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "test code fails loudly")]

mod labels;

use goodput::{
    answer::{JobAnswer, LedgerAnswer},
    badput::{BadputType, Buckets},
    entry::{EntryParser, LogEntry, ParsedLine},
    log::EventLog,
    query::LedgerQuery,
    strict::{self, StrictAnswer},
};
use labels::labels;
use proptest::prelude::*;

fn entry(time: f64, payload: &str) -> LogEntry {
    let at = goodput::time::Micros::from_seconds(time).unwrap().to_string().replace(' ', "T");
    let line = format!(r#"{{"timestamp":"{at}","jsonPayload":{{"job_name":"j",{payload}}}}}"#);
    match EntryParser::new("j").parse(line.as_bytes()).unwrap() {
        ParsedLine::Entry(entry) => *entry,
        ParsedLine::Skipped(reason) => panic!("{reason:?}"),
    }
}

fn log_of(entries: &[LogEntry]) -> EventLog {
    EventLog::from_entries(entries.to_vec()).unwrap()
}

fn at(key: &str, time: f64) -> LogEntry {
    entry(time, &format!(r#""{key}":{time:?}"#))
}

fn step(number: i64, time: f64) -> LogEntry {
    entry(time, &format!(r#""step_count":{number},"step_start_time":{time:?}"#))
}

fn steps(numbers: std::ops::Range<i64>, from: f64, each: f64) -> Vec<LogEntry> {
    let first = numbers.start;
    numbers.map(|n| step(n, from + each * f64::from(i32::try_from(n - first).unwrap()))).collect()
}

fn cumulative(entries: &[LogEntry], now: f64) -> (JobAnswer, StrictAnswer) {
    let query = LedgerQuery::Cumulative { now, ideal_step_time: None, reuse_calculator: None };
    let answer = strict::ask(&log_of(entries), &query, &labels());
    match &answer.answer {
        LedgerAnswer::Job(job) => ((**job).clone(), answer.clone()),
        other => panic!("{other:?}"),
    }
}

fn names(answer: &StrictAnswer) -> Vec<&'static str> {
    answer.repairs.iter().map(|(repair, _)| repair.name()).collect()
}

fn lost(buckets: &Buckets) -> f64 {
    buckets
        .iter()
        .filter(|(kind, _)| *kind != BadputType::DataLoadingAsync)
        .map(|(_, amount)| amount.sum())
        .sum()
}

#[test]
fn a_step_number_that_saturates_is_left_out() {
    let mut entries = vec![at("job_start_time", 0.0)];
    entries.extend(steps(0..20, 10.0, 2.0));
    let (without, _) = cumulative(&entries, 50.0);
    for number in ["1e30", "-1e30", "9223372036854775807", "18446744073709551615"] {
        entries.push(entry(15.0, &format!(r#""step_count":{number},"step_start_time":15.0"#)));
        let (with, answer) = cumulative(&entries, 50.0);
        assert_eq!(with.productive_seconds, without.productive_seconds, "{number}");
        assert_eq!(with.unproductive_seconds, without.unproductive_seconds, "{number}");
        assert_eq!((with.max_productive_step, with.last_recorded_step), (18, 19), "{number}");
        assert_eq!(names(&answer), ["open_step", "unreadable_value"], "{number}");
        entries.pop();
    }
}

#[test]
fn a_restart_at_the_next_step_is_an_outage() {
    let mut entries = vec![at("job_start_time", 0.0)];
    entries.extend(steps(0..40, 10.0, 2.0));
    entries.push(at("job_start_time", 390.0));
    entries.extend(steps(40..80, 400.0, 2.0));
    entries.push(at("job_end_time", 480.0));
    let (job, answer) = cumulative(&entries, 1000.0);
    assert_eq!((job.productive_seconds, job.total_elapsed_seconds, job.disruptions), (160.0, 480.0, 1));
    assert_eq!(job.unproductive_seconds.seconds(BadputType::InfrastructureRecovery), 300.0);
    assert_eq!(names(&answer), ["restart_at_next_step"]);
}

#[test]
fn a_restart_from_step_0_wastes_what_was_done() {
    let mut entries = vec![at("job_start_time", 0.0)];
    entries.extend(steps(0..21, 10.0, 3.0));
    entries.push(at("job_start_time", 100.0));
    entries.extend(steps(0..41, 110.0, 3.0));
    let (job, answer) = cumulative(&entries, 230.0);
    assert_eq!(job.unproductive_seconds.seconds(BadputType::WastedProgress), 60.0);
    assert_eq!(job.productive_seconds, 120.0);
    assert_eq!(names(&answer), ["restart_from_scratch"]);
}

#[test]
fn a_second_recorder_and_late_entries_are_no_disruption() {
    let mut entries = vec![at("job_start_time", 0.0), at("job_end_time", 90.0), at("job_end_time", 90.0)];
    entries.extend(steps(0..40, 10.0, 2.0));
    for lag in [0.5, 3.5] {
        let mut all = entries.clone();
        all.extend(steps(0..40, 10.0 + lag, 2.0));
        let (job, answer) = cumulative(&all, 100.0);
        assert_eq!((job.productive_seconds, job.disruptions), (80.0, 0), "lag {lag}");
        assert!(names(&answer).contains(&"duplicate_steps") && names(&answer).contains(&"duplicate_entries"));
    }
}

#[test]
fn a_rollback_without_a_new_job_start_is_a_disruption() {
    let mut entries = vec![at("job_start_time", 0.0)];
    entries.extend(steps(0..51, 0.0, 2.0));
    entries.extend(steps(40..71, 110.0, 2.0));
    entries.push(at("job_end_time", 172.0));
    let (job, _) = cumulative(&entries, 200.0);
    assert_eq!(job.disruptions, 1);
    assert_eq!(job.unproductive_seconds.seconds(BadputType::WastedProgress), 20.0);
    assert_eq!(job.unproductive_seconds.seconds(BadputType::InfrastructureRecovery), 10.0);
    assert_eq!(job.productive_seconds, 142.0);
}

#[test]
fn a_clock_that_steps_back_loses_no_time() {
    let mut entries = vec![at("job_start_time", 0.0), at("job_end_time", 95.0)];
    entries.extend(steps(0..25, 0.0, 2.0));
    entries.extend(steps(25..50, 45.0, 2.0));
    let (job, answer) = cumulative(&entries, 100.0);
    assert_eq!((job.productive_seconds, job.disruptions), (95.0, 0));
    assert!(names(&answer).contains(&"reordered_steps"));
}

#[test]
fn work_after_a_job_end_goes_on_counting() {
    let mut entries = vec![at("job_start_time", 0.0)];
    entries.extend(steps(0..30, 0.0, 2.0));
    entries.push(at("job_end_time", 60.0));
    entries.push(at("job_start_time", 600.0));
    entries.extend(steps(30..60, 610.0, 2.0));
    let (job, answer) = cumulative(&entries, 670.0);
    assert_eq!((job.productive_seconds, job.total_elapsed_seconds), (120.0, 670.0));
    assert!(names(&answer).contains(&"end_then_more_work"));
}

#[test]
fn null_checkpoint_fields_do_not_stop_the_ledger() {
    let mut entries = vec![at("job_start_time", 0.0), at("job_end_time", 60.0)];
    entries.extend(steps(0..30, 0.0, 2.0));
    entries.push(entry(
        21.0,
        r#""event_type":"save","step":10,"directory":"gs://b","checkpoint_manager_blocking_duration_secs":1.5,
           "checkpoint_manager_blocking_start_time":20.0,"wait_for_prev_duration_secs":null"#,
    ));
    let (job, answer) = cumulative(&entries, 100.0);
    assert_eq!(job.unproductive_seconds.seconds(BadputType::CheckpointSave), 1.5);
    assert_eq!(job.productive_seconds, 58.5);
    assert_eq!(names(&answer), ["incomplete_checkpoint"]);
}

#[test]
fn custom_events_count_across_steps_and_in_the_last_one() {
    let custom = |edge: &str, time: f64| {
        entry(
            time,
            &format!(r#""custom_badput_event_type":"eval","custom_badput_event_{edge}_time":{time:?}"#),
        )
    };
    let mut entries = vec![at("job_start_time", 0.0), at("job_end_time", 60.0)];
    entries.extend(steps(0..30, 0.0, 2.0));
    for (edge, time) in [("start", 21.0), ("end", 25.0), ("start", 58.5), ("end", 59.5)] {
        entries.push(custom(edge, time));
    }
    let (job, answer) = cumulative(&entries, 100.0);
    assert_eq!(job.unproductive_seconds.seconds(BadputType::CustomEvents), 5.0);
    let startup = job.unproductive_seconds.seconds(BadputType::ProgramStartup);
    assert!((job.productive_seconds + startup - 55.0).abs() < 1e-9);
    assert!(names(&answer).contains(&"custom_event_anywhere"));
}

#[test]
fn a_window_is_cut_at_its_edges() {
    let mut entries = vec![at("job_start_time", 0.0)];
    entries.extend(steps(0..30, 100.0, 10.0));
    let query = LedgerQuery::Interval { start: 50.0, end: 145.0, now: Some(500.0), reuse_calculator: None };
    let LedgerAnswer::Window(window) = strict::ask(&log_of(&entries), &query, &labels()).answer else {
        panic!()
    };
    assert_eq!((window.total_seconds, window.effective_start, window.effective_end), (95.0, 50.0, 145.0));
    assert!((window.goodput_percent - 45.0 / 95.0 * 100.0).abs() < 1e-9);
}

#[test]
fn a_running_step_counts_as_long_as_a_usual_one() {
    let mut entries = vec![at("job_start_time", 0.0)];
    entries.extend(steps(0..11, 0.0, 5.0));
    assert_eq!(cumulative(&entries, 52.0).0.productive_seconds, 52.0);
    assert_eq!(cumulative(&entries, 600.0).0.productive_seconds, 55.0);
}

/// One arbitrary payload at an arbitrary time, in quarters of a second.
fn any_entry() -> impl Strategy<Value = LogEntry> {
    (0..16u8, 0..400u32, -1..12i64, 0..3u8, 0..40u32).prop_map(|(kind, quarter, number, name, length)| {
        let t = f64::from(quarter) / 4.0;
        let name = ["eval", "sdc", "scale_up"][usize::from(name)];
        let plain = [
            "job_start_time",
            "job_end_time",
            "tpu_init_start_time",
            "tpu_init_end_time",
            "training_prep_start_time",
            "training_prep_end_time",
            "data_loading_start_time",
            "data_loading_end_time",
            "elastic_reinit_start_time",
            "elastic_reinit_end_time",
        ];
        let edge = if number % 2 == 0 { "start" } else { "end" };
        match kind {
            0..10 => at(plain[usize::from(kind)], t),
            10 => entry(
                t,
                &format!(r#""custom_badput_event_type":"{name}","custom_badput_event_{edge}_time":{t:?}"#),
            ),
            11 => entry(t, &format!(r#""elastic_wait_event_type":"{name}","elastic_wait_{edge}_time":{t:?}"#)),
            12 => entry(
                t,
                &format!(
                    r#""event_type":"save","step":{number},"directory":"gs://b",
                       "checkpoint_manager_blocking_duration_secs":{},"checkpointer_blocking_duration_secs":null"#,
                    f64::from(length) / 4.0
                ),
            ),
            _ => step(number, t),
        }
    })
}

fn job_of(entries: &[LogEntry], query: &LedgerQuery) -> Option<serde_json::Value> {
    let answer = strict::ask(&log_of(entries), query, &labels());
    let (goodput, productive, total, buckets) = match &answer.answer {
        LedgerAnswer::Job(job) => (
            job.goodput_percent,
            job.productive_seconds,
            job.total_elapsed_seconds,
            lost(&job.unproductive_seconds),
        ),
        LedgerAnswer::Window(window) => {
            (window.goodput_percent, window.goodput_percent, 100.0, lost(&window.badput_percent))
        }
        LedgerAnswer::Failed(_) => return Some(serde_json::to_value(&answer).unwrap()),
    };
    assert!((0.0..=100.0).contains(&goodput), "goodput {goodput}");
    assert!(productive >= 0.0 && buckets >= 0.0);
    if total > 0.0 {
        assert!((productive + buckets - total).abs() < 1e-6, "{productive} + {buckets} is not {total}");
    }
    Some(serde_json::to_value(&answer).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn buckets_add_up_and_order_of_arrival_does_not_matter(
        (entries, shuffled) in prop::collection::vec(any_entry(), 1..60)
            .prop_flat_map(|entries| (Just(entries.clone()), Just(entries).prop_shuffle())),
        now in 0..450u32,
        window in (0..100u32, 1..100u32),
        kind in 0..3u8,
    ) {
        let now = f64::from(now) / 4.0;
        let (start, end) = (f64::from(window.0), f64::from(window.0 + window.1));
        let query = match kind {
            0 => LedgerQuery::Cumulative { now, ideal_step_time: None, reuse_calculator: None },
            1 => LedgerQuery::Interval { start, end, now: Some(now), reuse_calculator: None },
            _ => LedgerQuery::Exclusions {
                now, exclude: vec![(start, end), (end - 1.0, end + 5.0)], ideal_step_time: None, reuse_calculator: None,
            },
        };
        prop_assert_eq!(job_of(&entries, &query), job_of(&shuffled, &query));
    }

    #[test]
    fn on_a_clean_log_both_ledgers_agree(
        first in 0..5i64, count in 3..60i64, quarters in 4..40u32, startup in 0..80u32, prep in 0..40u32,
    ) {
        let (each, startup, prep) =
            (f64::from(quarters) / 4.0, f64::from(startup) / 4.0, f64::from(prep) / 4.0);
        let mut entries = vec![at("job_start_time", 1000.0), at("training_prep_start_time", 1001.0)];
        entries.push(at("training_prep_end_time", 1001.0 + prep));
        entries.push(step(first, 1001.0 + prep));
        let from = 1001.0 + prep + each + startup;
        entries.extend(steps(first + 1..first + count, from, each));
        let end = from + each * f64::from(i32::try_from(count - 1).unwrap());
        entries.push(at("job_end_time", end));
        let (job, answer) = cumulative(&entries, end + 5.0);
        let log = log_of(&entries);
        let mut calculator = goodput::exact::Calculator::new(goodput::exact::CalculatorOptions::default());
        let query = LedgerQuery::Cumulative { now: end + 5.0, ideal_step_time: None, reuse_calculator: None };
        let LedgerAnswer::Job(exact) = goodput::answer::ask(&mut calculator, &log, &query, &labels()) else { panic!() };
        prop_assert_eq!(names(&answer), Vec::<&str>::new());
        prop_assert!((job.goodput_percent - exact.goodput_percent).abs() < 1e-5);
        for (kind, amount) in exact.unproductive_seconds.iter() {
            prop_assert!((amount.sum() - job.unproductive_seconds.seconds(*kind)).abs() < 1e-5, "{:?}", kind);
        }
        prop_assert_eq!(job.returned_step, exact.returned_step);
    }
}
