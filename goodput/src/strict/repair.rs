//! What the strict ledger does otherwise than the library, by name.

use std::collections::BTreeMap;

use serde::{Serialize, ser::SerializeSeq};

/// A departure from the library's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// Entries that say the same twice count once.
    DuplicateEntries,
    /// Steps logged by a second recorder are no disruption.
    DuplicateSteps,
    /// Steps that arrived late, or under a clock that stepped back, lose no time.
    ReorderedSteps,
    /// Steps without an entry between two that have one.
    MissingSteps,
    /// A restart at the next step is a disruption, and its outage is not productive.
    RestartAtNextStep,
    /// A restart at or before the first step of the attempt wastes all of it.
    RestartFromScratch,
    /// Work after a job end goes on counting.
    EndThenMoreWork,
    /// The step that was running counts as long as a usual one.
    OpenStep,
    /// No job start was logged; the job begins with its first entry.
    NoJobStart,
    /// Checkpoint entries with missing or unreadable numbers are used as far as they can be.
    IncompleteCheckpoint,
    /// Values that are no number or no instant are left out.
    UnreadableValue,
    /// Phases and events that never end, or end without a start, are left out.
    UnpairedEvent,
    /// Custom events count wherever they lie, also across steps, in the last step and outside training.
    CustomAnywhere,
    /// A checkpoint saved in a lost stretch is lost with it, not taken from productive time again.
    SaveInLostTime,
    /// Stretches that several buckets claim count once.
    OverlappingPhases,
    /// A window is cut exactly at its edges, through steps and idle time.
    WindowEdges,
}

impl Repair {
    /// The name in the output.
    pub fn name(self) -> &'static str {
        match self {
            Repair::DuplicateEntries => "duplicate_entries",
            Repair::DuplicateSteps => "duplicate_steps",
            Repair::ReorderedSteps => "reordered_steps",
            Repair::MissingSteps => "missing_steps",
            Repair::RestartAtNextStep => "restart_at_next_step",
            Repair::RestartFromScratch => "restart_from_scratch",
            Repair::EndThenMoreWork => "end_then_more_work",
            Repair::OpenStep => "open_step",
            Repair::NoJobStart => "no_job_start",
            Repair::IncompleteCheckpoint => "incomplete_checkpoint",
            Repair::UnreadableValue => "unreadable_value",
            Repair::UnpairedEvent => "unpaired_event",
            Repair::CustomAnywhere => "custom_event_anywhere",
            Repair::SaveInLostTime => "save_in_lost_time",
            Repair::OverlappingPhases => "overlapping_phases",
            Repair::WindowEdges => "window_edges",
        }
    }

    /// One sentence about it.
    pub fn about(self) -> &'static str {
        match self {
            Repair::DuplicateEntries => "entries that say the same twice count once",
            Repair::DuplicateSteps => "steps logged by a second recorder are no disruption",
            Repair::ReorderedSteps => {
                "steps that arrived late or under a clock that stepped back lose no time"
            }
            Repair::MissingSteps => "steps without an entry between two that have one are taken as done",
            Repair::RestartAtNextStep => "the outage before a restart at the next step is not productive",
            Repair::RestartFromScratch => "a restart at or before an attempt's first step wastes all of it",
            Repair::EndThenMoreWork => "work after a job end goes on counting",
            Repair::OpenStep => "the running step counts as long as a usual one",
            Repair::NoJobStart => "without a job start the job begins with its first entry",
            Repair::IncompleteCheckpoint => {
                "checkpoint entries with missing numbers are used as far as they can be"
            }
            Repair::UnreadableValue => "values that are no number or no instant are left out",
            Repair::UnpairedEvent => "phases and events without a start or an end are left out",
            Repair::CustomAnywhere => "custom events count wherever they lie",
            Repair::SaveInLostTime => "a checkpoint saved in a lost stretch is lost with it",
            Repair::OverlappingPhases => "stretches that several buckets claim count once",
            Repair::WindowEdges => "a window is cut exactly at its edges",
        }
    }
}

/// Repairs made, and how often.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repairs(BTreeMap<Repair, u64>);

impl Repairs {
    /// Notes a repair made `times` times; nothing if that is 0.
    pub(super) fn note(&mut self, repair: Repair, times: u64) {
        if times > 0 {
            *self.0.entry(repair).or_default() += times;
        }
    }

    /// How often a repair was made.
    pub fn count(&self, repair: Repair) -> u64 {
        self.0.get(&repair).copied().unwrap_or(0)
    }

    /// Repairs and counts.
    pub fn iter(&self) -> impl Iterator<Item = (Repair, u64)> {
        self.0.iter().map(|(repair, count)| (*repair, *count))
    }
}

#[derive(Serialize)]
struct RepairLine {
    name: &'static str,
    count: u64,
    about: &'static str,
}

impl Serialize for Repairs {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for (repair, count) in self.iter() {
            seq.serialize_element(&RepairLine { name: repair.name(), count, about: repair.about() })?;
        }
        seq.end()
    }
}
