//! Work over the network and with disks on a thread of its own, so that TLS and disks never delay the sampler.

use tokio::sync::oneshot;

/// Runs what `work` returns on a new thread with a runtime of its own, which is named `name`.
///
/// # Errors
/// If there is no thread, or it panicked.
pub async fn run<T, F>(name: &str, work: impl FnOnce() -> F + Send + 'static) -> Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let (tell, told) = oneshot::channel();
    let on_thread = move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        let done = runtime.map_err(|error| error.to_string()).map(|runtime| {
            let done = runtime.block_on(work());
            // A disk that hangs must not keep the thread.
            runtime.shutdown_background();
            done
        });
        // There is no receiver when the caller is gone.
        let _ = tell.send(done);
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(on_thread)
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    told.await.unwrap_or_else(|_| Err("the thread panicked".to_owned()))
}
