//! Sessions of the agent that a command names.

use std::{fmt, io, path::Path};

use model::suggestion::nearest_names;
use store::destinations::BucketUrl;
use xprof::session::{Fault, NameError, SessionName};

use crate::{CommandResult, exit::Exit, failure::Failure};

/// The number of names that are suggested.
const SUGGESTED: usize = 3;

/// What to write for a file or a folder that is called like a session. Empty if there is none.
fn path_hint(name: &SessionName) -> String {
    match Path::new(name.as_str()).exists() {
        true => format!("for the file or folder {name} in this folder write `./{name}`"),
        false => String::new(),
    }
}

/// The agent has no session of this name that the caller may read. `names` are those that it has.
pub(crate) fn no_stored_session(name: &SessionName, names: &[String]) -> Failure {
    let similar = nearest_names(name.as_str(), names.iter().map(String::as_str), SUGGESTED);
    let suggestion = match similar.as_slice() {
        [] if names.is_empty() => "it has no session that you may read".to_owned(),
        [] => "`tpuscope sessions list` lists them".to_owned(),
        similar => format!("did you mean {}? `tpuscope sessions list` lists all", similar.join(", ")),
    };
    Failure::new(Exit::NotFound, format_args!("the agent has no session {name}"))
        .remedy(joined(&suggestion, &path_hint(name)))
}

/// The agent is of 0.1, and cannot read parts of a session for others.
pub(crate) fn no_files_of_older_agent(name: &SessionName) -> Failure {
    Failure::new(Exit::NoAgent, format_args!("the agent cannot show session {name}: it is older than this command"))
        .remedy(format!(
            "`tpuscope sessions fetch {name}` copies it, or restart the agent with the same version: `systemctl restart tpuscope`"
        ))
}

/// The agent that has the session cannot be asked.
pub(crate) fn no_store(failure: Failure, name: &SessionName) -> Failure {
    let remedy = joined(&failure.remedy, &path_hint(name));
    Failure { what: format!("session {name}: {}", failure.what), ..failure }.remedy(remedy)
}

/// A session or a part whose name cannot be that of a copy.
pub(crate) fn not_a_session_name(name: &str, error: &NameError) -> Failure {
    Failure::new(Exit::Usage, format_args!("the name {name} cannot be kept: {error}"))
        .remedy("copy the files with cp or `gcloud storage cp`")
}

/// Only sessions of the agent are changed or removed.
pub(crate) fn changed_path(path: &dyn fmt::Display, command: &str) -> Failure {
    let what = format_args!(
        "{path} is a path or a URL: `sessions {command}` takes names of sessions of the agent only"
    );
    Failure::new(Exit::Usage, what).remedy(
        "name a session that `tpuscope sessions list` lists; nothing in a folder or a bucket is removed",
    )
}

/// Sessions are listed, not one of them.
pub(crate) fn listed_name(name: &SessionName) -> Failure {
    let what = format_args!("{name} is the name of a session, and `sessions list` takes a path or a URL");
    Failure::new(Exit::Usage, what).remedy(format_args!(
        "`tpuscope sessions show {name}` shows it; for a folder of this name write `./{name}`"
    ))
}

/// What is taken in lies in a folder.
pub(crate) fn imported_name(name: &SessionName) -> Failure {
    let what = format_args!("{name} is the name of a session, and `sessions import` takes a path");
    Failure::new(Exit::Usage, what).remedy(format_args!("for a folder of this name write `./{name}`"))
}

/// What is taken in is checked against its manifest before.
pub(crate) fn imported_url(url: &BucketUrl) -> Failure {
    Failure::new(Exit::Usage, format_args!("{url} is a URL, and `sessions import` takes a path"))
        .remedy(format_args!("copy it first: `tpuscope sessions fetch {url} -o DIR`"))
}

/// The name of the folder cannot be that of a session.
pub(crate) fn unfit_session_name(path: &Path, error: &NameError) -> Failure {
    Failure::new(Exit::Usage, format_args!("{} gives the session no name: {error}", path.display()))
        .remedy("name the session with --name")
}

/// One session is taken in at a time.
pub(crate) fn several_sessions(path: &Path, count: usize) -> Failure {
    Failure::new(Exit::Usage, format_args!("{} has {count} sessions", path.display()))
        .remedy("name the folder of one of them, below plugins/profile")
}

/// A session whose files are not as its manifest says.
pub(crate) fn faulty_session(folder: &Path, fault: &Fault) -> Failure {
    Failure::new(Exit::BadInput, format_args!("{}: {fault}", folder.display()))
        .remedy("copy the session again from where it was recorded")
}

/// A file of a session that cannot be read.
pub(crate) fn unreadable_part(path: &Path, error: &io::Error) -> Failure {
    let exit = match error.kind() {
        io::ErrorKind::PermissionDenied => Exit::Permission,
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::BadInput,
    };
    Failure::new(exit, format_args!("cannot read {}: {error}", path.display()))
}

/// The agent does not take the session in.
pub(crate) fn import(failure: Failure, path: &Path) -> Failure {
    let remedy = match failure.exit {
        Exit::Conflict => "choose another name with --name, or wait until the other import ends".to_owned(),
        Exit::BadInput | Exit::EmptyTrace => {
            format!("copy {} again from where it was recorded; nothing was stored", path.display())
        }
        Exit::TooLarge => "the setting capture.max_size limits each file".to_owned(),
        Exit::NoSpace => "remove sessions with `tpuscope sessions rm`, or raise store.max_size".to_owned(),
        _ => return failure,
    };
    failure.remedy(remedy)
}

/// The end of a command that went on after failures: the first one, with the messages of all.
pub(crate) fn each(failures: Vec<Failure>) -> CommandResult {
    let what: Vec<_> = failures.iter().map(|failure| failure.what.clone()).collect();
    match failures.into_iter().next() {
        None => Ok(Exit::Ok),
        Some(first) => Err(Failure { what: what.join("; "), ..first }),
    }
}

/// A session with other than one part where segments of one process are merged. `source`: what `fetch` takes for it, a
/// name or a URL.
pub(crate) fn merged_session(name: &str, source: &str, parts: &[&str]) -> Failure {
    let what = format_args!(
        "session {name} has {} parts: {}; segments of one process are merged",
        parts.len(),
        parts.join(", ")
    );
    Failure::new(Exit::Usage, what).remedy(format_args!(
        "copy the session with `tpuscope sessions fetch {source}`, and give its .xplane.pb files of one process"
    ))
}

fn joined(first: &str, second: &str) -> String {
    let texts: Vec<&str> = [first, second].into_iter().filter(|text| !text.is_empty()).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_in_a_bucket_is_copied_from_there() {
        let failure = merged_session("s", "gs://b/s", &["a", "b"]);
        assert!(failure.what.starts_with("session s has 2 parts: a, b;"), "{failure}");
        assert!(failure.remedy.contains("`tpuscope sessions fetch gs://b/s`"), "{failure}");
    }

    #[test]
    fn a_session_that_is_not_there_has_neighbours() {
        let names = ["2026_03_04_05_06_07", "2026_03_04_05_07_00", "baseline"].map(str::to_owned);
        let failure = no_stored_session(&"2026_03_04_05_06_08".parse().unwrap(), &names);
        assert_eq!(
            (failure.exit, failure.what.as_str()),
            (Exit::NotFound, "the agent has no session 2026_03_04_05_06_08")
        );
        assert_eq!(
            failure.remedy,
            "did you mean 2026_03_04_05_06_07, 2026_03_04_05_07_00? `tpuscope sessions list` lists all"
        );
        let remedy = |names: &[String]| no_stored_session(&"zzz".parse().unwrap(), names).remedy;
        assert_eq!(remedy(&names), "`tpuscope sessions list` lists them");
        assert_eq!(remedy(&[]), "it has no session that you may read");
    }
}
