//! What was observed on one host: device opens, duty samples, memory in use, step starts.

use serde::Deserialize;

/// An open of a chip's device file: chip, pid, from, until (`None`: still open).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Open(pub i64, pub i64, pub f64, pub Option<f64>);

/// Duty samples of a chip: chip, time of the first, one a second in percent (`None`: missing).
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Duty(pub i64, pub f64, pub Vec<Option<f64>>);

/// Share of a chip's memory in use from a time on: chip, time, share.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Hbm(pub i64, pub f64, pub f64);

/// A step start: number, time.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct StepStart(pub i64, pub f64);

/// The observations of one job on one host. Times are seconds of one clock.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Trace {
    /// The chips that the job requires here; without them, every chip that it opened.
    #[serde(default)]
    pub chips: Vec<i64>,
    /// When the job was created, where known.
    #[serde(default)]
    pub created_at: Option<f64>,
    /// When it is asked.
    pub now: f64,
    /// Device opens.
    #[serde(default)]
    pub opens: Vec<Open>,
    /// Duty samples.
    #[serde(default)]
    pub duty: Vec<Duty>,
    /// Memory in use.
    #[serde(default)]
    pub hbm: Vec<Hbm>,
    /// Step starts in the order they were seen, where known.
    #[serde(default)]
    pub steps: Option<Vec<StepStart>>,
    /// Starts of the job's processes, where known.
    #[serde(default)]
    pub process_starts: Vec<f64>,
    /// When the job finished, where it is known to have.
    #[serde(default)]
    pub ended_at: Option<f64>,
}
