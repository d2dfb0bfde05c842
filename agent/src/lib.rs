//! The tpuscope daemon and command line.
//!
//! Each module is a room; a room may use only the rooms below it (`tests/e2e/walls.rs` checks):
//! cli, api, export, session, store, sampler, source, workload, device, lifecycle, config, model.

#![forbid(unsafe_code)]

pub mod api;
pub mod cli;
pub mod config;
pub mod device;
pub mod export;
pub mod lifecycle;
pub mod model;
pub mod sampler;
pub mod session;
pub mod source;
pub mod store;
pub mod workload;
