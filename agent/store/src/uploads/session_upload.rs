//! One session on its way to one destination: a pure state machine over those of its files.
//!
//! ```text
//! Unclaimed ──ours, new────────> claimed: no file can be there
//!     │     ──ours from before─> claimed: files may be there, so that each is looked at first
//!     └─────another's──────────> Unclaimed, with the next name
//! claimed ──every part There──> the manifest's turn ──There──> done
//! ```
//!
//! Of a session over several hosts each host sends its parts alone where all agreed on it. All have the same id, so that they
//! share the claim, and there is no second name: the others would not know it. `manifest_put` puts the manifest. Elsewhere
//! each sends a session of its own, whose first name has the host's name already.
//!
//! The claim is an object that holds the id of the manifest, so that two sessions of one name never mix. Must never let
//! the manifest be seen before every part.

use xprof::session::{HostName, MANIFEST_FILE, SessionName};

use super::{
    file::{FileEvent, FileState, FileStep, FileUpload},
    status::UploadShare,
};

/// What a session's upload is made of, all known from its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionFiles {
    /// Its name here.
    pub(crate) session: SessionName,
    /// The random id of its manifest.
    pub(crate) id: String,
    /// This host, for a second name.
    pub(crate) host: HostName,
    /// Names and sizes of its parts, and of the manifest unless its parts are sent alone.
    pub(crate) files: Vec<(String, u64)>,
    /// What of it is sent.
    pub(crate) share: UploadShare,
}

/// The session's name at the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NameClaim {
    /// None yet; so many names are another's.
    Unclaimed { refused: u8 },
    /// This one.
    Claimed(SessionName),
}

/// Who has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimAnswer {
    /// This session, since now.
    New,
    /// This session, from before.
    Ours,
    /// Another session.
    Foreign,
}

/// What can be done for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum UploadStep {
    /// Claim the name.
    Claim,
    /// A step for the file of this index.
    File(usize, FileStep),
}

/// The upload of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionUpload {
    session: SessionName,
    id: String,
    host: HostName,
    share: UploadShare,
    /// Its name there.
    pub(crate) claim: NameClaim,
    /// Its files, a manifest last.
    pub(crate) files: Vec<FileUpload>,
}

impl SessionUpload {
    /// Nothing is known of what the destination has.
    pub(crate) fn new(session: SessionFiles) -> Self {
        let SessionFiles { session, id, host, files, share } = session;
        let mut files: Vec<_> =
            files.into_iter().map(|(name, size)| FileUpload::new(name, size, false)).collect();
        files.sort_by_key(|file| file.name == MANIFEST_FILE);
        Self { session, id, host, share, claim: NameClaim::Unclaimed { refused: 0 }, files }
    }

    /// The id that the claim holds.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The session's name here.
    pub(crate) fn session(&self) -> &SessionName {
        &self.session
    }

    /// The name that is claimed, or is claimed next; `None`: there is no other one to try.
    pub(crate) fn name_there(&self) -> Option<SessionName> {
        match &self.claim {
            NameClaim::Claimed(name) => Some(name.clone()),
            NameClaim::Unclaimed { refused } => self.name_after(*refused),
        }
    }

    /// Whether another session had the name that it would have by itself.
    pub(crate) fn is_renamed(&self) -> bool {
        self.name_there() != self.name_after(0)
    }

    /// The name that is tried after so many are another's.
    fn name_after(&self, refused: u8) -> Option<SessionName> {
        let tried = match self.share {
            UploadShare::Parts if refused > 0 => return None,
            UploadShare::Whole | UploadShare::Parts => refused,
            UploadShare::OfHost => refused.saturating_add(1),
        };
        let name = match tried {
            0 => return Some(self.session.clone()),
            1 => format!("{}-{}", self.session, self.host),
            // A session of this name was uploaded from this host before, and forgotten here.
            2 => format!("{}-{:.8}", self.session, self.id),
            _ => return None,
        };
        // Both names may be as long as a name can be.
        name.parse().ok().or_else(|| format!("{:.8}-{:.40}", self.id, self.session.as_str()).parse().ok())
    }

    /// Whether the manifest is another agent's to put: when it is there, the session is finished.
    pub(crate) fn is_parts_alone(&self) -> bool {
        self.share == UploadShare::Parts
    }

    /// Whether every file is there.
    pub(crate) fn is_done(&self) -> bool {
        self.files.iter().all(FileUpload::is_there)
    }

    /// The first file that was given up.
    pub(crate) fn failed_file(&self) -> Option<&FileUpload> {
        self.files.iter().find(|file| file.state == FileState::Failed)
    }

    /// All bytes, and those that the destination has.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let (all, sent) =
            (self.files.iter().map(|file| file.size), self.files.iter().map(FileUpload::sent_bytes));
        (all.sum(), sent.sum())
    }

    /// All steps that can be made now, in any order and at the same time.
    pub(crate) fn steps(&self) -> Box<dyn Iterator<Item = UploadStep> + '_> {
        if let NameClaim::Unclaimed { .. } = self.claim {
            return Box::new(self.name_there().map(|_| UploadStep::Claim).into_iter());
        }
        let (manifest, parts) = match self.files.split_last() {
            Some((last, parts)) if last.name == MANIFEST_FILE => (Some(last), parts),
            _ => (None, &self.files[..]),
        };
        let turn = parts.iter().all(FileUpload::is_there);
        let of = |(index, file): (usize, &'_ FileUpload)| -> Vec<UploadStep> {
            file.steps().map(|step| UploadStep::File(index, step)).collect()
        };
        let last = manifest.filter(|_| turn).map(|file| (parts.len(), file));
        Box::new(parts.iter().enumerate().chain(last).flat_map(of))
    }

    /// Notes who has the name.
    pub(crate) fn claimed(&mut self, answer: ClaimAnswer) {
        let (Some(name), NameClaim::Unclaimed { refused }) = (self.name_there(), &mut self.claim) else {
            return;
        };
        match answer {
            ClaimAnswer::Foreign => *refused = refused.saturating_add(1),
            ClaimAnswer::Ours => self.claim = NameClaim::Claimed(name),
            ClaimAnswer::New => {
                self.claim = NameClaim::Claimed(name);
                for file in &mut self.files {
                    *file = FileUpload::new(std::mem::take(&mut file.name), file.size, true);
                }
            }
        }
    }

    /// Notes what came of a step for a file.
    pub(crate) fn apply(&mut self, file: usize, event: FileEvent) {
        if let Some(file) = self.files.get_mut(file) {
            file.apply(event);
        }
    }
}

#[cfg(test)]
#[path = "session_upload_tests.rs"]
pub(crate) mod tests;
