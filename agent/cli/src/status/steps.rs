//! The steps of the workloads as traces show them, of one host or of many: a row each, or why there is nothing.

use std::fmt::Write;

use proto::tpuscope::v1::WorkloadSteps;

use super::page::age;
use crate::{
    hosts::report,
    output::{TextTable, one_line},
};

/// The columns of a workload.
const HEADINGS: [&str; 9] = ["WORKLOAD", "STEP", "AGO", "MEDIAN", "MEAN", "PACE", "INPUT", "BUSY", "TRACE"];

/// The table, after an empty line, and below it the reasons of the workloads without steps. Empty without workloads.
pub(super) fn section(workloads: &[WorkloadSteps]) -> String {
    let (known, unknown): (Vec<_>, Vec<_>) =
        workloads.iter().partition(|workload| workload.missing.is_empty());
    let mut text = String::new();
    if !known.is_empty() {
        let mut table = TextTable::new(HEADINGS);
        known.into_iter().for_each(|workload| table.row(row(workload)));
        text = format!("\n{}", table.text());
    }
    if !unknown.is_empty() {
        text.push('\n');
    }
    for workload in unknown {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", one_line(&reason(workload)));
    }
    text
}

/// Of many hosts: the table, after an empty line, with the hosts of one workload below each other, and below it each reason once with
/// its hosts. Empty without workloads.
pub(super) fn section_of_hosts<'a>(of_hosts: impl Iterator<Item = (String, &'a WorkloadSteps)>) -> String {
    let (mut known, unknown): (Vec<_>, Vec<_>) =
        of_hosts.partition(|(_, workload)| workload.missing.is_empty());
    let mut text = String::new();
    if !known.is_empty() {
        // The order of the list stays among the hosts of one workload.
        known.sort_by(|(_, a), (_, b)| a.workload.cmp(&b.workload));
        let [workload, step, ago, median, mean, pace, input, busy, trace] = HEADINGS;
        let mut table = TextTable::new([workload, "HOST", step, ago, median, mean, pace, input, busy, trace]);
        for (host, workload) in known {
            let [name, step, ago, median, mean, pace, input, busy, trace] = row(workload);
            table.row([name, host, step, ago, median, mean, pace, input, busy, trace]);
        }
        text = format!("\n{}", table.text());
    }
    text + &report::by_text(unknown.into_iter().map(|(host, workload)| (host, reason(workload))))
}

/// Why there are no steps.
fn reason(workload: &WorkloadSteps) -> String {
    format!("steps of {}: {}", workload.workload, workload.missing)
}

/// Workload, number of the last step and how long ago it began, times, shares, and the age of the trace.
fn row(workload: &WorkloadSteps) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let percent = |share: Option<f64>| or_dash(share.map(|share| format!("{:.1}%", share * 100.0)));
    [
        workload.workload.clone(),
        or_dash(workload.last_step.map(|step| step.to_string())),
        or_dash(workload.last_step_age_seconds.map(age)),
        or_dash(workload.median_seconds.map(length)),
        or_dash(workload.mean_seconds.map(length)),
        or_dash(workload.pace_seconds.map(length)),
        percent(workload.input_share),
        percent(workload.busy_share),
        or_dash(workload.age_seconds.map(age)),
    ]
}

/// The length of a step with three digits or more.
fn length(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        seconds if seconds < 0.1 => format!("{:.2} ms", seconds * 1e3),
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_has_a_row_or_a_reason() {
        let known = WorkloadSteps {
            workload: "42".into(),
            median_seconds: Some(0.0123),
            mean_seconds: Some(0.25),
            pace_seconds: Some(1.5),
            last_step: Some(4000),
            last_step_age_seconds: Some(12.0),
            busy_share: Some(0.875),
            age_seconds: Some(9.0),
            ..WorkloadSteps::default()
        };
        let unknown = WorkloadSteps {
            workload: "py\u{1b}thon".into(),
            missing: "no trace".into(),
            ..WorkloadSteps::default()
        };
        let wanted = "
WORKLOAD  STEP  AGO   MEDIAN    MEAN    PACE    INPUT  BUSY   TRACE
42        4000  12 s  12.30 ms  250 ms  1.50 s  -      87.5%  9.0 s

steps of py\\u{1b}thon: no trace
";
        assert_eq!(section(&[known, unknown]), wanted);
        assert_eq!(section(&[]), "");
        assert_eq!(length(0.000_123), "123 us");
    }

    #[test]
    fn the_hosts_of_a_workload_stand_below_each_other() {
        let of = |workload: &str, median, missing: &str| WorkloadSteps {
            workload: workload.into(),
            median_seconds: median,
            missing: missing.into(),
            ..WorkloadSteps::default()
        };
        let (a, b) = (of("train", Some(0.25), ""), of("train", Some(0.5), ""));
        let (other, untraced) = (of("eval", Some(0.125), ""), of("data", None, "no trace"));
        let of_hosts = [("b", &b), ("b", &untraced), ("a", &a), ("a", &other), ("c\u{1b}", &untraced)];
        let wanted = "
WORKLOAD  HOST  STEP  AGO  MEDIAN  MEAN  PACE  INPUT  BUSY  TRACE
eval      a     -     -    125 ms  -     -     -      -     -
train     b     -     -    500 ms  -     -     -      -     -
train     a     -     -    250 ms  -     -     -      -     -

- b, c\\u{1b}: steps of data: no trace
";
        let of_hosts = of_hosts.map(|(host, workload)| (host.to_owned(), workload));
        assert_eq!(section_of_hosts(of_hosts.into_iter()), wanted);
        assert_eq!(section_of_hosts(std::iter::empty()), "");
    }
}
