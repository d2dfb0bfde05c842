//! Buckets, their objects and their unfinished multipart uploads.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use hyper::HeaderMap;
use jiff::Timestamp;

use super::{
    content::{GcsContents, RangeReader, Segment, SegmentWriter, crc32c_of},
    multipart::Multipart,
};

/// A finished object.
#[derive(Debug, Clone)]
pub struct GcsObject {
    /// Its length in bytes.
    pub size: u64,
    /// Its checksum.
    pub crc32c: u32,
    /// Present for what came in one request, as in the service.
    pub md5: Option<[u8; 16]>,
    /// With its quotes.
    pub etag: String,
    /// Grows with each version of any object.
    pub generation: u64,
    /// When it was finished, by the clock of the server.
    pub updated: Timestamp,
    /// `content-type` and `x-goog-meta-…`.
    pub headers: BTreeMap<String, String>,
    pub(super) segments: Vec<Segment>,
}

impl GcsObject {
    /// Its bytes.
    ///
    /// # Panics
    /// If the contents were discarded.
    pub fn content(&self) -> Vec<u8> {
        let pieces = RangeReader::new(self.segments.clone(), 0, self.size);
        pieces.fold(Vec::new(), |mut bytes, piece| {
            bytes.extend_from_slice(&piece.expect("readable contents"));
            bytes
        })
    }
}

/// One bucket.
#[derive(Debug, Default)]
pub(super) struct FakeBucket {
    pub(super) objects: BTreeMap<String, GcsObject>,
    pub(super) uploads: BTreeMap<String, Multipart>,
}

/// All of them.
pub(super) struct Buckets {
    folder: PathBuf,
    contents: GcsContents,
    buckets: BTreeMap<String, FakeBucket>,
    files: u64,
    generation: u64,
}

impl Buckets {
    pub(super) fn new(folder: PathBuf, contents: GcsContents) -> Self {
        // Real generations are microseconds since the epoch; clients must not read them so.
        Self { folder, contents, buckets: BTreeMap::new(), files: 0, generation: 1_700_000_000_000_000 }
    }

    pub(super) fn create(&mut self, name: &str) {
        self.buckets.entry(name.to_owned()).or_default();
    }

    pub(super) fn get(&self, bucket: &str) -> Option<&FakeBucket> {
        self.buckets.get(bucket)
    }

    pub(super) fn get_mut(&mut self, bucket: &str) -> Option<&mut FakeBucket> {
        self.buckets.get_mut(bucket)
    }

    pub(super) fn open_uploads(&self) -> Vec<String> {
        self.buckets
            .values()
            .flat_map(|bucket| bucket.uploads.values())
            .map(|one| one.object.clone())
            .collect()
    }

    /// Takes the bytes of one request in.
    pub(super) fn writer(&mut self, md5: bool) -> SegmentWriter {
        self.files += 1;
        let path = self.folder.join(format!("content-{}", self.files));
        SegmentWriter::new((self.contents == GcsContents::Kept).then_some(Path::new(&path)), md5)
    }

    /// A number that no version had before.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Makes an object of segments: of one request, or of the parts of a multipart upload.
    pub(super) fn finish(
        &mut self,
        segments: Vec<Segment>,
        whole: bool,
        headers: BTreeMap<String, String>,
        now: Timestamp,
    ) -> GcsObject {
        let generation = self.next_generation();
        let md5 = segments.first().filter(|_| whole).map(|segment| segment.md5);
        let etag = match md5 {
            Some(md5) => format!("\"{}\"", hex(&md5)),
            None => format!("\"{generation:x}-{}\"", segments.len()),
        };
        let size = segments.iter().map(|segment| segment.length).sum();
        let crc32c = crc32c_of(&segments);
        GcsObject { size, crc32c, md5, etag, generation, updated: now, headers, segments }
    }

    pub(super) fn put_bytes(&mut self, bucket: &str, name: &str, bytes: &[u8], now: Timestamp) {
        let mut writer = self.writer(true);
        writer.write(bytes);
        let object = self.finish(vec![writer.finish()], true, BTreeMap::new(), now);
        self.get_mut(bucket).expect("a bucket").objects.insert(name.to_owned(), object);
    }
}

/// The headers that are kept with an object.
pub(super) fn kept_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let kept = |name: &str| {
        name.starts_with("x-goog-meta-")
            || [
                "content-type",
                "cache-control",
                "content-disposition",
                "content-encoding",
                "content-language",
            ]
            .contains(&name)
    };
    headers
        .iter()
        .filter(|(name, _)| kept(name.as_str()))
        .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
