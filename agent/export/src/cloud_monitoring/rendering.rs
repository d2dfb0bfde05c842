//! The points of one round: the exact ledgers of the jobs that this host writes, and the distributions of libtpu.
//!
//! Must never hold more than [`MOST_SERIES`] points, nor what the service is known to refuse.

use goodput::{answer::LedgerAnswer, badput::BadputType, export::TimeSeries, time::Micros};
use marks::ledgers::{MarkAnswer, MarkLedger, MarkLedgerError, MarkLedgerQuestion, MarkLedgers};
use model::{sample::Sample, time::Timestamp, unit::Duration};
use store::marks::MarkedJob;

use super::{
    distributions,
    failure::ExportFailureKind,
    series::{CloudSeries, MonitoredResource},
    settings::CloudMonitoringSettings,
    target::ExportTarget,
};

/// The most series of one round.
pub(super) const MOST_SERIES: usize = 10_000;

/// The points of one round.
pub(super) struct Rendering {
    /// The time of the points.
    at: Timestamp,
    /// The points.
    pub(super) series: Vec<CloudSeries>,
    /// Those of the events that programs name: they come last, because there may be any number of them.
    custom: Vec<CloudSeries>,
    /// Points that are left out.
    pub(super) dropped: u64,
    /// Jobs whose log says that they ended, with the time of their last mark.
    pub(super) ended: Vec<(i64, Timestamp)>,
    /// What is wrong with some of it.
    pub(super) remarks: Vec<(ExportFailureKind, String)>,
}

impl Rendering {
    /// No points yet.
    pub(super) fn new(at: Timestamp) -> Self {
        Self {
            at,
            series: Vec::new(),
            custom: Vec::new(),
            dropped: 0,
            ended: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Adds the series of a job: of its whole life and of the windows before now. Blocks.
    pub(super) fn add_job(
        &mut self,
        job: &MarkedJob,
        ledgers: &MarkLedgers,
        target: &ExportTarget,
        settings: &CloudMonitoringSettings,
    ) {
        let (at, whole) = (self.at, [None]);
        let windows = settings.rolling_windows.iter().map(|size| Some(window(at, *size)));
        for window in whole.into_iter().chain(windows) {
            let question = MarkLedgerQuestion {
                ledger: MarkLedger::Exact,
                now: None,
                window,
                elastic: false,
                labels: target.labels(&job.name, settings),
            };
            match ledgers.ask(job.number, &question) {
                Ok((row, MarkAnswer::Exact(answer))) => self.add_answer(&row, answer),
                // Nothing else was asked for.
                Ok((_, MarkAnswer::Strict(_))) | Err(MarkLedgerError::Gone) => return,
                Err(error) => {
                    self.remarks.push((ExportFailureKind::Marks, format!("a job is not exported: {error}")));
                    return;
                }
            }
        }
    }

    fn add_answer(&mut self, row: &MarkedJob, answer: LedgerAnswer) {
        match answer {
            LedgerAnswer::Job(job) => {
                if job.period.job_end_logged {
                    self.ended.push((row.number, row.last));
                }
                self.add_ledger(job.cloud_monitoring_series);
            }
            LedgerAnswer::Window(window) => {
                self.add_ledger(
                    window.export.map(|export| export.cloud_monitoring_series).unwrap_or_default(),
                );
            }
            // A job that has only begun has no goodput yet; its windows may have efficiencies all the same.
            LedgerAnswer::Failed(failed) => {
                self.add_ledger(
                    failed.export.map(|export| export.cloud_monitoring_series).unwrap_or_default(),
                );
            }
        }
    }

    fn add_ledger(&mut self, series: Vec<TimeSeries>) {
        let at = self.at;
        series.into_iter().for_each(|series| self.add(CloudSeries::of_ledger(series, at)));
    }

    /// Adds the distributions that were read after `after`.
    pub(super) fn add_distributions(
        &mut self,
        samples: &[&Sample],
        resource: &MonitoredResource,
        after: Option<Timestamp>,
    ) {
        distributions::series(samples, resource, after).into_iter().for_each(|series| self.add(series));
    }

    fn add(&mut self, series: CloudSeries) {
        let list = if is_custom(&series) { &mut self.custom } else { &mut self.series };
        if !series.is_sound() {
            self.dropped += 1;
        } else if list.len() < MOST_SERIES {
            list.push(series);
        } else {
            self.too_many(1);
        }
    }

    /// The points in their order, as many as may be sent.
    pub(super) fn finish(mut self) -> Self {
        let room = MOST_SERIES - self.series.len();
        let surplus = self.custom.len().saturating_sub(room);
        self.custom.truncate(room);
        self.series.append(&mut self.custom);
        if surplus > 0 {
            self.too_many(surplus as u64);
        }
        self
    }

    fn too_many(&mut self, dropped: u64) {
        self.dropped += dropped;
        if !self.remarks.iter().any(|(kind, _)| *kind == ExportFailureKind::TooMany) {
            let what = format!("only {MOST_SERIES} series are exported at once");
            self.remarks.push((ExportFailureKind::TooMany, what));
        }
    }
}

fn is_custom(series: &CloudSeries) -> bool {
    let prefix = BadputType::CustomEvents.name();
    series.labels.iter().any(|(name, value)| name == "badput_source" && value.starts_with(prefix))
}

/// The window of this size before `at`.
fn window(at: Timestamp, size: Duration) -> (Micros, Micros) {
    let end = at.0 / 1000;
    let size = i64::try_from(size.get().as_micros()).unwrap_or(i64::MAX);
    (Micros(end.saturating_sub(size)), Micros(end))
}

#[cfg(test)]
mod tests {
    use goodput::export::PointValue;

    use super::*;

    fn series(source: &str, value: PointValue) -> TimeSeries {
        let labels = vec![("badput_source", source.to_owned())];
        TimeSeries { metric: "badput_time", value, labels, resource: Vec::new() }
    }

    #[test]
    fn what_cannot_be_sent_is_counted() {
        let mut rendering = Rendering::new(Timestamp(0));
        rendering.add_ledger(vec![
            series("OTHER", PointValue::Double(f64::NAN)),
            series("OTHER", PointValue::Int(1)),
        ]);
        assert_eq!((rendering.series.len(), rendering.dropped), (1, 1));
        rendering.add_ledger(vec![series("OTHER", PointValue::Int(1)); MOST_SERIES + 5]);
        let rendering = rendering.finish();
        assert_eq!((rendering.series.len(), rendering.dropped), (MOST_SERIES, 7));
        assert_eq!(rendering.remarks.len(), 1);
    }

    #[test]
    fn events_that_programs_name_never_displace_other_series() {
        let mut rendering = Rendering::new(Timestamp(0));
        rendering.add_ledger(vec![series("CUSTOM_BADPUT_EVENTS.X", PointValue::Int(1)); MOST_SERIES + 5]);
        rendering.add_ledger(vec![series("OTHER", PointValue::Int(1)); 3]);
        let rendering = rendering.finish();
        assert_eq!((rendering.series.len(), rendering.dropped), (MOST_SERIES, 8));
        assert!(rendering.series[..3].iter().all(|series| !is_custom(series)));
        assert!(rendering.series[3..].iter().all(is_custom));
    }

    #[test]
    fn a_window_ends_now_and_has_its_size_to_the_microsecond() {
        let size: Duration = "200.4s".parse().unwrap();
        assert_eq!(window(Timestamp(300_000_000_999), size), (Micros(99_600_000), Micros(300_000_000)));
    }
}
