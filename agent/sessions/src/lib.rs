//! Sessions on demand, and of the past: who is profiled, when, and what becomes of the answers.
//!
//! A capture is one window for all its targets: every target is asked first whether it is a profiler, all get
//! the same start, parts become visible only when all targets are done, and the manifest comes last.
//! Must never end a session that is not ours, show a part that is cut, or let a dead target pass as success.

#![forbid(unsafe_code)]

pub mod capture;
pub mod capture_runner;
pub mod continuous;
pub mod coordinator;
mod error;
pub mod fetch;
pub mod host_labels;
pub mod joined_manifest;
pub mod manifest_messages;
mod old_jaxlib;
pub mod own_metrics;
mod port_users;
pub mod profiler;
pub mod profiler_options;
pub mod recorder;
pub mod reservation;
pub mod session_folder;
pub mod settings;
pub mod spec;
pub mod step_prediction;
mod store_session;
pub mod target;
pub mod trace_reading;
mod trace_remarks;

pub use error::{CaptureError, FailureKind, FailureReason, ProfilerCall};
