//! The guard as the agent sees it: started with the first session, told of each, started again when it dies, and ended with
//! the last session.
//!
//! One task has the process and its pipes, and asks again and again whether the guard works: one that does not answer is
//! killed, and another one is started. Must never let a session start that is not guarded.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, warn};

use super::{
    guard::WHILE_SILENT,
    guard_questions::{ANSWER, GuardDue, GuardQuestions},
    guarded::{GuardSays, QUESTION_LINE, guard_line, life_line, over_line},
    ownership::OwnedSession,
};

/// The first word of its command line, whatever the path of the program: `pgrep -f 'tpuscope profiler-guard'` finds it.
const FIRST_WORD: &str = "tpuscope";
/// The wait before a guard that died is started again.
const RESTART_WAIT: Duration = Duration::from_millis(200);
/// So many guards in a row that die at once are enough.
const MOST_RESTARTS: u32 = 5;
/// Lines that wait for the task.
const INBOX: usize = 64;

/// How to start a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardCommand {
    /// The program; it calls [`super::guard::run`].
    pub program: PathBuf,
    /// Its arguments.
    pub words: Vec<OsString>,
}

/// Why a session is not guarded.
#[derive(Debug, thiserror::Error)]
pub enum GuardFault {
    /// It cannot be started.
    #[error("the guard process cannot be started: {0}")]
    Start(#[source] io::Error),
    /// It ended, or did not answer.
    #[error("the guard process does not answer")]
    NoAnswer,
    /// It cannot tell the workload from a later process.
    #[error("the guard process cannot see the workload's process")]
    Blind,
}

/// What the guard has done to a session, because the agent was silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuardClaim {
    /// It stops it.
    Stopping,
    /// It has stopped it.
    Stopped,
    /// It could not stop it.
    NotStopped,
}

enum GuardOrder {
    Guard(OwnedSession, oneshot::Sender<Result<(), GuardFault>>),
    Life(String),
    Over(String),
}

type Claims = Arc<Mutex<BTreeMap<String, GuardClaim>>>;

/// The guard of this agent. Dropped, it is told that the agent is gone.
#[derive(Debug)]
pub(super) struct GuardHandle {
    orders: mpsc::Sender<GuardOrder>,
    claims: Claims,
}

impl GuardHandle {
    /// No process yet. Needs a runtime.
    pub(super) fn new(command: GuardCommand) -> Self {
        let (orders, inbox) = mpsc::channel(INBOX);
        let claims = Claims::default();
        let task = GuardTask {
            command,
            inbox,
            claims: Arc::clone(&claims),
            sessions: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: None,
            epoch: Instant::now(),
            restarts: 0,
        };
        tokio::spawn(task.run());
        Self { orders, claims }
    }

    /// Guards a session from now on.
    ///
    /// # Errors
    /// If it is not guarded.
    pub(super) async fn guard(&self, session: &OwnedSession) -> Result<(), GuardFault> {
        let (reply, answer) = oneshot::channel();
        let order = GuardOrder::Guard(session.clone(), reply);
        self.orders.send(order).await.map_err(|_| GuardFault::NoAnswer)?;
        match timeout(ANSWER, answer).await {
            Ok(Ok(answer)) => answer,
            _ => Err(GuardFault::NoAnswer),
        }
    }

    /// A sign of life about a session.
    pub(super) async fn life(&self, name: &str) {
        // The task runs as long as this value.
        let _ = self.orders.send(GuardOrder::Life(name.to_owned())).await;
    }

    /// The session is over.
    pub(super) async fn over(&self, name: &str) {
        let _ = self.orders.send(GuardOrder::Over(name.to_owned())).await;
    }

    /// What the guard has done to a session by itself.
    pub(super) fn claim(&self, name: &str) -> Option<GuardClaim> {
        self.claims().get(name).copied()
    }

    fn claims(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, GuardClaim>> {
        // The map is whole even if a holder of the lock panicked.
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct RunningGuard {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    questions: GuardQuestions,
}

struct GuardTask {
    command: GuardCommand,
    inbox: mpsc::Receiver<GuardOrder>,
    claims: Claims,
    sessions: BTreeMap<String, OwnedSession>,
    /// Sessions that the guard has not confirmed yet.
    waiting: BTreeMap<String, oneshot::Sender<Result<(), GuardFault>>>,
    running: Option<RunningGuard>,
    epoch: Instant,
    /// Guards that died since one answered.
    restarts: u32,
}

impl GuardTask {
    async fn run(mut self) {
        loop {
            let due = self.running.as_ref().map(|running| running.questions.due());
            let until = due.map(|(at, _)| self.epoch + at);
            tokio::select! {
                // This process may have been stopped: what the guard has said meanwhile is read before its time counts.
                biased;
                line = next_line(&mut self.running) => match line {
                    Some(line) => self.hear(&line),
                    None => self.died().await,
                },
                order = self.inbox.recv() => match order {
                    Some(order) => self.take(order).await,
                    // The pipe is closed with this task: the guard stops what is left and ends by itself.
                    None => return,
                },
                () = sleep_until_or_never(until) => match due {
                    Some((_, GuardDue::NoAnswer)) => {
                        warn!("the guard process of continuous profiling does not answer and is killed");
                        self.died().await;
                    }
                    _ => self.ask().await,
                },
            }
        }
    }

    async fn take(&mut self, order: GuardOrder) {
        match order {
            GuardOrder::Guard(session, reply) => {
                let (name, line) = (session.name(), guard_line(&session));
                self.sessions.insert(name.clone(), session);
                self.waiting.insert(name.clone(), reply);
                if self.running.is_some() {
                    return self.write(&line).await;
                }
                // A new guard is told of all sessions, and so of this one.
                self.restarts = 0;
                if let Err(error) = self.start().await
                    && let Some(reply) = self.waiting.remove(&name)
                {
                    self.sessions.remove(&name);
                    let _ = reply.send(Err(GuardFault::Start(error)));
                }
            }
            GuardOrder::Life(name) => self.write(&life_line(&name)).await,
            GuardOrder::Over(name) => {
                self.sessions.remove(&name);
                self.waiting.remove(&name);
                self.claims.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                self.write(&over_line(&name)).await;
                if self.sessions.is_empty() {
                    self.end().await;
                }
            }
        }
    }

    async fn start(&mut self) -> io::Result<()> {
        let mut child = Command::new(&self.command.program)
            .arg0(FIRST_WORD)
            .args(&self.command.words)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The agent's standard error may be a file or a socket of the agent.
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        debug!(pid = child.id(), "the guard process is started");
        let questions = GuardQuestions::started(self.epoch.elapsed());
        let output = BufReader::new(output).lines();
        self.running = Some(RunningGuard { child, input, output, questions });
        let lines: String = self.sessions.values().map(guard_line).collect();
        self.write(&lines).await;
        Ok(())
    }

    async fn ask(&mut self) {
        let now = self.epoch.elapsed();
        if let Some(running) = &mut self.running {
            running.questions.asked(now);
        }
        self.write(QUESTION_LINE).await;
    }

    /// Writes to the guard. One that does not take it is as good as dead.
    async fn write(&mut self, lines: &str) {
        let Some(running) = &mut self.running else { return };
        let written = timeout(ANSWER, running.input.write_all(lines.as_bytes())).await;
        if !matches!(written, Ok(Ok(()))) {
            // Its end is seen by the end of its output.
            let _ = running.child.start_kill();
        }
    }

    fn hear(&mut self, line: &str) {
        let Some(says) = GuardSays::parse(line) else { return };
        let now = self.epoch.elapsed();
        if let Some(running) = &mut self.running {
            running.questions.heard();
            if matches!(says, GuardSays::Stopping(_)) {
                running.questions.is_busy(now, WHILE_SILENT);
            }
        }
        debug!(?says, "the guard process");
        let claim = |name: String, claim: GuardClaim| {
            self.claims.lock().unwrap_or_else(PoisonError::into_inner).insert(name, claim);
        };
        match says {
            // It works again after another one died.
            GuardSays::Works => self.restarts = 0,
            GuardSays::Guarded(name) => {
                self.restarts = 0;
                if let Some(reply) = self.waiting.remove(&name) {
                    let _ = reply.send(Ok(()));
                }
            }
            GuardSays::NotGuarded(name) => {
                self.sessions.remove(&name);
                if let Some(reply) = self.waiting.remove(&name) {
                    let _ = reply.send(Err(GuardFault::Blind));
                }
            }
            GuardSays::Stopping(name) => {
                warn!(
                    session = name,
                    "the agent was silent for too long, and the guard process stops a session"
                );
                claim(name, GuardClaim::Stopping);
            }
            GuardSays::Stopped(name) => {
                self.sessions.remove(&name);
                claim(name, GuardClaim::Stopped);
            }
            GuardSays::NotStopped(name) => {
                self.sessions.remove(&name);
                claim(name, GuardClaim::NotStopped);
            }
        }
    }

    /// The guard died: another one, which is told of all sessions.
    async fn died(&mut self) {
        if let Some(mut dead) = self.running.take() {
            let _ = dead.child.start_kill();
            let _ = timeout(ANSWER, dead.child.wait()).await;
        }
        // What it was about to stop is the agent's again.
        let unfinished = |claim: &mut GuardClaim| {
            if *claim == GuardClaim::Stopping {
                *claim = GuardClaim::NotStopped;
            }
        };
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).values_mut().for_each(unfinished);
        if self.sessions.is_empty() {
            return;
        }
        self.restarts += 1;
        if self.restarts <= MOST_RESTARTS {
            warn!("the guard process of continuous profiling died and is started again");
            if self.restarts > 1 {
                tokio::time::sleep(RESTART_WAIT).await;
            }
            match self.start().await {
                Ok(()) => return,
                Err(error) => warn!(%error, "the guard process cannot be started"),
            }
        }
        // Nothing would outlive the agent: the sessions are given up.
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.extend(self.sessions.keys().map(|name| (name.clone(), GuardClaim::NotStopped)));
        self.sessions.clear();
        self.waiting.clear();
    }

    /// Nothing is left to guard.
    async fn end(&mut self) {
        if let Some(RunningGuard { mut child, input, output, .. }) = self.running.take() {
            drop((input, output));
            if timeout(ANSWER, child.wait()).await.is_err() {
                let _ = child.start_kill();
            }
        }
    }
}

async fn sleep_until_or_never(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// The next line of the guard; none at its end. Without a guard this never ends.
async fn next_line(running: &mut Option<RunningGuard>) -> Option<String> {
    match running {
        Some(running) => running.output.next_line().await.ok().flatten(),
        None => std::future::pending().await,
    }
}
