//! Why a segment cannot be kept or read.

use std::{
    io,
    path::{Path, PathBuf},
};

use model::unit::Bytes;
use thiserror::Error;

use crate::state::StateError;

/// Why a segment cannot be kept or read.
#[derive(Debug, Error)]
pub enum SegmentError {
    /// Less of the disk is free than `store.min_free` says.
    #[error("the disk of {} has {} free, and store.min_free keeps {}", .folder.display(), .free.rounded(), .needed.rounded())]
    LowDisk {
        /// The folder of the segments.
        folder: PathBuf,
        /// Free bytes.
        free: Bytes,
        /// The limit in bytes.
        needed: Bytes,
    },
    /// The disk refuses.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A segment is not what was kept.
    #[error("the segment {} is damaged: {why}", .path.display())]
    Damaged {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The database of the agent refuses.
    #[error(transparent)]
    State(#[from] StateError),
}

impl SegmentError {
    pub(super) fn of(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source }
    }

    /// Whether there is no room on the disk.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::LowDisk { .. } | Self::State(StateError::Full { .. }) => true,
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Damaged { .. } | Self::State(_) => false,
        }
    }
}
