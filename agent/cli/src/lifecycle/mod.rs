//! The life of the daemon: one instance a state directory, logging, supervised tasks, readiness, the watchdog,
//! and stopping in order.
//!
//! The order of a start is: settings, log, [`store::lock`], listeners, tasks ([`supervise`]), first sample, ready
//! ([`notify`]). Stopping goes by [`supervise::Stage`]. Must never know what a task does, and never feed the
//! watchdog for a sampler that stands still.

pub mod logging;
pub mod notify;
pub mod signals;
pub mod supervise;
pub mod terminal;
