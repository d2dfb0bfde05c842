//! Eight times the input takes about eight times the CPU time of this thread: a ratio, so neither the speed of the machine
//! nor its other work decides.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "test code fails loudly")]

mod labels;

use std::{
    hint::black_box,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use goodput::{
    answer::{self, LedgerAnswer},
    entry::{Boundary, EntryEvents, EntryParser, JobEvent, LogEntry, PayloadTime},
    exact::{Calculator, CalculatorOptions},
    log::EventLog,
    query::LedgerQuery,
    strict,
    time::{Micros, Nanos},
};
use labels::labels;
use nix::time::{ClockId, clock_gettime};

/// What is linear grows 8 times (more where it outgrows a cache), what is quadratic 64 times.
const MOST: u32 = 32;

/// Measurements do not disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

/// The CPU time that this thread has used.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// The best of five: what disturbs a measurement only ever adds to it.
fn best<T>(work: impl Fn() -> T) -> Duration {
    let once = || {
        let before = used();
        black_box(work());
        used() - before
    };
    (0..5).map(|_| once()).min().unwrap()
}

fn assert_linear<I, T>(small: usize, input: impl Fn(usize) -> I, work: impl Fn(&I) -> T) {
    let (small, large) = (input(small), input(small * 8));
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (small, large) = (best(|| work(&small)), best(|| work(&large)));
    assert!(large < small * MOST, "{small:?} for one part, {large:?} for eight");
}

#[test]
fn a_payload_of_many_keys() {
    let line = |keys: usize| {
        let keys: String = (0..keys).map(|key| format!(r#","key{key}":{key}"#)).collect();
        format!(r#"{{"timestamp":"2026-03-01T00:00:00Z","jsonPayload":{{"job_name":"j"{keys}}}}}"#)
    };
    assert_linear(16_000, line, |line| EntryParser::new("j").parse(line.as_bytes()).unwrap());
}

fn entry(at: f64, event: JobEvent) -> LogEntry {
    let time = Nanos::from(Micros::from_seconds(at).unwrap());
    LogEntry { time, id: Box::default(), payload_time: PayloadTime::At(at), events: EntryEvents::One(event) }
}

/// A job that crashes in every third step and repeats one; each attempt has a custom event of its own type.
fn crashing(attempts: usize) -> EventLog {
    let mut entries = Vec::new();
    for attempt in 0..attempts {
        let began = f64::from(u32::try_from(attempt).unwrap()) * 10.0;
        let first = i64::try_from(attempt).unwrap() * 2 + 1;
        let kind: Arc<str> = format!("E{attempt}").into();
        entries.push(entry(began, JobEvent::JobStart(began)));
        entries.push(entry(began + 1.0, JobEvent::Step { step: first, start: began + 1.0 }));
        entries.push(entry(began + 1.5, JobEvent::Custom(kind.clone(), Boundary::Start, began + 1.5)));
        entries.push(entry(began + 2.0, JobEvent::Custom(kind, Boundary::End, began + 2.0)));
        for (step, at) in [(first + 1, began + 3.0), (first + 2, began + 5.0)] {
            entries.push(entry(at, JobEvent::Step { step, start: at }));
        }
    }
    EventLog::from_entries(entries).unwrap()
}

#[test]
fn strict_over_many_attempts_and_custom_events() {
    let query = LedgerQuery::Cumulative { now: 2e5, ideal_step_time: None, reuse_calculator: None };
    assert_linear(2_000, crashing, |log| strict::ask(log, &query, &labels()));
}

fn exact(log: &EventLog, query: &LedgerQuery) -> LedgerAnswer {
    let answer = answer::ask(&mut Calculator::new(CalculatorOptions::default()), log, query, &labels());
    assert!(!matches!(answer, LedgerAnswer::Failed(_)), "{answer:?}");
    answer
}

#[test]
fn exact_over_many_attempts_and_custom_events() {
    let query = LedgerQuery::Cumulative { now: 2e5, ideal_step_time: None, reuse_calculator: None };
    assert_linear(2_000, crashing, |log| exact(log, &query));
}

#[test]
fn exclusions_over_many_attempts_and_custom_events() {
    let exclude: Vec<(f64, f64)> =
        (0..2_000).map(|at| (f64::from(at) * 9.0, f64::from(at) * 9.0 + 0.1)).collect();
    let query = LedgerQuery::Exclusions { now: 2e5, exclude, ideal_step_time: None, reuse_calculator: None };
    assert_linear(100, crashing, |log| exact(log, &query));
}
