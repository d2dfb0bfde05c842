//! What `tpuscope status` says below the tables: faults, missing values with their reasons, failures of sources with their
//! durations. Each reason once, with all that it concerns.

use indicatif::HumanBytes;
use proto::tpuscope::v1::{AbsenceStatus, ChipStatus, SourceStatus, StatusReply, UploadSummary};

use super::page::{age, between, chip_owners};

/// The most names of values in one remark, unless all are asked for.
const MOST_NAMES: usize = 4;

/// The remarks. With `verbose` also why a source has nothing to read, and all names.
pub(super) fn remarks(status: &StatusReply, verbose: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    for chip in &status.chips {
        remarks.extend(chip.faults.iter().map(|fault| format!("chip {}: {fault}", chip.index)));
    }
    remarks.extend(missing_values(&status.chips));
    remarks.extend(unseen_owners(&status.chips));
    for owner in &status.owners {
        // The reason may already stand behind what a chip lacks.
        let is_told = |remarks: &[String], reason: &str| remarks.iter().any(|told| told.contains(reason));
        for note in &owner.notes {
            let remark = format!("process {}: {note}", owner.pid);
            if !is_told(&remarks, &remark) {
                remarks.push(remark);
            }
        }
        for endpoint in &owner.endpoints {
            let Some(why) = &endpoint.unreachable else { continue };
            let reason = format!("{}: {why}", endpoint.address);
            if !is_told(&remarks, &reason) {
                remarks.push(format!("process {}: {} at {reason}", owner.pid, endpoint.kind));
            }
        }
    }
    for source in &status.sources {
        remarks.extend(failures(source, status.at_unix_ns, verbose));
        if verbose && !source.unused.is_empty() {
            remarks.push(format!("{}: nothing to read: {}", source.source, source.unused));
        }
    }
    remarks.extend(status.uploads.as_ref().and_then(uploads));
    remarks.extend(status.notes.iter().cloned());
    let mut once: Vec<String> = Vec::new();
    for remark in remarks {
        if !once.contains(&remark) {
            once.push(remark);
        }
    }
    once
}

/// The uploads that are not done.
fn uploads(uploads: &UploadSummary) -> Option<String> {
    let mut texts = Vec::new();
    if uploads.waiting > 0 {
        let (sent, bytes) = (HumanBytes(uploads.sent_bytes), HumanBytes(uploads.bytes));
        let count = match uploads.waiting {
            1 => "1 waits or runs".to_owned(),
            waiting => format!("{waiting} wait or run"),
        };
        let oldest = uploads.oldest_seconds.map(|oldest| format!(", the oldest for {}", age(oldest)));
        texts.push(format!("{count}: {sent} of {bytes} sent{}", oldest.unwrap_or_default()));
    }
    if uploads.failed > 0 {
        texts.push(format!("{} failed", uploads.failed));
    }
    if !uploads.failures.is_empty() {
        texts.push(format!(
            "failures: {}; `tpuscope uploads list` has the reasons",
            uploads.failures.join(", ")
        ));
    }
    (!texts.is_empty()).then(|| format!("uploads: {}", texts.join("; ")))
}

/// The values that chips lack.
fn missing_values(chips: &[ChipStatus]) -> Vec<String> {
    // What a chip with an unknown owner lacks has that reason, which is told once for all of them. The reason of a chip
    // that cannot be opened is its fault.
    let has_other_reason = |chip: &&ChipStatus| {
        let barred = chip.owners.is_empty() && matches!(chip.state.as_str(), "absent" | "fault");
        !barred && chip_owners(chip) != "unknown"
    };
    let lacking = chips.iter().filter(|chip| !chip.missing.is_empty()).filter(has_other_reason);
    let groups = grouped(lacking.map(|chip| (chip.missing.as_str(), chip.index.to_string())));
    groups.into_iter().map(|(missing, chips)| format!("chip {}: no {missing}", chips.join(", "))).collect()
}

/// The chips whose owners are unknown.
fn unseen_owners(chips: &[ChipStatus]) -> Vec<String> {
    let unseen = chips.iter().filter(|chip| chip_owners(chip) == "unknown");
    let groups = grouped(unseen.map(|chip| (chip.owners_unknown.as_str(), chip.index.to_string())));
    let remark = |(why, chips): (&str, Vec<String>)| {
        format!("chip {}: owner unknown, and with it what only its runtime has: {why}", chips.join(", "))
    };
    groups.into_iter().map(remark).collect()
}

/// What a source cannot read at all. Single values that an otherwise good source lacks are no trouble: where a chip lacks
/// them, it has its own remark.
pub(super) fn in_trouble(source: &SourceStatus) -> impl Iterator<Item = &AbsenceStatus> {
    source.absent.iter().filter(|absence| !absence.partial || source.series == 0)
}

/// What a source cannot read, and since when; with `verbose` also the single values.
fn failures(source: &SourceStatus, now_unix_ns: i64, verbose: bool) -> Vec<String> {
    let shown: Vec<_> = if verbose { source.absent.iter().collect() } else { in_trouble(source).collect() };
    let groups = grouped(shown.into_iter().map(|absence| (absence.why.as_str(), absence)));
    let remark = |(why, absent): (&str, Vec<&AbsenceStatus>)| {
        let shown = if verbose { absent.len() } else { absent.len().min(MOST_NAMES) };
        let mut names = absent[..shown].iter().map(|it| it.what.as_str()).collect::<Vec<_>>().join(", ");
        if shown < absent.len() {
            names.push_str(&format!(" and {} more", absent.len() - shown));
        }
        // Agents of 0.1 do not say it.
        let since = absent.iter().map(|it| it.since_unix_ns).filter(|&since| since > 0).min();
        let since =
            since.map(|since| format!(" (for {})", age(between(since, now_unix_ns)))).unwrap_or_default();
        let of_source = if names == source.source { String::new() } else { format!("{names}: ") };
        format!("{}: {of_source}{why}{since}", source.source)
    };
    groups.into_iter().map(remark).collect()
}

/// The items by their reasons, both in the order in which they come.
fn grouped<'a, T>(items: impl Iterator<Item = (&'a str, T)>) -> Vec<(&'a str, Vec<T>)> {
    let mut groups: Vec<(&str, Vec<T>)> = Vec::new();
    for (reason, item) in items {
        match groups.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, items)) => items.push(item),
            None => groups.push((reason, vec![item])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::{EndpointStatus, OwnerStatus};

    use super::*;

    #[test]
    fn one_reason_for_many_chips_is_told_once() {
        let chip = |index: u32, state: &str, unknown: &str, missing: &str| ChipStatus {
            index,
            state: state.into(),
            owners_unknown: unknown.into(),
            missing: missing.into(),
            ..Default::default()
        };
        let lost = "duty cycle: its owner is unknown";
        let mut chips = vec![
            chip(0, "ok", "hidden", lost),
            chip(1, "ok", "no node", lost),
            chip(2, "ok", "hidden", lost),
            chip(3, "ok", "", "duty cycle: idle"),
            chip(4, "ok", "", "duty cycle: idle"),
            chip(5, "absent", "", "duty cycle: node is absent"),
        ];
        chips[5].faults = vec!["node is absent".into()];
        let remarks = remarks(&StatusReply { chips, ..Default::default() }, false);
        let unknown = |chips: &str, why: &str| {
            format!("chip {chips}: owner unknown, and with it what only its runtime has: {why}")
        };
        let expected = [
            "chip 5: node is absent".into(),
            "chip 3, 4: no duty cycle: idle".into(),
            unknown("0, 2", "hidden"),
            unknown("1", "no node"),
        ];
        assert_eq!(remarks, expected);
    }

    #[test]
    fn a_reason_of_a_chip_and_its_process_is_told_once() {
        let (off, gone) = ("its metric service is off", "it listens in another network namespace");
        let address = "127.0.0.1:8431";
        let chip = |index: u32, missing: String| ChipStatus {
            index,
            state: "ok".into(),
            missing,
            owners: vec![7],
            ..Default::default()
        };
        let owner = |pid: u32, notes: &[&str]| OwnerStatus {
            pid,
            notes: notes.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let unreachable = EndpointStatus {
            kind: "runtime_metrics".into(),
            address: address.into(),
            unreachable: Some(gone.into()),
            ..Default::default()
        };
        let status = StatusReply {
            chips: vec![
                chip(0, format!("duty cycle: process 7: {off}")),
                chip(1, format!("duty cycle: {address}: {gone}")),
            ],
            owners: vec![
                owner(7, &[off, "it is a fork of process 6"]),
                OwnerStatus { endpoints: vec![unreachable], ..owner(8, &[]) },
                // Of another process it is told.
                owner(9, &[off]),
            ],
            ..Default::default()
        };
        let expected = [
            format!("chip 0: no duty cycle: process 7: {off}"),
            format!("chip 1: no duty cycle: {address}: {gone}"),
            "process 7: it is a fork of process 6".to_owned(),
            format!("process 9: {off}"),
        ];
        assert_eq!(remarks(&status, false), expected);
    }

    #[test]
    fn a_failure_has_its_duration_and_an_unused_source_is_no_failure() {
        const MINUTE: i64 = 60_000_000_000;
        let absence = |what: &str, why: &str, minute: i64, partial: bool| AbsenceStatus {
            what: what.into(),
            why: why.into(),
            since_unix_ns: minute * MINUTE,
            partial,
        };
        let no_value = |name: &str| absence(&format!("{name} of 127.0.0.1:8431"), "it has no value", 5, true);
        let source = |name: &str, absent: Vec<AbsenceStatus>, unused: &str| SourceStatus {
            source: name.into(),
            absent,
            unused: unused.into(),
            ..Default::default()
        };
        let mut absent = vec![absence("127.0.0.1:8432", "no answer within 500 ms", 8, false)];
        absent.extend(["a", "b", "c", "d", "e"].map(no_value));
        let mut status = StatusReply {
            at_unix_ns: 20 * MINUTE,
            sources: vec![
                SourceStatus { series: 1, ..source("runtime", absent, "") },
                source("host", Vec::new(), ""),
                source("libtpu", vec![absence("libtpu", "killed", 19, false)], ""),
                // Of an agent of 0.1.
                source("host_service", vec![absence("host_service", "no answer", 0, false)], ""),
                source("orbax_grain", Vec::new(), "no workload opens the endpoint"),
            ],
            ..Default::default()
        };
        let hung = "runtime: 127.0.0.1:8432: no answer within 500 ms (for 12 min)";
        let of_libtpu = "libtpu: killed (for 60 s)";
        let of_older = "host_service: no answer";
        assert_eq!(remarks(&status, false), [hung, of_libtpu, of_older]);
        let all = remarks(&status, true);
        assert_eq!(all[0], hung);
        assert!(all[1].ends_with(", e of 127.0.0.1:8431: it has no value (for 15 min)"), "{all:?}");
        assert_eq!(
            all[2..],
            [of_libtpu, of_older, "orbax_grain: nothing to read: no workload opens the endpoint"]
        );
        // A source without any value is in trouble for the same reasons.
        status.sources[0].series = 0;
        let quiet = remarks(&status, false);
        assert!(
            quiet[1].ends_with("d of 127.0.0.1:8431 and 1 more: it has no value (for 15 min)"),
            "{quiet:?}"
        );
    }
}
