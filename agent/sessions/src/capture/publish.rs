//! After the window: the parts become visible, and the manifest is written.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::{
    step_times::{ReadTrace, TraceSteps},
    time::{Clock, Timestamp},
};
use xprof::{
    check::TraceSummary,
    loss::Loss,
    session::{
        AtStep, HostEntry, HostName, MANIFEST_VERSION, Manifest, Missing, PartFacts, PartSteps, SessionId,
        SessionName, SessionWriter, Tool, Window,
    },
};

use super::{
    CaptureRun, CapturedSession, Failures, blocking,
    progress::CaptureProgress,
    record::{CaptureWindow, ReceivedPart},
    second_reading::{self, PartReading},
};
use crate::{CaptureError, spec::CaptureSpec, target::CaptureTarget, trace_remarks::TraceRemarks};

/// A start that is later than this is written down.
const LATE: Duration = Duration::from_millis(50);
/// How long the figures of the steps of a capture hold.
const STEPS_FRESH: Duration = Duration::from_secs(180);

/// The hosts of a session, by name.
type Hosts = BTreeMap<HostName, HostEntry>;

/// What a capture has after its window.
pub(super) struct CaptureOutcome {
    /// For the manifest.
    pub(super) id: Option<SessionId>,
    pub(super) received: Vec<ReceivedPart>,
    pub(super) failures: Failures,
    /// Further warnings about the whole session.
    pub(super) notes: Vec<String>,
    pub(super) window: CaptureWindow,
}

impl CaptureRun {
    /// Makes the parts visible and writes the manifest. If that fails, nothing stays visible.
    pub(super) async fn publish(
        &self,
        writer: &Arc<SessionWriter>,
        outcome: CaptureOutcome,
        clock: &dyn Clock,
    ) -> Result<CapturedSession, CaptureError> {
        let CaptureOutcome { id, received, mut failures, notes, window } = outcome;
        let hosts = self.commit(received, &mut failures, window).await?;
        let files: Vec<String> =
            hosts.values().flat_map(|host| &host.parts).map(|part| part.file.clone()).collect();
        let enough = self.check_enough(files.len(), &failures);
        // Up to here it can be cancelled, with nothing kept.
        let enough = enough.and_then(|()| match self.cancel.is_cancelled() {
            true => Err(CaptureError::Cancelled),
            false => Ok(()),
        });
        let mut manifest = self.manifest(writer.name(), id, hosts, &failures, window.begin, clock.now());
        manifest.warnings.extend(notes);
        let writer = Arc::clone(writer);
        let finished = blocking(move || match enough.and_then(|()| Ok(writer.finish(manifest)?)) {
            Ok(finished) => Ok(finished),
            Err(error) => {
                writer.take_back(&files);
                Err(error)
            }
        });
        Ok(CapturedSession { finished: finished.await??, failures: failures.into_values().collect() })
    }

    async fn commit(
        &self,
        received: Vec<ReceivedPart>,
        failures: &mut Failures,
        window: CaptureWindow,
    ) -> Result<Hosts, CaptureError> {
        let mut hosts = Hosts::new();
        for ReceivedPart { index, part, summary, notes } in received {
            let target = &self.targets.targets[index];
            let wants_steps = self.spec.at_step.is_some();
            let PartReading { losses, steps, is_read } =
                second_reading::read(&self.reader, &summary, &part, wants_steps).await;
            if is_read {
                self.note_steps(target, steps, &summary);
            }
            let mut facts = facts(&summary, losses, target, &self.spec);
            facts.steps = steps.map(part_steps);
            facts.warnings.extend(notes);
            // Another host's clock may be off by more than any lateness.
            let our_clock = target.at.is_loopback() || target.process.is_some();
            let comparable = window.common_start.is_some() && our_clock;
            facts.late_start_ns = late(&summary, window.begin).filter(|_| comparable);
            match blocking(move || part.into_writer().commit(facts)).await? {
                Ok(entry) => {
                    (self.listener)(CaptureProgress::Part(index, Box::new(entry.clone())));
                    let host = hosts.entry(target.host.clone()).or_insert_with(|| HostEntry {
                        host: target.host.to_string(),
                        clock: None,
                        parts: Vec::new(),
                        warnings: Vec::new(),
                    });
                    host.parts.push(entry);
                }
                Err(error) => self.fail(index, error.into(), failures),
            }
        }
        Ok(hosts)
    }

    /// Samples and status show the steps of a workload.
    fn note_steps(&self, target: &CaptureTarget, steps: Option<TraceSteps>, summary: &TraceSummary) {
        let stop = summary.window.and_then(|(_, stop)| i64::try_from(stop).ok());
        if let (Some(known), Some(process), Some(stop)) = (&self.steps, target.process, stop) {
            known.put(process, ReadTrace { steps, stop: Timestamp(stop), fresh_for: STEPS_FRESH });
        }
    }

    fn manifest(
        &self,
        session: &SessionName,
        id: Option<SessionId>,
        hosts: Hosts,
        failures: &Failures,
        begin: Timestamp,
        now: Timestamp,
    ) -> Manifest {
        let failed = failures.iter().map(|(&index, error)| {
            let target = &self.targets.targets[index];
            Missing {
                host: target.host.to_string(),
                process: Some(target.at.to_string()),
                why: error.to_string(),
            }
        });
        let start = u64::try_from(begin.0).unwrap_or(0);
        let length = u64::try_from(self.spec.duration.as_nanos()).unwrap_or(0);
        let mut hosts: Vec<HostEntry> = hosts.into_values().collect();
        for host in &mut hosts {
            host.parts.sort_by(|a, b| a.file.cmp(&b.file));
        }
        Manifest {
            version: MANIFEST_VERSION,
            session: session.to_string(),
            id,
            tool: Tool::this(),
            created: Some(now.into()),
            window: Window::from_ns(start, start.saturating_add(length)),
            tracer_levels: Some(self.spec.levels),
            options: self.spec.advanced.clone(),
            at_step: self.spec.at_step.map(|step| AtStep::of(step, &hosts)),
            hosts,
            missing: failed.chain(self.targets.missing.iter().cloned()).collect(),
            warnings: self.targets.warnings.clone(),
        }
    }
}

fn part_steps(steps: TraceSteps) -> PartSteps {
    PartSteps {
        count: steps.count,
        median_ns: steps.median_ns,
        first: steps.numbered.map(|numbered| numbered.first),
        last: steps.numbered.map(|numbered| numbered.last),
    }
}

fn facts(
    summary: &TraceSummary,
    losses: Result<Vec<Loss>, String>,
    target: &CaptureTarget,
    spec: &CaptureSpec,
) -> PartFacts {
    // What the process says of itself goes before what its files say.
    let mut versions = target.versions.clone();
    versions.extend(summary.versions.clone());
    let TraceRemarks { warnings, losses } = TraceRemarks::of(summary, losses, target, spec);
    PartFacts {
        pid: target.process.map(|process| process.pid),
        command: (!target.command.is_empty()).then(|| target.command.clone()),
        uid: target.uid,
        user: target.user.clone(),
        versions,
        address: Some(target.at.to_string()),
        job: target.job.clone().map(Box::new),
        planes: summary.plane_count,
        lines: summary.lines,
        events: summary.events,
        window: summary.window.and_then(|(start, stop)| Window::from_ns(start, stop)),
        late_start_ns: None,
        steps: None,
        warnings,
        losses,
        recorded: Vec::new(),
        gaps: Vec::new(),
    }
}

/// How much later than asked the profile began, where that is much.
fn late(summary: &TraceSummary, begin: Timestamp) -> Option<u64> {
    let (start, _) = summary.window?;
    let late = start.saturating_sub(u64::try_from(begin.0).ok()?);
    (Duration::from_nanos(late) > LATE).then_some(late)
}

#[cfg(test)]
mod tests {
    use xprof::session::PartJob;

    use super::*;
    use crate::{
        settings::Settings,
        spec::{CaptureParams, ParamsSource},
        target::direct,
    };

    #[test]
    fn a_part_has_the_job_of_its_target() {
        let mut target =
            direct(&["localhost:1".parse().unwrap()], &HostName::sanitised("h")).targets.remove(0);
        let params = CaptureParams { duration: Duration::from_secs(1), ..CaptureParams::default() };
        let spec =
            CaptureSpec::new(params, ParamsSource::Direct, &Settings::default(), Timestamp(0)).unwrap();
        assert_eq!(facts(&TraceSummary::default(), Ok(Vec::new()), &target, &spec).job, None);
        let job = PartJob {
            kind: "jobset".to_owned(),
            id: "ns/name".to_owned(),
            attempt: None,
            name: None,
            user: None,
            rank: Some(1),
        };
        target.job = Some(job.clone());
        assert_eq!(facts(&TraceSummary::default(), Ok(Vec::new()), &target, &spec).job, Some(Box::new(job)));
    }

    #[test]
    fn the_trace_knows_its_versions_better_than_the_files() {
        let mut target =
            direct(&["localhost:1".parse().unwrap()], &HostName::sanitised("h")).targets.remove(0);
        let params = CaptureParams { duration: Duration::from_secs(1), ..CaptureParams::default() };
        let spec =
            CaptureSpec::new(params, ParamsSource::Direct, &Settings::default(), Timestamp(0)).unwrap();
        let bare = facts(&TraceSummary::default(), Ok(Vec::new()), &target, &spec);
        assert_eq!((bare.command, bare.uid, bare.user, bare.versions.len()), (None, None, None, 0));
        let versions = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter().map(|&(name, version)| (name.to_owned(), version.to_owned())).collect()
        };
        target.versions = versions(&[("jaxlib", "0.10.1"), ("libtpu", "0.0.52")]);
        let summary = TraceSummary {
            versions: versions(&[("jax", "0.10.2"), ("jaxlib", "0.10.2")]),
            ..Default::default()
        };
        assert_eq!(
            facts(&summary, Ok(Vec::new()), &target, &spec).versions,
            versions(&[("jax", "0.10.2"), ("jaxlib", "0.10.2"), ("libtpu", "0.0.52")])
        );
    }
}
