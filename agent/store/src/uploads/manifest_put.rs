//! The manifest of a session over several hosts on its way to its object: a pure state machine.
//!
//! ```text
//! Claim ──the session's──> Parts ──each there, as named──> Put ──written, or there already──> Compare ──equal──> Done
//!   │                        │                                                                  │
//!   └──another's, or none    └──one is not there, or not as named                               └──another manifest
//!              v                            v                                                         v
//!                                    refused, and nothing was written
//! ```
//!
//! Must never let the manifest be written before every part that it names was found, nor replace another one.

use std::collections::BTreeSet;

use xprof::session::{Manifest, PART_SUFFIX, PartName, SessionId, SessionName};

use crate::destinations::target::{ObjectFacts, TransferError};

/// The most parts of a session.
const MAX_PARTS: usize = 100_000;

/// Why a manifest is not put.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutManifestError {
    /// This agent sends no parts of such a session there.
    #[error("no parts of session {session} were sent from here to {destination}")]
    NoUpload {
        /// The session.
        session: String,
        /// The destination.
        destination: String,
    },
    /// It is another session of this name.
    #[error("the manifest is not of the session {0} whose parts were sent from here")]
    OtherSession(SessionName),
    /// It names no part, or too many.
    #[error("the manifest names {0} parts: expected 1 to {MAX_PARTS}")]
    Parts(usize),
    /// It names a file that cannot lie in the session's folder.
    #[error("the manifest names {:?}, which is no part of a session", .0.chars().take(200).collect::<String>())]
    PartName(String),
    /// It names a part twice.
    #[error("the manifest names {0} twice")]
    Twice(String),
    /// The session's name there is another session's, or nobody's.
    #[error("the name {0} there is not this session's")]
    Unclaimed(SessionName),
    /// A part is not there.
    #[error("{0} is not there")]
    Missing(String),
    /// A part has another length.
    #[error("{file} has {there} bytes there, and {named} in the manifest")]
    Size {
        /// The part.
        file: String,
        /// Its bytes there.
        there: u64,
        /// Its bytes in the manifest.
        named: u64,
    },
    /// A part of this host is not as it is here.
    #[error("{0} has another checksum there than here")]
    Checksum(String),
    /// There is another manifest.
    #[error("another manifest of session {0} is there")]
    OtherManifest(SessionName),
    /// The destination cannot be used.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// A part that the manifest names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpectedPart {
    /// In the session's folder.
    pub(crate) file: String,
    /// Its bytes.
    pub(crate) size: u64,
    /// Its checksum, if it is one of this host.
    pub(crate) crc32c: Option<u32>,
}

/// What can be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ManifestStep {
    /// Read the claim of the name.
    ReadClaim,
    /// Ask for the part of this index.
    Look(usize),
    /// Write the manifest, unless one is there.
    Put,
    /// Ask for the manifest.
    Compare,
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ManifestEvent {
    /// The content of the claim.
    Claim(Option<Vec<u8>>),
    /// The object as the destination has it.
    Found(Option<ObjectFacts>),
    /// It was written, or there is one already.
    Put,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ManifestPhase {
    Claim,
    /// The parts that were not found yet.
    Parts(BTreeSet<usize>),
    Put,
    Compare,
    Done,
}

/// One manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManifestPut {
    session: SessionName,
    id: SessionId,
    parts: Vec<ExpectedPart>,
    /// Length and checksum of the manifest.
    text: (u64, u32),
    phase: ManifestPhase,
}

impl ManifestPut {
    /// The manifest of the session that has the name `session` and this id, with the content `text`. `known` has the
    /// checksum of a part of this host.
    pub(crate) fn new(
        session: SessionName,
        id: SessionId,
        manifest: &Manifest,
        text: &[u8],
        known: impl Fn(&str) -> Option<u32>,
    ) -> Result<Self, PutManifestError> {
        if manifest.id.as_ref() != Some(&id) || manifest.session != session.as_str() {
            return Err(PutManifestError::OtherSession(session));
        }
        let mut parts = Vec::new();
        let mut names = BTreeSet::new();
        for part in manifest.hosts.iter().flat_map(|host| &host.parts) {
            let file = part.file.clone();
            let name = file.strip_suffix(PART_SUFFIX).and_then(|name| name.parse::<PartName>().ok());
            if name.is_none() {
                return Err(PutManifestError::PartName(file));
            }
            if !names.insert(file.clone()) {
                return Err(PutManifestError::Twice(file));
            }
            parts.push(ExpectedPart { crc32c: known(&file), size: part.size, file });
        }
        if parts.is_empty() || parts.len() > MAX_PARTS {
            return Err(PutManifestError::Parts(parts.len()));
        }
        let text = (text.len() as u64, crc32c::crc32c(text));
        Ok(Self { session, id, parts, text, phase: ManifestPhase::Claim })
    }

    /// The part of this index.
    pub(crate) fn part(&self, index: usize) -> &ExpectedPart {
        &self.parts[index]
    }

    /// Whether the manifest is there.
    #[cfg(test)]
    pub(crate) fn is_done(&self) -> bool {
        self.phase == ManifestPhase::Done
    }

    /// All steps that can be made now, in any order and at the same time.
    pub(crate) fn steps(&self) -> Box<dyn Iterator<Item = ManifestStep> + '_> {
        let one = |step| Box::new(std::iter::once(step)) as Box<dyn Iterator<Item = ManifestStep>>;
        match &self.phase {
            ManifestPhase::Claim => one(ManifestStep::ReadClaim),
            ManifestPhase::Parts(left) => Box::new(left.iter().copied().map(ManifestStep::Look)),
            ManifestPhase::Put => one(ManifestStep::Put),
            ManifestPhase::Compare => one(ManifestStep::Compare),
            ManifestPhase::Done => Box::new(std::iter::empty()),
        }
    }

    /// Notes what came of a step.
    ///
    /// # Errors
    /// Why the manifest is not put.
    pub(crate) fn apply(&mut self, step: ManifestStep, event: ManifestEvent) -> Result<(), PutManifestError> {
        let next = match (step, event, &mut self.phase) {
            (ManifestStep::ReadClaim, ManifestEvent::Claim(holder), ManifestPhase::Claim) => {
                if holder.as_deref() != Some(self.id.as_str().as_bytes()) {
                    return Err(PutManifestError::Unclaimed(self.session.clone()));
                }
                ManifestPhase::Parts((0..self.parts.len()).collect())
            }
            (ManifestStep::Look(index), ManifestEvent::Found(object), ManifestPhase::Parts(left)) => {
                as_named(&self.parts[index], object)?;
                left.remove(&index);
                if !left.is_empty() {
                    return Ok(());
                }
                ManifestPhase::Put
            }
            (ManifestStep::Put, ManifestEvent::Put, ManifestPhase::Put) => ManifestPhase::Compare,
            (ManifestStep::Compare, ManifestEvent::Found(object), ManifestPhase::Compare) => {
                let (size, crc) = self.text;
                let equal =
                    |found: &ObjectFacts| found.size == size && found.crc32c.is_none_or(|there| there == crc);
                if !object.as_ref().is_some_and(equal) {
                    return Err(PutManifestError::OtherManifest(self.session.clone()));
                }
                ManifestPhase::Done
            }
            // Steps are those of the phase.
            _ => return Ok(()),
        };
        self.phase = next;
        Ok(())
    }
}

fn as_named(part: &ExpectedPart, object: Option<ObjectFacts>) -> Result<(), PutManifestError> {
    let file = part.file.clone();
    let Some(there) = object else { return Err(PutManifestError::Missing(file)) };
    if there.size != part.size {
        return Err(PutManifestError::Size { file, there: there.size, named: part.size });
    }
    match (there.crc32c, part.crc32c) {
        (Some(there), Some(here)) if there != here => Err(PutManifestError::Checksum(file)),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "manifest_put_tests.rs"]
mod tests;
