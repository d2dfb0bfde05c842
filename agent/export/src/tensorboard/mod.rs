//! Goodput for TensorBoard: event files, once for a command or live in a folder that the settings name.
//!
//! ```text
//! ledgers ──▶ scalars ──▶ events ──▶ records ──▶ event file of a run, below a folder per job
//! ```
//!
//! What a ledger says becomes scalars under the tags of ml-goodput-measurement's own writer; these, the events and the
//! records are pure. Must never follow a link below the folder, change a file that it did not make, or write what no ledger
//! knows.

mod event;
mod event_file;
mod job_folder;
pub mod live;
mod record;
mod retention;
pub mod scalars;
pub mod settings;

pub use event_file::{EventFolder, RunWriter};
