//! `tpuscope jobs list`.

use model::time::{Clock, SystemClock, Timestamp};
use proto::tpuscope::v1::{
    AttemptStatus, JobStatus, ListJobsReply, ListJobsRequest, jobs_client::JobsClient,
};
use server::protocol;

use super::{
    list_hosts,
    row::{self, JobRow},
};
use crate::{
    CommandResult, client,
    exit::Exit,
    hosts::HostsArgs,
    output::{self, TextTable},
};

/// The heads of [`cells`].
pub(super) const HEADS: [&str; 8] =
    ["JOB", "ATTEMPT", "STATE", "NAME", "USER", "CHIPS", "START (UTC)", "LASTED"];

/// Jobs that are listed without `--limit`, and with it.
const LIMIT: u32 = 100;
const MOST: u32 = 1000;

/// Arguments of `jobs list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only those that run
    #[arg(long)]
    running: bool,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = LIMIT, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)))]
    limit: u32,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/jobs-list.schema.json; of other hosts jobs-list-hosts.schema.json)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hosts: HostsArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let request = ListJobsRequest { peer: Some(protocol::own()), limit: args.limit, running: args.running };
    if args.hosts.is_given() {
        return list_hosts::run(&args.hosts, request, args.json);
    }
    let reply = client::block_on(async {
        let mut jobs = JobsClient::new(args.agent.connect().await?);
        client::within(client::CALL_TIMEOUT, jobs.list(request)).await
    })?;
    let ListJobsReply { jobs, more, .. } = reply.into_inner();
    if args.json {
        let jobs: Vec<JobRow> = jobs.iter().map(JobRow::from).collect();
        output::json(&serde_json::json!({ "jobs": jobs, "more": more }))?;
    } else if jobs.is_empty() {
        output::print(if args.running {
            "no job runs on this host\n"
        } else {
            "no job was seen on this host\n"
        })?;
    } else {
        output::print(&page(&jobs, more, SystemClock.now()))?;
    }
    Ok(Exit::Ok)
}

fn page(jobs: &[JobStatus], more: bool, now: Timestamp) -> String {
    let mut table = TextTable::new(HEADS);
    jobs.iter().flat_map(|job| rows(job, now)).for_each(|cells| table.row(cells));
    let note = if more { format!("\n{}\n", more_than(jobs.len())) } else { String::new() };
    table.text() + &note
}

/// The list has not all jobs.
pub(super) fn more_than(listed: usize) -> String {
    format!("these are the newest {listed}, and more are known: --limit N lists at most {MOST}")
}

/// A job as rows of a table: its newest attempt, and older ones that run beside it.
pub(super) fn rows(job: &JobStatus, now: Timestamp) -> Vec<[String; 8]> {
    match &job.attempts[..] {
        [] => vec![cells(job, None, now)],
        attempts => attempts.iter().rev().map(|attempt| cells(job, Some(attempt), now)).collect(),
    }
}

fn cells(job: &JobStatus, attempt: Option<&AttemptStatus>, now: Timestamp) -> [String; 8] {
    let cell = |text: Option<String>| text.unwrap_or_default();
    [
        row::job_name(job),
        cell(attempt.map(|attempt| attempt.attempt.to_string())),
        attempt.map_or_else(|| job.state.clone(), row::state),
        job.name.clone(),
        row::user(job),
        row::chips(attempt.map_or(&job.chips, |attempt| &attempt.chips)),
        cell(attempt.and_then(|attempt| attempt.start_unix_ns).map(row::instant)),
        cell(attempt.and_then(|attempt| row::lasted(attempt, now))),
    ]
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::JobKey;

    use super::*;

    #[test]
    fn a_job_of_another_user_has_its_state_and_chips() {
        let key = |id: &str| Some(JobKey { kind: "slurm".into(), id: id.into(), ..JobKey::default() });
        let attempt = |attempt, chips: [u32; 2]| AttemptStatus {
            attempt,
            state: "running".into(),
            start_unix_ns: Some(0),
            chips: chips.into(),
            ..AttemptStatus::default()
        };
        let own = JobStatus {
            key: key("12"),
            state: "running".into(),
            name: "train".into(),
            user: "ada".into(),
            chips: vec![0, 1, 2, 3],
            attempts: vec![attempt(1, [2, 3]), attempt(2, [0, 1])],
            ..JobStatus::default()
        };
        let key = Some(JobKey { uid: 1007, ..key("13").unwrap() });
        let other = JobStatus { key, is_private: true, state: "ended".into(), ..JobStatus::default() };
        let text = page(&[own, other], true, Timestamp(3_723_000_000_000));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..6], ["slurm:12", "2", "running", "train", "ada", "0,1"]);
        assert_eq!(lines[1][6..], ["1970-01-01T00:00:00Z", "1h", "02m"]);
        assert_eq!(lines[2][..6], ["slurm:12", "1", "running", "train", "ada", "2,3"]);
        assert_eq!(lines[3], ["slurm:13", "-", "ended", "-", "1007", "-", "-", "-"]);
        assert!(
            text.ends_with("\n\nthese are the newest 2, and more are known: --limit N lists at most 1000\n")
        );
    }
}
