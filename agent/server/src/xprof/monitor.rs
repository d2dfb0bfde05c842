//! `Monitor`: the latest samples of the chips, as text for a person and as the few numbers that the protocol has.
//!
//! It answers at once: the sampler has measured already, whatever time the client allows.

use std::fmt::Write as _;

use model::time::Timestamp;
use proto::{
    tensorflow::{
        MonitorRequest, MonitorResponse, ProfilerServiceMonitorResult,
        profiler_service_monitor_result::ResponseType,
    },
    tpuscope::v1::{ChipStatus, StatusReply, WorkloadSteps, series_value::Value},
};

use crate::host_api::HostApi;

const TENSORCORE: &str = "tpu_chip_tensorcore_utilization_ratio";
const GIB: f64 = 1_073_741_824.0;

pub(super) fn monitor(host_api: &HostApi, request: &MonitorRequest) -> MonitorResponse {
    let utilization = host_api.samples(&[TENSORCORE.to_owned()]).samples.into_iter();
    let utilization: Vec<(String, f64)> = utilization
        .filter_map(|sample| match sample.value {
            Some(Value::Gauge(ratio)) => {
                Some((sample.labels.get("chip").cloned().unwrap_or_default(), ratio))
            }
            _ => None,
        })
        .collect();
    response(&host_api.status(), &utilization, request.timestamp)
}

/// `utilization` is that of the matrix units by chip, 0 to 1.
fn response(status: &StatusReply, utilization: &[(String, f64)], timestamp: bool) -> MonitorResponse {
    let mut data = String::new();
    if timestamp {
        // Writing to a text does not fail.
        let _ = writeln!(data, "Timestamp: {}", Timestamp(status.at_unix_ns));
    }
    for chip in &status.chips {
        let busy = utilization.iter().find(|(index, _)| *index == chip.index.to_string());
        let _ = writeln!(data, "{}", line(chip, busy.map(|(_, ratio)| *ratio)));
    }
    if status.chips.is_empty() {
        let why = match status.chips_unknown.as_str() {
            "" => "this host has no TPU chip",
            why => why,
        };
        let _ = writeln!(data, "No chip: {why}");
    }
    for steps in &status.steps {
        if let Some(line) = steps_line(steps) {
            let _ = writeln!(data, "{line}");
        }
    }
    MonitorResponse { data, monitor_result: Some(result(status, utilization)) }
}

fn line(chip: &ChipStatus, utilization: Option<f64>) -> String {
    let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
    let duty = chip.duty_cycle.map(|ratio| format!("duty cycle {}", percent(ratio)));
    let matrix = utilization.map(|ratio| format!("matrix unit utilization {}", percent(ratio)));
    let hbm = chip.hbm_used_bytes.zip(chip.hbm_total_bytes);
    let hbm = hbm.map(|(used, total)| format!("HBM {:.2} of {:.2} GiB", used / GIB, total / GIB));
    let known: Vec<String> = [duty, matrix, hbm].into_iter().flatten().collect();
    let known = if known.is_empty() { format!("no value: {}", chip.missing) } else { known.join(", ") };
    format!("Chip {} ({}): {known}", chip.index, chip.state)
}

fn steps_line(steps: &WorkloadSteps) -> Option<String> {
    let median = steps.median_seconds?;
    Some(format!("Job {}: median step time {:.3} ms", steps.job, median * 1e3))
}

/// The protocol's numbers. One without a value is left at 0, and the type says which ones count.
fn result(status: &StatusReply, utilization: &[(String, f64)]) -> ProfilerServiceMonitorResult {
    let idle = mean(status.chips.iter().filter_map(|chip| chip.duty_cycle)).map(|duty| (1.0 - duty) * 100.0);
    let matrix = mean(utilization.iter().map(|(_, ratio)| *ratio)).map(|ratio| ratio * 100.0);
    let steps: Vec<f64> =
        status.steps.iter().filter_map(|steps| steps.mean_seconds).map(|seconds| seconds * 1e3).collect();
    let response_type = match (matrix, idle, steps.as_slice()) {
        (Some(_), Some(_), [_, ..]) => ResponseType::UtilIdleStep,
        (Some(_), Some(_), []) => ResponseType::UtilIdle,
        (Some(_), None, _) => ResponseType::UtilOnly,
        _ => ResponseType::EmptyResult,
    };
    ProfilerServiceMonitorResult {
        response_type: response_type.into(),
        device_idle_time_percent: idle.unwrap_or_default(),
        matrix_unit_utilization_percent: matrix.unwrap_or_default(),
        step_time_ms_avg: mean(steps.iter().copied()).unwrap_or_default(),
        step_time_ms_min: steps.iter().copied().reduce(f64::min).unwrap_or_default(),
        step_time_ms_max: steps.iter().copied().reduce(f64::max).unwrap_or_default(),
        ..ProfilerServiceMonitorResult::default()
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chip(index: u32, duty_cycle: Option<f64>) -> ChipStatus {
        ChipStatus {
            index,
            state: "ok".to_owned(),
            duty_cycle,
            hbm_used_bytes: Some(GIB),
            hbm_total_bytes: Some(16.0 * GIB),
            ..ChipStatus::default()
        }
    }

    #[test]
    fn the_samples_are_shown_as_text_and_as_numbers() {
        let status = StatusReply {
            at_unix_ns: 1_767_225_600_000_000_000,
            chips: vec![chip(0, Some(0.75)), chip(1, Some(0.25))],
            steps: vec![WorkloadSteps {
                job: "train".to_owned(),
                median_seconds: Some(0.010),
                mean_seconds: Some(0.012),
                ..WorkloadSteps::default()
            }],
            ..StatusReply::default()
        };
        let shown = response(&status, &[("0".to_owned(), 0.5)], true);
        assert_eq!(
            shown.data,
            "Timestamp: 2026-01-01T00:00:00Z\n\
             Chip 0 (ok): duty cycle 75.0 %, matrix unit utilization 50.0 %, HBM 1.00 of 16.00 GiB\n\
             Chip 1 (ok): duty cycle 25.0 %, HBM 1.00 of 16.00 GiB\n\
             Job train: median step time 10.000 ms\n"
        );
        let result = shown.monitor_result.unwrap();
        assert_eq!(result.response_type(), ResponseType::UtilIdleStep);
        let numbers = (result.device_idle_time_percent, result.matrix_unit_utilization_percent);
        assert_eq!((numbers, result.step_time_ms_avg), ((50.0, 50.0), 12.0));
    }

    #[test]
    fn a_host_without_values_says_why() {
        let empty = response(&StatusReply::default(), &[], false);
        assert_eq!(empty.data, "No chip: this host has no TPU chip\n");
        assert_eq!(empty.monitor_result.unwrap().response_type(), ResponseType::EmptyResult);
        let silent = ChipStatus {
            state: "ok".to_owned(),
            missing: "nothing listens".to_owned(),
            ..ChipStatus::default()
        };
        let silent = StatusReply { chips: vec![silent], ..StatusReply::default() };
        assert_eq!(response(&silent, &[], false).data, "Chip 0 (ok): no value: nothing listens\n");
    }
}
