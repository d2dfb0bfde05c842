//! What `sessions show` prints for people: how long steps take, which core the others wait for, where the time goes,
//! and the warnings.

#![expect(clippy::cast_precision_loss, reason = "figures for people, rounded when printed")]

use std::io::{self, Write};

use xprof::{
    analysis::{AlignedBy, CoreReport, HostReport, Offset, OffsetBy, Report, StepReport, Verdict},
    loss::LossKind,
    session::ClockOffset,
    wording::counted,
};

use super::{
    annotations,
    show_tables::{self, cut},
};
use crate::output::one_line;

/// How many cores, warnings and programs are printed one by one.
pub(super) const MOST_ROWS: usize = 16;
/// The part of the time outside all steps that is worth a word.
const WORTH_SAYING: f64 = 0.05;

/// What begins and ends bold text.
pub(super) fn bold_marks(bold: bool) -> (&'static str, &'static str) {
    if bold { ("\x1b[1m", "\x1b[0m") } else { ("", "") }
}

/// The first line.
pub(super) fn title(out: &mut impl Write, report: &Report, bold: bool) -> io::Result<()> {
    let (on, off) = bold_marks(bold);
    let cores: usize = report.parts().map(|host| host.cores.len()).sum();
    write!(out, "{on}session {}{off}", one_line(&report.session))?;
    writeln!(out, "   {}, {}", counted(report.parts().count(), "part"), counted(cores, "core"))
}

/// How a report is printed.
pub(super) struct Page<'r> {
    /// All of it, also where a job's part of it is printed.
    whole: &'r Report,
    /// Whether the figures are XProf's: then nothing is shown that XProf does not compute.
    pub(super) as_xprof: bool,
    /// How many annotations of each host are shown; the report has only so many operations.
    pub(super) shown_rows: usize,
    /// What begins and ends bold text.
    pub(super) bold: (&'static str, &'static str),
}

impl Page<'_> {
    /// A part by its host; with its file where the host has several parts, be they of different jobs.
    pub(super) fn label(&self, host: &str, file: &str) -> String {
        if self.whole.parts().filter(|other| other.host == host).count() > 1 {
            format!("{host} ({file})")
        } else {
            host.to_owned()
        }
    }
}

pub(super) fn print(
    out: &mut impl Write,
    report: &Report,
    as_xprof: bool,
    shown_rows: usize,
    bold: bool,
) -> io::Result<()> {
    let page = Page { whole: report, as_xprof, shown_rows, bold: bold_marks(bold) };
    let (on, off) = page.bold;
    if as_xprof {
        writeln!(out, "figures as XProf 2.24 computes them, quirks included")?;
    }
    if let Some(duty) = &report.xprof_duty_cycle {
        writeln!(out, "device_duty_cycle_percent {:.1}", duty.device_duty_cycle_percent)?;
        writeln!(
            out,
            "device_duty_cycle_high_confidence_percent {:.1} (custom calls without flops count as idle)",
            duty.device_duty_cycle_high_confidence_percent
        )?;
    }
    if report.jobs.is_empty() {
        body(out, report, &page)?;
    } else {
        writeln!(
            out,
            "{on}jobs{off}       {}: nothing is averaged or compared across them",
            report.jobs.len()
        )?;
    }
    for (at, job) in report.jobs.iter().enumerate() {
        let parts = counted(job.report.hosts.len(), "part");
        let of = report.jobs.len();
        writeln!(out, "\n{on}job {} of {of}{off}  {} ({parts})", at + 1, one_line(&job.told_by))?;
        body(out, &job.report, &page)?;
    }
    let missing = report.missing.iter().map(|part| ("missing", format!("{} {}", part.file, part.why)));
    let warnings = report.warnings.iter().map(|warning| ("warning", warning.clone()));
    let mut before = "";
    for (what, text) in missing.chain(warnings) {
        let apart = if what == before { "" } else { "\n" };
        writeln!(out, "{apart}{on}{what}{off}  {}", one_line(&text))?;
        before = what;
    }
    Ok(())
}

/// The figures of the parts of one job.
fn body(out: &mut impl Write, report: &Report, page: &Page<'_>) -> io::Result<()> {
    losses(out, report, page)?;
    steps(out, report, page)?;
    annotations::headline(out, report, page)?;
    straggler(out, report, page)?;
    for (at, host) in report.hosts.iter().enumerate() {
        self::host(out, report, at, host, page)?;
    }
    Ok(())
}

/// What the traces lost: first, because it makes every figure below doubtful.
fn losses(out: &mut impl Write, report: &Report, page: &Page<'_>) -> io::Result<()> {
    let (on, off) = page.bold;
    let all: Vec<_> =
        report.hosts.iter().flat_map(|host| host.losses.iter().map(move |loss| (host, loss))).collect();
    for (host, loss) in all.iter().take(MOST_ROWS) {
        let who = match report.hosts.len() {
            1 => String::new(),
            _ => format!("{}: ", page.label(&host.host, &host.file)),
        };
        let times = loss.count.filter(|_| loss.kind == LossKind::DroppedBuffers);
        let seen = match (times, loss.first_ps) {
            (Some(times), Some(first)) => {
                format!(" ({}, first at {})", counted(times, "time"), ms(first))
            }
            _ => String::new(),
        };
        writeln!(out, "{on}loss{off}       {}", one_line(&format!("{who}{loss}{seen}")))?;
    }
    match all.len().checked_sub(MOST_ROWS) {
        Some(more) if more > 0 => writeln!(out, "           and {more} more"),
        _ => Ok(()),
    }
}

fn steps(out: &mut impl Write, report: &Report, page: &Page<'_>) -> io::Result<()> {
    let (on, off) = page.bold;
    let time = &report.step_time;
    if time.count == 0 {
        return writeln!(out, "{on}steps{off}      none found");
    }
    // Where no marker tells steps, the runs of one program stand for them.
    let what = match &report.step_program {
        Some(program) if !program.is_empty() => {
            format!("{} of {}", counted(time.count, "run"), cut(program, 60))
        }
        _ => time.count.to_string(),
    };
    writeln!(
        out,
        "{on}steps{off}      {what}: mean {}, median {}, p95 {}, max {}",
        ms(time.mean_ps),
        ms(time.median_ps),
        ms(time.p95_ps),
        ms(time.max_ps)
    )?;
    if let Some((interval, outside)) = interval(report) {
        // Runs of one program have those of others between them, which are no pause.
        let outside = outside.filter(|&part| part > WORTH_SAYING && report.step_program.is_none());
        let outside = outside
            .map(|part| format!("; {} of the time from the first to the last lies in no step", percent(part)))
            .unwrap_or_default();
        writeln!(out, "           one begins every {} (median){outside}", ms(interval))?;
    }
    let others = report.programs.get(1..).unwrap_or_default();
    let runs: u64 = others.iter().map(|program| program.run_time.count).sum();
    if runs > 0 {
        let (runs, programs) = (counted(runs, "run"), counted(others.len(), "other program"));
        writeln!(out, "           {runs} of {programs} are not counted here")?;
    }
    input(out, report, page)
}

/// Whether the steps wait for input; that it is not known where nothing tells.
fn input(out: &mut impl Write, report: &Report, page: &Page<'_>) -> io::Result<()> {
    let (on, off) = page.bold;
    let Some(input) = &report.input else {
        let on_device = report.hosts.iter().any(|host| !host.cores.is_empty());
        return match on_device && !page.as_xprof {
            true => writeln!(
                out,
                "{on}input{off}      unknown: the steps have no infeed and no known input event such as IteratorGetNext"
            ),
            false => Ok(()),
        };
    };
    let verdict = match input.verdict {
        Verdict::Not => "not input-bound",
        Verdict::Moderately => "moderately input-bound",
        Verdict::Highly => "highly input-bound",
    };
    writeln!(
        out,
        "{on}input{off}      {verdict}: {} of the time of the steps and of the waits before them is a wait for input",
        percent(input.share)
    )
}

/// The median time from one step's start to the next one's on the same core, over all cores, else from one of a host's
/// markers to the next; and the part of the time from the first step to the last that lies in none, over the same.
fn interval(report: &Report) -> Option<(i64, Option<f64>)> {
    let cores = report.hosts.iter().flat_map(|host| &host.cores);
    // SparseCores have programs of their own.
    let cores = cores.filter(|core| !core.plane.contains(" SparseCore "));
    let of_cores = cores.map(|core| {
        headline_steps(report, core)
            .map(|step| (step.start_ps, step.start_ps.saturating_add(step.duration_ps)))
            .collect()
    });
    let markers = report.hosts.iter().filter(|host| host.cores.is_empty());
    let of_markers =
        markers.map(|host| host.host_steps.iter().map(|step| (step.start_ps, step.end_ps)).collect());
    intervals(of_cores.chain(of_markers))
}

/// The median time from a start to the next of the same list, and the part of the lists' time that lies in none of
/// their steps (start, end).
fn intervals(lists: impl Iterator<Item = Vec<(i64, i64)>>) -> Option<(i64, Option<f64>)> {
    let (mut gaps, mut all, mut within) = (Vec::new(), 0_i64, 0_i64);
    for steps in lists.filter(|steps| steps.len() > 1) {
        gaps.extend(steps.windows(2).map(|pair| pair[1].0.saturating_sub(pair[0].0)));
        let span = steps.last()?.1.saturating_sub(steps.first()?.0);
        all = all.saturating_add(span);
        let steps = steps.iter().map(|(start, end)| end.saturating_sub(*start));
        within = within.saturating_add(steps.fold(0, i64::saturating_add));
    }
    gaps.sort_unstable();
    let outside = (all > 0 && within < all).then(|| 1.0 - within as f64 / all as f64);
    gaps.get(gaps.len() / 2).map(|&interval| (interval, outside))
}

/// The steps of a core that the headline is about: where programs stand for steps, the runs of one.
pub(super) fn headline_steps<'r>(
    report: &'r Report,
    core: &'r CoreReport,
) -> impl Iterator<Item = &'r StepReport> {
    let program = report.step_program.as_deref();
    core.steps
        .iter()
        .filter(move |step| program.is_none_or(|program| step.program.as_deref().unwrap_or("") == program))
}

fn straggler(out: &mut impl Write, report: &Report, page: &Page<'_>) -> io::Result<()> {
    let (on, off) = page.bold;
    let cores: usize = report.hosts.iter().map(|host| host.cores.len()).sum();
    match &report.straggler {
        Some(slow) => {
            let part = page.label(&slow.host, &slow.file);
            let who = match &slow.plane {
                Some(plane) => format!("{part} {plane}"),
                None => format!("{part} (all its cores)"),
            };
            writeln!(
                out,
                "{on}straggler{off}  {}: {} a step longer ({} of it)\n           {}",
                one_line(&who),
                ms(slow.excess_ps),
                percent(slow.share),
                one_line(&slow.evidence)
            )?;
        }
        None if cores > 1 => writeln!(out, "{on}straggler{off}  none")?,
        None => {}
    }
    if report.hosts.len() > 1 {
        let by = match report.alignment.by {
            AlignedBy::StepNum => "step number",
            AlignedBy::Runs => "runs of programs",
            AlignedBy::Collectives => "collectives",
            AlignedBy::None => "nothing: steps are compared with no others",
        };
        writeln!(out, "{on}alignment{off}  by {by}")?;
    }
    Ok(())
}

fn host(
    out: &mut impl Write,
    report: &Report,
    at: usize,
    host: &HostReport,
    page: &Page<'_>,
) -> io::Result<()> {
    let (on, off) = page.bold;
    let who = page.label(&host.host, &host.file);
    write!(out, "\n{on}{}{off}  recorded {}", one_line(&who), ms(host.window_ps))?;
    if !host.host_steps.is_empty() {
        write!(out, ", {}", counted(host.host_steps.len(), "step marker"))?;
    }
    // One for each part, in the same order: a host's name would find its first part's.
    let offset = report.alignment.offsets.get(at);
    if let Some(offset) = offset.filter(|offset| offset.by != OffsetBy::Reference) {
        write!(out, ", began {}", offset_text(offset))?;
    }
    if let Some(clock) = host.clock {
        write!(out, ", clock measured {}", clock_text(clock))?;
    }
    writeln!(out)?;
    show_tables::cores(out, report, host, page)?;
    show_tables::programs(out, host)?;
    show_tables::ops(out, host, page)?;
    annotations::table(out, host, page)?;
    // Losses stand at the top.
    let is_loss = |warning: &String| host.losses.iter().any(|loss| loss.message == *warning);
    let warnings = by_text(host.warnings.iter().filter(|&warning| !is_loss(warning)));
    for warning in warnings.iter().take(MOST_ROWS) {
        writeln!(out, "  ! {}", one_line(warning))?;
    }
    if let Some(more) = warnings.len().checked_sub(MOST_ROWS).filter(|&more| more > 0) {
        writeln!(out, "  ! and {}", counted(more, "more warning"))?;
    }
    Ok(())
}

/// How a host's time line lies to the first one's, and what its clock has to do with it.
fn offset_text(offset: &Offset) -> String {
    let by = match offset.by {
        OffsetBy::Reference | OffsetBy::None => "unknown",
        OffsetBy::Collectives => "by collectives",
        OffsetBy::Steps => "by steps",
        OffsetBy::MeasuredClocks => "by the measured clocks",
        OffsetBy::ProfileStart => "by the wall clocks",
    };
    let mut text = format!("{} after the first host ({by})", ms(offset.offset_ps));
    match (offset.clock_skew_ps, offset.measured_skew) {
        (Some(skew), None) => text += &format!(", clock {} ahead", ms(skew)),
        (Some(skew), Some(clocks)) if offset.skew_within_bound == Some(true) => {
            text += &format!(
                ", clock {} ahead, less than the error of the measured clocks ({})",
                ms(skew),
                clock_text(clocks)
            );
        }
        (Some(skew), Some(clocks)) => {
            text += &format!(", clock {} ahead (measured {})", ms(skew), clock_text(clocks));
        }
        (None, Some(clocks)) => text += &format!(", clock {} ahead as measured", clock_text(clocks)),
        (None, None) => {}
    }
    text
}

fn ns_ms(ns: i64) -> f64 {
    ns as f64 / 1e6
}

/// The warnings, those that are the same for several devices in one.
fn by_text<'w>(warnings: impl Iterator<Item = &'w String>) -> Vec<String> {
    let mut found: Vec<(Vec<&str>, &str)> = Vec::new();
    for warning in warnings {
        let parts = warning.split_once(": ").filter(|(plane, _)| plane.starts_with("/device:"));
        let (plane, text) = parts.map_or((None, warning.as_str()), |(plane, text)| (Some(plane), text));
        let same = found.iter_mut().find(|(planes, other)| *other == text && !planes.is_empty());
        match (plane, same) {
            (Some(plane), Some((planes, _))) => planes.push(plane),
            _ => found.push((plane.into_iter().collect(), text)),
        }
    }
    let words = |(planes, text): (Vec<&str>, &str)| match planes.is_empty() {
        true => text.to_owned(),
        false => format!("{}: {text}", planes.join(", ")),
    };
    found.into_iter().map(words).collect()
}

pub(super) fn ms(ps: i64) -> String {
    let ms = ps as f64 / 1e9;
    if ms.abs() >= 10_000.0 { format!("{:.2} s", ms / 1e3) } else { format!("{ms:.3} ms") }
}

/// How far a clock is from that of the coordinator: `+3.250 ms ± 0.020 ms`.
pub(crate) fn clock_text(clock: ClockOffset) -> String {
    format!("{:+.3} ms ± {:.3} ms", ns_ms(clock.offset_ns), clock.bound_ns as f64 / 1e6)
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_the_median_over_all_cores() {
        // The first core alone would have 10 and no time outside.
        let lists = [vec![(0, 10), (10, 20)], vec![(0, 10), (30, 40), (60, 70)], vec![(5, 6)], vec![]];
        let (interval, outside) = intervals(lists.into_iter()).unwrap();
        assert_eq!((interval, outside), (30, Some(1.0 - 50.0 / 90.0)));
        assert_eq!(intervals([vec![(5, 6)]].into_iter()), None);
    }

    #[test]
    fn the_same_warning_of_several_devices_is_one() {
        let all = [
            "/device:TPU:0: no steps",
            "lost: all",
            "/device:TPU:1: no steps",
            "/device:TPU:1: late",
            "lost: all",
        ]
        .map(str::to_owned);
        let wanted =
            ["/device:TPU:0, /device:TPU:1: no steps", "lost: all", "/device:TPU:1: late", "lost: all"];
        assert_eq!(by_text(all.iter()), wanted);
    }
}
