//! Work on files that may not answer, on blocking threads, a few calls at a time.
//!
//! The thread of the asynchronous tasks must never wait for a disk. A call that does not return in time fails
//! and keeps its thread. While all slots are in use, further calls fail immediately, so a file system that hangs never
//! takes all threads.

use std::{panic, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

/// The files did not answer in time, or earlier calls still wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the file system does not answer")]
pub(super) struct Unanswered;

/// Room for a few blocking calls; clones share it.
#[derive(Debug, Clone)]
pub(super) struct BlockingSlots(Arc<Semaphore>);

impl BlockingSlots {
    /// Room for `calls` at a time.
    pub(super) fn new(calls: usize) -> Self {
        Self(Arc::new(Semaphore::new(calls)))
    }

    /// Runs `work` on a blocking thread and returns its result, within `deadline`. Panics as `work` does.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        deadline: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let permit = Arc::clone(&self.0).try_acquire_owned().map_err(|_| Unanswered)?;
        let call = spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        match timeout(deadline, call).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => match error.try_into_panic() {
                Ok(panic) => panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(Unanswered),
            },
            Err(_) => Err(Unanswered),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_is_given_up_and_costs_one_thread() {
        let slots = BlockingSlots::new(1);
        let (release, hang) = mpsc::channel::<()>();
        let (ended, end) = tokio::sync::oneshot::channel();
        let work = move || {
            let _ = hang.recv();
            ended.send(()).unwrap();
        };
        // Paused time does not advance by itself while a blocking call runs.
        let time = tokio::time::advance(2 * DEADLINE);
        let (result, ()) = tokio::join!(slots.run(DEADLINE, work), time);
        assert_eq!(result, Err(Unanswered));
        assert_eq!(slots.run(DEADLINE, || panic!("a second thread")).await, Err::<(), _>(Unanswered));
        drop(release);
        end.await.unwrap();
        while slots.0.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(slots.run(DEADLINE, || 7).await, Ok(7));
    }
}
