//! Runs one capture: ask, start all at once, receive, keep.
//!
//! ```text
//! stage parts ─ probe all ─ one start ─ profile all ─ enough? ─ make parts visible ─ manifest
//!      │            │                        │           │ no
//!      └────────────┴────────── fault ───────┴───────────┴──> nothing visible, profilers free
//! ```
//!
//! Parts are staged first: a folder that cannot be written is found before any workload is disturbed.
//! Must never leave a session running in a workload: whatever fails after the request, the stream is reset
//! and the session of our own id is ended.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use model::time::{Clock, Timestamp};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use xprof::{
    check::TraceSummary,
    client::{Bounds, Error, ProfilerClient, Received, Target},
    session::{
        HostEntry, HostName, MANIFEST_VERSION, Manifest, Missing, PartEntry, PartFacts, PartName, PartWriter,
        SessionName, SessionWriter, Tool, Window,
    },
};

use super::{
    port_users,
    spec::CaptureSpec,
    target::{CaptureTarget, Targets},
    trace_warnings,
};
use crate::{CaptureError, ProfilerCall, settings::Capture as Settings};

/// How long ending a session of ours may take.
const END: Duration = Duration::from_millis(500);
/// Lead of a common start beyond the slowest round trip: time for the requests to arrive and be set up.
const LEAD: Duration = Duration::from_millis(15);
const MAX_LEAD: Duration = Duration::from_millis(500);
/// A start that is later than this is worth a word.
const LATE: Duration = Duration::from_millis(50);

/// What happens while a capture runs, by index of the target.
#[derive(Debug, Clone)]
pub enum Event {
    /// Everybody was asked; the window begins at `start`.
    Started {
        /// Name of the session to be.
        session: SessionName,
        /// The targets, those that do not answer included.
        targets: Vec<CaptureTarget>,
        /// Begin of the window.
        start: Timestamp,
    },
    /// So many bytes of this target's answer have arrived.
    Received(usize, u64),
    /// This target's part is visible.
    Part(usize, PartEntry),
    /// This target gives no part.
    Failed(usize, CaptureError),
}

/// Hears of events; called from several tasks, must not block.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// A session that was kept.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Its manifest.
    pub manifest: Manifest,
    /// What failed, in order of the targets; empty when all that was asked for is there.
    pub failures: Vec<CaptureError>,
}

/// One capture to run.
pub struct Capture {
    /// What to record.
    pub spec: CaptureSpec,
    /// Of whom.
    pub targets: Targets,
    /// Deadlines of the questions before the window.
    pub settings: Settings,
    /// This host's procfs, to tell who has a busy profiler.
    pub procfs: PathBuf,
    /// Hears what happens.
    pub listener: Listener,
    /// Ends it early, with nothing kept.
    pub cancel: CancellationToken,
}

/// A target that gave a trace.
struct ReceivedPart {
    index: usize,
    part: PartWriter,
    summary: TraceSummary,
}

impl Capture {
    /// Runs it into `writer`'s session.
    ///
    /// # Errors
    /// When nothing is kept: the one failure that explains it best.
    pub async fn run(self, writer: &SessionWriter, clock: &dyn Clock) -> Result<Kept, CaptureError> {
        let this = Arc::new(self);
        let (parts, clients) = this.prepare(writer, clock).await?;
        let start = this.spec.start.or_else(|| common_start(&clients, clock.now()));
        let begin = start.unwrap_or_else(|| clock.now());
        let targets = this.targets.targets.clone();
        (this.listener)(Event::Started { session: writer.name().clone(), targets, start: begin });
        let until_start = begin.0.saturating_sub(clock.now().0);
        let within = Duration::from_nanos(u64::try_from(until_start).unwrap_or(0))
            + this.spec.duration
            + this.spec.timeout;
        let mut failures = BTreeMap::new();
        let mut recording = JoinSet::new();
        for (index, (part, client)) in parts.into_iter().zip(clients).enumerate() {
            match client {
                Ok((client, _)) => {
                    let id = format!("tpuscope-{}-{:016x}", writer.name(), fastrand::u64(..));
                    recording.spawn(Arc::clone(&this).record(index, client, part, id, start, within));
                }
                Err(failure) => {
                    (this.listener)(Event::Failed(index, failure.clone()));
                    failures.insert(index, failure);
                }
            }
        }
        let mut got = Vec::new();
        while let Some(result) = recording.join_next().await {
            match result.map_err(CaptureError::panicked)? {
                Ok(one) => got.push(one),
                Err((index, failure)) => {
                    (this.listener)(Event::Failed(index, failure.clone()));
                    failures.insert(index, failure);
                }
            }
        }
        if this.cancel.is_cancelled() {
            return Err(CaptureError::Cancelled);
        }
        this.enough(got.len(), &failures)?;
        got.sort_by_key(|one| one.index);
        this.keep(writer, got, failures, begin, start.is_some(), clock).await
    }

    /// Stages a part for every target and asks every target whether it is a profiler.
    async fn prepare(
        &self,
        writer: &SessionWriter,
        clock: &dyn Clock,
    ) -> Result<(Vec<PartWriter>, Vec<Asked>), CaptureError> {
        if self.targets.targets.is_empty() {
            return Err(no_target(&self.targets));
        }
        let names = part_names(&self.targets.targets);
        let parts = names.iter().map(|name| writer.part(name)).collect::<Result<Vec<_>, _>>()?;
        let mut asked = self.ask_all().await?;
        if let Some(until) = self.wait(clock.now()) {
            tokio::select! {
                () = tokio::time::sleep(until) => {}
                () = self.cancel.cancelled() => return Err(CaptureError::Cancelled),
            }
            // Connections that idle that long may be closed by then.
            asked = self.ask_all().await?;
        }
        Ok((parts, asked))
    }

    /// How long to wait before anybody is asked again. The workloads' servers could wait for the start
    /// themselves, but would be busy all the time, and deaf to a cancel.
    fn wait(&self, now: Timestamp) -> Option<Duration> {
        let ahead = u64::try_from(self.spec.start?.0.saturating_sub(now.0)).ok()?;
        let needed = self.settings.connect_timeout.get() + self.settings.probe_timeout.get() + MAX_LEAD;
        Duration::from_nanos(ahead).checked_sub(needed)
    }

    /// Asks every target whether it is a profiler; an error if too few are.
    async fn ask_all(&self) -> Result<Vec<Asked>, CaptureError> {
        let mut asking = JoinSet::new();
        for (index, target) in self.targets.targets.iter().enumerate() {
            let (at, settings, timeout) = (target.at.clone(), self.settings.clone(), self.spec.timeout);
            asking.spawn(async move { (index, ask(at, settings, timeout).await) });
        }
        let mut asked: BTreeMap<usize, Asked> = BTreeMap::new();
        while let Some(one) = tokio::select! {
            one = asking.join_next() => one,
            () = self.cancel.cancelled() => return Err(CaptureError::Cancelled),
        } {
            let (index, answer) = one.map_err(CaptureError::panicked)?;
            asked.insert(index, answer);
        }
        refuse_second_names(&mut asked);
        let failures =
            asked.iter().filter_map(|(&index, answer)| Some((index, answer.as_ref().err()?.clone())));
        let failures: BTreeMap<_, _> = failures.collect();
        if let Err(failure) = self.enough(asked.len() - failures.len(), &failures) {
            for (index, failure) in failures {
                (self.listener)(Event::Failed(index, failure));
            }
            return Err(failure);
        }
        Ok(asked.into_values().collect())
    }

    async fn record(
        self: Arc<Self>,
        index: usize,
        client: ProfilerClient,
        part: PartWriter,
        id: String,
        start: Option<Timestamp>,
        within: Duration,
    ) -> Result<ReceivedPart, (usize, CaptureError)> {
        let request = self.spec.request(&id, start);
        let bounds = Bounds { within, max_bytes: self.spec.max_bytes };
        let told = |bytes| (self.listener)(Event::Received(index, bytes));
        let result = tokio::select! {
            result = client.profile(&request, part, bounds, told) => Some(result),
            () = self.cancel.cancelled() => None,
        };
        let error = match result {
            Some(Ok(Received { said_empty: true, .. })) => Error::EmptyTrace,
            Some(Ok(received)) if received.summary.events == 0 => Error::EmptyTrace,
            Some(Ok(Received { sink: part, summary, .. })) => {
                return Ok(ReceivedPart { index, part, summary });
            }
            Some(Err(error)) => error,
            None => {
                let _ = client.terminate(&id, END).await;
                return Err((index, CaptureError::Cancelled));
            }
        };
        let connected = match error {
            Error::Busy(_) | Error::AlreadyExists(_) => self.connected(index).await,
            _ => Vec::new(),
        };
        // Resetting the stream frees the workload's profiler; this is for one that did not notice. It cannot
        // hit anybody else's session: nobody else knows this id.
        let _ = client.terminate(&id, END).await;
        let target = client.target().clone();
        let call = ProfilerCall::Profile;
        Err((index, CaptureError::Profiler { target, call, error: Arc::new(error), connected }))
    }

    /// Processes that are seen to be connected to a busy profiler.
    async fn connected(&self, index: usize) -> Vec<String> {
        let target = &self.targets.targets[index];
        if !(target.at.is_loopback() || target.process.is_some()) {
            return Vec::new();
        }
        let (procfs, port, own) = (self.procfs.clone(), target.at.port(), std::process::id());
        let looking = tokio::task::spawn_blocking(move || port_users::connected(&procfs, port, own));
        // A hint is worth no long wait.
        tokio::time::timeout(END, looking).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Whether `parts` parts are enough to go on.
    fn enough(&self, parts: usize, failures: &BTreeMap<usize, CaptureError>) -> Result<(), CaptureError> {
        if parts >= self.spec.min_parts {
            return Ok(());
        }
        let (targets, needed) = (self.targets.targets.len(), self.spec.min_parts);
        match failures.values().next() {
            None => Err(CaptureError::TooFewTargets { targets: parts, needed }),
            Some(only) if failures.len() == 1 && targets == 1 => Err(only.clone()),
            Some(_) => {
                let failures = failures.values().cloned().collect();
                Err(CaptureError::TooFewParts { parts, targets, needed, failures })
            }
        }
    }

    /// Makes the parts visible and writes the manifest.
    async fn keep(
        &self,
        writer: &SessionWriter,
        got: Vec<ReceivedPart>,
        mut failures: BTreeMap<usize, CaptureError>,
        begin: Timestamp,
        in_step: bool,
        clock: &dyn Clock,
    ) -> Result<Kept, CaptureError> {
        let mut hosts: BTreeMap<HostName, HostEntry> = BTreeMap::new();
        for ReceivedPart { index, part, summary } in got {
            let target = &self.targets.targets[index];
            let mut facts = facts(&summary, target, &self.spec);
            // Another host's clock may be off by more than any lateness.
            let our_clock = target.at.is_loopback() || target.process.is_some();
            facts.late_start_ns = late(&summary, begin).filter(|_| in_step && our_clock);
            match tokio::task::spawn_blocking(move || part.commit(facts))
                .await
                .map_err(CaptureError::panicked)?
            {
                Ok(entry) => {
                    (self.listener)(Event::Part(index, entry.clone()));
                    let host = hosts.entry(target.host.clone()).or_insert_with(|| HostEntry {
                        host: target.host.to_string(),
                        clock: None,
                        parts: Vec::new(),
                        warnings: Vec::new(),
                    });
                    host.parts.push(entry);
                }
                Err(error) => {
                    let failure = CaptureError::from(error);
                    (self.listener)(Event::Failed(index, failure.clone()));
                    failures.insert(index, failure);
                }
            }
        }
        let made: Vec<_> =
            hosts.values().flat_map(|host| &host.parts).map(|part| part.file.clone()).collect();
        self.enough(made.len(), &failures).inspect_err(|_| writer.take_back(&made))?;
        let mut manifest = self.manifest(writer.name(), hosts, &failures, begin);
        manifest.created = jiff::Timestamp::from_nanosecond(i128::from(clock.now().0)).ok();
        let finished = writer.finish(manifest).inspect_err(|_| writer.take_back(&made))?;
        Ok(Kept { manifest: finished.manifest, failures: failures.into_values().collect() })
    }

    fn manifest(
        &self,
        session: &SessionName,
        hosts: BTreeMap<HostName, HostEntry>,
        failures: &BTreeMap<usize, CaptureError>,
        begin: Timestamp,
    ) -> Manifest {
        let failed = failures.iter().map(|(&index, failure)| {
            let target = &self.targets.targets[index];
            Missing {
                host: target.host.to_string(),
                process: Some(target.at.to_string()),
                why: failure.to_string(),
            }
        });
        let start = u64::try_from(begin.0).unwrap_or(0);
        let length = u64::try_from(self.spec.duration.as_nanos()).unwrap_or(0);
        let mut hosts: Vec<HostEntry> = hosts.into_values().collect();
        for host in &mut hosts {
            host.parts.sort_by(|a, b| a.file.cmp(&b.file));
        }
        Manifest {
            version: MANIFEST_VERSION,
            session: session.to_string(),
            tool: Tool::this(),
            created: None,
            window: Window::from_ns(start, start.saturating_add(length)),
            hosts,
            missing: failed.chain(self.targets.missing.iter().cloned()).collect(),
            warnings: self.targets.warnings.clone(),
        }
    }
}

/// A profiler that answered, and how fast; or why it cannot be used.
type Asked = Result<(ProfilerClient, Duration), CaptureError>;

/// Asks whether `at` is a profiler; `timeout` is what its caller gives any answer.
async fn ask(at: Target, settings: Settings, timeout: Duration) -> Asked {
    let probe_timeout = settings.probe_timeout.get();
    let asked = async {
        let client = ProfilerClient::connect(&at, settings.connect_timeout.get()).await?;
        let fresh = format!("tpuscope-probe-{:016x}", fastrand::u64(..));
        let round_trip = client.probe(&fresh, probe_timeout.min(timeout)).await?;
        Ok((client, round_trip))
    };
    let call = if timeout < probe_timeout { ProfilerCall::ProbeWithin } else { ProfilerCall::Probe };
    asked.await.map_err(|error| CaptureError::Profiler {
        target: at.clone(),
        call,
        error: Arc::new(error),
        connected: Vec::new(),
    })
}

/// One start for several targets; a single one starts when it is asked.
fn common_start(asked: &[Asked], now: Timestamp) -> Option<Timestamp> {
    let round_trips: Vec<Duration> = asked.iter().flatten().map(|&(_, round_trip)| round_trip).collect();
    let slowest = round_trips.iter().max().filter(|_| round_trips.len() > 1)?;
    Some(now.plus((LEAD + *slowest * 2).min(MAX_LEAD)))
}

/// One name per target: the host's, with the port where it has several.
fn part_names(targets: &[CaptureTarget]) -> Vec<PartName> {
    let mut of_host: BTreeMap<&HostName, Vec<usize>> = BTreeMap::new();
    for (index, target) in targets.iter().enumerate() {
        of_host.entry(&target.host).or_default().push(index);
    }
    let mut names: Vec<(usize, PartName)> = Vec::new();
    for (host, indexes) in of_host {
        let ports: Vec<_> = indexes.iter().map(|&index| Some(targets[index].at.port())).collect();
        names.extend(indexes.into_iter().zip(PartName::of_host(host, &ports)));
    }
    names.sort_by_key(|&(index, _)| index);
    names.into_iter().map(|(_, name)| name).collect()
}

fn facts(summary: &TraceSummary, target: &CaptureTarget, spec: &CaptureSpec) -> PartFacts {
    PartFacts {
        pid: target.process.map(|process| process.pid),
        address: Some(target.at.to_string()),
        job: None,
        planes: summary.plane_count,
        lines: summary.lines,
        events: summary.events,
        window: summary.window.and_then(|(start, stop)| Window::from_ns(start, stop)),
        late_start_ns: None,
        warnings: trace_warnings::of(summary, target, spec),
    }
}

/// How much later than asked the profile began, where that is much.
fn late(summary: &TraceSummary, begin: Timestamp) -> Option<u64> {
    let (start, _) = summary.window?;
    let late = start.saturating_sub(u64::try_from(begin.0).ok()?);
    (Duration::from_nanos(late) > LATE).then_some(late)
}

/// A profiler has one session at a time: under a second name it would only be busy with the first.
fn refuse_second_names(asked: &mut BTreeMap<usize, Asked>) {
    let mut names: HashMap<SocketAddr, Target> = HashMap::new();
    for answer in asked.values_mut() {
        let Ok((client, _)) = answer else { continue };
        let at = client.target().clone();
        match names.entry(client.peer()) {
            Entry::Vacant(first) => {
                first.insert(at);
            }
            Entry::Occupied(first) => {
                *answer = Err(CaptureError::SameProfiler { target: at, first: first.get().clone() });
            }
        }
    }
}

/// Why there is nothing to profile.
pub(super) fn no_target(targets: &Targets) -> CaptureError {
    if targets.denied > 0 && targets.missing.is_empty() {
        return CaptureError::NotPermitted { reasons: targets.warnings.clone() };
    }
    let missing = targets
        .missing
        .iter()
        .map(|missing| format!("{}: {}", missing.process.as_deref().unwrap_or(&missing.host), missing.why));
    CaptureError::NoTarget { reasons: missing.chain(targets.warnings.iter().cloned()).collect() }
}
