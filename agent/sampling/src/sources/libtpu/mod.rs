//! The libtpu SDK, called in a child process.
//!
//! [`child`] is that process: the hidden subcommand of this binary, in a [`sandbox`]. [`process`] is its handle
//! on the agent's side; the two speak [`wire`]. [`locate`] finds libraries, [`trust`] says which may be loaded and
//! by whom, [`supervisor`] when a child is started, replaced or given up, [`decode`] what the SDK's strings mean.
//!
//! Must never load a libtpu into the agent, wait for one beyond a deadline, or start one again without a wait.

pub mod child;
mod decode;
pub mod locate;
pub mod process;
mod sandbox;
pub mod supervisor;
pub mod trust;
mod wire;

use std::{fs, future::Future, os::unix::fs::MetadataExt, path::Path, pin::Pin, sync::Arc, time::Duration};

use decode::Context;
use locate::Surroundings;
use model::{
    device::Chip,
    job::Job,
    sample::{Origin, Sample},
    time::Timestamp,
    untrusted::{self, clean},
    workload::{Address, EndpointKind, Workloads},
};
use process::{ChildFailure, ChildProcess, Launch};
use proto::tpuscope::v1::{ChildReply, LibraryInfo};
use supervisor::{Order, Policy, Supervisor};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use trust::{Rights, Trusted, trust};

use crate::{
    settings::libtpu::{Enabled, Libtpu as Settings},
    sources::{Absence, Reading, Source, Tick},
};

/// A whole read stays below this: the sampler gives up one that takes 5 s.
const BUDGET: Duration = Duration::from_millis(4500);
/// One metric: above the 2 s that newer libtpus give a metric service.
const METRIC: Duration = Duration::from_millis(2250);
/// Finding and loading a library: it may have to come from a cold disk.
const START: Duration = Duration::from_secs(30);
/// How long the first read waits for the library, so that the first tick already has values.
const START_PATIENCE: Duration = Duration::from_millis(1500);
/// The port of the only workload that the SDK reads from.
const SDK_PORT: u16 = 8431;

/// Why no child could be started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("no libtpu was found; libtpu.path names one")]
    NotFound,
    #[error("{} is not loaded: {why}", .path.display())]
    Untrusted { path: std::path::PathBuf, why: trust::TrustError },
    #[error("looking for libtpu took too long: a file system does not answer")]
    Stuck,
    #[error("{0}")]
    Child(#[from] ChildFailure),
    #[error("{path} has no metrics to ask for: {why}")]
    Useless { path: String, why: String },
}

/// A child with its library loaded.
#[derive(Debug)]
struct Ready {
    child: ChildProcess,
    library: Trusted,
    /// What tells this file from one put in its place.
    file: Option<(u64, u64, i64)>,
    info: LibraryInfo,
    /// The metrics that this libtpu may be asked for.
    names: Arc<[String]>,
    /// Where the next round begins: at the metric that the last one did not get to.
    next: usize,
}

#[derive(Debug)]
enum Child {
    None,
    Starting(AbortOnDropHandle<Result<Ready, StartError>>),
    Ready(Box<Ready>),
}

/// The source.
#[derive(Debug)]
pub struct Libtpu {
    settings: Settings,
    surroundings: Surroundings,
    launch: Launch,
    supervisor: Supervisor,
    child: Child,
    /// Time begins here for the supervisor.
    start: Instant,
    /// Why there is no child.
    fault: Option<String>,
}

impl Libtpu {
    /// A source with the agent's settings; `launch` is how its child is started.
    pub fn new(settings: Settings, surroundings: Surroundings, launch: Launch) -> Self {
        let policy = Policy {
            max_age: settings.max_age.get(),
            max_memory: settings.max_memory.get(),
            ..Policy::default()
        };
        Self::with_policy(settings, surroundings, launch, policy)
    }

    /// [`new`](Self::new) with other figures for the supervisor.
    pub fn with_policy(
        settings: Settings,
        surroundings: Surroundings,
        launch: Launch,
        policy: Policy,
    ) -> Self {
        Self {
            settings,
            surroundings,
            launch,
            supervisor: Supervisor::new(policy),
            child: Child::None,
            start: Instant::now(),
            fault: None,
        }
    }

    /// The process id of the child, while there is one.
    pub fn child_pid(&self) -> Option<u32> {
        match &self.child {
            Child::Ready(ready) => ready.child.pid(),
            Child::None | Child::Starting(_) => None,
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Why the SDK is not used on this host, if it is not.
    fn not_used(&self, tick: &Tick) -> Option<&'static str> {
        match self.settings.enabled {
            Enabled::Off => Some("it is switched off (libtpu.enabled)"),
            Enabled::Auto if tick.chips.is_empty() => {
                Some("this host shows no TPU; libtpu.enabled = \"on\" uses it all the same")
            }
            Enabled::Auto | Enabled::On => None,
        }
    }

    async fn read_once(&mut self, tick: &Tick) -> Reading {
        if let Some(why) = self.not_used(tick) {
            return missing(why);
        }
        let end = Instant::now() + BUDGET;
        if let Some(reading) = self.ensure_child(tick).await {
            return reading;
        }
        self.round(tick, end).await
    }

    /// Brings a child up; gives the reading that says why there is none.
    async fn ensure_child(&mut self, tick: &Tick) -> Option<Reading> {
        self.replace_for_new_file().await;
        let memory = match &self.child {
            Child::Ready(ready) => ready.child.resident(),
            Child::None | Child::Starting(_) => None,
        };
        let mut order = self.supervisor.order(self.now(), memory);
        if order == Order::Recycle {
            self.end_child().await;
            let now = self.now();
            self.supervisor.recycled(now, fastrand::f64());
            tracing::info!(memory, "the libtpu child is replaced");
            self.fault = Some("its process grew too fast".to_owned());
            order = self.supervisor.order(now, None);
        }
        match order {
            Order::Start => {
                self.begin_start(tick.workloads.clone());
                self.await_start().await
            }
            Order::AwaitStart => self.await_start().await,
            Order::Use => None,
            Order::Recycle => Some(missing("its process is being replaced")),
            Order::Wait { left, tripped } => Some(self.waiting(left, tripped)),
        }
    }

    fn waiting(&self, left: Duration, tripped: bool) -> Reading {
        let fault = self.fault.as_deref().unwrap_or("it failed");
        let seconds = left.as_secs() + 1;
        let rest = if tripped { ", after failing again and again" } else { "" };
        missing(&format!("{fault}; the next attempt is in {seconds} s{rest}"))
    }

    fn begin_start(&mut self, workloads: Arc<Workloads>) {
        self.supervisor.starting();
        let starting =
            start(self.settings.clone(), self.surroundings.clone(), self.launch.clone(), workloads);
        let task: JoinHandle<_> = tokio::spawn(starting);
        self.child = Child::Starting(AbortOnDropHandle::new(task));
    }

    async fn await_start(&mut self) -> Option<Reading> {
        let Child::Starting(task) = &mut self.child else { return Some(missing("it is not started")) };
        let Ok(joined) = timeout(START_PATIENCE, task).await else {
            return Some(missing("it is still being loaded"));
        };
        let now = self.now();
        match joined {
            Ok(Ok(ready)) => {
                tracing::info!(path = ready.info.path, version = ready.info.version, "libtpu is loaded");
                self.supervisor.up(now);
                self.child = Child::Ready(Box::new(ready));
                self.fault = None;
                None
            }
            Ok(Err(error)) => Some(self.gone(clean(&error.to_string(), 2 * untrusted::MESSAGE))),
            Err(_aborted) => Some(self.gone("its start was interrupted".to_owned())),
        }
    }

    /// The child is gone, or never came up.
    fn gone(&mut self, fault: String) -> Reading {
        self.child = Child::None;
        self.supervisor.failed(self.now(), fastrand::f64());
        // The same words again and again are one line in the log.
        if self.fault.as_deref() != Some(&fault) {
            tracing::warn!("libtpu gives no metrics: {fault}");
        }
        self.fault = Some(fault);
        match self.supervisor.order(self.now(), None) {
            Order::Wait { left, tripped } => self.waiting(left, tripped),
            _ => missing("it failed"),
        }
    }

    async fn end_child(&mut self) {
        if let Child::Ready(ready) = &mut self.child {
            ready.child.kill().await;
        }
        self.child = Child::None;
    }

    /// An upgrade of libtpu on disk gets a new child.
    async fn replace_for_new_file(&mut self) {
        let Child::Ready(ready) = &self.child else { return };
        if identity(&ready.library.path) != ready.file {
            tracing::info!("libtpu was replaced on disk");
            self.end_child().await;
            self.supervisor.replaced(self.now());
        }
    }

    /// Asks for every metric once, as far as the time allows.
    async fn round(&mut self, tick: &Tick, end: Instant) -> Reading {
        let now = self.now();
        let mut reading = Reading::default();
        let Child::Ready(ready) = &mut self.child else { return reading };
        let context = Context { at: tick.at, chips: &tick.chips, job: job_of_sdk(&tick.workloads) };
        let names = ready.names.clone();
        let mut empty = Vec::new();
        let mut fatal = None;
        let mut asked = 0;
        for name in names.iter().cycle().skip(ready.next).take(names.len()) {
            if Instant::now() + METRIC > end {
                break;
            }
            asked += 1;
            if let Some(left) = self.supervisor.left_out(name, now) {
                let why = format!(
                    "asking for it ended libtpu's process; it is left out for {} s",
                    left.as_secs() + 1
                );
                reading.absent.push(Absence { what: format!("libtpu {name}"), why });
                continue;
            }
            match ready.child.metric(name, METRIC).await {
                Ok(value) if value.values.is_empty() => empty.push(name.as_str()),
                Ok(value) => add(&mut reading, name, &value.values, &context),
                Err(failure) if failure.is_fatal() => {
                    self.supervisor.set_aside(name, now);
                    fatal = Some((name, failure));
                    break;
                }
                Err(refused) => {
                    let why = refused.to_string();
                    reading.absent.push(Absence { what: format!("libtpu {name}"), why });
                }
            }
        }
        ready.next = (ready.next + asked) % names.len().max(1);
        if !empty.is_empty() {
            let why = format!("nobody on this host serves {}", empty.join(", "));
            reading.absent.push(Absence { what: "libtpu metrics without values".to_owned(), why });
        }
        if let Some((name, failure)) = fatal {
            let fault = format!("{failure} when it was asked for {name}");
            reading.absent.extend(self.gone(fault).absent);
            return reading;
        }
        if asked < names.len() {
            let why = format!(
                "libtpu is slow: {} of {} metrics wait for the next read",
                names.len() - asked,
                names.len()
            );
            reading.absent.push(Absence { what: "libtpu".to_owned(), why });
        }
        self.supervisor.worked();
        reading
    }
}

fn missing(why: &str) -> Reading {
    let absence = Absence { what: "libtpu".to_owned(), why: why.to_owned() };
    Reading { samples: Vec::new(), absent: vec![absence] }
}

fn add(reading: &mut Reading, name: &str, values: &[String], context: &Context<'_>) {
    let decoded = decode::decode(name, values, context);
    let room = MOST_SAMPLES.saturating_sub(reading.samples.len());
    reading.samples.extend(decoded.samples.into_iter().take(room));
    reading.absent.extend(decoded.trouble.map(|why| Absence { what: format!("libtpu {name}"), why }));
}

/// The samples of the values that the SDK gives for `name`, without I/O.
pub fn decode_values(name: &str, values: &[String], chips: &[Chip]) -> Vec<Sample> {
    let context = Context { at: Timestamp(0), chips, job: None };
    decode::decode(name, values, &context).samples
}

/// The child's replies in a stream of frames, up to its end or the first bad frame. Without I/O.
pub fn decode_replies(mut stream: &[u8]) -> Vec<ChildReply> {
    std::iter::from_fn(|| wire::receive(&mut stream, wire::MAX_REPLY).ok().flatten()).collect()
}

/// Most samples of one read.
const MOST_SAMPLES: usize = 16 * 1024;

/// The job of the workload behind the SDK's port, if it is one alone.
fn job_of_sdk(workloads: &Workloads) -> Option<Arc<Job>> {
    let serves = |address: &Address| matches!(address, Address::Tcp(at) if at.port() == SDK_PORT);
    let mut jobs = workloads.owners.iter().filter(|owner| {
        let mut metrics = owner.endpoints.iter().filter(|one| one.kind == EndpointKind::RuntimeMetrics);
        owner.shares_our_network && metrics.any(|endpoint| serves(&endpoint.address))
    });
    let first = &jobs.next()?.job;
    jobs.all(|owner| owner.job == *first).then(|| Arc::new(first.clone()))
}

fn identity(path: &Path) -> Option<(u64, u64, i64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino(), metadata.mtime()))
}

/// Finds a library that may be loaded, and loads it in a new child.
async fn start(
    settings: Settings,
    surroundings: Surroundings,
    launch: Launch,
    workloads: Arc<Workloads>,
) -> Result<Ready, StartError> {
    let finding = tokio::task::spawn_blocking(move || {
        find(&settings, &surroundings, &workloads).map(|library| (identity(&library.path), library))
    });
    let found = timeout(START, finding).await.map_err(|_| StartError::Stuck)?;
    let (file, library) = found.map_err(|_| StartError::Stuck)??;
    let mut child = ChildProcess::start(&Launch { user: library.user, ..launch })?;
    let info = child.load(&library.path, START).await?;
    if info.metric_names.is_empty() {
        let why = if info.fault.is_empty() { "it is too old".to_owned() } else { info.fault };
        return Err(StartError::Useless { path: info.path, why });
    }
    let names = info.metric_names.iter().cloned().collect();
    Ok(Ready { child, library, file, info, names, next: 0 })
}

/// The first library that may be loaded; without one, why the first found may not.
fn find(
    settings: &Settings,
    surroundings: &Surroundings,
    workloads: &Workloads,
) -> Result<Trusted, StartError> {
    let rights = Rights::of_this_process(settings.owner_copies);
    let mut refused = None;
    for path in locate::candidates(settings.path.as_deref(), surroundings, workloads) {
        match trust(&path, rights) {
            Ok(library) => return Ok(library),
            Err(why) => refused = refused.or(Some(StartError::Untrusted { path, why })),
        }
    }
    Err(refused.unwrap_or(StartError::NotFound))
}

impl Source for Libtpu {
    fn origin(&self) -> Origin {
        Origin::Libtpu
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(self.read_once(tick))
    }
}
