//! A session of the store as one answer: its parts are joined where there are several, sent, and removed.
//!
//! The session is the agent's only until its client has it. An agent that ends before leaves a session like any other, which
//! the limits of the store remove.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
    sync::Arc,
};

use ::sessions::capture_runner::StoredCapture;
use bytes::Bytes;
use store::{
    AsyncStore, SessionStore, StoreError,
    segments::{SegmentError, Segments},
};
use tokio::runtime::Handle;
use tonic::Status;
use tracing::warn;
use xprof::{
    client::TraceHead,
    input::{FileInput, Input},
    merge::{self, MergeError, ProcessLabel},
    service::{self, TooLargeToAnswer},
    session::{Manifest, PART_SUFFIX, SessionName},
};

use super::{
    answer::Answer,
    destination::{TraceDestination, TraceOut},
    profile::too_large,
    remarks::Remarks,
};

/// What is read at a time.
const PIECE: usize = 256 << 10;

/// The first chip of each process, by its pid.
pub(super) type ChipOrder = BTreeMap<u32, u32>;

/// How an answer carries a stored trace.
#[derive(Debug, Clone)]
pub(super) enum StoredCarrier {
    /// Once.
    One(TraceDestination),
    /// As a file and in the field of the trace: the request does not say which one the client reads.
    Both,
}

/// A session that is removed once it was answered.
pub(super) struct KeptSession {
    store: AsyncStore,
    name: SessionName,
    manifest: Manifest,
    chips: ChipOrder,
    /// What its manifest does not say.
    beside: Vec<String>,
}

/// Why a session cannot be answered.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Segment(#[from] SegmentError),
    #[error(transparent)]
    Merge(#[from] MergeError),
    #[error(transparent)]
    TooLarge(#[from] TooLargeToAnswer),
    #[error("cannot read the trace: {0}")]
    Read(#[from] io::Error),
    #[error("the session has no trace any more")]
    Gone,
    #[error("the caller has hung up")]
    HungUp,
    #[error("{}", .0.message())]
    Passed(Box<Status>),
}

impl From<Status> for AnswerError {
    fn from(status: Status) -> Self {
        Self::Passed(Box::new(status))
    }
}

impl KeptSession {
    pub(super) fn new(
        store: AsyncStore,
        captured: StoredCapture,
        chips: ChipOrder,
        beside: Vec<String>,
    ) -> Self {
        Self { store, name: captured.stored.name, manifest: captured.manifest, chips, beside }
    }

    /// The label of the part in `file`.
    fn label(&self, file: &str) -> ProcessLabel {
        let mut parts = self.manifest.hosts.iter().flat_map(|host| &host.parts);
        let pid = parts.find(|part| part.file == file).and_then(|part| part.pid);
        ProcessLabel {
            name: pid.map_or_else(
                || file.strip_suffix(PART_SUFFIX).unwrap_or(file).to_owned(),
                |pid| format!("pid {pid}"),
            ),
            first_chip: pid.and_then(|pid| self.chips.get(&pid).copied()),
        }
    }

    /// Why processes have no part.
    fn remarks(&self) -> Remarks {
        let others = self.manifest.warnings.iter().chain(&self.beside);
        Remarks::new(&self.manifest.missing, others.cloned())
    }
}

impl Drop for KeptSession {
    fn drop(&mut self) {
        let (store, name) = (self.store.clone(), self.name.clone());
        tokio::spawn(async move {
            let removed = name.clone();
            let removed = store.call(move |store: &SessionStore| store.remove(&removed).map(drop)).await;
            if let Err(error) = removed {
                warn!(session = %name, %error, "a session that was answered is not removed");
            }
        });
    }
}

/// Answers with the traces of `kept` as one.
pub(super) async fn answer(
    kept: KeptSession,
    segments: Arc<Segments>,
    carrier: StoredCarrier,
    answer: &Answer,
) -> Result<(), Status> {
    let name = kept.name.clone();
    let paths: Vec<PathBuf> = kept
        .store
        .call(move |store: &SessionStore| {
            Ok(store.get(&name)?.session.parts.into_iter().map(|part| part.path).collect())
        })
        .await
        .map_err(|error: StoreError| status(&error.into()))?;
    let sender = answer.clone();
    let labels: Vec<ProcessLabel> = paths
        .iter()
        .map(|path| kept.label(&path.file_name().unwrap_or_default().to_string_lossy()))
        .collect();
    let remarks = kept.remarks();
    let sent =
        tokio::task::spawn_blocking(move || send(&paths, labels, &remarks, &segments, carrier, &sender));
    let sent =
        sent.await.map_err(|error| Status::internal(format!("the answer ended unexpectedly: {error}")))?;
    drop(kept);
    sent.map_err(|error| status(&error))
}

fn status(error: &AnswerError) -> Status {
    match error {
        AnswerError::TooLarge(_) => too_large(error),
        AnswerError::HungUp => Status::cancelled(error.to_string()),
        AnswerError::Passed(status) => (**status).clone(),
        _ => Status::internal(error.to_string()),
    }
}

/// Blocks.
fn send(
    paths: &[PathBuf],
    labels: Vec<ProcessLabel>,
    remarks: &Remarks,
    segments: &Segments,
    carrier: StoredCarrier,
    answer: &Answer,
) -> Result<(), AnswerError> {
    match paths {
        [] => Err(AnswerError::Gone),
        [only] => {
            let mut trace = File::open(only)?;
            let bytes = trace.metadata()?.len();
            send_trace(&mut trace, bytes, remarks.field(), carrier, answer)
        }
        _ => {
            let inputs: Vec<FileInput> = paths.iter().map(FileInput::new).collect();
            let processes: Vec<(&dyn Input, ProcessLabel)> =
                inputs.iter().map(|input| input as &dyn Input).zip(labels).collect();
            let mut joined = segments.begin()?;
            let bytes = merge::join(&processes, &mut joined, remarks.texts())?;
            send_trace(&mut joined, bytes, Bytes::new(), carrier, answer)
        }
    }
}

fn send_trace(
    trace: &mut (impl Read + Seek),
    bytes: u64,
    last: Bytes,
    carrier: StoredCarrier,
    answer: &Answer,
) -> Result<(), AnswerError> {
    match carrier {
        StoredCarrier::One(destination) => {
            // This thread may wait; the runtime's own thread does what it waits for.
            let runtime = Handle::current();
            let mut out = TraceOut::new(answer, destination, last);
            runtime.block_on(out.begin(TraceHead { bytes, is_empty: false }))?;
            each_piece(trace, bytes, |piece| Ok(runtime.block_on(out.bytes(piece))?))?;
            Ok(runtime.block_on(out.end())?)
        }
        StoredCarrier::Both => {
            let [first, second] = service::both_heads(bytes + last.len() as u64)?;
            put(first, answer)?;
            each_piece(trace, bytes, |piece| put(piece, answer))?;
            put(last.clone(), answer)?;
            put(second, answer)?;
            each_piece(trace, bytes, |piece| put(piece, answer))?;
            put(last, answer)
        }
    }
}

fn each_piece(
    trace: &mut (impl Read + Seek),
    bytes: u64,
    mut take: impl FnMut(Bytes) -> Result<(), AnswerError>,
) -> Result<(), AnswerError> {
    trace.seek(SeekFrom::Start(0))?;
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        let mut piece = vec![0; length];
        trace.read_exact(&mut piece)?;
        take(Bytes::from(piece))?;
        left -= length as u64;
    }
    Ok(())
}

fn put(piece: Bytes, answer: &Answer) -> Result<(), AnswerError> {
    if piece.is_empty() {
        return Ok(());
    }
    answer.send_blocking(piece).map_err(|_| AnswerError::HungUp)
}
