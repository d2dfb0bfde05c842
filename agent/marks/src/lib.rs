//! Marks: what a program says of itself, such as the start of a step.
//!
//! A packet is decoded here, its marks are checked and queued, a task stores them, the exact ledger answers where the
//! time of a marked job went, and the metrics page shows that and its steps. Must never let one user's marks count for another user's job, keep more than its bounds, or
//! acknowledge a mark that is not on the disk.

#![forbid(unsafe_code)]

pub mod attribution;
pub mod inbox;
pub mod ledger_series;
pub mod ledgers;
pub mod mark_line;
pub mod own_metrics;
pub mod packet;
pub mod quota;
pub mod settings;
pub mod step_series;
