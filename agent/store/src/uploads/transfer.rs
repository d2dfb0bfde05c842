//! Makes the steps of one upload, several at a time, and saves what came of each.
//!
//! Dropped at any time it loses nothing that was saved. Must never hold more parts in memory than there are permits, nor add a
//! part to a session over several hosts that is finished: its manifest says that the part is missing.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use xprof::session::{MANIFEST_FILE, SessionName};

use super::{
    file::{FileEvent, FileState, FileStep, SentPart},
    part_memory::PartMemory,
    session_upload::{ClaimAnswer, NameClaim, SessionUpload, UploadStep},
    source::SessionSource,
};
use crate::destinations::target::{FailureClass, PartData, TransferError, UploadTarget};

/// Steps of one upload at the same time. Those that send a part also need a permit for its memory.
const MAX_STEPS: usize = 4;

/// What a running upload tells.
pub(crate) trait UploadJournal: Sync {
    /// A name was claimed or refused.
    fn claimed(&self, upload: &SessionUpload) -> BoxFuture<'_, ()>;
    /// Parts of an object of this path are begun: before anything is sent.
    fn begun(&self, path: &str, id: &str) -> BoxFuture<'_, ()>;
    /// A step changed the file of this index; `part`: a part was sent.
    fn changed(&self, upload: &SessionUpload, file: usize, part: Option<u32>) -> BoxFuture<'_, ()>;
    /// The parts with this id are not needed any more.
    fn ended(&self, path: &str, id: &str) -> BoxFuture<'_, ()>;
}

/// An upload that runs.
pub(crate) struct Transfer<'a> {
    pub(crate) target: Arc<dyn UploadTarget>,
    pub(crate) source: SessionSource,
    pub(crate) memory: PartMemory,
    pub(crate) journal: &'a dyn UploadJournal,
    /// Asked before each step: whether the upload was dropped.
    pub(crate) is_dropped: &'a (dyn Fn() -> bool + Sync),
}

/// Why an upload did not end.
#[derive(Debug)]
pub(crate) struct Interrupted {
    pub(crate) error: TransferError,
    /// Whether something was written at the destination before.
    pub(crate) progressed: bool,
}

enum StepEvent {
    Claim(ClaimAnswer),
    File(FileEvent),
}

impl Transfer<'_> {
    /// Makes steps until all is there, or one fails. The steps that run then are finished first. Returns whether all is
    /// there, which it is not if the upload was dropped.
    pub(crate) async fn run(&self, upload: &mut SessionUpload) -> Result<bool, Interrupted> {
        let mut running = FuturesUnordered::new();
        let mut in_flight = BTreeSet::new();
        let (mut error, mut progressed) = (None, false);
        loop {
            if error.is_none() && !(self.is_dropped)() {
                let free = MAX_STEPS - in_flight.len();
                let steps: Vec<UploadStep> =
                    upload.steps().filter(|step| !in_flight.contains(step)).take(free).collect();
                for step in steps {
                    in_flight.insert(step);
                    running.push(self.start(upload, step));
                }
            }
            let Some((step, made)) = running.next().await else { break };
            in_flight.remove(&step);
            match made {
                Ok(event) => {
                    progressed |= !matches!(step, UploadStep::File(_, FileStep::Look));
                    self.apply(upload, step, event).await;
                }
                Err(failed) => error = error.or(Some(failed)),
            }
        }
        match error.or_else(|| given_up(upload)) {
            Some(error) => Err(Interrupted { error, progressed }),
            None => Ok(upload.is_done()),
        }
    }

    /// Looks for the session's claim without making one. Returns whether there is one.
    pub(crate) async fn find_claim(&self, upload: &mut SessionUpload) -> Result<bool, TransferError> {
        while let (NameClaim::Unclaimed { .. }, Some(name)) = (&upload.claim, upload.name_there()) {
            let Some(holder) = self.target.get(&claim_path(&name)).await? else { return Ok(false) };
            let ours = holder == upload.id().as_bytes();
            upload.claimed(if ours { ClaimAnswer::Ours } else { ClaimAnswer::Foreign });
        }
        let found = matches!(upload.claim, NameClaim::Claimed(_));
        if found {
            self.journal.claimed(upload).await;
        }
        Ok(found)
    }

    async fn apply(&self, upload: &mut SessionUpload, step: UploadStep, event: StepEvent) {
        match (step, event) {
            (UploadStep::File(index, step), StepEvent::File(event)) => {
                let path = path(upload, index);
                if let FileEvent::Begun { id } = &event {
                    self.journal.begun(&path, id).await;
                }
                let ended = match &event {
                    FileEvent::Completed { id } | FileEvent::PartsGone { id } => Some(id.clone()),
                    _ => None,
                };
                upload.apply(index, event);
                let part = if let FileStep::Part(part) = step { Some(part) } else { None };
                self.journal.changed(upload, index, part).await;
                if let Some(id) = ended {
                    self.journal.ended(&path, &id).await;
                }
            }
            (_, StepEvent::Claim(answer)) => {
                upload.claimed(answer);
                self.journal.claimed(upload).await;
            }
            (UploadStep::Claim, StepEvent::File(_)) => {}
        }
    }

    /// The work of a step, with its own copy of what it needs of the upload.
    fn start(
        &self,
        upload: &SessionUpload,
        step: UploadStep,
    ) -> BoxFuture<'static, (UploadStep, Result<StepEvent, TransferError>)> {
        let work = Work {
            target: self.target.clone(),
            source: self.source.clone(),
            memory: self.memory.clone(),
            manifest: manifest_of_all(upload),
        };
        let (index, file_step) = match step {
            UploadStep::Claim => {
                let (name, id) = (upload.name_there(), upload.id().to_owned());
                return Box::pin(async move { (step, work.claim(name, id).await.map(StepEvent::Claim)) });
            }
            UploadStep::File(index, file_step) => (index, file_step),
        };
        let (file, path) = (&upload.files[index], path(upload, index));
        let (name, size) = (file.name.clone(), file.size);
        let parts = parts_id(upload, index);
        let made: BoxFuture<'static, _> = match (file_step, &file.state) {
            (FileStep::Look, state) => {
                let known = if let FileState::Sent { crc32c } = state { *crc32c } else { None };
                Box::pin(async move { work.look(&path, &name, size, known).await })
            }
            (FileStep::Put, FileState::Missing { replaces }) => {
                let replaces = replaces.clone();
                Box::pin(async move { work.put(&path, &name, size, replaces.as_deref()).await })
            }
            (FileStep::Begin, _) => Box::pin(async move { work.begin(&path).await }),
            (FileStep::Part(index), FileState::Parts { id, .. }) => {
                let (id, (offset, length)) = (id.clone(), file.part_range(index));
                Box::pin(async move { work.part(&path, &name, &id, index, offset, length).await })
            }
            (FileStep::Complete, FileState::Parts { id, sent }) => {
                let (id, tags) = (id.clone(), sent.values().map(|part| part.tag.clone()).collect());
                Box::pin(async move {
                    work.unless_finished(&path, work.target.complete(&path, &id, tags)).await?;
                    Ok(FileEvent::Completed { id })
                })
            }
            // A file offers only the steps of its state.
            (FileStep::Put | FileStep::Part(_) | FileStep::Complete, _) => {
                Box::pin(std::future::ready(Err(TransferError::PartsGone)))
            }
        };
        Box::pin(async move {
            let made = match made.await {
                Err(TransferError::PartsGone) => Ok(FileEvent::PartsGone { id: parts.unwrap_or_default() }),
                made => made,
            };
            (step, made.map(StepEvent::File))
        })
    }
}

/// The object that says whose a name is.
pub(super) fn claim_path(name: &SessionName) -> String {
    format!(".tpuscope/{name}")
}

fn given_up(upload: &SessionUpload) -> Option<TransferError> {
    if let Some(file) = upload.failed_file() {
        let message = format!("{}: what is there is not what was sent", file.name);
        return Some(TransferError::new(FailureClass::Damaged, message));
    }
    let message = || format!("another session has the name {} there", upload.session());
    upload.name_there().is_none().then(|| TransferError::new(FailureClass::Taken, message()))
}

/// The object of a file, below the destination's URL.
fn path(upload: &SessionUpload, index: usize) -> String {
    let name = upload.name_there().map_or_else(String::new, |name| name.to_string());
    file_path(&name, &upload.files[index].name)
}

/// The object of a file of the session that has this name there.
pub(super) fn file_path(name: &str, file: &str) -> String {
    format!("plugins/profile/{name}/{file}")
}

/// The object of the manifest that another agent puts when the session is finished.
fn manifest_of_all(upload: &SessionUpload) -> Option<String> {
    let name = upload.name_there().filter(|_| upload.is_parts_alone())?;
    Some(file_path(name.as_str(), MANIFEST_FILE))
}

fn too_late() -> TransferError {
    TransferError::new(
        FailureClass::TooLate,
        "the session there was finished without the part of this host: its capture did not wait for it any longer",
    )
}

fn parts_id(upload: &SessionUpload, index: usize) -> Option<String> {
    match &upload.files[index].state {
        FileState::Parts { id, .. } => Some(id.clone()),
        _ => None,
    }
}

/// What a step needs.
struct Work {
    target: Arc<dyn UploadTarget>,
    source: SessionSource,
    memory: PartMemory,
    /// While it is not there, parts may be added.
    manifest: Option<String>,
}

impl Work {
    async fn is_finished(&self) -> Result<bool, TransferError> {
        let Some(manifest) = &self.manifest else { return Ok(false) };
        Ok(self.target.size(manifest).await?.is_some())
    }

    /// Writes an object, unless the session is finished. What came in the same moment as the manifest is taken back.
    async fn unless_finished(
        &self,
        path: &str,
        write: impl Future<Output = Result<(), TransferError>>,
    ) -> Result<(), TransferError> {
        if self.is_finished().await? {
            return Err(too_late());
        }
        write.await?;
        if !self.is_finished().await? {
            return Ok(());
        }
        match self.target.delete(path).await {
            Ok(()) => Err(too_late()),
            Err(error) => {
                let message = format_args!("{}; {path} cannot be taken back: {error}", too_late());
                Err(TransferError::new(FailureClass::TooLate, message))
            }
        }
    }

    async fn begin(&self, path: &str) -> Result<FileEvent, TransferError> {
        if self.is_finished().await? {
            return Err(too_late());
        }
        Ok(FileEvent::Begun { id: self.target.begin_parts(path).await? })
    }

    async fn claim(&self, name: Option<SessionName>, id: String) -> Result<ClaimAnswer, TransferError> {
        let Some(name) = name else { return Ok(ClaimAnswer::Foreign) };
        let path = claim_path(&name);
        match self.target.put(&path, Bytes::from(id.clone()), None).await {
            Ok(()) => return Ok(ClaimAnswer::New),
            Err(TransferError::Exists) => {}
            Err(error) => return Err(error),
        }
        match self.target.get(&path).await? {
            Some(holder) if holder == id.as_bytes() => Ok(ClaimAnswer::Ours),
            Some(_) => Ok(ClaimAnswer::Foreign),
            None => Err(TransferError::new(
                FailureClass::Server,
                "the claim of the session's name is there and not there",
            )),
        }
    }

    async fn look(
        &self,
        path: &str,
        name: &str,
        size: u64,
        known: Option<u32>,
    ) -> Result<FileEvent, TransferError> {
        let object = self.target.head(path).await?;
        let crc32c = match (known, &object) {
            (Some(crc), _) => crc,
            // Without an object there is nothing to compare.
            (None, None) => 0,
            (None, Some(_)) => self.source.checksum(name, size).await?,
        };
        Ok(FileEvent::Looked { object, crc32c })
    }

    async fn put(
        &self,
        path: &str,
        name: &str,
        size: u64,
        replaces: Option<&str>,
    ) -> Result<FileEvent, TransferError> {
        let memory = self.memory.acquire().await;
        let range = self.source.read(name, 0, size, memory.buffer()).await?;
        let put = self.unless_finished(path, self.target.put(path, range.data.clone(), replaces)).await;
        memory.give_back(range.data);
        match put {
            // An earlier attempt was done although its answer said otherwise, or it is another file: a look tells.
            Ok(()) | Err(TransferError::Exists) => Ok(FileEvent::Put { crc32c: range.crc32c }),
            Err(error) => Err(error),
        }
    }

    async fn part(
        &self,
        path: &str,
        name: &str,
        id: &str,
        index: u32,
        offset: u64,
        length: u64,
    ) -> Result<FileEvent, TransferError> {
        let memory = self.memory.acquire().await;
        let range = self.source.read(name, offset, length, memory.buffer()).await?;
        let part = PartData { index, offset, data: range.data.clone() };
        let sent = self.target.put_part(path, id, part).await;
        memory.give_back(range.data);
        let tag = sent?;
        let sent = SentPart { tag, crc32c: range.crc32c };
        Ok(FileEvent::Part { id: id.to_owned(), index, sent })
    }
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
