//! Waiting for what another process or thread does: asked again and again, with a deadline. No test waits for
//! something in another way.

use std::{
    thread,
    time::{Duration, Instant},
};

/// The longest that anything is waited for; a loaded machine is slow.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `check` returns something.
///
/// # Panics
/// With `what` if it does not within [`LIMIT`].
pub fn eventually<T>(what: &str, check: impl FnMut() -> Option<T>) -> T {
    wait_with(what, LIMIT, String::new, check)
}

/// Waits until `check` holds.
///
/// # Panics
/// With `what` if it does not within [`LIMIT`].
pub fn until(what: &str, mut check: impl FnMut() -> bool) {
    eventually(what, || check().then_some(()));
}

/// Waits until `check` returns something.
///
/// # Panics
/// With `what` and `evidence` if it does not within `limit`.
pub fn wait_with<T>(
    what: &str,
    limit: Duration,
    evidence: impl Fn() -> String,
    mut check: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}\n{}", evidence());
        thread::sleep(PAUSE);
    }
}

/// Waits until `check` succeeds, without blocking the thread. Its error says what is there instead.
///
/// # Panics
/// With `what` and the last error if it does not within [`LIMIT`].
pub async fn eventually_async<T>(what: &str, mut check: impl AsyncFnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match check().await {
            Ok(value) => return value,
            Err(instead) => assert!(start.elapsed() < LIMIT, "waited {LIMIT:?} for {what}\n{instead}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
