//! A snapshot: a normal session of what was recorded. The segments of each process become one part.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use model::{
    job::{self, JobKind},
    time::Timestamp,
    workload::{Owner, WorkloadId},
};
use store::{
    SessionOwners, StagedSession,
    segments::{RecordedProcess, SegmentGap, SegmentQuery, Segments, StoredSegment},
    uploads::UploadChoice,
};
use tokio_util::sync::CancellationToken;
use tracing::info;
use xprof::{
    session::{
        FinishedSession, HostEntry, HostName, MANIFEST_VERSION, Manifest, Missing, PartEntry, PartName,
        SessionId, SessionName, SessionWriter, Tool, TracerLevels, Window,
    },
    wording::counted,
};

use super::{Recorder, snapshot_part::PartSource};
use crate::{
    CaptureError, FailureKind,
    capture_runner::{Caller, SessionUse, StoredCapture, only},
    store_session,
};

/// The most processes that are worked on at a time: each takes a core, and room on the disk.
const MAX_WORKERS: usize = 4;

/// Receives the bytes that were worked on, and those of all. Called from a thread that may block.
pub type SnapshotProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// The past that is wanted.
pub struct WantedPast {
    /// The begin of the time that is wanted.
    pub from: Timestamp,
    /// Its end.
    pub to: Timestamp,
    /// Only of the job that is named so: `ID` or `KIND:ID`.
    pub job: Option<String>,
    /// Whether the caller may read what was recorded of a process.
    pub may_read: Box<dyn Fn(&RecordedProcess) -> bool + Send + Sync>,
}

impl WantedPast {
    pub(super) fn has(&self, process: &RecordedProcess) -> bool {
        let WorkloadId { kind, job, .. } = &process.workload;
        self.job.as_ref().is_none_or(|named| job::is_named(*kind, job, named)) && (self.may_read)(process)
    }

    fn query(&self) -> SegmentQuery {
        SegmentQuery { from: Some(self.from), to: Some(self.to), job: self.job.clone() }
    }
}

/// The id of the job and the user of a part to be, as its manifest will have them.
pub type JobAndUser = (Option<String>, Option<String>);

/// A snapshot to make.
pub struct SnapshotJob {
    /// What it is made of.
    pub past: WantedPast,
    /// Name of the session; `None`: the time.
    pub session: Option<SessionName>,
    /// Of a session over several hosts, for which [`Recorder::take_rings`] was called before; `None`: of this host alone.
    pub id: Option<SessionId>,
    /// Where the session is uploaded to.
    pub upload: UploadChoice,
    /// Receives the progress.
    pub progress: SnapshotProgress,
    /// Who asks, for the log.
    pub caller: Caller,
    /// Ends it with nothing kept.
    pub cancel: CancellationToken,
    /// What becomes of the session, for the log.
    pub session_use: SessionUse,
}

/// What there is of one process.
#[derive(Debug, Default)]
struct ProcessPast {
    segments: Vec<StoredSegment>,
    gaps: Vec<SegmentGap>,
}

impl Recorder {
    /// Makes a session of what was recorded, and keeps it as captures are kept.
    ///
    /// # Errors
    /// If there is nothing, or nothing of it is kept.
    pub async fn snapshot(&self, job: SnapshotJob) -> Result<StoredCapture, CaptureError> {
        let _permit =
            Arc::clone(&self.snapshots).try_acquire_owned().map_err(|_| CaptureError::SnapshotRuns)?;
        if job.id.is_none() {
            self.take_rings(&job.past).await;
        }
        let (segments, gaps) = self.past(&job.past).await?;
        let owners = owners(&segments).going_to(&job.upload);
        let staged = store_session::begin(&self.store, job.session.clone(), owners, self.clock.now()).await?;
        let session = staged.writer.name().clone();
        let Caller { uid, pid, remote } = job.caller.clone();
        let remote = remote.as_deref();
        info!(%session, uid, pid, remote, segments = segments.len(), "snapshot begins");
        let levels = segments.first().map(|segment| segment.facts.levels);
        let snapshot = Snapshot {
            processes: by_process(segments, gaps),
            window: (job.past.from, job.past.to),
            id: job.id,
            levels,
            host: self.host.clone(),
            created: self.clock.now(),
            segments: Arc::clone(&self.segments),
            progress: Arc::clone(&job.progress),
            cancel: job.cancel.clone(),
        };
        let writer = Arc::clone(&staged.writer);
        let written = tokio::task::spawn_blocking(move || snapshot.write(&writer)).await;
        let finished = match written.map_err(CaptureError::panicked).and_then(|written| written) {
            Ok(finished) => finished,
            Err(error) => return Err(self.not_kept(error, staged).await),
        };
        let queue = self.uploads.clone();
        let kept = store_session::keep(&self.store, queue, staged, finished, job.upload, self.clock.now());
        let (stored, manifest, uploads) = kept.await?;
        let (bytes, what) = (stored.bytes, job.session_use.verb());
        info!(%session, uid, pid, remote, bytes, uploads = uploads.len(), "snapshot {what}");
        Ok(StoredCapture { manifest, failures: Vec::new(), stored, uploads })
    }

    /// Of whom a snapshot has parts: an entry for each of them.
    ///
    /// # Errors
    /// If there is nothing.
    pub async fn snapshot_parts(&self, wanted: &WantedPast) -> Result<Vec<JobAndUser>, CaptureError> {
        let (segments, gaps) = self.past(wanted).await?;
        let of = |(process, past): (RecordedProcess, ProcessPast)| {
            let facts = past.segments.last().map(|segment| &segment.facts);
            let job = facts.and_then(|facts| facts.job.as_ref()).map(|job| job.id.clone());
            let user = facts.and_then(|facts| facts.user.clone());
            (job, user.or_else(|| Some(process.uid.to_string())))
        };
        Ok(by_process(segments, gaps).into_iter().map(of).collect())
    }

    /// What there is of the time that is wanted.
    async fn past(&self, wanted: &WantedPast) -> Result<(Vec<StoredSegment>, Vec<SegmentGap>), CaptureError> {
        let past = self.timeline(wanted.query(), &wanted.may_read).await;
        let (segments, gaps) = past.map_err(|error| CaptureError::Store(Arc::new(error.into())))?;
        if segments.is_empty() { Err(self.nothing(wanted).await) } else { Ok((segments, gaps)) }
    }

    async fn not_kept(&self, error: CaptureError, staged: StagedSession) -> CaptureError {
        let error = store_session::in_store(error, &staged);
        let (session, reason) = (staged.writer.name().clone(), error.reason().as_str());
        info!(%session, reason, %error, "snapshot failed");
        match store_session::remove(&self.store, staged).await {
            Ok(()) => error,
            Err(error) => error,
        }
    }

    /// Why there is nothing of the time that was asked for: what is there, or what would have had to be on.
    async fn nothing(&self, wanted: &WantedPast) -> CaptureError {
        let span = format!("from {} to {}", wanted.from, wanted.to);
        let query = SegmentQuery { job: wanted.job.clone(), ..SegmentQuery::default() };
        let mut all = self.segments_of(query).await.unwrap_or_default();
        all.retain(|segment| (wanted.may_read)(&segment.process));
        let why = match (all.first(), all.last()) {
            (Some(first), Some(last)) => {
                format!("the recorder has windows from {} to {}", first.start, last.stop)
            }
            _ => match self.why_nothing_is_recorded(wanted).await {
                Ok(why) => why,
                Err(no_such_job) => return no_such_job,
            },
        };
        CaptureError::NothingRecorded { span, why }
    }

    /// # Errors
    /// If the job that is wanted is not known.
    async fn why_nothing_is_recorded(&self, wanted: &WantedPast) -> Result<String, CaptureError> {
        let may = |uid, process| RecordedProcess {
            uid,
            process,
            workload: WorkloadId { kind: JobKind::Process, job: String::new(), uid: 0 },
            port: 0,
        };
        let seen = |owner: &Owner| (wanted.may_read)(&may(owner.uid, owner.process));
        let Ok(status) = self.status(wanted.job.as_deref(), seen, &wanted.may_read).await else {
            return Ok("the state of the agent cannot be read".to_owned());
        };
        if let Some(job) = wanted.job.as_ref().filter(|_| status.processes.is_empty()) {
            return Err(CaptureError::NoSuchJob(job.chars().take(80).collect()));
        }
        let reasons: Vec<String> = status
            .processes
            .iter()
            .map(|process| {
                let name = format!("pid {} ({})", process.process.process.pid, process.command);
                match (&process.plan, process.next, &process.last_failure) {
                    (Err(why), ..) => format!("{name}: {why}"),
                    (Ok(_), _, Some(failure)) => format!("{name}: {failure}"),
                    (Ok(_), Some(next), None) => format!("{name}: its first window begins at {next}"),
                    (Ok(_), None, None) => format!("{name}: no window so far"),
                }
            })
            .collect();
        Ok(match (reasons.is_empty(), status.is_on()) {
            (false, _) => reasons.join("; "),
            (true, true) => "no process of yours is recorded on this host".to_owned(),
            (true, false) => {
                "recorder.mode is off, and no process of yours is recorded on this host: switch the recorder on with \
                 `tpuscope recorder on` while the job runs, or with recorder.mode = \"on\""
                    .to_owned()
            }
        })
    }
}

/// Whose the session is: the processes' users.
fn owners(segments: &[StoredSegment]) -> SessionOwners {
    let uids = segments.iter().map(|segment| segment.process.uid);
    let users = segments.iter().map(|segment| segment.facts.user.as_ref());
    let jobs = segments.iter().map(|segment| segment.facts.job.as_ref());
    SessionOwners {
        user: only(users).cloned(),
        job: only(jobs).cloned().map(Box::new),
        ..SessionOwners::of(uids.collect::<BTreeSet<u32>>())
    }
}

fn by_process(segments: Vec<StoredSegment>, gaps: Vec<SegmentGap>) -> BTreeMap<RecordedProcess, ProcessPast> {
    let mut processes: BTreeMap<RecordedProcess, ProcessPast> = BTreeMap::new();
    for segment in segments {
        processes.entry(segment.process.clone()).or_default().segments.push(segment);
    }
    for gap in gaps {
        // A process without a segment has no part.
        if let Some(past) = processes.get_mut(&gap.process) {
            past.gaps.push(gap);
        }
    }
    processes
}

/// What is written, on a thread that may block.
struct Snapshot {
    processes: BTreeMap<RecordedProcess, ProcessPast>,
    window: (Timestamp, Timestamp),
    /// Of the session over several hosts.
    id: Option<SessionId>,
    levels: Option<[u32; 3]>,
    host: HostName,
    created: Timestamp,
    segments: Arc<Segments>,
    progress: SnapshotProgress,
    cancel: CancellationToken,
}

/// Whether what was recorded of the process cannot be read: no fault of the disk.
fn is_damaged(error: &CaptureError) -> bool {
    matches!(error, CaptureError::Segment(_) | CaptureError::Merge { .. })
        && error.kind() == FailureKind::Damaged
}

impl Snapshot {
    fn write(self, writer: &SessionWriter) -> Result<FinishedSession, CaptureError> {
        let (mut parts, mut missing) = (Vec::new(), Vec::new());
        let result = self.write_parts(writer, &mut parts, &mut missing);
        let files: Vec<String> = parts.iter().map(|part| part.file.clone()).collect();
        let finished = result.and_then(|()| Ok(writer.finish(self.manifest(writer, parts, missing))?));
        if finished.is_err() {
            writer.take_back(&files);
        }
        finished
    }

    /// A few processes at a time, each on a thread of its own: one is unpacked while another one is merged.
    fn write_parts(
        &self,
        writer: &SessionWriter,
        parts: &mut Vec<PartEntry>,
        missing: &mut Vec<Missing>,
    ) -> Result<(), CaptureError> {
        let ports: Vec<Option<u16>> = self.processes.keys().map(|process| Some(process.port)).collect();
        let names = PartName::of_host(&self.host, &ports);
        let all = self.processes.values().flat_map(|past| &past.segments);
        let all: u64 = all.map(|segment| segment.trace_bytes).sum();
        let (done, has_failed) = (AtomicU64::new(0), AtomicBool::new(false));
        let work = Mutex::new(self.processes.iter().zip(&names));
        let written = Mutex::new(Vec::with_capacity(names.len()));
        let worker = || {
            while !has_failed.load(Ordering::Relaxed) {
                let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(((process, past), name)) = next else { break };
                let mut progress = |bytes| {
                    (self.progress)(done.fetch_add(bytes, Ordering::Relaxed) + bytes, all);
                };
                let part = self.source(past).write(writer, name, &mut progress);
                has_failed.fetch_or(part.as_ref().is_err_and(|error| !is_damaged(error)), Ordering::Relaxed);
                written.lock().unwrap_or_else(PoisonError::into_inner).push((process, part));
            }
        };
        let workers = thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS);
        thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(worker))));
        let mut written = written.into_inner().unwrap_or_else(PoisonError::into_inner);
        written.sort_by_key(|(process, _)| *process);
        // Whatever fails: what is visible has to be known.
        let mut failure = None;
        for (process, part) in written {
            match part {
                Ok(part) => parts.push(part),
                // What is damaged keeps no other process from having its part.
                Err(error) if is_damaged(&error) => {
                    missing.push(Missing {
                        host: self.host.to_string(),
                        process: Some(format!("pid {}", process.process.pid)),
                        why: error.to_string(),
                    });
                    if missing.len() == self.processes.len() {
                        failure = Some(error);
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn source<'a>(&'a self, past: &'a ProcessPast) -> PartSource<'a> {
        PartSource {
            segments: &self.segments,
            past: &past.segments,
            gaps: &past.gaps,
            window: self.window,
            cancel: &self.cancel,
        }
    }

    fn manifest(&self, writer: &SessionWriter, parts: Vec<PartEntry>, missing: Vec<Missing>) -> Manifest {
        let ns = |at: Timestamp| u64::try_from(at.0).unwrap_or(0);
        let [host, device, python] = self.levels.unwrap_or_default();
        let mut parts = parts;
        parts.sort_by(|a, b| a.file.cmp(&b.file));
        let windows = parts.iter().map(|part| part.recorded.len()).max().unwrap_or(0);
        let recorded =
            parts.iter().map(|part| part.recorded.iter().map(Window::length_ns).sum::<u64>()).max();
        let remark = format!(
            "a snapshot of the recorder: {} with {:.3} s of the {:.3} s that were asked for; the manifest lists the gaps of each part",
            counted(windows, "window"),
            Duration::from_nanos(recorded.unwrap_or(0)).as_secs_f64(),
            self.window.0.age(self.window.1).as_secs_f64()
        );
        Manifest {
            version: MANIFEST_VERSION,
            session: writer.name().to_string(),
            id: self.id.clone().or_else(SessionId::random),
            tool: Tool::this(),
            created: Some(self.created.into()),
            window: Window::from_ns(ns(self.window.0), ns(self.window.1)),
            tracer_levels: Some(TracerLevels { host, device, python }),
            options: BTreeMap::new(),
            at_step: None,
            hosts: vec![HostEntry { host: self.host.to_string(), clock: None, parts, warnings: Vec::new() }],
            missing,
            warnings: vec![remark],
        }
    }
}
