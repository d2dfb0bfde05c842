//! Reading one entry of an event log.
//!
//! A [`LogEntry`] is a line after reading: the log's own time, the insert id, and the recorded events in the
//! order in which the library reads their keys. A value that cannot be used becomes [`JobEvent::Damaged`]:
//! the exact ledger fails on it as the library does, the strict ledger leaves it out and reports it.

mod checkpoint;
mod event;
mod event_names;
mod fields;
mod line;
mod log_entry;
mod payload;
mod recorder_keys;
mod scalar;

pub use checkpoint::{Checkpoint, CheckpointOperation};
pub use event::{Boundary, EntryEvents, JobEvent, SliceCounts, StartupPhase};
pub use line::{EntryParser, LineError, ParsedLine, SkipReason};
pub use log_entry::{LogEntry, PayloadTime};
pub use payload::{Payload, PayloadError};
