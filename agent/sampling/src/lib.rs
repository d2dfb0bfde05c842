//! Samples: the sources that yield them, the sampler that reads the sources, and the history.
//!
//! Must never let one source wait for another, or report a value that was not measured.

#![forbid(unsafe_code)]

pub mod own_metrics;
pub mod sampler;
pub mod settings;
pub mod sources;
