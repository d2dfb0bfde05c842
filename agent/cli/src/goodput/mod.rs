//! `tpuscope goodput`: the share of a job's time that was progress, and the causes of the lost time.

mod asked;
mod json;
mod live;
mod live_hosts;
mod live_text;
mod marked;
mod read;
mod show;
mod skipped;
mod slots;
mod tensorboard;

use std::path::{Path, PathBuf};

use goodput::{
    answer::{self, FailedAnswer, LedgerAnswer},
    error::ExceptionKind,
    exact::{Calculator, CalculatorOptions, Compat},
    export::SeriesLabels,
    log::{EventLog, ReadFrom},
    query::LedgerQuery,
    strict::{self, StrictAnswer},
    time::{Micros, is_out_of_range, parse_instant},
};
use model::time::{Clock, SystemClock};
use nix::unistd::Uid;
use serde::Serialize;

use self::{
    asked::{AskedAttempt, AskedTime},
    skipped::{SkippedEntries, SkippedLines},
};
use super::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    hosts::WHICH,
    output::{self, one_line},
    output_path,
    remedies::{self, NoAnswer},
};
pub(crate) use show::duration;

/// The maximum size of a file of queries in bytes.
const QUERIES_BYTES: u64 = 16 << 20;

/// Arguments of `goodput`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tpuscope goodput [--job <JOB>] [--window <TIME>] [--explain] [--hosts <LIST>] [OPTIONS]\n       tpuscope goodput --from-log <FILE> --job <NAME> [OPTIONS]\n       tpuscope goodput --from-slots <FILE> [--json]"
)]
pub struct Args {
    /// Exported event log of ml-goodput-measurement: one JSON entry per line, or one JSON array; `-` reads stdin
    #[arg(long, value_name = "FILE", requires = "job", conflicts_with_all = ["from_slots", "user", WHICH])]
    from_log: Option<PathBuf>,
    /// Device opens, duty cycles and step starts of one host as a JSON object; `-` reads stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["job", "now", "start", "end", "queries", "exact", "strict", "compat", "user", WHICH])]
    from_slots: Option<PathBuf>,
    /// The job: its name in its marks, [KIND:]ID, or its label in series; with #ATTEMPT only that attempt [default: the jobs
    /// that run, else the last one]; with --from-log the `job_name` in its entries
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Only a job of the user with this id
    #[arg(long, value_name = "UID", requires = "job")]
    user: Option<u32>,
    /// Time of the query, RFC 3339 or epoch seconds [default: the current time]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = instant)]
    now: Option<Micros>,
    /// Start of the window [default: the whole job]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = instant, requires = "end")]
    start: Option<Micros>,
    /// End of the window
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = instant, requires = "start")]
    end: Option<Micros>,
    /// Compute the numbers from the program's own events as ml-goodput-measurement does
    #[arg(long, conflicts_with_all = ["strict", "explain", WHICH])]
    exact: bool,
    /// Compute the numbers of this version of ml-goodput-measurement, including its faults
    #[arg(long, requires = "from_log", value_name = "VERSION", default_value_t, conflicts_with = "strict")]
    compat: Compat,
    /// Compute the numbers without the faults of ml-goodput-measurement, and list every repair
    #[arg(long, conflicts_with_all = ["explain", WHICH])]
    strict: bool,
    /// Answer the queries in this file, a JSON array, in order; print a JSON array
    #[arg(long, value_name = "FILE", requires = "from_log", conflicts_with_all = ["now", "start", "end"])]
    queries: Option<PathBuf>,
    /// Use the elastic calculator [default: if the log has elastic entries]
    #[arg(long)]
    elastic: bool,
    /// Number of days that the first read of ml-goodput-measurement looks back
    #[arg(long, value_name = "DAYS", requires = "from_log", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=3650))]
    lookback_days: u32,
    /// Print the bucket names that the dashboards of ml-goodput-measurement's newer API use
    #[arg(long)]
    dashboard_names: bool,
    /// Location label of the Cloud Monitoring series
    #[arg(long, value_name = "ZONE", default_value = "us-central1-a")]
    location: String,
    /// Accelerator label of the Cloud Monitoring series, or a machine type to derive it from
    #[arg(long, value_name = "TYPE", default_value = "TPU-v6e")]
    accelerator_type: String,
    /// Replica label of the Cloud Monitoring series
    #[arg(long, value_name = "ID", default_value = "0")]
    replica_id: String,
    /// Cluster label of the Cloud Monitoring series
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// Write the figures of the whole job as an event file for TensorBoard too, below this folder
    #[arg(long, value_name = "DIR", value_parser = output_path::parser(), requires = "job", conflicts_with_all = ["from_slots", "start", "end", "queries", "window", WHICH])]
    tensorboard: Option<PathBuf>,
    #[command(flatten)]
    live: live::LiveArgs,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn instant(text: &str) -> Result<Micros, String> {
    parse_instant(text).ok_or_else(|| match is_out_of_range(text) {
        true => "out of range".to_owned(),
        false => "expected RFC 3339 such as 2026-03-01T00:00:00Z, or epoch seconds".to_owned(),
    })
}

pub(super) fn run(args: &Args) -> CommandResult {
    match (&args.from_slots, &args.from_log, &args.job) {
        (Some(file), ..) => slots::run(file, args.json),
        (None, Some(file), Some(job)) => from_log(args, file, job),
        (None, Some(_), None) => Err(Failure::new(Exit::Usage, "--from-log needs --job")),
        (None, None, job) => of_agent(args, job.as_deref()),
    }
}

/// The agent answers from the marks of the job where it has some, else from its own ledger.
fn of_agent(args: &Args, job: Option<&str>) -> CommandResult {
    check_window(args)?;
    let window = AskedTime { from: args.start, until: args.end };
    let Some(job) = job else {
        if wants_events(args) {
            return Err(Failure::new(Exit::Usage, "an answer from marks needs the name of the job: --job"));
        }
        return live(args, None, None, window);
    };
    let asked = AskedJob { marked: job, key: job, attempt: None, time: window };
    match asked.answer(args) {
        // The name of a job may end like that of an attempt, so that one is looked for first.
        Err(failure) if failure.exit == Exit::NotFound && asked::names_an_attempt(job) => {
            let found = client::block_on(async {
                let found = asked::attempt(args.agent.connect().await?, job, args.user);
                client::within(client::CALL_TIMEOUT, found).await
            });
            let Some(attempt) = found.map_err(remedies::job)? else { return Err(failure) };
            if args.tensorboard.is_some() {
                let what = "--tensorboard writes the figures of a whole job, not of one attempt";
                return Err(
                    Failure::new(Exit::Usage, what).remedy(format!("name the job alone: {}", attempt.key))
                );
            }
            let time = window.and(attempt.ran);
            if !time.is_some_time() {
                return Err(remedies::window_without_attempt(job, attempt.ran.from, attempt.ran.until));
            }
            let AskedAttempt { name, key, number, .. } = &attempt;
            let (marked, key, attempt) = (name.as_str(), key.as_str(), Some(*number));
            AskedJob { marked, key, attempt, time }.answer(args)
        }
        answered => answered,
    }
}

/// Whether only the program's own events can answer.
fn wants_events(args: &Args) -> bool {
    args.exact || args.strict || args.elastic || args.dashboard_names
}

/// A job that the agent is asked about, or an attempt of it.
#[derive(Debug, Clone, Copy)]
struct AskedJob<'a> {
    /// Its name in marks.
    marked: &'a str,
    /// Its name for the agent's own ledger.
    key: &'a str,
    attempt: Option<u32>,
    time: AskedTime,
}

impl AskedJob<'_> {
    fn answer(self, args: &Args) -> CommandResult {
        if args.live.is_asked_for() || (args.live.has_window() && !wants_events(args)) {
            return self.live(args).map_err(|failure| match failure.exit {
                Exit::NotFound if marked::ask(args, self).is_ok() => remedies::only_marks(failure),
                _ => failure,
            });
        }
        match marked::ask(args, self) {
            Ok(reply) => marked::show(args, &reply, self.attempt),
            Err(no_marks) if no_marks.exit == Exit::NotFound && !wants_events(args) => {
                self.live(args).map_err(|failure| match failure.exit {
                    Exit::NotFound => {
                        Failure { what: format!("{}; {}", no_marks.what, failure.what), ..no_marks }
                    }
                    _ => failure,
                })
            }
            Err(failure) => Err(failure),
        }
    }

    fn live(self, args: &Args) -> CommandResult {
        live(args, Some(self.key), self.attempt, self.time)
    }
}

fn live(args: &Args, job: Option<&str>, attempt: Option<u32>, time: AskedTime) -> CommandResult {
    let tensorboard = args.tensorboard.as_deref();
    // The ledger as it was at another time has nothing after it.
    let time = time.and(AskedTime { from: None, until: args.now });
    let question = live::LiveQuestion { job, uid: args.user, attempt, time, json: args.json, tensorboard };
    live::run(&args.live, &args.agent, &question)
}

fn check_window(args: &Args) -> Result<(), Failure> {
    match (args.start, args.end) {
        (Some(start), Some(end)) if start >= end => Err(remedies::reversed_window(start, end)),
        _ => Ok(()),
    }
}

fn from_log(args: &Args, file: &Path, job: &str) -> CommandResult {
    check_window(args)?;
    let queries = args.queries.as_deref().map(read_queries).transpose()?;
    let read = read::entries(file, job)?;
    if read.entries.is_empty() {
        let (failure, no_entries) = read.skipped.no_entries(file, job, read.form());
        if args.json || queries.is_some() {
            output::json(&no_entries)?;
        }
        return Err(failure);
    }
    for warning in read.warnings() {
        warn(&warning);
    }
    let log = EventLog::from_entries(read.entries).map_err(|error| Failure::new(Exit::TooLarge, error))?;
    match log.repeated() {
        0 => {}
        1 => warn("1 entry repeats the timestamp and insertId of another; the two count as one"),
        many => warn(&format!(
            "{many} entries repeat the timestamp and insertId of another; such entries count as one"
        )),
    }
    let ledger = Ledger { args, log, skipped: read.skipped, labels: labels(args, job) };
    match queries {
        Some(queries) => ledger.answer_all(&queries),
        None => ledger.answer_one(job),
    }
}

fn warn(warning: &str) {
    output::print_error(&format!("warning: {}", one_line(warning)));
}

fn labels(args: &Args, job: &str) -> SeriesLabels {
    SeriesLabels {
        location: args.location.clone(),
        workload_id: job.to_owned(),
        replica_id: args.replica_id.clone(),
        accelerator_type: goodput::export::given_accelerator_type(&args.accelerator_type),
        cluster_name: args.cluster_name.clone(),
    }
}

fn read_queries(file: &Path) -> Result<Vec<LedgerQuery>, Failure> {
    let text = read::small("--queries", file, QUERIES_BYTES)?;
    serde_json::from_slice(&text)
        .map_err(|error| remedies::bad_queries(file, json::message_with_line(&error, &text)))
}

/// An answer with what is known of the log.
#[derive(Serialize)]
struct AnswerFromLog<'a, T> {
    #[serde(flatten)]
    answer: T,
    /// Entries left out because their timestamp and insertId are those of another.
    repeated_entries: u64,
    /// Entries of the job that were not read.
    skipped_entries: SkippedEntries<'a>,
}

/// The log of a job and how to query it.
struct Ledger<'a> {
    args: &'a Args,
    log: EventLog,
    skipped: SkippedLines,
    labels: SeriesLabels,
}

impl Ledger<'_> {
    fn calculator(&self) -> Calculator {
        Calculator::new(CalculatorOptions {
            compat: self.args.compat,
            elastic: self.args.elastic || self.log.is_elastic(),
            lookback: i64::from(self.args.lookback_days) * 86_400_000_000,
        })
    }

    /// One calculator answers in order; a query can request a new one.
    fn answer_all(&self, queries: &[LedgerQuery]) -> CommandResult {
        if self.args.strict {
            let answers = queries.iter().map(|query| self.with_log(self.strict(query)));
            return print(&answers.collect::<Vec<_>>());
        }
        let mut calculator = self.calculator();
        let mut answers = Vec::with_capacity(queries.len());
        for query in queries {
            if query.reuse_calculator() == Some(false) {
                calculator = self.calculator();
            }
            answers.push(self.with_log(answer::ask(&mut calculator, &self.log, query, &self.labels)));
        }
        print(&answers)
    }

    fn with_log<T>(&self, answer: T) -> AnswerFromLog<'_, T> {
        AnswerFromLog {
            answer,
            repeated_entries: self.log.repeated(),
            skipped_entries: self.skipped.entries(),
        }
    }

    fn strict(&self, query: &LedgerQuery) -> StrictAnswer {
        strict::ask(&self.log, query, &self.labels)
    }

    fn query(&self) -> LedgerQuery {
        let now = self.args.now.unwrap_or_else(present).seconds();
        match (self.args.start, self.args.end) {
            (Some(start), Some(end)) => LedgerQuery::Interval {
                start: start.seconds(),
                end: end.seconds(),
                now: self.args.now.map(|_| now),
                reuse_calculator: None,
            },
            _ => LedgerQuery::Cumulative { now, ideal_step_time: None, reuse_calculator: None },
        }
    }

    fn answer_one(&self, job: &str) -> CommandResult {
        let query = self.query();
        let names =
            if self.args.dashboard_names { show::BucketNames::Dashboard } else { show::BucketNames::Library };
        if self.args.strict {
            let answer = self.strict(&query);
            if self.args.json {
                print(&self.with_log(&answer))?;
            } else {
                let about = format!("{job} (strict)");
                self.show(&about, &answer.answer, names, Some(&answer.repairs))?;
            }
            return tensorboard::of_events(self.args, &answer.answer);
        }
        let answer = answer::ask(&mut self.calculator(), &self.log, &query, &self.labels);
        if self.args.json {
            print(&self.with_log(&answer))?;
        } else {
            let about = format!("{job} (as ml-goodput-measurement {})", self.args.compat);
            self.show(&about, &answer, names, None)?;
        }
        tensorboard::of_events(self.args, &answer)
    }

    fn show(
        &self,
        about: &str,
        answer: &LedgerAnswer,
        names: show::BucketNames,
        repairs: Option<&strict::Repairs>,
    ) -> CommandResult {
        if let LedgerAnswer::Failed(failed) = answer {
            let what = format_args!("{about}: {}: {}", failed.error.name(), failed.message);
            return Err(remedies::no_answer_of_log(what, self.why_no_answer(failed)));
        }
        output::print(&show::answer(about, answer, names, repairs))?;
        Ok(Exit::Ok)
    }

    /// Why a query has no answer.
    fn why_no_answer(&self, failed: &FailedAnswer) -> NoAnswer {
        if let Some((first, last)) = self.outside_the_window() {
            return NoAnswer::OutsideTheWindow { first, last };
        }
        if let Some(first) = self.after_now() {
            return NoAnswer::NowIsBefore(first);
        }
        if self.args.strict {
            return NoAnswer::Strict;
        }
        if let Some(at) = self.without_epoch_seconds() {
            return NoAnswer::WithoutEpochSeconds(at);
        }
        match self.not_looked_back_to() {
            Some((first, needed_days)) if failed.error == ExceptionKind::ValueError => {
                NoAnswer::NotLookedBackTo { first, lookback_days: self.args.lookback_days, needed_days }
            }
            _ => NoAnswer::Other,
        }
    }

    /// The times of the first and the last entry, if no time between them is in the window.
    fn outside_the_window(&self) -> Option<(Micros, Micros)> {
        let (start, end) = (self.args.start?, self.args.end?);
        let mut times = self.log.iter().map(|entry| entry.time.micros());
        let first = times.next()?;
        let last = times.last().unwrap_or(first);
        (last < start || end < first).then_some((first, last))
    }

    /// The time of the first entry, if that is not before the time of the query.
    fn after_now(&self) -> Option<Micros> {
        let first = self.log.iter().next()?.time.micros();
        let whole = self.args.start.is_none();
        (whole && self.args.now.unwrap_or_else(present) <= first).then_some(first)
    }

    /// The first entry of the window that the library cannot assign to it.
    fn without_epoch_seconds(&self) -> Option<Micros> {
        let (start, end) = (self.args.start?, self.args.end?);
        let read = self.log.read(ReadFrom::After(start.into()), end);
        let mut entries = read.iter().map(|&id| self.log.entry(id));
        let undated = entries.find(|entry| entry.payload_time.instant().is_err())?;
        Some(undated.time.micros())
    }

    /// The first entry and the days since then, if the library's first read of the whole job starts after it.
    fn not_looked_back_to(&self) -> Option<(Micros, i64)> {
        const DAY: i64 = 86_400_000_000;
        let first = self.log.iter().next()?.time.micros();
        let since = self.args.now.unwrap_or_else(present).0.saturating_sub(first.0);
        let late = self.args.start.is_none() && since > i64::from(self.args.lookback_days) * DAY;
        late.then_some((first, since / DAY + 1))
    }
}

/// The user who asks.
fn own_uid() -> u32 {
    Uid::effective().as_raw()
}

fn present() -> Micros {
    Micros(SystemClock.now().0 / 1000)
}

fn print(value: &impl Serialize) -> CommandResult {
    output::json(value)?;
    Ok(Exit::Ok)
}
