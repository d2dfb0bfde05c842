//! `tpuscope goodput` of jobs on this host: asks the agent.

use std::path::Path;

use model::unit::Duration;
use proto::tpuscope::v1::{GoodputRequest, goodput_client::GoodputClient};
use server::protocol;

use goodput::time::Micros;

use super::{asked::AskedTime, live_text, tensorboard};
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
        self.proxy || self.explain || self.hosts.is_given()
    }

    /// Whether only the last time is asked for.
    pub(super) fn has_window(&self) -> bool {
        self.window.is_some()
    }

    /// Both ends of the time that is asked for, of which `now` is the end where no other one is; `None`: the whole job.
    pub(super) fn ends(&self, time: AskedTime, now: Micros) -> Option<(Micros, Micros)> {
        time.ends(self.window, now)
    }
}

/// The question, whichever hosts are asked.
#[derive(Debug, Clone)]
pub(super) struct LiveQuestion<'a> {
    pub(super) job: Option<&'a str>,
    /// The user whose job it is.
    pub(super) uid: Option<u32>,
    /// The attempt that `time` is of.
    pub(super) attempt: Option<u32>,
    pub(super) time: AskedTime,
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
            from_unix_ns: self.time.from.map(nanoseconds),
            until_unix_ns: self.time.until.map(nanoseconds),
            last_ns: last,
            with_states,
            uid: self.uid,
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
    let asked = args.ends(question.time, super::present());
    let reply = client::block_on(async {
        let mut goodput = GoodputClient::new(agent.connect().await?);
        client::within(client::CALL_TIMEOUT, goodput.ask(request)).await
    });
    let reply = reply.map_err(remedies::no_ledger)?.into_inner();
    if let ([job], Some((from, until))) = (&reply.jobs[..], asked)
        && job.elapsed_seconds == 0
        && !(from.0 + 1..until.0).contains(&job.until_unix_ns.div_euclid(1000))
    {
        // A ledger that lies in the time and has no second yet is young: that is no fault of the window.
        let edge = Micros(job.until_unix_ns.div_euclid(1000));
        let called = live_text::called(job, super::own_uid());
        return Err(remedies::window_without_second(&called, from, until, edge));
    }
    if question.json {
        output::json(&reply)?;
        return tensorboard::of_proxy(question.tensorboard, &reply);
    }
    if reply.jobs.is_empty() {
        output::print("no job of yours had a chip open on this host since the agent keeps ledgers\n")?;
        return Ok(Exit::Ok);
    }
    let of_attempt = question.attempt.map(|number| format!("attempt {number} of ")).unwrap_or_default();
    let pages =
        reply.jobs.iter().map(|job| live_text::page(job, &reply.host, super::own_uid(), args.explain));
    output::print(&(of_attempt + &pages.collect::<Vec<_>>().join("\n")))?;
    tensorboard::of_proxy(question.tensorboard, &reply)
}
