//! `tpuscope libtpu`.

use std::{io, path::Path};

use sampling::sources::libtpu::{child_process::ChildFailure, trust::TrustError};

use crate::{exit::Exit, failure::Failure};

/// The library may not be loaded.
pub(crate) fn untrusted_library(path: &Path, error: &TrustError) -> Failure {
    let exit = match error {
        TrustError::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound => Exit::NotFound,
        TrustError::NotAFile(_) => Exit::NotFound,
        _ => Exit::Permission,
    };
    let remedy = match exit {
        Exit::NotFound => "name a libtpu.so, or a folder that contains libtpu/libtpu.so",
        _ => {
            "only its owner can run a library: probe it as that user or as root, or probe a copy of your own"
        }
    };
    Failure::new(exit, format!("{} is not loaded: {error}", path.display())).remedy(remedy)
}

/// The probe of a library failed.
pub(crate) fn probe(path: &Path, failure: &ChildFailure) -> Failure {
    let (exit, remedy) = match failure {
        ChildFailure::Start(_) => (Exit::Internal, ""),
        ChildFailure::Late(_) => {
            (Exit::Timeout, "try a longer --timeout; a libtpu that hangs here hangs in a workload too")
        }
        _ => (
            Exit::BadInput,
            "only the child process was affected; check that the file is a complete libtpu for this machine",
        ),
    };
    Failure::new(exit, format!("{}: {failure}", path.display())).remedy(remedy)
}

/// The probe of a library failed after its result was printed in part.
pub(crate) fn partial_probe(path: &Path, failure: &ChildFailure) -> Failure {
    probe(path, failure).remedy("the output above was read before the failure")
}

/// The library is not a libtpu.
pub(crate) fn not_a_libtpu(path: &Path) -> Failure {
    Failure::new(Exit::BadInput, format!("{} is not a libtpu", path.display()))
        .remedy("it exports neither GetPjrtApi nor GetLibtpuSdkApi")
}
