//! Several sessions that are read as one, or compared.

use std::fmt;

use cluster::hosts::HostAddress;
use xprof::{comparison::NotComparable, session::SessionName};

use crate::{exit::Exit, failure::Failure, hosts::NoHostAnswer};

/// How many hosts are named with their reasons.
const MOST_HOSTS: usize = 4;

/// What to do with sessions that are not of one window.
const COMPARE: &str = "`tpuscope sessions diff A B` compares two sessions";

/// A session that is named twice.
pub(crate) fn session_twice(location: &dyn fmt::Display) -> Failure {
    Failure::new(Exit::Usage, format_args!("{location} is given twice")).remedy("name each session once")
}

/// The trace of a process is in two of the sessions. `parts`: the session and the file of each.
pub(crate) fn process_twice(host: &str, process: Option<i64>, parts: &[(&str, &str); 2]) -> Failure {
    let [(session, file), (other_session, other_file)] = parts;
    let process = process.map(|process| format!(", process {process}")).unwrap_or_default();
    let what = format_args!(
        "{session} ({file}) and {other_session} ({other_file}) are of the same process: host {host}{process}"
    );
    Failure::new(Exit::BadInput, what)
        .remedy(format_args!("name sessions of different hosts or processes; {COMPARE}"))
}

/// The sessions were recorded at different times.
pub(crate) fn sessions_apart(gap: &dyn fmt::Display) -> Failure {
    Failure::new(Exit::BadInput, gap)
        .remedy(format_args!("only sessions of one window are read as one; {COMPARE}"))
}

/// A session is compared with itself.
pub(crate) fn same_session(one: &dyn fmt::Display, other: &dyn fmt::Display) -> Failure {
    Failure::new(Exit::Usage, format_args!("{one} and {other} are the same session"))
        .remedy("name two sessions; `tpuscope sessions list` lists those of the agent")
}

/// A session whose parts are of several jobs.
pub(crate) fn several_jobs(location: &dyn fmt::Display, jobs: usize) -> Failure {
    Failure::new(
        Exit::BadInput,
        format_args!("{location} holds parts of {jobs} jobs, which are not one thing to compare"),
    )
    .remedy(
        "name the .xplane.pb file of one of them; `tpuscope sessions show` says which part is of which job",
    )
}

/// No figure of the two sessions is the same thing.
pub(crate) fn not_comparable(error: &NotComparable) -> Failure {
    let remedy = match error {
        NotComparable::HostAndDevices { .. } => {
            "capture both with the same --device-tracer-level; `tpuscope sessions show` shows each by itself"
        }
        NotComparable::Empty(_) => "capture again while the workload runs",
    };
    Failure::new(Exit::BadInput, error).remedy(remedy)
}

/// Something else than a name of a session beside `--hosts`.
pub(crate) fn no_name_for_hosts() -> Failure {
    Failure::new(Exit::Usage, "agents of other hosts are asked for one session, by its name")
        .remedy("name the session; `tpuscope sessions list` with the same hosts lists what each has")
}

/// No host has a part of the session.
pub(crate) fn no_host_has(
    exit: Exit,
    name: &SessionName,
    hosts: &[(&HostAddress, &NoHostAnswer)],
) -> Failure {
    let mut reasons: Vec<String> =
        hosts.iter().take(MOST_HOSTS).map(|(host, why)| format!("{host}: {}", why.reason)).collect();
    if let Some(more) = hosts.len().checked_sub(MOST_HOSTS).filter(|&more| more > 0) {
        reasons.push(format!("and {more} more"));
    }
    // What keeps the answer away comes before a name that may be right.
    let all_have_none = exit == Exit::NotFound;
    let remedies = hosts.iter().filter(|(_, why)| all_have_none || why.kind != "no_session");
    let remedy = remedies.map(|(_, why)| why.remedy.as_str()).find(|remedy| !remedy.is_empty());
    let has = if all_have_none { "no host has" } else { "no host gave" };
    let what = format!("{has} a part of session {name}: {}", reasons.join("; "));
    Failure::new(exit, what).remedy(remedy.unwrap_or_default())
}
