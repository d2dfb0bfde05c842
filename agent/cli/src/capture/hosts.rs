//! A capture over several hosts: one window, one session. This command coordinates it; the agents record.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cluster::hosts::HostAddress;
use model::time::{Clock, SystemClock};
use proto::tpuscope::v1::CaptureRequest;
use server::protocol;
use sessions::{
    coordinator::{Coordinator, CoordinatorError, HostFault, HostsCapture, Keep},
    settings::Settings,
    spec::check_start,
};
use store::destinations::NO_DESTINATION;
use tokio_util::sync::CancellationToken;
use xprof::session::remove_abandoned;

use super::{
    Args,
    agent::request,
    at_step,
    direct::{ABANDONED, failed},
    hosts_progress::HostsProgressLine,
    report::{CaptureReport, NothingKept},
};
use crate::{
    client,
    failure::Failure,
    hosts::{NoHostAnswer, dialer},
    lifecycle::signals::StopSignals,
    remedies,
    sessions::outfile::is_a_folder_or_new,
};

/// The longest wait for uploads where none is given.
const UPLOADS: Duration = Duration::from_secs(600);

pub(super) fn capture(args: &Args) -> Result<CaptureReport, NothingKept> {
    let (request, keep) = (request(args)?, keep(args)?);
    if let Keep::Folder(output) = &keep {
        is_a_folder_or_new(output)?;
        // Leftovers only take room: what cannot be removed is no reason not to capture.
        let _ = remove_abandoned(output, SystemClock.now().into(), ABANDONED);
    }
    client::block_on(async { Ok(coordinate(args, request, keep).await) })?
}

/// Captures, until a signal of this command ends it.
async fn coordinate(args: &Args, request: CaptureRequest, keep: Keep) -> Result<CaptureReport, NothingKept> {
    let mut signals = StopSignals::with_hangup().map_err(Failure::internal)?;
    let (hosts, dialer) = dialer(&args.hosts).await?;
    if args.min_hosts as usize > hosts.len() {
        return Err(remedies::min_hosts_over_hosts(args.min_hosts, hosts.len()).into());
    }
    super::warn_of_long_window(args.duration.get());
    let mut capture = HostsCapture { hosts, ..planned(args, request, keep)? };
    if let Some(wanted) = args.wanted_step() {
        capture.start = Some(tokio::select! {
            start = at_step::on_hosts(&args.hosts, wanted) => start?,
            _ = signals.next() => return Err(remedies::interrupted_wait_for_step().into()),
        });
    }
    let given = capture.hosts.iter().map(ToString::to_string).collect();
    let uploads = matches!(capture.keep, Keep::Destination { .. });
    let progress = Arc::new(HostsProgressLine::new(args.duration.get(), given, uploads));
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
    Ok(CaptureReport::of_hosts(kept.map_err(nothing_kept)?))
}

fn nothing_kept(error: CoordinatorError) -> NothingKept {
    let hosts = match &error {
        CoordinatorError::TooFewHosts { hosts, .. } => {
            let of_host = |(host, fault): &(HostAddress, Option<HostFault>)| {
                (host.to_string(), fault.as_ref().map(NoHostAnswer::from))
            };
            hosts.iter().map(of_host).collect()
        }
        _ => Vec::new(),
    };
    NothingKept::of_hosts(remedies::hosts_capture(error), hosts)
}

/// Without a host yet.
fn planned(args: &Args, request: CaptureRequest, keep: Keep) -> Result<HostsCapture, Failure> {
    let params = args.params()?;
    let wrong = params.start.and_then(|start| check_start(start, SystemClock.now()).err());
    wrong.map_or(Ok(()), |error| Err(failed(&error.into())))?;
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

/// Where the session goes to.
fn keep(args: &Args) -> Result<Keep, Failure> {
    match args.to.as_deref().filter(|name| *name != NO_DESTINATION) {
        Some(_) if args.output.is_some() => Err(remedies::option_of_one_host(
            "--output together with --to",
            "leave one of them out; `tpuscope sessions fetch` copies a session from its bucket",
        )),
        Some(name) => {
            let limit = args.wait_upload.map_or(UPLOADS, Duration::from);
            Ok(Keep::Destination { name: name.to_owned(), limit })
        }
        None if args.wait_upload.is_some() => Err(remedies::option_of_one_host(
            "--wait-upload without --to",
            "name a destination with --to, or leave it out",
        )),
        None => Ok(Keep::Folder(args.output.clone().unwrap_or_else(|| PathBuf::from(".")))),
    }
}
