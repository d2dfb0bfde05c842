//! The jobs of this host for tasks that must not block, and the task that follows what runs: processes that discovery
//! sees, and commands of `tpuscope run`.
//!
//! Must never lose an end because the disk refused: what could not be kept is looked at again.

use std::{io, sync::Arc, time::Duration};

use host::discovery::Discovery;
use model::{job::JobKey, snapshot::HostSnapshot, time::Timestamp};
use store::StateError;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    attempt::{Ending, JobDescription},
    command_end::FollowedProcess,
    configuration::SystemFacts,
    observed::ObservedJobs,
    record::{AttemptEvent, Happening, JobRecord},
    registry::{MAX_OPEN, Registry, ToldAttempt},
    settings::JobSettings,
};

/// Time between two notes that what runs is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(60);
/// Time after which what could not be kept is told again.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Notes after which the limits are applied.
const PRUNE_AFTER: u32 = 10;
/// The most commands of `tpuscope run` that are followed at a time.
const MAX_COMMANDS: usize = 512;
/// The most calls of the registry that block at the same time.
const MAX_CALLS: usize = 4;

/// Why a job cannot be registered or read.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    /// The database of the agent refuses.
    #[error(transparent)]
    State(#[from] StateError),
    /// The process that calls cannot be followed.
    #[error("the agent cannot follow the process of the command: {0}")]
    NotFollowed(io::Error),
    /// Too many.
    #[error("the agent follows {MAX_COMMANDS} commands already")]
    TooMany,
    /// Too many of one user.
    #[error("{MAX_OPEN} jobs of this user are registered and have not ended")]
    TooManyOpen,
    /// The call panicked.
    #[error("the registry failed: {0}")]
    Panicked(String),
}

/// The jobs of this host; clones share them.
#[derive(Debug, Clone)]
pub struct Jobs(Arc<SharedJobs>);

#[derive(Debug)]
struct SharedJobs {
    registry: Arc<Registry>,
    calls: Arc<Semaphore>,
    commands: Arc<Semaphore>,
    system: SystemFacts,
}

impl Jobs {
    /// The jobs of this registry, on a host of this kind.
    pub fn new(registry: Arc<Registry>, system: SystemFacts) -> Self {
        let (calls, commands) = (Arc::new(Semaphore::new(MAX_CALLS)), Arc::new(Semaphore::new(MAX_COMMANDS)));
        Self(Arc::new(SharedJobs { registry, calls, commands, system }))
    }

    /// Replaces the settings.
    pub fn set_settings(&self, settings: &JobSettings) {
        self.0.registry.set_settings(settings);
    }

    /// Makes one call of the registry, on a thread that may block.
    ///
    /// # Errors
    /// The call's own, or that it panicked.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Registry) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, JobsError> {
        let panicked = |error: &dyn ToString| JobsError::Panicked(error.to_string());
        let permit = Arc::clone(&self.0.calls).acquire_owned().await.map_err(|error| panicked(&error))?;
        let registry = Arc::clone(&self.0.registry);
        let called = tokio::task::spawn_blocking(move || {
            let result = call(&registry);
            drop(permit);
            result
        });
        Ok(called.await.map_err(|error| panicked(&error))??)
    }

    /// Merges what was told of the start of a job.
    ///
    /// # Errors
    /// If the disk refuses, or its user has too many that have not ended.
    pub async fn start(&self, key: JobKey, event: AttemptEvent) -> Result<Option<ToldAttempt>, JobsError> {
        let uid = key.uid;
        if !self.call(move |registry| registry.has_room(uid)).await? {
            return Err(JobsError::TooManyOpen);
        }
        self.tell(key, event).await
    }

    /// Merges what was told of a job.
    ///
    /// # Errors
    /// If the disk refuses.
    pub async fn tell(&self, key: JobKey, event: AttemptEvent) -> Result<Option<ToldAttempt>, JobsError> {
        self.call(move |registry| registry.tell(&key, &event)).await
    }

    /// Registers the command that the process `pid` becomes, and follows it until it ends.
    ///
    /// # Errors
    /// If it cannot be followed, or the disk refuses.
    pub async fn start_run(
        &self,
        key: JobKey,
        attempt: Option<u32>,
        at: Timestamp,
        description: JobDescription,
        pid: u32,
    ) -> Result<Option<ToldAttempt>, JobsError> {
        let Ok(permit) = Arc::clone(&self.0.commands).try_acquire_owned() else {
            return Err(JobsError::TooMany);
        };
        let opened = tokio::task::spawn_blocking(move || FollowedProcess::of(pid)).await;
        let followed = opened.map_err(|error| JobsError::Panicked(error.to_string()))?;
        let followed = followed.map_err(JobsError::NotFollowed)?;
        let what = Happening::RunStarted(description, followed.process());
        let told = self.start(key, AttemptEvent { attempt, at, what }).await?;
        if let Some(told) = &told {
            self.follow(followed, told.clone(), permit);
        }
        Ok(told)
    }

    /// Tells the registry when this process has ended.
    fn follow(&self, process: FollowedProcess, told: ToldAttempt, permit: OwnedSemaphorePermit) {
        let jobs = self.clone();
        tokio::spawn(async move {
            let pid = process.process().pid;
            match process.ended().await {
                Ok(ended) => {
                    let at = jobs.0.registry.now();
                    jobs.command_ended(told, at, ended.how().await).await;
                }
                Err(error) => warn!(pid, %error, "the end of a command of `tpuscope run` is not noticed"),
            }
            drop(permit);
        });
    }

    async fn command_ended(&self, told: ToldAttempt, at: Timestamp, how: Option<Ending>) {
        let ToldAttempt { key, attempt } = told;
        debug!(job = %key, attempt, "command ended");
        let event = AttemptEvent { attempt: Some(attempt), at, what: Happening::CommandEnded(how) };
        // A disk that is full may have room later.
        while let Err(error) = self.tell(key.clone(), event.clone()).await {
            warn!(job = %key, %error, "the end of a command cannot be kept yet");
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// Follows what runs on this host until `stop`.
    ///
    /// # Errors
    /// If what an earlier agent left cannot be read.
    pub async fn run(&self, discovery: Discovery, stop: CancellationToken) -> Result<(), String> {
        let mut snapshots = discovery.snapshot();
        if stop.run_until_cancelled(discovery.first_scan()).await.is_none() {
            return Ok(());
        }
        let open = self.call(Registry::open_jobs).await.map_err(|error| error.to_string())?;
        let mut observed = ObservedJobs::default();
        observed.resume(&open);
        self.resume_commands(&open).await;
        let mut ticks = tokio::time::interval(ALIVE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut until_prune = 1;
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            let is_kept;
            (observed, is_kept) = self.look(observed, snapshot).await;
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                // A disk that is full may have room later.
                () = tokio::time::sleep(RETRY_AFTER), if !is_kept => {}
                changed = snapshots.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                _ = ticks.tick() => {
                    until_prune -= 1;
                    let prune = until_prune == 0;
                    if prune {
                        until_prune = PRUNE_AFTER;
                    }
                    self.keep_alive(prune).await;
                }
            }
        }
    }

    /// Tells the registry what changed on the host, and whether that is kept. What is not is told again after the next look,
    /// with the time of this one.
    async fn look(&self, before: ObservedJobs, snapshot: HostSnapshot) -> (ObservedJobs, bool) {
        let at = self.0.registry.now();
        let (events, after) = before.look(&snapshot, &self.0.system, at);
        for (key, event) in events {
            if let Err(error) = self.tell(key.clone(), event).await {
                warn!(job = %key, %error, "what happened to a job cannot be kept yet");
                return (before.again_after(&after, at), false);
            }
        }
        (after, true)
    }

    /// Follows the commands of an earlier agent; those that ended while no agent ran ended when they were last heard of.
    async fn resume_commands(&self, open: &[JobRecord]) {
        for record in open {
            for attempt in &record.attempts {
                let Some(command) = attempt.command else { continue };
                let told = ToldAttempt { key: record.key.clone(), attempt: attempt.number };
                let opened = tokio::task::spawn_blocking(move || FollowedProcess::of(command.pid)).await;
                let same = opened.ok().and_then(Result::ok).filter(|followed| followed.process() == command);
                match (same, Arc::clone(&self.0.commands).try_acquire_owned()) {
                    (Some(followed), Ok(permit)) => self.follow(followed, told, permit),
                    _ => {
                        let (jobs, at) = (self.clone(), attempt.last_event);
                        tokio::spawn(async move { jobs.command_ended(told, at, None).await });
                    }
                }
            }
        }
    }

    /// Notes that what runs is alive; `prune` also applies the limits.
    async fn keep_alive(&self, prune: bool) {
        let monotonic = Instant::now();
        let noted = self.call(move |registry| {
            registry.note_alive()?;
            if prune { registry.prune(monotonic) } else { Ok(()) }
        });
        if let Err(error) = noted.await {
            warn!(%error, "the jobs of this host cannot be kept up to date");
        }
    }
}
