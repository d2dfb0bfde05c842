//! Receives the files of a session from an agent, in pieces and in order.
//!
//! A thread that may block writes them, while the next pieces arrive. Memory is a few pieces, whatever the agent sends.
//! Must never make a part visible: that is its caller's, once all of it is checked.

use std::{collections::BTreeMap, io::Write, sync::Arc, time::Duration};

use proto::tpuscope::v1::{FetchSessionRequest, FilePiece, sessions_client::SessionsClient};
use tokio::{sync::mpsc, task, time::Instant, time::timeout};
use tonic::{Status, Streaming, transport::Channel};
use xprof::session::{MANIFEST_FILE, PART_SUFFIX, PartName, PartWriter, SessionError, SessionWriter};

/// Pieces that wait for the disk.
const QUEUE: usize = 4;
/// The largest manifest.
const MAX_MANIFEST_BYTES: usize = 16 << 20;
/// Fewer bytes within the time limit, and the agent is given up.
const LEAST_BYTES: u64 = 128 << 10;

/// Where received files go to.
pub struct FileSink {
    /// Writes the parts.
    pub writer: Arc<SessionWriter>,
    /// The parts that are wanted, and what each is called here; none: all of them, as they are called there.
    pub wanted: Option<BTreeMap<PartName, PartName>>,
    /// The most bytes of all parts together.
    pub most_bytes: u64,
}

/// A part of a host as it is called over there and here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPart {
    /// Its name there.
    pub there: PartName,
    /// Its name here.
    pub here: PartName,
    /// Its length in bytes, as the manifest of the host says.
    pub size: u64,
    /// Its SHA-256 in hex, as the manifest of the host says.
    pub sha256: String,
}

/// All files of a session, none of them visible yet.
#[derive(Debug)]
pub struct ReceivedFiles {
    /// The parts under the names that they have here, in order.
    pub parts: Vec<(PartName, PartWriter)>,
    /// The manifest as it came; empty if none did.
    pub manifest: Vec<u8>,
}

/// Why the files did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The call failed.
    #[error("{}", .0.message())]
    Call(Box<Status>),
    /// The agent sends nothing, or next to nothing.
    #[error("the agent sent less than {least} KiB within {0:?}", least = LEAST_BYTES >> 10)]
    Late(Duration),
    /// The agent sends something that is no session.
    #[error("the agent sent {0}")]
    Wrong(&'static str),
    /// A part did not arrive as it was recorded.
    #[error("{0} arrived damaged: it does not match its manifest")]
    Damaged(String),
    /// A part did not arrive.
    #[error("{0} is named by the manifest and missing")]
    Missing(String),
    /// The disk here refuses.
    #[error(transparent)]
    Disk(#[from] SessionError),
    /// A fault of tpuscope.
    #[error("the thread that writes the files failed: {0}")]
    Panicked(String),
}

/// Copies these parts of a session of the agent behind `channel`, and compares them with what its manifest says. None of
/// them is visible yet. `limit` and `received` are those of [`receive`].
///
/// # Errors
/// If not all arrive as they were recorded, or they cannot be written.
pub async fn copy_parts(
    channel: Channel,
    request: FetchSessionRequest,
    writer: &Arc<SessionWriter>,
    parts: &[HostPart],
    limit: Duration,
    received: impl FnMut(u64),
) -> Result<Vec<PartWriter>, FetchError> {
    let mut sessions = SessionsClient::new(channel);
    let pieces = timeout(limit, sessions.fetch(request)).await.map_err(|_| FetchError::Late(limit))?;
    let pieces = pieces.map_err(|status| FetchError::Call(Box::new(status)))?.into_inner();
    let wanted = parts.iter().map(|part| (part.there.clone(), part.here.clone())).collect();
    let most_bytes = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.size));
    let sink = FileSink { writer: Arc::clone(writer), wanted: Some(wanted), most_bytes };
    let copied = receive(pieces, sink, limit, received).await?;
    for part in parts {
        let there = copied.parts.iter().find(|(name, _)| *name == part.here);
        let (_, copy) = there.ok_or_else(|| FetchError::Missing(part.there.file_name()))?;
        if copy.size() != part.size || copy.sha256() != part.sha256 {
            return Err(FetchError::Damaged(part.there.file_name()));
        }
    }
    Ok(copied.parts.into_iter().map(|(_, part)| part).collect())
}

/// Receives all files. `limit` is the longest wait for each [`LEAST_BYTES`]; `received` is told of all bytes so far.
///
/// # Errors
/// If not all arrive, or they cannot be written.
pub async fn receive(
    mut pieces: Streaming<FilePiece>,
    sink: FileSink,
    limit: Duration,
    mut received: impl FnMut(u64),
) -> Result<ReceivedFiles, FetchError> {
    let (send, queue) = mpsc::channel(QUEUE);
    let writing = task::spawn_blocking(move || write_files(queue, &sink));
    let mut pace = Pace { limit, left: limit, bytes: 0 };
    let mut bytes = 0;
    let arrived = loop {
        match pace.next(&mut pieces).await {
            Ok(Some(piece)) => {
                bytes += piece.data.len() as u64;
                received(bytes);
                // Its thread has failed, and says why.
                if send.send(piece).await.is_err() {
                    break Ok(());
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    drop(send);
    let written = writing.await.map_err(|error| FetchError::Panicked(error.to_string()))?;
    arrived.and(written)
}

/// How long the agent may still take.
struct Pace {
    limit: Duration,
    left: Duration,
    bytes: u64,
}

impl Pace {
    async fn next(&mut self, pieces: &mut Streaming<FilePiece>) -> Result<Option<FilePiece>, FetchError> {
        let begin = Instant::now();
        let piece = timeout(self.left, pieces.message()).await.map_err(|_| FetchError::Late(self.limit))?;
        let piece = piece.map_err(|status| FetchError::Call(Box::new(status)))?;
        self.left = self.left.saturating_sub(begin.elapsed());
        self.bytes += piece.as_ref().map_or(0, |piece| piece.data.len() as u64);
        if self.bytes >= LEAST_BYTES {
            (self.left, self.bytes) = (self.limit, 0);
        }
        Ok(piece)
    }
}

fn write_files(mut queue: mpsc::Receiver<FilePiece>, sink: &FileSink) -> Result<ReceivedFiles, FetchError> {
    let mut files = Files {
        sink,
        received: ReceivedFiles { parts: Vec::new(), manifest: Vec::new() },
        file: String::new(),
        length: 0,
        bytes: 0,
    };
    while let Some(piece) = queue.blocking_recv() {
        files.take(piece)?;
    }
    // While the parts of other hosts still arrive.
    files.received.parts.iter().try_for_each(|(_, part)| part.sync())?;
    Ok(files.received)
}

/// Files in progress.
struct Files<'s> {
    sink: &'s FileSink,
    received: ReceivedFiles,
    /// The current file and its number of received bytes.
    file: String,
    length: u64,
    /// The bytes of all parts.
    bytes: u64,
}

impl Files<'_> {
    fn take(&mut self, piece: FilePiece) -> Result<(), FetchError> {
        if piece.file != self.file {
            self.file.clone_from(&piece.file);
            self.length = 0;
            if piece.file != MANIFEST_FILE {
                self.begin(&piece.file)?;
            }
        }
        if piece.offset != self.length {
            return Err(FetchError::Wrong("pieces that do not follow each other"));
        }
        self.length += piece.data.len() as u64;
        if self.file == MANIFEST_FILE {
            self.received.manifest.extend_from_slice(&piece.data);
            return match self.received.manifest.len() {
                ..=MAX_MANIFEST_BYTES => Ok(()),
                _ => Err(FetchError::Wrong("a manifest that is too large")),
            };
        }
        self.bytes += piece.data.len() as u64;
        if self.bytes > self.sink.most_bytes {
            return Err(FetchError::Wrong("more bytes than its manifest names"));
        }
        let Some((_, part)) = self.received.parts.last_mut() else {
            return Err(FetchError::Wrong("data without a file"));
        };
        let path = part.target().to_owned();
        part.write_all(&piece.data).map_err(|source| SessionError::Io { doing: "write", path, source }.into())
    }

    fn begin(&mut self, file: &str) -> Result<(), FetchError> {
        let name: Option<PartName> = file.strip_suffix(PART_SUFFIX).and_then(|name| name.parse().ok());
        let name = name.ok_or(FetchError::Wrong("a file that is no part"))?;
        let name = match &self.sink.wanted {
            None => Some(name),
            Some(wanted) => wanted.get(&name).cloned(),
        };
        let name = name.ok_or(FetchError::Wrong("a file that its manifest does not name"))?;
        if self.received.parts.iter().any(|(there, _)| *there == name) {
            return Err(FetchError::Wrong("a file twice"));
        }
        let part = self.sink.writer.part(&name)?;
        self.received.parts.push((name, part));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn written(folder: &Path, pieces: &[(&str, u64, &[u8])]) -> Result<ReceivedFiles, FetchError> {
        let (send, queue) = mpsc::channel(16);
        for (file, offset, data) in pieces {
            let piece = FilePiece { file: (*file).to_owned(), offset: *offset, data: data.to_vec() };
            send.blocking_send(piece).unwrap();
        }
        drop(send);
        let writer = SessionWriter::join(folder, "s".parse().unwrap());
        let wanted = ["a", "b"].map(|name| (name.parse().unwrap(), format!("x-{name}").parse().unwrap()));
        let wanted = Some(wanted.into_iter().collect());
        write_files(queue, &FileSink { writer: Arc::new(writer), wanted, most_bytes: 4 })
    }

    #[test]
    fn files_arrive_in_pieces_under_the_names_of_here() {
        let folder = tempfile::tempdir().unwrap();
        let pieces: [(&str, u64, &[u8]); 4] = [
            ("a.xplane.pb", 0, b"1"),
            ("a.xplane.pb", 1, b"23"),
            ("b.xplane.pb", 0, b""),
            ("manifest.json", 0, b"{}"),
        ];
        let received = written(folder.path(), &pieces).unwrap();
        let parts: Vec<_> = received.parts.iter().map(|(name, part)| (name.as_str(), part.size())).collect();
        assert_eq!((parts, &received.manifest[..]), (vec![("x-a", 3), ("x-b", 0)], &b"{}"[..]));
    }

    #[test]
    fn what_is_no_session_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |pieces: &[(&str, u64, &[u8])]| written(folder.path(), pieces).unwrap_err().to_string();
        assert_eq!(refused(&[("../a.xplane.pb", 0, b"1")]), "the agent sent a file that is no part");
        assert_eq!(refused(&[("a.txt", 0, b"1")]), "the agent sent a file that is no part");
        assert_eq!(
            refused(&[("other.xplane.pb", 0, b"1")]),
            "the agent sent a file that its manifest does not name"
        );
        assert_eq!(
            refused(&[("a.xplane.pb", 1, b"1")]),
            "the agent sent pieces that do not follow each other"
        );
        assert_eq!(
            refused(&[("a.xplane.pb", 0, b"12345")]),
            "the agent sent more bytes than its manifest names"
        );
        assert_eq!(refused(&[("", 0, b"1")]), "the agent sent data without a file");
        let again: [(&str, u64, &[u8]); 3] =
            [("a.xplane.pb", 0, b"1"), ("b.xplane.pb", 0, b"1"), ("a.xplane.pb", 0, b"1")];
        assert_eq!(refused(&again), "the agent sent a file twice");
        let large = vec![b' '; MAX_MANIFEST_BYTES + 1];
        assert_eq!(refused(&[(MANIFEST_FILE, 0, &large)]), "the agent sent a manifest that is too large");
    }
}
