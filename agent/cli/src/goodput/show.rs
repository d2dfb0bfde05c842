//! The answer on a terminal: a bar of where the time went, widest first, and what to look at.

use std::fmt::Write;

use goodput::{
    answer::{Answer, JobAnswer, WindowAnswer},
    badput::{Amount, BadputType as B, Buckets},
    strict::Repairs,
};

use crate::output::one_line;

/// The widest bar, in characters.
const WIDTH: f64 = 40.0;
/// Losses from this share of the time on are worth a look.
const NOTABLE: f64 = 0.03;
/// So many of them are named.
const NAMED: usize = 3;

/// Whose names the buckets carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// The library's.
    Library,
    /// The newer API's dashboards'.
    Dashboard,
}

/// One bar.
pub(super) struct Row {
    name: String,
    seconds: f64,
}

impl Row {
    pub(super) fn new(name: impl Into<String>, seconds: f64) -> Self {
        Self { name: name.into(), seconds }
    }
}

/// Bars of `total`, widest first; nothing for what is empty.
pub(super) fn bars(mut rows: Vec<Row>, total: f64) -> String {
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
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 8 * WIDTH")]
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * WIDTH * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Seconds as people say them.
#[allow(clippy::cast_possible_truncation, reason = "saturates, and is only shown")]
pub(super) fn duration(seconds: f64) -> String {
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

fn rows(buckets: &Buckets, names: Names) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, amount) in buckets.iter().filter(|(kind, _)| *kind != B::DataLoadingAsync) {
        let name = match names {
            Names::Library => kind.name(),
            Names::Dashboard => kind.dashboard(),
        };
        match amount {
            Amount::Flat(seconds) => rows.push(Row::new(name, *seconds)),
            Amount::Custom(kinds) => {
                rows.extend(
                    kinds
                        .iter()
                        .map(|(custom, seconds)| Row::new(format!("{name}.{}", one_line(custom)), *seconds)),
                );
            }
        }
    }
    rows
}

/// An answer with its bars.
pub(super) fn answer(about: &str, answer: &Answer, names: Names, repairs: Option<&Repairs>) -> String {
    let mut out = match answer {
        Answer::Job(answer) => job(about, answer, names),
        Answer::Window(answer) => window(about, answer, names),
        Answer::Failed(failed) => format!("{about}: {}: {}\n", failed.error, failed.message),
    };
    for (repair, count) in repairs.iter().flat_map(|repairs| repairs.iter()) {
        let _ = writeln!(out, "  repaired: {} ({count}x)", repair.about());
    }
    out
}

fn job(about: &str, answer: &JobAnswer, names: Names) -> String {
    let total = answer.total_elapsed_seconds;
    let mut out =
        format!("{}: goodput {:.1} % of {}\n", one_line(about), answer.goodput_percent, duration(total));
    let mut all = rows(&answer.unproductive_seconds, names);
    all.push(Row::new("productive", answer.productive_seconds));
    out.push_str(&bars(all, total));
    let _ = writeln!(
        out,
        "  largest productive step {}, disruptions {}, ideal step time {:.3} s",
        answer.max_productive_step, answer.disruptions, answer.ideal_step_time
    );
    out.push_str(&advice(&answer.unproductive_seconds, total, answer.productive_seconds));
    out
}

fn window(about: &str, answer: &WindowAnswer, names: Names) -> String {
    let total = answer.total_seconds;
    let mut out = format!(
        "{}: goodput {:.1} % of {} in the window\n",
        one_line(about),
        answer.goodput_percent,
        duration(total)
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
    all.push(Row::new("productive", productive));
    out.push_str(&bars(all, total));
    let _ = writeln!(
        out,
        "  largest productive step {}, disruptions {}",
        answer.returned_step, answer.disruptions
    );
    out.push_str(&advice(&buckets, total, productive));
    out
}

/// What to look at: the widest losses, and what usually helps.
fn advice(buckets: &Buckets, total: f64, productive: f64) -> String {
    let mut losses: Vec<(B, f64)> = buckets
        .iter()
        .filter(|(kind, _)| *kind != B::DataLoadingAsync)
        .map(|(kind, amount)| (*kind, amount.sum()))
        .filter(|(_, seconds)| *seconds > NOTABLE * total)
        .collect();
    losses.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut out = String::new();
    for (kind, _) in losses.iter().take(NAMED) {
        let _ = writeln!(out, "  look at: {}", hint(*kind));
    }
    let sum: f64 =
        buckets.iter().filter(|(kind, _)| *kind != B::DataLoadingAsync).map(|(_, amount)| amount.sum()).sum();
    if sum + productive > total * 1.001 {
        out.push_str("  some buckets overlap and count the same time twice; --strict counts it once\n");
    }
    out
}

fn hint(kind: B) -> &'static str {
    match kind {
        B::TpuInitialization => "device initialisation: slow nodes, stale processes that hold the chips",
        B::TrainingPrep => "preparation: checkpoint loading and model set-up before the first step",
        B::ProgramStartup => "the first step: keep compiled programs (jax_compilation_cache_dir)",
        B::DataLoadingSync => {
            "input: training waits for data after a start; prefetch, or move the data closer"
        }
        B::DataLoadingAsync => "input loaded beside training",
        B::CheckpointSave => "checkpoint saves: save asynchronously, less often, or to a faster place",
        B::CheckpointRestore => "checkpoint restores: restore from local or peer copies",
        B::WastedProgress => "work done twice after restarts: checkpoint more often",
        B::InfrastructureRecovery => {
            "outages: why the job stopped, and how long it took to be scheduled again"
        }
        B::CustomEvents => "the job's own events: evaluation, checks",
        B::Other => "time that no event explains: hangs, late entries, or work that nothing records",
        B::ElasticSliceDown => "waiting with slices down",
        B::ElasticScaleUp => "waiting for slices to come back",
        B::ElasticReinitialization => "re-initialisation on another number of slices",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widest_first_and_nothing_for_what_is_empty() {
        let rows = vec![Row::new("a", 10.0), Row::new("bb", 80.0), Row::new("c", 0.0)];
        assert_eq!(
            bars(rows, 100.0),
            format!("  bb  80.0 %    1m 20s {}\n  a   10.0 %    10.0 s ████\n", "█".repeat(32))
        );
    }

    #[test]
    fn durations_as_people_say_them() {
        let spoken: Vec<String> = [0.25, 59.0, 75.0, 3725.0, 200_000.0].into_iter().map(duration).collect();
        assert_eq!(spoken, ["0.2 s", "59.0 s", "1m 15s", "1h 02m", "2d 07h"]);
    }
}
