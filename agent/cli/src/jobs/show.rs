//! `tpuscope jobs show`.

use std::fmt::{self, Write};

use model::time::{Clock, SystemClock, Timestamp};
use proto::tpuscope::v1::{AttemptStatus, JobStatus, Leftover, ShowJobReply};

use super::{
    JobArgs,
    row::{self, JobRow},
};
use crate::{
    CommandResult,
    exit::Exit,
    failure::Failure,
    output::{self, one_line},
};

/// Hosts of a job that are printed as text.
const SHOWN_HOSTS: usize = 16;

/// Arguments of `jobs show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job: [KIND:]ID[#ATTEMPT] or its name, such as slurm:12, train or train#0 [default attempt: the newest]
    #[arg(value_name = "JOB")]
    job: String,
    #[command(flatten)]
    of: JobArgs,
    /// Print JSON (docs/schemas/jobs-show.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut replies = super::ask(&[&args.job], &args.of)?;
    let ShowJobReply { job: Some(job), attempt, .. } = replies.remove(0) else {
        return Err(Failure::internal("the agent showed no job"));
    };
    if args.json {
        output::json(&serde_json::json!({ "job": JobRow::from(&job), "attempt": attempt }))?;
    } else {
        output::print(&page(&job, attempt, SystemClock.now()))?;
    }
    Ok(Exit::Ok)
}

/// The job as text: each attempt in a line, then all of the one that was asked for.
pub(crate) fn page(job: &JobStatus, asked: u32, now: Timestamp) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_job(&mut text, job);
    for attempt in job.attempts.iter().rev() {
        let _ = write_attempt(&mut text, attempt, now);
        if attempt.attempt == asked {
            let _ = write_details(&mut text, attempt);
        }
    }
    text
}

fn write_job(text: &mut String, job: &JobStatus) -> fmt::Result {
    let key = job.key.clone().unwrap_or_default();
    let mut line = row::job_name(job);
    for (what, value) in [("name", &job.name), ("also", &job.other_id), ("cluster", &key.cluster)] {
        if !value.is_empty() {
            write!(line, ", {what} {}", one_line(value))?;
        }
    }
    let user = match job.user.as_str() {
        "" => format!("uid {}", key.uid),
        user => format!("user {} (uid {})", one_line(user), key.uid),
    };
    writeln!(text, "job {line}, {user}, {}", job.state)
}

fn write_attempt(text: &mut String, attempt: &AttemptStatus, now: Timestamp) -> fmt::Result {
    let start = attempt.start_unix_ns.map_or_else(|| "an unknown time".to_owned(), row::instant);
    let until = attempt.end_unix_ns.map(|end| format!(" to {}", row::instant(end))).unwrap_or_default();
    let lasted = row::lasted(attempt, now).map(|lasted| format!(", {lasted}")).unwrap_or_default();
    writeln!(text, "attempt {}: {}, from {start}{until}{lasted}", attempt.attempt, row::state(attempt))
}

fn write_details(text: &mut String, attempt: &AttemptStatus) -> fmt::Result {
    if let Some(rank) = attempt.rank {
        writeln!(text, "  rank of this host  {rank}")?;
    }
    if !attempt.hosts.is_empty() {
        let shown: Vec<String> = attempt.hosts.iter().take(SHOWN_HOSTS).map(|host| one_line(host)).collect();
        let more = attempt.hosts.len().saturating_sub(SHOWN_HOSTS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        writeln!(text, "  hosts  {}{more}", shown.join(", "))?;
    }
    if !attempt.chips.is_empty() {
        writeln!(text, "  chips  {}", row::chips(&attempt.chips))?;
    }
    if !attempt.pids.is_empty() {
        let pids: Vec<String> = attempt.pids.iter().map(u32::to_string).collect();
        writeln!(text, "  pids  {}", pids.join(", "))?;
    }
    for Leftover { pid, command, files } in &attempt.leftovers {
        let files = files.iter().map(|file| one_line(file)).collect::<Vec<_>>().join(", ");
        match pid {
            0 => writeln!(text, "  left  {files}, which no process had locked")?,
            _ => writeln!(text, "  left  process {pid} ({}), which held {files}", one_line(command))?,
        }
    }
    let configuration = &attempt.configuration;
    configuration
        .iter()
        .try_for_each(|(name, value)| writeln!(text, "  {}  {}", one_line(name), one_line(value)))
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::{AttemptEnding, JobKey};

    use super::*;

    #[test]
    fn all_attempts_and_the_details_of_one() {
        let first = AttemptStatus {
            state: "ended".into(),
            end_unix_ns: Some(60_000_000_000),
            ending: Some(AttemptEnding { how: "requeued".into(), code: None }),
            configuration: [("version.jax".to_owned(), "0.9".to_owned())].into(),
            leftovers: vec![
                Leftover { pid: 9, command: "python".into(), files: vec!["/dev/vfio/0".into()] },
                Leftover { files: vec!["/tmp/libtpu_lockfile".into()], ..Leftover::default() },
            ],
            ..AttemptStatus::default()
        };
        let second = AttemptStatus {
            attempt: 1,
            state: "running".into(),
            start_unix_ns: Some(120_000_000_000),
            hosts: (0..20).map(|host| format!("t{host}")).collect(),
            chips: vec![0],
            pids: vec![7, 8],
            configuration: [("version.jax".to_owned(), "0.10\u{1b}".to_owned())].into(),
            ..AttemptStatus::default()
        };
        let key = JobKey { kind: "slurm".into(), cluster: "a".into(), uid: 7, id: "12".into() };
        let job = JobStatus {
            key: Some(key),
            state: "running".into(),
            name: "train".into(),
            attempts: vec![first, second],
            ..JobStatus::default()
        };
        let now = Timestamp(180_000_000_000);
        let text = page(&job, 1, now);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "job slurm:12, name train, cluster a, uid 7, running");
        assert_eq!(lines[1], "attempt 1: running, from 1970-01-01T00:02:00Z, 1m 00s");
        assert!(lines[2].ends_with("t15 and 4 more"), "{text}");
        assert_eq!(lines[3..6], ["  chips  0", "  pids  7, 8", "  version.jax  0.10\\u{1b}"]);
        assert_eq!(lines[6], "attempt 0: requeued, from an unknown time to 1970-01-01T00:01:00Z");
        assert_eq!(lines.len(), 7);
        let left = "  left  process 9 (python), which held /dev/vfio/0\n\
                    \x20 left  /tmp/libtpu_lockfile, which no process had locked\n\
                    \x20 version.jax  0.9\n";
        let first = page(&job, 0, now);
        assert!(first.ends_with(left), "{first}");
    }
}
