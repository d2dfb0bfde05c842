//! The results of the calculator's queries.

use crate::{badput::Buckets, time::Micros};

/// The result of a query over the whole job.
#[derive(Debug, Clone, PartialEq)]
pub struct CumulativeResult {
    /// Productive share of the total time.
    pub goodput_percent: f64,
    /// Every type as percent of the total time.
    pub badput_percent: Buckets,
    /// The largest productive step.
    pub returned_step: i64,
}

/// The result of a query over a window.
#[derive(Debug, Clone, PartialEq)]
pub struct IntervalResult {
    /// Productive share of the effective window.
    pub goodput_percent: f64,
    /// Every type as percent of the effective window.
    pub badput_percent: Buckets,
    /// The largest productive step.
    pub returned_step: i64,
    /// Seconds of the effective window.
    pub total_seconds: f64,
    /// Disruptions seen in it.
    pub disruptions: u64,
    /// Its first instant.
    pub effective_start: Micros,
    /// Its last instant.
    pub effective_end: Micros,
}

/// The result of a query with excluded intervals.
#[derive(Debug, Clone, PartialEq)]
pub struct ExclusionsResult {
    /// As for the whole job; no breakdown if nothing is left.
    pub answer: CumulativeResult,
    /// Seconds taken out.
    pub excluded_seconds: f64,
}

/// An answer over the whole job with time counted until another instant.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct CountedUntil {
    /// The instant, in epoch seconds.
    pub time: f64,
    /// Productive share of the total time.
    pub goodput_percent: f64,
    /// Every type as percent of the total time.
    pub badput_percent: Buckets,
    /// Seconds from the job start to the instant.
    pub total_elapsed_seconds: f64,
    /// Productive seconds.
    pub productive_seconds: f64,
    /// Seconds by type.
    pub unproductive_seconds: Buckets,
}

/// What the last cumulative query left behind.
#[derive(Debug, Clone, PartialEq)]
pub struct LastResult {
    /// Productive seconds.
    pub productive_seconds: f64,
    /// Seconds by type.
    pub unproductive_seconds: Buckets,
    /// Total seconds.
    pub total_elapsed_seconds: f64,
    /// The largest productive step.
    pub max_productive_step: i64,
    /// The largest step of the last attempt.
    pub last_recorded_step: i64,
    /// Repeated steps in the latest full walk.
    pub disruptions: u64,
    /// Seconds taken out.
    pub excluded_seconds: f64,
}
