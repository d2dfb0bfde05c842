//! What the log says of exports: the first failure of a kind with its remedy, some of those that follow, and the end of them.
//!
//! Must never write a line for each failure: a collector may be away for days.

use std::time::Duration;

use model::log_budget::{LogBudget, LogPermit};
use tokio::time::Instant;
use tracing::{info, warn};

use super::fault::{ExportFault, OtlpError};

/// A failure that goes on is told again after this time.
const AGAIN: Duration = Duration::from_secs(600);

/// What to do about a fault.
pub type Remedy = fn(ExportFault) -> &'static str;

/// The failures that are told.
#[derive(Debug)]
pub(super) struct Reports {
    remedy: Remedy,
    told: Option<ToldFailure>,
    budget: LogBudget,
    /// Failed exports since the last one that was sent whole.
    failures: u64,
}

#[derive(Debug)]
struct ToldFailure {
    fault: ExportFault,
    at: Instant,
}

impl Reports {
    pub(super) fn new(remedy: Remedy) -> Self {
        Self { remedy, told: None, budget: LogBudget::new(), failures: 0 }
    }

    /// Tells a failure, if it is news.
    pub(super) fn failed(&mut self, error: &OtlpError, now: Instant) {
        self.failures += 1;
        if let Some(permit) = self.permit(error.fault, now) {
            let (failures, remedy) = (self.failures, (self.remedy)(error.fault));
            warn!(failures, "metrics were not exported: {error}: {remedy}{permit}");
        }
    }

    /// Tells that the collector took an export without some of its points, if it is news.
    pub(super) fn rejected(&mut self, error: &OtlpError, now: Instant) {
        self.failures = 0;
        if let Some(permit) = self.permit(error.fault, now) {
            warn!("metrics were exported in part: {error}: {}{permit}", (self.remedy)(error.fault));
        }
    }

    /// Tells that an export was sent whole, if failures were told before.
    pub(super) fn sent(&mut self, now: Instant) {
        let failures = std::mem::take(&mut self.failures);
        if self.told.take().is_some()
            && let Some(permit) = self.budget.take(now)
        {
            info!(failures, "metrics are exported again{permit}");
        }
    }

    fn permit(&mut self, fault: ExportFault, now: Instant) -> Option<LogPermit> {
        let is_known =
            |told: &ToldFailure| told.fault == fault && now.saturating_duration_since(told.at) < AGAIN;
        if self.told.as_ref().is_some_and(is_known) {
            return None;
        }
        let permit = self.budget.take(now)?;
        self.told = Some(ToldFailure { fault, at: now });
        Some(permit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_until_it_changes_or_some_time_has_passed() {
        let (mut reports, start) = (Reports::new(|_| "do it"), Instant::now());
        let mut tells =
            |fault, seconds| reports.permit(fault, start + Duration::from_secs(seconds)).is_some();
        let told = [0, 1, 599, 600, 601, 1200].map(|seconds| tells(ExportFault::Connection, seconds));
        assert_eq!(told, [true, false, false, true, false, true]);
        assert!(tells(ExportFault::Silent, 1201) && tells(ExportFault::Connection, 1202));
        reports.sent(start + Duration::from_secs(1203));
        assert!(reports.permit(ExportFault::Connection, start + Duration::from_secs(1204)).is_some());
    }

    #[test]
    fn failures_that_alternate_are_bounded_too() {
        let (mut reports, start) = (Reports::new(|_| "do it"), Instant::now());
        let told = (0..3600).filter(|second| {
            let fault = if second % 2 == 0 { ExportFault::Connection } else { ExportFault::Silent };
            reports.permit(fault, start + Duration::from_secs(*second)).is_some()
        });
        assert!((300..=500).contains(&told.count()));
    }
}
