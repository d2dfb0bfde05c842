//! What the recorder knows, as messages.

use std::{collections::BTreeMap, time::Duration};

use ::sessions::recorder::{LengthReason, MeasuredCost, ProcessRecording, RecorderStatus};
use proto::tpuscope::v1::{self, RecordedGap, RecordedSegment, RecorderStatusReply, RecordingCost};
use store::segments::{RecordedProcess, SegmentGap, StoredSegment};

use super::{messages, protocol};

/// The status of the recorder.
pub(super) fn status(status: &RecorderStatus) -> RecorderStatusReply {
    let settings = &status.settings;
    RecorderStatusReply {
        peer: Some(protocol::agent()),
        mode: if status.is_on() { "on" } else { "off" }.to_owned(),
        window_seconds: settings.window.get().as_secs_f64(),
        every_seconds: settings.every.get().as_secs_f64(),
        bytes: status.bytes,
        max_bytes: settings.max_size.get(),
        keep_seconds: settings.keep.get().as_secs_f64(),
        keep_continuous_seconds: settings.keep_continuous.get().as_secs_f64(),
        processes: status.processes.iter().map(process).collect(),
    }
}

fn process(process: &ProcessRecording) -> v1::ProcessRecording {
    let (strategy, reason_code, reason) = match &process.plan {
        Ok(plan) => (plan.strategy.as_str(), "", String::new()),
        Err(why) => ("", why.code(), why.to_string()),
    };
    v1::ProcessRecording {
        pid: process.process.process.pid,
        command: process.command.clone(),
        job: Some(messages::job(&process.job)),
        recorded: process.plan.is_ok(),
        strategy: strategy.to_owned(),
        reason_code: reason_code.to_owned(),
        reason,
        next_unix_ns: process.next.map(|next| next.0),
        window_seconds: process.length.map(|(length, _)| length.as_secs_f64()),
        window_reason: process.length.map(|(_, reason)| length_text(reason)).unwrap_or_default(),
        last: process.last.as_ref().map(segment),
        segments: process.segments,
        bytes: process.bytes,
        cost: process.cost.map(cost),
        last_failure: process.last_failure.clone().unwrap_or_default(),
        open: process.is_open,
        drain_seconds: process.drains.map(|(every, _)| every.as_secs_f64()),
        levels: process.drains.map(|(_, levels)| levels.to_owned()).unwrap_or_default(),
    }
}

fn length_text(reason: LengthReason) -> String {
    let seconds = |duration: Duration| format!("{:.3} s", duration.as_secs_f64());
    match reason {
        LengthReason::Settings => String::new(),
        LengthReason::NoStepYet => "lengthened: no whole step was seen in a window so far".to_owned(),
        LengthReason::LongSteps(step) => format!("lengthened: a step takes {}", seconds(step)),
        LengthReason::NoStepInLongest(tried) => {
            format!("no step was seen, not even in a window of {}", seconds(tried))
        }
    }
}

fn cost(cost: MeasuredCost) -> RecordingCost {
    let MeasuredCost { inside_step_ns, between_step_ns, windows, slowdown, share } = cost;
    RecordingCost {
        inside_step_seconds: inside_step_ns / 1e9,
        between_step_seconds: between_step_ns / 1e9,
        windows,
        slowdown_ratio: slowdown,
        share_ratio: share,
    }
}

fn segment(segment: &StoredSegment) -> RecordedSegment {
    let steps = segment.facts.steps;
    let numbered = steps.and_then(|steps| steps.numbered);
    RecordedSegment {
        start_unix_ns: segment.start.0,
        stop_unix_ns: segment.stop.0,
        bytes: segment.bytes,
        trace_bytes: segment.trace_bytes,
        events: segment.facts.events,
        steps: steps.map_or(0, |steps| steps.count),
        median_step_seconds: steps.map(|steps| Duration::from_nanos(steps.median_ns).as_secs_f64()),
        first_step: numbered.map(|steps| steps.first),
        last_step: numbered.map(|steps| steps.last),
    }
}

fn gap(gap: &SegmentGap) -> RecordedGap {
    RecordedGap {
        start_unix_ns: gap.start.0,
        stop_unix_ns: gap.stop.0,
        windows: gap.windows,
        reason: gap.reason.clone(),
    }
}

/// The past, process by process.
pub(super) fn timeline(segments: &[StoredSegment], gaps: &[SegmentGap]) -> Vec<v1::RecordedProcess> {
    let mut processes: BTreeMap<&RecordedProcess, v1::RecordedProcess> = BTreeMap::new();
    for stored in segments {
        let process = processes.entry(&stored.process).or_insert_with(|| of(&stored.process));
        process.command.clone_from(&stored.facts.command);
        process.bytes += stored.bytes;
        process.segments.push(segment(stored));
    }
    for missing in gaps {
        processes.entry(&missing.process).or_insert_with(|| of(&missing.process)).gaps.push(gap(missing));
    }
    processes.into_values().collect()
}

fn of(process: &RecordedProcess) -> v1::RecordedProcess {
    v1::RecordedProcess {
        pid: process.process.pid,
        job_kind: process.workload.kind.as_str().to_owned(),
        job: process.workload.job.clone(),
        uid: process.uid,
        ..v1::RecordedProcess::default()
    }
}
