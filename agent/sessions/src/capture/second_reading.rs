//! What only a whole trace tells of its losses: program runs and operations that a core lacks.
//!
//! The checker that sees a trace arrive counts, but cannot compare the runs of cores with each other or with the
//! host's launches: they come in any order, and by clocks that jump. So the file is read once more, as `sessions show`
//! reads it. That takes about 2 ms of CPU time and no memory for a MB (0.45 s and less than 3 MiB for 257 MB of a real trace),
//! less than the arrival did. Only traces with a TensorCore are read again.
//! Must never fail a capture: what cannot be read again is kept, with a warning.

use std::{fs::File, path::Path};

use xprof::{
    analysis::{self, Rules},
    check::TraceSummary,
    loss::Loss,
    reader::AnyReader,
};

use super::StagedPart;

/// The losses of a trace that has arrived, or why only those are known that its arrival showed.
pub(super) async fn losses(summary: &TraceSummary, part: &StagedPart) -> Result<Vec<Loss>, String> {
    if !summary.planes.iter().any(|plane| plane.is_tensor_core() && plane.events > 0) {
        return Ok(summary.losses());
    }
    let path = part.path();
    let read = tokio::task::spawn_blocking(move || read(&path)).await;
    read.unwrap_or_else(|_| Err("the reading ended unexpectedly".to_owned()))
}

fn read(path: &Path) -> Result<Vec<Loss>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut reader = AnyReader::open_any(Box::new(file)).map_err(|error| error.to_string())?;
    let trace = analysis::read_any(&mut reader, "", true, "", Rules::True);
    trace.map(|trace| trace.losses).map_err(|error| error.to_string())
}
