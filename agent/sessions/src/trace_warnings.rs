//! Warnings about a trace that was received completely.

use xprof::{
    check::{PlaneSummary, TraceSummary},
    loss::LossKind,
};

use super::{
    spec::{CaptureSpec, LONG_WINDOW},
    target::CaptureTarget,
};

/// The maximum number of messages of the producer that become warnings.
const MAX_MESSAGES: usize = 4;

/// The warnings about the part of `target`.
pub(super) fn of(summary: &TraceSummary, target: &CaptureTarget, spec: &CaptureSpec) -> Vec<String> {
    let mut warnings = target.notes.clone();
    let cores = summary.planes.iter().filter(|plane| plane.is_tensor_core()).count();
    let devices: Vec<&PlaneSummary> = summary.planes.iter().filter(|plane| plane.is_device()).collect();
    let held = target.chips.filter(|&chips| chips > 0);
    let losses = summary.losses();
    if let Some(chips) = held.filter(|_| devices.is_empty()) {
        let level = spec.levels.device;
        warnings.push(format!(
            "no device plane, although the process holds {chips} chip(s); the device tracer level was {level}"
        ));
    } else if target.chips.is_none()
        && devices.is_empty()
        && !losses.iter().any(|loss| loss.kind == LossKind::NoDevicePlane)
    {
        warnings.push(
            "no device plane, and it is not known whether the process holds chips: it may lack the work of devices"
                .to_owned(),
        );
    } else if let Some(expected) = target.devices.filter(|&expected| (cores as u64) < u64::from(expected)) {
        warnings.push(format!("{cores} device plane(s), although the process has {expected} devices"));
    }
    if (held.is_some() || !devices.is_empty()) && spec.duration > LONG_WINDOW {
        warnings.push(format!(
            "a window of {} s: captures over {} s are known to lose device lines; several short ones are safer",
            spec.duration.as_secs(),
            LONG_WINDOW.as_secs()
        ));
    }
    if summary.window.is_none() {
        warnings.push("it has no window (no Task Environment plane)".to_owned());
    }
    let silent = devices.iter().filter(|plane| plane.events == 0);
    warnings.extend(silent.map(|plane| format!("plane {} has no events", plane.name)));
    // The messages are the same as those of `sessions show`.
    let known = |kind| kind == LossKind::NoDevicePlane && held.is_some();
    let losses = losses.into_iter().filter(|loss| !known(loss.kind));
    warnings.extend(losses.map(|loss| loss.message));
    let messages = summary.errors.iter().map(|text| ("error", text));
    let messages = messages.chain(summary.warnings.iter().map(|text| ("warning", text)));
    warnings.extend(messages.take(MAX_MESSAGES).map(|(kind, text)| format!("the producer's {kind}: {text}")));
    warnings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use xprof::{client::Target, session::HostName};

    use super::*;
    use crate::{
        settings::Settings,
        spec::{CaptureParams, ParamsSource},
        target::direct,
    };
    use model::time::Timestamp;

    fn warnings(
        planes: &[(&str, Option<i128>)],
        chips: impl Into<Option<usize>>,
        devices: Option<u32>,
        seconds: u64,
    ) -> Vec<String> {
        let named: Target = "localhost:1".parse().unwrap();
        let mut target = direct(&[named], &HostName::sanitised("h")).targets.remove(0);
        (target.chips, target.devices) = (chips.into(), devices);
        let params = CaptureParams { duration: Duration::from_secs(seconds), ..CaptureParams::default() };
        let spec =
            CaptureSpec::new(params, ParamsSource::Direct, &Settings::default(), Timestamp(0)).unwrap();
        let plane = |&(name, end_ps): &(&str, Option<i128>)| PlaneSummary {
            name: name.to_owned(),
            end_ps,
            core_end_ps: end_ps,
            events: u64::from(end_ps.is_some()),
            ..PlaneSummary::default()
        };
        let summary = TraceSummary {
            planes: planes.iter().map(plane).collect(),
            window: Some((5_000_000_000, 5_000_000_000 + seconds * 1_000_000_000)),
            ..TraceSummary::default()
        };
        of(&summary, &target, &spec)
    }

    const S: i128 = 1_000_000_000_000;

    #[test]
    fn a_complete_trace_has_no_warnings() {
        assert_eq!(warnings(&[("/host:CPU", Some(S))], 0, None, 2), Vec::<String>::new());
        let planes = [("/device:TPU:0", Some(2 * S)), ("/device:TPU:1", Some(2 * S - S / 10))];
        assert_eq!(warnings(&planes, 2, Some(2), 2), Vec::<String>::new());
    }

    #[test]
    fn each_loss_has_a_warning() {
        assert_eq!(
            warnings(&[("/host:CPU", Some(S))], 4, Some(4), 2),
            ["no device plane, although the process holds 4 chip(s); the device tracer level was 1"]
        );
        let unknown = warnings(&[("/host:CPU", Some(S))], None, None, 2);
        assert!(unknown.len() == 1 && unknown[0].contains("not known whether the process holds chips"));
        assert_eq!(warnings(&[("/device:TPU:0", Some(2 * S))], None, None, 2), Vec::<String>::new());
        let one = [("/device:TPU:0", Some(2 * S)), ("/device:TPU:0 SparseCore 0", Some(2 * S))];
        assert!(warnings(&one, 2, Some(2), 2)[0].contains("1 device plane(s), although the process has 2"));
        assert!(
            warnings(&[("/device:TPU:0", Some(S / 2))], 1, Some(1), 2)[0]
                .contains("end 1.5 s before the end")
        );
        assert!(warnings(&[("/device:TPU:0", None)], 1, Some(1), 2)[0].contains("has no events"));
        assert!(warnings(&[("/device:TPU:0", Some(40 * S))], 1, Some(1), 40)[0].contains("over 30 s"));
    }
}
