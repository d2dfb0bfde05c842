//! `tpuscope status`: asks the agent, once or every second, and selects what the arguments name; or asks many hosts once.

mod many;
mod page;
mod remarks;
mod screen;
mod steps;
mod wide;

use std::time::Duration;

use proto::tpuscope::v1::{SamplesRequest, StatusReply, StatusRequest, host_client::HostClient};
use server::protocol;
use tokio::time::MissedTickBehavior;
use tonic::transport::Channel;

use self::{page::page, screen::Screen};
use super::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    hosts::{HostsArgs, WHICH},
    output, remedies,
};

/// The time between two pages of `--watch`.
const REFRESH: Duration = Duration::from_secs(1);

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Show only this chip and the processes that use it
    #[arg(long, value_name = "N", conflicts_with = WHICH)]
    chip: Option<u32>,
    /// Show only this process and the chips that it uses
    #[arg(long, value_name = "PID", conflicts_with = WHICH)]
    pid: Option<u32>,
    /// Further columns and rows: wide adds TensorCore, HBM bandwidth and ICI utilization, queues and throttling
    #[arg(short, long, value_name = "FORMAT", conflicts_with_all = ["json", WHICH])]
    output: Option<Format>,
    /// Show all sources, also those that work and those that have nothing to read
    #[arg(short, long, conflicts_with = WHICH)]
    verbose: bool,
    /// Show the status again every second until Ctrl-C: in place on a terminal, page after page elsewhere
    #[arg(short, long, conflicts_with_all = ["json", WHICH])]
    watch: bool,
    /// Print JSON (docs/schemas/status.schema.json; of other hosts status-hosts.schema.json)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hosts: HostsArgs,
}

/// The formats of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// With further columns
    Wide,
}

pub(super) fn run(args: &Args) -> CommandResult {
    if args.hosts.is_given() {
        if args.agent.is_given() {
            return Err(remedies::socket_of_another_host());
        }
        return many::run(&args.hosts, args.json);
    }
    client::block_on(async {
        let mut host = HostClient::new(args.agent.connect().await?);
        if args.watch { watch(args, &mut host).await } else { output::print(&answer(args, &mut host).await?) }
    })?;
    Ok(Exit::Ok)
}

/// Shows the status until it cannot be had any more, or nobody reads it.
async fn watch(args: &Args, host: &mut HostClient<Channel>) -> Result<(), Failure> {
    let screen = Screen::of_output();
    let mut due = tokio::time::interval(REFRESH);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let page = answer(args, host).await?;
        if !output::print_more(&screen.next(page))? {
            return Ok(());
        }
    }
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
            let request = SamplesRequest { peer: Some(protocol::own()), metrics: wide::metrics() };
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
            return Err(remedies::no_owner(pid));
        }
        status.chips.retain(|chip| chip.owners.contains(&pid));
        status.steps.retain(|steps| steps.pids.contains(&pid));
    }
    if let Some(index) = args.chip {
        let known: Vec<u32> = status.chips.iter().map(|chip| chip.index).collect();
        status.chips.retain(|chip| chip.index == index);
        if status.chips.is_empty() {
            return Err(remedies::no_chip(index, args.pid, &known));
        }
        status.owners.retain(|owner| owner.chips.contains(&index));
        let shown = |pid: &u32| status.owners.iter().any(|owner| owner.pid == *pid);
        status.steps.retain(|steps| steps.pids.iter().any(shown));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proto::tpuscope::v1::{ChipStatus, OwnerStatus};

    use super::*;

    #[derive(Debug, Parser)]
    struct OneCommand {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn one_chip_or_one_process_can_be_selected() {
        let chip = |index, owners| ChipStatus { index, owners, ..Default::default() };
        let owner = |pid, chips| OwnerStatus { pid, chips, ..Default::default() };
        let selected = |arguments: &str| {
            let mut status = StatusReply {
                chips: vec![chip(0, vec![7]), chip(1, vec![7, 8]), chip(2, Vec::new())],
                owners: vec![owner(7, vec![0, 1]), owner(8, vec![1])],
                ..Default::default()
            };
            let words = ["status"].into_iter().chain(arguments.split_whitespace());
            select(&OneCommand::parse_from(words).args, &mut status).map_err(|failure| failure.what)?;
            let chips: Vec<_> = status.chips.iter().map(|chip| chip.index).collect();
            Ok::<_, String>((chips, status.owners.iter().map(|owner| owner.pid).collect::<Vec<_>>()))
        };
        assert_eq!(selected(""), Ok((vec![0, 1, 2], vec![7, 8])));
        assert_eq!(selected("--chip 0"), Ok((vec![0], vec![7])));
        assert_eq!(selected("--chip 2"), Ok((vec![2], vec![])));
        assert_eq!(selected("--pid 8"), Ok((vec![1], vec![8])));
        assert_eq!(selected("--pid 7 --chip 1"), Ok((vec![1], vec![7])));
        assert_eq!(selected("--chip 0 --pid 8"), Err("there is no chip 0 that process 8 uses".into()));
        assert_eq!(selected("--chip 9"), Err("there is no chip 9".into()));
        assert_eq!(selected("--pid 9"), Err("no chip of this host is known to be used by process 9".into()));
    }

    #[test]
    fn json_takes_no_option_of_the_text() {
        for option in ["--watch", "--output=wide"] {
            let refused = OneCommand::try_parse_from(["status", "--json", option]);
            assert!(refused.is_err(), "{option}");
        }
        for wrong in ["--chip=-1", "--pid=abc", "--output=narrow"] {
            assert!(OneCommand::try_parse_from(["status", wrong]).is_err(), "{wrong}");
        }
    }
}
