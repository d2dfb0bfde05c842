//! What is doubtful about a trace that was received completely: its losses, and other warnings.

use xprof::{
    check::{PlaneSummary, TraceSummary},
    loss::{Loss, LossKind},
    session::LossEntry,
    wording::counted,
};

use super::{
    spec::{CaptureSpec, LONG_WINDOW},
    target::CaptureTarget,
};

/// The maximum number of messages of the producer that become warnings.
const MAX_MESSAGES: usize = 4;

/// What the manifest says of a part: each loss has one warning among the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TraceRemarks {
    pub(super) warnings: Vec<String>,
    pub(super) losses: Vec<LossEntry>,
}

impl TraceRemarks {
    /// The remarks on the part of `target`, with the losses that a reading of it found, or why there was none.
    pub(super) fn of(
        summary: &TraceSummary,
        read: Result<Vec<Loss>, String>,
        target: &CaptureTarget,
        spec: &CaptureSpec,
    ) -> Self {
        let mut warnings = target.notes.clone();
        let devices: Vec<&PlaneSummary> = summary.planes.iter().filter(|plane| plane.is_device()).collect();
        let holds_chips = target.chips.is_some_and(|chips| chips > 0);
        let (found, unread) = match read {
            Ok(found) => (found, None),
            Err(why) => (summary.losses(), Some(why)),
        };
        let mut losses = losses(found, spec);
        // The messages are the same as those of `sessions show`.
        warnings.extend(losses.iter().map(|loss| loss.message.clone()));
        warnings.extend(of_devices(summary, target, spec, &losses));
        if (holds_chips || !devices.is_empty()) && spec.duration > LONG_WINDOW {
            warnings.push(format!(
                "a window of {} s: captures over {} s are known to lose device lines; several short ones are safer",
                spec.duration.as_secs(),
                LONG_WINDOW.as_secs()
            ));
        }
        if let Some(why) = unread {
            warnings.push(format!(
                "its program runs were not compared with the launches and with each other: {why}; `tpuscope sessions show` compares them"
            ));
        }
        if summary.window.is_none() {
            warnings.push("it has no window (no Task Environment plane)".to_owned());
        }
        let silent = devices.iter().filter(|plane| plane.events == 0);
        warnings.extend(silent.map(|plane| format!("plane {} has no events", plane.name)));
        let messages = summary.errors.iter().map(|text| ("error", text));
        let messages = messages.chain(summary.warnings.iter().map(|text| ("warning", text)));
        let messages = messages.take(MAX_MESSAGES);
        warnings.extend(messages.map(|(kind, text)| format!("the producer's {kind}: {text}")));
        losses.sort_by_key(|loss| !loss.kind.is_certain());
        Self { warnings, losses: losses.iter().map(Loss::to_entry).collect() }
    }
}

/// What the trace lost. What was not asked for is not lost.
fn losses(mut losses: Vec<Loss>, spec: &CaptureSpec) -> Vec<Loss> {
    let asked = spec.levels.ask_for_devices(&spec.advanced);
    losses.retain(|loss| asked || !loss.kind.is_of_all_devices());
    losses
}

/// What is to be known of the devices beside losses.
fn of_devices(
    summary: &TraceSummary,
    target: &CaptureTarget,
    spec: &CaptureSpec,
    losses: &[Loss],
) -> Option<String> {
    let cores = summary.planes.iter().filter(|plane| plane.is_tensor_core()).count();
    let has_device = summary.planes.iter().any(PlaneSummary::is_device);
    let expected = target.devices.filter(|&expected| (cores as u64) < u64::from(expected));
    if losses.iter().any(|loss| loss.kind == LossKind::NoDevicePlane) {
        return None;
    }
    match (has_device, target.chips, expected) {
        (false, Some(chips), _) if chips > 0 => {
            let why = if spec.levels.device == 0 {
                "the device tracer level was 0"
            } else if !spec.levels.ask_for_devices(&spec.advanced) {
                "tpu_trace_mode=TRACE_ONLY_HOST asks for none"
            } else {
                "nothing ran there, or it was not recorded"
            };
            Some(format!("no device plane for the {} of the process: {why}", counted(chips, "chip")))
        }
        (false, None, _) if spec.levels.ask_for_devices(&spec.advanced) => Some(
            "no device plane, and it is not known whether the process holds chips: it may lack the work of devices"
                .to_owned(),
        ),
        (_, _, Some(expected)) => Some(format!(
            "{}, although the process has {}",
            counted(cores, "device plane"),
            counted(expected, "device")
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use xprof::{client::Target, session::HostName};

    use super::*;
    use crate::{
        settings::Settings,
        spec::{CaptureParams, Levels, ParamsSource},
        target::direct,
    };
    use model::time::Timestamp;

    fn remarks(
        planes: &[(&str, Option<i128>)],
        chips: impl Into<Option<usize>>,
        devices: Option<u32>,
        seconds: u64,
        device_level: u32,
    ) -> (Vec<String>, Vec<String>) {
        let named: Target = "localhost:1".parse().unwrap();
        let mut target = direct(&[named], &HostName::sanitised("h")).targets.remove(0);
        (target.chips, target.devices) = (chips.into(), devices);
        let params = CaptureParams {
            duration: Duration::from_secs(seconds),
            levels: Levels { device: Some(device_level), ..Levels::default() },
            ..CaptureParams::default()
        };
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
        let remarks = TraceRemarks::of(&summary, Ok(summary.losses()), &target, &spec);
        (remarks.warnings, remarks.losses.into_iter().map(|loss| loss.kind).collect())
    }

    fn warnings(
        planes: &[(&str, Option<i128>)],
        chips: impl Into<Option<usize>>,
        devices: Option<u32>,
        seconds: u64,
    ) -> Vec<String> {
        remarks(planes, chips, devices, seconds, 1).0
    }

    const S: i128 = 1_000_000_000_000;

    #[test]
    fn a_complete_trace_has_no_warnings() {
        assert_eq!(warnings(&[("/host:CPU", Some(S))], 0, None, 2), Vec::<String>::new());
        let planes = [("/device:TPU:0", Some(2 * S)), ("/device:TPU:1", Some(2 * S - S / 10))];
        assert_eq!(warnings(&planes, 2, Some(2), 2), Vec::<String>::new());
    }

    #[test]
    fn each_doubt_has_a_warning() {
        let unknown = warnings(&[("/host:CPU", Some(S))], None, None, 2);
        assert!(unknown.len() == 1 && unknown[0].contains("not known whether the process holds chips"));
        assert_eq!(warnings(&[("/device:TPU:0", Some(2 * S))], None, None, 2), Vec::<String>::new());
        let one = [("/device:TPU:0", Some(2 * S)), ("/device:TPU:0 SparseCore 0", Some(2 * S))];
        assert!(
            warnings(&one, 2, Some(2), 2)[0].contains("1 device plane, although the process has 2 devices")
        );
        assert!(
            warnings(&[("/device:TPU:0", Some(S / 2))], 1, Some(1), 2)[0]
                .contains("end 1.5 s before the end")
        );
        assert!(warnings(&[("/device:TPU:0", None)], 1, Some(1), 2)[0].contains("has no events"));
        assert!(warnings(&[("/device:TPU:0", Some(40 * S))], 1, Some(1), 40)[0].contains("over 30 s"));
    }

    #[test]
    fn a_trace_that_could_not_be_read_again_is_said_so() {
        let named: Target = "localhost:1".parse().unwrap();
        let target = direct(&[named], &HostName::sanitised("h")).targets.remove(0);
        let params = CaptureParams { duration: Duration::from_secs(1), ..CaptureParams::default() };
        let spec =
            CaptureSpec::new(params, ParamsSource::Direct, &Settings::default(), Timestamp(0)).unwrap();
        let summary = TraceSummary { bytes: 1_900_000_000, ..TraceSummary::default() };
        let remarks = TraceRemarks::of(&summary, Err("no space".to_owned()), &target, &spec);
        assert!(
            remarks
                .warnings
                .iter()
                .any(|text| text.contains("were not compared") && text.contains("no space"))
        );
        assert_eq!(remarks.losses[0].kind, "size_limit", "what the arrival showed is kept");
    }

    #[test]
    fn the_manifest_keeps_the_losses() {
        let early = [("/device:TPU:0", Some(S / 2))];
        assert_eq!(remarks(&early, 1, Some(1), 2, 1).1, ["ends_early"]);
    }

    #[test]
    fn a_missing_device_plane_is_a_loss_only_where_programs_were_launched_and_devices_asked_for() {
        let named: Target = "localhost:1".parse().unwrap();
        let mut target = direct(&[named], &HostName::sanitised("h")).targets.remove(0);
        target.chips = Some(4);
        let remarks = |launches: bool, level: u32, mode: Option<&str>| {
            let params = CaptureParams {
                duration: Duration::from_secs(2),
                levels: Levels { device: Some(level), ..Levels::default() },
                advanced: mode
                    .map(|mode| ("tpu_trace_mode".to_owned(), mode.to_owned()))
                    .into_iter()
                    .collect(),
                ..CaptureParams::default()
            };
            let spec =
                CaptureSpec::new(params, ParamsSource::Direct, &Settings::default(), Timestamp(0)).unwrap();
            let plane = PlaneSummary { name: "/host:CPU".to_owned(), launches, ..PlaneSummary::default() };
            let summary = TraceSummary {
                planes: vec![plane],
                window: Some((5_000_000_000, 7_000_000_000)),
                ..TraceSummary::default()
            };
            let found = TraceRemarks::of(&summary, Ok(summary.losses()), &target, &spec);
            let kinds: Vec<_> = found.losses.into_iter().map(|loss| loss.kind).collect();
            (found.warnings.join("; "), kinds.join("; "))
        };
        let no_plane =
            |why: &str| (format!("no device plane for the 4 chips of the process: {why}"), String::new());
        let nothing = no_plane("nothing ran there, or it was not recorded");
        assert_eq!(remarks(false, 1, None), nothing);
        assert_eq!(remarks(false, 1, Some("TRACE_COMPUTE")), nothing);
        for launches in [false, true] {
            assert_eq!(remarks(launches, 0, None), no_plane("the device tracer level was 0"));
            assert_eq!(
                remarks(launches, 1, Some("TRACE_ONLY_HOST")),
                no_plane("tpu_trace_mode=TRACE_ONLY_HOST asks for none")
            );
        }
        let (warning, kinds) = remarks(true, 1, None);
        assert!(warning.contains("the host launched programs on a device"), "{warning}");
        assert_eq!(kinds, "no_device_plane");
    }
}
