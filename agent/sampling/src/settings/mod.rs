//! The sections of the settings that say what is measured and how often.

pub mod libtpu;
pub mod sampler;
