//! `tpuscope sessions import`: hands a session that the caller has as files to the agent.
//!
//! The caller reads the files, with the caller's rights; the agent never opens a path that a caller names. Memory is a few
//! pieces, whatever the size of the session.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use indicatif::HumanBytes;
use proto::tpuscope::v1::{
    FilePiece, ImportAnnouncement, ImportPiece, ImportSessionReply, SessionFile, SessionSummary,
    import_piece::Content, sessions_client::SessionsClient,
};
use server::protocol;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};
use xprof::{
    input::open_regular,
    session::{FaultKind, MANIFEST_FILE, Session, SessionName, resolve},
    wording::counted,
};

use super::{location::Location, progress::ByteProgress};
use crate::{
    CommandResult, client, exit::Exit, failure::Failure, lifecycle::signals::StopSignals, output, remedies,
};

/// The size of one piece: the agent takes requests up to 64 KiB.
const PIECE_BYTES: usize = 48 << 10;
/// Pieces that wait for the agent.
const QUEUE: usize = 8;
/// The longest time without progress: the agent syncs large files at the end.
const IDLE: Duration = Duration::from_secs(120);
/// The interval between two looks at the progress.
const LOOK: Duration = Duration::from_millis(100);

/// Arguments of `sessions import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Path of a session folder, of a logdir with one session, or of an .xplane.pb file
    #[arg(value_name = "DIR", value_parser = Location::parser())]
    folder: Location,
    /// Name of the session in the store [default: that of the folder]
    #[arg(long, value_name = "SESSION")]
    name: Option<SessionName>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/sessions-import.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let path = match &args.folder {
        Location::Path(path) => path,
        Location::Name(name) => return Err(remedies::imported_name(name)),
        Location::Url(url) => return Err(remedies::imported_url(url)),
    };
    let session = only_session(path)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => session.name.parse().map_err(|error| remedies::unfit_session_name(path, &error))?,
    };
    let files = files_of(&session)?;
    let stored = client::block_on(async {
        let mut signals = StopSignals::with_hangup().map_err(Failure::internal)?;
        let channel = args.agent.connect().await?;
        tokio::select! {
            stored = import(channel, &name, files) => stored.map_err(|failure| remedies::import(failure, path)),
            _ = signals.next() => Err(Failure::new(Exit::Interrupted, "interrupted; nothing was stored")),
        }
    })?;
    if args.json {
        output::json(&serde_json::json!({
            "session": stored.id,
            "folder": stored.path,
            "parts": stored.parts,
            "size": stored.bytes,
        }))?;
    } else {
        let size = HumanBytes(stored.bytes);
        output::print(&format!(
            "session {}: {}, {size}\nnext: tpuscope sessions show {}{}\n",
            stored.id,
            counted(stored.parts, "part"),
            stored.id,
            args.agent.repeated()
        ))?;
    }
    Ok(Exit::Ok)
}

/// The one session that the path leads to.
fn only_session(path: &Path) -> Result<Session, Failure> {
    let mut sessions = resolve(path).map_err(|error| remedies::no_session(&error))?;
    match (sessions.pop(), sessions.len()) {
        (Some(session), 0) => Ok(session),
        (_, others) => Err(remedies::several_sessions(path, others + 1)),
    }
}

/// A file to hand over.
#[derive(Debug)]
struct LocalFile {
    path: PathBuf,
    name: String,
    size: u64,
}

/// The files of the session, its manifest last. A file that is not as the manifest says is refused.
fn files_of(session: &Session) -> Result<Vec<LocalFile>, Failure> {
    let harmless = |kind: &FaultKind| matches!(kind, FaultKind::NotCaptured(_) | FaultKind::Unfinished);
    let fault = session.faults.iter().find(|fault| !harmless(&fault.kind));
    if let Some(fault) = fault {
        return Err(remedies::faulty_session(&session.folder, fault));
    }
    let file_name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let part = |path: &PathBuf, size| LocalFile { name: file_name(path), path: path.clone(), size };
    let mut files: Vec<_> = session.parts.iter().map(|found| part(&found.path, found.size)).collect();
    if session.manifest.is_some() {
        let path = session.folder.join(MANIFEST_FILE);
        let size = std::fs::metadata(&path).map_err(|error| remedies::unreadable_part(&path, &error))?.len();
        files.push(LocalFile { name: MANIFEST_FILE.to_owned(), path, size });
    }
    Ok(files)
}

async fn import(
    channel: Channel,
    name: &SessionName,
    files: Vec<LocalFile>,
) -> Result<SessionSummary, Failure> {
    let announcement = ImportAnnouncement {
        peer: Some(protocol::own()),
        id: name.to_string(),
        files: files.iter().map(|file| SessionFile { file: file.name.clone(), size: file.size }).collect(),
    };
    let (pieces, queue) = mpsc::channel(QUEUE);
    let sent = Arc::new(AtomicU64::new(0));
    let all: u64 = files.iter().map(|file| file.size).sum();
    let reading = {
        let sent = Arc::clone(&sent);
        tokio::task::spawn_blocking(move || read(announcement, &files, &pieces, &sent))
    };
    let mut sessions = SessionsClient::new(channel);
    let replies = client::within(client::CALL_TIMEOUT, sessions.import(ReceiverStream::new(queue))).await?;
    let reply = watch(replies.into_inner(), &sent, all).await;
    match (reply, ended(reading).await) {
        // The agent only says that a file is missing.
        (Err(_), Err(failure)) => Err(failure),
        (reply, _) => reply?.session.ok_or_else(|| Failure::internal("the agent sent no session")),
    }
}

async fn ended(reading: JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    reading.await.unwrap_or_else(|error| Err(Failure::internal(error)))
}

/// Waits for the reply, for as long as there is progress.
async fn watch(
    mut replies: Streaming<ImportSessionReply>,
    sent: &AtomicU64,
    all: u64,
) -> Result<ImportSessionReply, Failure> {
    let mut progress = ByteProgress::new("sending");
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut since) = (0, Instant::now());
    loop {
        tokio::select! {
            reply = replies.message() => {
                let reply = reply.map_err(|status| remedies::refused(&status))?;
                return reply.ok_or_else(remedies::connection_closed);
            }
            now = looks.tick() => {
                let done = sent.load(Ordering::Relaxed);
                if done != last {
                    (last, since) = (done, now);
                }
                if now.saturating_duration_since(since) > IDLE {
                    return Err(remedies::call_timeout(IDLE));
                }
                progress.at(done, all);
            }
        }
    }
}

/// Reads the files in turn. Ends when the agent no longer listens.
fn read(
    announcement: ImportAnnouncement,
    files: &[LocalFile],
    pieces: &mpsc::Sender<ImportPiece>,
    sent: &AtomicU64,
) -> Result<(), Failure> {
    let send = |content| pieces.blocking_send(ImportPiece { content: Some(content) }).is_ok();
    if !send(Content::Announcement(announcement)) {
        return Ok(());
    }
    for LocalFile { path, name, size } in files {
        let unreadable = |error: io::Error| remedies::unreadable_part(path, &error);
        let mut file = open_regular(path).map_err(unreadable)?;
        let mut offset = 0;
        while offset < *size {
            let data = piece(&mut file, size - offset).map_err(unreadable)?;
            let length = data.len() as u64;
            if !send(Content::Piece(FilePiece { file: name.clone(), offset, data })) {
                return Ok(());
            }
            offset += length;
            sent.fetch_add(length, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// The next bytes of a file that has so many left.
fn piece(file: &mut File, left: u64) -> io::Result<Vec<u8>> {
    let wanted = left.min(PIECE_BYTES as u64);
    let mut data = Vec::with_capacity(PIECE_BYTES);
    file.take(wanted).read_to_end(&mut data)?;
    if data.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was read"));
    }
    Ok(data)
}
