//! Tables of steps and of operations, as comma-separated values (RFC 4180). Text is quoted where it must be
//! and otherwise as the trace has it.

use std::io::{self, Write};

use crate::analysis::Report;

/// Writes the steps: one row per step marker of a host (`host`) and per step of a core (`core`).
///
/// # Errors
/// When `out` cannot be written.
pub fn steps_csv(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut csv = ::csv::Writer::from_writer(out);
    csv.write_record([
        "host",
        "file",
        "kind",
        "plane",
        "step_num",
        "start_ps",
        "duration_ps",
        "aligned_start_ps",
    ])?;
    for (at, host) in report.hosts.iter().enumerate() {
        let offset_ps = report.alignment.offsets.get(at).map_or(0, |offset| offset.offset_ps);
        let mut row = |kind: &str, plane: &str, number: Option<i64>, start_ps: i64, duration_ps: i64| {
            let number = number.map(|number| number.to_string()).unwrap_or_default();
            let aligned_ps = start_ps.saturating_add(offset_ps);
            csv.write_record([
                &host.host,
                &host.file,
                kind,
                plane,
                &number,
                &start_ps.to_string(),
                &duration_ps.to_string(),
                &aligned_ps.to_string(),
            ])
        };
        for step in &host.host_steps {
            row("host", "", step.step_num, step.start_ps, step.end_ps.saturating_sub(step.start_ps))?;
        }
        for core in &host.cores {
            for step in &core.steps {
                row("core", &core.plane, step.step_num, step.start_ps, step.duration_ps)?;
            }
        }
    }
    csv.flush()
}

/// Writes the operations of each host, the longest first.
///
/// # Errors
/// When `out` cannot be written.
pub fn operations_csv(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut csv = ::csv::Writer::from_writer(out);
    csv.write_record([
        "host",
        "file",
        "name",
        "category",
        "program_id",
        "occurrences",
        "time_ps",
        "self_time_ps",
    ])?;
    for host in &report.hosts {
        for op in &host.top_ops {
            csv.write_record([
                &host.host,
                &host.file,
                &op.name,
                &op.category,
                op.program_id.as_deref().unwrap_or(""),
                &op.occurrences.to_string(),
                &op.time_ps.to_string(),
                &op.self_time_ps.to_string(),
            ])?;
        }
    }
    csv.flush()
}
