//! A query of a ledger, in the form of a JSON object.

use serde::Deserialize;

use crate::{error::Error, time::Micros};

/// A query. Times are epoch seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum LedgerQuery {
    /// The whole job at `now`.
    Cumulative {
        /// The time of the query.
        now: f64,
        /// Replaces the computed ideal step time.
        #[serde(default)]
        ideal_step_time: Option<f64>,
        /// Whether to use the calculator of the previous query; `false` starts a new one.
        #[serde(default)]
        reuse_calculator: Option<bool>,
    },
    /// A window.
    Interval {
        /// Its start.
        start: f64,
        /// Its end.
        end: f64,
        /// The time of the query.
        #[serde(default)]
        now: Option<f64>,
        /// As for [`LedgerQuery::Cumulative`].
        #[serde(default)]
        reuse_calculator: Option<bool>,
    },
    /// The whole job without some intervals.
    Exclusions {
        /// The time of the query.
        now: f64,
        /// Start and end of each.
        exclude: Vec<(f64, f64)>,
        /// As for [`LedgerQuery::Cumulative`].
        #[serde(default)]
        ideal_step_time: Option<f64>,
        /// As for [`LedgerQuery::Cumulative`].
        #[serde(default)]
        reuse_calculator: Option<bool>,
    },
}

impl LedgerQuery {
    /// Whether to use the calculator of the previous query, if the query says so.
    pub fn reuse_calculator(&self) -> Option<bool> {
        match self {
            LedgerQuery::Cumulative { reuse_calculator, .. }
            | LedgerQuery::Interval { reuse_calculator, .. }
            | LedgerQuery::Exclusions { reuse_calculator, .. } => *reuse_calculator,
        }
    }
}

/// Rounds the ends of intervals.
///
/// # Errors
/// For a time that is out of range.
pub(crate) fn instants(pairs: &[(f64, f64)]) -> Result<Vec<(Micros, Micros)>, Error> {
    pairs
        .iter()
        .map(|(start, end)| Ok((Micros::from_seconds(*start)?, Micros::from_seconds(*end)?)))
        .collect()
}
