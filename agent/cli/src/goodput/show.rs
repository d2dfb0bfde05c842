//! The answer as text: one bar for each bucket, the largest first, and advice for the largest losses.

use std::fmt::Write;

use goodput::{
    answer::{JobAnswer, LedgerAnswer, WindowAnswer},
    badput::{Amount, BadputType as B, Buckets},
    strict::Repairs,
    time::Micros,
};
use xprof::wording::counted;

use crate::output::one_line;

/// The width of the longest bar in characters.
const WIDTH: f64 = 40.0;
/// The minimum share of the time for advice about a loss.
const NOTABLE: f64 = 0.03;
/// The maximum number of losses with advice.
const ADVISED: usize = 3;

/// The naming of the buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BucketNames {
    /// The names of the library.
    Library,
    /// The names on the dashboards of ml-goodput-measurement's newer API.
    Dashboard,
}

/// One bar.
pub(super) struct BarRow {
    name: String,
    seconds: f64,
}

impl BarRow {
    pub(super) fn new(name: impl Into<String>, seconds: f64) -> Self {
        Self { name: name.into(), seconds }
    }
}

/// Bars as shares of `total`, the longest first. Empty buckets have none.
pub(super) fn bars(mut rows: Vec<BarRow>, total: f64) -> String {
    rows.retain(|row| row.seconds > 0.0);
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let name_width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for row in rows {
        let share = if total > 0.0 { row.seconds / total } else { 0.0 };
        let (name, percent, bar) = (row.name, share * 100.0, bar(share));
        let seconds = duration(row.seconds);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {name:<name_width$} {percent:5.1} % {seconds:>9} {bar}");
    }
    out
}

/// A bar in eighths of a character.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 8 * WIDTH")]
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * WIDTH * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Seconds in the two largest units.
#[expect(clippy::cast_possible_truncation, reason = "saturates, and is only shown")]
pub(crate) fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as i64;
    let (days, hours, minutes, seconds) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}m {seconds:02}s"),
        (0, _) => format!("{hours}h {minutes:02}m"),
        _ => format!("{days}d {hours:02}h"),
    }
}

fn rows(buckets: &Buckets, names: BucketNames) -> Vec<BarRow> {
    let mut rows = Vec::new();
    for (kind, amount) in buckets.iter().filter(|(kind, _)| *kind != B::DataLoadingAsync) {
        let name = match names {
            BucketNames::Library => kind.name(),
            BucketNames::Dashboard => kind.dashboard(),
        };
        match amount {
            Amount::Flat(seconds) => rows.push(BarRow::new(name, *seconds)),
            Amount::Custom(kinds) => {
                rows.extend(
                    kinds.iter().map(|(custom, seconds)| {
                        BarRow::new(format!("{name}.{}", one_line(custom)), *seconds)
                    }),
                );
            }
        }
    }
    rows
}

/// An answer with its bars.
pub(super) fn answer(
    about: &str,
    answer: &LedgerAnswer,
    names: BucketNames,
    repairs: Option<&Repairs>,
) -> String {
    let mut out = match answer {
        LedgerAnswer::Job(answer) => job(about, answer, names),
        LedgerAnswer::Window(answer) => window(about, answer, names),
        LedgerAnswer::Failed(failed) => format!("{about}: {}: {}\n", failed.error.name(), failed.message),
    };
    for (repair, count) in repairs.iter().flat_map(|repairs| repairs.iter()) {
        let _ = writeln!(out, "  repaired: {} ({})", repair.about(), counted(count, "time"));
    }
    out
}

/// A time in UTC; the only input is what an answer holds.
fn utc(seconds: f64) -> String {
    Micros::from_seconds(seconds).map_or_else(
        |_| format!("{seconds} s"),
        |at| format!("{} UTC", at.to_string().trim_end_matches("+00:00")),
    )
}

/// Without a job end in the log, the headline says until when the time counts, and a second line gives the
/// answer for the time until the last entry.
fn headline(about: &str, answer: &JobAnswer) -> String {
    let period = &answer.period;
    let share = |percent: f64, total: f64| format!("goodput {percent:.1} % of {}", duration(total));
    let mut out =
        format!("{}: {}", one_line(about), share(answer.goodput_percent, answer.total_elapsed_seconds));
    if period.job_end_logged {
        out.push('\n');
        if period.last_entry.is_some_and(|last| last > period.counted_until) {
            let end = utc(period.counted_until);
            let _ = writeln!(out, "  time counts until the job end, {end}; the log has later entries");
        }
        return out;
    }
    let _ = writeln!(out, " until now, {}; the log has no job end", utc(period.counted_until));
    if let Some(last) = &period.until_last_entry {
        let share = share(last.goodput_percent, last.total_elapsed_seconds);
        let _ = writeln!(out, "  until the last entry, {}: {share}", utc(last.time));
    }
    out
}

fn job(about: &str, answer: &JobAnswer, names: BucketNames) -> String {
    let total = answer.total_elapsed_seconds;
    let mut out = headline(about, answer);
    let mut all = rows(&answer.unproductive_seconds, names);
    all.push(BarRow::new("productive", answer.productive_seconds));
    out.push_str(&bars(all, total));
    let _ = writeln!(
        out,
        "  largest productive step {}, disruptions {}, ideal step time {}",
        answer.max_productive_step,
        answer.disruptions,
        ideal_step_time(answer.ideal_step_time)
    );
    out.push_str(&advice(&answer.unproductive_seconds, total, answer.productive_seconds));
    out
}

/// The library counts no step below one second for it.
fn ideal_step_time(seconds: f64) -> String {
    if seconds > 0.0 {
        format!("{seconds:.3} s")
    } else {
        "unknown: only steps of 1 s and more count for it".to_owned()
    }
}

fn window(about: &str, answer: &WindowAnswer, names: BucketNames) -> String {
    let total = answer.total_seconds;
    let mut out = format!(
        "{}: goodput {:.1} % of {} in the window from {} to {}\n",
        one_line(about),
        answer.goodput_percent,
        duration(total),
        utc(answer.effective_start),
        utc(answer.effective_end)
    );
    let seconds = |percent: f64| percent / 100.0 * total;
    let scaled = |amount: &Amount| match amount {
        Amount::Flat(percent) => Amount::Flat(seconds(*percent)),
        Amount::Custom(kinds) => {
            Amount::Custom(kinds.iter().map(|(name, percent)| (name.clone(), seconds(*percent))).collect())
        }
    };
    let buckets: Buckets =
        answer.badput_percent.iter().map(|(kind, amount)| (*kind, scaled(amount))).collect();
    let productive = seconds(answer.goodput_percent);
    let mut all = rows(&buckets, names);
    all.push(BarRow::new("productive", productive));
    out.push_str(&bars(all, total));
    let _ = writeln!(
        out,
        "  largest productive step {}, disruptions {}",
        answer.returned_step, answer.disruptions
    );
    out.push_str(&advice(&buckets, total, productive));
    out
}

/// The largest losses and what usually helps against them.
fn advice(buckets: &Buckets, total: f64, productive: f64) -> String {
    let mut losses: Vec<(B, f64)> = buckets
        .iter()
        .filter(|(kind, _)| *kind != B::DataLoadingAsync)
        .map(|(kind, amount)| (*kind, amount.sum()))
        .filter(|(_, seconds)| *seconds > NOTABLE * total)
        .collect();
    losses.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut out = String::new();
    for (kind, _) in losses.iter().take(ADVISED) {
        let _ = writeln!(out, "  look at: {}", hint(*kind));
    }
    let sum: f64 =
        buckets.iter().filter(|(kind, _)| *kind != B::DataLoadingAsync).map(|(_, amount)| amount.sum()).sum();
    if sum + productive > total * 1.001 {
        out.push_str("  some buckets overlap, so the same time counts twice; --strict counts it once\n");
    }
    out
}

fn hint(kind: B) -> &'static str {
    match kind {
        B::TpuInitialization => "device initialisation: slow nodes, old processes that still hold the chips",
        B::TrainingPrep => "preparation: checkpoint loading and model set-up before the first step",
        B::ProgramStartup => "the first step: cache compiled programs (jax_compilation_cache_dir)",
        B::DataLoadingSync => {
            "input: training waits for data after a start; prefetch, or store the data closer"
        }
        B::DataLoadingAsync => "input that loads during training",
        B::CheckpointSave => "checkpoint saves: save asynchronously, less often, or to faster storage",
        B::CheckpointRestore => "checkpoint restores: restore from local or peer copies",
        B::WastedProgress => "steps repeated after restarts: save checkpoints more often",
        B::InfrastructureRecovery => "outages: why the job stopped, and how long the restart took",
        B::CustomEvents => "the job's custom events: evaluation, checks",
        B::Other => "time without a recorded event: hangs, late entries, or work that is not recorded",
        B::ElasticSliceDown => "waits with slices down",
        B::ElasticScaleUp => "waits for slices to return",
        B::ElasticReinitialization => "re-initialisation with another number of slices",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_first_without_empty_buckets() {
        let rows = vec![BarRow::new("a", 10.0), BarRow::new("bb", 80.0), BarRow::new("c", 0.0)];
        assert_eq!(
            bars(rows, 100.0),
            format!("  bb  80.0 %    1m 20s {}\n  a   10.0 %    10.0 s ████\n", "█".repeat(32))
        );
    }

    #[test]
    fn durations_in_the_two_largest_units() {
        let shown: Vec<String> = [0.25, 59.0, 75.0, 3725.0, 200_000.0].into_iter().map(duration).collect();
        assert_eq!(shown, ["0.2 s", "59.0 s", "1m 15s", "1h 02m", "2d 07h"]);
    }
}
