//! A capture through the agent, which finds the workloads and stores the session. Closing the call ends the capture.

use std::{cell::RefCell, path::Path};

use cluster::channel;
use model::time::Timestamp;
use proto::tpuscope::v1::{
    CaptureFailure, CaptureFinished, CaptureRequest, capture_event, captures_client::CapturesClient,
    target_event,
};
use server::{protocol, session_messages};
use sessions::FailureKind;
use tonic::{Streaming, transport::Channel};
use xprof::session::SessionName;

use super::{
    super::{
        client,
        exit::Exit,
        failure::Failure,
        remedies::{self, KeptIn},
        sessions::fetch,
        uploads::wait,
    },
    Args,
    progress::ProgressLine,
    report::CaptureReport,
};
use crate::lifecycle::signals::StopSignals;

pub(super) fn capture(args: &Args) -> Result<CaptureReport, Failure> {
    let request = request(args)?;
    client::block_on(async {
        let mut signals = StopSignals::with_hangup().map_err(Failure::internal)?;
        let channel = args.agent.connect_as_in(&args.settings).await?;
        super::warn_of_long_window(args.duration.get());
        let stage = RefCell::new(CaptureStage::Capture);
        let end = tokio::select! {
            report = capture_and_fetch(channel, request, args, &stage) => return report,
            // Dropping the call closes its stream, and the agent ends the capture.
            _ = signals.next() => stage.take(),
        };
        Err(interrupted(&end))
    })
}

/// How far the command is.
#[derive(Debug, Default)]
enum CaptureStage {
    /// The agent captures.
    #[default]
    Capture,
    /// The session is copied out.
    Copy(SessionName),
    /// The agent uploads the session.
    Upload(SessionName),
}

fn interrupted(stage: &CaptureStage) -> Failure {
    match stage {
        CaptureStage::Capture => remedies::interrupted_capture(),
        CaptureStage::Copy(name) => remedies::interrupted_copy(name),
        CaptureStage::Upload(name) => remedies::interrupted_upload(name),
    }
}

/// The session stays in the agent's store too: what cannot be copied out is not lost.
async fn capture_and_fetch(
    channel: Channel,
    request: CaptureRequest,
    args: &Args,
    stage: &RefCell<CaptureStage>,
) -> Result<CaptureReport, Failure> {
    if let Some(output) = &args.output {
        fetch::check(args.session.as_ref(), output)?;
    }
    let (report, name) = ask(channel.clone(), request, ProgressLine::new(args.duration.get())).await?;
    let mut report = report.of_agent(&args.agent);
    if let Some(output) = &args.output {
        stage.replace(CaptureStage::Copy(name.clone()));
        let fetched = fetch::fetch(channel.clone(), &name, output).await;
        let fetched = fetched.map_err(|failure| remedies::kept_by_the_agent(failure, &name))?;
        report = report.now_in(fetched.folder);
    }
    match args.wait_upload {
        Some(limit) if report.is_uploaded_somewhere() => {
            stage.replace(CaptureStage::Upload(name.clone()));
            Ok(report.waited(wait::wait(channel, &name, limit.get()).await))
        }
        _ => Ok(report),
    }
}

/// What the arguments ask an agent for.
pub(super) fn request(args: &Args) -> Result<CaptureRequest, Failure> {
    let params = args.params()?;
    let nanoseconds = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Ok(CaptureRequest {
        peer: Some(protocol::own()),
        duration_ns: nanoseconds(params.duration),
        session: args.session.as_ref().map(ToString::to_string).unwrap_or_default(),
        host_tracer_level: params.levels.host,
        device_tracer_level: params.levels.device,
        python_tracer_level: params.levels.python,
        advanced: params.advanced.into_iter().collect(),
        start_unix_ns: params.start.map(|start| start.0),
        timeout_ns: params.timeout.map_or(0, nanoseconds),
        min_processes: params.min_parts,
        pids: args.pid.clone(),
        destination: args.to.clone().unwrap_or_default(),
    })
}

async fn ask(
    channel: Channel,
    request: CaptureRequest,
    progress: ProgressLine,
) -> Result<(CaptureReport, SessionName), Failure> {
    let mut captures = CapturesClient::new(channel);
    let events = client::within(client::CALL_TIMEOUT, captures.capture(request)).await?.into_inner();
    let received = receive(events, &progress).await;
    progress.finish();
    report(received?)
}

/// The session that the agent kept, and its name.
pub(super) fn report(finished: CaptureFinished) -> Result<(CaptureReport, SessionName), Failure> {
    let CaptureFinished { session, failure, manifest, failures, uploads } = finished;
    let Some(session) = session else { return Err(kept_nothing(failure.as_ref())) };
    let name = session.id.parse().map_err(|error| {
        Failure::new(Exit::Internal, format_args!("the agent's name of the session is no name: {error}"))
    })?;
    let no_manifest = || Failure::new(Exit::Internal, "the agent's answer has no manifest");
    let manifest = session_messages::manifest_of(manifest.ok_or_else(no_manifest)?);
    let manifest = manifest
        .map_err(|error| Failure::new(Exit::Internal, format_args!("the agent's answer: {error}")))?;
    let folder = Path::new(&session.path);
    Ok((CaptureReport::new(manifest, failures, folder, KeptIn::AgentStore).going_to(&uploads), name))
}

/// Why the agent kept nothing.
fn kept_nothing(failure: Option<&CaptureFailure>) -> Failure {
    let Some(failure) = failure else { return Failure::new(Exit::Internal, "the agent gives no reason") };
    // This command did not cancel it: then it would not be here.
    if FailureKind::named(&failure.kind) == FailureKind::Cancelled {
        return remedies::agent_stopped_in_capture();
    }
    remedies::capture_failure(failure, KeptIn::AgentStore)
}

async fn receive(
    mut events: Streaming<proto::tpuscope::v1::CaptureEvent>,
    progress: &ProgressLine,
) -> Result<CaptureFinished, Failure> {
    loop {
        let event = events.message().await.map_err(|status| {
            if channel::ended(&status) {
                remedies::agent_ended_in_capture()
            } else {
                remedies::refused(&status)
            }
        })?;
        let event = event.ok_or_else(remedies::agent_ended_in_capture)?;
        match event.event {
            Some(capture_event::Event::Started(started)) => {
                progress.started(started.targets.len(), Timestamp(started.start_unix_ns));
            }
            Some(capture_event::Event::Target(target)) => match target.event {
                Some(target_event::Event::ReceivedBytes(bytes)) => {
                    progress.received(target.index as usize, bytes);
                }
                Some(target_event::Event::Part(_) | target_event::Event::Failed(_)) => progress.done(),
                // Of a later agent.
                None => {}
            },
            Some(capture_event::Event::Finished(finished)) => return Ok(finished),
            None => {}
        }
    }
}
