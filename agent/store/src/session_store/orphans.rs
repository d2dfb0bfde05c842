//! Sessions whose agent died between their first part and their manifest. Each part is whole: it became visible when it
//! was synced. They are finished here, with a manifest that says what is not known.
//!
//! Must never touch a session that this agent's user did not begin: those have no file in `owners`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
};

use model::time::Timestamp;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use sha2::{Digest, Sha256};
use tracing::{info, warn};
use xprof::{
    check::{Checker, TraceSummary},
    session::{
        HostEntry, MANIFEST_VERSION, Manifest, Missing, PartEntry, PartFacts, PartFile, Session, SessionId,
        SessionName, SessionWriter, Tool,
    },
};

use super::{OpenedSession, SessionStore};
use crate::{SessionOwners, StoreError};

/// What is read at once.
const BLOCK: usize = 1 << 20;

impl SessionStore {
    /// The session as it is, or finished if it is an orphan.
    pub(super) fn without_orphan(&self, opened: OpenedSession) -> Result<OpenedSession, StoreError> {
        let name = opened.stored.name.clone();
        let has_manifest = opened.session.manifest.is_some()
            || opened.session.faults.iter().any(xprof::session::Fault::of_manifest);
        if has_manifest || !self.staging.has_owners(&name) {
            return Ok(opened);
        }
        let manifest = match manifest(&name, &opened.session, &self.staging.owners(&name), self.clock.now()) {
            Ok(manifest) => manifest,
            Err(error) => {
                warn!(session = %name, %error, "a session that was never finished cannot be finished");
                return Ok(opened);
            }
        };
        SessionWriter::join(&self.logdir, name.clone()).finish(manifest)?;
        info!(session = %name, "finished a session whose agent had ended before it was complete");
        Ok(self.read(&name)?.unwrap_or(opened))
    }
}

fn manifest(
    name: &SessionName,
    session: &Session,
    owners: &SessionOwners,
    now: Timestamp,
) -> io::Result<Manifest> {
    let mut hosts = Vec::new();
    for part in &session.parts {
        let (host, parts) = (part.host.clone(), vec![entry(part, owners)?]);
        hosts.push(HostEntry { host, clock: None, parts, warnings: Vec::new() });
    }
    let why = "the agent ended before the session was finished: it is not known what else was asked for";
    let missing =
        hosts.first().map(|host| Missing { host: host.host.clone(), process: None, why: why.to_owned() });
    Ok(Manifest {
        version: MANIFEST_VERSION,
        session: name.to_string(),
        id: SessionId::random(),
        tool: Tool::this(),
        created: Some(now.into()),
        window: None,
        tracer_levels: None,
        options: BTreeMap::new(),
        at_step: None,
        hosts,
        missing: missing.into_iter().collect(),
        warnings: Vec::new(),
    })
}

/// Reads a part once: what it holds, and its checksum. `owners`: what was noted when the session began.
fn entry(part: &PartFile, owners: &SessionOwners) -> io::Result<PartEntry> {
    let mut file = File::open(&part.path)?;
    let (mut checker, mut hash) = (Checker::new(part.size), Sha256::new());
    let mut block = vec![0; BLOCK];
    let mut offset = 0;
    let damaged =
        |damage: xprof::check::Damage| io::Error::new(io::ErrorKind::InvalidData, damage.to_string());
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            break;
        }
        checker.push(&block[..read]).map_err(damaged)?;
        hash.update(&block[..read]);
        // Advice: a job's files are not to leave the page cache for this.
        let length = i64::try_from(read).unwrap_or(i64::MAX);
        let _ = posix_fadvise(&file, offset, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        offset = offset.saturating_add(length);
    }
    let summary = checker.finish().map_err(damaged)?;
    let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(described(part, sha256, &summary, owners))
}

fn described(part: &PartFile, sha256: String, summary: &TraceSummary, owners: &SessionOwners) -> PartEntry {
    let facts = PartFacts::of_trace(summary);
    // Which of several users a part is of is not known.
    let uid = if let [uid] = owners.uids[..] { Some(uid) } else { None };
    PartEntry {
        file: format!("{}{}", part.name, xprof::session::PART_SUFFIX),
        size: part.size,
        sha256,
        pid: None,
        command: None,
        uid,
        user: owners.user.clone(),
        versions: facts.versions,
        address: None,
        job: owners.job.clone(),
        planes: facts.planes,
        lines: facts.lines,
        events: facts.events,
        window: facts.window,
        late_start_ns: None,
        steps: None,
        warnings: facts.warnings,
        losses: facts.losses,
        recorded: Vec::new(),
        gaps: Vec::new(),
    }
}
