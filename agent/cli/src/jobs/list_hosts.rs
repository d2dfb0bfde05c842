//! `tpuscope jobs list --hosts` and its like: the jobs of many hosts in one table, and a row with the reason for each host
//! that does not answer.

use model::time::{Clock, SystemClock, Timestamp};
use proto::tpuscope::v1::{ListJobsReply, ListJobsRequest, jobs_client::JobsClient};
use serde::Serialize;

use super::{list, row::JobRow};
use crate::{
    CommandResult, client,
    hosts::{HostAnswer, HostsArgs, NoHostAnswer, ask_all, each_agent_once, report},
    output::{self, TextTable},
};

type Answers = [HostAnswer<ListJobsReply>];

pub(super) fn run(args: &HostsArgs, request: ListJobsRequest, json: bool) -> CommandResult {
    let mut answers = client::block_on(ask_all(args, move |channel| {
        let request = request.clone();
        async move { Ok(JobsClient::new(channel).list(request).await?.into_inner()) }
    }))?;
    each_agent_once(&mut answers, |reply| reply.peer.as_ref());
    if json {
        output::json(&HostsJobs::of(&answers))?;
    } else {
        output::print(&page(&answers, SystemClock.now()))?;
    }
    Ok(report::exit(&answers))
}

/// As JSON.
#[derive(Serialize)]
struct HostsJobs<'a> {
    hosts: Vec<JobsOfHost<'a>>,
    /// How many have no answer.
    missing: usize,
}

#[derive(Serialize)]
struct JobsOfHost<'a> {
    host: String,
    jobs: Option<Vec<JobRow>>,
    /// Whether it knows more than these.
    more: bool,
    missing: Option<&'a NoHostAnswer>,
}

impl<'a> HostsJobs<'a> {
    fn of(answers: &'a Answers) -> Self {
        let of_host = |host: &'a HostAnswer<ListJobsReply>| JobsOfHost {
            host: host.host.to_string(),
            jobs: host.answer.as_ref().ok().map(|reply| reply.jobs.iter().map(JobRow::from).collect()),
            more: host.answer.as_ref().is_ok_and(|reply| reply.more),
            missing: host.answer.as_ref().err(),
        };
        Self { hosts: answers.iter().map(of_host).collect(), missing: report::missing_count(answers) }
    }
}

fn page(answers: &Answers, now: Timestamp) -> String {
    let jobs = answers.iter().filter_map(|host| host.answer.as_ref().ok()).map(|reply| reply.jobs.len());
    let mut text = format!("{}; {}\n\n", report::asked(answers), report::count(jobs.sum(), "job"));
    let mut table = TextTable::new(row("HOST", list::HEADS, "NOTE"));
    for HostAnswer { host, answer } in answers {
        let host = host.to_string();
        match answer {
            Ok(reply) => {
                let cells = reply.jobs.iter().flat_map(|job| list::rows(job, now));
                cells.for_each(|cells| table.row(row(host.clone(), cells, String::new())));
            }
            Err(missing) => {
                let [id, attempt, _, rest @ ..] = [const { String::new() }; list::HEADS.len()];
                let [name, user, chips, start, lasted] = rest;
                let cells = [id, attempt, "no answer".to_owned(), name, user, chips, start, lasted];
                table.row(row(host, cells, missing.reason.clone()));
            }
        }
    }
    text.push_str(&table.text());
    for HostAnswer { host, answer } in answers {
        if let Ok(reply) = answer
            && reply.more
        {
            text.push_str(&format!("\n{host}: {}\n", list::more_than(reply.jobs.len())));
        }
    }
    text + &report::remarks(answers)
}

/// The cells of a job beside its host and what is to say about it.
fn row<T>(host: T, cells: [T; list::HEADS.len()], note: T) -> [T; list::HEADS.len() + 2] {
    let [id, attempt, state, name, user, chips, start, lasted] = cells;
    [host, id, attempt, state, name, user, chips, start, lasted, note]
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::{JobKey, JobStatus};

    use super::*;

    #[test]
    fn jobs_stand_with_their_host_and_a_host_without_an_answer_with_the_reason() {
        let key = JobKey { kind: "run".into(), id: "train".into(), ..JobKey::default() };
        let job = JobStatus { key: Some(key), state: "running".into(), ..JobStatus::default() };
        let reply = ListJobsReply { jobs: vec![job.clone(), job], ..ListJobsReply::default() };
        let answered = HostAnswer { host: "a".parse().unwrap(), answer: Ok(reply) };
        let missing = NoHostAnswer { kind: "lost", reason: "gone".into(), remedy: "try again".into() };
        let silent = HostAnswer { host: "b".parse().unwrap(), answer: Err(missing) };
        let answers = [answered, silent];
        let text = page(&answers, Timestamp(0));
        assert!(text.starts_with("2 hosts, 1 without an answer; 2 jobs\n\n"), "{text}");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[3][..4], ["a", "run:train", "-", "running"]);
        assert_eq!(lines[5], ["b", "-", "-", "no", "answer", "-", "-", "-", "-", "-", "gone"]);
        assert!(text.ends_with("\n- b: try again\n"), "{text}");
        let json = serde_json::to_value(HostsJobs::of(&answers)).unwrap();
        assert_eq!((&json["missing"], &json["hosts"][0]["jobs"][1]["id"]), (&1.into(), &"train".into()));
        assert!(json["hosts"][1]["jobs"].is_null());
    }
}
