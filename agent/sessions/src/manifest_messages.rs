//! Manifests as messages: the one conversion between the two, used by both ends of the API.

use jiff::Timestamp;
use proto::tpuscope::v1::{
    self, ManifestAtStep, ManifestGap, ManifestHost, ManifestJob, ManifestLoss, ManifestMissing,
    ManifestPart, ManifestSteps, ManifestWindow, SessionManifest,
};
use thiserror::Error;
use xprof::session::{
    AtStep, ClockOffset, GapEntry, HostEntry, LossEntry, Manifest, Missing, PartEntry, PartJob, PartSteps,
    Tool, TracerLevels, Window,
};

/// A message that is not a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a time of the manifest is out of range: {0} ns since the epoch")]
pub struct BadManifest(i64);

/// `manifest` as a message.
pub fn manifest(manifest: Manifest) -> SessionManifest {
    let Manifest {
        version,
        session,
        id,
        tool,
        created,
        window,
        tracer_levels,
        options,
        at_step,
        hosts,
        missing,
        warnings,
    } = manifest;
    SessionManifest {
        version,
        session,
        id: id.map(Into::into),
        tool_name: tool.name,
        tool_version: tool.version,
        created_unix_ns: created.map(nanoseconds),
        window: window.map(window_message),
        tracer_levels: tracer_levels.map(levels_message),
        options: options.into_iter().collect(),
        at_step: at_step.map(at_step_message),
        hosts: hosts.into_iter().map(host_message).collect(),
        missing: missing
            .into_iter()
            .map(|Missing { host, process, why }| ManifestMissing { host, process, why })
            .collect(),
        warnings,
    }
}

/// The manifest in `message`.
///
/// # Errors
/// If a time in it is out of range.
pub fn manifest_of(message: SessionManifest) -> Result<Manifest, BadManifest> {
    let missing = |ManifestMissing { host, process, why }| Missing { host, process, why };
    Ok(Manifest {
        version: message.version,
        session: message.session,
        id: message.id.and_then(|id| id.parse().ok()),
        tool: Tool { name: message.tool_name, version: message.tool_version },
        created: message.created_unix_ns.map(timestamp).transpose()?,
        window: message.window.map(window_of).transpose()?,
        tracer_levels: message.tracer_levels.map(levels_of),
        options: message.options.into_iter().collect(),
        at_step: message.at_step.map(at_step_of),
        hosts: message.hosts.into_iter().map(host_of).collect::<Result<_, _>>()?,
        missing: message.missing.into_iter().map(missing).collect(),
        warnings: message.warnings,
    })
}

/// Manifests hold times of the years that nanoseconds in an `i64` reach (1677 to 2262); others end there.
fn nanoseconds(at: Timestamp) -> i64 {
    let ns = at.as_nanosecond();
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

fn timestamp(ns: i64) -> Result<Timestamp, BadManifest> {
    Timestamp::from_nanosecond(i128::from(ns)).map_err(|_| BadManifest(ns))
}

fn window_message(window: Window) -> ManifestWindow {
    ManifestWindow { start_unix_ns: nanoseconds(window.start), stop_unix_ns: nanoseconds(window.stop) }
}

fn window_of(window: ManifestWindow) -> Result<Window, BadManifest> {
    Ok(Window { start: timestamp(window.start_unix_ns)?, stop: timestamp(window.stop_unix_ns)? })
}

/// Tracer levels as a message.
pub fn levels_message(levels: TracerLevels) -> v1::TracerLevels {
    let TracerLevels { host, device, python } = levels;
    v1::TracerLevels { host, device, python }
}

/// The tracer levels in a message.
pub fn levels_of(message: v1::TracerLevels) -> TracerLevels {
    let v1::TracerLevels { host, device, python } = message;
    TracerLevels { host, device, python }
}

fn at_step_message(at: AtStep) -> ManifestAtStep {
    let AtStep { step, first_step, off_by } = at;
    ManifestAtStep { step, first_step, off_by }
}

fn at_step_of(message: ManifestAtStep) -> AtStep {
    let ManifestAtStep { step, first_step, off_by } = message;
    AtStep { step, first_step, off_by }
}

fn steps_message(steps: PartSteps) -> ManifestSteps {
    let PartSteps { count, median_ns, first, last } = steps;
    ManifestSteps { count, median_ns, first, last }
}

fn steps_of(message: ManifestSteps) -> PartSteps {
    let ManifestSteps { count, median_ns, first, last } = message;
    PartSteps { count, median_ns, first, last }
}

/// A job as a message.
pub fn job_message(job: PartJob) -> ManifestJob {
    let PartJob { kind, id, attempt, name, user, rank } = job;
    ManifestJob { kind, id, attempt, name, user, rank }
}

/// The job in a message.
pub fn job_of(message: ManifestJob) -> PartJob {
    let ManifestJob { kind, id, attempt, name, user, rank } = message;
    PartJob { kind, id, attempt, name, user, rank }
}

fn loss_message(loss: LossEntry) -> ManifestLoss {
    let LossEntry { kind, certain, plane, count } = loss;
    ManifestLoss { kind, certain, plane, count }
}

fn loss_of(message: ManifestLoss) -> LossEntry {
    let ManifestLoss { kind, certain, plane, count } = message;
    LossEntry { kind, certain, plane, count }
}

fn gap_message(gap: GapEntry) -> ManifestGap {
    let GapEntry { start, stop, why } = gap;
    ManifestGap { start_unix_ns: nanoseconds(start), stop_unix_ns: nanoseconds(stop), why }
}

fn gap_of(message: ManifestGap) -> Result<GapEntry, BadManifest> {
    let ManifestGap { start_unix_ns, stop_unix_ns, why } = message;
    Ok(GapEntry { start: timestamp(start_unix_ns)?, stop: timestamp(stop_unix_ns)?, why })
}

fn host_message(host: HostEntry) -> ManifestHost {
    ManifestHost {
        host: host.host,
        clock_offset_ns: host.clock.map(|clock| clock.offset_ns),
        clock_bound_ns: host.clock.map_or(0, |clock| clock.bound_ns),
        parts: host.parts.into_iter().map(part_message).collect(),
        warnings: host.warnings,
    }
}

fn host_of(host: ManifestHost) -> Result<HostEntry, BadManifest> {
    let bound_ns = host.clock_bound_ns;
    Ok(HostEntry {
        host: host.host,
        clock: host.clock_offset_ns.map(|offset_ns| ClockOffset { offset_ns, bound_ns }),
        parts: host.parts.into_iter().map(part_of).collect::<Result<_, _>>()?,
        warnings: host.warnings,
    })
}

fn part_message(part: PartEntry) -> ManifestPart {
    ManifestPart {
        file: part.file,
        size: part.size,
        sha256: part.sha256,
        pid: part.pid,
        command: part.command,
        uid: part.uid,
        user: part.user,
        versions: part.versions.into_iter().collect(),
        address: part.address,
        job: part.job.map(|job| job_message(*job)),
        planes: part.planes,
        lines: part.lines,
        events: part.events,
        window: part.window.map(window_message),
        late_start_ns: part.late_start_ns,
        steps: part.steps.map(steps_message),
        warnings: part.warnings,
        losses: part.losses.into_iter().map(loss_message).collect(),
        recorded: part.recorded.into_iter().map(window_message).collect(),
        gaps: part.gaps.into_iter().map(gap_message).collect(),
    }
}

fn part_of(part: ManifestPart) -> Result<PartEntry, BadManifest> {
    Ok(PartEntry {
        file: part.file,
        size: part.size,
        sha256: part.sha256,
        pid: part.pid,
        command: part.command,
        uid: part.uid,
        user: part.user,
        versions: part.versions.into_iter().collect(),
        address: part.address,
        job: part.job.map(|job| Box::new(job_of(job))),
        planes: part.planes,
        lines: part.lines,
        events: part.events,
        window: part.window.map(window_of).transpose()?,
        late_start_ns: part.late_start_ns,
        steps: part.steps.map(steps_of),
        warnings: part.warnings,
        losses: part.losses.into_iter().map(loss_of).collect(),
        recorded: part.recorded.into_iter().map(window_of).collect::<Result<_, _>>()?,
        gaps: part.gaps.into_iter().map(gap_of).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field of a manifest, set.
    const FULL: &str = r#"{
        "version": 1, "session": "s", "id": "0123456789abcdef0123456789abcdef", "tool": {"name": "tpuscope", "version": "0.1.0"},
        "created": "2026-03-04T05:06:07.000000001Z",
        "window": {"start": "2026-03-04T05:06:05Z", "stop": "2026-03-04T05:06:07Z"},
        "tracer_levels": {"host": 2, "device": 1, "python": 0}, "options": {"tpu_trace_mode": "TRACE_COMPUTE"},
        "at_step": {"step": 7, "first_step": 6, "off_by": -1},
        "hosts": [{
            "host": "h", "clock": {"offset_ns": -5, "bound_ns": 7}, "warnings": ["w1"],
            "parts": [{
                "file": "h.xplane.pb", "size": 3, "sha256": "ab", "pid": 17, "command": "python",
                "uid": 1000, "user": "ada", "versions": {"jaxlib": "0.10.2"}, "address": "127.0.0.1:9012",
                "job": {"kind": "slurm", "id": "1", "attempt": 2, "name": "n", "user": "u", "rank": 3},
                "planes": 4, "lines": 5, "events": 6,
                "window": {"start": "2026-03-04T05:06:05Z", "stop": "2026-03-04T05:06:07Z"},
                "late_start_ns": 8, "warnings": ["w2"],
                "steps": {"count": 3, "median_ns": 4, "first": 6, "last": 8},
                "losses": [{"kind": "dropped_traces", "certain": true, "plane": "/device:TPU:0", "count": 9}],
                "recorded": [{"start": "2026-03-04T05:06:05Z", "stop": "2026-03-04T05:06:06Z"}],
                "gaps": [{"start": "2026-03-04T05:06:06Z", "stop": "2026-03-04T05:06:07Z", "why": "between"}]
            }]
        }],
        "missing": [{"host": "h", "process": "pid 1", "why": "no answer"}],
        "warnings": ["w3"]
    }"#;

    #[test]
    fn a_manifest_crosses_whole() {
        let full: serde_json::Value = serde_json::from_str(FULL).unwrap();
        let there = manifest(serde_json::from_value(full.clone()).unwrap());
        let back = manifest_of(there).unwrap();
        assert_eq!(serde_json::to_value(&back).unwrap(), full, "no field is lost");
        let bare = Manifest {
            id: None,
            created: None,
            window: None,
            tracer_levels: None,
            at_step: None,
            hosts: Vec::new(),
            missing: Vec::new(),
            ..back
        };
        assert_eq!(manifest_of(manifest(bare.clone())), Ok(bare));
    }
}
