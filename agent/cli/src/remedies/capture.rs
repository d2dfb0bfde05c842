//! Captures: exit codes by kind, remedies by reason.

use std::time::Duration;

use proto::tpuscope::v1::CaptureFailure;
use server::session_messages;
use sessions::{CaptureError, FailureKind, FailureReason, spec::LONG_WINDOW};
use store::{StateError, StoreError};
use xprof::{
    session::{SessionError, SessionName},
    wording::counted,
};

use crate::{exit::Exit, failure::Failure};

/// Where the session is written. It decides what a user can do about a disk or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptIn {
    /// A folder of the user.
    Folder,
    /// The agent's store.
    AgentStore,
    /// The store of another host's agent, in a capture over several hosts.
    OtherHost,
}

/// The exit code of a failed capture.
pub(super) fn exit_of(kind: FailureKind) -> Exit {
    match kind {
        FailureKind::Unreachable => Exit::Unreachable,
        FailureKind::NotListening => Exit::NotListening,
        FailureKind::NotAProfiler => Exit::NotAProfiler,
        FailureKind::Busy => Exit::Busy,
        FailureKind::EmptyTrace => Exit::EmptyTrace,
        FailureKind::Timeout => Exit::Timeout,
        FailureKind::TooLarge => Exit::TooLarge,
        FailureKind::Damaged => Exit::BadInput,
        FailureKind::NoSpace => Exit::NoSpace,
        FailureKind::NoTarget => Exit::NoTarget,
        FailureKind::NotFound => Exit::NotFound,
        FailureKind::Denied => Exit::Permission,
        FailureKind::Conflict => Exit::Conflict,
        FailureKind::Cancelled => Exit::Interrupted,
        FailureKind::Invalid => Exit::Usage,
        FailureKind::Internal => Exit::Internal,
    }
}

/// What to do about `reason`; empty if there is nothing to add.
pub(crate) fn capture(reason: FailureReason, kept_in: KeptIn) -> &'static str {
    use FailureReason as R;
    match reason {
        R::Unreachable => "check the host name, its network and its firewall",
        R::ConnectionLost => "check that the job is still running: its process or its host ended",
        R::NotListening => "call jax.profiler.start_server(PORT) in the job",
        R::NotAProfiler => "name the port of jax.profiler.start_server",
        R::ForeignSession => "wait until the other session ends, then try again",
        R::ForeignContinuous => {
            "stop the continuous profiling that another program started; tpuscope does not stop it"
        }
        R::InUse => "wait until it ends, then try again",
        R::Declined => "the log of the job may have more details",
        R::EmptyTrace => {
            "the tracers saw no activity: try a longer --duration or a higher --host-tracer-level"
        }
        R::NothingRecorded => {
            "`tpuscope recorder timeline` lists what there is, and `tpuscope recorder status` says what is recorded and why the rest is not"
        }
        R::StrategyRefused => {
            "leave --strategy out: periodic windows need nothing of that, or name other jobs with --job; docs/recorder.md has what drain and ring need"
        }
        R::NoSuchJob => {
            "`tpuscope recorder status` lists the jobs that run, and `tpuscope recorder timeline` those of which something is kept"
        }
        R::SnapshotRuns => {
            "wait until the other snapshot is done, then try again: an agent makes one at a time"
        }
        R::Timeout | R::LeaseExpired => "use a longer --timeout or a shorter --duration",
        R::ProbeTimeout => {
            "check that it is a profiler and that its process runs; otherwise raise capture.probe_timeout"
        }
        R::CallerTimeout => {
            "check that it is a profiler and that its process runs; otherwise use a longer --timeout"
        }
        R::LateStart => {
            "check that the network between the hosts is not overloaded and that no clock is being set, then try again"
        }
        R::CallerSilent if kept_in == KeptIn::OtherHost => {
            "this command did not run for longer than the 10 s for which it reserves a host (Ctrl-Z, a suspended machine): let it \
             run until the end"
        }
        R::CallerSilent => "keep the caller and its connection up until the capture ends",
        R::NoStart => "begin the capture sooner after the hosts are reserved",
        R::TooLarge => "use a shorter --duration or lower tracer levels, or raise capture.max_size",
        R::Damaged => {
            "nothing was kept; a profiler cannot send a trace of more than 2 GiB: try a shorter --duration"
        }
        R::Unsendable => {
            "a profiler cannot send a trace of more than 2 GiB: use a shorter --duration or lower tracer levels"
        }
        R::PartNotThere => "wait until the uploads of all hosts are done: `tpuscope uploads list` shows them",
        R::SessionExists | R::SessionBeingWritten => "choose another --session name",
        R::SameProfiler => "name each profiler once",
        R::NoTarget if kept_in == KeptIn::OtherHost => {
            "call jax.profiler.start_server(PORT) in the job there, started with JAX_PROFILER_PORT=PORT in its environment where PORT is not 9012, 9999 or 6009; settings of the agent there: workload.probe = \"listeners\" finds other ports, workload.discover = \"any\" finds jobs that hold no chip"
        }
        R::OwnersHidden if kept_in == KeptIn::OtherHost => {
            "docs/discovery.md (installed in /usr/share/doc/tpuscope) says what the agent there needs to see all processes; for a process that it sees, call jax.profiler.start_server(PORT) in the job, started with JAX_PROFILER_PORT=PORT in its environment where PORT is not 9012, 9999 or 6009"
        }
        R::NoTarget => {
            "call jax.profiler.start_server(PORT) in the job, started with JAX_PROFILER_PORT=PORT in its environment where PORT is not 9012, 9999 or 6009; or name a profiler with --target HOST:PORT; settings of the agent: workload.probe = \"listeners\" finds other ports, workload.discover = \"any\" finds jobs that hold no chip"
        }
        R::NotPermitted => {
            "run as the job's owner, as root, or as a member of the group that the setting api.admin_group names"
        }
        R::OwnersHidden => {
            "docs/discovery.md (installed in /usr/share/doc/tpuscope) says what the agent needs to see all processes; for a process that it sees, call jax.profiler.start_server(PORT) in the job, started with JAX_PROFILER_PORT=PORT in its environment where PORT is not 9012, 9999 or 6009; or name a profiler with --target HOST:PORT; settings of the agent: workload.probe = \"listeners\" finds other ports, workload.discover = \"any\" finds jobs that hold no chip"
        }
        R::TooFewTargets => "lower --min-processes, or name more targets",
        R::TooManyCaptures => "wait until a capture ends, or raise capture.max_captures",
        R::Stopping => "start the agent again",
        R::Limit | R::OptionDenied => {
            "the section [capture] of the settings has the limits: `tpuscope config show` prints those in force"
        }
        R::UnknownOption => {
            "docs/capture.md (installed in /usr/share/doc/tpuscope) lists the known options; the setting capture.advanced_options adds others"
        }
        R::UnknownDestination => {
            "the sections [[destination]] of the settings name them: `tpuscope config show` prints those in force"
        }
        R::OptionIsParameter => {
            "use --host-tracer-level, --device-tracer-level, --python-tracer-level, --duration or --start-at"
        }
        R::NoSpace
        | R::WriteDenied
        | R::WriteFailed
        | R::FolderDenied
        | R::FolderImpossible
        | R::FolderMissing
        | R::FolderFailed
        | R::OtherFileSystem
        | R::Link => disk(reason, kept_in),
        R::OldJaxlib | R::TooFewParts | R::Cancelled | R::Invalid | R::Internal => "",
    }
}

/// What to do about a disk or a folder that refuses.
fn disk(reason: FailureReason, kept_in: KeptIn) -> &'static str {
    use FailureReason as R;
    match (reason, kept_in) {
        (R::NoSpace, KeptIn::Folder) => "free disk space, or name another folder with --output",
        (R::NoSpace, KeptIn::OtherHost) => {
            "free disk space there: `tpuscope sessions rm`, or the limits store.max_size, store.max_age and store.min_free"
        }
        (R::NoSpace, KeptIn::AgentStore) => {
            "free disk space: `tpuscope sessions rm`, or the limits store.max_size, store.max_age and store.min_free"
        }
        (_, KeptIn::AgentStore | KeptIn::OtherHost) => {
            "the agent stores sessions in agent.state_dir: its user must own the folders there, and links are not followed"
        }
        (R::FolderDenied, KeptIn::Folder) => "name a folder that you can write to with --output",
        (R::FolderMissing, KeptIn::Folder) => {
            "no folder can be created there: name another folder with --output"
        }
        (R::FolderImpossible, KeptIn::Folder) => "name another folder with --output",
        (R::OtherFileSystem, KeptIn::Folder) => {
            "move it to the same file system, or name another folder with --output"
        }
        (R::Link, KeptIn::Folder) => "remove the link if it is yours, or name another folder with --output",
        (R::WriteDenied | R::WriteFailed, KeptIn::Folder) => "check the folder's permissions",
        (_, KeptIn::Folder) => "check the folder named with --output",
    }
}

/// What to do about a failed capture: its own remedy, or those of its causes, each once.
pub(crate) fn of_failure(failure: &CaptureFailure, kept_in: KeptIn) -> String {
    let causes = failure.causes.iter().map(String::as_str);
    let mut remedies: Vec<&str> = Vec::new();
    for reason in std::iter::once(failure.reason.as_str()).chain(causes) {
        let remedy = capture(FailureReason::named(reason), kept_in);
        if !remedy.is_empty() && !remedies.contains(&remedy) {
            remedies.push(remedy);
        }
    }
    remedies.join("; ")
}

/// What to know before a long window.
pub(crate) fn long_window(duration: Duration) -> Option<String> {
    let long = LONG_WINDOW.as_secs();
    (duration > LONG_WINDOW).then(|| {
        format!(
            "warning: a window over {long} s: captures of TPUs of that length are known to lose device events, and a \
             profiler cannot send a trace of more than 2 GiB; several short captures are safer"
        )
    })
}

/// A capture that kept nothing, as the failure of the command.
pub(crate) fn capture_failure(failure: &CaptureFailure, kept_in: KeptIn) -> Failure {
    let exit = exit_of(FailureKind::named(&failure.kind));
    Failure::new(exit, &failure.message).remedy(of_failure(failure, kept_in))
}

/// The agent's store cannot be opened, as the failure of the command.
pub(crate) fn store(error: StoreError) -> Failure {
    match &error {
        StoreError::State(StateError::Newer { .. }) => {
            return Failure::new(Exit::BadInput, &error)
                .remedy("install the newer version again, or set agent.state_dir to another directory");
        }
        StoreError::State(StateError::InUse { .. }) => {
            return Failure::new(Exit::Conflict, &error)
                .remedy("end the program that has the file open: `fuser` names it");
        }
        _ => {}
    }
    capture_failure(&session_messages::failure(&CaptureError::from(error)), KeptIn::AgentStore)
}

/// A folder of the user that cannot be written, as the failure of the command.
pub(crate) fn session_folder(error: SessionError) -> Failure {
    capture_failure(&session_messages::failure(&CaptureError::from(error)), KeptIn::Folder)
}

/// A session without some of its parts.
pub(crate) fn missing_parts(missing: usize) -> Failure {
    Failure::new(Exit::Partial, format_args!("the session lacks {}", counted(missing, "part")))
        .remedy("the session has the other parts; its manifest.json lists the missing ones and the reasons")
}

/// The user interrupted a capture of the agent, whose answer is not waited for.
pub(crate) fn interrupted_capture() -> Failure {
    Failure::new(Exit::Interrupted, "the capture was cancelled; the agent ends it and frees the profilers")
        .remedy("a session that was complete before is kept: `tpuscope sessions list` lists it")
}

/// The user interrupted a snapshot.
pub(crate) fn interrupted_snapshot() -> Failure {
    Failure::new(Exit::Interrupted, "the snapshot was cancelled; the agent keeps what was recorded")
        .remedy("a session that was complete before is kept: `tpuscope sessions list` lists it")
}

/// The user interrupted the copy of a captured session.
pub(crate) fn interrupted_copy(session: &SessionName) -> Failure {
    Failure::new(Exit::Interrupted, "interrupted while the session was copied out")
        .remedy(format_args!("the agent keeps it: `tpuscope sessions fetch {session}`"))
}

/// The user interrupted the wait for the upload of a captured session.
pub(crate) fn interrupted_upload(session: &SessionName) -> Failure {
    let what =
        "interrupted while the command waited for the upload; the session is kept, and the agent goes on";
    Failure::new(Exit::Interrupted, what).remedy(format_args!("`tpuscope uploads list {session}` shows it"))
}

/// A captured session could not be copied from the agent's store.
pub(crate) fn kept_by_the_agent(failure: Failure, session: &SessionName) -> Failure {
    failure.remedy(format_args!(
        "the agent keeps session {session}; copy it with `tpuscope sessions fetch {session} --output DIR`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(reason: FailureReason, causes: &[FailureReason]) -> CaptureFailure {
        CaptureFailure {
            kind: reason.kind().as_str().to_owned(),
            message: "m".to_owned(),
            reason: reason.as_str().to_owned(),
            target: String::new(),
            causes: causes.iter().map(|cause| cause.as_str().to_owned()).collect(),
        }
    }

    #[test]
    fn callers_of_the_agent_are_not_told_to_name_a_folder() {
        for reason in [FailureReason::NoSpace, FailureReason::Link, FailureReason::FolderFailed] {
            assert!(capture(reason, KeptIn::Folder).contains("folder"), "{reason:?}");
            let remedy = capture(reason, KeptIn::AgentStore);
            assert!(!remedy.is_empty() && !remedy.contains("--output"), "{reason:?}: {remedy}");
        }
    }

    #[test]
    fn of_another_host_nothing_is_said_that_only_one_host_can_do() {
        for reason in [FailureReason::NoTarget, FailureReason::OwnersHidden, FailureReason::NoSpace] {
            let remedy = capture(reason, KeptIn::OtherHost);
            assert!(!remedy.contains("--target") && remedy.contains("there"), "{reason:?}: {remedy}");
        }
        assert!(capture(FailureReason::CallerSilent, KeptIn::OtherHost).contains("this command did not run"));
    }

    #[test]
    fn where_no_profiler_is_seen_the_variable_with_its_port_is_named() {
        for reason in [FailureReason::NoTarget, FailureReason::OwnersHidden] {
            assert!(capture(reason, KeptIn::AgentStore).contains("JAX_PROFILER_PORT=PORT"), "{reason:?}");
        }
    }

    #[test]
    fn each_remedy_of_several_causes_is_said_once() {
        let (busy, closed) = (FailureReason::ForeignSession, FailureReason::NotListening);
        let failed =
            capture_failure(&failure(FailureReason::TooFewParts, &[busy, closed, busy]), KeptIn::Folder);
        let remedies = [busy, closed].map(|reason| capture(reason, KeptIn::Folder));
        assert_eq!((failed.exit, failed.remedy), (Exit::NoTarget, remedies.join("; ")));
    }
}
