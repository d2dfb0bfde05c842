//! Samples: the sources that yield them, the sampler that asks the sources, and the history.
//!
//! Must never let one source wait for another, or invent a value.

#![forbid(unsafe_code)]

pub mod own_metrics;
pub mod sampler;
pub mod settings;
pub mod sources;
