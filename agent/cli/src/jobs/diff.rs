//! `tpuscope jobs diff`.

use std::fmt::{self, Write};

use model::time::{Clock, SystemClock, Timestamp};
use proto::tpuscope::v1::{AttemptStatus, JobStatus, ShowJobReply};
use serde::Serialize;

use super::{
    JobArgs,
    configuration_diff::{ConfigurationChange, changes},
    row::{self, AttemptRow},
};
use crate::{
    CommandResult,
    exit::Exit,
    failure::Failure,
    output::{self, NOTHING, one_line},
};

/// Arguments of `jobs diff`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The attempt before: [KIND:]ID[#ATTEMPT] or a name, such as train#0 [default attempt: the newest]
    #[arg(value_name = "A")]
    a: String,
    /// The attempt after, which is compared with it
    #[arg(value_name = "B")]
    b: String,
    #[command(flatten)]
    of: JobArgs,
    /// Print JSON (docs/schemas/jobs-diff.schema.json)
    #[arg(long)]
    json: bool,
}

/// One of the two attempts.
#[derive(Debug, Serialize)]
struct ComparedAttempt {
    job: String,
    #[serde(flatten)]
    attempt: AttemptRow,
}

/// The answer.
#[derive(Debug, Serialize)]
struct JobsDiff {
    before: ComparedAttempt,
    after: ComparedAttempt,
    changes: Vec<ConfigurationChange>,
    same: usize,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let replies = super::ask(&[&args.a, &args.b], &args.of)?;
    let [before, after] = &replies[..] else { return Err(Failure::internal("two jobs were asked for")) };
    let (before, after) = (of_reply(before)?, of_reply(after)?);
    let (changes, same) = changes(before.1, after.1);
    if args.json {
        let compared = |(job, attempt): (&JobStatus, &AttemptStatus)| ComparedAttempt {
            job: row::job_name(job),
            attempt: AttemptRow::from(attempt),
        };
        output::json(&JobsDiff { before: compared(before), after: compared(after), changes, same })?;
    } else {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = write(&mut text, [before, after], (&changes, same), SystemClock.now());
        output::print(&text)?;
    }
    Ok(Exit::Ok)
}

/// The job and the attempt that were named.
fn of_reply(reply: &ShowJobReply) -> Result<(&JobStatus, &AttemptStatus), Failure> {
    let of = reply.job.as_ref().and_then(|job| {
        let attempt = job.attempts.iter().find(|attempt| attempt.attempt == reply.attempt)?;
        Some((job, attempt))
    });
    of.ok_or_else(|| Failure::internal("the agent showed no attempt"))
}

fn write(
    text: &mut String,
    attempts: [(&JobStatus, &AttemptStatus); 2],
    (changes, same): (&[ConfigurationChange], usize),
    now: Timestamp,
) -> fmt::Result {
    for (side, (job, attempt)) in ["before", "after"].into_iter().zip(attempts) {
        let lasted = row::lasted(attempt, now).map(|lasted| format!(", {lasted}"));
        let (name, number, state) = (row::job_name(job), attempt.attempt, row::state(attempt));
        writeln!(text, "{side}: {name}#{number}, {state}{}", lasted.unwrap_or_default())?;
    }
    for ConfigurationChange { what, before, after } in changes {
        let shown = |value: &Option<String>| match value.as_deref() {
            None => NOTHING.to_owned(),
            Some("") => "\"\"".to_owned(),
            Some(value) => one_line(value),
        };
        writeln!(text, "  {}: {} -> {}", one_line(what), shown(before), shown(after))?;
    }
    match (changes.len(), same) {
        (0, 0) => writeln!(text, "nothing is known of their software and system"),
        (0, same) => writeln!(text, "nothing changed: {same} facts are the same"),
        (_, same) => writeln!(text, "the same: {same} facts"),
    }
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::JobKey;

    use super::*;

    #[test]
    fn the_changes_stand_below_the_two_attempts() {
        let key = JobKey { kind: "run".into(), id: "train".into(), ..JobKey::default() };
        let with = |attempt: u32, name: &str, value: &str| AttemptStatus {
            attempt,
            state: "running".into(),
            start_unix_ns: Some(0),
            configuration: [(name.to_owned(), value.to_owned())].into(),
            ..AttemptStatus::default()
        };
        let attempt = |number: u32, jax: &str| with(number, "version.jax", jax);
        let job = JobStatus { key: Some(key), ..JobStatus::default() };
        let (a, b) = (attempt(0, "0.9"), attempt(1, "0.10"));
        let shown = |a: &AttemptStatus, b: &AttemptStatus| {
            let (found, same) = changes(a, b);
            let mut text = String::new();
            write(&mut text, [(&job, a), (&job, b)], (&found, same), Timestamp(2_000_000_000)).unwrap();
            text
        };
        let text = shown(&a, &b);
        let wanted = "before: run:train#0, running, 2.0 s\nafter: run:train#1, running, 2.0 s\n  version.jax: 0.9 -> 0.10\n\
                      the same: 0 facts\n";
        assert_eq!(text, wanted);
        assert!(shown(&a, &a).ends_with("nothing changed: 1 facts are the same\n"));
        let (none, empty) = (with(0, "variable.XLA_FLAGS", ""), with(1, "variable.XLA_FLAGS", "--a"));
        assert!(shown(&none, &empty).contains("  variable.XLA_FLAGS --a: - -> \"\"\n"));
    }
}
