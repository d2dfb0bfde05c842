//! `tpuscope snapshot`: a session of what the recorder has of the past.

use std::{cell::RefCell, path::PathBuf, time};

use cluster::channel;
use model::{
    time::{Clock, SystemClock, Timestamp},
    unit::Duration,
};
use proto::tpuscope::v1::{
    CaptureFinished, SnapshotEvent, SnapshotRequest, recorder_client::RecorderClient, snapshot_event,
};
use server::protocol;
use sessions::coordinator::{HostsCapture, HostsRequest};
use tonic::{Streaming, transport::Channel};
use xprof::session::SessionName;

use super::{
    agent, hosts, instant,
    report::{self, CaptureReport, NothingKept},
};
use crate::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    hosts::{HEADING, HostsArgs, WHICH, some_time},
    lifecycle::signals::StopSignals,
    output_path, remedies,
    sessions::{fetch, progress::ByteProgress},
    uploads::wait,
};

/// The longest silence of an agent that works on a snapshot.
const SILENCE: time::Duration = time::Duration::from_secs(600);

/// Arguments of `snapshot`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The time before now that is wanted, such as 60s or 10m
    #[arg(long, value_name = "TIME", default_value = "60s", conflicts_with_all = ["from", "until"])]
    last: Duration,
    /// Begin of the time that is wanted, as YYYY-MM-DDTHH:MM:SSZ (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = instant)]
    from: Option<jiff::Timestamp>,
    /// End of the time that is wanted [default: now]
    #[arg(long = "until", value_name = "TIME", value_parser = instant, requires = "from")]
    until: Option<jiff::Timestamp>,
    /// Only the job with this [KIND:]ID, such as train or slurm:12 [default: all jobs that you own]
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Name of the session [default: the time in UTC, such as 2027_01_31_12_00_00]
    #[arg(long, value_name = "NAME")]
    session: Option<SessionName>,
    /// Folder for the session, as DIR/plugins/profile/NAME; an agent keeps it in its store as well [default: the agent's
    /// store alone; with --hosts the current folder]
    #[arg(short, long, value_name = "DIR", value_parser = output_path::parser())]
    output: Option<PathBuf>,
    /// Destination of the agent's settings that the session is uploaded to; `none` for no upload, not even to the
    /// destinations for every session
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    to: Option<String>,
    /// Wait until the session is uploaded, for at most this time [default without a value: 10m]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10m")]
    wait_upload: Option<Duration>,
    /// Print JSON (docs/schemas/capture.schema.json)
    #[arg(long)]
    json: bool,
    /// Minimum number of hosts that must have something; with fewer, nothing is kept
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..),
        requires = WHICH, help_heading = HEADING)]
    min_hosts: u32,
    /// Time limit for the whole snapshot; hosts that are not done are missing [default: none]
    #[arg(long, value_name = "TIME", requires = WHICH, value_parser = some_time, help_heading = HEADING)]
    overall_timeout: Option<Duration>,
    #[command(flatten)]
    hosts: HostsArgs,
    #[command(flatten)]
    agent: client::SocketArgs,
}

/// How far the command is.
#[derive(Debug, Default)]
enum SnapshotStage {
    /// The agent makes the session.
    #[default]
    Snapshot,
    /// The session is copied out.
    Copy(SessionName),
    /// The agent uploads the session.
    Upload(SessionName),
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let result = match args.hosts.is_given() {
        true if args.agent.is_given() => return Err(remedies::socket_of_another_host()),
        true => of_hosts(args),
        false => snapshot(args).map_err(NothingKept::from),
    };
    report::print(result, args.json)
}

/// Each host's own past: its clock is measured, and it is asked for the wanted time in that.
fn of_hosts(args: &Args) -> Result<CaptureReport, NothingKept> {
    let wait_upload = args.wait_upload.map(time::Duration::from);
    let keep = hosts::keep(args.output.as_deref(), args.to.as_deref(), wait_upload)?;
    let snapshot = HostsCapture {
        hosts: Vec::new(),
        request: HostsRequest::Snapshot(args.request()?),
        session: args.session.clone(),
        keep,
        min_hosts: args.min_hosts as usize,
        start: None,
        host_limit: args.hosts.host_timeout(),
        answer_limit: SILENCE,
        busy_limit: time::Duration::ZERO,
        overall_limit: args.overall_timeout.map(time::Duration::from),
    };
    hosts::run(&args.hosts, snapshot, None)
}

fn snapshot(args: &Args) -> Result<CaptureReport, Failure> {
    let request = args.request()?;
    client::block_on(async {
        let mut signals = StopSignals::with_hangup().map_err(Failure::internal)?;
        let channel = args.agent.connect().await?;
        let stage = RefCell::new(SnapshotStage::Snapshot);
        let end = tokio::select! {
            report = make_and_fetch(channel, request, args, &stage) => return report,
            // Dropping the call closes its stream, and the agent ends the snapshot.
            _ = signals.next() => stage.take(),
        };
        Err(match end {
            SnapshotStage::Snapshot => remedies::interrupted_snapshot(),
            SnapshotStage::Copy(name) => remedies::interrupted_copy(&name),
            SnapshotStage::Upload(name) => remedies::interrupted_upload(&name),
        })
    })
}

impl Args {
    fn request(&self) -> Result<SnapshotRequest, Failure> {
        let now = SystemClock.now();
        let ns = |at: jiff::Timestamp| {
            i64::try_from(at.as_nanosecond())
                .map_err(|_| Failure::new(Exit::Usage, format_args!("{at} is out of range")))
        };
        let to = self.until.map(ns).transpose()?.map_or(now, Timestamp);
        let last = i64::try_from(self.last.get().as_nanos()).unwrap_or(i64::MAX);
        let from = match self.from {
            Some(from) => Timestamp(ns(from)?),
            None => now.stepped(last.saturating_neg()),
        };
        if from >= to {
            return Err(Failure::new(Exit::Usage, "the time that is wanted ends before it begins")
                .remedy("give --last more than 0s, or --from a time before --until"));
        }
        Ok(SnapshotRequest {
            peer: Some(protocol::own()),
            from_unix_ns: from.0,
            to_unix_ns: to.0,
            job: self.job.clone().unwrap_or_default(),
            session: self.session.as_ref().map(ToString::to_string).unwrap_or_default(),
            destination: self.to.clone().unwrap_or_default(),
            ..SnapshotRequest::default()
        })
    }
}

/// The session stays in the agent's store too: what cannot be copied out is not lost.
async fn make_and_fetch(
    channel: Channel,
    request: SnapshotRequest,
    args: &Args,
    stage: &RefCell<SnapshotStage>,
) -> Result<CaptureReport, Failure> {
    if let Some(output) = &args.output {
        fetch::check(args.session.as_ref(), output)?;
    }
    let mut recorder = RecorderClient::new(channel.clone());
    let events = client::within(client::CALL_TIMEOUT, recorder.snapshot(request)).await?.into_inner();
    let finished = receive(events).await?;
    let (report, name) = agent::report(channel.clone(), finished, Vec::new()).await?;
    let mut report = report.of_agent(&args.agent);
    if let Some(output) = &args.output {
        stage.replace(SnapshotStage::Copy(name.clone()));
        let fetched = fetch::fetch(channel.clone(), &name, output).await;
        let fetched = fetched.map_err(|failure| remedies::kept_by_the_agent(failure, &name))?;
        report = report.now_in(fetched.folder);
    }
    match args.wait_upload {
        Some(limit) if report.is_uploaded_somewhere() => {
            stage.replace(SnapshotStage::Upload(name.clone()));
            Ok(report.waited(wait::wait(channel, &name, limit.get()).await))
        }
        _ => Ok(report),
    }
}

async fn receive(mut events: Streaming<SnapshotEvent>) -> Result<CaptureFinished, Failure> {
    let mut progress = ByteProgress::new("making the session");
    loop {
        let event = tokio::time::timeout(SILENCE, events.message()).await;
        let event = event.map_err(|_| remedies::call_timeout(SILENCE))?.map_err(|status| {
            if channel::ended(&status) { remedies::connection_closed() } else { remedies::refused(&status) }
        })?;
        match event.ok_or_else(remedies::connection_closed)?.event {
            Some(snapshot_event::Event::Progress(at)) => progress.at(at.done_bytes, at.bytes),
            Some(snapshot_event::Event::Finished(finished)) => return Ok(finished),
            // Of a later agent.
            None => {}
        }
    }
}
