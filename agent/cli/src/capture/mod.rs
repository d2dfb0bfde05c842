//! `tpuscope capture`: through the agent of this host, from profilers without an agent, or over several hosts.

mod agent;
mod at_step;
mod direct;
mod hosts;
mod hosts_progress;
mod older_agent;
mod progress;
mod report;
pub(super) mod snapshot;
mod status_line;

use std::{collections::BTreeMap, path::PathBuf, time};

use model::{
    time::{Clock, SystemClock, Timestamp},
    unit::Duration,
};
use sessions::spec::{CaptureParams, Levels};
use xprof::{client::Target, session::SessionName};

use at_step::WantedStep;

use super::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    hosts::{HEADING, HostsArgs, WHICH, some_time},
    output, output_path, remedies, settings_args,
};

/// Arguments of `capture`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Length of the trace in whole milliseconds, such as 500ms or 2s
    #[arg(long, default_value = "2s")]
    duration: Duration,
    /// Name of the session [default: the time in UTC, such as 2027_01_31_12_00_00]
    #[arg(long, value_name = "NAME")]
    session: Option<SessionName>,
    /// Profiler to trace without an agent; repeatable
    #[arg(long, value_name = "HOST:PORT", conflicts_with = WHICH)]
    target: Vec<Target>,
    /// Also trace a process of this host with a jaxlib before 0.9: without TensorFlow it stops for ever when it is profiled
    #[arg(long, requires = "target")]
    allow_old_jaxlib: bool,
    /// Folder for the session, as DIR/plugins/profile/NAME; an agent keeps the session in its store as well
    /// [default: the agent's store alone; with --target or --hosts the current folder]
    #[arg(short, long, value_name = "DIR", value_parser = output_path::parser())]
    output: Option<PathBuf>,
    /// Level of host events: 0 none, 1 user annotations, 2 also expensive operations, 3 all [default: 2]
    #[arg(long, value_name = "LEVEL")]
    host_tracer_level: Option<u32>,
    /// Level of device events: 0 none, 1 all [default: 1]
    #[arg(long, value_name = "LEVEL")]
    device_tracer_level: Option<u32>,
    /// Level of Python calls: 0 none, 1 all, which slows down the job during the trace [default: 0]
    #[arg(long, value_name = "LEVEL")]
    python_tracer_level: Option<u32>,
    /// Advanced profiler option, such as tpu_trace_mode=TRACE_COMPUTE; repeatable; docs/capture.md lists them
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    option: Vec<(String, String)>,
    /// Start of the trace, at most an hour from now, as YYYY-MM-DDTHH:MM:SSZ (RFC 3339) [default: immediately]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    start_at: Option<jiff::Timestamp>,
    /// Start of the trace, so long from now, at most an hour
    #[arg(long, value_name = "TIME", conflicts_with = "start_at")]
    start_in: Option<Duration>,
    /// Start of the trace when this step is predicted to begin, at most a day from now; the recorder has to know the
    /// numbers of the job's steps
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with_all = ["start_at", "start_in", "target"])]
    at_step: Option<i64>,
    /// With --at-step: job whose steps count, [KIND:]ID; needed where several jobs have step numbers
    #[arg(long, value_name = "JOB", requires = "at_step")]
    step_job: Option<String>,
    /// Time limit for receiving the traces, counted from the end of the recording [default: the setting
    /// capture.timeout]
    #[arg(long)]
    timeout: Option<Duration>,
    /// Minimum number of processes that must return a trace; with fewer, nothing is kept
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    min_processes: u32,
    /// Destination of the agent's settings that the session is uploaded to; `none` for no upload, not even to the
    /// destinations for every session
    // An empty text is the value of a variable that is not set, not a choice of no destination.
    #[arg(long, value_name = "NAME", conflicts_with = "target",
        value_parser = clap::builder::NonEmptyStringValueParser::new())]
    to: Option<String>,
    /// Wait until the session is uploaded, for at most this time [default without a value: 10m]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10m",
        conflicts_with = "target")]
    wait_upload: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Process to trace through the agent; repeatable [default: all workloads that you own]
    #[arg(long, value_name = "PID", conflicts_with_all = ["target", WHICH])]
    pid: Vec<u32>,
    /// Minimum number of hosts that must have a trace; with fewer, nothing is kept
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..),
        requires = WHICH, help_heading = HEADING)]
    min_hosts: u32,
    /// Wait for hosts whose profilers are in use, by tpuscope or another program, for at most this time
    #[arg(long, value_name = "TIME", requires = WHICH, help_heading = HEADING)]
    wait: Option<Duration>,
    /// Time limit for the whole capture; hosts that are not done are missing [default: none]
    #[arg(long, value_name = "TIME", requires = WHICH, value_parser = some_time, help_heading = HEADING)]
    overall_timeout: Option<Duration>,
    #[command(flatten)]
    hosts: HostsArgs,
    #[command(flatten)]
    agent: client::SocketArgs,
    #[command(flatten)]
    settings: settings_args::Args,
}

/// An instant on the command line.
fn instant(text: &str) -> Result<jiff::Timestamp, &'static str> {
    // The parser's own message is about its internals.
    text.parse().map_err(|_| "expected an RFC 3339 time: YYYY-MM-DDTHH:MM:SSZ")
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Args {
    /// The step at which the window is to begin.
    fn wanted_step(&self) -> Option<WantedStep<'_>> {
        let (job, pids) = (self.step_job.as_deref(), &self.pid[..]);
        self.at_step.map(|step| WantedStep { step, job, pids })
    }

    fn params(&self) -> Result<CaptureParams, Failure> {
        let mut advanced = BTreeMap::new();
        for (key, value) in &self.option {
            if advanced.insert(key.clone(), value.clone()).is_some() {
                return Err(Failure::new(Exit::Usage, format_args!("--option {key} is given twice")));
            }
        }
        let start = self.start_at.map(|at| i64::try_from(at.as_nanosecond())).transpose();
        let start = start.map_err(|_| Failure::new(Exit::Usage, "--start-at is out of range"))?;
        // No time at all is what is meant without it: as soon as possible.
        let start_in = self.start_in.map(Duration::get).filter(|after| !after.is_zero());
        let start_in = start_in.map(|after| SystemClock.now().plus(after));
        if self.timeout.is_some_and(|timeout| timeout.get().is_zero()) {
            return Err(Failure::new(Exit::Usage, "--timeout must be more than 0 s"));
        }
        Ok(CaptureParams {
            duration: self.duration.get(),
            levels: Levels {
                host: self.host_tracer_level,
                device: self.device_tracer_level,
                python: self.python_tracer_level,
            },
            advanced,
            start: start.map(Timestamp).or(start_in),
            timeout: self.timeout.map(time::Duration::from),
            min_parts: self.min_processes,
            at_step: self.at_step,
        })
    }
}

/// Warns of a long window before it begins.
fn warn_of_long_window(duration: time::Duration) {
    if let Some(warning) = remedies::long_window(duration) {
        output::print_error(&warning);
    }
}

pub(super) fn run(args: &Args) -> CommandResult {
    if args.target.is_empty() && args.settings.named_by_flags() {
        return Err(remedies::settings_of_the_agent());
    }
    let result = match (args.hosts.is_given(), args.target.is_empty()) {
        (true, _) if args.agent.is_given() => return Err(remedies::socket_of_another_host()),
        (true, _) => hosts::capture(args),
        (false, true) => agent::capture(args).map_err(Into::into),
        (false, false) => direct::capture(args).map_err(Into::into),
    };
    report::print(result, args.json)
}
