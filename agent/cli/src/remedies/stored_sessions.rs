//! Sessions of the agent that a command names.

use std::path::Path;

use model::suggestion::nearest_names;
use xprof::session::{NameError, SessionName};

use crate::{exit::Exit, failure::Failure};

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

/// A session with other than one part where segments of one process are merged.
pub(crate) fn merged_session(name: &str, parts: &[&str]) -> Failure {
    let what = format_args!(
        "session {name} has {} parts: {}; segments of one process are merged",
        parts.len(),
        parts.join(", ")
    );
    Failure::new(Exit::Usage, what).remedy(format_args!(
        "copy the session with `tpuscope sessions fetch {name}`, and give its .xplane.pb files of one process"
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
