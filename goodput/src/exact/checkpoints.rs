//! Checkpoint seconds: the mean over the hosts that logged an operation, summed over operations.

use std::collections::HashMap;

use crate::{
    entry::{Checkpoint, CheckpointOperation},
    error::Error,
};

/// Running sums of one operation.
#[derive(Debug, Default)]
struct CheckpointSums {
    groups: HashMap<Box<str>, (f64, f64)>,
    total: f64,
    fault: Option<Error>,
}

impl CheckpointSums {
    fn push(&mut self, checkpoint: &Checkpoint) {
        if let Some(fault) = &checkpoint.fault {
            self.fault.get_or_insert_with(|| fault.clone());
            return;
        }
        let seconds = checkpoint.seconds.unwrap_or(0.0);
        let (sum, count) = self.groups.entry(checkpoint.group.clone()).or_insert((0.0, 0.0));
        if *count > 0.0 {
            self.total -= *sum / *count;
        }
        *sum += seconds;
        *count += 1.0;
        self.total += *sum / *count;
    }
}

/// Save and restore seconds of a walk.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    saves: CheckpointSums,
    restores: CheckpointSums,
}

impl Checkpoints {
    pub(super) fn push(&mut self, checkpoint: &Checkpoint) {
        match checkpoint.operation {
            CheckpointOperation::Save => self.saves.push(checkpoint),
            CheckpointOperation::Restore => self.restores.push(checkpoint),
        }
    }

    /// Save and restore seconds.
    ///
    /// # Errors
    /// The error of the first incomplete entry; saves are checked before restores.
    pub(super) fn seconds(&self) -> Result<(f64, f64), Error> {
        for sums in [&self.saves, &self.restores] {
            if let Some(fault) = &sums.fault {
                return Err(fault.clone());
            }
        }
        Ok((self.saves.total, self.restores.total))
    }
}
