//! The differences between the strict ledger and the library, by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _, ser::SerializeSeq};

/// A difference from the library's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// Entries with equal content count once.
    DuplicateEntries,
    /// Steps that a second recorder logged are not a disruption.
    DuplicateSteps,
    /// Steps that arrived late, or after the clock was set back, do not lose time.
    ReorderedSteps,
    /// Steps without an entry count as done if a later step has an entry.
    MissingSteps,
    /// A restart at the next step is a disruption, and its outage is not productive.
    RestartAtNextStep,
    /// A restart at or before the first step of an attempt wastes the whole attempt.
    RestartFromScratch,
    /// Work after a job end counts.
    EndThenMoreWork,
    /// The running step counts up to the usual step time.
    OpenStep,
    /// The log has no job start; the job starts with its first entry.
    NoJobStart,
    /// The readable values of checkpoint entries with missing or unreadable numbers are used.
    IncompleteCheckpoint,
    /// Values that are not a number or not a time are left out.
    UnreadableValue,
    /// Phases and events that never end, or end without a start, are left out.
    UnpairedEvent,
    /// Custom events count everywhere: across steps, in the last step and outside training.
    CustomAnywhere,
    /// A checkpoint save in a lost period is part of the lost time and is not subtracted from productive time.
    SaveInLostTime,
    /// Time that several buckets claim counts once.
    OverlappingPhases,
    /// A window is cut exactly at its start and end, within steps and idle time.
    WindowEdges,
}

impl Repair {
    /// All of them.
    const ALL: [Repair; 16] = [
        Repair::DuplicateEntries,
        Repair::DuplicateSteps,
        Repair::ReorderedSteps,
        Repair::MissingSteps,
        Repair::RestartAtNextStep,
        Repair::RestartFromScratch,
        Repair::EndThenMoreWork,
        Repair::OpenStep,
        Repair::NoJobStart,
        Repair::IncompleteCheckpoint,
        Repair::UnreadableValue,
        Repair::UnpairedEvent,
        Repair::CustomAnywhere,
        Repair::SaveInLostTime,
        Repair::OverlappingPhases,
        Repair::WindowEdges,
    ];

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

    /// A short description.
    pub fn about(self) -> &'static str {
        match self {
            Repair::DuplicateEntries => "entries with equal content count once",
            Repair::DuplicateSteps => "steps that a second recorder logged are not a disruption",
            Repair::ReorderedSteps => {
                "steps that arrived late or after the clock was set back do not lose time"
            }
            Repair::MissingSteps => "steps without an entry count as done if a later step has one",
            Repair::RestartAtNextStep => "the outage before a restart at the next step is not productive",
            Repair::RestartFromScratch => {
                "a restart at or before the first step of an attempt wastes the attempt"
            }
            Repair::EndThenMoreWork => "work after a job end counts",
            Repair::OpenStep => "the running step counts up to the usual step time",
            Repair::NoJobStart => "without a job start the job starts with its first entry",
            Repair::IncompleteCheckpoint => "the readable values of incomplete checkpoint entries are used",
            Repair::UnreadableValue => "values that are not a number or not a time are left out",
            Repair::UnpairedEvent => "phases and events without a start or an end are left out",
            Repair::CustomAnywhere => "custom events count everywhere",
            Repair::SaveInLostTime => "a checkpoint save in a lost period is part of the lost time",
            Repair::OverlappingPhases => "time that several buckets claim counts once",
            Repair::WindowEdges => "a window is cut exactly at its start and end",
        }
    }
}

/// Repairs and their counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repairs(BTreeMap<Repair, u64>);

impl Repairs {
    /// Adds `times` to the count of a repair.
    pub(super) fn add(&mut self, repair: Repair, times: u64) {
        if times > 0 {
            *self.0.entry(repair).or_default() += times;
        }
    }

    /// The count of a repair.
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

/// Reads what [`Serialize`] writes.
impl<'de> Deserialize<'de> for Repairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Counted {
            name: String,
            count: u64,
        }
        let mut repairs = Self::default();
        for Counted { name, count } in Vec::<Counted>::deserialize(deserializer)? {
            let repair = Repair::ALL.into_iter().find(|repair| repair.name() == name);
            let unknown = || D::Error::custom(format_args!("{name} is no repair"));
            repairs.add(repair.ok_or_else(unknown)?, count);
        }
        Ok(repairs)
    }
}
