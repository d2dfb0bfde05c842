//! The owner of a job switches the recorder for it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::{
    device::Chip,
    job,
    workload::{Owner, ProcessKey, WorkloadId},
};
use store::{StateError, segments::RecorderChoice};
use thiserror::Error;
use tracing::info;
use xprof::client::Target;

use super::{Recorder, Strategy, eligibility};
use crate::{capture_runner::Caller, target};

/// What a caller chooses.
pub struct ChoiceRequest<'a> {
    /// Only for the job with this id; `None`: for all jobs of the caller.
    pub job: Option<&'a str>,
    /// Whether they are recorded.
    pub is_on: bool,
    /// In which way; `None`: as the settings say.
    pub strategy: Option<Strategy>,
    /// Whether the caller may choose for the process of this owner.
    pub may: &'a (dyn Fn(&Owner) -> bool + Sync),
    /// Who asks, for the log.
    pub caller: Caller,
}

/// How long a caller who switches the recorder off waits until the profilers are free.
const FREE_WAIT: Duration = Duration::from_secs(5);

/// Why nothing was chosen.
#[derive(Debug, Error)]
pub enum ChoiceRefused {
    /// The strategy cannot be used.
    #[error("the strategy {0} is not available: {1}")]
    Strategy(Strategy, String),
    /// The caller has no such job here.
    #[error("{}", match .0 {
        Some(job) => format!("no process of yours on this host has the job `{}`", job.escape_debug()),
        None => "no workload process of yours was found on this host".to_owned(),
    })]
    NoJob(Option<String>),
    /// The choice cannot be kept.
    #[error(transparent)]
    State(#[from] StateError),
    /// A thread ended unexpectedly.
    #[error("the choice could not be kept: {0}")]
    Panicked(String),
}

impl Recorder {
    /// Notes a choice, and lets the processes be recorded again that another program had used. The choice holds for the
    /// processes of these users in these jobs, also after a restart of the agent.
    ///
    /// # Errors
    /// If nothing was chosen.
    pub async fn choose(&self, request: &ChoiceRequest<'_>) -> Result<(), ChoiceRefused> {
        let ChoiceRequest { job, is_on, strategy, may, caller } = request;
        let (job, is_on, strategy) = (*job, *is_on, *strategy);
        let host = self.workloads.borrow().clone();
        let mut chosen: BTreeMap<(WorkloadId, u32), Vec<ProcessKey>> = BTreeMap::new();
        for owner in host.workloads.owners.iter().filter(|owner| may(owner)) {
            if job.is_none_or(|job| job::is_named(owner.job.kind, &owner.job.id, job)) {
                let key = (WorkloadId::of(&owner.job, owner.uid), owner.uid);
                chosen.entry(key).or_default().push(owner.process);
            }
        }
        if chosen.is_empty() {
            return Err(ChoiceRefused::NoJob(job.map(|job| job.chars().take(80).collect())));
        }
        if is_on {
            let strategy = strategy.unwrap_or(self.settings().recorder.strategy);
            let wanted = |owner: &&Owner| {
                may(owner) && job.is_none_or(|job| job::is_named(owner.job.kind, &owner.job.id, job))
            };
            for owner in host.workloads.owners.iter().filter(wanted) {
                self.check_strategy(strategy, owner, &host.chips).await?;
            }
        }
        let strategy = strategy.map(|strategy| strategy.as_str().to_owned());
        let switched: Vec<ProcessKey> = chosen.values().flatten().copied().collect();
        for ((workload, uid), processes) in chosen {
            let choice = RecorderChoice { workload, uid, is_on, strategy: strategy.clone() };
            self.note_choice(choice.clone(), if is_on { processes.clone() } else { Vec::new() }).await?;
            let Caller { uid: caller_uid, pid, remote } = caller;
            let (job, remote) = (choice.workload.job.clone(), remote.as_deref());
            if self.apply(choice, &processes) {
                let what = if is_on { "on" } else { "off" };
                info!(
                    job,
                    uid, caller_uid, pid, remote, "the recorder is switched {what}, as its user asked"
                );
            }
        }
        self.changed.notify_one();
        self.activity.send_replace(());
        if !is_on {
            self.wait_until_free(&switched).await;
        }
        Ok(())
    }

    /// Waits until none of these processes has a window or a session of ours open, for a bounded time: `status` says what is
    /// still open then.
    async fn wait_until_free(&self, switched: &[ProcessKey]) {
        let mut activity = self.activity.subscribe();
        let is_open = || {
            let state = self.state();
            state
                .processes
                .iter()
                .any(|(process, known)| known.is_recording && switched.contains(&process.process))
        };
        let free = async { while is_open() && activity.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(FREE_WAIT, free).await;
    }

    /// A session that is always open is refused where nothing would stop it.
    async fn check_strategy(
        &self,
        strategy: Strategy,
        owner: &Owner,
        chips: &[Chip],
    ) -> Result<(), ChoiceRefused> {
        // A process without a profiler has none to stop; `status` says so.
        let (Some(continuous), Ok(at)) = (strategy.continuous(), eligibility::profiler(owner)) else {
            return Ok(());
        };
        let target = target::target(owner, chips, &self.host, Target::from(at), Vec::new());
        let checked = self.continuous.check(&target, continuous).await;
        checked.map_err(|refusal| ChoiceRefused::Strategy(strategy, refusal.to_string()))
    }

    async fn note_choice(
        &self,
        choice: RecorderChoice,
        asked_for: Vec<ProcessKey>,
    ) -> Result<(), ChoiceRefused> {
        let segments = Arc::clone(&self.segments);
        let noted = tokio::task::spawn_blocking(move || segments.choose(&choice, &asked_for)).await;
        Ok(noted.map_err(|error| ChoiceRefused::Panicked(error.to_string()))??)
    }

    /// Returns whether the choice is another one than before.
    fn apply(&self, choice: RecorderChoice, processes: &[ProcessKey]) -> bool {
        let mut state = self.state();
        if choice.is_on {
            state.foreign_uses.retain(|process, _| !processes.contains(process));
            state.given_up.retain(|process, _| !processes.contains(process));
            // What failed before is tried again.
            for (process, known) in &mut state.processes {
                if processes.contains(&process.process) {
                    (known.failures, known.to_leave_out) = (0, 0);
                    known.continuous_again = Duration::ZERO;
                }
            }
        }
        let before = state.choices.insert((choice.workload.clone(), choice.uid), choice.clone());
        before.is_none_or(|before| (before.is_on, before.strategy) != (choice.is_on, choice.strategy))
    }
}
