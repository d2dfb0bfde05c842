//! The exact rules applied to observations, if step starts cover nearly all of the window.

use serde::Serialize;

use super::{
    limits::HBM0,
    observations::HostObservations,
    slots::{SlotState, Slots},
};
use crate::{
    entry::{Boundary, EntryEvents, JobEvent, LogEntry, PayloadTime, StartupPhase},
    exact::{Calculator, CalculatorOptions},
    log::EventLog,
    time::{Micros, Nanos},
};

/// The minimum share of the window that steps cover.
const MIN_COVERED: f64 = 0.95;

/// The answer of the exact rules to observed steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimated {
    /// Productive share, 0 to 1.
    pub estimated_goodput: f64,
    /// The source of the estimate.
    pub estimated_source: &'static str,
    /// The share of the window that steps cover.
    pub step_coverage: f64,
}

/// The estimate, if steps cover enough.
pub(super) fn estimate(observed: &HostObservations, slots: &Slots) -> Option<Estimated> {
    let steps = observed.steps.as_deref()?;
    let coverage = coverage(observed, slots)?;
    if coverage < MIN_COVERED {
        return None;
    }
    let mut events: Vec<(f64, JobEvent)> = Vec::new();
    for attempt in attempts(observed) {
        attempt.events(observed, &mut events);
    }
    events.extend(steps.iter().map(|step| (step.1, JobEvent::Step { step: step.0, start: step.1 })));
    events.extend(observed.ended_at.map(|at| (at, JobEvent::JobEnd(at))));
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let entries: Option<Vec<LogEntry>> = events.into_iter().map(|(at, event)| entry(at, event)).collect();
    let log = EventLog::from_entries(entries?).ok()?;
    let now = Micros::from_seconds(observed.now).ok()?;
    let mut calculator =
        Calculator::new(CalculatorOptions { lookback: i64::MAX / 4, ..CalculatorOptions::default() });
    let answer = calculator.cumulative(&log, now, None).ok()?;
    Some(Estimated {
        estimated_goodput: answer.goodput_percent / 100.0,
        estimated_source: "steps",
        step_coverage: coverage,
    })
}

fn entry(at: f64, event: JobEvent) -> Option<LogEntry> {
    let time = Nanos::from(Micros::from_seconds(at).ok()?);
    Some(LogEntry {
        time,
        id: Box::default(),
        payload_time: PayloadTime::At(at),
        events: EntryEvents::One(event),
    })
}

/// The seconds from the first step to the end of each attempt, as a share of all seconds.
#[expect(clippy::cast_precision_loss, reason = "seconds of at most 400 days")]
fn coverage(observed: &HostObservations, slots: &Slots) -> Option<f64> {
    let mut starts = observed.steps.as_deref()?.iter().map(|step| step.1).collect::<Vec<_>>();
    starts.sort_by(f64::total_cmp);
    let mut starts = starts.into_iter().peekable();
    let (mut covered, mut stepping) = (0_usize, false);
    for (at, state) in slots.filled.iter().enumerate() {
        let second = slots.first.saturating_add(i64::try_from(at).unwrap_or(i64::MAX));
        stepping &= *state != SlotState::Closed;
        while starts.next_if(|start| *start <= second as f64).is_some() {
            stepping = *state != SlotState::Closed;
        }
        covered += usize::from(stepping);
    }
    (!slots.is_empty()).then(|| covered as f64 / slots.len() as f64)
}

/// A period in which the job has devices open.
struct ObservedAttempt {
    start: f64,
    first_open: f64,
}

/// The attempts: one starts with an open while no other device is open.
fn attempts(observed: &HostObservations) -> Vec<ObservedAttempt> {
    let mut opens: Vec<(f64, f64)> =
        observed.opens.iter().map(|open| (open.2, open.3.unwrap_or(f64::INFINITY))).collect();
    opens.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut attempts: Vec<ObservedAttempt> = Vec::new();
    let mut until = f64::NEG_INFINITY;
    for (open, close) in opens {
        if open >= until {
            let before = observed.process_starts.iter().copied().filter(|at| *at <= open && *at >= until);
            let start = before.max_by(f64::total_cmp).unwrap_or(open);
            attempts.push(ObservedAttempt { start, first_open: open });
        }
        until = until.max(close);
    }
    attempts
}

impl ObservedAttempt {
    fn events(&self, observed: &HostObservations, events: &mut Vec<(f64, JobEvent)>) {
        events.push((self.start, JobEvent::JobStart(self.start)));
        let after = |at: &f64| *at >= self.first_open;
        let loaded = observed.hbm.iter().filter(|hbm| hbm.2 >= HBM0).map(|hbm| hbm.1).filter(after);
        let Some(loaded) = loaded.min_by(f64::total_cmp) else { return };
        let mut phase = |phase, edge, at| events.push((at, JobEvent::Phase(phase, edge, at)));
        phase(StartupPhase::TpuInit, Boundary::Start, self.first_open);
        phase(StartupPhase::TpuInit, Boundary::End, loaded);
        let first_step = observed
            .steps
            .iter()
            .flatten()
            .map(|step| step.1)
            .filter(|at| *at >= loaded)
            .min_by(f64::total_cmp);
        if let Some(first_step) = first_step {
            phase(StartupPhase::TrainingPrep, Boundary::Start, loaded);
            phase(StartupPhase::TrainingPrep, Boundary::End, first_step);
        }
    }
}
