//! Jobs over time: who started one, its attempts on this host, and how each ended.
//!
//! What runs now is the business of discovery (`model::registry`); this crate keeps what it was an attempt of. Must never
//! decide who may capture a process: rights come from processes, and what is registered is only what somebody said.

#![forbid(unsafe_code)]

pub mod attempt;
mod command_end;
pub mod configuration;
mod jobs;
pub mod ledger;
pub mod name;
pub mod observed;
pub mod record;
pub mod registry;
pub mod settings;
mod stored;

pub use jobs::{Jobs, JobsError};
