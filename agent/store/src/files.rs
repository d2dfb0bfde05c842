//! Sessions as files: a logdir that XProf opens as it is, with whose they are beside it.
//!
//! ```text
//! <state>/sessions/plugins/profile/<session>/…    0640, as `xprof::session` writes them
//!                  owners/<session>.json          whose it is
//!                  removed/<session>.<n>/         on its way out
//! ```

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use model::time::Timestamp;
use tracing::warn;
use xprof::session::{
    MANIFEST_FILE, Session, SessionError, SessionName, SessionWriter, remove_abandoned, sessions_folder,
};

use super::{Owners, StagedSession, Store, StoreError, Stored};
use crate::{own_metrics, settings::Store as Settings};

/// The longest file that says whose a session is.
const MAX_OWNERS: u64 = 64 << 10;

/// Sessions being written, by name.
type Running = Arc<Mutex<BTreeSet<SessionName>>>;

/// The store; one agent at a time has it.
#[derive(Debug)]
pub struct Files {
    logdir: PathBuf,
    settings: Settings,
    running: Running,
}

impl Files {
    /// The store below the state directory. The caller holds the directory's lock, so whatever is half done
    /// in it is a dead agent's, and is cleared away.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn open(state: &Path, settings: Settings) -> Result<Self, StoreError> {
        let logdir = state.join("sessions");
        create_folder(&logdir)?;
        let files = Self { logdir, settings, running: Running::default() };
        remove_abandoned(&files.logdir, SystemTime::now(), Duration::ZERO)?;
        remove_tree(&files.removed())?;
        files.forget_ownerless()?;
        Ok(files)
    }

    fn folder(&self, name: &SessionName) -> PathBuf {
        sessions_folder(&self.logdir).join(name.as_str())
    }

    fn owners_file(&self, name: &SessionName) -> PathBuf {
        self.logdir.join("owners").join(format!("{name}.json"))
    }

    fn removed(&self) -> PathBuf {
        self.logdir.join("removed")
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<SessionName>> {
        // A set of names is whole even if a holder panicked.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Owner files whose session never came to be.
    fn forget_ownerless(&self) -> Result<(), SessionError> {
        let folder = self.logdir.join("owners");
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed("list", &folder))?,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let session = path.file_stem().map(|name| sessions_folder(&self.logdir).join(name));
            if session.is_some_and(|session| !session.is_dir()) {
                // Only untidy when it stays.
                let _ = fs::remove_file(&path);
            }
        }
        Ok(())
    }

    fn write_owners(&self, name: &SessionName, owners: &Owners) -> Result<(), SessionError> {
        let path = self.owners_file(name);
        create_folder(&self.logdir.join("owners"))?;
        let text = serde_json::to_vec(owners).expect("numbers only");
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o640).open(&path);
        let written = file.and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()));
        written.map_err(failed("write", &path))
    }

    /// Nobody's where it is missing or damaged: then only administrators have the session.
    fn read_owners(&self, name: &SessionName) -> Owners {
        let mut text = Vec::new();
        let read =
            File::open(self.owners_file(name)).and_then(|file| file.take(MAX_OWNERS).read_to_end(&mut text));
        read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    fn stored(&self, name: SessionName, session: Session) -> Option<Stored> {
        let stamp = |path: &Path| {
            fs::metadata(path).ok().map(|meta| meta.mtime() * 1_000_000_000 + meta.mtime_nsec())
        };
        let manifest = session.folder.join(MANIFEST_FILE);
        let created = stamp(&manifest).or_else(|| stamp(&session.folder))?;
        let manifest_bytes = fs::metadata(&manifest).map_or(0, |meta| meta.len());
        let bytes = session.parts.iter().map(|part| part.size).sum::<u64>() + manifest_bytes;
        Some(Stored { owners: self.read_owners(&name), name, session, created: Timestamp(created), bytes })
    }

    /// Removes the oldest sessions that the limits have no room for.
    fn tidy(&self, keep: &SessionName, now: Timestamp) -> Result<(), StoreError> {
        let (max_size, max_age) = (self.settings.max_size.get(), self.settings.max_age.get());
        let mut sessions = self.list()?;
        let mut total: u64 = sessions.iter().map(|session| session.bytes).sum();
        sessions.retain(|session| session.name != *keep);
        let mut tidied = Ok(());
        for session in sessions {
            let too_much = max_size > 0 && total > max_size;
            let too_old = !max_age.is_zero() && session.created.age(now) > max_age;
            if too_much || too_old {
                // One that cannot be removed keeps no other from going.
                match self.remove(&session.name) {
                    Ok(bytes) => total -= bytes,
                    Err(error) => tidied = Err(error),
                }
            }
        }
        tidied
    }
}

impl Store for Files {
    fn begin(&self, name: SessionName, owners: &Owners) -> Result<StagedSession, StoreError> {
        if !self.running().insert(name.clone()) {
            return Err(StoreError::Running(name));
        }
        let guard = Guard {
            name: name.clone(),
            running: Arc::clone(&self.running),
            owners_file: self.owners_file(&name),
            folder: self.folder(&name),
        };
        let writer = SessionWriter::create(&self.logdir, name.clone())?;
        self.write_owners(&name, owners)?;
        Ok(StagedSession { folder: writer.folder(), writer, _guard: Box::new(guard) })
    }

    fn finish(&self, staged: StagedSession, now: Timestamp) -> Result<(), StoreError> {
        let name = staged.writer.name().clone();
        drop(staged);
        self.tidy(&name, now)
    }

    fn list(&self) -> Result<Vec<Stored>, StoreError> {
        let folder = sessions_folder(&self.logdir);
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("list", &folder))?,
        };
        let mut sessions = Vec::new();
        for entry in entries.flatten() {
            let Some(name) = entry.file_name().to_str().and_then(|name| name.parse::<SessionName>().ok())
            else {
                continue;
            };
            // A link is no session of this store: what it leads to is not ours to give away or to remove.
            if self.running().contains(&name) || !is_folder(&entry.path()) {
                continue;
            }
            match Session::open(&entry.path()) {
                Ok(session) => sessions.extend(session.and_then(|session| self.stored(name, session))),
                // It keeps no other from being shown, or from going when there is no room.
                Err(error) => warn!(%error, "a session in the store is left out"),
            }
        }
        sessions.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        own_metrics::holds(&sessions);
        Ok(sessions)
    }

    fn get(&self, name: &SessionName) -> Result<Stored, StoreError> {
        if self.running().contains(name) {
            return Err(StoreError::Running(name.clone()));
        }
        let folder = self.folder(name);
        let session = if is_folder(&folder) { Session::open(&folder)? } else { None };
        session
            .and_then(|session| self.stored(name.clone(), session))
            .ok_or_else(|| StoreError::NotFound(name.clone()))
    }

    fn remove(&self, name: &SessionName) -> Result<u64, StoreError> {
        let bytes = self.get(name)?.bytes;
        // Gone as a whole, so that nobody sees half of it.
        create_folder(&self.removed())?;
        let away = self.removed().join(format!("{name}.{:08x}", fastrand::u32(..)));
        let folder = self.folder(name);
        fs::rename(&folder, &away).map_err(failed("remove", &folder))?;
        remove_tree(&away)?;
        // Only untidy when it stays: the next start clears it away.
        let _ = fs::remove_file(self.owners_file(name));
        Ok(bytes)
    }
}

/// Ends the writing of a session; one that never came to be has no owners either.
#[derive(Debug)]
struct Guard {
    name: SessionName,
    running: Running,
    owners_file: PathBuf,
    folder: PathBuf,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.folder.is_dir() {
            // Only untidy when it stays: the next start clears it away.
            let _ = fs::remove_file(&self.owners_file);
        }
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

/// Whether a folder is there itself, not behind a link.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

fn create_folder(path: &Path) -> Result<(), SessionError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o750).create(path).map_err(failed("create", path))
}

fn remove_tree(path: &Path) -> Result<(), SessionError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed("remove", path)),
    }
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SessionError + use<'a> {
    move |source| SessionError::Io { doing, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;
    use xprof::session::{MANIFEST_VERSION, Manifest, PartFacts, PartName, Tool};

    use super::*;
    use model::unit;

    fn name(text: &str) -> SessionName {
        text.parse().unwrap()
    }

    fn part_name() -> PartName {
        "h".parse().unwrap()
    }

    fn write(store: &Files, session: &str, bytes: usize) -> StagedSession {
        let staged = store.begin(name(session), &Owners { uids: vec![7] }).unwrap();
        let mut part = staged.writer.part(&part_name()).unwrap();
        part.write_all(&vec![1; bytes]).unwrap();
        part.commit(PartFacts::default()).unwrap();
        staged
    }

    fn finish(store: &Files, staged: StagedSession) {
        let manifest = Manifest {
            version: MANIFEST_VERSION,
            session: staged.writer.name().to_string(),
            tool: Tool::this(),
            created: None,
            window: None,
            hosts: Vec::new(),
            missing: Vec::new(),
            warnings: Vec::new(),
        };
        staged.writer.finish(manifest).unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        store.finish(staged, Timestamp(i64::try_from(now.as_nanos()).unwrap())).unwrap();
    }

    fn names(store: &Files) -> Vec<String> {
        store.list().unwrap().iter().map(|session| session.name.to_string()).collect()
    }

    #[test]
    fn a_session_is_seen_when_it_is_done_and_gone_when_removed() {
        let state = TempDir::new().unwrap();
        let store = Files::open(state.path(), Settings::default()).unwrap();
        let staged = write(&store, "a", 10);
        assert_eq!(names(&store), [""; 0]);
        assert!(matches!(store.get(&name("a")), Err(StoreError::Running(_))));
        assert!(matches!(store.remove(&name("a")), Err(StoreError::Running(_))));
        assert!(matches!(store.begin(name("a"), &Owners::default()), Err(StoreError::Running(_))));
        finish(&store, staged);
        assert_eq!(names(&store), ["a"]);
        let stored = store.get(&name("a")).unwrap();
        assert_eq!((stored.owners.uids, stored.session.parts.len()), (vec![7], 1));
        assert!(matches!(store.begin(name("a"), &Owners::default()), Err(StoreError::Session(_))));
        assert!(store.remove(&name("a")).unwrap() > 10);
        assert!(matches!(store.get(&name("a")), Err(StoreError::NotFound(_))));
        assert_eq!(fs::read_dir(store.removed()).unwrap().count(), 0);
        assert_eq!(fs::read_dir(state.path().join("sessions/owners")).unwrap().count(), 0);
    }

    #[test]
    fn a_session_that_was_given_up_leaves_nothing() {
        let state = TempDir::new().unwrap();
        let store = Files::open(state.path(), Settings::default()).unwrap();
        drop(store.begin(name("a"), &Owners { uids: vec![7] }).unwrap());
        assert_eq!(fs::read_dir(state.path().join("sessions/owners")).unwrap().count(), 0);
        finish(&store, write(&store, "a", 1));
        assert_eq!(names(&store), ["a"]);
    }

    #[test]
    #[expect(clippy::mem_forget, reason = "after kill -9 nothing is dropped")]
    fn a_new_agent_clears_away_what_a_dead_one_left() {
        let state = TempDir::new().unwrap();
        let store = Files::open(state.path(), Settings::default()).unwrap();
        finish(&store, write(&store, "kept", 1));
        let staged = store.begin(name("dead"), &Owners { uids: vec![7] }).unwrap();
        let StagedSession { writer, _guard, .. } = staged;
        std::mem::forget(_guard);
        drop(writer);
        // The kernel has let go of what the dead agent had locked.
        let staged = state.path().join("sessions/plugins/.tpuscope/dead.h.1.0");
        fs::create_dir(&staged).unwrap();
        fs::write(staged.join("h.part"), "half").unwrap();
        let store = Files::open(state.path(), Settings::default()).unwrap();
        assert_eq!(names(&store), ["kept"]);
        assert_eq!(fs::read_dir(state.path().join("sessions/plugins/.tpuscope")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(state.path().join("sessions/owners")).unwrap().count(), 1);
    }

    #[test]
    fn the_oldest_goes_first_when_a_limit_is_set() {
        let state = TempDir::new().unwrap();
        let settings = Settings { max_size: unit::Bytes::new(3000), ..Settings::default() };
        let store = Files::open(state.path(), settings).unwrap();
        for session in ["c", "a", "b"] {
            finish(&store, write(&store, session, 1000));
        }
        assert_eq!(names(&store), ["a", "b"]);
        // One that is larger than all room stays: it has just been asked for.
        finish(&store, write(&store, "large", 5000));
        assert_eq!(names(&store), ["large"]);
    }

    #[test]
    fn files_of_others_are_no_sessions() {
        let state = TempDir::new().unwrap();
        let store = Files::open(state.path(), Settings::default()).unwrap();
        let profile = state.path().join("sessions/plugins/profile");
        fs::create_dir_all(profile.join("..x")).unwrap();
        fs::create_dir_all(profile.join("empty")).unwrap();
        fs::write(profile.join("file"), "x").unwrap();
        finish(&store, write(&store, "kept", 1));
        symlink("kept", profile.join("latest")).unwrap();
        assert_eq!(names(&store), ["kept"]);
        for other in ["file", "latest"] {
            assert!(matches!(store.get(&name(other)), Err(StoreError::NotFound(_))));
            assert!(matches!(store.remove(&name(other)), Err(StoreError::NotFound(_))));
        }
        assert_eq!(names(&store), ["kept"]);
    }
}
