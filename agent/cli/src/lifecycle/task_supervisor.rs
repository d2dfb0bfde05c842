//! Supervision of the long-lived tasks: a task that panics or returns is restarted with backoff, or ends the process with
//! its reason. Tasks stop stage by stage, each stage within a deadline.

use std::{future::Future, pin::Pin, time::Duration};

use model::backoff::Backoff;
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{error, info, warn};

/// The stages of a stop, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Captures. They end first, while their callers are still connected, and release the profilers.
    Captures,
    /// Uploads: what fits into the time of the stop is sent.
    Uploads,
    /// Listeners and their connections.
    Listeners,
    /// Sampler and sources.
    Sampling,
}

const STAGES: [Stage; 4] = [Stage::Captures, Stage::Uploads, Stage::Listeners, Stage::Sampling];

/// What happens when a task ends before its stage is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnEnd {
    /// The task is restarted.
    Restart,
    /// The process ends, because it cannot work without the task.
    EndProcess,
}

/// Waits before a task is restarted.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A task that ran this long starts again with the shortest backoff.
const RECOVERED: Duration = Duration::from_secs(60);

/// The result of a task. The error says why it ended. Returning `Ok` before the stop is a fault too.
pub type TaskResult = Result<(), String>;

/// The long-lived tasks of the process.
#[derive(Debug)]
pub struct TaskSupervisor {
    stages: [(CancellationToken, JoinSet<()>); 4],
    fatal: mpsc::Sender<String>,
    fatal_seen: mpsc::Receiver<String>,
}

impl Default for TaskSupervisor {
    fn default() -> Self {
        let (fatal, fatal_seen) = mpsc::channel(1);
        Self { stages: Default::default(), fatal, fatal_seen }
    }
}

impl TaskSupervisor {
    /// A token that is cancelled when `stage` stops.
    pub fn token(&self, stage: Stage) -> CancellationToken {
        self.stages[stage as usize].0.clone()
    }

    /// Runs the future of `make` until its stage stops. `make` is called again for each restart.
    pub fn task<Make, Fut>(&mut self, stage: Stage, name: &'static str, on_end: OnEnd, mut make: Make)
    where
        Make: FnMut(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = TaskResult> + Send + 'static,
    {
        let fatal = self.fatal.clone();
        let (stop, tasks) = &mut self.stages[stage as usize];
        let stop = stop.clone();
        let mut start =
            move |stop| -> Pin<Box<dyn Future<Output = TaskResult> + Send>> { Box::pin(make(stop)) };
        tasks.spawn(async move {
            let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
            loop {
                let started = Instant::now();
                let why = why_ended(AbortOnDropHandle::new(tokio::spawn(start(stop.clone()))).await);
                if stop.is_cancelled() {
                    return;
                }
                if on_end == OnEnd::EndProcess {
                    error!(task = name, why, "an essential task ended");
                    // If the channel is full, an earlier reason already ends the process.
                    let _ = fatal.try_send(format!("{name} ended: {why}"));
                    return;
                }
                if started.elapsed() > RECOVERED {
                    backoff.succeeded();
                }
                let wait = backoff.failed(fastrand::f64());
                warn!(task = name, why, ?wait, "a task ended and will be restarted");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }

    /// Waits until an essential task ends. Returns the reason.
    pub async fn fatal(&mut self) -> String {
        match self.fatal_seen.recv().await {
            Some(why) => why,
            // The supervisor has a sender itself.
            None => std::future::pending().await,
        }
    }

    /// Stops every stage in order. A stage may take half of the remaining `limit`; then its tasks are dropped. `hurry`
    /// ends the waiting.
    pub async fn stop(&mut self, limit: Duration, hurry: impl Future<Output = ()>) {
        let deadline = Instant::now() + limit;
        tokio::pin!(hurry);
        let mut hurried = false;
        for stage in STAGES {
            let (stop, tasks) = &mut self.stages[stage as usize];
            stop.cancel();
            let share = deadline.saturating_duration_since(Instant::now()) / 2;
            if !hurried {
                let joined = timeout(share, async { while tasks.join_next().await.is_some() {} });
                tokio::select! {
                    done = joined => if done.is_err() {
                        warn!(?stage, ?share, "tasks did not stop in time and were aborted");
                    },
                    () = &mut hurry => hurried = true,
                }
            }
            tasks.shutdown().await;
        }
        info!("stopped");
    }
}

fn why_ended(joined: Result<TaskResult, JoinError>) -> String {
    match joined {
        Ok(Ok(())) => "it returned".into(),
        Ok(Err(why)) => why,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => format!("it panicked: {}", panic_text(&*panic)),
            Err(_) => "it was aborted".into(),
        },
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;

    async fn never() {
        std::future::pending::<()>().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_panicking_task_is_restarted() {
        let mut supervisor = TaskSupervisor::default();
        let starts = Arc::new(AtomicU32::new(0));
        let (seen, mut up) = mpsc::channel(1);
        let count = starts.clone();
        supervisor.task(Stage::Listeners, "shaky", OnEnd::Restart, move |stop| {
            let (nth, seen) = (count.fetch_add(1, Ordering::SeqCst), seen.clone());
            async move {
                match nth {
                    0 => panic!("the first start"),
                    1 => return Err("the second start".into()),
                    2 => return Ok(()),
                    _ => {}
                }
                seen.send(()).await.unwrap();
                stop.cancelled().await;
                Ok(())
            }
        });
        up.recv().await.unwrap();
        assert_eq!(starts.load(Ordering::SeqCst), 4);
        supervisor.stop(Duration::from_secs(1), never()).await;
        assert_eq!(starts.load(Ordering::SeqCst), 4, "a stopped task is not restarted");
    }

    #[tokio::test]
    async fn an_essential_task_ends_the_process_with_its_reason() {
        let mut supervisor = TaskSupervisor::default();
        supervisor.task(Stage::Sampling, "sampler", OnEnd::EndProcess, |_| async { panic!("broken {}", 1) });
        assert_eq!(supervisor.fatal().await, "sampler ended: it panicked: broken 1");
    }

    #[tokio::test(start_paused = true)]
    async fn stages_stop_in_order_and_a_stuck_one_is_dropped() {
        let mut supervisor = TaskSupervisor::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        for (stage, name) in
            [(Stage::Sampling, "sampling"), (Stage::Captures, "work"), (Stage::Listeners, "listeners")]
        {
            let order = order.clone();
            supervisor.task(stage, name, OnEnd::EndProcess, move |stop| {
                let order = order.clone();
                async move {
                    stop.cancelled().await;
                    order.lock().unwrap().push(name);
                    Ok(())
                }
            });
        }
        let dropped = Arc::new(());
        let held = dropped.clone();
        supervisor.task(Stage::Captures, "stuck", OnEnd::Restart, move |_| {
            let held = held.clone();
            async move {
                let _held = held;
                never().await;
                Ok(())
            }
        });
        supervisor.stop(Duration::from_secs(8), never()).await;
        assert_eq!(*order.lock().unwrap(), ["work", "listeners", "sampling"]);
        assert_eq!(Arc::strong_count(&dropped), 1, "the stuck task is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_the_waiting() {
        let mut supervisor = TaskSupervisor::default();
        supervisor.task(Stage::Captures, "stuck", OnEnd::Restart, |_| async {
            never().await;
            Ok(())
        });
        let began = tokio::time::Instant::now();
        supervisor.stop(Duration::from_secs(60), async {}).await;
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
