//! The sections of the settings that say what to look for on this host.

pub mod device;
pub mod paths;
pub mod workload;
