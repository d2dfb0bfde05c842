//! When `--at-step` begins: agents say which step they saw last, and the command waits until its step is near.
//!
//! They are asked again while it is far: each trace of the recorder makes the prediction better. No profiler is reserved
//! meanwhile, so that the recorder goes on. Ages are counted, not instants: clocks of other hosts do not matter.

use std::{collections::BTreeMap, time::Duration};

use model::{
    job::{JobKind, is_named},
    time::{Clock, SystemClock, Timestamp},
};
use proto::tpuscope::v1::{StatusReply, StatusRequest, WorkloadSteps, host_client::HostClient};
use server::protocol;
use sessions::step_prediction::SeenStep;
use tonic::transport::Channel;

use super::status_line::{Shown, StatusLine};
use crate::{
    client,
    failure::Failure,
    hosts::{HostAnswer, HostsArgs, ask_all},
    remedies,
};

/// The time between two questions, if the step is far ahead.
const AGAIN: Duration = Duration::from_secs(10);
/// What a capture needs from its request until its window begins: through one agent, and over several hosts.
const LEAD: Duration = Duration::from_millis(500);
const LEAD_OF_HOSTS: Duration = Duration::from_secs(2);
/// So long before the window the capture is asked for.
const EARLY: Duration = Duration::from_secs(3);
/// The capability of agents that know steps.
const CAPABILITY: &str = "steps";

/// The step of the arguments, and whose it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct WantedStep<'a> {
    pub(super) step: i64,
    /// Only of this job: `ID`, `KIND:ID`, or its label.
    pub(super) job: Option<&'a str>,
    /// Only of jobs with one of these processes; all if empty.
    pub(super) pids: &'a [u32],
}

/// What one host says: its name, empty on this one, and the steps of its workloads, or why there are none.
type HostSteps = (String, Result<StatusReply, String>);

/// The start of the window of a capture through the agent behind `channel`, when it is near.
///
/// # Errors
/// If the step is not known, has passed, or is too far ahead.
pub(super) async fn on_this_host(channel: &Channel, wanted: WantedStep<'_>) -> Result<Timestamp, Failure> {
    let ask = async || {
        let request = StatusRequest { peer: Some(protocol::own()) };
        let mut host = HostClient::new(channel.clone());
        let status = client::within(client::CALL_TIMEOUT, host.status(request)).await?.into_inner();
        Ok(vec![(String::new(), Ok(status))])
    };
    wait(wanted, LEAD, ask).await
}

/// The same of a capture over several hosts.
///
/// # Errors
/// As [`on_this_host`]. Hosts that do not answer are left out, unless none answers.
pub(super) async fn on_hosts(hosts: &HostsArgs, wanted: WantedStep<'_>) -> Result<Timestamp, Failure> {
    let ask = async || {
        let answers = ask_all(hosts, |channel| async move {
            let asked = SystemClock.uptime();
            let request = StatusRequest { peer: Some(protocol::own()) };
            let status = HostClient::new(channel).status(request).await?.into_inner();
            Ok((status, (asked + SystemClock.uptime()) / 2))
        });
        let answers = answers.await?;
        let now = SystemClock.uptime();
        let of_host = |HostAnswer { host, answer }| match answer {
            // The other hosts were asked since.
            Ok((status, at)) => (host.to_string(), Ok(older(status, now.saturating_sub(at)))),
            Err(missing) => (host.to_string(), Err(missing.reason)),
        };
        Ok(answers.into_iter().map(of_host).collect())
    };
    wait(wanted, LEAD_OF_HOSTS, ask).await
}

/// The status as it is `by` later.
fn older(mut status: StatusReply, by: Duration) -> StatusReply {
    let ages = status.steps.iter_mut().filter_map(|steps| steps.last_step_age_seconds.as_mut());
    ages.for_each(|age| *age += by.as_secs_f64());
    status
}

/// Asks until the window is near.
async fn wait(
    wanted: WantedStep<'_>,
    lead: Duration,
    ask: impl AsyncFn() -> Result<Vec<HostSteps>, Failure>,
) -> Result<Timestamp, Failure> {
    let mut line = None;
    loop {
        let asked = SystemClock.uptime();
        let answers = ask().await?;
        let took = SystemClock.uptime().saturating_sub(asked);
        let seen = seen(wanted, &answers)?;
        let predicted = seen.predict(wanted.step, lead).map_err(remedies::unpredictable_step)?;
        let window = SystemClock.now().plus(predicted.window_in);
        let left = predicted.window_in.saturating_sub(EARLY + lead + took * 2);
        if left.is_zero() {
            return Ok(window);
        }
        let state = ExpectedStep { step: wanted.step, at: SystemClock.now().plus(predicted.step_in) };
        *line.get_or_insert_with(|| StatusLine::new(state)).state() = state;
        tokio::time::sleep(left.min(AGAIN)).await;
    }
}

/// The step that was seen last of the one job that is meant.
fn seen(wanted: WantedStep<'_>, answers: &[HostSteps]) -> Result<SeenStep, Failure> {
    let mut jobs: BTreeMap<(&str, &str), Vec<SeenStep>> = BTreeMap::new();
    let mut reasons = Vec::new();
    for (host, answer) in answers {
        let at = if host.is_empty() { String::new() } else { format!("{host}: ") };
        match answer {
            Err(why) => reasons.push(format!("{at}{why}")),
            Ok(status) if !knows_steps(status) => {
                reasons.push(format!("{at}its agent is of an older version, which knows no steps"));
            }
            Ok(status) => {
                for steps in status.steps.iter().filter(|steps| is_wanted(wanted, steps)) {
                    match of_workload(steps) {
                        Ok(seen) => jobs.entry((&steps.job_kind, &steps.workload)).or_default().push(seen),
                        Err(why) => reasons.push(format!("{at}{}: {why}", steps.workload)),
                    }
                }
            }
        }
    }
    if let [_, _, ..] = jobs.keys().collect::<Vec<_>>()[..] {
        let names = jobs.keys().map(|(_, workload)| *workload).collect::<Vec<_>>();
        return Err(remedies::several_jobs_have_steps(&names.join(", ")));
    }
    let of_job = jobs.into_values().next().unwrap_or_default();
    of_job.into_iter().min_by_key(|seen| seen.age).ok_or_else(|| remedies::no_step_number(&reasons))
}

fn knows_steps(status: &StatusReply) -> bool {
    let peer = status.peer.as_ref();
    peer.is_some_and(|peer| peer.capabilities.iter().any(|capability| capability == CAPABILITY))
}

fn is_wanted(wanted: WantedStep<'_>, steps: &WorkloadSteps) -> bool {
    let kind = JobKind::named(&steps.job_kind).unwrap_or_default();
    let is_job = |job: &str| is_named(kind, &steps.job, job) || job == steps.workload;
    let has = |pid: &u32| steps.pids.contains(pid);
    wanted.job.is_none_or(is_job) && (wanted.pids.is_empty() || wanted.pids.iter().any(has))
}

fn of_workload(steps: &WorkloadSteps) -> Result<SeenStep, String> {
    if !steps.missing.is_empty() {
        return Err(steps.missing.clone());
    }
    let (Some(number), Some(age), Some(step)) =
        (steps.last_step, steps.last_step_age_seconds, steps.pace_seconds.or(steps.mean_seconds))
    else {
        return Err("its steps have no numbers".to_owned());
    };
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    Ok(SeenStep { number, age: time(age)?, step: time(step)? })
}

/// What is shown while it is waited for.
#[derive(Debug, Clone, Copy)]
struct ExpectedStep {
    step: i64,
    at: Timestamp,
}

impl Shown for ExpectedStep {
    fn text(&self, now: Timestamp) -> String {
        format!("step {} is expected in {:.0} s", self.step, now.age(self.at).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::Peer;

    use super::*;
    use crate::exit::Exit;

    fn steps(workload: &str, pid: u32, last_step: Option<i64>, age: f64) -> WorkloadSteps {
        WorkloadSteps {
            job_kind: "slurm".into(),
            job: workload.into(),
            workload: workload.into(),
            pids: vec![pid],
            mean_seconds: Some(0.5),
            last_step,
            last_step_age_seconds: last_step.map(|_| age),
            ..WorkloadSteps::default()
        }
    }

    fn host(name: &str, steps: Vec<WorkloadSteps>) -> HostSteps {
        let peer = Some(Peer { capabilities: vec![CAPABILITY.to_owned()], ..Peer::default() });
        (name.to_owned(), Ok(StatusReply { peer, steps, ..StatusReply::default() }))
    }

    const ANY: WantedStep<'_> = WantedStep { step: 9, job: None, pids: &[] };

    #[test]
    fn the_newest_step_of_the_one_job_counts() {
        let fast = WorkloadSteps { pace_seconds: Some(0.25), ..steps("7", 1, Some(40), 3.0) };
        let hosts = [
            host("a", vec![steps("7", 1, Some(30), 8.0), steps("8", 2, None, 0.0)]),
            host("b", vec![fast]),
            ("c".to_owned(), Err("it is gone".to_owned())),
        ];
        let expected = SeenStep { number: 40, age: Duration::from_secs(3), step: Duration::from_millis(250) };
        assert_eq!(seen(ANY, &hosts).unwrap(), expected);
        let two = [host("", vec![steps("7", 1, Some(30), 8.0), steps("8", 2, Some(5), 1.0)])];
        let failure = seen(ANY, &two).unwrap_err();
        assert_eq!((failure.exit, failure.what.contains("7, 8")), (Exit::Usage, true), "{failure}");
        let number = |wanted| seen(wanted, &two).unwrap().number;
        assert_eq!(number(WantedStep { job: Some("8"), ..ANY }), 5);
        assert_eq!(number(WantedStep { pids: &[1, 9], ..ANY }), 30);
    }

    #[test]
    fn without_a_number_the_reasons_are_said() {
        let missing = WorkloadSteps { missing: "no trace of it".into(), ..steps("9", 3, None, 0.0) };
        let older = ("d".to_owned(), Ok(StatusReply::default()));
        let hosts = [
            host("a", vec![steps("8", 2, None, 0.0), missing]),
            ("c".to_owned(), Err("it is gone".to_owned())),
            older,
        ];
        let failure = seen(ANY, &hosts).unwrap_err();
        assert_eq!(failure.exit, Exit::EmptyTrace);
        for reason in
            ["a: 8: its steps have no numbers", "a: 9: no trace of it", "c: it is gone", "d: its agent"]
        {
            assert!(failure.what.contains(reason), "{failure}");
        }
    }

    #[test]
    fn an_answer_grows_older_while_others_are_asked() {
        let (_, status) = host("a", vec![steps("7", 1, Some(40), 3.0), steps("8", 1, None, 0.0)]);
        let later = older(status.unwrap(), Duration::from_secs(2));
        assert_eq!(later.steps[0].last_step_age_seconds, Some(5.0));
        assert_eq!(later.steps[1].last_step_age_seconds, None);
    }
}
