//! Exports traces to formats that other tools open.
//!
//! [`trace_events`] writes Chrome's trace-event JSON, which Perfetto's UI and chrome://tracing open. It
//! streams: memory is the names of one plane and the index of each file, never its events. [`steps_csv`] and
//! [`operations_csv`] write what the analysis says.
//! Must never need the whole trace, and never write text from a trace unescaped.

mod csv;
mod json;
mod lanes;
mod names;
mod trace_events;

#[cfg(test)]
mod tests;

use std::io;

pub use csv::{operations_csv, steps_csv};
pub use trace_events::{ExportedHost, TraceEvents, trace_events};

use crate::{reader::NoTrace, wire};

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file cannot be opened or read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// Name of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file is no XSpace, or damaged.
    #[error("{file}: {source}")]
    Input {
        /// Name of the file.
        file: String,
        /// The damage and its offset.
        source: wire::Error,
    },
    /// A file without a trace.
    #[error("{file} {why}")]
    NoTrace {
        /// Name of the file.
        file: String,
        /// What it is.
        why: NoTrace,
    },
    /// The output cannot be written.
    #[error("cannot write the export: {0}")]
    Write(#[from] io::Error),
}
