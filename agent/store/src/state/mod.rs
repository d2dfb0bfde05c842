//! The state of the agent: one SQLite database, `state.db` in the state directory.
//!
//! It is opened by the first call that needs it, and made by the first that writes: an agent with nothing to keep has no
//! database. One connection, behind a lock, used only by threads that may block. The caller holds the lock of the state
//! directory, so that no other agent has the file.
//!
//! Must never lose a commit of [`StateDb::write_durable`], take a full or read-only disk for damage, or map the file into
//! memory: a disk that fails would end the process.

mod damaged;
mod error;
pub(crate) mod migrations;

use std::{
    fmt,
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use model::time::Clock;
use nix::{errno::Errno, fcntl::OFlag};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use tracing::warn;

pub use error::StateError;
use migrations::Unusable;

/// The name of the database.
const FILE: &str = "state.db";
/// How long a call waits for another program that has the file, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Small caches, nothing mapped. Exclusive: without it the index of the write-ahead log is a mapped file.
const SETTINGS: &str = "
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA mmap_size = 0;
    PRAGMA cache_size = -256;
    PRAGMA temp_store = MEMORY;
    PRAGMA foreign_keys = ON;
    PRAGMA trusted_schema = OFF;
    PRAGMA cell_size_check = ON;
    PRAGMA journal_mode = WAL;
    PRAGMA wal_autocheckpoint = 256;
    PRAGMA journal_size_limit = 1048576;
";

/// What a commit has to outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// The end of the process. The last commits may be lost when the machine loses power.
    Process,
    /// The loss of power.
    Power,
}

/// The database.
pub struct StateDb {
    file: PathBuf,
    clock: Arc<dyn Clock>,
    opened: Mutex<Option<Opened>>,
    was_damaged: AtomicBool,
}

impl fmt::Debug for StateDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateDb").field("file", &self.file).finish_non_exhaustive()
    }
}

struct Opened {
    connection: Connection,
    durability: Option<Durability>,
}

impl StateDb {
    /// The database in the directory `state`. Nothing is read yet.
    pub fn new(state: &Path, clock: Arc<dyn Clock>) -> Self {
        Self { file: state.join(FILE), clock, opened: Mutex::default(), was_damaged: AtomicBool::default() }
    }

    /// Opens the database if there is one. A damaged one is moved aside, with a warning.
    ///
    /// # Errors
    /// If this program cannot use it.
    pub fn open_existing(&self) -> Result<(), StateError> {
        match self.read(|_| Ok(())) {
            Ok(_) | Err(StateError::Damaged { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads. `None` if there is no database, and none is made.
    ///
    /// # Errors
    /// If the disk refuses, or `query` fails.
    pub fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, StateError> {
        let mut opened = self.opened();
        if opened.is_none() && !self.exists()? {
            return Ok(None);
        }
        if opened.is_none() {
            match self.open() {
                // There is no room for a new one: nothing was ever written to it.
                Err(Unopened::Other(StateError::Full { .. })) if self.is_unwritten() => return Ok(None),
                Ok(made) => *opened = Some(made),
                Err(unopened) => return Err(self.unopened(&mut opened, unopened)),
            }
        }
        self.with(&mut opened, |opened| query(&opened.connection)).map(Some)
    }

    /// Whether a damaged database was moved aside, which the log says.
    pub(crate) fn was_damaged(&self) -> bool {
        self.was_damaged.load(Ordering::Relaxed)
    }

    /// Whether the file has no table yet.
    fn is_unwritten(&self) -> bool {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let tables = Connection::open_with_flags(&self.file, flags).and_then(|connection| {
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))
        });
        tables.is_ok_and(|tables| tables == 0)
    }

    /// Makes one change, whole or not at all. It outlives the process, but not always a loss of power.
    ///
    /// # Errors
    /// If the disk refuses, or `change` fails.
    pub fn write<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StateError> {
        self.commit(Durability::Process, change)
    }

    /// Makes one change, whole or not at all, and returns once it is on the disk: for what is reported as stored.
    ///
    /// # Errors
    /// If the disk refuses, or `change` fails.
    pub fn write_durable<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StateError> {
        self.commit(Durability::Power, change)
    }

    /// Reads the whole database once and moves it aside if it is damaged.
    ///
    /// # Errors
    /// If the disk refuses, or it is damaged.
    pub fn check(&self) -> Result<(), StateError> {
        let mut opened = self.opened();
        if opened.is_none() && !self.exists()? {
            return Ok(());
        }
        let found: String = self.with(&mut opened, |opened| {
            opened.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        })?;
        if found == "ok" { Ok(()) } else { Err(self.move_aside(&mut opened, &found)) }
    }

    fn commit<T>(
        &self,
        durability: Durability,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StateError> {
        self.with(&mut self.opened(), |opened| {
            opened.set_durability(durability)?;
            let transaction = Transaction::new(&mut opened.connection, TransactionBehavior::Immediate)?;
            let changed = change(&transaction)?;
            transaction.commit()?;
            Ok(changed)
        })
    }

    fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        // A transaction whose holder panicked was rolled back.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exists(&self) -> Result<bool, StateError> {
        self.file.try_exists().map_err(|error| StateError::of_system("look for", self.file.clone(), error))
    }

    /// Calls with the database, which is opened or made first.
    fn with<T>(
        &self,
        opened: &mut Option<Opened>,
        call: impl FnOnce(&mut Opened) -> rusqlite::Result<T>,
    ) -> Result<T, StateError> {
        if opened.is_none() {
            *opened = Some(match self.open() {
                Ok(opened) => opened,
                Err(unopened) => return Err(self.unopened(opened, unopened)),
            });
        }
        let Some(database) = opened.as_mut() else { unreachable!("it was just opened") };
        match call(database) {
            Ok(value) => Ok(value),
            Err(error) if is_damage(&error) => Err(self.move_aside(opened, &error.to_string())),
            Err(error) => Err(StateError::of_sqlite(self.file.clone(), error)),
        }
    }

    fn open(&self) -> Result<Opened, Unopened> {
        let system = |error| self.unopenable(error);
        // SQLite would not say why the system refuses, and would give a new file another mode.
        let mut options = File::options();
        options.read(true).write(true).create(true).mode(0o640).custom_flags(OFlag::O_NOFOLLOW.bits());
        options.open(&self.file).map_err(|error| Unopened::Other(system(error)))?;
        let sqlite = |error| Unopened::of(&self.file, error);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&self.file, flags).map_err(sqlite)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(sqlite)?;
        connection.execute_batch(SETTINGS).map_err(sqlite)?;
        migrations::migrate(&mut connection).map_err(|unusable| match unusable {
            Unusable::Foreign(why) => Unopened::Damaged(why.to_owned()),
            Unusable::Sqlite(error) => sqlite(error),
            Unusable::Newer(min_reader) => Unopened::Other(StateError::Newer {
                file: self.file.clone(),
                min_reader,
                known: migrations::known(),
            }),
        })?;
        Ok(Opened { connection, durability: None })
    }

    fn unopenable(&self, error: io::Error) -> StateError {
        let file = self.file.clone();
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ELOOP) => StateError::NotAFile { file, what: "a link, which is not followed" },
            Some(Errno::EISDIR) => StateError::NotAFile { file, what: "a directory" },
            _ => StateError::of_system("open", file, error),
        }
    }

    fn unopened(&self, opened: &mut Option<Opened>, unopened: Unopened) -> StateError {
        match unopened {
            Unopened::Damaged(why) => self.move_aside(opened, &why),
            Unopened::Other(error) => error,
        }
    }

    /// The next call makes a new database.
    fn move_aside(&self, opened: &mut Option<Opened>, why: &str) -> StateError {
        // Closed first: SQLite must not write to the file under its new name.
        drop(opened.take());
        match damaged::move_aside(&self.file, self.clock.now()) {
            Ok(moved) => {
                self.was_damaged.store(true, Ordering::Relaxed);
                warn!(
                    file = %self.file.display(), moved_to = %moved.display(), why,
                    "the state is damaged and was moved aside; the sessions are read again from their folders, and pins are lost"
                );
                StateError::Damaged { file: self.file.clone(), moved, why: why.to_owned() }
            }
            Err(error) => StateError::of_system("move aside the damaged", self.file.clone(), error),
        }
    }
}

impl Opened {
    fn set_durability(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if self.durability == Some(durability) {
            return Ok(());
        }
        let level = match durability {
            Durability::Process => "NORMAL",
            Durability::Power => "FULL",
        };
        self.connection.pragma_update(None, "synchronous", level)?;
        self.durability = Some(durability);
        Ok(())
    }
}

/// Why the database is not open.
enum Unopened {
    /// The file is damaged.
    Damaged(String),
    Other(StateError),
}

impl Unopened {
    fn of(file: &Path, error: rusqlite::Error) -> Self {
        if is_damage(&error) {
            Self::Damaged(error.to_string())
        } else {
            Self::Other(StateError::of_sqlite(file.to_owned(), error))
        }
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

#[cfg(test)]
mod tests;
