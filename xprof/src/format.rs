//! The format of a file that is not an XSpace, from its first bytes.
//!
//! People name the file beside the right one: a compressed copy, the JSON that a trace viewer opens, the pointer
//! that a repository holds in a large file's place. Asked only after the file was refused as an XSpace, so that
//! nothing that can be read is kept from being read. Must never read more than [`PEEK`] bytes, nor unpack more.

use std::{
    fmt,
    io::{self, Read},
};

use flate2::read::MultiGzDecoder;

/// How much of a file is looked at, and how much of a compressed one is unpacked.
const PEEK: usize = 4096;

/// A format that is not an XSpace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForeignFormat {
    /// A gzip stream, and the format inside where that is another known one.
    Gzip(Option<Box<ForeignFormat>>),
    /// A zip archive.
    Zip,
    /// A Zstandard stream.
    Zstd,
    /// A bzip2 stream.
    Bzip2,
    /// An xz stream.
    Xz,
    /// A tar archive.
    Tar,
    /// The JSON of the Chrome trace viewer and Perfetto.
    ChromeTrace,
    /// Any other JSON.
    Json,
    /// What Git holds in the place of a file that lies in large file storage.
    LfsPointer,
    /// An SQLite database, such as Nsight Systems exports.
    Sqlite,
    /// A web page, such as the answer of a server that wants a login.
    Html,
    /// An XML document, such as the error of a storage server.
    Xml,
    /// Any other text.
    Text,
}

impl ForeignFormat {
    /// The format of `input`, which is at its start; `None` where it is none of these.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(input: impl Read) -> io::Result<Option<Self>> {
        let mut start = Vec::with_capacity(PEEK);
        input.take(PEEK as u64).read_to_end(&mut start)?;
        Ok(Self::of_start(&start))
    }

    fn of_start(start: &[u8]) -> Option<Self> {
        match start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip(inside(start).map(Box::new))),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Self::Zip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => Some(Self::Bzip2),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            _ if is_tar(start) => Some(Self::Tar),
            _ if start.starts_with(b"SQLite format 3\0") => Some(Self::Sqlite),
            _ if start.starts_with(b"version https://git-lfs.github.com/") => Some(Self::LfsPointer),
            _ => of_text(start).or_else(|| is_text(start).then_some(Self::Text)),
        }
    }
}

fn is_tar(start: &[u8]) -> bool {
    start.get(257..262) == Some(b"ustar")
}

/// Whether it is text: UTF-8 without control characters, of which every message of an XSpace has some.
fn is_text(start: &[u8]) -> bool {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The last character may be cut.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.trim().is_empty()
        && text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\x0c'))
}

/// The format of what a gzip stream holds.
fn inside(start: &[u8]) -> Option<ForeignFormat> {
    let mut unpacked = Vec::with_capacity(PEEK);
    // The stream is cut where the peek ends: what came out before that is enough.
    let _ = MultiGzDecoder::new(start).take(PEEK as u64).read_to_end(&mut unpacked);
    if is_tar(&unpacked) { Some(ForeignFormat::Tar) } else { of_text(&unpacked) }
}

fn of_text(start: &[u8]) -> Option<ForeignFormat> {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let begins =
        |with: &str| text.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with.as_bytes()));
    if ["<!doctype html", "<html"].into_iter().any(begins) {
        return Some(ForeignFormat::Html);
    }
    if begins("<?xml") {
        return Some(ForeignFormat::Xml);
    }
    // In an XSpace these would be fields that no message of it has; a second byte tells text from chance.
    let follows = text.get(1..)?.trim_ascii_start().first()?;
    let json = match text.first()? {
        b'{' => matches!(follows, b'"' | b'}'),
        b'[' => matches!(follows, b'{' | b']'),
        _ => false,
    };
    let holds = |key: &[u8]| text.windows(key.len()).any(|part| part == key);
    json.then(|| {
        let is_trace = holds(b"\"traceEvents\"") || (holds(b"\"ph\"") && holds(b"\"pid\""));
        if is_trace { ForeignFormat::ChromeTrace } else { ForeignFormat::Json }
    })
}

impl fmt::Display for ForeignFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gzip(None) => f.write_str("a gzip file"),
            Self::Gzip(Some(inside)) => write!(f, "a gzip file with {inside} in it"),
            Self::Zip => f.write_str("a zip archive"),
            Self::Zstd => f.write_str("a Zstandard file"),
            Self::Bzip2 => f.write_str("a bzip2 file"),
            Self::Xz => f.write_str("an xz file"),
            Self::Tar => f.write_str("a tar archive"),
            Self::ChromeTrace => f.write_str("a Chrome trace (JSON)"),
            Self::Json => f.write_str("a JSON file"),
            Self::LfsPointer => f.write_str("a Git LFS pointer"),
            Self::Sqlite => f.write_str("an SQLite database"),
            Self::Html => f.write_str("an HTML page"),
            Self::Xml => f.write_str("an XML document"),
            Self::Text => f.write_str("a text file"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, path::Path};

    use super::*;

    #[test]
    fn files_that_people_named_are_told() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden/field/not_an_xplane");
        let of = |name: &str| ForeignFormat::of(File::open(folder.join(name)).unwrap()).unwrap().unwrap();
        assert_eq!(
            of("host-a.trace.json.gz"),
            ForeignFormat::Gzip(Some(Box::new(ForeignFormat::ChromeTrace)))
        );
        assert_eq!(of("host-a.xplane.pb.gz"), ForeignFormat::Gzip(None));
        assert_eq!(of("lfs.xplane.pb"), ForeignFormat::LfsPointer);
        assert_eq!(of("profile.zip"), ForeignFormat::Zip);
    }

    #[test]
    fn text_is_told_by_more_than_its_first_byte() {
        let of = |text: &[u8]| ForeignFormat::of(text).unwrap();
        assert_eq!(of(b"\xef\xbb\xbf {\"a\": 1, \"traceEvents\": []}"), Some(ForeignFormat::ChromeTrace));
        assert_eq!(of(b"[{\"ph\": \"X\", \"pid\": 1}]"), Some(ForeignFormat::ChromeTrace));
        assert_eq!(of(b"{\n  \"nodes\": []}"), Some(ForeignFormat::Json));
        assert_eq!(of(b"\n<!DOCTYPE HTML><p>"), Some(ForeignFormat::Html));
        assert_eq!(of(b"SQLite format 3\0\x10"), Some(ForeignFormat::Sqlite));
        assert_eq!(of(b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>"), Some(ForeignFormat::Xml));
        assert_eq!(of("# notes\n\tna\u{ef}ve\n".as_bytes()), Some(ForeignFormat::Text));
        assert_eq!(of(&"\u{e4}".as_bytes()[..1]), None, "no whole character");
        assert_eq!(of(b"BZh91AY&SY\x01"), Some(ForeignFormat::Bzip2));
        assert_eq!(of(b"\xfd7zXZ\0\0"), Some(ForeignFormat::Xz));
        let mut tar = vec![0; 512];
        tar[..4].copy_from_slice(b"a.pb");
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(of(&tar), Some(ForeignFormat::Tar));
        assert_eq!(of(b"{\x02\x01"), None);
        assert_eq!(of(b""), None);
        assert_eq!(of(b"\x0a\x05\x12\x03abc"), None, "an XSpace");
    }
}
