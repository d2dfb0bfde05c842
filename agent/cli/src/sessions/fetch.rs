//! `tpuscope sessions fetch`: copies a session out of the agent's store, over its socket, into a folder of the
//! caller's. Also what `capture --output` ends with.
//!
//! Must never show half a session: nothing is published before all of it is here and is what its manifest says.

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

use crate::{
    Outcome, client,
    exit::{Exit, Failure},
    lifecycle::signals::StopSignals,
    output, remedies,
};

/// No manifest is longer.
const LONGEST_MANIFEST: usize = 16 << 20;

/// Arguments of `sessions fetch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session to copy
    #[arg(value_name = "SESSION")]
    session: SessionName,
    /// Folder to write plugins/profile/SESSION below
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,
    #[command(flatten)]
    agent: client::Socket,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Outcome {
    let fetched = client::block_on(async {
        let mut signals = StopSignals::with_hangup().map_err(|error| Failure::new(Exit::Internal, error))?;
        let channel = args.agent.connect().await?;
        tokio::select! {
            fetched = fetch(channel, &args.session, &args.output) => fetched,
            _ = signals.next() => Err(Failure::new(Exit::Interrupted, "interrupted; nothing was kept")),
        }
    })?;
    if args.json {
        output::json(&serde_json::json!({
            "session": args.session,
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
    Err(Failure::new(
        Exit::Partial,
        "the session has no manifest that can be read: its files were not checked",
    )
    .remedy("`tpuscope sessions show` says what they hold"))
}

/// A session that is here now.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Its folder.
    pub(crate) folder: PathBuf,
    files: usize,
    size: u64,
    /// Whether it is what a manifest says.
    checked: bool,
}

/// Finds out before there is anything to copy whether it can be written below `output`. `name` is the session's
/// where it is known yet.
pub(crate) fn check(name: Option<&SessionName>, output: &Path) -> Result<(), Failure> {
    let internal = |error| Failure::new(Exit::Internal, error);
    let part: PartName = "check".parse().map_err(internal)?;
    let writer = match name {
        Some(name) => SessionWriter::create(output, name.clone()),
        // Nobody's name, so it is not kept from anybody either.
        None => Ok(SessionWriter::join(output, "check".parse().map_err(internal)?)),
    };
    // Dropped without a commit, it leaves nothing.
    writer.and_then(|writer| writer.part(&part)).map(drop).map_err(|error| unwritten(error, output))
}

/// Copies the session `name` of the agent behind `channel` below `output`.
pub(crate) async fn fetch(channel: Channel, name: &SessionName, output: &Path) -> Result<Fetched, Failure> {
    let writer = SessionWriter::create(output, name.clone()).map_err(|error| unwritten(error, output))?;
    let request = FetchSessionRequest { peer: Some(protocol::own()), id: name.to_string() };
    let mut sessions = SessionsClient::new(channel);
    let pieces = client::within(client::ANSWER, sessions.fetch(request)).await?.into_inner();
    let mut copy = Copy { writer, parts: Vec::new(), manifest: Vec::new(), length: 0, file: String::new() };
    receive(pieces, &mut copy).await.map_err(|failure| match failure {
        Stopped::Agent(failure) => failure,
        Stopped::Disk(error) => unwritten(error, output),
    })?;
    copy.publish(output)
}

enum Stopped {
    Agent(Failure),
    Disk(SessionError),
}

async fn receive(mut pieces: Streaming<FilePiece>, copy: &mut Copy) -> Result<(), Stopped> {
    while let Some(piece) = client::within(client::ANSWER, pieces.message()).await.map_err(Stopped::Agent)? {
        copy.take(piece)?;
    }
    Ok(())
}

/// The copy while it arrives.
struct Copy {
    writer: SessionWriter,
    parts: Vec<(PartName, PartWriter)>,
    manifest: Vec<u8>,
    /// The file that arrives, and how much of it is here.
    file: String,
    length: u64,
}

impl Copy {
    fn take(&mut self, piece: FilePiece) -> Result<(), Stopped> {
        let wrong =
            |what: &str| Stopped::Agent(Failure::new(Exit::Internal, format!("the agent sent {what}")));
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
            return Err(wrong("pieces that do not fit together"));
        }
        self.length += piece.data.len() as u64;
        if self.file == MANIFEST_FILE {
            self.manifest.extend_from_slice(&piece.data);
            return match self.manifest.len() {
                ..=LONGEST_MANIFEST => Ok(()),
                _ => Err(wrong("a manifest without end")),
            };
        }
        let Some((_, part)) = self.parts.last_mut() else { return Err(wrong("bytes of no file")) };
        let path = part.target().to_owned();
        part.write_all(&piece.data)
            .map_err(|source| Stopped::Disk(SessionError::Io { doing: "write", path, source }))
    }

    /// Checks what came against its manifest, and makes it visible.
    fn publish(self, output: &Path) -> Result<Fetched, Failure> {
        let manifest: Option<Manifest> = match &self.manifest[..] {
            [] => None,
            text => Some(serde_json::from_slice(text).map_err(|error| {
                Failure::new(Exit::Internal, format_args!("the agent's manifest is damaged: {error}"))
            })?),
        };
        for entry in manifest.iter().flat_map(|manifest| &manifest.hosts).flat_map(|host| &host.parts) {
            let part = self.parts.iter().find(|(name, _)| name.file_name() == entry.file);
            if !part.is_some_and(|(_, part)| part.size() == entry.size && part.sha256() == entry.sha256) {
                let what =
                    format!("{} is not what its manifest says: the agent's copy is damaged", entry.file);
                return Err(Failure::new(Exit::BadInput, what).remedy("capture again"));
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
            return Err(unwritten(error, output));
        }
        if has_manifest {
            fetched.files += 1;
            fetched.checked = true;
            fetched.size += self.manifest.len() as u64;
        }
        Ok(fetched)
    }
}

fn unwritten(error: SessionError, output: &Path) -> Failure {
    match error {
        SessionError::Running(name) => Failure::new(
            Exit::Conflict,
            format_args!("session {name} is being written below {}", output.display()),
        )
        .remedy("wait until that is done, or name another folder with --output"),
        SessionError::Exists(at) => {
            Failure::new(Exit::Conflict, format_args!("{} is already there", at.display()))
                .remedy(format_args!("name another folder than {} with --output", output.display()))
        }
        error => remedies::session_folder(error),
    }
}
