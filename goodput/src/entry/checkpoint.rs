//! Checkpoint entries as Orbax writes them: required keys, numeric strings, local or persistent.

use super::{payload::Fields, scalar::Scalar};
use crate::error::Error;

/// What was done with the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Written.
    Save,
    /// Read back, or read back after a failure.
    Restore,
}

/// One host's note of a save or a restore.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Save or restore.
    pub operation: Operation,
    /// Step and place: notes of one group describe one operation, seen by several hosts.
    pub group: Box<str>,
    /// Seconds in the checkpoint manager, where readable.
    pub seconds: Option<f64>,
    /// When the manager began, where noted.
    pub start: Option<f64>,
    /// Why the library fails on this entry.
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
    pub(super) fn read(fields: &Fields) -> Option<Self> {
        let (operation, required, start) = match fields.get("event_type")? {
            Scalar::Text(kind) => match &**kind {
                "save" => (Operation::Save, &SAVE[..], "checkpoint_manager_blocking_start_time"),
                "restore" | "emergency_restore" => {
                    (Operation::Restore, &RESTORE[..], "checkpoint_manager_start_time")
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
            let number = fields.get(key).ok_or_else(|| Error::key(key)).and_then(Scalar::float);
            fault = fault.or(number.err());
        }
        if operation == Operation::Restore {
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

fn group(fields: &Fields) -> Result<String, Error> {
    let place = match fields.get("directory").ok_or_else(|| Error::key("directory"))? {
        Scalar::Text(directory) if directory.starts_with("gs://") => "persistent",
        Scalar::Text(_) => "local",
        _ => return Err(Error::type_("directory is not a string")),
    };
    let step = fields.get("step").ok_or_else(|| Error::key("step"))?;
    Ok(format!("{}-{place}", step.text()))
}
