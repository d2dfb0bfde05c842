//! The host's annotations as `sessions show` prints them: which of them the steps' time goes to.

#![expect(clippy::cast_precision_loss, reason = "figures for people, rounded when printed")]

use std::io::{self, Write};

use xprof::analysis::{Annotation, HostAnnotations, HostReport, Report};

use super::show_text::{count, cut, ms, percent};
use crate::output::one_line;

/// An annotation is named at the top where it takes at least this part of the steps.
const WORTH: f64 = 0.1;

/// What the step's own thread spends most of its steps in, per host, where that is much.
pub(super) fn headline(out: &mut impl Write, report: &Report, on: &str, off: &str) -> io::Result<()> {
    let named = report.hosts.iter().filter_map(|host| Some((host, greatest(&host.annotations)?)));
    let greatest = named.max_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
    let Some((host, (row, share))) = greatest else { return Ok(()) };
    let who = if report.hosts.len() > 1 { format!(" on {}", host.host) } else { String::new() };
    let steps = host.annotations.steps;
    writeln!(
        out,
        "{on}host{off}       {} takes {} of {} a step ({} of step time) on the thread of the step markers{}",
        one_line(&row.name),
        ms(per_step(row.in_steps_self_time_ps, steps)),
        ms(per_step(host.annotations.steps_time_ps, steps)),
        percent(share),
        one_line(&who)
    )
}

fn greatest(all: &HostAnnotations) -> Option<(&Annotation, f64)> {
    let row = all.rows.iter().filter(|row| !row.step_marker).max_by_key(|row| row.in_steps_self_time_ps)?;
    let share = part(row.in_steps_self_time_ps, all.steps_time_ps);
    (share >= WORTH).then_some((row, share))
}

/// The annotations of a host.
pub(super) fn table(out: &mut impl Write, host: &HostReport) -> io::Result<()> {
    let all = &host.annotations;
    if all.rows.is_empty() {
        return Ok(());
    }
    let steps = all.steps > 0;
    write!(out, "  {:<38} {:>8} {:>12} {:>12}", "host annotation", "runs", "total", "self time")?;
    if steps {
        write!(out, " {:>12} {:>12}", "self a step", "of step time")?;
    }
    writeln!(out)?;
    for row in &all.rows {
        let name = if row.step_marker { format!("{} (step marker)", row.name) } else { row.name.clone() };
        write!(
            out,
            "  {:<38} {:>8} {:>12} {:>12}",
            cut(&name, 38),
            row.occurrences,
            ms(row.time_ps),
            ms(row.self_time_ps)
        )?;
        match steps {
            true if row.in_steps_time_ps > 0 => write!(
                out,
                " {:>12} {:>12}",
                ms(per_step(row.in_steps_self_time_ps, all.steps)),
                percent(part(row.in_steps_self_time_ps, all.steps_time_ps))
            )?,
            // It lies outside the steps, or on another thread.
            true => write!(out, " {:>12} {:>12}", "-", "-")?,
            false => {}
        }
        writeln!(out)?;
    }
    if all.names_left_out > 0 {
        let names = count(usize::try_from(all.names_left_out).unwrap_or(usize::MAX), "more name");
        writeln!(out, "  and {names} with {} self time", ms(all.self_time_left_out_ps))?;
    }
    Ok(())
}

fn per_step(ps: i64, steps: u64) -> i64 {
    ps / i64::try_from(steps).unwrap_or(i64::MAX).max(1)
}

fn part(ps: i64, of: i64) -> f64 {
    if of > 0 { ps as f64 / of as f64 } else { 0.0 }
}
