//! The files of a session as an upload reads them: in pieces, where it may block, without keeping them in the page cache,
//! which belongs to the job.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use bytes::{Bytes, BytesMut};
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};
use xprof::session::{Fault, FaultKind, MANIFEST_FILE, Manifest, Session, SessionName, sessions_folder};

use crate::destinations::target::{FailureClass, TransferError};

/// Bytes read at a time for a checksum.
const PIECE: u64 = 1 << 20;

/// A range of a file, with its checksum.
pub(crate) struct Range {
    pub(crate) data: Bytes,
    pub(crate) crc32c: u32,
}

/// The folder of one session.
#[derive(Debug, Clone)]
pub(crate) struct SessionSource {
    folder: PathBuf,
}

/// What is uploaded of a session.
pub(crate) struct SourceFiles {
    pub(crate) manifest: Manifest,
    /// Names and sizes, the manifest's included.
    pub(crate) files: Vec<(String, u64)>,
}

impl SessionSource {
    /// The session `name` below `logdir`.
    pub(crate) fn new(logdir: &Path, name: &SessionName) -> Self {
        Self { folder: sessions_folder(logdir).join(name.as_str()) }
    }

    /// What is to be uploaded: what the manifest names. `None` if the session is gone. Blocks.
    ///
    /// # Errors
    /// If the session has no readable manifest, or a part is not as the manifest says.
    pub(crate) fn files(&self) -> Result<Option<SourceFiles>, TransferError> {
        let local = |message: String| TransferError::new(FailureClass::Local, message);
        if std::fs::symlink_metadata(&self.folder).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            return Ok(None);
        }
        let session = Session::open(&self.folder).map_err(|error| local(error.to_string()))?;
        let Some(session) = session else { return Ok(None) };
        // What was never captured is missing on purpose: the parts that are there go, and the manifest says what is not.
        let damaged = |fault: &&Fault| !matches!(fault.kind, FaultKind::NotCaptured(_));
        if let Some(fault) = session.faults.iter().find(damaged) {
            return Err(local(format!("{} {}", fault.file, fault.kind)));
        }
        let manifest = session.manifest.ok_or_else(|| local("the session was never finished".to_owned()))?;
        let path = self.folder.join(MANIFEST_FILE);
        let size = std::fs::metadata(&path).map_err(|error| unreadable(&path, &error))?.len();
        let parts = manifest.hosts.iter().flat_map(|host| &host.parts);
        let mut files: Vec<_> = parts.map(|part| (part.file.clone(), part.size)).collect();
        files.push((MANIFEST_FILE.to_owned(), size));
        Ok(Some(SourceFiles { manifest, files }))
    }

    /// Reads a range into `data`. Its bytes leave the page cache again.
    pub(crate) async fn read(
        &self,
        name: &str,
        offset: u64,
        length: u64,
        mut data: BytesMut,
    ) -> Result<Range, TransferError> {
        let path = self.folder.join(name);
        blocking(move || {
            let file = open(&path)?;
            data.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
            file.read_exact_at(&mut data, offset).map_err(|error| unreadable(&path, &error))?;
            let crc32c = crc32c::crc32c(&data);
            forget(&file, offset, length);
            Ok(Range { data: data.freeze(), crc32c })
        })
        .await
    }

    /// The checksum of a whole file of `size` bytes.
    pub(crate) async fn checksum(&self, name: &str, size: u64) -> Result<u32, TransferError> {
        let path = self.folder.join(name);
        blocking(move || {
            let file = open(&path)?;
            let (mut crc, mut offset) = (0, 0);
            let mut piece = vec![0; usize::try_from(PIECE.min(size)).unwrap_or(usize::MAX)];
            while offset < size {
                let length = PIECE.min(size - offset);
                let piece = &mut piece[..usize::try_from(length).unwrap_or(usize::MAX)];
                file.read_exact_at(piece, offset).map_err(|error| unreadable(&path, &error))?;
                crc = crc32c::crc32c_append(crc, piece);
                forget(&file, offset, length);
                offset += length;
            }
            Ok(crc)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TransferError> + Send + 'static,
) -> Result<T, TransferError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(TransferError::new(FailureClass::Local, error)))
}

fn open(path: &Path) -> Result<File, TransferError> {
    let mut options = File::options();
    options.read(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    options.open(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> TransferError {
    TransferError::new(FailureClass::Local, format_args!("cannot read {}: {error}", path.display()))
}

fn forget(file: &File, offset: u64, length: u64) {
    let range = (i64::try_from(offset).unwrap_or(i64::MAX), i64::try_from(length).unwrap_or(i64::MAX));
    // Advice only: a file system may not take it.
    let _ = posix_fadvise(file, range.0, range.1, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}
