//! The attempts of one job on this host, and the one rule by which what is said of them from many sides is merged.
//!
//! ```text
//!               started, seen                                  told: a hook said so
//!   unknown ───────────────────▶ open ──────────────────────▶ ended ◀──────────────────── unknown
//!                                 ▲  no process is left, and     │        ended (a hook)
//!                                 │  no hook will end it:        │
//!                                 │  concluded                   │
//!                                 └──────────────────────────────┘
//!                                   seen again, if it was only concluded;
//!                                   started after that end
//! ```
//!
//! Which attempt an event is about:
//! - One with a number is about that attempt. The end of an attempt that never started, while the one before it is open,
//!   is about that one: Slurm tells the end of a job that is put back into its queue with the number of the next attempt.
//! - A start without a number is the next attempt. The hook of a Slurm job may run twice or after its processes were seen: it
//!   is about the newest attempt until a hook has ended that.
//! - Processes without a number belong to the newest attempt, unless that has ended, or they replaced all its processes.
//!   The processes of a Slurm job come and go with its steps, so there they always belong to it until a hook ended it.
//!
//! What is known stays: an event fills in what was not known, and of two starts the earlier one counts. Only the newest
//! attempt of a job runs; attempts of `tpuscope run` may run beside each other.
//!
//! A pure state machine: no I/O and no clock. Must never have two attempts with one number, or an end before a start.

use model::{
    device::ChipIndex,
    job::{JobKey, JobKind},
    time::Timestamp,
    workload::ProcessKey,
};

use crate::attempt::{
    Attempt, AttemptEnd, AttemptLeftover, Configuration, Ending, JobDescription, MAX_LEFTOVERS,
};

/// The most attempts of one job; the oldest are forgotten first.
pub const MAX_ATTEMPTS: usize = 64;

/// Something that was said or seen of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptEvent {
    /// The number of the attempt, where known.
    pub attempt: Option<u32>,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub what: Happening,
}

/// What happened to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// A hook said that it starts.
    HookStarted(JobDescription),
    /// `tpuscope run` said that this process becomes its command.
    RunStarted(JobDescription, ProcessKey),
    /// Processes of it hold chips: all that do now.
    Seen(Sighting),
    /// No process of it holds a chip any more.
    Gone,
    /// The process of its `tpuscope run` has ended; how, where that is known.
    CommandEnded(Option<Ending>),
    /// A hook said that it ended, and what it had left then.
    HookEnded(Ending, Vec<AttemptLeftover>),
    /// This host was started since the last event: no attempt outlives that.
    Rebooted,
    /// Nothing was heard of it for so long that its end must have been missed.
    Silent,
}

/// The processes of a job on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sighting {
    /// What they say of it.
    pub description: JobDescription,
    /// The processes; at least one.
    pub processes: Vec<ProcessKey>,
    /// The chips that they hold.
    pub chips: Vec<ChipIndex>,
    /// Their software and system.
    pub configuration: Configuration,
}

/// A job as this host knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRecord {
    /// What names it.
    pub key: JobKey,
    /// Its attempts, by rising number.
    pub attempts: Vec<Attempt>,
}

/// The attempt that an event is about.
enum Target {
    Known(usize),
    New(u32),
    None,
}

impl JobRecord {
    /// A job of which nothing is known yet.
    pub fn new(key: JobKey) -> Self {
        Self { key, attempts: Vec::new() }
    }

    /// Its newest attempt.
    pub fn newest(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// The number of the attempt that would be started next.
    pub fn next_number(&self) -> u32 {
        self.newest().map_or(0, |newest| newest.number.saturating_add(1))
    }

    /// Merges what happened. Returns the number of the attempt that the event was about, if there is one.
    pub fn apply(&mut self, event: &AttemptEvent) -> Option<u32> {
        if event.what == Happening::Rebooted {
            self.end_all(Ending::NodeLost);
            return None;
        }
        let index = match self.target(event) {
            Target::Known(index) => index,
            Target::New(number) => self.insert(number),
            Target::None => return None,
        };
        let number = self.attempts[index].number;
        let early_end = event.attempt.is_some_and(|said| said != number);
        apply_to(&mut self.attempts[index], event, early_end);
        self.end_all_but_newest(event.at);
        let excess = self.attempts.len().saturating_sub(MAX_ATTEMPTS);
        self.attempts.drain(..excess);
        Some(number)
    }

    fn target(&self, event: &AttemptEvent) -> Target {
        let known = |number: u32| self.attempts.binary_search_by_key(&number, |attempt| attempt.number);
        let last = self.attempts.len().checked_sub(1);
        match (&event.what, event.attempt) {
            (Happening::HookEnded(..), Some(number)) => match known(number) {
                Ok(index) => Target::Known(index),
                Err(next) => match next.checked_sub(1) {
                    Some(before) if self.attempts[before].is_open() => Target::Known(before),
                    _ => Target::New(number),
                },
            },
            (Happening::HookEnded(..), None) => last.map_or(Target::New(0), Target::Known),
            (Happening::Gone | Happening::CommandEnded(_) | Happening::Silent, Some(number)) => {
                known(number).map_or(Target::None, Target::Known)
            }
            (Happening::Gone | Happening::CommandEnded(_) | Happening::Silent, None) => {
                last.map_or(Target::None, Target::Known)
            }
            (_, Some(number)) => known(number).map_or(Target::New(number), Target::Known),
            (Happening::HookStarted(_), None) => match last {
                Some(last) if self.is_started_again(&self.attempts[last], event.at) => Target::Known(last),
                _ => Target::New(self.next_number()),
            },
            (Happening::Seen(sighting), None) => match last {
                Some(last) if self.belongs(sighting, &self.attempts[last]) => Target::Known(last),
                _ => Target::New(self.next_number()),
            },
            (_, None) => Target::New(self.next_number()),
        }
    }

    /// Whether the start that a hook tells without a number is that of the newest attempt.
    fn is_started_again(&self, newest: &Attempt, at: Timestamp) -> bool {
        self.key.kind == JobKind::Slurm && newest.end.is_none_or(|end| !end.told || at <= end.at)
    }

    /// Whether processes that do not say which attempt they are belong to the newest one.
    fn belongs(&self, sighting: &Sighting, newest: &Attempt) -> bool {
        if self.key.kind == JobKind::Slurm {
            return newest.end.is_none_or(|end| !end.told);
        }
        let before = &newest.processes;
        newest.is_open()
            && (before.is_empty() || before.iter().any(|process| sighting.processes.contains(process)))
    }

    /// Inserts an attempt without anything known, unless it is there: after the greatest number there is no next one.
    /// Returns its index.
    fn insert(&mut self, number: u32) -> usize {
        let index = self.attempts.partition_point(|attempt| attempt.number < number);
        if self.attempts.get(index).is_none_or(|attempt| attempt.number != number) {
            self.attempts.insert(index, Attempt { number, ..Attempt::default() });
        }
        index
    }

    /// A job runs in its newest attempt alone; only `tpuscope run` may start one beside another.
    fn end_all_but_newest(&mut self, at: Timestamp) {
        let Some((_, older)) = self.attempts.split_last_mut() else { return };
        if self.key.kind == JobKind::Run {
            return;
        }
        for attempt in older.iter_mut().filter(|attempt| attempt.is_open()) {
            attempt.finish(AttemptEnd { at, how: Ending::Requeued, told: false });
            attempt.forget_processes();
        }
    }

    /// Ends all attempts, each when it was last heard of.
    fn end_all(&mut self, how: Ending) {
        for attempt in self.attempts.iter_mut().filter(|attempt| attempt.is_open()) {
            attempt.end_when_last_heard_of(how);
        }
    }
}

/// Merges an event into its attempt. `early_end`: it is the end of this attempt, told with the number of the next one.
fn apply_to(attempt: &mut Attempt, event: &AttemptEvent, early_end: bool) {
    let at = event.at;
    if event.what != Happening::Silent {
        attempt.last_event = attempt.last_event.max(at);
    }
    match &event.what {
        Happening::HookStarted(description) => {
            attempt.description.update(description);
            started(attempt, at);
            attempt.awaits_hook = attempt.is_open();
        }
        Happening::RunStarted(description, command) => {
            attempt.description.update(description);
            started(attempt, at);
            attempt.command = attempt.is_open().then_some(*command);
            attempt.command_ending = None;
        }
        Happening::Seen(Sighting { description, processes, chips, configuration }) => {
            attempt.description.update(description);
            attempt.configuration.extend(configuration.clone());
            attempt.processes.clone_from(processes);
            attempt.chips.clone_from(chips);
            attempt.end = attempt.end.filter(|end| end.told);
            attempt.started_no_later(at);
        }
        Happening::Gone => {
            attempt.processes.clear();
            conclude(attempt, at);
        }
        Happening::CommandEnded(how) => {
            attempt.command = None;
            attempt.command_ending = *how;
            conclude(attempt, at);
        }
        Happening::HookEnded(how, leftovers) => {
            let how = if early_end { Ending::Requeued } else { *how };
            // Of hooks that run twice the first one counts: what it found may be gone since.
            if attempt.end.is_none_or(|end| !end.told) {
                attempt.leftovers = leftovers.iter().take(MAX_LEFTOVERS).cloned().collect();
            }
            attempt.finish(AttemptEnd { at, how, told: true });
            attempt.command = None;
        }
        Happening::Silent if attempt.is_open() => attempt.end_when_last_heard_of(Ending::Unknown),
        Happening::Silent | Happening::Rebooted => {}
    }
}

/// A start that is told: of one that came late the time counts, and one after the end is another life of the attempt.
fn started(attempt: &mut Attempt, at: Timestamp) {
    match attempt.end {
        Some(end) if at > end.at => {
            attempt.end = None;
            attempt.leftovers.clear();
            attempt.start = Some(at);
        }
        _ => attempt.started_no_later(at),
    }
}

/// Ends an attempt that nothing keeps alive, as its command ended if it had one.
fn conclude(attempt: &mut Attempt, at: Timestamp) {
    if attempt.is_open() && attempt.is_abandoned() {
        let how = attempt.command_ending.unwrap_or(Ending::Unknown);
        attempt.finish(AttemptEnd { at, how, told: false });
    }
}

#[cfg(test)]
mod tests;
