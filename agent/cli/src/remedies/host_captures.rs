//! Captures over several hosts: why a host is missing, and why nothing was kept.

use std::time::Duration;

use cluster::{dial::DialFault, hosts::HostAddress};
use sessions::{
    FailureReason,
    coordinator::{CoordinatorError, HostFault, LeftParts},
    fetch::FetchError,
};
use xprof::wording::counted;

use super::{
    capture::{KeptIn, capture, capture_failure, session_folder},
    connection::refused,
    hosts::not_reached,
};
use crate::{
    exit::Exit,
    failure::Failure,
    hosts::report::{each_once, named},
};

/// The most reasons that an error has.
const MOST_REASONS: usize = 4;

/// A host that is missing in a capture.
pub(crate) fn missing_host(fault: &HostFault) -> Failure {
    let with = |exit, remedy: &str| Failure::new(exit, fault).remedy(remedy);
    match fault {
        HostFault::Dial(error) => with(not_reached_exit(error.fault), not_reached(error.fault)),
        HostFault::Refused(status) => refused(status),
        HostFault::Capture(failure) => capture_failure(failure, KeptIn::OtherHost),
        HostFault::Stopped => with(Exit::NoAgent, "start the agent there, and capture again"),
        HostFault::Protocol { there, here } if there > here => with(Exit::NoAgent, "update tpuscope here"),
        HostFault::Protocol { .. } | HostFault::Incapable { .. } => {
            with(Exit::NoAgent, "update tpuscope there, and restart its agent")
        }
        HostFault::Late { .. } => {
            with(Exit::Timeout, "--host-timeout gives more time; the log of the agent there may say more")
        }
        HostFault::LateRecording => with(Exit::Timeout, "use a longer --timeout or a shorter --duration"),
        HostFault::LateSnapshot => with(Exit::Timeout, "ask for less of the past with --last or --job"),
        HostFault::Overall => with(Exit::Timeout, "use a longer --overall-timeout"),
        HostFault::Paused(_) => {
            with(Exit::Unreachable, capture(FailureReason::CallerSilent, KeptIn::OtherHost))
        }
        // The failure of the whole says what to do.
        HostFault::NotKept(_) => with(Exit::Partial, ""),
        HostFault::SameAgent(_) => with(Exit::Usage, "name each host once"),
        HostFault::SameName(_) => with(
            Exit::Conflict,
            "give the hosts different names, or leave out --to: copies get names of their own",
        ),
        HostFault::OtherDestination { .. } => {
            with(Exit::Conflict, "let the destination have one URL in the settings of all agents")
        }
        HostFault::Clock(_) => with(Exit::Internal, "run the command again"),
        HostFault::BadAnswer(_) => with(Exit::BadInput, "update tpuscope there, and restart its agent"),
        HostFault::DamagedPart(_) | HostFault::MissingPart(_) => {
            with(Exit::BadInput, "the file there is damaged: capture again")
        }
        HostFault::Copy(FetchError::Late(_)) => with(Exit::Timeout, ""),
        HostFault::Copy(_) => with(Exit::BadInput, ""),
        HostFault::Upload(_) => with(Exit::NotUploaded, "`tpuscope uploads list` there says more"),
        HostFault::UploadGone(_) => with(
            Exit::NotUploaded,
            "the session or its upload was removed there, or its agent was started again on a full disk, which notes no uploads: \
             `tpuscope uploads list` and `tpuscope sessions list` there show what is left",
        ),
        HostFault::MayKeep { fault, session } => {
            let failure = missing_host(fault);
            let kept = format!(
                "an agent that could record to the end keeps its part: `tpuscope sessions fetch {session} --output DIR` with the \
                 same hosts copies what the agents have"
            );
            Failure { remedy: both(&failure.remedy, &kept), ..failure }
        }
        HostFault::Kept { fault, session } => {
            let failure = missing_host(fault);
            let kept = format!(
                "its agent keeps its part: `tpuscope sessions fetch {session} --output DIR` with the same hosts copies what the \
                 agents have"
            );
            Failure { remedy: both(&failure.remedy, &kept), ..failure }
        }
    }
}

/// Two remedies; either may be empty.
fn both(one: &str, other: &str) -> String {
    [one, other].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The exit code where no host can be reached.
fn not_reached_exit(fault: DialFault) -> Exit {
    match fault {
        DialFault::NotStarted | DialFault::JobNotRunning => Exit::NotFound,
        DialFault::Port => Exit::Usage,
        DialFault::NoTpuscope
        | DialFault::OldTpuscope
        | DialFault::OtherVersion
        | DialFault::NoAgent
        | DialFault::Stopped => Exit::NoAgent,
        DialFault::NotExecutable
        | DialFault::ClosedSocket
        | DialFault::HostKey
        | DialFault::Denied
        | DialFault::ClusterDenied
        | DialFault::ForeignJob
        | DialFault::PeerValidity
        | DialFault::PeerAuthority
        | DialFault::PeerOfAuthority
        | DialFault::PeerName
        | DialFault::PeerId
        | DialFault::PeerRole
        | DialFault::OwnValidity
        | DialFault::OwnAuthority
        | DialFault::OwnRole
        | DialFault::TooManyFailures
        | DialFault::Handshake => Exit::Permission,
        DialFault::Late | DialFault::Silent => Exit::Timeout,
        DialFault::NoMagic | DialFault::Echo | DialFault::NotTls => Exit::BadInput,
        DialFault::Overloaded
        | DialFault::UnknownName
        | DialFault::UnknownContainer
        | DialFault::Unreachable
        | DialFault::ClusterUnreachable
        | DialFault::SlurmUnreachable
        | DialFault::NoConnection
        | DialFault::NotInJob
        | DialFault::Lost
        | DialFault::Other => Exit::Unreachable,
    }
}

/// A capture over several hosts that kept nothing.
pub(crate) fn hosts_capture(error: CoordinatorError, hosts: &[(HostAddress, HostFault)]) -> Failure {
    match error {
        CoordinatorError::TooFewHosts { remaining, needed, keeping, left } => {
            too_few_hosts(remaining, needed, hosts, &keeping, &left)
        }
        CoordinatorError::Unwritable(error) => session_folder(error),
        CoordinatorError::Unwritten { error, left } => {
            let failure = session_folder(error);
            Failure { remedy: both(&failure.remedy, &agents_keep(&left)), ..failure }
        }
        CoordinatorError::Manifest { ref fault, ref left } => {
            let remedy = both(&missing_host(fault).remedy, &agents_keep(left));
            Failure::new(Exit::NotUploaded, &error).remedy(remedy)
        }
        CoordinatorError::Cancelled { recorded: false, .. } => Failure::new(
            Exit::Interrupted,
            "the capture was cancelled; nothing was kept, and the agents free the profilers",
        ),
        CoordinatorError::Cancelled { recorded: true, left } => Failure::new(
            Exit::Interrupted,
            "the capture was cancelled after hosts had recorded; no whole session was made",
        )
        .remedy(agents_keep(&left)),
        CoordinatorError::Panicked(_) => Failure::internal(&error),
    }
}

/// A snapshot over several hosts that kept nothing.
pub(crate) fn hosts_snapshot(error: CoordinatorError, hosts: &[(HostAddress, HostFault)]) -> Failure {
    match error {
        CoordinatorError::Cancelled { recorded: false, left } => {
            let what = "the snapshot was cancelled before an agent had made its part; nothing was kept here, and the recorders \
                        keep what they have recorded";
            let session = left.session;
            Failure::new(Exit::Interrupted, what).remedy(format_args!(
                "an agent that was just done may have a part: `tpuscope sessions fetch {session}` with the same hosts copies it"
            ))
        }
        CoordinatorError::Cancelled { recorded: true, left } => Failure::new(
            Exit::Interrupted,
            "the snapshot was cancelled after hosts had made their parts; no whole session was made",
        )
        .remedy(agents_keep(&left)),
        error => hosts_capture(error, hosts),
    }
}

/// What becomes of what agents have recorded when the session does not become whole.
fn agents_keep(left: &LeftParts) -> String {
    let LeftParts { session, folder_there } = left;
    let kept = format!(
        "agents that had recorded keep session {session} in their stores: `tpuscope sessions fetch {session}` with the same hosts \
         copies what they have, and `tpuscope sessions rm {session}` on each of them removes it"
    );
    match folder_there {
        None => kept,
        Some(folder) => format!(
            "{kept} and ends its upload; what they upload lies in {folder} without a manifest, an unfinished session, until \
             you delete it there"
        ),
    }
}

/// The code is that of the commonest cause; of two, that of the host that was named first.
fn too_few_hosts(
    remaining: usize,
    needed: usize,
    hosts: &[(HostAddress, HostFault)],
    keeping: &[HostAddress],
    left: &LeftParts,
) -> Failure {
    let failed = hosts.iter().filter(|(_, fault)| !matches!(fault, HostFault::NotKept(_)));
    let missing: Vec<(&HostAddress, Failure)> =
        failed.map(|(host, fault)| (host, missing_host(fault))).collect();
    let count = |exit: Exit| missing.iter().filter(|(_, failure)| failure.exit == exit).count();
    let commonest = missing.iter().rev().max_by_key(|(_, failure)| count(failure.exit));
    let exit = commonest.map_or(Exit::Partial, |(_, failure)| failure.exit);
    let reasons = each_once(missing.iter().map(|(host, failure)| (host.to_string(), &failure.what)));
    let said: Vec<String> =
        reasons.iter().take(MOST_REASONS).map(|(why, hosts)| format!("{}: {why}", named(hosts))).collect();
    let more = match reasons.iter().skip(MOST_REASONS).map(|(_, hosts)| hosts.len()).sum() {
        0 => String::new(),
        more => format!("; and {}", counted(more, "more host")),
    };
    let mut remedies: Vec<String> = Vec::new();
    for (_, failure) in missing.iter().filter(|(_, failure)| failure.exit == exit) {
        if !failure.remedy.is_empty() && !remedies.contains(&failure.remedy) {
            remedies.push(failure.remedy.clone());
        }
    }
    let kept = match keeping {
        [] => "nothing was kept".to_owned(),
        [first, rest @ ..] => {
            remedies.push(agents_keep(left));
            let others = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            format!(
                "no whole session was made, and the agents of {first}{others} keep what they recorded, if they had begun"
            )
        }
    };
    let what = format!(
        "{remaining} of {} left, and {needed} must have a trace: {kept}: {}{more}",
        counted(hosts.len(), "host"),
        said.join("; ")
    );
    Failure::new(exit, what).remedy(remedies.join("; "))
}

/// A session without some of its hosts, or of their parts.
pub(crate) fn missing_hosts(hosts: usize, parts: usize) -> Failure {
    let lacks = match (hosts, parts) {
        (hosts, 0) => counted(hosts, "host"),
        (0, parts) => counted(parts, "part"),
        (hosts, parts) => format!("{} and {}", counted(hosts, "host"), counted(parts, "part")),
    };
    Failure::new(Exit::Partial, format_args!("the session lacks {lacks}"))
        .remedy("the session has all others; its manifest.json lists the missing ones and the reasons")
}

/// An option that is for one host.
pub(crate) fn option_of_one_host(option: &str, instead: &str) -> Failure {
    Failure::new(Exit::Usage, format_args!("{option} is not for several hosts")).remedy(instead)
}

/// A window that begins so far ahead, and ends after the time for the whole capture.
pub(crate) fn window_over_limit(ahead: Duration, window: Duration, overall: Duration) -> Failure {
    let what = if ahead < Duration::from_secs(1) {
        format!("--duration {window:?} is longer than --overall-timeout {overall:?}")
    } else {
        format!(
            "the window begins in {:.0} s and lasts {window:?} (--duration): it ends after --overall-timeout {overall:?}",
            ahead.as_secs_f64()
        )
    };
    Failure::new(Exit::Usage, what).remedy("use a longer --overall-timeout, or an earlier or shorter window")
}

/// More hosts needed than there are.
pub(crate) fn min_hosts_over_hosts(needed: usize, hosts: usize) -> Failure {
    Failure::new(
        Exit::Usage,
        format_args!("--min-hosts {needed} is more than the {} that are named", counted(hosts, "host")),
    )
    .remedy("lower --min-hosts, or name more hosts")
}

#[cfg(test)]
mod tests {
    use cluster::dial::DialError;
    use sessions::coordinator::HostStage;

    use super::*;

    fn dial(fault: DialFault) -> HostFault {
        HostFault::Dial(DialError { fault, reason: "ssh: x".into() })
    }

    #[test]
    fn the_commonest_cause_decides() {
        let host = |name: &str| name.parse::<HostAddress>().unwrap();
        let late = || HostFault::LateRecording;
        let hosts = [
            (host("a"), late()),
            (host("b"), dial(DialFault::NoAgent)),
            (host("c"), HostFault::NotKept(HostStage::Recorded)),
            (host("d"), dial(DialFault::OldTpuscope)),
        ];
        let left = LeftParts { session: "s".parse().unwrap(), folder_there: None };
        let failed = too_few_hosts(1, 2, &hosts, &[], &left);
        assert_eq!(failed.exit, Exit::NoAgent);
        let wanted = "1 of 4 hosts left, and 2 must have a trace: nothing was kept: \
                      a: it did not end its recording in time; b, d: ssh: x";
        assert_eq!(failed.what, wanted);
        assert!(failed.remedy.contains("update tpuscope there") && !failed.remedy.contains("--timeout"));
        // The first of two.
        let failed = too_few_hosts(0, 1, &hosts[..2], &[host("a"), host("c")], &left);
        assert_eq!(failed.exit, Exit::Timeout);
        assert!(
            failed.what.contains("the agents of a and 1 more keep what they recorded"),
            "{}",
            failed.what
        );
        assert!(failed.remedy.contains("sessions rm s"), "{}", failed.remedy);
        let many: Vec<_> = (0..9).map(|number| (host(&format!("h{number}")), late())).collect();
        let failed = too_few_hosts(0, 1, &many, &[], &left);
        assert!(failed.what.ends_with(": h[0-8]: it did not end its recording in time"), "{}", failed.what);
        let each = |number: usize| {
            let error = DialError { fault: DialFault::Lost, reason: format!("x{number}") };
            (host(&format!("h{number}")), HostFault::Dial(error))
        };
        let many: Vec<_> = (0..9).map(each).collect();
        let failed = too_few_hosts(0, 1, &many, &[], &left);
        assert!(failed.what.ends_with("h3: x3; and 5 more hosts"), "{}", failed.what);
    }

    #[test]
    fn what_lies_at_a_destination_is_said() {
        let folder_there = Some("gs://b/plugins/profile/s".to_owned());
        let left = LeftParts { session: "s".parse().unwrap(), folder_there };
        let cancelled = hosts_capture(CoordinatorError::Cancelled { recorded: true, left }, &[]);
        assert_eq!(cancelled.exit, Exit::Interrupted);
        for says in ["lies in gs://b/plugins/profile/s without a manifest", "`tpuscope sessions rm s`"] {
            assert!(cancelled.remedy.contains(says), "{}", cancelled.remedy);
        }
    }

    #[test]
    fn a_cancelled_snapshot_speaks_of_all_agents_and_names_its_session() {
        let left = LeftParts { session: "s".parse().unwrap(), folder_there: None };
        let cancelled = hosts_snapshot(CoordinatorError::Cancelled { recorded: false, left }, &[]);
        assert_eq!(cancelled.exit, Exit::Interrupted);
        assert!(!cancelled.what.contains("the agent "), "{}", cancelled.what);
        assert!(cancelled.remedy.contains("`tpuscope sessions fetch s`"), "{}", cancelled.remedy);
    }

    #[test]
    fn what_is_missing_is_counted() {
        let text = |hosts, parts| missing_hosts(hosts, parts).what;
        assert_eq!(text(1, 0), "the session lacks 1 host");
        assert_eq!(text(0, 2), "the session lacks 2 parts");
        assert_eq!(text(2, 1), "the session lacks 2 hosts and 1 part");
    }
}
