//! The files of segments: a trace as it arrives, its compressed form, and the trace again.
//!
//! A raw file is removed when its value is dropped.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

use super::{SegmentError, remove};

/// What is read at a time.
const PIECE: usize = 256 << 10;

/// Tells apart the raw files of one process.
static RAW: AtomicU64 = AtomicU64::new(0);

/// A trace that arrives.
#[derive(Debug)]
pub struct RawTrace {
    number: i64,
    path: PathBuf,
    file: File,
}

impl RawTrace {
    pub(super) fn create(folder: &Path, number: i64) -> Result<Self, SegmentError> {
        let path = folder.join(format!("{number}.{}.raw", RAW.fetch_add(1, Ordering::Relaxed)));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o640);
        let file = options.open(&path).map_err(|error| SegmentError::of("create", &path, error))?;
        Ok(Self { number, path, file })
    }

    pub(super) fn number(&self) -> i64 {
        self.number
    }

    /// The file, opened anew at its start.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn reopen(&self) -> Result<File, SegmentError> {
        File::open(&self.path).map_err(|error| SegmentError::of("open", &self.path, error))
    }

    /// Writes the compressed trace to `path`, and returns the bytes of both.
    pub(super) fn compress(mut self, path: &Path) -> Result<(u64, u64), SegmentError> {
        let compressed = self.compress_to(path);
        if compressed.is_err() {
            // The error that led here is reported.
            let _ = remove(path);
        }
        compressed
    }

    fn compress_to(&mut self, path: &Path) -> Result<(u64, u64), SegmentError> {
        let written = |error| SegmentError::of("write", path, error);
        self.file.seek(SeekFrom::Start(0)).map_err(|error| SegmentError::of("read", &self.path, error))?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o640);
        let file = options.open(path).map_err(written)?;
        let mut encoder = GzEncoder::new(file, Compression::new(1));
        let trace_bytes = copy(&mut self.file, &mut encoder).map_err(written)?;
        let file = encoder.finish().map_err(written)?;
        // The row that names the file must not outlive its bytes when the machine loses power.
        file.sync_all().map_err(written)?;
        Ok((file.metadata().map_err(written)?.len(), trace_bytes))
    }
}

impl Write for RawTrace {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for RawTrace {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Read for RawTrace {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read(bytes)
    }
}

impl Drop for RawTrace {
    fn drop(&mut self) {
        // What cannot be removed now goes at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

/// The trace of a segment, as it arrived.
#[derive(Debug)]
pub struct UnpackedTrace(RawTrace);

impl UnpackedTrace {
    pub(super) fn of(
        segment: &Path,
        folder: &Path,
        number: i64,
        expected: u64,
    ) -> Result<Self, SegmentError> {
        let damaged = |why: String| SegmentError::Damaged { path: segment.to_owned(), why };
        let file = File::open(segment).map_err(|error| SegmentError::of("open", segment, error))?;
        let mut raw = RawTrace::create(folder, number)?;
        // One byte more than expected tells a longer one.
        let mut decoder =
            GzDecoder::new(BufReader::with_capacity(PIECE, file)).take(expected.saturating_add(1));
        let unpacked = copy(&mut decoder, &mut raw).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                damaged(error.to_string())
            }
            _ => SegmentError::of("unpack", segment, error),
        })?;
        if unpacked != expected {
            return Err(damaged(format!("its trace has {unpacked} bytes, not {expected}")));
        }
        Ok(Self(raw))
    }

    /// Where the trace lies.
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

/// Copies all of `from`.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<u64> {
    let mut piece = vec![0; PIECE];
    let mut copied = 0;
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => return Ok(copied),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        to.write_all(&piece[..read])?;
        copied += read as u64;
    }
}
