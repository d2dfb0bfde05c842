//! Checkpoint entries as Orbax writes them: required keys, numeric strings, local or persistent.

use super::{fields::PayloadFields, scalar::JsonScalar};
use crate::error::Error;

/// The operation on a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckpointOperation {
    /// The checkpoint was written.
    Save,
    /// The checkpoint was read, in normal operation or after a failure.
    Restore,
}

/// A save or a restore as one host logged it.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Save or restore.
    pub operation: CheckpointOperation,
    /// Step, and persistent or local. Entries of one group are the same operation on several hosts.
    pub group: Box<str>,
    /// Seconds in the checkpoint manager, if readable.
    pub seconds: Option<f64>,
    /// When the checkpoint manager started, in epoch seconds, if logged.
    pub start: Option<f64>,
    /// The error that the library raises for this entry.
    pub fault: Option<Error>,
}

/// The required numbers of each operation, in the order the library reads them; the first is the total.
const SAVE: [&str; 4] = [
    "checkpoint_manager_blocking_duration_secs",
    "checkpointer_blocking_duration_secs",
    "wait_for_prev_duration_secs",
    "get_old_steps_duration_secs",
];
const RESTORE: [&str; 2] = ["checkpoint_manager_duration_secs", "checkpointer_duration_secs"];

impl Checkpoint {
    /// Reads a checkpoint entry; `None` if the fields describe none.
    pub(super) fn read(fields: &PayloadFields) -> Option<Self> {
        let (operation, required, start) = match fields.get("event_type")? {
            JsonScalar::Text(kind) => match &**kind {
                "save" => (CheckpointOperation::Save, &SAVE[..], "checkpoint_manager_blocking_start_time"),
                "restore" | "emergency_restore" => {
                    (CheckpointOperation::Restore, &RESTORE[..], "checkpoint_manager_start_time")
                }
                _ => return None,
            },
            _ => return None,
        };
        let mut fault = None;
        let group = group(fields).unwrap_or_else(|error| {
            fault = Some(error);
            String::new()
        });
        for key in required {
            let number = fields.get(key).ok_or_else(|| Error::key(key)).and_then(JsonScalar::float);
            fault = fault.or(number.err());
        }
        if operation == CheckpointOperation::Restore {
            let broadcast = fields.get("broadcast_duration_secs").filter(|value| value.truthy());
            fault = fault.or(broadcast.and_then(|value| value.float().err()));
        }
        let finite = |key: &str| fields.get(key).and_then(|value| value.float().ok());
        Some(Self {
            operation,
            group: group.into(),
            seconds: finite(required[0]),
            start: finite(start),
            fault,
        })
    }
}

fn group(fields: &PayloadFields) -> Result<String, Error> {
    let storage = match fields.get("directory").ok_or_else(|| Error::key("directory"))? {
        JsonScalar::Text(directory) if directory.starts_with("gs://") => "persistent",
        JsonScalar::Text(_) => "local",
        _ => return Err(Error::type_("directory is not a string")),
    };
    let step = fields.get("step").ok_or_else(|| Error::key("step"))?;
    Ok(format!("{}-{storage}", step.text()))
}
