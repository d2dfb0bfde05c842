//! A question to a ledger, in the form of a JSON object.

use serde::Deserialize;

use crate::{error::Error, time::Micros};

/// A question as written: instants are epoch seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum LedgerQuery {
    /// The whole job at `now`.
    Cumulative {
        /// When it is asked.
        now: f64,
        /// Instead of the computed ideal step time.
        #[serde(default)]
        ideal_step_time: Option<f64>,
        /// Whether the calculator of the query before answers; `false` begins with a new one.
        #[serde(default)]
        reuse_calculator: Option<bool>,
    },
    /// A window.
    Interval {
        /// Its start.
        start: f64,
        /// Its end.
        end: f64,
        /// When it is asked.
        #[serde(default)]
        now: Option<f64>,
        /// As above.
        #[serde(default)]
        reuse_calculator: Option<bool>,
    },
    /// The whole job without some intervals.
    Exclusions {
        /// When it is asked.
        now: f64,
        /// Start and end of each.
        exclude: Vec<(f64, f64)>,
        /// As above.
        #[serde(default)]
        ideal_step_time: Option<f64>,
        /// As above.
        #[serde(default)]
        reuse_calculator: Option<bool>,
    },
}

impl LedgerQuery {
    /// What the query says about the calculator of the query before.
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
/// For what is no instant.
pub(crate) fn instants(pairs: &[(f64, f64)]) -> Result<Vec<(Micros, Micros)>, Error> {
    pairs
        .iter()
        .map(|(start, end)| Ok((Micros::from_seconds(*start)?, Micros::from_seconds(*end)?)))
        .collect()
}
