//! Writes session folders so that no reader ever sees half a part or an empty session.
//!
//! Each part is written in a staging folder of its own, below `plugins/.tpuscope`. [`PartWriter::commit`]
//! makes it durable and then, for the first part, renames the whole staging folder to the session's; for
//! later ones it renames the file into it. The manifest goes the same way, last. [`SessionWriter::publish`] makes all of it
//! visible in one step.
//! A process that dies leaves only staging folders behind; [`super::remove_abandoned`] clears them away.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::fcntl::{Flock, PosixFadviseAdvice, posix_fadvise};
use sha2::{Digest, Sha256};

use super::{
    GapEntry, LossEntry, MANIFEST_FILE, Manifest, PartEntry, PartJob, PartName, PartSteps, SessionError,
    SessionName, Window, failed,
    reserve::Reservation,
    sessions_folder,
    staging::{self, create_file, create_folders, lock},
};
use crate::{check::TraceSummary, loss::Loss};

/// After so many bytes the kernel begins to write them, and lets go of what is written: a trace must not push
/// a job's files out of the page cache, nor wait for the disk all at once when it is complete.
const DRAIN: u64 = 8 << 20;
/// What is read back at a time.
const PIECE: usize = 256 << 10;

/// Tells apart the staging folders of one process.
static STAGED: AtomicU64 = AtomicU64::new(0);

/// Writes one session.
#[derive(Debug)]
pub struct SessionWriter {
    logdir: PathBuf,
    name: SessionName,
    /// None where others may write the same session.
    _reserved: Option<Reservation>,
}

impl SessionWriter {
    /// A new session below `logdir`, whose name is this writer's alone until it is dropped.
    ///
    /// # Errors
    /// When a session of that name is there already or is being written, or on an I/O error.
    pub fn create(logdir: &Path, name: SessionName) -> Result<Self, SessionError> {
        let folder = sessions_folder(logdir).join(name.as_str());
        let there = || if folder.exists() { Err(SessionError::Exists(folder.clone())) } else { Ok(()) };
        there()?;
        let reserved = Reservation::take(logdir, &name)?;
        // The writer that had the name before may have finished meanwhile.
        there()?;
        Ok(Self { _reserved: Some(reserved), ..Self::join(logdir, name) })
    }

    /// A session that another host may be writing too, on a file system that both share.
    pub fn join(logdir: &Path, name: SessionName) -> Self {
        Self { logdir: logdir.to_owned(), name, _reserved: None }
    }

    /// The session's name.
    pub fn name(&self) -> &SessionName {
        &self.name
    }

    /// The session's folder, which appears with its first complete part.
    pub fn folder(&self) -> PathBuf {
        sessions_folder(&self.logdir).join(self.name.as_str())
    }

    /// Begins a part. Dropped without a commit it leaves nothing behind.
    ///
    /// # Errors
    /// When the part is there already, or on an I/O error.
    pub fn part(&self, name: &PartName) -> Result<PartWriter, SessionError> {
        let target = self.folder().join(name.file_name());
        if target.exists() {
            return Err(SessionError::Exists(target));
        }
        let staged = Staged::create(&self.logdir, &format!("{}.{name}", self.name))?;
        let path = staged.folder.join(format!("{name}.part"));
        let file = create_file(&path)?;
        let alive = lock(&file);
        Ok(PartWriter { staged, path, file, _alive: alive, target, hash: Sha256::new(), size: 0, drained: 0 })
    }

    /// Writes the manifest, which is the last thing that a session's writer does, and gives it back with what the
    /// session takes on the disk: it need not be read again. Replaces an earlier manifest.
    ///
    /// # Errors
    /// When the session has no part yet, or on an I/O error.
    pub fn finish(&self, manifest: Manifest) -> Result<FinishedSession, SessionError> {
        let folder = self.folder();
        if !folder.is_dir() {
            return Err(SessionError::NoParts(self.name.clone()));
        }
        let staged = Staged::create(&self.logdir, &format!("{}.manifest", self.name))?;
        let path = staged.folder.join(MANIFEST_FILE);
        let (length, _alive) = write_manifest(&path, &manifest)?;
        let target = folder.join(MANIFEST_FILE);
        let replaces = target.exists();
        fs::rename(&path, &target).map_err(failed("create", &target))?;
        if let Err(error) = sync_folder(&folder) {
            // A session that is reported as failed does not look whole.
            if !replaces {
                let _ = fs::remove_file(&target);
            }
            return Err(error);
        }
        let bytes = manifest.parts_bytes().saturating_add(length);
        Ok(FinishedSession { manifest, folder, bytes })
    }

    /// Makes parts and their manifest durable, and visible in one step: there is the whole session or nothing, also after a
    /// crash.
    ///
    /// # Errors
    /// When there is no part, when a part is there twice, when the session is there already, or on an I/O error: then nothing
    /// is visible.
    pub fn publish(
        &self,
        parts: Vec<PartWriter>,
        manifest: Manifest,
    ) -> Result<FinishedSession, SessionError> {
        let first = parts.first().ok_or_else(|| SessionError::NoParts(self.name.clone()))?;
        let staged = &first.staged.folder;
        for part in &parts {
            part.sync()?;
            let whole = part.whole_in(staged);
            if whole.exists() {
                return Err(SessionError::Exists(part.target.clone()));
            }
            fs::rename(&part.path, &whole).map_err(failed("create", &whole))?;
        }
        let (length, _alive) = write_manifest(&staged.join(MANIFEST_FILE), &manifest)?;
        sync_folder(staged)?;
        let (folder, sessions) = (self.folder(), sessions_folder(&self.logdir));
        create_folders(&sessions)?;
        fs::rename(staged, &folder).map_err(|error| match folder.exists() {
            true => SessionError::Exists(folder.clone()),
            false => failed("create", &folder)(error),
        })?;
        if let Err(error) = sync_folder(&sessions) {
            // A session that is reported as failed is not kept.
            let _ = fs::rename(&folder, staged);
            return Err(error);
        }
        let bytes = manifest.parts_bytes().saturating_add(length);
        Ok(FinishedSession { manifest, folder, bytes })
    }

    /// Takes back parts that were made visible, by their files, and the folder unless it holds something else: for
    /// when the session does not become whole.
    pub fn take_back(&self, files: &[String]) {
        let folder = self.folder();
        // Nothing is left to try when they cannot be removed: the error that led here is reported.
        for file in files {
            let _ = fs::remove_file(folder.join(file));
        }
        let _ = fs::remove_dir(folder);
    }
}

/// A session whose manifest is written.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedSession {
    /// What was written.
    pub manifest: Manifest,
    /// The session's folder.
    pub folder: PathBuf,
    /// The bytes of its parts and its manifest.
    pub bytes: u64,
}

/// What the writer of a part learnt while the bytes went by.
#[derive(Debug, Clone, Default)]
pub struct PartFacts {
    /// The process, where known.
    pub pid: Option<u32>,
    /// Its command, where known.
    pub command: Option<String>,
    /// The id of its user, where known.
    pub uid: Option<u32>,
    /// The name of its user on its host, where known.
    pub user: Option<String>,
    /// The versions of its libraries that were observed, by name.
    pub versions: BTreeMap<String, String>,
    /// The profiler, as `host:port`.
    pub address: Option<String>,
    /// The job of the process, where known.
    pub job: Option<Box<PartJob>>,
    /// Planes, lines and events counted.
    pub planes: u64,
    /// See `planes`.
    pub lines: u64,
    /// See `planes`.
    pub events: u64,
    /// What the trace says it covers.
    pub window: Option<Window>,
    /// How long after the asked start it began, where that was too long.
    pub late_start_ns: Option<u64>,
    /// Its steps; `None` if it shows none, or was not read for them.
    pub steps: Option<PartSteps>,
    /// What is doubtful, losses included.
    pub warnings: Vec<String>,
    /// What it lost.
    pub losses: Vec<LossEntry>,
    /// The stretches that the recorder recorded; empty in a capture.
    pub recorded: Vec<Window>,
    /// The stretches between.
    pub gaps: Vec<GapEntry>,
}

impl PartFacts {
    /// What the trace itself says, its losses among it; nothing of its process.
    pub fn of_trace(summary: &TraceSummary) -> Self {
        let losses = summary.losses();
        Self {
            versions: summary.versions.clone(),
            planes: summary.plane_count,
            lines: summary.lines,
            events: summary.events,
            window: summary.window.and_then(|(start, stop)| Window::from_ns(start, stop)),
            warnings: losses.iter().map(|loss| loss.message.clone()).collect(),
            losses: losses.iter().map(Loss::to_entry).collect(),
            ..Self::default()
        }
    }
}

/// A part that is being written.
#[derive(Debug)]
pub struct PartWriter {
    staged: Staged,
    path: PathBuf,
    file: File,
    /// Says that its writer lives; see [`super::remove_abandoned`].
    _alive: Option<Flock<File>>,
    target: PathBuf,
    hash: Sha256,
    size: u64,
    drained: u64,
}

impl PartWriter {
    /// Bytes written so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The SHA-256 of what was written so far, in hex.
    pub fn sha256(&self) -> String {
        hex(&self.hash.clone().finalize())
    }

    /// Where its bytes lie until it is committed.
    pub fn staged(&self) -> &Path {
        &self.path
    }

    /// Where the part will lie.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The file of a part that cannot be written from its start to its end; [`Self::read_back`] has to follow, and
    /// nothing else is written to the part.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Takes what was written to [`Self::file`] for the part: reads it once for its checksum.
    ///
    /// # Errors
    /// On an I/O error.
    pub fn read_back(&mut self) -> Result<(), SessionError> {
        let mut piece = vec![0; PIECE];
        (self.hash, self.size, self.drained) = (Sha256::new(), 0, 0);
        self.file.seek(SeekFrom::Start(0)).map_err(failed("read", &self.path))?;
        loop {
            match self.file.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(read) => self.count(&piece[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read", &self.path)(error)),
            }
        }
    }

    /// The next bytes of the part are in its file.
    fn count(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        if self.size - self.drained >= DRAIN {
            self.drain();
        }
    }

    fn drain(&mut self) {
        // The stretch before was still on its way to the disk when it was last asked for.
        let from = self.drained.saturating_sub(DRAIN);
        let (offset, length) = (from.cast_signed(), (self.size - from).cast_signed());
        // Advice: where it is not taken, `commit` waits longer.
        let _ = posix_fadvise(&self.file, offset, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        self.drained = self.size;
    }

    /// Makes the bytes durable.
    ///
    /// # Errors
    /// On an I/O error.
    pub fn sync(&self) -> Result<(), SessionError> {
        self.file.sync_all().map_err(failed("write", &self.path))
    }

    /// Makes the part durable and visible, and returns its entry for the manifest.
    ///
    /// # Errors
    /// On an I/O error, or when another writer wrote the part meanwhile: then nothing is visible.
    pub fn commit(self, facts: PartFacts) -> Result<PartEntry, SessionError> {
        self.sync()?;
        let whole = self.whole_in(&self.staged.folder);
        fs::rename(&self.path, &whole).map_err(failed("create", &whole))?;
        self.show(&whole)?;
        let target = self.target.clone();
        if let Err(error) = sync_session(target.parent()) {
            // A part that is reported as failed is not kept, nor a folder that holds nothing else.
            let _ = fs::remove_file(&target).and_then(|()| target.parent().map_or(Ok(()), fs::remove_dir));
            return Err(error);
        }
        Ok(PartEntry {
            file: self.file_name().to_string_lossy().into_owned(),
            size: self.size,
            sha256: hex(&self.hash.finalize()),
            pid: facts.pid,
            command: facts.command,
            uid: facts.uid,
            user: facts.user,
            versions: facts.versions,
            address: facts.address,
            job: facts.job,
            planes: facts.planes,
            lines: facts.lines,
            events: facts.events,
            window: facts.window,
            late_start_ns: facts.late_start_ns,
            steps: facts.steps,
            losses: facts.losses,
            warnings: facts.warnings,
            recorded: facts.recorded,
            gaps: facts.gaps,
        })
    }

    fn file_name(&self) -> &OsStr {
        self.target.file_name().expect("a part has a file name")
    }

    /// Where it lies in a staging folder once it is whole.
    fn whole_in(&self, staged: &Path) -> PathBuf {
        staged.join(self.file_name())
    }

    /// Makes it visible.
    fn show(&self, whole: &Path) -> Result<(), SessionError> {
        let folder = self.target.parent().expect("a part lies in its session's folder");
        let sessions = folder.parent().expect("a session lies in plugins/profile");
        create_folders(sessions)?;
        if !folder.is_dir() {
            // The folder that becomes the session's must not appear without what is in it.
            sync_folder(&self.staged.folder)?;
        }
        // The first part brings the folder along, so that it never stands there empty. A rename onto a
        // folder that holds something fails.
        if let Err(error) = fs::rename(&self.staged.folder, folder) {
            if !folder.is_dir() {
                return Err(failed("create", folder)(error));
            }
            if self.target.exists() {
                return Err(SessionError::Exists(self.target.clone()));
            }
            fs::rename(whole, &self.target).map_err(failed("create", &self.target))?;
        }
        Ok(())
    }
}

impl Write for PartWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.count(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A staging folder of our own, gone when dropped unless it was renamed away.
#[derive(Debug)]
struct Staged {
    folder: PathBuf,
}

impl Staged {
    fn create(logdir: &Path, label: &str) -> Result<Self, SessionError> {
        // File names end at 255 bytes; two long names would pass that.
        let label = &label[..label.len().min(200)];
        loop {
            // Another host that shares the file system may have our process id: then the next count is free.
            let count = STAGED.fetch_add(1, Ordering::Relaxed);
            let made = staging::make_folder(logdir, &format!("{label}.{}.{count}", process::id()))?;
            if let Some(folder) = made {
                return Ok(Self { folder });
            }
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Renamed away in the good case; else best effort, and `remove_abandoned` comes later.
        if staging::clear(&self.folder).is_err() {
            staging::remove_if_empty(self.folder.parent());
        }
    }
}

/// Writes a manifest, durable. Returns its length, and the lock that says that its writer lives.
fn write_manifest(path: &Path, manifest: &Manifest) -> Result<(u64, Option<Flock<File>>), SessionError> {
    let mut file = create_file(path)?;
    let alive = lock(&file);
    let text = manifest.text();
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed("write", path))?;
    Ok((text.len() as u64, alive))
}

/// Makes the names in a session's folder durable, and the folder's own.
fn sync_session(folder: Option<&Path>) -> Result<(), SessionError> {
    let both = [folder, folder.and_then(Path::parent)];
    both.into_iter().flatten().try_for_each(sync_folder)
}

fn sync_folder(path: &Path) -> Result<(), SessionError> {
    // Without this a crash may forget the rename although the bytes are safe.
    match File::open(path).and_then(|folder| folder.sync_all()) {
        // Its staging folder became the session's.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(failed("sync", path)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
