//! Tables of steps and of operations, as comma-separated values (RFC 4180). Text is quoted where it must be
//! and otherwise as the trace has it.

use std::io::{self, Write};

use crate::analysis::{PlacedPart, Report};

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
        "program",
        "program_id",
    ])?;
    for PlacedPart { part: host, offset_ps } in report.time_line().0 {
        let mut row = |kind: &str,
                       (plane, program, program_id): (&str, &str, &str),
                       number: Option<i64>,
                       start_ps: i64,
                       duration_ps: i64| {
            let number = number.map(|number| number.to_string()).unwrap_or_default();
            let aligned_ps = start_ps.saturating_add(offset_ps);
            csv.write_record([
                host.host.as_str(),
                &host.file,
                kind,
                plane,
                &number,
                &start_ps.to_string(),
                &duration_ps.to_string(),
                &aligned_ps.to_string(),
                program,
                program_id,
            ])
        };
        for step in &host.host_steps {
            let duration_ps = step.end_ps.saturating_sub(step.start_ps);
            row("host", ("", "", ""), step.step_num, step.start_ps, duration_ps)?;
        }
        for core in &host.cores {
            for step in &core.steps {
                let program = step.program.as_deref().unwrap_or("");
                let of = (core.plane.as_str(), program, step.program_id.as_deref().unwrap_or(""));
                row("core", of, step.step_num, step.start_ps, step.duration_ps)?;
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
        "program",
        "program_id",
        "occurrences",
        "time_ps",
        "self_time_ps",
        "source",
        "framework_op",
        "flops",
        "bytes",
        "flops_per_second",
        "flops_of_peak",
        "hbm_bytes_per_second",
        "hbm_of_peak",
    ])?;
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let whole = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    for host in report.parts() {
        for op in &host.top_ops {
            csv.write_record([
                host.host.as_str(),
                &host.file,
                &op.name,
                &op.category,
                op.program.as_deref().unwrap_or(""),
                op.program_id.as_deref().unwrap_or(""),
                &op.occurrences.to_string(),
                &op.time_ps.to_string(),
                &op.self_time_ps.to_string(),
                op.source.as_deref().unwrap_or(""),
                op.framework_op.as_deref().unwrap_or(""),
                &whole(op.flops),
                &whole(op.bytes),
                &number(op.flops_per_second),
                &number(op.flops_of_peak),
                &number(op.hbm_bytes_per_second),
                &number(op.hbm_of_peak),
            ])?;
        }
    }
    csv.flush()
}
