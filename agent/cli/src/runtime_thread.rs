//! A runtime on a thread of its own, for commands that read from the network as one reads from a file.
//!
//! The connections are kept alive while the command computes: their tasks run on that thread. Must never be used by the
//! agent, or inside another runtime.

use std::{
    io,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use tokio::{
    runtime::{Builder, EnterGuard, Handle},
    sync::oneshot,
};

/// The runtime. It ends with this value.
#[derive(Debug)]
pub(crate) struct RuntimeThread {
    handle: Handle,
    /// `None` once it is to end.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RuntimeThread {
    /// Starts it.
    ///
    /// # Errors
    /// If there is no runtime or no thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (give, given) = mpsc::channel();
        let thread = thread::Builder::new().name("network".to_owned()).spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(give.send(Err(error))),
            };
            // An error says that the starter is gone; then `stopped` ends at once.
            let _ = give.send(Ok(runtime.handle().clone()));
            let _ = runtime.block_on(stopped);
        })?;
        let handle = given.recv().map_err(io::Error::other)??;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// The output of a future, which is polled on the thread of the caller.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }

    /// Makes it the runtime of this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }
}

impl Drop for RuntimeThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tasks_go_on_while_the_caller_does_something_else() {
        let runtime = RuntimeThread::start().unwrap();
        let (tell, told) = mpsc::channel();
        {
            let _entered = runtime.enter();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                tell.send(7).unwrap();
            });
        }
        assert_eq!(told.recv().unwrap(), 7);
        let slept = runtime.block_on(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::spawn(async { 8 }).await.unwrap()
        });
        assert_eq!(slept, 8);
    }

    #[test]
    fn its_tasks_end_with_it() {
        let runtime = RuntimeThread::start().unwrap();
        let (held, released) = mpsc::channel::<()>();
        {
            let _entered = runtime.enter();
            tokio::spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            });
        }
        drop(runtime);
        assert!(released.recv().is_err());
    }
}
