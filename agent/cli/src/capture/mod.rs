//! `tpuscope capture`.

mod agent;
mod direct;
mod progress;
mod report;

use std::{collections::BTreeMap, path::PathBuf, time};

use model::{time::Timestamp, unit::Duration};
use sessions::spec::{CaptureParams, Levels};
use xprof::{client::Target, session::SessionName};

use super::{
    Outcome, client,
    exit::{Exit, Failure},
    settings_args,
};

/// Arguments of `capture`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Length of the window
    #[arg(long, default_value = "2s")]
    duration: Duration,
    /// Name of the session [default: the local time]
    #[arg(long, value_name = "NAME")]
    session: Option<SessionName>,
    /// Ask this profiler directly, without an agent; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    target: Vec<Target>,
    /// Folder to write plugins/profile/SESSION below [default with --target: the current one; else the agent's
    /// store alone]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Host events: 0 none, 1 the user's, 2 costly operations too, 3 all [default: 2]
    #[arg(long, value_name = "LEVEL")]
    host_tracer_level: Option<u32>,
    /// Device events: 0 none, 1 all [default: 1]
    #[arg(long, value_name = "LEVEL")]
    device_tracer_level: Option<u32>,
    /// Python calls: 0 none, 1 all; slows the job while it records [default: 0]
    #[arg(long, value_name = "LEVEL")]
    python_tracer_level: Option<u32>,
    /// Advanced profiler option, such as tpu_trace_mode=TRACE_COMPUTE; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    option: Vec<(String, String)>,
    /// When the window begins, such as 2027-01-31T12:00:00Z [default: at once]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    start_at: Option<jiff::Timestamp>,
    /// How long the answers may take after the window [default: capture.timeout of the settings]
    #[arg(long)]
    timeout: Option<Duration>,
    /// Keep nothing unless so many processes gave a trace
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    min_processes: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only this process, through the agent; may be given several times
    #[arg(long, value_name = "PID", conflicts_with = "target")]
    pid: Vec<u32>,
    #[command(flatten)]
    agent: client::Socket,
    #[command(flatten)]
    settings: settings_args::Args,
}

fn instant(text: &str) -> Result<jiff::Timestamp, &'static str> {
    // The reader's own words are about its insides.
    text.parse()
        .map_err(|_| "write a time of RFC 3339 that is not too far away, such as 2027-01-31T12:00:00Z")
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Args {
    fn params(&self) -> Result<CaptureParams, Failure> {
        let mut advanced = BTreeMap::new();
        for (key, value) in &self.option {
            if advanced.insert(key.clone(), value.clone()).is_some() {
                return Err(Failure::new(Exit::Usage, format_args!("--option {key} is given twice")));
            }
        }
        let start = self.start_at.map(|at| i64::try_from(at.as_nanosecond())).transpose();
        let start = start.map_err(|_| Failure::new(Exit::Usage, "--start-at is out of range"))?;
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
            start: start.map(Timestamp),
            timeout: self.timeout.map(time::Duration::from),
            min_parts: self.min_processes,
        })
    }
}

pub(super) fn run(args: &Args) -> Outcome {
    let result = if args.target.is_empty() { agent::capture(args) } else { direct::capture(args) };
    report::print(result, args.json)
}
