//! Files of a session that are not on this machine's disk, or closed to the caller: read in ranges from the agent or from
//! a bucket.
//!
//! Memory is one block for each open file. A call that fails is kept, so that the command ends with its reason and not with
//! that of the reader.

use std::{
    fmt,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use xprof::{
    input::{Input, ReadSeek},
    session::PartFile,
};

use super::load::file_name;
use crate::failure::Failure;

/// What answers with ranges of the files of one session.
pub(super) trait RangeSource: fmt::Debug + Send + Sync {
    /// The size of the ranges that it is asked for.
    fn block(&self) -> u32;

    /// At most `length` bytes of `file` from `offset` on; no byte only at its end.
    fn read(&self, file: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure>;
}

/// A session whose files are read in ranges. Clones are one session.
#[derive(Debug, Clone)]
pub(super) struct RemoteSession(Arc<Ranges>);

#[derive(Debug)]
struct Ranges {
    /// What the session is called in errors.
    name: String,
    source: Box<dyn RangeSource>,
    failed: Mutex<Option<Failure>>,
}

impl RemoteSession {
    pub(super) fn new(name: impl Into<String>, source: impl RangeSource + 'static) -> Self {
        Self(Arc::new(Ranges { name: name.into(), source: Box::new(source), failed: Mutex::default() }))
    }

    /// Opens a part.
    pub(super) fn file(&self, part: &PartFile) -> RemoteFile {
        RemoteFile {
            ranges: Arc::clone(&self.0),
            file: file_name(&part.path),
            size: part.size,
            position: 0,
            block: Vec::new(),
            block_at: 0,
        }
    }

    /// A part, to be opened more than once.
    pub(super) fn input<'p>(&self, part: &'p PartFile) -> RemoteInput<'p> {
        RemoteInput { session: self.clone(), part }
    }

    /// The failure of the first call that failed.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.0.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Ranges {
    fn read(&self, file: &str, offset: u64) -> io::Result<Vec<u8>> {
        self.source.read(file, offset, self.source.block()).map_err(|failure| {
            let error = io::Error::other(failure.what.clone());
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            error
        })
    }
}

/// An open part.
#[derive(Debug)]
pub(super) struct RemoteFile {
    ranges: Arc<Ranges>,
    file: String,
    size: u64,
    position: u64,
    block: Vec<u8>,
    block_at: u64,
}

impl RemoteFile {
    /// What is held from the current position on.
    fn held(&self) -> &[u8] {
        let from = self.position.checked_sub(self.block_at).and_then(|from| usize::try_from(from).ok());
        from.and_then(|from| self.block.get(from..)).unwrap_or_default()
    }
}

impl Read for RemoteFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.size || into.is_empty() {
            return Ok(0);
        }
        if self.held().is_empty() {
            self.block = self.ranges.read(&self.file, self.position)?;
            self.block_at = self.position;
            if self.block.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let held = self.held();
        let length = held.len().min(into.len());
        into[..length].copy_from_slice(&held[..length]);
        self.position += length as u64;
        Ok(length)
    }
}

impl Seek for RemoteFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// A part, to be opened more than once.
#[derive(Debug)]
pub(super) struct RemoteInput<'p> {
    session: RemoteSession,
    part: &'p PartFile,
}

impl Input for RemoteInput<'_> {
    fn name(&self) -> String {
        Path::new(&self.session.0.name).join(file_name(&self.part.path)).display().to_string()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        Ok(Box::new(self.session.file(self.part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    /// A file of the numbers 0 to 99, three at a time; a range from 90 on fails.
    #[derive(Debug)]
    struct Numbers;

    impl RangeSource for Numbers {
        fn block(&self) -> u32 {
            3
        }

        fn read(&self, file: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
            assert_eq!(file, "h.xplane.pb");
            if offset >= 90 {
                return Err(Failure::new(Exit::Unreachable, "the network is down"));
            }
            Ok((offset..offset + u64::from(length)).map(|n| u8::try_from(n).unwrap()).collect())
        }
    }

    #[test]
    fn a_file_is_read_from_any_position_and_its_first_failure_is_kept() {
        let session = RemoteSession::new("s", Numbers);
        let part = PartFile { name: "h".into(), host: "h".into(), path: "x/h.xplane.pb".into(), size: 100 };
        assert_eq!(session.input(&part).name(), "s/h.xplane.pb");
        let mut file = session.file(&part);
        let mut four = [0; 4];
        file.read_exact(&mut four).unwrap();
        assert_eq!(four, [0, 1, 2, 3]);
        assert_eq!(file.seek(SeekFrom::End(-20)).unwrap(), 80);
        file.read_exact(&mut four).unwrap();
        assert_eq!(four, [80, 81, 82, 83]);
        file.seek(SeekFrom::Current(-3)).unwrap();
        file.read_exact(&mut four[..1]).unwrap();
        assert_eq!(four[0], 81);
        assert!(session.failure().is_none());
        file.seek(SeekFrom::Start(95)).unwrap();
        assert_eq!(file.read(&mut four).unwrap_err().to_string(), "the network is down");
        assert_eq!(session.failure().unwrap().exit, Exit::Unreachable);
        file.seek(SeekFrom::Start(100)).unwrap();
        assert_eq!(file.read(&mut four).unwrap(), 0);
    }
}
