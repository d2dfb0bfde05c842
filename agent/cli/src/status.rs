//! `tpuscope status`.

#![expect(clippy::cast_precision_loss, reason = "figures for people, rounded when printed")]

use std::fmt::Write;

use proto::tpuscope::v1::{
    ChipStatus, JobIdentity, OwnerStatus, StatusReply, StatusRequest, host_client::HostClient,
};
use server::protocol;

use super::{
    CommandResult, client,
    exit::Exit,
    output::one_line,
    output::{self, TextTable},
};

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/status.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let status = client::block_on(async {
        let mut host = HostClient::new(args.agent.connect().await?);
        let request = StatusRequest { peer: Some(protocol::own()) };
        client::within(client::CALL_TIMEOUT, host.status(request)).await
    })?;
    let status = status.into_inner();
    if args.json {
        output::json(&status)?;
    } else {
        output::print(&page(&status))?;
    }
    Ok(Exit::Ok)
}

/// The status as text.
fn page(status: &StatusReply) -> String {
    let version = status.peer.as_ref().map(|peer| peer.version.as_str()).unwrap_or_default();
    let up = age((status.at_unix_ns.saturating_sub(status.started_unix_ns)) as f64 / 1e9);
    let state = if status.ready { "sampling" } else { "not sampling" };
    let mut text = format!("{}: agent {}, up {up}, {state}\n\n", one_line(&status.host), one_line(version));
    if status.chips.is_empty() {
        text.push_str("no TPU chips on this host\n");
    } else {
        text.push_str(&chips(status));
    }
    if !status.owners.is_empty() {
        text.push('\n');
        text.push_str(&owners(&status.owners));
    }
    text.push('\n');
    text.push_str(&sources(status));
    let remarks = remarks(status);
    if !remarks.is_empty() {
        text.push('\n');
    }
    for remark in remarks {
        let _ = writeln!(text, "- {}", one_line(&remark));
    }
    text
}

fn chips(status: &StatusReply) -> String {
    let mut table = TextTable::new(["CHIP", "TYPE", "STATE", "DUTY", "HBM", "AGE", "OWNERS"]);
    for chip in &status.chips {
        table.row([
            chip.index.to_string(),
            chip.name.clone(),
            chip.state.clone(),
            chip.duty_cycle.map_or_else(|| "-".into(), |duty| format!("{:.1}%", duty * 100.0)),
            hbm(chip),
            chip.age_seconds.map_or_else(|| "-".into(), age),
            chip_owners(chip),
        ]);
    }
    table.text()
}

/// The pids. `free` only where all processes were seen and the chip can be opened.
fn chip_owners(chip: &ChipStatus) -> String {
    match (&chip.owners[..], chip.owners_unknown.is_empty(), chip.state.as_str()) {
        ([], true, "ok") => "free".into(),
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
        "process" => format!("none{name}"),
        kind => format!("{kind} {}{name}", job.id),
    }
}

fn sources(status: &StatusReply) -> String {
    let mut table = TextTable::new(["SOURCE", "SERIES", "READ", "AGE", "READS", "ERRORS"]);
    for source in &status.sources {
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

/// The faults and the missing values, without repetition.
fn remarks(status: &StatusReply) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut add = |remark: String| {
        if !remarks.contains(&remark) {
            remarks.push(remark);
        }
    };
    for chip in &status.chips {
        chip.faults.iter().for_each(|fault| add(format!("chip {}: {fault}", chip.index)));
        if chip.owners.is_empty() && !chip.owners_unknown.is_empty() {
            add(format!("chip {}: owner unknown: {}", chip.index, chip.owners_unknown));
        }
        if !chip.missing.is_empty() {
            add(format!("chip {}: no {}", chip.index, chip.missing));
        }
    }
    for owner in &status.owners {
        owner.notes.iter().for_each(|note| add(format!("process {}: {note}", owner.pid)));
        for endpoint in &owner.endpoints {
            if let Some(why) = &endpoint.unreachable {
                add(format!("process {}: {} at {}: {why}", owner.pid, endpoint.kind, endpoint.address));
            }
        }
    }
    for source in &status.sources {
        for absent in &source.absent {
            add(format!("{}: {}: {}", source.source, absent.what, absent.why));
        }
    }
    status.notes.iter().for_each(|note| add(note.clone()));
    remarks
}

fn age(seconds: f64) -> String {
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
        let page = page(&status);
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
    fn ages_are_short() {
        assert_eq!(age(0.25), "0.2 s");
        assert_eq!(age(90.0), "90 s");
        assert_eq!(age(3600.0), "60 min");
        assert_eq!(age(86_400.0), "24 h");
        assert_eq!(age(400_000.0), "5 d");
    }
}
