//! The status as text: tables of chips, processes and sources, and remarks on what is wrong or missing.

#![expect(clippy::cast_precision_loss, reason = "figures for people, rounded when printed")]

use std::fmt::Write;

use model::sample::Origin;
use proto::tpuscope::v1::{ChipStatus, JobIdentity, OwnerStatus, SeriesValue, SourceStatus, StatusReply};

use super::{
    remarks::{in_trouble, remarks},
    steps, wide,
};
use crate::output::{TextTable, one_line};

/// The page. With `samples` it has the further columns. Sources in trouble are always shown, all of them if `verbose`.
pub(super) fn page(status: &StatusReply, samples: Option<&[SeriesValue]>, verbose: bool) -> String {
    let version = status.peer.as_ref().map(|peer| peer.version.as_str()).unwrap_or_default();
    let up = age(between(status.started_unix_ns, status.at_unix_ns));
    let state = if status.ready { "sampling" } else { "not sampling" };
    let mut text = format!("{}: agent {}, up {up}, {state}\n\n", one_line(&status.host), one_line(version));
    let unknown = one_line(&status.chips_unknown);
    match (unknown.is_empty(), status.chips.is_empty()) {
        (true, true) => text.push_str("no TPU chips on this host\n"),
        (true, false) => {}
        (false, true) => text.push_str(&format!("chips unknown: {unknown}\n")),
        (false, false) => text.push_str(&format!("chips unknown, these were there before: {unknown}\n\n")),
    }
    if !status.chips.is_empty() {
        text.push_str(&samples.map_or_else(|| chips(status), |samples| wide_chips(status, samples)));
    }
    if !status.owners.is_empty() {
        text.push('\n');
        text.push_str(&owners(&status.owners));
    }
    text.push_str(&steps::section(&status.steps));
    let shown: Vec<_> = status.sources.iter().filter(|it| verbose || in_trouble(it).count() > 0).collect();
    if !shown.is_empty() {
        text.push('\n');
        text.push_str(&sources(&shown));
    }
    let remarks = remarks(status, verbose);
    if !remarks.is_empty() {
        text.push('\n');
    }
    for remark in remarks {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {}", one_line(&remark));
    }
    text
}

fn chips(status: &StatusReply) -> String {
    let mut table = TextTable::new(["CHIP", "TYPE", "STATE", "DUTY", "HBM", "AGE", "OWNERS"]);
    for chip in &status.chips {
        let [index, name, state, duty, hbm] = usual_cells(chip);
        table.row([index, name, state, duty, hbm, last_read(chip), chip_owners(chip)]);
    }
    table.text()
}

fn wide_chips(status: &StatusReply, samples: &[SeriesValue]) -> String {
    let [tensorcore, bandwidth, ici, queue] = wide::HEADINGS;
    let mut table = TextTable::new([
        "CHIP", "TYPE", "STATE", "DUTY", "HBM", tensorcore, bandwidth, ici, queue, "AGE", "OWNERS",
    ]);
    for chip in &status.chips {
        let [index, name, state, duty, hbm] = usual_cells(chip);
        let [tensorcore, bandwidth, ici, queue] = wide::cells(chip.index, samples);
        let (age, owners) = (last_read(chip), chip_owners(chip));
        table.row([index, name, state, duty, hbm, tensorcore, bandwidth, ici, queue, age, owners]);
    }
    let scores = wide::scores(samples);
    let gap = if scores.is_empty() { "" } else { "\n" };
    table.text() + gap + &scores
}

/// Index, type, state, duty cycle and HBM of a chip.
pub(super) fn usual_cells(chip: &ChipStatus) -> [String; 5] {
    [
        chip.index.to_string(),
        chip.name.clone(),
        if is_simulated(chip) { "-".into() } else { chip.state.clone() },
        chip.duty_cycle.map_or_else(|| "-".into(), |duty| format!("{:.1}%", duty * 100.0)),
        hbm(chip),
    ]
}

pub(super) fn last_read(chip: &ChipStatus) -> String {
    chip.age_seconds.map_or_else(|| "-".into(), age)
}

/// Whether the agent made it up (`sampler.sim_chips`). No real chip is called so.
fn is_simulated(chip: &ChipStatus) -> bool {
    chip.name == Origin::Sim.as_str()
}

/// The pids. `free` only where all processes were seen and the chip can be opened.
pub(super) fn chip_owners(chip: &ChipStatus) -> String {
    match (&chip.owners[..], chip.owners_unknown.is_empty(), chip.state.as_str()) {
        ([], true, "ok") if !is_simulated(chip) => "free".into(),
        ([], true, _) => "-".into(),
        ([], false, _) => "unknown".into(),
        (owners, ..) => owners.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
    }
}

fn hbm(chip: &ChipStatus) -> String {
    let gib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 30));
    match (chip.hbm_used_bytes, chip.hbm_total_bytes) {
        (Some(used), Some(total)) => format!("{} / {} GiB", gib(used), gib(total)),
        (Some(used), None) => format!("{} GiB", gib(used)),
        (None, Some(total)) => format!("- / {} GiB", gib(total)),
        (None, None) => "-".into(),
    }
}

fn owners(owners: &[OwnerStatus]) -> String {
    let mut table = TextTable::new(["PID", "USER", "COMMAND", "CHIPS", "JOB", "FRAMEWORK"]);
    for owner in owners {
        let user = owner.job.as_ref().and_then(|job| job.user.clone());
        table.row([
            owner.pid.to_string(),
            user.unwrap_or_else(|| owner.uid.to_string()),
            owner.command.clone(),
            owner.chips.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            owner.job.as_ref().map(job).unwrap_or_default(),
            owner.framework.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    table.text()
}

fn job(job: &JobIdentity) -> String {
    let name = job.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    match job.kind.as_str() {
        "process" => job.name.clone().unwrap_or_default(),
        kind => format!("{kind} {}{name}", job.id),
    }
}

fn sources(sources: &[&SourceStatus]) -> String {
    let mut table = TextTable::new(["SOURCE", "SERIES", "READ", "AGE", "READS", "ERRORS"]);
    for source in sources {
        table.row([
            source.source.clone(),
            source.series.to_string(),
            source.last_read_seconds.map_or_else(|| "-".into(), |read| format!("{:.1} ms", read * 1e3)),
            source.age_seconds.map_or_else(|| "-".into(), age),
            source.reads.to_string(),
            source.errors.to_string(),
        ]);
    }
    table.text()
}

/// The seconds between two times.
pub(super) fn between(earlier_unix_ns: i64, later_unix_ns: i64) -> f64 {
    later_unix_ns.saturating_sub(earlier_unix_ns).max(0) as f64 / 1e9
}

/// A duration in seconds, short.
pub(super) fn age(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.0} h", seconds / 3600.0),
        seconds => format!("{:.0} d", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use model::catalog::TPU_HLO_QUEUE_SIZE;
    use proto::tpuscope::v1::{AbsenceStatus, series_value::Value};

    use super::*;

    #[test]
    fn remote_text_is_escaped_and_gaps_are_shown() {
        let status = StatusReply {
            host: "tpu\u{1b}[2J".into(),
            ready: true,
            chips: vec![ChipStatus {
                index: 0,
                name: "v6e".into(),
                hbm_total_bytes: Some(f64::from(1 << 30) * 32.0),
                state: "ok".into(),
                missing: "duty cycle: no process holds the chip".into(),
                ..Default::default()
            }],
            owners: vec![OwnerStatus { pid: 7, command: "evil\nname\u{7}".into(), ..Default::default() }],
            ..Default::default()
        };
        let page = page(&status, None, false);
        assert!(!page.contains('\u{1b}') && !page.contains('\u{7}'), "{page:?}");
        assert!(page.contains("evil\\nname"), "{page}");
        assert!(page.contains("0     v6e   ok     -     - / 32.0 GiB  -    free"), "{page}");
        assert!(page.contains("- chip 0: no duty cycle: no process holds the chip\n"), "{page}");
    }

    #[test]
    fn free_is_only_what_is_seen_to_be_free() {
        let owners = |state: &str, unknown: &str, owners: &[u32]| {
            chip_owners(&ChipStatus {
                state: state.into(),
                owners_unknown: unknown.into(),
                owners: owners.into(),
                ..Default::default()
            })
        };
        assert_eq!(owners("ok", "", &[]), "free");
        for state in ["absent", "fault", "unknown", ""] {
            assert_eq!(owners(state, "", &[]), "-", "{state}");
            assert_eq!(owners(state, "hidden", &[]), "unknown", "{state}");
        }
        assert_eq!(owners("ok", "hidden", &[]), "unknown");
        assert_eq!(owners("fault", "hidden", &[7, 8]), "7 8");
    }

    #[test]
    fn a_simulated_chip_is_neither_free_nor_has_a_state() {
        let chip = ChipStatus { name: "sim".into(), state: "ok".into(), index: 3, ..Default::default() };
        let status = StatusReply { chips: vec![chip], ..Default::default() };
        let text = page(&status, None, false);
        assert!(text.ends_with("\n3     sim   -      -     -    -    -\n"), "{text}");
    }

    #[test]
    fn chips_that_cannot_be_listed_are_not_said_to_be_absent() {
        let mut status = StatusReply { chips_unknown: "cannot list".into(), ..Default::default() };
        assert!(page(&status, None, false).ends_with("\n\nchips unknown: cannot list\n"));
        status.chips = vec![ChipStatus { name: "v6e".into(), state: "unknown".into(), ..Default::default() }];
        let text = page(&status, None, false);
        let headline = "\nchips unknown, these were there before: cannot list\n\nCHIP ";
        assert!(text.contains(headline) && text.contains("\n0     v6e   unknown "), "{text}");
    }

    #[test]
    fn sources_are_shown_when_they_fail_or_when_asked_for() {
        let failing =
            AbsenceStatus { what: "127.0.0.1:8431".into(), why: "hangs".into(), ..Default::default() };
        let lacking = AbsenceStatus { partial: true, ..failing.clone() };
        let source = |name: &str, absent: Vec<AbsenceStatus>| SourceStatus {
            source: name.into(),
            series: 1,
            absent,
            ..Default::default()
        };
        let sources = vec![source("runtime", vec![failing]), source("host", vec![lacking])];
        let mut status = StatusReply { sources, ..Default::default() };
        let quiet = page(&status, None, false);
        assert!(quiet.contains("\nruntime ") && !quiet.contains("\nhost "), "{quiet}");
        let all = page(&status, None, true);
        assert!(all.contains("\nruntime ") && all.contains("\nhost "), "{all}");
        status.sources.remove(0);
        assert!(page(&status, None, false).ends_with("\n\nno TPU chips on this host\n"));
    }

    #[test]
    fn wide_has_further_columns_between_the_usual_ones() {
        let queue = SeriesValue {
            metric: TPU_HLO_QUEUE_SIZE.name.to_string(),
            labels: [("chip".to_owned(), "0".to_owned())].into(),
            value: Some(Value::Gauge(4.0)),
            ..Default::default()
        };
        let chip = ChipStatus { name: "v6e".into(), state: "ok".into(), ..Default::default() };
        let text = page(&StatusReply { chips: vec![chip], ..Default::default() }, Some(&[queue]), false);
        let table = "CHIP  TYPE  STATE  DUTY  HBM  TENSORCORE  HBM BW  ICI  QUEUE  AGE  OWNERS\n\
                     0     v6e   ok     -     -    -           -       -    4      -    free\n";
        assert!(text.ends_with(table), "{text}");
    }

    #[test]
    fn ages_are_short() {
        assert_eq!(age(0.25), "0.2 s");
        assert_eq!(age(90.0), "90 s");
        assert_eq!(age(3600.0), "60 min");
        assert_eq!(age(86_400.0), "24 h");
        assert_eq!(age(400_000.0), "5 d");
    }
}
