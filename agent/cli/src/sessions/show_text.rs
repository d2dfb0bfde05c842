//! What `sessions show` prints for people: how long steps take, which core the others wait for, where the time goes,
//! and the warnings.

#![expect(clippy::cast_precision_loss, reason = "figures for people, rounded when printed")]

use std::{
    collections::{BTreeMap, HashSet},
    io::{self, Write},
};

use xprof::{
    analysis::{AlignedBy, CoreReport, HostReport, OffsetBy, OpReport, Report, StepReport, Verdict},
    loss::LossKind,
};

use super::annotations;
use crate::output::one_line;

/// How many cores, warnings and programs are printed one by one.
const MOST_ROWS: usize = 16;

/// What begins and ends bold text.
pub(super) fn bold_marks(bold: bool) -> (&'static str, &'static str) {
    if bold { ("\x1b[1m", "\x1b[0m") } else { ("", "") }
}

/// The first line.
pub(super) fn title(out: &mut impl Write, report: &Report, bold: bool) -> io::Result<()> {
    let (on, off) = bold_marks(bold);
    let cores: usize = report.parts().map(|host| host.cores.len()).sum();
    write!(out, "{on}session {}{off}", one_line(&report.session))?;
    writeln!(out, "   {}, {}", count(report.parts().count(), "part"), count(cores, "core"))
}

pub(super) fn print(out: &mut impl Write, report: &Report, as_xprof: bool, bold: bool) -> io::Result<()> {
    let (on, off) = bold_marks(bold);
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
        body(out, report, on, off)?;
    }
    if !report.jobs.is_empty() {
        writeln!(
            out,
            "{on}jobs{off}       {}: nothing is averaged or compared across them",
            report.jobs.len()
        )?;
    }
    for (at, job) in report.jobs.iter().enumerate() {
        let parts = count(job.report.hosts.len(), "part");
        let of = report.jobs.len();
        writeln!(out, "\n{on}job {} of {of}{off}  {} ({parts})", at + 1, one_line(&job.told_by))?;
        body(out, &job.report, on, off)?;
    }
    for part in &report.missing {
        writeln!(out, "\n{on}missing{off}  {} {}", one_line(&part.file), one_line(&part.why))?;
    }
    for warning in &report.warnings {
        writeln!(out, "\n{on}warning{off}  {}", one_line(warning))?;
    }
    Ok(())
}

/// The figures of the parts of one job.
fn body(out: &mut impl Write, report: &Report, on: &str, off: &str) -> io::Result<()> {
    losses(out, report, on, off)?;
    steps(out, report, on, off)?;
    annotations::headline(out, report, on, off)?;
    straggler(out, report, on, off)?;
    for (at, host) in report.hosts.iter().enumerate() {
        self::host(out, report, at, host, on, off)?;
    }
    Ok(())
}

/// What the traces lost: first, because it makes every figure below doubtful.
fn losses(out: &mut impl Write, report: &Report, on: &str, off: &str) -> io::Result<()> {
    let all: Vec<_> =
        report.hosts.iter().flat_map(|host| host.losses.iter().map(move |loss| (host, loss))).collect();
    for (host, loss) in all.iter().take(MOST_ROWS) {
        let who = match report.hosts.len() {
            1 => String::new(),
            _ => format!("{}: ", label(report, &host.host, &host.file)),
        };
        let times = loss.count.filter(|_| loss.kind == LossKind::DroppedBuffers);
        let seen = match (times, loss.first_ps) {
            (Some(times), Some(first)) => {
                format!(" ({}, first at {})", count(whole(times), "time"), ms(first))
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

pub(super) fn count(many: usize, what: &str) -> String {
    format!("{many} {what}{}", if many == 1 { "" } else { "s" })
}

fn whole(many: u64) -> usize {
    usize::try_from(many).unwrap_or(usize::MAX)
}

fn steps(out: &mut impl Write, report: &Report, on: &str, off: &str) -> io::Result<()> {
    let time = &report.step_time;
    if time.count == 0 {
        return writeln!(out, "{on}steps{off}      none found");
    }
    // Where no marker tells steps, the runs of one program stand for them.
    let what = match &report.step_program {
        Some(program) if !program.is_empty() => {
            format!("{} of {}", count(whole(time.count), "run"), cut(program, 60))
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
    if let Some(interval) = interval(report) {
        writeln!(out, "           one begins every {}", ms(interval))?;
    }
    let others = report.programs.get(1..).unwrap_or_default();
    let runs: u64 = others.iter().map(|program| program.run_time.count).sum();
    if runs > 0 {
        let (runs, programs) = (count(whole(runs), "run"), count(others.len(), "other program"));
        writeln!(out, "           {runs} of {programs} are not counted here")?;
    }
    if let Some(input) = &report.input {
        let verdict = match input.verdict {
            Verdict::Unknown => return Ok(()),
            Verdict::Not => "not input-bound",
            Verdict::Moderately => "moderately input-bound",
            Verdict::Highly => "highly input-bound",
        };
        writeln!(
            out,
            "{on}input{off}      {verdict}: {} of step time waits for input",
            percent(input.share)
        )?;
    }
    Ok(())
}

/// The median time from one step's start to the next's, on the first core that has steps.
fn interval(report: &Report) -> Option<i64> {
    let cores = report.hosts.iter().flat_map(|host| &host.cores);
    let mut starts = cores.map(|core| counted(report, core).map(|step| step.start_ps).collect::<Vec<i64>>());
    let starts = starts.find(|starts| starts.len() > 1)?;
    let mut gaps: Vec<i64> = starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied()
}

/// The steps of a core that the headline is about: where programs stand for steps, the runs of one.
fn counted<'r>(report: &'r Report, core: &'r CoreReport) -> impl Iterator<Item = &'r StepReport> {
    let program = report.step_program.as_deref();
    core.steps
        .iter()
        .filter(move |step| program.is_none_or(|program| step.program.as_deref().unwrap_or("") == program))
}

fn straggler(out: &mut impl Write, report: &Report, on: &str, off: &str) -> io::Result<()> {
    let cores: usize = report.hosts.iter().map(|host| host.cores.len()).sum();
    match &report.straggler {
        Some(slow) => {
            let part = label(report, &slow.host, &slow.file);
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

/// A part by its host; with its file where the host has several parts.
fn label(report: &Report, host: &str, file: &str) -> String {
    if report.hosts.iter().filter(|other| other.host == host).count() > 1 {
        format!("{host} ({file})")
    } else {
        host.to_owned()
    }
}

fn host(
    out: &mut impl Write,
    report: &Report,
    at: usize,
    host: &HostReport,
    on: &str,
    off: &str,
) -> io::Result<()> {
    let who = label(report, &host.host, &host.file);
    write!(out, "\n{on}{}{off}  {}", one_line(&who), ms(host.window_ps))?;
    if !host.host_steps.is_empty() {
        write!(out, ", {}", count(host.host_steps.len(), "step marker"))?;
    }
    // One for each part, in the same order: a host's name would find its first part's.
    let offset = report.alignment.offsets.get(at);
    if let Some(offset) = offset.filter(|offset| offset.by != OffsetBy::Reference) {
        let by = match offset.by {
            OffsetBy::Reference | OffsetBy::None => "unknown",
            OffsetBy::Collectives => "by collectives",
            OffsetBy::Steps => "by steps",
            OffsetBy::ProfileStart => "by the wall clocks",
        };
        write!(out, ", began {} after the first host ({by})", ms(offset.offset_ps))?;
        if let Some(skew) = offset.clock_skew_ps.filter(|_| offset.by != OffsetBy::ProfileStart) {
            write!(out, ", clock {} ahead", ms(skew))?;
        }
    }
    writeln!(out)?;
    cores(out, report, host)?;
    programs(out, host)?;
    ops(out, host)?;
    annotations::table(out, host)?;
    // Losses stand at the top.
    let is_loss = |warning: &String| host.losses.iter().any(|loss| loss.message == *warning);
    let warnings: Vec<&String> = host.warnings.iter().filter(|&warning| !is_loss(warning)).collect();
    for warning in warnings.iter().take(MOST_ROWS) {
        writeln!(out, "  ! {}", one_line(warning))?;
    }
    if let Some(more) = warnings.len().checked_sub(MOST_ROWS).filter(|&more| more > 0) {
        writeln!(out, "  ! and {}", count(more, "more warning"))?;
    }
    Ok(())
}

fn cores(out: &mut impl Write, report: &Report, host: &HostReport) -> io::Result<()> {
    if host.cores.is_empty() {
        return Ok(());
    }
    let heads = if report.step_program.is_some() { ["runs", "run"] } else { ["steps", "step"] };
    writeln!(
        out,
        "  {:<28} {:>6} {:>12} {:>12} {:>12} {:>7}",
        "core", heads[0], heads[1], "busy", "idle", "duty"
    )?;
    for core in host.cores.iter().take(MOST_ROWS) {
        writeln!(
            out,
            "  {:<28} {:>6} {:>12} {:>12} {:>12} {:>7}",
            cut(&core.plane, 28),
            counted(report, core).count(),
            ms(mean_step(report, core)),
            ms(core.busy_ps),
            ms(core.idle_ps),
            percent(core.duty_cycle)
        )?;
    }
    if let Some(more) = host.cores.len().checked_sub(MOST_ROWS).filter(|&more| more > 0) {
        writeln!(out, "  and {}", count(more, "more core"))?;
    }
    Ok(())
}

fn mean_step(report: &Report, core: &CoreReport) -> i64 {
    let sum: i128 = counted(report, core).map(|step| i128::from(step.duration_ps)).sum();
    let steps = i128::try_from(counted(report, core).count().max(1)).unwrap_or(i128::MAX);
    i64::try_from(sum / steps).unwrap_or(i64::MAX)
}

/// The runs of a program, and the time of each of its executions.
#[derive(Default)]
struct ProgramTimes {
    runs: HashSet<Option<u64>>,
    times: Vec<i64>,
}

/// The programs' execution times, where the host has no step markers to tell steps: the longest in all first. A run
/// on several cores counts once, each core's time by itself.
fn programs(out: &mut impl Write, host: &HostReport) -> io::Result<()> {
    if !host.host_steps.is_empty() {
        return Ok(());
    }
    let mut programs = BTreeMap::<(&str, Option<&str>), ProgramTimes>::new();
    for module in host.cores.iter().flat_map(|core| &core.modules) {
        let program = programs.entry((&module.name, module.program_id.as_deref())).or_default();
        program.runs.insert(module.run);
        program.times.push(module.duration_ps);
    }
    if programs.is_empty() {
        return Ok(());
    }
    let mut programs: Vec<_> = programs.into_iter().collect();
    programs.sort_by_key(|(_, program)| {
        std::cmp::Reverse(program.times.iter().map(|&time| i128::from(time)).sum::<i128>())
    });
    writeln!(out, "  {:<28} {:>6} {:>12} {:>12} {:>12}", "program", "runs", "median", "p95", "max")?;
    for ((name, _), ProgramTimes { runs, mut times }) in programs.into_iter().take(MOST_ROWS) {
        times.sort_unstable();
        let at = |part: usize| times[(times.len() * part).div_ceil(100).max(1) - 1];
        let (median, p95, max) = (ms(at(50)), ms(at(95)), ms(at(100)));
        writeln!(out, "  {:<28} {:>6} {median:>12} {p95:>12} {max:>12}", cut(name, 28), runs.len())?;
    }
    Ok(())
}

fn ops(out: &mut impl Write, host: &HostReport) -> io::Result<()> {
    if host.top_ops.is_empty() {
        return Ok(());
    }
    let all: i128 = host.categories.iter().map(|category| i128::from(category.self_time_ps)).sum();
    let share = |ps: i64| if all > 0 { ps as f64 / all as f64 } else { 0.0 };
    let columns = OpColumns::of(host);
    writeln!(
        out,
        "  {:<28} {:<22} {:>8} {:>12} {:>7}{}",
        "operation",
        "category",
        "runs",
        "self time",
        "of all",
        columns.heads()
    )?;
    for op in &host.top_ops {
        writeln!(
            out,
            "  {:<28} {:<22} {:>8} {:>12} {:>7}{}",
            cut(&op.name, 28),
            cut(&op.category, 22),
            op.occurrences,
            ms(op.self_time_ps),
            percent(share(op.self_time_ps)),
            columns.of_op(op)
        )?;
    }
    let parts = host
        .categories
        .iter()
        .take(6)
        .map(|category| format!("{} {}", cut(&category.category, 22), percent(category.share)));
    writeln!(out, "  self time by category: {}", parts.collect::<Vec<_>>().join(", "))?;
    if !host.collectives.is_empty() {
        let parts = host.collectives.iter().map(|kind| {
            format!("{} {} ({})", kind.opcode, ms(kind.self_time_ps), percent(share(kind.self_time_ps)))
        });
        writeln!(out, "  collectives: {}", parts.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

/// The columns of the operation table that only some traces have something for.
struct OpColumns {
    program: bool,
    peaks: bool,
    source: bool,
}

impl OpColumns {
    fn of(host: &HostReport) -> Self {
        let ops = || host.top_ops.iter();
        let modules = host.cores.iter().flat_map(|core| &core.modules);
        let programs: HashSet<_> = modules.map(|module| (&module.name, &module.program_id)).collect();
        Self {
            program: programs.len() > 1 && ops().any(|op| op.program_id.is_some()),
            peaks: ops().any(|op| op.flops_of_peak.is_some() || op.hbm_of_peak.is_some()),
            source: ops().any(|op| op.source.is_some()),
        }
    }

    fn heads(&self) -> String {
        let peaks = format!(" {:>10} {:>9}", "peak FLOPS", "peak HBM");
        self.line(&format!("  {:<24}", "program"), &peaks, "  source").trim_end().to_owned()
    }

    fn of_op(&self, op: &OpReport) -> String {
        let program = op.program.as_deref().or(op.program_id.as_deref()).unwrap_or("-");
        let part = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), percent);
        let source = op.source.as_deref().unwrap_or_default();
        let source = source.rsplit_once('/').map_or(source, |(_, file)| file);
        let line = self.line(
            &format!("  {:<24}", cut(program, 24)),
            &format!(" {:>10} {:>9}", part(op.flops_of_peak), part(op.hbm_of_peak)),
            &format!("  {}", cut(source, 40)),
        );
        line.trim_end().to_owned()
    }

    fn line(&self, program: &str, peaks: &str, source: &str) -> String {
        [(self.peaks, peaks), (self.program, program), (self.source, source)]
            .into_iter()
            .filter_map(|(shown, text)| shown.then_some(text))
            .collect()
    }
}

/// Remote text on one line, no longer than its column.
pub(super) fn cut(text: &str, width: usize) -> String {
    let text = one_line(text);
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width - 1).collect();
    format!("{kept}…")
}

pub(super) fn ms(ps: i64) -> String {
    let ms = ps as f64 / 1e9;
    if ms.abs() >= 10_000.0 { format!("{:.2} s", ms / 1e3) } else { format!("{ms:.3} ms") }
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}
