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
    /// The number of disruptions in the window.
    pub disruptions: u64,
    /// The start of the effective window.
    pub effective_start: Micros,
    /// The end of the effective window.
    pub effective_end: Micros,
}

/// The result of a query with excluded intervals.
#[derive(Debug, Clone, PartialEq)]
pub struct ExclusionsResult {
    /// As for the whole job. Without a breakdown if no time is left.
    pub answer: CumulativeResult,
    /// Excluded seconds.
    pub excluded_seconds: f64,
}

/// An answer over the whole job with time counted until another time.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CountedUntil {
    /// The end of the counted time, in epoch seconds.
    pub time: f64,
    /// Productive share of the total time.
    pub goodput_percent: f64,
    /// Every type as percent of the total time.
    pub badput_percent: Buckets,
    /// Seconds from the job start to the end of the counted time.
    pub total_elapsed_seconds: f64,
    /// Productive seconds.
    pub productive_seconds: f64,
    /// Seconds by type.
    pub unproductive_seconds: Buckets,
}

/// The seconds behind the answer of the last cumulative query.
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
    /// Excluded seconds.
    pub excluded_seconds: f64,
}
