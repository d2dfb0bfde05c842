//! `tpuscope status`.

mod wide;

use std::{
    fmt::Write,
    io::{IsTerminal, stdout},
    time::Duration,
};

use proto::tpuscope::v1::{
    ChipStatus, JobIdentity, OwnerStatus, SamplesRequest, SeriesValue, SourceStatus, StatusReply,
    StatusRequest, host_client::HostClient,
};
use server::protocol;
use tonic::transport::Channel;

use super::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    output::one_line,
    output::{self, TextTable},
};

/// The time between two pages of `--watch`.
const REFRESH: Duration = Duration::from_secs(1);

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Show only this chip and the processes that use it
    #[arg(long, value_name = "N")]
    chip: Option<u32>,
    /// Show only this process and its chips
    #[arg(long)]
    pid: Option<u32>,
    /// Format of the text: wide adds TensorCore and HBM bandwidth utilization, ICI, queues and throttling
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "json")]
    output: Option<Format>,
    /// Show all sources, also those that work and those that have nothing to read
    #[arg(short, long)]
    verbose: bool,
    /// Show the status again every second until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Print JSON (docs/schemas/status.schema.json)
    #[arg(long)]
    json: bool,
}

/// The formats of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// With further columns
    Wide,
}

pub(super) fn run(args: &Args) -> CommandResult {
    client::block_on(async {
        let mut host = HostClient::new(args.agent.connect().await?);
        if !args.watch {
            return output::print(&answer(args, &mut host).await?);
        }
        let in_place = stdout().is_terminal();
        let mut due = tokio::time::interval(REFRESH);
        loop {
            due.tick().await;
            let page = answer(args, &mut host).await?;
            if !output::print_more(&if in_place { over_the_last(&page) } else { page + "\n" })? {
                return Ok(());
            }
        }
    })?;
    Ok(Exit::Ok)
}

/// The status as the arguments want it.
async fn answer(args: &Args, host: &mut HostClient<Channel>) -> Result<String, Failure> {
    let request = StatusRequest { peer: Some(protocol::own()) };
    let mut status = client::within(client::CALL_TIMEOUT, host.status(request)).await?.into_inner();
    select(args, &mut status)?;
    if args.json {
        return output::json_text(&status);
    }
    let samples = match args.output {
        None => None,
        Some(Format::Wide) => {
            let request = SamplesRequest { peer: Some(protocol::own()), metrics: Vec::new() };
            Some(client::within(client::CALL_TIMEOUT, host.samples(request)).await?.into_inner().samples)
        }
    };
    Ok(page(&status, samples.as_deref(), args.verbose))
}

/// Leaves only the chip and the process of the arguments.
fn select(args: &Args, status: &mut StatusReply) -> Result<(), Failure> {
    if let Some(pid) = args.pid {
        status.owners.retain(|owner| owner.pid == pid);
        if status.owners.is_empty() {
            let what = format!("process {pid} uses no chip of this host, as far as the agent can see");
            return Err(Failure::new(Exit::NotFound, what)
                .remedy("`tpuscope status` lists the processes that use chips"));
        }
        status.chips.retain(|chip| chip.owners.contains(&pid));
    }
    if let Some(index) = args.chip {
        status.chips.retain(|chip| chip.index == index);
        if status.chips.is_empty() {
            let user = args.pid.map_or_else(String::new, |pid| format!(" that process {pid} uses"));
            return Err(Failure::new(Exit::NotFound, format!("there is no chip {index}{user}"))
                .remedy("`tpuscope status` lists the chips"));
        }
        status.owners.retain(|owner| owner.chips.contains(&index));
    }
    Ok(())
}

/// A page that replaces the one on the terminal: each line is cleared behind its text, so that nothing flickers.
fn over_the_last(page: &str) -> String {
    let lines: String = page.lines().map(|line| format!("{line}\x1b[K\n")).collect();
    format!("\x1b[H{lines}\x1b[J")
}

/// The status as text.
fn page(status: &StatusReply, samples: Option<&[SeriesValue]>, verbose: bool) -> String {
    let version = status.peer.as_ref().map(|peer| peer.version.as_str()).unwrap_or_default();
    let up = age((status.at_unix_ns.saturating_sub(status.started_unix_ns)) as f64 / 1e9);
    let state = if status.ready { "sampling" } else { "not sampling" };
    let mut text = format!("{}: agent {}, up {up}, {state}\n\n", one_line(&status.host), one_line(version));
    if status.chips.is_empty() {
        text.push_str("no TPU chips on this host\n");
    } else {
        text.push_str(&chips(status));
        if let Some(samples) = samples {
            text.push('\n');
            text.push_str(&wide::text(&status.chips, samples));
        }
    }
    if !status.owners.is_empty() {
        text.push('\n');
        text.push_str(&owners(&status.owners));
    }
    let shown: Vec<_> = status.sources.iter().filter(|it| verbose || !it.absent.is_empty()).collect();
    if !shown.is_empty() {
        text.push('\n');
        text.push_str(&sources(&shown));
    }
    let remarks = remarks(status, verbose);
    if !remarks.is_empty() {
        text.push('\n');
    }
    for remark in remarks {
        let _ = writeln!(text, "- {}", one_line(&remark));
    }
    text
}

/// The name of a simulated chip.
const SIMULATED: &str = "sim";

fn chips(status: &StatusReply) -> String {
    let mut table = TextTable::new(["CHIP", "TYPE", "DUTY", "HBM", "AGE", "OWNERS"]);
    for chip in &status.chips {
        table.row([
            chip.index.to_string(),
            chip.name.clone(),
            chip.duty_cycle.map_or_else(|| "-".into(), |duty| format!("{:.1}%", duty * 100.0)),
            hbm(chip),
            chip.age_seconds.map_or_else(|| "-".into(), age),
            if chip.name == SIMULATED {
                "-".into()
            } else if chip.owners.is_empty() {
                "free".into()
            } else {
                chip.owners.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
            },
        ]);
    }
    table.text()
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

/// The faults and the missing values, without repetition.
fn remarks(status: &StatusReply, verbose: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut add = |remark: String| {
        if !remarks.contains(&remark) {
            remarks.push(remark);
        }
    };
    for chip in &status.chips {
        chip.faults.iter().for_each(|fault| add(format!("chip {}: {fault}", chip.index)));
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
            let since = status.at_unix_ns.saturating_sub(absent.since_unix_ns).max(0) as f64 / 1e9;
            add(format!("{}: {}: {} (for {})", source.source, absent.what, absent.why, age(since)));
        }
        if verbose && !source.unused.is_empty() {
            add(format!("{}: nothing to read: {}", source.source, source.unused));
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
    use clap::Parser;
    use proto::tpuscope::v1::AbsenceStatus;

    use super::*;

    #[derive(Parser)]
    struct OneCommand {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn remote_text_is_escaped_and_gaps_are_shown() {
        let status = StatusReply {
            host: "tpu\u{1b}[2J".into(),
            ready: true,
            chips: vec![ChipStatus {
                index: 0,
                name: "v6e".into(),
                hbm_total_bytes: Some(f64::from(1 << 30) * 32.0),
                missing: "duty cycle: no process holds the chip".into(),
                ..Default::default()
            }],
            owners: vec![OwnerStatus { pid: 7, command: "evil\nname\u{7}".into(), ..Default::default() }],
            ..Default::default()
        };
        let page = page(&status, None, false);
        assert!(!page.contains('\u{1b}') && !page.contains('\u{7}'), "{page:?}");
        assert!(page.contains("evil\\nname"), "{page}");
        assert!(page.contains("0     v6e   -     - / 32.0 GiB  -    free"), "{page}");
        assert!(page.contains("- chip 0: no duty cycle: no process holds the chip\n"), "{page}");
    }

    #[test]
    fn sources_are_shown_when_they_fail_or_when_asked_for() {
        let failing = AbsenceStatus {
            what: "127.0.0.1:8431".into(),
            why: "the read was cancelled after 5 s".into(),
            since_unix_ns: 40_000_000_000,
        };
        let source = |name: &str, absent: Vec<AbsenceStatus>, unused: &str| SourceStatus {
            source: name.into(),
            absent,
            unused: unused.into(),
            ..Default::default()
        };
        let status = StatusReply {
            at_unix_ns: 100_000_000_000,
            sources: vec![
                source("runtime", vec![failing], ""),
                source("host", Vec::new(), ""),
                source("orbax_grain", Vec::new(), "no workload opens the endpoint"),
            ],
            ..Default::default()
        };
        let quiet = page(&status, None, false);
        assert!(
            quiet.contains("\nruntime ") && !quiet.contains("host ") && !quiet.contains("orbax"),
            "{quiet}"
        );
        let failure = "- runtime: 127.0.0.1:8431: the read was cancelled after 5 s (for 60 s)\n";
        assert!(quiet.contains(failure), "{quiet}");
        let all = page(&status, None, true);
        assert!(all.contains("\nhost ") && all.contains(failure), "{all}");
        assert!(all.contains("- orbax_grain: nothing to read: no workload opens the endpoint\n"), "{all}");
        let healthy = StatusReply { sources: status.sources[1..].to_vec(), ..status };
        assert!(page(&healthy, None, false).ends_with("no TPU chips on this host\n"));
    }

    #[test]
    fn one_chip_or_one_process_can_be_selected() {
        let chip = |index, owners| ChipStatus { index, owners, ..Default::default() };
        let owner = |pid, chips| OwnerStatus { pid, chips, ..Default::default() };
        let selected = |chip_index, pid| {
            let mut status = StatusReply {
                chips: vec![chip(0, vec![7]), chip(1, vec![7, 8]), chip(2, Vec::new())],
                owners: vec![owner(7, vec![0, 1]), owner(8, vec![1])],
                ..Default::default()
            };
            let words = ["status"].map(str::to_owned).into_iter().chain(
                [("--chip", chip_index), ("--pid", pid)]
                    .into_iter()
                    .filter_map(|(flag, value): (&str, Option<u32>)| Some(format!("{flag}={}", value?))),
            );
            let args = OneCommand::parse_from(words).args;
            select(&args, &mut status).map_err(|failure| failure.what)?;
            let chips: Vec<_> = status.chips.iter().map(|chip| chip.index).collect();
            Ok::<_, String>((chips, status.owners.iter().map(|owner| owner.pid).collect::<Vec<_>>()))
        };
        assert_eq!(selected(None, None), Ok((vec![0, 1, 2], vec![7, 8])));
        assert_eq!(selected(Some(0), None), Ok((vec![0], vec![7])));
        assert_eq!(selected(Some(2), None), Ok((vec![2], vec![])));
        assert_eq!(selected(None, Some(8)), Ok((vec![1], vec![8])));
        assert_eq!(selected(Some(0), Some(8)), Err("there is no chip 0 that process 8 uses".into()));
        assert_eq!(selected(Some(9), None), Err("there is no chip 9".into()));
        assert!(selected(None, Some(9)).is_err());
    }

    #[test]
    fn a_page_replaces_the_last_one() {
        assert_eq!(over_the_last("a\nb\n"), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
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
