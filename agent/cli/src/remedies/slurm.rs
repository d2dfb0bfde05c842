//! Faults of `tpuscope slurm`.

use std::{io, path::Path, time::Duration};

use cluster::hosts::SlurmError;
use nix::libc::ELOOP;

use crate::{
    exit::Exit,
    failure::Failure,
    slurm::{hook::Hook, report_file::ReportFileError, variables::VariableError},
};

/// A hook was left at its limit.
pub(crate) fn late_hook(hook: Hook, elapsed: Duration, limit: Duration) -> Failure {
    let what =
        format!("the {} gave up after {:.2} s: its limit is {limit:?}", hook.name(), elapsed.as_secs_f64());
    Failure::new(Exit::Timeout, what).remedy(
        "the job goes on without it; `systemctl status tpuscope` and `journalctl -u tpuscope` show why the agent does not answer",
    )
}

/// A variable of Slurm is missing or wrong.
pub(crate) fn hook_variable(error: VariableError) -> Failure {
    Failure::new(Exit::Usage, error)
        .remedy("let Slurm run the hook; by hand, set at least SLURM_JOB_ID and SLURM_JOB_UID")
}

/// A report that was asked for is not written.
pub(crate) fn report_file(error: ReportFileError) -> Failure {
    let (exit, remedy) = match &error {
        ReportFileError::Name { .. } => (
            Exit::Usage,
            "set TPUSCOPE_REPORT to a name below the job's folder, such as tpuscope-%j.txt (%j: the job, %N: the node)",
        ),
        ReportFileError::Root => (Exit::Permission, "`tpuscope slurm report JOB` prints it"),
        ReportFileError::Taken(_) => (Exit::Conflict, "remove it, or set TPUSCOPE_REPORT to another name"),
        ReportFileError::Folder { error, .. } | ReportFileError::Write { error, .. } => (
            exit_of(error),
            "name a file in a folder that exists and that this user can write to, without links",
        ),
    };
    Failure::new(exit, error).remedy(remedy)
}

fn exit_of(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Exit::Permission,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Exit::NoSpace,
        io::ErrorKind::NotADirectory => Exit::Conflict,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => Exit::BadInput,
        // A link where none is followed.
        _ if error.raw_os_error() == Some(ELOOP) => Exit::Conflict,
        _ => Exit::Internal,
    }
}

/// There is no configuration of Slurm.
pub(crate) fn no_slurm_configuration(error: &SlurmError) -> Failure {
    Failure::new(Exit::NotFound, format!("no configuration of Slurm was found; {error}"))
        .remedy("run it on a node of the cluster, or name the file with --conf")
}

/// A configuration of Slurm cannot be read.
pub(crate) fn unread_slurm_configuration(file: &Path, error: &io::Error) -> Failure {
    Failure::new(exit_of(error), format!("cannot read {}: {error}", file.display()))
        .remedy("name a slurm.conf that this user can read with --conf")
}
