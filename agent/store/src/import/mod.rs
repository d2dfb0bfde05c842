//! Takes in a session that a user has as files: each part is checked while it arrives, as that of a capture is, and nothing
//! is visible before all of it is there.
//!
//! What the manifest says of the parts must be true; whose the session is, the caller says and not the manifest.
//! Must never push out another session: what comes from elsewhere is still there.

use std::{collections::BTreeMap, io, io::Write};

use model::time::Timestamp;
use thiserror::Error;
use xprof::{
    check::{Checker, Damage, TraceSummary},
    session::{
        FaultKind, HostEntry, MANIFEST_FILE, MANIFEST_VERSION, Manifest, NameError, PART_SUFFIX, PartFacts,
        PartName, PartWriter, SessionError, SessionId, SessionName, Tool, parse_manifest,
    },
};

use super::{SessionOwners, SessionPriority, SessionStore, StagedSession, StoreError, StoredSession};

/// The most parts of a session.
const MAX_PARTS: usize = 256;
/// The largest manifest.
const MAX_MANIFEST: u64 = 16 << 20;

/// Why a session is not taken in.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The store refuses it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file that is neither a part nor the manifest.
    #[error("{} is no part of a session: {why}", .file.escape_debug())]
    FileName {
        /// Its name.
        file: String,
        /// What is wrong with it.
        why: NameError,
    },
    /// A file is announced twice.
    #[error("{} is announced twice", .0.escape_debug())]
    Twice(String),
    /// Nothing to keep.
    #[error("the session has no part")]
    NoParts,
    /// More parts than a session may have.
    #[error("the session has {0} parts, and {MAX_PARTS} are allowed")]
    TooManyParts(usize),
    /// A file is larger than the agent takes.
    #[error("{file} has {size} bytes, and {limit} are allowed")]
    TooLarge {
        /// Its name.
        file: String,
        /// Its bytes.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// It would push out other sessions.
    #[error(
        "the session has {bytes} bytes, and the store has room for {room} (store.max_size, store.min_free)"
    )]
    NoRoom {
        /// Bytes of the session.
        bytes: u64,
        /// Bytes up to the limit.
        room: u64,
    },
    /// The pieces do not follow each other as announced.
    #[error("the files did not arrive as they were announced: {0}")]
    Protocol(&'static str),
    /// A part is no trace.
    #[error("{file} is damaged: {damage}")]
    Damaged {
        /// Its name.
        file: String,
        /// What is wrong with it.
        damage: Damage,
    },
    /// A part is a trace of nothing.
    #[error("{0} has no plane: it is not an XSpace, or the trace is empty")]
    Empty(String),
    /// A part is not what the manifest says.
    #[error("{0} does not match the manifest")]
    Mismatch(String),
    /// The manifest cannot be read.
    #[error("{MANIFEST_FILE} {0}")]
    Manifest(FaultKind),
}

impl From<SessionError> for ImportError {
    fn from(error: SessionError) -> Self {
        Self::Store(error.into())
    }
}

/// A file that is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncedFile {
    /// Its name in the session's folder.
    pub file: String,
    /// Its bytes.
    pub size: u64,
}

/// A session that is being taken in. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct SessionImport {
    staged: StagedSession,
    /// The files that are still to come, in reverse order.
    to_come: Vec<Announced>,
    current: Option<Incoming>,
    parts: Vec<Part>,
    manifest: Vec<u8>,
}

#[derive(Debug)]
enum Announced {
    Part(PartName, u64),
    Manifest(u64),
}

/// The file that arrives.
#[derive(Debug)]
enum Incoming {
    Part { name: PartName, size: u64, writer: Box<PartWriter>, checker: Box<Checker> },
    Manifest { size: u64 },
}

/// A part that has arrived.
#[derive(Debug)]
struct Part {
    name: PartName,
    writer: PartWriter,
    summary: TraceSummary,
}

impl SessionStore {
    /// Begins to take in a session with these files. No part may have more than `max_part` bytes.
    ///
    /// # Errors
    /// If the name is taken, there is no room, or the files are not those of a session.
    pub fn begin_import(
        &self,
        name: SessionName,
        owners: SessionOwners,
        files: &[AnnouncedFile],
        max_part: u64,
    ) -> Result<SessionImport, ImportError> {
        let mut to_come = announced(files, max_part)?;
        let bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size));
        let room = self.room()?;
        if bytes > room {
            return Err(ImportError::NoRoom { bytes, room });
        }
        to_come.reverse();
        let staged = self.begin(name, owners)?;
        Ok(SessionImport { staged, to_come, current: None, parts: Vec::new(), manifest: Vec::new() })
    }

    /// Makes the session visible, all of whose files have arrived.
    ///
    /// # Errors
    /// If a file is missing or not what the manifest says, or the disk refuses; then nothing is kept.
    pub fn finish_import(&self, import: SessionImport, now: Timestamp) -> Result<StoredSession, ImportError> {
        let SessionImport { staged, to_come, current, parts, manifest } = import;
        if current.is_some() || !to_come.is_empty() {
            return Err(ImportError::Protocol("a file is missing"));
        }
        let manifest = match &manifest[..] {
            [] => None,
            text => Some(parse_manifest(text).map_err(ImportError::Manifest)?),
        };
        for entry in manifest.iter().flat_map(|manifest| &manifest.hosts).flat_map(|host| &host.parts) {
            let part = parts.iter().find(|part| part.name.file_name() == entry.file);
            let same = |part: &Part| part.writer.size() == entry.size && part.writer.sha256() == entry.sha256;
            if !part.is_some_and(same) {
                return Err(ImportError::Mismatch(entry.file.clone()));
            }
        }
        let mut manifest = manifest.unwrap_or_else(|| bare_manifest(now));
        manifest.session = staged.writer.name().to_string();
        let mut made = Vec::new();
        let committed = parts.into_iter().try_for_each(|part| {
            let facts = PartFacts::of_trace(&part.summary);
            let host = part.name.to_string();
            let entry = part.writer.commit(facts)?;
            made.push(entry.file.clone());
            let known = manifest.hosts.iter().flat_map(|host| &host.parts);
            if !known.map(|known| &known.file).any(|file| *file == entry.file) {
                manifest.hosts.push(HostEntry {
                    host,
                    clock: None,
                    parts: vec![entry],
                    warnings: Vec::new(),
                });
            }
            Ok(())
        });
        match committed.and_then(|()| staged.writer.finish(manifest)) {
            Ok(finished) => Ok(self.finish_as(staged, &finished, SessionPriority::Periodic, now)),
            Err(error) => {
                staged.writer.take_back(&made);
                Err(error.into())
            }
        }
    }
}

impl SessionImport {
    /// The session's name.
    pub fn name(&self) -> &SessionName {
        self.staged.writer.name()
    }

    /// The next bytes of the file `file`, which begin at `offset`. The files arrive whole, in the announced order.
    ///
    /// # Errors
    /// If the bytes are not those that were announced, they cannot be part of a trace, or the disk refuses.
    pub fn take(&mut self, file: &str, offset: u64, data: &[u8]) -> Result<(), ImportError> {
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.next_file()?,
        };
        if current.file() != file || current.received(&self.manifest) != offset {
            return Err(ImportError::Protocol("pieces do not follow each other"));
        }
        if offset.saturating_add(data.len() as u64) > current.size() {
            return Err(ImportError::Protocol("a file is longer than announced"));
        }
        match &mut current {
            Incoming::Part { writer, checker, .. } => {
                let damaged = |damage| ImportError::Damaged { file: file.to_owned(), damage };
                checker.push(data).map_err(damaged)?;
                let path = writer.target().to_owned();
                let failed = |source: io::Error| SessionError::Io { doing: "write", path, source };
                writer.write_all(data).map_err(failed)?;
            }
            Incoming::Manifest { .. } => self.manifest.extend_from_slice(data),
        }
        if current.received(&self.manifest) < current.size() {
            self.current = Some(current);
            return Ok(());
        }
        self.end_file(current)
    }

    fn next_file(&mut self) -> Result<Incoming, ImportError> {
        Ok(match self.to_come.pop() {
            None => return Err(ImportError::Protocol("more files than announced")),
            Some(Announced::Manifest(size)) => Incoming::Manifest { size },
            Some(Announced::Part(name, size)) => {
                let writer = Box::new(self.staged.writer.part(&name)?);
                Incoming::Part { name, size, writer, checker: Box::new(Checker::new(size)) }
            }
        })
    }

    fn end_file(&mut self, file: Incoming) -> Result<(), ImportError> {
        let Incoming::Part { name, writer, checker, .. } = file else { return Ok(()) };
        let file = name.file_name();
        match checker.finish() {
            Err(damage) => Err(ImportError::Damaged { file, damage }),
            Ok(summary) if summary.plane_count == 0 => Err(ImportError::Empty(file)),
            Ok(summary) => {
                self.parts.push(Part { name, writer: *writer, summary });
                Ok(())
            }
        }
    }
}

impl Incoming {
    fn file(&self) -> String {
        match self {
            Self::Part { name, .. } => name.file_name(),
            Self::Manifest { .. } => MANIFEST_FILE.to_owned(),
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Part { size, .. } | Self::Manifest { size } => *size,
        }
    }

    fn received(&self, manifest: &[u8]) -> u64 {
        match self {
            Self::Part { writer, .. } => writer.size(),
            Self::Manifest { .. } => manifest.len() as u64,
        }
    }
}

/// The files in the order of their announcement.
fn announced(files: &[AnnouncedFile], max_part: u64) -> Result<Vec<Announced>, ImportError> {
    let mut seen = BTreeMap::new();
    let mut announced = Vec::with_capacity(files.len().min(MAX_PARTS + 1));
    let parts = files.iter().filter(|file| file.file != MANIFEST_FILE).count();
    if parts > MAX_PARTS {
        return Err(ImportError::TooManyParts(parts));
    }
    if parts == 0 {
        return Err(ImportError::NoParts);
    }
    for AnnouncedFile { file, size } in files {
        let is_manifest = file == MANIFEST_FILE;
        let limit = if is_manifest { MAX_MANIFEST } else { max_part };
        let named = |why| ImportError::FileName { file: file.chars().take(200).collect(), why };
        let known = if is_manifest {
            Announced::Manifest(*size)
        } else {
            let name = file.strip_suffix(PART_SUFFIX).unwrap_or_default();
            Announced::Part(name.parse().map_err(named)?, *size)
        };
        if *size > limit {
            return Err(ImportError::TooLarge { file: file.clone(), size: *size, limit });
        }
        if *size == 0 {
            return Err(ImportError::Empty(file.clone()));
        }
        if seen.insert(file.as_str(), ()).is_some() {
            return Err(ImportError::Twice(file.clone()));
        }
        announced.push(known);
    }
    Ok(announced)
}

/// The manifest of a session that has none.
fn bare_manifest(now: Timestamp) -> Manifest {
    Manifest {
        version: MANIFEST_VERSION,
        session: String::new(),
        id: SessionId::random(),
        tool: Tool::this(),
        created: Some(now.into()),
        window: None,
        tracer_levels: None,
        options: BTreeMap::new(),
        at_step: None,
        hosts: Vec::new(),
        missing: Vec::new(),
        warnings: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
