//! Stops the sessions of records: for an agent that died, by the guard, by the unit's `ExecStopPost=`, and at the next start
//! of the agent.
//!
//! Must never send anything to a process that is not the one of the record: another program may have its pid or its port.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use xprof::client::{self, ProfilerClient, Target};

use super::{
    ownership::{OwnedSession, PidScope, ProcessStanding},
    stopping::{StopAnswer, StopEnd, StopStep, Stopping},
};

/// How long a connection to a profiler may take, and its answer to a stop.
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(2);

/// What became of the session of a record.
#[derive(Debug)]
pub enum RecordedEnd {
    /// It is over.
    Over(StopEnd),
    /// It is not: the process could not be told from a later one.
    NotTold,
    /// It is not certain: no attempt within the time succeeded. The last error.
    Failed(Option<client::Error>),
}

impl RecordedEnd {
    /// Whether nothing is left to stop.
    pub fn is_over(&self) -> bool {
        // What cannot be stopped runs as long as the process does.
        matches!(self, Self::Over(end) if *end != StopEnd::CannotStop)
    }
}

/// Stops the sessions of these records, all at once, each within `within`.
pub async fn stop_recorded(
    sessions: Vec<OwnedSession>,
    scope: PidScope,
    within: Duration,
) -> Vec<(OwnedSession, RecordedEnd)> {
    let scope = Arc::new(scope);
    let mut stops = JoinSet::new();
    for session in sessions {
        let scope = Arc::clone(&scope);
        stops.spawn(async move {
            let end = stop_one(&session, &scope, within).await;
            (session, end)
        });
    }
    let mut ended = Vec::new();
    while let Some(stopped) = stops.join_next().await {
        // A task of these does not panic; the record of one that did is still there.
        ended.extend(stopped);
    }
    ended
}

/// Stops the session of one record.
pub(super) async fn stop_one(session: &OwnedSession, scope: &PidScope, within: Duration) -> RecordedEnd {
    let Some(target) = session.target() else { return RecordedEnd::NotTold };
    let begin = Instant::now();
    // An agent that died may have died while a start or a snapshot was under way.
    let mut stopping = Stopping::new(true);
    loop {
        match scope.process_of(session) {
            ProcessStanding::Runs => {}
            ProcessStanding::Ended => return RecordedEnd::Over(StopEnd::ProcessGone),
            ProcessStanding::Unknown => return RecordedEnd::NotTold,
        }
        let result = attempt(&target).await;
        let wait = match stopping.answered(StopAnswer::from(&result), begin.elapsed()) {
            StopStep::Ended(end) => return RecordedEnd::Over(end),
            StopStep::Again(wait) => wait,
        };
        if begin.elapsed() + wait > within {
            return RecordedEnd::Failed(result.err());
        }
        sleep(wait).await;
    }
}

/// One attempt, on a connection of its own.
pub(super) async fn attempt(target: &Target) -> Result<(), client::Error> {
    let client = ProfilerClient::connect(target, CONNECT).await?;
    client.stop_continuous(ANSWER).await
}
