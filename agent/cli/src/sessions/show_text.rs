//! What `sessions show` prints for people: first how long steps take, then where the time goes, who is waited
//! for, and what to be wary of.

use std::io::{self, Write};

use xprof::{
    analysis::{AlignedBy, CoreReport, HostReport, OffsetBy, Report, Verdict},
    loss::LossKind,
};

use crate::output::one_line;

/// How many cores, warnings and programs are printed one by one.
const MOST_ROWS: usize = 16;

pub(super) fn print(out: &mut impl Write, report: &Report, as_xprof: bool, bold: bool) -> io::Result<()> {
    let (on, off) = if bold { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let cores: usize = report.hosts.iter().map(|host| host.cores.len()).sum();
    write!(out, "{on}session {}{off}", one_line(&report.session))?;
    writeln!(out, "   {}, {}", count(report.hosts.len(), "part"), count(cores, "core"))?;
    if as_xprof {
        writeln!(out, "figures as XProf 2.24 computes them, quirks included")?;
    }
    losses(out, report, on, off)?;
    steps(out, report, on, off)?;
    straggler(out, report, on, off)?;
    for (at, host) in report.hosts.iter().enumerate() {
        self::host(out, report, at, host, on, off)?;
    }
    for part in &report.missing {
        writeln!(out, "\n{on}missing{off}  {} {}", one_line(&part.file), one_line(&part.why))?;
    }
    for warning in &report.warnings {
        writeln!(out, "\n{on}warning{off}  {}", one_line(warning))?;
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
                format!(" ({}, first at {})", count(times as usize, "time"), ms(first))
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

fn count(many: usize, what: &str) -> String {
    format!("{many} {what}{}", if many == 1 { "" } else { "s" })
}

fn steps(out: &mut impl Write, report: &Report, on: &str, off: &str) -> io::Result<()> {
    let time = &report.step_time;
    if time.count == 0 {
        return writeln!(out, "{on}steps{off}      none found");
    }
    writeln!(
        out,
        "{on}steps{off}      {}: mean {}, median {}, p95 {}, max {}",
        time.count,
        ms(time.mean_ps),
        ms(time.median_ps),
        ms(time.p95_ps),
        ms(time.max_ps)
    )?;
    if let Some(interval) = interval(report) {
        writeln!(out, "           one begins every {}", ms(interval))?;
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
    let steps = &report.hosts.iter().flat_map(|host| &host.cores).find(|core| core.steps.len() > 1)?.steps;
    let mut gaps: Vec<i64> =
        steps.windows(2).map(|pair| pair[1].start_ps.saturating_sub(pair[0].start_ps)).collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied()
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
            AlignedBy::RunId => "run id",
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
    cores(out, host)?;
    programs(out, host)?;
    ops(out, host)?;
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

fn cores(out: &mut impl Write, host: &HostReport) -> io::Result<()> {
    if host.cores.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "  {:<28} {:>6} {:>12} {:>12} {:>12} {:>7}",
        "core", "steps", "step", "busy", "idle", "duty"
    )?;
    for core in host.cores.iter().take(MOST_ROWS) {
        writeln!(
            out,
            "  {:<28} {:>6} {:>12} {:>12} {:>12} {:>7}",
            cut(&core.plane, 28),
            core.steps.len(),
            ms(mean_step(core)),
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

fn mean_step(core: &CoreReport) -> i64 {
    let sum: i128 = core.steps.iter().map(|step| i128::from(step.duration_ps)).sum();
    (sum / (core.steps.len().max(1) as i128)) as i64
}

/// The latencies of the programs, for a host without step markers.
fn programs(out: &mut impl Write, host: &HostReport) -> io::Result<()> {
    if !host.host_steps.is_empty() {
        return Ok(());
    }
    let mut runs: std::collections::BTreeMap<&str, Vec<i64>> = std::collections::BTreeMap::new();
    for module in host.cores.iter().flat_map(|core| &core.modules) {
        runs.entry(&module.name).or_default().push(module.duration_ps);
    }
    if runs.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {:<28} {:>6} {:>12} {:>12} {:>12}", "program", "runs", "median", "p95", "max")?;
    for (name, mut runs) in runs.into_iter().take(MOST_ROWS) {
        runs.sort_unstable();
        let at = |part: usize| runs[(runs.len() * part).div_ceil(100).max(1) - 1];
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
    writeln!(
        out,
        "  {:<28} {:<22} {:>8} {:>12} {:>7}",
        "operation", "category", "runs", "self time", "share"
    )?;
    for op in &host.top_ops {
        writeln!(
            out,
            "  {:<28} {:<22} {:>8} {:>12} {:>7}",
            cut(&op.name, 28),
            cut(&op.category, 22),
            op.occurrences,
            ms(op.self_time_ps),
            percent(share(op.self_time_ps))
        )?;
    }
    let parts = host
        .categories
        .iter()
        .take(6)
        .map(|category| format!("{} {}", cut(&category.category, 22), percent(category.share)));
    writeln!(out, "  by category: {}", parts.collect::<Vec<_>>().join(", "))?;
    if !host.collectives.is_empty() {
        let parts = host.collectives.iter().map(|kind| {
            format!("{} {} ({})", kind.opcode, ms(kind.self_time_ps), percent(share(kind.self_time_ps)))
        });
        writeln!(out, "  collectives: {}", parts.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

/// Remote text on one line, no longer than its column.
fn cut(text: &str, width: usize) -> String {
    let text = one_line(text);
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width - 1).collect();
    format!("{kept}…")
}

fn ms(ps: i64) -> String {
    let ms = ps as f64 / 1e9;
    if ms.abs() >= 10_000.0 { format!("{:.2} s", ms / 1e3) } else { format!("{ms:.3} ms") }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}
