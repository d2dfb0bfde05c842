//! Loads a session: of the agent by its name, or the newest one at a path or in a bucket. Its parts, and the reading of one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cluster::hosts::HostAddress;
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use proto::tpuscope::v1::ShowSessionReply;
use server::session_messages;
use store::destinations::BucketUrl;
use xprof::{
    analysis::{self, HostTrace, MissingPart, Rules},
    input::{FileInput, Input, ReadSeek, open_regular},
    reader::AnyReader,
    session::{self, Fault, Manifest, PART_SUFFIX, PartFile, Session, SessionName},
};

use super::{agent_files, bucket_files, location::Location, remote_files::RemoteSession};
use crate::{
    client,
    exit::Exit,
    failure::Failure,
    remedies::{self, TraceFileError, no_session},
};

/// A session.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) session: Session,
    /// The number of other sessions at the path.
    pub(super) others: usize,
    /// The parts that are missing or cannot be read.
    pub(super) missing: Vec<MissingPart>,
    /// Other faults of the session.
    pub(super) warnings: Vec<String>,
    /// What the user named.
    pub(super) place: PathBuf,
    /// Where its parts are read; `None`: on the disk.
    pub(super) remote: Option<RemoteSession>,
    /// The host whose agent has it, as it was given; `None`: the agent here, a folder or a bucket.
    pub(super) host: Option<HostAddress>,
}

/// The session at `location`, which has at least one part.
pub(super) fn parts(location: &Location, agent: &client::SocketArgs) -> Result<Loaded, Failure> {
    let loaded = match location {
        Location::Path(path) => on_disk(path)?,
        Location::Name(name) if is_a_file(name) => return Err(remedies::name_of_a_file(name.as_str())),
        Location::Name(name) => of_agent(name, agent)?,
        Location::Url(url) => in_bucket(url)?,
    };
    if loaded.session.parts.is_empty() {
        return Err(nothing_to_show(&loaded.place, &loaded.missing, None));
    }
    Ok(loaded)
}

/// Whether the name is that of a trace or an archive in the current folder.
fn is_a_file(name: &SessionName) -> bool {
    const SUFFIXES: [&str; 10] =
        [".pb", ".json", ".gz", ".tgz", ".tar", ".zip", ".zst", ".xz", ".bz2", ".db"];
    SUFFIXES.iter().any(|suffix| name.as_str().ends_with(suffix)) && Path::new(name.as_str()).is_file()
}

/// The newest session at `path`.
fn on_disk(path: &Path) -> Result<Loaded, Failure> {
    let (session, others) = newest(path)?;
    Ok(found(session, others, path.to_owned(), None))
}

/// The session at a URL.
fn in_bucket(url: &BucketUrl) -> Result<Loaded, Failure> {
    let bucket_files::BucketSession { session, others, remote } = bucket_files::open(url)?;
    Ok(found(session, others, url.to_string().into(), Some(remote)))
}

fn found(session: Session, others: usize, place: PathBuf, remote: Option<RemoteSession>) -> Loaded {
    // A damaged manifest is a warning: the parts can still be read.
    let (manifest, parts): (Vec<&Fault>, Vec<&Fault>) =
        session.faults.iter().partition(|fault| fault.of_manifest());
    let warnings = manifest.iter().map(ToString::to_string).collect();
    let missing: Vec<MissingPart> = parts
        .iter()
        .map(|fault| MissingPart { file: fault.file.clone(), why: fault.kind.to_string() })
        .collect();
    Loaded { session, others, missing, warnings, place, remote, host: None }
}

/// A session of the agent.
fn of_agent(name: &SessionName, agent: &client::SocketArgs) -> Result<Loaded, Failure> {
    let (remote, reply) = agent_files::open(agent, name)?;
    of_reply(name, remote, reply)
}

/// A session of an agent that said this of it.
pub(super) fn of_reply(
    name: &SessionName,
    remote: RemoteSession,
    reply: ShowSessionReply,
) -> Result<Loaded, Failure> {
    let manifest = reply.manifest.map(session_messages::manifest_of).transpose();
    let manifest = manifest
        .map_err(|error| Failure::new(Exit::Internal, format_args!("the agent's answer: {error}")))?;
    let folder = PathBuf::from(reply.session.unwrap_or_default().path);
    let parts = reply.files.into_iter().map(|file| {
        let part = file.file.strip_suffix(PART_SUFFIX).unwrap_or(&file.file).to_owned();
        let host = manifest.as_ref().and_then(|manifest| host_of(manifest, &file.file));
        PartFile {
            host: host.unwrap_or(&part).to_owned(),
            name: part,
            path: folder.join(&file.file),
            size: file.size,
        }
    });
    let parts = parts.collect();
    let (of_manifest, of_parts): (Vec<_>, Vec<_>) =
        reply.faults.into_iter().partition(|fault| fault.of_manifest);
    let session = Session { name: name.to_string(), folder, manifest, parts, faults: Vec::new() };
    Ok(Loaded {
        session,
        others: 0,
        missing: of_parts.into_iter().map(|fault| MissingPart { file: fault.file, why: fault.why }).collect(),
        warnings: of_manifest.into_iter().map(|fault| format!("{} {}", fault.file, fault.why)).collect(),
        place: PathBuf::from(name.as_str()),
        remote: Some(remote),
        host: None,
    })
}

/// The host of a part, as the manifest has it.
fn host_of<'m>(manifest: &'m Manifest, file: &str) -> Option<&'m str> {
    let has = |host: &&session::HostEntry| host.parts.iter().any(|part| part.file == file);
    manifest.hosts.iter().find(has).map(|host| host.host.as_str())
}

impl Loaded {
    /// Whether a manifest is there that cannot be read.
    pub(super) fn has_damaged_manifest(&self) -> bool {
        self.session.manifest.is_none() && !self.warnings.is_empty()
    }

    /// Reads a part, which is called `label` in the result.
    pub(super) fn read(
        &self,
        part: &PartFile,
        label: &str,
        rules: Rules,
    ) -> Result<HostTrace, TraceFileError> {
        let certain = self.session.manifest.is_some();
        let file = self.open(part).map_err(|error| TraceFileError::open(&part.path, error))?;
        let damaged = |error| TraceFileError::read(&part.path, error);
        let mut reader = AnyReader::open_any(file).map_err(damaged)?;
        if let Some(why) = reader.index().no_trace() {
            return Err(TraceFileError::no_trace(&part.path, why));
        }
        analysis::read_any(&mut reader, &part.host, certain, label, rules).map_err(damaged)
    }

    pub(super) fn open(&self, part: &PartFile) -> io::Result<Box<dyn ReadSeek>> {
        Ok(match &self.remote {
            None => Box::new(open_regular(&part.path)?),
            Some(remote) => Box::new(remote.file(part)),
        })
    }
}

/// A part as an input, which may be opened more than once.
pub(super) fn input<'p>(part: &'p PartFile, remote: Option<&RemoteSession>) -> Box<dyn Input + 'p> {
    match remote {
        None => Box::new(FileInput::new(&part.path)),
        Some(remote) => Box::new(remote.input(part)),
    }
}

/// The newest session at the path, and the number of others.
fn newest(path: &Path) -> Result<(Session, usize), Failure> {
    let sessions = session::resolve(path).map_err(|error| no_session(&error))?;
    let others = sessions.len().saturating_sub(1);
    // Of several with the same start, the last by name.
    let zone = local_zone();
    let last = sessions.into_iter().max_by_key(|session| started(session, &zone));
    let none = || Failure::new(Exit::NotFound, format_args!("{}: no session", path.display()));
    Ok((last.ok_or_else(none)?, others))
}

/// The start of a session: from its manifest, else from a name that is a time, else the last modification of its parts.
fn started(session: &Session, zone: &TimeZone) -> Timestamp {
    let written = |part: &PartFile| fs::metadata(&part.path).and_then(|meta| meta.modified()).ok();
    let written = session.parts.iter().filter_map(written).max();
    let written = written.and_then(|written| Timestamp::try_from(written).ok());
    let manifest = session.manifest.as_ref().and_then(Manifest::created_at);
    let name = || {
        let stamp = DateTime::strptime("%Y_%m_%d_%H_%M_%S", session.name.get(..19)?).ok()?;
        time_of_name(stamp, written, zone)
    };
    manifest.or_else(name).or(written).unwrap_or(Timestamp::MIN)
}

/// The longest time from the start of a session of tpuscope until its parts are written.
const LONGEST_CAPTURE: SignedDuration = SignedDuration::from_hours(2);

/// The time that a name means. XProf names sessions by the local time and tpuscope by UTC. A session of tpuscope that was
/// killed before its manifest is known by its files: they were written soon after the name's time in UTC, and not soon
/// after its local time.
fn time_of_name(stamp: DateTime, written: Option<Timestamp>, zone: &TimeZone) -> Option<Timestamp> {
    let local = zone.to_timestamp(stamp).ok();
    let utc = TimeZone::UTC.to_timestamp(stamp).ok();
    let after = |start: Timestamp| {
        let age = written?.duration_since(start);
        // Names have whole seconds, and clocks of file systems differ a little.
        (age > SignedDuration::from_secs(-2) && age < LONGEST_CAPTURE).then_some(age)
    };
    match (utc.and_then(after), local.and_then(after)) {
        (Some(_), None) => utc,
        (Some(utc_age), Some(local_age)) if utc_age < local_age => utc,
        _ => local,
    }
}

/// The zone of the names that XProf makes, if it ran on this machine.
fn local_zone() -> TimeZone {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads times of another program")]
    TimeZone::system()
}

pub(super) fn nothing_to_show(path: &Path, missing: &[MissingPart], failure: Option<Failure>) -> Failure {
    match (failure, missing) {
        (Some(failure), [_]) => failure,
        (failure, [first, ..]) => {
            let exit = failure.map_or(Exit::BadInput, |failure| failure.exit);
            let others = match missing.len() {
                1 => String::new(),
                all => format!(", and {} more", all - 1),
            };
            if path.is_file() || path.ends_with(&first.file) {
                return remedies::unreadable_trace(exit, path, &first.why);
            }
            let what = format_args!("{} {}{others}", first.file, first.why);
            remedies::no_readable_part(exit, path, what)
        }
        (failure, []) => failure.unwrap_or_else(|| {
            Failure::new(Exit::NotFound, format_args!("{}: a session without parts", path.display()))
        }),
    }
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{Duration, SystemTime},
    };

    use super::*;

    #[test]
    fn a_name_is_read_as_utc_only_where_the_files_say_so() {
        let zone = |hours| jiff::tz::Offset::constant(hours).to_time_zone();
        let stamp = jiff::civil::date(2026, 3, 4).at(12, 0, 0, 0);
        let read = |written: Option<&str>, hours| {
            let written = written.map(|written| written.parse().unwrap());
            time_of_name(stamp, written, &zone(hours)).unwrap().to_string()
        };
        for hours in [-8, 1, 9] {
            // A session of tpuscope that was killed before its manifest.
            assert_eq!(read(Some("2026-03-04T12:00:09Z"), hours), "2026-03-04T12:00:00Z");
        }
        // One of XProf, written on this machine.
        assert_eq!(read(Some("2026-03-04T20:00:03Z"), -8), "2026-03-04T20:00:00Z");
        assert_eq!(read(Some("2026-03-04T11:00:03Z"), 1), "2026-03-04T11:00:00Z");
        assert_eq!(read(Some("2026-03-04T03:00:03Z"), 9), "2026-03-04T03:00:00Z");
        // The files of a copy say nothing.
        assert_eq!(read(Some("2026-07-01T00:00:00Z"), 9), "2026-03-04T03:00:00Z");
        assert_eq!(read(None, 9), "2026-03-04T03:00:00Z");
    }

    #[test]
    fn the_newest_session_is_the_one_that_began_last() {
        let logdir = tempfile::tempdir().unwrap();
        let session = |name: &str, seconds: u64, manifest: &str| {
            let folder = logdir.path().join("plugins/profile").join(name);
            fs::create_dir_all(&folder).unwrap();
            let file = File::create(folder.join("h.xplane.pb")).unwrap();
            file.set_len(1).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
            if !manifest.is_empty() {
                fs::write(folder.join("manifest.json"), manifest).unwrap();
            }
        };
        let newest = || newest(logdir.path()).map(|(session, others)| (session.name, others)).unwrap();
        session("warmup", 1_700_000_000, "");
        session("baseline", 1_700_000_000, "");
        assert_eq!(newest(), ("warmup".into(), 1), "the last by name of those of one time");
        // Copied long ago, by its name newer all the same.
        session("2026_03_04_05_06_07_12ab", 1_000_000_000, "");
        assert_eq!(newest(), ("2026_03_04_05_06_07_12ab".into(), 2));
        let manifest = r#"{"version": 1, "session": "a", "tool": {"name": "tpuscope", "version": "0"}, "hosts": [],
            "window": {"start": "2027-01-01T00:00:00Z", "stop": "2027-01-01T00:00:01Z"}, "missing": [], "warnings": []}"#;
        session("a", 1_000_000_000, manifest);
        assert_eq!(newest(), ("a".into(), 3));
    }
}
