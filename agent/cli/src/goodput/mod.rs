//! `tpuscope goodput`: what share of a job's time was progress, and where the rest went.

mod json;
mod read;
mod show;
mod slots;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use goodput::{
    answer::{self, Answer, Failed},
    error::Kind,
    exact::{Calculator, Compat, Options},
    export::Labels,
    log::{From, Log},
    query::Query,
    strict::{self, StrictAnswer},
    time::{Micros, is_out_of_range, parse_instant},
};
use serde::Serialize;

use super::{CommandResult, exit::Exit, failure::Failure, output, output::one_line};

/// A file of queries may have so many bytes.
const QUERIES_BYTES: u64 = 16 << 20;

/// Arguments of `goodput`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true).args(["from_log", "from_slots"]))]
pub struct Args {
    /// An exported event log of ml-goodput-measurement: one JSON entry a line, or one array; `-` reads stdin
    #[arg(long, value_name = "FILE", requires = "job")]
    from_log: Option<PathBuf>,
    /// Device opens, duty cycles and step starts of one host, as a JSON object; `-` reads stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["job", "now", "start", "end", "queries", "strict", "compat"])]
    from_slots: Option<PathBuf>,
    /// The job, as its entries name it
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Ask as of this instant, RFC 3339 or epoch seconds [default: the present]
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = instant)]
    now: Option<Micros>,
    /// Ask about the window that starts here
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = instant, requires = "end")]
    start: Option<Micros>,
    /// Ask about the window that ends here
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = instant, requires = "start")]
    end: Option<Micros>,
    /// Give the numbers of this version of the library, its faults included
    #[arg(long, value_name = "VERSION", default_value_t, conflicts_with = "strict")]
    compat: Compat,
    /// Give numbers without the library's faults, and name every repair
    #[arg(long)]
    strict: bool,
    /// Answer the queries of this file, a JSON array, one after the other; prints an array
    #[arg(long, value_name = "FILE", conflicts_with_all = ["now", "start", "end"])]
    queries: Option<PathBuf>,
    /// Use the elastic calculator [default: if the log has elastic entries]
    #[arg(long)]
    elastic: bool,
    /// How far the library's first read looks back
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=3650))]
    lookback_days: u32,
    /// Name the buckets as the newer API's dashboards do
    #[arg(long)]
    dashboard_names: bool,
    /// Location in the Cloud Monitoring series: the log does not say it
    #[arg(long, value_name = "ZONE", default_value = "us-central1-a")]
    location: String,
    /// Accelerator in the Cloud Monitoring series, or a machine type to derive it from
    #[arg(long, value_name = "TYPE", default_value = "TPU-v6e")]
    accelerator_type: String,
    /// Replica in the Cloud Monitoring series
    #[arg(long, value_name = "ID", default_value = "0")]
    replica_id: String,
    /// Cluster in the Cloud Monitoring series
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn instant(text: &str) -> Result<Micros, String> {
    parse_instant(text).ok_or_else(|| match is_out_of_range(text) {
        true => "out of range".to_owned(),
        false => "neither RFC 3339 nor epoch seconds".to_owned(),
    })
}

pub(super) fn run(args: &Args) -> CommandResult {
    match (&args.from_slots, &args.from_log, &args.job) {
        (Some(file), ..) => slots::run(file, args.json),
        (None, Some(file), Some(job)) => from_log(args, file, job),
        _ => Err(Failure::new(Exit::Usage, "one of --from-log (with --job) and --from-slots is needed")),
    }
}

fn from_log(args: &Args, file: &Path, job: &str) -> CommandResult {
    if let (Some(start), Some(end)) = (args.start, args.end)
        && start >= end
    {
        return Err(Failure::new(Exit::Usage, format_args!("--start {start} is not before --end {end}"))
            .remedy("give the earlier instant as --start"));
    }
    let queries = args.queries.as_deref().map(read_queries).transpose()?;
    let read = read::entries(file, job)?;
    for warning in read.warnings() {
        output::print_error(&format!("warning: {}", one_line(&warning.to_string())));
    }
    let log = Log::from_entries(read.entries).map_err(|error| Failure::new(Exit::TooLarge, error))?;
    let ledger = Ledger { args, log, labels: labels(args, job) };
    match queries {
        Some(queries) => ledger.answer_all(&queries),
        None => ledger.answer_one(job),
    }
}

fn labels(args: &Args, job: &str) -> Labels {
    let derived = goodput::export::accelerator_type(&args.accelerator_type);
    // A machine type is lower case; a name such as `TPU-v6e` stands for itself.
    let given = args.accelerator_type.chars().any(char::is_uppercase) || derived == "UNKNOWN";
    Labels {
        location: args.location.clone(),
        workload_id: job.to_owned(),
        replica_id: args.replica_id.clone(),
        accelerator_type: if given { args.accelerator_type.clone() } else { derived.to_owned() },
        cluster_name: args.cluster_name.clone(),
    }
}

fn read_queries(file: &Path) -> Result<Vec<Query>, Failure> {
    let text = read::small(file, QUERIES_BYTES)?;
    serde_json::from_slice(&text).map_err(|error| {
        let what = json::place_and_words(&error, &text);
        Failure::new(Exit::BadInput, format_args!("{} {what}", file.display()))
            .remedy("a JSON array of objects such as {\"kind\": \"cumulative\", \"now\": 1772323442.0}; see docs/goodput.md")
    })
}

/// The log of a job and how to ask it.
struct Ledger<'a> {
    args: &'a Args,
    log: Log,
    labels: Labels,
}

impl Ledger<'_> {
    fn calculator(&self) -> Calculator {
        Calculator::new(Options {
            compat: self.args.compat,
            elastic: self.args.elastic || self.log.is_elastic(),
            lookback: i64::from(self.args.lookback_days) * 86_400_000_000,
        })
    }

    /// One calculator answers in order; a query may ask for a new one.
    fn answer_all(&self, queries: &[Query]) -> CommandResult {
        if self.args.strict {
            return print(&queries.iter().map(|query| self.strict(query)).collect::<Vec<_>>());
        }
        let mut calculator = self.calculator();
        let mut answers = Vec::with_capacity(queries.len());
        for query in queries {
            if query.reuse_calculator() == Some(false) {
                calculator = self.calculator();
            }
            answers.push(answer::ask(&mut calculator, &self.log, query, &self.labels));
        }
        print(&answers)
    }

    fn strict(&self, query: &Query) -> StrictAnswer {
        strict::ask(self.log.iter(), query, &self.labels)
    }

    fn query(&self) -> Query {
        let now = self.args.now.unwrap_or_else(present).seconds();
        match (self.args.start, self.args.end) {
            (Some(start), Some(end)) => Query::Interval {
                start: start.seconds(),
                end: end.seconds(),
                now: self.args.now.map(|_| now),
                reuse_calculator: None,
            },
            _ => Query::Cumulative { now, ideal_step_time: None, reuse_calculator: None },
        }
    }

    fn answer_one(&self, job: &str) -> CommandResult {
        let query = self.query();
        let names = if self.args.dashboard_names { show::Names::Dashboard } else { show::Names::Library };
        if self.args.strict {
            let answer = self.strict(&query);
            if self.args.json {
                return print(&answer);
            }
            let about = format!("{job} (strict)");
            return self.show(&about, &answer.answer, names, Some(&answer.repairs));
        }
        let answer = answer::ask(&mut self.calculator(), &self.log, &query, &self.labels);
        if self.args.json {
            return print(&answer);
        }
        let about = format!("{job} (as ml-goodput-measurement {})", self.args.compat);
        self.show(&about, &answer, names, None)
    }

    fn show(
        &self,
        about: &str,
        answer: &Answer,
        names: show::Names,
        repairs: Option<&strict::Repairs>,
    ) -> CommandResult {
        if let Answer::Failed(failed) = answer {
            return Err(Failure::new(
                Exit::BadInput,
                format_args!("{about}: {}: {}", failed.error, failed.message),
            )
            .remedy(self.remedy(failed)));
        }
        output::print(&show::answer(about, answer, names, repairs))?;
        Ok(Exit::Ok)
    }

    /// What to try where there is no answer.
    fn remedy(&self, failed: &Failed) -> String {
        if self.args.strict {
            return "see whether the log and the window belong together".into();
        }
        if let Some(at) = self.without_epoch_seconds() {
            return format!(
                "the library cuts a window by epoch seconds, which the entry of {at} does not give: \
                 ask with --strict"
            );
        }
        match self.not_looked_back_to() {
            Some(first) if failed.error == Kind::ValueError.name() => format!(
                "the log begins at {first}, before the {} days that the library looks back: \
                 give --now, --lookback-days or --strict",
                self.args.lookback_days
            ),
            _ => "see whether --strict gives an answer, and which repairs it names".into(),
        }
    }

    /// The first entry of a window whose place in it the library cannot tell.
    fn without_epoch_seconds(&self) -> Option<Micros> {
        let (start, end) = (self.args.start?, self.args.end?);
        let read = self.log.read(From::After(start.into()), end);
        let mut entries = read.iter().map(|&id| self.log.entry(id));
        let untold = entries.find(|entry| entry.payload_time.instant().is_err())?;
        Some(untold.time.micros())
    }

    /// The first entry, if the first read over the whole job begins after it; a window's has its own start.
    fn not_looked_back_to(&self) -> Option<Micros> {
        let first = self.log.iter().next()?.time.micros();
        let lookback = i64::from(self.args.lookback_days) * 86_400_000_000;
        let from = self.args.now.unwrap_or_else(present).plus(-lookback);
        (self.args.start.is_none() && first < from).then_some(first)
    }
}

fn present() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

fn print(value: &impl Serialize) -> CommandResult {
    output::json(value)?;
    Ok(Exit::Ok)
}

/// Opens a file; what is wrong with it, as a failure.
fn open(file: &Path) -> Result<fs::File, Failure> {
    let opened = fs::File::open(file).and_then(|opened| {
        let folder = opened.metadata()?.is_dir();
        if folder { Err(std::io::ErrorKind::IsADirectory.into()) } else { Ok(opened) }
    });
    opened.map_err(|error| {
        let exit = match error.kind() {
            std::io::ErrorKind::NotFound => Exit::NotFound,
            std::io::ErrorKind::PermissionDenied => Exit::Permission,
            std::io::ErrorKind::IsADirectory => Exit::BadInput,
            _ => Exit::Internal,
        };
        Failure::new(exit, format_args!("{}: {error}", file.display()))
    })
}
