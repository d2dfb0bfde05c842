//! `tpuscope sessions fetch`: copies a session from the agent's store, over its socket, to a folder. `capture --output` uses
//! it too.
//!
//! Must never publish an incomplete session: all files must have arrived and match the manifest.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use indicatif::HumanBytes;
use proto::tpuscope::v1::{FetchSessionRequest, FilePiece, sessions_client::SessionsClient};
use server::protocol;
use tonic::{Streaming, transport::Channel};
use xprof::session::{
    MANIFEST_FILE, Manifest, PART_SUFFIX, PartFacts, PartName, PartWriter, SessionError, SessionName,
    SessionWriter,
};

use super::{location::Location, outfile::is_a_folder_or_new};
use crate::{
    CommandResult, client, exit::Exit, failure::Failure, lifecycle::signals::StopSignals, output, remedies,
};

/// The largest manifest.
const MAX_MANIFEST_BYTES: usize = 16 << 20;

/// Arguments of `sessions fetch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a session of the agent
    #[arg(value_name = "SESSION", value_parser = Location::parser())]
    session: Location,
    /// Logdir to write to: the session becomes DIR/plugins/profile/SESSION
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let session = match &args.session {
        Location::Name(name) => name,
        Location::Path(path) => return Err(remedies::fetched_path(path)),
    };
    let fetched = client::block_on(async {
        let mut signals = StopSignals::with_hangup().map_err(Failure::internal)?;
        let channel = args.agent.connect().await?;
        tokio::select! {
            fetched = fetch(channel, session, &args.output) => fetched,
            _ = signals.next() => Err(Failure::new(Exit::Interrupted, "interrupted; nothing was copied")),
        }
    })?;
    if args.json {
        output::json(&serde_json::json!({
            "session": session,
            "folder": fetched.folder,
            "files": fetched.files,
            "size": fetched.size,
        }))?;
    } else {
        let Fetched { folder, files, size, .. } = &fetched;
        let folder = folder.display();
        let text = format!("{files} files, {} in {folder}\n", HumanBytes(*size));
        output::print(&(text + &format!("next: tpuscope sessions show {folder}\n")))?;
    }
    if fetched.checked {
        return Ok(Exit::Ok);
    }
    Err(remedies::unchecked_copy())
}

/// A copied session.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Its folder.
    pub(crate) folder: PathBuf,
    files: usize,
    size: u64,
    /// Whether the files were checked against a manifest.
    checked: bool,
}

/// Finds out before there is anything to copy whether it can be written below `output`. `name` is the session's
/// where it is known yet.
pub(crate) fn check(name: Option<&SessionName>, output: &Path) -> Result<(), Failure> {
    is_a_folder_or_new(output)?;
    let internal = Failure::internal;
    let part: PartName = "check".parse().map_err(internal)?;
    let writer = match name {
        Some(name) => SessionWriter::create(output, name.clone()),
        // No session has this name, so no other writer is refused.
        None => Ok(SessionWriter::join(output, "check".parse().map_err(internal)?)),
    };
    // Dropped without a commit, it leaves nothing.
    writer
        .and_then(|writer| writer.part(&part))
        .map(drop)
        .map_err(|error| remedies::session_copy(error, output))
}

/// Copies the session `name` of the agent behind `channel` below `output`.
pub(crate) async fn fetch(channel: Channel, name: &SessionName, output: &Path) -> Result<Fetched, Failure> {
    is_a_folder_or_new(output)?;
    let writer =
        SessionWriter::create(output, name.clone()).map_err(|error| remedies::session_copy(error, output))?;
    let request = FetchSessionRequest { peer: Some(protocol::own()), id: name.to_string() };
    let mut sessions = SessionsClient::new(channel);
    let pieces = client::within(client::CALL_TIMEOUT, sessions.fetch(request)).await?.into_inner();
    let mut copy = Copy { writer, parts: Vec::new(), manifest: Vec::new(), length: 0, file: String::new() };
    receive(pieces, &mut copy).await.map_err(|failure| match failure {
        Stopped::Agent(failure) => failure,
        Stopped::Disk(error) => remedies::session_copy(error, output),
    })?;
    copy.publish(output)
}

enum Stopped {
    Agent(Failure),
    Disk(SessionError),
}

async fn receive(mut pieces: Streaming<FilePiece>, copy: &mut Copy) -> Result<(), Stopped> {
    while let Some(piece) =
        client::within(client::CALL_TIMEOUT, pieces.message()).await.map_err(Stopped::Agent)?
    {
        copy.take(piece)?;
    }
    Ok(())
}

/// A copy in progress.
struct Copy {
    writer: SessionWriter,
    parts: Vec<(PartName, PartWriter)>,
    manifest: Vec<u8>,
    /// The current file and its number of received bytes.
    file: String,
    length: u64,
}

impl Copy {
    fn take(&mut self, piece: FilePiece) -> Result<(), Stopped> {
        let wrong = |what: &str| Stopped::Agent(Failure::internal(format!("the agent sent {what}")));
        if piece.file != self.file {
            self.file.clone_from(&piece.file);
            self.length = 0;
            if piece.file != MANIFEST_FILE {
                let name = piece.file.strip_suffix(PART_SUFFIX).and_then(|name| name.parse().ok());
                let name: PartName = name.ok_or_else(|| wrong("a file that is no part"))?;
                let part = self.writer.part(&name).map_err(Stopped::Disk)?;
                self.parts.push((name, part));
            }
        }
        if piece.offset != self.length {
            return Err(wrong("pieces that do not follow each other"));
        }
        self.length += piece.data.len() as u64;
        if self.file == MANIFEST_FILE {
            self.manifest.extend_from_slice(&piece.data);
            return match self.manifest.len() {
                ..=MAX_MANIFEST_BYTES => Ok(()),
                _ => Err(wrong("a manifest that is too large")),
            };
        }
        let Some((_, part)) = self.parts.last_mut() else { return Err(wrong("data without a file")) };
        let path = part.target().to_owned();
        part.write_all(&piece.data)
            .map_err(|source| Stopped::Disk(SessionError::Io { doing: "write", path, source }))
    }

    /// Checks the files against the manifest and publishes them.
    fn publish(self, output: &Path) -> Result<Fetched, Failure> {
        let manifest: Option<Manifest> = match &self.manifest[..] {
            [] => None,
            text => Some(serde_json::from_slice(text).map_err(|error| {
                Failure::internal(format_args!("the agent's manifest is damaged: {error}"))
            })?),
        };
        for entry in manifest.iter().flat_map(|manifest| &manifest.hosts).flat_map(|host| &host.parts) {
            let part = self.parts.iter().find(|(name, _)| name.file_name() == entry.file);
            if !part.is_some_and(|(_, part)| part.size() == entry.size && part.sha256() == entry.sha256) {
                return Err(remedies::damaged_copy(&entry.file));
            }
        }
        let files = self.parts.len();
        let mut fetched = Fetched { folder: self.writer.folder(), files, size: 0, checked: false };
        let (writer, mut made) = (&self.writer, Vec::new());
        let whole = self.parts.into_iter().try_for_each(|(_, part)| {
            let entry = part.commit(PartFacts::default())?;
            fetched.size += entry.size;
            made.push(entry.file);
            Ok(())
        });
        let has_manifest = manifest.is_some();
        let whole =
            whole.and_then(|()| manifest.map_or(Ok(()), |manifest| writer.finish(manifest).map(drop)));
        if let Err(error) = whole {
            writer.take_back(&made);
            return Err(remedies::session_copy(error, output));
        }
        if has_manifest {
            fetched.files += 1;
            fetched.checked = true;
            fetched.size += self.manifest.len() as u64;
        }
        Ok(fetched)
    }
}
