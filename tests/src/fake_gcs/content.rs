//! The bytes of objects: files of a temporary folder, removed with the last object or upload that needs them.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use md5::{Digest, Md5};

/// Whether contents can be read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcsContents {
    /// Everything is kept on the disk.
    Kept,
    /// Only sizes and checksums are kept, for benches: the disk is not what they measure.
    Discarded,
}

/// One run of bytes that arrived in one request.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) length: u64,
    pub(super) crc32c: u32,
    pub(super) md5: [u8; 16],
    file: Option<Arc<ContentFile>>,
}

#[derive(Debug)]
struct ContentFile(PathBuf);

impl Drop for ContentFile {
    fn drop(&mut self) {
        // The folder may be gone already.
        let _ = fs::remove_file(&self.0);
    }
}

/// Takes bytes in as they arrive.
pub(super) struct SegmentWriter {
    output: Option<(File, ContentFile)>,
    length: u64,
    crc32c: u32,
    md5: Option<Md5>,
}

impl SegmentWriter {
    /// Writes to `path`, or only counts. `md5`: parts have none that anybody sees, and it costs the most.
    pub(super) fn new(path: Option<&Path>, md5: bool) -> Self {
        let output = path.map(|path| {
            let file = File::create_new(path).expect("a new file in a folder of ours");
            (file, ContentFile(path.to_owned()))
        });
        Self { output, length: 0, crc32c: 0, md5: md5.then(Md5::new) }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        if let Some((file, _)) = &mut self.output {
            file.write_all(bytes).expect("room for the contents");
        }
        self.length += bytes.len() as u64;
        self.crc32c = crc32c::crc32c_append(self.crc32c, bytes);
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
    }

    pub(super) fn finish(self) -> Segment {
        Segment {
            length: self.length,
            crc32c: self.crc32c,
            md5: self.md5.map(|md5| md5.finalize().into()).unwrap_or_default(),
            file: self.output.map(|(_, path)| Arc::new(path)),
        }
    }
}

/// The CRC32C of segments in a row.
pub(super) fn crc32c_of(segments: &[Segment]) -> u32 {
    segments.iter().fold(0, |crc, segment| {
        #[expect(clippy::cast_possible_truncation, reason = "usize is 64 bits here")]
        crc32c::crc32c_combine(crc, segment.crc32c, segment.length as usize)
    })
}

/// Reads a range of the bytes of segments, a piece at a time.
pub(super) struct RangeReader {
    segments: std::vec::IntoIter<Segment>,
    skip: u64,
    left: u64,
    open: Option<(File, u64)>,
}

/// The size of a piece.
const PIECE: usize = 64 << 10;

impl RangeReader {
    pub(super) fn new(segments: Vec<Segment>, from: u64, length: u64) -> Self {
        Self { segments: segments.into_iter(), skip: from, left: length, open: None }
    }

    fn next_segment(&mut self) -> io::Result<bool> {
        for segment in self.segments.by_ref() {
            if self.skip >= segment.length {
                self.skip -= segment.length;
                continue;
            }
            let file = segment.file.ok_or_else(|| io::Error::other("the contents were discarded"))?;
            let mut file = File::open(&file.0)?;
            file.seek(SeekFrom::Start(self.skip))?;
            self.open = Some((file, segment.length - self.skip));
            self.skip = 0;
            return Ok(true);
        }
        Ok(false)
    }

    fn piece(&mut self) -> io::Result<Option<Bytes>> {
        if self.left == 0 || (self.open.is_none() && !self.next_segment()?) {
            return Ok(None);
        }
        let (file, rest) = self.open.as_mut().expect("opened above");
        let length = usize::try_from(self.left.min(*rest)).unwrap_or(PIECE).min(PIECE);
        let mut piece = vec![0; length];
        file.read_exact(&mut piece)?;
        *rest -= length as u64;
        self.left -= length as u64;
        if *rest == 0 {
            self.open = None;
        }
        Ok(Some(piece.into()))
    }
}

impl Iterator for RangeReader {
    type Item = io::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        self.piece().transpose()
    }
}
