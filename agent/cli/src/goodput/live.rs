//! `tpuscope goodput` of jobs on this host: asks the agent.

use std::path::Path;

use model::unit::Duration;
use proto::tpuscope::v1::{GoodputRequest, goodput_client::GoodputClient};
use server::protocol;

use goodput::time::Micros;

use super::{live_text, tensorboard};
use crate::{
    CommandResult, client,
    exit::Exit,
    hosts::{HostsArgs, some_time},
    output, remedies,
};

/// What concerns jobs on hosts with an agent only.
#[derive(Debug, clap::Args)]
pub(super) struct LiveArgs {
    /// Only the last TIME, such as 1h
    #[arg(long, value_name = "TIME", value_parser = some_time, conflicts_with_all = ["start", "end", "from_log", "from_slots"])]
    window: Option<Duration>,
    /// Answer from duty cycles, open chips and the metrics of Orbax and Grain [default for a job without marks]
    #[arg(long, conflicts_with_all = ["exact", "strict", "from_log", "from_slots"])]
    proxy: bool,
    /// Show the three largest losses: when, which chips, what says so, and what to do
    #[arg(long, conflicts_with_all = ["from_log", "from_slots"])]
    explain: bool,
    #[command(flatten)]
    hosts: HostsArgs,
}

impl LiveArgs {
    /// Whether only the agent's own ledger can answer.
    pub(super) fn is_asked_for(&self) -> bool {
        self.window.is_some() || self.proxy || self.explain || self.hosts.is_given()
    }
}

/// The question, whichever hosts are asked.
#[derive(Debug, Clone)]
pub(super) struct LiveQuestion<'a> {
    pub(super) job: Option<&'a str>,
    /// The window from a time to another one.
    pub(super) range: Option<(Micros, Micros)>,
    pub(super) json: bool,
    /// Where an event file is wanted.
    pub(super) tensorboard: Option<&'a Path>,
}

impl LiveQuestion<'_> {
    fn request(&self, args: &LiveArgs, with_states: bool) -> GoodputRequest {
        let nanoseconds = |at: Micros| at.0.saturating_mul(1000);
        let last = args.window.map(|window| u64::try_from(window.get().as_nanos()).unwrap_or(u64::MAX));
        GoodputRequest {
            peer: Some(protocol::own()),
            job: self.job.unwrap_or_default().to_owned(),
            from_unix_ns: self.range.map(|range| nanoseconds(range.0)),
            until_unix_ns: self.range.map(|range| nanoseconds(range.1)),
            last_ns: last,
            with_states,
        }
    }
}

/// Answers of the agents' ledgers.
pub(super) fn run(args: &LiveArgs, agent: &client::SocketArgs, question: &LiveQuestion<'_>) -> CommandResult {
    if args.hosts.is_given() {
        let request = question.request(args, true);
        return super::live_hosts::run(&args.hosts, request, args.explain, question.json);
    }
    let request = question.request(args, false);
    let reply = client::block_on(async {
        let mut goodput = GoodputClient::new(agent.connect().await?);
        client::within(client::CALL_TIMEOUT, goodput.ask(request)).await
    });
    let reply = reply.map_err(remedies::no_ledger)?.into_inner();
    if question.json {
        output::json(&reply)?;
        return tensorboard::of_proxy(question.tensorboard, &reply);
    }
    if reply.jobs.is_empty() {
        output::print("no job of yours had a chip open on this host since the agent keeps ledgers\n")?;
        return Ok(Exit::Ok);
    }
    let pages = reply.jobs.iter().map(|job| live_text::page(job, &reply.host, args.explain));
    output::print(&pages.collect::<Vec<_>>().join("\n"))?;
    tensorboard::of_proxy(question.tensorboard, &reply)
}
