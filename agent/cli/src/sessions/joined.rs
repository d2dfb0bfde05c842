//! Sessions that are read as one: the hosts of one window that landed in several folders, or in the stores of several agents.
//! Mostly it is one session alone.
//!
//! Parts are read one after the other, so memory is that of one part and of the figures. Must never read the trace of a
//! process twice, or bring sessions together that cannot be of one window.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt, fs,
    os::unix::fs::MetadataExt,
};

use jiff::Timestamp;
use xprof::{
    analysis::{self, HostClock, HostTrace, JobPart, MissingPart, Report, Rules},
    session::{ClockOffset, HostEntry, Manifest, PartEntry, PartFile, SessionContext},
};

use super::{
    load::{self, Loaded, file_name, nothing_to_show},
    location::Location,
    remote_files::RemoteSession,
    windows::{self, TracedWindow},
};
use crate::{client, failure::Failure, remedies};

/// How many sessions are named in the name of the whole.
const NAMED: usize = 3;

/// One session, or several that are read as one.
#[derive(Debug)]
pub(super) struct JoinedSessions {
    pub(super) sources: Vec<Loaded>,
    /// The hosts that were asked for a part and have none.
    absent: Vec<MissingPart>,
}

/// One of the sessions, as JSON.
#[derive(Debug, serde::Serialize)]
pub(super) struct SourceEntry {
    session: String,
    /// What was named: a folder, a URL, or the session's name.
    place: String,
    /// The host whose agent has it, as it was given.
    host: Option<String>,
}

impl fmt::Display for SourceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, place, host } = self;
        match host {
            Some(host) => write!(f, "{session} on {host}"),
            None if place == session => write!(f, "{session} of the agent"),
            None => write!(f, "{session} in {place}"),
        }
    }
}

/// A part, and what it is called.
#[derive(Debug, Clone)]
pub(super) struct SourcePart<'s> {
    source: usize,
    pub(super) file: &'s PartFile,
    pub(super) remote: Option<&'s RemoteSession>,
    /// Its file, with what tells its session from the others where several have a file of this name.
    pub(super) label: String,
}

/// What is known of a part that was read, beside its trace.
#[derive(Debug)]
struct PartOrigin {
    source: usize,
    file: String,
    job: Option<String>,
    /// The process, by the manifest, else by the trace.
    process: Option<i64>,
}

impl JoinedSessions {
    /// The sessions at these locations.
    pub(super) fn open(locations: &[Location], agent: &client::SocketArgs) -> Result<Self, Failure> {
        for (at, location) in locations.iter().enumerate() {
            if locations[..at].contains(location) {
                return Err(remedies::session_twice(location));
            }
        }
        let mut sources: Vec<Loaded> = Vec::with_capacity(locations.len());
        for location in locations {
            let loaded = load::parts(location, agent)?;
            if sources.iter().any(|other| share_files(other, &loaded)) {
                return Err(remedies::session_twice(location));
            }
            sources.push(loaded);
        }
        Ok(Self { sources, absent: Vec::new() })
    }

    /// The parts of these agents, beside the hosts that have none.
    pub(super) fn of_agents(sources: Vec<Loaded>, absent: Vec<MissingPart>) -> Self {
        Self { sources, absent }
    }

    /// Each session by itself.
    pub(super) fn one_by_one(self) -> Vec<Self> {
        let alone = |source| Self { sources: vec![source], absent: Vec::new() };
        self.sources.into_iter().map(alone).collect()
    }

    /// Whether the other one is a copy: it has the id and the parts of this one.
    pub(super) fn is_same_session(&self, other: &Self) -> bool {
        let facts = |sessions: &Self| {
            let ids = sessions.manifests().map(|manifest| manifest.id.clone()).collect::<Option<Vec<_>>>();
            let parts =
                sessions.manifests().flat_map(|manifest| &manifest.hosts).flat_map(|host| &host.parts);
            let sums: BTreeSet<String> = parts.map(|part| part.sha256.clone()).collect();
            ids.filter(|ids| !ids.is_empty()).map(|ids| (ids, sums))
        };
        facts(self).is_some_and(|own| Some(own) == facts(other))
    }

    /// What the whole is called.
    pub(super) fn name(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for source in &self.sources {
            if !names.contains(&source.session.name.as_str()) {
                names.push(&source.session.name);
            }
        }
        match names.len().checked_sub(NAMED) {
            Some(more) if more > 0 => format!("{} + {more} more", names[..NAMED].join(" + ")),
            _ => names.join(" + "),
        }
    }

    /// The sessions one by one; none where it is one alone.
    pub(super) fn entries(&self) -> Vec<SourceEntry> {
        if self.sources.len() < 2 {
            return Vec::new();
        }
        let entry = |source: &Loaded| SourceEntry {
            session: source.session.name.clone(),
            place: source.place.display().to_string(),
            host: source.host.as_ref().map(ToString::to_string),
        };
        self.sources.iter().map(entry).collect()
    }

    /// The sessions that lie beside the only one that was named, in the same logdir.
    pub(super) fn others(&self) -> usize {
        if let [only] = &self.sources[..] { only.others } else { 0 }
    }

    /// When the last of them was made.
    pub(super) fn created(&self) -> Option<Timestamp> {
        self.manifests().filter_map(Manifest::created_at).max()
    }

    /// What their manifests say of all parts.
    pub(super) fn context(&self) -> SessionContext {
        SessionContext::joined(self.manifests().map(SessionContext::of))
    }

    /// The clocks that were measured, by host.
    pub(super) fn clocks(&self) -> BTreeMap<String, ClockOffset> {
        let hosts = self.manifests().flat_map(|manifest| &manifest.hosts);
        hosts.filter_map(|host| Some((host.host.clone(), host.clock?))).collect()
    }

    /// All parts.
    pub(super) fn parts(&self) -> Vec<SourcePart<'_>> {
        let mut sessions: HashMap<String, usize> = HashMap::new();
        for part in self.sources.iter().flat_map(|source| &source.session.parts) {
            *sessions.entry(file_name(&part.path)).or_default() += 1;
        }
        let mut parts = Vec::new();
        for (source, loaded) in self.sources.iter().enumerate() {
            parts.extend(loaded.session.parts.iter().map(|part| {
                let file = file_name(&part.path);
                let is_shared = sessions.get(&file).is_some_and(|&count| count > 1);
                let label = if is_shared { format!("{}/{file}", self.source_label(source)) } else { file };
                SourcePart { source, file: part, remote: loaded.remote.as_ref(), label }
            }));
        }
        parts
    }

    /// Reads every part, and brings those of each job together. `top` bounds the rows of each host.
    pub(super) fn analysed(&self, rules: Rules, top: Option<usize>) -> Result<Report, Failure> {
        let mut missing = self.missing();
        let (origins, mut traces) = self.read(rules, &mut missing)?;
        if let Some((one, other)) = same_process(&origins, &traces) {
            let (file, other_file) = (&traces[one].file, &traces[other].file);
            let [place, other_place] = [one, other].map(|at| self.source_label(origins[at].source));
            return Err(remedies::process_twice(
                &traces[one].host,
                origins[one].process,
                &[(place.as_str(), file.as_str()), (other_place.as_str(), other_file.as_str())],
            ));
        }
        let apart = self.apart(&origins, &traces)?;
        note_same_host(&mut traces);
        let jobs = origins.iter().map(|origin| origin.job.clone());
        let parts = traces.into_iter().zip(jobs).map(|(trace, job)| JobPart { trace, job });
        let mut report = analysis::by_job(self.name(), parts.collect(), missing, rules, top);
        report.warnings.extend(apart);
        for (at, source) in self.sources.iter().enumerate() {
            report.warnings.extend(source.warnings.iter().map(|text| self.told_of(at, text)));
            if let Some(manifest) = &source.session.manifest {
                self.recall(at, manifest, &origins, &mut report);
            }
        }
        Ok(report)
    }

    fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.sources.iter().filter_map(|source| source.session.manifest.as_ref())
    }

    /// What tells a session from the others: the host that has it, its name, or else its place.
    fn source_label(&self, at: usize) -> String {
        let source = &self.sources[at];
        if let Some(host) = &source.host {
            return host.to_string();
        }
        let named = self.sources.iter().filter(|other| other.session.name == source.session.name).count();
        if named > 1 { source.place.display().to_string() } else { source.session.name.clone() }
    }

    /// A text about one of the sessions, which is named where there are several.
    fn told_of(&self, source: usize, text: &str) -> String {
        match self.sources.len() {
            1 => text.to_owned(),
            _ => format!("{}: {text}", self.source_label(source)),
        }
    }

    /// What the sessions lack. A whole host of which another session has a part is not missing.
    fn missing(&self) -> Vec<MissingPart> {
        let has = |source: &Loaded, host: &str| source.session.parts.iter().any(|part| part.host == host);
        let elsewhere = |at: usize, host: &str| {
            self.sources.iter().enumerate().any(|(other, source)| other != at && has(source, host))
        };
        let of_source = |(at, source): (usize, &Loaded)| {
            let missing = source.missing.iter().filter(|part| !elsewhere(at, &part.file));
            missing.cloned().collect::<Vec<_>>()
        };
        let missing = self.sources.iter().enumerate().flat_map(of_source);
        missing.chain(self.absent.iter().cloned()).collect()
    }

    fn read(
        &self,
        rules: Rules,
        missing: &mut Vec<MissingPart>,
    ) -> Result<(Vec<PartOrigin>, Vec<HostTrace>), Failure> {
        let (mut origins, mut traces, mut first_error) = (Vec::new(), Vec::new(), None);
        let mut silent = BTreeSet::new();
        for part in self.parts() {
            let source = &self.sources[part.source];
            if silent.contains(&part.source) {
                continue;
            }
            match source.read(part.file, &part.label, rules) {
                Ok(trace) => {
                    let (origin, trace) = self.with_manifest(part.source, part.file, trace);
                    origins.push(origin);
                    traces.push(trace);
                }
                Err(error) => match source.remote.as_ref().and_then(RemoteSession::failure) {
                    // A call that failed says nothing of the part, and the agents of other hosts still answer.
                    Some(failure) => {
                        let Some(host) = &source.host else { return Err(failure) };
                        missing.push(MissingPart { file: host.to_string(), why: failure.what });
                        silent.insert(part.source);
                    }
                    None => {
                        missing.push(MissingPart { file: part.label, why: error.fault.to_string() });
                        first_error.get_or_insert(error);
                    }
                },
            }
        }
        if traces.is_empty() {
            let place = self.sources.first().map(|source| source.place.as_path());
            let place = place.unwrap_or(std::path::Path::new(""));
            return Err(nothing_to_show(place, missing, first_error.map(Failure::from)));
        }
        Ok((origins, traces))
    }

    /// Adds to a trace what its manifest knows of it.
    fn with_manifest(&self, source: usize, file: &PartFile, mut trace: HostTrace) -> (PartOrigin, HostTrace) {
        let file = file_name(&file.path);
        let manifest = self.sources[source].session.manifest.as_ref();
        if manifest.is_some_and(|manifest| !asked_for_devices(manifest)) {
            trace.forget_losses_of_all_devices();
        }
        let entry = manifest.and_then(|manifest| entry_of(manifest, &file));
        let clock = entry.and_then(|(host, _)| host.clock);
        let coordinator = self.coordinator(source);
        trace.clock = clock.map(|offset| HostClock { offset, coordinator });
        let process = entry.and_then(|(_, part)| part.pid).map(i64::from).or(trace.process_id);
        let job = entry.and_then(|(_, part)| job_of(part));
        (PartOrigin { source, file, job, process }, trace)
    }

    /// Sessions of one id were coordinated by one program: the number of the first of them.
    fn coordinator(&self, source: usize) -> usize {
        let id = |at: usize| self.sources[at].session.manifest.as_ref()?.id.as_ref();
        (0..source).find(|&other| id(other).is_some() && id(other) == id(source)).unwrap_or(source)
    }

    /// Refuses sessions that are too far apart to be of one window; what to say where they are near and do not overlap.
    fn apart(&self, origins: &[PartOrigin], traces: &[HostTrace]) -> Result<Option<String>, Failure> {
        let of_source = |source: usize| {
            let traces = origins.iter().zip(traces).filter(move |(origin, _)| origin.source == source);
            TracedWindow::of(self.source_label(source), traces.map(|(_, trace)| trace))
        };
        let windows: Vec<TracedWindow> =
            (0..self.sources.len()).filter(|&at| self.coordinator(at) == at).filter_map(of_source).collect();
        let Some(gap) = windows::largest_gap(windows) else { return Ok(None) };
        if gap.is_too_long() { Err(remedies::sessions_apart(&gap)) } else { Ok(Some(gap.to_string())) }
    }

    /// Adds the warnings of a capture, except those that the analysis gives too.
    fn recall(&self, source: usize, manifest: &Manifest, origins: &[PartOrigin], report: &mut Report) {
        let captured = |text: &String| format!("at capture: {text}");
        let told = |text: &String| self.told_of(source, &captured(text));
        report.warnings.extend(manifest.warnings.iter().map(told));
        let labels: HashMap<String, String> = self
            .parts()
            .into_iter()
            .filter(|part| part.source == source)
            .map(|part| (file_name(&part.file.path), part.label))
            .collect();
        for host in &manifest.hosts {
            let warnings = host.warnings.iter().map(|text| format!("{}: {}", host.host, captured(text)));
            report.warnings.extend(warnings);
            for part in host.parts.iter().filter(|part| is_read(origins, source, &part.file)) {
                let Some(label) = labels.get(&part.file) else { continue };
                let Some(shown) = report.parts_mut().find(|shown| shown.file == *label) else { continue };
                let new = part.warnings.iter().filter(|&text| !shown.warnings.contains(text)).map(captured);
                let new: Vec<String> = new.collect();
                shown.warnings.extend(new);
            }
        }
    }
}

fn is_read(origins: &[PartOrigin], source: usize, file: &str) -> bool {
    origins.iter().any(|origin| origin.source == source && origin.file == file)
}

/// Whether two sessions on the disk have a file in common.
fn share_files(one: &Loaded, other: &Loaded) -> bool {
    let files = |loaded: &Loaded| -> BTreeSet<(u64, u64)> {
        let parts = loaded.session.parts.iter().filter(|_| loaded.remote.is_none());
        parts.filter_map(|part| fs::metadata(&part.path).ok()).map(|meta| (meta.dev(), meta.ino())).collect()
    };
    !files(one).is_disjoint(&files(other))
}

/// What a manifest says of a file.
fn entry_of<'m>(manifest: &'m Manifest, file: &str) -> Option<(&'m HostEntry, &'m PartEntry)> {
    let of_host = |host: &'m HostEntry| Some((host, host.parts.iter().find(|part| part.file == file)?));
    manifest.hosts.iter().find_map(of_host)
}

/// Whether the capture asked for the devices' work. A manifest that does not say how it was made leaves that open.
fn asked_for_devices(manifest: &Manifest) -> bool {
    manifest.tracer_levels.is_none_or(|levels| levels.ask_for_devices(&manifest.options))
}

/// The job of a part. A bare process is no job: a job may have many of them.
fn job_of(part: &PartEntry) -> Option<String> {
    let job = part.job.as_deref().filter(|job| job.kind != "process")?;
    Some(format!("{} {}", job.kind, job.id))
}

/// Two parts of different sessions that are of one process.
fn same_process(origins: &[PartOrigin], traces: &[HostTrace]) -> Option<(usize, usize)> {
    let is_same = |one: usize, other: usize| {
        let (origin, other_origin) = (&origins[one], &origins[other]);
        if origin.source == other_origin.source || traces[one].host != traces[other].host {
            return false;
        }
        match (origin.process, other_origin.process) {
            (Some(process), Some(other)) => process == other,
            // XProf names the files of all processes of a host alike: then only other cores tell another process.
            _ => origin.file == other_origin.file && !has_other_cores(&traces[one], &traces[other]),
        }
    };
    let mut pairs = (0..traces.len()).flat_map(|other| (0..other).map(move |one| (one, other)));
    pairs.find(|&(one, other)| is_same(one, other))
}

fn planes(trace: &HostTrace) -> BTreeSet<&str> {
    trace.cores.iter().map(|core| core.plane.as_str()).collect()
}

fn has_other_cores(one: &HostTrace, other: &HostTrace) -> bool {
    let (one, other) = (planes(one), planes(other));
    !one.is_empty() && !other.is_empty() && one.is_disjoint(&other)
}

/// Warns of two parts of one host: two processes, or a copied file.
fn note_same_host(hosts: &mut [HostTrace]) {
    for at in 1..hosts.len() {
        let (before, rest) = hosts.split_at_mut(at);
        let Some(host) = rest.first_mut() else { continue };
        let Some(same) = before.iter().find(|other| other.host == host.host) else { continue };
        let warning = if planes(host).is_disjoint(&planes(same)) {
            format!("{} is of the same host: another process", same.file)
        } else {
            format!("{} is of the same host and has the same cores: the file may be a copy", same.file)
        };
        host.warnings.push(warning);
    }
}
