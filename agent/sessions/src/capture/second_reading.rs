//! What only a whole trace tells: program runs and operations that a core lacks, and its steps.
//!
//! The file is read once more when it has arrived. Only traces with a TensorCore are, and those of captures that wait for a step.
//! Must never fail a capture: what cannot be read again is kept, with a warning.

use std::{fs::File, sync::Arc};

use model::step_times::TraceSteps;
use xprof::{check::TraceSummary, loss::Loss};

use super::StagedPart;
use crate::trace_reading::TraceReader;

/// What a part tells.
#[derive(Debug)]
pub(super) struct PartReading {
    /// Its losses, or why only those are known that its arrival showed.
    pub(super) losses: Result<Vec<Loss>, String>,
    /// Its steps, if it was read and shows any.
    pub(super) steps: Option<TraceSteps>,
    /// Whether it was read again.
    pub(super) is_read: bool,
}

/// Reads a trace that has arrived, if it has a TensorCore or its steps are `wanted`.
pub(super) async fn read(
    reader: &Arc<TraceReader>,
    summary: &TraceSummary,
    part: &StagedPart,
    wanted: bool,
) -> PartReading {
    let has_core = summary.planes.iter().any(|plane| plane.is_tensor_core() && plane.events > 0);
    let at_arrival = || PartReading { losses: Ok(summary.losses()), steps: None, is_read: false };
    if !has_core && !wanted {
        return at_arrival();
    }
    let (path, reader) = (part.path(), Arc::clone(reader));
    let read = tokio::task::spawn_blocking(move || {
        reader.read(File::open(path).map_err(|error| error.to_string())?)
    });
    match read.await.unwrap_or_else(|_| Err("the reading ended unexpectedly".to_owned())) {
        Ok(reading) => PartReading { losses: Ok(reading.losses), steps: reading.steps, is_read: true },
        // What could only be compared in a trace with a core is nothing that this one lacks.
        Err(_) if !has_core => at_arrival(),
        Err(why) => PartReading { losses: Err(why), steps: None, is_read: false },
    }
}
