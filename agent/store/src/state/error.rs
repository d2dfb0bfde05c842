//! Why the state cannot be read or written.

use std::{io, path::PathBuf};

use rusqlite::ErrorCode;
use thiserror::Error;

/// Why the state cannot be read or written.
#[derive(Debug, Error)]
pub enum StateError {
    /// A newer program wrote it in a way that this one would misread.
    #[error(
        "{} was written by a newer tpuscope: it needs a program that knows version {min_reader} of the state, \
         and this one knows version {known}", .file.display()
    )]
    Newer {
        /// The database.
        file: PathBuf,
        /// The lowest version of the state that a program must know to use the file.
        min_reader: u32,
        /// The version that this program knows.
        known: u32,
    },
    /// The database was damaged and was moved aside; the next call begins a new one.
    #[error("{} is damaged ({why}); it was moved to {}", .file.display(), .moved.display())]
    Damaged {
        /// The database.
        file: PathBuf,
        /// Where it is now.
        moved: PathBuf,
        /// What SQLite says of it.
        why: String,
    },
    /// The disk is full.
    #[error("cannot write {}: the disk is full", .file.display())]
    Full {
        /// The database.
        file: PathBuf,
    },
    /// The file, or its file system, is read-only.
    #[error("cannot write {}: it is read-only", .file.display())]
    ReadOnly {
        /// The database.
        file: PathBuf,
    },
    /// Something else is in the place of the file.
    #[error("{} has to be a file and is {what}", .file.display())]
    NotAFile {
        /// The database.
        file: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Another program has the file.
    #[error("another program uses {}", .file.display())]
    InUse {
        /// The database.
        file: PathBuf,
    },
    /// The system refuses.
    #[error("cannot {doing} {}: {source}", .file.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another error of SQLite.
    #[error("{}: {source}", .file.display())]
    Sqlite {
        /// The database.
        file: PathBuf,
        /// The error.
        source: rusqlite::Error,
    },
}

impl StateError {
    pub(super) fn of_sqlite(file: PathBuf, source: rusqlite::Error) -> Self {
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full { file },
            Some(ErrorCode::ReadOnly) => Self::ReadOnly { file },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::InUse { file },
            _ => Self::Sqlite { file, source },
        }
    }

    pub(super) fn of_system(doing: &'static str, file: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { file },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { file },
            _ => Self::Io { doing, file, source },
        }
    }
}
