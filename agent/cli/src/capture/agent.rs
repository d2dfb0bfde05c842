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
use store::destinations::NO_DESTINATION;
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
    Args, at_step, older_agent,
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
    /// The step has not come at which the capture is to begin.
    Step,
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
        CaptureStage::Step => remedies::interrupted_wait_for_step(),
        CaptureStage::Capture => remedies::interrupted_capture(),
        CaptureStage::Copy(name) => remedies::interrupted_copy(name),
        CaptureStage::Upload(name) => remedies::interrupted_upload(name),
    }
}

/// The session stays in the agent's store too: what cannot be copied out is not lost.
async fn capture_and_fetch(
    channel: Channel,
    mut request: CaptureRequest,
    args: &Args,
    stage: &RefCell<CaptureStage>,
) -> Result<CaptureReport, Failure> {
    if let Some(output) = &args.output {
        fetch::check(args.session.as_ref(), output)?;
    }
    if args.to.as_deref().is_some_and(|name| name != NO_DESTINATION) {
        older_agent::takes_destinations(channel.clone()).await?;
    }
    if let Some(wanted) = args.wanted_step() {
        stage.replace(CaptureStage::Step);
        let start = at_step::on_this_host(&channel, wanted).await?;
        request.start_unix_ns = Some(start.0);
        stage.replace(CaptureStage::Capture);
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
        at_step: params.at_step,
    })
}

async fn ask(
    channel: Channel,
    request: CaptureRequest,
    progress: ProgressLine,
) -> Result<(CaptureReport, SessionName), Failure> {
    let mut captures = CapturesClient::new(channel.clone());
    let events = client::within(client::CALL_TIMEOUT, captures.capture(request)).await?.into_inner();
    let received = receive(events, &progress).await;
    progress.finish();
    let ReceivedCapture { finished, failed } = received?;
    report(channel, finished, failed).await
}

/// The session that the agent kept, and its name. `failed`: the targets that failed, which an agent of 0.1 does not repeat at
/// the end.
pub(super) async fn report(
    channel: Channel,
    finished: CaptureFinished,
    failed: Vec<CaptureFailure>,
) -> Result<(CaptureReport, SessionName), Failure> {
    let CaptureFinished { session, failure, manifest, failures, uploads } = finished;
    let Some(session) = session else { return Err(kept_nothing(failure.as_ref())) };
    let name = session.id.parse().map_err(|error| {
        Failure::new(Exit::Internal, format_args!("the agent's name of the session is no name: {error}"))
    })?;
    let (manifest, failures) = match manifest {
        Some(manifest) => {
            (session_messages::manifest_of(manifest).map_err(|error| bad_answer(&error))?, failures)
        }
        None => (older_agent::manifest(channel, &name).await?, failed),
    };
    let folder = Path::new(&session.path);
    Ok((CaptureReport::new(manifest, failures, folder, KeptIn::AgentStore).going_to(&uploads), name))
}

/// The agent's answer makes no sense.
pub(super) fn bad_answer(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Internal, format_args!("the agent's answer: {error}"))
}

/// What the agent said of a capture.
struct ReceivedCapture {
    finished: CaptureFinished,
    /// The targets that failed. The end of the capture names them too, but for agents of 0.1.
    failed: Vec<CaptureFailure>,
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
) -> Result<ReceivedCapture, Failure> {
    let mut failed = Vec::new();
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
                Some(target_event::Event::Part(_)) => progress.done(),
                Some(target_event::Event::Failed(failure)) => {
                    failed.push(failure);
                    progress.done();
                }
                // Of a later agent.
                None => {}
            },
            Some(capture_event::Event::Finished(finished)) => {
                return Ok(ReceivedCapture { finished, failed });
            }
            None => {}
        }
    }
}
