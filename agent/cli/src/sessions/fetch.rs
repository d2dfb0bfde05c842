//! `tpuscope sessions fetch`: copies a session to a folder: from the agent's store, over its socket, from a bucket or from
//! another folder. `capture --output` uses it too.
//!
//! Must never publish an incomplete session: all files must have arrived and match the manifest.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use indicatif::HumanBytes;
use proto::tpuscope::v1::{FetchSessionRequest, sessions_client::SessionsClient};
use server::protocol;
use sessions::fetch::{FileSink, ReceivedFiles, receive};
use tonic::transport::Channel;
use xprof::session::{
    Manifest, PartFacts, PartFile, PartName, PartWriter, SessionError, SessionName, SessionWriter,
};
use xprof::wording::counted;

use super::{
    fetch_hosts,
    load::{self, Loaded},
    location::Location,
    outfile::is_a_folder_or_new,
    progress::ByteProgress,
    remote_files::RemoteSession,
};
use crate::{
    CommandResult, client, exit::Exit, failure::Failure, hosts::HostsArgs, lifecycle::signals::StopSignals,
    output, output_path, remedies,
};

/// The size of the pieces in which a file is copied.
const PIECE: usize = 1 << 20;

/// Arguments of `sessions fetch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a session of the agent; or a path or a gs:// URL of a session folder or of a logdir (its newest session)
    #[arg(value_name = "SESSION", value_parser = Location::parser())]
    session: Location,
    /// Logdir to write to: the session becomes DIR/plugins/profile/SESSION
    #[arg(short, long, value_name = "DIR", default_value = ".", value_parser = output_path::parser())]
    output: PathBuf,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    hosts: HostsArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    if args.hosts.is_given() {
        if args.agent.is_given() {
            return Err(remedies::socket_of_another_host());
        }
        let Location::Name(name) = &args.session else { return Err(remedies::no_name_for_hosts()) };
        return fetch_hosts::run(&args.hosts, name, &args.output, args.json);
    }
    let fetched = match &args.session {
        Location::Name(name) => of_agent(name, args)?,
        Location::Path(_) | Location::Url(_) => {
            copy(&load::parts(&args.session, &args.agent)?, &args.output)?
        }
    };
    if args.json {
        output::json(&serde_json::json!({
            "session": fetched.session,
            "folder": fetched.folder,
            "files": fetched.files,
            "size": fetched.size,
        }))?;
    } else {
        let Fetched { folder, files, size, .. } = &fetched;
        let folder = folder.display();
        let text = format!("{}, {} in {folder}\n", counted(*files, "file"), HumanBytes(*size));
        output::print(&(text + &format!("next: tpuscope sessions show {folder}\n")))?;
    }
    match fetched.check {
        FileCheck::Done => Ok(Exit::Ok),
        FileCheck::NoManifest => {
            output::print_error(
                "the session has no manifest: its files were copied whole, and could not be checked",
            );
            Ok(Exit::Ok)
        }
        FileCheck::LostManifest => {
            let unchecked = remedies::unchecked_copy();
            output::print_error(&unchecked.to_string());
            Ok(unchecked.exit)
        }
    }
}

fn of_agent(session: &SessionName, args: &Args) -> Result<Fetched, Failure> {
    client::block_on(async {
        let mut signals = StopSignals::with_hangup().map_err(Failure::internal)?;
        let channel = args.agent.connect().await?;
        tokio::select! {
            fetched = fetch(channel, session, &args.output) => fetched,
            _ = signals.next() => Err(Failure::new(Exit::Interrupted, "interrupted; nothing was copied")),
        }
    })
}

/// Copies a session that is read as files, in a folder or in a bucket, below `output`.
fn copy(loaded: &Loaded, output: &Path) -> Result<Fetched, Failure> {
    let session = &loaded.session;
    let name: SessionName =
        session.name.parse().map_err(|error| remedies::not_a_session_name(&session.name, &error))?;
    let failed = |error| remedies::session_copy(error, output);
    let writer = SessionWriter::create(output, name).map_err(failed)?;
    let mut parts = Vec::new();
    let mut progress = ByteProgress::new("copying");
    let all: u64 = session.parts.iter().map(|part| part.size).sum();
    let mut done = 0;
    for part in &session.parts {
        let part_name: PartName =
            part.name.parse().map_err(|error| remedies::not_a_session_name(&part.name, &error))?;
        let mut copied = writer.part(&part_name).map_err(failed)?;
        let mut from = loaded.open(part).map_err(|error| unread(loaded, part, error))?;
        let mut piece = vec![0; PIECE];
        loop {
            let read = from.read(&mut piece).map_err(|error| unread(loaded, part, error))?;
            if read == 0 {
                break;
            }
            let path = copied.target().to_owned();
            copied
                .write_all(&piece[..read])
                .map_err(|source| failed(SessionError::Io { doing: "write", path, source }))?;
            done += read as u64;
            progress.at(done, all);
        }
        parts.push((part_name, copied));
    }
    drop(progress);
    // XProf's sessions and single files never had a manifest.
    let unchecked =
        if loaded.has_damaged_manifest() { FileCheck::LostManifest } else { FileCheck::NoManifest };
    publish(&writer, parts, session.manifest.clone(), unchecked, output)
}

/// A part that cannot be read: the reason of the call that failed, where it was one.
fn unread(loaded: &Loaded, part: &PartFile, error: io::Error) -> Failure {
    let called = loaded.remote.as_ref().and_then(RemoteSession::failure);
    called.unwrap_or_else(|| remedies::TraceFileError::open(&part.path, error).into())
}

/// A copied session.
#[derive(Debug)]
pub(crate) struct Fetched {
    session: SessionName,
    /// Its folder.
    pub(crate) folder: PathBuf,
    files: usize,
    size: u64,
    check: FileCheck,
}

/// How the files of a copy were checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileCheck {
    /// Against the manifest.
    Done,
    /// Not: the session has no manifest. Programs other than tpuscope write none.
    NoManifest,
    /// Not: the manifest is damaged, or the agent did not come to write it.
    LostManifest,
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
    let writer = Arc::new(writer);
    let request = FetchSessionRequest { peer: Some(protocol::own()), id: name.to_string() };
    let mut sessions = SessionsClient::new(channel);
    let pieces = client::within(client::CALL_TIMEOUT, sessions.fetch(request)).await?.into_inner();
    let sink = FileSink { writer: Arc::clone(&writer), wanted: None, most_bytes: u64::MAX };
    let received = receive(pieces, sink, client::CALL_TIMEOUT, |_| {}).await;
    let ReceivedFiles { parts, manifest } = received.map_err(|error| remedies::fetch(error, output))?;
    let manifest =
        match &manifest[..] {
            [] => None,
            text => Some(serde_json::from_slice(text).map_err(|error| {
                Failure::internal(format_args!("the agent's manifest is damaged: {error}"))
            })?),
        };
    publish(&writer, parts, manifest, FileCheck::LostManifest, output)
}

/// Checks the files against the manifest and publishes them. Without a manifest the check is `unchecked`.
fn publish(
    writer: &SessionWriter,
    parts: Vec<(PartName, PartWriter)>,
    manifest: Option<Manifest>,
    unchecked: FileCheck,
    output: &Path,
) -> Result<Fetched, Failure> {
    for entry in manifest.iter().flat_map(|manifest| &manifest.hosts).flat_map(|host| &host.parts) {
        let part = parts.iter().find(|(name, _)| name.file_name() == entry.file);
        let Some((_, part)) = part else { return Err(remedies::missing_copy(&entry.file)) };
        if part.size() != entry.size || part.sha256() != entry.sha256 {
            return Err(remedies::damaged_copy(&entry.file));
        }
    }
    let parts: Vec<PartWriter> = parts.into_iter().map(|(_, part)| part).collect();
    let files = parts.len();
    let (files, size, check) = match manifest {
        Some(manifest) => {
            (files + 1, writer.publish(parts, manifest).map(|done| done.bytes), FileCheck::Done)
        }
        None => (files, publish_parts(writer, parts), unchecked),
    };
    let size = size.map_err(|error| remedies::session_copy(error, output))?;
    Ok(Fetched { session: writer.name().clone(), folder: writer.folder(), files, size, check })
}

/// Publishes parts without a manifest: all of them, or none. Returns their bytes.
fn publish_parts(writer: &SessionWriter, parts: Vec<PartWriter>) -> Result<u64, SessionError> {
    let (mut size, mut made) = (0, Vec::new());
    let whole = parts.into_iter().try_for_each(|part| {
        let entry = part.commit(PartFacts::default())?;
        size += entry.size;
        made.push(entry.file);
        Ok(())
    });
    if whole.is_err() {
        writer.take_back(&made);
    }
    whole.map(|()| size)
}
