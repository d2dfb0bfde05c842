//! `tpuscope sessions fetch --hosts`: copies the parts that the agents of many hosts have of one session, as one session.
//!
//! Must never publish a part that does not match the manifest of its host, or leave anything behind of a copy that did not
//! become whole.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cluster::hosts::HostAddress;
use indicatif::HumanBytes;
use model::time::{Clock, SystemClock};
use proto::tpuscope::v1::FetchSessionRequest;
use server::{protocol, session_messages};
use sessions::{
    fetch::{FetchError, copy_parts},
    joined_manifest::{self, RecordedHost},
};
use tokio::{sync::Semaphore, task::JoinSet};
use xprof::{
    session::{Manifest, PartWriter, SessionError, SessionName, SessionWriter, Window},
    wording::counted,
};

use super::{
    agents_parts::{self, AbsentHost, AgentPart, AgentsParts, bad_answer},
    fetch,
    windows::{self, TracedWindow},
};
use crate::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    hosts::{HostsArgs, NoHostAnswer, report},
    lifecycle::signals::StopSignals,
    output::{self, one_line},
    remedies,
};

/// The hosts that are copied from at a time: each has a few pieces in memory.
const COPIES_AT_A_TIME: usize = 8;

/// A session that was copied.
#[derive(Debug)]
struct Copied {
    folder: PathBuf,
    hosts: usize,
    files: usize,
    size: u64,
    absent: Vec<AbsentHost>,
}

/// A host whose parts are here, not visible yet.
struct CopiedHost {
    place: usize,
    host: HostAddress,
    recorded: RecordedHost,
    parts: Vec<PartWriter>,
}

pub(super) fn run(args: &HostsArgs, name: &SessionName, output: &Path, json: bool) -> CommandResult {
    let copied = client::block_on(async {
        // What the check stages is removed, too.
        let mut signals = StopSignals::with_hangup().map_err(Failure::internal)?;
        fetch::check(Some(name), output)?;
        tokio::select! {
            copied = copy(args, name, output) => copied,
            _ = signals.next() => Err(Failure::new(Exit::Interrupted, "interrupted; nothing was copied")),
        }
    })?;
    print(&copied, name, json)?;
    Ok(if copied.absent.is_empty() { Exit::Ok } else { Exit::Partial })
}

fn print(copied: &Copied, name: &SessionName, json: bool) -> Result<(), Failure> {
    let Copied { folder, hosts, files, size, absent } = copied;
    if json {
        return output::json(&serde_json::json!({
            "session": name,
            "folder": folder,
            "files": files,
            "size": size,
            "hosts": hosts,
            "missing": absent,
        }));
    }
    let folder = folder.display();
    let mut text = format!(
        "{} of {} in {folder}, {}\n",
        counted(*files, "file"),
        counted(*hosts, "host"),
        HumanBytes(*size)
    );
    let absent_hosts = absent.iter().map(|absent| (absent.host.to_string(), &absent.why.reason));
    for (reason, hosts) in report::each_once(absent_hosts) {
        text += &format!("missing: {}: {}\n", report::named(&hosts), one_line(reason));
    }
    text += &AgentsParts::remarks(absent);
    output::print(&(text + &format!("next: tpuscope sessions show {folder}\n")))
}

async fn copy(args: &HostsArgs, name: &SessionName, output: &Path) -> Result<Copied, Failure> {
    let AgentsParts { found, mut absent } = agents_parts::find(args, name).await?;
    let failed = |error| remedies::session_copy(error, output);
    let writer = Arc::new(SessionWriter::create(output, name.clone()).map_err(failed)?);
    let mut checked = Vec::new();
    for part in found {
        match recorded(&part, name) {
            Ok(recorded) => checked.push((part, recorded)),
            Err(why) => {
                absent.push(AbsentHost { host: part.host.clone(), why: bad_answer(why) });
                part.dialed.close().await;
            }
        }
    }
    one_window(&checked)?;
    let permits = Arc::new(Semaphore::new(COPIES_AT_A_TIME));
    let mut copying = JoinSet::new();
    for (place, (part, recorded)) in checked.into_iter().enumerate() {
        let (permits, writer, name) = (Arc::clone(&permits), Arc::clone(&writer), name.clone());
        copying.spawn(async move {
            // It is never closed.
            let _permit = permits.acquire().await;
            copy_host(place, part, recorded, &name, &writer).await
        });
    }
    let mut hosts = Vec::new();
    while let Some(copied) = copying.join_next().await {
        match copied.map_err(Failure::internal)? {
            Ok(copied) => hosts.push(copied),
            Err((_, CopyFault::Disk(error))) => return Err(failed(error)),
            Err((host, CopyFault::Host(why))) => absent.push(AbsentHost { host, why }),
        }
    }
    if hosts.is_empty() {
        return Err(agents_parts::no_host_has(name, &absent));
    }
    hosts.sort_by_key(|host| host.place);
    publish(&writer, hosts, absent).map_err(failed)
}

/// What the agent of a host has, named as in the whole session.
fn recorded(part: &AgentPart, name: &SessionName) -> Result<RecordedHost, String> {
    let message = part.reply.manifest.clone();
    let message = message.ok_or("its session has no manifest, so its parts cannot be checked")?;
    let manifest = session_messages::manifest_of(message)
        .map_err(|_| "its agent sent a manifest with impossible times")?;
    let several = "its session is not of one host: fetch it from that agent alone";
    let names = part.names.as_ref().ok_or(several)?;
    let checked = joined_manifest::check_session(&manifest, name, None);
    let recorded = checked.and_then(|()| RecordedHost::checked(manifest, &names.own, &names.label, None));
    recorded.map_err(|error| error.to_string())
}

/// Refuses parts that are too far apart to be of one window.
fn one_window(hosts: &[(AgentPart, RecordedHost)]) -> Result<(), Failure> {
    let windows = hosts
        .iter()
        .filter_map(|(part, recorded)| TracedWindow::recorded(part.host.to_string(), &recorded.manifest));
    match windows::largest_gap(windows.collect()) {
        Some(gap) if gap.is_too_long() => Err(remedies::sessions_apart(&gap)),
        _ => Ok(()),
    }
}

/// Why the parts of a host are not here.
enum CopyFault {
    /// The host is missing.
    Host(NoHostAnswer),
    /// The disk here refuses.
    Disk(SessionError),
}

async fn copy_host(
    place: usize,
    part: AgentPart,
    recorded: RecordedHost,
    name: &SessionName,
    writer: &Arc<SessionWriter>,
) -> Result<CopiedHost, (HostAddress, CopyFault)> {
    let AgentPart { host, dialed, .. } = part;
    let request = FetchSessionRequest { peer: Some(protocol::own()), id: name.to_string() };
    let copied =
        copy_parts(dialed.channel(), request, writer, &recorded.parts, client::CALL_TIMEOUT, |_| {}).await;
    match copied {
        Ok(parts) => {
            dialed.close().await;
            Ok(CopiedHost { place, host, recorded, parts })
        }
        Err(FetchError::Disk(error)) => Err((host, CopyFault::Disk(error))),
        Err(error) => {
            let why = NoHostAnswer::not_copied(error, dialed).await;
            Err((host, CopyFault::Host(why)))
        }
    }
}

/// A warning of a session whose parts have no id in common.
const SEVERAL_CAPTURES: &str = "the hosts were not captured by one command, so that their windows may differ: only their names are the same";

/// Makes the session of all hosts visible.
fn publish(
    writer: &Arc<SessionWriter>,
    hosts: Vec<CopiedHost>,
    absent: Vec<AbsentHost>,
) -> Result<Copied, SessionError> {
    let manifests = || hosts.iter().map(|host| &host.recorded.manifest);
    let first = hosts.first().map(|host| &host.recorded.manifest);
    // One capture has one id on all hosts; sessions of one name alone have no window in common.
    let is_one = manifests()
        .all(|manifest| manifest.id.is_some() && Some(&manifest.id) == first.map(|first| &first.id));
    let id = first.and_then(|manifest| manifest.id.clone()).filter(|_| is_one);
    let window: Option<Window> = first.and_then(|manifest| manifest.window).filter(|_| is_one);
    let created =
        manifests().filter_map(Manifest::created_at).max().unwrap_or_else(|| SystemClock.now().into());
    let recorded = hosts.iter().map(|host| (&host.host, Ok(&host.recorded)));
    let missing = absent.iter().map(|absent| (&absent.host, Err(absent.why.reason.clone())));
    let all: Vec<_> = recorded.chain(missing).collect();
    let warnings = if is_one { Vec::new() } else { vec![SEVERAL_CAPTURES.to_owned()] };
    let manifest = joined_manifest::joined(writer.name(), id, window, created, &all, warnings);
    drop(all);
    let files = manifest.hosts.iter().map(|host| host.parts.len()).sum::<usize>() + 1;
    let size = manifest.parts_bytes() + manifest.text().len() as u64;
    let count = hosts.len();
    let parts = hosts.into_iter().flat_map(|host| host.parts).collect();
    let folder = writer.publish(parts, manifest)?.folder;
    Ok(Copied { folder, hosts: count, files, size, absent })
}
