//! The log of an exporter: a line when a kind of failure begins, again after an hour, and one when points are taken again.
//!
//! Must never fill the log, however often the kinds change.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use tracing::{info, warn};

use super::failure::{ExportFailure, ExportFailureKind};

/// A kind of failure that goes on is named again after this time.
const REPEAT: Duration = Duration::from_secs(3600);

/// What was written so far.
pub(super) struct ExportFailureLog {
    written: BTreeMap<ExportFailureKind, Instant>,
    /// Whether the last line says that points are not taken.
    failing: bool,
    remedy: fn(ExportFailureKind) -> &'static str,
}

impl ExportFailureLog {
    /// A log without lines, whose lines say what to do.
    pub(super) fn new(remedy: fn(ExportFailureKind) -> &'static str) -> Self {
        Self { written: BTreeMap::new(), failing: false, remedy }
    }

    /// A failure that keeps points from being taken.
    pub(super) fn failed(&mut self, failure: &ExportFailure, now: Instant) {
        if self.is_due(failure.kind, now) {
            self.failing = true;
            let remedy = (self.remedy)(failure.kind);
            warn!(
                reason = failure.kind.as_str(), error = %failure,
                "points did not reach Cloud Monitoring; the next ones will be tried: {remedy}"
            );
        }
    }

    /// Something that is wrong although points are taken.
    pub(super) fn remark(&mut self, kind: ExportFailureKind, what: &str, now: Instant) {
        if self.is_due(kind, now) {
            warn!(reason = kind.as_str(), "{what}: {}", (self.remedy)(kind));
        }
    }

    /// Points were taken.
    pub(super) fn succeeded(&mut self) {
        if std::mem::take(&mut self.failing) {
            info!("Cloud Monitoring takes points again");
        }
    }

    fn is_due(&mut self, kind: ExportFailureKind, now: Instant) -> bool {
        let last = self.written.get(&kind);
        let due = last.is_none_or(|last| now.saturating_duration_since(*last) >= REPEAT);
        if due {
            self.written.insert(kind, now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_named_once_an_hour() {
        let (mut log, start) = (ExportFailureLog::new(|_| ""), Instant::now());
        let minutes = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let due: Vec<bool> =
            [(ExportFailureKind::Quota, 0), (ExportFailureKind::Server, 0), (ExportFailureKind::Quota, 59)]
                .into_iter()
                .chain([
                    (ExportFailureKind::Quota, 60),
                    (ExportFailureKind::Quota, 119),
                    (ExportFailureKind::Server, 119),
                ])
                .map(|(kind, at)| log.is_due(kind, minutes(at)))
                .collect();
        assert_eq!(due, [true, true, false, true, false, true]);
    }
}
