//! `tpuscope mark`: a mark of a shell script.

use std::{env, time::Duration};

use model::time::{Clock, SystemClock, Timestamp};
use proto::tpuscope::v1::{RecordMarksRequest, TimedMark, marks_client::MarksClient};
use serde_json::{Map, Value};
use server::protocol;

use super::{CommandResult, client, exit::Exit, failure::Failure, output, remedies};

/// The longest time that a script waits.
const LIMIT: Duration = Duration::from_secs(3);

/// Arguments of `mark`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What is marked: STEP, JOB, ACCELERATOR_INIT, TRAINING_PREP, DATA_LOADING, or any other name for an event of your own
    #[arg(value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: String,
    /// Number of the step that starts
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    step: Option<u64>,
    /// It starts now
    #[arg(long, conflicts_with = "end")]
    start: bool,
    /// It ends now
    #[arg(long)]
    end: bool,
    /// Name of the job [default: TPUSCOPE_JOB_NAME, the Slurm job or the job of TPUSCOPE_JOB_ID, else the workload of this
    /// process]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Fail if the mark is not stored, such as without an agent or without a job [default: print a warning and succeed]
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    agent: client::SocketArgs,
}

/// The events with keys of their own in the log of ml-goodput-measurement.
const PHASES: [(&str, &str); 4] = [
    ("JOB", "job"),
    ("ACCELERATOR_INIT", "tpu_init"),
    ("TRAINING_PREP", "training_prep"),
    ("DATA_LOADING", "data_loading"),
];

/// Which ends of an event are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Start,
    End,
    /// It takes no time.
    Both,
}

impl Ends {
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Start => &["start"],
            Self::End => &["end"],
            Self::Both => &["start", "end"],
        }
    }
}

pub(super) fn run(args: &Args) -> CommandResult {
    let job = args.job.clone().or_else(|| job_of(|name| env::var(name).ok()));
    let marks = payloads(args, job.as_deref(), SystemClock.now())?;
    match send(args, marks) {
        Ok(()) => Ok(Exit::Ok),
        // A script with `set -e` is not ended because of a mark.
        Err(failure) if !args.strict => {
            output::print_error(&format!("warning: not marked: {failure}"));
            Ok(Exit::Ok)
        }
        Err(failure) => Err(failure),
    }
}

fn send(args: &Args, marks: Vec<TimedMark>) -> Result<(), Failure> {
    let request = RecordMarksRequest { peer: Some(protocol::own()), marks, ..RecordMarksRequest::default() };
    let sent = client::block_on(async {
        let calling = async {
            let mut client = MarksClient::new(args.agent.connect().await?);
            client::within(LIMIT, client.record(request)).await
        };
        tokio::time::timeout(LIMIT, calling).await.map_err(|_| remedies::call_timeout(LIMIT))?
    })?;
    match sent.into_inner().refused.first() {
        None => Ok(()),
        Some(refused) => Err(remedies::refused_mark(&refused.reason, &refused.fault)),
    }
}

/// The job that the environment names, as marks of other programs in it are named too.
fn job_of(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    variable("TPUSCOPE_JOB_NAME")
        .or_else(|| variable("SLURM_JOB_ID").map(|id| format!("slurm:{id}")))
        .or_else(|| variable("TPUSCOPE_JOB_ID").map(|id| format!("run:{id}")))
}

/// The marks that the arguments say, as entries of ml-goodput-measurement.
fn payloads(args: &Args, job: Option<&str>, now: Timestamp) -> Result<Vec<TimedMark>, Failure> {
    let ends = match (args.start, args.end) {
        (true, _) => Ends::Start,
        (_, true) => Ends::End,
        _ => Ends::Both,
    };
    let name = args.name.to_uppercase();
    let phase = PHASES.iter().find(|(event, _)| *event == name).map(|(_, key)| *key);
    let fields = match (name.as_str(), args.step) {
        ("STEP", Some(step)) if ends != Ends::End => vec![step_fields(step, now)],
        ("STEP", Some(_)) => return Err(remedies::end_of_step()),
        ("STEP", None) => return Err(remedies::step_without_number()),
        (_, Some(_)) => return Err(remedies::number_without_step(&args.name)),
        (_, None) if phase.is_some() && ends == Ends::Both => {
            return Err(remedies::phase_without_end(&args.name));
        }
        _ => ends.words().iter().map(|end| event_fields(&args.name, phase, end, now)).collect(),
    };
    let mark = |mut fields: Map<String, Value>| {
        if let Some(job) = job {
            fields.insert("job_name".into(), job.into());
        }
        TimedMark { at_unix_ns: now.0, payload: Value::Object(fields).to_string() }
    };
    Ok(fields.into_iter().map(mark).collect())
}

/// Epoch seconds with microseconds, as the library writes them.
#[expect(clippy::cast_precision_loss, reason = "whole microseconds of any date are exact")]
fn seconds(at: Timestamp) -> f64 {
    (at.0 / 1000) as f64 / 1e6
}

fn step_fields(step: u64, now: Timestamp) -> Map<String, Value> {
    [("step_count".to_owned(), step.into()), ("step_start_time".to_owned(), seconds(now).into())]
        .into_iter()
        .collect()
}

fn event_fields(name: &str, phase: Option<&str>, end: &str, now: Timestamp) -> Map<String, Value> {
    let time = |key: &str| (format!("{key}_{end}_time"), Value::from(seconds(now)));
    match phase {
        Some(key) => [time(key)].into_iter().collect(),
        None => [("custom_badput_event_type".to_owned(), name.into()), time("custom_badput_event")]
            .into_iter()
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn made(line: &str) -> Result<Vec<String>, Exit> {
        let line =
            Line::try_parse_from(["mark"].into_iter().chain(line.split(' '))).map_err(|_| Exit::Usage)?;
        let marks = payloads(&line.args, line.args.job.as_deref(), Timestamp(1_772_323_200_250_000_900));
        let marks = marks.map_err(|failure| failure.exit)?;
        assert!(marks.iter().all(|mark| mark.at_unix_ns == 1_772_323_200_250_000_900));
        Ok(marks.into_iter().map(|mark| mark.payload).collect())
    }

    #[test]
    fn marks_are_entries_of_the_library() {
        for (line, payloads) in [
            (
                "step --step 7 --job j",
                &[r#"{"job_name":"j","step_count":7,"step_start_time":1772323200.25}"#][..],
            ),
            ("STEP --step 7 --start", &[r#"{"step_count":7,"step_start_time":1772323200.25}"#]),
            ("JOB --start", &[r#"{"job_start_time":1772323200.25}"#]),
            ("data_loading --end", &[r#"{"data_loading_end_time":1772323200.25}"#]),
            ("ACCELERATOR_INIT --start", &[r#"{"tpu_init_start_time":1772323200.25}"#]),
            (
                "eval --end",
                &[r#"{"custom_badput_event_end_time":1772323200.25,"custom_badput_event_type":"eval"}"#],
            ),
            (
                "note",
                &[
                    r#"{"custom_badput_event_start_time":1772323200.25,"custom_badput_event_type":"note"}"#,
                    r#"{"custom_badput_event_end_time":1772323200.25,"custom_badput_event_type":"note"}"#,
                ],
            ),
        ] {
            assert_eq!(made(line).unwrap(), payloads, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_a_mistake_in_the_command_line() {
        for line in [
            "STEP",
            "STEP --step 7 --end",
            "STEP --step -1",
            "STEP --step 1.5",
            "STEP --step NaN",
            "eval --step 7",
            "JOB",
            "DATA_LOADING",
            "eval --start --end",
        ] {
            assert_eq!(made(line), Err(Exit::Usage), "{line}");
        }
    }

    #[test]
    fn the_environment_names_the_job() {
        let job = |variables: &[(&str, &str)]| {
            job_of(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(job(&[]), None);
        assert_eq!(job(&[("TPUSCOPE_JOB_NAME", ""), ("SLURM_JOB_ID", "12")]).as_deref(), Some("slurm:12"));
        assert_eq!(job(&[("TPUSCOPE_JOB_ID", "r1")]).as_deref(), Some("run:r1"));
        let all = [("TPUSCOPE_JOB_ID", "r1"), ("SLURM_JOB_ID", "12"), ("TPUSCOPE_JOB_NAME", "n")];
        assert_eq!(job(&all).as_deref(), Some("n"));
    }
}
