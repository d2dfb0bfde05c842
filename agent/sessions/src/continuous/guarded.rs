//! What the guard is told and what it says, and which sessions it has to stop: pure.
//!
//! ```text
//! agent to guard:  +{record}      guard this session from now on; a sign of life
//!                  .{name}        a sign of life
//!                  -{name}        the session is over
//!                  ?              does the guard work?
//! guard to agent:  +{name}        it is guarded
//!                  ?{name}        it is not: its process cannot be told from a later one
//!                  !{name}        no sign of life for too long: the guard stops it now, and the agent leaves it alone
//!                  ={name}        it is stopped
//!                  ~{name}        it could not be stopped
//!                  .              the guard works
//! ```
//!
//! One line each. Must never take the silence of the agent for longer than it was: lines that wait to be read are signs of
//! life, so they are read first.

use std::{collections::BTreeMap, time::Duration};

use super::ownership::OwnedSession;

/// How many intervals without a sign of life are silence.
const SILENT_INTERVALS: u32 = 3;
/// The longest line, bytes.
pub(super) const MAX_LINE: usize = 4 << 10;
/// How many sessions are guarded: far more than a host has workloads.
const MAX_SESSIONS: usize = 1024;

/// What the guard says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GuardSays {
    /// The session is guarded.
    Guarded(String),
    /// It is not.
    NotGuarded(String),
    /// The guard stops it now.
    Stopping(String),
    /// It is stopped.
    Stopped(String),
    /// It could not be stopped.
    NotStopped(String),
    /// The guard works.
    Works,
}

impl GuardSays {
    /// As a line.
    pub(super) fn line(&self) -> String {
        let (sign, name) = match self {
            Self::Works => ('.', ""),
            Self::Guarded(name) => ('+', name.as_str()),
            Self::NotGuarded(name) => ('?', name.as_str()),
            Self::Stopping(name) => ('!', name.as_str()),
            Self::Stopped(name) => ('=', name.as_str()),
            Self::NotStopped(name) => ('~', name.as_str()),
        };
        format!("{sign}{name}\n")
    }

    /// From a line without its end.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (sign, name) = line.split_at_checked(1)?;
        let name = name.to_owned();
        Some(match sign {
            "+" => Self::Guarded(name),
            "?" => Self::NotGuarded(name),
            "!" => Self::Stopping(name),
            "=" => Self::Stopped(name),
            "~" => Self::NotStopped(name),
            "." => Self::Works,
            _ => return None,
        })
    }
}

/// The lines that the agent writes.
pub(super) fn guard_line(session: &OwnedSession) -> String {
    // A record of plain fields has no text that JSON cannot hold.
    format!("+{}\n", serde_json::to_string(session).unwrap_or_default())
}

pub(super) fn life_line(name: &str) -> String {
    format!(".{name}\n")
}

/// Asks whether the guard works.
pub(super) const QUESTION_LINE: &str = "?\n";

pub(super) fn over_line(name: &str) -> String {
    format!("-{name}\n")
}

#[derive(Debug)]
struct GuardedSession {
    session: OwnedSession,
    /// Until when the silence of the agent is normal.
    until: Duration,
}

/// The sessions that are guarded.
#[derive(Debug, Default)]
pub(super) struct GuardedSessions(BTreeMap<String, GuardedSession>);

impl GuardedSessions {
    /// Takes a line of the agent at `now`. `can_tell` says whether the process of a session can be told from a later one.
    pub(super) fn take(
        &mut self,
        line: &str,
        now: Duration,
        can_tell: impl FnOnce(&OwnedSession) -> bool,
    ) -> Option<GuardSays> {
        let (sign, rest) = line.split_at_checked(1)?;
        match sign {
            "+" => {
                let session: OwnedSession = serde_json::from_str(rest).ok()?;
                let name = session.name();
                if self.0.len() >= MAX_SESSIONS || !can_tell(&session) {
                    return Some(GuardSays::NotGuarded(name));
                }
                let until = now + silence(&session);
                self.0.insert(name.clone(), GuardedSession { session, until });
                return Some(GuardSays::Guarded(name));
            }
            "." => {
                if let Some(guarded) = self.0.get_mut(rest) {
                    guarded.until = now + silence(&guarded.session);
                }
            }
            "-" => drop(self.0.remove(rest)),
            "?" => return Some(GuardSays::Works),
            _ => {}
        }
        None
    }

    /// When the silence about a session becomes too long.
    pub(super) fn next_silence(&self) -> Option<Duration> {
        self.0.values().map(|guarded| guarded.until).min()
    }

    /// The sessions about which the agent has been silent for too long. They are guarded no more.
    pub(super) fn take_silent(&mut self, now: Duration) -> Vec<OwnedSession> {
        let (silent, heard): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(|(_, guarded)| guarded.until <= now);
        self.0 = heard.into_iter().collect();
        silent.into_iter().map(|(_, guarded)| guarded.session).collect()
    }

    /// All of them: the agent is gone.
    pub(super) fn take_all(&mut self) -> Vec<OwnedSession> {
        std::mem::take(&mut self.0).into_values().map(|guarded| guarded.session).collect()
    }
}

fn silence(session: &OwnedSession) -> Duration {
    Duration::from_millis(session.interval_ms) * SILENT_INTERVALS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::continuous::ownership::ContinuousStrategy;

    const S: Duration = Duration::from_secs(1);

    fn session(pid: u32) -> OwnedSession {
        OwnedSession {
            pid,
            start_ticks: 7,
            address: "127.0.0.1:9012".into(),
            mark: "m".into(),
            strategy: ContinuousStrategy::Drain,
            interval_ms: 1000,
            boot_id: "b".into(),
            pid_namespace: 1,
        }
    }

    fn take(guarded: &mut GuardedSessions, line: &str, now: Duration) -> Option<GuardSays> {
        guarded.take(line.trim_end(), now, |_| true)
    }

    #[test]
    fn silence_for_three_intervals_is_too_long() {
        let mut guarded = GuardedSessions::default();
        let name = session(1).name();
        assert_eq!(take(&mut guarded, &guard_line(&session(1)), S), Some(GuardSays::Guarded(name.clone())));
        assert_eq!(take(&mut guarded, &life_line(&name), 3 * S), None);
        assert_eq!((guarded.next_silence(), guarded.take_silent(5 * S)), (Some(6 * S), vec![]));
        assert_eq!(guarded.take_silent(6 * S), [session(1)]);
        assert_eq!((guarded.next_silence(), guarded.take_all()), (None, vec![]));
    }

    #[test]
    fn only_what_can_be_told_is_guarded() {
        let mut guarded = GuardedSessions::default();
        let line = guard_line(&session(1));
        let said = guarded.take(line.trim_end(), S, |_| false);
        assert_eq!(said, Some(GuardSays::NotGuarded(session(1).name())));
        assert_eq!(guarded.take_all(), []);
    }

    #[test]
    fn lines_of_the_guard_are_read_as_they_are_written() {
        let name = || "1-7-m.json".to_owned();
        for says in [
            GuardSays::Guarded(name()),
            GuardSays::NotGuarded(name()),
            GuardSays::Stopping(name()),
            GuardSays::Stopped(name()),
            GuardSays::NotStopped(name()),
            GuardSays::Works,
        ] {
            assert_eq!(GuardSays::parse(says.line().trim_end()), Some(says));
        }
        assert_eq!(GuardSays::parse(""), None);
        assert_eq!(GuardSays::parse("x1"), None);
    }

    #[test]
    fn a_question_is_answered_and_is_no_sign_of_life() {
        let mut guarded = GuardedSessions::default();
        take(&mut guarded, &guard_line(&session(1)), S);
        assert_eq!(take(&mut guarded, QUESTION_LINE, 2 * S), Some(GuardSays::Works));
        assert_eq!(guarded.take_silent(4 * S), [session(1)]);
    }

    #[derive(Debug, Clone)]
    enum Event {
        Wait(u64),
        Guard(u32),
        Life(u32),
        Over(u32),
        Nonsense(String),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..3000_u64).prop_map(Event::Wait),
            (0..3_u32).prop_map(Event::Guard),
            (0..3_u32).prop_map(Event::Life),
            (0..3_u32).prop_map(Event::Over),
            "[-+.!x]?.{0,20}".prop_map(Event::Nonsense),
        ]
    }

    proptest! {
        /// A session is stopped exactly once after it was guarded: when it was silent for three intervals, or at the end;
        /// never after it is over.
        #[test]
        fn what_is_guarded_is_stopped_or_over(events in prop::collection::vec(event(), 0..60)) {
            let mut guarded = GuardedSessions::default();
            let mut now = Duration::ZERO;
            let mut last: BTreeMap<u32, Duration> = BTreeMap::new();
            for event in events {
                match event {
                    Event::Wait(ms) => now += Duration::from_millis(ms),
                    Event::Guard(pid) => {
                        take(&mut guarded, &guard_line(&session(pid)), now);
                        last.insert(pid, now);
                    }
                    Event::Life(pid) => {
                        take(&mut guarded, &life_line(&session(pid).name()), now);
                        last.entry(pid).and_modify(|last| *last = now);
                    }
                    Event::Over(pid) => {
                        take(&mut guarded, &over_line(&session(pid).name()), now);
                        last.remove(&pid);
                    }
                    Event::Nonsense(line) => drop(take(&mut guarded, &line, now)),
                }
                let silent: Vec<u32> = guarded.take_silent(now).iter().map(|session| session.pid).collect();
                let is_silent = |last: &Duration| *last + 3 * S <= now;
                let expected: Vec<u32> =
                    last.iter().filter(|(_, last)| is_silent(last)).map(|(pid, _)| *pid).collect();
                last.retain(|_, last| !is_silent(last));
                prop_assert_eq!(silent, expected);
            }
            let left: Vec<u32> = guarded.take_all().iter().map(|session| session.pid).collect();
            prop_assert_eq!(left, last.into_keys().collect::<Vec<_>>());
        }
    }
}
