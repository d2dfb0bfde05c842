//! Faults of `stop-profilers`.

use std::{io, path::Path};

use crate::{exit::Exit, failure::Failure};

/// The records of the sessions cannot be read.
pub(crate) fn records_of_profilers(error: &io::Error, state_dir: &Path) -> Failure {
    let exit = match error.kind() {
        io::ErrorKind::PermissionDenied => Exit::Permission,
        _ => Exit::Internal,
    };
    let what = format!("cannot read the records of continuous profiling in {}: {error}", state_dir.display());
    Failure::new(exit, what).remedy("run as the user of the agent, or as root")
}

/// Sessions may still be open.
pub(crate) fn open_profilers(names: &[String]) -> Failure {
    let what = format!("continuous profiling may still run in {}", names.join(", "));
    Failure::new(Exit::Partial, what).remedy(
        "the next start of the agent stops it, as does the end of the process (the first number is its pid)",
    )
}
