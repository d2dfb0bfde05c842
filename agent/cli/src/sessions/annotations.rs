//! The host's annotations as `sessions show` prints them: which of them the steps' time goes to.

#![expect(clippy::cast_precision_loss, reason = "figures for people, rounded when printed")]

use std::io::{self, Write};

use xprof::{
    analysis::{Annotation, HostAnnotations, HostReport, Report},
    wording::counted,
};

use super::{
    show_tables::cut,
    show_text::{Page, ms, percent},
};
use crate::output::one_line;

/// An annotation is named at the top where it takes at least this part of the time.
const WORTH: f64 = 0.1;

/// What the host spends most time in, where that is much: while the device has nothing to run, if there is a device;
/// else from one step to the next.
pub(super) fn headline(out: &mut impl Write, report: &Report, page: &Page<'_>) -> io::Result<()> {
    let (on, off) = page.bold;
    let named = report.hosts.iter().filter_map(|host| Some((host, greatest(host)?)));
    let Some((host, (_, text))) = named.max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)) else { return Ok(()) };
    let who = match report.hosts.len() {
        1 => String::new(),
        _ => format!(" on {}", page.label(&host.host, &host.file)),
    };
    writeln!(out, "{on}host{off}       {}{}", one_line(&text), one_line(&who))
}

/// The annotation to name, in words, and the part of the time that it takes.
fn greatest(host: &HostReport) -> Option<(f64, String)> {
    let all = host.annotations.as_ref()?;
    if host.cores.is_empty() { of_period(all) } else { of_device_idle(all) }
}

/// What runs beside programs holds nothing up: only what the host does while no program runs may be what the device
/// waits for. A launch waits itself then.
fn of_device_idle(all: &HostAnnotations) -> Option<(f64, String)> {
    // What lies there by chance lies elsewhere too, and several threads at once are not one cause.
    let may_be = |row: &&Annotation| {
        let idle = row.device_idle_self_time_ps;
        !row.step_marker
            && !row.launch
            && idle.saturating_mul(2) >= row.self_time_ps
            && idle <= all.device_idle_ps
    };
    let row = all.rows.iter().filter(may_be).max_by_key(|row| row.device_idle_self_time_ps)?;
    let share = part(row.device_idle_self_time_ps, all.device_span_ps);
    let text = format!(
        "{} takes {}, {} of it while no program runs on the device ({} of the {} from its first program to its last)",
        row.name,
        with_self(row.time_ps, row.self_time_ps),
        ms(row.device_idle_time_ps),
        percent(part(row.device_idle_time_ps, all.device_span_ps)),
        ms(all.device_span_ps)
    );
    (share >= WORTH).then_some((share, text))
}

fn of_period(all: &HostAnnotations) -> Option<(f64, String)> {
    let period = all.period_ps();
    let rows = all.rows.iter().filter(|row| !row.step_marker);
    let row = rows.max_by_key(|row| all.in_period_ps(row).1)?;
    let (time, own) = all.in_period_ps(row);
    let share = part(own, period);
    let text = format!(
        "{} takes {} of the mean {} from one step to the next ({}) on the thread of the step markers",
        row.name,
        with_self(time, own),
        ms(period),
        percent(part(time, period))
    );
    (share >= WORTH).then_some((share, text))
}

fn with_self(time_ps: i64, self_time_ps: i64) -> String {
    let (time, own) = (ms(time_ps), ms(self_time_ps));
    if time == own { time } else { format!("{time} ({own} without the annotations in it)") }
}

/// The annotations of a host with most self time, and how many others there are.
pub(super) fn table(out: &mut impl Write, host: &HostReport, page: &Page<'_>) -> io::Result<()> {
    let Some(all) = host.annotations.as_ref().filter(|all| !all.rows.is_empty()) else { return Ok(()) };
    let steps = all.steps > 0;
    write!(out, "  {:<38} {:>8} {:>12} {:>12}", "host annotation", "runs", "total", "self time")?;
    if steps {
        write!(out, " {:>12} {:>12} {:>9}", "total a step", "self a step", "of period")?;
    }
    writeln!(out)?;
    let (shown, left_out) = all.rows.split_at(page.shown_rows.min(all.rows.len()));
    for row in shown {
        write!(
            out,
            "  {:<38} {:>8} {:>12} {:>12}",
            name(row),
            row.occurrences,
            ms(row.time_ps),
            ms(row.self_time_ps)
        )?;
        let (time, own) = all.in_period_ps(row);
        match steps {
            true if time > 0 => {
                write!(out, " {:>12} {:>12} {:>9}", ms(time), ms(own), percent(part(own, all.period_ps())))?;
            }
            // It lies before the first or behind the last step, or on another thread.
            true => write!(out, " {:>12} {:>12} {:>9}", "-", "-", "-")?,
            false => {}
        }
        writeln!(out)?;
    }
    if !left_out.is_empty() {
        let self_time = left_out.iter().fold(0, |sum: i64, row| sum.saturating_add(row.self_time_ps));
        writeln!(out, "  and {} with {} self time", counted(left_out.len(), "more name"), ms(self_time))?;
    }
    if steps {
        writeln!(
            out,
            "  a step: on the thread of the step markers, in and between steps; of period: self time of the mean {} from one step marker to the next",
            ms(all.period_ps())
        )?;
    }
    Ok(())
}

fn name(row: &Annotation) -> String {
    const WIDTH: usize = 38;
    const MARK: &str = " (step marker)";
    match row.step_marker {
        true => cut(&row.name, WIDTH - MARK.len()) + MARK,
        false => cut(&row.name, WIDTH),
    }
}

fn part(ps: i64, of: i64) -> f64 {
    if of > 0 { ps as f64 / of as f64 } else { 0.0 }
}
