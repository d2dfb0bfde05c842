//! The tables of `sessions show`: cores, programs and operations.

#![expect(clippy::cast_precision_loss, reason = "figures for people, rounded when printed")]

use std::{
    collections::{BTreeMap, HashSet},
    io::{self, Write},
};

use xprof::analysis::{CoreReport, HostReport, OpReport, Report};

use xprof::wording::counted;

use super::show_text::{MOST_ROWS, Page, headline_steps, ms, percent};
use crate::output::one_line;

/// How many characters of a name's end are kept where it is cut: what tells it from others is often there.
const KEPT_END: usize = 8;

/// The cores: their steps, and their busy time in the span from their first to their last program or operation.
pub(super) fn cores(
    out: &mut impl Write,
    report: &Report,
    host: &HostReport,
    page: &Page<'_>,
) -> io::Result<()> {
    if host.cores.is_empty() {
        return Ok(());
    }
    let heads = if report.step_program.is_some() { ["runs", "run"] } else { ["steps", "step"] };
    writeln!(
        out,
        "  {:<28} {:>6} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "core", heads[0], heads[1], "span", "busy", "idle", "duty of span"
    )?;
    for core in host.cores.iter().take(MOST_ROWS) {
        let is_measured = core.busy_ps > 0 || core.idle_ps > 0;
        let measured = |text: String| if is_measured { text } else { "-".to_owned() };
        writeln!(
            out,
            "  {:<28} {:>6} {:>12} {:>12} {:>12} {:>12} {:>12}",
            cut(&core.plane, 28),
            headline_steps(report, core).count(),
            ms(mean_step(report, core)),
            ms(core.span_ps),
            measured(ms(core.busy_ps)),
            measured(ms(core.idle_ps)),
            measured(percent(core.duty_cycle))
        )?;
    }
    if let Some(more) = host.cores.len().checked_sub(MOST_ROWS).filter(|&more| more > 0) {
        writeln!(out, "  and {}", counted(more, "more core"))?;
    }
    if page.as_xprof && host.cores.iter().any(|core| core.busy_ps == 0 && core.idle_ps == 0) {
        writeln!(out, "  -: XProf gives the busy and idle time of a chip to its first core")?;
    }
    Ok(())
}

fn mean_step(report: &Report, core: &CoreReport) -> i64 {
    let sum: i128 = headline_steps(report, core).map(|step| i128::from(step.duration_ps)).sum();
    let steps = i128::try_from(headline_steps(report, core).count().max(1)).unwrap_or(i128::MAX);
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
pub(super) fn programs(out: &mut impl Write, host: &HostReport) -> io::Result<()> {
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

/// The operations with most self time, and how the self time of all splits by category.
pub(super) fn ops(out: &mut impl Write, host: &HostReport, page: &Page<'_>) -> io::Result<()> {
    if host.top_ops.is_empty() {
        return Ok(());
    }
    let all: i128 = host.categories.iter().map(|category| i128::from(category.self_time_ps)).sum();
    let share = |ps: i64| if all > 0 { ps as f64 / all as f64 } else { 0.0 };
    let columns = if page.as_xprof { OpColumns::default() } else { OpColumns::of(host) };
    writeln!(
        out,
        "  {:<28} {:<22} {:>8} {:>12} {:>7}{}",
        "operation",
        "category",
        "runs",
        "self time",
        "share",
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
    let parts = parts.collect::<Vec<_>>().join(", ");
    // SparseCores are not in the operations.
    let over = match host.cores.iter().filter(|core| !core.plane.contains(" SparseCore ")).count() {
        0 => "all threads".to_owned(),
        cores => counted(cores, "core"),
    };
    let all = ms(i64::try_from(all).unwrap_or(i64::MAX));
    writeln!(out, "  share of {all}, the self time of all operations over {over}; by category: {parts}")?;
    if columns.peaks && host.top_ops.iter().any(is_above_peak) {
        writeln!(
            out,
            "  above 100 % of a peak: the compiler counts more work than the core did, or the trace's peak is too low"
        )?;
    }
    if !host.collectives.is_empty() {
        let parts = host.collectives.iter().map(|kind| {
            format!("{} {} ({})", kind.opcode, ms(kind.self_time_ps), percent(share(kind.self_time_ps)))
        });
        writeln!(out, "  collectives: {}", parts.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

/// Whether a share of the peak is more than 100 %, as it is printed.
fn is_above_peak(op: &OpReport) -> bool {
    [op.flops_of_peak, op.hbm_of_peak].into_iter().flatten().any(|share| share >= 1.0005)
}

/// The columns of the operation table that only some traces have something for.
#[derive(Default)]
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

/// Remote text on one line, no longer than its column; a long one is cut in its middle.
pub(super) fn cut(text: &str, width: usize) -> String {
    let text = one_line(text);
    let length = text.chars().count();
    if length <= width {
        return text;
    }
    let end = KEPT_END.min(width / 2);
    let start: String = text.chars().take(width.saturating_sub(end + 1)).collect();
    let end: String = text.chars().skip(length - end).collect();
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_cut_keeps_its_end() {
        assert_eq!(cut("fusion.1", 8), "fusion.1");
        assert_eq!(cut("convolution_bitcast_fusion.1234", 28), "convolution_bitcast…ion.1234");
        assert_eq!(cut("abcdefghij", 5), "ab…ij");
        assert_eq!(cut("a\nb", 9), "a\\nb");
    }

    #[test]
    fn a_share_above_the_peak_is_remarked() {
        let op = |flops, hbm| OpReport { flops_of_peak: flops, hbm_of_peak: hbm, ..OpReport::default() };
        let found = [op(Some(1.0), None), op(None, Some(1.307)), op(Some(1.079), Some(0.2)), op(None, None)];
        assert_eq!(found.each_ref().map(is_above_peak), [false, true, true, false]);
    }
}
