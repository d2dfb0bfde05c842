//! A value that is read from files, and read again when they change.
//!
//! Must never replace a value that works by one that is broken, or that works no longer or not yet: the last good one stays
//! active, and the reason is logged once. Must never wait long for files on a disk that does not answer.

use std::{
    fmt, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::time::{Clock, Timestamp};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tracing::{info, warn};

/// The shortest interval between two checks of the files.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time that a caller waits for a check of the files. The check goes on without it.
const CHECK_LIMIT: Duration = Duration::from_secs(1);
/// Why a check of the files has no result.
const NO_ANSWER: &str = "its files, or the disk that they are on, do not answer";

/// A file and what changes with it: device, inode, length, time of change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileStamp(PathBuf, Option<(u64, u64, u64, i64, i64)>);

impl FileStamp {
    /// The stamp of a file as it is now. Blocks.
    pub(crate) fn of(path: &Path) -> Self {
        let found = fs::metadata(path).ok();
        let found = found.map(|meta| (meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()));
        Self(path.to_owned(), found)
    }

    fn is_current(&self) -> bool {
        Self::of(&self.0) == *self
    }
}

/// A value that is read from files.
pub(crate) trait FromFiles: Sized + Send + Sync + 'static {
    /// What it is called in the log.
    const NAME: &'static str;
    /// Where its files are, and what else it is made of.
    type Files: Clone + PartialEq + Send + Sync + 'static;
    /// Why it cannot be made.
    type Error: fmt::Display + Send + 'static;

    /// Reads the files. The stamps must be taken first: the next check then detects a change that is made while the files are
    /// read. Blocks.
    ///
    /// # Errors
    /// If it cannot be made.
    fn read(source: &Self::Files) -> Result<(Self, Vec<FileStamp>), Self::Error>;

    /// What must be said when it takes the place of `before`.
    fn warning(&self, before: &Self) -> Option<String>;

    /// Why it must not take the place of `before` at this time, although it can be made.
    fn refusal(&self, before: &Self, now: Timestamp) -> Option<String>;
}

/// A value and its files.
pub(crate) struct FileBacked<T: FromFiles> {
    state: Mutex<State<T>>,
    clock: Arc<dyn Clock>,
    /// The value or the fault is another one.
    changed: Notify,
}

struct State<T: FromFiles> {
    source: T::Files,
    active: Arc<T>,
    stamps: Vec<FileStamp>,
    looked: Instant,
    /// Whether a check is not finished: there is at most one, because one that hangs cannot be ended.
    looking: bool,
    /// The last fault that was logged.
    fault: Option<String>,
}

impl<T: FromFiles> FileBacked<T> {
    /// Reads the files for the first time. Blocks.
    ///
    /// # Errors
    /// If the value cannot be made.
    pub(crate) fn open(source: T::Files, clock: Arc<dyn Clock>) -> Result<Self, T::Error> {
        let (active, stamps) = T::read(&source)?;
        let state = State {
            source,
            active: Arc::new(active),
            stamps,
            looked: Instant::now(),
            looking: false,
            fault: None,
        };
        Ok(Self { state: Mutex::new(state), clock, changed: Notify::new() })
    }

    /// Until the value or the fault is another one than when this was called last.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The active value, without a look at the files.
    pub(crate) fn active(&self) -> Arc<T> {
        self.state().active.clone()
    }

    /// Why the files have not been read again; `None`: the value is what they have.
    pub(crate) fn fault(&self) -> Option<String> {
        self.state().fault.clone()
    }

    /// The active value, after a check of the files if one is due.
    pub(crate) async fn current(self: &Arc<Self>) -> Arc<T> {
        let (active, due) = {
            let mut state = self.state();
            let waited = state.looked.elapsed() >= CHECK_INTERVAL;
            let due = waited && !state.looking && !state.stamps.is_empty();
            if due {
                (state.looked, state.looking) = (Instant::now(), true);
            }
            (state.active.clone(), due)
        };
        if !due {
            return active;
        }
        let unfinished = UnfinishedCheck(Arc::clone(self));
        let check = tokio::task::spawn_blocking(move || unfinished.0.look());
        // Without a result (no answer in time, a panic in a parser) the last good value stays.
        if timeout(CHECK_LIMIT, check).await.is_err() {
            self.state().stays(NO_ANSWER);
            self.changed.notify_one();
        }
        self.active()
    }

    /// Takes another source, which is read with the next check.
    pub(crate) fn set_source(&self, source: T::Files) {
        let mut state = self.state();
        if state.source != source {
            // No file has the stamp of none, so the next check reads.
            state.stamps = vec![FileStamp(PathBuf::from("/"), None)];
            state.source = source;
        }
    }

    fn look(&self) {
        let (source, stamps) = {
            let state = self.state();
            (state.source.clone(), state.stamps.clone())
        };
        if stamps.iter().all(FileStamp::is_current) {
            let mut state = self.state();
            if state.fault.as_deref() == Some(NO_ANSWER) {
                info!("the files of the {} answer again", T::NAME);
                state.fault = None;
                self.changed.notify_one();
            }
            return;
        }
        let read = T::read(&source);
        let mut state = self.state();
        match read {
            Ok((active, stamps)) => match active.refusal(&state.active, self.clock.now()) {
                // The stamps stay too: the next check finds whether the time has come.
                Some(refusal) => state.stays(&refusal),
                None => state.replace(active, stamps),
            },
            Err(error) => state.stays(&error.to_string()),
        }
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Replaced as a whole: never half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: FromFiles> State<T> {
    /// A new value is used from now on.
    fn replace(&mut self, active: T, stamps: Vec<FileStamp>) {
        match active.warning(&self.active) {
            None => info!("{} read again", T::NAME),
            Some(warning) => warn!("{} read again; {warning}", T::NAME),
        }
        (self.active, self.stamps, self.fault) = (Arc::new(active), stamps, None);
    }

    /// The last good value stays. The log has each reason once.
    fn stays(&mut self, why: &str) {
        if self.fault.as_deref() != Some(why) {
            warn!(error = why, "the {} stays as it was", T::NAME);
            self.fault = Some(why.to_owned());
        }
    }
}

/// A check that is running; dropped at its end, however it ends.
struct UnfinishedCheck<T: FromFiles>(Arc<FileBacked<T>>);

impl<T: FromFiles> Drop for UnfinishedCheck<T> {
    fn drop(&mut self) {
        self.0.state().looking = false;
    }
}

#[cfg(test)]
mod tests {
    use model::time::ManualClock;

    use super::*;

    /// A number in a file. One of the future does not take the place of one that is not.
    struct Number(u32);

    impl FromFiles for Number {
        const NAME: &'static str = "number";
        type Files = PathBuf;
        type Error = String;

        fn read(source: &PathBuf) -> Result<(Self, Vec<FileStamp>), String> {
            let stamps = vec![FileStamp::of(source)];
            let text = fs::read_to_string(source).map_err(|error| error.to_string())?;
            Ok((Self(text.trim().parse().map_err(|_| format!("`{text}` is no number"))?), stamps))
        }

        fn warning(&self, _before: &Self) -> Option<String> {
            None
        }

        fn refusal(&self, _before: &Self, now: Timestamp) -> Option<String> {
            (i64::from(self.0) > now.0).then(|| format!("{} is not yet", self.0))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_successor_changes_nothing_and_a_good_one_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&file, "7").unwrap();
        fs::write(&other, "9").unwrap();
        let clock = Arc::new(ManualClock::at(Timestamp(10)));
        let number = Arc::new(FileBacked::<Number>::open(file.clone(), clock.clone()).unwrap());
        fs::write(&file, "seven").unwrap();
        assert_eq!(number.current().await.0, 7, "not due yet");
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!((number.current().await.0, number.fault()), (7, Some("`seven` is no number".to_owned())));
        fs::write(&file, "8").unwrap();
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!((number.current().await.0, number.fault()), (8, None));
        // Not a good one at this time: it is taken when its time has come, without a change of the file.
        fs::write(&file, "12").unwrap();
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!((number.current().await.0, number.fault()), (8, Some("12 is not yet".to_owned())));
        clock.step(2);
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!((number.current().await.0, number.fault()), (12, None));
        number.set_source(other);
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(number.current().await.0, 9);
        number.set_source(folder.path().join("none"));
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(number.current().await.0, 9);
        assert!(number.fault().unwrap().contains("No such file"));
    }
}
