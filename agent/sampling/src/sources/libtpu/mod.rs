//! The libtpu SDK, called in a child process.
//!
//! [`child`] is that process: the hidden subcommand of this binary, in a [`sandbox`]. [`child_process`] is its handle
//! on the agent's side; the two speak [`child_protocol`]. [`locate`] finds libraries, [`trust`] says which may be
//! loaded and by whom, [`metric_names`] which metrics may be requested, [`child_lifecycle`] when a child is started,
//! replaced or given up, [`sdk_values`] what the SDK's strings mean.
//!
//! Must never load a libtpu into the agent, wait for one beyond a deadline, or start one again without a wait.

pub mod child;
pub mod child_lifecycle;
pub mod child_process;
mod child_protocol;
mod library_files;
pub mod locate;
mod metric_names;
mod sandbox;
mod sdk_values;
pub mod trust;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use child_lifecycle::{ChildAction, ChildLifecycle, ChildPolicy};
use child_process::{ChildCommand, ChildFailure, ChildProcess};
use library_files::{FileIdentity, HostFiles, LibraryFiles};
use locate::LibrarySearch;
use model::{
    device::Chip,
    sample::{Origin, Sample},
    time::Timestamp,
    untrusted::{self, clean},
    workload::{Address, EndpointKind, Workload, Workloads},
};
use proto::tpuscope::v1::{ChildReply, LibraryInfo};
use sdk_values::SampleContext;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use trust::Trusted;

use crate::{
    own_metrics,
    settings::libtpu::{Enabled, Settings},
    sources::{
        Absence, Reading, Source, Tick,
        blocking::{BlockingSlots, Unanswered},
    },
};

/// A whole read stays below this: the sampler gives up one that takes 5 s.
const BUDGET: Duration = Duration::from_millis(4500);
/// One metric: above the 2 s that newer libtpus give a metric service.
const METRIC: Duration = Duration::from_millis(2250);
/// The time limit for finding and loading a library, which may be read from a slow disk.
const START: Duration = Duration::from_secs(30);
/// How long the first read waits for the library, so that the first tick already has values.
const START_PATIENCE: Duration = Duration::from_millis(1500);
/// The port of the only workload that the SDK reads from.
const SDK_PORT: u16 = 8431;

/// How long the library's file may take to show whether it was replaced.
const FILE_CHECK: Duration = Duration::from_millis(250);

/// Why no child could be started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("no libtpu was found; libtpu.path names one")]
    NotFound,
    #[error("{} is not loaded: {why}", .path.display())]
    Untrusted { path: std::path::PathBuf, why: trust::TrustError },
    #[error("the search for libtpu was given up: {0}")]
    Unanswered(#[from] Unanswered),
    #[error("{0}")]
    Child(#[from] ChildFailure),
    #[error("{path} has no metrics to ask for: {why}")]
    Useless { path: String, why: String },
}

/// A child with its library loaded.
#[derive(Debug)]
struct LoadedChild {
    child: ChildProcess,
    library: Trusted,
    /// Differs when another file is put in its place.
    file: Option<FileIdentity>,
    info: LibraryInfo,
    /// The metrics that may be requested from this libtpu.
    names: Arc<[String]>,
    /// Where the next round begins: at the metric that the last one did not get to.
    next: usize,
}

#[derive(Debug)]
enum ChildState {
    None,
    Starting(AbortOnDropHandle<Result<LoadedChild, StartError>>),
    Loaded(Box<LoadedChild>),
}

/// The source.
#[derive(Debug)]
pub struct LibtpuSource {
    settings: Settings,
    search: LibrarySearch,
    launch: ChildCommand,
    /// Library files may lie on any disk.
    slots: BlockingSlots,
    files: Arc<dyn LibraryFiles>,
    lifecycle: ChildLifecycle,
    child: ChildState,
    /// Zero of the times that are passed to `lifecycle`.
    start: Instant,
    /// Why there is no child.
    fault: Option<String>,
    /// Whether that is because the host has no library, and the settings ask for none.
    not_installed: bool,
}

impl LibtpuSource {
    /// A source with the agent's settings; `launch` is how its child is started.
    pub fn new(settings: Settings, search: LibrarySearch, launch: ChildCommand) -> Self {
        let policy = ChildPolicy {
            max_age: settings.max_age.get(),
            max_memory: settings.max_memory.get(),
            ..ChildPolicy::default()
        };
        Self::with_policy(settings, search, launch, policy)
    }

    /// [`new`](Self::new) with other limits and waits of the child.
    pub fn with_policy(
        settings: Settings,
        search: LibrarySearch,
        launch: ChildCommand,
        policy: ChildPolicy,
    ) -> Self {
        Self {
            settings,
            search,
            launch,
            slots: BlockingSlots::new(1),
            files: Arc::new(HostFiles),
            lifecycle: ChildLifecycle::new(policy),
            child: ChildState::None,
            start: Instant::now(),
            fault: None,
            not_installed: false,
        }
    }

    /// The process id of the child, while there is one.
    pub fn child_pid(&self) -> Option<u32> {
        match &self.child {
            ChildState::Loaded(ready) => ready.child.pid(),
            ChildState::None | ChildState::Starting(_) => None,
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Why the SDK is not used on this host, if it is not.
    fn not_used(&self, tick: &Tick) -> Option<&'static str> {
        match self.settings.enabled {
            Enabled::Off => Some("it is off (libtpu.enabled)"),
            Enabled::Auto if tick.host.chips.is_empty() => {
                Some("this host shows no TPU; libtpu.enabled = \"on\" uses the SDK all the same")
            }
            Enabled::Auto | Enabled::On => None,
        }
    }

    async fn read_once(&mut self, tick: &Tick) -> Reading {
        if let Some(why) = self.not_used(tick) {
            return Reading::unused(why);
        }
        let end = Instant::now() + BUDGET;
        if let Some(reading) = self.ensure_child(tick).await {
            return reading;
        }
        self.round(tick, end).await
    }

    /// Starts a child, or returns the reading with the reason why there is none.
    async fn ensure_child(&mut self, tick: &Tick) -> Option<Reading> {
        self.replace_for_new_file().await;
        let memory = match &self.child {
            ChildState::Loaded(ready) => ready.child.resident(),
            ChildState::None | ChildState::Starting(_) => None,
        };
        let mut action = self.lifecycle.next_action(self.now(), memory);
        if action == ChildAction::Recycle {
            self.end_child().await;
            let now = self.now();
            self.lifecycle.recycled(now, fastrand::f64());
            tracing::info!(memory, "replacing the libtpu child");
            self.fault = Some("its process grew too fast".to_owned());
            action = self.lifecycle.next_action(now, None);
        }
        match action {
            ChildAction::Start => {
                self.begin_start(tick.host.workloads.clone());
                self.await_start().await
            }
            ChildAction::AwaitStart => self.await_start().await,
            ChildAction::Use => None,
            ChildAction::Recycle => Some(missing("its process is being replaced")),
            ChildAction::Wait { left, tripped } => Some(self.waiting(left, tripped)),
        }
    }

    fn waiting(&self, left: Duration, tripped: bool) -> Reading {
        let fault = self.fault.as_deref().unwrap_or("it failed");
        let seconds = left.as_secs() + 1;
        let rest = if tripped { ", after repeated failures" } else { "" };
        self.without_child(&format!("{fault}; the next attempt is in {seconds} s{rest}"))
    }

    /// The reading without a child. A host without the library has nothing to read.
    fn without_child(&self, why: &str) -> Reading {
        if self.not_installed { Reading::unused(why) } else { missing(why) }
    }

    fn begin_start(&mut self, workloads: Arc<Workloads>) {
        self.lifecycle.starting();
        let starting = start(
            self.settings.clone(),
            self.search.clone(),
            self.launch.clone(),
            workloads,
            self.slots.clone(),
            Arc::clone(&self.files),
        );
        self.child = ChildState::Starting(AbortOnDropHandle::new(tokio::spawn(starting)));
    }

    async fn await_start(&mut self) -> Option<Reading> {
        let ChildState::Starting(task) = &mut self.child else { return Some(missing("it is not started")) };
        let Ok(joined) = timeout(START_PATIENCE, task).await else {
            return Some(missing("it is still being loaded"));
        };
        let now = self.now();
        match joined {
            Ok(Ok(ready)) => {
                tracing::info!(path = ready.info.path, version = ready.info.version, "libtpu is loaded");
                self.lifecycle.up(now);
                self.child = ChildState::Loaded(Box::new(ready));
                self.fault = None;
                self.not_installed = false;
                None
            }
            Ok(Err(error)) if self.may_be_absent(&error) => {
                self.not_installed = true;
                Some(self.gone(error.to_string()))
            }
            Ok(Err(error)) => Some(self.failed(clean(&error.to_string(), 2 * untrusted::MESSAGE))),
            Err(_aborted) => Some(self.failed("its start was interrupted".to_owned())),
        }
    }

    /// Whether a start failed for a library that nobody asked for.
    fn may_be_absent(&self, error: &StartError) -> bool {
        matches!(error, StartError::NotFound)
            && self.settings.enabled == Enabled::Auto
            && self.settings.path.is_none()
    }

    /// The library or its process failed.
    fn failed(&mut self, fault: String) -> Reading {
        self.not_installed = false;
        self.gone(fault)
    }

    /// The child is gone, or never came up.
    fn gone(&mut self, fault: String) -> Reading {
        self.child = ChildState::None;
        own_metrics::child_failed();
        self.lifecycle.failed(self.now(), fastrand::f64());
        // A repeated message is one line in the log.
        match self.fault.as_deref() != Some(&fault) {
            true if self.not_installed => tracing::info!("libtpu is not used: {fault}"),
            true => tracing::warn!("libtpu gives no metrics: {fault}"),
            false => {}
        }
        self.fault = Some(fault);
        match self.lifecycle.next_action(self.now(), None) {
            ChildAction::Wait { left, tripped } => self.waiting(left, tripped),
            _ => self.without_child("it failed"),
        }
    }

    async fn end_child(&mut self) {
        if let ChildState::Loaded(ready) = &mut self.child {
            ready.child.kill().await;
        }
        self.child = ChildState::None;
    }

    /// An upgrade of libtpu on disk gets a new child. While the file system does not answer, the child stays in use.
    async fn replace_for_new_file(&mut self) {
        let ChildState::Loaded(ready) = &self.child else { return };
        let (path, files) = (ready.library.path.clone(), Arc::clone(&self.files));
        let Ok(file) = self.slots.run(FILE_CHECK, move || files.identity(&path)).await else { return };
        if file != ready.file {
            tracing::info!("libtpu was replaced on disk");
            self.end_child().await;
            self.lifecycle.replaced(self.now());
        }
    }

    /// Asks for every metric once, as far as the time allows.
    async fn round(&mut self, tick: &Tick, end: Instant) -> Reading {
        let now = self.now();
        let mut reading = Reading::default();
        let ChildState::Loaded(ready) = &mut self.child else { return reading };
        let context = SampleContext { at: tick.at, chips: &tick.host.chips, workload: workload_of_sdk(tick) };
        let names = ready.names.clone();
        let mut empty = Vec::new();
        let mut fatal = None;
        let mut asked = 0;
        for name in names.iter().cycle().skip(ready.next).take(names.len()) {
            if Instant::now() + METRIC > end {
                break;
            }
            asked += 1;
            if let Some(left) = self.lifecycle.left_out(name, now) {
                let why = format!(
                    "asking for it ended libtpu's process; it is not asked again for {} s",
                    left.as_secs() + 1
                );
                reading.absent.push(Absence::partial(format!("libtpu {name}"), why));
                continue;
            }
            match ready.child.metric(name, METRIC).await {
                Ok(value) if value.values.is_empty() => empty.push(name.as_str()),
                Ok(value) => add(&mut reading, name, &value.values, &context),
                Err(failure) if failure.is_fatal() => {
                    self.lifecycle.set_aside(name, now);
                    fatal = Some((name, failure));
                    break;
                }
                Err(refused) => {
                    let why = refused.to_string();
                    reading.absent.push(Absence::partial(format!("libtpu {name}"), why));
                }
            }
        }
        ready.next = (ready.next + asked) % names.len().max(1);
        if !empty.is_empty() {
            let why = format!("no process on this host serves {}", empty.join(", "));
            if reading.samples.is_empty() && reading.absent.is_empty() && asked == names.len() {
                reading.unused = Some(why);
            } else {
                reading.absent.push(Absence::partial("libtpu metrics without values", why));
            }
        }
        if let Some((name, failure)) = fatal {
            let fault = format!("{failure} when it was asked for {name}");
            reading.absent.extend(self.failed(fault).absent);
            return reading;
        }
        if asked < names.len() {
            let why = format!(
                "libtpu is slow: {} of {} metrics wait for the next read",
                names.len() - asked,
                names.len()
            );
            reading.absent.push(Absence::partial("libtpu", why));
        }
        self.lifecycle.worked();
        reading
    }
}

fn missing(why: &str) -> Reading {
    Reading { absent: vec![Absence::new("libtpu", why)], ..Reading::default() }
}

fn add(reading: &mut Reading, name: &str, values: &[String], context: &SampleContext<'_>) {
    let decoded = sdk_values::decode(name, values, context);
    let room = MOST_SAMPLES.saturating_sub(reading.samples.len());
    reading.samples.extend(decoded.samples.into_iter().take(room));
    reading.absent.extend(decoded.fault.map(|why| Absence::partial(format!("libtpu {name}"), why)));
}

/// The samples of the values that the SDK gives for `name`, without I/O.
pub fn decode_values(name: &str, values: &[String], chips: &[Chip]) -> Vec<Sample> {
    let context = SampleContext { at: Timestamp(0), chips, workload: None };
    sdk_values::decode(name, values, &context).samples
}

/// The child's replies in a stream of frames, up to its end or the first bad frame. Without I/O.
pub fn decode_replies(mut stream: &[u8]) -> Vec<ChildReply> {
    std::iter::from_fn(|| child_protocol::receive(&mut stream, child_protocol::MAX_REPLY).ok().flatten())
        .collect()
}

/// Most samples of one read.
const MOST_SAMPLES: usize = 16 * 1024;

/// The workload behind the SDK's port, if it is one alone.
fn workload_of_sdk(tick: &Tick) -> Option<Arc<Workload>> {
    let serves = |address: &Address| matches!(address, Address::Tcp(at) if at.port() == SDK_PORT);
    let owners = tick.host.workloads.owners.iter().filter(|owner| {
        let mut metrics = owner.endpoints.iter().filter(|one| one.kind == EndpointKind::RuntimeMetrics);
        owner.shares_our_network && metrics.any(|endpoint| serves(&endpoint.address))
    });
    let mut workloads = owners.map(|owner| tick.workload(owner));
    let first = workloads.next()??;
    workloads.all(|other| other.is_some_and(|other| other.id == first.id)).then_some(first)
}

/// Finds a library that may be loaded, and loads it in a new child.
async fn start(
    settings: Settings,
    search: LibrarySearch,
    launch: ChildCommand,
    workloads: Arc<Workloads>,
    slots: BlockingSlots,
    files: Arc<dyn LibraryFiles>,
) -> Result<LoadedChild, StartError> {
    let find = move || {
        files.find(&settings, &search, &workloads).map(|library| (files.identity(&library.path), library))
    };
    let (file, library) = slots.run(START, find).await??;
    let mut child = ChildProcess::start(&ChildCommand { user: library.user, ..launch })?;
    let info = child.load(&library.path, START).await?;
    if info.metric_names.is_empty() {
        let why = if info.fault.is_empty() { "it is too old".to_owned() } else { info.fault };
        return Err(StartError::Useless { path: info.path, why });
    }
    let names = info.metric_names.iter().cloned().collect();
    Ok(LoadedChild { child, library, file, info, names, next: 0 })
}

impl Source for LibtpuSource {
    fn origin(&self) -> Origin {
        Origin::Libtpu
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(self.read_once(tick))
    }
}

#[cfg(test)]
mod tests;
