//! A new step costs `O(log n)`: counted in elementary operations, not in time.

#![allow(missing_docs, clippy::unwrap_used, reason = "test code fails loudly")]

use std::sync::Arc;

use goodput::{
    entry::{Boundary, EntryEvents, JobEvent, LogEntry, PayloadTime},
    exact::{Calculator, CalculatorOptions},
    log::EventLog,
    time::{Micros, Nanos},
};

struct Job {
    log: EventLog,
    calculator: Calculator,
    now: f64,
    step: i64,
}

impl Job {
    fn new() -> Self {
        let calculator = Calculator::new(CalculatorOptions::default());
        let mut job = Self { log: EventLog::new(), calculator, now: 1000.0, step: 0 };
        job.push(JobEvent::JobStart(1000.0));
        job
    }

    fn push(&mut self, event: JobEvent) {
        let time = Nanos::from(Micros::from_seconds(self.now).unwrap());
        let payload_time = PayloadTime::At(self.now);
        self.log
            .push(LogEntry { time, id: Box::default(), payload_time, events: EntryEvents::One(event) })
            .unwrap();
    }

    fn step(&mut self) {
        // Lengths that never repeat, so that the order statistics have work to do.
        let length = 1.0 + f64::from(u32::try_from(self.step * 7919 % 1009).unwrap()) / 1009.0;
        self.push(JobEvent::Step { step: self.step, start: self.now });
        (self.step, self.now) = (self.step + 1, self.now + length);
    }

    fn custom(&mut self) {
        for edge in [Boundary::Start, Boundary::End] {
            self.now += 0.1;
            self.push(JobEvent::Custom(Arc::from("EVAL"), edge, self.now));
        }
    }

    /// Operations of one query.
    fn ask(&mut self) -> u64 {
        let before = self.calculator.work();
        let now = Micros::from_seconds(self.now).unwrap();
        self.calculator.cumulative(&self.log, now, None).unwrap();
        self.calculator.work() - before
    }

    /// The most operations that one of the next steps costs, asking after each.
    fn worst_of(&mut self, steps: usize) -> u64 {
        let costs = (0..steps).map(|_| {
            self.step();
            self.ask()
        });
        costs.max().unwrap()
    }
}

/// A job of `steps` steps, with crashes and custom events, asked about once.
fn job(steps: usize) -> Job {
    let mut job = Job::new();
    for at in 0..steps {
        job.step();
        if at % 10 == 5 {
            job.custom();
        }
        if at % 500 == 499 {
            job.step -= 20;
            job.push(JobEvent::JobStart(job.now));
        }
    }
    job.ask();
    job
}

#[test]
fn a_new_step_costs_no_more_in_a_long_job() {
    let (short, long) = (job(1_000).worst_of(60), job(64_000).worst_of(60));
    // 64 times the steps are 6 more levels, in a few dozen searches of a search.
    assert!(long < short * 4, "{short} operations after 1,000 steps, {long} after 64,000");
    assert!(long < 6_000, "{long} operations for a step");
}

#[test]
fn a_crash_costs_what_it_lost() {
    let mut job = job(40_000);
    let usual = job.worst_of(10);
    job.step -= 15;
    job.push(JobEvent::JobStart(job.now));
    job.step();
    let crash = job.ask();
    assert!(crash < usual + 6_000, "{usual} operations for a step, {crash} for a crash that lost 15");
}

#[test]
fn asking_again_costs_nothing() {
    let mut job = job(5_000);
    job.now += 10.0;
    assert_eq!(job.ask(), 0);
}
