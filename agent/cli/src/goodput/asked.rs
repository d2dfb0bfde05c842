//! Which job a question is about, and which time of it: a window, an attempt, or what a window has of an attempt.

use goodput::time::Micros;
use jobs::name::JobName;
use model::unit::Duration;
use proto::tpuscope::v1::{JobKey, ShowJobReply, ShowJobRequest, jobs_client::JobsClient};
use server::protocol;
use tonic::{Status, transport::Channel};

/// A time of a job. An end that is absent is that of the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AskedTime {
    pub(super) from: Option<Micros>,
    pub(super) until: Option<Micros>,
}

impl AskedTime {
    /// What both have in common; it ends before it starts if that is nothing.
    pub(super) fn and(self, other: Self) -> Self {
        let until = match (self.until, other.until) {
            (Some(one), Some(another)) => Some(one.min(another)),
            (one, another) => one.or(another),
        };
        Self { from: self.from.max(other.from), until }
    }

    /// Whether it has a second.
    pub(super) fn is_some_time(self) -> bool {
        self.from.zip(self.until).is_none_or(|(from, until)| from < until)
    }

    /// Both ends, where `now` is the end of a job that has none, and of that only the last `window`. `None`: all of the job.
    pub(super) fn ends(self, window: Option<Duration>, now: Micros) -> Option<(Micros, Micros)> {
        if self == Self::default() && window.is_none() {
            return None;
        }
        let until = self.until.unwrap_or(now);
        let length = |window: Duration| i64::try_from(window.get().as_micros()).unwrap_or(i64::MAX);
        // No program marks anything before 1970.
        let last = window.map(|window| Micros(until.0.saturating_sub(length(window)).max(0)));
        Some((self.from.max(last).unwrap_or(Micros(0)), until))
    }
}

/// One attempt of a job, as the registry of an agent has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AskedAttempt {
    /// The job as it was named, without the attempt.
    pub(super) name: String,
    /// The job as `KIND:ID`.
    pub(super) key: String,
    pub(super) number: u32,
    /// When it ran on the agent's host.
    pub(super) ran: AskedTime,
}

/// Whether a text names an attempt. It may be the name of a job all the same.
pub(super) fn names_an_attempt(job: &str) -> bool {
    job.parse::<JobName>().is_ok_and(|name| name.attempt().is_some())
}

/// The attempt that is named so; `None` if the text names none.
///
/// # Errors
/// If the agent does not know the job or the attempt, or the caller may not read it.
pub(super) async fn attempt(
    channel: Channel,
    job: &str,
    uid: Option<u32>,
) -> Result<Option<AskedAttempt>, Status> {
    let Some((name, number)) = job.parse::<JobName>().ok().and_then(|name| name.attempt()) else {
        return Ok(None);
    };
    let request = ShowJobRequest { peer: Some(protocol::own()), job: job.to_owned(), uid };
    let reply = JobsClient::new(channel).show(request).await?.into_inner();
    of_reply(reply, name, number).map(Some)
}

fn of_reply(reply: ShowJobReply, name: String, number: u32) -> Result<AskedAttempt, Status> {
    let unknown = || Status::not_found(format!("the job {name} has no attempt {number}"));
    let job = reply.job.filter(|_| reply.attempt == number).ok_or_else(unknown)?;
    let attempt = job.attempts.iter().find(|attempt| attempt.attempt == number).ok_or_else(unknown)?;
    let micros = |unix_ns: i64| Micros(unix_ns.div_euclid(1000));
    let ran = AskedTime { from: attempt.start_unix_ns.map(micros), until: attempt.end_unix_ns.map(micros) };
    let JobKey { kind, id, .. } = job.key.unwrap_or_default();
    Ok(AskedAttempt { name, key: format!("{kind}:{id}"), number, ran })
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::{AttemptStatus, JobStatus};

    use super::*;

    fn time(from: Option<i64>, until: Option<i64>) -> AskedTime {
        AskedTime { from: from.map(Micros), until: until.map(Micros) }
    }

    #[test]
    fn a_window_of_an_attempt_is_what_both_have() {
        let attempt = time(Some(100), None);
        assert_eq!(attempt.and(time(None, None)), attempt);
        assert_eq!(attempt.and(time(Some(50), Some(200))), time(Some(100), Some(200)));
        assert_eq!(time(None, Some(150)).and(time(Some(120), Some(200))), time(Some(120), Some(150)));
        assert!(!attempt.and(time(Some(1), Some(100))).is_some_time());
        assert!(time(None, None).is_some_time() && attempt.is_some_time());
    }

    #[test]
    fn the_last_time_is_before_the_end_or_now() {
        let minute = "1m".parse::<Duration>().ok();
        let now = Micros(1_000_000_000);
        assert_eq!(time(None, None).ends(None, now), None);
        assert_eq!(time(None, None).ends(minute, now), Some((Micros(940_000_000), now)));
        assert_eq!(time(Some(950_000_000), None).ends(minute, now), Some((Micros(950_000_000), now)));
        assert_eq!(time(Some(5), None).ends(None, now), Some((Micros(5), now)));
        let ended = time(None, Some(100_000_000)).ends(minute, now);
        assert_eq!(ended, Some((Micros(40_000_000), Micros(100_000_000))));
    }

    #[test]
    fn an_attempt_is_the_one_that_was_named() {
        let attempt = |number, start, end| AttemptStatus {
            attempt: number,
            start_unix_ns: start,
            end_unix_ns: end,
            ..AttemptStatus::default()
        };
        let key = JobKey { kind: "run".into(), id: "train".into(), ..JobKey::default() };
        let attempts = vec![attempt(0, Some(1_000), Some(9_000)), attempt(1, Some(20_000), None)];
        let job = JobStatus { key: Some(key), attempts, ..JobStatus::default() };
        let reply =
            |number| ShowJobReply { job: Some(job.clone()), attempt: number, ..ShowJobReply::default() };
        let first = of_reply(reply(0), "train".into(), 0).unwrap();
        assert_eq!((first.key.as_str(), first.ran), ("run:train", time(Some(1), Some(9))));
        assert_eq!(of_reply(reply(1), "train".into(), 1).unwrap().ran, time(Some(20), None));
        // A job whose name has a # is shown with its newest attempt.
        assert!(of_reply(reply(1), "train".into(), 0).is_err());
        assert!(names_an_attempt("slurm:7#0") && !names_an_attempt("slurm:7") && !names_an_attempt("#3"));
    }
}
