//! Where the time of a job went, as text.

use std::fmt::Write;

use model::time::Timestamp;
use proto::tpuscope::v1::{GoodputLoss, JobGoodput, LostStretch};
use xprof::wording::counted;

use super::show::{self, BarRow};
use crate::output::one_line;

/// The largest losses that are explained.
const EXPLAINED: usize = 3;

/// One job as `host` sees it, for the user `viewer`.
pub(super) fn page(job: &JobGoodput, host: &str, viewer: u32, explain: bool) -> String {
    let mut text = headline(job, viewer);
    let seconds = |seconds: &u64| whole(*seconds);
    let rows: Vec<BarRow> =
        job.seconds.iter().map(|(name, value)| BarRow::new(name, seconds(value))).collect();
    text.push_str(&show::bars(rows, whole(job.elapsed_seconds)));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  {}", remark(job, host));
    if explain {
        text.push_str(&explanation(job, host));
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "seconds of a job")]
fn whole(seconds: u64) -> f64 {
    seconds as f64
}

fn headline(job: &JobGoodput, viewer: u32) -> String {
    // Its command may run without a chip, and a process may outlive it: `jobs` tells whether it runs.
    let state = if job.running { "chips open" } else { "no chip open" };
    let known = show::duration(whole(job.known_seconds));
    let figure = match job.goodput_ratio {
        Some(ratio) => format!("{:.1} % of the {known} that are known", ratio * 100.0),
        None => format!("unknown: {known} are known"),
    };
    format!(
        "{}, {state}: {} goodput {figure} (coverage {:.1} %, confidence {})\n{} to {}, shares of {}:\n",
        called(job, viewer),
        one_line(&job.ledger),
        job.coverage_ratio * 100.0,
        one_line(&job.confidence),
        Timestamp(job.from_unix_ns),
        Timestamp(job.until_unix_ns),
        show::duration(whole(job.elapsed_seconds)),
    )
}

/// What a job is called: its name where it has one, its id, and its user if that is not `viewer`.
pub(super) fn called(job: &JobGoodput, viewer: u32) -> String {
    let id = job.key.as_ref().map(|key| format!("{}:{}", key.kind, key.id)).unwrap_or_default();
    let called = match job.name.as_str() {
        "" => one_line(&id),
        name => format!("{} ({})", one_line(name), one_line(&id)),
    };
    called + &of_user(job.key.as_ref().map_or(viewer, |key| key.uid), viewer)
}

/// The user of a job, unless it is `viewer`.
pub(super) fn of_user(uid: u32, viewer: u32) -> String {
    if uid == viewer { String::new() } else { format!(" of uid {uid}") }
}

fn remark(job: &JobGoodput, host: &str) -> String {
    let scheduling =
        job.scheduling_goodput_ratio.map(|ratio| format!(", all chips open {:.1} %", ratio * 100.0));
    let by_minute = if job.resolution_seconds > 1 { "; a part is only known by the minute" } else { "" };
    format!(
        "as {} sees it: {}{}, {}{by_minute}",
        one_line(host),
        chips(&job.chips),
        scheduling.unwrap_or_default(),
        counted(job.disruptions, "disruption"),
    )
}

fn chips(chips: &[u32]) -> String {
    let list = chips.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match chips.len() {
        0 => "chips not recorded".to_owned(),
        1 => format!("chip {list}"),
        _ => format!("chips {list}"),
    }
}

/// The largest losses with their evidence.
fn explanation(job: &JobGoodput, host: &str) -> String {
    let mut text = String::new();
    if job.losses.is_empty() {
        text.push_str("no time was lost, as far as it is known\n");
    }
    for (number, loss) in (1..).zip(job.losses.iter().take(EXPLAINED)) {
        let _ = write!(text, "{number}. {}", explained(loss, host));
    }
    text
}

fn explained(loss: &GoodputLoss, host: &str) -> String {
    let (what, advice) = meaning(&loss.reason);
    let mut text = format!("{}, {}: {what}\n", one_line(&loss.reason), show::duration(whole(loss.seconds)));
    for stretch in &loss.longest {
        let _ = writeln!(text, "   {}", stretch_text(&loss.reason, stretch, host));
    }
    let named = loss.longest.len() as u64;
    if loss.stretches > named {
        let _ = writeln!(text, "   and {}", counted(loss.stretches - named, "shorter time"));
    }
    if loss.stretches == 0 {
        text.push_str("   when is no longer kept\n");
    }
    let _ = writeln!(text, "   source: {}", one_line(&loss.source));
    let _ = writeln!(text, "   what to do: {advice}");
    text
}

fn stretch_text(reason: &str, stretch: &LostStretch, host: &str) -> String {
    let which = match (reason, &stretch.chips[..]) {
        ("recovery", []) => "no chip open".to_owned(),
        // The time is lost for the job while one of them is idle: not each was so in all of it.
        (_, several @ [_, _, ..]) => format!("one or more of {}", chips(several)),
        (_, few) => chips(few),
    };
    format!(
        "{} to {} ({}), {which} on {}",
        Timestamp(stretch.from_unix_ns),
        Timestamp(stretch.until_unix_ns),
        show::duration(whole(stretch.seconds)),
        one_line(host),
    )
}

/// What a loss means, and what to do about it.
pub(super) fn meaning(reason: &str) -> (&'static str, &'static str) {
    match reason {
        "init" => (
            "idle after the chips were opened, with their memory empty",
            "look at slow nodes, and at old processes that still hold chips; `tpuscope status` names them",
        ),
        "prep" => (
            "idle with memory in use, before the first work of an attempt: loading and compiling",
            "keep compiled programs (jax_compilation_cache_dir), and load the model and the checkpoint in parallel",
        ),
        "restore" => (
            "idle while a checkpoint was read",
            "restore from local or peer copies, or store checkpoints closer",
        ),
        "checkpoint" => {
            ("idle while a checkpoint was written", "save asynchronously, less often, or to faster storage")
        }
        "input" => (
            "idle while the job waited for its input",
            "raise the number of workers or the prefetch of the input, or store the data closer",
        ),
        "partial" => (
            "only some of the chips of the job were open",
            "look at processes of the job that ended alone: `tpuscope status` shows who holds which chip",
        ),
        "recovery" => (
            "no chip of the job was open: it was down or restarted",
            "look at why the job stopped, and at how long its restart takes",
        ),
        _ => (
            "idle after the first work, for a reason that no source names",
            "capture while it is idle: `tpuscope capture`; if the job does not serve the metrics of Orbax and Grain yet, those \
             name checkpoints and input (ENABLE_ORBAX_PROMETHEUS_TELEMETRY, ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::JobKey;

    use super::*;

    fn job() -> JobGoodput {
        let at = |second: i64| (1_772_323_200 + second) * 1_000_000_000;
        let stretch = |from, until, chips| LostStretch {
            from_unix_ns: at(from),
            until_unix_ns: at(until),
            seconds: u64::try_from(until - from).unwrap(),
            chips,
        };
        let loss = |reason: &str, seconds, stretches, longest| GoodputLoss {
            reason: reason.into(),
            seconds,
            stretches,
            source: "the duty cycle".into(),
            longest,
        };
        let key = JobKey { kind: "slurm".into(), id: "7".into(), uid: 1000, cluster: String::new() };
        JobGoodput {
            key: Some(key),
            name: "train".into(),
            running: true,
            ledger: "proxy".into(),
            confidence: "low".into(),
            from_unix_ns: at(0),
            until_unix_ns: at(200),
            resolution_seconds: 1,
            elapsed_seconds: 200,
            known_seconds: 160,
            coverage_ratio: 0.8,
            goodput_ratio: Some(0.75),
            scheduling_goodput_ratio: Some(1.0),
            seconds: [("productive", 120), ("input", 30), ("init", 10), ("unobserved", 40), ("stall", 0)]
                .map(|(name, seconds)| (name.to_owned(), seconds))
                .into(),
            disruptions: 1,
            chips: vec![0, 1],
            losses: vec![
                loss(
                    "input",
                    30,
                    5,
                    vec![stretch(40, 60, vec![1]), stretch(70, 72, vec![0, 1]), stretch(80, 84, vec![])],
                ),
                loss("init", 10, 0, vec![]),
                loss("recovery", 5, 1, vec![stretch(90, 95, vec![])]),
            ],
            states: Vec::new(),
        }
    }

    #[test]
    fn ledger_coverage_and_confidence_stand_with_the_figure() {
        let text = page(&job(), "host-1", 1000, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "train (slurm:7), chips open: proxy goodput 75.0 % of the 2m 40s that are known (coverage 80.0 %, confidence low)"
        );
        assert_eq!(lines[1], "2026-03-01T00:00:00Z to 2026-03-01T00:03:20Z, shares of 3m 20s:");
        let first: Vec<&str> = lines[2].split_whitespace().take(3).collect();
        assert_eq!(first, ["productive", "60.0", "%"]);
        assert!(!text.contains("stall"), "{text}");
        assert_eq!(lines[6], "  as host-1 sees it: chips 0, 1, all chips open 100.0 %, 1 disruption");
        let unknown = JobGoodput { goodput_ratio: None, ..job() };
        assert!(page(&unknown, "host-1", 1000, false).contains("goodput unknown: 2m 40s are known"));
        assert!(page(&job(), "host-1", 0, false).starts_with("train (slurm:7) of uid 1000, chips open: "));
    }

    #[test]
    fn an_outage_has_no_chip_open() {
        let text = page(&job(), "host-1", 1000, true);
        assert!(text.contains("2026-03-01T00:01:35Z (5.0 s), no chip open on host-1\n"), "{text}");
        let none = JobGoodput { losses: Vec::new(), running: false, ..job() };
        let text = page(&none, "host-1", 1000, true);
        assert!(
            text.contains(", no chip open: proxy")
                && text.ends_with("no time was lost, as far as it is known\n")
        );
    }

    #[test]
    fn a_loss_has_its_evidence_and_what_to_do() {
        let text = page(&job(), "host-1", 1000, true);
        let (_, explained) = text.split_once("\n1. ").unwrap();
        let wanted = "input, 30.0 s: idle while the job waited for its input\n   \
                      2026-03-01T00:00:40Z to 2026-03-01T00:01:00Z (20.0 s), chip 1 on host-1\n   \
                      2026-03-01T00:01:10Z to 2026-03-01T00:01:12Z (2.0 s), one or more of chips 0, 1 on host-1\n   \
                      2026-03-01T00:01:20Z to 2026-03-01T00:01:24Z (4.0 s), chips not recorded on host-1\n   \
                      and 2 shorter times\n   source: the duty cycle\n   what to do: raise the number";
        assert!(explained.starts_with(wanted), "{explained}");
        assert!(
            explained.contains("2. init, 10.0 s") && explained.contains("when is no longer kept"),
            "{explained}"
        );
    }
}
