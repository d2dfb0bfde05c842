//! A capture from the profilers of --target to a folder, without an agent.

use std::{path::PathBuf, sync::Arc, time::Duration};

use host::{
    chips::{self, ChipScan},
    settings::{
        device,
        paths::Paths,
        workload::{self, Discover, StaticEndpoint},
    },
    workloads::OwnerScanner,
};
use model::{
    device::Chip,
    time::{Clock, SystemClock},
    workload::{Address, EndpointKind},
};
use server::session_messages;
use sessions::{
    CaptureError,
    capture::{CaptureRun, CapturedSession, ProgressListener},
    profiler::Profilers,
    session_folder,
    spec::{CaptureSpec, ParamsSource},
    target::{self, Targets},
    trace_reading::TraceReader,
};
use tokio::runtime;
use tokio_util::sync::CancellationToken;
use xprof::{
    client::Target,
    session::{HostName, remove_abandoned},
};

use super::{
    super::{
        failure::Failure,
        remedies::{self, KeptIn},
    },
    Args,
    progress::ProgressLine,
    report::CaptureReport,
};
use crate::{lifecycle::signals::StopSignals, sessions::outfile::is_a_folder_or_new};

/// What dead captures left staged goes after this long without a change.
pub(super) const ABANDONED: Duration = Duration::from_secs(3600);

pub(super) fn capture(args: &Args) -> Result<CaptureReport, Failure> {
    let config = args.settings.load()?;
    let settings = config.capture;
    let spec = CaptureSpec::new(args.params()?, ParamsSource::Direct, &settings, SystemClock.now())
        .map_err(|error| failed(&error.into()))?;
    super::warn_of_long_window(spec.duration);
    let output = args.output.clone().unwrap_or_else(|| PathBuf::from("."));
    is_a_folder_or_new(&output)?;
    // Leftovers only take room: what cannot be removed is no reason not to capture.
    let _ = remove_abandoned(&output, SystemClock.now().into(), ABANDONED);
    let writer = session_folder::create(&output, args.session.clone(), SystemClock.now());
    let writer = writer.map_err(remedies::session_folder)?;
    let writer = Arc::new(writer);
    let host = nix::unistd::gethostname().map_err(Failure::internal)?;
    let host = HostName::sanitised(&host.to_string_lossy());
    let targets = targets(&args.target, &host, &config.paths, &config.device);
    let targets = if args.allow_old_jaxlib { targets } else { targets.without_old_jaxlib() };
    let progress = Arc::new(ProgressLine::new(spec.duration));
    let shown = Arc::clone(&progress);
    let listener: ProgressListener = Arc::new(move |event| shown.show_event(&event));
    let cancel = CancellationToken::new();
    let profilers = Profilers::new(config.paths.procfs);
    let capture = CaptureRun {
        spec,
        targets,
        settings,
        profilers,
        reader: TraceReader::new(Arc::new(SystemClock)),
        steps: None,
        listener,
        cancel: cancel.clone(),
        enough: CancellationToken::new(),
        share: None,
    };
    // One thread moves the bytes, a second checks and writes them.
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::internal)?;
    let kept = runtime.block_on(async {
        let signals = StopSignals::with_hangup().map_err(Failure::internal)?;
        let interrupted = tokio::spawn(cancel_on_signal(signals, cancel));
        let kept = capture.run(&writer, &SystemClock).await;
        interrupted.abort();
        kept.map_err(|error| failed(&error))
    });
    progress.finish();
    let CapturedSession { finished, failures } = kept?;
    let failures = failures.iter().map(session_messages::failure).collect();
    Ok(CaptureReport::new(finished.manifest, failures, &finished.folder, KeptIn::Folder))
}

/// The named profilers, with the processes behind those of this machine as far as this user sees them: also those without a
/// chip, whose jaxlib may be one that hangs.
fn targets(named: &[Target], host: &HostName, paths: &Paths, device: &device::Settings) -> Targets {
    let addresses = named.iter().flat_map(target::loopback_addresses);
    let endpoint = |at| StaticEndpoint { kind: EndpointKind::Profiler, address: Address::Tcp(at) };
    let endpoints: Vec<_> = addresses.map(endpoint).collect();
    if endpoints.is_empty() {
        return target::direct(named, host);
    }
    let ChipScan { chips, other_groups, .. } = chips::scan(paths, device);
    let chips: Arc<[Chip]> = chips.into();
    let settings = workload::Settings { endpoints, discover: Discover::Any, ..workload::Settings::default() };
    let mut scanner = OwnerScanner::new(paths.clone(), settings, Arc::clone(&chips));
    scanner.set_chips(Arc::clone(&chips), other_groups);
    let workloads = scanner.tick(SystemClock.now());
    target::direct_with_owners(named, host, &workloads, &chips)
}

pub(super) fn failed(error: &CaptureError) -> Failure {
    remedies::capture_failure(&session_messages::failure(error), KeptIn::Folder)
}

async fn cancel_on_signal(mut signals: StopSignals, cancel: CancellationToken) {
    signals.next().await;
    cancel.cancel();
}
