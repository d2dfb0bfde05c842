//! What a path leads to: the newest session there, its parts, and what their analysis says.

use std::path::Path;

use xprof::{
    analysis::{self, HostTrace, MissingPart, Report, Rules},
    input::open_regular,
    reader::AnyReader,
    session::{self, Fault, Part, Session},
};

use super::unresolved;
use crate::cli::exit::{Exit, Failure};

/// A session that a path led to.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) session: Session,
    /// How many other sessions the path leads to.
    pub(super) others: usize,
    /// The parts that are missing or cannot be read.
    pub(super) missing: Vec<MissingPart>,
    /// What else is not as it should be.
    pub(super) warnings: Vec<String>,
}

/// The newest session at `path`, which has at least one part.
pub(super) fn parts(path: &Path) -> Result<Loaded, Failure> {
    let (session, others) = newest(path)?;
    // A manifest of no use costs what it would have told, no part.
    let (manifest, parts): (Vec<&Fault>, Vec<&Fault>) =
        session.faults.iter().partition(|fault| fault.of_manifest());
    let warnings = manifest.iter().map(ToString::to_string).collect();
    let missing: Vec<MissingPart> = parts
        .iter()
        .map(|fault| MissingPart { file: fault.file.clone(), why: fault.kind.to_string() })
        .collect();
    if session.parts.is_empty() {
        return Err(nothing_to_show(path, &missing, None));
    }
    Ok(Loaded { session, others, missing, warnings })
}

impl Loaded {
    /// Reads every part, and brings them together. `top` bounds the operations of each host.
    pub(super) fn analysed(
        mut self,
        path: &Path,
        rules: Rules,
        top: Option<usize>,
    ) -> Result<Report, Failure> {
        let certain = self.session.manifest.is_some();
        let mut hosts = Vec::new();
        let mut first_failure = None;
        for part in &self.session.parts {
            match read(part, certain, rules) {
                Ok(trace) => hosts.push(trace),
                Err(failure) => {
                    let file = file_name(&part.path);
                    self.missing.push(MissingPart { file, why: reason(&failure, &part.path) });
                    first_failure.get_or_insert(failure);
                }
            }
        }
        if hosts.is_empty() {
            return Err(nothing_to_show(path, &self.missing, first_failure));
        }
        note_same_host(&mut hosts);
        let mut report = analysis::session(self.session.name, hosts, self.missing, rules, top);
        report.warnings = self.warnings;
        Ok(report)
    }
}

/// The session to show, and how many others the path leads to.
fn newest(path: &Path) -> Result<(Session, usize), Failure> {
    let mut sessions = session::resolve(path).map_err(|error| unresolved(&error))?;
    // By name: XProf's names, and ours, begin with the date.
    let Some(last) = sessions.pop() else {
        return Err(Failure::new(Exit::NotFound, format_args!("{}: no session", path.display())));
    };
    Ok((last, sessions.len()))
}

fn read(part: &Part, certain: bool, rules: Rules) -> Result<HostTrace, Failure> {
    let file = open_regular(&part.path).map_err(|error| super::unopened(&part.path, &error))?;
    let damaged = |error| super::unreadable(&part.path, &error);
    let mut reader = AnyReader::open_any(Box::new(file)).map_err(damaged)?;
    if let Some(why) = reader.index().no_trace() {
        return Err(super::no_trace(part.path.display(), why));
    }
    analysis::read_any(&mut reader, &part.host, certain, &file_name(&part.path), rules).map_err(damaged)
}

/// What a failure says beside the file's name, which the reader of a list has before it.
fn reason(failure: &Failure, path: &Path) -> String {
    let said = failure.what.strip_prefix(&path.display().to_string());
    said.map_or(failure.what.as_str(), |said| said.trim_start_matches([':', ' '])).to_owned()
}

/// Two parts of one host are two processes, or one file twice.
fn note_same_host(hosts: &mut [HostTrace]) {
    for at in 1..hosts.len() {
        let (before, rest) = hosts.split_at_mut(at);
        let Some(host) = rest.first_mut() else { continue };
        let Some(same) = before.iter().find(|other| other.host == host.host) else { continue };
        let planes =
            |host: &HostTrace| -> Vec<String> { host.cores.iter().map(|core| core.plane.clone()).collect() };
        let shared = planes(host).iter().any(|plane| planes(same).contains(plane));
        host.warnings.push(if shared {
            format!("{} is of the same host and has the same cores: the file may be a copy", same.file)
        } else {
            format!("{} is of the same host: another process", same.file)
        });
    }
}

fn nothing_to_show(path: &Path, missing: &[MissingPart], failure: Option<Failure>) -> Failure {
    match (failure, missing) {
        (Some(failure), [_]) => failure,
        (failure, [first, ..]) => {
            let exit = failure.map_or(Exit::BadInput, |failure| failure.exit);
            let others = match missing.len() {
                1 => String::new(),
                all => format!(", and {} more", all - 1),
            };
            if !path.is_dir() {
                let what = format_args!("{} {}", path.display(), first.why);
                return Failure::new(exit, what).remedy("copy or capture the file again");
            }
            let what =
                format!("{}: no part can be read: {} {}{others}", path.display(), first.file, first.why);
            Failure::new(exit, what).remedy("capture again, or name a part that is whole")
        }
        (failure, []) => failure.unwrap_or_else(|| {
            Failure::new(Exit::NotFound, format_args!("{}: a session without parts", path.display()))
        }),
    }
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
