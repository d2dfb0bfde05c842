//! The daemon as a process: logging, supervised tasks, readiness, the watchdog, signals, an orderly stop.
//!
//! The order of a start is: settings, log, [`store::lock`], listeners, tasks ([`task_supervisor`]), first sample, ready
//! ([`notify`]). A stop follows [`task_supervisor::Stage`]. This module must never know what a task does, and never feed
//! the watchdog while the sampler is stopped.

mod journal;
pub mod logging;
pub mod notify;
pub mod signals;
pub mod task_supervisor;
pub mod terminal;
