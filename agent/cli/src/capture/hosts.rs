//! A capture or a snapshot over several hosts: one window, one session. This command coordinates it; the agents record.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use model::time::{Clock, SystemClock};
use server::protocol;
use sessions::{
    coordinator::{Coordinator, HostFault, HostStage, HostsCapture, HostsRequest, Keep, UnkeptCapture},
    settings::Settings,
    spec::check_start,
};
use store::destinations::NO_DESTINATION;
use tokio_util::sync::CancellationToken;
use xprof::session::remove_abandoned;

use super::{
    Args,
    agent::request,
    at_step::{self, WantedStep},
    direct::{ABANDONED, failed},
    hosts_progress::HostsProgressLine,
    report::{CaptureReport, NothingKept},
};
use crate::{
    client,
    failure::Failure,
    hosts::{HostsArgs, dialer},
    lifecycle::signals::StopSignals,
    remedies,
    sessions::outfile::is_a_folder_or_new,
};

/// The longest wait for uploads where none is given.
const UPLOADS: Duration = Duration::from_secs(600);
/// Why hosts have no trace in a capture that cannot be kept here.
const NOT_ASKED: HostFault = HostFault::NotKept(HostStage::NotAsked);

pub(super) fn capture(args: &Args) -> Result<CaptureReport, NothingKept> {
    let request = HostsRequest::Capture(request(args)?);
    let keep = keep(args.output.as_deref(), args.to.as_deref(), args.wait_upload.map(Duration::from))?;
    run(&args.hosts, planned(args, request, keep)?, args.wanted_step())
}

/// Makes the session, whose window begins `at_step` if that is given. `capture` has no host yet.
pub(super) fn run(
    args: &HostsArgs,
    capture: HostsCapture,
    at_step: Option<WantedStep<'_>>,
) -> Result<CaptureReport, NothingKept> {
    client::block_on(async { Ok(coordinate(args, capture, at_step).await) })?
}

/// Captures, until a signal of this command ends it.
async fn coordinate(
    args: &HostsArgs,
    capture: HostsCapture,
    at_step: Option<WantedStep<'_>>,
) -> Result<CaptureReport, NothingKept> {
    let mut signals = StopSignals::with_hangup().map_err(Failure::internal)?;
    let (hosts, dialer) = dialer(args).await?;
    if capture.min_hosts > hosts.len() {
        return Err(remedies::min_hosts_over_hosts(capture.min_hosts, hosts.len()).into());
    }
    if let Keep::Folder(output) = &capture.keep {
        let is_usable = is_a_folder_or_new(output);
        is_usable
            .map_err(|failure| NothingKept::of_hosts(failure, hosts.iter().map(|host| (host, &NOT_ASKED))))?;
        // Leftovers only take room: what cannot be removed is no reason not to capture.
        let _ = remove_abandoned(output, SystemClock.now().into(), ABANDONED);
    }
    let window = match &capture.request {
        HostsRequest::Capture(window) => Some(Duration::from_nanos(window.duration_ns)),
        HostsRequest::Snapshot(_) => None,
    };
    if let Some(window) = window {
        super::warn_of_long_window(window);
    }
    let mut capture = HostsCapture { hosts, ..capture };
    if let Some(step) = at_step {
        capture.start = Some(tokio::select! {
            start = at_step::on_hosts(args, step) => start?,
            _ = signals.next() => return Err(remedies::interrupted_wait_for_step().into()),
        });
    }
    let given = capture.hosts.iter().map(ToString::to_string).collect();
    let uploads = matches!(capture.keep, Keep::Destination { .. });
    let progress = Arc::new(HostsProgressLine::new(window, given, uploads, capture.start));
    let shown = Arc::clone(&progress);
    let coordinator = Coordinator {
        dialer,
        clock: Arc::new(SystemClock),
        peer: protocol::own(),
        listener: Arc::new(move |event| shown.show(event)),
    };
    let cancel = CancellationToken::new();
    let kept = {
        let mut capturing = Box::pin(coordinator.capture(capture, &cancel));
        tokio::select! {
            kept = &mut capturing => kept,
            _ = signals.next() => {
                cancel.cancel();
                capturing.await
            }
        }
    };
    progress.finish();
    Ok(CaptureReport::of_hosts(kept.map_err(|error| nothing_kept(error, window.is_none()))?))
}

fn nothing_kept(UnkeptCapture { error, hosts }: UnkeptCapture, is_snapshot: bool) -> NothingKept {
    let failure = if is_snapshot {
        remedies::hosts_snapshot(error, &hosts)
    } else {
        remedies::hosts_capture(error, &hosts)
    };
    NothingKept::of_hosts(failure, hosts.iter().map(|(host, fault)| (host, fault)))
}

/// Without a host yet.
fn planned(args: &Args, request: HostsRequest, keep: Keep) -> Result<HostsCapture, Failure> {
    let params = args.params()?;
    let wrong = params.start.and_then(|start| check_start(start, SystemClock.now()).err());
    wrong.map_or(Ok(()), |error| Err(failed(&error.into())))?;
    if let Some(overall) = args.overall_timeout.map(Duration::from) {
        let ahead = params.start.map(|start| SystemClock.now().age(start)).unwrap_or_default();
        if ahead + params.duration > overall {
            return Err(remedies::window_over_limit(ahead, params.duration, overall));
        }
    }
    Ok(HostsCapture {
        hosts: Vec::new(),
        request,
        session: args.session.clone(),
        keep,
        min_hosts: args.min_hosts as usize,
        start: params.start,
        host_limit: args.hosts.host_timeout(),
        answer_limit: params.timeout.unwrap_or(Settings::default().timeout.get()),
        busy_limit: args.wait.map(Duration::from).unwrap_or_default(),
        overall_limit: args.overall_timeout.map(Duration::from),
    })
}

/// Where the session goes to: the arguments --output, --to and --wait-upload.
pub(super) fn keep(
    output: Option<&Path>,
    to: Option<&str>,
    wait_upload: Option<Duration>,
) -> Result<Keep, Failure> {
    match to.filter(|name| *name != NO_DESTINATION) {
        Some(_) if output.is_some() => Err(remedies::option_of_one_host(
            "--output together with --to",
            "leave one of them out; `tpuscope sessions fetch` copies a session from its bucket",
        )),
        Some(name) => Ok(Keep::Destination { name: name.to_owned(), limit: wait_upload.unwrap_or(UPLOADS) }),
        None if wait_upload.is_some() => Err(remedies::option_of_one_host(
            "--wait-upload without --to",
            "name a destination with --to, or leave it out",
        )),
        None => Ok(Keep::Folder(output.map_or_else(|| PathBuf::from("."), Path::to_path_buf))),
    }
}
